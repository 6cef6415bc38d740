// Package causallm has the decoder-only language models that pipelines use as text encoders: Qwen3, Mistral (the text part of Mistral3)
// and the text part of Qwen2.5-VL (transformers, models/qwen3, models/mistral, models/mistral3, models/qwen2_5_vl). They are one architecture:
// RMS norms, rotary positions, grouped-query attention under a causal mask, a gated feed-forward block.
package causallm

import (
	"strings"

	"precast/graph/checkpoint"
	"precast/graph/nn"
)

// Config has the fields that the forward pass of a text model uses.
type Config struct {
	// Class is the model's class in transformers, such as "Qwen3ForCausalLM".
	Class            string
	VocabSize        int
	HiddenSize       int
	IntermediateSize int
	Layers           int
	Heads            int
	KVHeads          int // num_key_value_heads, a divisor of Heads
	HeadDim          int
	HiddenAct        string
	Eps              float64
	RoPETheta        float64
	// QKNorm says that queries and keys are normalised for each head (Qwen3).
	QKNorm bool
	// QKVBias and OutBias say which projections of the attention have a bias.
	QKVBias bool
	OutBias bool
	// Window is how many keys a query sees at most, 0 where all; see Options.Check.
	Window int
}

// families are the defaults of the text models' config classes by model_type: configuration_*.py of each. That of Mistral3 holds where
// there is no text_config.
var families = map[string]Config{
	"qwen3": {
		Class: "Qwen3ForCausalLM", VocabSize: 151936, HiddenSize: 4096, IntermediateSize: 22016, Layers: 32, Heads: 32, KVHeads: 32, HeadDim: 128,
		Eps: 1e-6, RoPETheta: 10000, QKNorm: true,
	},
	"mistral": {
		Class: "MistralForCausalLM", VocabSize: 32000, HiddenSize: 4096, IntermediateSize: 14336, Layers: 32, Heads: 32, KVHeads: 8,
		Eps: 1e-6, RoPETheta: 10000,
	},
	"mistral3": {
		Class: "Mistral3ForConditionalGeneration", VocabSize: 131072, HiddenSize: 5120, IntermediateSize: 32768, Layers: 40, Heads: 32, KVHeads: 8, HeadDim: 128,
		Eps: 1e-5, RoPETheta: 1e9,
	},
	"qwen2_5_vl": {
		Class: "Qwen2_5_VLForConditionalGeneration", VocabSize: 152064, HiddenSize: 8192, IntermediateSize: 29568, Layers: 80, Heads: 64, KVHeads: 8,
		Eps: 1e-5, RoPETheta: 1e6, QKVBias: true,
	},
}

// classes are the model_type of classes whose config leaves it out.
var classes = map[string]string{
	"Qwen3ForCausalLM": "qwen3", "Qwen3Model": "qwen3",
	"MistralForCausalLM": "mistral", "MistralModel": "mistral",
	"Mistral3ForConditionalGeneration": "mistral3", "Mistral3Model": "mistral3",
	"Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl", "Qwen2_5_VLModel": "qwen2_5_vl",
}

// ParseConfig reads a text encoder's config.json, in the form that transformers 5 writes (rope_parameters; a nested text_config) and in the one that
// published checkpoints have (rope_theta with rope_scaling; Qwen2.5-VL's fields at the top level). Its error lists every bad field.
func ParseConfig(c *checkpoint.Config) (Config, error) {
	kind := c.String("model_type", classes[c.Class()])
	cfg, ok := families[kind]
	if !ok {
		c.Problem("model_type", "found %q, wanted qwen3, mistral, mistral3 or qwen2_5_vl", kind)
		return Config{}, c.Err()
	}
	text := c
	if nested := c.Object("text_config"); nested != nil && (kind == "mistral3" || kind == "qwen2_5_vl") {
		text = nested
		want := map[string]string{"mistral3": "mistral", "qwen2_5_vl": "qwen2_5_vl_text"}[kind]
		// Older files name the whole model in its text part too.
		if found := text.String("model_type", want); found != want && found != kind {
			text.Problem("model_type", "found %q, wanted %q", found, want)
		}
		if kind == "mistral3" {
			// A text_config that the file has, however short, has the defaults of its own class.
			class := cfg.Class
			cfg = families["mistral"]
			cfg.Class, kind = class, "mistral"
		}
	}
	cfg.read(text, kind)
	if err := c.Err(); err != nil {
		return Config{}, err
	}
	return cfg, nil
}

// read replaces the defaults in cfg by what the file has.
func (cfg *Config) read(c *checkpoint.Config, kind string) {
	cfg.VocabSize = c.PositiveInt("vocab_size", cfg.VocabSize)
	cfg.HiddenSize = c.PositiveInt("hidden_size", cfg.HiddenSize)
	cfg.IntermediateSize = c.PositiveInt("intermediate_size", cfg.IntermediateSize)
	cfg.Layers = c.PositiveIntUpTo("num_hidden_layers", cfg.Layers, 1000)
	cfg.Heads = c.PositiveInt("num_attention_heads", cfg.Heads)
	if c.IsNull("num_key_value_heads") {
		cfg.KVHeads = cfg.Heads
	}
	cfg.KVHeads = c.PositiveInt("num_key_value_heads", cfg.KVHeads)
	cfg.HiddenAct = c.String("hidden_act", "silu")
	cfg.Eps = c.PositiveFloat("rms_norm_eps", cfg.Eps)
	if cfg.Heads%cfg.KVHeads != 0 {
		c.Problem("num_attention_heads", "found %d, wanted a multiple of num_key_value_heads %d", cfg.Heads, cfg.KVHeads)
	}
	if _, ok := nn.ActivationByName(cfg.HiddenAct); !ok {
		c.Problem("hidden_act", "found %q, wanted one of %s", cfg.HiddenAct, strings.Join(nn.ActivationNames(), ", "))
	}
	perHead := cfg.HiddenSize / cfg.Heads
	if cfg.HeadDim == 0 || kind == "qwen2_5_vl" {
		cfg.HeadDim = max(perHead, 1)
	}
	if kind != "qwen2_5_vl" {
		cfg.HeadDim = c.PositiveInt("head_dim", cfg.HeadDim)
	} else if perHead*cfg.Heads != cfg.HiddenSize {
		c.Problem("hidden_size", "found %d, wanted a multiple of num_attention_heads %d", cfg.HiddenSize, cfg.Heads)
	}
	if cfg.HeadDim%2 != 0 {
		c.Problem("head_dim", "found %d, wanted an even number: rotary positions turn pairs of channels", cfg.HeadDim)
	}
	if width := cfg.Heads * cfg.HeadDim; width > maxWidth {
		c.Problem("head_dim", "found %d for each of %d heads, wanted at most %d for all", cfg.HeadDim, cfg.Heads, maxWidth)
	}
	if kind == "qwen3" {
		cfg.QKVBias = c.Bool("attention_bias", false)
		cfg.OutBias = cfg.QKVBias
	}
	cfg.readRoPE(c, kind)
	cfg.readWindow(c, kind)
}

// readRoPE reads the base of the rotary positions. With text alone Qwen2.5-VL's three axes of positions are equal, so that its "mrope" is
// the plain form. Scaled forms are none that a pipeline's published text encoder has.
func (cfg *Config) readRoPE(c *checkpoint.Config, kind string) {
	theta := c.PositiveFloat("rope_theta", cfg.RoPETheta)
	for _, key := range []string{"rope_scaling", "rope_parameters"} {
		rope := c.Object(key)
		if rope == nil {
			continue
		}
		theta = rope.PositiveFloat("rope_theta", theta)
		form := rope.String("rope_type", rope.String("type", "default"))
		if form != "default" && (form != "mrope" || kind != "qwen2_5_vl") {
			rope.Problem("rope_type", "found %q, wanted default: scaled rotary positions are not supported", form)
		}
		if f := rope.Float("partial_rotary_factor", 1); f != 1 {
			rope.Problem("partial_rotary_factor", "found %g, wanted 1", f)
		}
	}
	cfg.RoPETheta = theta
}

// readWindow reads the sliding window, which Mistral has in all layers where it is set, Qwen in some.
func (cfg *Config) readWindow(c *checkpoint.Config, kind string) {
	if kind == "qwen3" || kind == "qwen2_5_vl" {
		if c.Bool("use_sliding_window", false) {
			cfg.Window = c.PositiveInt("sliding_window", 4096)
		}
		return
	}
	// MistralConfig's own default is a window of 4096, but null in the file means none.
	if kind == "mistral" && !c.IsNull("sliding_window") {
		cfg.Window = c.PositiveInt("sliding_window", 4096)
	}
}

// maxWidth bounds the width of all heads together, so that the sizes of the projections fit an int64.
const maxWidth = 1 << 24
