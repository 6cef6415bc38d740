package graph

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"
)

// site is one use of an op: what Infer looks at. attrs are resolved (defaults filled in).
type site struct {
	*Info
	in      []Shape
	attrs   Attrs
	regions []*Func
	callee  *Func
	want    []Shape
}

func (s *site) fail(number, format string, args ...any) error {
	return &ConstraintError{Op: s.Op, Number: number, Detail: fmt.Sprintf(format, args...)}
}

// Infer checks operands, attributes and regions against the op table and returns the results' shapes.
//
// want is the wanted result: it must be there for ops whose result is not derivable (Info.NeedsResult: constant, iota, convert,
// bitcast_convert, broadcast_in_dim, reshape, arg_min_max, and rng_bit_generator, which wants both results); elsewhere it is
// optional and only checked, save that dot_general takes the element type to accumulate in from it. callee is the function that
// a call names, nil elsewhere. The error is a *ConstraintError.
func Infer(op Op, operands []Shape, attrs Attrs, regions []*Func, callee *Func, want ...Shape) ([]Shape, error) {
	o, ok := opTable[op]
	if !ok {
		return nil, fmt.Errorf("op %q: found no such operation, wanted one of the op table", string(op))
	}
	s := &site{Info: o, in: operands, attrs: attrs, regions: regions, callee: callee, want: want}
	if err := s.general(); err != nil {
		return nil, err
	}
	s.attrs = Resolve(op, attrs, operands)
	out, err := o.infer(s)
	if err != nil {
		return nil, err
	}
	for _, r := range out {
		if _, ok := elements(r.Dimensions); !ok {
			return nil, s.fail("R3", "found result %s, wanted dimensions of at least 0 and at most 2^48 elements", ShapeString(r))
		}
	}
	if len(want) > 0 && !o.NeedsResult {
		if len(want) != len(out) {
			return nil, s.fail("R1", "found %d results, wanted %d", len(want), len(out))
		}
		for i := range out {
			switch {
			case out[i].DType != want[i].DType:
				return nil, s.fail(o.resultType, "found result %s, wanted %s", ShapeString(want[i]), ShapeString(out[i]))
			case !sameDims(out[i], want[i]):
				return nil, s.fail(o.resultDims, "found result %s, wanted %s", ShapeString(want[i]), ShapeString(out[i]))
			}
		}
	}
	return out, nil
}

// general checks what holds for every op.
func (s *site) general() error {
	switch n := len(s.in); {
	case s.Variadic && n < s.MinOperands:
		return s.fail("A1", "found %d operands, wanted at least %d", n, s.MinOperands)
	case !s.Variadic && n != s.MinOperands:
		return s.fail("A1", "found %d operands, wanted %d", n, s.MinOperands)
	}
	for i := range s.attrs {
		a := &s.attrs[i]
		if i > 0 && s.attrs[i-1].Name >= a.Name {
			return s.fail("A5", "found attribute %s after %s, wanted them sorted by name and unique", a.Name, s.attrs[i-1].Name)
		}
		info := s.attr(a.Name)
		if info == nil {
			return s.fail("A2", "found attribute %q, wanted only%s", a.Name, s.attrNames())
		}
		if KindOf(a.Value) != info.Kind {
			return s.fail("A3", "attribute %s: found a value of type %T, wanted %s", a.Name, a.Value, info.Kind)
		}
		if info.OneOf != nil && !slices.Contains(info.OneOf, a.Value.(string)) {
			return s.fail("A4", "attribute %s: found %q, wanted one of %v", a.Name, a.Value, info.OneOf)
		}
	}
	for i := range s.Attrs {
		if a := &s.Attrs[i]; a.Required && s.attrs.Get(a.Name) == nil {
			return s.fail("A2", "attribute %s is missing", a.Name)
		}
	}
	if len(s.regions) != s.Regions {
		return s.fail("A6", "found %d regions, wanted %d", len(s.regions), s.Regions)
	}
	for i, r := range s.regions {
		if !complete(r) {
			return s.fail("A6", "region %d is nil or has a nil parameter or result, wanted a func", i)
		}
	}
	if s.callee != nil && !complete(s.callee) {
		return s.fail("A6", "callee @%s has a nil parameter or result", s.callee.Name)
	}
	for i, in := range s.in {
		want, k := s.operand(i)
		if !want.Type.Has(in.DType) || want.Scalar && in.Rank() != 0 {
			text := want.Type.String()
			if want.Scalar {
				text += ", rank 0"
			}
			return s.fail(fmt.Sprintf("I%d", k+1), "operand %d (%s): found %s, wanted %s", i, want.Name, ShapeString(in), text)
		}
		if _, ok := elements(in.Dimensions); !ok {
			return s.fail("R3", "operand %d (%s): found %s, wanted dimensions of at least 0 and at most 2^48 elements", i, want.Name, ShapeString(in))
		}
	}
	if s.NeedsResult {
		n := 1
		if s.Op == OpRngBits {
			n = 2
		}
		if len(s.want) == 0 {
			return s.fail("R2", "found no wanted result, wanted %d: it does not follow from the operands", n)
		}
		if len(s.want) != n {
			return s.fail("R1", "found %d results, wanted %d", len(s.want), n)
		}
		for _, w := range s.want {
			if _, ok := elements(w.Dimensions); !ok || ClassOf(w.DType) == 0 {
				return s.fail("R3", "found result %s, wanted a known element type, dimensions of at least 0 and at most 2^48 elements", ShapeString(w))
			}
		}
	}
	return nil
}

func (s *site) attrNames() string {
	if len(s.Attrs) == 0 {
		return " ops without attributes"
	}
	out := ""
	for i, a := range s.Attrs {
		if i > 0 {
			out += ","
		}
		out += " " + a.Name
	}
	return out
}

func one(dtype DType, dims []int) []Shape { return []Shape{{DType: dtype, Dimensions: dims}} }

// rank is the rank of operand i.
func (s *site) rank(i int) int { return len(s.in[i].Dimensions) }

// within checks that all of dims lie in [0, rank).
func (s *site) within(number, name string, dims []int, rank int) error {
	for _, d := range dims {
		if d < 0 || d >= rank {
			return s.fail(number, "%s: found dimension %d, wanted one in [0, %d)", name, d, rank)
		}
	}
	return nil
}

// unique checks that no element occurs twice.
func (s *site) unique(number, name string, lists ...[]int) error {
	n := 0
	for _, l := range lists {
		n += len(l)
	}
	if n < 2 {
		return nil
	}
	all := make([]int, 0, n)
	for _, l := range lists {
		all = append(all, l...)
	}
	slices.Sort(all)
	for i := 1; i < len(all); i++ {
		if all[i] == all[i-1] {
			return s.fail(number, "%s: found %d twice, wanted unique entries", name, all[i])
		}
	}
	return nil
}

// length checks the length of a list attribute.
func (s *site) length(number, name string, found, wanted int) error {
	if found != wanted {
		return s.fail(number, "%s: found %d entries, wanted %d", name, found, wanted)
	}
	return nil
}

// atLeast checks that all entries are at least least.
func (s *site) atLeast(number, name string, list []int, least int) error {
	for _, x := range list {
		if x < least {
			return s.fail(number, "%s: found %d, wanted at least %d", name, x, least)
		}
	}
	return nil
}

// firstError returns the first error there is.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func inferConstant(s *site) ([]Shape, error) {
	value, _ := s.attrs.Get("value").(Literal)
	n, _ := elements(s.want[0].Dimensions)
	if value.Splat {
		n = 1
	}
	if size := literalSize(s.want[0].DType, n); len(value.Data) != size {
		return nil, s.fail("C1", "value: found %d bytes, wanted %d for %d elements of %s", len(value.Data), size, n, ShapeString(s.want[0]))
	}
	if s.want[0].DType == dtypes.Bool {
		for i, x := range value.Data {
			if x > 1 {
				return nil, s.fail("C2", "value: found %d as element %d, wanted 0 or 1", x, i)
			}
		}
	}
	return s.want, nil
}

func inferIota(s *site) ([]Shape, error) {
	w := s.want[0]
	if d := s.attrs.Int("iota_dimension"); d < 0 || d >= w.Rank() {
		return nil, s.fail("C1", "iota_dimension: found %d, wanted a dimension of %s", d, ShapeString(w))
	}
	if !(IntType | FloatType | ComplexType).Has(w.DType) {
		return nil, s.fail("C2", "found result %s, wanted integer, float or complex", ShapeString(w))
	}
	return s.want, nil
}

func inferUnary(s *site) ([]Shape, error) { return s.in[:1:1], nil }

func inferAbs(s *site) ([]Shape, error) {
	d := s.in[0].DType
	if d.IsComplex() {
		d = d.RealDType()
	}
	return one(d, s.in[0].Dimensions), nil
}

func inferPredicate(s *site) ([]Shape, error) { return one(dtypes.Bool, s.in[0].Dimensions), nil }

func inferConvert(s *site) ([]Shape, error) {
	if !sameDims(s.in[0], s.want[0]) {
		return nil, s.fail("C1", "found operand %s and result %s, wanted the same shape", ShapeString(s.in[0]), ShapeString(s.want[0]))
	}
	return s.want, nil
}

func inferBitcast(s *site) ([]Shape, error) {
	in, out := s.in[0], s.want[0]
	if in.DType.IsComplex() != out.DType.IsComplex() {
		return nil, s.fail("C2", "found operand %s and result %s, wanted both complex or neither", ShapeString(in), ShapeString(out))
	}
	if out.DType == dtypes.Bool {
		return nil, s.fail("C3", "found result %s, wanted integer, float or complex", ShapeString(out))
	}
	// wide has fewer, wider elements; the last dimension of narrow makes up for it.
	wide, narrow := in, out
	if DTypeBits(in.DType) < DTypeBits(out.DType) {
		wide, narrow = out, in
	}
	ratio := DTypeBits(wide.DType) / DTypeBits(narrow.DType)
	ok := false
	if ratio == 1 {
		ok = sameDims(in, out)
	} else if n := narrow.Rank(); n == wide.Rank()+1 {
		ok = slices.Equal(narrow.Dimensions[:n-1], wide.Dimensions) && narrow.Dimensions[n-1] == ratio
	}
	if !ok {
		return nil, s.fail("C1", "found operand %s and result %s, wanted equal shapes or a last dimension of %d on the side of the narrower type", ShapeString(in), ShapeString(out), ratio)
	}
	return s.want, nil
}

func inferBinary(s *site) ([]Shape, error) {
	if !sameShape(s.in[0], s.in[1]) {
		return nil, s.fail("C1", "found lhs %s and rhs %s, wanted the same type: there is no implicit broadcast", ShapeString(s.in[0]), ShapeString(s.in[1]))
	}
	return s.in[:1:1], nil
}

func inferCompare(s *site) ([]Shape, error) {
	l, r := s.in[0], s.in[1]
	if l.DType != r.DType {
		return nil, s.fail("C1", "found lhs %s and rhs %s, wanted the same element type", ShapeString(l), ShapeString(r))
	}
	if !sameDims(l, r) {
		return nil, s.fail("C2", "found lhs %s and rhs %s, wanted the same shape", ShapeString(l), ShapeString(r))
	}
	if s.attrs.Bool("total") && !FloatType.Has(l.DType) {
		return nil, s.fail("C3", "found total for %s, wanted a float type", ShapeString(l))
	}
	if d := s.attrs.String("direction"); l.DType.IsComplex() && d != "EQ" && d != "NE" {
		return nil, s.fail("C5", "found direction %s for %s, wanted EQ or NE", d, ShapeString(l))
	}
	return one(dtypes.Bool, l.Dimensions), nil
}

func inferSelect(s *site) ([]Shape, error) {
	if s.rank(0) != 0 && !sameDims(s.in[0], s.in[1]) {
		return nil, s.fail("C1", "found pred %s and on_true %s, wanted a scalar or the same shape", ShapeString(s.in[0]), ShapeString(s.in[1]))
	}
	if !sameShape(s.in[1], s.in[2]) {
		return nil, s.fail("C2", "found on_true %s and on_false %s, wanted the same type", ShapeString(s.in[1]), ShapeString(s.in[2]))
	}
	return s.in[1:2:2], nil
}

func inferClamp(s *site) ([]Shape, error) {
	lo, x, hi := s.in[0], s.in[1], s.in[2]
	if lo.Rank() != 0 && !sameDims(lo, x) {
		return nil, s.fail("C1", "found min %s and operand %s, wanted a scalar or the same shape", ShapeString(lo), ShapeString(x))
	}
	if hi.Rank() != 0 && !sameDims(hi, x) {
		return nil, s.fail("C2", "found max %s and operand %s, wanted a scalar or the same shape", ShapeString(hi), ShapeString(x))
	}
	if lo.DType != x.DType || hi.DType != x.DType {
		return nil, s.fail("C3", "found min %s, operand %s and max %s, wanted the same element type", ShapeString(lo), ShapeString(x), ShapeString(hi))
	}
	return s.in[1:2:2], nil
}

func inferBroadcast(s *site) ([]Shape, error) {
	in, out, dims := s.in[0], s.want[0], s.attrs.Ints("broadcast_dimensions")
	if in.DType != out.DType {
		return nil, s.fail("C1", "found operand %s and result %s, wanted the same element type", ShapeString(in), ShapeString(out))
	}
	if err := firstError(
		s.length("C2", "broadcast_dimensions", len(dims), in.Rank()),
		s.within("C3", "broadcast_dimensions", dims, out.Rank()),
		s.unique("C4", "broadcast_dimensions", dims),
	); err != nil {
		return nil, err
	}
	for i, d := range dims {
		if n := in.Dimensions[i]; n != 1 && n != out.Dimensions[d] {
			return nil, s.fail("C5", "operand dimension %d: found %d, wanted 1 or %d (operand %s, result %s)", i, n, out.Dimensions[d], ShapeString(in), ShapeString(out))
		}
	}
	return s.want, nil
}

func inferReshape(s *site) ([]Shape, error) {
	in, out := s.in[0], s.want[0]
	if in.DType != out.DType {
		return nil, s.fail("C1", "found operand %s and result %s, wanted the same element type", ShapeString(in), ShapeString(out))
	}
	n, _ := elements(in.Dimensions)
	if k, _ := elements(out.Dimensions); k != n {
		return nil, s.fail("C2", "found %d elements in %s, wanted %d as in %s", k, ShapeString(out), n, ShapeString(in))
	}
	return s.want, nil
}

func inferTranspose(s *site) ([]Shape, error) {
	in, perm := s.in[0], s.attrs.Ints("permutation")
	if err := firstError(
		s.length("C2", "permutation", len(perm), in.Rank()),
		s.within("C2", "permutation", perm, in.Rank()),
		s.unique("C2", "permutation", perm),
	); err != nil {
		return nil, err
	}
	dims := make([]int, len(perm))
	for i, p := range perm {
		dims[i] = in.Dimensions[p]
	}
	return one(in.DType, dims), nil
}

func inferSlice(s *site) ([]Shape, error) {
	in := s.in[0]
	start, limit, strides := s.attrs.Ints("start_indices"), s.attrs.Ints("limit_indices"), s.attrs.Ints("strides")
	if err := firstError(
		s.length("C2", "start_indices", len(start), in.Rank()),
		s.length("C2", "limit_indices", len(limit), in.Rank()),
		s.length("C2", "strides", len(strides), in.Rank()),
		s.atLeast("C4", "strides", strides, 1),
	); err != nil {
		return nil, err
	}
	dims := make([]int, len(start))
	for i := range dims {
		if start[i] < 0 || start[i] > limit[i] || limit[i] > in.Dimensions[i] {
			return nil, s.fail("C3", "dimension %d: found start %d and limit %d, wanted 0 <= start <= limit <= %d", i, start[i], limit[i], in.Dimensions[i])
		}
		n := limit[i] - start[i]
		dims[i] = n / strides[i]
		if n%strides[i] != 0 {
			dims[i]++
		}
	}
	return one(in.DType, dims), nil
}

func inferConcat(s *site) ([]Shape, error) {
	first, d := s.in[0], s.attrs.Int("dimension")
	if d < 0 || d >= first.Rank() {
		return nil, s.fail("C4", "dimension: found %d, wanted one in [0, %d)", d, first.Rank())
	}
	dims := slices.Clone(first.Dimensions)
	for i, x := range s.in[1:] {
		if x.DType != first.DType {
			return nil, s.fail("C1", "input %d: found %s, wanted the element type of %s", i+1, ShapeString(x), ShapeString(first))
		}
		same := x.Rank() == first.Rank()
		for k := 0; same && k < len(dims); k++ {
			same = k == d || x.Dimensions[k] == first.Dimensions[k]
		}
		if !same {
			return nil, s.fail("C2", "input %d: found %s, wanted the shape of %s but for dimension %d", i+1, ShapeString(x), ShapeString(first), d)
		}
		dims[d] += x.Dimensions[d]
	}
	return one(first.DType, dims), nil
}

// maxPadding bounds paddings, strides and dilations, so that sums and products of a few of them do not overflow.
const maxPadding = 1 << 31

func bounded(list []int) bool {
	for _, x := range list {
		if x > maxPadding || x < -maxPadding {
			return false
		}
	}
	return true
}

func inferPad(s *site) ([]Shape, error) {
	in := s.in[0]
	low, high, interior := s.attrs.Ints("edge_padding_low"), s.attrs.Ints("edge_padding_high"), s.attrs.Ints("interior_padding")
	if s.in[1].DType != in.DType {
		return nil, s.fail("C1", "found operand %s and padding_value %s, wanted the same element type", ShapeString(in), ShapeString(s.in[1]))
	}
	if err := firstError(
		s.length("C2", "edge_padding_low", len(low), in.Rank()),
		s.length("C2", "edge_padding_high", len(high), in.Rank()),
		s.length("C2", "interior_padding", len(interior), in.Rank()),
		s.atLeast("C3", "interior_padding", interior, 0),
	); err != nil {
		return nil, err
	}
	dims := make([]int, len(low))
	for i, n := range in.Dimensions {
		inner := max(n-1, 0)
		if !bounded([]int{low[i], high[i]}) || interior[i] > 0 && inner > maxElements/interior[i] {
			return nil, s.fail("R3", "dimension %d: found padding %d, %d, interior %d, wanted a result of at most 2^48 elements", i, low[i], high[i], interior[i])
		}
		if dims[i] = low[i] + n + inner*interior[i] + high[i]; dims[i] < 0 {
			return nil, s.fail("C4", "dimension %d of %s padded by %d and %d: found %d, wanted at least 0", i, ShapeString(in), low[i], high[i], dims[i])
		}
	}
	return one(in.DType, dims), nil
}

func inferReverse(s *site) ([]Shape, error) {
	dims := s.attrs.Ints("dimensions")
	if err := firstError(s.unique("C2", "dimensions", dims), s.within("C3", "dimensions", dims, s.rank(0))); err != nil {
		return nil, err
	}
	return s.in[:1:1], nil
}

// withoutDims is dims without those listed.
func withoutDims(dims, drop []int) []int {
	out := make([]int, 0, max(len(dims)-len(drop), 0))
	for i, n := range dims {
		if !slices.Contains(drop, i) {
			out = append(out, n)
		}
	}
	return out
}

// indexVector checks index_vector_dim and returns the length of an index vector and the dimensions of indices without it.
func (s *site) indexVector(number string, indices Shape) (size int, batch []int, err error) {
	ivd := s.attrs.Int("index_vector_dim")
	if ivd < 0 || ivd > indices.Rank() {
		return 0, nil, s.fail(number, "index_vector_dim: found %d, wanted one in [0, %d]", ivd, indices.Rank())
	}
	if ivd == indices.Rank() {
		return 1, indices.Dimensions, nil
	}
	return indices.Dimensions[ivd], withoutDims(indices.Dimensions, []int{ivd}), nil
}

// interleave puts window at the dimensions of at (sorted, in range) and batch at the others, in order.
func interleave(batch, window, at []int) []int {
	out := make([]int, 0, len(batch)+len(window))
	for i := range len(batch) + len(window) {
		if len(window) > 0 && slices.Contains(at, i) {
			out, window = append(out, window[0]), window[1:]
		} else if len(batch) > 0 {
			out, batch = append(out, batch[0]), batch[1:]
		}
	}
	return out
}

func inferGather(s *site) ([]Shape, error) {
	in, indices := s.in[0], s.in[1]
	offset, collapsed := s.attrs.Ints("offset_dims"), s.attrs.Ints("collapsed_slice_dims")
	indexMap, sizes := s.attrs.Ints("start_index_map"), s.attrs.Ints("slice_sizes")
	vector, batch, err := s.indexVector("C2", indices)
	if err != nil {
		return nil, err
	}
	if in.Rank() != len(offset)+len(collapsed) {
		return nil, s.fail("C1", "found %d offset_dims and %d collapsed_slice_dims, wanted %d together for operand %s", len(offset), len(collapsed), in.Rank(), ShapeString(in))
	}
	if err := s.length("C3", "start_index_map", len(indexMap), vector); err != nil {
		return nil, err
	}
	if !slices.IsSorted(offset) {
		return nil, s.fail("C4", "offset_dims: found %v, wanted them sorted", offset)
	}
	if err := firstError(
		s.unique("C4", "offset_dims", offset),
		s.within("C5", "offset_dims", offset, len(batch)+len(offset)),
		s.unique("C6", "collapsed_slice_dims", collapsed),
	); err != nil {
		return nil, err
	}
	if !slices.IsSorted(collapsed) {
		return nil, s.fail("C7", "collapsed_slice_dims: found %v, wanted them sorted", collapsed)
	}
	if err := firstError(
		s.within("C8", "collapsed_slice_dims", collapsed, in.Rank()),
		s.unique("C18", "start_index_map", indexMap),
		s.within("C19", "start_index_map", indexMap, in.Rank()),
		s.length("C20", "slice_sizes", len(sizes), in.Rank()),
	); err != nil {
		return nil, err
	}
	for i, n := range sizes {
		if n < 0 || n > in.Dimensions[i] {
			return nil, s.fail("C21", "slice_sizes[%d]: found %d, wanted 0 to %d", i, n, in.Dimensions[i])
		}
	}
	for _, d := range collapsed {
		if sizes[d] > 1 {
			return nil, s.fail("C9", "slice_sizes[%d]: found %d, wanted at most 1 for a collapsed dimension", d, sizes[d])
		}
	}
	return one(in.DType, interleave(batch, withoutDims(sizes, collapsed), offset)), nil
}

func inferScatter(s *site) ([]Shape, error) {
	in, indices, updates := s.in[0], s.in[1], s.in[2]
	window, inserted, indexMap := s.attrs.Ints("update_window_dims"), s.attrs.Ints("inserted_window_dims"), s.attrs.Ints("scatter_dims_to_operand_dims")
	vector, batch, err := s.indexVector("C22", indices)
	if err != nil {
		return nil, err
	}
	if in.Rank() != len(window)+len(inserted) {
		return nil, s.fail("C2", "found %d update_window_dims and %d inserted_window_dims, wanted %d together for input %s", len(window), len(inserted), in.Rank(), ShapeString(in))
	}
	if updates.DType != in.DType {
		return nil, s.fail("C6", "found input %s and updates %s, wanted the same element type", ShapeString(in), ShapeString(updates))
	}
	if !slices.IsSorted(window) {
		return nil, s.fail("C7", "update_window_dims: found %v, wanted them sorted", window)
	}
	if err := firstError(
		s.unique("C7", "update_window_dims", window),
		s.within("C8", "update_window_dims", window, updates.Rank()),
		s.unique("C9", "inserted_window_dims", inserted),
	); err != nil {
		return nil, err
	}
	if !slices.IsSorted(inserted) {
		return nil, s.fail("C10", "inserted_window_dims: found %v, wanted them sorted", inserted)
	}
	if err := firstError(
		s.within("C11", "inserted_window_dims", inserted, in.Rank()),
		s.length("C19", "scatter_dims_to_operand_dims", len(indexMap), vector),
		s.unique("C20", "scatter_dims_to_operand_dims", indexMap),
		s.within("C21", "scatter_dims_to_operand_dims", indexMap, in.Rank()),
	); err != nil {
		return nil, err
	}
	if s.attrs.String("combiner") != "add" && in.DType.IsComplex() {
		return nil, s.fail("C23", "found combiner %s for %s, wanted add", s.attrs.String("combiner"), ShapeString(in))
	}
	// The window may be smaller than the input, the scatter dimensions may not differ.
	most := interleave(batch, withoutDims(in.Dimensions, inserted), window)
	ok := len(most) == updates.Rank()
	for i := 0; ok && i < len(most); i++ {
		if slices.Contains(window, i) {
			ok = updates.Dimensions[i] <= most[i]
		} else {
			ok = updates.Dimensions[i] == most[i]
		}
	}
	if !ok {
		return nil, s.fail("C4", "found updates %s, wanted dimensions %v, at most those at %v", ShapeString(updates), most, window)
	}
	return s.in[:1:1], nil
}

// startIndices checks the scalars that a dynamic slice starts at.
func (s *site) startIndices(countNumber, typeNumber string, first, rank int) error {
	starts := s.in[first:]
	if len(starts) != rank {
		return s.fail(countNumber, "found %d start indices, wanted %d", len(starts), rank)
	}
	for i, x := range starts {
		if x.DType != starts[0].DType {
			return s.fail(typeNumber, "start index %d: found %s, wanted %s as the first", i, ShapeString(x), ShapeString(starts[0]))
		}
	}
	return nil
}

func inferDynSlice(s *site) ([]Shape, error) {
	in, sizes := s.in[0], s.attrs.Ints("slice_sizes")
	if err := firstError(s.length("C2", "slice_sizes", len(sizes), in.Rank()), s.startIndices("C2", "C3", 1, in.Rank())); err != nil {
		return nil, err
	}
	for i, n := range sizes {
		if n < 0 || n > in.Dimensions[i] {
			return nil, s.fail("C4", "slice_sizes[%d]: found %d, wanted 0 to %d", i, n, in.Dimensions[i])
		}
	}
	return one(in.DType, sizes), nil
}

func inferDynUpdSlice(s *site) ([]Shape, error) {
	in, update := s.in[0], s.in[1]
	if in.DType != update.DType {
		return nil, s.fail("C2", "found operand %s and update %s, wanted the same element type", ShapeString(in), ShapeString(update))
	}
	if in.Rank() != update.Rank() {
		return nil, s.fail("C3", "found operand %s and update %s, wanted the same rank", ShapeString(in), ShapeString(update))
	}
	if err := s.startIndices("C4", "C5", 2, in.Rank()); err != nil {
		return nil, err
	}
	for i, n := range update.Dimensions {
		if n > in.Dimensions[i] {
			return nil, s.fail("C6", "update dimension %d: found %d, wanted at most %d", i, n, in.Dimensions[i])
		}
	}
	return s.in[:1:1], nil
}

// reducer checks that the combiner is defined for the operand's element type.
func (s *site) reducer(number string) error {
	c, d := s.attrs.String("combiner"), s.in[0].DType
	allowed := AnyType
	switch c {
	case "and", "or", "xor":
		allowed = BoolType | IntType
	case "maximum", "minimum":
		allowed = BoolType | IntType | FloatType
	}
	if !allowed.Has(d) {
		return s.fail(number, "combiner %s: found %s, wanted %s", c, ShapeString(s.in[0]), allowed)
	}
	return nil
}

func inferReduce(s *site) ([]Shape, error) {
	in, dims := s.in[0], s.attrs.Ints("dimensions")
	if err := firstError(s.within("C4", "dimensions", dims, in.Rank()), s.unique("C5", "dimensions", dims), s.reducer("C6")); err != nil {
		return nil, err
	}
	return one(in.DType, withoutDims(in.Dimensions, dims)), nil
}

func inferArgMinMax(s *site) ([]Shape, error) {
	in, out, d := s.in[0], s.want[0], s.attrs.Int("dimension")
	if err := s.within("C1", "dimension", []int{d}, in.Rank()); err != nil {
		return nil, err
	}
	if in.Dimensions[d] == 0 {
		return nil, s.fail("C2", "found operand %s, wanted an element along dimension %d", ShapeString(in), d)
	}
	if dims := withoutDims(in.Dimensions, []int{d}); !slices.Equal(dims, out.Dimensions) {
		return nil, s.fail("C3", "found result %s, wanted dimensions %v", ShapeString(out), dims)
	}
	if !IntType.Has(out.DType) {
		return nil, s.fail("C4", "found result %s, wanted an integer type", ShapeString(out))
	}
	return s.want, nil
}

// windows is the number of windows along one dimension (reduce_window C15, convolution C25).
func windows(n, window, stride, baseDilation, windowDilation int, padding [2]int) int {
	dilate := func(n, dilation int) int {
		if n == 0 {
			return 0
		}
		return (n-1)*dilation + 1
	}
	padded := padding[0] + dilate(n, baseDilation) + padding[1]
	w := dilate(window, windowDilation)
	if padded <= 0 || w > padded {
		return 0
	}
	return (padded-w)/stride + 1
}

func inferReduceWindow(s *site) ([]Shape, error) {
	in := s.in[0]
	n := in.Rank()
	window, strides := s.attrs.Ints("window_dimensions"), s.attrs.Ints("window_strides")
	base, dilation, padding := s.attrs.Ints("base_dilations"), s.attrs.Ints("window_dilations"), s.attrs.Pairs("padding")
	if err := firstError(
		s.length("C4", "window_dimensions", len(window), n), s.atLeast("C5", "window_dimensions", window, 1),
		s.length("C6", "window_strides", len(strides), n), s.atLeast("C7", "window_strides", strides, 1),
		s.length("C8", "base_dilations", len(base), n), s.atLeast("C9", "base_dilations", base, 1),
		s.length("C10", "window_dilations", len(dilation), n), s.atLeast("C11", "window_dilations", dilation, 1),
		s.length("C12", "padding", len(padding), n),
		s.reducer("C13"),
		s.windowBounds(in.Dimensions, window, strides, base, dilation, padding),
	); err != nil {
		return nil, err
	}
	dims := make([]int, n)
	for i := range dims {
		dims[i] = windows(in.Dimensions[i], window[i], strides[i], base[i], dilation[i], padding[i])
	}
	return one(in.DType, dims), nil
}

// windowBounds refuses window attributes that would overflow.
func (s *site) windowBounds(dims, window, strides, base, dilation []int, padding [][2]int) error {
	for _, p := range padding {
		if !bounded(p[:]) {
			return s.fail("R3", "padding: found %v, wanted magnitudes of at most 2^31", p)
		}
	}
	for _, list := range [][]int{dims, window, strides, base, dilation} {
		if !bounded(list) {
			return s.fail("R3", "window: found %v, wanted magnitudes of at most 2^31", list)
		}
	}
	return nil
}

func inferDot(s *site) ([]Shape, error) {
	l, r := s.in[0], s.in[1]
	lb, lc, rb, rc := s.attrs.Ints("lhs_batching"), s.attrs.Ints("lhs_contracting"), s.attrs.Ints("rhs_batching"), s.attrs.Ints("rhs_contracting")
	if err := firstError(
		s.length("C1", "rhs_batching", len(rb), len(lb)),
		s.length("C2", "rhs_contracting", len(rc), len(lc)),
		s.within("C5", "lhs_batching", lb, l.Rank()),
		s.within("C6", "lhs_contracting", lc, l.Rank()),
		s.within("C7", "rhs_batching", rb, r.Rank()),
		s.within("C8", "rhs_contracting", rc, r.Rank()),
		s.unique("C3", "lhs_batching and lhs_contracting", lb, lc),
		s.unique("C4", "rhs_batching and rhs_contracting", rb, rc),
	); err != nil {
		return nil, err
	}
	for i := range lb {
		if l.Dimensions[lb[i]] != r.Dimensions[rb[i]] {
			return nil, s.fail("C9", "batching dimensions %d of lhs %s and %d of rhs %s: found %d and %d, wanted them equal", lb[i], ShapeString(l), rb[i], ShapeString(r), l.Dimensions[lb[i]], r.Dimensions[rb[i]])
		}
	}
	for i := range lc {
		if l.Dimensions[lc[i]] != r.Dimensions[rc[i]] {
			return nil, s.fail("C10", "contracting dimensions %d of lhs %s and %d of rhs %s: found %d and %d, wanted them equal", lc[i], ShapeString(l), rc[i], ShapeString(r), l.Dimensions[lc[i]], r.Dimensions[rc[i]])
		}
	}
	if l.DType != r.DType {
		return nil, s.fail("C13", "found lhs %s and rhs %s, wanted the same element type", ShapeString(l), ShapeString(r))
	}
	dtype := l.DType
	if len(s.want) == 1 && s.want[0].DType != dtype {
		dtype = s.want[0].DType
		if ClassOf(dtype) != ClassOf(l.DType) {
			return nil, s.fail("C25", "found operands of %s and a result of %s, wanted the same class", DTypeName(l.DType), DTypeName(dtype))
		}
	}
	dims := make([]int, 0, l.Rank()+r.Rank()-len(lb)-2*len(lc))
	for _, d := range lb {
		dims = append(dims, l.Dimensions[d])
	}
	for i, n := range l.Dimensions {
		if !slices.Contains(lb, i) && !slices.Contains(lc, i) {
			dims = append(dims, n)
		}
	}
	for i, n := range r.Dimensions {
		if !slices.Contains(rb, i) && !slices.Contains(rc, i) {
			dims = append(dims, n)
		}
	}
	return one(dtype, dims), nil
}

// convDims checks that a side's batch (or input feature), feature and spatial dimensions are a permutation.
func (s *site) convDims(number, side string, n, a, b int, spatial []int) error {
	ab := []int{a, b}
	return firstError(
		s.within(number, side+" dimensions", ab, n),
		s.within(number, side+" dimensions", spatial, n),
		s.unique(number, side+" dimensions", ab, spatial),
	)
}

func inferConv(s *site) ([]Shape, error) {
	l, r := s.in[0], s.in[1]
	n := l.Rank()
	if n < 2 || r.Rank() != n {
		return nil, s.fail("C1", "found lhs %s and rhs %s, wanted equal ranks of at least 2", ShapeString(l), ShapeString(r))
	}
	a := s.attrs
	strides, padding := a.Ints("window_strides"), a.Pairs("padding")
	ldil, rdil := a.Ints("lhs_dilation"), a.Ints("rhs_dilation")
	ispat, kspat, ospat := a.Ints("input_spatial_dimensions"), a.Ints("kernel_spatial_dimensions"), a.Ints("output_spatial_dimensions")
	ibatch, ifeat := a.Int("input_batch_dimension"), a.Int("input_feature_dimension")
	kin, kout := a.Int("kernel_input_feature_dimension"), a.Int("kernel_output_feature_dimension")
	obatch, ofeat := a.Int("output_batch_dimension"), a.Int("output_feature_dimension")
	fgroups, bgroups := a.Int("feature_group_count"), a.Int("batch_group_count")
	if err := firstError(
		s.length("C2", "window_strides", len(strides), n-2), s.atLeast("C3", "window_strides", strides, 1),
		s.length("C4", "padding", len(padding), n-2),
		s.length("C5", "lhs_dilation", len(ldil), n-2), s.atLeast("C6", "lhs_dilation", ldil, 1),
		s.length("C7", "rhs_dilation", len(rdil), n-2), s.atLeast("C8", "rhs_dilation", rdil, 1),
		s.length("C12", "input_spatial_dimensions", len(ispat), n-2), s.convDims("C13", "input", n, ibatch, ifeat, ispat),
		s.length("C17", "kernel_spatial_dimensions", len(kspat), n-2), s.convDims("C18", "kernel", n, kin, kout, kspat),
		s.length("C19", "output_spatial_dimensions", len(ospat), n-2), s.convDims("C20", "output", n, obatch, ofeat, ospat),
		s.atLeast("C21", "feature_group_count", []int{fgroups}, 1), s.atLeast("C22", "batch_group_count", []int{bgroups}, 1),
	); err != nil {
		return nil, err
	}
	if fgroups != 1 && bgroups != 1 {
		return nil, s.fail("C23", "found feature_group_count %d and batch_group_count %d, wanted one of them 1", fgroups, bgroups)
	}
	batch, features, inputs, outputs := l.Dimensions[ibatch], l.Dimensions[ifeat], r.Dimensions[kin], r.Dimensions[kout]
	switch {
	case batch%bgroups != 0:
		return nil, s.fail("C10", "batch of lhs %s: found %d, wanted a multiple of batch_group_count %d", ShapeString(l), batch, bgroups)
	case features%fgroups != 0:
		return nil, s.fail("C11", "features of lhs %s: found %d, wanted a multiple of feature_group_count %d", ShapeString(l), features, fgroups)
	case inputs != features/fgroups:
		return nil, s.fail("C14", "input features of rhs %s: found %d, wanted %d", ShapeString(r), inputs, features/fgroups)
	case outputs%bgroups != 0:
		return nil, s.fail("C15", "output features of rhs %s: found %d, wanted a multiple of batch_group_count %d", ShapeString(r), outputs, bgroups)
	case outputs%fgroups != 0:
		return nil, s.fail("C16", "output features of rhs %s: found %d, wanted a multiple of feature_group_count %d", ShapeString(r), outputs, fgroups)
	case l.DType != r.DType:
		return nil, s.fail("C27", "found lhs %s and rhs %s, wanted the same element type", ShapeString(l), ShapeString(r))
	}
	if err := firstError(
		s.windowBounds(l.Dimensions, r.Dimensions, strides, ldil, rdil, padding),
	); err != nil {
		return nil, err
	}
	dims := make([]int, n)
	dims[obatch], dims[ofeat] = batch/bgroups, outputs
	for i, d := range ospat {
		dims[d] = windows(l.Dimensions[ispat[i]], r.Dimensions[kspat[i]], strides[i], ldil[i], rdil[i], padding[i])
	}
	return one(l.DType, dims), nil
}

func inferRngBits(s *site) ([]Shape, error) {
	state := s.in[0]
	if state.Rank() != 1 {
		return nil, s.fail("C3", "found initial_state %s, wanted rank 1", ShapeString(state))
	}
	n := state.Dimensions[0]
	switch a := s.attrs.String("algorithm"); {
	case a == "THREE_FRY" && n != 2:
		return nil, s.fail("C2", "found initial_state %s, wanted 2 elements for %s", ShapeString(state), a)
	case a == "PHILOX" && n != 2 && n != 3:
		return nil, s.fail("C2", "found initial_state %s, wanted 2 or 3 elements for %s", ShapeString(state), a)
	}
	if !sameShape(s.want[0], state) {
		return nil, s.fail("C1", "found first result %s, wanted %s", ShapeString(s.want[0]), ShapeString(state))
	}
	if !(IntType | FloatType).Has(s.want[1].DType) {
		return nil, s.fail("C4", "found second result %s, wanted an integer or float type", ShapeString(s.want[1]))
	}
	return s.want, nil
}

func inferSame(s *site) ([]Shape, error) { return s.in, nil }

// paramShapes are the shapes of a func's parameters; resultShapes those of its results.
func paramShapes(f *Func) []Shape {
	out := make([]Shape, len(f.Params))
	for i, p := range f.Params {
		out[i] = p.Value.Shape
	}
	return out
}

// complete says whether f's signature can be read.
func complete(f *Func) bool {
	if f == nil || slices.Contains(f.Results, nil) {
		return false
	}
	for _, p := range f.Params {
		if p == nil || p.Value == nil {
			return false
		}
	}
	return true
}

func resultShapes(f *Func) []Shape { return shapesOf(f.Results) }

func sameShapes(a, b []Shape) bool { return slices.EqualFunc(a, b, sameShape) }

func shapeList(shapes []Shape) string {
	b := []byte{'('}
	for i, s := range shapes {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = appendShape(b, s)
	}
	return string(append(b, ')'))
}

// signature checks a region's types.
func (s *site) signature(number, name string, f *Func, params, results []Shape) error {
	if p := paramShapes(f); !sameShapes(p, params) {
		return s.fail(number, "%s: found parameters %s, wanted %s", name, shapeList(p), shapeList(params))
	}
	if r := resultShapes(f); !sameShapes(r, results) {
		return s.fail(number, "%s: found results %s, wanted %s", name, shapeList(r), shapeList(results))
	}
	return nil
}

var boolScalar = []Shape{{DType: dtypes.Bool}}

func inferSort(s *site) ([]Shape, error) {
	for i, x := range s.in[1:] {
		if !sameDims(x, s.in[0]) {
			return nil, s.fail("C3", "input %d: found %s, wanted the shape of %s", i+1, ShapeString(x), ShapeString(s.in[0]))
		}
	}
	if err := s.within("C4", "dimension", []int{s.attrs.Int("dimension")}, s.rank(0)); err != nil {
		return nil, err
	}
	params := make([]Shape, 0, 2*len(s.in))
	for _, x := range s.in {
		params = append(params, Shape{DType: x.DType}, Shape{DType: x.DType})
	}
	if err := s.signature("C5", "comparator", s.regions[0], params, boolScalar); err != nil {
		return nil, err
	}
	return s.in, nil
}

func inferWhile(s *site) ([]Shape, error) {
	if err := firstError(
		s.signature("C1", "cond", s.regions[0], s.in, boolScalar),
		s.signature("C2", "body", s.regions[1], s.in, s.in),
	); err != nil {
		return nil, err
	}
	return s.in, nil
}

func inferIf(s *site) ([]Shape, error) {
	out := resultShapes(s.regions[0])
	for i, name := range [...]string{"true branch", "false branch"} {
		if p := paramShapes(s.regions[i]); !sameShapes(p, s.in[1:]) {
			return nil, s.fail("C1", "%s: found parameters %s, wanted %s", name, shapeList(p), shapeList(s.in[1:]))
		}
	}
	if r := resultShapes(s.regions[1]); !sameShapes(r, out) {
		return nil, s.fail("C2", "found results %s of the true branch and %s of the false branch, wanted them equal", shapeList(out), shapeList(r))
	}
	return out, nil
}

func inferCall(s *site) ([]Shape, error) {
	if s.callee == nil {
		return nil, s.fail("C1", "found no private function %q in the module", s.attrs.String("callee"))
	}
	if p := paramShapes(s.callee); !sameShapes(p, s.in) {
		return nil, s.fail("C2", "found operands %s, wanted %s as @%s takes", shapeList(s.in), shapeList(p), s.callee.Name)
	}
	return resultShapes(s.callee), nil
}
