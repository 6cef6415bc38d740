package autoencoderklwan

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	ml "github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"precast/graph/models/golden"
	"precast/graph/nn"
	"precast/graph/trace"
)

func TestMain(m *testing.M) { golden.Main(m) }

// cases are pipelines of the reference with such an autoencoder.
var cases = []string{"wan-t2v", "tp-wan", "qwen-image", "tp-qwen"}

// residual is the pipeline with an autoencoder of Wan 2.2's form.
const residual = "wan-ti2v"

func open(t *testing.T, name string) (*golden.Case, Config) {
	t.Helper()
	var g *golden.Case
	if name == residual {
		g = golden.OpenCarried(t, name)
	} else {
		g = golden.Open(t, "tiny/"+name)
	}
	file := g.Config("vae")
	cfg, err := ParseConfig(file, file.Class())
	if err != nil {
		t.Fatal(err)
	}
	if unread := file.Unread(); len(unread) > 0 {
		t.Errorf("%s: fields that nothing reads: %v", name, unread)
	}
	return g, cfg
}

// TestGoldenBlocks runs every recorded module of the decoders on its own recorded input: the first chunk's.
func TestGoldenBlocks(t *testing.T) {
	for _, name := range []string{"wan-t2v", "qwen-image"} {
		g, cfg := open(t, name)
		modules := g.Blocks("vae")
		if len(modules) < 8 {
			t.Errorf("%s: found %d recorded modules, wanted 8 or more", name, len(modules))
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
		m, x := &model{Config: cfg, Ctx: c, chunk: First, next: map[string]*ml.Node{}}, nn.ToNTHWC(in[0])
		// "up_blocks.0" is one module: the name of the list and the index.
		parts := strings.Split(module, ".")
		last, index := len(parts)-1, 0
		if n, err := strconv.Atoi(parts[last]); err == nil {
			last, index = last-1, n
		}
		defer c.Enter(strings.Join(parts[:last], "."))()
		leaf := fmt.Sprintf("%s.%d", parts[last], index)
		block := cfg.decoderBlocks()[0]
		if i, err := strconv.Atoi(parts[min(2, len(parts)-1)]); err == nil {
			block = cfg.decoderBlocks()[i]
		}
		switch parts[last] {
		case "mid_block":
			x = m.midBlock(x)
		case "up_blocks":
			x = m.upBlock(index, x)
		case "attentions":
			x = m.attention(leaf, x)
		case "resnets":
			x = m.residualBlock(leaf, x, block.out)
		case "upsamplers":
			x = m.upsample(leaf, x, block.out/2, block.temporal)
		default:
			panic("no code for the recorded module " + module)
		}
		return []*ml.Node{nn.ToNCTHW(x)}
	})
}

// pastsOf are the pasts among a chunk's results on the side Direct, which the next chunk runs on.
func pastsOf(n trace.Network, results []golden.Output) map[string]*tensors.Tensor {
	pasts := map[string]*tensors.Tensor{}
	for i, name := range n.Outputs {
		if strings.HasPrefix(name, "decoder.") || strings.HasPrefix(name, "encoder.") {
			pasts[name] = results[i][0].Tensor
		}
	}
	return pasts
}

// TestGoldenChunks compares each chunk's decoder alone, as diffusers calls it: without post_quant_conv and clamp.
func TestGoldenChunks(t *testing.T) {
	g, cfg := open(t, "wan-t2v")
	var pasts map[string]*tensors.Tensor
	for k, chunk := range []Chunk{First, Later} {
		name := fmt.Sprintf("a/vae_decoder_chunks/%d/", k)
		x := g.F32(name + "in/x")
		d := x.Shape().Dimensions
		s := Sizes{Batch: d[0], Height: d[3], Width: d[4], DType: dtypes.Float32, Chunk: chunk}
		in := trace.Input{Name: "x", Shape: x.Shape()}
		n := network(cfg, s, "vae.decoder", in, []string{"out"}, cfg.decoderPasts(s), func(m *model, x *ml.Node) []*ml.Node {
			return []*ml.Node{nn.ToNCTHW(m.decoder(nn.ToNTHWC(x)))}
		})
		inputs := map[string]*tensors.Tensor{"x": x}
		for name, past := range pasts {
			inputs[name] = past
		}
		results := g.Run("vae", n, inputs)
		g.Check(name+"out/0", results[0])
		pasts = pastsOf(n, results)
	}
}

// part cuts frames of a video [B, C, F, H, W].
func part(x *tensors.Tensor, first, n int) *tensors.Tensor {
	d := x.Shape().Dimensions
	plane := d[3] * d[4]
	all, out := tensors.MustCopyFlatData[float32](x), make([]float32, 0, d[0]*d[1]*n*plane)
	for i := range d[0] * d[1] {
		out = append(out, all[(i*d[2]+first)*plane:(i*d[2]+first+n)*plane]...)
	}
	return tensors.FromFlatDataAndDimensions(out, d[0], d[1], n, d[3], d[4])
}

// join puts the chunks of a result one after another, on each side.
func join(chunks []golden.Output) golden.Output {
	var out golden.Output
	for side, s := range chunks[0] {
		frames := 0
		for _, c := range chunks {
			frames += c[side].Tensor.Shape().Dim(2)
		}
		d := s.Tensor.Shape().Dimensions
		plane, at := d[3]*d[4], 0
		joined := make([]float32, d[0]*d[1]*frames*plane)
		for _, c := range chunks {
			n := c[side].Tensor.Shape().Dim(2)
			flat := tensors.MustCopyFlatData[float32](c[side].Tensor)
			for i := range d[0] * d[1] {
				copy(joined[(i*frames+at)*plane:], flat[i*n*plane:(i+1)*n*plane])
			}
			at += n
		}
		out = append(out, golden.Side{Name: s.Name, Tensor: tensors.FromFlatDataAndDimensions(joined, d[0], d[1], frames, d[3], d[4])})
	}
	return out
}

// chunked runs a decoder or encoder over a whole video, chunk after chunk, and joins each of the first outputs.
func chunked(g *golden.Case, x *tensors.Tensor, input string, outputs, later int, network func(chunk Chunk) trace.Network) []golden.Output {
	frames := x.Shape().Dim(2)
	all := make([][]golden.Output, outputs)
	inputs := map[string]*tensors.Tensor{}
	for at := 0; at < frames; {
		chunk, n := Later, later
		if at == 0 {
			chunk, n = First, 1
		}
		if frames == 1 {
			chunk = Only
		}
		inputs[input] = part(x, at, n)
		program := network(chunk)
		results := g.Run("vae", program, inputs)
		for i := range all {
			all[i] = append(all[i], results[i])
		}
		inputs = pastsOf(program, results)
		at += n
	}
	joined := make([]golden.Output, outputs)
	for i := range joined {
		joined[i] = join(all[i])
	}
	return joined
}

func decode(g *golden.Case, cfg Config, z *tensors.Tensor) golden.Output {
	d := z.Shape().Dimensions
	return chunked(g, z, "latents", 1, 1, func(chunk Chunk) trace.Network {
		return NewDecoder(cfg, Sizes{Batch: d[0], Height: d[3], Width: d[4], DType: dtypes.Float32, Chunk: chunk})
	})[0]
}

// TestGoldenDecode decodes the latents of whole runs: one, two and three chunks, landscape and portrait, one and two pictures.
func TestGoldenDecode(t *testing.T) {
	for _, run := range []string{"wan-t2v/a", "wan-t2v/b", "wan-t2v/one-frame", "qwen-image/a", "qwen-image/b", "qwen-image/batch2", "tp-wan/a", "tp-qwen/a", residual + "/a"} {
		t.Run(run, func(t *testing.T) {
			name, prefix, _ := strings.Cut(run, "/")
			g, cfg := open(t, name)
			if prefix != "a" || strings.HasPrefix(name, "tp-") {
				g.Light()
			}
			g.Check(prefix+"/vae_out", decode(g, cfg, g.F32(prefix+"/vae_in")))
		})
	}
}

func TestGoldenEncode(t *testing.T) {
	for _, name := range append([]string{residual}, cases...) {
		t.Run(name, func(t *testing.T) {
			g, cfg := open(t, name)
			if name != "wan-t2v" && name != residual {
				g.Light()
			}
			if !g.Has("vae_encode/in") {
				t.Skip("the part of the reference in testdata has no encoded picture")
			}
			x := g.F32("vae_encode/in")
			d := x.Shape().Dimensions
			out := chunked(g, x, "sample", 2, cfg.TemporalFactor(), func(chunk Chunk) trace.Network {
				return NewEncoder(cfg, Sizes{Batch: d[0], Height: d[3], Width: d[4], DType: dtypes.Float32, Chunk: chunk})
			})
			g.Check("vae_encode/mean", out[0])
			g.Check("vae_encode/logvar", out[1])
		})
	}
}

// weightShapes traces networks and returns the weights they ask for.
func weightShapes(t *testing.T, networks ...trace.Network) map[string]shapes.Shape {
	t.Helper()
	asked := map[string]shapes.Shape{}
	for _, n := range networks {
		m, err := trace.Trace(n)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range m.Entry().Params {
			if key := p.Name; strings.HasSuffix(key, "weight") || strings.HasSuffix(key, "bias") || strings.HasSuffix(key, "gamma") {
				asked[key] = p.Value.Shape
			}
		}
	}
	return asked
}

// all are the four programs of a video.
func all(cfg Config, dtype dtypes.DType, height, width int) []trace.Network {
	var networks []trace.Network
	for _, chunk := range []Chunk{First, Later} {
		s := Sizes{Batch: 1, Height: height, Width: width, DType: dtype, Chunk: chunk}
		networks = append(networks, NewEncoder(cfg, s))
		s.Height, s.Width = height/cfg.SpatialFactor(), width/cfg.SpatialFactor()
		networks = append(networks, NewDecoder(cfg, s))
	}
	return networks
}

// TestAllWeightsUsed checks that encoder and decoder together ask for exactly the weights in the checkpoint, in their shapes.
func TestAllWeightsUsed(t *testing.T) {
	for _, name := range append([]string{residual}, cases...) {
		t.Run(name, func(t *testing.T) {
			g, cfg := open(t, name)
			asked := weightShapes(t, all(cfg, dtypes.Float32, 32, 32)...)
			for key, w := range g.Keys("vae") {
				if shape, ok := asked[key]; !ok {
					t.Errorf("%s is in the file and not used", key)
				} else if got := fmt.Sprint(shape.Dimensions); got != fmt.Sprint(w.Shape) {
					t.Errorf("%s: asked for %s, the file has %v", key, got, w.Shape)
				}
				delete(asked, key)
			}
			for key := range asked {
				t.Errorf("%s is asked for and not in the file", key)
			}
		})
	}
}
