package passes

import (
	"slices"

	"github.com/gomlx/compute/dtypes"

	"precast/graph"
)

// cheapNorms writes a GroupNorm of a picture [B,H,W,C], which is y = (x - mean) * a + bias with a = weight / sqrt(variance + eps), as
// y = x * a + (bias - mean * a), with the mean, a and what is added behind barriers, and takes each sum over the positions first over the width and then
// over the height. The variance stays the mean of (x - mean)², which a mean far from zero does not harm.
//
// Without the barriers XLA on the CPU gains nothing by the multiply-add, and a UNet loses by it with the sums in two steps (docs/performance.md has the figures).
// In real numbers the result is the same, in floats the last bits differ: x * a and mean * a cancel where the mean is
// large, and lose about what the rounding of the mean loses in the other form.
//
// What it looks for is the form that nn.GroupNorm has after canonicalize, in float32; inputs of any other rank and groups of one channel are
// left alone.
func cheapNorms(m *graph.Module, _ *Options) error {
	for _, f := range m.Funcs {
		if f.Name == PrepareFunc {
			continue
		}
		if err := cheapNormsOf(m, f); err != nil {
			return err
		}
	}
	return nil
}

func cheapNormsOf(m *graph.Module, f *graph.Func) error {
	uses := graph.Uses(f)
	norms := map[*graph.Node]*groupNorm{} // by the node of the result
	sums, means := map[*graph.Node]bool{}, map[*graph.Node]bool{}
	for _, n := range f.Nodes {
		if g := groupNormOf(n, uses); g != nil {
			norms[n] = g
			sums[g.sum], sums[g.sumOfSquares] = true, true
			means[g.mean.Def] = true
		}
	}
	if len(norms) == 0 {
		return nil
	}
	nodes := f.Nodes
	f.Nodes = make([]*graph.Node, 0, len(nodes))
	replaced := map[*graph.Value]*graph.Value{}
	now := func(v *graph.Value) *graph.Value {
		if r := replaced[v]; r != nil {
			return r
		}
		return v
	}
	e := &emitter{b: graph.NewBuilder(m, f)}
	for _, n := range nodes {
		e.b.Scope = n.Scope
		relink(n, replaced)
		g := norms[n]
		switch {
		case sums[n]:
			ofRows := e.op(graph.OpReduce, n.Operands, n.Attrs.With("dimensions", []int{2}))
			replaced[n.Results[0]] = e.op(graph.OpReduce, []*graph.Value{ofRows}, n.Attrs.With("dimensions", []int{1}))
		case means[n]:
			f.Nodes = append(f.Nodes, n)
			replaced[n.Results[0]] = e.op(graph.OpBarrier, n.Results, nil)
		case g != nil:
			y, perChannel := n.Results[0].Shape, g.a.Shape
			bias := now(g.bias)
			if !bias.Shape.Equal(perChannel) {
				bias = e.op(graph.OpBroadcast, []*graph.Value{bias}, g.biasAxes, perChannel)
			}
			a := now(g.a)
			b := e.op(graph.OpSub, []*graph.Value{bias, e.op(graph.OpMul, []*graph.Value{now(g.mean), a}, nil)}, nil)
			over := func(v *graph.Value) *graph.Value {
				v = e.op(graph.OpBarrier, []*graph.Value{v}, nil)
				return e.op(graph.OpBroadcast, []*graph.Value{v}, graph.Attrs(nil).With("broadcast_dimensions", []int{0, 1, 2, 3}), y)
			}
			scaled := e.op(graph.OpMul, []*graph.Value{now(g.x), over(a)}, nil)
			replaced[n.Results[0]] = e.op(graph.OpAdd, []*graph.Value{scaled, over(b)}, nil)
		default:
			f.Nodes = append(f.Nodes, n)
		}
		if e.failed != nil {
			return e.failed
		}
	}
	for i, r := range f.Results { // nodes read what replaces their operands by now; a barrier goes on reading what it replaces
		f.Results[i] = now(r)
	}
	deadNodes(f)
	return nil
}

// groupNorm is a GroupNorm found in a graph.
type groupNorm struct {
	x                 *graph.Value // [B,H,W,C]
	sum, sumOfSquares *graph.Node  // over height and width: [B,C]
	mean, a           *graph.Value // [B,1,1,C]
	bias              *graph.Value // what biasAxes says how to broadcast
	biasAxes          graph.Attrs
}

// groupNormOf says what n is the result of; nil where it is none of a GroupNorm.
func groupNormOf(n *graph.Node, uses map[*graph.Value][]graph.Use) *groupNorm {
	shape := n.Results[0].Shape
	if n.Op != graph.OpAdd || shape.Rank() != 4 || shape.DType != dtypes.Float32 {
		return nil
	}
	for i, scaled := range n.Operands {
		spread := n.Operands[1-i].Def
		if !isOp(scaled, graph.OpMul) || len(uses[scaled]) != 1 || spread == nil || spread.Op != graph.OpBroadcast || !ofChannels(spread) {
			continue
		}
		for k, centered := range scaled.Def.Operands {
			g := &groupNorm{bias: spread.Operands[0], biasAxes: spread.Attrs}
			// The difference is read by the product and, twice, by the square.
			if !isOp(centered, graph.OpSub) || len(uses[centered]) != 3 {
				continue
			}
			g.x = centered.Def.Operands[0]
			g.mean = perChannelOf(centered.Def.Operands[1])
			g.a = perChannelOf(scaled.Def.Operands[1-k])
			if g.mean == nil || g.a == nil || !isOp(g.a, graph.OpMul) {
				continue
			}
			mean, of := groupSum(spreadOf(g.mean))
			if mean == nil || of != g.x {
				continue
			}
			for _, scale := range g.a.Def.Operands {
				rsqrt := spreadOf(scale)
				if !isOp(rsqrt, graph.OpRsqrt) || !isOp(rsqrt.Def.Operands[0], graph.OpAdd) {
					continue
				}
				for _, variance := range rsqrt.Def.Operands[0].Def.Operands {
					sum, square := groupSum(variance)
					if sum != nil && isOp(square, graph.OpMul) && square.Def.Operands[0] == centered && square.Def.Operands[1] == centered {
						g.sum, g.sumOfSquares = mean, sum
						return g
					}
				}
			}
		}
	}
	return nil
}

// isOp says whether v is the result of an operation of that kind.
func isOp(v *graph.Value, op graph.Op) bool { return v != nil && v.Def != nil && v.Def.Op == op }

// ofChannels says whether a node that broadcasts to [B,H,W,C] repeats one value over all positions.
func ofChannels(n *graph.Node) bool {
	for i, axis := range n.Attrs.Ints("broadcast_dimensions") {
		if (axis == 1 || axis == 2) && n.Operands[0].Shape.Dimensions[i] != 1 {
			return false
		}
	}
	return true
}

// perChannelOf finds the [B,1,1,C] that v, [B,H,W,C], repeats over the positions; nil where v is something else.
func perChannelOf(v *graph.Value) *graph.Value {
	if !isOp(v, graph.OpBroadcast) || !slices.Equal(v.Def.Attrs.Ints("broadcast_dimensions"), []int{0, 1, 2, 3}) {
		return nil
	}
	from, to := v.Def.Operands[0], v.Shape.Dimensions
	if !slices.Equal(from.Shape.Dimensions, []int{to[0], 1, 1, to[3]}) {
		return nil
	}
	return from
}

// spreadOf finds the [B,G] whose values v, [B,1,1,C], repeats for the channels of each group; nil where v is something else.
func spreadOf(v *graph.Value) *graph.Value {
	if !isOp(v, graph.OpReshape) || !isOp(v.Def.Operands[0], graph.OpBroadcast) {
		return nil
	}
	spread := v.Def.Operands[0]
	one := spread.Def.Operands[0]
	if spread.Shape.Rank() != 3 || !slices.Equal(spread.Def.Attrs.Ints("broadcast_dimensions"), []int{0, 1, 2}) || !isOp(one, graph.OpReshape) {
		return nil
	}
	batch, groups := spread.Shape.Dimensions[0], spread.Shape.Dimensions[1]
	from := one.Def.Operands[0]
	if batch != v.Shape.Dimensions[0] || !slices.Equal(one.Shape.Dimensions, []int{batch, groups, 1}) || !slices.Equal(from.Shape.Dimensions, []int{batch, groups}) {
		return nil
	}
	return from
}

// groupSum finds what v, [B,G], is the mean of: the sum over height and width, and the picture that it is taken of. nil where v is something else.
func groupSum(v *graph.Value) (sum *graph.Node, of *graph.Value) {
	if !isOp(v, graph.OpMul) {
		return nil, nil
	}
	for i, ofGroups := range v.Def.Operands {
		if !isOp(v.Def.Operands[1-i], graph.OpConstant) || !isSum(ofGroups, 2) || !isOp(ofGroups.Def.Operands[0], graph.OpReshape) {
			continue
		}
		grouped := ofGroups.Def.Operands[0]
		ofChannels := grouped.Def.Operands[0]
		if grouped.Shape.Rank() != 3 || !isSum(ofChannels, 1, 2) || ofChannels.Shape.Rank() != 2 || grouped.Shape.Dimensions[0] != ofChannels.Shape.Dimensions[0] {
			continue
		}
		return ofChannels.Def, ofChannels.Def.Operands[0]
	}
	return nil, nil
}

// isSum says whether v is a sum over exactly these axes.
func isSum(v *graph.Value, axes ...int) bool {
	return isOp(v, graph.OpReduce) && v.Def.Attrs.String("combiner") == "add" && slices.Equal(v.Def.Attrs.Ints("dimensions"), axes)
}
