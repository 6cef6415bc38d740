package passes

import (
	"encoding/hex"
	"fmt"
	"slices"

	"precast/graph"
)

// Plan is a module cut into programs that are compiled each on its own, and the steps that run them. Values live in numbered slots: the
// first ones are the module's parameters, each step's results get the next.
type Plan struct {
	// Programs are distinct modules of one function each, or of one entry with the private functions that it calls.
	Programs []*graph.Module
	// Params are the slots 0, 1 ... in order: what has to be there before the first step.
	Params []Slot
	Steps  []Step
	// Results are the slots of the module's results, and their names.
	Results     []int
	ResultNames []string
	// ResultDigests, in the plan of a preparation, identify how each result is computed from which weights: two plans with equal digests, of
	// two sizes of one network, prepare equal weights.
	ResultDigests []string
}

// Slot describes a parameter slot.
type Slot struct {
	Name    string
	Kind    graph.Kind
	Shape   graph.Shape
	Donated bool
}

// Step runs one program: Args are the slots of its parameters, Results those that its results go to.
type Step struct {
	Program int    `json:"program"`
	Args    []int  `json:"args"`
	Results []int  `json:"results"`
	Scope   string `json:"scope,omitempty"`
}

// Whole makes the plan of a module that is compiled as one program: everything but the function prepare.
func Whole(m *graph.Module) *Plan {
	program := &graph.Module{Name: m.Name, Mesh: m.Mesh}
	for _, f := range m.Funcs {
		if f.Name != PrepareFunc {
			program.Funcs = append(program.Funcs, f)
		}
	}
	p := newPlan(m.Entry())
	step := Step{}
	for i := range p.Params {
		step.Args = append(step.Args, i)
	}
	for i := range m.Entry().Results {
		step.Results = append(step.Results, len(p.Params)+i)
	}
	p.Programs, p.Steps, p.Results = []*graph.Module{program}, []Step{step}, step.Results
	return p
}

// Split makes the plan of a module whose calls are programs of their own: one for each function that the entry calls, and one for
// each run of nodes between the calls. Equal programs are made once. A module without calls stays whole.
func Split(m *graph.Module) (*Plan, error) {
	entry := m.Entry()
	if !slices.ContainsFunc(entry.Nodes, func(n *graph.Node) bool { return n.Op == graph.OpCall }) {
		return Whole(m), nil
	}
	p := newPlan(entry)
	s := splitter{m: m, plan: p, slots: map[*graph.Value]int{}, programs: map[[32]byte]int{}, callees: map[string]int{}, next: len(p.Params)}
	for i, q := range entry.Params {
		s.slots[q.Value] = i
	}
	s.lastUse = map[*graph.Value]int{}
	for i, n := range entry.Nodes {
		for _, o := range n.Operands {
			s.lastUse[o] = i
		}
	}
	for _, r := range entry.Results {
		s.lastUse[r] = len(entry.Nodes)
	}
	start := 0
	for i, n := range entry.Nodes {
		if n.Op != graph.OpCall {
			continue
		}
		s.glue(entry.Nodes[start:i], i)
		if err := s.call(n); err != nil {
			return nil, err
		}
		start = i + 1
	}
	s.glue(entry.Nodes[start:], len(entry.Nodes))
	for i, r := range entry.Results {
		slot, ok := s.slots[r]
		if !ok {
			return nil, fmt.Errorf("split: result %d of %s has no slot", i, entry.Name)
		}
		p.Results = append(p.Results, slot)
	}
	return p, nil
}

// prepareBytes is about how many bytes of weights one step of a preparation reads: enough that small weights share a program (each costs a
// compile), little beside the weights themselves, since a step's inputs and results are in memory together.
const prepareBytes = 32 << 20

// Prepare makes the plan of the function prepare, nil where the module has none: one step for each independent part, small ones taken together,
// so that the memory of one step's inputs can be freed before the next; equal steps share a program.
func Prepare(m *graph.Module) *Plan {
	prep := m.Func(PrepareFunc)
	if prep == nil {
		return nil
	}
	p := newPlan(prep)
	s := splitter{m: m, plan: p, slots: map[*graph.Value]int{}, programs: map[[32]byte]int{}, next: len(p.Params)}
	for i, q := range prep.Params {
		s.slots[q.Value] = i
	}
	for _, nodes := range together(independent(prep), prepareBytes) {
		s.program(nodes, func(v *graph.Value) bool { return slices.Contains(prep.Results, v) })
	}
	for _, r := range prep.Results {
		slot, ok := s.slots[r]
		if !ok {
			panic("BUG: passes: a prepared weight has no slot")
		}
		p.Results = append(p.Results, slot)
		alone := &graph.Func{Name: "main"}
		alone.Results = []*graph.Value{copyCone(alone, r, map[*graph.Value]*graph.Value{})}
		digest := graph.Hash(&graph.Module{Funcs: []*graph.Func{alone}, Mesh: m.Mesh})
		p.ResultDigests = append(p.ResultDigests, hex.EncodeToString(digest[:16]))
	}
	return p
}

// movesOnly reports whether an operation only puts elements in another order or behind one another: what a loader can do while it reads.
func movesOnly(n *graph.Node) bool {
	return n.Op == graph.OpReshape || n.Op == graph.OpTranspose || n.Op == graph.OpConcat
}

// together joins neighbouring groups while what they read from outside stays within limit bytes. Groups that only move elements are joined with such alone.
func together(groups [][]*graph.Node, limit int64) [][]*graph.Node {
	var out [][]*graph.Node
	var size int64
	moves := false
	for _, g := range groups {
		was := moves
		moves = !slices.ContainsFunc(g, func(n *graph.Node) bool { return !movesOnly(n) })
		var reads int64
		seen := map[*graph.Value]bool{}
		for _, n := range g {
			for _, o := range n.Operands {
				if o.Def == nil && !seen[o] {
					seen[o] = true
					reads += graph.ByteSize(o.Shape)
				}
			}
		}
		if len(out) > 0 && moves == was && size+reads <= limit {
			out[len(out)-1] = append(out[len(out)-1], g...)
			size += reads
			continue
		}
		out, size = append(out, slices.Clone(g)), reads
	}
	return out
}

// independent groups f's nodes, without those that are copied into each program, so that no two groups share a value.
func independent(f *graph.Func) [][]*graph.Node {
	parent := map[*graph.Value]*graph.Value{}
	find := func(v *graph.Value) *graph.Value {
		root := v
		for parent[root] != nil {
			root = parent[root]
		}
		for v != root {
			v, parent[v] = parent[v], root
		}
		return root
	}
	union := func(a, b *graph.Value) {
		if a, b = find(a), find(b); a != b {
			parent[a] = b
		}
	}
	for _, n := range f.Nodes {
		if isFree(n) {
			continue
		}
		for _, o := range n.Operands {
			if o.Def == nil || !isFree(o.Def) {
				union(o, n.Results[0])
			}
		}
		for _, r := range n.Results[1:] {
			union(r, n.Results[0])
		}
	}
	var groups [][]*graph.Node
	index := map[*graph.Value]int{}
	for _, n := range f.Nodes {
		if isFree(n) {
			continue
		}
		root := find(n.Results[0])
		i, ok := index[root]
		if !ok {
			i = len(groups)
			index[root] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], n)
	}
	return groups
}

func newPlan(f *graph.Func) *Plan {
	p := &Plan{ResultNames: slices.Clone(f.ResultNames)}
	for _, q := range f.Params {
		p.Params = append(p.Params, Slot{q.Name, q.Kind, q.Value.Shape, q.Donated})
	}
	return p
}

type splitter struct {
	m        *graph.Module
	plan     *Plan
	slots    map[*graph.Value]int
	lastUse  map[*graph.Value]int
	programs map[[32]byte]int
	callees  map[string]int
	next     int
}

// glue makes a program of the nodes between two calls; what is read at or after position end leaves it.
func (s *splitter) glue(nodes []*graph.Node, end int) {
	var work []*graph.Node
	for _, n := range nodes {
		if !isFree(n) {
			work = append(work, n)
		}
	}
	// A constant that a later program or the entry's result needs as a value.
	for _, n := range nodes {
		if isFree(n) && s.lastUse[n.Results[0]] == len(s.m.Entry().Nodes) && slices.Contains(s.m.Entry().Results, n.Results[0]) {
			work = append(work, n)
		}
	}
	if len(work) == 0 {
		return
	}
	s.program(work, func(v *graph.Value) bool { return s.lastUse[v] >= end })
}

// program adds a step that computes nodes, with a program of its own unless an equal one is there.
func (s *splitter) program(nodes []*graph.Node, leaves func(*graph.Value) bool) {
	f := &graph.Func{Name: s.m.Entry().Name}
	values := map[*graph.Value]*graph.Value{}
	step := Step{}
	use := func(o *graph.Value) {
		switch {
		case values[o] != nil:
		case o.Def != nil && isFree(o.Def):
			appendCopy(f, o.Def, values)
		default:
			slot, ok := s.slots[o]
			if !ok {
				panic("BUG: passes: a program reads a value that no earlier step computes")
			}
			kind, name := graph.Input, fmt.Sprintf("arg%d", len(f.Params))
			if o.Param != nil && o.Param.Kind == graph.Weight {
				kind, name = graph.Weight, fmt.Sprintf("weight%d", len(f.Params))
			}
			values[o] = f.NewParam(name, kind, o.Shape)
			if o.Param != nil {
				values[o].Param.Sharding = o.Param.Sharding
			}
			step.Args = append(step.Args, slot)
		}
	}
	for _, n := range nodes {
		for _, o := range n.Operands {
			use(o)
		}
		if values[n.Results[0]] == nil {
			appendCopy(f, n, values)
		}
	}
	for _, n := range nodes {
		for _, r := range n.Results {
			if leaves(r) {
				f.Results = append(f.Results, values[r])
				s.slots[r] = s.next
				step.Results = append(step.Results, s.next)
				s.next++
			}
		}
	}
	if len(f.Results) == 0 {
		return
	}
	step.Scope = nodes[0].Scope
	step.Program = s.add(f, fmt.Sprintf("%s.part%d", s.m.Name, len(s.plan.Programs)))
	s.plan.Steps = append(s.plan.Steps, step)
}

func (s *splitter) call(n *graph.Node) error {
	callee := n.Attrs.String("callee")
	index, ok := s.callees[callee]
	if !ok {
		fn := s.m.Func(callee)
		if fn == nil {
			return fmt.Errorf("split: %s calls %q, which is not in the module", s.m.Entry().Name, callee)
		}
		main := *fn
		main.Name, main.BlockClass = s.m.Entry().Name, ""
		index = s.add(&main, s.m.Name+"."+callee)
		s.callees[callee] = index
	}
	step := Step{Program: index, Scope: n.Scope}
	for _, o := range n.Operands {
		slot, ok := s.slots[o]
		if !ok {
			// A constant that is passed: it becomes a program of its own.
			s.program([]*graph.Node{o.Def}, func(v *graph.Value) bool { return v == o })
			slot = s.slots[o]
		}
		step.Args = append(step.Args, slot)
	}
	for _, r := range n.Results {
		s.slots[r] = s.next
		step.Results = append(step.Results, s.next)
		s.next++
	}
	s.plan.Steps = append(s.plan.Steps, step)
	return nil
}

// add makes a program of f and the functions that it calls, and returns the index of it or of an equal one.
func (s *splitter) add(f *graph.Func, name string) int {
	funcs := append([]*graph.Func{f}, reachable(s.m, f)[1:]...)
	m := &graph.Module{Name: name, Funcs: funcs, Mesh: s.m.Mesh}
	key := graph.Hash(m)
	if i, ok := s.programs[key]; ok {
		return i
	}
	s.programs[key] = len(s.plan.Programs)
	s.plan.Programs = append(s.plan.Programs, m)
	return len(s.plan.Programs) - 1
}
