package nn

import (
	"fmt"

	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph/trace"
)

// Upsample2D doubles the height and width of x [B, H, W, C] by nearest neighbour and applies the 3x3 convolution "conv" to out channels.
//
// A UNet at a size that its factor does not divide upsamples to the size of its skip connection, which is twice the size or one
// less in each axis; height and width give it, 0 means twice. PyTorch's nearest interpolation from n to 2n-1 takes the
// same rows as the first 2n-1 of 2n.
func Upsample2D(c *trace.Ctx, name string, x *ml.Node, out, height, width int) *ml.Node {
	defer enter(c, name)()
	wantImage(x, "Upsample2D")
	h, w := x.Shape().Dim(1), x.Shape().Dim(2)
	if height == 0 {
		height = 2 * h
	}
	if width == 0 {
		width = 2 * w
	}
	if height > 2*h || height < 2*h-1 || width > 2*w || width < 2*w-1 {
		panic(fmt.Errorf("Upsample2D: found %dx%d to be upsampled to %dx%d, wanted twice the size or one less", h, w, height, width))
	}
	x = Nearest2D(x)
	if height != 2*h || width != 2*w {
		x = ml.Slice(x, ml.AxisRange(), ml.AxisRange(0, height), ml.AxisRange(0, width), ml.AxisRange())
	}
	return Conv2D(c, "conv", x, out, Same(3))
}

// Nearest2D doubles the height and width of x [B, H, W, C] by nearest neighbour.
func Nearest2D(x *ml.Node) *ml.Node {
	d := x.Shape().Dimensions
	x = ml.Reshape(x, d[0], d[1], 1, d[2], 1, d[3])
	x = ml.BroadcastToDims(x, d[0], d[1], 2, d[2], 2, d[3])
	return ml.Reshape(x, d[0], 2*d[1], 2*d[2], d[3])
}

// Downsample2D halves the height and width of x [B, H, W, C] with the 3x3 convolution "conv" of stride 2 to out channels.
// Padding is on all edges; 0 pads one row below and one column at the right, as the encoder of AutoencoderKL does.
func Downsample2D(c *trace.Ctx, name string, x *ml.Node, out, padding int) *ml.Node {
	defer enter(c, name)()
	window := Padded(3, 2, padding)
	if padding == 0 {
		window.Padding = [2][2]int{{0, 1}, {0, 1}}
	}
	return Conv2D(c, "conv", x, out, window)
}
