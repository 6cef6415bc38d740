package nn

import (
	"fmt"

	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph/trace"
)

// GroupNorm is PyTorch's GroupNorm under the submodule name ("weight" and "bias" [C]), over channels-last activations:
// x is [B,...,C], the mean and the variance are taken over everything but the batch within each of the groups of C/groups channels
// (Wu and He 2018, https://arxiv.org/abs/1803.08494). Statistics are computed in float32; the result has x's dtype.
func GroupNorm(c *trace.Ctx, name string, x *ml.Node, groups int, eps float64) *ml.Node {
	defer enter(c, name)()
	shape := x.Shape()
	rank := x.Rank()
	if rank < 3 {
		panic(fmt.Errorf("GroupNorm: found an input of shape %s, wanted [batch,...,channels]", shape))
	}
	batch, channels := shape.Dim(0), shape.Dim(-1)
	if groups < 1 || channels%groups != 0 {
		panic(fmt.Errorf("GroupNorm: found %d channels in %d groups, wanted a number of groups that divides the channels", channels, groups))
	}
	dtype := x.DType()
	x = widen(x)

	// Each mean is taken in two steps: over the positions, which are the outer axes and so reduce along contiguous rows of channels, then
	// over the few channels of a group. The result is spread back to one value a channel.
	spatial := make([]int, 0, rank-2)
	perChannel := make([]int, rank)
	positions := 1
	for axis := range perChannel {
		perChannel[axis] = 1
		if axis > 0 && axis < rank-1 {
			spatial = append(spatial, axis)
			positions *= shape.Dim(axis)
		}
	}
	perChannel[0], perChannel[rank-1] = batch, channels
	size := channels / groups
	groupMean := func(v *ml.Node) *ml.Node {
		sum := ml.ReduceSum(v, spatial...)
		sum = ml.ReduceSum(ml.Reshape(sum, batch, groups, size), 2)
		return ml.MulScalar(sum, 1/float64(positions*size)) // [B,groups]
	}
	spread := func(v *ml.Node) *ml.Node {
		v = ml.BroadcastToDims(ml.Reshape(v, batch, groups, 1), batch, groups, size)
		return ml.Reshape(v, perChannel...)
	}

	centered := ml.Sub(x, spread(groupMean(x)))
	variance := groupMean(ml.Square(centered))
	scale := spread(ml.Rsqrt(ml.AddScalar(variance, eps)))

	perChannel[0] = 1
	weight := ml.Reshape(widen(c.Weight("weight", channels)), perChannel...)
	bias := ml.Reshape(widen(c.Weight("bias", channels)), perChannel...)
	y := ml.Add(ml.Mul(centered, ml.Mul(scale, weight)), bias)
	return ml.ConvertDType(y, dtype)
}
