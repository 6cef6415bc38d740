// Package sd3 has the transformer of Stable Diffusion 3 and 3.5 (diffusers, models/transformers/transformer_sd3.py; https://arxiv.org/abs/2403.03206).
package sd3

import (
	"precast/graph/checkpoint"
)

// Config has the fields of SD3Transformer2DModel's config.json.
type Config struct {
	// SampleSize is the height and width, in latent pixels, that the model makes by default.
	SampleSize  int
	PatchSize   int
	InChannels  int
	OutChannels int
	Layers      int // transformer_blocks
	HeadDim     int
	Heads       int
	JointDim    int // joint_attention_dim, the width of encoder_hidden_states
	PooledDim   int // pooled_projection_dim
	// PosEmbedMaxSize is the height and width, in patches, of the table of positions that the picture's are cut from.
	PosEmbedMaxSize int
	// DualAttentionLayers are the blocks in which the image also attends to itself alone.
	DualAttentionLayers []int
	// QKNorm says that queries and keys are normalised (qk_norm "rms_norm").
	QKNorm bool
}

// Dim is the width of the stream.
func (c Config) Dim() int { return c.Heads * c.HeadDim }

// ParseConfig reads a transformer's config.json. Its error lists every bad field.
func ParseConfig(c *checkpoint.Config) (Config, error) {
	cfg := Config{
		SampleSize:          c.PositiveInt("sample_size", 128),
		PatchSize:           c.PositiveIntUpTo("patch_size", 2, 1000),
		InChannels:          c.PositiveInt("in_channels", 16),
		Layers:              c.PositiveIntUpTo("num_layers", 18, 1000),
		HeadDim:             c.PositiveInt("attention_head_dim", 64),
		Heads:               c.PositiveInt("num_attention_heads", 18),
		JointDim:            c.PositiveInt("joint_attention_dim", 4096),
		PooledDim:           c.PositiveInt("pooled_projection_dim", 2048),
		PosEmbedMaxSize:     c.PositiveIntUpTo("pos_embed_max_size", 96, 4096),
		DualAttentionLayers: c.Ints("dual_attention_layers", nil),
	}
	// Here null is not the default: it means as many as come in.
	if c.IsNull("out_channels") {
		cfg.OutChannels = cfg.InChannels
	} else {
		cfg.OutChannels = c.PositiveInt("out_channels", 16)
	}
	// Without a table of that size diffusers makes one for the picture, which no published model does.
	if c.IsNull("pos_embed_max_size") {
		c.Problem("pos_embed_max_size", "not supported: found null, wanted the height and width of the table pos_embed.pos_embed in patches")
	}
	for _, i := range cfg.DualAttentionLayers {
		if i < 0 || i >= cfg.Layers {
			c.Problem("dual_attention_layers", "found layer %d, wanted 0 to %d: num_layers is %d", i, cfg.Layers-1, cfg.Layers)
		}
	}
	switch norm := c.String("qk_norm", ""); norm {
	case "":
	case "rms_norm":
		cfg.QKNorm = true
	default:
		c.Problem("qk_norm", "not supported: found %q, wanted null or \"rms_norm\"", norm)
	}
	// The blocks add the text's projections to the image's, so the two streams are equally wide.
	if width := c.PositiveInt("caption_projection_dim", 1152); width != cfg.Dim() {
		c.Problem("caption_projection_dim", "found %d, wanted num_attention_heads x attention_head_dim, %d", width, cfg.Dim())
	}
	if cfg.Dim()%4 != 0 {
		c.Problem("attention_head_dim", "found %d heads of %d, wanted a product that 4 divides: the table of positions has sines and cosines of two coordinates", cfg.Heads, cfg.HeadDim)
	}
	if err := c.Err(); err != nil {
		return Config{}, err
	}
	return cfg, nil
}
