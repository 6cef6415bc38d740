package passes

import (
	"fmt"
	"slices"
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
// of the entry reads become prepared weights, and only where that pays: the chain does more than relabel (a reshape alone stays), and the
// result is not larger than the weights that it is made from (a bias that is broadcast to an activation's size stays where it is).
// Calls, nodes with regions, random bits and barriers stay, too. A module that has a function prepare is left as it is.
func hoistWeights(m *graph.Module, _ *Options) error {
	entry := m.Entry()
	if m.Func(PrepareFunc) != nil {
		return nil
	}
	facts := weightFacts(entry)
	hoistable := func(n *graph.Node) bool {
		f := facts[n.Results[0]]
		return f != nil && len(f.weights) > 0
	}
	// A value is prepared when it pays and a node that stays, or the caller, reads it. A node that could move but whose result does not pay
	// stays where one of its readers does; what it reads may pay on its own. Backwards, so that a node's readers are decided before the node.
	wanted := map[*graph.Value]bool{}
	stays := map[*graph.Node]bool{}
	uses := graph.Uses(entry)
	for i := len(entry.Nodes) - 1; i >= 0; i-- {
		n := entry.Nodes[i]
		if !hoistable(n) {
			stays[n] = true
			continue
		}
		v := n.Results[0]
		read := slices.ContainsFunc(uses[v], func(u graph.Use) bool { return u.Node == nil || stays[u.Node] })
		switch pays := facts[v].works && graph.ByteSize(v.Shape) <= facts[v].bytes(); {
		case read && pays:
			wanted[v] = true
		case read:
			stays[n] = true
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	prep := &graph.Func{Name: PrepareFunc}
	values := map[*graph.Value]*graph.Value{}
	replaced := map[*graph.Value]*graph.Value{}
	names := map[string]bool{}
	for _, n := range entry.Nodes {
		v := n.Results[0]
		if !wanted[v] {
			continue
		}
		name := PreparedPrefix + facts[v].weights[0].Name
		for base, k := name, 2; names[name]; k++ {
			name = fmt.Sprintf("%s#%d", base, k)
		}
		names[name] = true
		prep.Results = append(prep.Results, copyCone(prep, v, values))
		prep.ResultNames = append(prep.ResultNames, name)
		replaced[v] = entry.NewParam(name, graph.Weight, v.Shape)
	}
	graph.ReplaceUses(entry, replaced)
	m.Funcs = append(m.Funcs, prep)
	deadNodes(entry)
	dropUnusedWeights(entry)
	return nil
}

// weightFact says what a value that depends on weights and constants alone is made of.
type weightFact struct {
	weights []*graph.Param // in the order of their first use; none for a constant
	works   bool           // some operation between a weight and the value does more than relabel
}

// bytes is the size of the weights.
func (f *weightFact) bytes() int64 {
	var sum int64
	for _, w := range f.weights {
		sum += graph.ByteSize(w.Value.Shape)
	}
	return sum
}

// weightFacts finds f's values that depend on weights and constants alone. Only nodes of one result have them.
func weightFacts(f *graph.Func) map[*graph.Value]*weightFact {
	facts := make(map[*graph.Value]*weightFact, len(f.Params))
	for _, p := range f.Params {
		if p.Kind == graph.Weight {
			facts[p.Value] = &weightFact{weights: []*graph.Param{p}}
		}
	}
	for _, n := range f.Nodes {
		if len(n.Regions) > 0 || len(n.Results) != 1 || n.Op == graph.OpCall || n.Op == graph.OpBarrier {
			continue
		}
		if fact := nodeFact(n, facts); fact != nil {
			facts[n.Results[0]] = fact
		}
	}
	return facts
}

func nodeFact(n *graph.Node, facts map[*graph.Value]*weightFact) *weightFact {
	fact := &weightFact{}
	for _, o := range n.Operands {
		f := facts[o]
		if f == nil {
			return nil
		}
		fact.works = fact.works || f.works
		for _, w := range f.weights {
			if !slices.Contains(fact.weights, w) {
				fact.weights = append(fact.weights, w)
			}
		}
	}
	if len(fact.weights) > 0 && n.Op != graph.OpReshape && n.Op != graph.OpBroadcast {
		fact.works = true
	}
	return fact
}

// copyCone copies v and what it needs into f; values holds what was copied before.
func copyCone(f *graph.Func, v *graph.Value, values map[*graph.Value]*graph.Value) *graph.Value {
	if w := values[v]; w != nil {
		return w
	}
	if v.Param != nil {
		w := f.NewParam(v.Param.Name, v.Param.Kind, v.Shape)
		w.Param.Sharding = v.Param.Sharding
		values[v] = w
		return w
	}
	for _, o := range v.Def.Operands {
		copyCone(f, o, values)
	}
	appendCopy(f, v.Def, values)
	return values[v]
}
