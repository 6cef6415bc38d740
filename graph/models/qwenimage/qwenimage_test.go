package qwenimage

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

// TestGolden compares the first call of each run and, in the runs with guidance, that for the negative prompt. diffusers makes the text as long as its prompt; here
// it is padded to one length, with other values than zero in the padding, which must not matter.
func TestGolden(t *testing.T) {
	for _, tc := range []struct {
		set, run string
		calls    int
	}{{"tiny/qwen-image", "a", 2}, {"tiny/qwen-image", "b", 1}, {"tiny/qwen-image", "batch2", 2}, {"tiny/tp-qwen", "a", 2}} {
		for call := range tc.calls {
			t.Run(fmt.Sprintf("%s/%s/%d", tc.set, tc.run, call), func(t *testing.T) {
				ref := golden.Open(t, tc.set)
				want := fmt.Sprintf("%s/transformer/%d/out/0", tc.run, call)
				if !ref.Has(want) {
					t.Skipf("no reference: this part of the set lacks %s", want)
				}
				cfg := golden.Parse(t, ParseConfig, ref.Config("transformer"))
				noise := ref.F32(tc.run + "/noise").Shape()
				batch, h, w := noise.Dim(0), noise.Dim(2)/2, noise.Dim(3)/2
				prefix := fmt.Sprintf("%s/encode_prompt/%d/prompt_embeds", tc.run, call)
				const length = 96
				text, mask := padded(ref, prefix, length)
				timestep := tensors.MustCopyFlatData[float32](ref.F32(tc.run + "/step_timesteps"))[0] / 1000
				inputs := map[string]*tensors.Tensor{
					"hidden_states":              ref.F32(tc.run + "/latents_init"),
					"encoder_hidden_states":      text,
					"encoder_hidden_states_mask": mask,
					"timestep":                   tensors.FromValue(slices.Repeat([]float32{timestep}, batch)),
				}
				for _, name := range []string{"hidden_states", "timestep"} {
					if recorded := fmt.Sprintf("%s/transformer/%d/in/%s", tc.run, call, name); ref.Has(recorded) {
						ref.CheckTensor(recorded, recorded, inputs[name])
					}
				}
				cos, sin := RoPE(cfg, length, h, w)
				inputs["rotary_cos"] = tensors.FromFlatDataAndDimensions(cos, length+h*w, cfg.HeadDim)
				inputs["rotary_sin"] = tensors.FromFlatDataAndDimensions(sin, length+h*w, cfg.HeadDim)
				n := New(cfg, Options{Batch: batch, TextLength: length, ImageLength: h * w}, dtypes.Float32)
				out := ref.Run("transformer", n, inputs)
				ref.Check(want, out[0])
			})
		}
	}
}

// padded is a golden [B, L, C] with its mask (all seen where none is recorded), both padded to length.
func padded(ref *golden.Case, name string, length int) (text, mask *tensors.Tensor) {
	short := ref.F32(name)
	dims := short.Shape().Dimensions
	values := tensors.MustCopyFlatData[float32](short)
	seen := slices.Repeat([]int32{1}, dims[0]*dims[1])
	if ref.Has(name + "_mask") {
		seen = tensors.MustCopyFlatData[int32](ref.Tensor(name+"_mask", dtypes.Int32))
	}
	long, longSeen := make([]float32, 0, dims[0]*length*dims[2]), make([]int32, 0, dims[0]*length)
	for b := range dims[0] {
		long = append(long, values[b*dims[1]*dims[2]:(b+1)*dims[1]*dims[2]]...)
		longSeen = append(longSeen, seen[b*dims[1]:(b+1)*dims[1]]...)
		for range length - dims[1] {
			long = append(long, slices.Repeat([]float32{3}, dims[2])...)
			longSeen = append(longSeen, 0)
		}
	}
	return tensors.FromFlatDataAndDimensions(long, dims[0], length, dims[2]), tensors.FromFlatDataAndDimensions(longSeen, dims[0], length)
}

func TestGoldenBlocks(t *testing.T) {
	ref := golden.Open(t, "tiny/qwen-image")
	cfg := golden.Parse(t, ParseConfig, ref.Config("transformer"))
	run := func(module string, inputs []string, build func(c *trace.Ctx, in []*ml.Node) []*ml.Node) {
		t.Run(module, func(t *testing.T) { ref.In(t).Block("transformer", "transformer."+module, inputs, build) })
	}
	const imageAngles, textAngles = "image_rotary_emb/0", "image_rotary_emb/1"
	// The reference has complex numbers, [L, D/2] as pairs, and image and text apart.
	rotary := func(image, text *ml.Node) *nn.Rotary {
		joint := ml.Concatenate([]*ml.Node{text, image}, 0)
		twice := func(part int) *ml.Node {
			x := ml.Slice(joint, ml.AxisRange(), ml.AxisRange(), ml.AxisRange(part, part+1))
			x = ml.BroadcastToDims(x, x.Shape().Dim(0), x.Shape().Dim(1), 2)
			return ml.Reshape(x, x.Shape().Dim(0), cfg.HeadDim)
		}
		return nn.NewRotary(twice(0), twice(1))
	}
	run("time_text_embed", []string{"timestep"}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
		return []*ml.Node{timeTextEmbed(c, "time_text_embed", in[0], cfg.Dim())}
	})
	for _, i := range []int{0, cfg.Layers - 1} {
		module := fmt.Sprintf("transformer_blocks.%d", i)
		run(module, []string{"hidden_states", "encoder_hidden_states", "temb", imageAngles, textAngles}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
			text, image := block(c, module, in[0], in[1], in[2], cfg.attention(rotary(in[3], in[4])))
			return []*ml.Node{text, image}
		})
	}
	run("transformer_blocks.0.attn", []string{"hidden_states", "encoder_hidden_states", imageAngles, textAngles}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
		image, text := nn.JointAttention(c, "transformer_blocks.0.attn", in[0], in[1], cfg.attention(rotary(in[2], in[3])))
		return []*ml.Node{image, text}
	})
	run("transformer_blocks.0.img_mlp", []string{"hidden_states"}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
		return []*ml.Node{nn.FeedForward(c, "transformer_blocks.0.img_mlp", in[0], 4*cfg.Dim(), "gelu-approximate")}
	})
	run("norm_out", []string{"x", "conditioning_embedding"}, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
		return []*ml.Node{nn.AdaLayerNormContinuous(c, "norm_out", in[0], in[1], 1e-6, true)}
	})
	t.Run("rotary tables", func(t *testing.T) {
		ref := ref.In(t)
		// Run a: 64 x 96 pixels are 4 x 6 tokens.
		const from = "blocks/transformer.transformer_blocks.0.attn/in/"
		text, image := ref.F32(from+textAngles), ref.F32(from+imageAngles)
		values := append(tensors.MustCopyFlatData[float32](text), tensors.MustCopyFlatData[float32](image)...)
		wantCos, wantSin := []float32{}, []float32{}
		for i := 0; i < len(values); i += 2 {
			wantCos = append(wantCos, values[i], values[i])
			wantSin = append(wantSin, values[i+1], values[i+1])
		}
		cos, sin := RoPE(cfg, text.Shape().Dim(0), 4, 6)
		ref.CheckValues("cos", cos, wantCos)
		ref.CheckValues("sin", sin, wantSin)
	})
}

// TestRoPEPositions has odd sides, which the goldens lack: with angles of one radian a position the tables tell the positions.
func TestRoPEPositions(t *testing.T) {
	// Each axis has one pair of channels, so its frequency is 1.
	cos, sin := RoPE(Config{HeadDim: 6, Heads: 1, RoPEAxes: []int{2, 2, 2}}, 2, 3, 5)
	wantText := [][3]int{{2, 2, 2}, {3, 3, 3}}
	var want [][3]int
	want = append(want, wantText...)
	for _, y := range []int{-2, -1, 0} {
		for _, x := range []int{-3, -2, -1, 0, 1} {
			want = append(want, [3]int{0, y, x})
		}
	}
	for i, position := range want {
		for axis, p := range position {
			wantSin, wantCos := sincos(p)
			if at := 6*i + 2*axis; cos[at] != wantCos || sin[at] != wantSin || cos[at+1] != wantCos || sin[at+1] != wantSin {
				t.Errorf("token %d, axis %d: found cos %v and sin %v, wanted those of %d", i, axis, cos[at:at+2], sin[at:at+2], p)
			}
		}
	}
	if len(cos) != 6*len(want) {
		t.Errorf("found %d numbers, wanted %d", len(cos), 6*len(want))
	}
}

func sincos(position int) (sin, cos float32) {
	s, c := math.Sincos(float64(position))
	return float32(s), float32(c)
}

func TestParseConfig(t *testing.T) {
	for _, tc := range []struct{ name, json, want string }{
		{"defaults", `{}`, ""},
		{"null", `{"out_channels": null, "num_layers": null}`, ""},
		{"edit", `{"zero_cond_t": true}`, ""},
		{"negative layers", `{"num_layers": -3}`, "config.json: num_layers: found -3, wanted an integer of 1 or more"},
		{"absurd layers", `{"num_layers": 100000}`, "config.json: num_layers: found 100000, wanted at most 1000"},
		{"odd axes", `{"axes_dims_rope": [15, 57, 56]}`, "config.json: axes_dims_rope: found [15 57 56], wanted even numbers"},
		{"axes", `{"axes_dims_rope": [16, 112]}`, "config.json: axes_dims_rope: found [16 112], wanted 3 numbers with the sum attention_head_dim 128"},
		{"head", `{"attention_head_dim": 64}`, "config.json: axes_dims_rope: found [16 56 56], wanted 3 numbers with the sum attention_head_dim 64"},
		{
			"guidance", `{"guidance_embeds": true}`,
			"config.json: guidance_embeds: not supported: found true, wanted false (the model has no layer that takes a guidance scale, in diffusers either)",
		},
		{"layers", `{"use_layer3d_rope": true}`, "config.json: use_layer3d_rope: not supported: found true, wanted false (it is for pictures in layers)"},
		{"condition", `{"use_additional_t_cond": true}`, "config.json: use_additional_t_cond: not supported: found true, wanted false (it is for pictures in layers)"},
		{"text", `{"zero_cond_t": "yes"}`, `config.json: zero_cond_t: found the string "yes", wanted true or false`},
	} {
		t.Run(tc.name, func(t *testing.T) { golden.CheckConfig(t, ParseConfig, tc.json, tc.want) })
	}
}

// published is the config of Qwen-Image.
const published = `{"_class_name": "QwenImageTransformer2DModel", "attention_head_dim": 128, "axes_dims_rope": [16, 56, 56], "guidance_embeds": false,
	"in_channels": 64, "joint_attention_dim": 3584, "num_attention_heads": 24, "num_layers": 60, "out_channels": 16, "patch_size": 2}`

// TestTracePublished traces the whole of Qwen-Image at 1024x1024 in bfloat16 from its config alone.
func TestTracePublished(t *testing.T) {
	c, err := checkpoint.ParseConfig("config.json", []byte(published))
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	m, err := trace.Trace(New(golden.Parse(t, ParseConfig, c), Options{Batch: 1, TextLength: 512, ImageLength: 64 * 64}, dtypes.BFloat16))
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
	if parameters != 20430401088 {
		t.Errorf("%d parameters, want the published 20430401088", parameters)
	}
}
