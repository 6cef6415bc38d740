package nn

import (
	"fmt"
	"slices"

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
// a small image or with windows that do not overlap, over the patches.
func Conv2D(c *trace.Ctx, name string, x *ml.Node, out int, w Window) *ml.Node {
	defer enter(c, name)()
	wantImage(x, "Conv2D")
	w.Stride = max(w.Stride, 1)
	weight := c.Weight("weight", out, x.Shape().Dim(-1), w.Size, w.Size)
	return addBias(c, convolve("Conv2D", x, weight, axisWindow{w.Size, w.Stride, w.Padding[0]}, axisWindow{w.Size, w.Stride, w.Padding[1]}))
}

// addBias adds the convolution's weight "bias" [out] to y [..., out].
func addBias(c *trace.Ctx, y *ml.Node) *ml.Node {
	dims := slices.Repeat([]int{1}, y.Rank())
	dims[y.Rank()-1] = y.Shape().Dim(-1)
	return ml.Add(y, ml.Reshape(c.Weight("bias", y.Shape().Dim(-1)), dims...))
}

// axisWindow is a window along one axis, with the zero padding before and after.
type axisWindow struct {
	size, stride int
	padding      [2]int
}

// outputs is the number of positions of the window along an axis of that size.
func (w axisWindow) outputs(size int) int {
	room := size + w.padding[0] + w.padding[1] - w.size
	if room < 0 {
		return 0
	}
	return room/w.stride + 1
}

// convolve is a convolution of images without bias: x [B, H, W, in], weight [out, in, kh, kw] as in a checkpoint -> [B, H', W', out].
func convolve(layer string, x, weight *ml.Node, rows, columns axisWindow) *ml.Node {
	out, in := weight.Shape().Dim(0), weight.Shape().Dim(1)
	height, width := rows.outputs(x.Shape().Dim(1)), columns.outputs(x.Shape().Dim(2))
	if height < 1 || width < 1 {
		panic(fmt.Errorf("%s: found an image of %dx%d, wanted one that a window of %dx%d fits into",
			layer, x.Shape().Dim(1), x.Shape().Dim(2), rows.size, columns.size))
	}
	point := axisWindow{size: 1, stride: 1}
	if rows == point && columns == point {
		return matmulNT(x, ml.Reshape(weight, out, in))
	}
	kernel := ml.TransposeAllAxes(weight, 2, 3, 1, 0)
	disjoint := rows == axisWindow{size: rows.size, stride: rows.size} && columns == axisWindow{size: columns.size, stride: columns.size}
	if disjoint || height*width <= maxPatchPositions {
		kernel = ml.Reshape(kernel, rows.size*columns.size*in, out)
		return ml.ConvertDType(ml.Dot(patches(x, rows, columns), kernel).General([]int{3}, nil, []int{0}, nil), x.DType())
	}
	return ml.Convolve(x, kernel).StridePerAxis(rows.stride, columns.stride).PaddingPerDim([][2]int{rows.padding, columns.padding}).Done()
}

// patches is what the windows see at each position: x [B, H, W, C] -> [B, H', W', kh*kw*C], by row, column and channel of the window.
func patches(x *ml.Node, rows, columns axisWindow) *ml.Node {
	height, width := rows.outputs(x.Shape().Dim(1)), columns.outputs(x.Shape().Dim(2))
	x = ml.Pad(x, ml.ScalarZero(x.Graph(), x.DType()),
		compute.PadAxis{},
		compute.PadAxis{Start: rows.padding[0], End: rows.padding[1]},
		compute.PadAxis{Start: columns.padding[0], End: columns.padding[1]},
		compute.PadAxis{})
	every := func(first, n, stride int) ml.SliceAxisSpec {
		return ml.AxisRange(first, first+(n-1)*stride+1).Stride(stride)
	}
	var parts []*ml.Node
	for i := range rows.size {
		for j := range columns.size {
			parts = append(parts, ml.Slice(x, ml.AxisRange(), every(i, height, rows.stride), every(j, width, columns.stride), ml.AxisRange()))
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

// Unpatchify lays tokens out as latents: x [B, h*w, p*p*C], a token a patch of p x p pixels in rows and the channel last within it -> [B, C, height,
// width], where height is h*p and width w*p.
func Unpatchify(x *ml.Node, p, height, width int) *ml.Node {
	batch, channels := x.Shape().Dim(0), x.Shape().Dim(2)/(p*p)
	x = ml.Reshape(x, batch, height/p, width/p, p, p, channels)
	return ml.Reshape(ml.TransposeAllAxes(x, 0, 5, 1, 3, 2, 4), batch, channels, height, width)
}

func wantImage(x *ml.Node, layer string) {
	if x.Rank() != 4 {
		panic(fmt.Errorf("%s: found an input of shape %s, wanted [B, H, W, C]", layer, x.Shape()))
	}
}
