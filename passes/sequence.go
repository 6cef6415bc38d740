package passes

import (
	"cmp"
	"slices"

	"precast/graph"
)

// minSequence is the least number of nodes of a region that the sequence proposes: shorter repeats are not worth a function.
const minSequence = 40

// proposeBySequence proposes regions from repeats in the order of the entry's nodes, without looking at scopes. For each distance d that
// often lies between equal nodes it looks for runs in which every node equals the one d further on. A run of d or more is a period:
// the region is cut out of it at the place where the fewest values are live, as between two blocks of a transformer, so that as many whole periods as
// possible fit. A shorter run is a pair, cut back to places where few values are live.
func (ol *outliner) proposeBySequence() []region {
	var nodes []*graph.Node
	for _, n := range ol.f.Nodes {
		if !isFree(n) {
			nodes = append(nodes, n)
		}
	}
	hashes := make([]uint64, len(nodes))
	last := map[uint64]int{}
	count := map[int]int{}
	for i, n := range nodes {
		hashes[i] = ol.localHash(n)
		if n.Op == graph.OpCall {
			continue
		}
		if j, ok := last[hashes[i]]; ok && i-j >= minSequence {
			count[i-j]++
		}
		last[hashes[i]] = i
	}
	var distances []int
	for d, n := range count {
		if n >= 2 {
			distances = append(distances, d)
		}
	}
	const tried = 64
	slices.SortFunc(distances, func(a, b int) int { return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(a, b)) })
	distances = distances[:min(len(distances), tried)]
	slices.Sort(distances)

	live := liveAt(nodes, ol.f)
	users, results := usersOf(ol.f), resultSet(ol.f)
	var out []region
	propose := func(from, to int) {
		if kept := peel(nodes[from:to], users, results); len(kept) >= minSequence {
			out = append(out, region{nodes: kept})
		}
	}
	type span struct{ from, to int }
	var covered []span
	for _, d := range distances {
		for i := 0; i+d < len(nodes); {
			if hashes[i] != hashes[i+d] || nodes[i].Op == graph.OpCall {
				i++
				continue
			}
			j := i
			for j+d < len(nodes) && hashes[j] == hashes[j+d] && nodes[j].Op != graph.OpCall {
				j++
			}
			run := j - i
			whole := span{i, j + d}
			inside := slices.ContainsFunc(covered, func(s span) bool { return s.from <= whole.from && whole.to <= s.to })
			switch {
			case inside:
			case run >= d:
				k := run/d + 1
				start := narrowest(live, i, i+run%d+1)
				for p := range k {
					propose(start+p*d, start+(p+1)*d)
				}
				covered = append(covered, whole)
			case run >= minSequence:
				from := narrowest(live, i, i+run/4+1)
				to := narrowest(live, j-run/4, j+1)
				propose(from, to)
				propose(from+d, to+d)
			}
			i = max(j, i+1)
		}
	}
	return out
}

// narrowest returns the position in [from, to) in front of which the fewest values are live; the first of several.
func narrowest(live []int, from, to int) int {
	best := from
	for i := from; i < to && i < len(live); i++ {
		if live[i] < live[best] {
			best = i
		}
	}
	return best
}

// liveAt counts, for each position, the nodes' results that are defined before it and read at or after it.
func liveAt(nodes []*graph.Node, f *graph.Func) []int {
	lastUse := map[*graph.Value]int{}
	for i, n := range nodes {
		for _, o := range n.Operands {
			lastUse[o] = i
		}
	}
	for _, r := range f.Results {
		lastUse[r] = len(nodes)
	}
	change := make([]int, len(nodes)+2)
	for i, n := range nodes {
		for _, r := range n.Results {
			if end, ok := lastUse[r]; ok {
				change[i+1]++
				change[end+1]--
			}
		}
	}
	live := make([]int, len(nodes)+1)
	sum := 0
	for i := range live {
		sum += change[i]
		live[i] = sum
	}
	return live
}
