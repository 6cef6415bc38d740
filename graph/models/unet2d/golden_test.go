package unet2d

import (
	"fmt"
	"regexp"
	"strconv"
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

var cases = []string{"sd15", "sd2", "sdxl"}

func open(t *testing.T, name string) (*golden.Case, Config) {
	t.Helper()
	g := golden.Open(t, "tiny/"+name)
	if name != "sd15" {
		g.Light()
	}
	cfg, err := ParseConfig(g.Config("unet"))
	if err != nil {
		t.Fatal(err)
	}
	return g, cfg
}

// TestGoldenBlocks runs every recorded module of the UNets on its own recorded inputs.
func TestGoldenBlocks(t *testing.T) {
	for _, name := range cases {
		g, cfg := open(t, name)
		modules := g.Blocks("unet")
		if len(modules) < 19 {
			t.Errorf("%s: found %d recorded modules, wanted 19 or more", name, len(modules))
		}
		for _, module := range modules {
			t.Run(name+"/"+module, func(t *testing.T) { runBlock(t, g.In(t), cfg, module) })
		}
	}
}

func runBlock(t *testing.T, g *golden.Case, cfg Config, module string) {
	full := "unet." + module
	n := trace.Network{Name: full, DType: dtypes.Float32, Outputs: g.BlockTensors(full, "out")}
	values := map[string]*tensors.Tensor{}
	for _, name := range g.BlockTensors(full, "in") {
		v := g.F32("blocks/" + full + "/in/" + name)
		values[name] = v
		n.Inputs = append(n.Inputs, trace.Input{Name: name, Shape: v.Shape()})
	}
	n.Build = func(c *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
		for name, v := range in {
			if v.Rank() == 4 {
				in[name] = nn.ToNHWC(v)
			}
		}
		parent, last := "", module
		if i := strings.LastIndex(module, "."); i > 0 {
			parent, last = module[:i], module[i+1:]
			if _, err := strconv.Atoi(last); err == nil {
				// "resnets.0" is one module: the name of the list and the index.
				i = strings.LastIndex(parent, ".")
				parent, last = module[:max(i, 0)], module[i+1:]
			}
		}
		if parent != "" {
			defer c.Enter(parent)()
		}
		out := build(&model{Config: cfg, Ctx: c}, module, last, in)
		for i, v := range out {
			if v.Rank() == 4 {
				out[i] = nn.ToNCHW(v)
			}
		}
		return out
	}
	for i, got := range g.RunModule("unet", n, values) {
		g.Check("blocks/"+full+"/out/"+n.Outputs[i], got)
	}
}

var blockPath = regexp.MustCompile(`^(down_blocks|up_blocks|mid_block)(?:\.(\d+))?`)

// build computes one module; its parent is entered. name is the module's own name, its last part.
func build(m *model, module, name string, in map[string]*ml.Node) []*ml.Node {
	x, temb, text := in["hidden_states"], in["temb"], in["encoder_hidden_states"]
	kind, digits, _ := strings.Cut(name, ".")
	index, _ := strconv.Atoi(digits)

	// The block that the module lies in, counted as the down blocks are.
	block := len(m.BlockOutChannels) - 1
	if path := blockPath.FindStringSubmatch(module); path != nil && path[1] != "mid_block" {
		i, _ := strconv.Atoi(path[2])
		if path[1] == "up_blocks" {
			i = block - i
		}
		block = i
	}
	one := func(v *ml.Node) []*ml.Node { return []*ml.Node{v} }
	switch kind {
	case "time_proj":
		return one(m.timesteps(in["timesteps"], m.BlockOutChannels[0]))
	case "time_embedding", "add_embedding":
		return one(nn.TimestepEmbedding(m.Ctx, name, in["sample"], m.TimeEmbeddingDim, true))
	case "down_blocks":
		x, states := m.downBlock(index, x, temb, text)
		return append(one(x), states...)
	case "up_blocks":
		var skips []*ml.Node
		for in[fmt.Sprintf("res_hidden_states_tuple/%d", len(skips))] != nil {
			skips = append(skips, in[fmt.Sprintf("res_hidden_states_tuple/%d", len(skips))])
		}
		return one(m.upBlock(index, x, skips, temb, text, [2]int{}))
	case "mid_block":
		return one(m.midBlock(x, temb, text))
	case "resnets":
		return one(m.resnet(index, in["input_tensor"], temb, m.BlockOutChannels[block], 1))
	case "attentions":
		return one(m.transformer2D(index, x, text, block, false))
	case "transformer_blocks":
		return one(m.basicTransformerBlock(index, x, text, m.NumAttentionHeads[block], false))
	case "attn1":
		return one(m.attention(name, x, x, m.NumAttentionHeads[block]))
	case "attn2":
		return one(m.attention(name, x, text, m.NumAttentionHeads[block]))
	case "ff":
		return one(nn.FeedForward(m.Ctx, name, x, 4*x.Shape().Dim(-1), "geglu"))
	case "downsamplers":
		return one(nn.Downsample2D(m.Ctx, name, x, m.BlockOutChannels[block], m.DownsamplePadding))
	case "upsamplers":
		return one(nn.Upsample2D(m.Ctx, name, x, m.BlockOutChannels[block], 0, 0))
	}
	panic(fmt.Sprintf("no code for the recorded module %s", module))
}

// TestGoldenFirstCall is the first denoiser call of each pipeline's run a.
func TestGoldenFirstCall(t *testing.T) {
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			g, cfg := open(t, name)
			inputs := map[string]*tensors.Tensor{}
			for _, in := range []string{"sample", "timestep", "encoder_hidden_states"} {
				inputs[in] = g.F32("a/unet/0/in/" + in)
			}
			if cfg.PooledDim() > 0 {
				for _, in := range []string{"text_embeds", "time_ids"} {
					inputs[in] = g.F32("a/unet/0/in/added_cond_kwargs/" + in)
				}
			}
			n := New(cfg, Sizes{Batch: 2, Height: 8, Width: 12, SequenceLength: 77, DType: dtypes.Float32})
			g.Check("a/unet/0/out/0", g.Run("unet", n, inputs)[0])
		})
	}
}

// TestGoldenRuns is the first denoiser call of sd15's other runs, whose inputs follow from the recorded noise and embeddings: none of their schedulers
// scales the first input. In "odd-size" 72x104 pixels are 9x13 latents, which the UNet's factor 4 does not divide, so that upsampling goes to
// the skip connections' sizes.
func TestGoldenRuns(t *testing.T) {
	for _, tc := range []struct {
		run string
		// own tells that the shapes are not those of run a.
		own bool
	}{
		{"b", true},
		{"c", false},
		{"odd-size", true},
		{"batch2", true},
		{"no-guidance", true},
		{"clip-skip", false},
		{"ddim", false},
		{"euler", false},
		{"euler-a", false},
		{"dpmpp", false},
		{"dpmpp-karras", false},
		{"unipc", false},
	} {
		t.Run(tc.run, func(t *testing.T) {
			g, cfg := open(t, "sd15")
			if tc.own {
				g.Light()
			}
			values := func(name string) []float32 { return tensors.MustCopyFlatData[float32](g.F32(tc.run + "/" + name)) }
			sample, text := values("noise"), values("encode_prompt/0/prompt_embeds")
			if name := "encode_prompt/0/negative_prompt_embeds"; g.Has(tc.run + "/" + name) {
				sample, text = append(sample, sample...), append(values(name), text...)
			}
			d := g.F32(tc.run + "/noise").Shape().Dimensions
			batch := len(sample) / (d[1] * d[2] * d[3])
			n := New(cfg, Sizes{Batch: batch, Height: d[2], Width: d[3], SequenceLength: 77, DType: dtypes.Float32})
			out := g.Run("unet", n, map[string]*tensors.Tensor{
				"sample":                tensors.FromFlatDataAndDimensions(sample, batch, d[1], d[2], d[3]),
				"timestep":              tensors.FromScalar(values("step_timesteps")[0]),
				"encoder_hidden_states": tensors.FromFlatDataAndDimensions(text, batch, 77, cfg.TextDim()),
			})
			g.Check(tc.run+"/unet/0/out/0", out[0])
		})
	}
}

// TestAllWeightsUsed checks that the network asks for exactly the weights in the checkpoint, in their shapes.
func TestAllWeightsUsed(t *testing.T) {
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			g, cfg := open(t, name)
			n := New(cfg, Sizes{Batch: 1, Height: 8, Width: 8, SequenceLength: 5, DType: dtypes.Float32})
			asked, _ := weightShapes(t, n)
			for key, w := range g.Keys("unet") {
				if asked[key] == "" {
					t.Errorf("%s is in the file and not used", key)
				} else if got := fmt.Sprint(w.Shape); got != asked[key] {
					t.Errorf("%s: asked for %s, the file has %s", key, asked[key], got)
				}
				delete(asked, key)
			}
			for key := range asked {
				t.Errorf("%s is asked for and not in the file", key)
			}
		})
	}
}
