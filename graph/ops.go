package graph

import "slices"

// opList is the op table, the single place that says what an op takes, what it gives and what must hold. Numbers and meaning
// of the constraints are those of https://github.com/openxla/stablehlo/blob/main/docs/spec.md where it has the op; the infer
// functions are in infer.go.
var opList = slices.Concat(leafOps, unaryOps, binaryOps, ternaryOps, shapeOps, reductionOps, controlOps)

// Attributes' descriptions, for short lines in the table.
func req(name string, k AttrKind) AttrInfo { return AttrInfo{Name: name, Kind: k, Required: true} }

func opt(name string, k AttrKind, def any) AttrInfo {
	return AttrInfo{Name: name, Kind: k, Default: def}
}

func fill(name string, k AttrKind, each int) AttrInfo {
	return AttrInfo{Name: name, Kind: k, Fill: each}
}

func fillSpatial(name string, k AttrKind, each int) AttrInfo {
	return AttrInfo{Name: name, Kind: k, Fill: each, spatial: true}
}

func oneOf(name string, values ...string) AttrInfo {
	return AttrInfo{Name: name, Kind: AttrString, Required: true, OneOf: values}
}

func oneOfOr(name, def string, values ...string) AttrInfo {
	return AttrInfo{Name: name, Kind: AttrString, Default: def, OneOf: values}
}

func operand(name string, t TypeClass) OperandInfo { return OperandInfo{Name: name, Type: t} }
func scalar(name string, t TypeClass) OperandInfo {
	return OperandInfo{Name: name, Type: t, Scalar: true}
}

// reducers are the combiners of reduce and reduce_window. The start value is the combiner's identity: 0, 1, the lowest and the
// highest value of the element type (infinities for floats), all bits set, no bits set.
var reducers = []string{"add", "multiply", "maximum", "minimum", "and", "or", "xor"}

var leafOps = []Info{
	{
		Op: OpConstant, Attrs: []AttrInfo{req("value", AttrLiteral)}, NeedsResult: true, SideEffectFree: true,
		Constraints: []Constraint{
			{"C1", "value holds the elements of the result's type, one where it is a splat"},
			{"C2", "bool elements are 0 or 1"},
		},
		infer: inferConstant,
	},
	{
		Op: OpIota, Attrs: []AttrInfo{req("iota_dimension", AttrInt)}, NeedsResult: true, SideEffectFree: true,
		Constraints: []Constraint{
			{"C1", "iota_dimension is a dimension of the result"},
			{"C2", "the result is of integer, float or complex type"},
		},
		infer: inferIota,
	},
}

func unaryOp(op Op, t TypeClass) Info {
	return Info{
		Op: op, Operands: []OperandInfo{operand("operand", t)}, Elementwise: true, SideEffectFree: true,
		Constraints: []Constraint{{"C1", "result and operand have the same type"}},
		resultDims:  "C1", resultType: "C1", infer: inferUnary,
	}
}

var unaryOps = []Info{
	{
		Op: OpAbs, Operands: []OperandInfo{operand("operand", SignedIntType|FloatType|ComplexType)}, Elementwise: true, SideEffectFree: true,
		Constraints: []Constraint{
			{"C1", "result and operand have the same shape"},
			{"C2", "the result has the operand's element type, for a complex one that of its parts"},
		},
		resultDims: "C1", resultType: "C2", infer: inferAbs,
	},
	unaryOp(OpCeil, FloatType),
	unaryOp(OpCos, FloatType|ComplexType),
	unaryOp(OpErf, FloatType),
	unaryOp(OpExp, FloatType|ComplexType),
	unaryOp(OpExpm1, FloatType|ComplexType),
	unaryOp(OpFloor, FloatType),
	unaryOp(OpLog, FloatType|ComplexType),
	unaryOp(OpLog1p, FloatType|ComplexType),
	unaryOp(OpLogistic, FloatType|ComplexType),
	unaryOp(OpNeg, IntType|FloatType|ComplexType),
	unaryOp(OpNot, BoolType|IntType),
	unaryOp(OpRound, FloatType),
	unaryOp(OpRsqrt, FloatType|ComplexType),
	unaryOp(OpSign, SignedIntType|FloatType|ComplexType),
	unaryOp(OpSin, FloatType|ComplexType),
	unaryOp(OpSqrt, FloatType|ComplexType),
	unaryOp(OpTanh, FloatType|ComplexType),
	unaryOp(OpPopcnt, IntType),
	unaryOp(OpClz, IntType),
	{
		Op: OpIsFinite, Operands: []OperandInfo{operand("x", FloatType)}, Elementwise: true, SideEffectFree: true,
		Constraints: []Constraint{
			{"C1", "x and the result have the same shape"},
			{"C2", "the result is of bool type"},
		},
		resultDims: "C1", resultType: "C2", infer: inferPredicate,
	},
	{
		Op: OpConvert, Operands: []OperandInfo{operand("operand", AnyType)}, NeedsResult: true, Elementwise: true, SideEffectFree: true,
		Constraints: []Constraint{{"C1", "operand and result have the same shape"}},
		infer:       inferConvert,
	},
	{
		Op: OpBitcast, Operands: []OperandInfo{operand("operand", IntType|FloatType|ComplexType)}, NeedsResult: true, SideEffectFree: true,
		Constraints: []Constraint{
			{"C1", "shapes are equal where the element types have equally many bits; else the wider side lacks the last dimension, which is the ratio of the widths"},
			{"C2", "operand and result are both complex or both not"},
			{"C3", "the result is not of bool type"},
		},
		infer: inferBitcast,
	},
}

func binaryOp(op Op, t TypeClass, commutative bool) Info {
	return Info{
		Op: op, Operands: []OperandInfo{operand("lhs", t), operand("rhs", t)},
		Elementwise: true, Commutative: commutative, SideEffectFree: true,
		Constraints: []Constraint{{"C1", "lhs, rhs and result have the same type"}},
		resultDims:  "C1", resultType: "C1", infer: inferBinary,
	}
}

var binaryOps = []Info{
	binaryOp(OpAdd, AnyType, true),
	binaryOp(OpSub, IntType|FloatType|ComplexType, false),
	binaryOp(OpMul, AnyType, true),
	binaryOp(OpDiv, IntType|FloatType|ComplexType, false),
	binaryOp(OpRem, IntType|FloatType|ComplexType, false),
	binaryOp(OpMax, AnyType, true),
	binaryOp(OpMin, AnyType, true),
	binaryOp(OpPow, IntType|FloatType|ComplexType, false),
	binaryOp(OpAnd, BoolType|IntType, true),
	binaryOp(OpOr, BoolType|IntType, true),
	binaryOp(OpXor, BoolType|IntType, true),
	binaryOp(OpAtan2, FloatType|ComplexType, false),
	binaryOp(OpShl, IntType, false),
	binaryOp(OpShrArith, IntType, false),
	binaryOp(OpShrLogic, IntType, false),
	{
		Op: OpCompare, Operands: []OperandInfo{operand("lhs", AnyType), operand("rhs", AnyType)}, Elementwise: true, SideEffectFree: true,
		Attrs: []AttrInfo{oneOf("direction", "EQ", "NE", "LT", "LE", "GT", "GE"), opt("total", AttrBool, false)},
		Constraints: []Constraint{
			{"C1", "lhs and rhs have the same element type"},
			{"C2", "lhs, rhs and result have the same shape"},
			{"C3", "total order is asked for of floats alone"},
			{"C4", "the result is of bool type"},
			{"C5", "complex numbers are compared by EQ and NE alone"},
		},
		resultDims: "C2", resultType: "C4", infer: inferCompare,
	},
}

var ternaryOps = []Info{
	{
		Op:          OpSelect,
		Operands:    []OperandInfo{operand("pred", BoolType), operand("on_true", AnyType), operand("on_false", AnyType)},
		Elementwise: true, SideEffectFree: true,
		Constraints: []Constraint{
			{"C1", "pred is a scalar or has the shape of on_true"},
			{"C2", "on_true, on_false and result have the same type"},
		},
		resultDims: "C2", resultType: "C2", infer: inferSelect,
	},
	{
		Op:          OpClamp,
		Operands:    []OperandInfo{operand("min", AnyType), operand("operand", AnyType), operand("max", AnyType)},
		Elementwise: true, SideEffectFree: true,
		Constraints: []Constraint{
			{"C1", "min is a scalar or has the shape of operand"},
			{"C2", "max is a scalar or has the shape of operand"},
			{"C3", "min, operand and max have the same element type"},
			{"C4", "operand and result have the same type"},
		},
		resultDims: "C4", resultType: "C4", infer: inferClamp,
	},
}

var shapeOps = []Info{
	{
		Op: OpBroadcast, Operands: []OperandInfo{operand("operand", AnyType)}, NeedsResult: true, SideEffectFree: true,
		Attrs: []AttrInfo{req("broadcast_dimensions", AttrInts)},
		Constraints: []Constraint{
			{"C1", "operand and result have the same element type"},
			{"C2", "broadcast_dimensions has one entry for each dimension of operand"},
			{"C3", "broadcast_dimensions are dimensions of the result"},
			{"C4", "broadcast_dimensions are unique"},
			{"C5", "each dimension of operand is 1 or that of the result which it maps to"},
		},
		infer: inferBroadcast,
	},
	{
		Op: OpReshape, Operands: []OperandInfo{operand("operand", AnyType)}, NeedsResult: true, SideEffectFree: true,
		Constraints: []Constraint{
			{"C1", "operand and result have the same element type"},
			{"C2", "operand and result have equally many elements"},
		},
		infer: inferReshape,
	},
	{
		Op: OpTranspose, Operands: []OperandInfo{operand("operand", AnyType)}, SideEffectFree: true,
		Attrs: []AttrInfo{req("permutation", AttrInts)},
		Constraints: []Constraint{
			{"C1", "operand and result have the same element type"},
			{"C2", "permutation is a permutation of the operand's dimensions"},
			{"C3", "result dimension i is the operand's dimension permutation[i]"},
		},
		resultDims: "C3", resultType: "C1", infer: inferTranspose,
	},
	{
		Op: OpSlice, Operands: []OperandInfo{operand("operand", AnyType)}, SideEffectFree: true,
		Attrs: []AttrInfo{req("start_indices", AttrInts), req("limit_indices", AttrInts), fill("strides", AttrInts, 1)},
		Constraints: []Constraint{
			{"C1", "operand and result have the same element type"},
			{"C2", "start_indices, limit_indices and strides have one entry for each dimension"},
			{"C3", "0 <= start <= limit <= the dimension"},
			{"C4", "strides are positive"},
			{"C5", "a result dimension is (limit - start) / stride, rounded up"},
		},
		resultDims: "C5", resultType: "C1", infer: inferSlice,
	},
	{
		Op: OpConcat, Operands: []OperandInfo{operand("inputs", AnyType)}, Variadic: true, MinOperands: 1, SideEffectFree: true,
		Attrs: []AttrInfo{req("dimension", AttrInt)},
		Constraints: []Constraint{
			{"C1", "inputs have the same element type"},
			{"C2", "inputs have the same shape but for dimension"},
			{"C4", "dimension is a dimension of the inputs"},
			{"C5", "the result has the inputs' element type"},
			{"C6", "the result has the inputs' shape but for dimension, where their sizes add up"},
		},
		resultDims: "C6", resultType: "C5", infer: inferConcat,
	},
	{
		Op: OpPad, Operands: []OperandInfo{operand("operand", AnyType), scalar("padding_value", AnyType)}, SideEffectFree: true,
		Attrs: []AttrInfo{fill("edge_padding_low", AttrInts, 0), fill("edge_padding_high", AttrInts, 0), fill("interior_padding", AttrInts, 0)},
		Constraints: []Constraint{
			{"C1", "operand, padding_value and result have the same element type"},
			{"C2", "edge_padding_low, edge_padding_high and interior_padding have one entry for each dimension"},
			{"C3", "interior_padding is not negative"},
			{"C4", "a result dimension is the operand's with its low, high and interior padding, and not negative"},
		},
		resultDims: "C4", resultType: "C1", infer: inferPad,
	},
	{
		Op: OpReverse, Operands: []OperandInfo{operand("operand", AnyType)}, SideEffectFree: true,
		Attrs: []AttrInfo{req("dimensions", AttrInts)},
		Constraints: []Constraint{
			{"C1", "operand and result have the same type"},
			{"C2", "dimensions are unique"},
			{"C3", "dimensions are dimensions of the operand"},
		},
		resultDims: "C1", resultType: "C1", infer: inferReverse,
	},
	{
		// Dimension numbers as in StableHLO, without its batching dimensions.
		Op: OpGather, Operands: []OperandInfo{operand("operand", AnyType), operand("start_indices", IntType)}, SideEffectFree: true,
		Attrs: []AttrInfo{
			req("offset_dims", AttrInts), req("collapsed_slice_dims", AttrInts), req("start_index_map", AttrInts),
			req("index_vector_dim", AttrInt), req("slice_sizes", AttrInts), opt("indices_are_sorted", AttrBool, false),
		},
		Constraints: []Constraint{
			{"C1", "the rank of operand is the number of offset_dims and collapsed_slice_dims"},
			{"C2", "index_vector_dim is a dimension of start_indices or its rank"},
			{"C3", "start_index_map has one entry for each element of an index vector"},
			{"C4", "offset_dims are unique and sorted"},
			{"C5", "offset_dims are dimensions of the result"},
			{"C6", "collapsed_slice_dims are unique"},
			{"C7", "collapsed_slice_dims are sorted"},
			{"C8", "collapsed_slice_dims are dimensions of operand"},
			{"C9", "slice_sizes of collapsed dimensions are at most 1"},
			{"C18", "start_index_map is unique"},
			{"C19", "start_index_map holds dimensions of operand"},
			{"C20", "slice_sizes has one entry for each dimension of operand"},
			{"C21", "0 <= slice_sizes <= the dimensions of operand"},
			{"C22", "the result's dimensions are those of start_indices without the index vectors, and at offset_dims the slice sizes"},
			{"C23", "operand and result have the same element type"},
		},
		resultDims: "C22", resultType: "C23", infer: inferGather,
	},
	{
		Op:             OpScatter,
		Operands:       []OperandInfo{operand("input", AnyType), operand("scatter_indices", IntType), operand("updates", AnyType)},
		SideEffectFree: true,
		Attrs: []AttrInfo{
			req("update_window_dims", AttrInts), req("inserted_window_dims", AttrInts), req("scatter_dims_to_operand_dims", AttrInts),
			req("index_vector_dim", AttrInt), opt("indices_are_sorted", AttrBool, false), opt("unique_indices", AttrBool, false),
			oneOf("combiner", "add", "max", "min"),
		},
		Constraints: []Constraint{
			{"C2", "the rank of input is the number of update_window_dims and inserted_window_dims"},
			{"C4", "updates have the dimensions of scatter_indices without the index vectors, and at update_window_dims at most those of input that are not inserted"},
			{"C6", "updates and input have the same element type"},
			{"C7", "update_window_dims are unique and sorted"},
			{"C8", "update_window_dims are dimensions of updates"},
			{"C9", "inserted_window_dims are unique"},
			{"C10", "inserted_window_dims are sorted"},
			{"C11", "inserted_window_dims are dimensions of input"},
			{"C19", "scatter_dims_to_operand_dims has one entry for each element of an index vector"},
			{"C20", "scatter_dims_to_operand_dims are unique"},
			{"C21", "scatter_dims_to_operand_dims holds dimensions of input"},
			{"C22", "index_vector_dim is a dimension of scatter_indices or its rank"},
			{"C23", "the combiner is defined for the element type: no max or min of complex numbers"},
			{"C24", "the result has the shape of input"},
			{"C25", "the result has the element type of input"},
		},
		resultDims: "C24", resultType: "C25", infer: inferScatter,
	},
	{
		Op: OpDynSlice, Operands: []OperandInfo{operand("operand", AnyType), scalar("start_indices", IntType)},
		Variadic: true, MinOperands: 1, SideEffectFree: true,
		Attrs: []AttrInfo{req("slice_sizes", AttrInts)},
		Constraints: []Constraint{
			{"C1", "operand and result have the same element type"},
			{"C2", "there is one start index and one slice size for each dimension"},
			{"C3", "start indices have the same type"},
			{"C4", "0 <= slice_sizes <= the dimensions of operand"},
			{"C5", "the result's dimensions are slice_sizes"},
		},
		resultDims: "C5", resultType: "C1", infer: inferDynSlice,
	},
	{
		Op:       OpDynUpdSlice,
		Operands: []OperandInfo{operand("operand", AnyType), operand("update", AnyType), scalar("start_indices", IntType)},
		Variadic: true, MinOperands: 2, SideEffectFree: true,
		Constraints: []Constraint{
			{"C1", "operand and result have the same type"},
			{"C2", "update and operand have the same element type"},
			{"C3", "update and operand have the same rank"},
			{"C4", "there is one start index for each dimension"},
			{"C5", "start indices have the same type"},
			{"C6", "update is no larger than operand"},
		},
		resultDims: "C1", resultType: "C1", infer: inferDynUpdSlice,
	},
}

var reductionOps = []Info{
	{
		Op: OpReduce, Operands: []OperandInfo{operand("input", AnyType)}, SideEffectFree: true,
		Attrs: []AttrInfo{req("dimensions", AttrInts), oneOf("combiner", reducers...)},
		Constraints: []Constraint{
			{"C4", "dimensions are dimensions of input"},
			{"C5", "dimensions are unique"},
			{"C6", "the combiner is defined for the element type: and, or, xor for bool and integers; maximum, minimum not for complex"},
			{"C7", "the result has the shape of input without dimensions"},
			{"C8", "the result has the element type of input"},
		},
		resultDims: "C7", resultType: "C8", infer: inferReduce,
	},
	{
		// Not in StableHLO. The index of the first extreme element; a NaN is extreme.
		Op: OpArgMinMax, Operands: []OperandInfo{operand("input", BoolType|IntType|FloatType)}, NeedsResult: true, SideEffectFree: true,
		Attrs: []AttrInfo{req("dimension", AttrInt), req("min", AttrBool)},
		Constraints: []Constraint{
			{"C1", "dimension is a dimension of input"},
			{"C2", "input has an element along dimension"},
			{"C3", "the result has the shape of input without dimension"},
			{"C4", "the result is of integer type"},
		},
		infer: inferArgMinMax,
	},
	{
		Op: OpReduceWindow, Operands: []OperandInfo{operand("input", AnyType)}, SideEffectFree: true,
		Attrs: []AttrInfo{
			oneOf("combiner", reducers...), req("window_dimensions", AttrInts), fill("window_strides", AttrInts, 1),
			fill("base_dilations", AttrInts, 1), fill("window_dilations", AttrInts, 1), fill("padding", AttrPairs, 0),
		},
		Constraints: []Constraint{
			{"C4", "window_dimensions has one entry for each dimension"},
			{"C5", "window_dimensions are positive"},
			{"C6", "window_strides has one entry for each dimension"},
			{"C7", "window_strides are positive"},
			{"C8", "base_dilations has one entry for each dimension"},
			{"C9", "base_dilations are positive"},
			{"C10", "window_dilations has one entry for each dimension"},
			{"C11", "window_dilations are positive"},
			{"C12", "padding has one pair for each dimension"},
			{"C13", "the combiner is defined for the element type: and, or, xor for bool and integers; maximum, minimum not for complex"},
			{"C15", "a result dimension is the number of windows"},
			{"C16", "the result has the element type of input"},
		},
		resultDims: "C15", resultType: "C16", infer: inferReduceWindow,
	},
	{
		Op: OpDot, Operands: []OperandInfo{operand("lhs", AnyType), operand("rhs", AnyType)}, SideEffectFree: true,
		Attrs: []AttrInfo{
			opt("lhs_batching", AttrInts, []int{}), req("lhs_contracting", AttrInts), opt("rhs_batching", AttrInts, []int{}),
			req("rhs_contracting", AttrInts), oneOfOr("precision", "DEFAULT", "DEFAULT", "HIGH", "HIGHEST"),
		},
		Constraints: []Constraint{
			{"C1", "lhs_batching and rhs_batching are equally many"},
			{"C2", "lhs_contracting and rhs_contracting are equally many"},
			{"C3", "lhs_batching and lhs_contracting are unique together"},
			{"C4", "rhs_batching and rhs_contracting are unique together"},
			{"C5", "lhs_batching are dimensions of lhs"},
			{"C6", "lhs_contracting are dimensions of lhs"},
			{"C7", "rhs_batching are dimensions of rhs"},
			{"C8", "rhs_contracting are dimensions of rhs"},
			{"C9", "batching dimensions are equal in lhs and rhs"},
			{"C10", "contracting dimensions are equal in lhs and rhs"},
			{"C12", "the result has the batching dimensions, those of lhs left over, those of rhs left over"},
			{"C13", "lhs and rhs have the same element type"},
			{"C25", "the result's element type is that of lhs, or a wanted one of the same class (the type of accumulation)"},
		},
		resultDims: "C12", resultType: "C25", infer: inferDot,
	},
	{
		Op: OpConv, Operands: []OperandInfo{operand("lhs", AnyType), operand("rhs", AnyType)}, SideEffectFree: true,
		Attrs: []AttrInfo{
			req("input_batch_dimension", AttrInt), req("input_feature_dimension", AttrInt), req("input_spatial_dimensions", AttrInts),
			req("kernel_input_feature_dimension", AttrInt), req("kernel_output_feature_dimension", AttrInt), req("kernel_spatial_dimensions", AttrInts),
			req("output_batch_dimension", AttrInt), req("output_feature_dimension", AttrInt), req("output_spatial_dimensions", AttrInts),
			fillSpatial("window_strides", AttrInts, 1), fillSpatial("padding", AttrPairs, 0),
			fillSpatial("lhs_dilation", AttrInts, 1), fillSpatial("rhs_dilation", AttrInts, 1),
			opt("feature_group_count", AttrInt, 1), opt("batch_group_count", AttrInt, 1),
			oneOfOr("precision", "DEFAULT", "DEFAULT", "HIGH", "HIGHEST"),
		},
		Constraints: []Constraint{
			{"C1", "lhs and rhs have the same rank N, at least 2"},
			{"C2", "window_strides has N - 2 entries"},
			{"C3", "window_strides are positive"},
			{"C4", "padding has N - 2 pairs"},
			{"C5", "lhs_dilation has N - 2 entries"},
			{"C6", "lhs_dilation is positive"},
			{"C7", "rhs_dilation has N - 2 entries"},
			{"C8", "rhs_dilation is positive"},
			{"C10", "the batch of lhs is a multiple of batch_group_count"},
			{"C11", "the features of lhs are a multiple of feature_group_count"},
			{"C12", "input_spatial_dimensions has N - 2 entries"},
			{"C13", "the input dimensions are a permutation of 0 to N - 1"},
			{"C14", "the kernel's input features are those of lhs divided by feature_group_count"},
			{"C15", "the kernel's output features are a multiple of batch_group_count"},
			{"C16", "the kernel's output features are a multiple of feature_group_count"},
			{"C17", "kernel_spatial_dimensions has N - 2 entries"},
			{"C18", "the kernel dimensions are a permutation of 0 to N - 1"},
			{"C19", "output_spatial_dimensions has N - 2 entries"},
			{"C20", "the output dimensions are a permutation of 0 to N - 1"},
			{"C21", "feature_group_count is positive"},
			{"C22", "batch_group_count is positive"},
			{"C23", "one of feature_group_count and batch_group_count is 1"},
			{"C25", "the result has the batch of lhs divided by batch_group_count, the kernel's output features, and the numbers of windows"},
			{"C27", "lhs, rhs and result have the same element type"},
		},
		resultDims: "C25", resultType: "C27", infer: inferConv,
	},
}

var controlOps = []Info{
	{
		Op: OpRngBits, Operands: []OperandInfo{operand("initial_state", UnsignedIntType)}, NeedsResult: true, SideEffectFree: true,
		Attrs: []AttrInfo{oneOfOr("algorithm", "DEFAULT", "DEFAULT", "THREE_FRY", "PHILOX")},
		Constraints: []Constraint{
			{"C1", "the first result has the type of initial_state"},
			{"C2", "initial_state has 2 elements for THREE_FRY, 2 or 3 for PHILOX"},
			{"C3", "initial_state has rank 1"},
			{"C4", "the second result is of integer or float type"},
		},
		infer: inferRngBits,
	},
	{
		Op: OpBarrier, Operands: []OperandInfo{operand("operand", AnyType)}, Variadic: true, MinOperands: 1, SideEffectFree: true,
		Constraints: []Constraint{{"C1", "each result has the type of its operand"}},
		resultDims:  "C1", resultType: "C1", infer: inferSame,
	},
	{
		Op: OpSort, Operands: []OperandInfo{operand("inputs", AnyType)}, Variadic: true, MinOperands: 1, Regions: 1, SideEffectFree: true,
		Attrs: []AttrInfo{req("dimension", AttrInt), opt("is_stable", AttrBool, false)},
		Constraints: []Constraint{
			{"C2", "each result has the type of its input"},
			{"C3", "inputs have the same shape"},
			{"C4", "dimension is a dimension of the inputs, not counted from the end"},
			{"C5", "the comparator takes two scalars of each input's element type and gives one bool scalar"},
		},
		resultDims: "C2", resultType: "C2", infer: inferSort,
	},
	{
		Op: OpWhile, Operands: []OperandInfo{operand("operand", AnyType)}, Variadic: true, MinOperands: 1, Regions: 2, SideEffectFree: true,
		Constraints: []Constraint{
			{"C1", "cond takes the operands' types and gives one bool scalar"},
			{"C2", "body takes and gives the operands' types"},
			{"C3", "each result has the type of its operand"},
		},
		resultDims: "C3", resultType: "C3", infer: inferWhile,
	},
	{
		// Other than in StableHLO the branches take arguments, since regions capture nothing.
		Op: OpIf, Operands: []OperandInfo{scalar("pred", BoolType), operand("operand", AnyType)}, Variadic: true, MinOperands: 1, Regions: 2, SideEffectFree: true,
		Constraints: []Constraint{
			{"C1", "both branches take the types of the operands after pred"},
			{"C2", "both branches give the same types"},
			{"C3", "each result has the type that the branches give"},
		},
		resultDims: "C3", resultType: "C3", infer: inferIf,
	},
	{
		// As func.call: StableHLO leaves it to MLIR's func dialect.
		Op: OpCall, Operands: []OperandInfo{operand("operand", AnyType)}, Variadic: true, SideEffectFree: true,
		Attrs: []AttrInfo{req("callee", AttrString)},
		Constraints: []Constraint{
			{"C1", "callee is a function of the module other than the entry"},
			{"C2", "the operands have the types of the callee's parameters"},
			{"C3", "the results have the types of the callee's"},
		},
		resultDims: "C3", resultType: "C3", infer: inferCall,
	},
}
