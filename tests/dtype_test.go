package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"precast"
	"precast/graph/checkpoint"
)

// TestHalfPrecision runs reference pipelines in bfloat16 and float16. Our run may be as far from the float32 golden as diffusers' own run in that type,
// which testdata/make_half.py measured, and twice as far: two roundings of one computation differ; and not so near that nothing can have been computed in
// it. All pipelines take PRECAST_TEST_LONG; without, each dtype has one.
func TestHalfPrecision(t *testing.T) {
	data, err := os.ReadFile("testdata/half.json")
	if err != nil {
		t.Fatal(err)
	}
	var half map[string]map[string]map[string]float64
	if err := json.Unmarshal(data, &half); err != nil {
		t.Fatal(err)
	}
	ref, cacheDir := reference(t), t.TempDir()
	short := map[string]string{"flux1-schnell": "bfloat16", "sd15": "float16"}
	for _, name := range goldenPipelines {
		dir := filepath.Join(ref, "tiny", name)
		data, err := os.ReadFile(filepath.Join(dir, "golden.json"))
		if err != nil {
			continue // not in every tree
		}
		if weights, _ := filepath.Glob(filepath.Join(dir, "model", "vae", "*.safetensors")); len(weights) == 0 {
			continue // what the repository holds of it ends at the latents
		}
		var g goldenFile
		if err := json.Unmarshal(bytes.ReplaceAll(data, []byte("-Infinity"), []byte(`"-Infinity"`)), &g); err != nil {
			t.Fatal(err)
		}
		for _, dtype := range []string{"bfloat16", "float16"} {
			if short[name] != dtype && !long() {
				continue
			}
			for _, backend := range []string{"pjrt", "go"} {
				t.Run(fmt.Sprintf("%s/%s/%s", name, dtype, backend), func(t *testing.T) {
					needBackend(t, backend)
					want := half[name][dtype]
					if len(want) != 3 {
						t.Fatalf("half.json has %v", want)
					}
					var r goldenRun
					r.decode(t, g.Runs["a"])
					far := farFrom(t, dir, &r, precast.Config{Backend: backend, DType: dtype, CacheDir: cacheDir, Variant: g.Variant})
					for what, w := range want {
						t.Logf("%s: %.2f of diffusers' distance %g", what, far[what]/w, w)
						if f := far[what]; !(f <= 2*w) {
							t.Errorf("%s is %g from the float32 golden, diffusers' is %g", what, f, w)
						}
						if f := far[what]; f < w/100 {
							t.Errorf("%s is only %g from the float32 golden, diffusers' is %g: was it computed in %s?", what, f, w, dtype)
						}
					}
				})
			}
		}
	}
}

// farFrom runs run "a" and returns the distances from its golden, root mean squares.
func farFrom(t *testing.T, dir string, r *goldenRun, cfg precast.Config) map[string]float64 {
	t.Helper()
	file, err := checkpoint.OpenFile(filepath.Join(dir, "golden.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cfg.Scheduler = schedulerOverride(r)
	p := openPipeline(t, r.modelDir(t, dir), cfg)
	call := r.Call
	req := &precast.Request{
		Prompt: texts(t, call.Prompt), NegativePrompt: texts(t, call.NegativePrompt), Height: call.Height, Width: call.Width, NumFrames: call.NumFrames,
		NumInferenceSteps: call.Steps, GuidanceScale: call.GuidanceScale, GuidanceScale2: call.GuidanceScale2, TrueCFGScale: call.TrueCFGScale,
		MaxSequenceLength: call.MaxSequenceLength,
	}
	start := "a/latents_init"
	if _, ok := file.Tensor(start); !ok {
		start = "a/noise"
	}
	if req.Latents, err = precast.ReadTensor(file.Path() + ":" + start); err != nil {
		t.Fatal(err)
	}
	seen := map[string][]float32{}
	req.Observe = func(name string, h precast.HostTensor) { seen[name] = append(seen[name], floats(h)...) }
	if _, err := p.Generate(context.Background(), req); err != nil {
		t.Fatal(err)
	}
	far := map[string]float64{}
	for _, what := range []string{"step_model_output", "step_latents", "vae_out"} {
		g, ok := file.Tensor("a/" + what)
		if !ok {
			t.Fatalf("there is no a/%s", what)
		}
		want, err := g.Float32s()
		if err != nil {
			t.Fatal(err)
		}
		if len(seen[what]) != len(want) {
			t.Fatalf("%s has %d values, golden has %d", what, len(seen[what]), len(want))
		}
		for i, w := range want {
			d := float64(seen[what][i] - w)
			far[what] += d * d
		}
		far[what] = math.Sqrt(far[what] / float64(len(want)))
	}
	return far
}
