package trace

import (
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapeinference"
	"github.com/pkg/errors"

	"precast/graph"
)

// Reductions, contractions and convolution.

// kind is a class of element types.
type kind int

const (
	numbers kind = iota
	integers
	booleans
)

func (k kind) has(dtype graph.DType) bool {
	switch k {
	case integers:
		return dtype.IsInt()
	case booleans:
		return dtype == dtypes.Bool
	default:
		return dtype.IsInt() || dtype.IsFloat()
	}
}

func (k kind) String() string {
	return [...]string{"a number", "an integer", "bool"}[k]
}

// reduce records a reduction over axes, all of them when none is given.
func (f *function) reduce(opType compute.OpType, combiner string, k kind, x compute.Value, axes []int) (compute.Value, error) {
	in, err := f.use(opType.String(), x)
	if err != nil {
		return nil, err
	}
	if !k.has(in[0].Shape.DType) {
		return nil, errors.Errorf("%s: the operand has shape %s; wanted %s dtype", opType, in[0].Shape, k)
	}
	if err := distinctAxes(opType.String(), in[0].Shape, axes); err != nil {
		return nil, err
	}
	axes = ints(axes)
	if len(axes) == 0 {
		for axis := range in[0].Shape.Rank() {
			axes = append(axes, axis)
		}
	}
	slices.Sort(axes)
	shape, err := shapeinference.Reduce(in[0].Shape, axes)
	if err != nil {
		return nil, err
	}
	return f.emit(graph.OpReduce, in, graph.Attrs{
		{Name: "combiner", Value: combiner},
		{Name: "dimensions", Value: axes},
	}, shape)
}

// ReduceBitwiseAnd implements compute.StandardOps.
func (f *function) ReduceBitwiseAnd(x compute.Value, axes ...int) (compute.Value, error) {
	return f.reduce(compute.OpTypeReduceBitwiseAnd, "and", integers, x, axes)
}

// ReduceBitwiseOr implements compute.StandardOps.
func (f *function) ReduceBitwiseOr(x compute.Value, axes ...int) (compute.Value, error) {
	return f.reduce(compute.OpTypeReduceBitwiseOr, "or", integers, x, axes)
}

// ReduceBitwiseXor implements compute.StandardOps.
func (f *function) ReduceBitwiseXor(x compute.Value, axes ...int) (compute.Value, error) {
	return f.reduce(compute.OpTypeReduceBitwiseXor, "xor", integers, x, axes)
}

// ReduceLogicalAnd implements compute.StandardOps.
func (f *function) ReduceLogicalAnd(x compute.Value, axes ...int) (compute.Value, error) {
	return f.reduce(compute.OpTypeReduceLogicalAnd, "and", booleans, x, axes)
}

// ReduceLogicalOr implements compute.StandardOps.
func (f *function) ReduceLogicalOr(x compute.Value, axes ...int) (compute.Value, error) {
	return f.reduce(compute.OpTypeReduceLogicalOr, "or", booleans, x, axes)
}

// ReduceLogicalXor implements compute.StandardOps.
func (f *function) ReduceLogicalXor(x compute.Value, axes ...int) (compute.Value, error) {
	return f.reduce(compute.OpTypeReduceLogicalXor, "xor", booleans, x, axes)
}

// ReduceMax implements compute.StandardOps.
func (f *function) ReduceMax(x compute.Value, axes ...int) (compute.Value, error) {
	return f.reduce(compute.OpTypeReduceMax, "maximum", numbers, x, axes)
}

// ReduceMin implements compute.StandardOps.
func (f *function) ReduceMin(x compute.Value, axes ...int) (compute.Value, error) {
	return f.reduce(compute.OpTypeReduceMin, "minimum", numbers, x, axes)
}

// ReduceProduct implements compute.StandardOps.
func (f *function) ReduceProduct(x compute.Value, axes ...int) (compute.Value, error) {
	return f.reduce(compute.OpTypeReduceProduct, "multiply", numbers, x, axes)
}

// ReduceSum implements compute.StandardOps.
func (f *function) ReduceSum(x compute.Value, axes ...int) (compute.Value, error) {
	return f.reduce(compute.OpTypeReduceSum, "add", numbers, x, axes)
}

// ArgMinMax implements compute.StandardOps.
func (f *function) ArgMinMax(x compute.Value, axis int, outputDType dtypes.DType, isMin bool) (compute.Value, error) {
	in, err := f.use("ArgMinMax", x)
	if err != nil {
		return nil, err
	}
	shape, err := shapeinference.ArgMinMax(in[0].Shape, axis, outputDType)
	if err != nil {
		return nil, err
	}
	return f.emit(graph.OpArgMinMax, in, graph.Attrs{
		{Name: "dimension", Value: axis},
		{Name: "min", Value: isMin},
	}, shape)
}

// ReduceWindow implements compute.StandardOps. Without strides the window moves by its own size.
func (f *function) ReduceWindow(x compute.Value, reductionType compute.ReduceOpType,
	windowDimensions, strides, inputDilations, windowDilations []int, paddings [][2]int,
) (compute.Value, error) {
	in, err := f.use("ReduceWindow", x)
	if err != nil {
		return nil, err
	}
	combiner, ok := map[compute.ReduceOpType]string{
		compute.ReduceOpSum: "add", compute.ReduceOpProduct: "multiply", compute.ReduceOpMax: "maximum", compute.ReduceOpMin: "minimum",
	}[reductionType]
	if !ok {
		return nil, errors.Errorf("ReduceWindow: unknown reduction %s; wanted Sum, Product, Max or Min", reductionType)
	}
	if !numbers.has(in[0].Shape.DType) {
		return nil, errors.Errorf("ReduceWindow: the operand has shape %s; wanted a number dtype", in[0].Shape)
	}
	rank := in[0].Shape.Rank()
	if len(windowDimensions) == 0 {
		windowDimensions = filled(rank, 1)
	}
	if len(strides) == 0 {
		strides = windowDimensions
	}
	if len(inputDilations) == 0 {
		inputDilations = filled(rank, 1)
	}
	if len(windowDilations) == 0 {
		windowDilations = filled(rank, 1)
	}
	if len(paddings) == 0 {
		paddings = make([][2]int, rank)
	}
	shape, err := shapeinference.ReduceWindow(in[0].Shape, windowDimensions, strides, inputDilations, windowDilations, paddings)
	if err != nil {
		return nil, err
	}
	return f.emit(graph.OpReduceWindow, in, graph.Attrs{
		{Name: "base_dilations", Value: ints(inputDilations)},
		{Name: "combiner", Value: combiner},
		{Name: "padding", Value: slices.Clone(paddings)},
		{Name: "window_dilations", Value: ints(windowDilations)},
		{Name: "window_dimensions", Value: ints(windowDimensions)},
		{Name: "window_strides", Value: ints(strides)},
	}, shape)
}

// DotGeneral implements compute.StandardOps. The result's axes are the batch axes, lhs's others, rhs's others.
//
// Half-precision products that accumulate in float32 are one dot_general, as compilers do accumulate so; any other accumulator
// converts the operands first. A result dtype wider than half-precision operands is the dot_general's own, any other is converted to.
func (f *function) DotGeneral(lhs compute.Value, lhsContractingAxes, lhsBatchAxes []int,
	rhs compute.Value, rhsContractingAxes, rhsBatchAxes []int, config compute.DotGeneralConfig,
) (compute.Value, error) {
	in, err := f.use("DotGeneral", lhs, rhs)
	if err != nil {
		return nil, err
	}
	shape, err := shapeinference.DotGeneral(in[0].Shape, lhsContractingAxes, lhsBatchAxes, in[1].Shape, rhsContractingAxes, rhsBatchAxes,
		config)
	if err != nil {
		return nil, err
	}
	if shape, err = static("DotGeneral", shape); err != nil {
		return nil, err
	}
	dtype := in[0].Shape.DType
	if !numbers.has(dtype) {
		return nil, errors.Errorf("DotGeneral: the operands have shapes %s and %s; wanted a number dtype", in[0].Shape, in[1].Shape)
	}
	product := withDType(shape, dtype)
	switch accumulator := config.AccumulatorDType; {
	case accumulator == dtypes.InvalidDType || accumulator == dtype || dtype.IsHalfPrecision() && accumulator == dtypes.Float32:
		if dtype.IsHalfPrecision() && shape.DType == dtypes.Float32 {
			product = shape
		}
	default:
		if !recordedDTypes[accumulator] {
			return nil, errors.Errorf("DotGeneral: the accumulator dtype is %s; the graph IR has none such", accumulator)
		}
		for i, x := range in {
			in[i] = f.add(graph.OpConvert, nil, withDType(x.Shape, accumulator), x)
		}
		product = withDType(shape, accumulator)
	}
	dot, err := f.emit(graph.OpDot, in, graph.Attrs{
		{Name: "lhs_batching", Value: ints(lhsBatchAxes)},
		{Name: "lhs_contracting", Value: ints(lhsContractingAxes)},
		{Name: "precision", Value: "DEFAULT"},
		{Name: "rhs_batching", Value: ints(rhsBatchAxes)},
		{Name: "rhs_contracting", Value: ints(rhsContractingAxes)},
	}, product)
	if err != nil || product.DType == shape.DType {
		return dot, err
	}
	return f.ConvertDType(dot, shape.DType)
}

// ConvGeneral implements compute.StandardOps.
func (f *function) ConvGeneral(input, kernel compute.Value, axes compute.ConvolveAxesConfig, strides []int, paddings [][2]int,
	inputDilations, kernelDilations []int, channelGroupCount, batchGroupCount int,
) (compute.Value, error) {
	in, err := f.use("ConvGeneral", input, kernel)
	if err != nil {
		return nil, err
	}
	if in[0].Shape.Rank() < 3 {
		return nil, errors.Errorf("ConvGeneral: the input has shape %s; wanted a batch axis, a channel axis and spatial axes", in[0].Shape)
	}
	if in[0].Shape.DType != in[1].Shape.DType {
		return nil, errors.Errorf("ConvGeneral: the input has shape %s, the kernel %s; wanted one dtype", in[0].Shape, in[1].Shape)
	}
	spatial := in[0].Shape.Rank() - 2
	if len(strides) == 0 {
		strides = filled(spatial, 1)
	}
	if len(paddings) == 0 {
		paddings = make([][2]int, spatial)
	}
	if len(inputDilations) == 0 {
		inputDilations = filled(spatial, 1)
	}
	if len(kernelDilations) == 0 {
		kernelDilations = filled(spatial, 1)
	}
	channelGroupCount, batchGroupCount = max(channelGroupCount, 1), max(batchGroupCount, 1)
	shape, err := shapeinference.ConvGeneral(in[0].Shape, in[1].Shape, axes, strides, paddings, inputDilations, kernelDilations,
		channelGroupCount, batchGroupCount)
	if err != nil {
		return nil, err
	}
	return f.emit(graph.OpConv, in, graph.Attrs{
		{Name: "batch_group_count", Value: batchGroupCount},
		{Name: "feature_group_count", Value: channelGroupCount},
		{Name: "input_batch_dimension", Value: axes.InputBatch},
		{Name: "input_feature_dimension", Value: axes.InputChannels},
		{Name: "input_spatial_dimensions", Value: ints(axes.InputSpatial)},
		{Name: "kernel_input_feature_dimension", Value: axes.KernelInputChannels},
		{Name: "kernel_output_feature_dimension", Value: axes.KernelOutputChannels},
		{Name: "kernel_spatial_dimensions", Value: ints(axes.KernelSpatial)},
		{Name: "lhs_dilation", Value: ints(inputDilations)},
		{Name: "output_batch_dimension", Value: axes.OutputBatch},
		{Name: "output_feature_dimension", Value: axes.OutputChannels},
		{Name: "output_spatial_dimensions", Value: ints(axes.OutputSpatial)},
		{Name: "padding", Value: slices.Clone(paddings)},
		{Name: "precision", Value: "DEFAULT"},
		{Name: "rhs_dilation", Value: ints(kernelDilations)},
		{Name: "window_strides", Value: ints(strides)},
	}, shape)
}

// BatchNormForInference implements compute.StandardOps:
// (operand - mean) * rsqrt(variance + epsilon) * scale + offset, each of the four of the size of the feature axis.
func (f *function) BatchNormForInference(operand, scale, offset, mean, variance compute.Value, epsilon float32, featureAxis int) (
	compute.Value, error,
) {
	in, err := f.floats("BatchNormForInference", operand, scale, offset, mean, variance)
	if err != nil {
		return nil, err
	}
	x, shape := in[0], in[0].Shape
	if featureAxis < 0 || featureAxis >= shape.Rank() {
		return nil, errors.Errorf("BatchNormForInference: the feature axis %d is out of range for an operand of shape %s", featureAxis, shape)
	}
	features := graph.Shape{DType: shape.DType, Dimensions: []int{shape.Dimensions[featureAxis]}}
	for i, name := range []string{"scale", "offset", "mean", "variance"} {
		if s := in[i+1].Shape; !s.Equal(features) {
			return nil, errors.Errorf("BatchNormForInference: the %s has shape %s; wanted %s", name, s, features)
		}
	}
	wide := func(x *graph.Value) *graph.Value {
		return f.add(graph.OpBroadcast, broadcastAttrs([]int{featureAxis}), shape, x)
	}
	spread := f.add(graph.OpAdd, nil, features, in[4], f.splat(float64(epsilon), features))
	factor := f.add(graph.OpMul, nil, features, f.add(graph.OpRsqrt, nil, features, spread), in[1])
	centered := f.add(graph.OpSub, nil, shape, x, wide(in[3]))
	return f.emit(graph.OpAdd, []*graph.Value{f.add(graph.OpMul, nil, shape, centered, wide(factor)), wide(in[2])}, nil, shape)
}
