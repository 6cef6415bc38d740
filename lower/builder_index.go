package lower

import (
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"precast/graph"
)

// gather builds a gather.
func (s *scope) gather(n *graph.Node, a graph.Attrs, operand, indices compute.Value) compute.Value {
	vector := a.Int("index_vector_dim")
	indices, _ = s.withIndexVector(indices, n.Operands[1].Shape, vector)
	return s.v(s.f.Gather(operand, indices, vector, a.Ints("offset_dims"), a.Ints("collapsed_slice_dims"), a.Ints("start_index_map"),
		a.Ints("slice_sizes"), a.Bool("indices_are_sorted")))
}

// withIndexVector gives indices the axis of the index vector where it is implicit.
func (s *scope) withIndexVector(indices compute.Value, shape shapes.Shape, vector int) (compute.Value, shapes.Shape) {
	if vector < shape.Rank() {
		return indices, shape
	}
	shape = shapes.Make(shape.DType, append(slices.Clone(shape.Dimensions), 1)...)
	return s.v(s.f.Reshape(indices, shape.Dimensions...)), shape
}

// scatter builds a scatter. A window that doesn't lie inside the operand is skipped, as XLA does; gomlx's Go backend would write outside,
// so indices are clamped and the updates of such windows replaced by the combiner's neutral element.
func (s *scope) scatter(n *graph.Node, a graph.Attrs, operand, indices, updates compute.Value) (result compute.Value) {
	shape, ishape, ushape := n.Operands[0].Shape, n.Operands[1].Shape, n.Operands[2].Shape
	vector := a.Int("index_vector_dim")
	window := a.Ints("update_window_dims")
	inserted, toOperand := a.Ints("inserted_window_dims"), a.Ints("scatter_dims_to_operand_dims")
	if half := shape.DType; half.IsHalfPrecision() { // kept in float32, as in reduce
		operand = s.v(s.f.ConvertDType(operand, dtypes.Float32))
		updates, ushape = s.v(s.f.ConvertDType(updates, dtypes.Float32)), withDType(ushape, dtypes.Float32)
		defer func() { result = s.v(s.f.ConvertDType(result, half)) }()
	}
	indices, ishape = s.withIndexVector(indices, ishape, vector)
	if ishape.DType != dtypes.Int64 {
		indices, ishape = s.v(s.f.ConvertDType(indices, dtypes.Int64)), withDType(ishape, dtypes.Int64)
	}
	// The highest start on each scattered axis.
	size := slices.Repeat([]int{1}, shape.Rank())
	for i, axis := range windowAxes(shape.Rank(), inserted) {
		size[axis] = ushape.Dimensions[window[i]]
	}
	limits := make([]int64, len(toOperand))
	for i, axis := range toOperand {
		limits[i] = int64(shape.Dimensions[axis] - size[axis])
	}
	limit := s.broadcastInDim(s.v(s.f.Constant(limits, len(limits))), ishape, []int{vector})
	zero := s.fill(ishape, 0)
	outside := s.v(s.f.LogicalOr(s.v(s.f.LessThan(indices, zero)), s.v(s.f.GreaterThan(indices, limit))))
	anyOutside := s.v(s.f.ReduceLogicalOr(outside, vector))
	indices = s.v(s.f.Max(s.v(s.f.Min(indices, limit)), zero))
	batch := make([]int, 0, ushape.Rank())
	for i := range ushape.Rank() {
		if !slices.Contains(window, i) {
			batch = append(batch, i)
		}
	}
	var neutral compute.Value
	var fn func(operand, scatterIndices, updates compute.Value, indexVectorAxis int, updateWindowAxes, insertedWindowAxes,
		scatterAxesToOperandAxes []int, indicesAreSorted, uniqueIndices bool) (compute.Value, error)
	switch c := a.String("combiner"); c {
	case "add":
		fn = s.f.ScatterSum
		neutral = s.fill(ushape, 0)
		if ushape.DType.IsFloat() {
			neutral = s.v(s.f.Neg(neutral)) // x + -0 is x, also for x = -0
		}
	case "max":
		fn, neutral = s.f.ScatterMax, s.bound(ushape, false)
	case "min":
		fn, neutral = s.f.ScatterMin, s.bound(ushape, true)
	default:
		s.failf("combiner %q, wanted add, max or min", c)
	}
	skip := anyOutside
	if len(batch) < ushape.Rank() {
		skip = s.broadcastInDim(anyOutside, withDType(ushape, dtypes.Bool), batch)
	}
	updates = s.v(s.f.Where(skip, neutral, updates))
	for i, axis := range windowAxes(shape.Rank(), inserted) {
		if ushape.Dimensions[window[i]] != shape.Dimensions[axis] {
			// gomlx's Go backend runs through whole dimensions only: scatter element by element.
			indices = s.elementIndices(indices, ishape, vector, shape.Rank(), ushape, window, inserted, toOperand)
			all := make([]int, shape.Rank())
			for i := range all {
				all[i] = i
			}
			return s.v(fn(operand, indices, updates, ushape.Rank(), nil, all, all, false, false))
		}
	}
	return s.v(fn(operand, indices, updates, vector, window, inserted, toOperand, false, false))
}

// windowAxes are the axes of the operand that are not inserted.
func windowAxes(rank int, inserted []int) (axes []int) {
	for i := range rank {
		if !slices.Contains(inserted, i) {
			axes = append(axes, i)
		}
	}
	return axes
}

// elementIndices are the full indices of every element of updates, [updates..., operand rank], from the starts of their windows.
func (s *scope) elementIndices(indices compute.Value, ishape shapes.Shape, vector, rank int, ushape shapes.Shape,
	window, inserted, toOperand []int,
) compute.Value {
	var batch []int
	for i := range ushape.Rank() {
		if !slices.Contains(window, i) {
			batch = append(batch, i)
		}
	}
	full := withDType(ushape, ishape.DType)
	column := append(slices.Clone(full.Dimensions), 1)
	free := windowAxes(rank, inserted)
	parts := make([]compute.Value, rank)
	for axis := range rank {
		at := s.fill(full, 0)
		if k := slices.Index(toOperand, axis); k >= 0 {
			start, cut := s.cut(indices, ishape, vector, k, 1)
			start = s.v(s.f.Reshape(start, slices.Delete(slices.Clone(cut.Dimensions), vector, vector+1)...))
			at = s.broadcastInDim(start, full, batch)
		}
		if k := slices.Index(free, axis); k >= 0 {
			at = s.v(s.f.Add(at, s.v(s.f.Iota(full, window[k]))))
		}
		parts[axis] = s.v(s.f.Reshape(at, column...))
	}
	if rank == 1 {
		return parts[0]
	}
	return s.v(s.f.Concatenate(full.Rank(), parts...))
}

// dynamicSlice is a gather of one slice: gomlx's Go backend has no dynamic slice. The start is clamped as StableHLO wants.
func (s *scope) dynamicSlice(x compute.Value, shape shapes.Shape, starts []compute.Value, defs []*graph.Value, sizes []int) compute.Value {
	if shape.Rank() == 0 || slices.Equal(sizes, shape.Dimensions) {
		return x
	}
	// Only the axes that are cut need a start.
	var axes []int
	var vector []compute.Value
	for i, d := range shape.Dimensions {
		if sizes[i] != d {
			axes = append(axes, i)
			vector = append(vector, s.v(s.f.Reshape(s.start(starts[i], defs[i].Shape.DType, d-sizes[i]), 1)))
		}
	}
	index := vector[0]
	if len(vector) > 1 {
		index = s.v(s.f.Concatenate(0, vector...))
	}
	offsets := make([]int, shape.Rank())
	for i := range offsets {
		offsets[i] = i
	}
	return s.v(s.f.Gather(x, index, 0, offsets, nil, axes, sizes, true))
}

// start is a start index as int64 between 0 and limit.
func (s *scope) start(x compute.Value, d graph.DType, limit int) compute.Value {
	if d == dtypes.Uint64 {
		x = s.v(s.f.Min(x, s.scalar(d, float64(limit))))
	}
	if d != dtypes.Int64 {
		x = s.v(s.f.ConvertDType(x, dtypes.Int64))
	}
	return s.v(s.f.Max(s.v(s.f.Min(x, s.scalar(dtypes.Int64, float64(limit)))), s.scalar(dtypes.Int64, 0)))
}

// dynamicUpdateSlice spreads the update over the operand's shape, one gather for each axis that is cut, and selects.
func (s *scope) dynamicUpdateSlice(n *graph.Node, in []compute.Value) compute.Value {
	operand, update := in[0], in[1]
	shape, ushape := n.Operands[0].Shape, n.Operands[1].Shape
	dims := slices.Clone(ushape.Dimensions)
	if slices.Equal(shape.Dimensions, dims) {
		return update
	}
	var inside compute.Value
	for axis, d := range shape.Dimensions {
		u := dims[axis]
		if u == d {
			continue
		}
		if u == 0 {
			return operand
		}
		start := s.start(in[2+axis], n.Operands[2+axis].Shape.DType, d-u)
		line := shapes.Make(dtypes.Int64, d)
		at := s.v(s.f.Sub(s.v(s.f.Iota(line, 0)), s.broadcastInDim(start, line, nil)))
		zero, end := s.fill(line, 0), s.fill(line, float64(u-1))
		in1 := s.v(s.f.LogicalAnd(s.v(s.f.GreaterOrEqual(at, zero)), s.v(s.f.LessOrEqual(at, end))))
		mask := s.broadcastInDim(in1, withDType(shape, dtypes.Bool), []int{axis})
		if inside == nil {
			inside = mask
		} else {
			inside = s.v(s.f.LogicalAnd(inside, mask))
		}
		at = s.v(s.f.Reshape(s.v(s.f.Max(s.v(s.f.Min(at, end)), zero)), d, 1))
		// Take the update's lines along axis: the offset dimensions are all others.
		sizes := slices.Clone(dims)
		sizes[axis] = 1
		var offsets []int
		for i := range dims {
			if i != axis {
				offsets = append(offsets, i)
			}
		}
		update = s.v(s.f.Gather(update, at, 1, offsets, []int{axis}, []int{axis}, sizes, false))
		dims[axis] = d
	}
	return s.v(s.f.Where(inside, update, operand))
}
