package gobackend

import (
	"slices"

	"precast/backends"
	"precast/graph"
	"precast/graph/cost"
)

// memoryOf counts the memory of one execution from the graph: results that nobody needs any more are freed at once, and a reshape
// takes memory of its own, as in gomlx's Go backend.
func memoryOf(m *graph.Module) backends.ExecutableMemory {
	var mem backends.ExecutableMemory
	var donated []int64
	for _, p := range m.Entry().Params {
		mem.Arguments += int64(byteSize(p.Value.Shape))
		if p.Donated {
			donated = append(donated, int64(byteSize(p.Value.Shape)))
		}
	}
	for _, r := range m.Entry().Results {
		n := int64(byteSize(r.Shape))
		mem.Outputs += n
		// A result may take over a donated argument of its size.
		if i := slices.Index(donated, n); i >= 0 {
			mem.Aliased += n
			donated = slices.Delete(donated, i, i+1)
		}
	}
	mem.Temporaries = max(0, peak(m, m.Entry(), map[string]int64{})-mem.Outputs)
	return mem
}

// peak is the most memory that the results of f's nodes take at one time, with those of the functions it calls.
func peak(m *graph.Module, f *graph.Func, calls map[string]int64) int64 {
	last := map[*graph.Value]int{}
	for i, n := range f.Nodes {
		for _, v := range n.Operands {
			last[v] = i
		}
	}
	for _, v := range f.Results {
		last[v] = len(f.Nodes)
	}
	var now, most int64
	for i, n := range f.Nodes {
		var inner int64
		if n.Op == graph.OpCall {
			name := n.Attrs.String("callee")
			_, ok := calls[name]
			if g := m.Func(name); !ok && g != nil {
				known := peak(m, g, calls)
				for _, r := range g.Results {
					known -= int64(byteSize(r.Shape))
				}
				calls[name] = max(known, 0)
			}
			inner = calls[name]
		}
		for _, r := range n.Regions {
			inner = max(inner, peak(m, r, calls))
		}
		for _, r := range n.Results {
			now += int64(byteSize(r.Shape))
		}
		most = max(most, now+inner)
		freed := map[*graph.Value]bool{}
		for _, v := range n.Operands {
			if v.Def != nil && last[v] == i && !freed[v] {
				freed[v] = true
				now -= int64(byteSize(v.Shape))
			}
		}
		for _, r := range n.Results {
			if _, used := last[r]; !used {
				now -= int64(byteSize(r.Shape))
			}
		}
	}
	return most
}

// costOf is the work that the graph shows: "flops", "transcendentals" and, of each op by itself, "bytes accessed".
func costOf(m *graph.Module) map[string]float64 {
	c := cost.Analyze(m, cost.Options{}).Total
	return map[string]float64{"flops": c.Flops, "transcendentals": c.Transcendentals, "bytes accessed": c.BytesRead + c.BytesWritten}
}
