package trace

import (
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/shapes"
	"github.com/google/go-cmp/cmp"

	"precast/graph"
)

// parseShape reads "f32[2,3]".
func parseShape(t testing.TB, text string) graph.Shape {
	t.Helper()
	name, dims, ok := strings.Cut(strings.TrimSuffix(text, "]"), "[")
	dtype, known := graph.ParseDType(name)
	if !ok || !known {
		t.Fatalf("shape %q in the test is malformed", text)
	}
	shape := shapes.Make(dtype)
	for d := range strings.SplitSeq(dims, ",") {
		if d == "" {
			continue
		}
		n, err := strconv.Atoi(d)
		if err != nil {
			t.Fatal(err)
		}
		shape.Dimensions = append(shape.Dimensions, n)
	}
	return shape
}

// recordOp records one operation over parameters of the given shapes ("f32[2] f32[2]"), straight through the backend's interface. It
// returns the lines of the nodes and of the return.
func recordOp(t testing.TB, params string, op func(f compute.Function, in []compute.Value) ([]compute.Value, error)) (string, error) {
	t.Helper()
	r := NewRecorder()
	b := r.Builder("op")
	f := b.Main()
	var in []compute.Value
	for i, text := range strings.Fields(params) {
		v, err := f.Parameter("p"+strconv.Itoa(i), parseShape(t, text), nil)
		if err != nil {
			t.Fatal(err)
		}
		in = append(in, v)
	}
	out, err := op(f, in)
	if err != nil {
		return "", err
	}
	if err := f.Return(out, nil); err != nil {
		return "", err
	}
	if _, err := b.Compile(); err != nil {
		return "", err
	}
	m := r.Module()
	if err := graph.Verify(m); err != nil {
		t.Error(err)
	}
	if got, err := graph.Parse("printed", m.String()); err != nil {
		t.Errorf("the printed module does not parse: %v\n%s", err, m)
	} else if got.String() != m.String() {
		t.Errorf("the printed module parses to another one:\n%s", cmp.Diff(m.String(), got.String()))
	}
	var lines []string
	for line := range strings.SplitSeq(m.String(), "\n") {
		if strings.HasPrefix(line, "  ") && !strings.Contains(line, " = input ") {
			lines = append(lines, strings.TrimPrefix(line, "  "))
		}
	}
	return strings.Join(lines, "\n"), nil
}

type (
	cv     = compute.Value
	opCase struct {
		method string
		params string
		op     func(f compute.Function, in []compute.Value) ([]compute.Value, error)
		want   string
	}
)

func one(v compute.Value, err error) ([]compute.Value, error) { return []compute.Value{v}, err }

func unaryCase(method string, call func(compute.Function, compute.Value) (compute.Value, error), params, want string) opCase {
	return opCase{method, params, func(f compute.Function, in []compute.Value) ([]compute.Value, error) { return one(call(f, in[0])) }, want}
}

func binaryCase(method string, call func(f compute.Function, a, b compute.Value) (compute.Value, error), params, want string) opCase {
	return opCase{method, params, func(f compute.Function, in []compute.Value) ([]compute.Value, error) {
		return one(call(f, in[0], in[1]))
	}, want}
}

func reduceCase(method string, call func(compute.Function, compute.Value, ...int) (compute.Value, error), params, want string) opCase {
	return opCase{method, params, func(f compute.Function, in []compute.Value) ([]compute.Value, error) {
		return one(call(f, in[0], 1))
	}, want}
}

func opCases() []opCase {
	type fn = compute.Function
	return []opCase{
		unaryCase("Abs", fn.Abs, "f32[2]", `%1 = abs %0 : f32[2]
			return %1`),
		unaryCase("Abs", fn.Abs, "u8[2]", `return %0`),
		unaryCase("BitCount", fn.BitCount, "i32[2]", `%1 = popcnt %0 : i32[2]
			return %1`),
		unaryCase("BitwiseNot", fn.BitwiseNot, "i32[2]", `%1 = not %0 : i32[2]
			return %1`),
		unaryCase("Ceil", fn.Ceil, "f32[2]", `%1 = ceil %0 : f32[2]
			return %1`),
		unaryCase("Clz", fn.Clz, "u16[2]", `%1 = count_leading_zeros %0 : u16[2]
			return %1`),
		unaryCase("Cos", fn.Cos, "bf16[2]", `%1 = cosine %0 : bf16[2]
			return %1`),
		unaryCase("Erf", fn.Erf, "f32[2]", `%1 = erf %0 : f32[2]
			return %1`),
		unaryCase("Exp", fn.Exp, "f64[2]", `%1 = exponential %0 : f64[2]
			return %1`),
		unaryCase("Expm1", fn.Expm1, "f16[2]", `%1 = exponential_minus_one %0 : f16[2]
			return %1`),
		unaryCase("Floor", fn.Floor, "f32[2]", `%1 = floor %0 : f32[2]
			return %1`),
		unaryCase("Identity", fn.Identity, "f32[2]", `return %0`),
		unaryCase("IsFinite", fn.IsFinite, "f32[2]", `%1 = is_finite %0 : bool[2]
			return %1`),
		unaryCase("IsNaN", fn.IsNaN, "f32[2]", `%1 = compare %0, %0 {direction = "NE", total = false} : bool[2]
			return %1`),
		unaryCase("Log", fn.Log, "f32[2]", `%1 = log %0 : f32[2]
			return %1`),
		unaryCase("Log1p", fn.Log1p, "f32[2]", `%1 = log_plus_one %0 : f32[2]
			return %1`),
		unaryCase("LogicalNot", fn.LogicalNot, "bool[2]", `%1 = not %0 : bool[2]
			return %1`),
		unaryCase("Logistic", fn.Logistic, "f32[2]", `%1 = logistic %0 : f32[2]
			return %1`),
		unaryCase("Neg", fn.Neg, "i64[2]", `%1 = negate %0 : i64[2]
			return %1`),
		unaryCase("Round", fn.Round, "f32[2]", `%1 = round_nearest_even %0 : f32[2]
			return %1`),
		unaryCase("Rsqrt", fn.Rsqrt, "f32[2]", `%1 = rsqrt %0 : f32[2]
			return %1`),
		unaryCase("Sign", fn.Sign, "f32[2]", `%1 = sign %0 : f32[2]
			return %1`),
		unaryCase("Sign", fn.Sign, "u32[2]", `%1 = constant {value = splat<u32: 1>} : u32[2]
			%2 = minimum %0, %1 : u32[2]
			return %2`),
		unaryCase("Sin", fn.Sin, "f32[2]", `%1 = sine %0 : f32[2]
			return %1`),
		unaryCase("Sqrt", fn.Sqrt, "f32[2]", `%1 = sqrt %0 : f32[2]
			return %1`),
		unaryCase("Tanh", fn.Tanh, "f32[]", `%1 = tanh %0 : f32[]
			return %1`),

		binaryCase("Add", fn.Add, "f32[2,3] f32[2,3]", `%2 = add %0, %1 : f32[2,3]
			return %2`),
		binaryCase("Add", fn.Add, "f32[2,3] f32[]", `%2 = broadcast_in_dim %1 {broadcast_dimensions = []} : f32[2,3]
			%3 = add %0, %2 : f32[2,3]
			return %3`),
		binaryCase("Add", fn.Add, "f32[] f32[2,3]", `%2 = broadcast_in_dim %0 {broadcast_dimensions = []} : f32[2,3]
			%3 = add %2, %1 : f32[2,3]
			return %3`),
		binaryCase("Add", fn.Add, "f32[2,1] f32[1,3]", `%2 = broadcast_in_dim %0 {broadcast_dimensions = [0, 1]} : f32[2,3]
			%3 = broadcast_in_dim %1 {broadcast_dimensions = [0, 1]} : f32[2,3]
			%4 = add %2, %3 : f32[2,3]
			return %4`),
		binaryCase("Atan2", fn.Atan2, "f32[2] f32[2]", `%2 = atan2 %0, %1 : f32[2]
			return %2`),
		binaryCase("BitwiseAnd", fn.BitwiseAnd, "i32[2] i32[2]", `%2 = and %0, %1 : i32[2]
			return %2`),
		binaryCase("BitwiseOr", fn.BitwiseOr, "u8[2] u8[2]", `%2 = or %0, %1 : u8[2]
			return %2`),
		binaryCase("BitwiseXor", fn.BitwiseXor, "i32[2] i32[2]", `%2 = xor %0, %1 : i32[2]
			return %2`),
		binaryCase("Div", fn.Div, "f32[2] f32[2]", `%2 = divide %0, %1 : f32[2]
			return %2`),
		binaryCase("LogicalAnd", fn.LogicalAnd, "bool[2] bool[2]", `%2 = and %0, %1 : bool[2]
			return %2`),
		binaryCase("LogicalOr", fn.LogicalOr, "bool[2] bool[2]", `%2 = or %0, %1 : bool[2]
			return %2`),
		binaryCase("LogicalXor", fn.LogicalXor, "bool[2] bool[2]", `%2 = xor %0, %1 : bool[2]
			return %2`),
		binaryCase("Max", fn.Max, "i32[2] i32[2]", `%2 = maximum %0, %1 : i32[2]
			return %2`),
		binaryCase("Min", fn.Min, "f32[2] f32[2]", `%2 = minimum %0, %1 : f32[2]
			return %2`),
		binaryCase("Mul", fn.Mul, "f32[2] f32[2]", `%2 = multiply %0, %1 : f32[2]
			return %2`),
		binaryCase("Pow", fn.Pow, "f32[2] f32[2]", `%2 = power %0, %1 : f32[2]
			return %2`),
		binaryCase("Rem", fn.Rem, "f32[2] f32[2]", `%2 = remainder %0, %1 : f32[2]
			return %2`),
		binaryCase("ShiftLeft", fn.ShiftLeft, "i32[2] i32[]", `%2 = broadcast_in_dim %1 {broadcast_dimensions = []} : i32[2]
			%3 = shift_left %0, %2 : i32[2]
			return %3`),
		binaryCase("ShiftRightArithmetic", fn.ShiftRightArithmetic, "i32[2] i32[2]", `%2 = shift_right_arithmetic %0, %1 : i32[2]
			return %2`),
		binaryCase("ShiftRightLogical", fn.ShiftRightLogical, "u32[2] u32[2]", `%2 = shift_right_logical %0, %1 : u32[2]
			return %2`),
		binaryCase("Sub", fn.Sub, "f32[2] f32[2]", `%2 = subtract %0, %1 : f32[2]
			return %2`),

		binaryCase("Equal", fn.Equal, "bool[2] bool[2]", `%2 = compare %0, %1 {direction = "EQ", total = false} : bool[2]
			return %2`),
		binaryCase("EqualTotalOrder", fn.EqualTotalOrder, "f32[2] f32[2]", `%2 = compare %0, %1 {direction = "EQ", total = true} : bool[2]
			return %2`),
		binaryCase("GreaterOrEqual", fn.GreaterOrEqual, "f32[2] f32[]", `%2 = broadcast_in_dim %1 {broadcast_dimensions = []} : f32[2]
			%3 = compare %0, %2 {direction = "GE", total = false} : bool[2]
			return %3`),
		binaryCase("GreaterOrEqualTotalOrder", fn.GreaterOrEqualTotalOrder, "f32[2] f32[2]", `%2 = compare %0, %1 {direction = "GE", total = true} : bool[2]
			return %2`),
		binaryCase("GreaterThan", fn.GreaterThan, "f32[2] f32[2]", `%2 = compare %0, %1 {direction = "GT", total = false} : bool[2]
			return %2`),
		binaryCase("GreaterThanTotalOrder", fn.GreaterThanTotalOrder, "f32[2] f32[2]", `%2 = compare %0, %1 {direction = "GT", total = true} : bool[2]
			return %2`),
		binaryCase("LessOrEqual", fn.LessOrEqual, "f32[2] f32[2]", `%2 = compare %0, %1 {direction = "LE", total = false} : bool[2]
			return %2`),
		binaryCase("LessOrEqualTotalOrder", fn.LessOrEqualTotalOrder, "f32[2] f32[2]", `%2 = compare %0, %1 {direction = "LE", total = true} : bool[2]
			return %2`),
		binaryCase("LessThan", fn.LessThan, "f32[2] f32[2]", `%2 = compare %0, %1 {direction = "LT", total = false} : bool[2]
			return %2`),
		binaryCase("LessThanTotalOrder", fn.LessThanTotalOrder, "i32[2] i32[2]", `%2 = compare %0, %1 {direction = "LT", total = false} : bool[2]
			return %2`),
		binaryCase("NotEqual", fn.NotEqual, "f32[2] f32[2]", `%2 = compare %0, %1 {direction = "NE", total = false} : bool[2]
			return %2`),
		binaryCase("NotEqualTotalOrder", fn.NotEqualTotalOrder, "f32[2] f32[2]", `%2 = compare %0, %1 {direction = "NE", total = true} : bool[2]
			return %2`),

		reduceCase("ReduceBitwiseAnd", fn.ReduceBitwiseAnd, "i32[2,3]", `%1 = reduce %0 {combiner = "and", dimensions = [1]} : i32[2]
			return %1`),
		reduceCase("ReduceBitwiseOr", fn.ReduceBitwiseOr, "i32[2,3]", `%1 = reduce %0 {combiner = "or", dimensions = [1]} : i32[2]
			return %1`),
		reduceCase("ReduceBitwiseXor", fn.ReduceBitwiseXor, "i32[2,3]", `%1 = reduce %0 {combiner = "xor", dimensions = [1]} : i32[2]
			return %1`),
		reduceCase("ReduceLogicalAnd", fn.ReduceLogicalAnd, "bool[2,3]", `%1 = reduce %0 {combiner = "and", dimensions = [1]} : bool[2]
			return %1`),
		reduceCase("ReduceLogicalOr", fn.ReduceLogicalOr, "bool[2,3]", `%1 = reduce %0 {combiner = "or", dimensions = [1]} : bool[2]
			return %1`),
		reduceCase("ReduceLogicalXor", fn.ReduceLogicalXor, "bool[2,3]", `%1 = reduce %0 {combiner = "xor", dimensions = [1]} : bool[2]
			return %1`),
		reduceCase("ReduceMax", fn.ReduceMax, "f32[2,3]", `%1 = reduce %0 {combiner = "maximum", dimensions = [1]} : f32[2]
			return %1`),
		reduceCase("ReduceMin", fn.ReduceMin, "f32[2,3]", `%1 = reduce %0 {combiner = "minimum", dimensions = [1]} : f32[2]
			return %1`),
		reduceCase("ReduceProduct", fn.ReduceProduct, "f32[2,3]", `%1 = reduce %0 {combiner = "multiply", dimensions = [1]} : f32[2]
			return %1`),
		reduceCase("ReduceSum", fn.ReduceSum, "f32[2,3]", `%1 = reduce %0 {combiner = "add", dimensions = [1]} : f32[2]
			return %1`),
		{"ReduceSum", "f32[2,3]", func(f fn, in []cv) ([]cv, error) { return one(f.ReduceSum(in[0])) }, `%1 = reduce %0 {combiner = "add", dimensions = [0, 1]} : f32[]
			return %1`},
		{"ReduceSum", "f32[2,3,4]", func(f fn, in []cv) ([]cv, error) { return one(f.ReduceSum(in[0], 2, 0)) }, `%1 = reduce %0 {combiner = "add", dimensions = [0, 2]} : f32[3]
			return %1`},

		{"ArgMinMax", "f32[2,3]", func(f fn, in []cv) ([]cv, error) { return one(f.ArgMinMax(in[0], 1, dtypes.Int32, false)) }, `%1 = arg_min_max %0 {dimension = 1, min = false} : i32[2]
			return %1`},
		{"BatchNormForInference", "f32[2,3,4] f32[3] f32[3] f32[3] f32[3]", func(f fn, in []cv) ([]cv, error) {
			return one(f.BatchNormForInference(in[0], in[1], in[2], in[3], in[4], 0.5, 1))
		}, `%5 = constant {value = splat<f32: 0.5>} : f32[3]
			%6 = add %4, %5 : f32[3]
			%7 = rsqrt %6 : f32[3]
			%8 = multiply %7, %1 : f32[3]
			%9 = broadcast_in_dim %3 {broadcast_dimensions = [1]} : f32[2,3,4]
			%10 = subtract %0, %9 : f32[2,3,4]
			%11 = broadcast_in_dim %8 {broadcast_dimensions = [1]} : f32[2,3,4]
			%12 = multiply %10, %11 : f32[2,3,4]
			%13 = broadcast_in_dim %2 {broadcast_dimensions = [1]} : f32[2,3,4]
			%14 = add %12, %13 : f32[2,3,4]
			return %14`},
		{"Bitcast", "f32[2]", func(f fn, in []cv) ([]cv, error) { return one(f.Bitcast(in[0], dtypes.Int32)) }, `%1 = bitcast_convert %0 : i32[2]
			return %1`},
		{"Bitcast", "u32[2]", func(f fn, in []cv) ([]cv, error) { return one(f.Bitcast(in[0], dtypes.Uint16)) }, `%1 = bitcast_convert %0 : u16[2,2]
			return %1`},
		{"BroadcastInDim", "f32[3]", func(f fn, in []cv) ([]cv, error) {
			return one(f.BroadcastInDim(in[0], shapes.Make(dtypes.Float32, 2, 3), []int{1}))
		}, `%1 = broadcast_in_dim %0 {broadcast_dimensions = [1]} : f32[2,3]
			return %1`},
		{"Clamp", "f32[] f32[2] f32[]", func(f fn, in []cv) ([]cv, error) { return one(f.Clamp(in[0], in[1], in[2])) }, `%3 = clamp %0, %1, %2 : f32[2]
			return %3`},
		{"Clamp", "f32[2] f32[2] f32[]", func(f fn, in []cv) ([]cv, error) { return one(f.Clamp(in[0], in[1], in[2])) }, `%3 = broadcast_in_dim %2 {broadcast_dimensions = []} : f32[2]
			%4 = clamp %0, %1, %3 : f32[2]
			return %4`},
		{"Concatenate", "f32[2,1] f32[2,3]", func(f fn, in []cv) ([]cv, error) { return one(f.Concatenate(1, in...)) }, `%2 = concatenate %0, %1 {dimension = 1} : f32[2,4]
			return %2`},
		{"Concatenate", "f32[2,1]", func(f fn, in []cv) ([]cv, error) { return one(f.Concatenate(1, in...)) }, `return %0`},
		{"ConvGeneral", "f32[1,4,8,8] f32[6,2,3,3]", func(f fn, in []cv) ([]cv, error) {
			return one(f.ConvGeneral(in[0], in[1], nchw, []int{2, 2}, [][2]int{{1, 1}, {0, 1}}, nil, nil, 2, 1))
		}, `%2 = convolution %0, %1 {batch_group_count = 1, feature_group_count = 2, input_batch_dimension = 0, input_feature_dimension = 1, input_spatial_dimensions = [2, 3], kernel_input_feature_dimension = 1, kernel_output_feature_dimension = 0, kernel_spatial_dimensions = [2, 3], lhs_dilation = [1, 1], output_batch_dimension = 0, output_feature_dimension = 1, output_spatial_dimensions = [2, 3], padding = [[1, 1], [0, 1]], precision = "DEFAULT", rhs_dilation = [1, 1], window_strides = [2, 2]} : f32[1,6,4,4]
			return %2`},
		{"ConvGeneral", "bf16[1,8,3] bf16[5,3,6]", func(f fn, in []cv) ([]cv, error) {
			return one(f.ConvGeneral(in[0], in[1], compute.ConvolveAxesConfig{
				InputBatch: 0, InputSpatial: []int{1}, InputChannels: 2, KernelSpatial: []int{0}, KernelInputChannels: 1,
				KernelOutputChannels: 2, OutputBatch: 0, OutputSpatial: []int{1}, OutputChannels: 2,
			}, nil, nil, []int{2}, []int{3}, 0, 0))
		}, `%2 = convolution %0, %1 {batch_group_count = 1, feature_group_count = 1, input_batch_dimension = 0, input_feature_dimension = 2, input_spatial_dimensions = [1], kernel_input_feature_dimension = 1, kernel_output_feature_dimension = 2, kernel_spatial_dimensions = [0], lhs_dilation = [2], output_batch_dimension = 0, output_feature_dimension = 2, output_spatial_dimensions = [1], padding = [[0, 0]], precision = "DEFAULT", rhs_dilation = [3], window_strides = [1]} : bf16[1,3,6]
			return %2`},
		{"ConvertDType", "f32[2]", func(f fn, in []cv) ([]cv, error) { return one(f.ConvertDType(in[0], dtypes.BFloat16)) }, `%1 = convert %0 : bf16[2]
			return %1`},
		{"DotGeneral", "f32[5,2,3] f32[4,5,3]", func(f fn, in []cv) ([]cv, error) {
			return one(f.DotGeneral(in[0], []int{2}, []int{0}, in[1], []int{2}, []int{1}, compute.DotGeneralConfig{}))
		}, `%2 = dot_general %0, %1 {lhs_batching = [0], lhs_contracting = [2], precision = "DEFAULT", rhs_batching = [1], rhs_contracting = [2]} : f32[5,2,4]
			return %2`},
		{"DotGeneral", "bf16[2,3] bf16[4,3]", func(f fn, in []cv) ([]cv, error) {
			return one(f.DotGeneral(in[0], []int{1}, nil, in[1], []int{1}, nil, compute.DotGeneralConfig{AccumulatorDType: dtypes.Float32}))
		}, `%2 = dot_general %0, %1 {lhs_batching = [], lhs_contracting = [1], precision = "DEFAULT", rhs_batching = [], rhs_contracting = [1]} : bf16[2,4]
			return %2`},
		{"DotGeneral", "bf16[2,3] bf16[4,3]", func(f fn, in []cv) ([]cv, error) {
			return one(f.DotGeneral(in[0], []int{1}, nil, in[1], []int{1}, nil,
				compute.DotGeneralConfig{AccumulatorDType: dtypes.Float32, OutputDType: dtypes.Float32}))
		}, `%2 = dot_general %0, %1 {lhs_batching = [], lhs_contracting = [1], precision = "DEFAULT", rhs_batching = [], rhs_contracting = [1]} : f32[2,4]
			return %2`},
		{"DotGeneral", "f32[2,3] f32[4,3]", func(f fn, in []cv) ([]cv, error) {
			return one(f.DotGeneral(in[0], []int{1}, nil, in[1], []int{1}, nil, compute.DotGeneralConfig{AccumulatorDType: dtypes.Float64}))
		}, `%2 = convert %0 : f64[2,3]
			%3 = convert %1 : f64[4,3]
			%4 = dot_general %2, %3 {lhs_batching = [], lhs_contracting = [1], precision = "DEFAULT", rhs_batching = [], rhs_contracting = [1]} : f64[2,4]
			%5 = convert %4 : f32[2,4]
			return %5`},
		{"DynamicSlice", "f32[4,5] i32[] i32[]", func(f fn, in []cv) ([]cv, error) {
			return one(f.DynamicSlice(in[0], in[1:], []int{2, 5}))
		}, `%3 = dynamic_slice %0, %1, %2 {slice_sizes = [2, 5]} : f32[2,5]
			return %3`},
		{"DynamicUpdateSlice", "f32[4,5] f32[2,5] i32[] i32[]", func(f fn, in []cv) ([]cv, error) {
			return one(f.DynamicUpdateSlice(in[0], in[1], in[2:]))
		}, `%4 = dynamic_update_slice %0, %1, %2, %3 : f32[4,5]
			return %4`},
		{"Gather", "f32[10,3] i32[4,1]", func(f fn, in []cv) ([]cv, error) {
			return one(f.Gather(in[0], in[1], 1, []int{1}, []int{0}, []int{0}, []int{1, 3}, false))
		}, `%2 = gather %0, %1 {collapsed_slice_dims = [0], index_vector_dim = 1, indices_are_sorted = false, offset_dims = [1], slice_sizes = [1, 3], start_index_map = [0]} : f32[4,3]
			return %2`},
		{"Iota", "", func(f fn, in []cv) ([]cv, error) { return one(f.Iota(shapes.Make(dtypes.Int32, 2, 3), 1)) }, `%0 = iota {iota_dimension = 1} : i32[2,3]
			return %0`},
		{"Pad", "f32[2,3] f32[]", func(f fn, in []cv) ([]cv, error) {
			return one(f.Pad(in[0], in[1], compute.PadAxis{Start: 1, End: 2, Interior: 1}))
		}, `%2 = pad %0, %1 {edge_padding_high = [2, 0], edge_padding_low = [1, 0], interior_padding = [1, 0]} : f32[6,3]
			return %2`},
		{"ReduceWindow", "f32[2,4]", func(f fn, in []cv) ([]cv, error) {
			return one(f.ReduceWindow(in[0], compute.ReduceOpMax, []int{1, 2}, nil, nil, nil, nil))
		}, `%1 = reduce_window %0 {base_dilations = [1, 1], combiner = "maximum", padding = [[0, 0], [0, 0]], window_dilations = [1, 1], window_dimensions = [1, 2], window_strides = [1, 2]} : f32[2,2]
			return %1`},
		{"ReduceWindow", "f32[2,4]", func(f fn, in []cv) ([]cv, error) {
			return one(f.ReduceWindow(in[0], compute.ReduceOpSum, []int{1, 2}, []int{1, 1}, []int{1, 2}, []int{1, 3}, [][2]int{{0, 0}, {1, 2}}))
		}, `%1 = reduce_window %0 {base_dilations = [1, 2], combiner = "add", padding = [[0, 0], [1, 2]], window_dilations = [1, 3], window_dimensions = [1, 2], window_strides = [1, 1]} : f32[2,7]
			return %1`},
		{"Reshape", "f32[2,3]", func(f fn, in []cv) ([]cv, error) { return one(f.Reshape(in[0], 3, 2, 1)) }, `%1 = reshape %0 : f32[3,2,1]
			return %1`},
		{"Reverse", "f32[2,3]", func(f fn, in []cv) ([]cv, error) { return one(f.Reverse(in[0], 1)) }, `%1 = reverse %0 {dimensions = [1]} : f32[2,3]
			return %1`},
		{"RNGBitGenerator", "u64[3]", func(f fn, in []cv) ([]cv, error) {
			state, bits, err := f.RNGBitGenerator(in[0], shapes.Make(dtypes.Uint32, 5))
			return []cv{state, bits}, err
		}, `%1, %2 = rng_bit_generator %0 {algorithm = "PHILOX"} : u64[3], u32[5]
			return %1, %2`},
		{"ScatterMax", "f32[5,3] i32[2,1] f32[2,3]", func(f fn, in []cv) ([]cv, error) {
			return one(f.ScatterMax(in[0], in[1], in[2], 1, []int{1}, []int{0}, []int{0}, true, false))
		}, `%3 = scatter %0, %1, %2 {combiner = "max", index_vector_dim = 1, indices_are_sorted = true, inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], unique_indices = false, update_window_dims = [1]} : f32[5,3]
			return %3`},
		{"ScatterMin", "f32[5,3] i32[2,1] f32[2,3]", func(f fn, in []cv) ([]cv, error) {
			return one(f.ScatterMin(in[0], in[1], in[2], 1, []int{1}, []int{0}, []int{0}, false, true))
		}, `%3 = scatter %0, %1, %2 {combiner = "min", index_vector_dim = 1, indices_are_sorted = false, inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], unique_indices = true, update_window_dims = [1]} : f32[5,3]
			return %3`},
		{"ScatterSum", "f32[5,3] i32[2,1] f32[2,3]", func(f fn, in []cv) ([]cv, error) {
			return one(f.ScatterSum(in[0], in[1], in[2], 1, []int{1}, []int{0}, []int{0}, false, false))
		}, `%3 = scatter %0, %1, %2 {combiner = "add", index_vector_dim = 1, indices_are_sorted = false, inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], unique_indices = false, update_window_dims = [1]} : f32[5,3]
			return %3`},
		{"Slice", "f32[4,5]", func(f fn, in []cv) ([]cv, error) { return one(f.Slice(in[0], []int{1, 0}, []int{4, -1}, []int{2, 1})) }, `%1 = slice %0 {limit_indices = [4, 5], start_indices = [1, 0], strides = [2, 1]} : f32[2,5]
			return %1`},
		{"Slice", "f32[4]", func(f fn, in []cv) ([]cv, error) { return one(f.Slice(in[0], []int{1}, []int{3}, nil)) }, `%1 = slice %0 {limit_indices = [3], start_indices = [1], strides = [1]} : f32[2]
			return %1`},
		{"Transpose", "f32[2,3,4]", func(f fn, in []cv) ([]cv, error) { return one(f.Transpose(in[0], 2, 0, 1)) }, `%1 = transpose %0 {permutation = [2, 0, 1]} : f32[4,2,3]
			return %1`},
		{"Where", "bool[2] f32[] f32[2]", func(f fn, in []cv) ([]cv, error) { return one(f.Where(in[0], in[1], in[2])) }, `%3 = broadcast_in_dim %1 {broadcast_dimensions = []} : f32[2]
			%4 = select %0, %3, %2 : f32[2]
			return %4`},
		{"Where", "bool[] f32[2] f32[2]", func(f fn, in []cv) ([]cv, error) { return one(f.Where(in[0], in[1], in[2])) }, `%3 = broadcast_in_dim %0 {broadcast_dimensions = []} : bool[2]
			%4 = select %3, %1, %2 : f32[2]
			return %4`},
		{"Where", "bool[2] i8[] i8[]", func(f fn, in []cv) ([]cv, error) { return one(f.Where(in[0], in[1], in[2])) }, `%3 = broadcast_in_dim %1 {broadcast_dimensions = []} : i8[2]
			%4 = broadcast_in_dim %2 {broadcast_dimensions = []} : i8[2]
			%5 = select %0, %3, %4 : i8[2]
			return %5`},
		{"OptimizationBarrier", "f32[2] i32[]", func(f fn, in []cv) ([]cv, error) { return f.OptimizationBarrier(in...) }, `%2, %3 = optimization_barrier %0, %1 : f32[2], i32[]
			return %2, %3`},
		{"SchedulingBarrier", "f32[2] i32[]", func(f fn, in []cv) ([]cv, error) { return one(f.SchedulingBarrier(in[0], in[1])) }, `%2, %3 = optimization_barrier %0, %1 : f32[2], i32[]
			return %2`},
	}
}

// notRecordedOps are the operations that the recorder refuses, with a call that must fail.
var notRecordedOps = map[string]func(f compute.Function, x compute.Value) error{
	"BatchNormForTraining": func(f compute.Function, x compute.Value) error {
		_, _, _, err := f.BatchNormForTraining(x, x, x, 0, 0)
		return err
	},
	"BatchNormGradient": func(f compute.Function, x compute.Value) error {
		_, _, _, err := f.BatchNormGradient(x, x, x, x, x, 0, 0)
		return err
	},
	"Complex":              func(f compute.Function, x compute.Value) error { _, err := f.Complex(x, x); return err },
	"Conj":                 func(f compute.Function, x compute.Value) error { _, err := f.Conj(x); return err },
	"DynamicDimensionSize": func(f compute.Function, x compute.Value) error { _, err := f.DynamicDimensionSize(x, 0); return err },
	"DynamicShape":         func(f compute.Function, x compute.Value) error { _, err := f.DynamicShape(x); return err },
	"FFT": func(f compute.Function, x compute.Value) error {
		_, err := f.FFT(x, compute.FFTForward, nil)
		return err
	},
	"Imag": func(f compute.Function, x compute.Value) error { _, err := f.Imag(x); return err },
	"Real": func(f compute.Function, x compute.Value) error { _, err := f.Real(x); return err },
	"SelectAndScatterMax": func(f compute.Function, x compute.Value) error {
		_, err := f.SelectAndScatterMax(x, x, nil, nil, nil)
		return err
	},
	"SelectAndScatterMin": func(f compute.Function, x compute.Value) error {
		_, err := f.SelectAndScatterMin(x, x, nil, nil, nil)
		return err
	},
	"FusedSoftmax": func(f compute.Function, x compute.Value) error { _, err := f.FusedSoftmax(x, 0); return err },
	"FusedGelu":    func(f compute.Function, x compute.Value) error { _, err := f.FusedGelu(x, true); return err },
	"FusedLayerNorm": func(f compute.Function, x compute.Value) error {
		_, err := f.FusedLayerNorm(x, nil, 0, nil, nil)
		return err
	},
}

func TestOps(t *testing.T) {
	for _, tc := range opCases() {
		t.Run(tc.method+" "+tc.params, func(t *testing.T) {
			got, err := recordOp(t, tc.params, tc.op)
			if err != nil {
				t.Fatal(err)
			}
			if got != strings.ReplaceAll(tc.want, "\t", "") {
				t.Errorf("got\n%s\nwant\n%s", got, tc.want)
			}
		})
	}
}

// TestOpsComplete holds the cases against gomlx's interface, so that an operation added there is noticed here.
func TestOpsComplete(t *testing.T) {
	have := map[string]bool{}
	for _, tc := range opCases() {
		have[tc.method] = true
	}
	caps := NewRecorder().Capabilities()
	for m := range reflect.TypeFor[compute.StandardOps]().Methods() {
		_, refused := notRecordedOps[m.Name]
		if have[m.Name] == refused {
			t.Errorf("%s: recorded by a case: %v, refused: %v; wanted one of them", m.Name, have[m.Name], refused)
		}
		if op, err := compute.OpTypeString(m.Name); err != nil || caps.Operations[op] != have[m.Name] {
			t.Errorf("%s: Capabilities say %v (%v), recorded by a case: %v", m.Name, caps.Operations[op], err, have[m.Name])
		}
	}
}

func TestNotRecorded(t *testing.T) {
	f := NewRecorder().Builder("op").Main()
	x, err := f.Parameter("x", shapes.Make(dtypes.Float32, 2), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, call := range notRecordedOps {
		err := call(f, x)
		if !compute.IsNotImplemented(err) || !strings.Contains(err.Error(), name+" cannot be recorded") {
			t.Errorf("%s: got %v, want an error that names it and is compute.ErrNotImplemented", name, err)
		}
	}
}

func TestConstants(t *testing.T) {
	for _, tc := range []struct {
		flat any
		dims []int
		want string
	}{
		{[]float32{1, 2}, []int{2}, `%0 = constant {value = dense<f32: 1, 2>} : f32[2]`},
		{[]float32{0.5, 0.5, 0.5, 0.5}, []int{2, 2}, `%0 = constant {value = splat<f32: 0.5>} : f32[2,2]`},
		{[]float64{3}, nil, `%0 = constant {value = splat<f64: 3>} : f64[]`},
		{[]bool{true, false}, []int{2}, `%0 = constant {value = dense<bool: true, false>} : bool[2]`},
		{[]int8{-1, 2}, []int{2}, `%0 = constant {value = dense<i8: -1, 2>} : i8[2]`},
		{[]uint16{1, 0x1234}, []int{2}, `%0 = constant {value = dense<u16: 1, 4660>} : u16[2]`},
		{[]int{-5, 7}, []int{2}, `%0 = constant {value = dense<i64: -5, 7>} : i64[2]`},
		{[]int64{1, 1 << 40}, []int{2}, `%0 = constant {value = dense<i64: 1, 1099511627776>} : i64[2]`},
		{[]bfloat16.BFloat16{bfloat16.FromFloat32(1), bfloat16.FromFloat32(-2)}, []int{2}, `%0 = constant {value = dense<bf16: 1, -2>} : bf16[2]`},
		{[]float32{}, []int{0, 3}, `%0 = constant {value = dense<0x>} : f32[0,3]`},
		{[]uint8{1, 1, 2, 1, 1, 2}, []int{6}, `%0 = constant {value = dense<u8: 1, 1, 2, 1, 1, 2>} : u8[6]`},
	} {
		got, err := recordOp(t, "", func(f compute.Function, _ []compute.Value) ([]compute.Value, error) {
			return one(f.Constant(tc.flat, tc.dims...))
		})
		if err != nil {
			t.Errorf("%T %v: %v", tc.flat, tc.flat, err)
		}
		if got, _, _ = strings.Cut(got, "\n"); got != tc.want {
			t.Errorf("%T %v:\ngot  %s\nwant %s", tc.flat, tc.flat, got, tc.want)
		}
	}
}
