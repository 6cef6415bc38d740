// Package wan has Wan's transformer, of versions 2.1 and 2.2 (diffusers, models/transformers/transformer_wan.py; https://arxiv.org/abs/2503.20314).
package wan

import (
	"slices"

	"precast/graph/checkpoint"
)

// Config has the fields of WanTransformer3DModel's config.json.
type Config struct {
	PatchSize     [3]int // in time, height and width
	Heads         int
	HeadDim       int
	InChannels    int
	OutChannels   int
	TextDim       int
	FreqDim       int // channels of the sinusoidal embedding of a timestep
	FFNDim        int
	Layers        int
	CrossAttnNorm bool // norm2, before the attention to the text, has weights; else there is none
	Eps           float64
	// RoPEMaxSeqLen bounds the tokens along each axis.
	RoPEMaxSeqLen int
}

// Dim is the width of the stream.
func (c Config) Dim() int { return c.Heads * c.HeadDim }

// Patch is the number of latent pixels a token stands for.
func (c Config) Patch() int { return c.PatchSize[0] * c.PatchSize[1] * c.PatchSize[2] }

const (
	maxLayers = 1000
	maxHeads  = 1 << 12 // and channels of one
	maxSize   = 1 << 20 // of other widths
	maxPatch  = 64
)

// ParseConfig reads a transformer's config.json. Its error lists every bad field.
func ParseConfig(c *checkpoint.Config) (Config, error) {
	cfg := Config{
		Heads:         c.PositiveInt("num_attention_heads", 40),
		HeadDim:       c.PositiveInt("attention_head_dim", 128),
		InChannels:    c.PositiveInt("in_channels", 16),
		TextDim:       c.PositiveInt("text_dim", 4096),
		FreqDim:       c.PositiveInt("freq_dim", 256),
		FFNDim:        c.PositiveInt("ffn_dim", 13824),
		Layers:        c.Int("num_layers", 40),
		CrossAttnNorm: c.Bool("cross_attn_norm", true),
		Eps:           c.PositiveFloat("eps", 1e-6),
		RoPEMaxSeqLen: c.PositiveInt("rope_max_seq_len", 1024),
	}
	// out_channels is 16 where it is absent, in_channels where it is null.
	out := 16
	if slices.Contains(c.Keys(), "out_channels") {
		out = cfg.InChannels
	}
	cfg.OutChannels = c.PositiveInt("out_channels", out)
	c.OneOf("qk_norm", "rms_norm_across_heads", "rms_norm_across_heads")
	for _, key := range []string{"image_dim", "added_kv_proj_dim", "pos_embed_seq_len"} {
		if raw := c.Raw(key); raw != nil {
			c.Problem(key, "not supported: found %s, wanted null: a transformer that takes an image (image-to-video) is not one of text-to-video", raw)
		}
	}
	if cfg.Layers < 0 || cfg.Layers > maxLayers {
		c.Problem("num_layers", "found %d, wanted 0 to %d", cfg.Layers, maxLayers)
	}
	for _, field := range []struct {
		key      string
		n, bound int
	}{
		{"num_attention_heads", cfg.Heads, maxHeads},
		{"attention_head_dim", cfg.HeadDim, maxHeads},
		{"in_channels", cfg.InChannels, maxSize},
		{"out_channels", cfg.OutChannels, maxSize},
		{"text_dim", cfg.TextDim, maxSize},
		{"freq_dim", cfg.FreqDim, maxSize},
		{"ffn_dim", cfg.FFNDim, maxSize},
		{"rope_max_seq_len", cfg.RoPEMaxSeqLen, maxSize},
	} {
		if field.n > field.bound {
			c.Problem(field.key, "found %d, wanted at most %d", field.n, field.bound)
		}
	}
	if cfg.FreqDim < 2 {
		c.Problem("freq_dim", "found %d, wanted 2 or more: a sine and a cosine", cfg.FreqDim)
	}
	if cfg.HeadDim%2 != 0 {
		c.Problem("attention_head_dim", "found %d, wanted an even number: positions turn pairs of channels", cfg.HeadDim)
	}
	patch := c.PositiveInts("patch_size", []int{1, 2, 2})
	if len(patch) != 3 || max(patch[0], patch[1], patch[2]) > maxPatch {
		c.Problem("patch_size", "found %v, wanted 3 numbers up to %d: time, height, width", patch, maxPatch)
	} else {
		cfg.PatchSize = [3]int(patch)
	}
	if err := c.Err(); err != nil {
		return Config{}, err
	}
	return cfg, nil
}
