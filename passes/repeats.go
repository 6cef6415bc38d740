package passes

import "precast/graph"

// Repeats counts, by function, how often the entry runs each function of a class of repeated blocks: once a call, and where scan-repeated-calls put
// the call into a loop, as often as the loop turns.
func Repeats(m *graph.Module) map[string]int {
	counts := map[string]int{}
	for _, n := range m.Entry().Nodes {
		switch n.Op {
		case graph.OpCall:
			counts[n.Attrs.String("callee")]++
		case graph.OpWhile:
			for _, k := range n.Regions[1].Nodes {
				if k.Op == graph.OpCall {
					counts[k.Attrs.String("callee")] += max(1, trips(n))
				}
			}
		}
	}
	for name := range counts {
		if f := m.Func(name); f == nil || f.BlockClass == "" {
			delete(counts, name)
		}
	}
	return counts
}

// HasRepeats reports whether some function of a class of repeated blocks runs more than once.
func HasRepeats(m *graph.Module) bool {
	for _, n := range Repeats(m) {
		if n > 1 {
			return true
		}
	}
	return false
}
