// Package cost says from a graph alone what running it costs: operations, bytes moved, weights, and the memory of what is alive at one time.
//
// # What is counted
//
// A multiplication and an addition are two operations (flops); functions such as exp and tanh are counted apart (transcendentals). Bytes read
// and written are those of each op by itself, as if no two were made one loop: a bound from above. A call counts what is called, a while its body and
// condition once a turn where the number of turns shows in the graph and once where it does not, an if the dearer branch. Each op's rule
// is in rules.go.
//
// # What is alive
//
// Activations are the values that the program computes, its results among them: not its weights, not its inputs, not its constants. They are
// placed as a compiler such as XLA places them, in the order that Options ask for:
//
//   - a chain of elementwise and moving ops, each read once, is one loop and only what its last op gives takes memory; so is a cheap op that is read
//     by several loops and made of one large value; broadcasts, iotas and constants that loops alone read take none;
//   - reshapes and barriers are their operand's memory;
//   - an elementwise op, a while or a dynamic_update_slice writes in place where an operand of its result's size is dead afterwards
//     (an elementwise op not through a reshape, nor over a dot that is no plain product of matrices, around which XLA makes reshapes);
//   - a result takes the memory of a donated input of its size that is dead by then;
//   - whatever nobody needs any more is free at once, and there are no gaps.
//
// A called function keeps its caller's operands alive until it returns. Fusion and placing of a real compiler differ in detail, so the peak is an
// estimate.
package cost

import (
	"slices"

	"precast/graph"
)

// Cost is what running something takes.
type Cost struct {
	// Flops are arithmetic operations, Transcendentals evaluations of exp, tanh and the like, which are not in Flops.
	Flops           float64 `json:"flops"`
	Transcendentals float64 `json:"transcendentals"`
	// BytesRead and BytesWritten are the operands' and results' bytes of every op by itself.
	BytesRead    float64 `json:"bytes_read"`
	BytesWritten float64 `json:"bytes_written"`
}

func (c *Cost) add(d Cost, times float64) {
	c.Flops += times * d.Flops
	c.Transcendentals += times * d.Transcendentals
	c.BytesRead += times * d.BytesRead
	c.BytesWritten += times * d.BytesWritten
}

// Node is the cost of a node of the entry function, with all that it calls.
type Node struct {
	Op    graph.Op `json:"op"`
	Scope string   `json:"scope"`
	// Index is the node's position in the entry's Nodes.
	Index int `json:"index"`
	Cost
	// Live are the bytes of activations that are alive while the node runs.
	Live int64 `json:"live_bytes"`
}

// Tensor is a value in memory.
type Tensor struct {
	// Op and Scope are those of the node that wrote it.
	Op    graph.Op `json:"op"`
	Scope string   `json:"scope"`
	Shape string   `json:"shape"`
	Bytes int64    `json:"bytes"`
}

// Peak is where most activations are alive.
type Peak struct {
	// Bytes are those of Tensors.
	Bytes int64 `json:"bytes"`
	// Op and Scope are those of the node at which it is; empty where nothing is computed.
	Op    graph.Op `json:"op,omitempty"`
	Scope string   `json:"scope,omitempty"`
	// Tensors are all that is alive there, the largest first.
	Tensors []Tensor `json:"tensors"`
}

// Report is what a module costs.
type Report struct {
	Module string `json:"module"`
	// Total is one run of the entry; Prepare what functions cost that the entry doesn't reach, which run once at load.
	Total   Cost `json:"total"`
	Prepare Cost `json:"prepare"`
	// UnknownLoops counts whiles whose number of turns does not show in the graph; each is counted as one turn.
	UnknownLoops int `json:"unknown_loops"`

	// Weights are the tensors that the entry reads and WeightBytes their bytes, prepared ones included. Parameters are the elements of the
	// checkpoint's tensors, each once: those that the entry reads as they are, and those that prepared ones are made of.
	Weights     int   `json:"weights"`
	WeightBytes int64 `json:"weight_bytes"`
	Parameters  int64 `json:"parameters"`
	// InputBytes, OutputBytes and ConstantBytes are those of the entry's inputs, its results, and the stored constants of all functions. AliasedBytes is
	// the part of the results that takes donated inputs' memory.
	InputBytes    int64 `json:"input_bytes"`
	OutputBytes   int64 `json:"output_bytes"`
	AliasedBytes  int64 `json:"aliased_bytes"`
	ConstantBytes int64 `json:"constant_bytes"`
	// Peak is where most activations are alive; Temporaries is the most that is alive beside the results, which is what compilers report.
	Peak        Peak  `json:"peak"`
	Temporaries int64 `json:"temporary_bytes"`

	// Nodes are the entry's, in order; Scopes is the tree of module paths.
	Nodes  []Node `json:"-"`
	Scopes *Scope `json:"scopes"`
}

// Options say whose memory is counted.
type Options struct {
	// Order is the one that ops run in. With another than the graph's, Temporaries are those of values that have their places in one piece of memory, as XLA gives
	// them, with the gaps between them.
	Order Order
}

// Analyze computes the cost of a verified module.
func Analyze(m *graph.Module, o Options) *Report {
	a := &analysis{m: m, order: o.Order, costs: map[*graph.Func]Cost{}, memory: map[memoryKey]*memory{}, turns: map[*graph.Node]float64{}}
	r := &Report{Module: m.Name}
	entry := m.Entry()
	r.Total = a.function(entry)
	reached := a.reach(entry)
	derived := map[string]bool{} // weights that functions outside of the entry make
	stored := map[string]int64{}
	for _, f := range m.Funcs {
		f.WalkNodes(func(n *graph.Node) {
			if n.Op == graph.OpConstant {
				l, _ := n.Attrs.Get("value").(graph.Literal)
				r.ConstantBytes += int64(len(l.Data))
			}
		})
		if !reached[f] && !called(m, f) {
			r.Prepare.add(a.function(f), 1)
			for _, name := range f.ResultNames {
				derived[name] = true
			}
			for _, p := range f.Params {
				if p.Kind == graph.Weight {
					stored[p.Name] = int64(elements(p.Value))
				}
			}
		}
	}
	for n := range a.turns {
		if a.turns[n] < 0 {
			r.UnknownLoops++
		}
	}
	for _, p := range entry.Params {
		switch {
		case p.Kind != graph.Weight:
			r.InputBytes += graph.ByteSize(p.Value.Shape)
			continue
		case !derived[p.Name]:
			stored[p.Name] = int64(elements(p.Value))
		}
		r.Weights++
		r.WeightBytes += graph.ByteSize(p.Value.Shape)
	}
	for _, n := range stored {
		r.Parameters += n
	}
	for _, v := range entry.Results {
		r.OutputBytes += graph.ByteSize(v.Shape)
	}
	mem := a.live(entry, false)
	r.AliasedBytes, r.Temporaries = mem.aliased, mem.temporaries
	r.Peak = mem.peak
	slices.SortStableFunc(r.Peak.Tensors, func(x, y Tensor) int {
		switch {
		case x.Bytes > y.Bytes:
			return -1
		case x.Bytes < y.Bytes:
			return 1
		}
		return 0
	})
	for i, n := range entry.Nodes {
		r.Nodes = append(r.Nodes, Node{Op: n.Op, Scope: n.Scope, Index: i, Cost: a.node(n), Live: mem.live[i]})
	}
	r.Scopes = a.scopes(r, reached)
	return r
}

// analysis keeps what is known of functions, which may be called many times.
type analysis struct {
	m      *graph.Module
	order  Order
	costs  map[*graph.Func]Cost
	memory map[memoryKey]*memory
	turns  map[*graph.Node]float64
}

// reach gives f and what it calls, from within regions, too.
func (a *analysis) reach(f *graph.Func) map[*graph.Func]bool {
	seen := map[*graph.Func]bool{}
	var walk func(f *graph.Func)
	walk = func(f *graph.Func) {
		if f == nil || seen[f] {
			return
		}
		seen[f] = true
		f.WalkNodes(func(n *graph.Node) {
			if n.Op == graph.OpCall {
				walk(a.m.Func(n.Attrs.String("callee")))
			}
		})
	}
	walk(f)
	return seen
}

// called reports whether any function calls f.
func called(m *graph.Module, f *graph.Func) bool {
	found := false
	for _, g := range m.Funcs {
		g.WalkNodes(func(n *graph.Node) {
			found = found || n.Op == graph.OpCall && n.Attrs.String("callee") == f.Name
		})
	}
	return found
}

func (a *analysis) function(f *graph.Func) Cost {
	if c, ok := a.costs[f]; ok {
		return c
	}
	var c Cost
	for _, n := range f.Nodes {
		c.add(a.node(n), 1)
	}
	a.costs[f] = c
	return c
}

// node is the cost of a node with what it calls.
func (a *analysis) node(n *graph.Node) Cost {
	var c Cost
	r := rules[n.Op]
	if r.flops != nil {
		c.Flops = r.flops(n)
	}
	if r.transcendentals != nil {
		c.Transcendentals = r.transcendentals(n)
	}
	if r.moved != nil {
		c.BytesRead, c.BytesWritten = r.moved(n)
	} else {
		for _, v := range n.Operands {
			c.BytesRead += bytes(v)
		}
		for _, v := range n.Results {
			c.BytesWritten += bytes(v)
		}
	}
	switch n.Op {
	case graph.OpCall:
		if f := a.m.Func(n.Attrs.String("callee")); f != nil {
			c.add(a.function(f), 1)
		}
	case graph.OpWhile:
		turns := a.turnsOf(n)
		c.add(a.function(n.Regions[0]), turns+1)
		c.add(a.function(n.Regions[1]), turns)
	case graph.OpIf:
		x, y := a.function(n.Regions[0]), a.function(n.Regions[1])
		if y.Flops > x.Flops || y.Flops == x.Flops && y.BytesRead+y.BytesWritten > x.BytesRead+x.BytesWritten {
			x = y
		}
		c.add(x, 1)
	case graph.OpSort:
		// The comparator's arguments are in registers.
		x := a.function(n.Regions[0])
		c.add(Cost{Flops: x.Flops, Transcendentals: x.Transcendentals}, comparisons(n))
	}
	return c
}

// turnsOf is the number of turns of a while, 1 where it doesn't show.
func (a *analysis) turnsOf(n *graph.Node) float64 {
	turns, ok := a.turns[n]
	if !ok {
		count, known := TripCount(n)
		turns = float64(count)
		if !known {
			turns = -1
		}
		a.turns[n] = turns
	}
	if turns < 0 {
		return 1
	}
	return turns
}
