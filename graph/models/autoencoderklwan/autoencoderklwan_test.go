package autoencoderklwan

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gomlx/compute/dtypes"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/trace"
)

func parse(t *testing.T, json, class string) (Config, error) {
	t.Helper()
	file, err := checkpoint.ParseConfig("config.json", []byte(json))
	if err != nil {
		t.Fatal(err)
	}
	return ParseConfig(file, class)
}

// wan22 is the config of Wan 2.2 TI2V-5B's autoencoder but for the statistics of the latents.
const wan22 = `{"base_dim": 160, "decoder_base_dim": 256, "z_dim": 48, "is_residual": true, "in_channels": 12, "out_channels": 12, "patch_size": 2,
	"scale_factor_spatial": 16, "latents_mean": [LATENT], "latents_std": [LATENT]}`

func published22() string {
	return strings.ReplaceAll(wan22, "LATENT", strings.TrimSuffix(strings.Repeat("1,", 48), ","))
}

func TestParseConfig(t *testing.T) {
	for _, tc := range []struct{ name, json, class, want string }{
		{"defaults", `{}`, ClassWan, ""},
		{"defaults of Qwen-Image", `{}`, ClassQwenImage, ""},
		{"null", `{"decoder_base_dim": null, "patch_size": null}`, ClassWan, ""},
		{"Wan 2.2", published22(), ClassWan, ""},
		{"residual is not a field of Qwen-Image", `{"is_residual": true, "patch_size": 3, "scale_factor_spatial": 5}`, ClassQwenImage, ""},
		{"zero", `{"base_dim": 0}`, ClassWan, "config.json: base_dim: found 0, wanted an integer of 1 or more"},
		{"absurd layers", `{"num_res_blocks": 100000}`, ClassWan, "config.json: num_res_blocks: found 100000, wanted at most 256"},
		{"absurd width", `{"base_dim": 2000000}`, ClassWan, "config.json: base_dim: found 2000000, wanted at most 65536\nconfig.json: decoder_base_dim: found 2000000, wanted at most 65536"},
		{"no blocks", `{"dim_mult": []}`, ClassWan, "config.json: dim_mult: found an empty list, wanted a list of one or more integers, each 1 or more"},
		{"many blocks", `{"dim_mult": [1,1,1,1,1,1,1,1,1]}`, ClassQwenImage, "config.json: dim_mult: found 9 blocks, wanted at most 8"},
		{"wide blocks", `{"dim_mult": [1, 2, 4, 4096]}`, ClassWan, "config.json: dim_mult: found [1 2 4 4096], wanted numbers up to 64"},
		{
			"downsamplings", `{"temperal_downsample": [true, true]}`, ClassQwenImage,
			"config.json: temperal_downsample: found 2 values, wanted one fewer than dim_mult has blocks: 3",
		},
		{
			"attention", `{"attn_scales": [0.5]}`, ClassWan,
			"config.json: attn_scales: not supported: found [0.5], wanted none; diffusers cannot run these blocks either",
		},
		{
			"spatial factor", `{"scale_factor_spatial": 16}`, ClassWan,
			"config.json: scale_factor_spatial: found 16, wanted 8: 2 for each of the 3 downsamplings, times patch_size 1",
		},
		{
			"temporal factor", `{"temperal_downsample": [false, false, true]}`, ClassWan,
			"config.json: scale_factor_temporal: found 4, wanted 2: 2 for each true in temperal_downsample",
		},
		{
			"patches", `{"patch_size": 2, "scale_factor_spatial": 16}`, ClassWan,
			"config.json: patch_size: found 2 with in_channels 3 and out_channels 3, wanted multiples of its square",
		},
		{"patch", `{"patch_size": 65, "scale_factor_spatial": 520}`, ClassWan, "config.json: patch_size: found 65, wanted at most 64"},
		{"mean", `{"latents_mean": [1, 2]}`, ClassWan, "config.json: latents_mean: found 2 numbers, wanted as many as latent channels (z_dim): 16"},
		{"std", `{"z_dim": 2, "latents_mean": [1, 2], "latents_std": [1, 0]}`, ClassWan, "config.json: latents_std: found [1 0], wanted numbers above 0"},
		{
			"narrow", `{"base_dim": 1, "dim_mult": [1, 1], "temperal_downsample": [true], "scale_factor_spatial": 2, "scale_factor_temporal": 2}`, ClassWan,
			"config.json: decoder_base_dim: found 1, too narrow: decoder block 1 would have 0 channels",
		},
		{
			"shortcut up", `{"is_residual": true, "decoder_base_dim": 3, "dim_mult": [1, 1, 1, 5]}`, ClassWan,
			"config.json: dim_mult: encoder block 3 goes from 96 channels to 480, wanted a divisor of 1 times as many\n" +
				"config.json: dim_mult: decoder block 1 goes from 15 channels to 3, wanted a divisor of 8 times as many",
		},
		{
			"shortcut down", `{"is_residual": true, "base_dim": 3, "dim_mult": [1, 5, 5, 5]}`, ClassWan,
			"config.json: dim_mult: encoder block 1 goes from 3 channels to 15, wanted a divisor of 8 times as many",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := ""
			if _, err := parse(t, tc.json, tc.class); err != nil {
				got = err.Error()
			}
			if got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

// TestTracePublished traces encoder and decoder of the published models in bfloat16 at 480 x 832; the numbers of weights and parameters are those of the
// classes in diffusers.
func TestTracePublished(t *testing.T) {
	for _, tc := range []struct {
		name, json, class string
		keys, parameters  int
	}{
		{"Wan 2.1", `{}`, ClassWan, 194, 126892531},
		{"Qwen-Image", `{}`, ClassQwenImage, 194, 126892531},
		{"Wan 2.2", published22(), ClassWan, 196, 704688668},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg, err := parse(t, tc.json, tc.class)
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			weights := weightShapes(t, all(cfg, dtypes.BFloat16, 480, 832)...)
			took := time.Since(start)
			parameters := 0
			for _, shape := range weights {
				parameters += shape.Size()
			}
			if len(weights) != tc.keys || parameters != tc.parameters {
				t.Errorf("%d weights with %d parameters, want %d with %d", len(weights), parameters, tc.keys, tc.parameters)
			}
			if took > 2*time.Second {
				t.Errorf("tracing took %v, want under 2s", took)
			}
		})
	}
}

// TestPasts checks the list of the pasts against the network: in both chunks every convolution that keeps frames is in it, and its frames have the shape
// declared.
func TestPasts(t *testing.T) {
	for _, json := range []string{`{}`, published22()} {
		cfg, err := parse(t, json, ClassWan)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range all(cfg, dtypes.Float32, 64, 96) {
			m, err := trace.Trace(n)
			if err != nil {
				t.Fatal(err)
			}
			results := len(n.Outputs)
			if got := len(m.Entry().Results); got != results {
				t.Fatalf("%s: %d results, want %d", n.Name, got, results)
			}
			declared := map[string]graph.Shape{}
			for _, chunk := range []Chunk{First, Later} {
				s := Sizes{Batch: 1, Height: 64, Width: 96, DType: dtypes.Float32, Chunk: chunk}
				list := cfg.encoderPasts(s)
				if strings.HasPrefix(n.Name, "vae.decoder") {
					s.Height, s.Width = s.Height/cfg.SpatialFactor(), s.Width/cfg.SpatialFactor()
					list = cfg.decoderPasts(s)
				}
				for _, p := range list {
					declared[p.Name] = p.Shape
				}
			}
			for i, name := range n.Outputs {
				if shape, ok := declared[name]; ok {
					if got := m.Entry().Results[i].Shape; !got.Equal(shape) {
						t.Errorf("%s: %s is %s, declared %s", n.Name, name, got, shape)
					}
					delete(declared, name)
				}
			}
			for name := range declared {
				t.Errorf("%s: %s is no result", n.Name, name)
			}
			if strings.HasSuffix(n.Name, "_later") {
				for _, p := range m.Entry().Params {
					if p.Kind == graph.Input && p.Name != "latents" && p.Name != "sample" && !slices.Contains(n.Outputs, p.Name) {
						t.Errorf("%s: the argument %s is no result", n.Name, p.Name)
					}
				}
			}
		}
	}
}
