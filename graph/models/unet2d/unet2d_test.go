package unet2d

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/gobackend"
	"github.com/gomlx/compute/shapes"
	ml "github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/models/golden"
	"precast/graph/trace"
)

// The configs of published models, as far as they differ from the defaults.
const (
	sd15 = `{"_class_name": "UNet2DConditionModel", "cross_attention_dim": 768, "sample_size": 64, "attention_head_dim": 8}`
	sd21 = `{"_class_name": "UNet2DConditionModel", "cross_attention_dim": 1024, "sample_size": 96, "attention_head_dim": [5, 10, 20, 20],
		"use_linear_projection": true, "upcast_attention": true, "only_cross_attention": false, "num_class_embeds": null, "dual_cross_attention": false}`
	sdxl = `{"_class_name": "UNet2DConditionModel", "cross_attention_dim": 2048, "sample_size": 128, "attention_head_dim": [5, 10, 20],
		"block_out_channels": [320, 640, 1280], "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
		"up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"], "transformer_layers_per_block": [1, 2, 10],
		"use_linear_projection": true, "addition_embed_type": "text_time", "addition_time_embed_dim": 256,
		"projection_class_embeddings_input_dim": 2816}`
)

func parse(t *testing.T, text string) (Config, error) {
	t.Helper()
	cfg, err := checkpoint.ParseConfig("unet/config.json", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return ParseConfig(cfg)
}

// weightShapes builds n and returns the shapes of the weights it asks for, by key, and the number of their elements.
func weightShapes(t *testing.T, n trace.Network) (shapes map[string]string, elements int) {
	t.Helper()
	g := ml.NewGraph(gobackend.GetBackend(), n.Name)
	defer g.Finalize()
	c := trace.NewCtx(g, n.DType, nil)
	in := map[string]*ml.Node{}
	for _, i := range n.Inputs {
		in[i.Name] = ml.Parameter(g, i.Name, i.Shape)
	}
	n.Build(c, in)
	shapes = map[string]string{}
	for i := range g.NumParameters() {
		p := g.GetParameterByHandle(ml.ParameterHandle(i))
		if key, ok := strings.CutPrefix(p.GetParameterName(), trace.WeightPrefix); ok {
			shapes[key] = fmt.Sprint(p.Shape().Dimensions)
			elements += p.Shape().Size()
		}
	}
	return shapes, elements
}

// TestPublishedModels compares the number of weights with those of the published checkpoints.
func TestPublishedModels(t *testing.T) {
	for _, tc := range []struct {
		name, config      string
		tensors, elements int
		inputs            int
	}{
		{"Stable Diffusion 1.5", sd15, 686, 859_520_964, 3},
		{"Stable Diffusion 2.1", sd21, 686, 865_910_724, 3},
		{"SDXL", sdxl, 1680, 2_567_463_684, 5},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg, err := parse(t, tc.config)
			if err != nil {
				t.Fatal(err)
			}
			n := New(cfg, Sizes{Batch: 2, Height: cfg.SampleSize[0], Width: cfg.SampleSize[1], SequenceLength: 77, DType: dtypes.BFloat16})
			shapes, elements := weightShapes(t, n)
			if len(shapes) != tc.tensors || elements != tc.elements {
				t.Errorf("found %d weights with %d elements, the checkpoint has %d with %d", len(shapes), elements, tc.tensors, tc.elements)
			}
			if len(n.Inputs) != tc.inputs {
				t.Errorf("found %d inputs, wanted %d", len(n.Inputs), tc.inputs)
			}
		})
	}
}

// TestTracePublishedModels bounds what tracing costs: a whole model from its config alone.
func TestTracePublishedModels(t *testing.T) {
	for name, config := range map[string]string{"Stable Diffusion 1.5": sd15, "SDXL": sdxl} {
		t.Run(name, func(t *testing.T) {
			cfg, err := parse(t, config)
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			m, err := trace.Trace(New(cfg, Sizes{Batch: 2, Height: 64, Width: 96, SequenceLength: 77, DType: dtypes.BFloat16}))
			if err != nil {
				t.Fatalf("%+v", err)
			}
			if d := time.Since(start); d > time.Second {
				t.Errorf("tracing took %v, wanted at most 1s", d)
			}
			if got, want := m.Entry().Results[0].Shape, shapes.Make(dtypes.BFloat16, 2, 4, 64, 96); !got.Equal(want) {
				t.Errorf("the result has shape %s, wanted %s", got, want)
			}
			for _, n := range m.Entry().Nodes {
				if strings.HasPrefix(n.Scope, "mid_block.attentions.0.transformer_blocks.0.attn2.to_k") {
					return
				}
			}
			t.Error("no node has the scope mid_block.attentions.0.transformer_blocks.0.attn2.to_k")
		})
	}
}

// TestNoUnreadFields checks that ParseConfig knows each field of diffusers' own config files.
func TestNoUnreadFields(t *testing.T) {
	for _, name := range cases {
		cfg := golden.Open(t, "tiny/"+name).Config("unet")
		if _, err := ParseConfig(cfg); err != nil {
			t.Fatal(err)
		}
		if unread := cfg.Unread(); len(unread) > 0 {
			t.Errorf("%s: fields that nothing reads: %v", name, unread)
		}
	}
}

// TestVariants builds the options that no golden has and checks the weights they add or drop.
func TestVariants(t *testing.T) {
	build := func(t *testing.T, more string) map[string]string {
		cfg, err := parse(t, "{"+small+more+"}")
		if err != nil {
			t.Fatal(err)
		}
		shapes, _ := weightShapes(t, New(cfg, Sizes{Batch: 2, Height: 5, Width: 6, SequenceLength: 7, DType: dtypes.Float32}))
		return shapes
	}
	base := build(t, "")
	for _, tc := range []struct {
		name, more, key, want string
	}{
		{"no mid block", `, "mid_block_type": null`, "mid_block.resnets.0.conv1.weight", ""},
		{"plain mid block", `, "mid_block_type": "UNetMidBlock2D"`, "mid_block.resnets.1.conv1.weight", ""},
		{"text projection", `, "encoder_hid_dim": 40, "encoder_hid_dim_type": "text_proj"`, "encoder_hid_proj.weight", "[24 40]"},
		{"text projection by width alone", `, "encoder_hid_dim": 40`, "encoder_hid_proj.weight", "[24 40]"},
		{"scale and shift", `, "resnet_time_scale_shift": "scale_shift"`, "mid_block.resnets.0.time_emb_proj.weight", "[128 128]"},
		{"wider time embedding", `, "time_embedding_dim": 96`, "mid_block.resnets.0.time_emb_proj.weight", "[64 96]"},
		{"linear projection", `, "use_linear_projection": true`, "mid_block.attentions.0.proj_in.weight", "[64 64]"},
		{"only cross attention", `, "only_cross_attention": [true, false]`, "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_k.weight", "[32 24]"},
		{"only cross attention, up", `, "only_cross_attention": [true, false]`, "up_blocks.1.attentions.2.transformer_blocks.0.attn1.to_k.weight", "[32 24]"},
		{"layers", `, "layers_per_block": [1, 3]`, "up_blocks.0.resnets.3.conv1.weight", "[64 96 3 3]"},
		{"kernels", `, "conv_in_kernel": 5, "conv_out_kernel": 1`, "conv_in.weight", "[32 4 5 5]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := build(t, tc.more)[tc.key]; got != tc.want {
				t.Errorf("%s has shape %q, wanted %q", tc.key, got, tc.want)
			}
			if base[tc.key] == tc.want {
				t.Errorf("the case shows nothing: the plain network has %s %q too", tc.key, tc.want)
			}
		})
	}
}

// small is a UNet with one of each block, for tests that build it many times.
const small = `"block_out_channels": [32, 64], "attention_head_dim": 4, "cross_attention_dim": 24, "norm_eps": 0.25,
	"down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"], "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"]`

func traceSmall(t *testing.T, more string) *graph.Func {
	t.Helper()
	cfg, err := parse(t, "{"+small+more+"}")
	if err != nil {
		t.Fatal(err)
	}
	m, err := trace.Trace(New(cfg, Sizes{Batch: 2, Height: 5, Width: 6, SequenceLength: 7, DType: dtypes.BFloat16}))
	if err != nil {
		t.Fatal(err)
	}
	return m.Entry()
}

// TestNodes checks the options whose only trace is an operation: it is there with the option and not without.
func TestNodes(t *testing.T) {
	base := traceSmall(t, "")
	for _, tc := range []struct {
		more  string
		op    graph.Op
		scope string
		dims  []int
		dtype graph.DType
	}{
		{`, "mid_block_scale_factor": 3`, graph.OpMul, "mid_block.resnets.0", []int{2, 3, 3, 64}, dtypes.BFloat16},
		{`, "mid_block_scale_factor": 3`, graph.OpMul, "mid_block.resnets.1", []int{2, 3, 3, 64}, dtypes.BFloat16},
		{`, "timestep_post_act": "gelu"`, graph.OpErf, "", []int{1, 128}, dtypes.Float32},
		{`, "time_embedding_act_fn": "gelu"`, graph.OpErf, "", []int{1, 128}, dtypes.Float32},
		{`, "upcast_attention": true`, graph.OpDot, "mid_block.attentions.0.transformer_blocks.0.attn1", []int{2, 4, 9, 9}, dtypes.Float32},
		{`, "center_input_sample": true`, graph.OpMul, "", []int{2, 5, 6, 4}, dtypes.BFloat16},
	} {
		t.Run(tc.more+" "+tc.scope, func(t *testing.T) {
			has := func(f *graph.Func) bool {
				return slices.ContainsFunc(f.Nodes, func(n *graph.Node) bool {
					return n.Op == tc.op && n.Scope == tc.scope && n.Results[0].Shape.Equal(shapes.Make(tc.dtype, tc.dims...))
				})
			}
			if has(base) {
				t.Error("the network has the operation without the option")
			}
			if !has(traceSmall(t, tc.more)) {
				t.Errorf("no %s of %s%v in scope %q", tc.op, tc.dtype, tc.dims, tc.scope)
			}
		})
	}
}

// TestNormEps reads the epsilon of every norm from the graph: on activations of unit variance a wrong one does not show.
func TestNormEps(t *testing.T) {
	want := map[string]float32{"norm": 1e-6, "norm1": 0.25, "norm2": 0.25, "conv_norm_out": 0.25}
	norms := 0
	for _, n := range traceSmall(t, "").Nodes {
		if n.Op != graph.OpRsqrt {
			continue
		}
		norms++
		eps := want[n.Scope[strings.LastIndex(n.Scope, ".")+1:]]
		if strings.Contains(n.Scope, "transformer_blocks") {
			eps = 1e-5
		}
		add := n.Operands[0].Def
		v := add.Operands[1]
		for v.Def != nil && len(v.Def.Operands) == 1 {
			v = v.Def.Operands[0]
		}
		if add.Op != graph.OpAdd || v.Def == nil || v.Def.Op != graph.OpConstant {
			t.Fatalf("%s: found no constant added under the root", n.Scope)
		}
		data := v.Def.Attrs.Get("value").(graph.Literal).Data
		if got := math.Float32frombits(binary.LittleEndian.Uint32(data)); got != eps {
			t.Errorf("%s: found epsilon %g, wanted %g", n.Scope, got, eps)
		}
	}
	// 2 a ResNet block (4 down, 2 mid, 6 up), 4 a transformer (2 down, 1 mid, 3 up), 1 at the end.
	if want := 2*12 + 4*6 + 1; norms != want {
		t.Errorf("found %d norms, wanted %d", norms, want)
	}
}

// TestCenterInputSample checks that the option is 2x - 1: the centred network on x is the plain one on 2x - 1.
func TestCenterInputSample(t *testing.T) {
	const plain = `"block_out_channels": [32], "attention_head_dim": 4, "cross_attention_dim": 8, "mid_block_type": null, "layers_per_block": 1,
		"down_block_types": ["DownBlock2D"], "up_block_types": ["UpBlock2D"]`
	run := func(more string, f func(x float32) float32) []float32 {
		cfg, err := parse(t, "{"+plain+more+"}")
		if err != nil {
			t.Fatal(err)
		}
		x := make([]float32, 4*3*3)
		for i := range x {
			x[i] = f(float32(i%7) * 0.25)
		}
		out, err := trace.Evaluate(nil, New(cfg, Sizes{Batch: 1, Height: 3, Width: 3, SequenceLength: 1, DType: dtypes.Float32}), ramps,
			map[string]*tensors.Tensor{
				"sample": tensors.FromFlatDataAndDimensions(x, 1, 4, 3, 3), "timestep": tensors.FromScalar(float32(3)),
				"encoder_hidden_states": tensors.FromShape(shapes.Make(dtypes.Float32, 1, 1, 8)),
			})
		if err != nil {
			t.Fatal(err)
		}
		return tensors.MustCopyFlatData[float32](out[0])
	}
	centred := run(`, "center_input_sample": true`, func(x float32) float32 { return x })
	if got, want := fmt.Sprint(centred), fmt.Sprint(run("", func(x float32) float32 { return 2*x - 1 })); got != want {
		t.Errorf("centred:\n%s\nwanted:\n%s", got, want)
	}
	if fmt.Sprint(centred) == fmt.Sprint(run("", func(x float32) float32 { return x })) {
		t.Error("the option changes nothing")
	}
}

// ramps are weights without meaning, different everywhere.
func ramps(_ string, shape graph.Shape) (*tensors.Tensor, error) {
	v := make([]float32, shape.Size())
	for i := range v {
		v[i] = float32(i*7919%101-50) / 500
	}
	return tensors.FromFlatDataAndDimensions(v, shape.Dimensions...), nil
}

// TestOlderClassNames has the block classes under the names that diffusers still takes.
func TestOlderClassNames(t *testing.T) {
	got, err := parse(t, `{"down_block_types": ["UNetResCrossAttnDownBlock2D", "UNetResCrossAttnDownBlock2D", "CrossAttnDownBlock2D", "UNetResDownBlock2D"]}`)
	if err != nil {
		t.Fatal(err)
	}
	if want, _ := parse(t, "{}"); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("found  %+v\nwanted %+v", got, want)
	}
}

func TestParseConfigErrors(t *testing.T) {
	for _, tc := range []struct{ config, want string }{
		{`{"layers_per_block": -3}`, "layers_per_block: found -3, wanted a number from 1 to 256"},
		{`{"layers_per_block": 100000000}`, "layers_per_block: found 100000000, wanted a number from 1 to 256"},
		{`{"layers_per_block": [2, 2]}`, "layers_per_block: found 2 numbers, wanted one, or one a block of down_block_types: 4"},
		{`{"layers_per_block": "two"}`, `layers_per_block: found the string "two", wanted an integer or a list of integers`},
		{`{"transformer_layers_per_block": 0}`, "transformer_layers_per_block: found 0, wanted a number from 1 to 256"},
		{`{"transformer_layers_per_block": [[1, 1], 1, 1, 1]}`, "transformer_layers_per_block: not supported: found [[1, 1], 1, 1, 1], wanted one number a block"},
		{`{"block_out_channels": [320, 640]}`, "block_out_channels: found 2 numbers, wanted one a block of down_block_types: 4"},
		{`{"block_out_channels": [320, 640, 1280, 1288]}`, "norm_num_groups: found 32, wanted a divisor of block_out_channels[3], 1288"},
		{`{"block_out_channels": []}`, "block_out_channels: found an empty list, wanted a list of one or more integers, each 1 or more"},
		{`{"block_out_channels": [320, -640, 1280, 1280]}`, "block_out_channels[1]: found -640, wanted a list of one or more integers, each 1 or more"},
		{`{"down_block_types": []}`, "down_block_types: found an empty list, wanted one or more of CrossAttnDownBlock2D, DownBlock2D"},
		{`{"down_block_types": ["DownBlock2D", "AttnDownBlock2D", "DownBlock2D", "DownBlock2D"]}`, `down_block_types[1]: not supported: found "AttnDownBlock2D", wanted one of CrossAttnDownBlock2D, DownBlock2D`},
		{`{"up_block_types": ["UpBlock2D"]}`, "up_block_types: found 1 blocks, wanted as many as down_block_types: 4"},
		{`{"mid_block_type": "UNetMidBlock2DSimpleCrossAttn"}`, `mid_block_type: not supported: found "UNetMidBlock2DSimpleCrossAttn", wanted one of UNetMidBlock2DCrossAttn, UNetMidBlock2D`},
		{`{"attention_head_dim": [7, 8, 8, 8]}`, "attention_head_dim: found 7 heads for block 0, wanted a divisor of its 320 channels (the field is the number of heads)"},
		{`{"attention_head_dim": 0}`, "attention_head_dim: found 0, wanted a number from 1 to 16777216"},
		{`{"num_attention_heads": 8}`, "num_attention_heads: not supported: found 8; diffusers refuses this field, the number of heads is given as attention_head_dim"},
		{`{"cross_attention_dim": [768, 768, 768, 1024]}`, "cross_attention_dim: not supported: found [768 768 768 1024], wanted one width for all blocks"},
		{`{"only_cross_attention": [true]}`, "only_cross_attention: found 1 values, wanted one a block of down_block_types: 4"},
		{`{"norm_num_groups": null}`, "norm_num_groups: not supported: found null, wanted a number of groups"},
		{`{"norm_eps": 0}`, "norm_eps: found 0, wanted a number above 0"},
		{`{"act_fn": "mish"}`, `act_fn: not supported: found "mish", wanted one of silu, swish`},
		{`{"downsample_padding": 2}`, "downsample_padding: found 2, wanted 0 or 1"},
		{`{"conv_in_kernel": 4}`, "conv_in_kernel: not supported: found 4, wanted an odd size"},
		{`{"sample_size": [64]}`, ""},
		{`{"sample_size": [64, 0]}`, "sample_size: found [64 0], wanted one positive number or a height and a width"},
		{`{"sample_size": -1}`, "sample_size: found [-1], wanted one positive number or a height and a width"},
		{`{"dual_cross_attention": true}`, "dual_cross_attention: not supported: found true, wanted false"},
		{`{"attention_type": "gated"}`, `attention_type: not supported: found "gated", wanted "default"`},
		{`{"time_embedding_type": "fourier"}`, `time_embedding_type: not supported: found "fourier", wanted "positional"`},
		{`{"time_cond_proj_dim": 256}`, "time_cond_proj_dim: not supported: found 256, wanted null"},
		{`{"class_embed_type": "timestep"}`, `class_embed_type: not supported: found "timestep", wanted null`},
		{`{"num_class_embeds": 1000}`, "num_class_embeds: not supported: found 1000, wanted null"},
		{`{"encoder_hid_dim_type": "text_proj"}`, `encoder_hid_dim: found nothing, wanted the width of the text, for encoder_hid_dim_type is "text_proj"`},
		{`{"encoder_hid_dim": 8, "encoder_hid_dim_type": "image_proj"}`, `encoder_hid_dim_type: not supported: found "image_proj", wanted null or "text_proj"`},
		{`{"addition_embed_type": "image"}`, `addition_embed_type: not supported: found "image", wanted null or "text_time"`},
		{`{"addition_embed_type": "text_time", "projection_class_embeddings_input_dim": 2816}`, "addition_time_embed_dim: found nothing, wanted an integer of 1 or more"},
		{`{"addition_embed_type": "text_time", "addition_time_embed_dim": 256, "projection_class_embeddings_input_dim": 1536}`, "projection_class_embeddings_input_dim: found 1536, wanted the pooled text's width and 6 x addition_time_embed_dim: at least 1537"},
		{`{"freq_shift": 160}`, "freq_shift: found 160, wanted less than half of the embedding's width, 320"},
		{`{"block_out_channels": [1, 32, 32, 32], "norm_num_groups": 1, "attention_head_dim": 1}`, "block_out_channels: found 1, wanted at least 2 for a sinusoidal embedding"},
		{`{"dropout": "much"}`, `dropout: found the string "much", wanted a finite number`},
		{`{"resnet_time_scale_shift": "ada_group"}`, `resnet_time_scale_shift: not supported: found "ada_group", wanted one of default, scale_shift`},
	} {
		t.Run(tc.config, func(t *testing.T) {
			_, err := parse(t, tc.config)
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("found error %v", err)
			case tc.want != "" && err == nil:
				t.Errorf("no error, wanted %s", tc.want)
			case tc.want != "" && err.Error() != "unet/config.json: "+tc.want:
				t.Errorf("found   %v\nwanted  unet/config.json: %s", err, tc.want)
			}
		})
	}
}

// TestParseConfigNull checks that every field may be null, which is its default.
func TestParseConfigNull(t *testing.T) {
	var fields []string
	for _, key := range strings.Fields(`sample_size in_channels out_channels center_input_sample flip_sin_to_cos freq_shift down_block_types
		up_block_types only_cross_attention block_out_channels layers_per_block downsample_padding mid_block_scale_factor dropout act_fn norm_eps
		cross_attention_dim transformer_layers_per_block reverse_transformer_layers_per_block encoder_hid_dim encoder_hid_dim_type
		attention_head_dim num_attention_heads dual_cross_attention use_linear_projection class_embed_type addition_embed_type
		addition_time_embed_dim num_class_embeds upcast_attention resnet_time_scale_shift resnet_skip_time_act resnet_out_scale_factor
		time_embedding_type time_embedding_dim time_embedding_act_fn timestep_post_act time_cond_proj_dim conv_in_kernel conv_out_kernel
		projection_class_embeddings_input_dim attention_type class_embeddings_concat mid_block_only_cross_attention
		cross_attention_norm addition_embed_type_num_heads`) {
		fields = append(fields, fmt.Sprintf("%q: null", key))
	}
	got, err := parse(t, "{"+strings.Join(fields, ", ")+"}")
	if err != nil {
		t.Fatal(err)
	}
	want, err := parse(t, "{}")
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("found  %+v\nwanted %+v", got, want)
	}
}
