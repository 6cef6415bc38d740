package graph

// Op is an operation's name, StableHLO's where it has one (https://github.com/openxla/stablehlo/blob/main/docs/spec.md).
type Op string

// The operations. Their arity, attributes, inference and constraints are in the table in ops.go.
const (
	// Leaves.
	OpConstant Op = "constant" // value Literal
	OpIota     Op = "iota"     // iota_dimension int

	// Elementwise unary.
	OpAbs      Op = "abs"
	OpCeil     Op = "ceil"
	OpConvert  Op = "convert" // result dtype
	OpCos      Op = "cosine"
	OpErf      Op = "erf" // chlo.erf
	OpExp      Op = "exponential"
	OpExpm1    Op = "exponential_minus_one"
	OpFloor    Op = "floor"
	OpIsFinite Op = "is_finite"
	OpLog      Op = "log"
	OpLog1p    Op = "log_plus_one"
	OpLogistic Op = "logistic"
	OpNeg      Op = "negate"
	OpNot      Op = "not" // logical for bool, bitwise for integers
	OpRound    Op = "round_nearest_even"
	OpRsqrt    Op = "rsqrt"
	OpSign     Op = "sign"
	OpSin      Op = "sine"
	OpSqrt     Op = "sqrt"
	OpTanh     Op = "tanh"
	OpPopcnt   Op = "popcnt"
	OpClz      Op = "count_leading_zeros"
	OpBitcast  Op = "bitcast_convert" // result dtype

	// Elementwise binary: equal shapes, no implicit broadcast.
	OpAdd      Op = "add"
	OpSub      Op = "subtract"
	OpMul      Op = "multiply"
	OpDiv      Op = "divide"
	OpRem      Op = "remainder"
	OpMax      Op = "maximum"
	OpMin      Op = "minimum"
	OpPow      Op = "power"
	OpAnd      Op = "and"
	OpOr       Op = "or"
	OpXor      Op = "xor"
	OpAtan2    Op = "atan2"
	OpShl      Op = "shift_left"
	OpShrArith Op = "shift_right_arithmetic"
	OpShrLogic Op = "shift_right_logical"
	OpCompare  Op = "compare" // direction string EQ|NE|LT|LE|GT|GE, total bool

	// Ternary.
	OpSelect Op = "select" // pred, on_true, on_false; equal shapes
	OpClamp  Op = "clamp"  // min, x, max; equal shapes or scalar bounds

	// Shape.
	OpBroadcast   Op = "broadcast_in_dim" // result shape, broadcast_dimensions []int
	OpReshape     Op = "reshape"          // result shape
	OpTranspose   Op = "transpose"        // permutation []int
	OpSlice       Op = "slice"            // start_indices, limit_indices, strides []int
	OpConcat      Op = "concatenate"      // dimension int
	OpPad         Op = "pad"              // x, scalar value; edge_padding_low, edge_padding_high, interior_padding []int
	OpReverse     Op = "reverse"          // dimensions []int
	OpGather      Op = "gather"           // operand, start_indices; see ops.go
	OpScatter     Op = "scatter"          // operand, indices, updates; combiner string add|max|min; see ops.go
	OpDynSlice    Op = "dynamic_slice"    // operand, scalar starts...; slice_sizes []int
	OpDynUpdSlice Op = "dynamic_update_slice"

	// Reduction and contraction.
	OpReduce       Op = "reduce"        // x; dimensions []int, combiner string add|multiply|maximum|minimum|and|or|xor
	OpArgMinMax    Op = "arg_min_max"   // x; dimension int, min bool; result dtype
	OpReduceWindow Op = "reduce_window" // x; combiner; window_dimensions, window_strides, base_dilations, window_dilations []int, padding [][2]int
	OpDot          Op = "dot_general"   // lhs_batching, lhs_contracting, rhs_batching, rhs_contracting []int; precision string DEFAULT|HIGH|HIGHEST
	OpConv         Op = "convolution"   // see ops.go

	// Other.
	OpRngBits Op = "rng_bit_generator"    // state; algorithm string
	OpBarrier Op = "optimization_barrier" // n operands, n results
	OpSort    Op = "sort"                 // n operands; dimension int, is_stable bool; region comparator
	OpWhile   Op = "while"                // n operands; regions cond, body
	OpIf      Op = "if"                   // pred, n operands; regions true, false of n params
	OpCall    Op = "call"                 // callee string
)
