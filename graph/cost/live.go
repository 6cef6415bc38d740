package cost

import (
	"slices"

	"precast/graph"
)

// memory is what a function needs beside its parameters while it runs.
type memory struct {
	// live[i] are the bytes alive while node i runs, before[i] those that stay from the nodes before, without node i's own; placed[i] the bytes of
	// node i's results that take memory.
	live, before, placed []int64
	peak                 Peak
	temporaries          int64
	aliased              int64
}

type memoryKey struct {
	f *graph.Func
	// state says that every parameter's memory may be taken: the body of a while.
	state bool
}

// buffer is memory that values share.
type buffer struct {
	value  *graph.Value
	bytes  int64 // 0 where the memory is a parameter's
	size   int64
	born   int
	last   int // the last node that reads it, the number of nodes for a result
	result bool
	param  bool
}

// placement says where a function's values are.
type placement struct {
	f       *graph.Func
	uses    map[*graph.Value][]graph.Use
	buffers map[*graph.Value]*buffer
	fused   map[*graph.Node]bool
	sources map[*graph.Value][]*buffer
	// nodes are the function's in the order in which they run; index is each one's place in the graph.
	nodes []*graph.Node
	index map[*graph.Node]int
}

// place gives every value that takes memory its buffer, and says how long it is there when the nodes run in the order o.
func place(f *graph.Func, o Order, donated func(*graph.Param) bool) *placement {
	p := &placement{
		f: f, uses: graph.Uses(f), buffers: map[*graph.Value]*buffer{}, fused: map[*graph.Node]bool{}, sources: map[*graph.Value][]*buffer{},
		index: map[*graph.Node]int{},
	}
	for _, q := range f.Params {
		if donated(q) {
			p.buffers[q.Value] = &buffer{value: q.Value, size: graph.ByteSize(q.Value.Shape), last: -1, born: -1, param: true}
		}
	}
	for i, n := range f.Nodes {
		p.index[n] = i
		k := kindOf(n)
		if k == alias || p.isFused(n) {
			continue
		}
		for _, v := range n.Results {
			size := graph.ByteSize(v.Shape)
			b := &buffer{value: v, bytes: size, size: size}
			if n.Op == graph.OpConstant {
				b.bytes = 0 // in the program
			}
			p.buffers[v] = b
		}
	}
	p.nodes = p.order(o)
	for i, n := range p.nodes {
		for _, v := range n.Results {
			if b := p.buffers[v]; b != nil {
				b.born, b.last = i, i
			}
		}
	}
	read := func(v *graph.Value, at int, result bool) {
		for _, b := range p.from(v) {
			b.last = max(b.last, at)
			b.result = b.result || result
		}
	}
	for i, n := range p.nodes {
		if kindOf(n) == alias || p.fused[n] {
			continue
		}
		for _, v := range n.Operands {
			read(v, i, false)
		}
	}
	for _, v := range f.Results {
		read(v, len(f.Nodes), true)
	}
	return p
}

// kindOf is the kind of the node's op, but for concatenations that XLA on the CPU makes no part of a loop: those along the last axis and those of many values
// (CpuInstructionFusion::ShouldFuse in xla/service/cpu/cpu_instruction_fusion.cc).
func kindOf(n *graph.Node) kind {
	const many = 8
	if n.Op == graph.OpConcat && (len(n.Operands) > many || n.Results[0].Shape.Rank() > 1 && n.Attrs.Int("dimension") == n.Results[0].Shape.Rank()-1) {
		return opaque
	}
	return rules[n.Op].kind
}

// isFused decides whether a node is computed within the loops that read it.
func (p *placement) isFused(n *graph.Node) bool {
	k := kindOf(n)
	if k != free && k != loop && k != elementwise || len(n.Results) != 1 {
		return false
	}
	loops, count := p.readers(n.Results[0], k == free)
	p.fused[n] = loops && count > 0 && (k == free || count == 1 || p.again(n))
	return p.fused[n]
}

// again reports whether each of several readers computes n by itself: it is cheap and keeps no more alive than its result would.
func (p *placement) again(n *graph.Node) bool {
	if r := rules[n.Op]; r.kind != elementwise || r.transcendentals != nil || n.Op == graph.OpDiv || n.Op == graph.OpRem {
		return false
	}
	size, large := graph.ByteSize(n.Results[0].Shape), 0
	for _, b := range p.from(n.Results[0]) {
		if 2*b.size >= size {
			large++
		}
	}
	return large <= 1
}

// readers counts the nodes that read v, through reshapes, and says whether all are loops. A broadcast reads an element many times: only what costs
// nothing is computed there.
func (p *placement) readers(v *graph.Value, cheap bool) (loops bool, count int) {
	for _, u := range p.uses[v] {
		if u.Node == nil {
			return false, 0
		}
		switch kindOf(u.Node) {
		case loop, elementwise, closing:
			count++
		case free:
			if !cheap {
				return false, 0
			}
			count++
		case alias:
			if len(u.Node.Results) != 1 {
				return false, 0
			}
			ok, n := p.readers(u.Node.Results[0], cheap)
			if !ok {
				return false, 0
			}
			count += n
		default:
			return false, 0
		}
	}
	return true, count
}

// from lists the buffers that have to be there for v to be read.
func (p *placement) from(v *graph.Value) []*buffer {
	if b := p.buffers[v]; b != nil {
		return []*buffer{b}
	}
	n := v.Def
	if n == nil {
		return nil
	}
	if list, ok := p.sources[v]; ok {
		return list
	}
	var list []*buffer
	if kindOf(n) == alias {
		list = p.from(n.Operands[min(v.Index, len(n.Operands)-1)])
	} else {
		for _, o := range n.Operands {
			for _, b := range p.from(o) {
				if !slices.Contains(list, b) {
					list = append(list, b)
				}
			}
		}
	}
	p.sources[v] = list
	return list
}

// sameIndex lists the buffers that the values are read from element by element, so that their reader may write over them.
//
// XLA does not look through reshapes within a loop. It makes them itself around a dot, which it computes as a product of matrices or a batch of such.
func (p *placement) sameIndex(values []*graph.Value) []*buffer {
	var list []*buffer
	seen := map[*graph.Value]bool{}
	var visit func(values []*graph.Value)
	visit = func(values []*graph.Value) {
		for _, v := range values {
			if seen[v] {
				continue
			}
			seen[v] = true
			n := v.Def
			if b := p.buffers[v]; b != nil {
				if n == nil || n.Op != graph.OpDot || plainDot(n) {
					list = append(list, b)
				}
				continue
			}
			if n != nil && kindOf(n) == elementwise {
				visit(n.Operands)
			}
		}
	}
	visit(values)
	return list
}

// plainDot reports whether a dot is a product of two matrices, or of a batch of them along one dimension that both have first.
func plainDot(n *graph.Node) bool {
	batch := n.Attrs.Ints("lhs_batching")
	contracting := len(n.Attrs.Ints("lhs_contracting"))
	lhs, rhs := n.Operands[0].Shape.Rank(), n.Operands[1].Shape.Rank()
	return len(batch) <= 1 && lhs-len(batch)-contracting == 1 && rhs-len(batch)-contracting == 1
}

// inPlace lists the buffers that result i of node n may be written over, if they are dead afterwards.
func (p *placement) inPlace(n *graph.Node, i int) []*buffer {
	switch {
	case kindOf(n) == elementwise:
		return p.sameIndex(n.Operands)
	case n.Op == graph.OpWhile:
		return p.from(n.Operands[i])
	case n.Op == graph.OpDynUpdSlice, n.Op == graph.OpScatter:
		return p.from(n.Operands[0])
	}
	return nil
}

// live walks a function in order.
func (a *analysis) live(f *graph.Func, state bool) *memory {
	key := memoryKey{f, state}
	if m, ok := a.memory[key]; ok {
		return m
	}
	p := place(f, a.order, func(q *graph.Param) bool { return q.Donated || state })
	m := &memory{live: make([]int64, len(f.Nodes)), before: make([]int64, len(f.Nodes)), placed: make([]int64, len(f.Nodes))}
	a.memory[key] = m
	dying := make([][]*buffer, len(f.Nodes)+1)
	var donated []*buffer
	for _, q := range f.Params {
		if b := p.buffers[q.Value]; b != nil && !b.result {
			donated = append(donated, b)
		}
	}
	for _, n := range f.Nodes {
		for _, v := range n.Results {
			if b := p.buffers[v]; b != nil {
				dying[b.last] = append(dying[b.last], b)
			}
		}
	}
	var now, temporary int64
	died := map[*buffer]int{} // the last node at which it takes memory
	free := func(b *buffer) {
		now -= b.bytes
		if !b.result {
			temporary -= b.bytes
		}
	}
	var innerPeak *Peak
	at := -1
	blocks := map[*buffer]*block{}
	var scratch []*block
	for i, n := range p.nodes {
		k := p.index[n]
		m.before[k] = now
		var inner *memory
		consider := func(g *graph.Func, state bool) {
			if g == nil {
				return
			}
			if x := a.live(g, state); inner == nil || x.peak.Bytes > inner.peak.Bytes {
				inner = x
			}
		}
		switch n.Op {
		case graph.OpCall:
			consider(a.m.Func(n.Attrs.String("callee")), false)
		case graph.OpIf, graph.OpWhile:
			for _, r := range n.Regions {
				consider(r, n.Op == graph.OpWhile)
			}
		}
		// What a call or an if gives is among what the callee has alive; what a while gives is there during all turns.
		kept, keptTemporary := now, temporary
		for j, v := range n.Results {
			b := p.buffers[v]
			if b == nil {
				continue
			}
			m.placed[k] += b.bytes
			taken := &block{size: b.size, from: i}
			candidates := p.inPlace(n, j)
			if over := slices.IndexFunc(candidates, func(o *buffer) bool {
				_, gone := died[o]
				return o.last == i && o.size == b.size && !gone && o.bytes > 0
			}); over >= 0 {
				o := candidates[over]
				died[o] = i - 1
				free(o)
				taken = blocks[o]
			}
			if b.result {
				if j := slices.IndexFunc(donated, func(d *buffer) bool { return d.size == b.size && d.last <= i }); j >= 0 {
					donated = slices.Delete(donated, j, j+1)
					m.aliased += b.size
					m.placed[k] -= b.bytes
					b.bytes = 0
				}
			}
			taken.until, taken.result = b.last, b.result
			blocks[b] = taken
			now += b.bytes
			if !b.result {
				temporary += b.bytes
			}
		}
		most, mostTemporary := now, temporary
		if inner != nil {
			if n.Op == graph.OpWhile {
				most += inner.peak.Bytes
				mostTemporary += inner.peak.Bytes
			} else {
				most = max(most, kept+inner.peak.Bytes)
				mostTemporary = max(mostTemporary, keptTemporary+inner.temporaries)
			}
		}
		if inner != nil {
			scratch = append(scratch, &block{size: inner.temporaries, from: i, until: i})
		}
		m.live[k] = most
		m.temporaries = max(m.temporaries, mostTemporary)
		if most > m.peak.Bytes {
			m.peak.Bytes, at = most, i
			innerPeak = nil
			if inner != nil && (n.Op == graph.OpWhile || kept+inner.peak.Bytes >= now) {
				innerPeak = &inner.peak
			}
		}
		for _, b := range dying[i] {
			if _, gone := died[b]; !gone {
				died[b] = i
				free(b)
			}
		}
	}
	if at >= 0 {
		m.atPeak(p, at, died, innerPeak)
	}
	if a.order != GraphOrder {
		seen := map[*block]bool{}
		for _, n := range p.nodes {
			for _, v := range n.Results {
				// What computes in a result's memory is no temporary.
				if b := p.buffers[v]; b != nil && b.bytes > 0 && !blocks[b].result && !seen[blocks[b]] {
					seen[blocks[b]] = true
					scratch = append(scratch, blocks[b])
				}
			}
		}
		m.temporaries = extent(scratch)
	}
	return m
}

// atPeak lists what is alive at node i.
func (m *memory) atPeak(p *placement, at int, died map[*buffer]int, inner *Peak) {
	n := p.nodes[at]
	m.peak.Op, m.peak.Scope = n.Op, n.Scope
	for i, d := range p.nodes[:at+1] {
		if i == at && inner != nil && n.Op != graph.OpWhile {
			break // what the call gives is among what the callee has
		}
		for _, v := range d.Results {
			b := p.buffers[v]
			if b == nil || b.bytes == 0 {
				continue
			}
			if last, gone := died[b]; gone && last < at {
				continue
			}
			m.peak.Tensors = append(m.peak.Tensors, Tensor{d.Op, d.Scope, graph.ShapeString(v.Shape), b.bytes})
		}
	}
	if inner == nil {
		return
	}
	for _, t := range inner.Tensors {
		t.Scope = join(n, t.Scope)
		m.peak.Tensors = append(m.peak.Tensors, t)
	}
	m.peak.Op, m.peak.Scope = inner.Op, join(n, inner.Scope)
}
