package flux

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/dtypes/bfloat16"
	ml "github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/models/golden"
	"precast/graph/nn"
	"precast/graph/trace"
)

func TestMain(m *testing.M) { golden.Main(m) }

// TestGolden compares the first call of each run. Run a has its inputs recorded; those of the others follow from the start latents, the prompt's
// embedding and the first timestep, as in FluxPipeline.
func TestGolden(t *testing.T) {
	for _, tc := range []struct {
		set, run string
		guidance float32
	}{
		{"tiny/flux1-dev", "a", 3.5},
		{"tiny/flux1-dev", "b", 2},
		{"tiny/flux1-dev", "c", 3.5},
		{"tiny/flux1-dev", "batch2", 3.5},
		{"tiny/flux1-dev", "true-cfg", 3.5},
		{"tiny/flux1-schnell", "a", 0},
		{"tiny/flux1-schnell", "b", 0},
	} {
		t.Run(tc.set+"/"+tc.run, func(t *testing.T) {
			ref := golden.Open(t, tc.set)
			cfg := golden.Parse(t, ParseConfig, ref.Config("transformer"))
			noise := ref.F32(tc.run + "/noise").Shape()
			text := ref.F32(tc.run + "/encode_prompt/0/prompt_embeds")
			batch, h, w := noise.Dim(0), noise.Dim(2)/2, noise.Dim(3)/2
			n := New(cfg, Options{Batch: batch, TextLength: text.Shape().Dim(1), ImageLength: h * w}, dtypes.Float32)

			cos, sin := RoPE(cfg, text.Shape().Dim(1), h, w)
			timestep := tensors.MustCopyFlatData[float32](ref.F32(tc.run + "/step_timesteps"))[0] / 1000
			inputs := map[string]*tensors.Tensor{
				"hidden_states":         ref.F32(tc.run + "/latents_init"),
				"encoder_hidden_states": text,
				"pooled_projections":    ref.F32(tc.run + "/encode_prompt/0/pooled_prompt_embeds"),
				"timestep":              repeat(timestep, batch),
				"rotary_cos":            tensors.FromFlatDataAndDimensions(cos, text.Shape().Dim(1)+h*w, cfg.HeadDim),
				"rotary_sin":            tensors.FromFlatDataAndDimensions(sin, text.Shape().Dim(1)+h*w, cfg.HeadDim),
			}
			if cfg.GuidanceEmbeds {
				inputs["guidance"] = repeat(tc.guidance, batch)
			}
			for name := range inputs {
				if recorded := tc.run + "/transformer/0/in/" + name; ref.Has(recorded) {
					ref.CheckTensor(recorded, recorded, inputs[name])
				}
			}
			out := ref.Run("transformer", n, inputs)
			ref.Check(tc.run+"/transformer/0/out/0", out[0])
		})
	}
}

// TestHalf computes the first call of run a in bfloat16. PyTorch's own bfloat16 run, of which native has the results, is that far from float32 with
// the text encoders in bfloat16 too; with those in float32 this transformer must be nearer.
func TestHalf(t *testing.T) {
	ref := golden.Open(t, "tiny/flux1-schnell")
	cfg := golden.Parse(t, ParseConfig, ref.Config("transformer"))
	n := New(cfg, Options{Batch: 1, TextLength: 48, ImageLength: 24}, dtypes.BFloat16)
	cos, sin := RoPE(cfg, 48, 4, 6)
	half := func(name string) *tensors.Tensor { return ref.Tensor("a/transformer/0/in/"+name, dtypes.BFloat16) }
	out := ref.Run("transformer", n, map[string]*tensors.Tensor{
		"hidden_states":         half("hidden_states"),
		"encoder_hidden_states": half("encoder_hidden_states"),
		"pooled_projections":    half("pooled_projections"),
		"timestep":              ref.F32("a/transformer/0/in/timestep"),
		"rotary_cos":            tensors.FromFlatDataAndDimensions(cos, 72, cfg.HeadDim),
		"rotary_sin":            tensors.FromFlatDataAndDimensions(sin, 72, cfg.HeadDim),
	})
	want := tensors.MustCopyFlatData[float32](ref.F32("a/transformer/0/out/0"))
	native := tensors.MustCopyFlatData[float32](ref.F32("native/step_model_output"))[:len(want)]
	var theirs float64
	for i, w := range want {
		theirs += square(float64(native[i] - w))
	}
	for _, side := range out[0] {
		if got := side.Tensor.DType(); got != dtypes.BFloat16 {
			t.Fatalf("the result on side %s is %s, want BFloat16", side.Name, got)
		}
		var ours float64
		for i, got := range tensors.MustCopyFlatData[bfloat16.BFloat16](side.Tensor) {
			ours += square(float64(got.Float32() - want[i]))
		}
		t.Logf("%s: root mean square distance from float32: %.3g, PyTorch %.3g", side.Name, rms(ours, len(want)), rms(theirs, len(want)))
		if !(ours <= theirs) {
			t.Errorf("%s: root mean square distance from float32: %.3g, PyTorch's %.3g", side.Name, rms(ours, len(want)), rms(theirs, len(want)))
		}
	}
}

func square(x float64) float64 { return x * x }

func rms(sum float64, n int) float64 { return math.Sqrt(sum / float64(n)) }

func repeat(v float32, n int) *tensors.Tensor {
	values := make([]float32, n)
	for i := range values {
		values[i] = v
	}
	return tensors.FromValue(values)
}

func TestGoldenBlocks(t *testing.T) {
	const cos, sin = "image_rotary_emb/0", "image_rotary_emb/1"
	for _, set := range []string{"tiny/flux1-dev", "tiny/flux1-schnell"} {
		t.Run(set, func(t *testing.T) {
			ref := golden.Open(t, set)
			cfg := golden.Parse(t, ParseConfig, ref.Config("transformer"))
			run := func(module string, inputs []string, build func(c *trace.Ctx, in []*ml.Node) []*ml.Node) {
				t.Run(module, func(t *testing.T) { ref.In(t).Block("transformer", "transformer."+module, inputs, build) })
			}
			embedInputs := []string{"timestep", "pooled_projection", "guidance"}
			if !cfg.GuidanceEmbeds {
				embedInputs = embedInputs[:2]
			}
			run("time_text_embed", embedInputs, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
				var guidance *ml.Node
				if cfg.GuidanceEmbeds {
					guidance = in[2]
				}
				return []*ml.Node{nn.TimeTextEmbed(c, "time_text_embed", in[0], guidance, in[1], cfg.Dim())}
			})
			for _, i := range []int{0, cfg.Layers - 1} {
				module := fmt.Sprintf("transformer_blocks.%d", i)
				run(module, []string{"hidden_states", "encoder_hidden_states", "temb", cos, sin}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
					text, image := block(c, module, cfg, in[0], in[1], in[2], nn.NewRotary(in[3], in[4]))
					return []*ml.Node{text, image}
				})
			}
			run("transformer_blocks.0.norm1", []string{"x", "emb"}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
				x, gateMSA, shiftMLP, scaleMLP, gateMLP := nn.AdaLayerNormZero(c, "transformer_blocks.0.norm1", in[0], in[1])
				return []*ml.Node{x, gateMSA, shiftMLP, scaleMLP, gateMLP}
			})
			run("transformer_blocks.0.attn", []string{"hidden_states", "encoder_hidden_states", cos, sin}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
				defer c.Enter("transformer_blocks.0")()
				image, text := nn.JointAttention(c, "attn", in[0], in[1], cfg.joint(nn.NewRotary(in[2], in[3])))
				return []*ml.Node{image, text}
			})
			run("transformer_blocks.0.ff", []string{"hidden_states"}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
				return []*ml.Node{nn.FeedForward(c, "transformer_blocks.0.ff", in[0], 4*cfg.Dim(), "gelu-approximate")}
			})
			for _, i := range []int{0, cfg.SingleLayers - 1} {
				module := fmt.Sprintf("single_transformer_blocks.%d", i)
				run(module, []string{"hidden_states", "encoder_hidden_states", "temb", cos, sin}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
					joint := singleBlock(c, module, cfg, ml.Concatenate([]*ml.Node{in[1], in[0]}, 1), in[2], nn.NewRotary(in[3], in[4]))
					text, image := nn.SplitTokens(joint, in[1].Shape().Dim(1))
					return []*ml.Node{text, image}
				})
			}
			last := fmt.Sprintf("single_transformer_blocks.%d", cfg.SingleLayers-1)
			run(last+".attn", []string{"hidden_states", cos, sin}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
				defer c.Enter(last)()
				return []*ml.Node{selfAttention(c, cfg, in[0], nn.NewRotary(in[1], in[2]))}
			})
			run("single_transformer_blocks.0.norm", []string{"x", "emb"}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
				x, gate := nn.AdaLayerNormZeroSingle(c, "single_transformer_blocks.0.norm", in[0], in[1])
				return []*ml.Node{x, gate}
			})
			run("norm_out", []string{"x", "conditioning_embedding"}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
				return []*ml.Node{nn.AdaLayerNormContinuous(c, "norm_out", in[0], in[1], 1e-6, true)}
			})
			t.Run("pos_embed", func(t *testing.T) {
				ref := ref.In(t)
				ids := ref.F32("blocks/transformer.pos_embed/in/ids")
				flat := tensors.MustCopyFlatData[float32](ids)
				// Run a: 64 x 96 pixels are 4 x 6 tokens; the rest is text.
				cos, sin := RoPE(cfg, ids.Shape().Dim(0)-24, 4, 6)
				if got := flat[len(flat)-3:]; got[1] != 3 || got[2] != 5 {
					t.Fatalf("the last position is %v, want [0 3 5]", got)
				}
				ref.CheckValues("cos", cos, tensors.MustCopyFlatData[float32](ref.F32("blocks/transformer.pos_embed/out/0")))
				ref.CheckValues("sin", sin, tensors.MustCopyFlatData[float32](ref.F32("blocks/transformer.pos_embed/out/1")))
			})
		})
	}
}

func TestParseConfig(t *testing.T) {
	for _, tc := range []struct{ name, json, want string }{
		{"defaults", `{}`, ""},
		{"null", `{"out_channels": null, "num_layers": null}`, ""},
		{"negative layers", `{"num_layers": -3}`, "config.json: num_layers: found -3, wanted 0 to 1000"},
		{"absurd layers", `{"num_single_layers": 100000}`, "config.json: num_single_layers: found 100000, wanted 0 to 1000"},
		{"odd axes", `{"axes_dims_rope": [15, 57, 56]}`, "config.json: axes_dims_rope: found [15 57 56], wanted even numbers"},
		{"axes", `{"axes_dims_rope": [16, 56]}`, "config.json: axes_dims_rope: found [16 56], wanted 3 numbers with the sum attention_head_dim 128"},
		{"head", `{"attention_head_dim": 64}`, "config.json: axes_dims_rope: found [16 56 56], wanted 3 numbers with the sum attention_head_dim 64"},
		{"text", `{"guidance_embeds": "yes"}`, `config.json: guidance_embeds: found the string "yes", wanted true or false`},
		{
			"several", `{"in_channels": 0, "num_attention_heads": -1}`,
			"config.json: in_channels: found 0, wanted an integer of 1 or more\nconfig.json: num_attention_heads: found -1, wanted an integer of 1 or more",
		},
	} {
		t.Run(tc.name, func(t *testing.T) { golden.CheckConfig(t, ParseConfig, tc.json, tc.want) })
	}
}

// published is the config of FLUX.1-dev.
const published = `{"_class_name": "FluxTransformer2DModel", "attention_head_dim": 128, "guidance_embeds": true, "in_channels": 64,
	"joint_attention_dim": 4096, "num_attention_heads": 24, "num_layers": 19, "num_single_layers": 38, "patch_size": 1, "pooled_projection_dim": 768}`

// TestTracePublished traces the whole of FLUX.1-dev at 1024x1024 in bfloat16 from its config alone.
func TestTracePublished(t *testing.T) {
	c, err := checkpoint.ParseConfig("config.json", []byte(published))
	if err != nil {
		t.Fatal(err)
	}
	n := New(golden.Parse(t, ParseConfig, c), Options{Batch: 1, TextLength: 512, ImageLength: 64 * 64}, dtypes.BFloat16)
	start := time.Now()
	m, err := trace.Trace(n)
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	f := m.Entry()
	parameters, keys := 0, 0
	for _, p := range f.Params {
		if p.Kind == graph.Weight {
			keys++
			parameters += p.Value.Shape.Size()
		}
	}
	// 32 tensors a double block, 14 a single one and 20 beside them; the parameter count is the published one.
	if keys != 19*32+38*14+20 || parameters != 11901408320 {
		t.Errorf("%d weights with %d parameters, want 1160 with 11901408320", keys, parameters)
	}
	t.Logf("%d nodes in %v", len(f.Nodes), took)
	if took > time.Second {
		t.Errorf("tracing took %v, want under 1s", took)
	}
	for _, node := range f.Nodes {
		if lit, ok := node.Attrs.Get("value").(graph.Literal); ok && len(lit.Data) > 4096 {
			t.Errorf("a constant of %d bytes at %q", len(lit.Data), node.Scope)
		}
	}
}
