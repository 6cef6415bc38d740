package flux2

import (
	"fmt"
	"regexp"
	"strconv"

	"precast/graph/checkpoint"
)

// CheckSizes compares the sizes in a config with those that the stored tensors have. Its error lists the fields that differ, so that weights beside the
// config of another size of the model (https://github.com/huggingface/diffusers/issues/13001) are known by the field and not by hundreds of tensors; file
// is what cfg was parsed from. Tensors that are not there say nothing here. As in diffusers, the file may have more blocks than the config asks for.
func CheckSizes(file *checkpoint.Config, cfg Config, tensors map[string]checkpoint.Tensor) error {
	differ := func(key string, config, stored int, tensor string) {
		if config == stored {
			return
		}
		found := fmt.Sprintf("found %d", config)
		if !file.Has(key) {
			found = fmt.Sprintf("found nothing, which means %d", config)
		}
		file.Problem(key, "%s, but the weights have %d (%s); this config belongs to another model", found, stored, tensor)
	}
	// size compares a field with one side of a tensor that holds it unit times.
	size := func(key string, config int, name string, axis, unit int) {
		t, ok := tensors[name]
		if ok && axis < len(t.Shape) && unit > 0 && t.Shape[axis]%unit == 0 {
			differ(key, config, t.Shape[axis]/unit, t.String())
		}
	}
	for key, c := range map[string]struct {
		config int
		list   string
	}{"num_layers": {cfg.Layers, "transformer_blocks"}, "num_single_layers": {cfg.SingleLayers, "single_transformer_blocks"}} {
		stored, last := blocks(tensors, c.list)
		if stored > 0 && (stored < c.config || !file.Has(key)) {
			differ(key, c.config, stored, strconv.Quote(last)+" is in the last")
		}
	}
	head := cfg.HeadDim
	for _, name := range []string{"transformer_blocks.0.attn.norm_q.weight", "single_transformer_blocks.0.attn.norm_q.weight"} {
		if t, ok := tensors[name]; ok && len(t.Shape) == 1 {
			size("attention_head_dim", cfg.HeadDim, name, 0, 1)
			head = t.Shape[0]
			break
		}
	}
	size("num_attention_heads", cfg.Heads, "x_embedder.weight", 0, head)
	size("in_channels", cfg.InChannels, "x_embedder.weight", 1, 1)
	size("joint_attention_dim", cfg.JointDim, "context_embedder.weight", 1, 1)
	size("timestep_guidance_channels", cfg.TimeChannels, "time_guidance_embed.timestep_embedder.linear_1.weight", 1, 1)
	const guidance = "time_guidance_embed.guidance_embedder.linear_1.weight"
	if _, ok := tensors[guidance]; cfg.GuidanceEmbeds && !ok && len(tensors) > 0 && !file.Has("guidance_embeds") {
		file.Problem("guidance_embeds", "found nothing, which means true, but the weights have no %q; this config belongs to another model", guidance)
	}
	return file.Err()
}

var blockKey = regexp.MustCompile(`^(transformer_blocks|single_transformer_blocks)\.(\d{1,4})\.`)

// blocks counts the blocks of a list by the largest index in the keys; last is a key of that index.
func blocks(tensors map[string]checkpoint.Tensor, list string) (n int, last string) {
	for key := range tensors {
		m := blockKey.FindStringSubmatch(key)
		if m == nil || m[1] != list {
			continue
		}
		// Among the keys of the last block the first is named, for the same message each time.
		if i, _ := strconv.Atoi(m[2]); i+1 > n || i+1 == n && key < last {
			n, last = i+1, key
		}
	}
	return n, last
}
