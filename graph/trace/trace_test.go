package trace

import (
	"errors"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	ml "github.com/gomlx/gomlx/core/graph"
	"github.com/google/go-cmp/cmp"

	"precast/graph"
)

// checkModule compares a module's text form.
func checkModule(t *testing.T, m *graph.Module, want string) {
	t.Helper()
	if err := graph.Verify(m); err != nil {
		t.Error(err)
	}
	lines := func(s string) []string { return strings.Split(strings.TrimSpace(s), "\n") }
	if diff := cmp.Diff(lines(want), lines(m.String())); diff != "" {
		t.Errorf("the module differs (-want +got):\n%s", diff)
	}
}

// TestTrace checks parameters (an unused input stays, weights come after the inputs in order of first use, one node a key), result
// names and scopes.
func TestTrace(t *testing.T) {
	n := Network{
		Name:    "vae.decoder",
		DType:   dtypes.BFloat16,
		Inputs:  []Input{{"x", shapes.Make(dtypes.BFloat16, 2, 3)}, {"unused", shapes.Make(dtypes.Int32)}},
		Outputs: []string{"sample", "norm"},
		Build: func(c *Ctx, in map[string]*ml.Node) []*ml.Node {
			x := in["x"]
			for i := range 2 {
				leave := c.Enter("blocks." + strconv.Itoa(i))
				func() {
					defer c.Enter("proj")()
					x = ml.DotGeneral(x, []int{1}, nil, c.Weight("weight", 3, 3), []int{1}, nil)
				}()
				x = ml.AddScalar(x, 1)
				leave()
			}
			scale := c.WeightAs(dtypes.Float32, "scale", 3)
			if c.WeightAs(dtypes.Float32, "scale", 3) != scale {
				t.Error("the second request for a weight gave another node")
			}
			return []*ml.Node{x, scale}
		},
	}
	m, err := Trace(n)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	checkModule(t, m, `
module @vae.decoder

func @main {
  %0 = input "x" : bf16[2,3]
  %1 = input "unused" : i32[]
  %2 = weight "blocks.0.proj.weight" : bf16[3,3]
  %3 = weight "blocks.1.proj.weight" : bf16[3,3]
  %4 = weight "scale" : f32[3]
  %5 = dot_general %0, %2 {lhs_batching = [], lhs_contracting = [1], precision = "DEFAULT", rhs_batching = [], rhs_contracting = [1]} : bf16[2,3] loc("blocks.0.proj")
  %6 = constant {value = splat<bf16: 1>} : bf16[] loc("blocks")
  %7 = broadcast_in_dim %6 {broadcast_dimensions = []} : bf16[2,3] loc("blocks.0")
  %8 = add %5, %7 : bf16[2,3] loc("blocks.0")
  %9 = dot_general %8, %3 {lhs_batching = [], lhs_contracting = [1], precision = "DEFAULT", rhs_batching = [], rhs_contracting = [1]} : bf16[2,3] loc("blocks.1.proj")
  %10 = broadcast_in_dim %6 {broadcast_dimensions = []} : bf16[2,3] loc("blocks.1")
  %11 = add %9, %10 : bf16[2,3] loc("blocks.1")
  return %11 "sample", %4 "norm"
}
`)
	again, err := Trace(n)
	if err != nil {
		t.Fatal(err)
	}
	if again.String() != m.String() {
		t.Error("tracing the network twice gave two modules")
	}
}

func TestEnclosing(t *testing.T) {
	for _, tc := range []struct{ a, b, want string }{
		{"", "", ""},
		{"a", "a", "a"},
		{"a.b", "a.c", "a"},
		{"a.b.c", "a.b", "a.b"},
		{"a.b", "a.bc", "a"},
		{"a.b.d", "a.bc.d", "a"},
		{"a", "b", ""},
		{"blocks.1", "blocks.10", "blocks"},
		{"x", "", ""},
	} {
		if got := enclosing(tc.a, tc.b); got != tc.want {
			t.Errorf("enclosing(%q, %q) = %q, want %q", tc.a, tc.b, got, tc.want)
		}
		if got := enclosing(tc.b, tc.a); got != tc.want {
			t.Errorf("enclosing(%q, %q) = %q, want %q", tc.b, tc.a, got, tc.want)
		}
	}
}

// TestFunctionWhile checks a loop whose closures use a value of the main function, a weight, and a scalar that main made first.
func TestFunctionWhile(t *testing.T) {
	m, err := Function("pow", func(g *ml.Graph, in []*ml.Node) []*ml.Node {
		i32, f32 := shapes.Make(dtypes.Int32), shapes.Make(dtypes.Float32, 2)
		step := ml.Parameter(g, WeightPrefix+"step", f32)
		one := ml.Scalar(g, dtypes.Int32, 1)
		limit := ml.AddScalar(in[1], 1)
		cond := ml.NewClosure(g, func(g *ml.Graph) []*ml.Node {
			i := ml.Parameter(g, "i", i32)
			ml.Parameter(g, "captured0", f32)
			return []*ml.Node{ml.LessThan(i, limit)}
		})
		body := ml.NewClosure(g, func(g *ml.Graph) []*ml.Node {
			i := ml.Parameter(g, "i", i32)
			x := ml.Parameter(g, "x", f32)
			return []*ml.Node{ml.Add(i, one), ml.Mul(x, step)}
		})
		return ml.While(cond, body, one, in[0])[1:]
	}, shapes.Make(dtypes.Float32, 2), shapes.Make(dtypes.Int32))
	if err != nil {
		t.Fatalf("%+v", err)
	}
	checkModule(t, m, `
module @pow

func @main {
  %0 = input "arg0" : f32[2]
  %1 = input "arg1" : i32[]
  %2 = weight "step" : f32[2]
  %3 = constant {value = splat<i32: 1>} : i32[]
  %4 = add %1, %3 : i32[]
  %5, %6, %7, %8 = while %3, %0, %4, %2 region {
    %0 = input "i" : i32[]
    %1 = input "captured0" : f32[2]
    %2 = input "captured0_" : i32[]
    %3 = input "captured1" : f32[2]
    %4 = compare %0, %2 {direction = "LT", total = false} : bool[]
    return %4
  } region {
    %0 = input "i" : i32[]
    %1 = input "x" : f32[2]
    %2 = input "captured0" : i32[]
    %3 = input "captured1" : f32[2]
    %4 = constant {value = splat<i32: 1>} : i32[]
    %5 = add %0, %4 : i32[]
    %6 = multiply %1, %3 : f32[2]
    return %5, %6, %2, %3
  } : i32[], f32[2], i32[], f32[2]
  return %6 "result0"
}
`)
}

// TestFunctionIf checks branches that capture different values, one of them through two closures, and a closure used twice.
func TestFunctionIf(t *testing.T) {
	m, err := Function("choose", func(g *ml.Graph, in []*ml.Node) []*ml.Node {
		x, y, p := in[0], in[1], in[2]
		negated := ml.NewClosure(g, func(*ml.Graph) []*ml.Node { return []*ml.Node{ml.Neg(y)} })
		nested := ml.NewClosure(g, func(g *ml.Graph) []*ml.Node {
			inner := ml.NewClosure(g, func(*ml.Graph) []*ml.Node { return []*ml.Node{ml.Exp(x)} })
			return ml.If(ml.LogicalNot(p), inner, negated)
		})
		return []*ml.Node{ml.If(p, nested, negated)[0]}
	}, shapes.Make(dtypes.Float32), shapes.Make(dtypes.Float32), shapes.Make(dtypes.Bool))
	if err != nil {
		t.Fatalf("%+v", err)
	}
	checkModule(t, m, `
module @choose

func @main {
  %0 = input "arg0" : f32[]
  %1 = input "arg1" : f32[]
  %2 = input "arg2" : bool[]
  %3 = if %2, %2, %0, %1 region {
    %0 = input "captured0" : bool[]
    %1 = input "captured1" : f32[]
    %2 = input "captured2" : f32[]
    %3 = not %0 : bool[]
    %4 = if %3, %1, %2 region {
      %0 = input "captured0" : f32[]
      %1 = input "captured1" : f32[]
      %2 = exponential %0 : f32[]
      return %2
    } region {
      %0 = input "captured0" : f32[]
      %1 = input "captured1" : f32[]
      %2 = negate %1 : f32[]
      return %2
    } : f32[]
    return %4
  } region {
    %0 = input "captured0" : bool[]
    %1 = input "captured1" : f32[]
    %2 = input "captured2" : f32[]
    %3 = negate %2 : f32[]
    return %3
  } : f32[]
  return %3 "result0"
}
`)
}

// TestFunctionSortAndCall checks a sort of values with their indices and a private function called twice.
func TestFunctionSortAndCall(t *testing.T) {
	m, err := Function("ranking", func(g *ml.Graph, in []*ml.Node) []*ml.Node {
		double := ml.NewFunction(g, "double", func(g *ml.Graph) []*ml.Node {
			return []*ml.Node{ml.MulScalar(ml.Parameter(g, "x", in[0].Shape()), 2)}
		})
		x := double.Call(double.Call(in[0])...)[0]
		less := ml.NewClosure(g, func(g *ml.Graph) []*ml.Node {
			lhs := ml.Parameter(g, "lhs", shapes.Make(dtypes.Float32))
			rhs := ml.Parameter(g, "rhs", shapes.Make(dtypes.Float32))
			ml.Parameter(g, "lhs_index", shapes.Make(dtypes.Int32))
			ml.Parameter(g, "rhs_index", shapes.Make(dtypes.Int32))
			return []*ml.Node{ml.GreaterThan(lhs, rhs)}
		})
		return ml.SortFunc(less, 0, true, x, ml.Iota(g, shapes.Make(dtypes.Int32, 4), 0))
	}, shapes.Make(dtypes.Float32, 4))
	if err != nil {
		t.Fatalf("%+v", err)
	}
	checkModule(t, m, `
module @ranking

func @main {
  %0 = input "arg0" : f32[4]
  %1 = call %0 {callee = "double"} : f32[4]
  %2 = call %1 {callee = "double"} : f32[4]
  %3 = iota {iota_dimension = 0} : i32[4]
  %4, %5 = sort %2, %3 {dimension = 0, is_stable = true} region {
    %0 = input "lhs" : f32[]
    %1 = input "rhs" : f32[]
    %2 = input "lhs_index" : i32[]
    %3 = input "rhs_index" : i32[]
    %4 = compare %0, %1 {direction = "GT", total = false} : bool[]
    return %4
  } : f32[4], i32[4]
  return %4 "result0", %5 "result1"
}

func @double {
  %0 = input "x" : f32[4]
  %1 = constant {value = splat<f32: 2>} : f32[]
  %2 = broadcast_in_dim %1 {broadcast_dimensions = []} : f32[4]
  %3 = multiply %0, %2 : f32[4]
  return %3
}
`)
}

// TestRecordErrors checks what the recorder refuses, through the backend's own interface.
func TestRecordErrors(t *testing.T) {
	f32 := shapes.Make(dtypes.Float32, 2)
	closure := func(t *testing.T, f compute.Function, build func(c compute.Function) ([]compute.Value, error)) compute.Function {
		c, err := f.Closure()
		if err != nil {
			t.Fatal(err)
		}
		out, err := build(c)
		if err == nil {
			err = c.Return(out, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for _, tc := range []struct {
		name   string
		params string
		op     func(f compute.Function, in []compute.Value) ([]compute.Value, error)
		want   string
	}{
		{
			"shapes", "f32[2] f32[3]", func(f compute.Function, in []compute.Value) ([]compute.Value, error) { return one(f.Add(in[0], in[1])) },
			"dimension of axis #0 doesn't match",
		},
		{
			"dtypes", "f32[2] i32[2]", func(f compute.Function, in []compute.Value) ([]compute.Value, error) { return one(f.Add(in[0], in[1])) },
			"data types (DType) for BinaryOp Add must match",
		},
		{
			"integer rsqrt", "i32[2]", func(f compute.Function, in []compute.Value) ([]compute.Value, error) { return one(f.Rsqrt(in[0])) },
			"UnaryOp Rsqrt must have a float",
		},
		{
			"bool sum", "bool[2]", func(f compute.Function, in []compute.Value) ([]compute.Value, error) { return one(f.ReduceSum(in[0])) },
			"ReduceSum: the operand has shape (Bool)[2]; wanted a number dtype",
		},
		{
			"reduce axis", "f32[2]", func(f compute.Function, in []compute.Value) ([]compute.Value, error) {
				return one(f.ReduceSum(in[0], 1))
			},
			"ReduceSum: axis 1 is out of range for an operand of shape (Float32)[2]",
		},
		{
			"reduce axis twice", "f32[2]", func(f compute.Function, in []compute.Value) ([]compute.Value, error) {
				return one(f.ReduceSum(in[0], 0, 0))
			},
			"ReduceSum: axis 0 is given twice",
		},
		{
			"iota axis", "", func(f compute.Function, in []compute.Value) ([]compute.Value, error) { return one(f.Iota(f32, 1)) },
			"Iota: axis 1 is out of range",
		},
		{
			"complex", "", func(f compute.Function, in []compute.Value) ([]compute.Value, error) {
				return one(f.Constant([]complex64{1}, 1))
			},
			"Constant: the shape is (Complex64)[1]; the graph IR holds arrays of",
		},
		{"convert to complex", "f32[2]", func(f compute.Function, in []compute.Value) ([]compute.Value, error) {
			return one(f.ConvertDType(in[0], dtypes.Complex64))
		}, "ConvertDType: the shape is (Complex64)[2]"},
		{
			"constant size", "", func(f compute.Function, in []compute.Value) ([]compute.Value, error) {
				return one(f.Constant([]float32{1}, 2))
			},
			"Constant: 1 elements given, the shape (Float32)[2] holds 2",
		},
		{
			"constant type", "", func(f compute.Function, in []compute.Value) ([]compute.Value, error) { return one(f.Constant(1.0)) },
			"Constant: got float64, wanted a slice",
		},
		{
			"foreign value", "f32[2]", func(f compute.Function, in []compute.Value) ([]compute.Value, error) { return one(f.Add(in[0], 3)) },
			"Add: operand 1 is int, not a value of the recorder",
		},
		{
			"nil value", "f32[2]", func(f compute.Function, in []compute.Value) ([]compute.Value, error) { return one(f.Neg(nil)) },
			"Neg: operand 0 is <nil>, not a value of the recorder",
		},
		{"other computation", "f32[2]", func(f compute.Function, in []compute.Value) ([]compute.Value, error) {
			x, err := NewRecorder().Builder("other").Main().Parameter("x", f32, nil)
			if err != nil {
				return nil, err
			}
			return one(f.Neg(x))
		}, `Neg: operand 0 belongs to another computation ("other")`},
		{"dynamic parameter", "", func(f compute.Function, in []compute.Value) ([]compute.Value, error) {
			return one(f.Parameter("x", shapes.MakeDynamic(dtypes.Float32, []int{shapes.DynamicDim}, []string{"batch"}), nil))
		}, "parameter x: the shape"},
		{"sharded parameter", "", func(f compute.Function, in []compute.Value) ([]compute.Value, error) {
			return one(f.Parameter("x", f32, &compute.ShardingSpec{}))
		}, "parameter x: a sharding was given"},
		{"while state", "bool[] f32[2]", func(f compute.Function, in []compute.Value) ([]compute.Value, error) {
			cond := closure(t, f, func(c compute.Function) ([]compute.Value, error) {
				return one(c.Parameter("p", shapes.Make(dtypes.Bool), nil))
			})
			return f.While(cond, cond, in[1])
		}, "While: parameter 0 of the condition has shape (Bool), wanted (Float32)[2]"},
		{"while condition", "f32[2]", func(f compute.Function, in []compute.Value) ([]compute.Value, error) {
			cond := closure(t, f, func(c compute.Function) ([]compute.Value, error) { return one(c.Parameter("p", f32, nil)) })
			return f.While(cond, cond, in[0])
		}, "While: result 0 of the condition has shape (Float32)[2], wanted (Bool)"},
		{"if branches", "bool[] f32[2] f32[]", func(f compute.Function, in []compute.Value) ([]compute.Value, error) {
			a := closure(t, f, func(c compute.Function) ([]compute.Value, error) { return one(c.Neg(in[1])) })
			b := closure(t, f, func(c compute.Function) ([]compute.Value, error) { return one(c.Neg(in[2])) })
			return f.If(in[0], a, b)
		}, "If: result 0 of the false branch has shape (Float32), wanted (Float32)[2]"},
		{"sort capture", "f32[2] bool[]", func(f compute.Function, in []compute.Value) ([]compute.Value, error) {
			less := closure(t, f, func(c compute.Function) ([]compute.Value, error) {
				for _, name := range []string{"lhs", "rhs"} {
					if _, err := c.Parameter(name, shapes.Make(dtypes.Float32), nil); err != nil {
						return nil, err
					}
				}
				return one(c.Identity(in[1]))
			})
			return f.Sort(less, 0, false, in[0])
		}, "Sort: the comparator uses a value of shape (Bool) from outside"},
		{
			"call of main", "f32[2]", func(f compute.Function, in []compute.Value) ([]compute.Value, error) { return f.Call(f, in...) },
			"Call: the target is not a function of this computation made by NewFunction",
		},
		{"value of a closure", "f32[2] bool[]", func(f compute.Function, in []compute.Value) ([]compute.Value, error) {
			var leaked compute.Value
			closure(t, f, func(c compute.Function) (out []compute.Value, err error) {
				leaked, err = c.Neg(in[0])
				return []compute.Value{leaked}, err
			})
			return one(f.Neg(leaked))
		}, `Neg: an operand of shape (Float32)[2] belongs to function "closure" and cannot be used in "main"`},
		{"after return", "f32[2]", func(f compute.Function, in []compute.Value) ([]compute.Value, error) {
			if err := f.Return(in, nil); err != nil {
				return nil, err
			}
			return one(f.Neg(in[0]))
		}, `function "main" has returned`},
		{"key and input of one name", "f32[2]", func(f compute.Function, in []compute.Value) ([]compute.Value, error) {
			return one(f.Parameter(WeightPrefix+"p0", f32, nil))
		}, `"p0" names both an input and a weight; rename the input`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := recordOp(t, tc.params, tc.op)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v (%s), want an error with %q", err, got, tc.want)
			}
		})
	}
}

// TestRecorderHoldsNoData checks that no path through the recorder takes or gives data.
func TestRecorderHoldsNoData(t *testing.T) {
	r := NewRecorder()
	if _, err := r.BufferFromFlatData(0, []float32{1}, shapes.Make(dtypes.Float32, 1)); !errors.Is(err, errNoData) {
		t.Errorf("BufferFromFlatData: %v", err)
	}
	if _, _, err := r.NewSharedBuffer(0, shapes.Make(dtypes.Float32, 1)); !errors.Is(err, errNoData) {
		t.Errorf("NewSharedBuffer: %v", err)
	}
	b := r.Builder("b")
	if _, err := b.Compile(); err == nil {
		t.Error("Compile took a main function that has not returned")
	}
	x, err := b.Main().Parameter("x", shapes.Make(dtypes.Float32, 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Main().Return([]compute.Value{x}, nil); err != nil {
		t.Fatal(err)
	}
	exec, err := b.Compile()
	if err != nil {
		t.Fatal(err)
	}
	if names, in := exec.Inputs(); len(names) != 1 || names[0] != "x" || len(in) != 1 || len(exec.Outputs()) != 1 {
		t.Errorf("the signature is %v %v -> %v", names, in, exec.Outputs())
	}
	if _, err := exec.Execute(nil, nil, 0); !errors.Is(err, errNoData) {
		t.Errorf("Execute: %v", err)
	}
}

// deepNetwork is a transformer of FLUX.1's sizes: 57 blocks make about 15 000 nodes.
func deepNetwork(blocks int) Network {
	const width, heads, tokens = 3072, 24, 1024
	linear := func(c *Ctx, name string, x *ml.Node, out int) *ml.Node {
		defer c.Enter(name)()
		w := c.Weight("weight", out, x.Shape().Dimensions[x.Rank()-1])
		y := ml.Dot(x, w).General([]int{x.Rank() - 1}, nil, []int{1}, nil)
		return ml.Add(y, ml.ExpandLeftToRank(c.Weight("bias", out), y.Rank()))
	}
	norm := func(x *ml.Node) *ml.Node {
		y := ml.ConvertDType(x, dtypes.Float32)
		y = ml.Sub(y, ml.ReduceAndKeep(y, ml.ReduceMean, -1))
		y = ml.Mul(y, ml.Rsqrt(ml.AddScalar(ml.ReduceAndKeep(ml.Square(y), ml.ReduceMean, -1), 1e-6)))
		return ml.ConvertDType(y, dtypes.BFloat16)
	}
	return Network{
		Name: "transformer", DType: dtypes.BFloat16, Outputs: []string{"sample"},
		Inputs: []Input{{"x", shapes.Make(dtypes.BFloat16, 1, tokens, width)}},
		Build: func(c *Ctx, in map[string]*ml.Node) []*ml.Node {
			x := in["x"]
			attention := func(name string) {
				defer c.Enter(name)()
				y := norm(x)
				var qkv [3]*ml.Node
				for i, name := range []string{"to_q", "to_k", "to_v"} {
					heads := ml.Reshape(linear(c, name, y, width), 1, tokens, heads, width/heads)
					qkv[i] = norm(ml.TransposeAllAxes(heads, 0, 2, 1, 3))
				}
				scores := ml.DotGeneral(qkv[0], []int{3}, []int{0, 1}, qkv[1], []int{3}, []int{0, 1})
				y = ml.DotGeneral(ml.Softmax(ml.MulScalar(scores, 0.08), -1), []int{3}, []int{0, 1}, qkv[2], []int{2}, []int{0, 1})
				y = ml.Reshape(ml.TransposeAllAxes(y, 0, 2, 1, 3), 1, tokens, width)
				x = ml.Add(x, linear(c, "to_out", y, width))
			}
			for i := range blocks {
				func() {
					defer c.Enter("transformer_blocks." + strconv.Itoa(i))()
					attention("attn")
					attention("attn2")
					x = ml.Add(x, linear(c, "proj", ml.Sigmoid(linear(c, "ff", norm(x), 4*width)), width))
				}()
			}
			return []*ml.Node{x}
		},
	}
}

// TestDeepNetwork holds tracing to linear time and memory.
func TestDeepNetwork(t *testing.T) {
	measure := func(blocks int) (nodes int, took time.Duration, allocated uint64) {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		start := time.Now()
		m, err := Trace(deepNetwork(blocks))
		took = time.Since(start)
		if err != nil {
			t.Fatalf("%+v", err)
		}
		runtime.ReadMemStats(&after)
		if err := graph.Verify(m); err != nil {
			t.Error(err)
		}
		return len(m.Entry().Nodes), took, after.TotalAlloc - before.TotalAlloc
	}
	nodes, took, allocated := measure(57)
	t.Logf("%d nodes in %v, %d MB allocated", nodes, took, allocated>>20)
	if nodes < 8000 {
		t.Errorf("the network has %d nodes, wanted the size of FLUX.1", nodes)
	}
	if took > time.Second {
		t.Errorf("tracing took %v, wanted less than a second", took)
	}
	if allocated > 150<<20 {
		t.Errorf("tracing allocated %d MB, wanted less than 150", allocated>>20)
	}
	fewNodes, _, fewAllocated := measure(57 / 3)
	perNode, fewPerNode := float64(allocated)/float64(nodes), float64(fewAllocated)/float64(fewNodes)
	if perNode > 1.3*fewPerNode {
		t.Errorf("a node costs %.0f bytes in a network of %d nodes and %.0f in one of %d: tracing is not linear", perNode, nodes, fewPerNode, fewNodes)
	}
}
