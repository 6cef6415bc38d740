package passes

import (
	"github.com/gomlx/compute/dtypes"

	"precast/graph"
)

// doubleRows computes a product of one row with a half-precision matrix as that of two equal rows, of which the first is kept: x [1, K] . w becomes
// ([x; x] . w)[0]. XLA on the CPU has a kernel that reads bfloat16 weights as they are for products of matrices only; for a vector it
// first writes the whole matrix anew in float32 (docs/performance.md has the figures). Each element is the same sum as before.
//
// It leaves alone what has batch axes or more than one contracted axis, and products with constants or activations as the matrix: only a
// weight of the function, stored or prepared, is large for certain.
func doubleRows(m *graph.Module, _ *Options) error {
	for _, f := range m.Funcs {
		if f.Name == PrepareFunc {
			continue
		}
		weights := map[*graph.Value]bool{}
		for _, p := range f.Params {
			weights[p.Value] = p.Kind == graph.Weight
		}
		nodes := f.Nodes
		f.Nodes = make([]*graph.Node, 0, len(nodes))
		replaced := map[*graph.Value]*graph.Value{}
		for _, n := range nodes {
			relink(n, replaced)
			if !oneRow(n) || !weights[n.Operands[1]] {
				f.Nodes = append(f.Nodes, n)
				continue
			}
			y, err := twoRows(m, f, n)
			if err != nil {
				return err
			}
			replaced[n.Results[0]] = y
		}
		graph.ReplaceUses(f, replaced)
	}
	return nil
}

// oneRow says whether n is a product of one row with a matrix, both in half precision.
func oneRow(n *graph.Node) bool {
	if n.Op != graph.OpDot {
		return false
	}
	x, w := n.Operands[0].Shape, n.Operands[1].Shape
	contracting := n.Attrs.Ints("lhs_contracting")
	return x.DType == dtypes.BFloat16 && w.DType == dtypes.BFloat16 && w.Rank() == 2 &&
		len(contracting) == 1 && len(n.Attrs.Ints("lhs_batching")) == 0 && x.Size() == x.Dimensions[contracting[0]]
}

// twoRows appends to f what n computes, by two rows.
func twoRows(m *graph.Module, f *graph.Func, n *graph.Node) (*graph.Value, error) {
	e := &emitter{b: graph.NewBuilder(m, f)}
	e.b.Scope = n.Scope
	x, w, out := n.Operands[0], n.Operands[1], n.Results[0].Shape
	k, columns := x.Shape.Size(), out.Size()
	shape := func(dtype graph.DType, dims ...int) graph.Shape { return graph.Shape{DType: dtype, Dimensions: dims} }
	row := x
	if x.Shape.Rank() != 2 || x.Shape.Dimensions[0] != 1 {
		row = e.op(graph.OpReshape, []*graph.Value{x}, nil, shape(x.Shape.DType, 1, k))
	}
	rows := e.op(graph.OpBroadcast, []*graph.Value{row}, graph.Attrs{{Name: "broadcast_dimensions", Value: []int{0, 1}}}, shape(x.Shape.DType, 2, k))
	y := e.op(graph.OpDot, []*graph.Value{rows, w}, n.Attrs.With("lhs_contracting", []int{1}), shape(out.DType, 2, columns))
	y = e.op(graph.OpSlice, []*graph.Value{y}, graph.Attrs{{Name: "limit_indices", Value: []int{1, columns}}, {Name: "start_indices", Value: []int{0, 0}}})
	if out.Rank() != 2 {
		y = e.op(graph.OpReshape, []*graph.Value{y}, nil, out)
	}
	return y, e.failed
}
