package lower

import (
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"precast/graph"
)

type (
	unaryFn  = func(compute.Function, compute.Value) (compute.Value, error)
	binaryFn = func(compute.Function, compute.Value, compute.Value) (compute.Value, error)
)

// unaryOps are the operations that gomlx has with StableHLO's meaning.
var unaryOps = map[graph.Op]unaryFn{
	graph.OpAbs:      compute.Function.Abs,
	graph.OpCeil:     compute.Function.Ceil,
	graph.OpCos:      compute.Function.Cos,
	graph.OpErf:      compute.Function.Erf,
	graph.OpExp:      compute.Function.Exp,
	graph.OpExpm1:    compute.Function.Expm1,
	graph.OpFloor:    compute.Function.Floor,
	graph.OpIsFinite: compute.Function.IsFinite,
	graph.OpLog:      compute.Function.Log,
	graph.OpLog1p:    compute.Function.Log1p,
	graph.OpLogistic: compute.Function.Logistic,
	graph.OpRound:    compute.Function.Round,
	graph.OpRsqrt:    compute.Function.Rsqrt,
	graph.OpSin:      compute.Function.Sin,
	graph.OpSqrt:     compute.Function.Sqrt,
	graph.OpTanh:     compute.Function.Tanh,
	graph.OpPopcnt:   compute.Function.BitCount,
	graph.OpClz:      compute.Function.Clz,
}

var binaryOps = map[graph.Op]binaryFn{
	graph.OpAdd:   compute.Function.Add,
	graph.OpSub:   compute.Function.Sub,
	graph.OpMul:   compute.Function.Mul,
	graph.OpDiv:   compute.Function.Div,
	graph.OpRem:   compute.Function.Rem,
	graph.OpMax:   compute.Function.Max,
	graph.OpMin:   compute.Function.Min,
	graph.OpPow:   compute.Function.Pow,
	graph.OpAtan2: compute.Function.Atan2,
}

// logicOps are the operations that gomlx splits by dtype: bool first, then integers.
var logicOps = map[graph.Op][2]binaryFn{
	graph.OpAnd: {compute.Function.LogicalAnd, compute.Function.BitwiseAnd},
	graph.OpOr:  {compute.Function.LogicalOr, compute.Function.BitwiseOr},
	graph.OpXor: {compute.Function.LogicalXor, compute.Function.BitwiseXor},
}

var compareOps = map[string]binaryFn{
	"EQ": compute.Function.Equal,
	"NE": compute.Function.NotEqual,
	"LT": compute.Function.LessThan,
	"LE": compute.Function.LessOrEqual,
	"GT": compute.Function.GreaterThan,
	"GE": compute.Function.GreaterOrEqual,
}

// node builds one node and returns its results.
func (s *scope) node(n *graph.Node) []compute.Value {
	in := s.all(n.Operands)
	var x, y compute.Value
	var shape, result shapes.Shape
	if len(in) > 0 {
		x, shape = in[0], n.Operands[0].Shape
	}
	if len(in) > 1 {
		y = in[1]
	}
	if len(n.Results) > 0 {
		result = n.Results[0].Shape
	}
	if fn, ok := unaryOps[n.Op]; ok {
		return one(s.v(fn(s.f, x)))
	}
	if fns, ok := logicOps[n.Op]; ok {
		if shape.DType == dtypes.Bool {
			return one(s.v(fns[0](s.f, x, y)))
		}
		return one(s.v(fns[1](s.f, x, y)))
	}
	a := n.FullAttrs()
	switch n.Op {
	case graph.OpConstant:
		l, ok := a.Get("value").(graph.Literal)
		if !ok {
			s.failf("no value")
		}
		return one(s.constant(l, result))
	case graph.OpIota:
		return one(s.iota(result, a.Int("iota_dimension")))
	case graph.OpConvert:
		return one(s.convert(x, shape, result.DType))
	case graph.OpNot:
		if shape.DType == dtypes.Bool {
			return one(s.v(s.f.LogicalNot(x)))
		}
		return one(s.v(s.f.BitwiseNot(x)))
	case graph.OpNeg:
		if shape.DType.IsUnsigned() { // gomlx negates signed types alone
			return one(s.v(s.f.Sub(s.fill(shape, 0), x)))
		}
		return one(s.v(s.f.Neg(x)))
	case graph.OpSign:
		y := s.v(s.f.Sign(x))
		if shape.DType.IsFloat() { // gomlx's Go backend gives 0 for NaN
			y = s.v(s.f.Where(s.v(s.f.NotEqual(x, x)), x, y))
		}
		return one(y)
	case graph.OpBitcast:
		if shape.DType == result.DType {
			return in
		}
		return one(s.v(s.f.Bitcast(x, result.DType)))
	case graph.OpDiv, graph.OpRem:
		if !shape.DType.IsFloat() && !shape.DType.IsComplex() {
			return one(s.integerDivision(n.Op, x, y, shape))
		}
		return one(s.v(binaryOps[n.Op](s.f, x, y)))
	case graph.OpShl, graph.OpShrArith, graph.OpShrLogic:
		return one(s.shift(n.Op, x, y, shape))
	case graph.OpMax, graph.OpMin:
		if shape.DType == dtypes.Bool {
			if n.Op == graph.OpMax {
				return one(s.v(s.f.LogicalOr(x, y)))
			}
			return one(s.v(s.f.LogicalAnd(x, y)))
		}
		return one(s.v(binaryOps[n.Op](s.f, x, y)))
	case graph.OpAdd, graph.OpMul:
		if shape.DType == dtypes.Bool { // addition and product of bits, as in StableHLO
			if n.Op == graph.OpAdd {
				return one(s.v(s.f.LogicalOr(x, y)))
			}
			return one(s.v(s.f.LogicalAnd(x, y)))
		}
		return one(s.v(binaryOps[n.Op](s.f, x, y)))
	case graph.OpCompare:
		return one(s.compare(x, y, shape, a.String("direction"), a.Bool("total")))
	case graph.OpSelect:
		return one(s.v(s.f.Where(x, y, in[2])))
	case graph.OpClamp:
		lo, mid, hi := in[0], in[1], in[2]
		return one(s.v(s.f.Min(s.v(s.f.Max(lo, mid)), hi)))
	case graph.OpBroadcast:
		return one(s.broadcast(x, shape, result, a.Ints("broadcast_dimensions")))
	case graph.OpReshape:
		return one(s.v(s.f.Reshape(x, result.Dimensions...)))
	case graph.OpTranspose:
		return one(s.transpose(x, a.Ints("permutation")))
	case graph.OpSlice:
		return one(s.v(s.f.Slice(x, a.Ints("start_indices"), a.Ints("limit_indices"), a.Ints("strides"))))
	case graph.OpConcat:
		if len(in) == 1 {
			return in
		}
		return one(s.v(s.f.Concatenate(a.Int("dimension"), in...)))
	case graph.OpPad:
		return one(s.pad(x, y, shape, a.Ints("edge_padding_low"), a.Ints("edge_padding_high"), a.Ints("interior_padding")))
	case graph.OpReverse:
		if len(a.Ints("dimensions")) == 0 {
			return in
		}
		return one(s.v(s.f.Reverse(x, a.Ints("dimensions")...)))
	case graph.OpGather:
		return one(s.gather(n, a, x, y))
	case graph.OpScatter:
		return one(s.scatter(n, a, in[0], in[1], in[2]))
	case graph.OpDynSlice:
		return one(s.dynamicSlice(x, shape, in[1:], n.Operands[1:], a.Ints("slice_sizes")))
	case graph.OpDynUpdSlice:
		return one(s.dynamicUpdateSlice(n, in))
	case graph.OpReduce:
		return one(s.reduce(x, shape, a.String("combiner"), a.Ints("dimensions")))
	case graph.OpArgMinMax:
		return one(s.argMinMax(x, shape, a.Int("dimension"), a.Bool("min"), result.DType))
	case graph.OpReduceWindow:
		return one(s.reduceWindow(n, a, x))
	case graph.OpDot:
		return one(s.dot(n, a, x, y))
	case graph.OpConv:
		return one(s.conv(n, a, x, y))
	case graph.OpRngBits:
		state, bits, err := s.f.RNGBitGenerator(x, n.Results[1].Shape)
		s.check(err)
		return []compute.Value{state, bits}
	case graph.OpBarrier:
		return s.vs(s.f.OptimizationBarrier(in...))
	case graph.OpSort:
		return s.vs(s.f.Sort(s.closure(n.Regions[0]), a.Int("dimension"), a.Bool("is_stable"), in...))
	case graph.OpWhile:
		return s.vs(s.f.While(s.closure(n.Regions[0]), s.closure(n.Regions[1]), in...))
	case graph.OpIf:
		return s.vs(s.f.If(x, s.branch(n.Regions[0], in[1:]), s.branch(n.Regions[1], in[1:])))
	case graph.OpCall:
		return s.call(a.String("callee"), in)
	}
	if fn, ok := binaryOps[n.Op]; ok {
		return one(s.v(fn(s.f, x, y)))
	}
	s.failf("operation %q can't be built", n.Op)
	return nil
}

// constant builds a literal of a shape.
func (s *scope) constant(l graph.Literal, shape shapes.Shape) compute.Value {
	bits, size := shape.DType, shape.DType.Size()
	// gomlx merges equal constants and holds 0 and -0 for equal: constants with a negative zero travel as integers.
	asBits := shape.DType.IsFloat() && hasNegativeZero(l.Data, size)
	if asBits {
		bits = map[int]graph.DType{2: dtypes.Uint16, 4: dtypes.Uint32, 8: dtypes.Uint64}[size]
	}
	flat, err := literalSlice(l, bits, shape.Size())
	s.check(err)
	dims := shape.Dimensions
	if l.Splat {
		dims = nil
	}
	x := s.v(s.f.Constant(flat, dims...))
	if asBits {
		x = s.v(s.f.Bitcast(x, shape.DType))
	}
	if l.Splat && shape.Rank() > 0 {
		x = s.broadcastInDim(x, shape, nil)
	}
	return x
}

// scalar is a constant number of a dtype.
func (s *scope) scalar(d graph.DType, x float64) compute.Value {
	return s.v(s.f.Constant(scalarSlice(d, x)))
}

func scalarSlice(d graph.DType, x float64) any {
	return oneElement(shapes.CastAsDType(x, d))
}

// fill is a number broadcast to a shape.
func (s *scope) fill(shape shapes.Shape, x float64) compute.Value {
	c := s.scalar(shape.DType, x)
	if shape.Rank() == 0 {
		return c
	}
	return s.broadcastInDim(c, shape, nil)
}

// iota counts in int32 where gomlx has no iota of the dtype.
func (s *scope) iota(shape shapes.Shape, axis int) compute.Value {
	switch d := shape.DType; {
	case d.IsHalfPrecision():
		return s.v(s.f.ConvertDType(s.v(s.f.Iota(withDType(shape, dtypes.Float32), axis)), d))
	default:
		return s.v(s.f.Iota(shape, axis))
	}
}

// convert is ConvertDType with StableHLO's edges: from a float, out of range goes to the nearest end and NaN to zero, as XLA does.
func (s *scope) convert(x compute.Value, shape shapes.Shape, to graph.DType) compute.Value {
	from := shape.DType
	if from == to {
		return x
	}
	if to == dtypes.Bool && from.IsFloat() {
		// NaN counts as true: it is not equal to zero.
		return s.v(s.f.NotEqual(x, s.fill(shape, 0)))
	}
	if to == dtypes.Float16 && from.IsFloat() {
		return s.toFloat16(x, shape)
	}
	if !from.IsFloat() || !to.IsInt() {
		return s.v(s.f.ConvertDType(x, to))
	}
	if from.IsHalfPrecision() {
		shape = withDType(shape, dtypes.Float32)
		x = s.v(s.f.ConvertDType(x, dtypes.Float32))
	}
	low, high := intRange(to) // high is the first integer too large, a power of two and so exact
	tooLow := s.v(s.f.LessThan(x, s.fill(shape, low)))
	tooHigh := s.v(s.f.GreaterOrEqual(x, s.fill(shape, high)))
	odd := s.v(s.f.LogicalOr(s.v(s.f.NotEqual(x, x)), s.v(s.f.LogicalOr(tooLow, tooHigh))))
	y := s.v(s.f.ConvertDType(s.v(s.f.Where(odd, s.fill(shape, 0), x)), to))
	ends := withDType(shape, to)
	y = s.v(s.f.Where(tooLow, s.bound(ends, false), y))
	return s.v(s.f.Where(tooHigh, s.bound(ends, true), y))
}

// toFloat16 converts a float to float16. gomlx's Go backend turns what is subnormal there to zero; such a number is its count of units in
// the last place, 2^-24, which is also its bits.
func (s *scope) toFloat16(x compute.Value, shape shapes.Shape) compute.Value {
	if shape.DType != dtypes.Float32 {
		shape = withDType(shape, dtypes.Float32)
		x = s.v(s.f.ConvertDType(x, dtypes.Float32))
	}
	size := s.v(s.f.Abs(x))
	zero := s.fill(shape, 0)
	subnormal := s.v(s.f.LogicalAnd(s.v(s.f.LessThan(size, s.fill(shape, 1.0/(1<<14)))), s.v(s.f.GreaterThan(size, zero))))
	units := s.v(s.f.Round(s.v(s.f.Mul(s.v(s.f.Where(subnormal, size, zero)), s.fill(shape, 1<<24)))))
	y := s.v(s.f.Bitcast(s.v(s.f.ConvertDType(units, dtypes.Uint16)), dtypes.Float16))
	y = s.v(s.f.Where(s.v(s.f.LessThan(x, zero)), s.v(s.f.Neg(y)), y))
	return s.v(s.f.Where(subnormal, y, s.v(s.f.ConvertDType(x, dtypes.Float16))))
}

// bound is the lowest or highest value of the shape's dtype, broadcast to it.
func (s *scope) bound(shape shapes.Shape, highest bool) compute.Value {
	v := shape.DType.LowestValue()
	if highest {
		v = shape.DType.HighestValue()
	}
	c := s.v(s.f.Constant(oneElement(v)))
	if shape.Rank() == 0 {
		return c
	}
	return s.broadcastInDim(c, shape, nil)
}

// intRange is the lowest value of an integer dtype and the first number above the highest.
func intRange(d graph.DType) (low, high float64) {
	bits := d.Bits()
	if d.IsUnsigned() {
		return 0, pow2(bits)
	}
	return -pow2(bits - 1), pow2(bits - 1)
}

func pow2(n int) float64 {
	x := 1.0
	for range n {
		x *= 2
	}
	return x
}

// integerDivision divides as XLA does: by zero the quotient is all ones and the remainder the dividend.
func (s *scope) integerDivision(op graph.Op, x, y compute.Value, shape shapes.Shape) compute.Value {
	zero := s.v(s.f.Equal(y, s.fill(shape, 0)))
	y = s.v(s.f.Where(zero, s.fill(shape, 1), y))
	if op == graph.OpRem {
		return s.v(s.f.Where(zero, x, s.v(s.f.Rem(x, y))))
	}
	ones := s.v(s.f.BitwiseNot(s.fill(shape, 0)))
	return s.v(s.f.Where(zero, ones, s.v(s.f.Div(x, y))))
}

// shift shifts as XLA does: the amount is unsigned, and one at or above the width leaves nothing but the sign.
func (s *scope) shift(op graph.Op, x, y compute.Value, shape shapes.Shape) compute.Value {
	bits := shape.DType.Bits()
	tooFar := s.v(s.f.GreaterOrEqual(y, s.fill(shape, float64(bits))))
	if !shape.DType.IsUnsigned() {
		tooFar = s.v(s.f.LogicalOr(tooFar, s.v(s.f.LessThan(y, s.fill(shape, 0)))))
	}
	switch op {
	case graph.OpShrArith:
		if shape.DType.IsUnsigned() { // the top bit counts as the sign
			signed := signedOf(shape.DType)
			y = s.v(s.f.Where(tooFar, s.fill(shape, float64(bits-1)), y))
			z := s.v(s.f.ShiftRightArithmetic(s.v(s.f.Bitcast(x, signed)), s.v(s.f.Bitcast(y, signed))))
			return s.v(s.f.Bitcast(z, shape.DType))
		}
		y = s.v(s.f.Where(tooFar, s.fill(shape, float64(bits-1)), y))
		return s.v(s.f.ShiftRightArithmetic(x, y))
	case graph.OpShl:
		z := s.v(s.f.ShiftLeft(x, s.v(s.f.Where(tooFar, s.fill(shape, 0), y))))
		return s.v(s.f.Where(tooFar, s.fill(shape, 0), z))
	default:
		z := s.v(s.f.ShiftRightLogical(x, s.v(s.f.Where(tooFar, s.fill(shape, 0), y))))
		return s.v(s.f.Where(tooFar, s.fill(shape, 0), z))
	}
}

func signedOf(d graph.DType) graph.DType {
	switch d {
	case dtypes.Uint8:
		return dtypes.Int8
	case dtypes.Uint16:
		return dtypes.Int16
	case dtypes.Uint32:
		return dtypes.Int32
	case dtypes.Uint64:
		return dtypes.Int64
	}
	return d
}

// compare compares; total order is that of the bits read as sign and magnitude (IEEE 754, totalOrder), and bools as 0 and 1.
func (s *scope) compare(x, y compute.Value, shape shapes.Shape, direction string, total bool) compute.Value {
	fn, ok := compareOps[direction]
	if !ok {
		s.failf("direction %q, wanted EQ, NE, LT, LE, GT or GE", direction)
	}
	if shape.DType == dtypes.Bool {
		x, y = s.v(s.f.ConvertDType(x, dtypes.Uint8)), s.v(s.f.ConvertDType(y, dtypes.Uint8))
	}
	if total && shape.DType.IsFloat() {
		x, y = s.totalOrderKey(x, shape), s.totalOrderKey(y, shape)
	}
	return s.v(fn(s.f, x, y))
}

func (s *scope) totalOrderKey(x compute.Value, shape shapes.Shape) compute.Value {
	d := map[int]graph.DType{2: dtypes.Int16, 4: dtypes.Int32, 8: dtypes.Int64}[shape.DType.Size()]
	shape = withDType(shape, d)
	k := s.v(s.f.Bitcast(x, d))
	negative := s.v(s.f.LessThan(k, s.fill(shape, 0)))
	return s.v(s.f.Where(negative, s.v(s.f.BitwiseXor(k, s.bound(shape, true))), k))
}

// broadcast allows broadcast dimensions in any order; gomlx wants them increasing.
func (s *scope) broadcast(x compute.Value, shape, result shapes.Shape, dims []int) compute.Value {
	if !slices.IsSorted(dims) {
		perm := make([]int, len(dims))
		for i := range perm {
			perm[i] = i
		}
		slices.SortFunc(perm, func(a, b int) int { return dims[a] - dims[b] })
		x = s.transpose(x, perm)
		sorted := slices.Clone(dims)
		slices.Sort(sorted)
		dims = sorted
	}
	return s.broadcastInDim(x, result, dims)
}

func (s *scope) transpose(x compute.Value, perm []int) compute.Value {
	if isIota(perm) {
		return x
	}
	return s.v(s.f.Transpose(x, perm...))
}

func isIota(perm []int) bool {
	for i, p := range perm {
		if p != i {
			return false
		}
	}
	return true
}

// pad pads; negative edges cut, after the interior padding, as in StableHLO.
func (s *scope) pad(x, value compute.Value, shape shapes.Shape, low, high, interior []int) compute.Value {
	axes := make([]compute.PadAxis, shape.Rank())
	starts, limits := make([]int, shape.Rank()), make([]int, shape.Rank())
	padded, cut := false, false
	for i, d := range shape.Dimensions {
		axes[i] = compute.PadAxis{Start: max(low[i], 0), End: max(high[i], 0), Interior: interior[i]}
		padded = padded || axes[i] != compute.PadAxis{}
		full := d + max(d-1, 0)*interior[i] + axes[i].Start + axes[i].End
		starts[i], limits[i] = max(-low[i], 0), full-max(-high[i], 0)
		cut = cut || starts[i] != 0 || limits[i] != full
	}
	if padded {
		x = s.v(s.f.Pad(x, value, axes...))
	}
	if cut {
		x = s.v(s.f.Slice(x, starts, limits, nil))
	}
	return x
}
