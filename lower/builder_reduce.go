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
	extreme := s.broadcastInDim(s.v(reduce(x, axis)), shape, others)
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

// reduceWindow combines, for every place in the window, the strided slice of the padded operand that the place sees.
func (s *scope) reduceWindow(n *graph.Node, a graph.Attrs, x compute.Value) compute.Value {
	shape, result := n.Operands[0].Shape, n.Results[0].Shape
	combiner := a.String("combiner")
	window, strides, dilation := a.Ints("window_dimensions"), a.Ints("window_strides"), a.Ints("window_dilations")
	half := shape.DType.IsHalfPrecision() // kept in float32, as in reduce
	if half {
		x, shape, result = s.v(s.f.ConvertDType(x, dtypes.Float32)), withDType(shape, dtypes.Float32), withDType(result, dtypes.Float32)
	}
	identity := s.identity(shape.DType, combiner)
	if result.Size() == 0 {
		return s.broadcastInDim(identity, n.Results[0].Shape, nil)
	}
	rank := shape.Rank()
	low, high, interior := make([]int, rank), make([]int, rank), make([]int, rank)
	for i, p := range a.Pairs("padding") {
		low[i], high[i], interior[i] = p[0], p[1], a.Ints("base_dilations")[i]-1
	}
	x = s.pad(x, identity, shape, low, high, interior)
	var y compute.Value
	at := make([]int, rank)
	for {
		starts, limits := make([]int, rank), make([]int, rank)
		for i := range starts {
			starts[i] = at[i] * dilation[i]
			limits[i] = starts[i] + (result.Dimensions[i]-1)*strides[i] + 1
		}
		part := x
		if rank > 0 {
			part = s.v(s.f.Slice(x, starts, limits, strides))
		}
		if y == nil {
			y = part
		} else {
			y = s.combine(combiner, y, part, shape.DType)
		}
		if !next(at, window) {
			break
		}
	}
	if half {
		y = s.v(s.f.ConvertDType(y, n.Results[0].Shape.DType))
	}
	return y
}

// combine applies a reduction's combiner to two arrays.
func (s *scope) combine(combiner string, x, y compute.Value, d graph.DType) compute.Value {
	boolean := d == dtypes.Bool
	switch {
	case combiner == "add" && !boolean:
		return s.v(s.f.Add(x, y))
	case combiner == "multiply" && !boolean:
		return s.v(s.f.Mul(x, y))
	case combiner == "maximum" && !boolean:
		return s.v(s.f.Max(x, y))
	case combiner == "minimum" && !boolean:
		return s.v(s.f.Min(x, y))
	case combiner == "and" && !boolean:
		return s.v(s.f.BitwiseAnd(x, y))
	case combiner == "or" && !boolean:
		return s.v(s.f.BitwiseOr(x, y))
	case combiner == "xor" && !boolean:
		return s.v(s.f.BitwiseXor(x, y))
	case combiner == "add", combiner == "maximum", combiner == "or":
		return s.v(s.f.LogicalOr(x, y))
	case combiner == "multiply", combiner == "minimum", combiner == "and":
		return s.v(s.f.LogicalAnd(x, y))
	case combiner == "xor":
		return s.v(s.f.LogicalXor(x, y))
	}
	s.failf("combiner %q, wanted add, multiply, maximum, minimum, and, or, xor", combiner)
	return nil
}

// identity is the scalar that a combiner leaves everything unchanged with.
func (s *scope) identity(d graph.DType, combiner string) compute.Value {
	scalar := graph.Shape{DType: d}
	switch combiner {
	case "multiply":
		return s.scalar(d, 1)
	case "maximum":
		return s.bound(scalar, false)
	case "minimum":
		return s.bound(scalar, true)
	case "and":
		if d == dtypes.Bool {
			return s.scalar(d, 1)
		}
		return s.v(s.f.BitwiseNot(s.scalar(d, 0)))
	}
	return s.scalar(d, 0)
}
