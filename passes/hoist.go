package passes

import (
	"fmt"
	"strings"

	"precast/graph"
)

// PrepareFunc is the name of the function that computes prepared weights: its parameters are checkpoint weights, its results become
// weights of the entry under the result's name. It is never called: the loader runs it once.
const PrepareFunc = "prepare"

// PreparedPrefix starts the name of a prepared weight; a checkpoint key can't start so.
const PreparedPrefix = "prepared:"

// IsPrepared reports whether a weight's name is that of a result of the function prepare.
func IsPrepared(name string) bool { return strings.HasPrefix(name, PreparedPrefix) }

// hoistWeights moves nodes whose operands all come from weights (and constants) into the function prepare. Only values that the rest
// of the entry reads become prepared weights, and only where that pays: the chain does more than relabel (a reshape alone stays), and the result is not larger
// than the weights that it is made from (a bias that is broadcast to an activation's size stays where it is).
func hoistWeights(m *graph.Module, _ *Options) error {
	entry := m.Entry()
	if m.Func(PrepareFunc) != nil {
		return nil
	}
	h := hoister{facts: map[*graph.Value]*weightFact{}}
	for _, p := range entry.Params {
		if p.Kind == graph.Weight {
			h.facts[p.Value] = &weightFact{bytes: byteSize(p.Value.Shape), key: p.Name}
		}
	}
	for _, n := range entry.Nodes {
		h.visit(n)
	}
	// A value is prepared when it pays and somebody who stays behind reads it.
	wanted := map[*graph.Value]bool{}
	want := func(v *graph.Value) {
		if f := h.facts[v]; f != nil && v.Def != nil && f.pays(v) {
			wanted[v] = true
		}
	}
	hoistable := func(n *graph.Node) bool {
		f := h.facts[n.Results[0]]
		return f != nil && f.key != ""
	}
	// A hoistable node whose result does not pay stays; what it reads may pay on its own.
	stays := map[*graph.Node]bool{}
	for i := len(entry.Nodes) - 1; i >= 0; i-- {
		n := entry.Nodes[i]
		if !hoistable(n) {
			for _, o := range n.Operands {
				want(o)
			}
		}
	}
	for _, r := range entry.Results {
		want(r)
	}
	users := usersOf(entry)
	isResult := map[*graph.Value]bool{}
	for _, r := range entry.Results {
		isResult[r] = true
	}
	remains := func(n *graph.Node) bool {
		for _, r := range n.Results {
			if isResult[r] {
				return true
			}
			for _, u := range users[r] {
				if !hoistable(u) || stays[u] {
					return true
				}
			}
		}
		return false
	}
	// Backwards, so that a node's users are decided before the node.
	for i := len(entry.Nodes) - 1; i >= 0; i-- {
		n := entry.Nodes[i]
		if hoistable(n) && !wanted[n.Results[0]] && remains(n) {
			stays[n] = true
			for _, o := range n.Operands {
				want(o)
			}
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	prep := &graph.Func{Name: PrepareFunc}
	c := copier{to: prep, values: map[*graph.Value]*graph.Value{}}
	replaced := map[*graph.Value]*graph.Value{}
	names := map[string]int{}
	for _, n := range entry.Nodes {
		for _, r := range n.Results {
			if !wanted[r] {
				continue
			}
			name := PreparedPrefix + h.facts[r].key
			names[name]++
			if k := names[name]; k > 1 {
				name = fmt.Sprintf("%s#%d", name, k)
			}
			prep.Results = append(prep.Results, c.value(r))
			prep.ResultNames = append(prep.ResultNames, name)
			replaced[r] = entry.NewParam(name, graph.Weight, r.Shape)
		}
	}
	for _, n := range entry.Nodes {
		for i, o := range n.Operands {
			if r := replaced[o]; r != nil {
				n.Operands[i] = r
			}
		}
	}
	for i, r := range entry.Results {
		if by := replaced[r]; by != nil {
			entry.Results[i] = by
		}
	}
	m.Funcs = append(m.Funcs, prep)
	deadNodes(entry)
	dropUnusedWeights(entry)
	return nil
}

// weightFact says what a value that depends on weights alone is made of.
type weightFact struct {
	bytes int64  // of the weights that feed it
	key   string // the first of them; empty for a constant
	works bool   // some operation on the way does more than relabel
}

func (f *weightFact) pays(v *graph.Value) bool {
	return f.key != "" && f.works && byteSize(v.Shape) <= f.bytes
}

type hoister struct {
	facts map[*graph.Value]*weightFact
}

func (h *hoister) visit(n *graph.Node) {
	if len(n.Regions) > 0 || n.Op == graph.OpCall || n.Op == graph.OpRngBits || n.Op == graph.OpBarrier {
		return
	}
	fact := &weightFact{works: n.Op != graph.OpReshape && n.Op != graph.OpBroadcast}
	for _, o := range n.Operands {
		f := h.facts[o]
		if f == nil {
			return
		}
		fact.bytes += f.bytes
		if fact.key == "" {
			fact.key = f.key
		}
		fact.works = fact.works || (f.works && f.key != "")
	}
	if fact.key == "" {
		fact.works = false
	}
	for _, r := range n.Results {
		h.facts[r] = fact
	}
}

// copier copies values and what they need from one function into another.
type copier struct {
	to     *graph.Func
	values map[*graph.Value]*graph.Value
}

func (c *copier) value(v *graph.Value) *graph.Value {
	if w := c.values[v]; w != nil {
		return w
	}
	if v.Param != nil {
		w := c.to.NewParam(v.Param.Name, v.Param.Kind, v.Shape)
		c.to.Params[len(c.to.Params)-1].Sharding = v.Param.Sharding
		c.values[v] = w
		return w
	}
	operands := make([]*graph.Value, len(v.Def.Operands))
	for i, o := range v.Def.Operands {
		operands[i] = c.value(o)
	}
	n := appendCopy(c.to, v.Def, operands)
	for i, r := range v.Def.Results {
		c.values[r] = n.Results[i]
	}
	return c.values[v]
}

// appendCopy appends a copy of n that reads operands.
func appendCopy(f *graph.Func, n *graph.Node, operands []*graph.Value) *graph.Node {
	shapes := make([]graph.Shape, len(n.Results))
	for i, r := range n.Results {
		shapes[i] = r.Shape
	}
	c := f.Append(n.Op, operands, n.Attrs, shapes...)
	c.Scope, c.Regions = n.Scope, n.Regions
	return c
}

func byteSize(s graph.Shape) int64 {
	size := int64(s.DType.Size())
	for _, d := range s.Dimensions {
		size *= int64(d)
	}
	return size
}
