package nn

import (
	"github.com/gomlx/compute/dtypes"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph/trace"
)

// LayerNorm is torch.nn.LayerNorm over the last axis: x [..., n] -> [..., n], (x - mean) / sqrt(var + eps), with affine followed
// by weight [n] and bias [n]. The variance is the biased one, taken about the mean in a second sweep: the mean of squares would
// cancel where a channel's offset is large, as in the residual stream of a deep transformer.
func LayerNorm(c *trace.Ctx, name string, x *ml.Node, eps float64, affine bool) *ml.Node {
	return ml.ConvertDType(layerNorm(c, c.DType, name, x, eps, affine), x.DType())
}

// FP32LayerNorm is LayerNorm with weights in float32 where the compute dtype is a half precision, and a result of that dtype (diffusers,
// models/normalization.py, over the float32 of a stream): what it is modulated with or added to follows before the rounding.
func FP32LayerNorm(c *trace.Ctx, name string, x *ml.Node, eps float64, affine bool) *ml.Node {
	return layerNorm(c, Wide(c.DType), name, x, eps, affine)
}

// layerNorm has its result in float32 where x is half precision.
func layerNorm(c *trace.Ctx, weights dtypes.DType, name string, x *ml.Node, eps float64, affine bool) *ml.Node {
	defer enter(c, name)()
	h := widen(x)
	n := x.Shape().Dim(-1)
	h = ml.Sub(h, overLast(meanLast(h), h))
	h = ml.Mul(h, overLast(ml.Rsqrt(ml.AddScalar(meanLast(ml.Mul(h, h)), eps)), h))
	if affine {
		h = ml.Mul(h, broadcastLast(ml.ConvertDType(c.WeightAs(weights, "weight", n), h.DType()), h))
		h = ml.Add(h, broadcastLast(ml.ConvertDType(c.WeightAs(weights, "bias", n), h.DType()), h))
	}
	return h
}

// RMSNorm is root mean square normalisation over the last axis with a weight [n]: x [..., n] -> [..., n],
// x / sqrt(mean(x^2) + eps) * weight (https://arxiv.org/abs/1910.07467). The mean is taken in float32; the quotient is rounded to the
// compute dtype, which the result has, before the weight multiplies it, as in T5LayerNorm (transformers, modeling_t5.py) and RMSNorm
// (diffusers, models/normalization.py). x may be a wider stream.
func RMSNorm(c *trace.Ctx, name string, x *ml.Node, eps float64) *ml.Node {
	defer enter(c, name)()
	h := widen(x)
	h = ml.Mul(h, overLast(ml.Rsqrt(ml.AddScalar(meanLast(ml.Mul(h, h)), eps)), h))
	h = ml.ConvertDType(h, c.DType)
	return ml.Mul(h, broadcastLast(c.Weight("weight", x.Shape().Dim(-1)), h))
}

// meanLast is the mean over the last axis, which goes: [..., n] -> [...].
func meanLast(x *ml.Node) *ml.Node {
	return ml.MulScalar(ml.ReduceSum(x, -1), 1/float64(x.Shape().Dim(-1)))
}

// overLast broadcasts v [...] along the last axis of like [..., n].
func overLast(v, like *ml.Node) *ml.Node {
	return ml.ExpandAndBroadcast(v, like.Shape().Dimensions, []int{like.Rank() - 1})
}

// Modulate is x (1 + scale) + shift, for x [B, L, n] and scale, shift [B, n], or [B, L, n] for one a token: how adaptive norms condition a
// sequence.
func Modulate(x, scale, shift *ml.Node) *ml.Node {
	return ml.Add(ml.Mul(x, overLength(ml.AddScalar(scale, 1.0), x)), overLength(shift, x))
}

// Gate is gate * x for x [B, L, n] and gate [B, n] or [B, L, n].
func Gate(x, gate *ml.Node) *ml.Node { return ml.Mul(x, overLength(gate, x)) }

// overLength broadcasts v [B, n] along the sequence axis of like [B, L, n]; a v of that length stays.
func overLength(v, like *ml.Node) *ml.Node {
	if v.Rank() == like.Rank() {
		return v
	}
	return ml.ExpandAndBroadcast(v, like.Shape().Dimensions, []int{1})
}

// AdaLayerNormZero is adaLN-Zero (https://arxiv.org/abs/2212.09748; diffusers, models/normalization.py): x [B, L, n] is normalised without
// weights and modulated by emb [B, m] through one projection "linear" to 6 n. It returns the modulated x and the rest of
// the projection, each [B, n].
func AdaLayerNormZero(c *trace.Ctx, name string, x, emb *ml.Node) (y, gateMSA, shiftMLP, scaleMLP, gateMLP *ml.Node) {
	defer enter(c, name)()
	p := ml.Split(Linear(c, "linear", SiLU(emb), 6*x.Shape().Dim(-1), true), 1, 6)
	y = Modulate(LayerNorm(c, "norm", x, 1e-6, false), p[1], p[0])
	return y, p[2], p[3], p[4], p[5]
}

// AdaLayerNormZeroSingle is AdaLayerNormZero with shift, scale and gate for one branch only: x [B, L, n], emb [B, m] -> the modulated x
// and the gate [B, n]. The projection "linear" goes to 3 n. (diffusers, models/normalization.py)
func AdaLayerNormZeroSingle(c *trace.Ctx, name string, x, emb *ml.Node) (y, gate *ml.Node) {
	defer enter(c, name)()
	p := ml.Split(Linear(c, "linear", SiLU(emb), 3*x.Shape().Dim(-1), true), 1, 3)
	return Modulate(LayerNorm(c, "norm", x, 1e-6, false), p[1], p[0]), p[2]
}

// AdaLayerNormContinuous is the last norm of a transformer: x [B, L, n] normalised without weights and modulated by emb [B, m]
// through "linear" to 2 n, with a bias or without, the scale first. (diffusers, models/normalization.py)
func AdaLayerNormContinuous(c *trace.Ctx, name string, x, emb *ml.Node, eps float64, bias bool) *ml.Node {
	defer enter(c, name)()
	p := ml.Split(Linear(c, "linear", SiLU(emb), 2*x.Shape().Dim(-1), bias), 1, 2)
	return Modulate(LayerNorm(c, "norm", x, eps, false), p[0], p[1])
}
