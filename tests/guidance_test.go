package tests

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"precast"
)

func joined(r *precast.Request) { r.GuidanceBatch = "one" }

// TestGuidanceBatchGoldens computes guided runs of the reference with both halves of guidance in one batch.
func TestGuidanceBatchGoldens(t *testing.T) {
	ref, cacheDir := reference(t), t.TempDir()
	runs := [][2]string{
		{"sd15", "batch2"}, {"sdxl", "a"}, {"flux1-dev", "true-cfg"}, {"wan22-t2v", "a"}, {"tp-sd3", "a"}, {"tp-qwen", "a"}, {"z-image", "a"}, {"tp-flux2", "a"},
	}
	for _, c := range runs {
		for _, backend := range []string{"go", "pjrt"} {
			if backend == "pjrt" && c[0] != "flux1-dev" && !long() {
				continue
			}
			t.Run(strings.Join(c[:], "/")+"/"+backend, func(t *testing.T) {
				dir := filepath.Join(ref, "tiny", c[0])
				g := readGolden(t, dir)
				var r goldenRun
				r.decode(t, g.Runs[c[1]])
				checkRun(t, dir, c[1], &r, precast.Config{Backend: backend, Variant: g.Variant, CacheDir: cacheDir, CheckPasses: true}, joined)
			})
		}
	}
}

// TestGuidanceBatchCounts: with both halves in one batch a step is two executions, the denoiser and the step program; another scale, seed or number of
// steps makes no program; without guidance the denoiser is that of the pictures' batch.
func TestGuidanceBatchCounts(t *testing.T) {
	p := openPipeline(t, carriedModel(t, "sd15"), precast.Config{Backend: "go", NoCache: true})
	executed := func(edits ...func(*precast.Request)) int64 {
		t.Helper()
		r := smallRequest(p.Class())
		for _, f := range edits {
			f(r)
		}
		before := p.Stats().Counts["execute"]
		_, err := p.Generate(context.Background(), r)
		must(t, err)
		return p.Stats().Counts["execute"] - before
	}
	one := executed(joined)
	made := p.Stats().Counts["trace"]
	for what, edit := range map[string]func(*precast.Request){
		"seed":  func(r *precast.Request) { r.Seed = 9 },
		"scale": func(r *precast.Request) { v := 3.5; r.GuidanceScale = &v },
	} {
		if got := executed(joined, edit); got != one {
			t.Errorf("another %s: %d executions, wanted %d", what, got, one)
		}
	}
	if got := executed(joined, func(r *precast.Request) { r.NumInferenceSteps++ }); got != one+2 {
		t.Errorf("a step more is %d executions more, wanted 2: the denoiser and the step", got-one)
	}
	if n := p.Stats().Counts["trace"]; n != made {
		t.Errorf("another seed, scale or number of steps: %d programs were traced", n-made)
	}
	// Two calls make the denoiser of the pictures' batch and both forms of its step.
	// PNDM calls the denoiser once more than there are steps.
	calls := int64(smallRequest(p.Class()).NumInferenceSteps + 1)
	if got := executed(func(r *precast.Request) { r.GuidanceBatch = "two" }); got != one+calls {
		t.Errorf("two calls: %d executions more, wanted one a call, %d", got-one, calls)
	}
	made = p.Stats().Counts["trace"]
	executed(joined, func(r *precast.Request) { v := 1.0; r.GuidanceScale = &v })
	if n := p.Stats().Counts["trace"]; n != made {
		t.Errorf("without guidance: %d programs were traced beside those of two calls", n-made)
	}
}

// TestGuidanceBatchArtifact: an artifact has the choice that it was compiled with, which a run takes that makes none.
func TestGuidanceBatchArtifact(t *testing.T) {
	dir, file := carriedModel(t, "flux1-dev"), filepath.Join(t.TempDir(), "one.precast")
	request := func() *precast.Request {
		r, scale := smallRequest("FluxPipeline"), 2.0
		r.NegativePrompt, r.TrueCFGScale = []string{"blurry"}, &scale
		return r
	}
	t.Run("compile", func(t *testing.T) {
		p := openPipeline(t, dir, precast.Config{Backend: "go", NoCache: true})
		r := request()
		joined(r)
		sizes, err := p.SizesFor(r)
		must(t, err)
		if got := sizes.String(); !strings.Contains(got, "guidance in one batch") {
			t.Errorf("sizes: found %q", got)
		}
		_, err = p.Compile(t.Context(), precast.CompileOptions{Shapes: []precast.Sizes{sizes}, Request: *r, Output: file})
		must(t, err)
	})
	var log bytes.Buffer
	q := openPipeline(t, file, precast.Config{Backend: "go", NoCache: true, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	_, err := q.Generate(t.Context(), request())
	must(t, err)
	if n := q.Stats().Counts["trace"]; n != 0 || log.Len() > 0 {
		t.Errorf("a run of the artifact: %d programs were traced: %s", n, log.String())
	}
	r := request()
	r.GuidanceBatch = "two"
	_, err = q.Generate(t.Context(), r)
	must(t, err)
	if !strings.Contains(log.String(), "guidance in one batch") {
		t.Errorf("two calls with an artifact of one batch: the log does not say what the artifact has: %s", log.String())
	}
}

// TestGuidanceBatchRequests: what the argument does not take is refused by its name.
func TestGuidanceBatchRequests(t *testing.T) {
	for _, c := range []struct {
		model, value, want string
		truncation         float64
	}{
		{"sd15", "both", `guidance_batch: found "both", wanted one of auto, one, two`, 1},
		{"z-image", "one", "guidance_batch: found one with cfg_truncation 0.5, wanted two", 0.5},
		{"z-image", "two", "", 0.5},
		{"z-image", "one", "", 1},
	} {
		p := openPipeline(t, carriedModel(t, c.model), precast.Config{Backend: "go", NoCache: true})
		r := smallRequest(p.Class())
		r.GuidanceBatch = c.value
		if c.model == "z-image" {
			r.CFGTruncation = &c.truncation
		}
		err := p.Check(r)
		if c.want == "" {
			must(t, err)
		} else if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: found error %v, wanted %q", c.model, c.value, err, c.want)
		}
	}
}
