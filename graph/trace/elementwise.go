package trace

import (
	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapeinference"
	"github.com/gomlx/compute/shapes"
	"github.com/pkg/errors"

	"precast/graph"
)

// unary records an elementwise operation of one operand and the same result shape.
func (f *function) unary(opType compute.OpType, op graph.Op, x compute.Value) (compute.Value, error) {
	in, err := f.use(opType.String(), x)
	if err != nil {
		return nil, err
	}
	shape, err := shapeinference.UnaryOp(opType, in[0].Shape)
	if err != nil {
		return nil, err
	}
	return f.emit(op, in, nil, shape)
}

// Abs implements compute.StandardOps.
func (f *function) Abs(x compute.Value) (compute.Value, error) {
	if unsigned(x) {
		return f.Identity(x)
	}
	return f.unary(compute.OpTypeAbs, graph.OpAbs, x)
}

// Sign implements compute.StandardOps. For an unsigned operand it is min(x, 1).
func (f *function) Sign(x compute.Value) (compute.Value, error) {
	if !unsigned(x) {
		return f.unary(compute.OpTypeSign, graph.OpSign, x)
	}
	in, err := f.use("Sign", x)
	if err != nil {
		return nil, err
	}
	return f.emit(graph.OpMin, []*graph.Value{in[0], f.splat(1, in[0].Shape)}, nil, in[0].Shape)
}

func unsigned(x compute.Value) bool {
	v, ok := x.(*value)
	return ok && v != nil && v.v.Shape.DType.IsUnsigned()
}

// BitCount implements compute.StandardOps.
func (f *function) BitCount(x compute.Value) (compute.Value, error) {
	return f.unary(compute.OpTypeBitCount, graph.OpPopcnt, x)
}

// BitwiseNot implements compute.StandardOps.
func (f *function) BitwiseNot(x compute.Value) (compute.Value, error) {
	return f.unary(compute.OpTypeBitwiseNot, graph.OpNot, x)
}

// Ceil implements compute.StandardOps.
func (f *function) Ceil(x compute.Value) (compute.Value, error) {
	return f.unary(compute.OpTypeCeil, graph.OpCeil, x)
}

// Clz implements compute.StandardOps.
func (f *function) Clz(x compute.Value) (compute.Value, error) {
	return f.unary(compute.OpTypeClz, graph.OpClz, x)
}

// Cos implements compute.StandardOps.
func (f *function) Cos(x compute.Value) (compute.Value, error) {
	return f.unary(compute.OpTypeCos, graph.OpCos, x)
}

// Erf implements compute.StandardOps.
func (f *function) Erf(x compute.Value) (compute.Value, error) {
	return f.unary(compute.OpTypeErf, graph.OpErf, x)
}

// Exp implements compute.StandardOps.
func (f *function) Exp(x compute.Value) (compute.Value, error) {
	return f.unary(compute.OpTypeExp, graph.OpExp, x)
}

// Expm1 implements compute.StandardOps.
func (f *function) Expm1(x compute.Value) (compute.Value, error) {
	return f.unary(compute.OpTypeExpm1, graph.OpExpm1, x)
}

// Floor implements compute.StandardOps.
func (f *function) Floor(x compute.Value) (compute.Value, error) {
	return f.unary(compute.OpTypeFloor, graph.OpFloor, x)
}

// Log implements compute.StandardOps.
func (f *function) Log(x compute.Value) (compute.Value, error) {
	return f.unary(compute.OpTypeLog, graph.OpLog, x)
}

// Log1p implements compute.StandardOps.
func (f *function) Log1p(x compute.Value) (compute.Value, error) {
	return f.unary(compute.OpTypeLog1p, graph.OpLog1p, x)
}

// LogicalNot implements compute.StandardOps.
func (f *function) LogicalNot(x compute.Value) (compute.Value, error) {
	return f.unary(compute.OpTypeLogicalNot, graph.OpNot, x)
}

// Logistic implements compute.StandardOps.
func (f *function) Logistic(x compute.Value) (compute.Value, error) {
	return f.unary(compute.OpTypeLogistic, graph.OpLogistic, x)
}

// Neg implements compute.StandardOps.
func (f *function) Neg(x compute.Value) (compute.Value, error) {
	return f.unary(compute.OpTypeNeg, graph.OpNeg, x)
}

// Round implements compute.StandardOps: to the nearest integer, halves to the even one.
func (f *function) Round(x compute.Value) (compute.Value, error) {
	return f.unary(compute.OpTypeRound, graph.OpRound, x)
}

// Rsqrt implements compute.StandardOps.
func (f *function) Rsqrt(x compute.Value) (compute.Value, error) {
	return f.unary(compute.OpTypeRsqrt, graph.OpRsqrt, x)
}

// Sin implements compute.StandardOps.
func (f *function) Sin(x compute.Value) (compute.Value, error) {
	return f.unary(compute.OpTypeSin, graph.OpSin, x)
}

// Sqrt implements compute.StandardOps.
func (f *function) Sqrt(x compute.Value) (compute.Value, error) {
	return f.unary(compute.OpTypeSqrt, graph.OpSqrt, x)
}

// Tanh implements compute.StandardOps.
func (f *function) Tanh(x compute.Value) (compute.Value, error) {
	return f.unary(compute.OpTypeTanh, graph.OpTanh, x)
}

// IsFinite implements compute.StandardOps.
func (f *function) IsFinite(x compute.Value) (compute.Value, error) {
	in, err := f.floats("IsFinite", x)
	if err != nil {
		return nil, err
	}
	return f.emit(graph.OpIsFinite, in, nil, withDType(in[0].Shape, dtypes.Bool))
}

// IsNaN implements compute.StandardOps: a NaN is what differs from itself.
func (f *function) IsNaN(x compute.Value) (compute.Value, error) {
	in, err := f.floats("IsNaN", x)
	if err != nil {
		return nil, err
	}
	return f.emit(graph.OpCompare, []*graph.Value{in[0], in[0]}, compareAttrs("NE", false), withDType(in[0].Shape, dtypes.Bool))
}

func (f *function) floats(op string, xs ...compute.Value) ([]*graph.Value, error) {
	in, err := f.use(op, xs...)
	if err != nil {
		return nil, err
	}
	for _, x := range in {
		if !x.Shape.DType.IsFloat() {
			return nil, errors.Errorf("%s: an operand has shape %s; wanted a float dtype", op, x.Shape)
		}
	}
	return in, nil
}

// Identity implements compute.StandardOps. No node is recorded: the result is the operand.
func (f *function) Identity(x compute.Value) (compute.Value, error) {
	in, err := f.use("Identity", x)
	if err != nil {
		return nil, err
	}
	return &value{in[0], f}, nil
}

// ConvertDType implements compute.StandardOps.
func (f *function) ConvertDType(x compute.Value, dtype dtypes.DType) (compute.Value, error) {
	in, err := f.use("ConvertDType", x)
	if err != nil {
		return nil, err
	}
	shape, err := static("ConvertDType", withDType(in[0].Shape, dtype))
	if err != nil {
		return nil, err
	}
	return f.emit(graph.OpConvert, in, nil, shape)
}

// Bitcast implements compute.StandardOps.
func (f *function) Bitcast(x compute.Value, dtype dtypes.DType) (compute.Value, error) {
	in, err := f.use("Bitcast", x)
	if err != nil {
		return nil, err
	}
	shape, err := shapeinference.Bitcast(in[0].Shape, dtype)
	if err != nil {
		return nil, err
	}
	if shape, err = static("Bitcast", shape); err != nil {
		return nil, err
	}
	return f.emit(graph.OpBitcast, in, nil, shape)
}

// binary records an elementwise operation of two operands after broadcasting both to the result's dimensions.
func (f *function) binary(opType compute.OpType, op graph.Op, lhs, rhs compute.Value) (compute.Value, error) {
	in, err := f.use(opType.String(), lhs, rhs)
	if err != nil {
		return nil, err
	}
	shape, err := shapeinference.BinaryOp(opType, in[0].Shape, in[1].Shape)
	if err != nil {
		return nil, err
	}
	return f.emit(op, f.broadcastTo(shape, in...), nil, shape)
}

// broadcastTo makes gomlx's implicit broadcast explicit: a scalar, or dimensions of one, become those of shape. The dtypes stay.
func (f *function) broadcastTo(shape graph.Shape, in ...*graph.Value) []*graph.Value {
	out := make([]*graph.Value, len(in))
	for i, x := range in {
		out[i] = x
		if x.Shape.EqualDimensions(shape) {
			continue
		}
		axes := make([]int, x.Shape.Rank())
		for k := range axes {
			axes[k] = k
		}
		out[i] = f.add(graph.OpBroadcast, broadcastAttrs(axes), withDType(shape, x.Shape.DType), x)
	}
	return out
}

func broadcastAttrs(axes []int) graph.Attrs {
	return graph.Attrs{{Name: "broadcast_dimensions", Value: axes}}
}

func withDType(shape graph.Shape, dtype dtypes.DType) graph.Shape {
	return shapes.Shape{DType: dtype, Dimensions: shape.Dimensions}
}

// Add implements compute.StandardOps.
func (f *function) Add(lhs, rhs compute.Value) (compute.Value, error) {
	return f.binary(compute.OpTypeAdd, graph.OpAdd, lhs, rhs)
}

// Atan2 implements compute.StandardOps.
func (f *function) Atan2(lhs, rhs compute.Value) (compute.Value, error) {
	return f.binary(compute.OpTypeAtan2, graph.OpAtan2, lhs, rhs)
}

// BitwiseAnd implements compute.StandardOps.
func (f *function) BitwiseAnd(lhs, rhs compute.Value) (compute.Value, error) {
	return f.binary(compute.OpTypeBitwiseAnd, graph.OpAnd, lhs, rhs)
}

// BitwiseOr implements compute.StandardOps.
func (f *function) BitwiseOr(lhs, rhs compute.Value) (compute.Value, error) {
	return f.binary(compute.OpTypeBitwiseOr, graph.OpOr, lhs, rhs)
}

// BitwiseXor implements compute.StandardOps.
func (f *function) BitwiseXor(lhs, rhs compute.Value) (compute.Value, error) {
	return f.binary(compute.OpTypeBitwiseXor, graph.OpXor, lhs, rhs)
}

// Div implements compute.StandardOps.
func (f *function) Div(lhs, rhs compute.Value) (compute.Value, error) {
	return f.binary(compute.OpTypeDiv, graph.OpDiv, lhs, rhs)
}

// LogicalAnd implements compute.StandardOps.
func (f *function) LogicalAnd(lhs, rhs compute.Value) (compute.Value, error) {
	return f.binary(compute.OpTypeLogicalAnd, graph.OpAnd, lhs, rhs)
}

// LogicalOr implements compute.StandardOps.
func (f *function) LogicalOr(lhs, rhs compute.Value) (compute.Value, error) {
	return f.binary(compute.OpTypeLogicalOr, graph.OpOr, lhs, rhs)
}

// LogicalXor implements compute.StandardOps.
func (f *function) LogicalXor(lhs, rhs compute.Value) (compute.Value, error) {
	return f.binary(compute.OpTypeLogicalXor, graph.OpXor, lhs, rhs)
}

// Max implements compute.StandardOps.
func (f *function) Max(lhs, rhs compute.Value) (compute.Value, error) {
	return f.binary(compute.OpTypeMax, graph.OpMax, lhs, rhs)
}

// Min implements compute.StandardOps.
func (f *function) Min(lhs, rhs compute.Value) (compute.Value, error) {
	return f.binary(compute.OpTypeMin, graph.OpMin, lhs, rhs)
}

// Mul implements compute.StandardOps.
func (f *function) Mul(lhs, rhs compute.Value) (compute.Value, error) {
	return f.binary(compute.OpTypeMul, graph.OpMul, lhs, rhs)
}

// Pow implements compute.StandardOps.
func (f *function) Pow(lhs, rhs compute.Value) (compute.Value, error) {
	return f.binary(compute.OpTypePow, graph.OpPow, lhs, rhs)
}

// Rem implements compute.StandardOps: the remainder has the dividend's sign.
func (f *function) Rem(lhs, rhs compute.Value) (compute.Value, error) {
	return f.binary(compute.OpTypeRem, graph.OpRem, lhs, rhs)
}

// ShiftLeft implements compute.StandardOps.
func (f *function) ShiftLeft(lhs, rhs compute.Value) (compute.Value, error) {
	return f.binary(compute.OpTypeShiftLeft, graph.OpShl, lhs, rhs)
}

// ShiftRightArithmetic implements compute.StandardOps.
func (f *function) ShiftRightArithmetic(lhs, rhs compute.Value) (compute.Value, error) {
	return f.binary(compute.OpTypeShiftRightArithmetic, graph.OpShrArith, lhs, rhs)
}

// ShiftRightLogical implements compute.StandardOps.
func (f *function) ShiftRightLogical(lhs, rhs compute.Value) (compute.Value, error) {
	return f.binary(compute.OpTypeShiftRightLogical, graph.OpShrLogic, lhs, rhs)
}

// Sub implements compute.StandardOps.
func (f *function) Sub(lhs, rhs compute.Value) (compute.Value, error) {
	return f.binary(compute.OpTypeSub, graph.OpSub, lhs, rhs)
}

// compare records a comparison. Integers and booleans have one order, so total only marks floats.
func (f *function) compare(opType compute.OpType, direction string, total bool, lhs, rhs compute.Value) (compute.Value, error) {
	in, err := f.use(opType.String(), lhs, rhs)
	if err != nil {
		return nil, err
	}
	infer := opType
	if opType == compute.OpTypeNotEqualTotalOrder {
		infer = compute.OpTypeEqualTotalOrder // the inference's table lacks the other
	}
	shape, err := shapeinference.ComparisonOp(infer, in[0].Shape, in[1].Shape)
	if err != nil {
		return nil, err
	}
	total = total && in[0].Shape.DType.IsFloat()
	return f.emit(graph.OpCompare, f.broadcastTo(shape, in...), compareAttrs(direction, total), shape)
}

func compareAttrs(direction string, total bool) graph.Attrs {
	return graph.Attrs{{Name: "direction", Value: direction}, {Name: "total", Value: total}}
}

// Equal implements compute.StandardOps.
func (f *function) Equal(lhs, rhs compute.Value) (compute.Value, error) {
	return f.compare(compute.OpTypeEqual, "EQ", false, lhs, rhs)
}

// EqualTotalOrder implements compute.StandardOps.
func (f *function) EqualTotalOrder(lhs, rhs compute.Value) (compute.Value, error) {
	return f.compare(compute.OpTypeEqualTotalOrder, "EQ", true, lhs, rhs)
}

// GreaterOrEqual implements compute.StandardOps.
func (f *function) GreaterOrEqual(lhs, rhs compute.Value) (compute.Value, error) {
	return f.compare(compute.OpTypeGreaterOrEqual, "GE", false, lhs, rhs)
}

// GreaterOrEqualTotalOrder implements compute.StandardOps.
func (f *function) GreaterOrEqualTotalOrder(lhs, rhs compute.Value) (compute.Value, error) {
	return f.compare(compute.OpTypeGreaterOrEqualTotalOrder, "GE", true, lhs, rhs)
}

// GreaterThan implements compute.StandardOps.
func (f *function) GreaterThan(lhs, rhs compute.Value) (compute.Value, error) {
	return f.compare(compute.OpTypeGreaterThan, "GT", false, lhs, rhs)
}

// GreaterThanTotalOrder implements compute.StandardOps.
func (f *function) GreaterThanTotalOrder(lhs, rhs compute.Value) (compute.Value, error) {
	return f.compare(compute.OpTypeGreaterThanTotalOrder, "GT", true, lhs, rhs)
}

// LessOrEqual implements compute.StandardOps.
func (f *function) LessOrEqual(lhs, rhs compute.Value) (compute.Value, error) {
	return f.compare(compute.OpTypeLessOrEqual, "LE", false, lhs, rhs)
}

// LessOrEqualTotalOrder implements compute.StandardOps.
func (f *function) LessOrEqualTotalOrder(lhs, rhs compute.Value) (compute.Value, error) {
	return f.compare(compute.OpTypeLessOrEqualTotalOrder, "LE", true, lhs, rhs)
}

// LessThan implements compute.StandardOps.
func (f *function) LessThan(lhs, rhs compute.Value) (compute.Value, error) {
	return f.compare(compute.OpTypeLessThan, "LT", false, lhs, rhs)
}

// LessThanTotalOrder implements compute.StandardOps.
func (f *function) LessThanTotalOrder(lhs, rhs compute.Value) (compute.Value, error) {
	return f.compare(compute.OpTypeLessThanTotalOrder, "LT", true, lhs, rhs)
}

// NotEqual implements compute.StandardOps.
func (f *function) NotEqual(lhs, rhs compute.Value) (compute.Value, error) {
	return f.compare(compute.OpTypeNotEqual, "NE", false, lhs, rhs)
}

// NotEqualTotalOrder implements compute.StandardOps.
func (f *function) NotEqualTotalOrder(lhs, rhs compute.Value) (compute.Value, error) {
	return f.compare(compute.OpTypeNotEqualTotalOrder, "NE", true, lhs, rhs)
}

// Where implements compute.StandardOps. Scalars among the three are broadcast.
func (f *function) Where(condition, onTrue, onFalse compute.Value) (compute.Value, error) {
	in, err := f.use("Where", condition, onTrue, onFalse)
	if err != nil {
		return nil, err
	}
	shape, err := shapeinference.Where(in[0].Shape, in[1].Shape, in[2].Shape)
	if err != nil {
		return nil, err
	}
	return f.emit(graph.OpSelect, f.broadcastTo(shape, in...), nil, shape)
}

// Clamp implements compute.StandardOps. The bounds are scalars or have x's shape; of a mixed pair the scalar is broadcast.
func (f *function) Clamp(low, x, high compute.Value) (compute.Value, error) {
	in, err := f.use("Clamp", low, x, high)
	if err != nil {
		return nil, err
	}
	shape := in[1].Shape
	for _, bound := range []*graph.Value{in[0], in[2]} {
		if bound.Shape.DType != shape.DType || !bound.Shape.IsScalar() && !bound.Shape.Equal(shape) {
			return nil, errors.Errorf("Clamp: a bound has shape %s; wanted a scalar or the shape of the operand, %s", bound.Shape, shape)
		}
	}
	if in[0].Shape.IsScalar() != in[2].Shape.IsScalar() {
		in = f.broadcastTo(shape, in...)
	}
	return f.emit(graph.OpClamp, in, nil, shape)
}
