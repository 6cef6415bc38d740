// Package wan has Wan's transformer, of versions 2.1 and 2.2 (diffusers, models/transformers/transformer_wan.py; https://arxiv.org/abs/2503.20314).
package wan

import (
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
		Heads:         c.PositiveIntUpTo("num_attention_heads", 40, maxHeads),
		HeadDim:       c.PositiveIntUpTo("attention_head_dim", 128, maxHeads),
		InChannels:    c.PositiveIntUpTo("in_channels", 16, maxSize),
		TextDim:       c.PositiveIntUpTo("text_dim", 4096, maxSize),
		FreqDim:       c.PositiveIntUpTo("freq_dim", 256, maxSize),
		FFNDim:        c.PositiveIntUpTo("ffn_dim", 13824, maxSize),
		Layers:        c.IntIn("num_layers", 40, 0, maxLayers),
		CrossAttnNorm: c.Bool("cross_attn_norm", true),
		Eps:           c.PositiveFloat("eps", 1e-6),
		RoPEMaxSeqLen: c.PositiveIntUpTo("rope_max_seq_len", 1024, maxSize),
	}
	// Here null is not the default: it means as many as come in.
	if c.IsNull("out_channels") {
		cfg.OutChannels = cfg.InChannels
	} else {
		cfg.OutChannels = c.PositiveIntUpTo("out_channels", 16, maxSize)
	}
	c.OneOf("qk_norm", "rms_norm_across_heads", "rms_norm_across_heads")
	for _, key := range []string{"image_dim", "added_kv_proj_dim", "pos_embed_seq_len"} {
		if raw := c.Raw(key); raw != nil {
			c.Problem(key, "not supported: found %s, wanted null: a transformer that takes an image (image-to-video) is not one of text-to-video", raw)
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
