package nn

import (
	"fmt"

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

// Conv2D is PyTorch's Conv2d with bias, under the submodule name: x [B, H, W, in] to [B, H', W', out].
//
// The checkpoint holds "weight" [out,in,k,k] (OIHW) and "bias" [out]. Activations are channels-last: a convolution is no
// slower so, and group norm and attention then need no transpose. The weight is turned to HWIO in the graph, work that depends
// on weights alone and so leaves the program with the pass that hoists it. A 1x1 convolution is a matrix product.
func Conv2D(c *trace.Ctx, name string, x *ml.Node, out int, w Window) *ml.Node {
	defer enter(c, name)()
	wantImage(x, "Conv2D")
	in := x.Shape().Dim(-1)
	stride := max(w.Stride, 1)
	weight := c.Weight("weight", out, in, w.Size, w.Size)
	var y *ml.Node
	if w.Size == 1 && stride == 1 && w.Padding == [2][2]int{} {
		y = matmulNT(x, ml.Reshape(weight, out, in))
	} else {
		kernel := ml.TransposeAllAxes(weight, 2, 3, 1, 0)
		y = ml.Convolve(x, kernel).Strides(stride).PaddingPerDim([][2]int{w.Padding[0], w.Padding[1]}).Done()
	}
	return ml.Add(y, ml.Reshape(c.Weight("bias", out), 1, 1, 1, out))
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
