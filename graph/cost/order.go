package cost

import (
	"cmp"
	"slices"

	"precast/graph"
)

// Order is the order in which a compiler runs what does not depend on each other.
type Order uint8

const (
	// GraphOrder is that of the graph, that is, of the network's code.
	GraphOrder Order = iota
	// DepthFirst is that of XLA's DFSMemoryScheduler (xla/hlo/transforms/simplifiers/hlo_memory_scheduler.cc), which XLA on the CPU takes where it is
	// not asked for concurrency: operands before what reads them, those first whose values and whose operands' values have most other readers,
	// then those with most bytes behind them.
	DepthFirst
	// BreadthFirst is that of XLA's BFScheduler: each op as soon as its operands are there, in the order in which they became ready. XLA on the CPU takes it by
	// default, since such ops can run at the same time.
	BreadthFirst
)

// step is something that writes memory, with the steps whose results it reads.
type step struct {
	n *graph.Node
	// at is its place in the graph.
	at             int
	reads, readers []*step
	extra, size    int64
	done           bool
}

// order gives all nodes of the function in the order o. What is computed within a loop comes right before the first loop that needs it.
func (p *placement) order(o Order) []*graph.Node {
	if o == GraphOrder {
		return p.f.Nodes
	}
	steps := map[*graph.Node]*step{}
	var list []*step
	for i, n := range p.f.Nodes {
		if kindOf(n) == alias || p.fused[n] {
			continue
		}
		s := &step{n: n, at: i}
		for _, v := range n.Results {
			s.size += graph.ByteSize(v.Shape)
		}
		for _, v := range p.operands(n) {
			if d := steps[v.Def]; d != nil && !slices.Contains(s.reads, d) {
				s.reads = append(s.reads, d)
				d.readers = append(d.readers, s)
			}
		}
		steps[n] = s
		list = append(list, s)
	}
	var run []*step
	if o == BreadthFirst {
		run = breadthFirst(list)
	} else {
		var roots []*step
		for _, v := range p.f.Results {
			for _, b := range p.from(v) {
				if s := steps[b.value.Def]; s != nil {
					roots = append(roots, s)
				}
			}
		}
		run = depthFirst(list, roots, int64(len(list)+len(p.f.Params)))
	}
	// Loops take along what is computed in them.
	var nodes []*graph.Node
	written := map[*graph.Node]bool{}
	var write func(n *graph.Node)
	write = func(n *graph.Node) {
		if n == nil || written[n] {
			return
		}
		written[n] = true
		for _, v := range n.Operands {
			if v.Def != nil && steps[v.Def] == nil {
				write(v.Def)
			}
		}
		nodes = append(nodes, n)
	}
	for _, s := range run {
		write(s.n)
	}
	for _, n := range p.f.Nodes {
		write(n)
	}
	return nodes
}

// operands are the values in memory that the loop of n reads, in XLA's order: what is computed last is taken into the loop first, and what it reads
// comes behind what the loop reads already (InstructionFusion, xla/service/instruction_fusion.cc).
func (p *placement) operands(n *graph.Node) []*graph.Value {
	list := slices.Clone(n.Operands)
	for {
		last, at := -1, -1
		for i, v := range list {
			if v.Def != nil && p.buffers[v] == nil && p.index[v.Def] > at {
				last, at = i, p.index[v.Def]
			}
		}
		if last < 0 {
			return list
		}
		def := list[last].Def
		list = slices.Delete(list, last, last+1)
		for _, v := range def.Operands {
			if !slices.Contains(list, v) {
				list = append(list, v)
			}
		}
	}
}

// depthFirst is in the order of a walk from the results. Sums are bounded as XLA bounds them, against overflow in graphs with many paths: deep in a network
// the bounds decide.
func depthFirst(list, roots []*step, instructions int64) []*step {
	var total int64
	var post []*step
	var sum func(s *step)
	sum = func(s *step) {
		if s.done {
			return
		}
		s.done = true
		for _, d := range s.reads {
			sum(d)
		}
		post = append(post, s)
	}
	for _, s := range append(slices.Clone(roots), list...) {
		sum(s)
	}
	for _, s := range post {
		total += s.size
		s.extra = int64(max(len(s.readers)-1, 0))
		for _, d := range s.reads {
			s.extra += d.extra
			s.size += d.size
		}
		s.extra, s.size = min(s.extra, instructions), min(s.size, total)
		s.done = false
	}
	first := func(a, b *step) int {
		return cmp.Or(cmp.Compare(b.extra, a.extra), cmp.Compare(b.size, a.size), cmp.Compare(instructionName(a.n), instructionName(b.n)), cmp.Compare(a.at, b.at))
	}
	var run []*step
	var visit func(from []*step)
	visit = func(from []*step) {
		from = slices.Clone(from)
		slices.SortStableFunc(from, first)
		for _, s := range from {
			if !s.done {
				s.done = true
				visit(s.reads)
				run = append(run, s)
			}
		}
	}
	visit(roots)
	for _, s := range list {
		if !s.done { // nobody needs it
			visit([]*step{s})
		}
	}
	return run
}

// instructionName is what XLA's name of an instruction begins with.
func instructionName(n *graph.Node) string {
	switch n.Op {
	case graph.OpDot:
		return "dot"
	case graph.OpReduce:
		return "wrapped_reduce"
	}
	return string(n.Op)
}

// breadthFirst is a queue of what is ready.
func breadthFirst(list []*step) []*step {
	waits := map[*step]int{}
	var queue []*step
	for _, s := range list {
		if waits[s] = len(s.reads); waits[s] == 0 {
			queue = append(queue, s)
		}
	}
	for i := 0; i < len(queue); i++ {
		for _, r := range queue[i].readers {
			if waits[r]--; waits[r] == 0 {
				queue = append(queue, r)
			}
		}
	}
	return queue
}

// block is memory that is taken from one step to another, both included.
type block struct {
	size        int64
	from, until int
	offset      int64
	result      bool
}

// alignment is XLA's of buffers on the CPU, in bytes (cpu_function_runtime::MinAlign).
const alignment = 64

// extent places blocks in one piece of memory and returns its size. It does as XLA's GlobalDecreasingSizeBestFitHeap
// (xla/service/heap_simulator): the largest block first, each in the smallest gap between those that are there at the same time; once more with the block that is
// there longest first; and the better of the two.
func extent(blocks []*block) int64 {
	for _, b := range blocks {
		b.size = (b.size + alignment - 1) / alignment * alignment
	}
	bySize := func(a, b *block) int {
		return cmp.Or(cmp.Compare(b.size, a.size), cmp.Compare(b.until-b.from, a.until-a.from), cmp.Compare(a.from, b.from))
	}
	byTime := func(a, b *block) int {
		return cmp.Or(cmp.Compare(b.until-b.from, a.until-a.from), cmp.Compare(b.size, a.size), cmp.Compare(a.from, b.from))
	}
	return min(pack(blocks, bySize), pack(blocks, byTime))
}

func pack(blocks []*block, first func(a, b *block) int) int64 {
	blocks = slices.Clone(blocks)
	slices.SortStableFunc(blocks, first)
	var placed, beside []*block // by offset
	var end int64
	for _, b := range blocks {
		beside = beside[:0]
		for _, o := range placed {
			if o.from <= b.until && b.from <= o.until {
				beside = append(beside, o)
			}
		}
		var top, at, best int64 = 0, -1, 0
		for _, o := range beside {
			if gap := o.offset - top; gap >= b.size && (at < 0 || gap < best) {
				at, best = top, gap
			}
			top = max(top, o.offset+o.size)
		}
		if at < 0 {
			at = top
		}
		b.offset = at
		end = max(end, at+b.size)
		i, _ := slices.BinarySearchFunc(placed, b, func(x, y *block) int { return cmp.Compare(x.offset, y.offset) })
		placed = slices.Insert(placed, i, b)
	}
	return end
}
