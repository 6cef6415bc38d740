package wan

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"
	ml "github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/models/golden"
	"precast/graph/nn"
	"precast/graph/trace"
)

func TestMain(m *testing.M) { golden.Main(m) }

func open(t *testing.T, name string) (*golden.Case, Config) {
	t.Helper()
	g := golden.Open(t, "tiny/"+name)
	file := g.Config("transformer")
	cfg := golden.Parse(t, ParseConfig, file)
	if unread := file.Unread(); len(unread) > 0 {
		t.Errorf("%s: fields that nothing reads: %v", name, unread)
	}
	return g, cfg
}

// call makes the network and inputs of a run's recorded call: call 0 has the prompt, call 1 the negative one.
func call(g *golden.Case, cfg Config, run string, call string, dtype graph.DType) (trace.Network, map[string]*tensors.Tensor) {
	noise := g.F32(run + "/noise").Shape()
	embeds := run + "/encode_prompt/0/" + map[string]string{"0": "prompt_embeds", "1": "negative_prompt_embeds"}[call]
	text := g.F32(embeds).Shape().Dim(1)
	o := Options{Batch: noise.Dim(0), TextLength: text, Frames: noise.Dim(2), Height: noise.Dim(3), Width: noise.Dim(4)}
	cos, sin := RoPE(cfg, o.Frames, o.Height/2, o.Width/2)
	timestep := tensors.MustCopyFlatData[float32](g.F32(run + "/step_timesteps"))[0]
	return New(cfg, o, dtype), map[string]*tensors.Tensor{
		"hidden_states":         g.Tensor(run+"/noise", dtype),
		"encoder_hidden_states": g.Tensor(embeds, dtype),
		"timestep":              tensors.FromValue([]float32{timestep}),
		"rotary_cos":            tensors.FromFlatDataAndDimensions(cos, o.Tokens(cfg), cfg.HeadDim),
		"rotary_sin":            tensors.FromFlatDataAndDimensions(sin, o.Tokens(cfg), cfg.HeadDim),
	}
}

// TestGolden compares the first two calls of each run: with the prompt and with the negative one.
func TestGolden(t *testing.T) {
	for _, run := range []string{"wan-t2v/a", "wan-t2v/b", "wan-t2v/one-frame", "wan-t2v/no-guidance", "wan22-t2v/a", "tp-wan/a"} {
		t.Run(run, func(t *testing.T) {
			name, run, _ := strings.Cut(run, "/")
			g, cfg := open(t, name)
			if name != "wan-t2v" {
				g.Light()
			}
			if !g.Has(run + "/transformer/0/out/0") {
				t.Skip("the part of the reference in testdata has no call of this transformer")
			}
			calls := []string{"0", "1"}
			if run == "no-guidance" {
				calls = calls[:1]
			}
			for _, i := range calls {
				n, inputs := call(g, cfg, run, i, dtypes.Float32)
				for name := range inputs {
					if recorded := run + "/transformer/" + i + "/in/" + name; g.Has(recorded) {
						g.CheckTensor(recorded, recorded, inputs[name])
					}
				}
				g.Check(run+"/transformer/"+i+"/out/0", g.Run("transformer", n, inputs)[0])
			}
		})
	}
}

func TestGoldenBlocks(t *testing.T) {
	g, cfg := open(t, "wan-t2v")
	const cos, sin = "rotary_emb/0", "rotary_emb/1"
	rotary := func(cos, sin *ml.Node) *nn.Rotary {
		return nn.NewRotary(ml.Reshape(cos, -1, cfg.HeadDim), ml.Reshape(sin, -1, cfg.HeadDim))
	}
	seen := map[string]bool{}
	run := func(module string, inputs []string, build func(c *trace.Ctx, in []*ml.Node) []*ml.Node) {
		seen[module] = true
		t.Run(module, func(t *testing.T) { g.In(t).Block("transformer", "transformer."+module, inputs, build) })
	}
	run("condition_embedder", []string{"timestep", "encoder_hidden_states"}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
		temb, modulation, text := conditionEmbedder(c, cfg, in[0], in[1])
		return []*ml.Node{temb, modulation, text}
	})
	for _, name := range []string{"blocks.0", "blocks.2"} {
		run(name, []string{"hidden_states", "encoder_hidden_states", "temb", cos, sin}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
			return []*ml.Node{block(c, name, cfg, in[0], in[1], ml.Reshape(in[2], 1, 6*cfg.Dim()), rotary(in[3], in[4]))}
		})
	}
	run("blocks.0.attn1", []string{"hidden_states", cos, sin}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
		defer c.Enter("blocks.0")()
		return []*ml.Node{attention(c, "attn1", cfg, in[0], in[0], rotary(in[1], in[2]))}
	})
	run("blocks.2.attn2", []string{"hidden_states", "encoder_hidden_states"}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
		defer c.Enter("blocks.2")()
		return []*ml.Node{attention(c, "attn2", cfg, in[0], in[1], nil)}
	})
	run("blocks.0.ffn", []string{"hidden_states"}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
		return []*ml.Node{nn.FeedForward(c, "blocks.0.ffn", in[0], cfg.FFNDim, "gelu-approximate")}
	})
	seen["rope"] = true
	t.Run("rope", func(t *testing.T) {
		g := g.In(t)
		d := g.F32("blocks/transformer.rope/in/hidden_states").Shape().Dimensions
		cos, sin := RoPE(cfg, d[2], d[3]/2, d[4]/2)
		g.CheckValues("cos", cos, tensors.MustCopyFlatData[float32](g.F32("blocks/transformer.rope/out/0")))
		g.CheckValues("sin", sin, tensors.MustCopyFlatData[float32](g.F32("blocks/transformer.rope/out/1")))
	})
	for _, module := range g.Blocks("transformer") {
		if !seen[module] {
			t.Errorf("the recorded module %s is not compared", module)
		}
	}
}

// TestTimestepPerToken compares a call with a timestep for each token: the same for all, as the text-to-video pipeline gives them, and 0 for the first
// frame's. One timestep for all tokens must give what the same for each does, for that is what the pipeline uses.
func TestTimestepPerToken(t *testing.T) {
	g := golden.OpenCarried(t, "wan-ti2v")
	cfg := golden.Parse(t, ParseConfig, g.Config("transformer"))
	n, inputs := call(g, cfg, "a", "0", dtypes.Float32)
	g.Check("a/transformer/0/out/0", g.Run("transformer", n, inputs)[0])
	d := g.F32("a/noise").Shape().Dimensions
	n = New(cfg, Options{Batch: 1, TextLength: 24, Frames: d[2], Height: d[3], Width: d[4], TimestepPerToken: true}, dtypes.Float32)
	for timestep, out := range map[string]string{"a/transformer/0/in/timestep": "a/transformer/0/out/0", "tokens/timestep": "tokens/out"} {
		inputs["timestep"] = g.F32(timestep)
		g.Check(out, g.Run("transformer", n, inputs)[0])
	}
}

// TestHalf computes the first call of run a in half precision, as recorded and with latents and text of another size, as far as half precisions
// reach: the stream's sums and norms would not survive it outside float32. PyTorch's distances from float32 are 0.0147, 0.0099 and 0.0019.
func TestHalf(t *testing.T) {
	g, cfg := open(t, "wan-t2v")
	for _, tc := range []struct {
		name  string
		dtype graph.DType
		scale float64
		limit float64 // of the root mean square distance from float32, as a part of the result's
	}{
		{"bfloat16", dtypes.BFloat16, 1, 0.02},
		{"bfloat16, large", dtypes.BFloat16, 1e6, 0.02},
		{"float16", dtypes.Float16, 1, 0.003},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := g.In(t)
			results := map[graph.DType]golden.Output{}
			for _, dtype := range []graph.DType{dtypes.Float32, tc.dtype} {
				n, inputs := call(g, cfg, "a", "0", dtype)
				build := n.Build
				n.Build = func(c *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
					scaled := map[string]*ml.Node{}
					for name, x := range in {
						scaled[name] = x
						if strings.HasSuffix(name, "hidden_states") {
							scaled[name] = ml.MulScalar(x, tc.scale)
						}
					}
					return build(c, scaled)
				}
				results[dtype] = g.Run("transformer", n, inputs)[0]
			}
			want := tensors.MustCopyFlatData[float32](results[dtypes.Float32][0].Tensor)
			for _, side := range results[tc.dtype] {
				if got := side.Tensor.DType(); got != tc.dtype {
					t.Fatalf("the result on side %s is %s, want %s", side.Name, got, tc.dtype)
				}
				var off, all float64
				for i, v := range floats(side.Tensor) {
					off += (v - float64(want[i])) * (v - float64(want[i]))
					all += float64(want[i]) * float64(want[i])
				}
				relative := math.Sqrt(off / all)
				t.Logf("%s: %.3g from float32", side.Name, relative)
				if !(relative <= tc.limit) {
					t.Errorf("%s: %.3g from float32, wanted at most %g", side.Name, relative, tc.limit)
				}
			}
		})
	}
}

func floats(x *tensors.Tensor) []float64 {
	var out []float64
	switch x.DType() {
	case dtypes.BFloat16:
		for _, v := range tensors.MustCopyFlatData[bfloat16.BFloat16](x) {
			out = append(out, float64(v.Float32()))
		}
	case dtypes.Float16:
		for _, v := range tensors.MustCopyFlatData[float16.Float16](x) {
			out = append(out, float64(v.Float32()))
		}
	}
	return out
}

// TestIslands checks which weights stay in float32 in a bfloat16 program: those of _keep_in_fp32_modules.
func TestIslands(t *testing.T) {
	c, err := checkpoint.ParseConfig("config.json", []byte(`{"num_layers": 1, "num_attention_heads": 2, "attention_head_dim": 12, "ffn_dim": 8, "text_dim": 8}`))
	if err != nil {
		t.Fatal(err)
	}
	m, err := trace.Trace(New(golden.Parse(t, ParseConfig, c), Options{Batch: 1, TextLength: 4, Frames: 1, Height: 2, Width: 2}, dtypes.BFloat16))
	if err != nil {
		t.Fatal(err)
	}
	wide := 0
	for _, p := range m.Entry().Params {
		if p.Kind != graph.Weight {
			continue
		}
		want := dtypes.BFloat16
		for _, part := range strings.Split(p.Name, ".") {
			switch part {
			case "time_embedder", "scale_shift_table", "norm1", "norm2", "norm3":
				want = dtypes.Float32
				wide++
			}
		}
		if got := p.Value.Shape.DType; got != want {
			t.Errorf("%s is %s, want %s", p.Name, got, want)
		}
	}
	if wide != 8 {
		t.Errorf("%d weights in float32, want 8", wide)
	}
}

func TestParseConfig(t *testing.T) {
	for _, tc := range []struct{ name, json, want string }{
		{"defaults", `{}`, ""},
		{"null", `{"out_channels": null, "image_dim": null, "added_kv_proj_dim": null, "pos_embed_seq_len": null}`, ""},
		{"layers", `{"num_layers": -3}`, "config.json: num_layers: found -3, wanted 0 to 1000"},
		{"heads", `{"num_attention_heads": 5000}`, "config.json: num_attention_heads: found 5000, wanted at most 4096"},
		{"no frequency", `{"freq_dim": 1}`, "config.json: freq_dim: found 1, wanted 2 or more: a sine and a cosine"},
		{"odd head", `{"attention_head_dim": 15}`, "config.json: attention_head_dim: found 15, wanted an even number: positions turn pairs of channels"},
		{"patch", `{"patch_size": [2, 2]}`, "config.json: patch_size: found [2 2], wanted 3 numbers up to 64: time, height, width"},
		{"norm", `{"qk_norm": "layer_norm"}`, `config.json: qk_norm: found "layer_norm", wanted one of rms_norm_across_heads`},
		{
			"image", `{"image_dim": 1280, "added_kv_proj_dim": 5120}`,
			"config.json: image_dim: not supported: found 1280, wanted null: a transformer that takes an image (image-to-video) is not one of text-to-video\n" +
				"config.json: added_kv_proj_dim: not supported: found 5120, wanted null: a transformer that takes an image (image-to-video) is not one of text-to-video",
		},
		{"several", `{"in_channels": 0, "eps": -1}`, "config.json: in_channels: found 0, wanted an integer of 1 or more\nconfig.json: eps: found -1, wanted a number above 0"},
	} {
		t.Run(tc.name, func(t *testing.T) { golden.CheckConfig(t, ParseConfig, tc.json, tc.want) })
	}
	c, err := checkpoint.ParseConfig("config.json", []byte(`{"in_channels": 48, "out_channels": null}`))
	if err != nil {
		t.Fatal(err)
	}
	if cfg := golden.Parse(t, ParseConfig, c); cfg.OutChannels != 48 {
		t.Errorf("out_channels null with in_channels 48 is %d", cfg.OutChannels)
	}
}

// TestTracePublished traces the published models in bfloat16 for 81 frames of 720 x 1280 pixels (5B: 121 of 704 x 1280) from their configs alone; the numbers
// of weights and parameters are those of the classes in diffusers.
func TestTracePublished(t *testing.T) {
	for _, tc := range []struct {
		name, json                     string
		frames, height, width, factor  int
		keys, parameters, secondsLimit int
	}{
		{"2.1 T2V 1.3B", `{"num_attention_heads": 12, "ffn_dim": 8960, "num_layers": 30}`, 21, 480, 832, 8, 825, 1418996800, 1},
		{"2.1 T2V 14B and each expert of 2.2 A14B", `{}`, 21, 720, 1280, 8, 1095, 14288491584, 2},
		{
			"2.2 TI2V 5B", `{"num_attention_heads": 24, "ffn_dim": 14336, "num_layers": 30, "in_channels": 48, "out_channels": 48}`,
			31, 704, 1280, 16, 825, 4999787712, 1,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := checkpoint.ParseConfig("config.json", []byte(tc.json))
			if err != nil {
				t.Fatal(err)
			}
			o := Options{Batch: 1, TextLength: 512, Frames: tc.frames, Height: tc.height / tc.factor, Width: tc.width / tc.factor, TimestepPerToken: tc.factor == 16}
			n := New(golden.Parse(t, ParseConfig, c), o, dtypes.BFloat16)
			start := time.Now()
			m, err := trace.Trace(n)
			if err != nil {
				t.Fatal(err)
			}
			took := time.Since(start)
			parameters, keys := 0, 0
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
			if limit := time.Duration(tc.secondsLimit) * time.Second; took > limit {
				t.Errorf("tracing took %v, want under %v", took, limit)
			}
			for _, node := range m.Entry().Nodes {
				if lit, ok := node.Attrs.Get("value").(graph.Literal); ok && len(lit.Data) > 4096 {
					t.Errorf("a constant of %d bytes at %q", len(lit.Data), node.Scope)
				}
			}
		})
	}
}
