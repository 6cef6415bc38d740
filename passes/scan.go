package passes

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"precast/graph"
)

// scan makes one while of each run of calls of one outlined function that hand a value on, each to the next: the layers of a transformer. The loop's
// state is a counter, what is handed on, what every call reads alike, and the calls' weights. Those of one parameter are stacked along a new leading
// axis, by the function prepare, so that the loader does it once; in the loop the counter picks a layer's slice.
//
// A run ends where a result of a call other than the last is read by anything but the next call in its place, and where calls differ in an argument
// that is neither handed on nor a weight. Calls that are left are calls. The function is not changed, so that it can be called from several
// loops. A module that has a loop over an outlined function is left as it is.
func scan(m *graph.Module, o *Options) error {
	entry := m.Entry()
	if !o.Scan || slices.ContainsFunc(entry.Nodes, func(n *graph.Node) bool { return n.Op == graph.OpWhile && outlinedLoop(m, n) }) {
		return nil
	}
	s := &scanner{m: m, entry: entry, uses: graph.Uses(entry), stacks: map[string]*graph.Value{}, names: map[string]bool{}}
	for _, p := range entry.Params {
		s.names[p.Name] = true
	}
	var runs []*run
	taken := map[*graph.Node]bool{}
	for _, n := range entry.Nodes {
		if taken[n] || !outlinedCall(m, n) {
			continue
		}
		if r := s.runFrom(n); r != nil {
			for _, c := range r.calls {
				taken[c] = true
			}
			runs = append(runs, r)
		}
	}
	if len(runs) == 0 {
		return nil
	}
	loopOf := map[*graph.Node]*run{} // by the run's last call, where the loop stands: what it reads is there before the first
	for _, r := range runs {
		loopOf[r.last()] = r
	}
	replaced := map[*graph.Value]*graph.Value{}
	var nodes []*graph.Node
	for _, n := range entry.Nodes {
		switch r := loopOf[n]; {
		case r != nil:
			zero, loop := s.loop(r)
			nodes = append(nodes, zero, loop)
			for i, c := range r.args {
				if c.role == handedOn {
					replaced[r.last().Results[c.result]] = loop.Results[1+i]
				}
			}
		case !taken[n]:
			nodes = append(nodes, n)
		}
	}
	entry.Nodes = nodes
	graph.ReplaceUses(entry, replaced)
	if err := entry.TopoSort(); err != nil {
		panic("BUG: scan-repeated-calls: " + err.Error())
	}
	s.finish()
	return nil
}

// outlinedCall reports whether n calls a function of a class of repeated blocks.
func outlinedCall(m *graph.Module, n *graph.Node) bool {
	if n.Op != graph.OpCall {
		return false
	}
	f := m.Func(n.Attrs.String("callee"))
	return f != nil && f.BlockClass != ""
}

func outlinedLoop(m *graph.Module, n *graph.Node) bool {
	return slices.ContainsFunc(n.Regions[1].Nodes, func(k *graph.Node) bool { return outlinedCall(m, k) })
}

// trips is how often a loop that scan made turns, 0 for another.
func trips(n *graph.Node) int {
	for _, k := range n.Regions[0].Nodes {
		if k.Op != graph.OpCompare || k.Attrs.String("direction") != "LT" {
			continue
		}
		if lit, ok := literal(k.Operands[1]); ok && len(lit.Data) == 4 {
			return int(int32(binary.LittleEndian.Uint32(lit.Data)))
		}
	}
	return 0
}

// role says where a call's argument comes from.
type role int

const (
	alike    role = iota // the same value in each call
	handedOn             // a result of the call before
	layers               // a weight of the call's own
)

type argument struct {
	role   role
	result int // of the call before, where the argument is handed on
}

// run is a list of calls that becomes a loop.
type run struct {
	calls []*graph.Node
	args  []argument
}

func (r *run) last() *graph.Node { return r.calls[len(r.calls)-1] }

type scanner struct {
	m      *graph.Module
	entry  *graph.Func
	uses   map[*graph.Value][]graph.Use
	stacks map[string]*graph.Value // by the names of the weights in them
	names  map[string]bool         // of the entry's parameters

	prep     *graph.Func
	prepared map[*graph.Value]*graph.Value // what prepare has for a weight of the entry
}

// runFrom finds the longest run that begins with a call, nil where it is one call.
func (s *scanner) runFrom(first *graph.Node) *run {
	r := &run{calls: []*graph.Node{first}}
	for {
		next := s.next(r.last())
		if next == nil {
			break
		}
		args, ok := join(r.args, r.last(), next)
		if !ok || !s.handsAllOn(r.last(), next, args) {
			break
		}
		r.calls, r.args = append(r.calls, next), args
	}
	// What the last call gives, and the loop does not hand on, has no place in the loop's state.
	for len(r.calls) > 1 && !s.resultsHandedOn(r) {
		r.calls = r.calls[:len(r.calls)-1]
	}
	if len(r.calls) < 2 {
		return nil
	}
	return r
}

// next is the first call of the same function that reads a result of c.
func (s *scanner) next(c *graph.Node) *graph.Node {
	for _, v := range c.Results {
		for _, u := range s.uses[v] {
			if u.Node != nil && u.Node != c && u.Node.Op == graph.OpCall && u.Node.Attrs.String("callee") == c.Attrs.String("callee") {
				return u.Node
			}
		}
	}
	return nil
}

// join gives the roles of the arguments with another call behind the last; args is nil before there are two calls.
func join(args []argument, last, next *graph.Node) ([]argument, bool) {
	out := make([]argument, len(next.Operands))
	for i, o := range next.Operands {
		before := last.Operands[i]
		switch {
		case o.Def == last:
			out[i] = argument{handedOn, o.Index}
		case o == before:
			out[i] = argument{role: alike}
		case isWeight(o) && isWeight(before):
			out[i] = argument{role: layers}
		default:
			return nil, false
		}
		if args == nil || args[i] == out[i] {
			continue
		}
		// Of several weights some may be the same.
		if args[i].role == handedOn || out[i].role == handedOn || !isWeight(o) {
			return nil, false
		}
		out[i] = argument{role: layers}
	}
	return out, true
}

func isWeight(v *graph.Value) bool {
	return v.Param != nil && v.Param.Kind == graph.Weight && v.Param.Sharding == nil
}

// handsAllOn reports whether c's results are read by nothing but the next call, in the places of the arguments that are handed on.
func (s *scanner) handsAllOn(c, next *graph.Node, args []argument) bool {
	for j, v := range c.Results {
		for _, u := range s.uses[v] {
			if u.Node != next || args[u.Index] != (argument{handedOn, j}) {
				return false
			}
		}
	}
	return true
}

// resultsHandedOn reports whether everything that is read of the last call is in the loop's state.
func (s *scanner) resultsHandedOn(r *run) bool {
	for j, v := range r.last().Results {
		if len(s.uses[v]) > 0 && !slices.Contains(r.args, argument{handedOn, j}) {
			return false
		}
	}
	return true
}

// counter is the type of the loop's counter.
var counter = shapes.Make(dtypes.Int32)

func number(f *graph.Func, n int) *graph.Node {
	lit, err := graph.NewSplat(counter.DType, float64(n))
	if err != nil {
		panic("BUG: scan-repeated-calls: " + err.Error())
	}
	return f.Append(graph.OpConstant, nil, graph.Attrs(nil).With("value", lit), counter)
}

// loop makes the node of the counter's start and the while that takes the place of the run's calls: neither is in the entry yet.
func (s *scanner) loop(r *run) (zero, loop *graph.Node) {
	first := r.calls[0]
	free := &graph.Func{}
	zero = number(free, 0)
	state := []*graph.Value{zero.Results[0]}
	for i, a := range r.args {
		if a.role == layers {
			state = append(state, s.stack(r, i))
		} else {
			state = append(state, first.Operands[i])
		}
	}
	cond, body := &graph.Func{Name: "cond"}, &graph.Func{Name: "body"}
	for i, v := range state {
		cond.NewParam(fmt.Sprintf("arg%d", i), graph.Input, v.Shape)
		body.NewParam(fmt.Sprintf("arg%d", i), graph.Input, v.Shape)
	}
	limit := number(cond, len(r.calls))
	cond.Results = cond.Append(graph.OpCompare, []*graph.Value{cond.Params[0].Value, limit.Results[0]},
		graph.Resolve(graph.OpCompare, graph.Attrs(nil).With("direction", "LT"), []graph.Shape{counter, counter}), shapes.Make(dtypes.Bool)).Results
	at := body.Params[0].Value
	start, step := number(body, 0).Results[0], number(body, 1).Results[0]
	operands := make([]*graph.Value, len(r.args))
	for i, a := range r.args {
		v := body.Params[1+i].Value
		if a.role == layers {
			layer := first.Operands[i].Shape
			sizes := append([]int{1}, layer.Dimensions...)
			in := []*graph.Value{v, at}
			for range layer.Dimensions {
				in = append(in, start)
			}
			slice := body.Append(graph.OpDynSlice, in, graph.Attrs(nil).With("slice_sizes", sizes), shapes.Make(layer.DType, sizes...))
			v = body.Append(graph.OpReshape, slice.Results, nil, layer).Results[0]
		}
		operands[i] = v
	}
	results := make([]graph.Shape, len(first.Results))
	for j, v := range first.Results {
		results[j] = v.Shape
	}
	call := body.Append(graph.OpCall, operands, graph.Attrs(nil).With("callee", first.Attrs.String("callee")), results...)
	body.Results = []*graph.Value{body.Append(graph.OpAdd, []*graph.Value{at, step}, nil, counter).Results[0]}
	for i, a := range r.args {
		if a.role == handedOn {
			body.Results = append(body.Results, call.Results[a.result])
		} else {
			body.Results = append(body.Results, body.Params[1+i].Value)
		}
	}
	types := make([]graph.Shape, len(state))
	for i, v := range state {
		types[i] = v.Shape
	}
	loop = free.Append(graph.OpWhile, state, nil, types...)
	loop.Regions, loop.Scope = []*graph.Func{cond, body}, commonScope(r.calls)
	return zero, loop
}

// commonScope is the module path that the calls share.
func commonScope(calls []*graph.Node) string {
	common := strings.Split(calls[0].Scope, ".")
	for _, c := range calls[1:] {
		words := strings.Split(c.Scope, ".")
		n := 0
		for n < min(len(common), len(words)) && common[n] == words[n] {
			n++
		}
		common = common[:n]
	}
	return strings.Join(common, ".")
}

// stack gives the weight that has those of argument i of all calls, one behind another. Equal stacks are one.
func (s *scanner) stack(r *run, i int) *graph.Value {
	var weights []*graph.Value
	var key strings.Builder
	for _, c := range r.calls {
		w := c.Operands[i]
		weights = append(weights, w)
		key.WriteString(w.Param.Name)
		key.WriteByte('\n')
	}
	if v := s.stacks[key.String()]; v != nil {
		return v
	}
	s.prepare()
	layer := weights[0].Shape
	one := shapes.Make(layer.DType, append([]int{1}, layer.Dimensions...)...)
	all := shapes.Make(layer.DType, append([]int{len(weights)}, layer.Dimensions...)...)
	var parts []*graph.Value
	for _, w := range weights {
		have := s.prepared[w]
		if have == nil {
			have = s.prep.NewParam(w.Param.Name, graph.Weight, w.Shape)
			s.prepared[w] = have
		}
		parts = append(parts, s.prep.Append(graph.OpReshape, []*graph.Value{have}, nil, one).Results[0])
	}
	stacked := s.prep.Append(graph.OpConcat, parts, graph.Attrs(nil).With("dimension", 0), all).Results[0]
	name := PreparedPrefix + "stacked:" + strings.TrimPrefix(weights[0].Param.Name, PreparedPrefix)
	for base, k := name, 2; s.names[name]; k++ {
		name = fmt.Sprintf("%s#%d", base, k)
	}
	s.names[name] = true
	s.prep.Results, s.prep.ResultNames = append(s.prep.Results, stacked), append(s.prep.ResultNames, name)
	v := s.entry.NewParam(name, graph.Weight, all)
	s.stacks[key.String()] = v
	return v
}

// prepare finds the function prepare, or begins it.
func (s *scanner) prepare() {
	if s.prep != nil {
		return
	}
	s.prepared = map[*graph.Value]*graph.Value{}
	if s.prep = s.m.Func(PrepareFunc); s.prep == nil {
		s.prep = &graph.Func{Name: PrepareFunc}
		s.m.Funcs = append(s.m.Funcs, s.prep)
		return
	}
	byName := map[string]*graph.Value{}
	for _, p := range s.prep.Params {
		byName[p.Name] = p.Value
	}
	for i, name := range s.prep.ResultNames {
		byName[name] = s.prep.Results[i]
	}
	for _, p := range s.entry.Params {
		if v := byName[p.Name]; v != nil && p.Kind == graph.Weight {
			s.prepared[p.Value] = v
		}
	}
}

// finish drops the weights that are read in stacks only, and from prepare what made them.
func (s *scanner) finish() {
	dropUnusedWeights(s.entry)
	if s.prep != nil {
		dropUnusedPrepared(s.entry, s.prep)
		deadNodes(s.prep)
		dropUnusedWeights(s.prep)
	}
}
