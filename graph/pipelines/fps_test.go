package pipelines

import (
	"testing"

	"precast/graph/checkpoint"
	"precast/graph/pipelines/configs"
)

// TestFPS: a video has the frames a second that its model was trained on.
func TestFPS(t *testing.T) {
	for name, want := range map[string]float64{"Wan2.1-T2V-1.3B": 16, "Wan2.2-T2V-A14B": 16, "Wan2.2-TI2V-5B": 24} {
		files, _, err := configs.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		ck, err := checkpoint.OpenConfigs(files, name)
		if err != nil {
			t.Fatal(err)
		}
		p, err := New(ck, Options{DType: float32Type})
		if err != nil {
			t.Fatal(err)
		}
		r := &Request{Prompt: []string{"x"}, NumImagesPerPrompt: 1, NumFrames: 5, Height: 256, Width: 256}
		if err := p.Defaults(r); err != nil {
			t.Fatal(err)
		}
		if out := NewOutput(p, r, make([]Image, 5)); out.FPS != want || out.Frames != 5 {
			t.Errorf("%s: %g frames a second of %d frames, wanted %g of 5", name, out.FPS, out.Frames, want)
		}
	}
}
