package nn

import (
	"fmt"
	"testing"

	"github.com/gomlx/compute/dtypes"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph/trace"
)

func TestGroupNorm(t *testing.T) {
	for _, groups := range []int{1, 2, 3, 6} {
		t.Run(fmt.Sprint(groups), func(t *testing.T) {
			p, x := newParams(), randomPicture(2, 6, 5, 4)
			// A mean a thousand times the deviation: a variance taken as the mean of squares would lose it.
			for i := range x.v {
				x.v[i] = float64(float32(x.v[i] + 1000))
			}
			want := directGroupNorm(p, "norm", x, groups, 1e-5)
			got := evalImage(t, dtypes.Float32, p, x, nil, func(c *trace.Ctx, x *ml.Node, _ []*ml.Node) *ml.Node {
				return GroupNorm(c, "norm", x, groups, 1e-5)
			})
			compare(t, got, want, 1e-4)
		})
	}
}

// TestGroupNormEps has a constant image: the result is the bias, and NaN without eps.
func TestGroupNormEps(t *testing.T) {
	p, x := newParams(), newPicture(1, 4, 3, 3)
	want := directGroupNorm(p, "norm", x, 2, 1e-6)
	got := evalImage(t, dtypes.Float32, p, x, nil, func(c *trace.Ctx, x *ml.Node, _ []*ml.Node) *ml.Node {
		return GroupNorm(c, "norm", x, 2, 1e-6)
	})
	compare(t, got, want, 0)
}

// TestGroupNormHalf has sums that bfloat16 cannot hold: its statistics must be float32.
func TestGroupNormHalf(t *testing.T) {
	p, x := newParams(), randomPicture(1, 4, 24, 24)
	want := directGroupNorm(p, "norm", x, 2, 1e-5)
	got := evalImage(t, dtypes.BFloat16, p, x, nil, func(c *trace.Ctx, x *ml.Node, _ []*ml.Node) *ml.Node {
		return GroupNorm(c, "norm", x, 2, 1e-5)
	})
	compare(t, got, want, 0.01)
}

func TestGroupNormErrors(t *testing.T) {
	wantPanic(t, func(c *trace.Ctx, x *ml.Node) *ml.Node { return GroupNorm(c, "norm", x, 4, 1e-5) },
		"trace: layer: at norm: GroupNorm: found 6 channels in 4 groups, wanted a number of groups that divides the channels")
	wantPanic(t, func(c *trace.Ctx, x *ml.Node) *ml.Node { return GroupNorm(c, "norm", x, 0, 1e-5) },
		"trace: layer: at norm: GroupNorm: found 6 channels in 0 groups, wanted a number of groups that divides the channels")
	wantPanic(t, func(c *trace.Ctx, x *ml.Node) *ml.Node { return GroupNorm(c, "norm", ml.Reshape(x, 35, 6), 2, 1e-5) },
		"trace: layer: at norm: GroupNorm: found an input of shape (Float32)[35, 6], wanted [batch,...,channels]")
}
