package backendtest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"precast/backends"
	"precast/graph"
	"precast/lower"
)

var (
	inf = math.Inf(1)
	nan = math.NaN()
	nz  = math.Copysign(0, -1)
)

// opCase runs one graph on values.
type opCase struct {
	name string
	// graph is a function's body, or whole functions. op writes it for one operation.
	graph string
	args  []Tensor
	want  []Tensor
	// tolerance is Compare's; 0 wants equal bits.
	tolerance float64
}

// op is the body of a function of one operation on all arguments: attrs is "{...}" or "".
func op(name, attrs, result string, args ...Tensor) string {
	var b strings.Builder
	var names []string
	for i, a := range args {
		fmt.Fprintf(&b, "  %%%d = input \"x%d\" : %s\n", i, i, shapeText(a))
		names = append(names, fmt.Sprintf("%%%d", i))
	}
	if attrs != "" {
		attrs = " {" + attrs + "}"
	}
	fmt.Fprintf(&b, "  %%r = %s %s%s : %s\n  return %%r", name, strings.Join(names, ", "), attrs, result)
	return b.String()
}

func (s *suite) ops(t *testing.T) {
	c := s.client(t)
	for _, list := range [][]opCase{unaryCases(), binaryCases(), shapeCases(), indexCases(), reductionCases(), contractionCases(), controlCases()} {
		results := s.runTogether(t, c, list)
		for _, k := range list {
			t.Run(k.name, func(t *testing.T) {
				if reason, ok := s.opts.Skip["ops/"+k.name]; ok {
					t.Skip(reason)
				}
				got, ok := results[k.name]
				if !ok {
					got = Run(t, c, s.compile(t, c, k.graph), k.args...)
				}
				if len(got) != len(k.want) {
					t.Fatalf("found %d results, wanted %d", len(got), len(k.want))
				}
				for i := range got {
					Compare(t, fmt.Sprintf("result %d", i), got[i], k.want[i], k.tolerance)
				}
			})
		}
	}
}

// runTogether runs all cases that aren't skipped in one program, which compiles in a fraction of the time of many: each case's functions are
// private functions of it. Where that fails the map is empty, and the cases run by themselves to tell which one is at fault.
func (s *suite) runTogether(t *testing.T, c backends.Client, list []opCase) map[string][]Tensor {
	all := graph.NewModule("all")
	b := graph.NewBuilder(all, all.Entry())
	var args []Tensor
	var names []string
	for i, k := range list {
		if _, skipped := s.opts.Skip["ops/"+k.name]; skipped {
			continue
		}
		m := Parse(t, k.graph)
		prefix := fmt.Sprintf("case%d_", i)
		for _, f := range m.Funcs {
			f.Name = prefix + f.Name
			for _, n := range f.Nodes {
				if n.Op == graph.OpCall {
					n.Attrs = n.Attrs.With("callee", prefix+n.Attrs.String("callee"))
				}
			}
			all.Funcs = append(all.Funcs, f)
		}
		var in []*graph.Value
		for j, a := range k.args {
			in = append(in, all.Entry().NewParam(fmt.Sprintf("%sx%d", prefix, j), graph.Input, a.Shape))
		}
		call, err := b.Call(m.Funcs[0], in...)
		if err != nil {
			t.Fatal(err)
		}
		all.Entry().Results = append(all.Entry().Results, call.Results...)
		args = append(args, k.args...)
		names = append(names, k.name)
	}
	if err := graph.Verify(all); err != nil {
		t.Fatal(err)
	}
	results := map[string][]Tensor{}
	p, err := lower.Lower(all)
	if err != nil {
		t.Errorf("all cases together: %v", err)
		return results
	}
	e, err := c.Compile(context.Background(), p, s.opts.Compile)
	if err != nil {
		t.Errorf("all cases together: %v", err)
		return results
	}
	defer e.Close()
	in := make([]backends.Buffer, len(args))
	for i, a := range args {
		in[i] = Upload(t, c, a)
	}
	out, err := e.Execute(context.Background(), in, backends.ExecuteOptions{})
	if err != nil {
		t.Errorf("all cases together: %v", err)
		return results
	}
	for _, b := range out {
		t.Cleanup(func() { _ = b.Delete() })
	}
	if err := out[0].Await(context.Background()); err != nil {
		t.Errorf("all cases together: %v", err)
		return results
	}
	next := 0
	for i, k := range list {
		if !slices.Contains(names, k.name) {
			continue
		}
		for range list[i].want {
			results[k.name] = append(results[k.name], Download(t, out[next]))
			next++
		}
	}
	return results
}

// unaryCase is a case of one argument and a result of the same shape.
func unaryCase(name string, tolerance float64, shape string, pairs ...float64) opCase {
	var x, y []float64
	for i := 0; i < len(pairs); i += 2 {
		x, y = append(x, pairs[i]), append(y, pairs[i+1])
	}
	dims := fmt.Sprintf("%s[%d]", shape, len(x))
	a := T(dims, x...)
	label := name
	if shape != "f32" {
		label += "_" + shape
	}
	return opCase{name: label, graph: op(name, "", dims, a), args: []Tensor{a}, want: []Tensor{T(dims, y...)}, tolerance: tolerance}
}

func unaryCases() []opCase {
	const near = 2e-6
	cases := []opCase{
		unaryCase("abs", 0, "f32", -1.5, 1.5, 2, 2, nz, 0, -inf, inf, nan, nan),
		unaryCase("abs", 0, "i32", -3, 3, 0, 0, 7, 7),
		unaryCase("ceil", 0, "f32", 1.2, 2, -1.2, -1, 3, 3, -0.5, nz, inf, inf),
		unaryCase("floor", 0, "f32", 1.2, 1, -1.2, -2, 3, 3, 0.5, 0, -inf, -inf),
		unaryCase("cosine", near, "f32", 0, 1, 1, 0.5403023058681398, -2.5, -0.8011436155469337, 100, 0.8623188722876839),
		unaryCase("sine", near, "f32", 0, 0, 1, 0.8414709848078965, -2.5, -0.5984721441039564, 100, -0.5063656411097588),
		unaryCase("erf", near, "f32", 0, 0, 0.5, 0.5204998778130465, -1, -0.8427007929497149, 2, 0.9953222650189527, 5, 1, -inf, -1, nan, nan),
		unaryCase("exponential", near, "f32", 0, 1, 1, 2.718281828459045, -3, 0.049787068367863944, 10, 22026.465794806718, -inf, 0, inf, inf, nan, nan),
		unaryCase("exponential_minus_one", near, "f32", 0, 0, 1, 1.718281828459045, -2, -0.8646647167633873, -inf, -1),
		unaryCase("log", near, "f32", 1, 0, 2.718281828459045, 1, 10, 2.302585092994046, 0, -inf, -1, nan),
		unaryCase("log_plus_one", near, "f32", 0, 0, 1, 0.6931471805599453, -0.5, -0.6931471805599453, -1, -inf),
		unaryCase("logistic", near, "f32", 0, 0.5, 1, 0.7310585786300049, -4, 0.01798620996209156, inf, 1, -inf, 0),
		unaryCase("negate", 0, "f32", 1, -1, 0, nz, -2.5, 2.5, inf, -inf),
		unaryCase("negate", 0, "i32", 1, -1, 0, 0, -5, 5),
		unaryCase("not", 0, "bool", 0, 1, 1, 0),
		unaryCase("not", 0, "i32", 0, -1, 5, -6),
		unaryCase("not", 0, "u8", 0, 255, 0x0f, 0xf0),
		unaryCase("round_nearest_even", 0, "f32", 0.5, 0, 1.5, 2, 2.5, 2, -0.5, nz, -1.5, -2, 2.4, 2, 2.6, 3),
		unaryCase("rsqrt", near, "f32", 1, 1, 4, 0.5, 2, 0.7071067811865476, 0, inf),
		unaryCase("sign", 0, "f32", 2.5, 1, -3, -1, 0, 0, nz, nz, inf, 1, nan, nan),
		unaryCase("sign", 0, "i32", 5, 1, -7, -1, 0, 0),
		unaryCase("sqrt", near, "f32", 4, 2, 2, 1.4142135623730951, 0, 0, -1, nan, inf, inf),
		unaryCase("tanh", near, "f32", 0, 0, 0.5, 0.46211715726000973, -2, -0.9640275800758169, 20, 1, -inf, -1),
		unaryCase("popcnt", 0, "i32", 0, 0, 7, 3, -1, 32),
		unaryCase("popcnt", 0, "u8", 0, 0, 0xf1, 5),
		unaryCase("count_leading_zeros", 0, "i32", 0, 32, 1, 31, -1, 0, 255, 24),
		unaryCase("count_leading_zeros", 0, "u8", 0, 8, 1, 7, 255, 0),
	}
	x := T("f32[5]", 1, -2, inf, -inf, nan)
	cases = append(cases, opCase{name: "is_finite", graph: op("is_finite", "", "bool[5]", x), args: []Tensor{x}, want: []Tensor{T("bool[5]", 1, 1, 0, 0, 0)}})
	conversions := []struct {
		from, to string
		in, out  []float64
	}{
		{"f32", "i32", []float64{1.9, -1.9, 0.5, -0.5, 1e6}, []float64{1, -1, 0, 0, 1e6}},
		{"f32", "u8", []float64{0, 1.5, 254.9}, []float64{0, 1, 254}},
		{"f32", "i64", []float64{-7.5, 1e9}, []float64{-7, 1e9}},
		{"i32", "f32", []float64{-7, 123456, 0}, []float64{-7, 123456, 0}},
		{"i32", "i64", []float64{-7, 5}, []float64{-7, 5}},
		{"i64", "i32", []float64{-7, 5}, []float64{-7, 5}},
		{"i32", "u8", []float64{1, 255, 256, 257}, []float64{1, 255, 0, 1}},
		{"u8", "i32", []float64{0, 255}, []float64{0, 255}},
		{"u32", "f32", []float64{0, 3000000000}, []float64{0, 3000000000}},
		{"bool", "f32", []float64{0, 1}, []float64{0, 1}},
		{"bool", "i32", []float64{0, 1}, []float64{0, 1}},
		{"bool", "bf16", []float64{0, 1}, []float64{0, 1}},
		{"f32", "bool", []float64{0, 1, -0.5, nz, nan, inf}, []float64{0, 1, 1, 0, 1, 1}},
		{"i32", "bool", []float64{0, 1, -5}, []float64{0, 1, 1}},
		{"f32", "bf16", []float64{1, 1.00390625, 1.01171875, 3.14159265, inf, -1e30}, []float64{1, 1, 1.015625, 3.140625, inf, -1e30}},
		{"bf16", "f32", []float64{1, 3.140625, -inf}, []float64{1, 3.140625, -inf}},
		{"f32", "f16", []float64{1, 0.1, 65504, 1e6, 6e-8}, []float64{1, 0.1, 65504, inf, 6e-8}},
		{"f16", "f32", []float64{1, 0.5, -inf}, []float64{1, 0.5, -inf}},
		{"bf16", "f16", []float64{1, 0.5, -3}, []float64{1, 0.5, -3}},
		{"bf16", "i32", []float64{1.5, -3.5}, []float64{1, -3}},
		{"f64", "f32", []float64{0.1, 1e300}, []float64{0.1, inf}},
		{"f32", "f64", []float64{0.5, nan}, []float64{0.5, nan}},
	}
	for _, k := range conversions {
		a := T(fmt.Sprintf("%s[%d]", k.from, len(k.in)), k.in...)
		out := fmt.Sprintf("%s[%d]", k.to, len(k.out))
		cases = append(cases, opCase{name: "convert_" + k.from + "_" + k.to, graph: op("convert", "", out, a), args: []Tensor{a}, want: []Tensor{T(out, k.out...)}})
	}
	f := T("f32[3]", 1, -2, 0)
	cases = append(cases,
		opCase{name: "bitcast_f32_u32", graph: op("bitcast_convert", "", "u32[3]", f), args: []Tensor{f}, want: []Tensor{T("u32[3]", 0x3f800000, 0xc0000000, 0)}},
		opCase{name: "bitcast_f32_i32", graph: op("bitcast_convert", "", "i32[3]", f), args: []Tensor{f}, want: []Tensor{T("i32[3]", 0x3f800000, -0x40000000, 0)}},
	)
	u := T("u32[2]", 0x01020304, 0xa0b0c0d0)
	cases = append(cases, opCase{
		name: "bitcast_u32_u8", graph: op("bitcast_convert", "", "u8[2,4]", u), args: []Tensor{u},
		want: []Tensor{T("u8[2,4]", 4, 3, 2, 1, 0xd0, 0xc0, 0xb0, 0xa0)},
	})
	return cases
}

// binaryCase is a case of triples: lhs, rhs, result.
func binaryCase(name string, tolerance float64, dtype string, triples ...float64) opCase {
	var x, y, z []float64
	for i := 0; i < len(triples); i += 3 {
		x, y, z = append(x, triples[i]), append(y, triples[i+1]), append(z, triples[i+2])
	}
	dims := fmt.Sprintf("%s[%d]", dtype, len(x))
	a, b := T(dims, x...), T(dims, y...)
	label := name
	if dtype != "f32" {
		label += "_" + dtype
	}
	return opCase{name: label, graph: op(name, "", dims, a, b), args: []Tensor{a, b}, want: []Tensor{T(dims, z...)}, tolerance: tolerance}
}

func compare(direction, dtype string, total bool, triples ...float64) opCase {
	var x, y, z []float64
	for i := 0; i < len(triples); i += 3 {
		x, y, z = append(x, triples[i]), append(y, triples[i+1]), append(z, triples[i+2])
	}
	dims := fmt.Sprintf("[%d]", len(x))
	a, b := T(dtype+dims, x...), T(dtype+dims, y...)
	name := "compare_" + direction + "_" + dtype
	attrs := fmt.Sprintf("direction = %q", direction)
	if total {
		name += "_total"
		attrs += ", total = true"
	}
	return opCase{name: name, graph: op("compare", attrs, "bool"+dims, a, b), args: []Tensor{a, b}, want: []Tensor{T("bool"+dims, z...)}}
}

func binaryCases() []opCase {
	const near = 3e-6
	cases := []opCase{
		binaryCase("add", 0, "f32", 1, 2, 3, 0.5, -0.25, 0.25, inf, 1, inf, inf, -inf, nan),
		binaryCase("add", 0, "i32", 1, 2, 3, 2147483647, 1, -2147483648),
		binaryCase("add", 0, "u8", 250, 10, 4),
		binaryCase("add", 0, "bool", 0, 0, 0, 0, 1, 1, 1, 1, 1),
		binaryCase("subtract", 0, "f32", 1, 2, -1, 0, 0, 0),
		binaryCase("subtract", 0, "u8", 3, 5, 254),
		binaryCase("multiply", 0, "f32", 3, -2, -6, 0, inf, nan, nz, 2, nz),
		binaryCase("multiply", 0, "bool", 0, 1, 0, 1, 1, 1),
		binaryCase("divide", 0, "f32", 1, 4, 0.25, 1, 0, inf, -1, 0, -inf, 0, 0, nan),
		binaryCase("divide", 0, "i32", 7, 2, 3, -7, 2, -3, 7, -2, -3, 5, 0, -1, -2147483648, -1, -2147483648),
		binaryCase("divide", 0, "u8", 200, 3, 66, 5, 0, 255),
		binaryCase("remainder", 0, "f32", 7, 3, 1, -7, 3, -1, 7, -3, 1, 5.5, 2, 1.5),
		binaryCase("remainder", 0, "i32", 7, 3, 1, -7, 3, -1, 7, -3, 1, 5, 0, 5, -2147483648, -1, 0),
		binaryCase("maximum", 0, "f32", 1, 2, 2, nan, 1, nan, 1, nan, nan, -inf, -1, -1),
		binaryCase("minimum", 0, "f32", 1, 2, 1, nan, 1, nan, 1, nan, nan, inf, 1, 1),
		binaryCase("maximum", 0, "i32", 1, -2, 1),
		binaryCase("maximum", 0, "bool", 0, 1, 1, 0, 0, 0),
		binaryCase("minimum", 0, "bool", 0, 1, 0, 1, 1, 1),
		binaryCase("power", near, "f32", 2, 10, 1024, 9, 0.5, 3, 2, -1, 0.5, 0, 0, 1, -2, 3, -8, -8, 0.5, nan),
		binaryCase("power", 0, "i32", 2, 10, 1024, -3, 3, -27, 5, 0, 1),
		binaryCase("and", 0, "bool", 0, 0, 0, 0, 1, 0, 1, 1, 1),
		binaryCase("or", 0, "bool", 0, 0, 0, 0, 1, 1, 1, 1, 1),
		binaryCase("xor", 0, "bool", 0, 0, 0, 0, 1, 1, 1, 1, 0),
		binaryCase("and", 0, "i32", 12, 10, 8, -1, 5, 5),
		binaryCase("or", 0, "i32", 12, 10, 14),
		binaryCase("xor", 0, "u8", 12, 10, 6),
		binaryCase("atan2", near, "f32", 1, 1, 0.7853981633974483, 1, -1, 2.356194490192345, 0, -1, 3.141592653589793, -1, 0, -1.5707963267948966),
		binaryCase("shift_left", 0, "i32", 1, 4, 16, -1, 1, -2, 1, 31, -2147483648, 1, 32, 0, 1, -1, 0),
		binaryCase("shift_right_arithmetic", 0, "i32", -8, 1, -4, 8, 2, 2, -1, 32, -1, 5, 32, 0),
		binaryCase("shift_right_logical", 0, "i32", -1, 28, 15, 8, 2, 2, -1, 32, 0),
		binaryCase("shift_left", 0, "u8", 3, 7, 128, 1, 8, 0),
		binaryCase("shift_right_logical", 0, "u8", 200, 3, 25),
		compare("EQ", "f32", false, 1, 1, 1, 1, 2, 0, 0, nz, 1, nan, nan, 0),
		compare("NE", "f32", false, 1, 1, 0, 1, 2, 1, nan, nan, 1),
		compare("LT", "f32", false, 1, 2, 1, 2, 1, 0, nan, 1, 0, -inf, inf, 1),
		compare("LE", "f32", false, 1, 1, 1, 2, 1, 0),
		compare("GT", "f32", false, 2, 1, 1, 1, 1, 0, nan, 1, 0),
		compare("GE", "i32", false, -1, 1, 0, 1, 1, 1, 2147483647, -2147483648, 1),
		compare("LT", "u8", false, 200, 100, 0, 1, 255, 1),
		compare("EQ", "bool", false, 0, 0, 1, 0, 1, 0),
		compare("LT", "bool", false, 0, 1, 1, 1, 0, 0, 1, 1, 0),
		compare("LT", "f32", true, nz, 0, 1, 0, nz, 0, -inf, -1, 1, inf, nan, 1, nan, nan, 0, -1, -2, 0),
		compare("EQ", "f32", true, 0, nz, 0, nan, nan, 1, 1, 1, 1),
	}
	p, a, b := T("bool[3]", 1, 0, 1), T("f32[3]", 1, 2, nan), T("f32[3]", 4, nan, 6)
	cases = append(cases, opCase{name: "select", graph: op("select", "", "f32[3]", p, a, b), args: []Tensor{p, a, b}, want: []Tensor{T("f32[3]", 1, nan, nan)}})
	q := T("bool[]", 0)
	cases = append(cases, opCase{name: "select_scalar", graph: op("select", "", "f32[3]", q, a, b), args: []Tensor{q, a, b}, want: []Tensor{b}})
	lo, x, hi := T("f32[]", -1), T("f32[4]", -5, 0.5, 7, nan), T("f32[]", 2)
	cases = append(cases, opCase{name: "clamp_scalar", graph: op("clamp", "", "f32[4]", lo, x, hi), args: []Tensor{lo, x, hi}, want: []Tensor{T("f32[4]", -1, 0.5, 2, nan)}})
	lo, x, hi = T("i32[3]", 0, 1, 2), T("i32[3]", -1, 5, 2), T("i32[3]", 3, 3, 3)
	return append(cases, opCase{name: "clamp_i32", graph: op("clamp", "", "i32[3]", lo, x, hi), args: []Tensor{lo, x, hi}, want: []Tensor{T("i32[3]", 0, 3, 2)}})
}
