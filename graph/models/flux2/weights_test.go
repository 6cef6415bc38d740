package flux2

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"precast/graph/checkpoint"
	"precast/graph/models/golden"
)

// TestCheckSizes has klein's weights beside configs of other models.
func TestCheckSizes(t *testing.T) {
	ref := golden.Open(t, "tiny/flux2-klein")
	stored := ref.Keys("transformer")
	const sizes = `"in_channels": 32, "attention_head_dim": 20, "num_attention_heads": 2, "joint_attention_dim": 72, "timestep_guidance_channels": 64,
		"axes_dims_rope": [4, 4, 6, 6], "guidance_embeds": false`
	for _, tc := range []struct {
		name, config string
		want         []string // beginnings of the messages, sorted
	}{
		{"its own", `{"num_layers": 3, "num_single_layers": 2, ` + sizes + `}`, nil},
		{"fewer blocks than stored", `{"num_layers": 2, "num_single_layers": 1, ` + sizes + `}`, nil},
		{"no layers", `{` + sizes + `}`, []string{
			`num_layers: found nothing, which means 8, but the weights have 3 ("transformer_blocks.2.attn.add_k_proj.weight" is in the last)`,
			`num_single_layers: found nothing, which means 48, but the weights have 2 ("single_transformer_blocks.1.attn.norm_k.weight" is in the last)`,
		}},
		{"more blocks than stored", `{"num_layers": 5, "num_single_layers": 20, ` + sizes + `}`, []string{
			`num_layers: found 5, but the weights have 3`, `num_single_layers: found 20, but the weights have 2`,
		}},
		{"dev's", `{}`, []string{
			"attention_head_dim: found nothing, which means 128, but the weights have 20",
			"guidance_embeds: found nothing, which means true",
			"in_channels: found nothing, which means 128, but the weights have 32",
			"joint_attention_dim: found nothing, which means 15360, but the weights have 72",
			"num_attention_heads: found nothing, which means 48, but the weights have 2",
			"num_layers: found nothing, which means 8", "num_single_layers: found nothing, which means 48",
			"timestep_guidance_channels: found nothing, which means 256, but the weights have 64",
		}},
		{"heads", `{"num_layers": 3, "num_single_layers": 2, ` + strings.Replace(sizes, `"num_attention_heads": 2`, `"num_attention_heads": 3`, 1) + `}`, []string{
			"num_attention_heads: found 3, but the weights have 2",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file, err := checkpoint.ParseConfig("transformer/config.json", []byte(tc.config))
			if err != nil {
				t.Fatal(err)
			}
			cfg := golden.Parse(t, ParseConfig, file)
			var got []string
			if err := CheckSizes(file, cfg, stored); err != nil {
				got = strings.Split(err.Error(), "\n")
			}
			slices.Sort(got)
			if len(got) != len(tc.want) {
				t.Fatalf("found %d faults, wanted %d:\n%s", len(got), len(tc.want), strings.Join(got, "\n"))
			}
			for i, want := range tc.want {
				if !strings.HasPrefix(got[i], "transformer/config.json: "+want) || !strings.HasSuffix(got[i], "; this config belongs to another model") {
					t.Errorf("found  %s\nwanted %s", got[i], want)
				}
			}
		})
	}
	t.Run("damaged files", func(t *testing.T) {
		file, err := checkpoint.ParseConfig("transformer/config.json", []byte(`{"num_layers": 3, "num_single_layers": 2, `+sizes+`}`))
		if err != nil {
			t.Fatal(err)
		}
		odd := maps.Clone(stored)
		delete(odd, "context_embedder.weight")
		flat := odd["x_embedder.weight"]
		flat.Shape = []int{}
		odd["x_embedder.weight"] = flat
		empty := odd["transformer_blocks.0.attn.norm_q.weight"]
		empty.Shape = []int{0}
		odd["transformer_blocks.0.attn.norm_q.weight"] = empty
		odd["transformer_blocks.x.y"], odd["transformer_blocks."] = empty, empty
		if err := CheckSizes(file, golden.Parse(t, ParseConfig, file), nil); err != nil {
			t.Errorf("found %v without tensors", err)
		}
		// Tensors that are missing or have too few axes are left to whoever binds them.
		const want = "transformer/config.json: attention_head_dim: found 20, but the weights have 0 "
		if err := CheckSizes(file, golden.Parse(t, ParseConfig, file), odd); err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("found  %v\nwanted %s", err, want)
		}
	})
}
