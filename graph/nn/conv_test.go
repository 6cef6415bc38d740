package nn

import (
	"fmt"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph"
	"precast/graph/trace"
)

func TestConv2D(t *testing.T) {
	for _, window := range []Window{
		Same(1), Same(3), Same(5), Padded(3, 2, 1), Padded(3, 1, 0), Padded(1, 2, 0),
		{Size: 3, Stride: 2, Padding: [2][2]int{{0, 1}, {0, 1}}},
		{Size: 2, Padding: [2][2]int{{1, 0}, {0, 2}}}, // stride 0 is 1
	} {
		// A small picture is a matrix product over patches, a larger one a convolution.
		for _, size := range [][2]int{{7, 6}, {36, 34}} {
			t.Run(fmt.Sprint(window, size), func(t *testing.T) {
				p, x := newParams(), randomPicture(2, 3, size[0], size[1])
				want := directConv(p, "conv", x, 4, window)
				got := evalImage(t, dtypes.Float32, p, x, nil, func(c *trace.Ctx, x *ml.Node, _ []*ml.Node) *ml.Node {
					return Conv2D(c, "conv", x, 4, window)
				})
				compare(t, got, want, 1e-6)
			})
		}
	}
}

// A convolution by hand: the kernel picks the left neighbour of channel 1, so that flipped, transposed or mixed axes show.
func TestConv2DAxes(t *testing.T) {
	p := newParams()
	p.all["weight"] = make([]float64, 1*2*3*3)
	p.all["weight"][1*9+1*3+0] = 1 // out 0, in 1, row 1, column 0
	p.all["bias"] = []float64{0.5}
	x := newPicture(1, 2, 2, 3)
	for i := range x.v {
		x.v[i] = float64(i)
	}
	got := evalImage(t, dtypes.Float32, p, x, nil, func(c *trace.Ctx, x *ml.Node, _ []*ml.Node) *ml.Node {
		return Conv2D(c, "", x, 1, Same(3))
	})
	compare(t, got, picture{1, 1, 2, 3, []float64{0.5, 6.5, 7.5, 0.5, 9.5, 10.5}}, 0)
}

func TestConv2DHalf(t *testing.T) {
	for i, window := range []Window{Same(1), Same(3), Same(3)} {
		p, x := newParams(), randomPicture(1, 4, 5+15*i, 20)
		want := directConv(p, "conv", x, 4, window)
		got := evalImage(t, dtypes.BFloat16, p, x, nil, func(c *trace.Ctx, x *ml.Node, _ []*ml.Node) *ml.Node {
			return Conv2D(c, "conv", x, 4, window)
		})
		compare(t, got, want, 0.01)
	}
}

// TestConv2DForm checks which sizes become which operation.
func TestConv2DForm(t *testing.T) {
	for _, tc := range []struct {
		window        Window
		height, width int
		op            graph.Op
	}{
		{Same(1), 64, 64, graph.OpDot},
		{Same(3), 16, 16, graph.OpDot},
		{Same(3), 16, 17, graph.OpConv},
		{Padded(3, 2, 1), 32, 32, graph.OpDot},
		{Padded(3, 2, 1), 34, 32, graph.OpConv},
	} {
		m, err := trace.Trace(trace.Network{
			Name: "layer", DType: dtypes.Float32, Outputs: []string{"y"},
			Inputs: []trace.Input{{Name: "x", Shape: shapes.Make(dtypes.Float32, 1, tc.height, tc.width, 3)}},
			Build: func(c *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
				return []*ml.Node{Conv2D(c, "conv", in["x"], 4, tc.window)}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		var found []graph.Op
		for _, n := range m.Entry().Nodes {
			if n.Op == graph.OpDot || n.Op == graph.OpConv {
				found = append(found, n.Op)
			}
		}
		if len(found) != 1 || found[0] != tc.op {
			t.Errorf("%v over %dx%d: found %v, wanted %s", tc.window, tc.height, tc.width, found, tc.op)
		}
	}
}

// TestConv2DTooSmall has a window larger than the picture.
func TestConv2DTooSmall(t *testing.T) {
	n := trace.Network{
		Name: "layer", DType: dtypes.Float32, Outputs: []string{"y"},
		Inputs: []trace.Input{{Name: "x", Shape: shapes.Make(dtypes.Float32, 1, 2, 5, 3)}},
		Build: func(c *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
			return []*ml.Node{Conv2D(c, "conv", in["x"], 4, Padded(3, 1, 0))}
		},
	}
	if _, err := trace.Evaluate(nil, n, nil, nil); err == nil ||
		err.Error() != "trace: layer: at conv: Conv2D: found an image of 2x5, wanted one that a window of 3x3 fits into" {
		t.Errorf("found error %v", err)
	}
}

func TestConv2DRank(t *testing.T) {
	wantPanic(t, func(c *trace.Ctx, x *ml.Node) *ml.Node { return Conv2D(c, "conv", ml.Reshape(x, 5, 42), 4, Same(3)) },
		"trace: layer: at conv: Conv2D: found an input of shape (Float32)[5, 42], wanted [B, H, W, C]")
}
