//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/gomlx/compute/dtypes"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/models/flux"
	"precast/graph/trace"
)

// The checkpoints are FLUX.1's transformer at hidden size 768, as flux-768 of make_models.py is, with blocks of any number. Their other
// components are configs alone.
var (
	pipelineIndex = map[string]any{
		"_class_name": "FluxPipeline", "_diffusers_version": "0.42.1",
		"transformer": []string{"diffusers", "FluxTransformer2DModel"}, "vae": []string{"diffusers", "AutoencoderKL"},
		"scheduler":    []string{"diffusers", "FlowMatchEulerDiscreteScheduler"},
		"text_encoder": []string{"transformers", "CLIPTextModel"}, "text_encoder_2": []string{"transformers", "T5EncoderModel"},
	}
	otherConfigs = map[string]map[string]any{
		"scheduler/scheduler_config.json": {
			"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "shift": 3.0, "use_dynamic_shifting": true,
			"base_shift": 0.5, "max_shift": 1.15, "base_image_seq_len": 256, "max_image_seq_len": 4096,
		},
		"text_encoder/config.json": {
			"architectures": []string{"CLIPTextModel"}, "model_type": "clip_text_model", "vocab_size": 49408, "hidden_size": 768, "intermediate_size": 3072,
			"num_hidden_layers": 12, "num_attention_heads": 12, "max_position_embeddings": 77, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
			"projection_dim": 768, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1,
		},
		"text_encoder_2/config.json": {
			"architectures": []string{"T5EncoderModel"}, "model_type": "t5", "vocab_size": 32128, "d_model": 1024, "d_kv": 64, "d_ff": 2816, "num_heads": 16,
			"num_layers": 8, "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128, "feed_forward_proj": "gated-gelu",
			"layer_norm_epsilon": 1e-6,
		},
		"vae/config.json": {
			"_class_name": "AutoencoderKL", "in_channels": 3, "out_channels": 3, "act_fn": "silu", "latent_channels": 16, "norm_num_groups": 32,
			"down_block_types":   []string{"DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D"},
			"up_block_types":     []string{"UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D"},
			"block_out_channels": []int{64, 128, 256, 256}, "layers_per_block": 2, "sample_size": 1024, "scaling_factor": 0.3611, "shift_factor": 0.1159,
			"use_quant_conv": false, "use_post_quant_conv": false, "force_upcast": true,
		},
	}
)

// writeCheckpoint writes a checkpoint with that many double and single blocks to dir, its weights random and float32. The same call writes the same
// bytes. A folder that has its index is complete and stays.
func writeCheckpoint(dir string, double, single int) error {
	index := filepath.Join(dir, "model_index.json")
	if _, err := os.Stat(index); err == nil {
		return nil
	}
	for name, config := range otherConfigs {
		if err := writeJSON(filepath.Join(dir, name), config); err != nil {
			return err
		}
	}
	config := filepath.Join(dir, "transformer", "config.json")
	if err := writeJSON(config, map[string]any{
		"_class_name": "FluxTransformer2DModel", "attention_head_dim": 128, "axes_dims_rope": []int{16, 56, 56}, "guidance_embeds": true, "in_channels": 64,
		"joint_attention_dim": 1024, "num_attention_heads": 6, "num_layers": double, "num_single_layers": single, "patch_size": 1, "pooled_projection_dim": 768,
	}); err != nil {
		return err
	}
	read, err := checkpoint.ReadConfig(config)
	if err != nil {
		return err
	}
	cfg, err := flux.ParseConfig(read)
	if err != nil {
		return err
	}
	m, err := trace.Trace(flux.New(cfg, flux.Options{Batch: 1, TextLength: 16, ImageLength: 16}, dtypes.Float32))
	if err != nil {
		return err
	}
	var items []checkpoint.Item
	random := pool{}
	for i, q := range m.Entry().Params {
		if q.Kind == graph.Weight {
			dims := q.Value.Shape.Dimensions
			items = append(items, checkpoint.Item{Key: q.Name, DType: dtypes.Float32, Shape: dims, Data: random.values(i, dims)})
		}
	}
	if err := checkpoint.WriteFile(filepath.Join(dir, "transformer", "diffusion_pytorch_model.safetensors"), items, map[string]string{"format": "pt"}); err != nil {
		return err
	}
	return writeJSON(index, pipelineIndex)
}

func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

// pool holds random numbers by fan-in, of which every weight takes a stretch of its own: a checkpoint of gigabytes is written from a few megabytes.
type pool map[int][]byte

// poolStretch is how far apart, in numbers, the stretches of two weights begin.
const poolStretch = 4099

// values are the little-endian floats of weight i: matrices have variance 1 / fan-in, so that values stay in range; vectors have that of a fan-in of 100.
func (p pool) values(i int, dims []int) []byte {
	size, fan := 1, 100
	for _, d := range dims {
		size *= d
	}
	if len(dims) > 1 {
		fan = size / dims[0]
	}
	begin := i * poolStretch
	for n := len(p[fan]) / 4; n < begin+size; n++ {
		if n == 0 {
			p[fan] = make([]byte, 0, 4*(begin+size))
		}
		rng := rand.New(rand.NewPCG(uint64(fan), uint64(n)))
		bits := math.Float32bits(float32(rng.NormFloat64() / math.Sqrt(float64(fan))))
		p[fan] = append(p[fan], byte(bits), byte(bits>>8), byte(bits>>16), byte(bits>>24))
	}
	return p[fan][4*begin:][:4*size]
}

// depth is a number of double and of single blocks.
type depth struct{ double, single int }

func (d depth) String() string { return fmt.Sprintf("%d+%d", d.double, d.single) }
