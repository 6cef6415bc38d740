package autoencoderkl

import (
	"fmt"
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

var cases = []string{"sd15", "sd2", "sdxl", "flux1-dev", "flux1-schnell"}

func open(t *testing.T, name string) (*golden.Case, Config) {
	t.Helper()
	g := golden.Open(t, "tiny/"+name)
	file := g.Config("vae")
	cfg, err := ParseConfig(file)
	if err != nil {
		t.Fatal(err)
	}
	if unread := file.Unread(); len(unread) > 0 {
		t.Errorf("%s: fields that nothing reads: %v", name, unread)
	}
	return g, cfg
}

// TestGoldenBlocks runs every recorded module of the decoders on its own recorded input.
func TestGoldenBlocks(t *testing.T) {
	for _, name := range cases {
		g, cfg := open(t, name)
		modules := g.Blocks("vae")
		if len(modules) < 5 {
			t.Errorf("%s: found %d recorded modules, wanted 5 or more", name, len(modules))
		}
		for _, module := range modules {
			t.Run(name+"/"+module, func(t *testing.T) { runBlock(t, g.In(t), cfg, module) })
		}
	}
}

func runBlock(t *testing.T, g *golden.Case, cfg Config, module string) {
	in := g.BlockTensors("vae."+module, "in")
	if len(in) != 1 {
		t.Fatalf("found inputs %v, wanted one", in)
	}
	g.Block("vae", "vae."+module, in, func(c *trace.Ctx, in []*ml.Node) []*ml.Node {
		m, x := &model{Config: cfg, Ctx: c}, nn.ToNHWC(in[0])
		// "up_blocks.0" is one module: the name of the list and the index.
		parts := strings.Split(module, ".")
		last, index := len(parts)-1, 0
		if n, err := strconv.Atoi(parts[last]); err == nil {
			last, index = last-1, n
		}
		defer c.Enter(strings.Join(parts[:last], "."))()
		// All recorded modules have the last number of channels.
		channels := cfg.BlockOutChannels[len(cfg.BlockOutChannels)-1]
		switch parts[last] {
		case "mid_block":
			x = m.midBlock(x)
		case "up_blocks":
			x = m.upBlock(index, x, channels)
		case "attentions":
			x = m.attention("attentions.0", x)
		case "resnets":
			x = m.resnet(index, x, channels)
		case "upsamplers":
			x = nn.Upsample2D(c, "upsamplers.0", x, channels, 0, 0)
		default:
			panic("no code for the recorded module " + module)
		}
		return []*ml.Node{nn.ToNCHW(x)}
	})
}

// TestGoldenDecode decodes the latents of every case's run a, and sd15's odd size.
func TestGoldenDecode(t *testing.T) {
	for _, run := range append([]string{"sd15/odd-size"}, cases...) {
		t.Run(run, func(t *testing.T) {
			name, prefix, ok := strings.Cut(run, "/")
			if !ok {
				prefix = "a"
			}
			g, cfg := open(t, name)
			z := g.F32(prefix + "/vae_in")
			d := z.Shape().Dimensions
			n := NewDecoder(cfg, Sizes{Batch: d[0], Height: d[2], Width: d[3], DType: dtypes.Float32})
			g.Check(prefix+"/vae_out", g.Run("vae", n, map[string]*tensors.Tensor{"latents": z})[0])
		})
	}
}

func TestGoldenEncode(t *testing.T) {
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			g, cfg := open(t, name)
			x := g.F32("vae_encode/in")
			d := x.Shape().Dimensions
			n := NewEncoder(cfg, Sizes{Batch: d[0], Height: d[2], Width: d[3], DType: dtypes.Float32})
			out := g.Run("vae", n, map[string]*tensors.Tensor{"sample": x})
			g.Check("vae_encode/mean", out[0])
			g.Check("vae_encode/logvar", out[1])
		})
	}
}

// TestAllWeightsUsed checks that encoder and decoder together ask for exactly the weights in the checkpoint, in their shapes.
func TestAllWeightsUsed(t *testing.T) {
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			g, cfg := open(t, name)
			asked, _ := weightShapes(t, NewDecoder(cfg, Sizes{Batch: 1, Height: 4, Width: 4, DType: dtypes.Float32}),
				NewEncoder(cfg, Sizes{Batch: 1, Height: 32, Width: 32, DType: dtypes.Float32}))
			for key, w := range g.Keys("vae") {
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
