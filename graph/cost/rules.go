package cost

import "precast/graph"

// rule is what one node of an op costs. A nil function is an explicit zero.
type rule struct {
	// flops are arithmetic operations, transcendentals evaluations of a function that hardware has no instruction for, as XLA tells them apart
	// (xla/service/hlo_cost_analysis.cc).
	flops, transcendentals func(n *graph.Node) float64
	// moved are the bytes read and written; nil means all operands and all results.
	moved func(n *graph.Node) (read, written float64)
	kind  kind
}

// kind says what becomes of an op's result in memory.
type kind uint8

const (
	// opaque: the operands are read from memory, the result is written to it.
	opaque kind = iota
	// loop: each result element is computed from a few operand elements, so that a compiler makes one loop of several such ops.
	loop
	// elementwise is a loop whose result may take the memory of an operand of its size that nobody needs any more.
	elementwise
	// free is a loop over an operand that is smaller than the result or none: never worth memory where a loop reads it.
	free
	// closing is a loop that others can't go on from: it is worth a loop of its own (a reduction).
	closing
	// alias: the results are the operands' memory.
	alias
	// control: counted by what is called.
	control
)

// rules has a row for every op of graph.Ops.
var rules = map[graph.Op]rule{
	graph.OpConstant: {moved: nothing, kind: free},
	graph.OpIota:     {kind: free},

	graph.OpAbs:      {flops: each, kind: elementwise},
	graph.OpCeil:     {flops: each, kind: elementwise},
	graph.OpConvert:  {flops: each, kind: elementwise},
	graph.OpFloor:    {flops: each, kind: elementwise},
	graph.OpIsFinite: {flops: each, kind: elementwise},
	graph.OpNeg:      {flops: each, kind: elementwise},
	graph.OpNot:      {flops: each, kind: elementwise},
	graph.OpRound:    {flops: each, kind: elementwise},
	graph.OpSign:     {flops: each, kind: elementwise},
	graph.OpPopcnt:   {flops: each, kind: elementwise},
	graph.OpClz:      {flops: each, kind: elementwise},
	graph.OpCos:      {transcendentals: each, kind: elementwise},
	graph.OpErf:      {transcendentals: each, kind: elementwise},
	graph.OpExp:      {transcendentals: each, kind: elementwise},
	graph.OpExpm1:    {transcendentals: each, kind: elementwise},
	graph.OpLog:      {transcendentals: each, kind: elementwise},
	graph.OpLog1p:    {transcendentals: each, kind: elementwise},
	graph.OpRsqrt:    {transcendentals: each, kind: elementwise},
	graph.OpSin:      {transcendentals: each, kind: elementwise},
	graph.OpSqrt:     {transcendentals: each, kind: elementwise},
	graph.OpTanh:     {transcendentals: each, kind: elementwise},
	// 1 / (1 + exp(-x)): a negation, a sum, a quotient and the exponential.
	graph.OpLogistic: {flops: func(n *graph.Node) float64 { return 3 * each(n) }, transcendentals: each, kind: elementwise},
	graph.OpBitcast:  {moved: nothing, kind: alias},

	graph.OpAdd:      {flops: each, kind: elementwise},
	graph.OpSub:      {flops: each, kind: elementwise},
	graph.OpMul:      {flops: each, kind: elementwise},
	graph.OpDiv:      {flops: each, kind: elementwise},
	graph.OpRem:      {flops: each, kind: elementwise},
	graph.OpMax:      {flops: each, kind: elementwise},
	graph.OpMin:      {flops: each, kind: elementwise},
	graph.OpAnd:      {flops: each, kind: elementwise},
	graph.OpOr:       {flops: each, kind: elementwise},
	graph.OpXor:      {flops: each, kind: elementwise},
	graph.OpShl:      {flops: each, kind: elementwise},
	graph.OpShrArith: {flops: each, kind: elementwise},
	graph.OpShrLogic: {flops: each, kind: elementwise},
	graph.OpCompare:  {flops: each, kind: elementwise},
	graph.OpPow:      {transcendentals: each, kind: elementwise},
	graph.OpAtan2:    {transcendentals: each, kind: elementwise},

	graph.OpSelect: {flops: each, kind: elementwise},
	graph.OpClamp:  {flops: func(n *graph.Node) float64 { return 2 * each(n) }, kind: elementwise},

	// What only moves elements computes nothing.
	graph.OpBroadcast:   {kind: free},
	graph.OpReshape:     {moved: nothing, kind: alias},
	graph.OpTranspose:   {kind: loop},
	graph.OpSlice:       {moved: taken, kind: loop},
	graph.OpConcat:      {kind: loop},
	graph.OpPad:         {kind: loop},
	graph.OpReverse:     {kind: loop},
	graph.OpGather:      {moved: taken, kind: loop},
	graph.OpDynSlice:    {moved: taken, kind: loop},
	graph.OpDynUpdSlice: {moved: put, kind: opaque},
	graph.OpScatter: {flops: func(n *graph.Node) float64 { return elements(n.Operands[2]) }, moved: func(n *graph.Node) (read, written float64) {
		updates := bytes(n.Operands[2])
		return 2*updates + bytes(n.Operands[1]), updates
	}, kind: opaque},

	// A result of n elements takes n - 1 operations.
	graph.OpReduce: {flops: func(n *graph.Node) float64 { return max(elements(n.Operands[0])-elements(n.Results[0]), 0) }, kind: closing},
	// A comparison and a choice, of the value and of its index.
	graph.OpArgMinMax: {flops: func(n *graph.Node) float64 { return 3 * max(elements(n.Operands[0])-elements(n.Results[0]), 0) }, kind: closing},
	graph.OpReduceWindow: {flops: func(n *graph.Node) float64 {
		window := 1.0
		for _, w := range n.Attrs.Ints("window_dimensions") {
			window *= float64(w)
		}
		return (window - 1) * each(n)
	}, kind: opaque},
	graph.OpDot:  {flops: dot, kind: opaque},
	graph.OpConv: {flops: convolution, kind: opaque},

	// A counter's block cipher of some ten rounds; no network draws bits inside a program, so the figure carries no weight.
	graph.OpRngBits: {flops: func(n *graph.Node) float64 { return 10 * elements(n.Results[1]) }, kind: opaque},
	graph.OpBarrier: {moved: nothing, kind: alias},
	// The comparator is counted by Analyze, once a comparison.
	graph.OpSort:  {kind: opaque},
	graph.OpWhile: {moved: nothing, kind: control},
	graph.OpIf:    {moved: nothing, kind: control},
	graph.OpCall:  {moved: nothing, kind: control},
}

func elements(v *graph.Value) float64 {
	n := 1.0
	for _, d := range v.Shape.Dimensions {
		n *= float64(d)
	}
	return n
}

func bytes(v *graph.Value) float64 { return float64(graph.ByteSize(v.Shape)) }

// each is one for each element of the result.
func each(n *graph.Node) float64 { return elements(n.Results[0]) }

func nothing(*graph.Node) (read, written float64) { return 0, 0 }

// taken is of an op that reads as much of its first operand as it writes.
func taken(n *graph.Node) (read, written float64) {
	written = bytes(n.Results[0])
	read = written
	for _, v := range n.Operands[1:] {
		read += bytes(v)
	}
	return read, written
}

// put is of an op that writes its second operand into its first, in place.
func put(n *graph.Node) (read, written float64) {
	for _, v := range n.Operands[1:] {
		read += bytes(v)
	}
	return read, bytes(n.Operands[1])
}

// dot is a product and a sum for each term: 2 m n k for [m, k] x [k, n].
func dot(n *graph.Node) float64 {
	terms := 1.0
	for _, d := range n.Attrs.Ints("lhs_contracting") {
		terms *= float64(n.Operands[0].Shape.Dimensions[d])
	}
	return 2 * terms * each(n)
}

// convolution is a product and a sum for each term that is no padding: for a kernel [out, in/groups, k...] two for each batch, output feature, input
// feature of the group, and pair of an output position and a kernel position that meets the input. Positions that fall on padding or between
// the elements of a dilated input are left out, as XLA does.
func convolution(n *graph.Node) float64 {
	a := n.FullAttrs()
	lhs, kernel, out := n.Operands[0].Shape.Dimensions, n.Operands[1].Shape.Dimensions, n.Results[0].Shape.Dimensions
	terms := float64(out[a.Int("output_batch_dimension")]) * float64(out[a.Int("output_feature_dimension")]) *
		float64(kernel[a.Int("kernel_input_feature_dimension")])
	strides, padding := a.Ints("window_strides"), a.Pairs("padding")
	lhsDilation, rhsDilation := a.Ints("lhs_dilation"), a.Ints("rhs_dilation")
	for i, d := range a.Ints("input_spatial_dimensions") {
		size := lhs[d]
		outSize := out[a.Ints("output_spatial_dimensions")[i]]
		last := (size - 1) * lhsDilation[i]
		met := 0.0
		for k := range kernel[a.Ints("kernel_spatial_dimensions")[i]] {
			// Output position o meets the dilated input at o*stride + at. Those with 0 <= position <= last are a range of o; with an undilated
			// input each of it counts.
			at := k*rhsDilation[i] - padding[i][0]
			first, end := max(0, ceilDiv(-at, strides[i])), min(outSize, floorDiv(last-at, strides[i])+1)
			if size == 0 || end <= first {
				continue
			}
			if lhsDilation[i] == 1 {
				met += float64(end - first)
				continue
			}
			// With a dilated one each position that is a multiple of the dilation, which comes back after at most that many.
			period := min(lhsDilation[i], end-first)
			for r := range period {
				if ((first+r)*strides[i]+at)%lhsDilation[i] == 0 {
					met += float64((end - first - r + lhsDilation[i] - 1) / lhsDilation[i])
				}
			}
		}
		terms *= met
	}
	// batch_group_count splits the batch: each output feature sees its own part, and the result's batch is that part's already.
	return 2 * terms
}

func floorDiv(a, b int) int {
	q := a / b
	if a%b != 0 && a < 0 {
		q--
	}
	return q
}

func ceilDiv(a, b int) int { return -floorDiv(-a, b) }
