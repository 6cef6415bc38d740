// Package flux has FLUX.1's transformer (diffusers, models/transformers/transformer_flux.py).
package flux

import (
	"precast/graph/checkpoint"
)

// Config has the fields of FluxTransformer2DModel's config.json.
type Config struct {
	PatchSize      int
	InChannels     int
	OutChannels    int
	Layers         int // transformer_blocks, text and image in streams of their own
	SingleLayers   int // single_transformer_blocks, both in one
	HeadDim        int
	Heads          int
	JointDim       int // joint_attention_dim, the width of encoder_hidden_states
	PooledDim      int // pooled_projection_dim
	GuidanceEmbeds bool
	// RoPEAxes splits a head's channels among the three coordinates of a position.
	RoPEAxes []int
}

// Dim is the width of the stream.
func (c Config) Dim() int { return c.Heads * c.HeadDim }

// ParseConfig reads a transformer's config.json. Its error lists every bad field.
func ParseConfig(c *checkpoint.Config) (Config, error) {
	cfg := Config{
		PatchSize:      c.PositiveInt("patch_size", 1),
		InChannels:     c.PositiveInt("in_channels", 64),
		Layers:         c.IntIn("num_layers", 19, 0, 1000),
		SingleLayers:   c.IntIn("num_single_layers", 38, 0, 1000),
		HeadDim:        c.PositiveInt("attention_head_dim", 128),
		Heads:          c.PositiveInt("num_attention_heads", 24),
		JointDim:       c.PositiveInt("joint_attention_dim", 4096),
		PooledDim:      c.PositiveInt("pooled_projection_dim", 768),
		GuidanceEmbeds: c.Bool("guidance_embeds", false),
	}
	cfg.OutChannels = c.PositiveInt("out_channels", cfg.InChannels)
	cfg.RoPEAxes = c.RoPEAxes("axes_dims_rope", []int{16, 56, 56}, "attention_head_dim", cfg.HeadDim)
	if err := c.Err(); err != nil {
		return Config{}, err
	}
	return cfg, nil
}
