package sd3

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
)

func TestMain(m *testing.M) { golden.Main(m) }

// TestGolden compares the first call of each run, which is for the negative prompt and the positive one together. Run b does not record its inputs: they
// follow from the start noise, the prompts' embeddings and the first timestep, as in StableDiffusion3Pipeline.
func TestGolden(t *testing.T) {
	for _, tc := range []struct{ set, run string }{{"tiny/sd3", "a"}, {"tiny/sd3", "b"}, {"tiny/tp-sd3", "a"}} {
		t.Run(tc.set+"/"+tc.run, func(t *testing.T) {
			ref := golden.Open(t, tc.set)
			want := tc.run + "/transformer/0/out/0"
			if !ref.Has(want) {
				t.Skipf("no reference: this part of the set lacks %s", want)
			}
			cfg := golden.Parse(t, ParseConfig, ref.Config("transformer"))
			noise := ref.F32(tc.run + "/noise")
			both := func(first, second *tensors.Tensor) *tensors.Tensor {
				dims := first.Shape().Clone().Dimensions
				dims[0] *= 2
				values := append(tensors.MustCopyFlatData[float32](first), tensors.MustCopyFlatData[float32](second)...)
				return tensors.FromFlatDataAndDimensions(values, dims...)
			}
			encoded := func(name string) *tensors.Tensor {
				return both(ref.F32(tc.run+"/encode_prompt/0/negative_"+name), ref.F32(tc.run+"/encode_prompt/0/"+name))
			}
			timestep := tensors.MustCopyFlatData[float32](ref.F32(tc.run + "/step_timesteps"))[0]
			inputs := map[string]*tensors.Tensor{
				"hidden_states":         both(noise, noise),
				"encoder_hidden_states": encoded("prompt_embeds"),
				"pooled_projections":    encoded("pooled_prompt_embeds"),
				"timestep":              tensors.FromValue([]float32{timestep, timestep}),
			}
			for name := range inputs {
				if recorded := tc.run + "/transformer/0/in/" + name; ref.Has(recorded) {
					ref.CheckTensor(recorded, recorded, inputs[name])
				}
			}
			n := New(cfg, Options{
				Batch: 2, Height: noise.Shape().Dim(2), Width: noise.Shape().Dim(3), TextLength: inputs["encoder_hidden_states"].Shape().Dim(1),
			}, dtypes.Float32)
			out := ref.Run("transformer", n, inputs)
			ref.Check(want, out[0])
		})
	}
}

func TestGoldenBlocks(t *testing.T) {
	ref := golden.Open(t, "tiny/sd3")
	cfg := golden.Parse(t, ParseConfig, ref.Config("transformer"))
	run := func(module string, inputs []string, build func(c *trace.Ctx, in []*ml.Node) []*ml.Node) {
		t.Run(module, func(t *testing.T) { ref.In(t).Block("transformer", "transformer."+module, inputs, build) })
	}
	run("pos_embed", []string{"latent"}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
		return []*ml.Node{patchEmbed(c, "pos_embed", cfg, in[0])}
	})
	run("time_text_embed", []string{"timestep", "pooled_projection"}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
		return []*ml.Node{nn.TimeTextEmbed(c, "time_text_embed", in[0], nil, in[1], cfg.Dim())}
	})
	run("transformer_blocks.0", []string{"hidden_states", "encoder_hidden_states", "temb"}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
		text, image := nn.JointBlock(c, "transformer_blocks.0", in[0], in[1], in[2], cfg.block(0))
		return []*ml.Node{text, image}
	})
	run("transformer_blocks.0.norm1", []string{"hidden_states", "emb"}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
		x, gateMSA, shiftMLP, scaleMLP, gateMLP, x2, gateMSA2 := nn.SD35AdaLayerNormZeroX(c, "transformer_blocks.0.norm1", in[0], in[1])
		return []*ml.Node{x, gateMSA, shiftMLP, scaleMLP, gateMLP, x2, gateMSA2}
	})
	run("transformer_blocks.0.norm1_context", []string{"x", "emb"}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
		x, gateMSA, shiftMLP, scaleMLP, gateMLP := nn.AdaLayerNormZero(c, "transformer_blocks.0.norm1_context", in[0], in[1])
		return []*ml.Node{x, gateMSA, shiftMLP, scaleMLP, gateMLP}
	})
	run("transformer_blocks.0.attn", []string{"hidden_states", "encoder_hidden_states"}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
		image, text := nn.JointAttention(c, "transformer_blocks.0.attn", in[0], in[1], cfg.block(0).JointAttentionConfig)
		return []*ml.Node{image, text}
	})
	run("transformer_blocks.0.ff", []string{"hidden_states"}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
		return []*ml.Node{nn.FeedForward(c, "transformer_blocks.0.ff", in[0], 4*cfg.Dim(), "gelu-approximate")}
	})
	last := fmt.Sprintf("transformer_blocks.%d", cfg.Layers-1)
	run(last+".norm1_context", []string{"x", "conditioning_embedding"}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
		return []*ml.Node{nn.AdaLayerNormContinuous(c, last+".norm1_context", in[0], in[1], 1e-6, true)}
	})
	// The last block gives no text, so its only result is recorded as out/1, which Case.Block does not look for.
	t.Run(last, func(t *testing.T) {
		ref := ref.In(t)
		names := []string{"hidden_states", "encoder_hidden_states", "temb"}
		inputs := map[string]*tensors.Tensor{}
		n := trace.Network{Name: last, DType: dtypes.Float32, Outputs: []string{"hidden_states"}}
		for _, name := range names {
			inputs[name] = ref.F32("blocks/transformer." + last + "/in/" + name)
			n.Inputs = append(n.Inputs, trace.Input{Name: name, Shape: inputs[name].Shape()})
		}
		n.Build = func(c *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
			text, image := nn.JointBlock(c, last, in["hidden_states"], in["encoder_hidden_states"], in["temb"], cfg.block(cfg.Layers-1))
			if text != nil {
				t.Error("the last block gives text")
			}
			return []*ml.Node{image}
		}
		ref.Check("blocks/transformer."+last+"/out/1", ref.RunModule("transformer", n, inputs)[0])
	})
}

func TestParseConfig(t *testing.T) {
	for _, tc := range []struct{ name, json, want string }{
		{"defaults", `{}`, ""},
		{"null", `{"out_channels": null, "qk_norm": null, "dual_attention_layers": null}`, ""},
		{"negative layers", `{"num_layers": -3}`, "config.json: num_layers: found -3, wanted an integer of 1 or more"},
		{"absurd layers", `{"num_layers": 100000}`, "config.json: num_layers: found 100000, wanted at most 1000"},
		{"table", `{"pos_embed_max_size": null}`, "config.json: pos_embed_max_size: not supported: found null, wanted the height and width of the table pos_embed.pos_embed in patches"},
		{"absurd table", `{"pos_embed_max_size": 100000}`, "config.json: pos_embed_max_size: found 100000, wanted at most 4096"},
		{"dual layer", `{"dual_attention_layers": [0, 18]}`, "config.json: dual_attention_layers: found layer 18, wanted 0 to 17: num_layers is 18"},
		{"dual layers", `{"dual_attention_layers": 3}`, "config.json: dual_attention_layers: found 3, wanted a list of integers"},
		{"norm", `{"qk_norm": "layer_norm"}`, `config.json: qk_norm: not supported: found "layer_norm", wanted null or "rms_norm"`},
		{"caption", `{"num_attention_heads": 24}`, "config.json: caption_projection_dim: found 1152, wanted num_attention_heads x attention_head_dim, 1536"},
		{
			"odd width", `{"num_attention_heads": 1, "attention_head_dim": 6, "caption_projection_dim": 6}`,
			"config.json: attention_head_dim: found 1 heads of 6, wanted a product that 4 divides: the table of positions has sines and cosines of two coordinates",
		},
		{
			"several", `{"in_channels": 0, "patch_size": "two"}`,
			"config.json: patch_size: found the string \"two\", wanted an integer of 1 or more\nconfig.json: in_channels: found 0, wanted an integer of 1 or more",
		},
	} {
		t.Run(tc.name, func(t *testing.T) { golden.CheckConfig(t, ParseConfig, tc.json, tc.want) })
	}
}

// TestOutChannels: absent means 16, null as many as come in.
func TestOutChannels(t *testing.T) {
	for json, want := range map[string]int{`{"in_channels": 8}`: 16, `{"in_channels": 8, "out_channels": null}`: 8, `{"in_channels": 8, "out_channels": 4}`: 4} {
		c, err := checkpoint.ParseConfig("config.json", []byte(json))
		if err != nil {
			t.Fatal(err)
		}
		if got := golden.Parse(t, ParseConfig, c).OutChannels; got != want {
			t.Errorf("%s: found %d output channels, wanted %d", json, got, want)
		}
	}
}

func TestOptionsCheck(t *testing.T) {
	cfg := Config{PatchSize: 2, PosEmbedMaxSize: 12}
	for _, tc := range []struct {
		name string
		o    Options
		want string
	}{
		{"good", Options{Batch: 1, Height: 24, Width: 2, TextLength: 1}, ""},
		{"batch", Options{Height: 24, Width: 2, TextLength: 1}, "transformer: found batch 0 and 1 text tokens, wanted 1 or more of each"},
		{"text", Options{Batch: 1, Height: 24, Width: 2}, "transformer: found batch 1 and 0 text tokens, wanted 1 or more of each"},
		{"odd", Options{Batch: 1, Height: 7, Width: 2, TextLength: 1}, "transformer: found latents of height 7, wanted a multiple of patch_size 2 up to 24 (pos_embed_max_size 12 patches)"},
		{"large", Options{Batch: 1, Height: 2, Width: 26, TextLength: 1}, "transformer: found latents of width 26, wanted a multiple of patch_size 2 up to 24 (pos_embed_max_size 12 patches)"},
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

// published is the config of Stable Diffusion 3 Medium.
const published = `{"_class_name": "SD3Transformer2DModel", "attention_head_dim": 64, "caption_projection_dim": 1536, "in_channels": 16,
	"joint_attention_dim": 4096, "num_attention_heads": 24, "num_layers": 24, "out_channels": 16, "patch_size": 2, "pooled_projection_dim": 2048,
	"pos_embed_max_size": 192, "sample_size": 128}`

// TestTracePublished traces the whole of Stable Diffusion 3 Medium at 1024x1024 in float16 from its config alone.
func TestTracePublished(t *testing.T) {
	c, err := checkpoint.ParseConfig("config.json", []byte(published))
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	m, err := trace.Trace(New(golden.Parse(t, ParseConfig, c), Options{Batch: 1, Height: 128, Width: 128, TextLength: 333}, dtypes.Float16))
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("tracing took %v, want under 2s", took)
	}
	parameters := 0
	for _, p := range m.Entry().Params {
		if p.Kind == graph.Weight {
			parameters += p.Value.Shape.Size()
		}
	}
	if parameters != 2084951104 {
		t.Errorf("%d parameters, want 2084951104, the table of positions among them", parameters)
	}
}
