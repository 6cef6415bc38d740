package autoencoderkl

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"

	"precast/graph/checkpoint"
	"precast/graph/models/golden"
	"precast/graph/trace"
)

// tiled computes every tile of data [C, H, W] with the network for its size and joins the first output of each side.
func tiled(t *testing.T, g *golden.Case, tiles *Tiles, data []float32, channels, outChannels int, network func(h, w int) trace.Network) map[string][]float32 {
	t.Helper()
	parts := map[string][][]float32{}
	for k, tile := range tiles.Tiles {
		n := network(tile.Height, tile.Width)
		in := tensors.FromShape(n.Inputs[0].Shape)
		if err := in.MutableBytes(func(b []byte) { copy(b, tiles.Cut(k, float32Bytes(data), 4)) }); err != nil {
			t.Fatal(err)
		}
		for _, side := range g.RunModule("vae", n, map[string]*tensors.Tensor{n.Inputs[0].Name: in})[0] {
			parts[side.Name] = append(parts[side.Name], tensors.MustCopyFlatData[float32](side.Tensor))
		}
	}
	joined := map[string][]float32{}
	for side, list := range parts {
		joined[side] = tiles.Join(list, outChannels)
	}
	return joined
}

func float32Bytes(v []float32) []byte {
	var out []byte
	tensors.FromFlatDataAndDimensions(v, len(v)).ConstBytes(func(b []byte) { out = append(out, b...) })
	return out
}

// TestGoldenTiling decodes and encodes with tiles of 32 pixels: testdata/tiling.py says what made the goldens.
func TestGoldenTiling(t *testing.T) {
	file, err := checkpoint.OpenFile("testdata/tiling.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	tiling := Tiling{Sample: 32, Latent: 4}
	for _, name := range []string{"sd15", "flux1-dev"} {
		t.Run(name, func(t *testing.T) {
			g, cfg := open(t, name)
			g = g.In(t)
			g.Light() // eight programs a case
			read := func(key string) ([]float32, []int) {
				w, ok := file.Tensor(name + "/" + key)
				if !ok {
					t.Fatalf("no %s", key)
				}
				v, err := w.Float32s()
				if err != nil {
					t.Fatal(err)
				}
				return v, w.Shape
			}
			latents, shape := read("latents")
			tiles := tiling.Decode(shape[2], shape[3])
			if got := fmt.Sprint(tiles.Sizes(), len(tiles.Tiles), tiles.Columns); got != "[[4 4] [4 3] [3 4] [3 3]] 6 3" {
				t.Errorf("tiles of latents: %s", got)
			}
			sample, pixels := read("sample")
			for side, got := range tiled(t, g, tiles, latents, shape[1], 3, func(h, w int) trace.Network {
				return NewDecoder(cfg, Sizes{Batch: 1, Height: h, Width: w, DType: dtypes.Float32})
			}) {
				t.Logf("%s: decoded %.2g off", side, g.CheckValues("decoded on side "+side, got, sample))
			}
			for i, v := range sample {
				sample[i] = min(max(v, -1), 1)
			}
			mean, _ := read("mean")
			logvar, _ := read("logvar")
			for side, got := range tiled(t, g, tiling.Encode(pixels[2], pixels[3]), sample, 3, 2*cfg.LatentChannels, func(h, w int) trace.Network {
				return NewTileEncoder(cfg, Sizes{Batch: 1, Height: h, Width: w, DType: dtypes.Float32})
			}) {
				m, l := SplitMoments(got)
				t.Logf("%s: encoded %.2g and %.2g off", side, g.CheckValues("mean on side "+side, m, mean), g.CheckValues("logvar on side "+side, l, logvar))
			}
		})
	}
}

// TestTilesCover checks for many sizes that tiles reach every value, in no more than nine sizes, and that what they hold comes out where it was: a
// network that changes nothing gives the tensor back.
func TestTilesCover(t *testing.T) {
	tiling := Tiling{Sample: 8, Latent: 8}
	for height := 1; height <= 30; height++ {
		for width := 1; width <= 30; width++ {
			tiles := tiling.Decode(height, width)
			if tiles == nil {
				if height > 8 || width > 8 {
					t.Errorf("%dx%d is not cut", height, width)
				}
				continue
			}
			if n := len(tiles.Sizes()); n > 9 {
				t.Errorf("%dx%d: tiles of %d sizes", height, width, n)
			}
			data := make([]float32, 2*height*width)
			for i := range data {
				data[i] = float32(i)
			}
			var parts [][]float32
			for k := range tiles.Tiles {
				b := tiles.Cut(k, float32Bytes(data), 4)
				v := tensors.FromShape(shapes.Make(dtypes.Float32, len(b)/4))
				if err := v.MutableBytes(func(to []byte) { copy(to, b) }); err != nil {
					t.Fatal(err)
				}
				parts = append(parts, tensors.MustCopyFlatData[float32](v))
			}
			for i, v := range tiles.Join(parts, 2) {
				// The mix of two equal values rounds.
				if d := v - data[i]; d > 1e-3 || d < -1e-3 {
					t.Fatalf("%dx%d: value %d is %v", height, width, i, v)
				}
			}
		}
	}
}

func TestTilingConfig(t *testing.T) {
	for _, tc := range []struct{ config, want string }{
		{`{"sample_size": 512, ` + blocks + `}`, ""},
		{`{"sample_size": [512, 768], ` + blocks + `}`, "[512 768]"},
		{`{"sample_size": 520, ` + blocks + `}`, "found 520, wanted a multiple of 32"},
		{`{"sample_size": 516, ` + blocks + `}`, "found 516"},
		{`{"sample_size": 4, ` + blocks + `}`, "found 4"},
	} {
		cfg, err := parse(t, tc.config)
		if err != nil {
			t.Fatal(err)
		}
		tiling, err := cfg.Tiling()
		if tc.want == "" && (err != nil || tiling != Tiling{512, 64}) || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: found %v, %v; wanted %q", tc.config, tiling, err, tc.want)
		}
	}
}
