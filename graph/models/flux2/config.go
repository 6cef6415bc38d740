// Package flux2 has FLUX.2's transformer (diffusers, models/transformers/transformer_flux2.py).
package flux2

import (
	"precast/graph/checkpoint"
)

// Config has the fields of Flux2Transformer2DModel's config.json.
type Config struct {
	PatchSize      int
	InChannels     int
	OutChannels    int
	Layers         int // transformer_blocks, text and image in streams of their own
	SingleLayers   int // single_transformer_blocks, both in one
	HeadDim        int
	Heads          int
	JointDim       int // joint_attention_dim, the width of encoder_hidden_states
	TimeChannels   int // timestep_guidance_channels, the width of the sinusoids of timestep and guidance
	MLPRatio       float64
	RoPEAxes       []int // splits a head's channels among the four coordinates of a position
	RoPETheta      float64
	Eps            float64
	GuidanceEmbeds bool
}

// Dim is the width of the stream.
func (c Config) Dim() int { return c.Heads * c.HeadDim }

// InnerDim is the width inside a feed-forward.
func (c Config) InnerDim() int { return int(float64(c.Dim()) * c.MLPRatio) }

// maxWidth bounds what a product of two fields of the config may come to; published models have 6144 and 18432.
const maxWidth = 1 << 24

// ParseConfig reads a transformer's config.json. Fields that are absent have the values of FLUX.2 dev, as in diffusers. Its error lists every bad field.
func ParseConfig(c *checkpoint.Config) (Config, error) {
	cfg := Config{
		PatchSize:      c.PositiveIntUpTo("patch_size", 1, 1<<10),
		InChannels:     c.PositiveInt("in_channels", 128),
		Layers:         c.IntIn("num_layers", 8, 0, 1000),
		SingleLayers:   c.IntIn("num_single_layers", 48, 0, 1000),
		HeadDim:        c.PositiveInt("attention_head_dim", 128),
		Heads:          c.PositiveInt("num_attention_heads", 48),
		JointDim:       c.PositiveInt("joint_attention_dim", 15360),
		TimeChannels:   c.IntIn("timestep_guidance_channels", 256, 2, 1<<16),
		MLPRatio:       c.PositiveFloat("mlp_ratio", 3),
		RoPETheta:      c.PositiveFloat("rope_theta", 2000),
		Eps:            c.PositiveFloat("eps", 1e-6),
		GuidanceEmbeds: c.Bool("guidance_embeds", true),
	}
	cfg.OutChannels = c.PositiveInt("out_channels", cfg.InChannels)
	if n := cfg.Dim(); n > maxWidth {
		c.Problem("num_attention_heads", "found %d, with attention_head_dim %d a width of %d, wanted at most %d", cfg.Heads, cfg.HeadDim, n, maxWidth)
	} else if inner := float64(n) * cfg.MLPRatio; inner < 1 || inner > maxWidth {
		c.Problem("mlp_ratio", "found %g, of the width %d that is %.4g, wanted 1 to %d", cfg.MLPRatio, n, inner, maxWidth)
	}
	cfg.RoPEAxes = c.RoPEAxes("axes_dims_rope", []int{32, 32, 32, 32}, "attention_head_dim", cfg.HeadDim)
	if err := c.Err(); err != nil {
		return Config{}, err
	}
	return cfg, nil
}
