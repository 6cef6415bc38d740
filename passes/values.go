package passes

import "precast/graph"

// relink makes n read what its operands were replaced by. The operands may be shared with other nodes: they are copied before they change.
func relink(n *graph.Node, replaced map[*graph.Value]*graph.Value) {
	for i, o := range n.Operands {
		if r := replaced[o]; r != nil {
			operands := make([]*graph.Value, len(n.Operands))
			copy(operands, n.Operands[:i])
			for k := i; k < len(operands); k++ {
				if operands[k] = n.Operands[k]; replaced[operands[k]] != nil {
					operands[k] = replaced[operands[k]]
				}
			}
			n.Operands = operands
			return
		}
	}
}

// appendCopy appends a copy of n that reads what values maps its operands to, and adds the copy's results to values.
func appendCopy(f *graph.Func, n *graph.Node, values map[*graph.Value]*graph.Value) *graph.Node {
	c := graph.CloneNode(n, values)
	f.Nodes = append(f.Nodes, c)
	return c
}

// emitter appends nodes of one result and keeps the first error, after which it appends none.
type emitter struct {
	b      *graph.Builder
	failed error
}

func (e *emitter) op(op graph.Op, operands []*graph.Value, attrs graph.Attrs, want ...graph.Shape) *graph.Value {
	if e.failed != nil {
		return nil
	}
	n, err := e.b.Op(op, operands, attrs, want...)
	if err != nil {
		e.failed = err
		return nil
	}
	return n.Results[0]
}
