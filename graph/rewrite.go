package graph

import (
	"fmt"
	"slices"
)

// Use is one place that reads a value.
type Use struct {
	// Node reads the value as its operand Index; nil where the value is the func's result Index.
	Node  *Node
	Index int
}

// Uses lists the uses of each value of f, in order: operands of nodes, then results. A value without uses has no entry. Regions
// have uses of their own values only, so f's values are not used there.
func Uses(f *Func) map[*Value][]Use {
	uses := make(map[*Value][]Use, len(f.Nodes))
	for _, n := range f.Nodes {
		for i, v := range n.Operands {
			uses[v] = append(uses[v], Use{n, i})
		}
	}
	for i, v := range f.Results {
		uses[v] = append(uses[v], Use{nil, i})
	}
	return uses
}

// ReplaceAllUses makes every use of old in f read with instead. It walks f: for many values at once use ReplaceUses.
func ReplaceAllUses(f *Func, old, with *Value) { ReplaceUses(f, map[*Value]*Value{old: with}) }

// ReplaceUses makes every use of a key of replace read its value instead, following chains (a to b, b to c). A cycle of
// replacements is a bug of the caller and panics. Operand slices that are shared between nodes are copied before they change.
func ReplaceUses(f *Func, replace map[*Value]*Value) {
	if len(replace) == 0 {
		return
	}
	final := func(v *Value) *Value {
		for range len(replace) + 1 {
			next, ok := replace[v]
			if !ok {
				return v
			}
			v = next
		}
		panic("BUG: graph.ReplaceUses: the replacements form a cycle")
	}
	rewrite := func(values []*Value) []*Value {
		copied := false
		for i, v := range values {
			if _, ok := replace[v]; !ok {
				continue
			}
			if !copied {
				values, copied = slices.Clone(values), true
			}
			values[i] = final(v)
		}
		return values
	}
	for _, n := range f.Nodes {
		n.Operands = rewrite(n.Operands)
	}
	f.Results = rewrite(f.Results)
}

// Clone copies a module. Nothing that a pass may change in place is shared; data of literals and lists in attributes, which are
// never changed in place, are.
func Clone(m *Module) *Module {
	out := &Module{Name: m.Name}
	if m.Mesh != nil {
		out.Mesh = &Mesh{m.Mesh.Name, slices.Clone(m.Mesh.AxisNames), slices.Clone(m.Mesh.AxisSizes)}
	}
	for _, f := range m.Funcs {
		c, _ := CloneFunc(f)
		out.Funcs = append(out.Funcs, c)
	}
	return out
}

// CloneFunc copies a func with its regions and returns the copy of each of f's own values, too.
func CloneFunc(f *Func) (*Func, map[*Value]*Value) {
	out := &Func{Name: f.Name, BlockClass: f.BlockClass, ResultNames: slices.Clone(f.ResultNames)}
	values := make(map[*Value]*Value, len(f.Params)+len(f.Nodes))
	for _, p := range f.Params {
		v := out.NewParam(p.Name, p.Kind, p.Value.Shape)
		v.Param.Donated = p.Donated
		if p.Sharding != nil {
			s := &Sharding{}
			for _, axes := range p.Sharding.Axes {
				s.Axes = append(s.Axes, slices.Clone(axes))
			}
			v.Param.Sharding = s
		}
		values[p.Value] = v
	}
	out.Nodes = make([]*Node, 0, len(f.Nodes))
	for _, n := range f.Nodes {
		out.Nodes = append(out.Nodes, CloneNode(n, values))
	}
	for _, r := range f.Results {
		out.Results = append(out.Results, mapped(values, r))
	}
	return out, values
}

// CloneNode copies a node with its regions: operands are those that values maps them to (an operand that is not in it stays),
// and the copies of the results are added to values. The copy is not appended to a func.
func CloneNode(n *Node, values map[*Value]*Value) *Node {
	c := &Node{Op: n.Op, Attrs: slices.Clone(n.Attrs), Scope: n.Scope}
	if len(n.Operands) > 0 {
		c.Operands = make([]*Value, len(n.Operands))
		for i, v := range n.Operands {
			c.Operands[i] = mapped(values, v)
		}
	}
	if len(n.Results) > 0 {
		c.Results = make([]*Value, len(n.Results))
		for i, r := range n.Results {
			c.Results[i] = &Value{Shape: r.Shape, Def: c, Index: i}
			values[r] = c.Results[i]
		}
	}
	for _, r := range n.Regions {
		region, _ := CloneFunc(r)
		c.Regions = append(c.Regions, region)
	}
	return c
}

func mapped(values map[*Value]*Value, v *Value) *Value {
	if w, ok := values[v]; ok {
		return w
	}
	return v
}

// TopoSort puts f's nodes in topological order: as they are, save that a node which an earlier one reads moves in front of it.
// Nodes already in order stay as they are. The error names a node that reads itself, directly or through others; f is unchanged
// then.
func (f *Func) TopoSort() error {
	const inProgress, done = 1, 2
	state := make(map[*Node]int, len(f.Nodes))
	for _, n := range f.Nodes {
		state[n] = 0
	}
	type frame struct {
		n    *Node
		next int // operand to look at
	}
	order := make([]*Node, 0, len(f.Nodes))
	var stack []frame
	for _, root := range f.Nodes {
		if state[root] != 0 {
			continue
		}
		state[root] = inProgress
		stack = append(stack[:0], frame{n: root})
		for len(stack) > 0 {
			top := &stack[len(stack)-1]
			if top.next == len(top.n.Operands) {
				state[top.n] = done
				order = append(order, top.n)
				stack = stack[:len(stack)-1]
				continue
			}
			def := top.n.Operands[top.next].Def
			top.next++
			if def == nil {
				continue
			}
			switch s, own := state[def]; {
			case !own || s == done:
			case s == inProgress:
				return fmt.Errorf("func @%s: node `%s` reads itself, directly or through others", f.Name, f.FormatNode(def))
			default:
				state[def] = inProgress
				stack = append(stack, frame{n: def})
			}
		}
	}
	f.Nodes = order
	return nil
}

// WalkNodes calls visit for each node of f in order, and after a node for those of its regions.
func (f *Func) WalkNodes(visit func(*Node)) {
	for _, n := range f.Nodes {
		visit(n)
		for _, r := range n.Regions {
			r.WalkNodes(visit)
		}
	}
}
