package nn

import (
	"fmt"
	"testing"

	"github.com/gomlx/compute/dtypes"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph/trace"
)

func TestConv2D(t *testing.T) {
	for _, window := range []Window{
		Same(1), Same(3), Same(5), Padded(3, 2, 1), Padded(3, 1, 0), Padded(1, 2, 0),
		{Size: 3, Stride: 2, Padding: [2][2]int{{0, 1}, {0, 1}}},
		{Size: 2, Padding: [2][2]int{{1, 0}, {0, 2}}}, // stride 0 is 1
	} {
		t.Run(fmt.Sprint(window), func(t *testing.T) {
			p, x := newParams(), randomPicture(2, 3, 7, 6)
			want := directConv(p, "conv", x, 4, window)
			got := evalImage(t, dtypes.Float32, p, x, nil, func(c *trace.Ctx, x *ml.Node, _ []*ml.Node) *ml.Node {
				return Conv2D(c, "conv", x, 4, window)
			})
			compare(t, got, want, 1e-6)
		})
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
	for _, window := range []Window{Same(1), Same(3)} {
		p, x := newParams(), randomPicture(1, 4, 5, 6)
		want := directConv(p, "conv", x, 4, window)
		got := evalImage(t, dtypes.BFloat16, p, x, nil, func(c *trace.Ctx, x *ml.Node, _ []*ml.Node) *ml.Node {
			return Conv2D(c, "conv", x, 4, window)
		})
		compare(t, got, want, 0.01)
	}
}

func TestConv2DRank(t *testing.T) {
	wantPanic(t, func(c *trace.Ctx, x *ml.Node) *ml.Node { return Conv2D(c, "conv", ml.Reshape(x, 5, 42), 4, Same(3)) },
		"trace: layer: at conv: Conv2D: found an input of shape (Float32)[5, 42], wanted [B, H, W, C]")
}
