package lower

import (
	"math"
	"slices"
	"strconv"

	"github.com/gomlx/compute/dtypes"

	"precast/graph"
)

// plainOps are written op name, operands, type: operands and result have one type.
var plainOps = func() map[graph.Op]bool {
	m := map[graph.Op]bool{}
	for _, op := range []graph.Op{
		graph.OpCeil, graph.OpCos, graph.OpExp, graph.OpExpm1, graph.OpFloor, graph.OpLog, graph.OpLog1p,
		graph.OpLogistic, graph.OpNeg, graph.OpNot, graph.OpRound, graph.OpRsqrt, graph.OpSign, graph.OpSin, graph.OpSqrt, graph.OpTanh,
		graph.OpPopcnt, graph.OpClz, graph.OpAdd, graph.OpSub, graph.OpMul, graph.OpDiv, graph.OpRem, graph.OpMax, graph.OpMin, graph.OpPow,
		graph.OpAnd, graph.OpOr, graph.OpXor, graph.OpAtan2, graph.OpShl, graph.OpShrArith, graph.OpShrLogic,
	} {
		m[op] = true
	}
	return m
}()

// node writes one node on a line of its own.
func (w *writer) node(n *graph.Node) {
	a := n.FullAttrs()
	if n.Op == graph.OpArgMinMax {
		w.argMinMax(n, a)
		return
	}
	var init string
	switch n.Op {
	case graph.OpReduce, graph.OpReduceWindow:
		init = w.initial(n, a.String("combiner"))
	}
	w.newline()
	w.define(n)
	in := n.Operands
	switch {
	case plainOps[n.Op]:
		w.strs("stablehlo.", string(n.Op), " ")
		w.values(in)
		w.str(" : ")
		w.shape(n.Results[0].Shape)
		w.location(n)
		return
	}
	switch n.Op {
	case graph.OpConstant:
		l, _ := a.Get("value").(graph.Literal)
		w.str("stablehlo.constant ")
		w.literal(n, l, n.Results[0].Shape)
		w.strs(" : ", n.Results[0].Shape)
	case graph.OpIota:
		w.strs("stablehlo.iota dim = ", a.Int("iota_dimension"), " : ", n.Results[0].Shape)
	case graph.OpErf:
		w.strs("chlo.erf ", in[0], " : ", in[0].Shape, " -> ", n.Results[0].Shape)
	case graph.OpAbs, graph.OpConvert, graph.OpBitcast, graph.OpIsFinite, graph.OpReshape, graph.OpClamp, graph.OpDynUpdSlice:
		w.pretty(n)
		w.signature(in, n.Results)
	case graph.OpCompare:
		w.strs("stablehlo.compare ", a.String("direction"), ", ", in[0], ", ", in[1], ", ", compareType(in[0].Shape.DType, a.Bool("total")))
		w.signature(in, n.Results)
	case graph.OpSelect:
		w.pretty(n)
		w.strs(" : ", in[0].Shape, ", ", in[1].Shape)
	case graph.OpBroadcast:
		w.pretty(n)
		w.strs(", dims = [", a.Ints("broadcast_dimensions"), "]")
		w.signature(in, n.Results)
	case graph.OpTranspose:
		w.pretty(n)
		w.strs(", dims = [", a.Ints("permutation"), "]")
		w.signature(in, n.Results)
	case graph.OpReverse:
		w.pretty(n)
		w.strs(", dims = [", a.Ints("dimensions"), "] : ", n.Results[0].Shape)
	case graph.OpConcat:
		w.pretty(n)
		w.strs(", dim = ", a.Int("dimension"))
		w.signature(in, n.Results)
	case graph.OpSlice:
		w.pretty(n)
		w.slice(a)
		w.signature(in, n.Results)
	case graph.OpPad:
		w.pretty(n)
		w.strs(", low = [", a.Ints("edge_padding_low"), "], high = [", a.Ints("edge_padding_high"), "], interior = [",
			a.Ints("interior_padding"), "]")
		w.signature(in, n.Results)
	case graph.OpDynSlice:
		w.pretty(n)
		w.strs(", sizes = [", a.Ints("slice_sizes"), "]")
		w.signature(in, n.Results)
	case graph.OpGather:
		w.generic(n)
		w.strs(" <{dimension_numbers = #stablehlo.gather<offset_dims = [", a.Ints("offset_dims"), "], collapsed_slice_dims = [",
			a.Ints("collapsed_slice_dims"), "], start_index_map = [", a.Ints("start_index_map"), "], index_vector_dim = ",
			a.Int("index_vector_dim"), ">, indices_are_sorted = ", strconv.FormatBool(a.Bool("indices_are_sorted")), ", slice_sizes = ")
		w.array(a.Ints("slice_sizes"))
		w.str("}>")
		w.signature(in, n.Results)
	case graph.OpScatter:
		w.generic(n)
		w.strs(" <{indices_are_sorted = ", strconv.FormatBool(a.Bool("indices_are_sorted")),
			", scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [", a.Ints("update_window_dims"), "], inserted_window_dims = [",
			a.Ints("inserted_window_dims"), "], scatter_dims_to_operand_dims = [", a.Ints("scatter_dims_to_operand_dims"), "], index_vector_dim = ",
			a.Int("index_vector_dim"), ">, unique_indices = ", strconv.FormatBool(a.Bool("unique_indices")), "}> (")
		w.combiner(n, scatterCombiners[a.String("combiner")])
		w.char(')')
		w.signature(in, n.Results)
	case graph.OpReduce:
		w.strs("stablehlo.reduce(", in[0], " init: ", init, ") applies stablehlo.", a.String("combiner"), " across dimensions = [",
			a.Ints("dimensions"), "] : (", in[0].Shape, ", ", scalarOf(in[0].Shape.DType), ") -> ", n.Results[0].Shape)
	case graph.OpReduceWindow:
		w.reduceWindow(n, a, init)
	case graph.OpDot:
		w.pretty(n)
		if b := a.Ints("lhs_batching"); len(b) > 0 {
			w.strs(", batching_dims = [", b, "] x [", a.Ints("rhs_batching"), "]")
		}
		p := a.String("precision")
		w.strs(", contracting_dims = [", a.Ints("lhs_contracting"), "] x [", a.Ints("rhs_contracting"), "], precision = [", p, ", ", p, "]")
		w.signature(in, n.Results)
	case graph.OpConv:
		w.convolution(n, a)
	case graph.OpRngBits:
		w.pretty(n)
		w.strs(", algorithm = ", a.String("algorithm"))
		w.signature(in, n.Results)
	case graph.OpBarrier:
		w.pretty(n)
		w.str(" : ")
		w.types(in)
	case graph.OpSort:
		w.generic(n)
		w.strs(" <{dimension = ", a.Int("dimension"), " : i64, is_stable = ", strconv.FormatBool(a.Bool("is_stable")), "}> (")
		w.region(n.Regions[0])
		w.char(')')
		w.signature(in, n.Results)
	case graph.OpWhile:
		w.generic(n)
		w.str(" (")
		w.region(n.Regions[0])
		w.str(", ")
		w.region(n.Regions[1])
		w.char(')')
		w.signature(in, n.Results)
	case graph.OpIf:
		w.strs("\"stablehlo.if\"(", in[0], ") (")
		w.branch(n.Regions[0], in[1:])
		w.str(", ")
		w.branch(n.Regions[1], in[1:])
		w.char(')')
		w.signature(in[:1], n.Results)
	case graph.OpCall:
		callee, ok := w.symbols[a.String("callee")]
		if !ok {
			w.fail(n, "function %q is not among the module's private functions", a.String("callee"))
			return
		}
		w.str("func.call @" + callee + "(")
		w.values(in)
		w.char(')')
		w.signature(in, n.Results)
	default:
		w.fail(n, "the operation has no StableHLO form")
	}
	w.location(n)
}

// define writes "%5 = " or "%5:2 = " and names the results.
func (w *writer) define(n *graph.Node) {
	if len(n.Results) == 0 {
		return
	}
	num := w.next
	w.next++
	w.char('%')
	w.int(int(num))
	if len(n.Results) > 1 {
		w.char(':')
		w.int(len(n.Results))
	}
	w.str(" = ")
	w.setNames(n, num)
}

func (w *writer) setNames(n *graph.Node, num int32) {
	for i, r := range n.Results {
		result := int16(-1)
		if len(n.Results) > 1 {
			result = int16(i)
		}
		w.names[r] = name{num: num, result: result}
	}
}

// location writes the node's scope where that is asked for.
func (w *writer) location(n *graph.Node) {
	if w.opts.Locations && n.Scope != "" {
		w.str(" loc(" + quote(n.Scope) + ")")
	}
}

// pretty writes the op and its operands, as in "stablehlo.reshape %0".
func (w *writer) pretty(n *graph.Node) {
	w.strs("stablehlo.", string(n.Op), " ")
	w.values(n.Operands)
}

// generic writes the op and its operands in MLIR's generic form.
func (w *writer) generic(n *graph.Node) {
	w.strs("\"stablehlo.", string(n.Op), "\"(")
	w.values(n.Operands)
	w.char(')')
}

func compareType(d graph.DType, total bool) string {
	switch {
	case total:
		return "TOTALORDER"
	case d.IsFloat(), d.IsComplex():
		return "FLOAT"
	case d == dtypes.Bool, d.IsUnsigned():
		return "UNSIGNED"
	}
	return "SIGNED"
}

func (w *writer) slice(a graph.Attrs) {
	starts, limits, strides := a.Ints("start_indices"), a.Ints("limit_indices"), a.Ints("strides")
	w.str(" [")
	for i := range starts {
		if i > 0 {
			w.str(", ")
		}
		w.strs(starts[i], ":", limits[i])
		if strides[i] != 1 {
			w.strs(":", strides[i])
		}
	}
	w.char(']')
}

var scatterCombiners = map[string]string{"add": "add", "max": "maximum", "min": "minimum"}

// combiner writes the region of a scatter or a reduce_window.
func (w *writer) combiner(n *graph.Node, op string) {
	t := scalarOf(n.Operands[0].Shape.DType)
	x, y, z := w.temp(), w.temp(), w.temp()
	w.str("{")
	w.indent++
	w.newline()
	w.strs("^bb0(", x, ": ", t, ", ", y, ": ", t, "):")
	w.newline()
	w.strs(z, " = stablehlo.", op, " ", x, ", ", y, " : ", t)
	w.newline()
	w.strs("stablehlo.return ", z, " : ", t)
	w.indent--
	w.newline()
	w.char('}')
}

func scalarOf(d graph.DType) graph.Shape { return graph.Shape{DType: d} }

// initial writes the constant that a reduction starts from, the combiner's identity, and returns its name.
func (w *writer) initial(n *graph.Node, combiner string) string {
	d := n.Operands[0].Shape.DType
	var text string
	switch combiner {
	case "add", "or", "xor":
		text = numberText(d, 0)
	case "multiply":
		text = numberText(d, 1)
	case "and":
		text = "-1"
		if d == dtypes.Bool {
			text = "true"
		} else if d.IsUnsigned() {
			text = highestText(d)
		}
	case "maximum":
		text = lowestText(d)
	case "minimum":
		text = highestText(d)
	default:
		w.fail(n, "combiner %q is not known", combiner)
	}
	return w.scalarConstant(d, text)
}

func (w *writer) scalarConstant(d graph.DType, text string) string {
	w.newline()
	c := w.temp()
	w.strs(c, " = stablehlo.constant dense<", text, "> : ", scalarOf(d))
	return c
}

// numberText is 0 or 1 in a dtype.
func numberText(d graph.DType, x int) string {
	switch {
	case d == dtypes.Bool:
		return strconv.FormatBool(x != 0)
	case d.IsFloat():
		return strconv.Itoa(x) + ".0"
	case d.IsComplex():
		return "(" + strconv.Itoa(x) + ".0, 0.0)"
	}
	return strconv.Itoa(x)
}

// infinityText holds the bits of +infinity and -infinity.
var infinityText = map[graph.DType][2]string{
	dtypes.Float16:  {"0x7C00", "0xFC00"},
	dtypes.BFloat16: {"0x7F80", "0xFF80"},
	dtypes.Float32:  {"0x7F800000", "0xFF800000"},
	dtypes.Float64:  {"0x7FF0000000000000", "0xFFF0000000000000"},
}

func lowestText(d graph.DType) string {
	switch {
	case d == dtypes.Bool:
		return "false"
	case d.IsFloat():
		return infinityText[d][1]
	case d.IsUnsigned():
		return "0"
	}
	return strconv.FormatInt(math.MinInt64>>(64-graph.DTypeBits(d)), 10)
}

func highestText(d graph.DType) string {
	switch {
	case d == dtypes.Bool:
		return "true"
	case d.IsFloat():
		return infinityText[d][0]
	case d.IsUnsigned():
		return strconv.FormatUint(math.MaxUint64>>(64-graph.DTypeBits(d)), 10)
	}
	return strconv.FormatInt(math.MaxInt64>>(64-graph.DTypeBits(d)), 10)
}

func (w *writer) reduceWindow(n *graph.Node, a graph.Attrs, init string) {
	x := n.Operands[0]
	w.strs("\"stablehlo.reduce_window\"(", x, ", ", init, ") <{base_dilations = ")
	w.array(a.Ints("base_dilations"))
	w.str(", padding = ")
	w.pairs(a.Pairs("padding"))
	w.str(", window_dilations = ")
	w.array(a.Ints("window_dilations"))
	w.str(", window_dimensions = ")
	w.array(a.Ints("window_dimensions"))
	w.str(", window_strides = ")
	w.array(a.Ints("window_strides"))
	w.str("}> (")
	w.combiner(n, a.String("combiner"))
	w.strs(") : (", x.Shape, ", ", scalarOf(x.Shape.DType), ") -> ", n.Results[0].Shape)
}

// pairs writes "dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>".
func (w *writer) pairs(ps [][2]int) {
	w.str("dense<[")
	for i, p := range ps {
		if i > 0 {
			w.str(", ")
		}
		w.strs("[", p[0], ", ", p[1], "]")
	}
	w.strs("]> : tensor<", len(ps), "x2xi64>")
}

func (w *writer) convolution(n *graph.Node, a graph.Attrs) {
	w.strs("stablehlo.convolution(", n.Operands[0], ", ", n.Operands[1], ") dim_numbers = ")
	w.dimNumbers("b", "f", a.Int("input_batch_dimension"), a.Int("input_feature_dimension"), a.Ints("input_spatial_dimensions"))
	w.char('x')
	w.dimNumbers("o", "i", a.Int("kernel_output_feature_dimension"), a.Int("kernel_input_feature_dimension"), a.Ints("kernel_spatial_dimensions"))
	w.str("->")
	w.dimNumbers("b", "f", a.Int("output_batch_dimension"), a.Int("output_feature_dimension"), a.Ints("output_spatial_dimensions"))
	w.strs(", window = {stride = [", a.Ints("window_strides"), "], pad = [")
	for i, p := range a.Pairs("padding") {
		if i > 0 {
			w.str(", ")
		}
		w.strs("[", p[0], ", ", p[1], "]")
	}
	w.strs("], lhs_dilate = [", a.Ints("lhs_dilation"), "], rhs_dilate = [", a.Ints("rhs_dilation"), "]}")
	p := a.String("precision")
	w.strs(" {batch_group_count = ", a.Int("batch_group_count"), " : i64, feature_group_count = ", a.Int("feature_group_count"),
		" : i64, precision_config = [#stablehlo<precision ", p, ">, #stablehlo<precision ", p, ">]}")
	w.signature(n.Operands, n.Results)
}

// dimNumbers writes "[b, f, 0, 1]".
func (w *writer) dimNumbers(first, second string, firstDim, secondDim int, spatial []int) {
	w.char('[')
	for d := range len(spatial) + 2 {
		if d > 0 {
			w.str(", ")
		}
		switch d {
		case firstDim:
			w.str(first)
		case secondDim:
			w.str(second)
		default:
			w.int(slices.Index(spatial, d))
		}
	}
	w.char(']')
}

// argMinMax writes a reduce of values and positions. Of two pairs the one with the better value stays, NaN being better than any number, and
// of equal ones that of the lower position; so the result is the same in whatever order XLA reduces.
func (w *writer) argMinMax(n *graph.Node, a graph.Attrs) {
	x, out := n.Operands[0], n.Results[0].Shape
	d, index := x.Shape.DType, out.DType
	if index != dtypes.Int64 {
		index = dtypes.Int32 // a narrow type may not hold the positions before the last is chosen
	}
	direction, worst := "GT", lowestText(d)
	if a.Bool("min") {
		direction, worst = "LT", highestText(d)
	}
	positions := graph.Shape{DType: index, Dimensions: x.Shape.Dimensions}
	w.newline()
	iota := w.temp()
	w.strs(iota, " = stablehlo.iota dim = ", a.Int("dimension"), " : ", positions)
	worstValue := w.scalarConstant(d, worst)
	lastPosition := w.scalarConstant(index, highestText(index))

	v, i, b := scalarOf(d), scalarOf(index), scalarOf(dtypes.Bool)
	w.newline()
	pair := w.temp()
	w.strs(pair, ":2 = \"stablehlo.reduce\"(", x, ", ", iota, ", ", worstValue, ", ", lastPosition, ") <{dimensions = ")
	w.array([]int{a.Int("dimension")})
	w.str("}> ({")
	w.indent++
	w.newline()
	lv, li, rv, ri := w.temp(), w.temp(), w.temp(), w.temp()
	w.strs("^bb0(", lv, ": ", v, ", ", li, ": ", i, ", ", rv, ": ", v, ", ", ri, ": ", i, "):")
	line := func(parts ...any) string {
		w.newline()
		t := w.temp()
		w.strs(t, " = stablehlo.")
		w.strs(parts...)
		return t
	}
	kind := compareType(d, false)
	compare := func(direction, l, r, kind string, s graph.Shape) string {
		return line("compare ", direction, ", ", l, ", ", r, ", ", kind, " : (", s, ", ", s, ") -> ", b)
	}
	better := compare(direction, lv, rv, kind, v)
	same := compare("EQ", lv, rv, kind, v)
	if d.IsFloat() {
		leftNaN, rightNaN := compare("NE", lv, lv, kind, v), compare("NE", rv, rv, kind, v)
		rightNumber := line("not ", rightNaN, " : ", b)
		onlyLeft := line("and ", leftNaN, ", ", rightNumber, " : ", b)
		both := line("and ", leftNaN, ", ", rightNaN, " : ", b)
		better = line("or ", better, ", ", onlyLeft, " : ", b)
		same = line("or ", same, ", ", both, " : ", b)
	}
	lower := compare("LT", li, ri, "SIGNED", i)
	earlier := line("and ", same, ", ", lower, " : ", b)
	left := line("or ", better, ", ", earlier, " : ", b)
	rv2 := line("select ", left, ", ", lv, ", ", rv, " : ", b, ", ", v)
	ri2 := line("select ", left, ", ", li, ", ", ri, " : ", b, ", ", i)
	w.newline()
	w.strs("stablehlo.return ", rv2, ", ", ri2, " : ", v, ", ", i)
	w.indent--
	w.newline()
	reduced := graph.Shape{DType: index, Dimensions: out.Dimensions}
	w.strs("}) : (", x.Shape, ", ", positions, ", ", v, ", ", i, ") -> (", graph.Shape{DType: d, Dimensions: out.Dimensions}, ", ", reduced, ")")
	w.location(n)
	if index == out.DType {
		num, _ := strconv.Atoi(pair[1:])
		w.names[n.Results[0]] = name{num: int32(num), result: 1}
		return
	}
	w.newline()
	w.define(n)
	w.strs("stablehlo.convert ", pair, "#1 : (", reduced, ") -> ", out)
	w.location(n)
}
