package lower

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/gobackend"

	"precast/graph"
)

// execute builds text on a builder of gomlx's Go backend, as wrap changes it, and runs it on float32 arguments.
func execute(t *testing.T, text string, wrap func(compute.Builder) compute.Builder, args ...[]float32) [][]float32 {
	t.Helper()
	backend, err := gobackend.New("ops_sequential")
	if err != nil {
		t.Fatal(err)
	}
	defer backend.Finalize()
	m := parse(t, t.Name(), text)
	b := backend.Builder(m.Name)
	if err := ToBuilder(m, wrap(b)); err != nil {
		t.Fatal(err)
	}
	e, err := b.Compile()
	if err != nil {
		t.Fatal(err)
	}
	defer e.Finalize()
	var in []compute.Buffer
	for i, a := range args {
		buf, err := backend.BufferFromFlatData(0, a, m.Entry().Params[i].Value.Shape)
		if err != nil {
			t.Fatal(err)
		}
		in = append(in, buf)
	}
	out, err := e.Execute(in, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var results [][]float32
	for _, o := range out {
		flat, err := o.Data()
		if err != nil {
			t.Fatal(err)
		}
		results = append(results, slices.Clone(flat.([]float32)))
	}
	return results
}

const calls = `module @calls
	func @main {
		%0 = input "x" : f32[2]
		%1 = call %0 {callee = "outer"} : f32[2]
		%2 = call %1 {callee = "outer"} : f32[2]
		return %2, %2
	}
	func @outer {
		%0 = input "x" : f32[2]
		%1, %2 = call %0 {callee = "inner"} : f32[2], f32[2]
		%3 = add %1, %2 : f32[2]
		return %3
	}
	func @inner {
		%0 = input "x" : f32[2]
		%1 = add %0, %0 : f32[2]
		return %1, %1
	}`

// noFunctions is a builder without functions; it counts the attempts.
type noFunctions struct {
	compute.Builder
	asked *int
}

func (b noFunctions) NewFunction(string) (compute.Function, error) {
	*b.asked++
	return nil, errors.New("no functions here")
}

func TestToBuilderFunctions(t *testing.T) {
	asked := 0
	for name, wrap := range map[string]func(compute.Builder) compute.Builder{
		"called":  func(b compute.Builder) compute.Builder { return b },
		"inlined": func(b compute.Builder) compute.Builder { return noFunctions{b, &asked} },
	} {
		t.Run(name, func(t *testing.T) {
			got := execute(t, calls, wrap, []float32{1, 2})
			for _, r := range got {
				if !slices.Equal(r, []float32{16, 32}) {
					t.Errorf("found %v, wanted [16 32]", r)
				}
			}
			if len(got) != 2 {
				t.Errorf("found %d results, wanted 2", len(got))
			}
		})
	}
	if asked != 2 {
		t.Errorf("the builder was asked for a function %d times, wanted once for each of 2", asked)
	}
}

func TestToBuilderSharesFunctions(t *testing.T) {
	names := map[string]int{}
	execute(t, calls, func(b compute.Builder) compute.Builder { return counting{b, names} }, []float32{1, 2})
	if names["outer"] != 1 || names["inner"] != 1 {
		t.Errorf("functions built: %v, wanted each once", names)
	}
}

// TestToBuilderBroadcasts has, in a function and in the body of a loop, element-wise operations on broadcasts of values that are used before.
func TestToBuilderBroadcasts(t *testing.T) {
	const norm = `
		%2 = reduce %1 {combiner = "add", dimensions = [1]} : f32[2]
		%3 = reshape %2 : f32[2,1]
		%4 = broadcast_in_dim %3 {broadcast_dimensions = [0, 1]} : f32[2,2]
		%5 = subtract %1, %4 : f32[2,2]
		%6 = multiply %5, %5 : f32[2,2]
		%7 = broadcast_in_dim %3 {broadcast_dimensions = [0, 1]} : f32[2,2]
		%8 = add %6, %7 : f32[2,2]`
	for name, text := range map[string]string{
		"function": `module @m
			func @main {
				%0 = input "x" : f32[2,2]
				%1 = call %0 {callee = "block"} : f32[2,2]
				return %1
			}
			func @block {
				%0 = input "x" : f32[2,2]
				%1 = negate %0 : f32[2,2]` + norm + `
				return %8
			}`,
		"loop": `module @m
			func @main {
				%0 = input "x" : f32[2,2]
				%1 = constant {value = splat<i32: 1>} : i32[]
				%2, %3 = while %1, %0 region {
					%0 = input "i" : i32[]
					%1 = input "x" : f32[2,2]
					%2 = constant {value = splat<i32: 0>} : i32[]
					%3 = compare %0, %2 {direction = "GT"} : bool[]
					return %3
				} region {
					%0 = input "i" : i32[]
					%9 = input "x" : f32[2,2]
					%1 = negate %9 : f32[2,2]` + norm + `
					%10 = subtract %0, %0 : i32[]
					return %10, %8
				} : i32[], f32[2,2]
				return %3
			}`,
	} {
		t.Run(name, func(t *testing.T) {
			got := execute(t, text, func(b compute.Builder) compute.Builder { return b }, []float32{1, 2, 3, 5})[0]
			// Rows -1, -2 with the sum -3: (-1+3)^2-3, (-2+3)^2-3; and -3, -5 with the sum -8.
			if want := []float32{1, -2, 17, 1}; !slices.Equal(got, want) {
				t.Errorf("found %v, wanted %v", got, want)
			}
		})
	}
}

type counting struct {
	compute.Builder
	names map[string]int
}

func (b counting) NewFunction(name string) (compute.Function, error) {
	b.names[name]++
	return b.Builder.NewFunction(name)
}

func TestToBuilderErrors(t *testing.T) {
	f32, c64 := graph.Shape{DType: dtypes.Float32}, graph.Shape{DType: dtypes.Complex64}
	for _, k := range []struct {
		name, want string
		edit       func(m *graph.Module, f *graph.Func, x *graph.Value)
	}{
		{"unknown op", `func main, fold: operation "fold" can't be built`, func(m *graph.Module, f *graph.Func, x *graph.Value) {
			f.Append("fold", []*graph.Value{x}, nil, f32)
		}},
		{"undefined value", "func main, negate: an operand is used before it is defined", func(m *graph.Module, f *graph.Func, x *graph.Value) {
			f.Append(graph.OpNeg, []*graph.Value{{Shape: f32}}, nil, f32)
		}},
		{"callee", `func main, call: function "gone" is not in the module`, func(m *graph.Module, f *graph.Func, x *graph.Value) {
			f.Append(graph.OpCall, []*graph.Value{x}, graph.Attrs{{Name: "callee", Value: "gone"}}, f32)
		}},
		{"builder's refusal", "func main, constant: ", func(m *graph.Module, f *graph.Func, x *graph.Value) {
			f.Append(graph.OpConstant, nil, graph.Attrs{{Name: "value", Value: graph.Literal{Data: make([]byte, 8), Splat: true}}}, c64)
		}},
		{"short constant", "func main, constant: constant of Float32 with 1 elements: found 2 bytes, wanted 4", func(m *graph.Module, f *graph.Func, x *graph.Value) {
			f.Append(graph.OpConstant, nil, graph.Attrs{{Name: "value", Value: graph.Literal{Data: []byte{1, 2}}}}, f32)
		}},
		{"in a private function", `func block, fold: operation "fold" can't be built`, func(m *graph.Module, f *graph.Func, x *graph.Value) {
			g := &graph.Func{Name: "block"}
			y := g.NewParam("y", graph.Input, f32)
			g.Results = g.Append("fold", []*graph.Value{y}, nil, f32).Results
			m.Funcs = append(m.Funcs, g)
			f.Append(graph.OpCall, []*graph.Value{x}, graph.Attrs{{Name: "callee", Value: "block"}}, f32)
		}},
		{"no results", "func main", func(m *graph.Module, f *graph.Func, x *graph.Value) { f.Results = nil }},
	} {
		t.Run(k.name, func(t *testing.T) {
			m := graph.NewModule("bad")
			x := m.Entry().NewParam("x", graph.Input, f32)
			m.Entry().Results = []*graph.Value{x}
			k.edit(m, m.Entry(), x)
			backend, err := gobackend.New("")
			if err != nil {
				t.Fatal(err)
			}
			defer backend.Finalize()
			err = ToBuilder(m, backend.Builder("bad"))
			if err == nil || !strings.Contains(err.Error(), k.want) {
				t.Errorf("found %v, wanted it to contain %q", err, k.want)
			}
		})
	}
	if err := ToBuilder(&graph.Module{Name: "empty"}, nil); err == nil || !strings.Contains(err.Error(), `module "empty" has no function`) {
		t.Errorf("found %v, wanted a complaint about no function", err)
	}
}

// TestConvolutionInBands makes patches of several bands of rows, which small convolutions don't.
func TestConvolutionInBands(t *testing.T) {
	const text = `module @bands
		func @main {
			%0 = input "x" : f32[1,1,2100,1050]
			%1 = input "k" : f32[1,1,3,3]
			%2 = convolution %0, %1 {input_batch_dimension = 0, input_feature_dimension = 1, input_spatial_dimensions = [2, 3], kernel_input_feature_dimension = 1, kernel_output_feature_dimension = 0, kernel_spatial_dimensions = [2, 3], output_batch_dimension = 0, output_feature_dimension = 1, output_spatial_dimensions = [2, 3], padding = [[1, 1], [1, 1]]} : f32[1,1,2100,1050]
			return %2
		}`
	if 2100*1050*9*4 < 3*patchBytes {
		t.Fatalf("the convolution fits in fewer than 3 bands of %d bytes", patchBytes)
	}
	const rows, columns = 2100, 1050
	x := make([]float32, rows*columns)
	for i := range x {
		x[i] = float32(i % 97)
	}
	k := []float32{1, 2, 3, 4, 5, 6, 7, 8, 9}
	got := execute(t, text, func(b compute.Builder) compute.Builder { return b }, x, k)[0]
	for i := range rows {
		for j := range columns {
			var want float32
			for a := -1; a <= 1; a++ {
				for b := -1; b <= 1; b++ {
					if y, z := i+a, j+b; y >= 0 && y < rows && z >= 0 && z < columns {
						want += x[y*columns+z] * k[3*(a+1)+b+1]
					}
				}
			}
			if got[i*columns+j] != want {
				t.Fatalf("at %d, %d: found %v, wanted %v", i, j, got[i*columns+j], want)
			}
		}
	}
}
