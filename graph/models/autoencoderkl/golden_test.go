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

var cases = []string{"sd15", "sd2", "sdxl", "flux1-dev", "flux1-schnell", "flux2-dev", "flux2-klein", "tp-flux2"}

func open(t *testing.T, name string) (*golden.Case, Config) {
	t.Helper()
	g := golden.Open(t, "tiny/"+name)
	file := g.Config("vae")
	parse := ParseConfig
	if file.Class() == "AutoencoderKLFlux2" {
		parse = ParseFlux2Config
	}
	cfg, err := parse(file)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Class != file.Class() {
		t.Errorf("%s: found the class %s, wanted %s", name, cfg.Class, file.Class())
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
		if len(modules) < 5 && !strings.HasPrefix(name, "tp-") {
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
			networks := []trace.Network{
				NewDecoder(cfg, Sizes{Batch: 1, Height: 4, Width: 4, DType: dtypes.Float32}),
				NewEncoder(cfg, Sizes{Batch: 1, Height: 32, Width: 32, DType: dtypes.Float32}),
			}
			if cfg.Class == "AutoencoderKLFlux2" {
				networks = append(networks, NewUnpack(cfg, Sizes{Batch: 1, Height: 4, Width: 4, DType: dtypes.Float32}))
			}
			asked, _ := weightShapes(t, networks...)
			for key, w := range g.Keys("vae") {
				if key == "bn.num_batches_tracked" { // for training alone
					continue
				}
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

// TestGoldenUnpack takes the last latents of a run to the decoder's scale and back.
func TestGoldenUnpack(t *testing.T) {
	for _, run := range []string{"flux2-dev/a", "flux2-dev/b", "flux2-klein/a", "flux2-klein/b", "flux2-klein/distilled", "tp-flux2/a"} {
		t.Run(run, func(t *testing.T) {
			name, prefix, _ := strings.Cut(run, "/")
			g, cfg := open(t, name)
			want := g.F32(prefix + "/vae_in")
			d := want.Shape().Dimensions
			s := Sizes{Batch: d[0], Height: d[2], Width: d[3], DType: dtypes.Float32}
			steps := g.F32(prefix + "/step_latents")
			last := tensors.MustCopyFlatData[float32](steps)
			last = last[len(last)-want.Shape().Size():]
			latents := tensors.FromFlatDataAndDimensions(last, steps.Shape().Dimensions[1:]...)
			g.Check(prefix+"/vae_in", g.Run("vae", NewUnpack(cfg, s), map[string]*tensors.Tensor{"latents": latents})[0])
			for _, side := range g.Run("vae", NewPack(cfg, s), map[string]*tensors.Tensor{"latents": want})[0] {
				g.CheckValues("packed on side "+side.Name, tensors.MustCopyFlatData[float32](side.Tensor), last)
			}
		})
	}
}
