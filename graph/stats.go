package graph

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// ModuleStats counts what a module holds.
type ModuleStats struct {
	Module string      `json:"module"`
	Funcs  []FuncStats `json:"funcs"`
	// Nodes counts all nodes, those of regions included; ExpandedNodes counts each private func once a call, as if every call
	// were inlined.
	Nodes         int `json:"nodes"`
	ExpandedNodes int `json:"expanded_nodes"`
	// Ops are the nodes by operation, most frequent first.
	Ops []OpCount `json:"ops"`
	// Inputs and Weights are parameters of the entry; the bytes are those of their values.
	Inputs      int   `json:"inputs"`
	InputBytes  int64 `json:"input_bytes"`
	Weights     int   `json:"weights"`
	WeightBytes int64 `json:"weight_bytes"`
	// Constants counts constant nodes, ConstantBytes their stored bytes (one element for a splat).
	Constants     int   `json:"constants"`
	ConstantBytes int64 `json:"constant_bytes"`
}

// FuncStats counts what one func holds.
type FuncStats struct {
	Name       string `json:"name"`
	BlockClass string `json:"block_class,omitempty"`
	Params     int    `json:"params"`
	Nodes      int    `json:"nodes"`
	// Calls is the number of call nodes in the module that name the func.
	Calls int `json:"calls"`
}

// OpCount is a number of nodes of one operation.
type OpCount struct {
	Op    Op  `json:"op"`
	Count int `json:"count"`
}

// Stats counts what a verified module holds.
func Stats(m *Module) ModuleStats {
	s := ModuleStats{Module: m.Name}
	ops := map[Op]int{}
	calls := map[string]int{}
	own := map[*Func]int{} // nodes with regions
	callees := map[*Func][]string{}
	for _, f := range m.Funcs {
		f.WalkNodes(func(n *Node) {
			own[f]++
			ops[n.Op]++
			switch n.Op {
			case OpCall:
				name := n.Attrs.String("callee")
				calls[name]++
				callees[f] = append(callees[f], name)
			case OpConstant:
				s.Constants++
				l, _ := n.Attrs.Get("value").(Literal)
				s.ConstantBytes += int64(len(l.Data))
			}
		})
		s.Nodes += own[f]
	}
	for _, f := range m.Funcs {
		s.Funcs = append(s.Funcs, FuncStats{f.Name, f.BlockClass, len(f.Params), own[f], calls[f.Name]})
	}
	for op, n := range ops {
		s.Ops = append(s.Ops, OpCount{op, n})
	}
	slices.SortFunc(s.Ops, func(a, b OpCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Op, b.Op))
	})
	for _, p := range m.Entry().Params {
		if p.Kind == Weight {
			s.Weights++
			s.WeightBytes += ByteSize(p.Value.Shape)
		} else {
			s.Inputs++
			s.InputBytes += ByteSize(p.Value.Shape)
		}
	}
	expanded := map[*Func]int{}
	var expand func(f *Func) int
	expand = func(f *Func) int {
		if n, ok := expanded[f]; ok {
			return n
		}
		n := own[f] - len(callees[f])
		for _, name := range callees[f] {
			if callee := m.callee(name); callee != nil {
				n += expand(callee)
			}
		}
		expanded[f] = n
		return n
	}
	s.ExpandedNodes = expand(m.Entry())
	return s
}

// String is a short table.
func (s ModuleStats) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "module %s: %d nodes (%d with calls inlined)\n", s.Module, s.Nodes, s.ExpandedNodes)
	fmt.Fprintf(&b, "inputs %d (%d bytes), weights %d (%d bytes), constants %d (%d bytes)\n",
		s.Inputs, s.InputBytes, s.Weights, s.WeightBytes, s.Constants, s.ConstantBytes)
	for _, f := range s.Funcs {
		fmt.Fprintf(&b, "func @%s: %d parameters, %d nodes", f.Name, f.Params, f.Nodes)
		if f.Calls > 0 {
			fmt.Fprintf(&b, ", called %d times", f.Calls)
		}
		if f.BlockClass != "" {
			fmt.Fprintf(&b, ", class %s", f.BlockClass)
		}
		b.WriteByte('\n')
	}
	for _, o := range s.Ops {
		fmt.Fprintf(&b, "%8d %s\n", o.Count, o.Op)
	}
	return b.String()
}
