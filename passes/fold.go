package passes

import (
	"math"

	"github.com/gomlx/compute/dtypes"

	"precast/graph"
)

// foldConstants computes nodes whose operands are constants, where the result is a splat or at most MaxConstant bytes. Only what IEEE 754
// defines to the last bit is computed (no exp, no power), and nothing with a NaN or a subnormal number on either side, so that
// no value depends on who computed it. Nodes inside regions are left alone.
func foldConstants(m *graph.Module, o *Options) error {
	for _, f := range m.Funcs {
		for _, n := range f.Nodes {
			fold(n, int64(o.MaxConstant))
		}
	}
	return nil
}

func fold(n *graph.Node, limit int64) {
	info, ok := graph.OpInfo(n.Op)
	if !ok || len(n.Operands) == 0 || len(n.Results) != 1 || len(n.Regions) > 0 {
		return
	}
	out := n.Results[0].Shape
	lits := make([]graph.Literal, len(n.Operands))
	splats := true
	for i, v := range n.Operands {
		lit, ok := literal(v)
		if !ok || !foldable(v.Shape.DType) {
			return
		}
		lits[i] = lit
		splats = splats && (lit.Splat || v.Shape.Size() == 1)
	}
	if !foldable(out.DType) || out.Size() == 0 || !splats && graph.ByteSize(out) > limit {
		return
	}
	switch n.Op {
	case graph.OpReshape:
		toConstant(n, lits[0])
	case graph.OpSlice, graph.OpReverse, graph.OpTranspose, graph.OpBroadcast:
		if splats {
			toConstant(n, graph.Literal{Data: lits[0].Data, Splat: true})
		}
	case graph.OpConcat:
		if n.Attrs.Int("dimension") == 0 && graph.ByteSize(out) <= limit {
			var data []byte
			for i, v := range n.Operands {
				data = append(data, expand(v, lits[i])...)
			}
			toConstant(n, graph.Literal{Data: data})
		}
	default:
		if info.Elementwise {
			foldElements(n, lits, splats)
		}
	}
}

// foldElements folds an elementwise node, or leaves it where an element can't be computed.
func foldElements(n *graph.Node, lits []graph.Literal, splats bool) {
	out := n.Results[0].Shape
	size := out.Size()
	if splats {
		size = 1
	}
	data := make([]byte, 0, size*out.DType.Size())
	args := make([]element, len(n.Operands))
	raw := make([][]byte, len(n.Operands))
	for k := range size {
		for i, v := range n.Operands {
			width := v.Shape.DType.Size()
			at := 0
			if !lits[i].Splat && v.Shape.Size() > 1 {
				at = k * width
			}
			raw[i] = lits[i].Data[at : at+width]
			args[i] = decode(v.Shape.DType, raw[i])
		}
		if n.Op == graph.OpSelect {
			// The bits are moved, not computed with.
			data = append(data, raw[2-args[0].i]...)
			continue
		}
		for i, v := range n.Operands {
			if !settled(v.Shape.DType, args[i]) {
				return
			}
		}
		e, ok := compute(n, args)
		if !ok {
			return
		}
		data = encode(data, out.DType, e)
		if !settled(out.DType, decode(out.DType, data[len(data)-out.DType.Size():])) {
			return
		}
	}
	toConstant(n, graph.Literal{Data: data, Splat: splats})
}

// expand is the literal's data with every element written out.
func expand(v *graph.Value, lit graph.Literal) []byte {
	if !lit.Splat {
		return lit.Data
	}
	out := make([]byte, 0, graph.ByteSize(v.Shape))
	for range v.Shape.Size() {
		out = append(out, lit.Data...)
	}
	return out
}

// compute gives one element of an elementwise node; ok is false for operations that are not folded. Sums, differences, products, quotients and square roots
// of narrower floats are rounded twice, which is harmless: float64 has more than twice their bits and two.
func compute(n *graph.Node, a []element) (e element, ok bool) {
	x := a[0]
	switch n.Op {
	case graph.OpConvert:
		return convert(n.Operands[0].Shape.DType, n.Results[0].Shape.DType, x)
	case graph.OpCompare:
		if n.Attrs.Bool("total") {
			return element{}, false
		}
		return compare(n.Attrs.String("direction"), x, a[1])
	}
	switch {
	case x.float && len(a) == 1:
		return floatUnary(n.Op, x.f)
	case x.float && len(a) == 2:
		return floatBinary(n.Op, x.f, a[1].f)
	case len(a) == 1:
		return intUnary(n.Op, n.Results[0].Shape.DType, x.i)
	case len(a) == 2:
		return intBinary(n.Op, x.i, a[1].i)
	}
	return element{}, false
}

func floatUnary(op graph.Op, x float64) (element, bool) {
	switch op {
	case graph.OpNeg:
		return element{f: -x, float: true}, true
	case graph.OpAbs:
		return element{f: math.Abs(x), float: true}, true
	case graph.OpSqrt:
		return element{f: math.Sqrt(x), float: true}, true
	case graph.OpFloor:
		return element{f: math.Floor(x), float: true}, true
	case graph.OpCeil:
		return element{f: math.Ceil(x), float: true}, true
	case graph.OpIsFinite:
		return truth(!math.IsInf(x, 0)), true // a NaN does not come here
	}
	return element{}, false
}

func floatBinary(op graph.Op, x, y float64) (element, bool) {
	switch op {
	case graph.OpAdd:
		return element{f: x + y, float: true}, true
	case graph.OpSub:
		return element{f: x - y, float: true}, true
	case graph.OpMul:
		return element{f: x * y, float: true}, true
	case graph.OpDiv:
		return element{f: x / y, float: true}, true
	}
	return element{}, false
}

func intUnary(op graph.Op, d graph.DType, x int64) (element, bool) {
	switch op {
	case graph.OpNeg:
		return element{i: -x}, true
	case graph.OpNot:
		if d == dtypes.Bool {
			return truth(x == 0), true
		}
		return element{i: ^x}, true
	}
	return element{}, false
}

// intBinary computes modulo 2^64, which encode reduces to the element type. For bool, add is or and multiply is and, as in StableHLO.
func intBinary(op graph.Op, x, y int64) (element, bool) {
	switch op {
	case graph.OpAdd:
		return element{i: x + y}, true
	case graph.OpSub:
		return element{i: x - y}, true
	case graph.OpMul:
		return element{i: x * y}, true
	case graph.OpMax:
		return element{i: max(x, y)}, true
	case graph.OpMin:
		return element{i: min(x, y)}, true
	case graph.OpAnd:
		return element{i: x & y}, true
	case graph.OpOr:
		return element{i: x | y}, true
	case graph.OpXor:
		return element{i: x ^ y}, true
	}
	return element{}, false
}

// convert folds conversions whose result is defined and rounded at most once, on whatever way a backend takes: one that goes
// from float64 or an integer to bfloat16 by way of float32 rounds twice.
func convert(from, to graph.DType, x element) (element, bool) {
	switch {
	case to == dtypes.Bool:
		return truth(x.number() != 0), true
	case to.IsFloat():
		y := element{f: x.number(), float: true}
		if !x.float && (x.i <= -1<<53 || x.i >= 1<<53) {
			return y, false
		}
		half := to == dtypes.BFloat16 || to == dtypes.Float16
		return y, !half || from == dtypes.Float32 || exact(to, y)
	case x.float:
		// Toward zero; only where every integer type holds the result.
		return element{i: int64(x.f)}, x.f > -128 && x.f < 128 && (x.f >= 0 || !to.IsUnsigned())
	}
	return x, true
}

func compare(direction string, x, y element) (element, bool) {
	var less, equal bool
	if x.float {
		less, equal = x.f < y.f, x.f == y.f
	} else {
		less, equal = x.i < y.i, x.i == y.i
	}
	switch direction {
	case "EQ":
		return truth(equal), true
	case "NE":
		return truth(!equal), true
	case "LT":
		return truth(less), true
	case "LE":
		return truth(less || equal), true
	case "GT":
		return truth(!less && !equal), true
	case "GE":
		return truth(!less), true
	}
	return element{}, false
}
