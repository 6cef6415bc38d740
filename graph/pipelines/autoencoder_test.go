package pipelines

import (
	"strings"
	"testing"

	"precast/graph/models/autoencoderklwan"
)

// TestTilingPrograms: with tiles no program of the autoencoder is larger than one, there are few of them whatever the size.
func TestTilingPrograms(t *testing.T) {
	for _, tc := range []struct {
		p Pipeline
		// latents of a tile, 8 pixels each
		side int
	}{{openPipeline(t, "sd15", ""), 8}, {openPipeline(t, "flux1-dev", ""), 8}, {openPipeline(t, "tp-wan", ""), 32}, {openPipeline(t, "tp-qwen", ""), 32}} {
		for _, tiling := range []bool{false, true} {
			r := request(func(r *Request) {
				r.Height, r.Width, r.VAETiling = 2048, 1584, tiling
				if tc.side == 8 {
					r.Image = &Image{Height: 2048, Width: 1584, RGB: make([]byte, 3*2048*1584)}
				}
			})
			if err := tc.p.Defaults(r); err != nil {
				t.Fatal(err)
			}
			programs, err := tc.p.Programs(r)
			if err != nil {
				t.Fatal(err)
			}
			decoders, largest := 0, 0
			for _, q := range programs {
				if !strings.HasPrefix(q.Name, "vae.") {
					continue
				}
				d := q.Inputs[0].Shape.Dimensions
				h, w := d[len(d)-2], d[len(d)-1]
				if q.Name == "vae.encoder" {
					h, w = h/8, w/8
				} else {
					decoders++
				}
				largest = max(largest, h, w)
			}
			switch {
			case !tiling && largest != 256:
				t.Errorf("%s: the largest side of the autoencoder's input is %d latent pixels, wanted 256", tc.p.Class(), largest)
			case tiling && (largest != tc.side || decoders < 2 || decoders > 2*9):
				t.Errorf("%s: %d decoders with sides up to %d, wanted 2 to 18 with %d", tc.p.Class(), decoders, largest, tc.side)
			}
		}
	}
}

// TestTilingRefused: a tile that would not fit its neighbours is no tile of diffusers'.
func TestTilingRefused(t *testing.T) {
	r := request(func(r *Request) { r.VAETiling = true })
	p := mustOpen(t, editedCheckpoint(t, "sd15", map[string]map[string]any{"vae/config.json": {"sample_size": 72}}))
	if err := p.Defaults(r); err == nil || !strings.Contains(err.Error(), "vae_tiling: the tile has the vae's sample_size: found 72, wanted a multiple of 32") {
		t.Errorf("sample_size 72: %v", err)
	}
	c := autoencoderklwan.Config{DimMult: make([]int, 8), PatchSize: 1}
	if err := checkVideoTiling(c, r); err == nil || !strings.Contains(err.Error(), "stands for 128") {
		t.Errorf("128 pixels a latent pixel: %v", err)
	}
	c.DimMult = make([]int, 5)
	if err := checkVideoTiling(c, r); err != nil {
		t.Errorf("16 pixels a latent pixel: %v", err)
	}
}
