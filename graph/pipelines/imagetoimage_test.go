package pipelines

import (
	"fmt"
	"math"
	"testing"

	"precast/graph/checkpoint"
)

// TestResize compares with Pillow: every value of every size is the same. testdata/resize.py says what made the goldens.
func TestResize(t *testing.T) {
	file, err := checkpoint.OpenFile("testdata/resize.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	picture, ok := file.Tensor("picture")
	if !ok {
		t.Fatal("no picture")
	}
	m := Image{Height: picture.Shape[0], Width: picture.Shape[1], RGB: picture.Bytes()}
	sizes := 0
	for name, want := range file.Tensors() {
		if name == "picture" {
			continue
		}
		sizes++
		got := resize(m, want.Shape[0], want.Shape[1])
		if fmt.Sprintf("%dx%d", got.Height, got.Width) != name {
			t.Errorf("%s: found %dx%d", name, got.Height, got.Width)
		}
		differ := 0
		for i, v := range want.Bytes() {
			if got.RGB[i] != v {
				differ++
			}
		}
		if differ > 0 {
			t.Errorf("%s: %d of %d values differ", name, differ, want.Len())
		}
	}
	if sizes != 7 {
		t.Errorf("%d sizes, wanted 7", sizes)
	}
}

// TestScaleInverse: scale undoes unscale, with a factor and with a mean and deviation a channel.
func TestScaleInverse(t *testing.T) {
	a := autoencoder{}
	a.LatentChannels, a.ScalingFactor, a.ShiftFactor = 2, 0.5, 0.25
	v := []float32{1, 2, 3, 4, 5, 6, 7, 8}
	a.scale(v, 2)
	if got := fmt.Sprint(v); got != "[0.375 0.875 1.375 1.875 2.375 2.875 3.375 3.875]" {
		t.Errorf("factor and shift: %s", got)
	}
	a.LatentsMean, a.LatentsStd = []float64{1, -1}, []float64{0.5, 2}
	v = []float32{1, 2, 3, 4, 5, 6, 7, 8}
	a.scale(v, 2)
	if got := fmt.Sprint(v); got != "[0 1 1 1.25 4 5 2 2.25]" {
		t.Errorf("mean and deviation: %s", got)
	}
}

func TestPosteriorSample(t *testing.T) {
	p := &posterior{mean: []float32{1, -2}, logvar: []float32{0, float32(2 * math.Log(3))}}
	if got := fmt.Sprintf("%.3f", p.sample([]float32{1, 1, -2, 0.5})); got != "[2.000 1.000 -1.000 -0.500]" {
		t.Errorf("found %s", got)
	}
}
