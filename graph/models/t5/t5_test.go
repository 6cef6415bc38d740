package t5

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/dtypes/float16"
	ml "github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/google/go-cmp/cmp"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/models/golden"
	"precast/graph/trace"
)

func TestMain(m *testing.M) { golden.Main(m) }

// TestGolden compares whole encoders; 512 tokens reach every bucket of the position bias.
func TestGolden(t *testing.T) {
	for _, tc := range []struct{ set, ids, want string }{
		{"tiny/flux1-dev", "a/text_encoder_2/0/in/input_ids", "a/text_encoder_2/0/out/last_hidden_state"},
		{"tiny/flux1-dev", "b/text_encoder_2/0/in/input_ids", "b/encode_prompt/0/prompt_embeds"},
		{"tiny/flux1-dev", "c/text_encoder_2/0/in/input_ids", "c/encode_prompt/0/prompt_embeds"},
		{"tiny/flux1-dev", "true-cfg/text_encoder_2/0/in/input_ids", "true-cfg/encode_prompt/0/prompt_embeds"},
		{"tiny/flux1-dev", "batch2/text_encoder_2/0/in/input_ids", "batch2/encode_prompt/0/prompt_embeds"},
		{"tiny/flux1-schnell", "a/text_encoder_2/0/in/input_ids", "a/text_encoder_2/0/out/last_hidden_state"},
		{"tiny/flux1-schnell", "b/text_encoder_2/0/in/input_ids", "b/encode_prompt/0/prompt_embeds"},
		{"shapes-flux1", "64x64.0.t5_ids", "64x64.0.prompt_embeds"},
		{"shapes-flux1", "64x96.1.t5_ids", "64x96.1.prompt_embeds"},
	} {
		t.Run(tc.set+"/"+tc.ids, func(t *testing.T) {
			ref := golden.Open(t, tc.set)
			ids := ref.Tensor(tc.ids, dtypes.Int32)
			ref.Aliases(Aliases)
			n := New(golden.Parse(t, ParseConfig, ref.Config("text_encoder_2")), Options{Batch: ids.Shape().Dim(0), Length: ids.Shape().Dim(1)}, dtypes.Float32)
			out := ref.Run("text_encoder_2", n, map[string]*tensors.Tensor{"input_ids": ids})
			ref.Check(tc.want, out[0])
		})
	}
}

// TestGoldenOthers compares Stable Diffusion 3's T5 and Wan's UMT5, which is given the mask. 512 tokens, all but some of them padding,
// reach every bucket of each block's own bias. Past the mask, encode_prompt of Wan has zeros.
func TestGoldenOthers(t *testing.T) {
	for _, tc := range []struct{ set, component, call, want string }{
		{"tiny/sd3", "text_encoder_3", "a/text_encoder_3/0", "a/text_encoder_3/0/out/last_hidden_state"},
		{"tiny/sd3", "text_encoder_3", "a/text_encoder_3/1", "a/text_encoder_3/1/out/last_hidden_state"},
		{"tiny/tp-sd3", "text_encoder_3", "a/text_encoder_3/0", "a/text_encoder_3/0/out/last_hidden_state"},
		{"tiny/wan-t2v", "text_encoder", "a/text_encoder/0", "a/text_encoder/0/out/last_hidden_state"},
		{"tiny/wan-t2v", "text_encoder", "a/text_encoder/1", "a/text_encoder/1/out/last_hidden_state"},
		{"tiny/wan-t2v", "text_encoder", "b/text_encoder/0", "b/encode_prompt/0/prompt_embeds"},
		{"tiny/wan-t2v", "text_encoder", "b/text_encoder/1", "b/encode_prompt/0/negative_prompt_embeds"},
		{"tiny/wan22-t2v", "text_encoder", "a/text_encoder/0", "a/encode_prompt/0/prompt_embeds"},
		{"tiny/tp-wan", "text_encoder", "a/text_encoder/0", "a/text_encoder/0/out/last_hidden_state"},
	} {
		t.Run(tc.set+"/"+tc.call, func(t *testing.T) {
			ref := golden.Open(t, tc.set)
			inputs := map[string]*tensors.Tensor{"input_ids": ref.Tensor(tc.call+"/in/input_ids", dtypes.Int32)}
			ref.Aliases(Aliases)
			o := Options{Name: tc.component, Batch: 1, Length: inputs["input_ids"].Shape().Dim(1)}
			var mask []int32
			if name := tc.call + "/in/attention_mask"; ref.Has(name) {
				o.Mask = true
				inputs["attention_mask"] = ref.Tensor(name, dtypes.Int32)
				mask = tensors.MustCopyFlatData[int32](inputs["attention_mask"])
			}
			cfg := golden.Parse(t, ParseConfig, ref.Config(tc.component))
			if cfg.BiasEach != o.Mask {
				t.Fatalf("a bias in each block: %v, a mask: %v; wanted both for UMT5, none for T5", cfg.BiasEach, o.Mask)
			}
			out := ref.Run(tc.component, New(cfg, o, dtypes.Float32), inputs)[0]
			if strings.Contains(tc.want, "encode_prompt") {
				for _, side := range out {
					tensors.MustMutableFlatData(side.Tensor, func(x []float32) {
						for i, m := range mask {
							if m == 0 {
								clear(x[i*cfg.Model : (i+1)*cfg.Model])
							}
						}
					})
				}
			}
			ref.Check(tc.want, out)
		})
	}
}

// TestGoldenBlocksUMT5 runs blocks that have a bias of their own and are given a mask of booleans.
func TestGoldenBlocksUMT5(t *testing.T) {
	ref := golden.Open(t, "tiny/wan-t2v")
	cfg := golden.Parse(t, ParseConfig, ref.Config("text_encoder"))
	for _, i := range []int{0, cfg.Layers - 1} {
		name := fmt.Sprintf("block.%d", i)
		ref.Block("text_encoder", "text_encoder.encoder."+name, []string{"hidden_states", "attention_mask"}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
			defer c.Enter("encoder")()
			keep := ml.NotEqual(in[1], ml.ZerosLike(in[1])) // all rows are equal
			bias := maskBias(PositionBias(c, biasTable(i), cfg, in[0].Shape().Dim(1)), ml.Slice(keep, ml.AxisRange(), ml.AxisRange(), ml.AxisElem(0)))
			return []*ml.Node{Block(c, name, cfg, in[0], bias)}
		})
	}
}

// TestFloat16 has a feed-forward block whose result is beyond the range of float16: it stays finite, for "wo" is float32 and so is the stream.
func TestFloat16(t *testing.T) {
	cfg := Config{VocabSize: 2, Model: 2, KV: 1, FF: 1, Layers: 2, Heads: 1, Buckets: 32, MaxDistance: 128, Act: "relu", Eps: 1e-6}
	kept := map[string]graph.DType{}
	weights := func(key string, shape graph.Shape) (*tensors.Tensor, error) {
		kept[key] = shape.DType
		x := float32(1)
		if strings.HasSuffix(key, "wo.weight") {
			x = 1e5
		}
		data := make([]float32, shape.Size())
		for i := range data {
			data[i] = x
		}
		if shape.DType == dtypes.Float16 {
			half := make([]float16.Float16, len(data))
			for i, x := range data {
				half[i] = float16.FromFloat32(x)
			}
			return tensors.FromFlatDataAndDimensions(half, shape.Dimensions...), nil
		}
		return tensors.FromFlatDataAndDimensions(data, shape.Dimensions...), nil
	}
	n := New(cfg, Options{Batch: 1, Length: 1}, dtypes.Float16)
	out, err := trace.Evaluate(nil, n, weights, map[string]*tensors.Tensor{"input_ids": tensors.FromValue([][]int32{{1}})})
	if err != nil {
		t.Fatal(err)
	}
	// Both channels of the stream are equal, so the last norm makes each 1.
	if got := fmt.Sprint(out[0].Value()); got != "[[[1 1]]]" {
		t.Errorf("got %s, want [[[1 1]]]", got)
	}
	for key, dtype := range kept {
		want := dtypes.Float16
		if strings.HasSuffix(key, ".wo.weight") {
			want = dtypes.Float32
		}
		if dtype != want {
			t.Errorf("%s is asked for as %s, want %s", key, dtype, want)
		}
	}
	if len(kept) != 2+1+2*8 {
		t.Errorf("%d weights, want 19", len(kept))
	}
	m, err := trace.Trace(New(cfg, Options{Batch: 1, Length: 1}, dtypes.BFloat16))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range m.Entry().Params {
		if p.Kind == graph.Weight && p.Value.Shape.DType != dtypes.BFloat16 {
			t.Errorf("under bfloat16 %s is %s", p.Name, p.Value.Shape.DType)
		}
	}
}

// TestGoldenBlocks runs the first and last block; both return the position bias as their second result.
func TestGoldenBlocks(t *testing.T) {
	for _, set := range []string{"tiny/flux1-dev", "tiny/flux1-schnell"} {
		t.Run(set, func(t *testing.T) {
			ref := golden.Open(t, set)
			cfg := golden.Parse(t, ParseConfig, ref.Config("text_encoder_2"))
			ref.Block("text_encoder_2", "text_encoder_2.encoder.block.0", []string{"hidden_states"}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
				defer c.Enter("encoder")()
				bias := PositionBias(c, biasTable(0), cfg, in[0].Shape().Dim(1))
				return []*ml.Node{Block(c, "block.0", cfg, in[0], bias), bias}
			})
			last := fmt.Sprintf("block.%d", cfg.Layers-1)
			ref.Block("text_encoder_2", "text_encoder_2.encoder."+last, []string{"hidden_states", "position_bias"}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
				defer c.Enter("encoder")()
				return []*ml.Node{Block(c, last, cfg, in[0], in[1]), in[1]}
			})
		})
	}
}

// TestRelativeBuckets has the values of _relative_position_bucket (transformers 5.24.0) at the bounds of the buckets.
func TestRelativeBuckets(t *testing.T) {
	const n = 200
	got := relativeBuckets(n, 32, 128)
	for d, want := range map[int]int32{
		0: 0, 1: 17, -1: 1, 7: 23, -7: 7, 8: 24, -8: 8, 11: 24, 12: 25, 15: 25, 16: 26, 22: 26, 23: 27, 31: 27, 32: 28, 45: 28, 46: 29,
		63: 29, 64: 30, 90: 30, 91: 31, 127: 31, 128: 31, 199: 31, -16: 10, -32: 12, -64: 14, -128: 15, -199: 15,
	} {
		if g := got[d+n-1]; g != want {
			t.Errorf("difference %d: bucket %d, want %d", d, g, want)
		}
	}
	if got := relativeBuckets(1, 32, 128); !cmp.Equal(got, []int32{0}) {
		t.Errorf("one position: %v, want [0]", got)
	}
}

// TestUngated runs the feed-forward block of the original T5 against a calculation by hand.
func TestUngated(t *testing.T) {
	weights := map[string]*tensors.Tensor{
		"ff.layer_norm.weight":        tensors.FromValue([]float32{1, 2}),
		"ff.DenseReluDense.wi.weight": tensors.FromValue([][]float32{{1, 0}, {0, -1}, {1, 1}}),
		"ff.DenseReluDense.wo.weight": tensors.FromValue([][]float32{{1, 10, 100}, {2, 20, 200}}),
	}
	cfg := Config{Model: 2, FF: 3, Act: "relu", Eps: 1e-12}
	n := trace.Network{
		Name: "ff", DType: dtypes.Float32, Outputs: []string{"y"},
		Build: func(c *trace.Ctx, _ map[string]*ml.Node) []*ml.Node {
			return []*ml.Node{feedForward(c, "ff", cfg, ml.Const(c.G, [][][]float32{{{7, 1}}}))}
		},
	}
	out, err := trace.Evaluate(nil, n, func(key string, _ graph.Shape) (*tensors.Tensor, error) { return weights[key], nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	// The root mean square of (7, 1) is 5: normalised (1.4, 0.4), wi gives (1.4, -0.4, 1.8), relu (1.4, 0, 1.8).
	if got, want := fmt.Sprintf("%.4f", out[0].Value()), "[[[181.4000 362.8000]]]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestParseConfig(t *testing.T) {
	for _, tc := range []struct{ name, json, want string }{
		{"defaults", `{}`, ""},
		{"umt5", `{"model_type": "umt5"}`, ""},
		{"gated", `{"feed_forward_proj": "gated-silu"}`, ""},
		{"negative", `{"num_layers": -3, "d_kv": 0}`, "config.json: d_kv: found 0, wanted an integer of 1 or more\nconfig.json: num_layers: found -3, wanted an integer of 1 or more"},
		{"absurd", `{"num_layers": 5000}`, "config.json: num_layers: found 5000, wanted at most 1000"},
		{
			"activation", `{"feed_forward_proj": "gated-what"}`,
			`config.json: feed_forward_proj: found "gated-what", wanted one of gelu, gelu_new, gelu_pytorch_tanh, quick_gelu, relu, silu, swish, or one of these after "gated-"`,
		},
		{"odd buckets", `{"relative_attention_num_buckets": 31}`, "config.json: relative_attention_num_buckets: found 31, wanted an even number of 4 or more"},
		{
			"short distance", `{"relative_attention_max_distance": 8}`,
			"config.json: relative_attention_max_distance: found 8, wanted more than a quarter of relative_attention_num_buckets 32",
		},
		{"decoder", `{"is_decoder": true}`, "config.json: is_decoder: found true, wanted false: only the encoder is supported"},
	} {
		t.Run(tc.name, func(t *testing.T) { golden.CheckConfig(t, ParseConfig, tc.json, tc.want) })
	}
	c, _ := checkpoint.ParseConfig("config.json", []byte(`{"feed_forward_proj": "gated-gelu", "dense_act_fn": "relu", "is_gated_act": false}`))
	if cfg := golden.Parse(t, ParseConfig, c); cfg.Act != "gelu_new" || !cfg.Gated {
		t.Errorf("gated-gelu: activation %s, gated %v; want gelu_new, gated", cfg.Act, cfg.Gated)
	}
	for _, text := range []string{`{"model_type": "umt5"}`, `{"architectures": ["UMT5EncoderModel"]}`} {
		c, _ = checkpoint.ParseConfig("config.json", []byte(text))
		want := Config{
			VocabSize: 250112, Model: 512, KV: 64, FF: 1024, Layers: 8, Heads: 6, Buckets: 32, MaxDistance: 128, Eps: 1e-6,
			Act: "gelu_new", Gated: true, BiasEach: true,
		}
		if diff := cmp.Diff(want, golden.Parse(t, ParseConfig, c)); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
}
