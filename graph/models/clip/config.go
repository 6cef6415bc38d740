// Package clip has CLIP's text encoder (transformers, models/clip/modeling_clip.py; https://arxiv.org/abs/2103.00020).
package clip

import (
	"fmt"
	"strings"

	"precast/graph/checkpoint"
	"precast/graph/nn"
)

// Config has the sizes of a CLIPTextModel, the fields of CLIPTextConfig (transformers, models/clip/configuration_clip.py) that its forward
// pass uses.
type Config struct {
	VocabSize        int
	HiddenSize       int
	IntermediateSize int
	Layers           int
	Heads            int
	// MaxPositions is the longest sequence, the length of the position table.
	MaxPositions int
	// HiddenAct names the activation between the two layers of a feed-forward block.
	HiddenAct    string
	LayerNormEps float64
	// EOSTokenID says which position is pooled: see Pooler.
	EOSTokenID int
	// ProjectionDim is the width of text_embeds in CLIPTextModelWithProjection; CLIPTextModel does not use it.
	ProjectionDim int
}

// ParseConfig reads a text encoder's config.json. Its error lists every bad field.
func ParseConfig(c *checkpoint.Config) (Config, error) {
	cfg := Config{
		VocabSize:        c.PositiveInt("vocab_size", 49408),
		HiddenSize:       c.PositiveInt("hidden_size", 512),
		IntermediateSize: c.PositiveInt("intermediate_size", 2048),
		Layers:           c.PositiveIntUpTo("num_hidden_layers", 12, 1000),
		Heads:            c.PositiveInt("num_attention_heads", 8),
		MaxPositions:     c.PositiveInt("max_position_embeddings", 77),
		HiddenAct:        c.String("hidden_act", "quick_gelu"),
		LayerNormEps:     c.PositiveFloat("layer_norm_eps", 1e-5),
		EOSTokenID:       c.Int("eos_token_id", 49407),
		ProjectionDim:    c.PositiveInt("projection_dim", 512),
	}
	if cfg.HiddenSize%cfg.Heads != 0 {
		c.Problem("hidden_size", "found %d, wanted a multiple of num_attention_heads %d", cfg.HiddenSize, cfg.Heads)
	}
	if _, ok := nn.ActivationByName(cfg.HiddenAct); !ok {
		c.Problem("hidden_act", "found %q, wanted one of %s", cfg.HiddenAct, strings.Join(nn.ActivationNames(), ", "))
	}
	if cfg.MaxPositions < 2 {
		c.Problem("max_position_embeddings", "found %d, wanted 2 or more: a text has a token before it and one behind it", cfg.MaxPositions)
	}
	if err := c.Err(); err != nil {
		return Config{}, err
	}
	return cfg, nil
}

// Options are the static sizes and choices of one program of the text encoder.
type Options struct {
	// Name is the component's name, "text_encoder" where it is empty.
	Name   string
	Batch  int
	Length int // tokens, at most Config.MaxPositions
	// Outputs are the program's results in order: "last_hidden_state" [B, L, C], "pooler_output" [B, C] and "hidden_states/K" [B, L, C],
	// the residual stream after K layers (0: the embeddings, Config.Layers: the last), and "text_embeds" [B, ProjectionDim], the pooled
	// output projected. Empty means the first two.
	Outputs []string
	// ClipSkip, as the argument clip_skip of StableDiffusionPipeline's encode_prompt, makes last_hidden_state the stream that many
	// layers before the last, through the final norm. pooler_output does not depend on it.
	ClipSkip int
}

// Check says what in o does not fit cfg.
func (o Options) Check(cfg Config) error {
	switch {
	case o.Batch < 1 || o.Length < 1:
		return fmt.Errorf("text encoder: found batch %d and %d tokens, wanted 1 or more of each", o.Batch, o.Length)
	case o.Length > cfg.MaxPositions:
		return fmt.Errorf("text encoder: found %d tokens, wanted at most max_position_embeddings %d", o.Length, cfg.MaxPositions)
	case o.ClipSkip < 0 || o.ClipSkip > cfg.Layers:
		return fmt.Errorf("clip_skip: found %d, wanted 0 to the number of layers %d", o.ClipSkip, cfg.Layers)
	}
	for _, name := range o.Outputs {
		if _, err := outputLayer(name, cfg); err != nil {
			return err
		}
	}
	return nil
}

// outputLayer returns K of "hidden_states/K", -1 for the other outputs.
func outputLayer(name string, cfg Config) (int, error) {
	if name == "last_hidden_state" || name == "pooler_output" || name == "text_embeds" {
		return -1, nil
	}
	var k int
	if _, err := fmt.Sscanf(name, "hidden_states/%d", &k); err != nil || fmt.Sprintf("hidden_states/%d", k) != name || k < 0 || k > cfg.Layers {
		return 0, fmt.Errorf("text encoder: found output %q, wanted last_hidden_state, pooler_output, text_embeds or hidden_states/0 to hidden_states/%d", name, cfg.Layers)
	}
	return k, nil
}
