package passes

import (
	"fmt"
	"slices"

	"precast/graph"
)

// Eager makes the plan in which every node of the entry is a program of its own, in the order of the nodes; equal operations on equal shapes
// are one program, whatever they read, so that thousands of steps take few programs. Small constants are part of the operation that
// reads them, as a number is an argument of an operation in PyTorch; a region (the body of a while) stays inside its operation. A program is
// called by its operation alone: that of another module is the same text. A step's scope is its node's.
func Eager(m *graph.Module) *Plan {
	entry := m.Entry()
	p := newPlan(entry)
	s := splitter{m: m, plan: p, slots: map[*graph.Value]int{}, programs: map[[32]byte]int{}, next: len(p.Params)}
	for i, q := range entry.Params {
		s.slots[q.Value] = i
	}
	read := map[*graph.Value]bool{}
	for _, n := range entry.Nodes {
		for _, o := range n.Operands {
			read[o] = true
		}
	}
	for _, r := range entry.Results {
		read[r] = true
	}
	for _, n := range entry.Nodes {
		if !isSmallConstant(n) {
			s.alone(n, func(v *graph.Value) bool { return read[v] })
		}
	}
	for _, r := range entry.Results {
		if _, ok := s.slots[r]; !ok {
			s.alone(r.Def, func(v *graph.Value) bool { return v == r })
		}
		slot := s.slots[r]
		if slot < len(p.Params) || slices.Contains(p.Results, slot) {
			// A result that is an argument, or another result, too, is copied: each has a buffer of its own.
			f := &graph.Func{Name: entry.Name}
			f.Results = f.Append(graph.OpReshape, []*graph.Value{f.NewParam("arg0", graph.Input, r.Shape)}, nil, r.Shape).Results
			p.Steps = append(p.Steps, Step{Program: s.add(f, string(graph.OpReshape)), Args: []int{slot}, Results: []int{s.next}})
			slot = s.next
			s.next++
		}
		p.Results = append(p.Results, slot)
	}
	return p
}

func isSmallConstant(n *graph.Node) bool { return n.Op == graph.OpConstant && isFree(n) }

// alone adds the step of one node, whose program returns the results that keep says.
func (s *splitter) alone(n *graph.Node, keep func(*graph.Value) bool) {
	f := &graph.Func{Name: s.m.Entry().Name}
	values := map[*graph.Value]*graph.Value{}
	step := Step{Scope: n.Scope}
	for _, o := range n.Operands {
		switch {
		case values[o] != nil:
		case o.Def != nil && isSmallConstant(o.Def):
			appendCopy(f, o.Def, values).Scope = ""
		default:
			slot, ok := s.slots[o]
			if !ok {
				panic("BUG: passes: a node reads a value that none before it computes")
			}
			values[o] = f.NewParam(fmt.Sprintf("arg%d", len(f.Params)), graph.Input, o.Shape)
			if o.Param != nil {
				values[o].Param.Sharding = o.Param.Sharding
			}
			step.Args = append(step.Args, slot)
		}
	}
	appendCopy(f, n, values).Scope = ""
	for _, r := range n.Results {
		if keep(r) {
			f.Results = append(f.Results, values[r])
			s.slots[r] = s.next
			step.Results = append(step.Results, s.next)
			s.next++
		}
	}
	if len(f.Results) == 0 {
		return
	}
	step.Program = s.add(f, string(n.Op))
	s.plan.Steps = append(s.plan.Steps, step)
}
