package passes

import (
	"cmp"
	"fmt"
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
// alone; scopes are a hint that proposes where regions begin and end. What scopes leave over, repeats in the sequence of nodes propose
// (see sequence.go): a graph without any scope is outlined too.
//
// Before regions are compared, what a region computes on behalf of others is left out of it (see peel). Larger regions are taken first; regions never overlap and are not searched again inside.
func outline(m *graph.Module, o *Options) error {
	if !o.Outline {
		return nil
	}
	ol := &outliner{m: m, f: m.Entry(), min: max(2, o.MinBlock), replaced: map[*graph.Value]*graph.Value{}}
	for _, c := range ol.choose(ol.proposeByScope()) {
		ol.extract(c)
	}
	for _, c := range ol.choose(ol.proposeBySequence()) {
		ol.extract(c)
	}
	return nil
}

// region is a set of nodes of the entry, in order.
type region struct {
	nodes []*graph.Node
	label string // the scope that proposed it; a readable name and no more
}

// class is a set of equal regions that do not overlap.
type class struct {
	regions []*matched
}

// matched is a region with its interface, in the order that is common to its class.
type matched struct {
	region
	externals []*graph.Value // values read from outside, by first use
}

type outliner struct {
	m   *graph.Module
	f   *graph.Func
	min int
	// fingerprints caches localHash by node.
	fingerprints map[*graph.Node]uint64
	// replaced maps results of regions that were extracted to the results of their calls.
	replaced map[*graph.Value]*graph.Value
}

// now is the value that stands for v after the extractions so far.
func (ol *outliner) now(v *graph.Value) *graph.Value {
	if r := ol.replaced[v]; r != nil {
		return r
	}
	return v
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
	users, results := usersOf(ol.f), resultSet(ol.f)
	var out []region
	for _, s := range order {
		if nodes := peel(byScope[s], users, results); len(nodes) >= ol.min {
			out = append(out, region{nodes, s})
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
func peel(nodes []*graph.Node, users map[*graph.Value][]*graph.Node, results map[*graph.Value]bool) []*graph.Node {
	in := make(map[*graph.Node]bool, len(nodes))
	for _, n := range nodes {
		if !isFree(n) {
			in[n] = true
		}
	}
	limit := len(in) / 3
	for _, n := range nodes {
		if !in[n] || !slices.ContainsFunc(n.Results, func(r *graph.Value) bool {
			return results[r] || slices.ContainsFunc(users[r], func(u *graph.Node) bool { return !in[u] })
		}) {
			continue
		}
		if c := cone(n, in, limit); c != nil {
			for _, k := range c {
				delete(in, k)
			}
		}
	}
	var kept []*graph.Node
	for _, n := range nodes {
		if in[n] {
			kept = append(kept, n)
		}
	}
	return kept
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
	if h, ok := ol.fingerprints[n]; ok {
		return h
	}
	var h maphash.Hash
	h.SetSeed(hashSeed)
	hashNode(&h, n)
	for _, o := range n.Operands {
		if o.Def != nil && isFree(o.Def) {
			hashNode(&h, o.Def)
		}
	}
	if ol.fingerprints == nil {
		ol.fingerprints = map[*graph.Node]uint64{}
	}
	sum := h.Sum64()
	ol.fingerprints[n] = sum
	return sum
}

// match finds a region's interface. ok is false where the region can't become a function: it holds calls or regions, or some value leaves it
// and comes back.
func (ol *outliner) match(r region, at map[*graph.Node]int) (*matched, bool) {
	in := make(map[*graph.Node]bool, len(r.nodes))
	for _, n := range r.nodes {
		if n.Op == graph.OpCall || len(n.Regions) > 0 || n.Op == graph.OpRngBits {
			return nil, false
		}
		in[n] = true
	}
	mt := &matched{region: r}
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
	from, to := at[r.nodes[0]], at[r.nodes[len(r.nodes)-1]]
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
func (ol *outliner) equal(a, b *matched) bool {
	if len(a.nodes) != len(b.nodes) || len(a.externals) != len(b.externals) {
		return false
	}
	counterpart := make(map[*graph.Value]*graph.Value, len(a.nodes)+len(a.externals))
	for i, v := range a.externals {
		if !v.Shape.Equal(b.externals[i].Shape) {
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

// choose groups proposals into classes and picks those that do not overlap, the largest regions first; a class needs two instances.
func (ol *outliner) choose(proposals []region) []*class {
	at := positions(ol.f)
	groups := map[uint64][]region{}
	var order []uint64
	for _, p := range proposals {
		var h maphash.Hash
		h.SetSeed(hashSeed)
		for _, n := range p.nodes {
			maphash.WriteComparable(&h, ol.localHash(n))
		}
		sum := h.Sum64()
		if groups[sum] == nil {
			order = append(order, sum)
		}
		groups[sum] = append(groups[sum], p)
	}
	var classes []*class
	for _, sum := range order {
		if len(groups[sum]) < 2 {
			continue
		}
		var found []*class
		for _, p := range groups[sum] {
			mt, ok := ol.match(p, at)
			if !ok {
				continue
			}
			if i := slices.IndexFunc(found, func(c *class) bool { return ol.equal(c.regions[0], mt) }); i >= 0 {
				found[i].regions = append(found[i].regions, mt)
			} else {
				found = append(found, &class{regions: []*matched{mt}})
			}
		}
		classes = append(classes, found...)
	}
	slices.SortStableFunc(classes, func(a, b *class) int {
		x, y := a.regions[0], b.regions[0]
		return cmp.Or(cmp.Compare(len(y.nodes), len(x.nodes)), cmp.Compare(at[x.nodes[0]], at[y.nodes[0]]), cmp.Compare(x.label, y.label))
	})
	taken := map[*graph.Node]bool{}
	isTaken := func(n *graph.Node) bool { return taken[n] }
	var chosen []*class
	for _, c := range classes {
		slices.SortStableFunc(c.regions, func(a, b *matched) int { return cmp.Compare(at[a.nodes[0]], at[b.nodes[0]]) })
		var free []*matched
		for _, r := range c.regions {
			if slices.ContainsFunc(r.nodes, isTaken) {
				continue
			}
			for _, n := range r.nodes {
				taken[n] = true
			}
			free = append(free, r)
		}
		if len(free) < 2 {
			for _, r := range free {
				for _, n := range r.nodes {
					delete(taken, n)
				}
			}
			continue
		}
		chosen = append(chosen, &class{regions: free})
	}
	return chosen
}

func positions(f *graph.Func) map[*graph.Node]int {
	at := make(map[*graph.Node]int, len(f.Nodes))
	for i, n := range f.Nodes {
		at[n] = i
	}
	return at
}

func resultSet(f *graph.Func) map[*graph.Value]bool {
	set := make(map[*graph.Value]bool, len(f.Results))
	for _, r := range f.Results {
		set[r] = true
	}
	return set
}

// extract makes the class's function and replaces each instance by a call of it.
func (ol *outliner) extract(c *class) {
	first := c.regions[0]
	type place struct{ node, result int }
	leaves := map[place]bool{}
	users, results := usersOf(ol.f), resultSet(ol.f)
	// A result leaves the function where any instance's counterpart is read outside.
	for _, r := range c.regions {
		in := make(map[*graph.Node]bool, len(r.nodes))
		for _, n := range r.nodes {
			in[n] = true
		}
		for i, n := range r.nodes {
			for j, v := range n.Results {
				if results[v] || slices.ContainsFunc(users[v], func(u *graph.Node) bool { return !in[u] }) {
					leaves[place{i, j}] = true
				}
			}
		}
	}
	var out []place
	for i, n := range first.nodes {
		for j := range n.Results {
			if leaves[place{i, j}] {
				out = append(out, place{i, j})
			}
		}
	}

	fn := &graph.Func{Name: ol.funcName(c), BlockClass: blockClass(c)}
	values := map[*graph.Value]*graph.Value{}
	names := map[string]bool{}
	for i, v := range first.externals {
		kind, name := graph.Weight, ""
		for _, r := range c.regions {
			if p := r.externals[i].Param; p == nil || p.Kind != graph.Weight {
				kind = graph.Input
			}
		}
		if kind == graph.Weight {
			name = relativeName(v.Param.Name, first.label)
		} else {
			name = fmt.Sprintf("arg%d", i)
		}
		for base, k := name, 2; names[name]; k++ {
			name = fmt.Sprintf("%s#%d", base, k)
		}
		names[name] = true
		values[v] = fn.NewParam(name, kind, v.Shape)
	}
	for _, n := range first.nodes {
		operands := make([]*graph.Value, len(n.Operands))
		for i, o := range n.Operands {
			if values[o] == nil {
				free := appendCopy(fn, o.Def, nil)
				free.Scope = ""
				values[o] = free.Results[0]
			}
			operands[i] = values[o]
		}
		k := appendCopy(fn, n, operands)
		k.Scope = relativeScope(n.Scope, first.label)
		for i, r := range n.Results {
			values[r] = k.Results[i]
		}
	}
	for _, l := range out {
		fn.Results = append(fn.Results, values[first.nodes[l.node].Results[l.result]])
	}
	ol.m.Funcs = append(ol.m.Funcs, fn)

	for _, r := range c.regions {
		call := &graph.Node{Op: graph.OpCall, Attrs: graph.Attrs(nil).With("callee", fn.Name), Scope: r.label}
		for _, v := range r.externals {
			call.Operands = append(call.Operands, ol.now(v))
		}
		for i, l := range out {
			old := r.nodes[l.node].Results[l.result]
			v := &graph.Value{Shape: old.Shape, Def: call, Index: i}
			call.Results = append(call.Results, v)
			ol.replaced[old] = v
		}
		ol.replace(r, call)
	}
	for _, n := range ol.f.Nodes {
		for i, o := range n.Operands {
			n.Operands[i] = ol.now(o)
		}
	}
	for i, o := range ol.f.Results {
		ol.f.Results[i] = ol.now(o)
	}
}

// replace puts call in the place of the region's nodes: nodes of others between them that depend on the region go behind the call, the rest in front.
func (ol *outliner) replace(r *matched, call *graph.Node) {
	in := make(map[*graph.Node]bool, len(r.nodes))
	for _, n := range r.nodes {
		in[n] = true
	}
	last := r.nodes[len(r.nodes)-1]
	var nodes, after []*graph.Node
	depends := map[*graph.Node]bool{}
	placed := false
	for _, n := range ol.f.Nodes {
		switch {
		case placed:
			nodes = append(nodes, n)
		case n == last:
			nodes = append(append(nodes, call), after...)
			placed = true
		case in[n]:
		case slices.ContainsFunc(n.Operands, func(o *graph.Value) bool { return o.Def != nil && (in[o.Def] || depends[o.Def]) }):
			depends[n] = true
			after = append(after, n)
		default:
			nodes = append(nodes, n)
		}
	}
	ol.f.Nodes = nodes
}

// blockClass is the readable name of a class: the instances' module path without its numbers, or "block".
func blockClass(c *class) string {
	var words []string
	for p := range strings.SplitSeq(c.regions[0].label, ".") {
		if p != "" && !isNumber(p) {
			words = append(words, p)
		}
	}
	if len(words) == 0 {
		return "block"
	}
	return strings.Join(words, ".")
}

func (ol *outliner) funcName(c *class) string {
	base := strings.Map(func(r rune) rune {
		if r == '.' || r == '-' {
			return '_'
		}
		return r
	}, blockClass(c))
	name := base
	for k := 2; ol.m.Func(name) != nil; k++ {
		name = fmt.Sprintf("%s_%d", base, k)
	}
	return name
}

func isNumber(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// relativeName is a weight's key within the block: "attn.to_q.weight".
func relativeName(key, scope string) string {
	rest, prepared := strings.CutPrefix(key, PreparedPrefix)
	if scope != "" {
		rest = strings.TrimPrefix(rest, scope+".")
	}
	if prepared {
		return PreparedPrefix + rest
	}
	return rest
}

func relativeScope(s, scope string) string {
	if s == scope {
		return ""
	}
	return strings.TrimPrefix(s, scope+".")
}
