package autoencoderkl

import "strings"

// attentionModules are the modules of the mid blocks' attention with the names they had before diffusers 0.12.
var attentionModules = []struct{ name, old string }{
	{"to_q", "query"},
	{"to_k", "key"},
	{"to_v", "value"},
	{"to_out.0", "proj_attn"},
}

// KeyAliases returns the older spellings under which a checkpoint file may hold the weight key, none for most keys. The autoencoder of
// Stable Diffusion 1.5 is stored so: "decoder.mid_block.attentions.0.query.weight" for "decoder.mid_block.attentions.0.to_q.weight"
// (https://github.com/huggingface/diffusers/issues/4790). A loader looks for key first and then for these, and reads what it finds with
// SqueezeShape.
func KeyAliases(key string) []string {
	for _, m := range attentionModules {
		for _, part := range []string{".weight", ".bias"} {
			module, ok := strings.CutSuffix(key, "."+m.name+part)
			if ok && isAttention(module) {
				return []string{module + "." + m.old + part}
			}
		}
	}
	return nil
}

// SqueezeShape returns the shape to read a stored tensor in, given its own: attention weights that were converted from the original
// repository are 1x1 convolutions, [C, C, 1, 1], where the key calls for [C, C]. Other tensors keep their shape.
func SqueezeShape(key string, stored []int) []int {
	if len(stored) == 4 && stored[2] == 1 && stored[3] == 1 && KeyAliases(key) != nil {
		return stored[:2:2]
	}
	return stored
}

func isAttention(module string) bool {
	return module == "encoder.mid_block.attentions.0" || module == "decoder.mid_block.attentions.0"
}
