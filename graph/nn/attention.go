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
	// Mask, where not nil, has four axes and each is that of [B, H, Lq, Lk] or 1. A mask of floats is added to the scores; in one of
	// booleans true marks the keys that a query sees, and a query that sees none gives 0 (as torch's scaled_dot_product_attention does).
	Mask *ml.Node
}

// Attention is softmax(q k^T scale + mask) v for each batch and head: q [B, Lq, H, D], k [B, Lk, H, D], v [B, Lk, H, Dv] ->
// [B, Lq, H, Dv]. The heads stay where the projections put them: the products batch over axes 0 and 2.
//
// k and v may have fewer heads, a divisor G of H: each then serves H/G heads of q that follow each other (grouped-query attention,
// https://arxiv.org/abs/2305.13245), and nothing is repeated in memory.
//
// The softmax is computed in float32. It is divided by its sum after the product with v, where there are Dv numbers a row and not Lk. The pass
// chunk-attention sees to it that not all scores are in memory.
func Attention(q, k, v *ml.Node, cfg AttentionConfig) *ml.Node {
	checkAttention(q, k, v)
	if cfg.Scale == 0 {
		cfg.Scale = 1 / math.Sqrt(float64(q.Shape().Dim(3)))
	}
	dtype := q.DType()
	// The smaller tensor is scaled, unless rounding to half precision would come after it.
	if cfg.Scale != 1 && !isHalf(dtype) {
		q = ml.MulScalar(q, cfg.Scale)
	}
	heads, shared := q.Shape().Dim(2), k.Shape().Dim(2)
	var scores *ml.Node // [B, H, Lq, Lk], or [B, G, Lq, H/G, Lk] where heads of k are shared
	if heads == shared {
		scores = ml.Dot(q, k).General([]int{3}, []int{0, 2}, []int{3}, []int{0, 2})
	} else {
		d := q.Shape().Dimensions
		q = ml.Reshape(q, d[0], d[1], shared, heads/shared, d[3])
		scores = ml.Dot(q, k).General([]int{4}, []int{0, 2}, []int{3}, []int{0, 2})
	}
	scores = widen(scores)
	if cfg.Scale != 1 && isHalf(dtype) {
		scores = ml.MulScalar(scores, cfg.Scale)
	}
	mask, seen := groupMask(cfg.Mask, heads, shared), (*ml.Node)(nil)
	switch {
	case mask == nil:
	case mask.DType() == dtypes.Bool:
		seen = ml.BroadcastToDims(mask, scores.Shape().Dimensions...)
		scores = ml.Where(seen, scores, ml.BroadcastToDims(ml.Scalar(q.Graph(), scores.DType(), -math.MaxFloat32), scores.Shape().Dimensions...))
	default:
		scores = ml.Add(scores, ml.ConvertDType(mask, scores.DType()))
	}
	p := ml.Exp(ml.Sub(scores, overLast(ml.ReduceMax(scores, -1), scores)))
	if seen != nil {
		// Where no key is seen the exponents are all 1; elsewhere what is not seen is 0 already.
		p = ml.Mul(p, ml.ConvertDType(seen, p.DType()))
	}
	sum := ml.ReduceSum(p, -1)
	if seen != nil {
		// The largest of the seen scores gives 1, so only a sum of nothing is below 1.
		sum = ml.MaxScalar(sum, 1.0)
	}
	out := ml.Dot(ml.ConvertDType(p, dtype), v).General([]int{p.Rank() - 1}, []int{0, 1}, []int{1}, []int{0, 2})
	out = ml.ConvertDType(ml.Div(ml.ConvertDType(out, sum.DType()), overLast(sum, out)), dtype)
	if heads == shared {
		return ml.TransposeAllAxes(out, 0, 2, 1, 3)
	}
	d := out.Shape().Dimensions
	return ml.Reshape(ml.TransposeAllAxes(out, 0, 2, 1, 3, 4), d[0], d[2], heads, d[4])
}

// groupMask brings a mask into the form of the scores: the identity where each head has its own keys, else [B, H, Lq, Lk] ->
// [B, G, Lq, H/G, Lk], each axis that or 1.
func groupMask(mask *ml.Node, heads, shared int) *ml.Node {
	if mask == nil || heads == shared {
		return mask
	}
	d := mask.Shape().Dimensions
	if d[1] == 1 {
		return ml.Reshape(mask, d[0], 1, d[2], 1, d[3])
	}
	return ml.TransposeAllAxes(ml.Reshape(mask, d[0], shared, heads/shared, d[2], d[3]), 0, 1, 3, 2, 4)
}

func checkAttention(q, k, v *ml.Node) {
	if q.Rank() == 4 && k.Rank() == 4 && v.Rank() == 4 {
		qs, ks, vs := q.Shape().Dimensions, k.Shape().Dimensions, v.Shape().Dimensions
		if qs[0] == ks[0] && qs[0] == vs[0] && ks[2] > 0 && qs[2]%ks[2] == 0 && ks[2] == vs[2] && qs[3] == ks[3] && ks[1] == vs[1] {
			return
		}
	}
	panic(fmt.Sprintf("attention: found query %s, key %s, value %s, wanted [B, Lq, H, D], [B, Lk, H, D], [B, Lk, H, Dv], or in the last two a divisor of H", q.Shape(), k.Shape(), v.Shape()))
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

// CausalKeep is the boolean mask [B, 1, L, L] of a padded sequence read left to right: position i sees the positions 0 to i that are not
// padding. attention [B, L] int32 is 0 at padding.
func CausalKeep(attention *ml.Node) *ml.Node {
	b, n := attention.Shape().Dim(0), attention.Shape().Dim(1)
	index := shapes.Make(dtypes.Int32, 1, 1, n, n)
	past := ml.LessOrEqual(ml.Iota(attention.Graph(), index, 3), ml.Iota(attention.Graph(), index, 2))
	return ml.LogicalAnd(ml.BroadcastToDims(past, b, 1, n, n), ml.BroadcastToDims(KeepKeys(attention), b, 1, n, n))
}

// KeepKeys is the boolean mask [B, 1, 1, L] under which every query sees the keys that are not padding: those where attention [B, L] int32
// is not 0.
func KeepKeys(attention *ml.Node) *ml.Node {
	keep := ml.NotEqual(attention, ml.ZerosLike(attention))
	return ml.Reshape(keep, attention.Shape().Dim(0), 1, 1, attention.Shape().Dim(1))
}
