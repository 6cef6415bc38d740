package passes

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"precast/graph"
)

// Attention says how attention is computed.
type Attention struct {
	// Budget is the number of bytes of scores up to which attention stays whole; of a larger one chunks have about Chunk bytes. 0 leaves all attention
	// whole, unless Queries is set.
	Budget, Chunk int64
	// Fused, where not 0, says that the compiler makes one kernel of attention without masks of booleans, which has not all scores in memory: such
	// attention stays whole up to so many bytes.
	Fused int64
	// Apart, where not 0, is the number of queries of chunks that such attention is cut into where it is long, of which the compiler makes a kernel each:
	// up to mostApart chunks are written one after another, more are a loop. Long are 4 chunks of queries and more that see at least 2 chunks' number
	// of keys: rows of fewer keys, as in cross-attention to a prompt, stay in the caches anyway.
	Apart int
	// Queries and Keys, where not 0, are the sizes of the chunks whatever Budget says; no Keys means that each chunk sees all keys.
	Queries, Keys int
}

// The least sizes of chunks that a budget gives: with fewer queries the keys and values would be read too often for each product, with fewer keys
// the running softmax would rescale too often.
const (
	leastQueries = 256
	leastKeys    = 256
)

// mostApart bounds the graph: chunks that are written one after another are as much text each.
const mostApart = 16

// AttentionFor is how attention is best computed on a target: a chunk's scores should stay in a CPU's inner caches, and be little beside the memory
// of an accelerator. ARCHITECTURE.md has the figures.
func AttentionFor(t Target) Attention {
	if t.Platform == "cpu" {
		a := Attention{Budget: 16 << 20, Chunk: 4 << 20}
		if t.FusedAttention {
			a.Fused, a.Apart = 256<<20, 512
		}
		return a
	}
	return Attention{Budget: 256 << 20, Chunk: 256 << 20}
}

// ParseAttention reads auto, whole, or chunked:QUERIES[xKEYS]; auto and the empty text are by what the target is.
func ParseAttention(text string, t Target) (Attention, error) {
	switch text {
	case "", "auto":
		return AttentionFor(t), nil
	case "whole":
		return Attention{}, nil
	}
	sizes, ok := strings.CutPrefix(text, "chunked:")
	q, k, both := strings.Cut(sizes, "x")
	queries, err := strconv.Atoi(q)
	keys := 0
	if both && err == nil {
		keys, err = strconv.Atoi(k)
	}
	if !ok || err != nil || queries < 1 || both && keys < 1 {
		return Attention{}, fmt.Errorf("attention: found %q, wanted auto, whole, or chunked:QUERIES[xKEYS] with whole numbers from 1, such as chunked:512 or chunked:256x1024", text)
	}
	return Attention{Queries: queries, Keys: keys}, nil
}

// String is the form that ParseAttention reads, with auto's budget behind it.
func (a Attention) String() string {
	switch {
	case a.Keys > 0:
		return fmt.Sprintf("chunked:%dx%d", a.Queries, a.Keys)
	case a.Queries > 0:
		return fmt.Sprintf("chunked:%d", a.Queries)
	case a.Budget > 0 && a.Fused > 0 && a.Apart > 0:
		return fmt.Sprintf("auto(%d/%d, fused to %d, %d apart)", a.Budget, a.Chunk, a.Fused, a.Apart)
	case a.Budget > 0 && a.Fused > 0:
		return fmt.Sprintf("auto(%d/%d, fused to %d)", a.Budget, a.Chunk, a.Fused)
	case a.Budget > 0:
		return fmt.Sprintf("auto(%d/%d)", a.Budget, a.Chunk)
	}
	return "whole"
}

// sizes are those of the chunks of an attention over so many queries and keys, whose scores take so many bytes; queries 0 leaves it whole. keys is 0
// where each chunk sees all of them.
func (a Attention) sizes(queries, keys int, bytes int64) (q, k int) {
	switch {
	case a.Queries > 0:
		q, k = a.Queries, a.Keys
	case a.Budget <= 0 || bytes <= a.Budget || queries < 2:
		return 0, 0
	default:
		row := max(bytes/int64(queries), 1)
		if q = int(a.Chunk / row); q < leastQueries {
			q = min(leastQueries, queries)
			k = max(int(a.Chunk/max(row/int64(keys)*int64(q), 1)), leastKeys)
		}
	}
	if q, k = min(q, queries), min(k, keys); k == keys {
		k = 0
	}
	if q == queries && k == 0 {
		return 0, 0
	}
	return q, k
}

// chunkAttention rewrites attention so that the scores of all queries with all keys are never in memory together. It is found by its structure, in every
// function: a dot whose result only elementwise operations, shape changes and reductions read before a second dot sums over the keys.
//
// The queries are cut into chunks of nearly one size, and a loop computes each with all keys: chunks written one after another would be computed beside
// one another, and their scores be in memory together. Rows do not depend on one another, so what a chunk computes is what the whole would, down to
// the order in which a backend sums. The last chunk begins so early that it is full, and its first rows are computed twice.
//
// Where the keys are cut, too, which needs exp(scores - max(scores)), each chunk of queries runs through them with the largest score so far, and rescales
// what it has summed where that grows (https://arxiv.org/abs/1805.02867, https://arxiv.org/abs/2205.14135). Sums are kept in float32 for
// narrower types. A row whose scores are all -inf is NaN then as before; a mask of booleans that leaves no key gives what it gave.
//
// Attention whose scores something else reads stays whole, as does one in a region of a while.
func chunkAttention(m *graph.Module, o *Options) error {
	if o.Attention == (Attention{}) {
		return nil
	}
	for _, f := range m.Funcs {
		if f.Name == PrepareFunc {
			continue
		}
		chunkFunc(f, o.Attention)
	}
	return nil
}

func chunkFunc(f *graph.Func, how Attention) {
	var uses map[*graph.Value][]graph.Use // nil after a change
	position := map[*graph.Node]int{}
	for _, d1 := range slices.Clone(f.Nodes) {
		if d1.Op != graph.OpDot || how.Budget > 0 && 4*int64(d1.Results[0].Shape.Size()) <= how.Budget {
			continue
		}
		if uses == nil {
			uses = graph.Uses(f)
			clear(position)
			for i, n := range f.Nodes {
				position[n] = i
			}
		}
		at, there := position[d1]
		if !there {
			continue
		}
		a := findAttention(f, at, uses)
		if a == nil {
			continue
		}
		if how.Queries == 0 && a.fusable {
			if q := how.Apart; q > 0 && a.queries >= 4*q && a.keys >= 2*q && a.bytes/int64(a.queries)*int64(q) <= how.Fused {
				if (a.queries+q-1)/q <= mostApart {
					a.writeOut(q)
				} else {
					a.rewrite(q, 0)
				}
				deadNodes(f)
				uses = nil
				continue
			}
			if a.bytes <= how.Fused {
				continue
			}
		}
		q, k := how.sizes(a.queries, a.keys, a.bytes)
		if q == 0 {
			continue
		}
		// The queries stay the longest axis, before the heads that share keys, so that another run finds them, too.
		if q = max(q, a.group); q >= a.queries && k == 0 {
			continue
		}
		if k > 0 && a.softmax == nil {
			k = 0
			if q == a.queries {
				continue
			}
		}
		a.rewrite(q, k)
		deadNodes(f)
		uses = nil
	}
}

// attention is one that was found in f.
type attention struct {
	f      *graph.Func
	d1, d2 *graph.Node
	uses   map[*graph.Value][]graph.Use
	// cone has the values that depend on the scores.
	cone map[*graph.Value]bool
	// exits are the small values that the rest of f reads, each with its axis of queries; the last is d2's.
	exits []exit
	// weights is the operand of d2 that has the scores' axes, side its index, keyAxis that of the keys in it, queryAxis that of the queries.
	weights            *graph.Value
	side               int
	keyAxis, queryAxis int
	queries, keys      int
	group              int // the longest axis beside the queries that only they have, at least 1
	bytes              int64
	selects            bool // some scores are replaced by others
	softmax            *softmax
	// fusable says that it is a softmax of scores that arithmetic alone makes, as XLA's CPU compiler looks for.
	fusable bool
}

type exit struct {
	v    *graph.Value
	axis int
}

// softmax is what a running one needs to know.
type softmax struct {
	largest *graph.Value // the reduction to the largest score of a row
	scores  *graph.Value // what it reduces
	sums    []*graph.Value
	// key and query are the axes of keys and queries in scores, exponentials and sums' operands, which the weights may be a reshape of.
	key, query int
	// p is what d2 sums, before it is divided; divisor is what it is divided by (nil: not before d2), a value over rows.
	p       *graph.Value
	divisor *graph.Value
}

// slicing is one cut axis: a range of the queries or of the keys.
type slicing struct {
	level *level
	start *graph.Value // a scalar of the level's function; nil where at is known
	at    int
	size  int
}

// cut is a slicing of an axis of some value.
type cut struct {
	axis int
	by   *slicing
}

// level is a function that computes a chunk: a body of a loop, or the function that attention is in.
type level struct {
	a      *attention
	f      *graph.Func
	parent *level // nil outside of all chunks
	bring  func(v *graph.Value) *graph.Value
	made   map[string]*graph.Value
	// visited are the cone's values that were computed, with their cuts.
	visited map[*graph.Value][]cut
	failed  bool
}

func newLevel(a *attention, f *graph.Func, parent *level, bring func(*graph.Value) *graph.Value) *level {
	return &level{a: a, f: f, parent: parent, bring: bring, made: map[string]*graph.Value{}, visited: map[*graph.Value][]cut{}}
}

func same(v *graph.Value) *graph.Value { return v }

func (l *level) add(op graph.Op, operands []*graph.Value, attrs graph.Attrs, shape graph.Shape) *graph.Value {
	n := l.f.Append(op, operands, attrs, shape)
	n.Scope = l.a.d1.Scope
	return n.Results[0]
}

func (l *level) splat(shape graph.Shape, x float64) *graph.Value {
	lit, err := graph.NewSplat(shape.DType, x)
	if err != nil {
		panic("BUG: chunk-attention: " + err.Error())
	}
	return l.add(graph.OpConstant, nil, graph.Attrs(nil).With("value", lit), shape)
}

func (l *level) convert(v *graph.Value, d graph.DType) *graph.Value {
	if v.Shape.DType == d {
		return v
	}
	return l.add(graph.OpConvert, []*graph.Value{v}, nil, shapes.Make(d, v.Shape.Dimensions...))
}

func (l *level) broadcast(v *graph.Value, axes []int, dims []int) *graph.Value {
	return l.add(graph.OpBroadcast, []*graph.Value{v}, graph.Attrs(nil).With("broadcast_dimensions", axes), shapes.Make(v.Shape.DType, dims...))
}

func (l *level) compare(x, y *graph.Value, direction string) *graph.Value {
	return l.add(graph.OpCompare, []*graph.Value{x, y},
		graph.Resolve(graph.OpCompare, graph.Attrs(nil).With("direction", direction), []graph.Shape{x.Shape, y.Shape}), shapes.Make(dtypes.Bool, x.Shape.Dimensions...))
}

// startOf is where a slicing begins, as a scalar of this level's function.
func (l *level) startOf(s *slicing) *graph.Value {
	switch {
	case s.start == nil:
		return l.splat(counter, float64(s.at))
	case s.level == l || l.parent == nil:
		return s.start
	}
	return l.bring(l.parent.startOf(s))
}

func cutShape(shape graph.Shape, cuts []cut) graph.Shape {
	dims := slices.Clone(shape.Dimensions)
	for _, c := range cuts {
		dims[c.axis] = c.by.size
	}
	return shapes.Make(shape.DType, dims...)
}

func cutKey(v *graph.Value, cuts []cut) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%p", v)
	for _, c := range cuts {
		fmt.Fprintf(&b, " %d:%p", c.axis, c.by)
	}
	return b.String()
}

// fail notes that a value can't be computed a chunk at a time; what take returns afterwards has the right shape and no meaning.
func (l *level) fail(shape graph.Shape) *graph.Value {
	l.failed = true
	return l.splat(shape, 0)
}

// take computes the part of v that the cuts say, which are in the order of their axes.
func (l *level) take(v *graph.Value, cuts []cut) *graph.Value {
	key := cutKey(v, cuts)
	if have := l.made[key]; have != nil {
		return have
	}
	made := l.compute(v, cuts)
	l.made[key] = made
	return made
}

func (l *level) compute(v *graph.Value, cuts []cut) *graph.Value {
	n, shape := v.Def, cutShape(v.Shape, cuts)
	inCone := l.a.cone[v]
	if inCone {
		if before, ok := l.visited[v]; ok && !slices.Equal(before, cuts) {
			return l.fail(shape)
		}
		l.visited[v] = cuts
		if len(cuts) == 0 {
			return l.fail(shape) // something over all queries
		}
	}
	if !inCone && (len(cuts) == 0 || !l.a.computedAgain(v)) {
		return l.leaf(v, cuts)
	}
	switch info, _ := graph.OpInfo(n.Op); {
	case len(n.Results) != 1 || len(n.Regions) > 0:
	case info.Elementwise:
		operands := make([]*graph.Value, len(n.Operands))
		for i, o := range n.Operands {
			if o.Shape.Rank() == v.Shape.Rank() {
				operands[i] = l.take(o, cuts)
			} else {
				operands[i] = l.take(o, nil)
			}
		}
		return l.add(n.Op, operands, n.Attrs, shape)
	case n.Op == graph.OpConstant:
		lit, _ := literal(v)
		return l.add(graph.OpConstant, nil, graph.Attrs(nil).With("value", lit), shape)
	case n.Op == graph.OpIota:
		index := l.add(graph.OpIota, nil, n.Attrs, shape)
		for _, c := range cuts {
			if c.axis == n.Attrs.Int("iota_dimension") {
				start := l.convert(l.startOf(c.by), shape.DType)
				index = l.add(graph.OpAdd, []*graph.Value{index, l.broadcast(start, []int{}, shape.Dimensions)}, nil, shape)
			}
		}
		return index
	case n.Op == graph.OpBroadcast:
		var below []cut
		axes := n.Attrs.Ints("broadcast_dimensions")
		for i, axis := range axes {
			for _, c := range cuts {
				if c.axis == axis && n.Operands[0].Shape.Dimensions[i] == v.Shape.Dimensions[axis] {
					below = append(below, cut{i, c.by})
				}
			}
		}
		return l.broadcast(l.take(n.Operands[0], sorted(below)), axes, shape.Dimensions)
	case n.Op == graph.OpTranspose:
		var below []cut
		for _, c := range cuts {
			below = append(below, cut{n.Attrs.Ints("permutation")[c.axis], c.by})
		}
		return l.add(graph.OpTranspose, []*graph.Value{l.take(n.Operands[0], sorted(below))}, n.Attrs, shape)
	case n.Op == graph.OpReshape:
		var below []cut
		for _, c := range cuts {
			axis := reshapedAxis(v.Shape.Dimensions, n.Operands[0].Shape.Dimensions, c.axis)
			if axis < 0 {
				return l.fail(shape)
			}
			below = append(below, cut{axis, c.by})
		}
		return l.add(graph.OpReshape, []*graph.Value{l.take(n.Operands[0], sorted(below))}, nil, shape)
	case n.Op == graph.OpReduce:
		var left []int // the operand's axes that the result has
		for axis := range n.Operands[0].Shape.Rank() {
			if !slices.Contains(n.Attrs.Ints("dimensions"), axis) {
				left = append(left, axis)
			}
		}
		var below []cut
		for _, c := range cuts {
			below = append(below, cut{left[c.axis], c.by})
		}
		return l.add(graph.OpReduce, []*graph.Value{l.take(n.Operands[0], sorted(below))}, n.Attrs, shape)
	case n.Op == graph.OpDot:
		lhs, rhs := dotAxes(n)
		var left, right []cut
		for _, c := range cuts {
			if axis := lhs[c.axis]; axis >= 0 {
				left = append(left, cut{axis, c.by})
			}
			if axis := rhs[c.axis]; axis >= 0 {
				right = append(right, cut{axis, c.by})
			}
		}
		return l.add(graph.OpDot, []*graph.Value{l.take(n.Operands[0], sorted(left)), l.take(n.Operands[1], sorted(right))}, n.Attrs, shape)
	}
	return l.fail(shape)
}

// leaf reads the part of a value from outside.
func (l *level) leaf(v *graph.Value, cuts []cut) *graph.Value {
	var own, above []cut
	for _, c := range cuts {
		if c.by.level == l {
			own = append(own, c)
		} else {
			above = append(above, c)
		}
	}
	switch {
	case l.parent != nil:
		v = l.bring(l.parent.take(v, above))
	case len(above) > 0:
		panic("BUG: chunk-attention: a slice of no level")
	}
	if len(own) == 0 {
		return v
	}
	shape := cutShape(v.Shape, own)
	if own[0].by.start == nil {
		start, strides := make([]int, v.Shape.Rank()), make([]int, v.Shape.Rank())
		limit := slices.Clone(v.Shape.Dimensions)
		for i := range strides {
			strides[i] = 1
		}
		for _, c := range own {
			start[c.axis], limit[c.axis] = c.by.at, c.by.at+c.by.size
		}
		return l.add(graph.OpSlice, []*graph.Value{v}, graph.Attrs(nil).With("limit_indices", limit).With("start_indices", start).With("strides", strides), shape)
	}
	return l.add(graph.OpDynSlice, append([]*graph.Value{v}, l.starts(v.Shape.Rank(), own)...), graph.Attrs(nil).With("slice_sizes", shape.Dimensions), shape)
}

// starts are the operands of a dynamic slice: where it begins in each axis.
func (l *level) starts(rank int, own []cut) []*graph.Value {
	zero := l.made["zero"]
	if zero == nil {
		zero = l.splat(counter, 0)
		l.made["zero"] = zero
	}
	out := make([]*graph.Value, rank)
	for i := range out {
		out[i] = zero
	}
	for _, c := range own {
		out[c.axis] = l.startOf(c.by)
	}
	return out
}

// computedAgain reports whether each chunk computes its part of v, which no score is in, by itself, rather than reading a slice of it: large values that cost
// nothing (a mask that is broadcast to all heads), and what is computed for these scores alone.
func (a *attention) computedAgain(v *graph.Value) bool {
	n := v.Def
	if n == nil || len(n.Results) != 1 || int64(v.Shape.Size()) < int64(a.d1.Results[0].Shape.Size()) {
		return false
	}
	switch n.Op {
	case graph.OpConstant:
		lit, _ := literal(v)
		return lit.Splat
	case graph.OpIota, graph.OpBroadcast:
		return true
	}
	// Of several readers one may be elsewhere, and then v is there as a whole anyway.
	info, _ := graph.OpInfo(n.Op)
	return info.Elementwise && info.SideEffectFree && len(a.uses[v]) == 1
}

func sorted(cuts []cut) []cut {
	slices.SortFunc(cuts, func(x, y cut) int { return x.axis - y.axis })
	return cuts
}

// reshapedAxis is the axis of the operand that a reshape leaves as it is in an axis of the result, -1 where there is none.
func reshapedAxis(result, operand []int, axis int) int {
	before := 1
	for _, d := range result[:axis] {
		before *= d
	}
	product := 1
	for i, d := range operand {
		if product == before && d == result[axis] {
			return i
		}
		product *= d
	}
	return -1
}

// dotAxes gives for each axis of a dot's result the operands' axes that it comes from, -1 for none.
func dotAxes(n *graph.Node) (lhs, rhs []int) {
	lb, lc, rb, rc := n.Attrs.Ints("lhs_batching"), n.Attrs.Ints("lhs_contracting"), n.Attrs.Ints("rhs_batching"), n.Attrs.Ints("rhs_contracting")
	for i := range lb {
		lhs, rhs = append(lhs, lb[i]), append(rhs, rb[i])
	}
	for axis := range n.Operands[0].Shape.Rank() {
		if !slices.Contains(lb, axis) && !slices.Contains(lc, axis) {
			lhs, rhs = append(lhs, axis), append(rhs, -1)
		}
	}
	for axis := range n.Operands[1].Shape.Rank() {
		if !slices.Contains(rb, axis) && !slices.Contains(rc, axis) {
			lhs, rhs = append(lhs, -1), append(rhs, axis)
		}
	}
	return lhs, rhs
}

// findAttention looks for an attention whose scores the node at that position computes, a dot.
func findAttention(f *graph.Func, at int, uses map[*graph.Value][]graph.Use) *attention {
	d1 := f.Nodes[at]
	a := &attention{f: f, d1: d1, uses: uses, cone: map[*graph.Value]bool{d1.Results[0]: true}}
	size := d1.Results[0].Shape.Size()
	if size == 0 {
		return nil
	}
	for _, n := range f.Nodes[at+1:] {
		if !slices.ContainsFunc(n.Operands, func(v *graph.Value) bool { return a.cone[v] }) {
			continue
		}
		for _, r := range n.Results {
			a.cone[r] = true
		}
		if n.Op == graph.OpDot {
			a.d2 = n
			break
		}
	}
	if a.d2 == nil {
		return nil
	}
	if a.side = 0; !a.cone[a.d2.Operands[0]] {
		a.side = 1
	}
	a.weights = a.d2.Operands[a.side]
	contracting := "lhs_contracting"
	if a.side == 1 {
		contracting = "rhs_contracting"
	}
	// The operands of the second dot must not both have scores in them.
	if a.cone[a.d2.Operands[1-a.side]] || a.weights.Shape.Size() != size || len(a.d2.Attrs.Ints(contracting)) != 1 {
		return nil
	}
	a.keyAxis = a.d2.Attrs.Ints(contracting)[0]
	a.keys = a.weights.Shape.Dimensions[a.keyAxis]
	lhs, rhs := dotAxes(a.d2)
	ours, other := lhs, rhs
	if a.side == 1 {
		ours, other = rhs, lhs
	}
	// The axis of the queries is the longest that only the weights have.
	axes := []int{}
	for axis := range ours {
		if ours[axis] >= 0 && other[axis] < 0 {
			axes = append(axes, axis)
		}
	}
	out := a.d2.Results[0]
	slices.SortStableFunc(axes, func(x, y int) int { return out.Shape.Dimensions[y] - out.Shape.Dimensions[x] })
	for _, axis := range axes {
		if a.try(axis, ours[axis]) {
			a.group = 1
			for _, other := range axes {
				if other != axis {
					a.group = max(a.group, out.Shape.Dimensions[other])
				}
			}
			a.findSoftmax()
			if a.softmax != nil && a.group == 1 {
				p := a.softmax.p
				for p.Def.Op == graph.OpConvert {
					p = p.Def.Operands[0]
				}
				a.fusable = p.Def.Op == graph.OpExp && !a.selects
			}
			return a
		}
	}
	return nil
}

// try asks whether the attention can be cut in an axis of d2's result, by computing a chunk on the side.
func (a *attention) try(axis, inWeights int) bool {
	out := a.d2.Results[0]
	a.queries = out.Shape.Dimensions[axis]
	root := newLevel(a, a.f, nil, same)
	dry := newLevel(a, &graph.Func{}, root, same)
	dry.take(out, []cut{{axis, &slicing{level: dry, size: 1}}})
	scores := dry.visited[a.d1.Results[0]]
	if dry.failed || len(scores) != 1 {
		return false
	}
	// The queries are free in the first dot, too: a batch would be cut in both operands.
	if lhs, rhs := dotAxes(a.d1); lhs[scores[0].axis] >= 0 && rhs[scores[0].axis] >= 0 {
		return false
	}
	// Between the two layers of an MLP there are no sums over what the second one sums over.
	exponentials, reductions := false, false
	for v := range dry.visited {
		exponentials = exponentials || v.Def.Op == graph.OpExp
		reductions = reductions || v.Def.Op == graph.OpReduce
	}
	if !exponentials || !reductions || !a.follow(dry) {
		return false
	}
	a.exits, a.bytes, a.selects = nil, 0, false
	size := a.d1.Results[0].Shape.Size()
	for _, n := range a.f.Nodes {
		if len(n.Results) != 1 || dry.visited[n.Results[0]] == nil {
			continue
		}
		v := n.Results[0]
		a.selects = a.selects || n.Op == graph.OpSelect
		if v.Shape.Size() >= size && n != a.d2 {
			a.bytes = max(a.bytes, graph.ByteSize(v.Shape))
		}
		if n == a.d2 || slices.ContainsFunc(a.uses[v], func(u graph.Use) bool { return u.Node == nil || dry.visited[u.Node.Results[0]] == nil }) {
			a.exits = append(a.exits, exit{v, dry.visited[v][0].axis})
		}
	}
	a.queryAxis = inWeights
	return true
}

// follow computes what else reads the scores, and what is made of them, on the side: the sum that comes after the second dot. It reports whether what
// is left to be read are rows, not scores.
func (a *attention) follow(dry *level) bool {
	size := a.d1.Results[0].Shape.Size()
	for _, n := range a.f.Nodes {
		if len(n.Results) != 1 || n == a.d2 || dry.visited[n.Results[0]] == nil || n.Results[0].Shape.Size() < size {
			continue
		}
		// Readers stand behind what they read, so those that are added are still to come.
		v := n.Results[0]
		axis := dry.visited[v][0].axis
		for _, u := range a.uses[v] {
			if u.Node == nil {
				return false
			}
			if len(u.Node.Results) != 1 {
				return false
			}
			if dry.visited[u.Node.Results[0]] != nil {
				continue
			}
			at := axis
			switch info, _ := graph.OpInfo(u.Node.Op); {
			case info.Elementwise && u.Node.Results[0].Shape.Rank() == v.Shape.Rank():
			case u.Node.Op == graph.OpReduce:
				for _, d := range u.Node.Attrs.Ints("dimensions") {
					switch {
					case d == axis:
						return false
					case d < axis:
						at--
					}
				}
			default:
				return false
			}
			if dry.take(u.Node.Results[0], []cut{{at, dry.visited[v][0].by}}); dry.failed {
				return false
			}
		}
	}
	return true
}

// findSoftmax looks for exp(scores - max(scores)) in the weights, which a running softmax needs.
func (a *attention) findSoftmax() {
	s := &softmax{key: a.keyAxis, query: a.queryAxis}
	// Conversions, reshapes, and a division by the sum, may be between the exponential and the second dot.
	w := a.weights
	for w.Def.Op == graph.OpConvert || w.Def.Op == graph.OpReshape {
		from := w.Def.Operands[0]
		if w.Def.Op == graph.OpReshape {
			s.key = reshapedAxis(w.Shape.Dimensions, from.Shape.Dimensions, s.key)
			s.query = reshapedAxis(w.Shape.Dimensions, from.Shape.Dimensions, s.query)
		}
		if w = from; s.key < 0 || s.query < 0 || !a.cone[w] {
			return
		}
	}
	rows := reduced(w.Shape.Rank(), s.key) // the axes that a row has
	s.p = w
	if n := w.Def; n.Op == graph.OpDiv && n.Operands[1].Def != nil && n.Operands[1].Def.Op == graph.OpBroadcast && a.cone[n.Operands[1]] {
		b := n.Operands[1].Def
		s.p, s.divisor = n.Operands[0], b.Operands[0]
		if d := s.divisor.Def; d.Op == graph.OpReshape && slices.Equal(d.Operands[0].Shape.Dimensions, dimsOf(w, rows)) && len(b.Attrs.Ints("broadcast_dimensions")) == w.Shape.Rank() {
			s.divisor = d.Operands[0] // [..., 1], for a broadcast without a new axis
		} else if !slices.Equal(b.Attrs.Ints("broadcast_dimensions"), rows) {
			return
		}
	}
	exp := a.exponential(s.p, s.p.Shape.Dimensions)
	if exp == nil || exp.Operands[0].Def == nil || exp.Operands[0].Def.Op != graph.OpSub {
		return
	}
	sub := exp.Operands[0].Def
	b := sub.Operands[1]
	for b.Def != nil && a.cone[b] && (b.Def.Op == graph.OpBroadcast || b.Def.Op == graph.OpReshape) {
		b = b.Def.Operands[0]
	}
	if b.Def == nil || b.Def.Op != graph.OpReduce || b.Def.Attrs.String("combiner") != "maximum" || b.Def.Operands[0] != sub.Operands[0] ||
		!a.cone[b] || !b.Shape.DType.IsFloat() || !slices.Equal(b.Def.Attrs.Ints("dimensions"), []int{s.key}) {
		return
	}
	s.largest, s.scores = b, sub.Operands[0]
	// Whatever else the rest of the function, or the division, wants must be a sum of such exponentials.
	wanted := []*graph.Value{}
	for _, e := range a.exits {
		if e.v.Def != a.d2 {
			wanted = append(wanted, e.v)
		}
	}
	if s.divisor != nil {
		wanted = append(wanted, s.divisor)
	}
	seen := map[*graph.Value]bool{}
	for len(wanted) > 0 {
		v := wanted[0]
		wanted = wanted[1:]
		if seen[v] || !a.cone[v] || v == s.largest {
			continue
		}
		seen[v] = true
		if n := v.Def; n.Op == graph.OpReduce {
			if n.Attrs.String("combiner") != "add" || !slices.Equal(n.Attrs.Ints("dimensions"), []int{s.key}) || a.exponential(n.Operands[0], s.p.Shape.Dimensions) != exp {
				return
			}
			s.sums = append(s.sums, v)
			continue
		}
		if v.Shape.Size() >= a.weights.Shape.Size() {
			return
		}
		wanted = append(wanted, v.Def.Operands...)
	}
	// On the side: what is before the largest scores might need all keys.
	dry := newLevel(a, &graph.Func{}, newLevel(a, a.f, nil, same), same)
	query, key := &slicing{level: dry, size: 1}, &slicing{level: dry, size: 1}
	both := sorted([]cut{{s.query, query}, {s.key, key}})
	row := []cut{{slices.Index(rows, s.query), query}}
	dry.take(s.scores, both)
	dry.made[cutKey(s.largest, row)] = dry.splat(cutShape(s.largest.Shape, row), 0)
	dry.take(s.p, both)
	for _, v := range s.sums {
		dry.take(v.Def.Operands[0], both)
	}
	if dry.failed {
		return
	}
	slices.SortFunc(s.sums, func(x, y *graph.Value) int { return slices.Index(a.f.Nodes, x.Def) - slices.Index(a.f.Nodes, y.Def) })
	a.softmax = s
}

// exponential is the exp that v is, up to conversions and factors without scores; nil where it is none. All of them have those dimensions.
func (a *attention) exponential(v *graph.Value, dims []int) *graph.Node {
	for v.Def != nil && a.cone[v] && slices.Equal(v.Shape.Dimensions, dims) {
		n := v.Def
		switch {
		case n.Op == graph.OpExp:
			return n
		case n.Op == graph.OpConvert && n.Operands[0].Shape.DType.IsFloat():
			v = n.Operands[0]
		case n.Op == graph.OpMul && !a.cone[n.Operands[1]]:
			v = n.Operands[0]
		case n.Op == graph.OpMul && !a.cone[n.Operands[0]]:
			v = n.Operands[1]
		case n.Op == graph.OpSelect && !a.cone[n.Operands[0]] && isPlusZero(n.Operands[2]):
			v = n.Operands[1]
		default:
			return nil
		}
	}
	return nil
}

// rewrite replaces the exits by what chunks of q queries, and of k keys where k is not 0, compute.
func (a *attention) rewrite(q, k int) {
	chunks := (a.queries + q - 1) / q
	q = (a.queries + chunks - 1) / chunks
	chunks = (a.queries + q - 1) / q
	fresh := &graph.Func{} // its nodes go in front of the second dot
	root := newLevel(a, a.f, nil, same)
	out := newLevel(a, fresh, root, same)
	division := a.division(k)
	exits := a.exits
	if division != nil {
		exits = []exit{{division.Results[0], exits[len(exits)-1].axis}}
	}
	var start []*graph.Value
	for _, e := range exits {
		start = append(start, out.splat(e.v.Shape, 0))
	}
	results := out.loop(chunks, start, func(l *level, turn *graph.Value, state []*graph.Value) []*graph.Value {
		by := &slicing{level: l, size: q}
		by.start = l.add(graph.OpMul, []*graph.Value{turn, l.splat(counter, float64(q))}, nil, counter)
		// The last chunk ends with the queries.
		by.start = l.add(graph.OpMin, []*graph.Value{by.start, l.splat(counter, float64(a.queries-q))}, nil, counter)
		var next []*graph.Value
		for i, v := range a.divided(l, a.chunk(l, by, k), division) {
			e := exits[i]
			next = append(next, l.add(graph.OpDynUpdSlice, append([]*graph.Value{state[i], v}, l.starts(v.Shape.Rank(), []cut{{e.axis, by}})...), nil, e.v.Shape))
		}
		return next
	})
	a.exits = exits
	a.replace(results, fresh)
}

// writeOut replaces the exits by those of chunks of q queries, the last of what is left, joined.
func (a *attention) writeOut(q int) {
	fresh := &graph.Func{}
	root := newLevel(a, a.f, nil, same)
	exits := a.exits
	division := a.division(0)
	if division != nil {
		exits = []exit{{division.Results[0], exits[len(exits)-1].axis}}
	}
	parts := make([][]*graph.Value, len(exits))
	for at := 0; at < a.queries; at += q {
		l := newLevel(a, fresh, root, same) // what one chunk has computed is no other's
		by := &slicing{level: l, at: at, size: min(q, a.queries-at)}
		for i, v := range a.divided(l, a.chunk(l, by, 0), division) {
			parts[i] = append(parts[i], v)
		}
	}
	out := newLevel(a, fresh, root, same)
	var results []*graph.Value
	for i, e := range exits {
		results = append(results, out.add(graph.OpConcat, parts[i], graph.Attrs(nil).With("dimension", e.axis), e.v.Shape))
	}
	a.exits = exits
	a.replace(results, fresh)
}

// division is the node that divides the second dot's result by the sum of the exponentials, where nothing else reads either; nil where there is none. It
// becomes part of a chunk that sees all keys (k is 0), since XLA finds no softmax without it.
func (a *attention) division(k int) *graph.Node {
	if len(a.exits) != 2 || k > 0 {
		return nil
	}
	only := func(v *graph.Value, op graph.Op) *graph.Node {
		if uses := a.uses[v]; len(uses) == 1 && uses[0].Node != nil && uses[0].Node.Op == op {
			return uses[0].Node
		}
		return nil
	}
	product := a.exits[1].v
	if wider := only(product, graph.OpConvert); wider != nil {
		product = wider.Results[0]
	}
	over, n := only(a.exits[0].v, graph.OpBroadcast), only(product, graph.OpDiv)
	if over == nil || n == nil || n.Operands[0] != product || n != only(over.Results[0], graph.OpDiv) {
		return nil
	}
	return n
}

// divided makes the division part of a chunk.
func (a *attention) divided(l *level, chunk []*graph.Value, division *graph.Node) []*graph.Value {
	if division == nil {
		return chunk
	}
	product, over := l.convert(chunk[len(chunk)-1], division.Results[0].Shape.DType), division.Operands[1].Def
	divisor := l.broadcast(chunk[0], over.Attrs.Ints("broadcast_dimensions"), product.Shape.Dimensions)
	return []*graph.Value{l.add(graph.OpDiv, []*graph.Value{product, divisor}, nil, product.Shape)}
}

// replace puts the nodes of fresh in front of the second dot, and what they compute in the place of the exits.
func (a *attention) replace(results []*graph.Value, fresh *graph.Func) {
	replaced := map[*graph.Value]*graph.Value{}
	for i, e := range a.exits {
		replaced[e.v] = results[i]
	}
	graph.ReplaceUses(a.f, replaced)
	// What reads the sum may stand before the second dot: it moves behind the chunks, which stay one after another.
	moved := map[*graph.Value]bool{}
	for _, v := range replaced {
		moved[v] = true
	}
	at := slices.Index(a.f.Nodes, a.d2)
	var before, after []*graph.Node
	for _, n := range a.f.Nodes[:at] {
		if !slices.ContainsFunc(n.Operands, func(v *graph.Value) bool { return moved[v] }) {
			before = append(before, n)
			continue
		}
		after = append(after, n)
		for _, r := range n.Results {
			moved[r] = true
		}
	}
	a.f.Nodes = slices.Concat(before, fresh.Nodes, after, a.f.Nodes[at:])
}

// loop appends a while of so many turns to l's function. body computes the next state from a turn's number and the state; the level that it gets reads
// l's values, which become part of the loop's state, as they are needed.
func (l *level) loop(turns int, start []*graph.Value, body func(inner *level, turn *graph.Value, state []*graph.Value) []*graph.Value) []*graph.Value {
	f := &graph.Func{Name: "body"}
	operands := append([]*graph.Value{l.splat(counter, 0)}, start...)
	for i, v := range operands {
		f.NewParam(fmt.Sprintf("arg%d", i), graph.Input, v.Shape)
	}
	brought := map[*graph.Value]*graph.Value{}
	inner := newLevel(l.a, f, l, func(v *graph.Value) *graph.Value {
		if isConstant(v) {
			copied := map[*graph.Value]*graph.Value{}
			if brought[v] == nil {
				appendCopy(f, v.Def, copied)
				brought[v] = copied[v]
			}
			return brought[v]
		}
		if brought[v] == nil {
			brought[v] = f.NewParam(fmt.Sprintf("arg%d", len(f.Params)), graph.Input, v.Shape)
			operands = append(operands, v)
		}
		return brought[v]
	})
	turn := f.Params[0].Value
	var state []*graph.Value
	for _, p := range f.Params[1:] {
		state = append(state, p.Value)
	}
	next := body(inner, turn, state)
	if inner.failed {
		panic("BUG: chunk-attention: a loop can't be computed that could on the side")
	}
	f.Results = append([]*graph.Value{inner.add(graph.OpAdd, []*graph.Value{turn, inner.splat(counter, 1)}, nil, counter)}, next...)
	for _, p := range f.Params[len(f.Results):] {
		f.Results = append(f.Results, p.Value)
	}
	cond := &graph.Func{Name: "cond"}
	var types []graph.Shape
	for i, v := range operands {
		cond.NewParam(fmt.Sprintf("arg%d", i), graph.Input, v.Shape)
		types = append(types, v.Shape)
	}
	test := newLevel(l.a, cond, nil, same)
	cond.Results = []*graph.Value{test.compare(cond.Params[0].Value, test.splat(counter, float64(turns)), "LT")}
	loop := l.f.Append(graph.OpWhile, operands, nil, types...)
	loop.Regions, loop.Scope = []*graph.Func{cond, f}, l.a.d1.Scope
	return loop.Results[1 : 1+len(start)]
}

// chunk computes the exits for a range of the queries.
func (a *attention) chunk(l *level, by *slicing, k int) []*graph.Value {
	if k > 0 {
		a.runThroughKeys(l, by, k)
	}
	var out []*graph.Value
	for _, e := range a.exits {
		out = append(out, l.take(e.v, []cut{{e.axis, by}}))
	}
	if l.failed {
		panic("BUG: chunk-attention: a chunk can't be computed that could on the side")
	}
	return out
}

// runThroughKeys computes for a range of the queries what a softmax needs of all keys, a chunk of k at a time, and leaves it where take finds it.
func (a *attention) runThroughKeys(l *level, by *slicing, k int) {
	s := a.softmax
	chunks := (a.keys + k - 1) / k
	k = (a.keys + chunks - 1) / chunks
	chunks = (a.keys + k - 1) / k
	first := a.keys - (chunks-1)*k // what is over comes first, and begins the sums
	q := []cut{{slices.Index(reduced(s.p.Shape.Rank(), s.key), s.query), by}}
	largestShape := cutShape(s.largest.Shape, q)
	last := a.exits[len(a.exits)-1]
	// over brings a value over rows to the shape of d2's result, whose axes of rows are those of the weights.
	rows := reduced(a.weights.Shape.Rank(), a.keyAxis)
	over := func(l *level, v *graph.Value, shape graph.Shape) *graph.Value {
		if dims := cutShape(a.weights.Shape, []cut{{a.queryAxis, by}}); !slices.Equal(v.Shape.Dimensions, dimsOf(&graph.Value{Shape: dims}, rows)) {
			v = l.add(graph.OpReshape, []*graph.Value{v}, nil, shapes.Make(v.Shape.DType, dimsOf(&graph.Value{Shape: dims}, rows)...))
		}
		return l.broadcast(l.convert(v, shape.DType), a.inResult(rows), shape.Dimensions)
	}
	// step gives the largest score, the sums and the product of the keys of one range, and of what was before.
	step := func(l *level, keys *slicing, before []*graph.Value) []*graph.Value {
		both := sorted([]cut{{s.query, by}, {s.key, keys}})
		scores := l.take(s.scores, both)
		largest := l.add(graph.OpReduce, []*graph.Value{scores}, s.largest.Def.Attrs, largestShape)
		if before != nil {
			largest = l.add(graph.OpMax, []*graph.Value{before[0], largest}, nil, largestShape)
		}
		// exp(-inf - 0) is 0 where exp(-inf - -inf) would be NaN.
		nothing := l.splat(largestShape, math.Inf(-1))
		base := l.add(graph.OpSelect, []*graph.Value{l.compare(largest, nothing, "EQ"), l.splat(largestShape, 0), largest}, nil, largestShape)
		l.made[cutKey(s.largest, q)] = base
		var factor *graph.Value
		if before != nil {
			factor = l.add(graph.OpExp, []*graph.Value{l.add(graph.OpSub, []*graph.Value{before[0], base}, nil, largestShape)}, nil, largestShape)
		}
		state := []*graph.Value{largest}
		join := func(part *graph.Value, row bool) {
			part = l.convert(part, sumType(part.Shape.DType))
			if before != nil {
				f := l.convert(factor, part.Shape.DType)
				if !row {
					f = over(l, factor, part.Shape)
				}
				old := l.add(graph.OpMul, []*graph.Value{before[len(state)], f}, nil, part.Shape)
				part = l.add(graph.OpAdd, []*graph.Value{old, part}, nil, part.Shape)
			}
			state = append(state, part)
		}
		for _, v := range s.sums {
			join(l.add(graph.OpReduce, []*graph.Value{l.take(v.Def.Operands[0], both)}, v.Def.Attrs, cutShape(v.Shape, q)), true)
		}
		operands := make([]*graph.Value, 2)
		p := l.convert(l.take(s.p, both), a.weights.Shape.DType)
		if s.p.Shape.Rank() != a.weights.Shape.Rank() || !slices.Equal(s.p.Shape.Dimensions, a.weights.Shape.Dimensions) {
			p = l.add(graph.OpReshape, []*graph.Value{p}, nil, cutShape(a.weights.Shape, []cut{{a.queryAxis, by}, {a.keyAxis, keys}}))
		}
		operands[a.side] = p
		other := a.d2.Attrs.Ints([]string{"rhs_contracting", "lhs_contracting"}[a.side])[0]
		operands[1-a.side] = l.take(a.d2.Operands[1-a.side], []cut{{other, keys}})
		part := l.add(graph.OpDot, operands, a.d2.Attrs, cutShape(last.v.Shape, []cut{{last.axis, by}}))
		join(part, false)
		return state
	}
	start := newLevel(a, l.f, l, same)
	state := step(start, &slicing{level: start, size: first}, nil)
	if chunks > 1 {
		state = l.loop(chunks-1, state, func(inner *level, turn *graph.Value, before []*graph.Value) []*graph.Value {
			keys := &slicing{level: inner, size: k}
			keys.start = inner.add(graph.OpMul, []*graph.Value{turn, inner.splat(counter, float64(k))}, nil, counter)
			keys.start = inner.add(graph.OpAdd, []*graph.Value{keys.start, inner.splat(counter, float64(first))}, nil, counter)
			return step(inner, keys, before)
		})
	}
	if start.failed {
		panic("BUG: chunk-attention: a chunk of keys can't be computed that could on the side")
	}
	l.made[cutKey(s.largest, q)] = state[0]
	for i, v := range s.sums {
		l.made[cutKey(v, q)] = l.convert(state[1+i], v.Shape.DType)
	}
	product := state[len(state)-1]
	if s.divisor != nil {
		product = l.add(graph.OpDiv, []*graph.Value{product, over(l, l.take(s.divisor, q), product.Shape)}, nil, product.Shape)
	}
	l.made[cutKey(last.v, []cut{{last.axis, by}})] = l.convert(product, last.v.Shape.DType)
}

// inResult gives the axes of d2's result where the given axes of the weights are.
func (a *attention) inResult(axes []int) []int {
	lhs, rhs := dotAxes(a.d2)
	ours := lhs
	if a.side == 1 {
		ours = rhs
	}
	var out []int
	for _, axis := range axes {
		out = append(out, slices.Index(ours, axis))
	}
	return out
}

// sumType is the type that sums of many parts are kept in.
func sumType(d graph.DType) graph.DType {
	if d == dtypes.BFloat16 || d == dtypes.Float16 {
		return dtypes.Float32
	}
	return d
}

func reduced(rank, axis int) []int {
	var left []int
	for i := range rank {
		if i != axis {
			left = append(left, i)
		}
	}
	return left
}

func dimsOf(v *graph.Value, axes []int) []int {
	var out []int
	for _, axis := range axes {
		out = append(out, v.Shape.Dimensions[axis])
	}
	return out
}
