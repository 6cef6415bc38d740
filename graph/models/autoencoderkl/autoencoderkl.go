// Package autoencoderkl is AutoencoderKL, the variational autoencoder of Stable Diffusion, SDXL and FLUX.1, and AutoencoderKLFlux2, that of FLUX.2
// (diffusers, models/autoencoders/autoencoder_kl.py, autoencoder_kl_flux2.py and vae.py; Rombach et al. 2022, https://arxiv.org/abs/2112.10752).
//
// Scopes are diffusers' module paths and weights have its keys. Inside, activations are channels-last ([B, H, W, C]); the networks take
// and give diffusers' [B, C, H, W].
package autoencoderkl

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute/shapes"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph"
	"precast/graph/nn"
	"precast/graph/trace"
)

// eps is that of every norm of the autoencoder.
const eps = 1e-6

// Sizes are the static sizes of one program.
type Sizes struct {
	Batch int
	// Height and Width are in latent pixels for the decoder, in pixels for the encoder.
	Height, Width int
	// DType is the dtype of the activations and weights; see Config.ForceUpcast.
	DType graph.DType
}

// NewDecoder is the network "vae.decoder": latents [B, latent_channels, H, W] -> sample [B, out_channels, H*f, W*f] in a nominal range of
// -1 to 1, not clamped, where f is cfg.ScaleFactor(). The latents are unscaled.
func NewDecoder(cfg Config, s Sizes) trace.Network {
	return trace.Network{
		Name: "vae.decoder", Class: cfg.Class, DType: s.DType,
		Inputs:  []trace.Input{{Name: "latents", Shape: shapes.Make(s.DType, s.Batch, cfg.LatentChannels, s.Height, s.Width)}},
		Outputs: []string{"sample"},
		Build: func(c *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
			m := &model{Config: cfg, Ctx: c}
			z := nn.ToNHWC(in["latents"])
			if cfg.UsePostQuantConv {
				z = nn.Conv2D(c, "post_quant_conv", z, cfg.LatentChannels, nn.Same(1))
			}
			return []*ml.Node{nn.ToNCHW(m.decoder(z))}
		},
	}
}

// NewEncoder is the network "vae.encoder": sample [B, in_channels, H, W] in the range -1 to 1 -> mean and logvar of the posterior, each
// [B, latent_channels, H/f, W/f], unscaled; logvar is clamped to -30 to 20. H and W are multiples of f, cfg.ScaleFactor().
func NewEncoder(cfg Config, s Sizes) trace.Network {
	return encoderNetwork(cfg, s, []string{"mean", "logvar"}, func(moments *ml.Node) []*ml.Node {
		parts := ml.Split(moments, 1, 2)
		return []*ml.Node{parts[0], ml.ClipScalar(parts[1], minLogvar, maxLogvar)}
	})
}

// NewTileEncoder is NewEncoder for a tile of a picture: its one output, moments [B, 2 latent_channels, H/f, W/f], is mean and logvar before
// the clamp, since the tiles are joined first. SplitMoments is the rest.
func NewTileEncoder(cfg Config, s Sizes) trace.Network {
	return encoderNetwork(cfg, s, []string{"moments"}, func(moments *ml.Node) []*ml.Node { return []*ml.Node{moments} })
}

// The bounds of the logarithm of the posterior's variance (models/autoencoders/vae.py, DiagonalGaussianDistribution).
const minLogvar, maxLogvar = -30, 20

// SplitMoments splits a picture's joined moments into mean and clamped logvar.
func SplitMoments(moments []float32) (mean, logvar []float32) {
	half := len(moments) / 2
	mean, logvar = moments[:half], slices.Clone(moments[half:])
	for i, v := range logvar {
		logvar[i] = min(max(v, minLogvar), maxLogvar)
	}
	return mean, logvar
}

func encoderNetwork(cfg Config, s Sizes, outputs []string, finish func(moments *ml.Node) []*ml.Node) trace.Network {
	return trace.Network{
		Name: "vae.encoder", Class: cfg.Class, DType: s.DType,
		Inputs:  []trace.Input{{Name: "sample", Shape: shapes.Make(s.DType, s.Batch, cfg.InChannels, s.Height, s.Width)}},
		Outputs: outputs,
		Build: func(c *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
			m := &model{Config: cfg, Ctx: c}
			h := m.encoder(nn.ToNHWC(in["sample"]))
			if cfg.UseQuantConv {
				h = nn.Conv2D(c, "quant_conv", h, 2*cfg.LatentChannels, nn.Same(1))
			}
			return finish(nn.ToNCHW(h))
		},
	}
}

// model builds one network in one Ctx.
type model struct {
	Config
	*trace.Ctx
}

func (m *model) encoder(x *ml.Node) *ml.Node {
	defer m.Enter("encoder")()
	x = nn.Conv2D(m.Ctx, "conv_in", x, m.BlockOutChannels[0], nn.Same(3))
	for i, channels := range m.BlockOutChannels {
		x = m.downBlock(i, x, channels)
	}
	x = m.midBlock(x)
	return m.convOut(x, 2*m.LatentChannels)
}

func (m *model) decoder(z *ml.Node) *ml.Node {
	defer m.Enter("decoder")()
	n := len(m.DecoderBlockOutChannels)
	x := nn.Conv2D(m.Ctx, "conv_in", z, m.DecoderBlockOutChannels[n-1], nn.Same(3))
	x = m.midBlock(x)
	for i := range n {
		x = m.upBlock(i, x, m.DecoderBlockOutChannels[n-1-i])
	}
	return m.convOut(x, m.OutChannels)
}

// convOut is conv_norm_out, SiLU and conv_out.
func (m *model) convOut(x *ml.Node, out int) *ml.Node {
	x = nn.SiLU(nn.GroupNorm(m.Ctx, "conv_norm_out", x, m.NormNumGroups, eps))
	return nn.Conv2D(m.Ctx, "conv_out", x, out, nn.Same(3))
}

// downBlock is DownEncoderBlock2D; its downsampler pads below and at the right only.
func (m *model) downBlock(i int, x *ml.Node, channels int) *ml.Node {
	defer m.Enter(fmt.Sprintf("down_blocks.%d", i))()
	for j := range m.LayersPerBlock {
		x = m.resnet(j, x, channels)
	}
	if i < len(m.BlockOutChannels)-1 {
		x = nn.Downsample2D(m.Ctx, "downsamplers.0", x, channels, 0)
	}
	return x
}

// upBlock is UpDecoderBlock2D, with one layer more than the encoder's block.
func (m *model) upBlock(i int, x *ml.Node, channels int) *ml.Node {
	defer m.Enter(fmt.Sprintf("up_blocks.%d", i))()
	for j := range m.LayersPerBlock + 1 {
		x = m.resnet(j, x, channels)
	}
	if i < len(m.DecoderBlockOutChannels)-1 {
		x = nn.Upsample2D(m.Ctx, "upsamplers.0", x, channels, 0, 0)
	}
	return x
}

// midBlock is UNetMidBlock2D with one layer.
func (m *model) midBlock(x *ml.Node) *ml.Node {
	defer m.Enter("mid_block")()
	channels := x.Shape().Dim(-1)
	x = m.resnet(0, x, channels)
	if m.MidBlockAddAttention {
		x = m.attention("attentions.0", x)
	}
	return m.resnet(1, x, channels)
}

func (m *model) resnet(j int, x *ml.Node, out int) *ml.Node {
	return nn.ResnetBlock2D(m.Ctx, fmt.Sprintf("resnets.%d", j), x, nil, nn.ResnetBlock2DConfig{Out: out, Groups: m.NormNumGroups, Eps: eps})
}

// attention is the mid block's: one head over all positions of x [B, H, W, C], after a group norm, beside a residual
// (models/attention_processor.py, Attention with residual_connection).
func (m *model) attention(name string, x *ml.Node) *ml.Node {
	defer m.Enter(name)()
	d := x.Shape().Dimensions
	h := ml.Reshape(nn.GroupNorm(m.Ctx, "group_norm", x, m.NormNumGroups, eps), d[0], d[1]*d[2], d[3])
	project := func(name string) *ml.Node { return nn.SplitHeads(nn.Linear(m.Ctx, name, h, d[3], true), 1) }
	h = nn.MergeHeads(nn.Attention(project("to_q"), project("to_k"), project("to_v"), nn.AttentionConfig{}))
	return ml.Add(ml.Reshape(nn.Linear(m.Ctx, "to_out.0", h, d[3], true), d...), x)
}
