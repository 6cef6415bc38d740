package passes

import (
	"hash/maphash"
	"slices"
	"strings"

	"precast/graph"
)

// outline finds regions of the entry that are equal up to the values they read, and turns each class of them into one private Func
// that the entry calls once an instance, with the instance's weights as arguments.
//
// Two regions are equal when their nodes, in order, have the same op, attributes and result shapes and read corresponding values:
// earlier results of the region, equal small constants, or values from outside in the same pattern. That test is structural and decides
// alone. Module paths are a hint that proposes where regions begin and end (proposeByScope); what they leave over, repeats in the sequence
// of nodes propose (sequence.go), so that a graph without any scope is outlined too.
//
// A module path that has the form of a chosen class but shapes of its own, such as the one transformer block of a UNet's middle, becomes a
// function as well, so that every block of the class is one.
//
// Before regions are compared, what a region computes on behalf of others is left out of it (peel). Regions never overlap and are not searched
// again inside; choose.go says which are taken. A module that has outlined functions is left as it is.
func outline(m *graph.Module, o *Options) error {
	if !o.Outline || slices.ContainsFunc(m.Funcs, func(f *graph.Func) bool { return f.BlockClass != "" }) {
		return nil
	}
	least := max(2, o.MinBlock)
	ol := newOutliner(m, least)
	proposals := ol.proposeByScope()
	chosen := ol.choose(proposals)
	ol.extract(append(chosen, ol.single(proposals, chosen)...))
	ol = newOutliner(m, least)
	ol.extract(ol.choose(ol.proposeBySequence()))
	return nil
}

// region is a list of nodes of the entry: in order, or in the order of the nodes of another region that they correspond to.
type region struct {
	nodes []*graph.Node
	label string // the module path that proposed it, a readable name and no more; empty where the sequence did
	whole int    // nodes at and below that path, before peel
}

// outliner holds what is known of the entry while regions are looked for; extract makes it stale.
type outliner struct {
	m    *graph.Module
	f    *graph.Func
	min  int // nodes of a region
	at   map[*graph.Node]int
	uses map[*graph.Value][]graph.Use
	// prints holds localHash by node.
	prints map[*graph.Node]uint64
}

func newOutliner(m *graph.Module, least int) *outliner {
	f := m.Entry()
	ol := &outliner{m: m, f: f, min: least, uses: graph.Uses(f)}
	ol.at = make(map[*graph.Node]int, len(f.Nodes))
	ol.prints = make(map[*graph.Node]uint64, len(f.Nodes))
	for i, n := range f.Nodes {
		ol.at[n] = i
	}
	return ol
}

// proposeByScope proposes, for every module path, the nodes at and below it.
func (ol *outliner) proposeByScope() []region {
	byScope := map[string][]*graph.Node{}
	var order []string
	for _, n := range ol.f.Nodes {
		for s := n.Scope; s != ""; s = parentScope(s) {
			if _, known := byScope[s]; !known {
				order = append(order, s)
			}
			byScope[s] = append(byScope[s], n)
		}
	}
	var out []region
	for _, s := range order {
		if nodes := ol.peel(byScope[s]); len(nodes) >= ol.min {
			out = append(out, region{nodes, s, len(byScope[s])})
		}
	}
	return out
}

// parentScope drops the last module of a path.
func parentScope(s string) string {
	if i := strings.LastIndexByte(s, '.'); i >= 0 {
		return s[:i]
	}
	return ""
}

// peel leaves out constants (every function has its own copies) and what a region computed on behalf of others: a value that is read outside,
// with all that it needs of the region, where that is at most a third of the region. The first of several blocks computes what all of them share
// (an activation of the time embedding, a table of positions) and would otherwise differ from the rest.
func (ol *outliner) peel(nodes []*graph.Node) []*graph.Node {
	in := make(map[*graph.Node]bool, len(nodes))
	for _, n := range nodes {
		if !isFree(n) {
			in[n] = true
		}
	}
	limit := len(in) / 3
	for _, n := range nodes {
		if in[n] && slices.ContainsFunc(n.Results, func(r *graph.Value) bool { return ol.readOutside(r, in) }) {
			for _, k := range cone(n, in, limit) {
				delete(in, k)
			}
		}
	}
	kept := make([]*graph.Node, 0, len(in))
	for _, n := range nodes {
		if in[n] {
			kept = append(kept, n)
		}
	}
	return kept
}

// readOutside reports whether a node that is not in the set, or the caller, reads v.
func (ol *outliner) readOutside(v *graph.Value, in map[*graph.Node]bool) bool {
	return slices.ContainsFunc(ol.uses[v], func(u graph.Use) bool { return u.Node == nil || !in[u.Node] })
}

// cone lists n and the nodes of the set that it depends on, nil when there are more than limit.
func cone(n *graph.Node, in map[*graph.Node]bool, limit int) []*graph.Node {
	list := []*graph.Node{n}
	seen := map[*graph.Node]bool{n: true}
	for i := 0; i < len(list); i++ {
		if len(list) > limit {
			return nil
		}
		for _, o := range list[i].Operands {
			if o.Def != nil && in[o.Def] && !seen[o.Def] {
				seen[o.Def] = true
				list = append(list, o.Def)
			}
		}
	}
	if len(list) > limit {
		return nil
	}
	return list
}

// isFree reports whether a node is copied into every function that reads it rather than passed: constants that are splats or small, and iota.
func isFree(n *graph.Node) bool {
	if n.Op == graph.OpIota {
		return true
	}
	if n.Op != graph.OpConstant {
		return false
	}
	lit, ok := n.Attrs.Get("value").(graph.Literal)
	return ok && len(lit.Data) <= 64
}

// localHash hashes what must be equal of two corresponding nodes on their own.
func (ol *outliner) localHash(n *graph.Node) uint64 {
	if h, ok := ol.prints[n]; ok {
		return h
	}
	var h maphash.Hash
	h.SetSeed(hashSeed)
	hashNode(&h, n)
	for _, o := range n.Operands {
		if o.Def != nil && isFree(o.Def) {
			hashNode(&h, o.Def)
		} else {
			h.WriteByte(0)
		}
	}
	sum := h.Sum64()
	ol.prints[n] = sum
	return sum
}

// matched is a region with its interface, in the order that is common to its class.
type matched struct {
	region
	externals []*graph.Value // values read from outside, by first use
}

// match finds a region's interface. ok is false where the region can't become a function: it holds calls or regions, or some value leaves it
// and comes back.
func (ol *outliner) match(r region) (mt *matched, ok bool) {
	in := make(map[*graph.Node]bool, len(r.nodes))
	from, to := len(ol.f.Nodes), 0
	for _, n := range r.nodes {
		if n.Op == graph.OpCall || len(n.Regions) > 0 || n.Op == graph.OpRngBits {
			return nil, false
		}
		in[n] = true
		from, to = min(from, ol.at[n]), max(to, ol.at[n])
	}
	mt = &matched{region: r}
	seen := map[*graph.Value]bool{}
	for _, n := range r.nodes {
		for _, o := range n.Operands {
			if o.Def != nil && (in[o.Def] || isFree(o.Def)) || seen[o] {
				continue
			}
			seen[o] = true
			mt.externals = append(mt.externals, o)
		}
	}
	// Nodes of others between the first and the last of the region must not both depend on it and feed it.
	after := map[*graph.Node]bool{}
	for _, n := range ol.f.Nodes[from : to+1] {
		for _, o := range n.Operands {
			switch {
			case o.Def == nil:
			case in[n] && after[o.Def]:
				return nil, false
			case !in[n] && (in[o.Def] || after[o.Def]):
				after[n] = true
			}
		}
	}
	return mt, true
}

// equal reports whether two regions compute the same function of their externals.
func equal(a, b *matched) bool {
	if len(a.nodes) != len(b.nodes) || len(a.externals) != len(b.externals) {
		return false
	}
	counterpart := make(map[*graph.Value]*graph.Value, len(a.nodes)+len(a.externals))
	for i, v := range a.externals {
		if !v.Shape.Equal(b.externals[i].Shape) || !sameSharding(v.Param, b.externals[i].Param) {
			return false
		}
		counterpart[v] = b.externals[i]
	}
	for i, n := range a.nodes {
		k := b.nodes[i]
		if !sameNode(n, k) {
			return false
		}
		for j, o := range n.Operands {
			p := k.Operands[j]
			if o.Def != nil && isFree(o.Def) {
				if p.Def == nil || !isFree(p.Def) || !sameNode(o.Def, p.Def) {
					return false
				}
				continue
			}
			if counterpart[o] != p {
				return false
			}
		}
		for j, r := range n.Results {
			counterpart[r] = k.Results[j]
		}
	}
	return true
}

func sharding(p *graph.Param) *graph.Sharding {
	if p == nil {
		return nil
	}
	return p.Sharding
}

// sameSharding compares the placement of two parameters; nil is a value that is no parameter.
func sameSharding(p, q *graph.Param) bool {
	s, t := sharding(p), sharding(q)
	if s == nil || t == nil {
		return s == t
	}
	return slices.EqualFunc(s.Axes, t.Axes, slices.Equal[[]string])
}
