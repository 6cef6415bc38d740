package flux2

import (
	"fmt"
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
	"precast/passes"
)

func TestMain(m *testing.M) { golden.Main(m) }

// TestGolden compares the first call of each run, and that of the negative prompt where there is one. Run a has its inputs recorded; those of the others
// follow from the start latents, the prompt's embedding and the first timestep, as in the pipelines.
func TestGolden(t *testing.T) {
	for _, tc := range []struct {
		set, run string
		call     int
		guidance float32
	}{
		{"tiny/flux2-dev", "a", 0, 4},
		{"tiny/flux2-dev", "b", 0, 2.5},
		{"tiny/flux2-klein", "a", 0, 0},
		{"tiny/flux2-klein", "a", 1, 0},
		{"tiny/flux2-klein", "b", 1, 0},
		{"tiny/flux2-klein", "distilled", 0, 0},
		{"tiny/tp-flux2", "a", 0, 0},
		{"tiny/tp-flux2", "a", 1, 0},
	} {
		t.Run(fmt.Sprintf("%s/%s/%d", tc.set, tc.run, tc.call), func(t *testing.T) {
			ref := golden.Open(t, tc.set)
			cfg := golden.Parse(t, ParseConfig, ref.Config("transformer"))
			noise := ref.F32(tc.run + "/noise")
			text := ref.F32(fmt.Sprintf("%s/encode_prompt/%d/prompt_embeds", tc.run, tc.call))
			batch, h, w := noise.Shape().Dim(0), noise.Shape().Dim(2), noise.Shape().Dim(3)
			length := text.Shape().Dim(1)
			n := New(cfg, Options{Batch: batch, TextLength: length, ImageLength: h * w}, dtypes.Float32)

			cos, sin := RoPE(cfg, length, h, w)
			inputs := map[string]*tensors.Tensor{
				"hidden_states":         tokens(t, noise),
				"encoder_hidden_states": text,
				"timestep":              tensors.FromValue([]float32{tensors.MustCopyFlatData[float32](ref.F32(tc.run + "/step_timesteps"))[0] / 1000}),
				"rotary_cos":            tensors.FromFlatDataAndDimensions(cos, length+h*w, cfg.HeadDim),
				"rotary_sin":            tensors.FromFlatDataAndDimensions(sin, length+h*w, cfg.HeadDim),
			}
			if cfg.GuidanceEmbeds {
				inputs["guidance"] = tensors.FromValue([]float32{tc.guidance})
			}
			prefix := fmt.Sprintf("%s/transformer/%d/", tc.run, tc.call)
			for name := range inputs {
				if recorded := prefix + "in/" + name; ref.Has(recorded) {
					ref.CheckTensor(recorded, recorded, inputs[name])
				}
			}
			out := ref.Run("transformer", n, inputs)
			ref.Check(prefix+"out/0", out[0])
		})
	}
}

// tokens is noise [1, C, h, w] as the pipelines pack it: [1, h*w, C].
func tokens(t *testing.T, noise *tensors.Tensor) *tensors.Tensor {
	t.Helper()
	d := noise.Shape().Dimensions
	if d[0] != 1 {
		t.Fatalf("found %s, wanted a batch of 1", noise.Shape())
	}
	c, n := d[1], d[2]*d[3]
	flat := tensors.MustCopyFlatData[float32](noise)
	out := make([]float32, len(flat))
	for k := range c {
		for i := range n {
			out[i*c+k] = flat[k*n+i]
		}
	}
	return tensors.FromFlatDataAndDimensions(out, 1, n, c)
}

func TestGoldenBlocks(t *testing.T) {
	const cos, sin = "image_rotary_emb/0", "image_rotary_emb/1"
	for _, set := range []string{"tiny/flux2-dev", "tiny/flux2-klein"} {
		t.Run(set, func(t *testing.T) {
			ref := golden.Open(t, set)
			cfg := golden.Parse(t, ParseConfig, ref.Config("transformer"))
			tested := map[string]bool{}
			run := func(module string, inputs []string, build func(c *trace.Ctx, in []*ml.Node) []*ml.Node) {
				tested[module] = true
				t.Run(module, func(t *testing.T) { ref.In(t).Block("transformer", "transformer."+module, inputs, build) })
			}
			embedInputs := []string{"timestep", "guidance"}
			if !cfg.GuidanceEmbeds {
				embedInputs = embedInputs[:1]
			}
			run("time_guidance_embed", embedInputs, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
				return []*ml.Node{timeGuidanceEmbed(c, cfg, in[0], append(in, nil)[1])}
			})
			for name, branches := range map[string]int{"double_stream_modulation_img": 2, "single_stream_modulation": 1} {
				run(name, []string{"temb"}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
					return []*ml.Node{modulationLinear(c, name, in[0], branches)}
				})
			}
			for _, i := range []int{0, cfg.Layers - 1} {
				module := fmt.Sprintf("transformer_blocks.%d", i)
				run(module, []string{"hidden_states", "encoder_hidden_states", "temb_mod_img", "temb_mod_txt", cos, sin}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
					text, image := block(c, module, cfg, in[0], in[1], split(in[2], 2), split(in[3], 2), nn.NewRotary(in[4], in[5]))
					return []*ml.Node{text, image}
				})
			}
			run("transformer_blocks.0.attn", []string{"hidden_states", "encoder_hidden_states", cos, sin}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
				image, text := nn.JointAttention(c, "transformer_blocks.0.attn", in[0], in[1], cfg.attention(nn.NewRotary(in[2], in[3])))
				return []*ml.Node{image, text}
			})
			run("transformer_blocks.0.ff", []string{"x"}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
				return []*ml.Node{feedForward(c, "transformer_blocks.0.ff", cfg, in[0])}
			})
			for _, i := range []int{0, cfg.SingleLayers - 1} {
				module := fmt.Sprintf("single_transformer_blocks.%d", i)
				run(module, []string{"hidden_states", "temb_mod", cos, sin}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
					return []*ml.Node{singleBlock(c, module, cfg, in[0], split(in[1], 1), nn.NewRotary(in[2], in[3]))}
				})
			}
			run("single_transformer_blocks.0.attn", []string{"hidden_states", cos, sin}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
				defer c.Enter("single_transformer_blocks.0")()
				return []*ml.Node{parallelAttention(c, cfg, in[0], nn.NewRotary(in[1], in[2]))}
			})
			run("norm_out", []string{"x", "conditioning_embedding"}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
				return []*ml.Node{nn.AdaLayerNormContinuous(c, "norm_out", in[0], in[1], cfg.Eps, false)}
			})
			tested["pos_embed"] = true
			t.Run("pos_embed", func(t *testing.T) { checkPositions(t, ref.In(t), cfg) })
			for _, module := range ref.Blocks("transformer") {
				if !tested[module] {
					t.Errorf("the recorded module %s is not compared", module)
				}
			}
		})
	}
}

// checkPositions compares the rotary tables: those of the picture with Flux2PosEmbed's first call, those of the text with what a block got.
func checkPositions(t *testing.T, ref *golden.Case, cfg Config) {
	const block = "blocks/transformer.transformer_blocks.0/in/image_rotary_emb/"
	ids := tensors.MustCopyFlatData[int32](ref.Tensor("blocks/transformer.pos_embed/in/ids", dtypes.Int32))
	// Run a: 64 x 96 pixels are 4 x 6 tokens.
	if got := fmt.Sprint(ids[len(ids)-4:]); got != "[0 3 5 0]" {
		t.Fatalf("the last position is %v, want [0 3 5 0]", got)
	}
	want := tensors.MustCopyFlatData[float32](ref.F32(block + "0"))
	text := len(want)/cfg.HeadDim - 24
	cos, sin := RoPE(cfg, text, 4, 6)
	ref.CheckValues("cos", cos, want)
	ref.CheckValues("sin", sin, tensors.MustCopyFlatData[float32](ref.F32(block+"1")))
	ref.CheckValues("cos of the picture", cos[text*cfg.HeadDim:], tensors.MustCopyFlatData[float32](ref.F32("blocks/transformer.pos_embed/out/0")))
	ref.CheckValues("sin of the picture", sin[text*cfg.HeadDim:], tensors.MustCopyFlatData[float32](ref.F32("blocks/transformer.pos_embed/out/1")))
}

// TestPacked runs the passes: the packed matrices are read where they lie, so that there is nothing to prepare and no second copy of a weight.
func TestPacked(t *testing.T) {
	c, err := checkpoint.ParseConfig("config.json", []byte(`{"num_layers": 2, "num_single_layers": 2}`))
	if err != nil {
		t.Fatal(err)
	}
	m, err := trace.Trace(New(golden.Parse(t, ParseConfig, c), Options{Batch: 1, TextLength: 512, ImageLength: 64 * 64}, dtypes.BFloat16))
	if err != nil {
		t.Fatal(err)
	}
	pipeline := passes.Pipeline{Options: passes.DefaultOptions()}
	if err := pipeline.Run(m); err != nil {
		t.Fatal(err)
	}
	if p := passes.Prepare(m); p != nil {
		t.Errorf("weights are prepared: %v", p.ResultNames)
	}
	want := map[string]string{
		"single_transformer_blocks.1.attn.to_qkv_mlp_proj.weight": "[55296 6144]", "single_transformer_blocks.1.attn.to_out.weight": "[6144 24576]",
		"transformer_blocks.1.ff.linear_in.weight": "[36864 6144]",
	}
	for _, p := range m.Entry().Params {
		if shape := want[p.Name]; shape != "" && shape != fmt.Sprint(p.Value.Shape.Dimensions) {
			t.Errorf("%s has shape %s, wanted %s", p.Name, p.Value.Shape, shape)
		}
		delete(want, p.Name)
	}
	if len(want) > 0 {
		t.Errorf("no weights %v", want)
	}
}

// TestAllWeightsUsed checks that the transformer asks for exactly the weights in the checkpoint, packed as they are there.
func TestAllWeightsUsed(t *testing.T) {
	for _, set := range []string{"tiny/flux2-dev", "tiny/flux2-klein", "tiny/tp-flux2"} {
		t.Run(set, func(t *testing.T) {
			ref := golden.Open(t, set)
			m, err := trace.Trace(New(golden.Parse(t, ParseConfig, ref.Config("transformer")), Options{Batch: 1, TextLength: 3, ImageLength: 4}, dtypes.Float32))
			if err != nil {
				t.Fatal(err)
			}
			stored := map[string]string{}
			for key, w := range ref.Keys("transformer") {
				stored[key] = fmt.Sprint(w.Shape)
			}
			for _, p := range m.Entry().Params {
				if p.Kind != graph.Weight {
					continue
				}
				if got := fmt.Sprint(p.Value.Shape.Dimensions); stored[p.Name] != got {
					t.Errorf("%s: asked for %s, the file has %q", p.Name, got, stored[p.Name])
				}
				delete(stored, p.Name)
			}
			for key := range stored {
				t.Errorf("%s is in the file and not used", key)
			}
		})
	}
}

func TestParseConfig(t *testing.T) {
	for _, tc := range []struct{ name, json, want string }{
		{"defaults", `{}`, ""},
		{"null", `{"out_channels": null, "num_layers": null, "axes_dims_rope": null}`, ""},
		{"negative layers", `{"num_layers": -3}`, "config.json: num_layers: found -3, wanted 0 to 1000"},
		{"absurd layers", `{"num_single_layers": 100000}`, "config.json: num_single_layers: found 100000, wanted 0 to 1000"},
		{"odd axes", `{"axes_dims_rope": [31, 33, 32, 32]}`, "config.json: axes_dims_rope: found [31 33 32 32], wanted even numbers"},
		{"axes of FLUX.1", `{"axes_dims_rope": [16, 56, 56]}`, "config.json: axes_dims_rope: found [16 56 56], wanted 4 numbers with the sum attention_head_dim 128"},
		{"head", `{"attention_head_dim": 64}`, "config.json: axes_dims_rope: found [32 32 32 32], wanted 4 numbers with the sum attention_head_dim 64"},
		{"width", `{"num_attention_heads": 1000000}`, "config.json: num_attention_heads: found 1000000, with attention_head_dim 128 a width of 128000000, wanted at most 16777216"},
		{"wide", `{"mlp_ratio": 1e30}`, "config.json: mlp_ratio: found 1e+30, of the width 6144 that is 6.144e+33, wanted 1 to 16777216"},
		{"narrow", `{"mlp_ratio": 1e-30}`, "config.json: mlp_ratio: found 1e-30, of the width 6144 that is 6.144e-27, wanted 1 to 16777216"},
		{"no theta", `{"rope_theta": 0}`, "config.json: rope_theta: found 0, wanted a number above 0"},
		{"sinusoids", `{"timestep_guidance_channels": 1}`, "config.json: timestep_guidance_channels: found 1, wanted 2 to 65536"},
		{"patch", `{"patch_size": 5000}`, "config.json: patch_size: found 5000, wanted at most 1024"},
		{"text", `{"guidance_embeds": "yes"}`, `config.json: guidance_embeds: found the string "yes", wanted true or false`},
		{
			"several", `{"in_channels": 0, "eps": -1}`,
			"config.json: in_channels: found 0, wanted an integer of 1 or more\nconfig.json: eps: found -1, wanted a number above 0",
		},
	} {
		t.Run(tc.name, func(t *testing.T) { golden.CheckConfig(t, ParseConfig, tc.json, tc.want) })
	}
}

// TestTracePublished traces the published transformers at 1024x1024 in bfloat16 from their configs alone. The counts are those of the parameters
// that diffusers' class makes of the same configs.
func TestTracePublished(t *testing.T) {
	for _, tc := range []struct {
		name, config     string
		keys, parameters int
	}{
		{"dev", `{}`, 331, 32_223_281_152},
		{"klein 4B", `{"num_layers": 5, "num_single_layers": 20, "num_attention_heads": 24, "joint_attention_dim": 7680, "guidance_embeds": false}`, 169, 3_875_544_576},
		{"klein 9B", `{"num_layers": 8, "num_single_layers": 24, "num_attention_heads": 32, "joint_attention_dim": 12288, "guidance_embeds": false}`, 233, 9_078_581_248},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := checkpoint.ParseConfig("config.json", []byte(tc.config))
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			m, err := trace.Trace(New(golden.Parse(t, ParseConfig, c), Options{Batch: 1, TextLength: 512, ImageLength: 64 * 64}, dtypes.BFloat16))
			if err != nil {
				t.Fatal(err)
			}
			took := time.Since(start)
			keys, parameters := 0, 0
			for _, p := range m.Entry().Params {
				if p.Kind == graph.Weight {
					keys++
					parameters += p.Value.Shape.Size()
				}
			}
			if keys != tc.keys || parameters != tc.parameters {
				t.Errorf("%d weights with %d parameters, want %d with %d", keys, parameters, tc.keys, tc.parameters)
			}
			t.Logf("%d nodes in %v", len(m.Entry().Nodes), took)
			if took > time.Second {
				t.Errorf("tracing took %v, want under 1s", took)
			}
		})
	}
}
