package causallm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// TestGolden compares hidden states of whole text models: FLUX.2-dev pads left, the others right or not at all.
func TestGolden(t *testing.T) {
	state := func(k ...int) []string {
		var names []string
		for _, k := range k {
			names = append(names, fmt.Sprintf("hidden_states/%d", k))
		}
		return names
	}
	for _, tc := range []struct {
		set, call string
		outputs   []string
		goldens   []string // below the call's out where empty
	}{
		{"tiny/flux2-dev", "a/text_encoder/0", state(0, 1, 30, 31), nil},
		{"tiny/flux2-dev", "a/text_encoder/0", []string{"hidden_states/10,20,30"}, []string{"a/encode_prompt/0/prompt_embeds"}},
		{"tiny/flux2-dev", "b/text_encoder/0", []string{"hidden_states/10,20,30"}, []string{"b/encode_prompt/0/prompt_embeds"}},
		{"tiny/flux2-klein", "a/text_encoder/0", state(0, 1, 27, 28), nil},
		{"tiny/flux2-klein", "a/text_encoder/1", []string{"hidden_states/9,18,27"}, []string{"a/encode_prompt/1/prompt_embeds"}},
		{"tiny/flux2-klein", "b/text_encoder/0", []string{"hidden_states/9,18,27"}, []string{"b/encode_prompt/0/prompt_embeds"}},
		{"tiny/flux2-klein", "distilled/text_encoder/0", []string{"hidden_states/9,18,27"}, []string{"distilled/encode_prompt/0/prompt_embeds"}},
		{"tiny/tp-flux2", "a/text_encoder/0", state(0, 1, 27, 28), nil},
		{"tiny/qwen-image", "a/text_encoder/0", state(0, 1, 2, 3), nil},
		{"tiny/qwen-image", "a/text_encoder/1", []string{"last_hidden_state"}, []string{"a/text_encoder/1/out/hidden_states/3"}},
		{"tiny/tp-qwen", "a/text_encoder/0", state(0, 1, 2), nil},
		{"tiny/z-image", "a/text_encoder/0", state(0, 1, 3, 4), nil},
		{"tiny/z-image", "a/text_encoder/1", state(3), nil},
	} {
		t.Run(tc.set+"/"+tc.call+"/"+tc.outputs[0], func(t *testing.T) {
			ref := golden.Open(t, tc.set)
			ref.Aliases(Aliases)
			inputs := map[string]*tensors.Tensor{}
			for _, name := range []string{"input_ids", "attention_mask"} {
				inputs[name] = ref.Tensor(tc.call+"/in/"+name, dtypes.Int32)
			}
			dims := inputs["input_ids"].Shape().Dimensions
			n := New(golden.Parse(t, ParseConfig, ref.Config("text_encoder")), Options{Batch: dims[0], Length: dims[1], Outputs: tc.outputs}, dtypes.Float32)
			for i, got := range ref.Run("text_encoder", n, inputs) {
				want := tc.call + "/out/" + tc.outputs[i]
				if tc.goldens != nil {
					want = tc.goldens[i]
				}
				ref.Check(want, got)
			}
		})
	}
}

// TestGoldenPadded gives Qwen-Image's prompts, which the reference pads to the longest of its batch, at a static length: what is padding on the right
// changes nothing for the tokens. The reference has zeros for it in prompt_embeds, and drops the first tokens.
func TestGoldenPadded(t *testing.T) {
	const length, drop = 160, 34 // the template's tokens are dropped
	for _, call := range []string{"a/0", "a/1", "b/0", "batch2/0", "batch2/1"} {
		t.Run(call, func(t *testing.T) {
			ref := golden.Open(t, "tiny/qwen-image")
			ref.Aliases(Aliases)
			run, k, _ := strings.Cut(call, "/")
			ids := ref.Tensor(run+"/text_encoder/"+k+"/in/input_ids", dtypes.Int32)
			attention := tensors.MustCopyFlatData[int32](ref.Tensor(run+"/text_encoder/"+k+"/in/attention_mask", dtypes.Int32))
			batch, tokens := ids.Shape().Dim(0), ids.Shape().Dim(1)
			padded, mask := make([]int32, batch*length), make([]int32, batch*length)
			for i, id := range tensors.MustCopyFlatData[int32](ids) {
				at := i/tokens*length + i%tokens
				padded[at], mask[at] = id, attention[i]
			}
			n := New(golden.Parse(t, ParseConfig, ref.Config("text_encoder")), Options{Batch: batch, Length: length}, dtypes.Float32)
			out := ref.RunModule("text_encoder", n, map[string]*tensors.Tensor{
				"input_ids": tensors.FromFlatDataAndDimensions(padded, batch, length), "attention_mask": tensors.FromFlatDataAndDimensions(mask, batch, length),
			})[0]
			want := ref.F32(run + "/encode_prompt/" + k + "/prompt_embeds")
			for i, side := range out {
				var kept []float32
				width := side.Tensor.Shape().Dim(2)
				values := tensors.MustCopyFlatData[float32](side.Tensor)
				for token, m := range mask {
					if m == 0 {
						clear(values[token*width : (token+1)*width])
					}
				}
				for b := range batch {
					kept = append(kept, values[(b*length+drop)*width:(b*length+tokens)*width]...)
				}
				out[i].Tensor = tensors.FromFlatDataAndDimensions(kept, want.Shape().Dimensions...)
			}
			ref.Check(run+"/encode_prompt/"+k+"/prompt_embeds", out)
		})
	}
}

// TestGoldenBlocks runs the first and the last layer of each kind under the recorded masks; Qwen2.5-VL's is causal alone. The reference's rotary tables
// of the three axes of positions are one table here.
func TestGoldenBlocks(t *testing.T) {
	for _, tc := range []struct{ set, module string }{
		{"tiny/flux2-dev", "text_encoder.model.language_model."},
		{"tiny/flux2-klein", "text_encoder.model."},
		{"tiny/qwen-image", "text_encoder.model.language_model."},
		{"tiny/z-image", "text_encoder.model."},
	} {
		t.Run(tc.set, func(t *testing.T) {
			ref := golden.Open(t, tc.set)
			ref.Aliases(Aliases)
			cfg := golden.Parse(t, ParseConfig, ref.Config("text_encoder"))
			for _, i := range []int{0, cfg.Layers - 1} {
				layer := fmt.Sprintf("layers.%d", i)
				inputs := []string{"hidden_states"}
				if ref.Has("blocks/" + tc.module + layer + "/in/attention_mask") {
					inputs = append(inputs, "attention_mask")
				}
				ref.Block("text_encoder", tc.module+layer, inputs, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
					defer c.Enter("model")()
					x := in[0]
					n := x.Shape().Dim(1)
					keep := ml.LowerTriangular(c.G, n)
					if len(in) > 1 {
						keep = ml.NotEqual(in[1], ml.ZerosLike(in[1]))
					}
					return []*ml.Node{Layer(c, layer, cfg, x, ml.Reshape(keep, 1, 1, n, n), Rotary(c.G, cfg, n))}
				})
			}
		})
	}
}

// TestStopsEarly traces a model for the state after two of its layers: only their weights are asked for, and not the final norm's.
func TestStopsEarly(t *testing.T) {
	cfg := Config{Class: "Qwen3ForCausalLM", VocabSize: 8, HiddenSize: 8, IntermediateSize: 8, Layers: 5, Heads: 2, KVHeads: 1, HeadDim: 4, HiddenAct: "silu", Eps: 1e-6, RoPETheta: 1e4}
	keys := func(outputs ...string) []string {
		m, err := trace.Trace(New(cfg, Options{Batch: 1, Length: 4, Outputs: outputs}, dtypes.Float32))
		if err != nil {
			t.Fatal(err)
		}
		var keys []string
		for _, p := range m.Entry().Params {
			if p.Kind == graph.Weight {
				keys = append(keys, p.Name)
			}
		}
		return keys
	}
	has := func(list []string, part string) bool {
		return slices.ContainsFunc(list, func(key string) bool { return strings.Contains(key, part) })
	}
	early := keys("hidden_states/1,2")
	if !has(early, "model.layers.1.mlp") || has(early, "layers.2.") || has(early, "model.norm") {
		t.Errorf("two layers ask for %v", early)
	}
	if all := keys(); !has(all, "model.layers.4.mlp") || !has(all, "model.norm.weight") {
		t.Errorf("all layers ask for %v", all)
	}
	if none := keys("hidden_states/0"); !cmp.Equal(none, []string{"model.embed_tokens.weight"}) {
		t.Errorf("the embeddings ask for %v", none)
	}
}

// TestAliases writes a model's weights under each spelling of its keys and matches what the network asks for.
func TestAliases(t *testing.T) {
	for _, prefix := range []string{"model.", "language_model.model.", "model.language_model.", "language_model.", ""} {
		t.Run(prefix+"layers", func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range map[string]string{
				"model_index.json":         `{"_class_name": "ZImagePipeline", "text_encoder": ["transformers", "Qwen3Model"]}`,
				"text_encoder/config.json": `{"model_type": "qwen3"}`,
			} {
				path := filepath.Join(dir, filepath.FromSlash(name))
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte(text), 0o666)); err != nil {
					t.Fatal(err)
				}
			}
			var items []checkpoint.Item
			var want []checkpoint.Want
			for i, key := range []string{"embed_tokens.weight", "layers.0.self_attn.q_norm.weight", "layers.11.mlp.up_proj.weight", "norm.weight"} {
				items = append(items, checkpoint.Item{Key: prefix + key, DType: dtypes.Float32, Shape: []int{i + 1}, Data: make([]byte, 4*(i+1))})
				want = append(want, checkpoint.Want{Key: "model." + key, Shape: []int{i + 1}, DType: dtypes.Float32})
			}
			if err := checkpoint.WriteFile(filepath.Join(dir, "text_encoder", "model.safetensors"), items, nil); err != nil {
				t.Fatal(err)
			}
			ck, err := checkpoint.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer ck.Close()
			component, err := ck.Component("text_encoder")
			if err != nil {
				t.Fatal(err)
			}
			got, err := component.Match(want, Aliases)
			if err != nil {
				t.Fatal(err)
			}
			for i, w := range want {
				if got[w.Key].Key != items[i].Key {
					t.Errorf("%s is bound to %s, want %s", w.Key, got[w.Key].Key, items[i].Key)
				}
			}
		})
	}
}

func TestOptionsCheck(t *testing.T) {
	cfg := Config{Layers: 30, Window: 100}
	bad := func(name string) string {
		return fmt.Sprintf("text encoder: found output %q, wanted last_hidden_state or hidden_states/K with K from 0 to num_hidden_layers 30, or several with commas between", name)
	}
	for _, tc := range []struct {
		name string
		o    Options
		want string
	}{
		{"good", Options{Batch: 1, Length: 100, Outputs: []string{"hidden_states/10,20,30", "last_hidden_state"}}, ""},
		{"empty", Options{Batch: 0, Length: 8}, "text encoder: found batch 0 and 8 tokens, wanted 1 or more of each"},
		{"window", Options{Batch: 1, Length: 101}, "text encoder: found 101 tokens, wanted at most sliding_window 100: attention within a window is not supported"},
		{"layer", Options{Batch: 1, Length: 8, Outputs: []string{"hidden_states/31"}}, bad("hidden_states/31")},
		{"one of several", Options{Batch: 1, Length: 8, Outputs: []string{"hidden_states/1,-1"}}, bad("hidden_states/1,-1")},
		{"no layer", Options{Batch: 1, Length: 8, Outputs: []string{"hidden_states/"}}, bad("hidden_states/")},
		{"spelling", Options{Batch: 1, Length: 8, Outputs: []string{"hidden_states/01"}}, bad("hidden_states/01")},
		{"name", Options{Batch: 1, Length: 8, Outputs: []string{"pooler_output"}}, bad("pooler_output")},
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

// TestParseConfig has the published configs of the text encoders of Qwen-Image, FLUX.2 and Z-Image, cut down to what matters, and both forms that
// transformers writes.
func TestParseConfig(t *testing.T) {
	qwen3 := Config{
		Class: "Qwen3ForCausalLM", VocabSize: 151936, HiddenSize: 2560, IntermediateSize: 9728, Layers: 36, Heads: 32, KVHeads: 8, HeadDim: 128, HiddenAct: "silu",
		Eps: 1e-6, RoPETheta: 1e6, QKNorm: true,
	}
	mistral3 := Config{
		Class: "Mistral3ForConditionalGeneration", VocabSize: 131072, HiddenSize: 5120, IntermediateSize: 32768, Layers: 40, Heads: 32, KVHeads: 8, HeadDim: 128,
		HiddenAct: "silu", Eps: 1e-5, RoPETheta: 1e9,
	}
	qwen25 := Config{
		Class: "Qwen2_5_VLForConditionalGeneration", VocabSize: 152064, HiddenSize: 3584, IntermediateSize: 18944, Layers: 28, Heads: 28, KVHeads: 4, HeadDim: 128,
		HiddenAct: "silu", Eps: 1e-6, RoPETheta: 1e6, QKVBias: true,
	}
	const qwen3Sizes = `"model_type": "qwen3", "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-6`
	const mistralSizes = `"model_type": "mistral", "vocab_size": 131072, "head_dim": 128, "hidden_size": 5120, "intermediate_size": 32768, "num_hidden_layers": 40, "rms_norm_eps": 1e-5, "sliding_window": null`
	const qwen25Sizes = `"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "use_sliding_window": false, "sliding_window": 32768`
	window := mistral3
	window.Window = 4096
	for name, tc := range map[string]struct {
		json string
		want Config
	}{
		"qwen3":             {`{` + qwen3Sizes + `, "rope_theta": 1000000, "rope_scaling": null}`, qwen3},
		"qwen3, new":        {`{` + qwen3Sizes + `, "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}}`, qwen3},
		"qwen3, class":      {strings.Replace(`{`+qwen3Sizes+`, "rope_theta": 1000000}`, `"model_type": "qwen3"`, `"architectures": ["Qwen3ForCausalLM"]`, 1), qwen3},
		"mistral3":          {`{"model_type": "mistral3", "text_config": {` + mistralSizes + `, "rope_theta": 1000000000.0}}`, mistral3},
		"mistral3, new":     {`{"model_type": "mistral3", "text_config": {` + mistralSizes + `, "rope_parameters": {"rope_theta": 1000000000.0, "rope_type": "default"}}}`, mistral3},
		"mistral3, nothing": {`{"model_type": "mistral3"}`, mistral3},
		"mistral3, window":  {strings.Replace(`{"model_type": "mistral3", "text_config": {`+mistralSizes+`, "rope_theta": 1e9}}`, `, "sliding_window": null`, "", 1), window},
		"qwen2.5-vl":        {`{"model_type": "qwen2_5_vl", ` + qwen25Sizes + `, "rope_theta": 1000000.0, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}`, qwen25},
		"qwen2.5-vl, new": {
			`{"model_type": "qwen2_5_vl", "text_config": {"model_type": "qwen2_5_vl_text", ` + qwen25Sizes +
				`, "rope_parameters": {"mrope_section": [16, 24, 24], "rope_theta": 1000000.0, "rope_type": "default"}}}`, qwen25,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := checkpoint.ParseConfig("config.json", []byte(tc.json))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, golden.Parse(t, ParseConfig, c)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseConfigErrors(t *testing.T) {
	for _, tc := range []struct{ name, json, want string }{
		{"no kind", `{}`, `config.json: model_type: found "", wanted qwen3, mistral, mistral3 or qwen2_5_vl`},
		{"kind", `{"model_type": "llama"}`, `config.json: model_type: found "llama", wanted qwen3, mistral, mistral3 or qwen2_5_vl`},
		{"text kind", `{"model_type": "mistral3", "text_config": {"model_type": "ministral3"}}`, `config.json: text_config.model_type: found "ministral3", wanted "mistral"`},
		{"text", `{"model_type": "mistral3", "text_config": 3}`, `config.json: text_config: found 3, wanted an object without repeated keys`},
		{"nested", `{"model_type": "mistral3", "text_config": {"num_hidden_layers": -1}}`, "config.json: text_config.num_hidden_layers: found -1, wanted an integer of 1 or more"},
		{"layers", `{"model_type": "qwen3", "num_hidden_layers": 1001}`, "config.json: num_hidden_layers: found 1001, wanted at most 1000"},
		{"heads", `{"model_type": "qwen3", "num_key_value_heads": 5}`, "config.json: num_attention_heads: found 32, wanted a multiple of num_key_value_heads 5"},
		{"head", `{"model_type": "qwen3", "head_dim": 7}`, "config.json: head_dim: found 7, wanted an even number: rotary positions turn pairs of channels"},
		{"wide", `{"model_type": "qwen3", "head_dim": 1000000}`, "config.json: head_dim: found 1000000 for each of 32 heads, wanted at most 16777216 for all"},
		{"hidden", `{"model_type": "qwen2_5_vl", "hidden_size": 100}`, "config.json: hidden_size: found 100, wanted a multiple of num_attention_heads 64\nconfig.json: head_dim: found 1, wanted an even number: rotary positions turn pairs of channels"},
		{
			"activation", `{"model_type": "qwen3", "hidden_act": "what"}`,
			`config.json: hidden_act: found "what", wanted one of gelu, gelu_new, gelu_pytorch_tanh, quick_gelu, relu, silu, swish`,
		},
		{"scaling", `{"model_type": "qwen3", "rope_scaling": {"rope_type": "yarn", "factor": 4}}`, `config.json: rope_scaling.rope_type: found "yarn", wanted default: scaled rotary positions are not supported`},
		{"mrope", `{"model_type": "qwen3", "rope_scaling": {"type": "mrope"}}`, `config.json: rope_scaling.rope_type: found "mrope", wanted default: scaled rotary positions are not supported`},
		{"partial", `{"model_type": "qwen3", "rope_parameters": {"partial_rotary_factor": 0.5}}`, "config.json: rope_parameters.partial_rotary_factor: found 0.5, wanted 1"},
		{"theta", `{"model_type": "qwen3", "rope_theta": 0}`, "config.json: rope_theta: found 0, wanted a number above 0"},
		{"window", `{"model_type": "qwen3", "use_sliding_window": true, "sliding_window": -1}`, "config.json: sliding_window: found -1, wanted an integer of 1 or more"},
	} {
		t.Run(tc.name, func(t *testing.T) { golden.CheckConfig(t, ParseConfig, tc.json, tc.want) })
	}
}
