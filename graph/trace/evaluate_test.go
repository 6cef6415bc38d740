package trace

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	ml "github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"precast/graph"
)

// linearNetwork is y = x w^T + b over a [2,3] input, with the layer under "proj".
func linearNetwork() Network {
	return Network{
		Name:    "toy",
		DType:   dtypes.Float32,
		Inputs:  []Input{{"x", shapes.Make(dtypes.Float32, 2, 3)}, {"unused", shapes.Make(dtypes.Int32)}},
		Outputs: []string{"y"},
		Build: func(c *Ctx, in map[string]*ml.Node) []*ml.Node {
			defer c.Enter("proj")()
			w := c.Weight("weight", 4, 3)
			b := c.Weight("bias", 4)
			y := ml.DotGeneral(in["x"], []int{1}, nil, w, []int{1}, nil)
			return []*ml.Node{ml.Add(y, ml.ExpandAxes(b, 0))}
		},
	}
}

func TestEvaluate(t *testing.T) {
	weights := map[string]*tensors.Tensor{
		"proj.weight": tensors.FromValue([][]float32{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {1, 1, 1}}),
		"proj.bias":   tensors.FromValue([]float32{0, 10, 20, 30}),
	}
	var asked []string
	out, err := Evaluate(nil, linearNetwork(),
		func(key string, shape graph.Shape) (*tensors.Tensor, error) {
			asked = append(asked, key)
			return weights[key], nil
		},
		map[string]*tensors.Tensor{
			"x": tensors.FromValue([][]float32{{1, 2, 3}, {4, 5, 6}}), "unused": tensors.FromScalar(int32(7)),
		})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(out[0].Value()), "[[1 12 23 36] [4 15 26 45]]"; got != want {
		t.Errorf("y = %s, want %s", got, want)
	}
	if got, want := strings.Join(asked, " "), "proj.weight proj.bias"; got != want {
		t.Errorf("weights asked for: %s, want %s", got, want)
	}
}

func TestEvaluateErrors(t *testing.T) {
	x := tensors.FromValue([][]float32{{1, 2, 3}, {4, 5, 6}})
	unused := tensors.FromScalar(int32(7))
	ones := func(_ string, shape graph.Shape) (*tensors.Tensor, error) { return tensors.FromShape(shape), nil }
	for _, tc := range []struct {
		name    string
		weights func(string, graph.Shape) (*tensors.Tensor, error)
		inputs  map[string]*tensors.Tensor
		want    string
	}{
		{"missing input", ones, map[string]*tensors.Tensor{"x": x}, "trace: toy: unused: no tensor given, wanted one of shape (Int32)"},
		{
			"unknown input", ones,
			map[string]*tensors.Tensor{"x": x, "unused": unused, "z": x},
			`trace: toy: input "z" is given, but the network has no such input; it has x, unused`,
		},
		{
			"wrong shape", ones,
			map[string]*tensors.Tensor{"x": unused, "unused": unused},
			"trace: toy: x: the tensor given has shape (Int32), wanted (Float32)[2, 3]",
		},
		{
			"no weights", nil,
			map[string]*tensors.Tensor{"x": x, "unused": unused},
			"trace: toy: weight proj.weight is needed, but no weights were given",
		},
		{
			"weight error", func(string, graph.Shape) (*tensors.Tensor, error) { return nil, errors.New("no such key") },
			map[string]*tensors.Tensor{"x": x, "unused": unused},
			"trace: toy: weight proj.weight: no such key",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Evaluate(nil, linearNetwork(), tc.weights, tc.inputs)
			if err == nil || err.Error() != tc.want {
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
			var e *Error
			if !errors.As(err, &e) || e.Component != "toy" {
				t.Errorf("%T is no *Error of component toy", err)
			}
		})
	}
}

// TestEvaluateCoverage runs what the networks are made of over the Go backend, so that a gap there is known here first.
func TestEvaluateCoverage(t *testing.T) {
	f32 := func(dims ...int) graph.Shape { return shapes.Make(dtypes.Float32, dims...) }
	for _, tc := range []struct {
		name  string
		in    graph.Shape
		build func(x *ml.Node) *ml.Node
		want  string
	}{
		{"conv NCHW", f32(1, 2, 4, 4), func(x *ml.Node) *ml.Node {
			k := ml.Ones(x.Graph(), f32(3, 2, 3, 3))
			return ml.ReduceAllSum(ml.ConvGeneral(x, k, nchw, nil, [][2]int{{1, 1}, {1, 1}}, nil, nil, 1, 1))
		}, "600"}, // the 3x3 windows of a zero-padded 4x4 of ones hold 100 taps; times 2 channels in, 3 out
		{"batched dot", f32(2, 3, 4), func(x *ml.Node) *ml.Node {
			return ml.ReduceAllSum(ml.DotGeneral(x, []int{2}, []int{0}, x, []int{2}, []int{0}))
		}, "72"},
		{"erf", f32(1), func(x *ml.Node) *ml.Node { return ml.Reshape(ml.Erf(x)) }, "0.8427"},
		{"transpose", f32(2, 3, 4), func(x *ml.Node) *ml.Node { return ml.ReduceAllSum(ml.TransposeAllAxes(x, 2, 0, 1)) }, "24"},
		{"gather", f32(5, 3), func(x *ml.Node) *ml.Node {
			return ml.ReduceAllSum(ml.Gather(x, ml.Const(x.Graph(), [][]int32{{1}, {4}})))
		}, "6"},
		{"softmax", f32(2, 5), func(x *ml.Node) *ml.Node { return ml.ReduceAllSum(ml.Softmax(x, -1)) }, "2"},
		{"reduce max, rsqrt, logistic", f32(2, 5), func(x *ml.Node) *ml.Node {
			return ml.Rsqrt(ml.Sigmoid(ml.ReduceAllMax(x)))
		}, fmt.Sprintf("%.4g", 1/math.Sqrt(1/(1+math.Exp(-1))))},
		{"bfloat16 dot", f32(2, 4), func(x *ml.Node) *ml.Node {
			y := ml.ConvertDType(x, dtypes.BFloat16)
			y = ml.DotGeneral(y, []int{1}, nil, y, []int{1}, nil)
			return ml.ReduceAllSum(ml.ConvertDType(y, dtypes.Float32))
		}, "16"},
		{"where, pad, slice, concat", f32(2, 4), func(x *ml.Node) *ml.Node {
			y := ml.Concatenate([]*ml.Node{ml.Slice(x, ml.AxisRange(), ml.AxisRange(0, 2)), x}, 1)
			y = ml.Pad(y, ml.ScalarZero(x.Graph(), dtypes.Float32), ml.PadAxis{}, ml.PadAxis{Start: 1})
			return ml.ReduceAllSum(ml.Where(ml.GreaterThan(y, ml.ZerosLike(y)), ml.MulScalar(y, 2), y))
		}, "24"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := Network{
				Name: "op", DType: dtypes.Float32, Inputs: []Input{{"x", tc.in}}, Outputs: []string{"y"},
				Build: func(_ *Ctx, in map[string]*ml.Node) []*ml.Node { return []*ml.Node{tc.build(in["x"])} },
			}
			x := tensors.FromFlatDataAndDimensions(ones(tc.in.Size()), tc.in.Dimensions...)
			out, err := Evaluate(nil, n, nil, map[string]*tensors.Tensor{"x": x})
			if err != nil {
				t.Fatalf("%+v", err)
			}
			if got := fmt.Sprintf("%.4g", out[0].Value()); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// nchw is PyTorch's convolution layout: NCHW images, OIHW kernels.
var nchw = compute.ConvolveAxesConfig{
	InputBatch: 0, InputChannels: 1, InputSpatial: []int{2, 3},
	KernelOutputChannels: 0, KernelInputChannels: 1, KernelSpatial: []int{2, 3},
	OutputBatch: 0, OutputChannels: 1, OutputSpatial: []int{2, 3},
}

func ones(n int) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = 1
	}
	return out
}
