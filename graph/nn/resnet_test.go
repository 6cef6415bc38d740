package nn

import (
	"math/rand/v2"
	"testing"

	"github.com/gomlx/compute/dtypes"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph/trace"
)

func directResnet(p *params, x picture, temb []float64, cfg ResnetBlock2DConfig) picture {
	silu := func(x picture) picture { x.v = directSiLU(x.v); return x }
	h := directConv(p, "conv1", silu(directGroupNorm(p, "norm1", x, cfg.Groups, cfg.Eps)), cfg.Out, Same(3))
	var scale, shift picture
	if temb != nil {
		if !cfg.SkipTimeAct {
			temb = directSiLU(temb)
		}
		width := cfg.Out
		if cfg.ScaleShift {
			width *= 2
		}
		// A linear layer is a 1x1 convolution over an image of one pixel.
		e := directConv(p, "time_emb_proj", picture{x.n, len(temb) / x.n, 1, 1, temb}, width, Same(1))
		scale, shift = newPicture(x.n, cfg.Out, 1, 1), newPicture(x.n, cfg.Out, 1, 1)
		shift.each(func(n, c, _, _ int, v *float64) { *v = *e.at(n, width-cfg.Out+c, 0, 0) })
		scale.each(func(n, c, _, _ int, v *float64) { *v = *e.at(n, c, 0, 0) })
	}
	if temb != nil && !cfg.ScaleShift {
		h.each(func(n, c, _, _ int, v *float64) { *v += *shift.at(n, c, 0, 0) })
	}
	h = directGroupNorm(p, "norm2", h, cfg.Groups, cfg.Eps)
	if temb != nil && cfg.ScaleShift {
		h.each(func(n, c, _, _ int, v *float64) { *v = *v*(1+*scale.at(n, c, 0, 0)) + *shift.at(n, c, 0, 0) })
	}
	h = directConv(p, "conv2", silu(h), cfg.Out, Same(3))
	if x.c != cfg.Out {
		x = directConv(p, "conv_shortcut", x, cfg.Out, Same(1))
	}
	factor := cfg.OutputScaleFactor
	if factor == 0 {
		factor = 1
	}
	h.each(func(n, c, i, j int, v *float64) { *v = (*v + *x.at(n, c, i, j)) / factor })
	return h
}

func TestResnetBlock2D(t *testing.T) {
	temb := randoms(rand.New(rand.NewPCG(5, 6)), 2*10)
	for _, tc := range []struct {
		name string
		cfg  ResnetBlock2DConfig
		temb []float64
	}{
		{"no time", ResnetBlock2DConfig{Out: 6}, nil},
		{"shortcut", ResnetBlock2DConfig{Out: 4}, nil},
		{"time", ResnetBlock2DConfig{Out: 6}, temb},
		{"skip_time_act", ResnetBlock2DConfig{Out: 4, SkipTimeAct: true}, temb},
		{"scale_shift", ResnetBlock2DConfig{Out: 4, ScaleShift: true}, temb},
		{"output_scale_factor", ResnetBlock2DConfig{Out: 6, OutputScaleFactor: 1.5}, temb},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.cfg.Groups, tc.cfg.Eps = 2, 1e-5
			p, x := newParams(), randomPicture(2, 6, 5, 4)
			want := directResnet(p, x, tc.temb, tc.cfg)
			extra := [][]float64{tc.temb}
			if tc.temb == nil {
				extra = nil
			}
			got := evalImage(t, dtypes.Float32, p, x, extra, func(c *trace.Ctx, x *ml.Node, extra []*ml.Node) *ml.Node {
				return ResnetBlock2D(c, "", x, append(extra, nil)[0], tc.cfg)
			})
			compare(t, got, want, 2e-6)
		})
	}
}

// TestResnetBlock2DSharedTime gives one time embedding for the whole batch.
func TestResnetBlock2DSharedTime(t *testing.T) {
	one := randoms(rand.New(rand.NewPCG(5, 6)), 10)
	cfg := ResnetBlock2DConfig{Out: 6, Groups: 3, Eps: 1e-6}
	p, x := newParams(), randomPicture(2, 6, 3, 4)
	want := directResnet(p, x, append(one, one...), cfg)
	got := evalImage(t, dtypes.Float32, p, x, [][]float64{append(one, one...)}, func(c *trace.Ctx, x *ml.Node, extra []*ml.Node) *ml.Node {
		return ResnetBlock2D(c, "", x, ml.Slice(extra[0], ml.AxisRange(0, 1)), cfg)
	})
	compare(t, got, want, 2e-6)
}
