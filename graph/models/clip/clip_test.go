package clip

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	ml "github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"precast/graph/models/golden"
	"precast/graph/nn"
	"precast/graph/trace"
)

func TestMain(m *testing.M) { golden.Main(m) }

// TestGoldenText compares the outputs of whole text encoders. shapes-flux1 pools at the first end-of-text token, which is
// its padding too; the others at the largest id; sdxl records every hidden state.
func TestGoldenText(t *testing.T) {
	both := []string{"last_hidden_state", "pooler_output"}
	states := []string{"hidden_states/0", "hidden_states/1", "hidden_states/2", "hidden_states/3"}
	for _, tc := range []struct {
		set, component, ids string
		clipSkip            int
		outputs             []string
		goldens             string // before the output's name; all of it where there is one output
	}{
		{"tiny/flux1-dev", "text_encoder", "a/text_encoder/0/in/input_ids", 0, both, "a/text_encoder/0/out/"},
		{"tiny/flux1-dev", "text_encoder", "b/text_encoder/0/in/input_ids", 0, both[1:], "b/encode_prompt/0/pooled_prompt_embeds"},
		{"tiny/flux1-dev", "text_encoder", "c/text_encoder/0/in/input_ids", 0, both[1:], "c/encode_prompt/0/pooled_prompt_embeds"},
		{"tiny/flux1-dev", "text_encoder", "batch2/text_encoder/0/in/input_ids", 0, both[1:], "batch2/encode_prompt/0/pooled_prompt_embeds"},
		{"tiny/flux1-dev", "text_encoder", "true-cfg/text_encoder/0/in/input_ids", 0, both[1:], "true-cfg/encode_prompt/0/pooled_prompt_embeds"},
		{"tiny/flux1-schnell", "text_encoder", "b/text_encoder/0/in/input_ids", 0, both[1:], "b/encode_prompt/0/pooled_prompt_embeds"},
		{"tiny/flux1-schnell", "text_encoder", "a/text_encoder/0/in/input_ids", 0, both, "a/text_encoder/0/out/"},
		{"tiny/sd15", "text_encoder", "a/text_encoder/0/in/input_ids", 0, both, "a/text_encoder/0/out/"},
		{"tiny/sd15", "text_encoder", "clip-skip/text_encoder/0/in/input_ids", 1, both[:1], "clip-skip/encode_prompt/0/prompt_embeds"},
		{"tiny/sd15", "text_encoder", "b/text_encoder/0/in/input_ids", 0, both[:1], "b/encode_prompt/0/prompt_embeds"},
		{"tiny/sd15", "text_encoder", "c/text_encoder/0/in/input_ids", 0, both[:1], "c/encode_prompt/0/prompt_embeds"},
		{"tiny/sd15", "text_encoder", "batch2/text_encoder/0/in/input_ids", 0, both[:1], "batch2/encode_prompt/0/prompt_embeds"},
		{"tiny/sd2", "text_encoder", "a/text_encoder/0/in/input_ids", 0, both, "a/text_encoder/0/out/"},
		{"tiny/sdxl", "text_encoder", "a/text_encoder/0/in/input_ids", 0, append(states, both...), "a/text_encoder/0/out/"},
		{"tiny/sdxl", "text_encoder_2", "a/text_encoder_2/0/in/input_ids", 0, append(states, "text_embeds"), "a/text_encoder_2/0/out/"},
		{"tiny/sdxl", "text_encoder_2", "a/text_encoder_2/1/in/input_ids", 0, []string{"hidden_states/2", "text_embeds"}, "a/text_encoder_2/1/out/"},
		{"tiny/sd3", "text_encoder", "a/text_encoder/0/in/input_ids", 0, append(states, both[0], "text_embeds"), "a/text_encoder/0/out/"},
		{"tiny/sd3", "text_encoder", "a/text_encoder/1/in/input_ids", 0, []string{"hidden_states/2", "text_embeds"}, "a/text_encoder/1/out/"},
		{"tiny/sd3", "text_encoder_2", "a/text_encoder_2/0/in/input_ids", 0, append(states, both[0], "text_embeds"), "a/text_encoder_2/0/out/"},
		{"tiny/sd3", "text_encoder_2", "a/text_encoder_2/1/in/input_ids", 0, []string{"hidden_states/2", "text_embeds"}, "a/text_encoder_2/1/out/"},
		{"shapes-flux1", "text_encoder", "64x64.0.clip_ids", 0, both[1:], "64x64.0.pooled"},
		{"shapes-flux1", "text_encoder", "64x96.1.clip_ids", 0, both[1:], "64x96.1.pooled"},
	} {
		t.Run(tc.set+"/"+tc.ids, func(t *testing.T) {
			ref := golden.Open(t, tc.set)
			ids := ref.Tensor(tc.ids, dtypes.Int32)
			n := NewText(golden.Parse(t, ParseConfig, ref.Config(tc.component)), Options{
				Name: tc.component, Batch: ids.Shape().Dim(0), Length: ids.Shape().Dim(1), Outputs: tc.outputs, ClipSkip: tc.clipSkip,
			}, dtypes.Float32)
			for i, got := range ref.Run(tc.component, n, map[string]*tensors.Tensor{"input_ids": ids}) {
				name := tc.goldens
				if strings.HasSuffix(name, "/") {
					name += tc.outputs[i]
				}
				ref.Check(name, got)
			}
		})
	}
}

// TestGoldenBlocks runs embeddings, first and last layer. The class with a projection has the level "text_model" in its module path.
func TestGoldenBlocks(t *testing.T) {
	for _, tc := range []struct{ set, component, module string }{
		{"tiny/flux1-dev", "text_encoder", "text_encoder."},
		{"tiny/flux1-schnell", "text_encoder", "text_encoder."},
		{"tiny/sd15", "text_encoder", "text_encoder."},
		{"tiny/sd2", "text_encoder", "text_encoder."},
		{"tiny/sdxl", "text_encoder", "text_encoder."},
		{"tiny/sdxl", "text_encoder_2", "text_encoder_2.text_model."},
		{"tiny/sd3", "text_encoder", "text_encoder.text_model."},
		{"tiny/sd3", "text_encoder_2", "text_encoder_2.text_model."},
	} {
		t.Run(tc.set+"/"+tc.component, func(t *testing.T) {
			ref := golden.Open(t, tc.set)
			cfg := golden.Parse(t, ParseConfig, ref.Config(tc.component))
			ref.Block(tc.component, tc.module+"embeddings", []string{"input_ids"}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
				defer c.Enter("text_model")()
				return []*ml.Node{Embeddings(c, cfg, in[0])}
			})
			for _, i := range []int{0, cfg.Layers - 1} {
				layer := fmt.Sprintf("encoder.layers.%d", i)
				ref.Block(tc.component, tc.module+layer, []string{"hidden_states"}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
					defer c.Enter("text_model")()
					return []*ml.Node{EncoderLayer(c, layer, cfg, in[0], nn.CausalMask(c.G, in[0].Shape().Dim(1)))}
				})
			}
		})
	}
}

// TestPooler has sequences where the two rules differ, and one without an end-of-text token.
func TestPooler(t *testing.T) {
	ids := [][]int32{{9, 5, 7, 7}, {1, 7, 9, 2}, {3, 3, 3, 3}}
	x := [][][]float32{{{0}, {1}, {2}, {3}}, {{10}, {11}, {12}, {13}}, {{20}, {21}, {22}, {23}}}
	for _, tc := range []struct {
		name string
		eos  int
		want string
	}{
		{"largest id", 2, "[[0] [12] [20]]"},
		{"first end of text", 7, "[[2] [11] [20]]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := trace.Network{
				Name: "pooler", DType: dtypes.Float32, Outputs: []string{"y"},
				Build: func(c *trace.Ctx, _ map[string]*ml.Node) []*ml.Node {
					return []*ml.Node{Pooler(Config{EOSTokenID: tc.eos}, ml.Const(c.G, x), ml.Const(c.G, ids))}
				},
			}
			out, err := trace.Evaluate(nil, n, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(out[0].Value()); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestParseConfig(t *testing.T) {
	for _, tc := range []struct{ name, json, want string }{
		{"defaults", `{}`, ""},
		{"null", `{"hidden_size": null, "eos_token_id": null}`, ""},
		{"one position", `{"max_position_embeddings": 1}`, "config.json: max_position_embeddings: found 1, wanted 2 or more: a text has a token before it and one behind it"},
		{"negative", `{"num_hidden_layers": -3}`, "config.json: num_hidden_layers: found -3, wanted an integer of 1 or more"},
		{"absurd", `{"num_hidden_layers": 1001}`, "config.json: num_hidden_layers: found 1001, wanted at most 1000"},
		{"text", `{"vocab_size": "big"}`, `config.json: vocab_size: found the string "big", wanted an integer of 1 or more`},
		{"heads", `{"num_attention_heads": 7}`, "config.json: hidden_size: found 512, wanted a multiple of num_attention_heads 7"},
		{
			"activation", `{"hidden_act": "tanh"}`,
			`config.json: hidden_act: found "tanh", wanted one of gelu, gelu_new, gelu_pytorch_tanh, quick_gelu, relu, silu, swish`,
		},
		{"eps", `{"layer_norm_eps": 0}`, "config.json: layer_norm_eps: found 0, wanted a number above 0"},
	} {
		t.Run(tc.name, func(t *testing.T) { golden.CheckConfig(t, ParseConfig, tc.json, tc.want) })
	}
}

func TestOptionsCheck(t *testing.T) {
	cfg := Config{Layers: 3, MaxPositions: 77}
	for _, tc := range []struct {
		name string
		o    Options
		want string
	}{
		{"good", Options{Batch: 1, Length: 77, ClipSkip: 3, Outputs: []string{"hidden_states/3"}}, ""},
		{"long", Options{Batch: 1, Length: 78}, "text encoder: found 78 tokens, wanted at most max_position_embeddings 77"},
		{"empty", Options{Batch: 0, Length: 8}, "text encoder: found batch 0 and 8 tokens, wanted 1 or more of each"},
		{"skip", Options{Batch: 1, Length: 8, ClipSkip: 4}, "clip_skip: found 4, wanted 0 to the number of layers 3"},
		{"negative skip", Options{Batch: 1, Length: 8, ClipSkip: -1}, "clip_skip: found -1, wanted 0 to the number of layers 3"},
		{
			"output",
			Options{Batch: 1, Length: 8, Outputs: []string{"hidden_states/4"}},
			`text encoder: found output "hidden_states/4", wanted last_hidden_state, pooler_output, text_embeds or hidden_states/0 to hidden_states/3`,
		},
		{
			"output with a tail",
			Options{Batch: 1, Length: 8, Outputs: []string{"hidden_states/1x"}},
			`text encoder: found output "hidden_states/1x", wanted last_hidden_state, pooler_output, text_embeds or hidden_states/0 to hidden_states/3`,
		},
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
