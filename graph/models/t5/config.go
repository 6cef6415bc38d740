// Package t5 has the encoders of T5 (transformers, models/t5/modeling_t5.py; https://arxiv.org/abs/1910.10683) and UMT5
// (models/umt5/modeling_umt5.py; https://arxiv.org/abs/2304.09151).
package t5

import (
	"strings"

	"precast/graph/checkpoint"
	"precast/graph/nn"
)

// Config has the sizes of a T5EncoderModel or UMT5EncoderModel, the fields of T5Config and UMT5Config (transformers,
// models/t5/configuration_t5.py, models/umt5/configuration_umt5.py) that the forward pass uses.
type Config struct {
	VocabSize int
	Model     int // d_model, the width of the stream
	KV        int // d_kv, the width of a head
	FF        int // d_ff, the inner width of a feed-forward block
	Layers    int
	Heads     int
	// Buckets and MaxDistance describe the relative position bias: how many buckets, and from which distance on all share one.
	Buckets     int
	MaxDistance int
	Eps         float64
	// Act names the activation of the feed-forward blocks; Gated says that it gates a second projection.
	Act   string
	Gated bool
	// BiasEach says that each block has a table of the position bias of its own, as in UMT5; in T5 the first block's serves all.
	BiasEach bool
}

// ParseConfig reads a text encoder's config.json. Its error lists every bad field.
func ParseConfig(c *checkpoint.Config) (Config, error) {
	def := Config{VocabSize: 32128, FF: 2048, Layers: 6, Heads: 8, Act: "relu"}
	if c.String("model_type", "") == "umt5" || strings.HasPrefix(c.Class(), "UMT5") {
		def = Config{VocabSize: 250112, FF: 1024, Layers: 8, Heads: 6, Act: "gated-gelu", BiasEach: true}
	}
	cfg := Config{
		VocabSize:   c.PositiveInt("vocab_size", def.VocabSize),
		Model:       c.PositiveInt("d_model", 512),
		KV:          c.PositiveInt("d_kv", 64),
		FF:          c.PositiveInt("d_ff", def.FF),
		Layers:      c.PositiveIntUpTo("num_layers", def.Layers, 1000),
		Heads:       c.PositiveInt("num_heads", def.Heads),
		Buckets:     c.PositiveInt("relative_attention_num_buckets", 32),
		MaxDistance: c.PositiveInt("relative_attention_max_distance", 128),
		Eps:         c.PositiveFloat("layer_norm_epsilon", 1e-6),
		BiasEach:    def.BiasEach,
	}
	// dense_act_fn and is_gated_act are derived from feed_forward_proj, whatever the file says.
	proj := c.String("feed_forward_proj", def.Act)
	cfg.Act, cfg.Gated = strings.CutPrefix(proj, "gated-")
	if proj == "gated-gelu" {
		cfg.Act = "gelu_new"
	}
	if _, ok := nn.ActivationByName(cfg.Act); !ok {
		c.Problem("feed_forward_proj", `found %q, wanted one of %s, or one of these after "gated-"`, proj, strings.Join(nn.ActivationNames(), ", "))
	}
	if cfg.Buckets < 4 || cfg.Buckets%2 != 0 {
		c.Problem("relative_attention_num_buckets", "found %d, wanted an even number of 4 or more", cfg.Buckets)
	}
	if cfg.MaxDistance <= cfg.Buckets/4 {
		c.Problem("relative_attention_max_distance", "found %d, wanted more than a quarter of relative_attention_num_buckets %d", cfg.MaxDistance, cfg.Buckets)
	}
	if c.Bool("is_decoder", false) {
		c.Problem("is_decoder", "found true, wanted false: only the encoder is supported")
	}
	if err := c.Err(); err != nil {
		return Config{}, err
	}
	return cfg, nil
}
