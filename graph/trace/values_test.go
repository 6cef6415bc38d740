package trace_test

import (
	"math"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/gobackend"
	"github.com/gomlx/compute/shapes"
	ml "github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"precast/graph"
	"precast/graph/trace"
	"precast/lower"
)

// run computes a module on gomlx's Go backend.
func run(t *testing.T, m *graph.Module, inputs []*tensors.Tensor) []*tensors.Tensor {
	t.Helper()
	backend := gobackend.GetBackend()
	b := backend.Builder(m.Name)
	if err := lower.ToBuilder(m, b); err != nil {
		t.Fatalf("%v\n%s", err, m)
	}
	exec, err := b.Compile()
	if err != nil {
		t.Fatal(err)
	}
	var args []compute.Buffer
	for _, x := range inputs {
		buffer, err := x.Buffer(backend, 0)
		if err != nil {
			t.Fatal(err)
		}
		args = append(args, buffer)
	}
	results, err := exec.Execute(args, nil, 0)
	if err != nil {
		t.Fatalf("%v\n%s", err, m)
	}
	var out []*tensors.Tensor
	for _, r := range results {
		x, err := tensors.FromBuffer(r)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, x)
	}
	return out
}

// example fills a tensor with values that differ: multiples of 1/8 around zero, small whole numbers, alternating truths.
func example(t *testing.T, shape graph.Shape, seed int) *tensors.Tensor {
	t.Helper()
	n := shape.Size()
	at := func(i int) int { return ((i+seed)*37+11*seed)%29 - 14 }
	switch shape.DType {
	case dtypes.Float32:
		flat := make([]float32, n)
		for i := range flat {
			flat[i] = float32(at(i)) / 8
		}
		return tensors.FromFlatDataAndDimensions(flat, shape.Dimensions...)
	case dtypes.Int32:
		flat := make([]int32, n)
		for i := range flat {
			flat[i] = int32(at(i)+14) % 5
		}
		return tensors.FromFlatDataAndDimensions(flat, shape.Dimensions...)
	case dtypes.Bool:
		flat := make([]bool, n)
		for i := range flat {
			flat[i] = at(i)%2 == 0
		}
		return tensors.FromFlatDataAndDimensions(flat, shape.Dimensions...)
	}
	t.Fatalf("no example of %s", shape)
	return nil
}

// TestValues traces functions, runs the modules, and compares with the same functions computed by gomlx without a trace.
func TestValues(t *testing.T) {
	f32 := func(dims ...int) graph.Shape { return shapes.Make(dtypes.Float32, dims...) }
	i32 := func(dims ...int) graph.Shape { return shapes.Make(dtypes.Int32, dims...) }
	boolean := func(dims ...int) graph.Shape { return shapes.Make(dtypes.Bool, dims...) }
	list := func(nodes ...*ml.Node) []*ml.Node { return nodes }
	for _, tc := range []struct {
		name   string
		inputs []graph.Shape
		fn     func(g *ml.Graph, in []*ml.Node) []*ml.Node
	}{
		{"classifier", []graph.Shape{f32(3, 4), f32(4, 8), f32(8, 5)}, func(_ *ml.Graph, in []*ml.Node) []*ml.Node {
			x := ml.MatMul(ml.Tanh(ml.MatMul(in[0], in[1])), in[2])
			return list(ml.Softmax(x, -1), ml.ArgMax(x, -1))
		}},
		{"broadcasts", []graph.Shape{f32(3, 1), f32(1, 4), f32(), boolean(3, 4)}, func(_ *ml.Graph, in []*ml.Node) []*ml.Node {
			return list(
				ml.Where(in[3], ml.Add(in[0], in[1]), in[2]),
				ml.Where(in[3], ml.ScalarOne(in[0].Graph(), dtypes.Float32), ml.Mul(in[0], in[1])),
				ml.Clip(ml.Sub(in[0], in[1]), in[2], ml.AddScalar(in[2], 0.5)),
				ml.GreaterThan(in[0], in[1]),
			)
		}},
		{"rounding and signs", []graph.Shape{f32(29), i32(7)}, func(_ *ml.Graph, in []*ml.Node) []*ml.Node {
			x := ml.MulScalar(in[0], 4) // halves among them
			return list(ml.Round(x), ml.Floor(x), ml.Ceil(x), ml.Sign(x), ml.ConvertDType(x, dtypes.Int32),
				ml.ModScalar(x, 3), ml.IsNaN(ml.Sqrt(x)), ml.Erf(x), ml.Logistic(x), ml.Neg(in[1]))
		}},
		{"shapes", []graph.Shape{f32(2, 3, 4)}, func(g *ml.Graph, in []*ml.Node) []*ml.Node {
			x := in[0]
			return list(
				ml.TransposeAllAxes(x, 2, 0, 1), ml.Reverse(x, 0, 2), ml.Reshape(x, 4, -1),
				ml.Slice(x, ml.AxisElem(1), ml.AxisRange(1), ml.AxisRange().Stride(2)),
				ml.Pad(x, ml.Scalar(g, dtypes.Float32, -1), ml.PadAxis{Start: 1}, ml.PadAxis{End: 2, Interior: 1}),
				ml.Concatenate([]*ml.Node{x, ml.Neg(x)}, 1), ml.BroadcastToDims(ml.Slice(x, ml.AxisRange(), ml.AxisElem(0)), 2, 5, 4),
				ml.Iota(g, shapes.Make(dtypes.Int32, 3, 2), 1),
			)
		}},
		{"reductions", []graph.Shape{f32(2, 3, 4), boolean(3, 4)}, func(_ *ml.Graph, in []*ml.Node) []*ml.Node {
			x := in[0]
			return list(
				ml.ReduceSum(x, 1), ml.ReduceAllMax(x), ml.ReduceMin(x, 0, 2), ml.ReduceMultiply(x, 2), ml.ReduceMean(x, -1),
				ml.LogicalAll(in[1], 0), ml.LogicalAny(in[1], 1), ml.ArgMin(x, 1),
			)
		}},
		{"convolution and pooling", []graph.Shape{f32(2, 7, 6, 4), f32(3, 3, 4, 2), f32(3, 3, 2, 6)}, func(_ *ml.Graph, in []*ml.Node) []*ml.Node {
			return list(
				ml.Convolve(in[0], in[1]).PadSame().StridePerAxis(2, 1).Done(),
				ml.Convolve(in[0], in[2]).ChannelGroupCount(2).DilationPerAxis(2, 1).Done(),
				ml.MaxPool(in[0]).Window(2).Done(), ml.MeanPool(in[0]).Window(3).Strides(2).PadSame().Done(),
			)
		}},
		{"products", []graph.Shape{f32(5, 2, 3), f32(4, 5, 3)}, func(_ *ml.Graph, in []*ml.Node) []*ml.Node {
			return list(
				ml.DotGeneral(in[0], []int{2}, []int{0}, in[1], []int{2}, []int{1}),
				ml.Einsum("bij,kbj->kib", in[0], in[1]),
			)
		}},
		{"indexing", []graph.Shape{f32(5, 3), i32(4, 1), f32(4, 3)}, func(_ *ml.Graph, in []*ml.Node) []*ml.Node {
			return list(
				ml.Gather(in[0], in[1]),
				ml.ScatterSum(in[0], in[1], in[2], false, false), ml.ScatterMax(in[0], in[1], in[2], false, false),
			)
		}},
		{"while", []graph.Shape{f32(3), i32()}, func(g *ml.Graph, in []*ml.Node) []*ml.Node {
			one := ml.Const(g, int32(1))
			cond := ml.NewClosure(g, func(g *ml.Graph) []*ml.Node {
				i := ml.Parameter(g, "i", i32())
				ml.Parameter(g, "x", f32(3))
				return list(ml.LessThan(i, ml.Add(in[1], ml.Const(g, int32(6)))))
			})
			body := ml.NewClosure(g, func(g *ml.Graph) []*ml.Node {
				i, x := ml.Parameter(g, "i", i32()), ml.Parameter(g, "x", f32(3))
				return list(ml.Add(i, one), ml.Sub(ml.Mul(x, in[0]), x))
			})
			return ml.While(cond, body, one, in[0])
		}},
		{"if", []graph.Shape{boolean(), f32(2), f32(2)}, func(g *ml.Graph, in []*ml.Node) []*ml.Node {
			choose := func(pred *ml.Node) *ml.Node {
				sum := ml.NewClosure(g, func(*ml.Graph) []*ml.Node { return list(ml.Add(in[1], in[2])) })
				negated := ml.NewClosure(g, func(*ml.Graph) []*ml.Node { return list(ml.Neg(in[2])) })
				return ml.If(pred, sum, negated)[0]
			}
			return list(choose(in[0]), choose(ml.LogicalNot(in[0])))
		}},
		{"sort", []graph.Shape{f32(2, 6)}, func(g *ml.Graph, in []*ml.Node) []*ml.Node {
			less := ml.NewClosure(g, func(g *ml.Graph) []*ml.Node {
				lhs, rhs := ml.Parameter(g, "lhs", f32()), ml.Parameter(g, "rhs", f32())
				ml.Parameter(g, "lhs_index", i32())
				ml.Parameter(g, "rhs_index", i32())
				return list(ml.LessThan(lhs, rhs))
			})
			return ml.SortFunc(less, 1, true, in[0], ml.Iota(g, i32(2, 6), 1))
		}},
		{"call", []graph.Shape{f32(4)}, func(g *ml.Graph, in []*ml.Node) []*ml.Node {
			square := ml.NewFunction(g, "square", func(g *ml.Graph) []*ml.Node { return list(ml.Square(ml.Parameter(g, "x", f32(4)))) })
			return square.Call(square.Call(in[0])...)
		}},
		{"one value twice", []graph.Shape{f32(2)}, func(_ *ml.Graph, in []*ml.Node) []*ml.Node {
			y := ml.Exp(in[0])
			return list(y, in[0], y)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, err := trace.Function("f", tc.fn, tc.inputs...)
			if err != nil {
				t.Fatalf("%+v", err)
			}
			if err := graph.Verify(m); err != nil {
				t.Fatal(err)
			}
			n := trace.Network{Name: "f"}
			given := map[string]*tensors.Tensor{}
			var inputs []*tensors.Tensor
			for i, shape := range tc.inputs {
				name := m.Entry().Params[i].Name
				n.Inputs = append(n.Inputs, trace.Input{Name: name, Shape: shape})
				given[name] = example(t, shape, i)
				inputs = append(inputs, given[name])
			}
			n.Build = func(c *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
				var args []*ml.Node
				for _, x := range n.Inputs {
					args = append(args, in[x.Name])
				}
				return tc.fn(c.G, args)
			}
			want, err := trace.Evaluate(nil, n, nil, given)
			if err != nil {
				t.Fatalf("%+v", err)
			}
			got := run(t, m, inputs)
			if len(got) != len(want) {
				t.Fatalf("the module has %d results, wanted %d", len(got), len(want))
			}
			for i := range want {
				if diff := differ(got[i], want[i]); diff != "" {
					t.Errorf("result %d: %s\ngot  %s\nwant %s", i, diff, got[i], want[i])
				}
			}
		})
	}
}

// differ compares exactly, floats to a few units in the last place of the largest element: sums may be ordered differently.
func differ(got, want *tensors.Tensor) string {
	if !got.Shape().Equal(want.Shape()) {
		return "shape " + got.Shape().String() + ", wanted " + want.Shape().String()
	}
	if got.DType() != dtypes.Float32 {
		if !got.Equal(want) {
			return "the values differ"
		}
		return ""
	}
	g, w := tensors.MustCopyFlatData[float32](got), tensors.MustCopyFlatData[float32](want)
	largest := 0.0
	for _, x := range w {
		largest = max(largest, math.Abs(float64(x)))
	}
	for i := range w {
		if d := math.Abs(float64(g[i] - w[i])); d > 1e-6*largest || math.IsNaN(float64(g[i])) != math.IsNaN(float64(w[i])) {
			return "the values differ"
		}
	}
	return ""
}

// TestBatchNormValues compares the composed batch normalization, which the Go backend lacks, with the formula.
func TestBatchNormValues(t *testing.T) {
	m, err := trace.Function("norm", func(_ *ml.Graph, in []*ml.Node) []*ml.Node {
		return []*ml.Node{ml.InternalBatchNormForInference(in[0], in[1], in[2], in[3], in[4], 0.25, 1)}
	}, shapes.Make(dtypes.Float32, 1, 2, 2), shapes.Make(dtypes.Float32, 2), shapes.Make(dtypes.Float32, 2), shapes.Make(dtypes.Float32, 2),
		shapes.Make(dtypes.Float32, 2))
	if err != nil {
		t.Fatalf("%+v", err)
	}
	got := run(t, m, []*tensors.Tensor{
		tensors.FromValue([][][]float32{{{1, 2}, {3, 4}}}),                       // x
		tensors.FromValue([]float32{2, 3}), tensors.FromValue([]float32{10, 20}), // scale, offset
		tensors.FromValue([]float32{1, 2}), tensors.FromValue([]float32{0.75, 3.75}), // mean, variance
	})
	want := tensors.FromValue([][][]float32{{{10, 12}, {21.5, 23}}})
	if diff := differ(got[0], want); diff != "" {
		t.Errorf("%s: got %s, want %s", diff, got[0], want)
	}
}
