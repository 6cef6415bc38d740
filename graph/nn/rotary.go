package nn

import (
	"fmt"

	"github.com/gomlx/compute/dtypes"
	ml "github.com/gomlx/gomlx/core/graph"
)

// Rotary holds the tables of a rotary position embedding over interleaved pairs (https://arxiv.org/abs/2104.09864), prepared once for
// all layers that apply them.
type Rotary struct {
	// cos and sin are [1, L, 1, D] in float32; sin is negated at even channels.
	cos, sin *ml.Node
}

// NewRotary prepares cos and sin, both [L, D] float32 with each angle twice in a row (the layout of get_1d_rotary_pos_embed with
// repeat_interleave_real in diffusers, models/embeddings.py).
func NewRotary(cos, sin *ml.Node) *Rotary {
	if cos.Rank() != 2 || !cos.Shape().Equal(sin.Shape()) || cos.Shape().Dim(1)%2 != 0 {
		panic(fmt.Sprintf("rotary tables: found cos %s and sin %s, wanted the same [L, D] with D even", cos.Shape(), sin.Shape()))
	}
	n, d := cos.Shape().Dim(0), cos.Shape().Dim(1)
	sign := ml.Const(cos.Graph(), []float32{-1, 1})
	pairs := ml.Reshape(toDType(sin, dtypes.Float32), n, d/2, 2)
	signed := ml.Mul(pairs, broadcastLast(sign, pairs))
	return &Rotary{
		cos: ml.Reshape(toDType(cos, dtypes.Float32), 1, n, 1, d),
		sin: ml.Reshape(signed, 1, n, 1, d),
	}
}

// Apply rotates each pair (2i, 2i+1) of the channels of x [B, L, H, D] by its angle, in float32, and returns x's dtype
// (apply_rotary_emb in diffusers, models/embeddings.py): y[2i] = x[2i] cos - x[2i+1] sin, y[2i+1] = x[2i+1] cos + x[2i] sin.
func (r *Rotary) Apply(x *ml.Node) *ml.Node {
	dims := x.Shape().Dimensions
	h := widen(x)
	pairs := ml.Reshape(h, dims[0], dims[1], dims[2], dims[3]/2, 2)
	swapped := ml.Reshape(ml.Reverse(pairs, 4), dims...)
	return toDType(ml.Add(ml.Mul(h, r.cos), ml.Mul(swapped, r.sin)), x.DType())
}
