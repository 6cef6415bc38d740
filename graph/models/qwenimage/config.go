// Package qwenimage has Qwen-Image's transformer (diffusers, models/transformers/transformer_qwenimage.py; https://arxiv.org/abs/2508.02324).
package qwenimage

import (
	"precast/graph/checkpoint"
)

// Config has the fields of QwenImageTransformer2DModel's config.json.
type Config struct {
	PatchSize   int
	InChannels  int // of a token: a patch's
	OutChannels int // of a latent pixel
	Layers      int // transformer_blocks
	HeadDim     int
	Heads       int
	JointDim    int // joint_attention_dim, the width of encoder_hidden_states
	// RoPEAxes splits a head's channels among the three coordinates of a position.
	RoPEAxes []int
}

// Dim is the width of the stream.
func (c Config) Dim() int { return c.Heads * c.HeadDim }

// ParseConfig reads a transformer's config.json. Its error lists every bad field.
func ParseConfig(c *checkpoint.Config) (Config, error) {
	cfg := Config{
		PatchSize:  c.PositiveIntUpTo("patch_size", 2, 1000),
		InChannels: c.PositiveInt("in_channels", 64),
		Layers:     c.PositiveIntUpTo("num_layers", 60, 1000),
		HeadDim:    c.PositiveInt("attention_head_dim", 128),
		Heads:      c.PositiveInt("num_attention_heads", 24),
		JointDim:   c.PositiveInt("joint_attention_dim", 3584),
	}
	// Here null is not the default: it means as many as come in.
	if c.IsNull("out_channels") {
		cfg.OutChannels = cfg.InChannels
	} else {
		cfg.OutChannels = c.PositiveInt("out_channels", 16)
	}
	// zero_cond_t gives the tokens of reference pictures, which text to image has none of, a modulation of their own.
	c.Bool("zero_cond_t", false)
	for key, why := range map[string]string{
		"guidance_embeds":       "the model has no layer that takes a guidance scale, in diffusers either",
		"use_additional_t_cond": "it is for pictures in layers",
		"use_layer3d_rope":      "it is for pictures in layers",
	} {
		if c.Bool(key, false) {
			c.Problem(key, "not supported: found true, wanted false (%s)", why)
		}
	}
	cfg.RoPEAxes = c.RoPEAxes("axes_dims_rope", []int{16, 56, 56}, "attention_head_dim", cfg.HeadDim)
	if err := c.Err(); err != nil {
		return Config{}, err
	}
	return cfg, nil
}
