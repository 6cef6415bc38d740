package passes

import "precast/graph"

// dce removes nodes that no result needs, in every function, and private functions that nothing calls. Weights that nothing uses any
// more are dropped from the entry's and prepare's parameters; inputs stay: they are the signature.
func dce(m *graph.Module, _ *Options) error {
	for _, f := range m.Funcs {
		deadNodes(f)
	}
	called := map[string]bool{m.Entry().Name: true, PrepareFunc: true}
	for _, f := range m.Funcs {
		for _, n := range f.Nodes {
			if n.Op == graph.OpCall {
				called[n.Attrs.String("callee")] = true
			}
		}
	}
	kept := m.Funcs[:0]
	for _, f := range m.Funcs {
		if called[f.Name] {
			kept = append(kept, f)
		}
	}
	m.Funcs = kept
	dropUnusedWeights(m.Entry())
	if prep := m.Func(PrepareFunc); prep != nil {
		dropUnusedPrepared(m.Entry(), prep)
		deadNodes(prep)
		dropUnusedWeights(prep)
		if len(prep.Results) == 0 {
			removeFunc(m, prep)
		}
	}
	return nil
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
		}
	}
	clear(f.Nodes[len(kept):])
	f.Nodes = kept
}

func dropUnusedWeights(f *graph.Func) {
	used := usedValues(f)
	setParams(f, func(p *graph.Param) bool { return p.Kind == graph.Input || used[p.Value] })
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

func removeFunc(m *graph.Module, f *graph.Func) {
	kept := m.Funcs[:0]
	for _, g := range m.Funcs {
		if g != f {
			kept = append(kept, g)
		}
	}
	m.Funcs = kept
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

func usedValues(f *graph.Func) map[*graph.Value]bool {
	used := make(map[*graph.Value]bool, len(f.Nodes))
	for _, n := range f.Nodes {
		for _, o := range n.Operands {
			used[o] = true
		}
	}
	for _, r := range f.Results {
		used[r] = true
	}
	return used
}
