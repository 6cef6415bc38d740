package nn

import (
	"fmt"

	"github.com/gomlx/compute"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph/trace"
)

// Window is the geometry of a two-dimensional convolution: a square kernel, one stride, zero padding per edge.
type Window struct {
	// Size is the kernel's height and width.
	Size int
	// Stride is the step in both axes; 0 means 1.
	Stride int
	// Padding is the number of zero rows above and below, then of zero columns left and right.
	Padding [2][2]int
}

// Same is the window of stride 1 that keeps the height and width; size is odd.
func Same(size int) Window { return Padded(size, 1, size/2) }

// Padded is the window with the same padding on all four edges, as PyTorch's Conv2d takes it.
func Padded(size, stride, padding int) Window {
	p := [2]int{padding, padding}
	return Window{Size: size, Stride: stride, Padding: [2][2]int{p, p}}
}

// maxPatchPositions is the largest number of positions of a result, in one image, that Conv2D computes as a matrix product. XLA's CPU
// convolution falls behind its matrix product as images get smaller: 1280 to 1280 channels took 4 times as long at 8x8, 1.3 times at
// 16x16, and less time from 64x64 on, where the copies of the activations cost more than they save.
const maxPatchPositions = 16 * 16

// Conv2D is PyTorch's Conv2d with bias, under the submodule name: x [B, H, W, in] to [B, H', W', out].
//
// The checkpoint holds "weight" [out, in, k, k] (OIHW) and "bias" [out]. Activations are channels-last: a convolution is no
// slower so, and group norm and attention then need no transpose. The weight is turned to HWIO in the graph, work that depends
// on weights alone and so leaves the program with the pass that hoists it. A 1x1 convolution is a matrix product, and so is one to
// a small image, over the patches.
func Conv2D(c *trace.Ctx, name string, x *ml.Node, out int, w Window) *ml.Node {
	defer enter(c, name)()
	wantImage(x, "Conv2D")
	in := x.Shape().Dim(-1)
	w.Stride = max(w.Stride, 1)
	weight := c.Weight("weight", out, in, w.Size, w.Size)
	height, width := w.outputs(0, x.Shape().Dim(1)), w.outputs(1, x.Shape().Dim(2))
	if height < 1 || width < 1 {
		panic(fmt.Errorf("Conv2D: found an image of %dx%d, wanted one that a window of %dx%d fits into", x.Shape().Dim(1), x.Shape().Dim(2), w.Size, w.Size))
	}
	var y *ml.Node
	switch {
	case w.Size == 1 && w.Stride == 1 && w.Padding == [2][2]int{}:
		y = matmulNT(x, ml.Reshape(weight, out, in))
	case height*width <= maxPatchPositions:
		kernel := ml.Reshape(ml.TransposeAllAxes(weight, 2, 3, 1, 0), w.Size*w.Size*in, out)
		y = toDType(ml.Dot(patches(x, w, height, width), kernel).General([]int{3}, nil, []int{0}, nil), x.DType())
	default:
		kernel := ml.TransposeAllAxes(weight, 2, 3, 1, 0)
		y = ml.Convolve(x, kernel).Strides(w.Stride).PaddingPerDim([][2]int{w.Padding[0], w.Padding[1]}).Done()
	}
	return ml.Add(y, ml.Reshape(c.Weight("bias", out), 1, 1, 1, out))
}

// outputs is the number of positions of the window along an axis (0 height, 1 width) of that size.
func (w Window) outputs(axis, size int) int {
	room := size + w.Padding[axis][0] + w.Padding[axis][1] - w.Size
	if room < 0 {
		return 0
	}
	return room/w.Stride + 1
}

// patches is what the window sees at each of height x width positions: x [B, H, W, C] -> [B, height, width, Size*Size*C], by row, column
// and channel of the window.
func patches(x *ml.Node, w Window, height, width int) *ml.Node {
	x = ml.Pad(x, ml.ScalarZero(x.Graph(), x.DType()),
		compute.PadAxis{},
		compute.PadAxis{Start: w.Padding[0][0], End: w.Padding[0][1]},
		compute.PadAxis{Start: w.Padding[1][0], End: w.Padding[1][1]},
		compute.PadAxis{})
	every := func(first, n int) ml.SliceAxisSpec {
		return ml.AxisRange(first, first+(n-1)*w.Stride+1).Stride(w.Stride)
	}
	var parts []*ml.Node
	for i := range w.Size {
		for j := range w.Size {
			parts = append(parts, ml.Slice(x, ml.AxisRange(), every(i, height), every(j, width), ml.AxisRange()))
		}
	}
	return ml.Concatenate(parts, 3)
}

// ToNHWC turns diffusers' layout [B, C, H, W] to the layout of this package, [B, H, W, C].
func ToNHWC(x *ml.Node) *ml.Node {
	wantImage(x, "ToNHWC")
	return ml.TransposeAllAxes(x, 0, 2, 3, 1)
}

// ToNCHW turns [B, H, W, C] to diffusers' layout, [B, C, H, W].
func ToNCHW(x *ml.Node) *ml.Node {
	wantImage(x, "ToNCHW")
	return ml.TransposeAllAxes(x, 0, 3, 1, 2)
}

func wantImage(x *ml.Node, layer string) {
	if x.Rank() != 4 {
		panic(fmt.Errorf("%s: found an input of shape %s, wanted [B, H, W, C]", layer, x.Shape()))
	}
}
