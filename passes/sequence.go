package passes

import (
	"cmp"
	"slices"

	"precast/graph"
)

// maxDistances and maxCuts bound the work of proposeBySequence.
const (
	maxDistances = 64
	maxCuts      = 16
)

// proposeBySequence proposes regions from repeats in the order of the entry's nodes, without looking at scopes. For each distance d that
// often lies between equal nodes it looks for runs in which every node equals the one d further on. The end of such a run gives templates:
// where it is as long as d, or nearly so, one whole period, begun where the fewest values are live, as between two blocks of a transformer;
// else the part that repeats. A template's counterparts are then found in the graph itself (see counterparts), wherever they stand and whatever
// stands between their nodes: the first of several blocks is found, too, although it computes what all of them share. Of several places to
// begin the period that counts which gives the most regions.
func (ol *outliner) proposeBySequence() []region {
	s := ol.newSequence()
	var out []region
	type span struct{ from, to int }
	var covered []span
	for _, d := range s.distances() {
		for i := 0; i+d < len(s.nodes); {
			if !s.same(i, i+d) {
				i++
				continue
			}
			j := i
			for j+d < len(s.nodes) && s.same(j, j+d) {
				j++
			}
			whole := span{i, j + d}
			if j-i >= s.min && !slices.ContainsFunc(covered, func(c span) bool { return c.from <= whole.from && whole.to <= c.to }) {
				if found := s.best(i, j, d); len(found) > 1 {
					out = append(out, found...)
					covered = append(covered, whole)
				}
			}
			i = max(j, i+1)
		}
	}
	return out
}

// sequence is the entry's nodes without the constants.
type sequence struct {
	*outliner
	nodes  []*graph.Node
	hashes []uint64
	// live counts, for each position, the results that are defined before it and read at or after it.
	live   []int
	byHash map[uint64][]*graph.Node
}

func (ol *outliner) newSequence() *sequence {
	s := &sequence{outliner: ol, byHash: map[uint64][]*graph.Node{}}
	for _, n := range ol.f.Nodes {
		if isFree(n) {
			continue
		}
		h := ol.localHash(n)
		s.nodes, s.hashes = append(s.nodes, n), append(s.hashes, h)
		s.byHash[h] = append(s.byHash[h], n)
	}
	s.live = liveAt(s.nodes, ol.f)
	return s
}

func (s *sequence) same(i, j int) bool {
	return s.hashes[i] == s.hashes[j] && s.nodes[i].Op != graph.OpCall
}

// distances lists the distances that lie between a node and the next equal one most often.
func (s *sequence) distances() []int {
	last := map[uint64]int{}
	count := map[int]int{}
	for i, n := range s.nodes {
		if n.Op == graph.OpCall {
			continue
		}
		if j, ok := last[s.hashes[i]]; ok && i-j >= s.min {
			count[i-j]++
		}
		last[s.hashes[i]] = i
	}
	var distances []int
	for d, n := range count {
		if n >= 2 {
			distances = append(distances, d)
		}
	}
	slices.SortFunc(distances, func(a, b int) int { return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(a, b)) })
	distances = distances[:min(len(distances), maxDistances)]
	slices.Sort(distances)
	return distances
}

// best returns the regions of the best template that the run [i, j) at distance d gives: the last whole period, or where that occurs once, the
// part that repeats.
func (s *sequence) best(i, j, d int) []region {
	var found []region
	for _, cut := range s.narrowest(max(i, j-d+1), j+1) {
		if r := s.counterparts(s.peel(s.nodes[cut : cut+d])); len(r) > len(found) {
			found = r
		}
	}
	if len(found) > 1 {
		return found
	}
	quarter := (j - i) / 4
	for _, from := range s.narrowest(i, i+quarter+1) {
		for _, to := range s.narrowest(j-quarter, j+1) {
			if r := s.counterparts(s.peel(s.nodes[from+d : to+d])); len(r) > len(found) {
				found = r
			}
		}
	}
	return found
}

// narrowest returns the positions in [from, to) in front of which the fewest values are live, at most maxCuts of them.
func (s *sequence) narrowest(from, to int) []int {
	var best []int
	for i := from; i < min(to, len(s.live)); i++ {
		switch {
		case len(best) == 0 || s.live[i] < s.live[best[0]]:
			best = append(best[:0], i)
		case s.live[i] == s.live[best[0]] && len(best) < maxCuts:
			best = append(best, i)
		}
	}
	return best
}

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

// counterparts returns the regions of the entry that have the template's nodes and edges, the template among them, nodes in the template's
// order. It begins at the node that is rarest in the entry, and follows edges both ways: operands are ordered, so that there is nothing to choose;
// among readers that are alike the first corresponds to the first. Whether regions are really equal is for equal to say.
func (s *sequence) counterparts(template []*graph.Node) []region {
	if len(template) < s.min {
		return nil
	}
	in := make(map[*graph.Node]bool, len(template))
	for _, n := range template {
		in[n] = true
	}
	rarest := slices.MinFunc(template, func(a, b *graph.Node) int {
		return cmp.Compare(len(s.byHash[s.localHash(a)]), len(s.byHash[s.localHash(b)]))
	})
	var out []region
	for _, c := range s.byHash[s.localHash(rarest)] {
		if nodes := s.counterpart(template, in, rarest, c); nodes != nil {
			out = append(out, region{nodes: nodes})
		}
	}
	return out
}

// counterpart maps the template onto the nodes around c, which corresponds to the template's node t; nil where that fails.
func (s *sequence) counterpart(template []*graph.Node, in map[*graph.Node]bool, t, c *graph.Node) []*graph.Node {
	to := make(map[*graph.Node]*graph.Node, len(template))
	from := make(map[*graph.Node]*graph.Node, len(template))
	var work []*graph.Node
	link := func(a, b *graph.Node) bool {
		if b == nil || to[a] != nil || from[b] != nil {
			return b != nil && to[a] == b && from[b] == a
		}
		if s.localHash(a) != s.localHash(b) || len(a.Operands) != len(b.Operands) || len(a.Results) != len(b.Results) {
			return false
		}
		to[a], from[b] = b, a
		work = append(work, a)
		return true
	}
	if !link(t, c) {
		return nil
	}
	type kind struct {
		hash  uint64
		index int
	}
	for len(work) > 0 {
		a := work[len(work)-1]
		work = work[:len(work)-1]
		b := to[a]
		for i, o := range a.Operands {
			if o.Def != nil && in[o.Def] && (o.Index != b.Operands[i].Index || !link(o.Def, b.Operands[i].Def)) {
				return nil
			}
		}
		for i, r := range a.Results {
			readers := map[kind][]*graph.Node{}
			for _, u := range s.uses[b.Results[i]] {
				if u.Node != nil {
					k := kind{s.localHash(u.Node), u.Index}
					readers[k] = append(readers[k], u.Node)
				}
			}
			for _, u := range s.uses[r] {
				if u.Node == nil || !in[u.Node] {
					continue
				}
				k := kind{s.localHash(u.Node), u.Index}
				if len(readers[k]) == 0 || !link(u.Node, readers[k][0]) {
					return nil
				}
				readers[k] = readers[k][1:]
			}
		}
	}
	nodes := make([]*graph.Node, len(template))
	for i, n := range template {
		if nodes[i] = to[n]; nodes[i] == nil {
			return nil
		}
	}
	return nodes
}
