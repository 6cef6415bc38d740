package nn

import (
	"fmt"
	"testing"

	"github.com/gomlx/compute/dtypes"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph/trace"
)

// directNearest is PyTorch's nearest interpolation to a given size: row floor(i * in / out), with the quotient in float32.
func directNearest(x picture, height, width int) picture {
	index := func(i, in, out int) int {
		return min(int(float32(i)*(float32(in)/float32(out))), in-1)
	}
	y := newPicture(x.n, x.c, height, width)
	y.each(func(n, c, i, j int, v *float64) { *v = *x.at(n, c, index(i, x.h, height), index(j, x.w, width)) })
	return y
}

func TestUpsample2D(t *testing.T) {
	for _, size := range [][2]int{{0, 0}, {10, 8}, {9, 8}, {10, 7}, {9, 7}} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			p, x := newParams(), randomPicture(2, 3, 5, 4)
			height, width := size[0], size[1]
			if height == 0 {
				height, width = 10, 8
			}
			want := directConv(p, "up.conv", directNearest(x, height, width), 2, Same(3))
			got := evalImage(t, dtypes.Float32, p, x, nil, func(c *trace.Ctx, x *ml.Node, _ []*ml.Node) *ml.Node {
				return Upsample2D(c, "up", x, 2, size[0], size[1])
			})
			compare(t, got, want, 1e-6)
		})
	}
}

// TestNearestOneLess checks the claim that Upsample2D rests on for every size that a picture can have: PyTorch's nearest interpolation
// from n to 2n-1 takes the rows that interpolation to 2n begins with.
func TestNearestOneLess(t *testing.T) {
	for n := 1; n <= 2048; n++ {
		for i := range 2*n - 1 {
			if row := int(float32(i) * (float32(n) / float32(2*n-1))); row != i/2 {
				t.Fatalf("from %d to %d: row %d comes from %d, not %d", n, 2*n-1, i, row, i/2)
			}
		}
	}
}

func TestUpsample2DErrors(t *testing.T) {
	for _, size := range [][2]int{{8, 14}, {11, 14}, {10, 12}, {10, 15}} {
		wantPanic(t, func(c *trace.Ctx, x *ml.Node) *ml.Node { return Upsample2D(c, "up", x, 2, size[0], size[1]) },
			fmt.Sprintf("trace: layer: at up: Upsample2D: found 5x7 to be upsampled to %dx%d, wanted twice the size or one less", size[0], size[1]))
	}
}

func TestDownsample2D(t *testing.T) {
	for _, padding := range []int{0, 1} {
		for _, size := range [][2]int{{6, 4}, {7, 5}} {
			t.Run(fmt.Sprint(padding, size), func(t *testing.T) {
				window := Padded(3, 2, 1)
				if padding == 0 {
					window = Window{Size: 3, Stride: 2, Padding: [2][2]int{{0, 1}, {0, 1}}}
				}
				p, x := newParams(), randomPicture(2, 3, size[0], size[1])
				want := directConv(p, "down.conv", x, 2, window)
				got := evalImage(t, dtypes.Float32, p, x, nil, func(c *trace.Ctx, x *ml.Node, _ []*ml.Node) *ml.Node {
					return Downsample2D(c, "down", x, 2, padding)
				})
				compare(t, got, want, 1e-6)
			})
		}
	}
}
