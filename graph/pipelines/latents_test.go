package pipelines

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gomlx/compute/dtypes"
	host "github.com/gomlx/gomlx/core/tensors"

	"precast/graph"
	"precast/graph/models/golden"
)

// TestPackLatents packs the recorded noise of FLUX.1 runs, also of a batch; it is copied, so that every bit has to be right.
func TestPackLatents(t *testing.T) {
	for _, run := range []string{"a", "b", "batch2"} {
		ref := golden.Open(t, "tiny/flux1-dev")
		noise := ref.F32(run + "/noise")
		d := noise.Shape().Dimensions
		got := packLatents(host.MustCopyFlatData[float32](noise), d[0], d[1], d[2]/2, d[3]/2)
		want := host.MustCopyFlatData[float32](ref.F32(run + "/latents_init"))
		if len(got) != len(want) {
			t.Fatalf("%s: found %d values, wanted %d", run, len(got), len(want))
		}
		for i, w := range want {
			if got[i] != w {
				t.Fatalf("%s: value %d is %g, wanted %g", run, i, got[i], w)
			}
		}
	}
}

// TestUnpackProgram: packing and unpacking give each picture's latents back, at the scale of the autoencoder.
func TestUnpackProgram(t *testing.T) {
	const b, h, w = 2, 3, 5
	flux, sd := openPipeline(t, "flux1-dev", "").(*fluxPipeline), openPipeline(t, "sd15", "").(*sdPipeline)
	for _, dtype := range []graph.DType{dtypes.Float32, dtypes.BFloat16} {
		flux.opts.DType, sd.opts.DType = dtype, dtype
		limit := 1e-6
		if dtype == dtypes.BFloat16 {
			limit = 1.0 / 256
		}
		r := rand.New(rand.NewPCG(5, 6))
		check := func(name string, p *Program, latents *host.Tensor, values []float64, scale, shift float64) {
			out := golden.Job{Network: p.Network, Inputs: map[string]*host.Tensor{"latents": latents}, Donate: p.Donate}.Run(t)
			if len(out) != b {
				t.Fatalf("%s: %d outputs, wanted one a picture: %d", name, len(out), b)
			}
			size := len(values) / b
			for k := range b {
				want := make([]float64, size)
				for i, v := range values[k*size : (k+1)*size] {
					want[i] = v/scale + shift
				}
				for _, side := range out[k] {
					if side.Tensor.DType() != dtype {
						t.Errorf("%s: found dtype %s, wanted %s", name, side.Tensor.DType(), dtype)
					}
					near(t, name+" on side "+side.Name, flat(side.Tensor), want, limit)
				}
			}
		}
		c := flux.vae.LatentChannels
		noise, values := random(r, dtypes.Float32, b, c, 2*h, 2*w)
		packed := packLatents(host.MustCopyFlatData[float32](noise), b, c, h, w)
		check("FLUX.1", flux.autoencoder().unpack2x2(b, h, w), host.FromFlatDataAndDimensions(packed, b, h*w, 4*c), values, 0.3611, 0.1159)
		c = sd.vae.LatentChannels
		noise, values = random(r, dtypes.Float32, b, c, h, w)
		check("Stable Diffusion", sd.autoencoder().unpack(b, h, w), noise, values, 0.18215, 0)
	}
}

// TestToImage has values at and beyond the range, and halves, which go to the even number.
func TestToImage(t *testing.T) {
	for x, want := range map[float32]byte{
		-1: 0, 1: 255, -3: 0, 7: 255, 0: 128, // 127.5
		-0.4:                 76,  // 0.3 * 255 = 76.5
		0.4:                  178, // 0.7 * 255 = 178.5
		float32(math.Inf(1)): 255, float32(math.Inf(-1)): 0,
		-0.996: 1, -0.9965: 0, 0.9965: 255, 0.996: 254,
	} {
		if got := toImage([]float32{x, x, x}, 1, 1).RGB; got[0] != want || got[1] != want || got[2] != want {
			t.Errorf("%g: found %v, wanted %d", x, got, want)
		}
	}
	// Planes of red, green and blue become pixels.
	v := []float32{-1, 1, -1, 1, 1, -1, -1, -1, 1, 1, 1, -1}
	img := toImage(v, 2, 2)
	if img.Height != 2 || img.Width != 2 {
		t.Errorf("found %dx%d, wanted 2x2", img.Height, img.Width)
	}
	want := []byte{0, 255, 255, 255, 0, 255, 0, 0, 255, 255, 0, 0}
	for i, w := range want {
		if img.RGB[i] != w {
			t.Fatalf("found %v, wanted %v", img.RGB, want)
		}
	}
}

// TestToImageGolden turns recorded decoder outputs into the recorded pictures, every value the same.
func TestToImageGolden(t *testing.T) {
	for _, tc := range []struct{ set, run string }{{"tiny/sd15", "a"}, {"tiny/sd15", "odd-size"}, {"tiny/flux1-dev", "b"}} {
		ref := golden.Open(t, tc.set)
		out := ref.F32(tc.run + "/vae_out")
		d := out.Shape().Dimensions
		got := toImage(host.MustCopyFlatData[float32](out)[:3*d[2]*d[3]], d[2], d[3]).RGB
		want := host.MustCopyFlatData[uint8](ref.Tensor(tc.run+"/image_u8", dtypes.Uint8))[:len(got)]
		for i, w := range want {
			if got[i] != w {
				t.Fatalf("%s/%s: value %d is %d, wanted %d", tc.set, tc.run, i, got[i], w)
			}
		}
	}
}
