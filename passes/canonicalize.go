package passes

import (
	"slices"

	"precast/graph"
)

// canonicalize rewrites nodes to simplest forms until nothing changes, and removes what that leaves without a reader. Nodes inside regions
// are left alone. Every rule keeps each element's bits: x*1, x/1 and x-0 are dropped for floats, x+0 only for integers, since -0+0 is +0.
func canonicalize(m *graph.Module, _ *Options) error {
	for _, f := range m.Funcs {
		for canonicalizeFunc(f) {
			deadNodes(f)
		}
	}
	return nil
}

func canonicalizeFunc(f *graph.Func) (changed bool) {
	replaced := map[*graph.Value]*graph.Value{}
	for _, n := range f.Nodes {
		relink(n, replaced)
		if len(n.Regions) > 0 {
			continue
		}
		if v := simpler(n); v != nil && v != n.Results[0] {
			replaced[n.Results[0]] = v
			changed = true
			continue
		}
		if rewrite(n) {
			changed = true
		}
	}
	graph.ReplaceUses(f, replaced)
	return changed
}

// simpler returns an existing value that equals n's result, or nil.
func simpler(n *graph.Node) *graph.Value {
	if len(n.Results) != 1 || len(n.Operands) == 0 {
		return nil
	}
	x := n.Operands[0]
	same := x.Shape.Equal(n.Results[0].Shape)
	switch n.Op {
	case graph.OpReshape, graph.OpConvert:
		if same {
			return x
		}
	case graph.OpBitcast:
		if same {
			return x
		}
	case graph.OpTranspose:
		if same && isIota(n.Attrs.Ints("permutation")) {
			return x
		}
	case graph.OpBroadcast:
		if same && isIota(n.Attrs.Ints("broadcast_dimensions")) {
			return x
		}
	case graph.OpSlice:
		if same {
			return x
		}
	case graph.OpPad:
		if same && allZero(n.Attrs.Ints("edge_padding_low")) && allZero(n.Attrs.Ints("interior_padding")) {
			return x
		}
	case graph.OpReverse:
		for _, d := range n.Attrs.Ints("dimensions") {
			if x.Shape.Dimensions[d] != 1 {
				return nil
			}
		}
		return x
	case graph.OpConcat:
		if len(n.Operands) == 1 {
			return x
		}
	case graph.OpReduce:
		// A sum of one float starts at +0, which makes +0 of -0.
		if len(n.Attrs.Ints("dimensions")) == 0 && (!x.Shape.DType.IsFloat() && !x.Shape.DType.IsComplex() || n.Attrs.String("combiner") != "add") {
			return x
		}
	case graph.OpNeg, graph.OpNot:
		if x.Def != nil && x.Def.Op == n.Op {
			return x.Def.Operands[0]
		}
	case graph.OpMul:
		if splatEquals(n.Operands[1], 1) {
			return x
		}
	case graph.OpDiv:
		if splatEquals(n.Operands[1], 1) {
			return x
		}
	case graph.OpSub:
		// x - (+0) is x for every x, -0 and NaN included.
		if isPlusZero(n.Operands[1]) {
			return x
		}
	case graph.OpAdd:
		if isPlusZero(n.Operands[1]) && (graph.BoolType | graph.IntType).Has(x.Shape.DType) {
			return x
		}
	case graph.OpPow:
		if splatEquals(n.Operands[1], 1) {
			return x
		}
	case graph.OpSelect:
		if n.Operands[1] == n.Operands[2] {
			return n.Operands[1]
		}
		if v, ok := splat(x); ok {
			return n.Operands[2-v.i]
		}
	}
	return nil
}

// rewrite changes n in place to a simpler equal form and reports whether it did.
func rewrite(n *graph.Node) bool {
	if info, ok := graph.OpInfo(n.Op); ok && info.Commutative && len(n.Operands) == 2 && isConstant(n.Operands[0]) && !isConstant(n.Operands[1]) {
		n.Operands = []*graph.Value{n.Operands[1], n.Operands[0]}
		return true
	}
	if n.Op == graph.OpConstant {
		lit, ok := literal(n.Results[0])
		if ok && !lit.Splat && repeats(n.Results[0].Shape.DType, lit.Data) {
			return toConstant(n, graph.Literal{Data: lit.Data[:n.Results[0].Shape.DType.Size()], Splat: true})
		}
		return false
	}
	if len(n.Operands) == 0 {
		return false
	}
	x := n.Operands[0]
	switch n.Op {
	case graph.OpReshape:
		if x.Def != nil && x.Def.Op == graph.OpReshape {
			n.Operands = []*graph.Value{x.Def.Operands[0]}
			return true
		}
		// A dense constant is left to fold-constants, which looks at its size.
		if lit, ok := literal(x); ok && lit.Splat {
			return toConstant(n, lit)
		}
	case graph.OpTranspose:
		perm := n.Attrs.Ints("permutation")
		if x.Def != nil && x.Def.Op == graph.OpTranspose {
			inner := x.Def.Attrs.Ints("permutation")
			merged := make([]int, len(perm))
			for i, p := range perm {
				merged[i] = inner[p]
			}
			n.Operands = []*graph.Value{x.Def.Operands[0]}
			n.Attrs = n.Attrs.With("permutation", merged)
			return true
		}
		if lit, ok := literal(x); ok && lit.Splat {
			return toConstant(n, lit)
		}
		if movesOnlyUnitAxes(x.Shape.Dimensions, perm) {
			n.Op, n.Attrs = graph.OpReshape, nil
			return true
		}
	case graph.OpBroadcast:
		if lit, ok := literal(x); ok && (lit.Splat || x.Shape.Size() == 1) {
			lit.Splat = true
			return toConstant(n, lit)
		}
		dims := n.Attrs.Ints("broadcast_dimensions")
		if x.Def != nil && x.Def.Op == graph.OpBroadcast {
			inner := x.Def.Attrs.Ints("broadcast_dimensions")
			merged := make([]int, len(inner))
			for i, d := range inner {
				merged[i] = dims[d]
			}
			n.Operands = []*graph.Value{x.Def.Operands[0]}
			n.Attrs = n.Attrs.With("broadcast_dimensions", merged)
			return true
		}
		if x.Shape.Size() == n.Results[0].Shape.Size() && slices.IsSorted(dims) {
			n.Op, n.Attrs = graph.OpReshape, nil
			return true
		}
	case graph.OpConvert:
		// A widening conversion that is undone: f32(bf16) back to bf16 and the like.
		if x.Def != nil && x.Def.Op == graph.OpConvert {
			from := x.Def.Operands[0]
			if widens(from.Shape.DType, x.Shape.DType) {
				n.Operands = []*graph.Value{from}
				return true
			}
		}
	}
	return false
}

func isIota(v []int) bool {
	for i, x := range v {
		if x != i {
			return false
		}
	}
	return true
}

func allZero(v []int) bool {
	for _, x := range v {
		if x != 0 {
			return false
		}
	}
	return true
}

// movesOnlyUnitAxes reports whether a permutation keeps the order of the axes that are longer than one: then it is a reshape.
func movesOnlyUnitAxes(dims, perm []int) bool {
	last := -1
	for _, p := range perm {
		if dims[p] == 1 {
			continue
		}
		if p < last {
			return false
		}
		last = p
	}
	return true
}
