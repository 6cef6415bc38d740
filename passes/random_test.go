package passes_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"precast/graph"
	"precast/passes"
)

// randomModule makes a small module: inputs, weights, constants, and nodes of operations whose results are the same to the last bit however they are
// reached, in blocks that repeat, with and without scopes.
func randomModule(seed uint64) *graph.Module {
	rng := rand.New(rand.NewPCG(seed, 7))
	m := &graph.Module{Name: "random"}
	f := &graph.Func{Name: "main"}
	m.Funcs = []*graph.Func{f}
	var values []*graph.Value
	dims := [][]int{{2, 3}, {3, 2}, {6}, {2, 3}, {1, 6}, {}}
	types := []graph.DType{dtypes.Float32, dtypes.Float32, dtypes.Float32, dtypes.Int32, dtypes.Bool, dtypes.BFloat16}
	shape := func() graph.Shape { return shapes.Make(types[rng.IntN(len(types))], dims[rng.IntN(len(dims))]...) }
	for i := range 2 + rng.IntN(3) {
		values = append(values, f.NewParam(fmt.Sprintf("x%d", i), graph.Input, shape()))
		f.Params[len(f.Params)-1].Donated = rng.IntN(3) == 0
	}
	for i := range rng.IntN(4) {
		values = append(values, f.NewParam(fmt.Sprintf("layer.%d.w", i), graph.Weight, shape()))
	}
	add := func(op graph.Op, operands []*graph.Value, attrs graph.Attrs, want ...graph.Shape) *graph.Value {
		in := make([]graph.Shape, len(operands))
		for i, o := range operands {
			in[i] = o.Shape
		}
		out, err := graph.Infer(op, in, attrs, nil, nil, want...)
		if err != nil {
			return nil
		}
		n := f.Append(op, operands, attrs, out...)
		n.Scope = []string{"", "layer.0", "layer.1"}[rng.IntN(3)]
		values = append(values, n.Results[0])
		return n.Results[0]
	}
	pick := func() *graph.Value { return values[rng.IntN(len(values))] }
	like := func(v *graph.Value) *graph.Value {
		for range 20 {
			if w := pick(); w.Shape.Equal(v.Shape) {
				return w
			}
		}
		return v
	}
	constant := func(s graph.Shape) {
		var lit graph.Literal
		numbers := []float64{0, 1, 1, 2}
		if s.DType != dtypes.Bool {
			numbers = append(numbers, 3, 100)
			if !s.DType.IsUnsigned() {
				numbers = append(numbers, -1)
			}
		} else {
			numbers = numbers[:3]
		}
		var list []float64
		for range s.Size() {
			list = append(list, numbers[rng.IntN(len(numbers))])
		}
		if rng.IntN(3) > 0 {
			lit, _ = graph.NewSplat(s.DType, list[0])
		} else {
			lit, _ = graph.NewLiteral(s.DType, list...)
		}
		add(graph.OpConstant, nil, graph.Attrs(nil).With("value", lit), s)
	}
	unary := []graph.Op{graph.OpNeg, graph.OpNot, graph.OpAbs, graph.OpFloor, graph.OpSign}
	binary := []graph.Op{graph.OpAdd, graph.OpSub, graph.OpMul, graph.OpMax, graph.OpMin, graph.OpAnd, graph.OpOr, graph.OpDiv}
	step := func(kind int) {
		v := pick()
		switch kind {
		case 0:
			constant(shape())
		case 1, 2:
			add(unary[rng.IntN(len(unary))], []*graph.Value{v}, nil)
		case 3, 4, 5:
			constant(v.Shape)
			add(binary[rng.IntN(len(binary))], []*graph.Value{v, like(v)}, nil)
		case 6:
			add(graph.OpReshape, []*graph.Value{v}, nil, shapes.Make(v.Shape.DType, dims[rng.IntN(len(dims))]...))
		case 7:
			add(graph.OpTranspose, []*graph.Value{v}, graph.Attrs(nil).With("permutation", rng.Perm(v.Shape.Rank())))
		case 8:
			add(graph.OpBroadcast, []*graph.Value{v}, graph.Attrs(nil).With("broadcast_dimensions", rng.Perm(2)[:min(2, v.Shape.Rank())]), shapes.Make(v.Shape.DType, dims[rng.IntN(2)]...))
		case 9:
			to := types[rng.IntN(len(types))]
			if to.IsInt() && v.Shape.DType.IsFloat() {
				return // out of range or a NaN: the backend's own
			}
			add(graph.OpConvert, []*graph.Value{v}, nil, shapes.Make(to, v.Shape.Dimensions...))
		case 10:
			p := add(graph.OpCompare, []*graph.Value{v, like(v)}, graph.Attrs(nil).With("direction", []string{"EQ", "LT", "GE"}[rng.IntN(3)]))
			if p != nil {
				add(graph.OpSelect, []*graph.Value{p, v, like(v)}, nil)
			}
		case 11:
			if v.Shape.Rank() > 0 {
				axes := rng.Perm(v.Shape.Rank())[:rng.IntN(v.Shape.Rank()+1)]
				add(graph.OpReverse, []*graph.Value{v}, graph.Attrs(nil).With("dimensions", axes))
			}
		case 13, 14:
			if v.Shape.DType == dtypes.Float32 && v.Shape.Rank() == 2 {
				// Products of a value with weights, some with a bias: merge-dots takes those of one layer together.
				for range 1 + rng.IntN(3) {
					out := 1 + rng.IntN(3)
					w := f.NewParam(fmt.Sprintf("dot.%d", len(f.Params)), graph.Weight, shapes.Make(dtypes.Float32, out, v.Shape.Dimensions[1]))
					y := add(graph.OpDot, []*graph.Value{v, w}, graph.Attrs(nil).With("lhs_contracting", []int{1}).With("rhs_contracting", []int{1}).With("lhs_batching", []int{}).With("rhs_batching", []int{}).With("precision", "DEFAULT"))
					if y == nil {
						panic("a product that can't be made")
					}
					y.Def.Scope = []string{"layer.0.a", "layer.1.b"}[rng.IntN(2)]
					if rng.IntN(2) == 0 {
						b := f.NewParam(fmt.Sprintf("bias.%d", len(f.Params)), graph.Weight, shapes.Make(dtypes.Float32, out))
						add(graph.OpAdd, []*graph.Value{y, add(graph.OpBroadcast, []*graph.Value{b}, graph.Attrs(nil).With("broadcast_dimensions", []int{1}), y.Shape)}, nil)
					}
				}
			}
		case 12:
			if v.Shape.Rank() > 0 {
				add(graph.OpConcat, []*graph.Value{v, like(v)}, graph.Attrs(nil).With("dimension", rng.IntN(v.Shape.Rank())))
			}
		}
	}
	// A few free steps, then the same steps again and again, so that there is something to outline.
	for range 3 + rng.IntN(12) {
		step(rng.IntN(15))
	}
	if rng.IntN(2) == 0 {
		x := pick()
		for range 40 {
			if x.Shape.DType == dtypes.Float32 && x.Shape.Rank() > 0 {
				break
			}
			x = pick()
		}
		one, _ := graph.NewSplat(x.Shape.DType, 1)
		for i := range 2 + rng.IntN(3) {
			scope := fmt.Sprintf("blocks.%d", i)
			w := f.NewParam(fmt.Sprintf("%s.w", scope), graph.Weight, x.Shape)
			first := len(f.Nodes)
			c := add(graph.OpConstant, nil, graph.Attrs(nil).With("value", one), x.Shape)
			y := add(graph.OpMul, []*graph.Value{x, w}, nil)
			if rng.IntN(4) == 0 {
				y = add(graph.OpAdd, []*graph.Value{y, like(y)}, nil)
			}
			if z := add(graph.OpSub, []*graph.Value{y, c}, nil); z != nil {
				y = z
			}
			if z := add(graph.OpNeg, []*graph.Value{y}, nil); z != nil {
				y = z
			}
			x = add(graph.OpAdd, []*graph.Value{x, y}, nil)
			for _, n := range f.Nodes[first:] {
				if n.Scope = scope; seed%2 == 0 {
					n.Scope = ""
				}
			}
		}
	}
	for range 1 + rng.IntN(4) {
		f.Results = append(f.Results, pick())
	}
	f.Results = append(f.Results, values[len(values)-1])
	return m
}

// readAll makes a node read every parameter: the Go backend can't run a program that only hands its parameters on.
func readAll(m *graph.Module) *graph.Module {
	for _, p := range m.Entry().Params {
		n := m.Entry().Append(graph.OpReshape, []*graph.Value{p.Value}, nil, p.Value.Shape)
		n = m.Entry().Append(graph.OpReshape, []*graph.Value{n.Results[0]}, nil, shapes.Make(p.Value.Shape.DType, 1, p.Value.Shape.Size()))
		n = m.Entry().Append(graph.OpConcat, []*graph.Value{n.Results[0], n.Results[0]}, graph.Attrs(nil).With("dimension", 0), shapes.Make(p.Value.Shape.DType, 2, p.Value.Shape.Size()))
		m.Entry().Results = append(m.Entry().Results, n.Results[0])
	}
	return m
}

// checkPipeline: a module after all passes verifies, and computes the same as one program and step by step; each pass run twice in a row changes
// nothing the second time.
func checkPipeline(t *testing.T, seed uint64) {
	original := randomModule(seed)
	if err := graph.Verify(original); err != nil {
		t.Fatalf("seed %d: the module is not valid: %v\n%s", seed, err, original)
	}
	given := arguments(original, seed)
	readAll(original)
	want, err := evaluate(original, given, false)
	if err != nil {
		t.Fatalf("seed %d: %v\n%s", seed, err, original)
	}
	m := graph.Clone(original)
	p := &passes.Pipeline{Options: passes.Options{MaxConstant: 16, Outline: seed%5 != 0, Scan: seed%2 == 1, MinBlock: 3}, Enabled: passes.Names(), Check: true}
	if err := p.Run(m); err != nil {
		t.Fatalf("seed %d: %v\n%s", seed, err, original)
	}
	for _, split := range []bool{false, true} {
		got, err := evaluate(m, given, split)
		if err != nil {
			t.Fatalf("seed %d, split %v: %v\n%s\n%s", seed, split, err, original, m)
		}
		if d := difference(got, want, 0); d != "" {
			t.Fatalf("seed %d, split %v: %s\n%s\n%s", seed, split, d, original, m)
		}
	}
	// Each pass on its own, on what the others before it leave: twice is once.
	m = graph.Clone(original)
	for _, pass := range passes.List {
		var texts [2]string
		for i := range texts {
			if err := pass.Run(m, &p.Options); err != nil {
				t.Fatalf("seed %d, %s: %v", seed, pass.Name, err)
			}
			texts[i] = m.String()
		}
		if texts[0] != texts[1] {
			t.Fatalf("seed %d: a second run of %s changes the module\n%s\n%s", seed, pass.Name, texts[0], texts[1])
		}
	}
}

// TestRandomModules checks the pipeline on a fixed set of random modules.
func TestRandomModules(t *testing.T) {
	outlined, prepared, merged := 0, 0, 0
	for seed := range uint64(400) {
		checkPipeline(t, seed)
		m := randomModule(seed)
		o := passes.DefaultOptions()
		dots := func() (n int) {
			for _, k := range m.Entry().Nodes {
				if k.Op == graph.OpDot {
					n++
				}
			}
			return n
		}
		was := dots()
		if err := passByName(t, "merge-dots").Run(m, &o); err != nil {
			t.Fatal(err)
		}
		if dots() < was {
			merged++
		}
		m = randomModule(seed)
		p := &passes.Pipeline{Options: passes.Options{MaxConstant: 16, Outline: true, MinBlock: 3}}
		if err := p.Run(m); err != nil {
			t.Fatal(err)
		}
		for _, f := range m.Funcs {
			if f.BlockClass != "" {
				outlined++
			}
			if f.Name == passes.PrepareFunc {
				prepared++
			}
		}
	}
	if outlined < 40 || prepared < 40 || merged < 40 {
		t.Errorf("found %d outlined functions, %d preparations and %d modules with merged products among the modules, wanted at least 40 of each", outlined, prepared, merged)
	}
}

// FuzzPipeline looks for seeds on which the pipeline changes what a module computes.
func FuzzPipeline(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed)
	}
	f.Fuzz(checkPipeline)
}
