package passes

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"

	"precast/graph"
)

// class is a set of equal regions that do not overlap.
type class struct {
	regions []*matched
}

// size is the number of nodes of a region.
func (c *class) size() int { return len(c.regions[0].nodes) }

// saving is the number of nodes that a function in the place of the regions leaves out.
func (c *class) saving() int { return c.size() * (len(c.regions) - 1) }

// choose groups proposals into classes and picks those that do not overlap; a class needs two instances. Larger regions go first, save that
// a class which saves more goes in front of the larger ones that it overlaps where it has an instance that no larger class covers, or several in one
// region of a larger: a transformer block that lies in several stages of equal depth and in another of its own depth is one function, not a part of the
// stages, and so is one that repeats inside of stages which repeat.
func (ol *outliner) choose(proposals []region) []*class {
	classes := ol.group(proposals)
	classes = preferShared(classes)
	taken := map[*graph.Node]bool{}
	isTaken := func(n *graph.Node) bool { return taken[n] }
	var chosen []*class
	for _, c := range classes {
		free := &class{}
		var nodes []*graph.Node
		for _, r := range c.regions {
			if slices.ContainsFunc(r.nodes, isTaken) {
				continue
			}
			for _, n := range r.nodes {
				taken[n] = true
			}
			nodes = append(nodes, r.nodes...)
			free.regions = append(free.regions, r)
		}
		if len(free.regions) < 2 {
			for _, n := range nodes {
				delete(taken, n)
			}
			continue
		}
		chosen = append(chosen, free)
	}
	return chosen
}

// single makes classes of one region each from proposals that have the form of a chosen class and overlap none, the largest first.
func (ol *outliner) single(proposals []region, chosen []*class) []*class {
	forms := map[uint64]bool{}
	taken := map[*graph.Node]bool{}
	for _, c := range chosen {
		forms[form(c.regions[0])] = true
		for _, r := range c.regions {
			for _, n := range r.nodes {
				taken[n] = true
			}
		}
	}
	isTaken := func(n *graph.Node) bool { return taken[n] }
	var out []*class
	proposals = slices.Clone(proposals)
	slices.SortStableFunc(proposals, func(a, b region) int { return cmp.Compare(len(b.nodes), len(a.nodes)) })
	for _, p := range proposals {
		if slices.ContainsFunc(p.nodes, isTaken) {
			continue
		}
		mt, ok := ol.match(p)
		if !ok || !forms[form(mt)] {
			continue
		}
		for _, n := range p.nodes {
			taken[n] = true
		}
		out = append(out, &class{regions: []*matched{mt}})
	}
	slices.SortStableFunc(out, func(a, b *class) int { return cmp.Compare(ol.at[a.regions[0].nodes[0]], ol.at[b.regions[0].nodes[0]]) })
	return out
}

// form hashes a region's operations and edges without shapes and attributes.
func form(r *matched) uint64 {
	var h maphash.Hash
	h.SetSeed(hashSeed)
	ids := make(map[*graph.Value]int, len(r.nodes)+len(r.externals))
	for _, v := range r.externals {
		ids[v] = len(ids) + 1
	}
	for _, n := range r.nodes {
		maphash.WriteComparable(&h, n.Op)
		maphash.WriteComparable(&h, len(n.Operands))
		for _, o := range n.Operands {
			maphash.WriteComparable(&h, ids[o]) // 0 for a constant
		}
		for _, v := range n.Results {
			ids[v] = len(ids) + 1
		}
	}
	return h.Sum64()
}

// group makes classes of two and more equal regions that do not overlap, the largest regions first. Regions of a class are in the order of the
// entry; of several paths with the same nodes the one with the least beside them names the region, an element of a list ("blocks.0") before
// others, then the shortest.
func (ol *outliner) group(proposals []region) []*class {
	groups := map[uint64][]region{}
	var order []uint64
	for _, p := range proposals {
		var h maphash.Hash
		h.SetSeed(hashSeed)
		for _, n := range p.nodes {
			maphash.WriteComparable(&h, ol.localHash(n))
		}
		sum := h.Sum64()
		if groups[sum] == nil {
			order = append(order, sum)
		}
		groups[sum] = append(groups[sum], p)
	}
	var classes []*class
	for _, sum := range order {
		if len(groups[sum]) < 2 {
			continue
		}
		var found []*class
		for _, p := range groups[sum] {
			mt, ok := ol.match(p)
			if !ok {
				continue
			}
			if i := slices.IndexFunc(found, func(c *class) bool { return equal(c.regions[0], mt) }); i >= 0 {
				found[i].regions = append(found[i].regions, mt)
			} else {
				found = append(found, &class{regions: []*matched{mt}})
			}
		}
		for _, c := range found {
			slices.SortStableFunc(c.regions, func(a, b *matched) int {
				return cmp.Or(cmp.Compare(ol.at[a.nodes[0]], ol.at[b.nodes[0]]), cmp.Compare(a.whole, b.whole),
					cmp.Compare(unlisted(a.label), unlisted(b.label)), cmp.Compare(len(a.label), len(b.label)))
			})
			c.regions = apart(c.regions)
			if len(c.regions) > 1 {
				classes = append(classes, c)
			}
		}
	}
	slices.SortStableFunc(classes, func(a, b *class) int {
		x, y := a.regions[0], b.regions[0]
		return cmp.Or(cmp.Compare(b.size(), a.size()), cmp.Compare(ol.at[x.nodes[0]], ol.at[y.nodes[0]]), cmp.Compare(x.label, y.label))
	})
	return classes
}

// unlisted is 0 for a path that ends with a number, else 1.
func unlisted(path string) int {
	if isNumber(path[strings.LastIndexByte(path, '.')+1:]) {
		return 0
	}
	return 1
}

// apart leaves out regions that overlap one before them.
func apart(regions []*matched) []*matched {
	taken := map[*graph.Node]bool{}
	var out []*matched
	for _, r := range regions {
		if slices.ContainsFunc(r.nodes, func(n *graph.Node) bool { return taken[n] }) {
			continue
		}
		for _, n := range r.nodes {
			taken[n] = true
		}
		out = append(out, r)
	}
	return out
}

// preferShared moves classes of smaller regions in front of larger ones where choose says so. The given order is by size.
func preferShared(classes []*class) []*class {
	// covers holds, for each node, the regions with it of the classes in the order so far.
	type cover struct {
		*class
		region *matched
	}
	covers := map[*graph.Node][]cover{}
	var out []*class
	for _, c := range classes {
		first := len(out)
		alone := false
		inside := map[*matched]int{} // by region of a larger class, how many regions of c lie in it
		for _, r := range c.regions {
			over := covers[r.nodes[0]]
			alone = alone || len(over) == 0
			for _, larger := range over {
				inside[larger.region]++
				alone = alone || inside[larger.region] > 1
				if larger.size() > c.size() && larger.saving() < c.saving() {
					first = min(first, slices.Index(out, larger.class))
				}
			}
		}
		if !alone {
			first = len(out)
		}
		out = slices.Insert(out, first, c)
		for _, r := range c.regions {
			for _, n := range r.nodes {
				covers[n] = append(covers[n], cover{c, r})
			}
		}
	}
	return out
}

// acyclic leaves out classes, those that save least first, until calls in the place of the regions can be put in an order. Each region on its
// own is fine (see match), but of two regions each may need a part of the other.
func (ol *outliner) acyclic(classes []*class) []*class {
	for {
		tangled := ol.tangled(classes)
		if len(tangled) == 0 {
			return classes
		}
		least := slices.MinFunc(tangled, func(a, b *class) int { return cmp.Compare(a.saving(), b.saving()) })
		classes = slices.DeleteFunc(slices.Clone(classes), func(c *class) bool { return c == least })
	}
}

// tangled lists the classes that have a region on a cycle, or between cycles, of the entry with each region drawn together to one point.
func (ol *outliner) tangled(classes []*class) []*class {
	// Points are numbered: regions first, then the other nodes.
	var owner []*class
	point := make(map[*graph.Node]int, len(ol.f.Nodes))
	for _, c := range classes {
		for _, r := range c.regions {
			for _, n := range r.nodes {
				point[n] = len(owner)
			}
			owner = append(owner, c)
		}
	}
	regions := len(owner)
	count := regions
	for _, n := range ol.f.Nodes {
		if _, ok := point[n]; !ok {
			point[n] = count
			count++
		}
	}
	reads, readers := make([][]int, count), make([][]int, count)
	for _, n := range ol.f.Nodes {
		for _, o := range n.Operands {
			if o.Def == nil {
				continue
			}
			if from, to := point[o.Def], point[n]; from != to {
				reads[to] = append(reads[to], from)
				readers[from] = append(readers[from], to)
			}
		}
	}
	gone := make([]bool, count)
	// prune removes points again and again that have no edge in; what is left on both sides is on or between cycles.
	prune := func(in, out [][]int) {
		degree := make([]int, count)
		var ready []int
		for i := range count {
			if gone[i] {
				continue
			}
			for _, j := range in[i] {
				if !gone[j] {
					degree[i]++
				}
			}
			if degree[i] == 0 {
				ready = append(ready, i)
			}
		}
		for len(ready) > 0 {
			i := ready[len(ready)-1]
			ready = ready[:len(ready)-1]
			gone[i] = true
			for _, j := range out[i] {
				if degree[j]--; degree[j] == 0 && !gone[j] {
					ready = append(ready, j)
				}
			}
		}
	}
	prune(reads, readers)
	prune(readers, reads)
	var out []*class
	for i := range regions {
		if !gone[i] && !slices.Contains(out, owner[i]) {
			out = append(out, owner[i])
		}
	}
	return out
}
