package t5

import (
	"fmt"
	"testing"

	"github.com/gomlx/compute/dtypes"
	ml "github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/google/go-cmp/cmp"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/models/golden"
	"precast/graph/trace"
)

func TestMain(m *testing.M) { golden.Main(m) }

func parse(t *testing.T, c *checkpoint.Config) Config {
	t.Helper()
	cfg, err := ParseConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

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
		{"shapes-flux1", "64x96.3.t5_ids", "64x96.3.prompt_embeds"},
	} {
		t.Run(tc.set+"/"+tc.ids, func(t *testing.T) {
			ref := golden.Open(t, tc.set)
			ids := ref.Tensor(tc.ids, dtypes.Int32)
			keys := ref.Keys("text_encoder_2")
			n := New(parse(t, ref.Config("text_encoder_2")), Options{
				Batch: ids.Shape().Dim(0), Length: ids.Shape().Dim(1),
				EmbeddingKey: EmbeddingKey(func(key string) bool { _, ok := keys[key]; return ok }),
			}, dtypes.Float32)
			out := ref.Run("text_encoder_2", n, map[string]*tensors.Tensor{"input_ids": ids})
			ref.Check(tc.want, out[0])
		})
	}
}

// TestGoldenBlocks runs the first and last block; both return the position bias as their second result.
func TestGoldenBlocks(t *testing.T) {
	for _, set := range []string{"tiny/flux1-dev", "tiny/flux1-schnell"} {
		t.Run(set, func(t *testing.T) {
			ref := golden.Open(t, set)
			cfg := parse(t, ref.Config("text_encoder_2"))
			ref.Block("text_encoder_2", "text_encoder_2.encoder.block.0", []string{"hidden_states"}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
				defer c.Enter("encoder")()
				bias := PositionBias(c, biasTable, cfg, in[0].Shape().Dim(1))
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

func TestEmbeddingKey(t *testing.T) {
	for _, tc := range []struct {
		keys map[string]bool
		want string
	}{
		{map[string]bool{"shared.weight": true}, SharedKey},
		{map[string]bool{"encoder.embed_tokens.weight": true}, EmbedTokensKey},
		{map[string]bool{"shared.weight": true, "encoder.embed_tokens.weight": true}, SharedKey},
		{nil, SharedKey},
	} {
		if got := EmbeddingKey(func(k string) bool { return tc.keys[k] }); got != tc.want {
			t.Errorf("%v: got %s, want %s", tc.keys, got, tc.want)
		}
	}
}

func TestParseConfig(t *testing.T) {
	for _, tc := range []struct{ name, json, want string }{
		{"defaults", `{}`, ""},
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
		t.Run(tc.name, func(t *testing.T) {
			c, err := checkpoint.ParseConfig("config.json", []byte(tc.json))
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if _, err := ParseConfig(c); err != nil {
				got = err.Error()
			}
			if got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
	c, _ := checkpoint.ParseConfig("config.json", []byte(`{"feed_forward_proj": "gated-gelu", "dense_act_fn": "relu", "is_gated_act": false}`))
	if cfg := parse(t, c); cfg.Act != "gelu_new" || !cfg.Gated {
		t.Errorf("gated-gelu: activation %s, gated %v; want gelu_new, gated", cfg.Act, cfg.Gated)
	}
}
