package trace

import (
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/shapeinference"
	"github.com/gomlx/compute/shapes"
	"github.com/pkg/errors"

	"precast/graph"
)

// Operations that move elements: broadcast, reshape, slices, gather and scatter.

// ints copies the caller's list for an attribute; it is never nil.
func ints(x []int) []int { return append([]int{}, x...) }

// filled is a list of n times x.
func filled(n, x int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = x
	}
	return out
}

// BroadcastInDim implements compute.StandardOps.
func (f *function) BroadcastInDim(x compute.Value, outputShape shapes.Shape, broadcastAxes []int) (compute.Value, error) {
	in, err := f.use("BroadcastInDim", x)
	if err != nil {
		return nil, err
	}
	shape, err := static("BroadcastInDim", outputShape)
	if err != nil {
		return nil, err
	}
	if shape.DType != in[0].Shape.DType {
		return nil, errors.Errorf("BroadcastInDim: the operand has shape %s, the result %s; wanted the same dtype", in[0].Shape, shape)
	}
	if err := shapeinference.BroadcastInDim(in[0].Shape, shape, broadcastAxes, nil); err != nil {
		return nil, err
	}
	return f.emit(graph.OpBroadcast, in, broadcastAttrs(ints(broadcastAxes)), shape)
}

// Reshape implements compute.StandardOps.
func (f *function) Reshape(x compute.Value, dimensions ...int) (compute.Value, error) {
	in, err := f.use("Reshape", x)
	if err != nil {
		return nil, err
	}
	shape, err := shapeinference.Reshape(in[0].Shape, slices.Clone(dimensions))
	if err != nil {
		return nil, err
	}
	return f.emit(graph.OpReshape, in, nil, shape)
}

// Transpose implements compute.StandardOps.
func (f *function) Transpose(x compute.Value, permutation ...int) (compute.Value, error) {
	in, err := f.use("Transpose", x)
	if err != nil {
		return nil, err
	}
	shape, err := shapeinference.Transpose(in[0].Shape, permutation)
	if err != nil {
		return nil, err
	}
	return f.emit(graph.OpTranspose, in, graph.Attrs{{Name: "permutation", Value: ints(permutation)}}, shape)
}

// Reverse implements compute.StandardOps.
func (f *function) Reverse(x compute.Value, axes ...int) (compute.Value, error) {
	in, err := f.use("Reverse", x)
	if err != nil {
		return nil, err
	}
	if err := distinctAxes("Reverse", in[0].Shape, axes); err != nil {
		return nil, err
	}
	return f.emit(graph.OpReverse, in, graph.Attrs{{Name: "dimensions", Value: ints(axes)}}, in[0].Shape)
}

// distinctAxes checks that axes are axes of shape, each at most once.
func distinctAxes(op string, shape graph.Shape, axes []int) error {
	seen := make([]bool, shape.Rank())
	for _, axis := range axes {
		if axis < 0 || axis >= shape.Rank() {
			return errors.Errorf("%s: axis %d is out of range for an operand of shape %s", op, axis, shape)
		}
		if seen[axis] {
			return errors.Errorf("%s: axis %d is given twice", op, axis)
		}
		seen[axis] = true
	}
	return nil
}

// Slice implements compute.StandardOps.
func (f *function) Slice(x compute.Value, starts, limits, strides []int) (compute.Value, error) {
	in, err := f.use("Slice", x)
	if err != nil {
		return nil, err
	}
	rank := in[0].Shape.Rank()
	if len(strides) == 0 {
		strides = filled(rank, 1)
	}
	limits = ints(limits)
	for i, limit := range limits {
		if limit == shapes.DynamicDim && i < rank {
			limits[i] = in[0].Shape.Dimensions[i]
		}
	}
	shape, err := shapeinference.Slice(in[0].Shape, starts, limits, strides)
	if err != nil {
		return nil, err
	}
	return f.emit(graph.OpSlice, in, graph.Attrs{
		{Name: "limit_indices", Value: limits},
		{Name: "start_indices", Value: ints(starts)},
		{Name: "strides", Value: ints(strides)},
	}, shape)
}

// Concatenate implements compute.StandardOps. A single operand is returned as it is.
func (f *function) Concatenate(axis int, operands ...compute.Value) (compute.Value, error) {
	if len(operands) == 1 {
		return f.Identity(operands[0])
	}
	in, err := f.use("Concatenate", operands...)
	if err != nil {
		return nil, err
	}
	operandShapes := make([]shapes.Shape, len(in))
	for i, x := range in {
		operandShapes[i] = x.Shape
	}
	shape, err := shapeinference.Concatenate(operandShapes, axis)
	if err != nil {
		return nil, err
	}
	return f.emit(graph.OpConcat, in, graph.Attrs{{Name: "dimension", Value: axis}}, shape)
}

// Pad implements compute.StandardOps.
func (f *function) Pad(x, fillValue compute.Value, axesConfig ...compute.PadAxis) (compute.Value, error) {
	in, err := f.use("Pad", x, fillValue)
	if err != nil {
		return nil, err
	}
	if fill := in[1].Shape; !fill.IsScalar() || fill.DType != in[0].Shape.DType {
		return nil, errors.Errorf("Pad: the fill value has shape %s; wanted a scalar of dtype %s", fill, in[0].Shape.DType)
	}
	shape, err := shapeinference.Pad(in[0].Shape, axesConfig...)
	if err != nil {
		return nil, err
	}
	rank := in[0].Shape.Rank()
	low, high, interior := make([]int, rank), make([]int, rank), make([]int, rank)
	for i, a := range axesConfig {
		low[i], high[i], interior[i] = a.Start, a.End, a.Interior
	}
	return f.emit(graph.OpPad, in, graph.Attrs{
		{Name: "edge_padding_high", Value: high},
		{Name: "edge_padding_low", Value: low},
		{Name: "interior_padding", Value: interior},
	}, shape)
}

// Gather implements compute.StandardOps.
func (f *function) Gather(operand, startIndices compute.Value, indexVectorAxis int,
	offsetOutputAxes, collapsedSliceAxes, startIndexMap, sliceSizes []int, indicesAreSorted bool,
) (compute.Value, error) {
	in, err := f.use("Gather", operand, startIndices)
	if err != nil {
		return nil, err
	}
	shape, err := shapeinference.Gather(in[0].Shape, in[1].Shape, indexVectorAxis, offsetOutputAxes, collapsedSliceAxes, startIndexMap,
		sliceSizes, indicesAreSorted)
	if err != nil {
		return nil, err
	}
	return f.emit(graph.OpGather, in, graph.Attrs{
		{Name: "collapsed_slice_dims", Value: ints(collapsedSliceAxes)},
		{Name: "index_vector_dim", Value: indexVectorAxis},
		{Name: "indices_are_sorted", Value: indicesAreSorted},
		{Name: "offset_dims", Value: ints(offsetOutputAxes)},
		{Name: "slice_sizes", Value: ints(sliceSizes)},
		{Name: "start_index_map", Value: ints(startIndexMap)},
	}, shape)
}

func (f *function) scatter(opType compute.OpType, combiner string, operand, scatterIndices, updates compute.Value, indexVectorAxis int,
	updateWindowAxes, insertedWindowAxes, scatterAxesToOperandAxes []int, indicesAreSorted, uniqueIndices bool,
) (compute.Value, error) {
	in, err := f.use(opType.String(), operand, scatterIndices, updates)
	if err != nil {
		return nil, err
	}
	shape, err := shapeinference.Scatter(in[0].Shape, in[1].Shape, in[2].Shape, indexVectorAxis, updateWindowAxes, insertedWindowAxes,
		scatterAxesToOperandAxes)
	if err != nil {
		return nil, err
	}
	return f.emit(graph.OpScatter, in, graph.Attrs{
		{Name: "combiner", Value: combiner},
		{Name: "index_vector_dim", Value: indexVectorAxis},
		{Name: "indices_are_sorted", Value: indicesAreSorted},
		{Name: "inserted_window_dims", Value: ints(insertedWindowAxes)},
		{Name: "scatter_dims_to_operand_dims", Value: ints(scatterAxesToOperandAxes)},
		{Name: "unique_indices", Value: uniqueIndices},
		{Name: "update_window_dims", Value: ints(updateWindowAxes)},
	}, shape)
}

// ScatterMax implements compute.StandardOps.
func (f *function) ScatterMax(operand, scatterIndices, updates compute.Value, indexVectorAxis int,
	updateWindowAxes, insertedWindowAxes, scatterAxesToOperandAxes []int, indicesAreSorted, uniqueIndices bool,
) (compute.Value, error) {
	return f.scatter(compute.OpTypeScatterMax, "max", operand, scatterIndices, updates, indexVectorAxis, updateWindowAxes,
		insertedWindowAxes, scatterAxesToOperandAxes, indicesAreSorted, uniqueIndices)
}

// ScatterMin implements compute.StandardOps.
func (f *function) ScatterMin(operand, scatterIndices, updates compute.Value, indexVectorAxis int,
	updateWindowAxes, insertedWindowAxes, scatterAxesToOperandAxes []int, indicesAreSorted, uniqueIndices bool,
) (compute.Value, error) {
	return f.scatter(compute.OpTypeScatterMin, "min", operand, scatterIndices, updates, indexVectorAxis, updateWindowAxes,
		insertedWindowAxes, scatterAxesToOperandAxes, indicesAreSorted, uniqueIndices)
}

// ScatterSum implements compute.StandardOps.
func (f *function) ScatterSum(operand, scatterIndices, updates compute.Value, indexVectorAxis int,
	updateWindowAxes, insertedWindowAxes, scatterAxesToOperandAxes []int, indicesAreSorted, uniqueIndices bool,
) (compute.Value, error) {
	return f.scatter(compute.OpTypeScatterSum, "add", operand, scatterIndices, updates, indexVectorAxis, updateWindowAxes,
		insertedWindowAxes, scatterAxesToOperandAxes, indicesAreSorted, uniqueIndices)
}

// scalarStarts checks the start indices of a dynamic slice.
func scalarStarts(op string, operand graph.Shape, starts []*graph.Value) error {
	if len(starts) != operand.Rank() {
		return errors.Errorf("%s: %d start indices for an operand of shape %s; wanted one an axis", op, len(starts), operand)
	}
	for i, s := range starts {
		if !s.Shape.IsScalar() || !s.Shape.DType.IsInt() || s.Shape.DType != starts[0].Shape.DType {
			return errors.Errorf("%s: start index %d has shape %s; wanted integer scalars of one dtype", op, i, s.Shape)
		}
	}
	return nil
}

// DynamicSlice implements compute.StandardOps.
func (f *function) DynamicSlice(operand compute.Value, startIndices []compute.Value, sliceDims []int) (compute.Value, error) {
	in, err := f.use("DynamicSlice", append([]compute.Value{operand}, startIndices...)...)
	if err != nil {
		return nil, err
	}
	if err := scalarStarts("DynamicSlice", in[0].Shape, in[1:]); err != nil {
		return nil, err
	}
	shape, err := shapeinference.DynamicSlice(in[0].Shape, sliceDims)
	if err != nil {
		return nil, err
	}
	return f.emit(graph.OpDynSlice, in, graph.Attrs{{Name: "slice_sizes", Value: ints(sliceDims)}}, shape)
}

// DynamicUpdateSlice implements compute.StandardOps.
func (f *function) DynamicUpdateSlice(operand, update compute.Value, startIndices []compute.Value) (compute.Value, error) {
	in, err := f.use("DynamicUpdateSlice", append([]compute.Value{operand, update}, startIndices...)...)
	if err != nil {
		return nil, err
	}
	if err := scalarStarts("DynamicUpdateSlice", in[0].Shape, in[2:]); err != nil {
		return nil, err
	}
	shape, err := shapeinference.DynamicUpdateSlice(in[0].Shape, in[1].Shape)
	if err != nil {
		return nil, err
	}
	return f.emit(graph.OpDynUpdSlice, in, nil, shape)
}

// Iota implements compute.StandardOps.
func (f *function) Iota(shape shapes.Shape, iotaAxis int) (compute.Value, error) {
	if err := f.open(); err != nil {
		return nil, err
	}
	shape, err := static("Iota", shape)
	if err != nil {
		return nil, err
	}
	if iotaAxis < 0 || iotaAxis >= shape.Rank() {
		return nil, errors.Errorf("Iota: axis %d is out of range for the shape %s", iotaAxis, shape)
	}
	if !shape.DType.IsInt() && !shape.DType.IsFloat() {
		return nil, errors.Errorf("Iota: the shape is %s; wanted an integer or float dtype", shape)
	}
	return f.emit(graph.OpIota, nil, graph.Attrs{{Name: "iota_dimension", Value: iotaAxis}}, shape)
}

// OptimizationBarrier implements compute.StandardOps.
func (f *function) OptimizationBarrier(operands ...compute.Value) ([]compute.Value, error) {
	in, err := f.use("OptimizationBarrier", operands...)
	if err != nil {
		return nil, err
	}
	if len(in) == 0 {
		return nil, errors.New("OptimizationBarrier: no operands")
	}
	return f.emitAll(graph.OpBarrier, in, nil, nil, shapesOf(in)...)
}

// SchedulingBarrier implements compute.StandardOps: an optimization barrier over the operand and what it must wait for.
func (f *function) SchedulingBarrier(operand compute.Value, dependencies ...compute.Value) (compute.Value, error) {
	out, err := f.OptimizationBarrier(append([]compute.Value{operand}, dependencies...)...)
	if err != nil {
		return nil, err
	}
	return out[0], nil
}

// RNGBitGenerator implements compute.StandardOps with the Philox algorithm.
func (f *function) RNGBitGenerator(state compute.Value, shape shapes.Shape) (newState, bits compute.Value, err error) {
	in, err := f.use("RNGBitGenerator", state)
	if err != nil {
		return nil, nil, err
	}
	if shape, err = static("RNGBitGenerator", shape); err != nil {
		return nil, nil, err
	}
	if !shape.DType.IsInt() {
		return nil, nil, errors.Errorf("RNGBitGenerator: bits of shape %s; wanted an integer dtype", shape)
	}
	if s := in[0].Shape; s.DType != compute.RNGStateShape.DType || s.Rank() != 1 || s.Dimensions[0] < 2 || s.Dimensions[0] > 3 {
		return nil, nil, errors.Errorf("RNGBitGenerator: the state has shape %s; wanted %s", s, compute.RNGStateShape)
	}
	out, err := f.emitAll(graph.OpRngBits, in, graph.Attrs{{Name: "algorithm", Value: "PHILOX"}}, nil, in[0].Shape, shape)
	if err != nil {
		return nil, nil, err
	}
	return out[0], out[1], nil
}
