package passes

import (
	"strings"

	"github.com/gomlx/compute/shapes"

	"precast/graph"
)

// mergeDots turns products of one value with several weights into one product with the weights concatenated, whose slices take the places of the
// results: queries, keys and values; the gate and the rest of a gated MLP; the projections of one embedding to what modulates a block's norms. The
// weights are concatenated along their free axis, which must be their first, so that hoist-weights leaves the loader no more than to copy each to its
// place. Biases that are added to all of the products are concatenated, too.
//
// Products are merged where the contracted axes, the precision and the dtypes are equal and nothing else reads the weights, which would be in memory twice.
// They read the same value and weights, so none can depend on another. Where blocks are to be outlined, only products of one block are merged, since
// blocks would no longer be equal to one another; the module paths say what a block is, and products without one are left. Without outlining, what all blocks
// compute of one value is merged as well. A product of two activations is left alone.
func mergeDots(m *graph.Module, o *Options) error {
	f := m.Entry()
	uses := graph.Uses(f)
	groups := map[dotKind][]*graph.Node{}
	var order []dotKind
	for _, n := range f.Nodes {
		k, ok := kindOfDot(n, uses)
		if !ok {
			continue
		}
		if o.Outline {
			if k.block = blockOf(n.Scope); k.block == "" {
				continue
			}
		}
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], n)
	}
	before := map[*graph.Node][]*graph.Node{} // by the first product of a group, before which the merged one stands
	replaced := map[*graph.Value]*graph.Value{}
	for _, k := range order {
		if dots := groups[k]; len(dots) > 1 {
			before[dots[0]] = mergeGroup(dots, uses, replaced)
		}
	}
	if len(replaced) == 0 {
		return nil
	}
	var nodes []*graph.Node
	for _, n := range f.Nodes {
		nodes = append(append(nodes, before[n]...), n)
	}
	f.Nodes = nodes
	graph.ReplaceUses(f, replaced)
	if err := f.TopoSort(); err != nil {
		panic("BUG: merge-dots: " + err.Error())
	}
	deadNodes(f)
	return nil
}

// dotKind is what products that can be merged have in common.
type dotKind struct {
	lhs              *graph.Value
	contracting      int
	precision        string
	dtype, weightIs  graph.DType
	contracted, rank int
	block            string
}

// kindOfDot describes a product of a value with a weight [out, in] over its second axis; ok is false for any other node.
func kindOfDot(n *graph.Node, uses map[*graph.Value][]graph.Use) (k dotKind, ok bool) {
	if n.Op != graph.OpDot {
		return k, false
	}
	x, w := n.Operands[0], n.Operands[1]
	left, right := n.Attrs.Ints("lhs_contracting"), n.Attrs.Ints("rhs_contracting")
	if w.Param == nil || w.Param.Kind != graph.Weight || w.Param.Sharding != nil || w.Shape.Rank() != 2 || len(uses[w]) != 1 ||
		len(left) != 1 || right[0] != 1 || len(n.Attrs.Ints("lhs_batching")) != 0 || x.Param != nil && x.Param.Kind == graph.Weight {
		return k, false
	}
	return dotKind{
		lhs: x, contracting: left[0], precision: n.Attrs.String("precision"), dtype: n.Results[0].Shape.DType, weightIs: w.Shape.DType,
		contracted: w.Shape.Dimensions[1], rank: n.Results[0].Shape.Rank(),
	}, true
}

// blockOf is the innermost numbered module that a path leads through: down_blocks.0.attentions.1 of down_blocks.0.attentions.1.proj_in; empty where
// there is none. A number at the end names a layer of a list (to_out.0), not a block.
func blockOf(scope string) string {
	parts := strings.Split(scope, ".")
	for i := len(parts) - 2; i >= 0; i-- {
		if isNumber(parts[i]) {
			return strings.Join(parts[:i+1], ".")
		}
	}
	return ""
}

// mergeGroup makes the nodes of one merged product and says in replaced what becomes of the results.
func mergeGroup(dots []*graph.Node, uses map[*graph.Value][]graph.Use, replaced map[*graph.Value]*graph.Value) []*graph.Node {
	f := &graph.Func{}
	first := dots[0]
	scope := parentScope(first.Scope)
	appendNode := func(op graph.Op, operands []*graph.Value, attrs graph.Attrs, shape graph.Shape) *graph.Value {
		n := f.Append(op, operands, attrs, shape)
		n.Scope = scope
		return n.Results[0]
	}
	concatenate := func(list []*graph.Value) *graph.Value {
		dims := append([]int(nil), list[0].Shape.Dimensions...)
		for _, v := range list[1:] {
			dims[0] += v.Shape.Dimensions[0]
		}
		return appendNode(graph.OpConcat, list, graph.Attrs(nil).With("dimension", 0), shapes.Make(list[0].Shape.DType, dims...))
	}
	outs := make([]*graph.Value, len(dots)) // what the slices replace
	var weights, biases []*graph.Value
	for i, n := range dots {
		weights = append(weights, n.Operands[1])
		outs[i] = n.Results[0]
		if sum, bias := biasOf(n, uses); bias != nil {
			biases = append(biases, bias)
			outs[i] = sum
		}
	}
	if len(biases) < len(dots) {
		for i, n := range dots {
			outs[i] = n.Results[0]
		}
	}
	w := concatenate(weights)
	dims := append([]int(nil), first.Results[0].Shape.Dimensions...)
	last := len(dims) - 1
	dims[last] = w.Shape.Dimensions[0]
	shape := shapes.Make(first.Results[0].Shape.DType, dims...)
	y := appendNode(graph.OpDot, []*graph.Value{first.Operands[0], w}, first.Attrs, shape)
	if len(biases) == len(dots) {
		b := appendNode(graph.OpBroadcast, []*graph.Value{concatenate(biases)}, graph.Attrs(nil).With("broadcast_dimensions", []int{last}), shape)
		y = appendNode(graph.OpAdd, []*graph.Value{y, b}, nil, shape)
	}
	start := 0
	for _, out := range outs {
		size := out.Shape.Dimensions[last]
		from, to, step := make([]int, last+1), append([]int(nil), dims...), make([]int, last+1)
		from[last], to[last] = start, start+size
		for i := range step {
			step[i] = 1
		}
		attrs := graph.Attrs(nil).With("start_indices", from).With("limit_indices", to).With("strides", step)
		replaced[out] = appendNode(graph.OpSlice, []*graph.Value{y}, attrs, out.Shape)
		start += size
	}
	return f.Nodes
}

// biasOf finds the sum of a product with a bias, a weight over the last axis that nothing else reads; nil where the product is used otherwise.
func biasOf(n *graph.Node, uses map[*graph.Value][]graph.Use) (sum, bias *graph.Value) {
	y := n.Results[0]
	if len(uses[y]) != 1 || uses[y][0].Node == nil || uses[y][0].Node.Op != graph.OpAdd {
		return nil, nil
	}
	add := uses[y][0].Node
	spread := add.Operands[1-uses[y][0].Index]
	if spread.Def == nil || len(uses[spread]) != 1 {
		return nil, nil
	}
	b := spread.Def.Operands
	last := y.Shape.Rank() - 1
	switch {
	case spread.Def.Op == graph.OpBroadcast && len(spread.Def.Attrs.Ints("broadcast_dimensions")) == 1 && spread.Def.Attrs.Ints("broadcast_dimensions")[0] == last:
	case spread.Def.Op == graph.OpReshape && y.Shape.Dimensions[last] == y.Shape.Size(): // of one row, canonicalize makes a reshape
	default:
		return nil, nil
	}
	if p := b[0].Param; p == nil || p.Kind != graph.Weight || p.Sharding != nil || b[0].Shape.Rank() != 1 || len(uses[b[0]]) != 1 || b[0].Shape.Dimensions[0] != y.Shape.Dimensions[last] {
		return nil, nil
	}
	return add.Results[0], b[0]
}
