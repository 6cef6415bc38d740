package lower

import (
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"precast/graph"
)

// reduce builds a reduction. Half-precision sums and products are kept in float32, as XLA's CPU compiler keeps them.
func (s *scope) reduce(x compute.Value, shape shapes.Shape, combiner string, dims []int) compute.Value {
	if len(dims) == 0 {
		return x // gomlx would reduce everything
	}
	d := shape.DType
	type fn = func(compute.Value, ...int) (compute.Value, error)
	var f fn
	switch combiner {
	case "add":
		f = s.f.ReduceSum
		if d == dtypes.Bool {
			f = s.f.ReduceLogicalOr
		}
	case "multiply":
		f = s.f.ReduceProduct
		if d == dtypes.Bool {
			f = s.f.ReduceLogicalAnd
		}
	case "maximum":
		f = s.f.ReduceMax
		if d == dtypes.Bool {
			f = s.f.ReduceLogicalOr
		}
	case "minimum":
		f = s.f.ReduceMin
		if d == dtypes.Bool {
			f = s.f.ReduceLogicalAnd
		}
	case "and":
		f = s.f.ReduceBitwiseAnd
		if d == dtypes.Bool {
			f = s.f.ReduceLogicalAnd
		}
	case "or":
		f = s.f.ReduceBitwiseOr
		if d == dtypes.Bool {
			f = s.f.ReduceLogicalOr
		}
	case "xor":
		f = s.f.ReduceBitwiseXor
		if d == dtypes.Bool {
			f = s.f.ReduceLogicalXor
		}
	default:
		s.failf("combiner %q, wanted add, multiply, maximum, minimum, and, or, xor", combiner)
	}
	if d.IsHalfPrecision() {
		x = s.v(f(s.v(s.f.ConvertDType(x, dtypes.Float32)), dims...))
		return s.v(s.f.ConvertDType(x, d))
	}
	return s.v(f(x, dims...))
}

// argMinMax finds the first position of the extreme; a NaN counts as the extreme, and of several the first.
func (s *scope) argMinMax(x compute.Value, shape shapes.Shape, axis int, isMin bool, out graph.DType) compute.Value {
	if shape.DType.IsHalfPrecision() {
		shape = withDType(shape, dtypes.Float32)
		x = s.v(s.f.ConvertDType(x, dtypes.Float32))
	}
	if shape.DType == dtypes.Bool {
		shape = withDType(shape, dtypes.Uint8)
		x = s.v(s.f.ConvertDType(x, dtypes.Uint8))
	}
	n := shape.Dimensions[axis]
	counter := withDType(shape, dtypes.Int64)
	at, none := s.v(s.f.Iota(counter, axis)), s.fill(counter, float64(n))
	// first is the first position along axis where mask holds, n where there is none.
	first := func(mask compute.Value) compute.Value {
		return s.v(s.f.ReduceMin(s.v(s.f.Where(mask, at, none)), axis))
	}
	var nan compute.Value
	if shape.DType.IsFloat() {
		nan = s.v(s.f.NotEqual(x, x))
		x = s.v(s.f.Where(nan, s.bound(shape, isMin), x))
	}
	reduce := s.f.ReduceMax
	if isMin {
		reduce = s.f.ReduceMin
	}
	var others []int
	for i := range shape.Rank() {
		if i != axis {
			others = append(others, i)
		}
	}
	extreme := s.v(s.f.BroadcastInDim(s.v(reduce(x, axis)), shape, others))
	index := first(s.v(s.f.Equal(x, extreme)))
	if nan != nil {
		firstNaN := first(nan)
		rest := shapes.Make(dtypes.Int64, slices.Delete(slices.Clone(shape.Dimensions), axis, axis+1)...)
		index = s.v(s.f.Where(s.v(s.f.LessThan(firstNaN, s.fill(rest, float64(n)))), firstNaN, index))
	}
	if out != dtypes.Int64 {
		index = s.v(s.f.ConvertDType(index, out))
	}
	return index
}

// reduceWindow builds a reduction over windows, half-precision sums and products in float32.
func (s *scope) reduceWindow(n *graph.Node, x compute.Value) compute.Value {
	a := n.Attrs
	d := n.Operands[0].Shape.DType
	kinds := map[string]compute.ReduceOpType{
		"add": compute.ReduceOpSum, "multiply": compute.ReduceOpProduct, "maximum": compute.ReduceOpMax, "minimum": compute.ReduceOpMin,
	}
	kind, ok := kinds[a.String("combiner")]
	if !ok {
		s.failf("combiner %q, wanted add, multiply, maximum or minimum", a.String("combiner"))
	}
	if d.IsHalfPrecision() {
		x = s.v(s.f.ConvertDType(x, dtypes.Float32))
	}
	x = s.v(s.f.ReduceWindow(x, kind, a.Ints("window_dimensions"), a.Ints("window_strides"), a.Ints("base_dilations"),
		a.Ints("window_dilations"), a.Pairs("padding")))
	if d.IsHalfPrecision() {
		x = s.v(s.f.ConvertDType(x, d))
	}
	return x
}
