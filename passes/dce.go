package passes

import (
	"slices"

	"precast/graph"
)

// dce removes nodes that no result needs, in every function and region, and private functions that the entry does not reach. Weights that
// nothing uses any more are dropped from the entry's and prepare's parameters; inputs stay: they are the signature.
func dce(m *graph.Module, _ *Options) error {
	for _, f := range m.Funcs {
		deadNodes(f)
	}
	dropUnusedWeights(m.Entry())
	if prep := m.Func(PrepareFunc); prep != nil {
		dropUnusedPrepared(m.Entry(), prep)
		deadNodes(prep)
		dropUnusedWeights(prep)
	}
	alive := map[*graph.Func]bool{}
	for _, f := range reachable(m, m.Entry()) {
		alive[f] = true
	}
	if prep := m.Func(PrepareFunc); prep != nil && len(prep.Results) > 0 {
		alive[prep] = true
	}
	m.Funcs = slices.DeleteFunc(m.Funcs, func(f *graph.Func) bool { return !alive[f] })
	return nil
}

// reachable lists f and the functions that it calls, directly or through others and in regions too, in the module's order after f.
func reachable(m *graph.Module, f *graph.Func) []*graph.Func {
	seen := map[*graph.Func]bool{f: true}
	work := []*graph.Func{f}
	for len(work) > 0 {
		g := work[len(work)-1]
		work = work[:len(work)-1]
		g.WalkNodes(func(n *graph.Node) {
			if n.Op != graph.OpCall {
				return
			}
			if callee := m.Func(n.Attrs.String("callee")); callee != nil && !seen[callee] {
				seen[callee] = true
				work = append(work, callee)
			}
		})
	}
	out := []*graph.Func{f}
	for _, g := range m.Funcs {
		if seen[g] && g != f {
			out = append(out, g)
		}
	}
	return out
}

func deadNodes(f *graph.Func) {
	live := map[*graph.Value]bool{}
	for _, r := range f.Results {
		live[r] = true
	}
	keep := make([]bool, len(f.Nodes))
	for i := len(f.Nodes) - 1; i >= 0; i-- {
		n := f.Nodes[i]
		for _, r := range n.Results {
			keep[i] = keep[i] || live[r]
		}
		if keep[i] {
			for _, o := range n.Operands {
				live[o] = true
			}
		}
	}
	kept := f.Nodes[:0]
	for i, n := range f.Nodes {
		if keep[i] {
			kept = append(kept, n)
			for _, r := range n.Regions {
				deadNodes(r)
			}
		}
	}
	clear(f.Nodes[len(kept):])
	f.Nodes = kept
}

func dropUnusedWeights(f *graph.Func) {
	uses := graph.Uses(f)
	setParams(f, func(p *graph.Param) bool { return p.Kind == graph.Input || len(uses[p.Value]) > 0 })
}

// dropUnusedPrepared removes results of prepare whose weights the entry no longer has.
func dropUnusedPrepared(entry, prep *graph.Func) {
	has := map[string]bool{}
	for _, p := range entry.Params {
		has[p.Name] = true
	}
	var results []*graph.Value
	var names []string
	for i, name := range prep.ResultNames {
		if has[name] {
			results, names = append(results, prep.Results[i]), append(names, name)
		}
	}
	prep.Results, prep.ResultNames = results, names
}

func setParams(f *graph.Func, keep func(*graph.Param) bool) {
	kept := f.Params[:0]
	for _, p := range f.Params {
		if keep(p) {
			p.Value.Index = len(kept)
			kept = append(kept, p)
		}
	}
	clear(f.Params[len(kept):])
	f.Params = kept
}
