package nn

import (
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph/trace"
)

// ResnetBlock2DConfig has the options of ResnetBlock2D.
type ResnetBlock2DConfig struct {
	// Out is the number of channels of the result.
	Out int
	// Groups and Eps are those of both group norms.
	Groups int
	Eps    float64
	// ScaleShift is time_embedding_norm "scale_shift": the time embedding scales and shifts the second norm's result. The default adds
	// it before that norm.
	ScaleShift bool
	// SkipTimeAct leaves out the SiLU before the time embedding's projection.
	SkipTimeAct bool
	// OutputScaleFactor divides the sum at the end; 0 means 1.
	OutputScaleFactor float64
}

// ResnetBlock2D is diffusers' block of that name (models/resnet.py) with SiLU: x [B, H, W, in] -> [B, H, W, Out], two 3x3 convolutions,
// each after a group norm and SiLU, beside a shortcut, which is a 1x1 convolution where in and Out differ. temb [B, t], or [1, t] for one
// embedding for all, or nil, is the time embedding.
func ResnetBlock2D(c *trace.Ctx, name string, x, temb *ml.Node, cfg ResnetBlock2DConfig) *ml.Node {
	defer enter(c, name)()
	wantImage(x, "ResnetBlock2D")
	h := SiLU(GroupNorm(c, "norm1", x, cfg.Groups, cfg.Eps))
	h = Conv2D(c, "conv1", h, cfg.Out, Same(3))
	if temb != nil && !cfg.SkipTimeAct {
		temb = SiLU(temb)
	}
	if temb != nil && !cfg.ScaleShift {
		h = ml.Add(h, overImage(Linear(c, "time_emb_proj", temb, cfg.Out, true)))
	}
	h = GroupNorm(c, "norm2", h, cfg.Groups, cfg.Eps)
	if temb != nil && cfg.ScaleShift {
		p := ml.Split(overImage(Linear(c, "time_emb_proj", temb, 2*cfg.Out, true)), 3, 2)
		h = ml.Add(ml.Mul(h, ml.AddScalar(p[0], 1.0)), p[1])
	}
	h = Conv2D(c, "conv2", SiLU(h), cfg.Out, Same(3))
	if x.Shape().Dim(3) != cfg.Out {
		x = Conv2D(c, "conv_shortcut", x, cfg.Out, Same(1))
	}
	h = ml.Add(x, h)
	if f := cfg.OutputScaleFactor; f != 0 && f != 1 {
		h = ml.DivScalar(h, f)
	}
	return h
}

// overImage gives v [B, n] the axes of an image: [B, 1, 1, n].
func overImage(v *ml.Node) *ml.Node { return ml.InsertAxes(v, 1, 1) }
