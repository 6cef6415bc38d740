package autoencoderkl

import (
	"fmt"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph/trace"
)

// NewUnpack is the network "vae.unpack" of AutoencoderKLFlux2, between the transformer and the decoder: latents [B, H/2 * W/2, 4 latent_channels] float32
// as the transformer has them -> latents0, latents1 ... for each picture [1, latent_channels, H, W] in s.DType. They are brought back to the scale of
// the autoencoder by the statistics of its batch norm, x sqrt(running_var + batch_norm_eps) + running_mean for each of the 4 latent_channels, and then
// spread over the 2x2 pixels of a patch: element 4c+2p+q of token (i, j) is pixel (2i+p, 2j+q) of channel c. (pipelines/flux2: __call__,
// _unpack_latents_with_ids, _unpatchify_latents)
func NewUnpack(cfg Config, s Sizes) trace.Network {
	b, h, w, channels := s.Batch, s.Height/2, s.Width/2, cfg.LatentChannels
	n := trace.Network{
		Name: "vae.unpack", Class: cfg.Class, DType: dtypes.Float32,
		Inputs: []trace.Input{{Name: "latents", Shape: shapes.Make(dtypes.Float32, b, h*w, 4*channels)}},
	}
	for k := range b {
		n.Outputs = append(n.Outputs, fmt.Sprintf("latents%d", k))
	}
	n.Build = func(c *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
		mean, std := batchNorm(c, cfg)
		x := in["latents"]
		x = ml.Add(ml.Mul(x, overTokens(std, x)), overTokens(mean, x))
		x = ml.TransposeAllAxes(ml.Reshape(x, b, h, w, channels, 2, 2), 0, 3, 1, 4, 2, 5)
		x = ml.ConvertDType(ml.Reshape(x, b, channels, 2*h, 2*w), s.DType)
		out := make([]*ml.Node, b)
		for k := range out {
			out[k] = ml.SliceAxis(x, 0, ml.AxisRange(k, k+1))
		}
		return out
	}
	return n
}

// NewPack is the network "vae.pack" of AutoencoderKLFlux2, the way back: latents [B, latent_channels, H, W] float32, the encoder's mean -> [B, H/2 * W/2,
// 4 latent_channels] as the transformer takes them, (x - running_mean) / sqrt(running_var + batch_norm_eps). (pipelines/flux2: _patchify_latents,
// _encode_vae_image, _pack_latents)
func NewPack(cfg Config, s Sizes) trace.Network {
	b, h, w, channels := s.Batch, s.Height/2, s.Width/2, cfg.LatentChannels
	return trace.Network{
		Name: "vae.pack", Class: cfg.Class, DType: dtypes.Float32,
		Inputs:  []trace.Input{{Name: "latents", Shape: shapes.Make(dtypes.Float32, b, channels, 2*h, 2*w)}},
		Outputs: []string{"latents"},
		Build: func(c *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
			mean, std := batchNorm(c, cfg)
			x := ml.TransposeAllAxes(ml.Reshape(in["latents"], b, channels, h, 2, w, 2), 0, 2, 4, 1, 3, 5)
			x = ml.Reshape(x, b, h*w, 4*channels)
			return []*ml.Node{ml.Div(ml.Sub(x, overTokens(mean, x)), overTokens(std, x))}
		},
	}
}

// batchNorm gives the mean and the standard deviation of each of the 4 latent_channels, in float32 whatever the autoencoder computes in.
func batchNorm(c *trace.Ctx, cfg Config) (mean, std *ml.Node) {
	defer c.Enter("bn")()
	mean = c.WeightAs(dtypes.Float32, "running_mean", 4*cfg.LatentChannels)
	variance := c.WeightAs(dtypes.Float32, "running_var", 4*cfg.LatentChannels)
	return mean, ml.Sqrt(ml.AddScalar(variance, cfg.BatchNormEps))
}

// overTokens broadcasts v [C] along batch and tokens of like [B, L, C].
func overTokens(v, like *ml.Node) *ml.Node {
	return ml.ExpandAndBroadcast(v, like.Shape().Dimensions, []int{0, 1})
}
