package nn

import (
	"fmt"
	"math"

	"github.com/gomlx/compute"
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

// axis is the window along time (0), height (1) or width (2).
func (w Window3D) axis(i int) axisWindow {
	return axisWindow{w.Size[i], max(w.Stride[i], 1), w.Padding[i]}
}

// Conv3D is PyTorch's Conv3d with bias, under the submodule name: x [B, T, H, W, in] to [B, T', H', W', out]. The checkpoint holds
// "weight" [out, in, kt, kh, kw] and "bias" [out].
//
// It is computed as a sum of two-dimensional convolutions, one for each frame of the kernel, with the frames of the video as their batch: see Conv2D
// for how. XLA's three-dimensional convolution took 2.5 to 4 times as long on the CPU, for 6 and 96 channels and one and four frames.
func Conv3D(c *trace.Ctx, name string, x *ml.Node, out int, w Window3D) *ml.Node {
	defer enter(c, name)()
	wantVideo(x, "Conv3D")
	weight := c.Weight("weight", out, x.Shape().Dim(-1), w.Size[0], w.Size[1], w.Size[2])
	return addBias(c, convolveVideo("Conv3D", x, weight, w))
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
	weight := c.Weight("weight", out, x.Shape().Dim(-1), size[0], size[1], size[2])
	w := Window3D{Size: size}
	for i := 1; i < 3; i++ {
		w.Padding[i] = [2]int{size[i] / 2, size[i] / 2}
	}
	switch {
	case past == nil && x.Shape().Dim(1) == 1:
		weight = ml.SliceAxis(weight, 2, ml.AxisRangeToEnd(size[0]-1))
		w.Size[0] = 1
	case past == nil:
		w.Padding[0][0] = size[0] - 1
	case size[0] > 1:
		x = ml.Concatenate([]*ml.Node{past, x}, 1)
	}
	return addBias(c, convolveVideo("CausalConv3D", x, weight, w))
}

// convolveVideo is a convolution of videos without bias. Half precisions are summed over the kernel's frames in float32.
func convolveVideo(layer string, x, weight *ml.Node, w Window3D) *ml.Node {
	time, rows, columns := w.axis(0), w.axis(1), w.axis(2)
	d := x.Shape().Dimensions
	frames := time.outputs(d[1])
	if frames < 1 {
		panic(fmt.Errorf("%s: found %d frames, wanted as many as the window of %d has", layer, d[1], time.size))
	}
	if time.padding != [2]int{} {
		x = ml.Pad(x, ml.ScalarZero(x.Graph(), x.DType()),
			compute.PadAxis{}, compute.PadAxis{Start: time.padding[0], End: time.padding[1]}, compute.PadAxis{}, compute.PadAxis{}, compute.PadAxis{})
	}
	// tap is what the kernel's frame i sees.
	tap := func(i int) *ml.Node {
		if d[1] == frames && time.size == 1 {
			return x
		}
		return ml.SliceAxis(x, 1, ml.AxisRange(i, i+(frames-1)*time.stride+1).Stride(time.stride))
	}
	k := weight.Shape().Dimensions
	if rows.outputs(d[2])*columns.outputs(d[3]) <= maxPatchPositions {
		// One matrix product over the patches of all taps: less to compile, and there is no gain to be had from less.
		taps := make([]*ml.Node, time.size)
		for i := range taps {
			taps[i] = tap(i)
		}
		kernel := ml.Reshape(ml.TransposeAllAxes(weight, 0, 2, 1, 3, 4), k[0], k[2]*k[1], k[3], k[4])
		return PerFrame(ml.Concatenate(taps, 4), func(x *ml.Node) *ml.Node { return convolve(layer, x, kernel, rows, columns) })
	}
	var sum *ml.Node
	for i := range time.size {
		kernel := ml.Reshape(ml.SliceAxis(weight, 2, ml.AxisRange(i, i+1)), k[0], k[1], k[3], k[4])
		y := widen(PerFrame(tap(i), func(x *ml.Node) *ml.Node { return convolve(layer, x, kernel, rows, columns) }))
		if sum == nil {
			sum = y
		} else {
			sum = ml.Add(sum, y)
		}
	}
	return ml.ConvertDType(sum, x.DType())
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
	return ml.ConvertDType(h, x.DType())
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
