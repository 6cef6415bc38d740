package nn

import (
	"fmt"

	"github.com/gomlx/compute/dtypes"
	ml "github.com/gomlx/gomlx/core/graph"
)

// Rotary holds the tables of a rotary position embedding (https://arxiv.org/abs/2104.09864), prepared once for all layers that
// apply them.
type Rotary struct {
	// cos and sin are [1 or B, L, 1, D] in float32; sin is negated at the first channel of each pair.
	cos, sin *ml.Node
	// halves says that channel i pairs with D/2 + i; else it pairs with its neighbour.
	halves bool
}

// NewRotary prepares cos and sin, both [L, D] float32 with each angle twice in a row (the layout of get_1d_rotary_pos_embed with
// repeat_interleave_real in diffusers, models/embeddings.py), or [B, L, D] where the positions of a batch's sequences differ.
func NewRotary(cos, sin *ml.Node) *Rotary {
	rank, d := cos.Rank(), cos.Shape().Dim(-1)
	if rank < 2 || rank > 3 || !cos.Shape().Equal(sin.Shape()) || d%2 != 0 {
		panic(fmt.Sprintf("rotary tables: found cos %s and sin %s, wanted the same [L, D] or [B, L, D] with D even", cos.Shape(), sin.Shape()))
	}
	batch, n := 1, cos.Shape().Dim(rank-2)
	if rank == 3 {
		batch = cos.Shape().Dim(0)
	}
	sign := ml.Const(cos.Graph(), []float32{-1, 1})
	pairs := ml.Reshape(ml.ConvertDType(sin, dtypes.Float32), batch*n, d/2, 2)
	signed := ml.Mul(pairs, broadcastLast(sign, pairs))
	return &Rotary{
		cos: ml.Reshape(ml.ConvertDType(cos, dtypes.Float32), batch, n, 1, d),
		sin: ml.Reshape(signed, batch, n, 1, d),
	}
}

// NewRotaryHalves prepares cos and sin, both [L, D/2] float32 with each angle once, for pairs (i, D/2 + i): the layout of language
// models (rotate_half in transformers, models/llama/modeling_llama.py).
func NewRotaryHalves(cos, sin *ml.Node) *Rotary {
	if cos.Rank() != 2 || !cos.Shape().Equal(sin.Shape()) {
		panic(fmt.Sprintf("rotary tables: found cos %s and sin %s, wanted the same [L, D/2]", cos.Shape(), sin.Shape()))
	}
	n, d := cos.Shape().Dim(0), 2*cos.Shape().Dim(1)
	cos, sin = ml.ConvertDType(cos, dtypes.Float32), ml.ConvertDType(sin, dtypes.Float32)
	return &Rotary{
		cos:    ml.Reshape(ml.Concatenate([]*ml.Node{cos, cos}, 1), 1, n, 1, d),
		sin:    ml.Reshape(ml.Concatenate([]*ml.Node{ml.Neg(sin), sin}, 1), 1, n, 1, d),
		halves: true,
	}
}

// Apply rotates each pair (a, b) of the channels of x [B, L, H, D] by its angle, in float32, and returns x's dtype: a cos - b sin,
// b cos + a sin. Of NewRotary the pairs are (2i, 2i+1) (apply_rotary_emb in diffusers, models/embeddings.py).
func (r *Rotary) Apply(x *ml.Node) *ml.Node {
	dims := x.Shape().Dimensions
	h := widen(x)
	var swapped *ml.Node
	if r.halves {
		parts := ml.Split(h, 3, 2)
		swapped = ml.Concatenate([]*ml.Node{parts[1], parts[0]}, 3)
	} else {
		pairs := ml.Reshape(h, dims[0], dims[1], dims[2], dims[3]/2, 2)
		swapped = ml.Reshape(ml.Reverse(pairs, 4), dims...)
	}
	return ml.ConvertDType(ml.Add(ml.Mul(h, r.cos), ml.Mul(swapped, r.sin)), x.DType())
}
