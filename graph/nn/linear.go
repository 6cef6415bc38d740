package nn

import (
	"github.com/gomlx/compute/dtypes"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph/trace"
)

// enter descends into the module name; the empty name stays where it is.
func enter(c *trace.Ctx, name string) (leave func()) {
	if name == "" {
		return func() {}
	}
	return c.Enter(name)
}

// Linear is torch.nn.Linear: x [..., in] -> [..., out], with weights weight [out, in] and, with bias, bias [out].
//
// The weight is contracted where it lies, over its second axis, so no transpose of it is in the graph.
func Linear(c *trace.Ctx, name string, x *ml.Node, out int, bias bool) *ml.Node {
	return LinearAs(c, c.DType, name, x, out, bias)
}

// LinearAs is Linear with weights in a dtype of its own, which x is converted to and the result has: for a model's float32 islands.
func LinearAs(c *trace.Ctx, dtype dtypes.DType, name string, x *ml.Node, out int, bias bool) *ml.Node {
	defer enter(c, name)()
	x = ml.ConvertDType(x, dtype)
	y := matmulNT(x, c.WeightAs(dtype, "weight", out, x.Shape().Dim(-1)))
	if bias {
		y = ml.Add(y, broadcastLast(c.WeightAs(dtype, "bias", out), y))
	}
	return y
}

// matmulNT contracts the last axis of x [..., in] with the second of w [out, in]; the result has x's dtype.
func matmulNT(x, w *ml.Node) *ml.Node {
	return ml.ConvertDType(ml.Dot(x, w).General([]int{x.Rank() - 1}, nil, []int{1}, nil), x.DType())
}

// broadcastLast broadcasts v [n] along the leading axes of like [..., n].
func broadcastLast(v, like *ml.Node) *ml.Node {
	dims := like.Shape().Dimensions
	if len(dims) == 1 {
		return v
	}
	expanded := make([]int, len(dims)-1)
	for i := range expanded {
		expanded[i] = i
	}
	return ml.ExpandAndBroadcast(v, dims, expanded)
}

// isHalf says whether d is one of the 16-bit float dtypes.
func isHalf(d dtypes.DType) bool { return d == dtypes.BFloat16 || d == dtypes.Float16 }

// Wide is the dtype that sums and a model's float32 islands are computed in where activations have the dtype d: float32 for half precisions, else d.
func Wide(d dtypes.DType) dtypes.DType {
	if isHalf(d) {
		return dtypes.Float32
	}
	return d
}

// widen converts a half-precision x to float32; wider dtypes stay.
func widen(x *ml.Node) *ml.Node {
	if isHalf(x.DType()) {
		return ml.ConvertDType(x, dtypes.Float32)
	}
	return x
}
