package pipelines

import (
	"math"
	"testing"

	"github.com/gomlx/compute/dtypes"
	host "github.com/gomlx/gomlx/core/tensors"

	"precast/graph/models/golden"
	"precast/graph/scheduler"
)

// TestPictureNormed guides three pictures of length 5: one gets longer and is brought back to it, one gets shorter and stays, and of the third nothing
// is left, which must not divide by it.
func TestPictureNormed(t *testing.T) {
	dims := []int{3, 1, 1, 2}
	p := stepProgram(dims, 0, pictureNormed, false, dtypes.Float32)
	table := make([]float32, scheduler.Rows(0)*scheduler.Columns(0))
	table[scheduler.Columns(0)+1] = 1 // latents = the guided output
	f := func(v ...float32) *host.Tensor { return host.FromFlatDataAndDimensions(v, dims...) }
	inputs := map[string]*host.Tensor{
		"cond": f(3, 4, 3, 4, 3, 4), "uncond": f(0, 0, 3.75, 5, 6, 8), "guidance_scale": host.FromScalar(float32(2)),
		"sample": f(0, 0, 0, 0, 0, 0), "noise": f(0, 0, 0, 0, 0, 0),
		"coefficients": host.FromFlatDataAndDimensions(table, scheduler.Rows(0), scheduler.Columns(0)),
		"lo":           host.FromScalar(float32(math.Inf(-1))), "hi": host.FromScalar(float32(math.Inf(1))),
	}
	for i, out := range (golden.Job{Network: p.Network, Inputs: inputs, Donate: p.Donate}).Run(t) {
		for _, side := range out {
			switch p.Outputs[i] {
			case "model_output", "latents":
				near(t, p.Outputs[i]+" on side "+side.Name, flat(side.Tensor), []float64{3, 4, 2.25, 3, 0, 0}, 1e-6)
			case "finite":
				near(t, "finite on side "+side.Name, flat(side.Tensor), []float64{1}, 0)
			}
		}
	}
}

func TestTextTokens(t *testing.T) {
	for _, tc := range []struct {
		mask []float32
		n    int
		want string
	}{
		{[]float32{1, 1, 0}, 2, ""},
		{[]float32{1, 1}, 2, ""},
		{[]float32{0, 0}, 0, "found no tokens, wanted one or more"},
		{nil, 0, "found no tokens, wanted one or more"},
		{[]float32{0, 1}, 0, "found 1 behind 0 tokens, wanted ones and then zeros"},
		{[]float32{1, 0.5}, 0, "found 0.5 behind 1 tokens, wanted ones and then zeros"},
	} {
		n, err := textTokens(tc.mask)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if n != tc.n || got != tc.want {
			t.Errorf("%v: %d, %q; want %d, %q", tc.mask, n, got, tc.n, tc.want)
		}
	}
}

// TestZImageSigmas has what torch.linspace(1, 1/n, n) gives. In one place of 7, and of 9, even spacing in float64 rounds to another float32.
func TestZImageSigmas(t *testing.T) {
	differ := 0
	for _, want := range [][]float64{
		{1},
		{1, 0.8571428656578064, 0.7142857313156128, 0.5714285969734192, 0.4285714626312256, 0.2857142984867096, 0.1428571492433548},
		{1, 0.8888888955116272, 0.7777777910232544, 0.6666666865348816, 0.5555555820465088, 0.4444444477558136, 0.3333333432674408, 0.2222222238779068, 0.1111111119389534},
	} {
		n := len(want)
		got, even := zimageSigmas(n), scheduler.FlowSigmas(n)
		if len(got) != n {
			t.Fatalf("%d sigmas, wanted %d", len(got), n)
		}
		for i, w := range want {
			if float32(got[i]) != float32(w) {
				t.Errorf("%d of %d: %v, wanted %v", i, n, got[i], w)
			}
			if float32(even[i]) != float32(w) {
				differ++
			}
		}
	}
	if differ == 0 {
		t.Error("even spacing gives the same: the test shows nothing")
	}
	if got := zimageSigmas(0); got != nil {
		t.Errorf("no steps: %v", got)
	}
}
