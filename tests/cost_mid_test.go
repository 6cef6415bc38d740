package tests

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"precast"
	"precast/graph"
	"precast/graph/pipelines/configs"
)

// midCase is a program of a middle-sized model: a published one's configs with other sizes.
type midCase struct {
	name, published, program string
	edits                    map[string]map[string]any // by component
	sizes                    precast.Sizes
}

var (
	flux768 = map[string]map[string]any{
		"transformer":    {"num_attention_heads": 6, "num_layers": 6, "num_single_layers": 12, "joint_attention_dim": 1024},
		"text_encoder_2": {"d_model": 1024},
	}
	flux1536 = map[string]map[string]any{
		"transformer":    {"num_attention_heads": 12, "num_layers": 6, "num_single_layers": 12, "joint_attention_dim": 1024},
		"text_encoder_2": {"d_model": 1024},
	}
	wan512 = map[string]map[string]any{
		"transformer":  {"num_attention_heads": 4, "num_layers": 16, "ffn_dim": 2816, "text_dim": 1024},
		"text_encoder": {"d_model": 1024},
	}
	sdxlMid = map[string]map[string]any{
		"unet": {
			"block_out_channels": []int{128, 256, 512}, "attention_head_dim": []int{2, 4, 8}, "cross_attention_dim": 1024,
			"transformer_layers_per_block": []int{1, 2, 6}, "projection_class_embeddings_input_dim": 2048,
		},
		"text_encoder":   {"hidden_size": 512, "num_attention_heads": 8, "projection_dim": 512},
		"text_encoder_2": {"hidden_size": 512, "num_attention_heads": 8, "projection_dim": 512},
	}
)

// midCases are the models of tests/bench and published ones.
var midCases = []midCase{
	{"flux-768 256x256", "FLUX.1-dev", "transformer", flux768, precast.Sizes{Height: 256, Width: 256, MaxSequenceLength: 512}},
	{"flux-768 512x512", "FLUX.1-dev", "transformer", flux768, precast.Sizes{Height: 512, Width: 512, MaxSequenceLength: 512}},
	{"flux-1536 256x256", "FLUX.1-dev", "transformer", flux1536, precast.Sizes{Height: 256, Width: 256, MaxSequenceLength: 512}},
	{"flux-1536 512x512", "FLUX.1-dev", "transformer", flux1536, precast.Sizes{Height: 512, Width: 512, MaxSequenceLength: 512}},
	{"wan-512 256x256x5", "Wan2.1-T2V-1.3B", "transformer", wan512, precast.Sizes{Height: 256, Width: 256, Frames: 5}},
	{"sdxl-mid 512x512", "stable-diffusion-xl-base-1.0", "unet", sdxlMid, precast.Sizes{Height: 512, Width: 512}},
	{"SD 1.5 512x512", "stable-diffusion-v1-5", "unet", nil, precast.Sizes{Height: 512, Width: 512}},
	{"SD 1.5 512x512", "stable-diffusion-v1-5", "vae.decoder", nil, precast.Sizes{Height: 512, Width: 512}},
	{"FLUX.1-dev 1024x1024", "FLUX.1-dev", "transformer", nil, precast.Sizes{Height: 1024, Width: 1024, MaxSequenceLength: 512}},
}

// module traces the program from configs alone.
func (c midCase) module(t *testing.T) *graph.Module {
	t.Helper()
	files, _, err := configs.Open(c.published)
	must(t, err)
	dir := t.TempDir()
	must(t, fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		to := filepath.Join(dir, path)
		if err != nil || d.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		data, err := fs.ReadFile(files, path)
		if err != nil {
			return err
		}
		return os.WriteFile(to, data, 0o644)
	}))
	for component, values := range c.edits {
		editJSON(t, filepath.Join(dir, component, "config.json"), values)
	}
	x, err := precast.Inspect(dir, precast.InspectOptions{Component: c.program, Sizes: c.sizes, Config: precast.Config{ConfigOnly: true}})
	must(t, err)
	return x.Module
}

// TestCostOfMiddleSizedModels holds operations and memory of the models of tests/bench and of published ones against XLA's.
func TestCostOfMiddleSizedModels(t *testing.T) {
	client := costClient(t)
	for i, c := range midCases {
		t.Run(c.name+"/"+c.program, func(t *testing.T) {
			if i > 0 && !long() {
				t.Skip("compiles for seconds: PRECAST_TEST_LONG")
			}
			checkCost(t, client, c.module(t), long())
		})
	}
}
