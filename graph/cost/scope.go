package cost

import (
	"maps"
	"slices"
	"strings"

	"precast/graph"
)

// Scope is a module of the network with all that is below it: nodes, costs and weights of one run of the entry.
type Scope struct {
	// Path is the module path ("transformer_blocks.3.attn"), empty for the whole.
	Path string `json:"path"`
	// Nodes are those of the graph with every call inlined; a loop's count once.
	Nodes int `json:"nodes"`
	Cost
	// Weights, WeightBytes and Parameters are as in Report. A weight is of the module whose node reads it first.
	Weights     int   `json:"weights"`
	WeightBytes int64 `json:"weight_bytes"`
	Parameters  int64 `json:"parameters"`
	// Activations are the bytes of all values that its nodes write to memory, one after another, those of a loop once; Live is the most that is
	// alive, of the whole program, while one of its nodes runs.
	Activations int64 `json:"activation_bytes"`
	Live        int64 `json:"live_bytes"`
	// Children are the modules one level below, in the order in which they run first.
	Children []*Scope `json:"children,omitempty"`
}

// Find returns the scope of that path, nil where there is none.
func (s *Scope) Find(path string) *Scope {
	if s.Path == path {
		return s
	}
	for _, c := range s.Children {
		if c.Path == path || strings.HasPrefix(path, c.Path+".") {
			return c.Find(path)
		}
	}
	return nil
}

// Cut is a copy of the tree down to that many levels below s; 0 is s alone.
func (s *Scope) Cut(depth int) *Scope {
	c := *s
	c.Children = nil
	if depth > 0 {
		for _, child := range s.Children {
			c.Children = append(c.Children, child.Cut(depth-1))
		}
	}
	return &c
}

// All calls yield for s and everything below, parents first.
func (s *Scope) All(yield func(*Scope) bool) { s.all(yield) }

func (s *Scope) all(yield func(*Scope) bool) bool {
	if !yield(s) {
		return false
	}
	for _, c := range s.Children {
		if !c.all(yield) {
			return false
		}
	}
	return true
}

// join is a module path within what node n calls. Paths in a called function are relative to the call, those in regions are not.
func join(n *graph.Node, inner string) string {
	switch {
	case inner == "":
		return n.Scope
	case n.Op != graph.OpCall || n.Scope == "":
		return inner
	}
	return n.Scope + "." + inner
}

// tree adds up costs by module path.
type tree struct {
	a    *analysis
	root *Scope
	// by holds every scope by path.
	by map[string]*Scope
	// read is the module that first reads a weight, by the weight's name.
	read map[string]string
}

func (t *tree) scope(path string) *Scope {
	if s := t.by[path]; s != nil {
		return s
	}
	parent := t.root
	if i := strings.LastIndexByte(path, '.'); i >= 0 {
		parent = t.scope(path[:i])
	}
	s := &Scope{Path: path}
	t.by[path] = s
	parent.Children = append(parent.Children, s)
	return s
}

// add lets f see the scope of that path and all above it.
func (t *tree) add(path string, f func(*Scope)) {
	t.scope(path)
	for path != "" {
		f(t.by[path])
		path = path[:max(strings.LastIndexByte(path, '.'), 0)]
	}
	f(t.root)
}

// walk adds what f does, times over, called by node at. base is what is alive meanwhile, weights says which weight a parameter is.
func (t *tree) walk(f *graph.Func, mem *memory, times float64, base int64, path func(string) string, weights map[*graph.Value]string, count bool) {
	for i, n := range f.Nodes {
		here := path(n.Scope)
		inner := func(g *graph.Func, operands []*graph.Value, turns float64, base int64, state bool) {
			if g == nil {
				return
			}
			bound := map[*graph.Value]string{}
			for k, v := range operands {
				if name, ok := weights[v]; ok && k < len(g.Params) {
					bound[g.Params[k].Value] = name
				}
			}
			t.walk(g, t.a.live(g, state), times*turns, base, func(s string) string { return path(join(n, s)) }, bound, count)
		}
		own := t.a.node(n)
		switch n.Op {
		case graph.OpCall:
			own = Cost{}
			inner(t.a.m.Func(n.Attrs.String("callee")), n.Operands, 1, base+mem.before[i], false)
		case graph.OpWhile:
			own = Cost{}
			turns := t.a.turnsOf(n)
			inner(n.Regions[0], n.Operands, turns+1, base+mem.before[i]+mem.placed[i], true)
			inner(n.Regions[1], n.Operands, turns, base+mem.before[i]+mem.placed[i], true)
		case graph.OpIf:
			// The dearer branch is the node's own: which one it is, is decided there.
		default:
			for _, v := range n.Operands {
				if name, ok := weights[v]; ok {
					if _, known := t.read[name]; !known {
						t.read[name] = here
					}
				}
			}
		}
		if !count {
			continue
		}
		t.add(here, func(s *Scope) {
			if n.Op != graph.OpCall { // what it gives, the function's nodes have written
				s.Nodes++
				s.Activations += mem.placed[i]
			}
			s.Cost.add(own, times)
			s.Live = max(s.Live, base+mem.live[i])
		})
	}
}

// scopes builds the tree.
func (a *analysis) scopes(r *Report, reached map[*graph.Func]bool) *Scope {
	root := &Scope{}
	t := &tree{a: a, root: root, by: map[string]*Scope{"": root}, read: map[string]string{}}
	same := func(s string) string { return s }
	derived := map[string]bool{}
	stored := map[string]*graph.Value{}
	named := func(f *graph.Func) map[*graph.Value]string {
		names := map[*graph.Value]string{}
		for _, p := range f.Params {
			if p.Kind == graph.Weight {
				names[p.Value] = p.Name
			}
		}
		return names
	}
	entry := a.m.Entry()
	t.walk(entry, a.live(entry, false), 1, 0, same, named(entry), true)
	for _, f := range a.m.Funcs {
		if reached[f] || called(a.m, f) {
			continue
		}
		t.walk(f, a.live(f, false), 1, 0, same, named(f), false)
		for _, name := range f.ResultNames {
			derived[name] = true
		}
		for _, p := range f.Params {
			if p.Kind == graph.Weight {
				stored[p.Name] = p.Value
			}
		}
	}
	for _, p := range entry.Params {
		if p.Kind != graph.Weight {
			continue
		}
		t.add(t.read[p.Name], func(s *Scope) {
			s.Weights++
			s.WeightBytes += graph.ByteSize(p.Value.Shape)
		})
		if !derived[p.Name] {
			stored[p.Name] = p.Value
		}
	}
	for _, name := range slices.Sorted(maps.Keys(stored)) {
		t.add(t.read[name], func(s *Scope) { s.Parameters += int64(elements(stored[name])) })
	}
	return root
}
