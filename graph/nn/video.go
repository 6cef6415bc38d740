package nn

import (
	"fmt"
	"math"

	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph/trace"
)

// Window3D is the geometry of a convolution over a video: the axes are time, height and width.
type Window3D struct {
	Size [3]int
	// Stride is the step in each axis; 0 means 1.
	Stride [3]int
	// Padding is the number of zeros before and after, in each axis.
	Padding [3][2]int
}

func (w Window3D) axes() []axisWindow {
	axes := make([]axisWindow, 3)
	for i := range axes {
		axes[i] = axisWindow{w.Size[i], max(w.Stride[i], 1), w.Padding[i]}
	}
	return axes
}

// Conv3D is PyTorch's Conv3d with bias, under the submodule name: x [B, T, H, W, in] to [B, T', H', W', out]. The checkpoint holds
// "weight" [out, in, kt, kh, kw] and "bias" [out]; see Conv2D for the rest.
func Conv3D(c *trace.Ctx, name string, x *ml.Node, out int, w Window3D) *ml.Node {
	defer enter(c, name)()
	wantVideo(x, "Conv3D")
	weight := c.Weight("weight", out, x.Shape().Dim(-1), w.Size[0], w.Size[1], w.Size[2])
	return addBias(c, convolve("Conv3D", x, weight, w.axes()))
}

// CausalConv3D is a convolution of stride 1 that keeps T, H and W and sees no frame after its own (WanCausalConv3d in diffusers,
// models/autoencoders/autoencoder_kl_wan.py): x [B, T, H, W, in] to [B, T, H, W, out]. Height and width are padded with zeros on both
// sides, which keeps them where kh and kw are odd.
//
// past [B, kt-1, H, W, in] has the frames before x; nil stands for zeros, the start of the video. A first frame alone meets only the
// kernel's last frame, so it is a convolution of an image.
func CausalConv3D(c *trace.Ctx, name string, x, past *ml.Node, out int, size [3]int) *ml.Node {
	defer enter(c, name)()
	wantVideo(x, "CausalConv3D")
	d := x.Shape().Dimensions
	weight := c.Weight("weight", out, d[4], size[0], size[1], size[2])
	w := Window3D{Size: size}
	for i := 1; i < 3; i++ {
		w.Padding[i] = [2]int{size[i] / 2, size[i] / 2}
	}
	if past == nil && d[1] == 1 {
		last := ml.Reshape(ml.SliceAxis(weight, 2, ml.AxisRange(size[0]-1, size[0])), out, d[4], size[1], size[2])
		y := convolve("CausalConv3D", ml.Reshape(x, d[0], d[2], d[3], d[4]), last, w.axes()[1:])
		return addBias(c, ml.Reshape(y, d[0], 1, d[2], d[3], out))
	}
	switch {
	case past == nil:
		w.Padding[0][0] = size[0] - 1
	case size[0] > 1:
		x = ml.Concatenate([]*ml.Node{past, x}, 1)
	}
	return addBias(c, convolve("CausalConv3D", x, weight, w.axes()))
}

// PerFrame applies a layer of images to each frame of x [B, T, H, W, C]: [B, T, H', W', C'].
func PerFrame(x *ml.Node, layer func(x *ml.Node) *ml.Node) *ml.Node {
	wantVideo(x, "PerFrame")
	d := x.Shape().Dimensions
	y := layer(ml.Reshape(x, d[0]*d[1], d[2], d[3], d[4]))
	e := y.Shape().Dimensions
	return ml.Reshape(y, d[0], d[1], e[1], e[2], e[3])
}

// RMSNormChannels is x / max(|x|, 1e-12) sqrt(C) weight over the channels of x [..., C]: root mean square normalisation whose guard against
// zero is a floor of the norm (WanRMS_norm in diffusers, models/autoencoders/autoencoder_kl_wan.py). The checkpoint's "gamma" is [C]
// followed by as many ones as ones says. It is computed in float32 and rounded once.
func RMSNormChannels(c *trace.Ctx, name string, x *ml.Node, ones int) *ml.Node {
	defer enter(c, name)()
	channels := x.Shape().Dim(-1)
	dims := []int{channels}
	for range ones {
		dims = append(dims, 1)
	}
	h := widen(x)
	length := ml.MaxScalar(ml.Sqrt(ml.ReduceSum(ml.Mul(h, h), -1)), 1e-12)
	gamma := ml.MulScalar(widen(ml.Reshape(c.Weight("gamma", dims...), channels)), math.Sqrt(float64(channels)))
	h = ml.Mul(ml.Div(h, overLast(length, h)), broadcastLast(gamma, h))
	return toDType(h, x.DType())
}

// ToNTHWC turns diffusers' layout [B, C, T, H, W] to the layout of this package, [B, T, H, W, C].
func ToNTHWC(x *ml.Node) *ml.Node {
	wantVideo(x, "ToNTHWC")
	return ml.TransposeAllAxes(x, 0, 2, 3, 4, 1)
}

// ToNCTHW turns [B, T, H, W, C] to diffusers' layout, [B, C, T, H, W].
func ToNCTHW(x *ml.Node) *ml.Node {
	wantVideo(x, "ToNCTHW")
	return ml.TransposeAllAxes(x, 0, 4, 1, 2, 3)
}

func wantVideo(x *ml.Node, layer string) {
	if x.Rank() != 5 {
		panic(fmt.Errorf("%s: found an input of shape %s, wanted [B, T, H, W, C]", layer, x.Shape()))
	}
}
