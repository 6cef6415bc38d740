package passes

import (
	"math"

	"github.com/gomlx/compute/dtypes"

	"precast/graph"
)

// foldConstants computes nodes whose operands are constants, where the result is a splat or at most MaxConstant bytes. Only
// operations that IEEE 754 defines to the last bit are folded (no exp, no power), so that no value depends on who computed it.
func foldConstants(m *graph.Module, o *Options) error {
	for _, f := range m.Funcs {
		for _, n := range f.Nodes {
			fold(n, o.MaxConstant)
		}
	}
	return nil
}

func fold(n *graph.Node, limit int) {
	if len(n.Operands) == 0 || len(n.Results) != 1 || len(n.Regions) > 0 {
		return
	}
	out := n.Results[0].Shape
	lits := make([]graph.Literal, len(n.Operands))
	splat := true
	for i, v := range n.Operands {
		lit, ok := literal(v)
		if !ok || !foldable(v.Shape.DType) {
			return
		}
		lits[i] = lit
		splat = splat && (lit.Splat || v.Shape.Size() == 1)
	}
	if !foldable(out.DType) {
		return
	}
	if !splat && byteSize(out) > int64(limit) {
		return
	}
	if byteSize(out) == 0 {
		return
	}
	switch n.Op {
	case graph.OpReshape:
		toConstant(n, lits[0])
		return
	case graph.OpSlice, graph.OpReverse, graph.OpTranspose, graph.OpBroadcast:
		if splat {
			toConstant(n, graph.Literal{Data: first(n.Operands[0], lits[0]), Splat: true})
		}
		return
	case graph.OpConcat:
		if n.Attrs.Int("dimension") == 0 {
			var data []byte
			for i, v := range n.Operands {
				data = append(data, expand(v, lits[i])...)
			}
			if byteSize(out) <= int64(limit) {
				toConstant(n, graph.Literal{Data: data})
			}
		}
		return
	}
	size := out.Size()
	if splat {
		size = 1
	}
	data := make([]byte, 0, size*out.DType.Size())
	args := make([]element, len(n.Operands))
	for k := range size {
		for i, v := range n.Operands {
			at := 0
			if !lits[i].Splat && v.Shape.Size() > 1 {
				at = k * v.Shape.DType.Size()
			}
			args[i] = decode(v.Shape.DType, lits[i].Data[at:])
		}
		e, ok := compute(n, args)
		if !ok {
			return
		}
		data = encode(data, out.DType, e)
	}
	toConstant(n, graph.Literal{Data: data, Splat: splat && out.Size() > 1})
}

func first(v *graph.Value, lit graph.Literal) []byte { return lit.Data[:v.Shape.DType.Size()] }

// expand is the literal's data with every element written out.
func expand(v *graph.Value, lit graph.Literal) []byte {
	if !lit.Splat {
		return lit.Data
	}
	out := make([]byte, 0, byteSize(v.Shape))
	for range v.Shape.Size() {
		out = append(out, lit.Data...)
	}
	return out
}

func compute(n *graph.Node, a []element) (element, bool) {
	x := a[0]
	truth := func(b bool) element {
		if b {
			return element{i: 1}
		}
		return element{}
	}
	if n.Op == graph.OpConvert {
		return convert(n.Results[0].Shape.DType, x)
	}
	if n.Op == graph.OpSelect {
		if x.i != 0 {
			return a[1], true
		}
		return a[2], true
	}
	if n.Op == graph.OpCompare && !n.Attrs.Bool("total") {
		return compare(n.Attrs.String("direction"), x, a[1], truth)
	}
	if x.float {
		switch n.Op {
		case graph.OpNeg:
			return element{f: -x.f, float: true}, true
		case graph.OpAbs:
			return element{f: math.Abs(x.f), float: true}, true
		case graph.OpSqrt:
			return element{f: math.Sqrt(x.f), float: true}, true
		case graph.OpFloor:
			return element{f: math.Floor(x.f), float: true}, true
		case graph.OpCeil:
			return element{f: math.Ceil(x.f), float: true}, true
		case graph.OpIsFinite:
			return truth(!math.IsNaN(x.f) && !math.IsInf(x.f, 0)), true
		}
		if len(a) != 2 {
			return element{}, false
		}
		y := a[1]
		switch n.Op {
		case graph.OpAdd:
			return element{f: x.f + y.f, float: true}, true
		case graph.OpSub:
			return element{f: x.f - y.f, float: true}, true
		case graph.OpMul:
			return element{f: x.f * y.f, float: true}, true
		case graph.OpDiv:
			return element{f: x.f / y.f, float: true}, true
		}
		return element{}, false
	}
	if n.Op == graph.OpNeg {
		return element{i: -x.i}, true
	}
	if n.Op == graph.OpNot && n.Results[0].Shape.DType == dtypes.Bool {
		return truth(x.i == 0), true
	}
	if len(a) != 2 {
		return element{}, false
	}
	y := a[1]
	switch n.Op {
	case graph.OpAdd:
		return element{i: x.i + y.i}, true
	case graph.OpSub:
		return element{i: x.i - y.i}, true
	case graph.OpMul:
		return element{i: x.i * y.i}, true
	case graph.OpMax:
		return element{i: max(x.i, y.i)}, true
	case graph.OpMin:
		return element{i: min(x.i, y.i)}, true
	case graph.OpAnd:
		return element{i: x.i & y.i}, true
	case graph.OpOr:
		return element{i: x.i | y.i}, true
	}
	return element{}, false
}

// convert folds conversions whose result is exact or defined: not those of floats that no integer holds.
func convert(to graph.DType, x element) (element, bool) {
	switch {
	case to == dtypes.Bool:
		if x.float {
			return element{i: map[bool]int64{true: 1}[x.f != 0]}, true
		}
		return element{i: map[bool]int64{true: 1}[x.i != 0]}, true
	case to.IsFloat() && x.float:
		return x, true
	case to.IsFloat():
		// An int64 beyond 2^53 would be rounded twice on its way to a narrower float.
		return element{f: float64(x.i), float: true}, x.i > -1<<53 && x.i < 1<<53
	case x.float:
		// Toward zero; only where every integer type in use holds the result.
		return element{i: int64(x.f)}, x.f > -128 && x.f < 128 && (x.f >= 0 || !to.IsUnsigned())
	}
	return x, true
}

func compare(direction string, x, y element, truth func(bool) element) (element, bool) {
	var less, equal bool
	if x.float {
		less, equal = x.f < y.f, x.f == y.f
		if math.IsNaN(x.f) || math.IsNaN(y.f) {
			return truth(direction == "NE"), true
		}
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
