package autoencoderkl

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/trace"
)

// blocks is what the configs of all published models have in common.
const blocks = `"block_out_channels": [128, 256, 512, 512], "layers_per_block": 2,
	"down_block_types": ["DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D"],
	"up_block_types": ["UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D"]`

func parse(t *testing.T, text string) (Config, error) {
	t.Helper()
	cfg, err := checkpoint.ParseConfig("vae/config.json", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return ParseConfig(cfg)
}

func parseFlux2(t *testing.T, text string) (Config, error) {
	t.Helper()
	cfg, err := checkpoint.ParseConfig("vae/config.json", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return ParseFlux2Config(cfg)
}

// weightShapes returns the shapes of the weights that the networks ask for, by key, and the number of their elements.
func weightShapes(t *testing.T, networks ...trace.Network) (shapes map[string]string, elements int) {
	t.Helper()
	shapes = map[string]string{}
	for _, w := range wants(networks...) {
		shapes[w.Key] = fmt.Sprint(w.Shape)
		size := 1
		for _, d := range w.Shape {
			size *= d
		}
		elements += size
	}
	return shapes, elements
}

// TestPublishedModels compares the number of weights with those of the published checkpoints.
func TestPublishedModels(t *testing.T) {
	for _, tc := range []struct {
		name, config      string
		tensors, elements int
	}{
		{"Stable Diffusion 1.5", `{"sample_size": 512, ` + blocks + `}`, 248, 83_653_863},
		{"FLUX.1", `{"sample_size": 1024, "latent_channels": 16, "scaling_factor": 0.3611, "shift_factor": 0.1159,
			"use_quant_conv": false, "use_post_quant_conv": false, ` + blocks + `}`, 244, 83_819_683},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg, err := parse(t, tc.config)
			if err != nil {
				t.Fatal(err)
			}
			if f := cfg.ScaleFactor(); f != 8 {
				t.Errorf("found a scale factor of %d, wanted 8", f)
			}
			shapes, elements := weightShapes(t, NewDecoder(cfg, Sizes{Batch: 1, Height: 64, Width: 64, DType: dtypes.Float32}),
				NewEncoder(cfg, Sizes{Batch: 1, Height: 512, Width: 512, DType: dtypes.Float32}))
			if len(shapes) != tc.tensors || elements != tc.elements {
				t.Errorf("found %d weights with %d elements, the checkpoint has %d with %d", len(shapes), elements, tc.tensors, tc.elements)
			}
		})
	}
}

func TestNoMidAttention(t *testing.T) {
	for attention, want := range map[bool]string{true: "[64 64]", false: ""} {
		cfg, err := parse(t, fmt.Sprintf(`{"mid_block_add_attention": %v}`, attention))
		if err != nil {
			t.Fatal(err)
		}
		shapes, _ := weightShapes(t, NewDecoder(cfg, Sizes{Batch: 1, Height: 3, Width: 2, DType: dtypes.Float32}))
		if got := shapes["decoder.mid_block.attentions.0.to_q.weight"]; got != want {
			t.Errorf("with attention %v: to_q.weight has shape %q, wanted %q", attention, got, want)
		}
	}
}

// TestLogvarClamp has an encoder whose log-variance is its bias: far outside of the range it is cut to.
func TestLogvarClamp(t *testing.T) {
	cfg, err := parse(t, `{"block_out_channels": [4], "norm_num_groups": 2, "latent_channels": 2, "mid_block_add_attention": false}`)
	if err != nil {
		t.Fatal(err)
	}
	weights := func(key string, shape graph.Shape) (*tensors.Tensor, error) {
		if key == "quant_conv.bias" {
			return tensors.FromValue([]float32{-1000, 1000, -1000, 1000}), nil
		}
		return tensors.FromShape(shape), nil
	}
	out, err := trace.Evaluate(nil, NewEncoder(cfg, Sizes{Batch: 1, Height: 1, Width: 1, DType: dtypes.Float32}), weights,
		map[string]*tensors.Tensor{"sample": tensors.FromShape(shapes.Make(dtypes.Float32, 1, 3, 1, 1))})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(out[0].Value(), out[1].Value()), "[[[[-1000]] [[1000]]]] [[[[-30]] [[20]]]]"; got != want {
		t.Errorf("mean and logvar are %s, wanted %s", got, want)
	}
}

func TestParseConfigErrors(t *testing.T) {
	for _, tc := range []struct{ config, want string }{
		{`{}`, ""},
		{`{"layers_per_block": -2}`, "layers_per_block: found -2, wanted an integer of 1 or more"},
		{`{"layers_per_block": 100000}`, "layers_per_block: found 100000, wanted at most 256"},
		{`{"block_out_channels": [60]}`, "norm_num_groups: found 32, wanted a divisor of block_out_channels[0], 60"},
		{`{"down_block_types": []}`, "down_block_types: found 0 blocks, wanted as many as block_out_channels: 1"},
		{`{"up_block_types": ["UpDecoderBlock2D", "UpDecoderBlock2D"]}`, "up_block_types: found 2 blocks, wanted as many as block_out_channels: 1"},
		{`{"up_block_types": ["AttnUpDecoderBlock2D"]}`, `up_block_types[0]: not supported: found "AttnUpDecoderBlock2D", wanted "UpDecoderBlock2D"`},
		{`{"act_fn": "relu"}`, `act_fn: not supported: found "relu", wanted "silu"`},
		{`{"scaling_factor": 0}`, "scaling_factor: found 0, wanted a number above 0"},
		{`{"shift_factor": "x"}`, `shift_factor: found the string "x", wanted a finite number`},
		{`{"latents_mean": [0, 0, 0]}`, "latents_mean: found 3 numbers, wanted as many as latent_channels: 4"},
		{`{"latents_std": [1, 1, 0, 1]}`, "latents_std: found [1 1 0 1], wanted numbers above 0"},
		{`{"sample_size": 0}`, "sample_size: found [0], wanted one positive number or a height and a width"},
		{`{"sample_size": [512, 768]}`, ""},
		{`{"latent_channels": 0}`, "latent_channels: found 0, wanted an integer of 1 or more"},
		{`{"force_upcast": null, "shift_factor": null, "latents_mean": null, "latents_std": null, "sample_size": null, "up_block_types": null}`, ""},
	} {
		t.Run(tc.config, func(t *testing.T) {
			_, err := parse(t, tc.config)
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("found error %v", err)
			case tc.want != "" && (err == nil || err.Error() != "vae/config.json: "+tc.want):
				t.Errorf("found   %v\nwanted  vae/config.json: %s", err, tc.want)
			}
		})
	}
	cfg, err := parse(t, fmt.Sprintf(`{"block_out_channels": [%s32]}`, strings.Repeat("32, ", 99)))
	if want := "block_out_channels: found 100 blocks, wanted at most 16"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("found %+v, %v, wanted %s", cfg, err, want)
	}
}

// TestFlux2Defaults compares the number of weights of AutoencoderKLFlux2's defaults with that of diffusers' class: 84,046,115 parameters and two times 128
// statistics.
func TestFlux2Defaults(t *testing.T) {
	cfg, err := parseFlux2(t, `{}`)
	if err != nil {
		t.Fatal(err)
	}
	shapes, elements := weightShapes(t, NewDecoder(cfg, Sizes{Batch: 1, Height: 64, Width: 64, DType: dtypes.Float32}),
		NewEncoder(cfg, Sizes{Batch: 1, Height: 512, Width: 512, DType: dtypes.Float32}),
		NewUnpack(cfg, Sizes{Batch: 1, Height: 64, Width: 64, DType: dtypes.Float32}))
	if len(shapes) != 250 || elements != 84_046_115+256 {
		t.Errorf("found %d weights with %d elements, wanted 250 with %d", len(shapes), elements, 84_046_115+256)
	}
}

// TestFlux2DecoderBlocks has a decoder of other widths than the encoder.
func TestFlux2DecoderBlocks(t *testing.T) {
	cfg, err := parseFlux2(t, `{"block_out_channels": [8, 12, 16, 20], "decoder_block_out_channels": [16, 24, 28, 32], "norm_num_groups": 4}`)
	if err != nil {
		t.Fatal(err)
	}
	shapes, _ := weightShapes(t, NewDecoder(cfg, Sizes{Batch: 1, Height: 2, Width: 2, DType: dtypes.Float32}),
		NewEncoder(cfg, Sizes{Batch: 1, Height: 16, Width: 16, DType: dtypes.Float32}))
	for key, want := range map[string]string{
		"encoder.conv_in.weight": "[8 3 3 3]", "encoder.conv_norm_out.weight": "[20]", "encoder.mid_block.resnets.0.conv1.weight": "[20 20 3 3]",
		"decoder.conv_in.weight": "[32 32 3 3]", "decoder.conv_norm_out.weight": "[16]", "decoder.mid_block.resnets.0.conv1.weight": "[32 32 3 3]",
		"decoder.up_blocks.0.upsamplers.0.conv.weight": "[32 32 3 3]", "decoder.up_blocks.1.resnets.0.conv1.weight": "[28 32 3 3]",
	} {
		if shapes[key] != want {
			t.Errorf("%s has shape %q, wanted %s", key, shapes[key], want)
		}
	}
}

// TestBatchNormEps checks that the eps is that of the config (https://github.com/invoke-ai/InvokeAI/pull/8838): with statistics of 0 it is all there is.
func TestBatchNormEps(t *testing.T) {
	for text, want := range map[string]float32{`{"latent_channels": 1}`: 0.01, `{"latent_channels": 1, "batch_norm_eps": 0.25}`: 0.5} {
		cfg, err := parseFlux2(t, text)
		if err != nil {
			t.Fatal(err)
		}
		out, err := trace.Evaluate(nil, NewUnpack(cfg, Sizes{Batch: 1, Height: 2, Width: 2, DType: dtypes.Float32}),
			func(_ string, shape graph.Shape) (*tensors.Tensor, error) { return tensors.FromShape(shape), nil },
			map[string]*tensors.Tensor{"latents": tensors.FromValue([][][]float32{{{1, 2, 3, 4}}})})
		if err != nil {
			t.Fatal(err)
		}
		for i, got := range tensors.MustCopyFlatData[float32](out[0]) {
			if d := got - float32(i+1)*want; d < -1e-6 || d > 1e-6 {
				t.Errorf("%s: pixel %d is %g, wanted %g", text, i, got, float32(i+1)*want)
			}
		}
	}
}

func TestParseFlux2ConfigErrors(t *testing.T) {
	for _, tc := range []struct{ config, want string }{
		{`{}`, ""},
		{`{"batch_norm_eps": -1}`, "batch_norm_eps: found -1, wanted 0 or more"},
		{`{"batch_norm_eps": "x"}`, `batch_norm_eps: found the string "x", wanted a finite number`},
		{`{"batch_norm_momentum": "x"}`, `batch_norm_momentum: found the string "x", wanted a finite number`},
		{`{"patch_size": [4, 4]}`, "patch_size: not supported: found [4 4], wanted [2 2], the patches of FLUX.2's transformer"},
		{`{"patch_size": 2}`, "patch_size: not supported: found [2], wanted [2 2], the patches of FLUX.2's transformer"},
		{`{"decoder_block_out_channels": [32]}`, "decoder_block_out_channels: found 1 blocks, wanted as many as block_out_channels: 4"},
		{`{"decoder_block_out_channels": [32, 32, 40, 32]}`, "norm_num_groups: found 32, wanted a divisor of decoder_block_out_channels[2], 40"},
		{`{"block_out_channels": [32, 40, 32, 32]}`, "norm_num_groups: found 32, wanted a divisor of block_out_channels[1], 40"},
		{`{"layers_per_block": 100000}`, "layers_per_block: found 100000, wanted at most 256"},
		{`{"down_block_types": ["DownEncoderBlock2D"]}`, "down_block_types: found 1 blocks, wanted as many as block_out_channels: 4"},
		{`{"latent_channels": 0}`, "latent_channels: found 0, wanted an integer of 1 or more"},
		{`{"decoder_block_out_channels": null, "batch_norm_eps": null, "patch_size": null, "sample_size": null}`, ""},
	} {
		t.Run(tc.config, func(t *testing.T) {
			_, err := parseFlux2(t, tc.config)
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("found error %v", err)
			case tc.want != "" && (err == nil || err.Error() != "vae/config.json: "+tc.want):
				t.Errorf("found   %v\nwanted  vae/config.json: %s", err, tc.want)
			}
		})
	}
}
