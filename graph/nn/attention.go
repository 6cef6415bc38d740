package nn

import (
	"fmt"
	"math"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	ml "github.com/gomlx/gomlx/core/graph"
)

// AttentionConfig has the options of Attention; the zero value is plain scaled dot-product attention.
type AttentionConfig struct {
	// Scale multiplies the scores; 0 means 1/sqrt(D).
	Scale float64
	// Mask, where not nil, is added to the scores. It has four axes and each is that of [B, H, Lq, Lk] or 1.
	Mask *ml.Node
}

// Long sequences are cut into chunks of queries, each with a softmax of its own over all keys: the score matrix of 4096 tokens
// and 16 heads is 1 GiB and leaves every cache. Cut or not, the same numbers come out.
const (
	chunkQueries = 512
	longQueries  = 2048 // from here on queries are cut
	longKeys     = 1024 // but not where few keys make a row short, as in cross-attention to a prompt
)

// Attention is softmax(q k^T scale + mask) v for each batch and head: q [B, Lq, H, D], k [B, Lk, H, D], v [B, Lk, H, Dv] ->
// [B, Lq, H, Dv]. The heads stay where the projections put them: the products batch over axes 0 and 2.
func Attention(q, k, v *ml.Node, cfg AttentionConfig) *ml.Node {
	checkAttention(q, k, v)
	if cfg.Scale == 0 {
		cfg.Scale = 1 / math.Sqrt(float64(q.Shape().Dim(3)))
	}
	length := q.Shape().Dim(1)
	if length < longQueries || k.Shape().Dim(1) < longKeys {
		return attend(q, k, v, cfg)
	}
	var chunks []*ml.Node
	for start := 0; start < length; start += chunkQueries {
		rows := ml.AxisRange(start, min(start+chunkQueries, length))
		chunk := cfg
		if m := cfg.Mask; m != nil && m.Shape().Dim(2) != 1 {
			chunk.Mask = ml.SliceAxis(m, 2, rows)
		}
		chunks = append(chunks, attend(ml.SliceAxis(q, 1, rows), k, v, chunk))
	}
	return ml.Concatenate(chunks, 1)
}

// attend is Attention in one piece, with the scale set.
//
// The softmax is computed in float32. It is divided by its sum after the product with v, where there are Dv numbers a row
// and not Lk.
func attend(q, k, v *ml.Node, cfg AttentionConfig) *ml.Node {
	dtype := q.DType()
	// The smaller tensor is scaled, unless rounding to half precision would come after it.
	if cfg.Scale != 1 && !isHalf(dtype) {
		q = ml.MulScalar(q, cfg.Scale)
	}
	scores := widen(ml.Dot(q, k).General([]int{3}, []int{0, 2}, []int{3}, []int{0, 2}))
	if cfg.Scale != 1 && isHalf(dtype) {
		scores = ml.MulScalar(scores, cfg.Scale)
	}
	if cfg.Mask != nil {
		scores = ml.Add(scores, toDType(cfg.Mask, scores.DType()))
	}
	p := ml.Exp(ml.Sub(scores, overLast(ml.ReduceMax(scores, -1), scores)))
	sum := ml.ReduceSum(p, -1)
	out := ml.Dot(toDType(p, dtype), v).General([]int{3}, []int{0, 1}, []int{1}, []int{0, 2})
	out = toDType(ml.Div(toDType(out, sum.DType()), overLast(sum, out)), dtype)
	return ml.TransposeAllAxes(out, 0, 2, 1, 3)
}

func checkAttention(q, k, v *ml.Node) {
	if q.Rank() == 4 && k.Rank() == 4 && v.Rank() == 4 {
		qs, ks, vs := q.Shape().Dimensions, k.Shape().Dimensions, v.Shape().Dimensions
		if qs[0] == ks[0] && qs[0] == vs[0] && qs[2] == ks[2] && qs[2] == vs[2] && qs[3] == ks[3] && ks[1] == vs[1] {
			return
		}
	}
	panic(fmt.Sprintf("attention: found query %s, key %s, value %s, wanted [B, Lq, H, D], [B, Lk, H, D], [B, Lk, H, Dv]", q.Shape(), k.Shape(), v.Shape()))
}

// SplitHeads is x [B, L, heads*D] -> [B, L, heads, D]; no data moves.
func SplitHeads(x *ml.Node, heads int) *ml.Node {
	d := x.Shape().Dimensions
	if len(d) != 3 || heads < 1 || d[2]%heads != 0 {
		panic(fmt.Sprintf("split into %d heads: found %s, wanted [B, L, a multiple of %d]", heads, x.Shape(), heads))
	}
	return ml.Reshape(x, d[0], d[1], heads, d[2]/heads)
}

// MergeHeads is x [B, L, H, D] -> [B, L, H*D].
func MergeHeads(x *ml.Node) *ml.Node {
	d := x.Shape().Dimensions
	return ml.Reshape(x, d[0], d[1], d[2]*d[3])
}

// CausalMask is the additive mask [1, 1, n, n] in float32 under which position i sees positions 0 to i: 0 there, the lowest finite
// number elsewhere (a row of -inf has no softmax). It is computed in the graph.
func CausalMask(g *ml.Graph, n int) *ml.Node {
	index := shapes.Make(dtypes.Int32, 1, 1, n, n)
	seen := ml.LessOrEqual(ml.Iota(g, index, 3), ml.Iota(g, index, 2))
	dims := index.Dimensions
	return ml.Where(seen,
		ml.BroadcastToDims(ml.Scalar(g, dtypes.Float32, 0.0), dims...),
		ml.BroadcastToDims(ml.Scalar(g, dtypes.Float32, -math.MaxFloat32), dims...))
}
