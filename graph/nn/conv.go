package nn

import (
	"fmt"
	"slices"
	"strings"

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
	y := convolve("Conv2D", x, weight, []axisWindow{{w.Size, w.Stride, w.Padding[0]}, {w.Size, w.Stride, w.Padding[1]}})
	return addBias(c, y)
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

// convolve is a convolution over any number of spatial axes, without bias: x [B, spatial..., in], weight [out, in, kernel...] as in a
// checkpoint, one window an axis -> [B, spatial'..., out].
func convolve(layer string, x, weight *ml.Node, windows []axisWindow) *ml.Node {
	out, in := weight.Shape().Dim(0), weight.Shape().Dim(1)
	positions, taps := make([]int, len(windows)), 1
	plain, disjoint := true, true // each output sees one input; each input is seen once
	for i, w := range windows {
		positions[i] = w.outputs(x.Shape().Dim(1 + i))
		taps *= w.size
		plain = plain && w == axisWindow{size: 1, stride: 1}
		disjoint = disjoint && w == axisWindow{size: w.size, stride: w.size}
	}
	if slices.Min(positions) < 1 {
		sizes := make([]int, len(windows))
		for i, w := range windows {
			sizes[i] = w.size
		}
		panic(fmt.Errorf("%s: found an image of %s, wanted one that a window of %s fits into", layer, by(x.Shape().Dimensions[1:1+len(windows)]), by(sizes)))
	}
	if plain {
		return matmulNT(x, ml.Reshape(weight, out, in))
	}
	order := make([]int, 0, x.Rank()) // of the kernel: spatial axes, in, out
	for i := range windows {
		order = append(order, 2+i)
	}
	kernel := ml.TransposeAllAxes(weight, append(order, 1, 0)...)
	if disjoint || product(positions) <= maxPatchPositions {
		kernel = ml.Reshape(kernel, taps*in, out)
		return toDType(ml.Dot(patches(x, windows, positions), kernel).General([]int{x.Rank() - 1}, nil, []int{0}, nil), x.DType())
	}
	var strides []int
	var padding [][2]int
	for _, w := range windows {
		strides, padding = append(strides, w.stride), append(padding, w.padding)
	}
	return ml.Convolve(x, kernel).StridePerAxis(strides...).PaddingPerDim(padding).Done()
}

// patches is what the windows see at each position: x [B, spatial..., C] -> [B, positions..., taps*C], by place in the window, the last
// axis fastest, and channel.
func patches(x *ml.Node, windows []axisWindow, positions []int) *ml.Node {
	pads, offsets := make([]compute.PadAxis, x.Rank()), make([]int, len(windows))
	for i, w := range windows {
		pads[1+i] = compute.PadAxis{Start: w.padding[0], End: w.padding[1]}
	}
	x = ml.Pad(x, ml.ScalarZero(x.Graph(), x.DType()), pads...)
	var parts []*ml.Node
	for {
		at := []ml.SliceAxisSpec{ml.AxisRange()}
		for i, w := range windows {
			at = append(at, ml.AxisRange(offsets[i], offsets[i]+(positions[i]-1)*w.stride+1).Stride(w.stride))
		}
		parts = append(parts, ml.Slice(x, append(at, ml.AxisRange())...))
		axis := len(windows) - 1
		for ; axis >= 0; axis-- {
			if offsets[axis]++; offsets[axis] < windows[axis].size {
				break
			}
			offsets[axis] = 0
		}
		if axis < 0 {
			return ml.Concatenate(parts, x.Rank()-1)
		}
	}
}

// by writes sizes as "3x4".
func by(sizes []int) string {
	return strings.Join(strings.Fields(strings.Trim(fmt.Sprint(sizes), "[]")), "x")
}

func product(xs []int) int {
	p := 1
	for _, x := range xs {
		p *= x
	}
	return p
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
