package zimage

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/gomlx/compute/dtypes"
	ml "github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/models/golden"
	"precast/graph/nn"
	"precast/graph/trace"
)

func TestMain(m *testing.M) { golden.Main(m) }

// inputs stacks the golden inputs of run a's first call: the positive prompt and the negative one, on the same latents, each padded to length.
// What is past a prompt's end is filled with large numbers.
func inputs(t *testing.T, ref *golden.Case, cfg Config, length int) map[string]*tensors.Tensor {
	t.Helper()
	var x, captions, cos, sin []float32
	var mask, keys []int32
	var dims []int
	for k := range 2 {
		latents := ref.F32(fmt.Sprintf("a/transformer/0/in/x/%d", k))
		dims = latents.Shape().Dimensions
		x = append(x, tensors.MustCopyFlatData[float32](latents)...)
		states := ref.F32(fmt.Sprintf("a/transformer/0/in/cap_feats/%d", k))
		captions = append(captions, tensors.MustCopyFlatData[float32](states)...)
		text := states.Shape().Dim(0)
		for range (length - text) * cfg.CaptionDim {
			captions = append(captions, 1e3)
		}
		m, s := Masks(text, length)
		mask, keys = append(mask, m...), append(keys, s...)
		co, si, err := RoPE(cfg, dims[2]/2, dims[3]/2, text, length)
		if err != nil {
			t.Fatal(err)
		}
		cos, sin = append(cos, co...), append(sin, si...)
	}
	f32 := func(v []float32, dims ...int) *tensors.Tensor { return tensors.FromFlatDataAndDimensions(v, dims...) }
	return map[string]*tensors.Tensor{
		"hidden_states": f32(x, 2, dims[0], dims[2], dims[3]), "timestep": ref.F32("a/transformer/0/in/t"),
		"encoder_hidden_states": f32(captions, 2, length, cfg.CaptionDim),
		"text_mask":             tensors.FromFlatDataAndDimensions(mask, 2, length), "text_keys": tensors.FromFlatDataAndDimensions(keys, 2, len(keys)/2),
		"rotary_cos": f32(cos, 2, len(cos)/2/cfg.HeadDim(), cfg.HeadDim()), "rotary_sin": f32(sin, 2, len(sin)/2/cfg.HeadDim(), cfg.HeadDim()),
	}
}

// TestGolden gives the whole network the prompts of 32 and 28 tokens at several static lengths: one that has no padding past a multiple of 32, ones with,
// one that is no multiple itself.
func TestGolden(t *testing.T) {
	for _, length := range []int{32, 90, 96, 512} {
		t.Run(fmt.Sprint(length), func(t *testing.T) {
			ref := golden.Open(t, "tiny/z-image")
			cfg := golden.Parse(t, ParseConfig, ref.Config("transformer"))
			in := inputs(t, ref, cfg, length)
			d := in["hidden_states"].Shape().Dimensions
			out := ref.Run("transformer", New(cfg, Options{Batch: 2, TextLength: length, Height: d[2], Width: d[3]}, dtypes.Float32), in)[0]
			for k := range 2 {
				want := fmt.Sprintf("a/transformer/0/out/0/%d", k)
				one := slices.Clone(out)
				for i, side := range out {
					values := tensors.MustCopyFlatData[float32](side.Tensor)
					one[i].Tensor = tensors.FromFlatDataAndDimensions(values[k*len(values)/2:(k+1)*len(values)/2], ref.F32(want).Shape().Dimensions...)
				}
				ref.Check(want, one)
			}
		})
	}
}

// TestGoldenRoPE compares the tables with what the blocks were given: both prompts have 32 tokens with their padding.
func TestGoldenRoPE(t *testing.T) {
	ref := golden.Open(t, "tiny/z-image")
	cfg := golden.Parse(t, ParseConfig, ref.Config("transformer"))
	want := tensors.MustCopyFlatData[float32](ref.F32("blocks/transformer.layers.2/in/freqs_cis"))
	for k, text := range []int{32, 28} {
		cos, sin, err := RoPE(cfg, 4, 6, text, 32)
		if err != nil {
			t.Fatal(err)
		}
		var got []float32
		for i := 0; i < len(cos); i += 2 {
			got = append(got, cos[i], sin[i])
		}
		ref.CheckValues(fmt.Sprintf("%d tokens", text), got, want[k*len(want)/2:(k+1)*len(want)/2])
	}
}

// TestGoldenBlocks runs the recorded modules on their recorded inputs.
func TestGoldenBlocks(t *testing.T) {
	ref := golden.Open(t, "tiny/z-image")
	cfg := golden.Parse(t, ParseConfig, ref.Config("transformer"))
	// The tables come as complex numbers, one for each pair of channels.
	rotary := func(freqs *ml.Node) *nn.Rotary {
		d := freqs.Shape().Dimensions
		parts := ml.Split(freqs, 3, 2)
		twice := func(x *ml.Node) *ml.Node {
			return ml.Reshape(ml.Concatenate([]*ml.Node{x, x}, 3), d[0], d[1], 2*d[2])
		}
		return nn.NewRotary(twice(parts[0]), twice(parts[1]))
	}
	for _, tc := range []struct {
		module string
		inputs []string
		build  func(c *trace.Ctx, in []*ml.Node) *ml.Node
	}{
		{"t_embedder", []string{"t"}, func(c *trace.Ctx, in []*ml.Node) *ml.Node {
			return timeEmbedder(c, cfg, ml.MulScalar(in[0], 1/cfg.TimeScale))
		}},
		{"noise_refiner.0", []string{"x", "adaln_input", "freqs_cis"}, func(c *trace.Ctx, in []*ml.Node) *ml.Node {
			return block(c, "noise_refiner.0", cfg, in[0], in[1], nil, rotary(in[2]))
		}},
		{"context_refiner.0", []string{"x", "freqs_cis"}, func(c *trace.Ctx, in []*ml.Node) *ml.Node {
			return block(c, "context_refiner.0", cfg, in[0], nil, nil, rotary(in[1]))
		}},
		{"layers.2", []string{"x", "adaln_input", "freqs_cis"}, func(c *trace.Ctx, in []*ml.Node) *ml.Node {
			return block(c, "layers.2", cfg, in[0], in[1], nil, rotary(in[2]))
		}},
		{"noise_refiner.0.attention", []string{"hidden_states", "freqs_cis"}, func(c *trace.Ctx, in []*ml.Node) *ml.Node {
			defer c.Enter("noise_refiner.0")()
			return attention(c, cfg, in[0], nil, rotary(in[1]))
		}},
		{"noise_refiner.0.feed_forward", []string{"x"}, func(c *trace.Ctx, in []*ml.Node) *ml.Node {
			defer c.Enter("noise_refiner.0")()
			return feedForward(c, cfg, in[0])
		}},
		{"all_final_layer.2-1", []string{"x", "c"}, func(c *trace.Ctx, in []*ml.Node) *ml.Node {
			return finalLayer(c, cfg, in[0], in[1])
		}},
	} {
		t.Run(tc.module, func(t *testing.T) {
			ref.In(t).Block("transformer", "transformer."+tc.module, tc.inputs, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
				return []*ml.Node{tc.build(c, in)}
			})
		})
	}
	ref.Whole()
	if got := len(ref.Blocks("transformer")); got != 7 {
		t.Errorf("the reference has %d modules, this test 7", got)
	}
}

// TestRoPE has positions by hand: two rows of three tokens with 26 tokens of padding, and a prompt of 40 tokens, padded to 64, in 96.
func TestRoPE(t *testing.T) {
	cfg := Config{Dim: 6, Heads: 1, RoPETheta: 256, RoPEAxes: []int{2, 2, 2}, RoPELengths: []int{100, 8, 8}}
	cos, sin, err := RoPE(cfg, 2, 3, 40, 96)
	if err != nil {
		t.Fatal(err)
	}
	if len(cos) != (32+96)*6 || len(sin) != len(cos) {
		t.Fatalf("%d and %d numbers, want %d", len(cos), len(sin), 128*6)
	}
	// With one pair of channels an axis, the angle is the position.
	for token, want := range map[int][3]float64{0: {65, 0, 0}, 5: {65, 1, 2}, 6: {0, 0, 0}, 31: {0, 0, 0}, 32: {1, 0, 0}, 32 + 63: {64, 0, 0}, 32 + 95: {96, 0, 0}} {
		for axis, angle := range want {
			at := token*6 + 2*axis
			if c, s := float32(math.Cos(angle)), float32(math.Sin(angle)); cos[at] != c || cos[at+1] != c || sin[at] != s || sin[at+1] != s {
				t.Errorf("token %d, axis %d: (%g, %g), want (%g, %g)", token, axis, cos[at], sin[at], c, s)
			}
		}
	}
	for _, tc := range []struct {
		name       string
		h, w, text int
		want       string
	}{
		{name: "just fits", h: 8, w: 8, text: 96},
		{name: "prompt", h: 2, w: 2, text: 97, want: "the prompt has 97 tokens; wanted at most 96, for which the transformer has positions (axes_lens [100 8 8])"},
		{name: "high", h: 9, w: 2, text: 1, want: "a picture of 9 x 2 tokens is too large; wanted at most 8 x 8, for which the transformer has positions (axes_lens [100 8 8])"},
		{name: "wide", h: 2, w: 9, text: 1, want: "a picture of 2 x 9 tokens is too large; wanted at most 8 x 8, for which the transformer has positions (axes_lens [100 8 8])"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := ""
			if _, _, err := RoPE(cfg, tc.h, tc.w, tc.text, 512); err != nil {
				got = err.Error()
			}
			if got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestMasks(t *testing.T) {
	mask, keys := Masks(33, 70)
	if len(mask) != 70 || len(keys) != 96 || mask[32] != 1 || mask[33] != 0 || keys[63] != 1 || keys[64] != 0 {
		t.Errorf("mask %v, keys %v", mask, keys)
	}
}

func TestOptionsCheck(t *testing.T) {
	cfg := Config{RoPELengths: []int{64, 8, 8}}
	for _, tc := range []struct {
		name string
		o    Options
		want string
	}{
		{"good", Options{Batch: 1, TextLength: 512, Height: 16, Width: 16}, ""},
		{"empty", Options{Batch: 0, TextLength: 0, Height: 16, Width: 16}, "transformer: found batch 0 and 0 text tokens, wanted 1 or more of each"},
		{"odd", Options{Batch: 1, TextLength: 1, Height: 15, Width: 16}, "transformer: found latents of 15 x 16, wanted multiples of the patch size 2"},
		{"large", Options{Batch: 1, TextLength: 1, Height: 16, Width: 18}, "a picture of 8 x 9 tokens is too large; wanted at most 8 x 8, for which the transformer has positions (axes_lens [64 8 8])"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := ""
			if err := tc.o.Check(cfg); err != nil {
				got = err.Error()
			}
			if got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestParseConfig(t *testing.T) {
	for _, tc := range []struct{ name, json, want string }{
		{"defaults", `{}`, ""},
		{"null", `{"siglip_feat_dim": null, "n_layers": null}`, ""},
		{"further patches", `{"all_patch_size": [4, 2], "all_f_patch_size": [1, 1]}`, ""},
		{"layers", `{"n_layers": -1}`, "config.json: n_layers: found -1, wanted 0 to 1000"},
		{"refiners", `{"n_refiner_layers": 1001}`, "config.json: n_refiner_layers: found 1001, wanted 0 to 1000"},
		{"heads", `{"n_heads": 7}`, "config.json: dim: found 3840, wanted a multiple of n_heads 7\nconfig.json: axes_dims: found [32 48 48], wanted 3 numbers with the sum dim/n_heads 548"},
		{"axes", `{"axes_dims": [32, 48, 47]}`, "config.json: axes_dims: found [32 48 47], wanted even numbers\nconfig.json: axes_dims: found [32 48 47], wanted 3 numbers with the sum dim/n_heads 128"},
		{"lengths", `{"axes_lens": [32, 48]}`, "config.json: axes_lens: found [32 48], wanted 3 numbers, the first at least 34"},
		{"short", `{"axes_lens": [33, 48, 48]}`, "config.json: axes_lens: found [33 48 48], wanted 3 numbers, the first at least 34"},
		{"patches", `{"all_patch_size": [4]}`, "config.json: all_patch_size: found [4] with all_f_patch_size [1], wanted 2 with 1 at one place"},
		{"frames", `{"all_f_patch_size": [1, 2]}`, "config.json: all_f_patch_size: found [1 2], wanted as many numbers as all_patch_size [2]"},
		{"text", `{"qk_norm": "yes"}`, `config.json: qk_norm: found the string "yes", wanted true or false`},
	} {
		t.Run(tc.name, func(t *testing.T) { golden.CheckConfig(t, ParseConfig, tc.json, tc.want) })
	}
}

// TestTracePublished traces the whole of Z-Image-Turbo at 1024x1024 in bfloat16: its transformer's config has diffusers' defaults but for axes_lens.
func TestTracePublished(t *testing.T) {
	c, err := checkpoint.ParseConfig("config.json", []byte(`{"_class_name": "ZImageTransformer2DModel", "axes_lens": [1536, 512, 512]}`))
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	m, err := trace.Trace(New(golden.Parse(t, ParseConfig, c), Options{Batch: 1, TextLength: 512, Height: 128, Width: 128}, dtypes.BFloat16))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d nodes in %v", len(m.Entry().Nodes), time.Since(start))
	parameters, keys := 0, 0
	for _, p := range m.Entry().Params {
		if p.Kind == graph.Weight {
			keys++
			parameters += p.Value.Shape.Size()
		}
	}
	// As diffusers counts them.
	if keys != 521 || parameters != 6154908736 {
		t.Errorf("%d weights with %d parameters, want 521 with 6154908736", keys, parameters)
	}
}
