package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"precast"
	"precast/graph/pipelines"
)

// What holds whatever the pipeline is asserted here, of every checkpoint of testdata.

// everyPipeline runs f on each checkpoint that is always here; all classes are among them.
func everyPipeline(t *testing.T, f func(t *testing.T, name string)) {
	missing := pipelines.Classes()
	for _, name := range carried {
		missing = slices.DeleteFunc(missing, func(c string) bool { return c == pipelineClass(t, carriedModel(t, name)) })
	}
	if len(missing) > 0 {
		t.Errorf("testdata has no checkpoint of %v", missing)
	}
	for _, name := range carried {
		t.Run(name, func(t *testing.T) { f(t, name) })
	}
}

// onBackends runs f on the Go backend and, when there is time, on PJRT.
func onBackends(t *testing.T, f func(t *testing.T, backend string)) {
	backends := []string{"go"}
	if long() {
		backends = append(backends, "pjrt")
	}
	for _, backend := range backends {
		t.Run(backend, func(t *testing.T) {
			needBackend(t, backend)
			f(t, backend)
		})
	}
}

// carriedModel is the folder of a checkpoint in testdata, which is not to be written to. The reference folder's checkpoints of the same name may
// have more files and be another size.
func carriedModel(t *testing.T, name string) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("testdata", "tiny", name, "model"))
	must(t, err)
	return dir
}

// pipelineClass reads a checkpoint's class.
func pipelineClass(t *testing.T, dir string) string {
	t.Helper()
	var index struct {
		Class string `json:"_class_name"`
	}
	must(t, json.Unmarshal(readFile(t, filepath.Join(dir, "model_index.json")), &index))
	return index.Class
}

// hasDecoder tells whether a checkpoint has the decoder's weights; testdata leaves some out.
func hasDecoder(t *testing.T, dir string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "vae", "*.safetensors"))
	must(t, err)
	return len(files) > 0
}

// smallRequest is a request of the least work that uses every network of a class, with guidance where it has one of two calls.
func smallRequest(class string) *precast.Request {
	// Qwen-Image's schedule needs two steps.
	r := &precast.Request{Prompt: []string{"a photo of an astronaut"}, Height: 32, Width: 32, NumInferenceSteps: 3, NumImagesPerPrompt: 1, Seed: 3}
	switch class {
	case "FluxPipeline", "StableDiffusion3Pipeline":
		r.MaxSequenceLength = 16
	case "Flux2Pipeline", "Flux2KleinPipeline":
		r.MaxSequenceLength = 128
	case "QwenImagePipeline":
		r.MaxSequenceLength, r.NegativePrompt = 256, []string{"blurry"}
	case "WanPipeline":
		r.MaxSequenceLength, r.NumFrames = 16, 5
	case "ZImagePipeline":
		r.MaxSequenceLength = 48
	}
	return r
}

// result is what a request makes: the pictures' bytes, or the latents' where the decoder has no weights. Picture k is result[k].
func result(t *testing.T, p *precast.Pipeline, dir string, r *precast.Request) [][]byte {
	t.Helper()
	var out [][]byte
	if !hasDecoder(t, dir) {
		h, _, err := p.Denoise(t.Context(), r)
		must(t, err)
		n := h.Shape.Dimensions[0]
		for part := range slices.Chunk(h.Data, len(h.Data)/n) {
			out = append(out, part)
		}
		return out
	}
	made, err := p.Generate(t.Context(), r)
	must(t, err)
	for frames := range slices.Chunk(made.Images, max(1, made.Frames)) {
		var picture []byte
		for _, f := range frames {
			picture = append(picture, f.RGB...)
		}
		out = append(out, picture)
	}
	return out
}

// TestEveryPipelineCounts: another prompt, of whatever length, another negative prompt, seed, number of steps or guidance scale makes no program,
// and another picture (bugs.md, rows 39 and 40).
func TestEveryPipelineCounts(t *testing.T) {
	everyPipeline(t, func(t *testing.T, name string) {
		plain := precast.Config{Backend: "go", NoCache: true}
		if name != "flux1-dev" && name != "sd15" {
			checkCounts(t, name, plain)
			return
		}
		split, half := plain, plain
		split.Regions, half.DType = "split", "bfloat16"
		for way, cfg := range map[string]precast.Config{"inline": plain, "split": split, "bfloat16": half} {
			t.Run(way, func(t *testing.T) { checkCounts(t, name, cfg) })
		}
	})
}

func checkCounts(t *testing.T, name string, cfg precast.Config) {
	number := func(v float64) *float64 { return &v }
	dir := carriedModel(t, name)
	p := openPipeline(t, dir, cfg)
	class := p.Class()
	made := func() string {
		c := p.Stats().Counts
		return fmt.Sprintf("%d traced, %d optimized, %d lowered, %d compiled", c["trace"], c["passes"], c["lower"], c["compile"])
	}
	first := result(t, p, dir, smallRequest(class))
	before := made()
	guided := func(r *precast.Request, v float64) { r.GuidanceScale = number(v) }
	if class == "QwenImagePipeline" {
		guided = func(r *precast.Request, v float64) { r.TrueCFGScale = number(v) }
	}
	type change struct {
		what string
		edit func(*precast.Request)
	}
	changes := []change{
		{"prompt of the same length", func(r *precast.Request) { r.Prompt = []string{"a photo of an elephant"} }},
		{"empty prompt", func(r *precast.Request) { r.Prompt = []string{""} }},
		{"prompt of one letter", func(r *precast.Request) { r.Prompt = []string{"x"} }},
		{"longer prompt", func(r *precast.Request) { r.Prompt = []string{"a photo of an astronaut riding a horse"} }},
		{"prompt that is cut", func(r *precast.Request) { r.Prompt = []string{strings.Repeat("many words and no end ", 40)} }},
		{"seed", func(r *precast.Request) { r.Seed = 1 << 40 }},
		{"fewer steps", func(r *precast.Request) { r.NumInferenceSteps-- }},
		{"more steps", func(r *precast.Request) { r.NumInferenceSteps = 5 }},
		{"guidance scale", func(r *precast.Request) { guided(r, 6.5) }},
	}
	switch class {
	case "FluxPipeline":
		// The kind of guidance that has a second prediction; its scale and its texts make nothing either.
		twice := func(r *precast.Request) { r.TrueCFGScale, r.NegativePrompt = number(3), []string{"blurry"} }
		r := smallRequest(class)
		twice(r)
		result(t, p, dir, r)
		before = made()
		changes = append(changes, change{"true guidance scale", func(r *precast.Request) { twice(r); r.TrueCFGScale = number(2) }},
			change{"negative prompt", func(r *precast.Request) { twice(r); r.NegativePrompt = []string{"people"} }})
	case "Flux2Pipeline", "Flux2KleinPipeline":
	default:
		changes = append(changes, change{"negative prompt", func(r *precast.Request) { r.NegativePrompt = []string{"people"} }},
			change{"long negative prompt", func(r *precast.Request) { r.NegativePrompt = []string{strings.Repeat("not this and that ", 40)} }})
	}
	for _, c := range changes {
		r := smallRequest(class)
		c.edit(r)
		// FLUX.1 schnell is not told the guidance.
		same := name == "flux1-schnell" && c.what == "guidance scale"
		if got := result(t, p, dir, r); bytes.Equal(got[0], first[0]) != same {
			t.Errorf("another %s: the same result is %v, wanted %v", c.what, !same, same)
		}
		if after := made(); after != before {
			t.Errorf("another %s made programs: %s before, %s after", c.what, before, after)
			before = after
		}
	}
	if got := result(t, p, dir, smallRequest(class)); !bytes.Equal(got[0], first[0]) {
		t.Error("the same request again has another result")
	}
}

// TestEveryPipelineBatch: picture k of a batch is the one that its seed makes alone (bugs.md, row 32).
func TestEveryPipelineBatch(t *testing.T) {
	everyPipeline(t, func(t *testing.T, name string) {
		onBackends(t, func(t *testing.T, backend string) { checkBatch(t, name, backend) })
	})
}

func checkBatch(t *testing.T, name, backend string) {
	dir := carriedModel(t, name)
	p := openPipeline(t, dir, precast.Config{Backend: backend, NoCache: true})
	r := smallRequest(p.Class())
	r.NumInferenceSteps = 2
	r.Prompt, r.NumImagesPerPrompt = []string{"a cat", "a photo of an astronaut"}, 2
	batch := result(t, p, dir, r)
	if len(batch) != 4 {
		t.Fatalf("found %d pictures, wanted 4", len(batch))
	}
	for k, together := range batch {
		alone := *r
		alone.Prompt, alone.NumImagesPerPrompt, alone.Seed = r.Prompt[k/2:k/2+1], 1, r.Seed+uint64(k)
		got := result(t, p, dir, &alone)[0]
		if !near(got, together, hasDecoder(t, dir)) {
			t.Errorf("picture %d of the batch is not what its seed makes alone", k)
		}
		for j, other := range batch[:k] {
			if near(other, together, hasDecoder(t, dir)) {
				t.Errorf("pictures %d and %d of the batch are the same", j, k)
			}
		}
	}
}

// near compares pictures within 1 of 255, or latents in float32 within the limit of a run: sums over a batch may be taken in another order.
func near(a, b []byte, pictures bool) bool {
	if pictures {
		return largestDifference(a, b) <= 1
	}
	var worst, largest float32
	x, y := floats(precast.HostTensor{Data: a}), floats(precast.HostTensor{Data: b})
	for i := range x {
		worst, largest = max(worst, x[i]-y[i], y[i]-x[i]), max(largest, x[i], -x[i])
	}
	return worst <= runLimit*largest
}

// TestEveryPipelineArtifact compiles each pipeline to an artifact and runs it from there and from the cache with --cache-only: nothing is made,
// and the result is the same.
func TestEveryPipelineArtifact(t *testing.T) {
	everyPipeline(t, func(t *testing.T, name string) {
		onBackends(t, func(t *testing.T, backend string) { checkArtifact(t, name, backend) })
	})
}

func checkArtifact(t *testing.T, name, backend string) {
	dir, cacheDir := carriedModel(t, name), t.TempDir()
	p := openPipeline(t, dir, precast.Config{Backend: backend, CacheDir: cacheDir})
	r := smallRequest(p.Class())
	s, err := p.SizesFor(r)
	must(t, err)
	artifact := filepath.Join(t.TempDir(), "x.precast")
	o := precast.CompileOptions{Shapes: []precast.Sizes{s}, Request: *smallRequest(p.Class()), Output: artifact}
	if !hasDecoder(t, dir) {
		o.Components, o.Output = []string{"text_encoder", "transformer", "unet", "text_encoder_2", "transformer_2"}, ""
		o.Components = slices.DeleteFunc(o.Components, func(c string) bool {
			_, err := os.Stat(filepath.Join(dir, c))
			return err != nil
		})
	}
	_, err = p.Compile(t.Context(), o)
	must(t, err)
	want := result(t, p, dir, r)
	must(t, p.Close())
	check := func(what, path string, cfg precast.Config) {
		t.Helper()
		cfg.Backend, cfg.CacheOnly = backend, true
		q := openPipeline(t, path, cfg)
		defer q.Close()
		if got := result(t, q, dir, smallRequest(q.Class())); !slices.EqualFunc(got, want, bytes.Equal) {
			t.Errorf("%s: another result", what)
		}
		if c := q.Stats().Counts; c["trace"]+c["passes"]+c["lower"]+c["compile"] != 0 {
			t.Errorf("%s: made programs: %v", what, c)
		}
	}
	check("cache", dir, precast.Config{CacheDir: cacheDir})
	if o.Output != "" {
		check("artifact", artifact, precast.Config{NoCache: true})
	}
}

// TestEveryPipelineSteps: a number of steps past the bound is refused before anything is made for it.
func TestEveryPipelineSteps(t *testing.T) {
	everyPipeline(t, func(t *testing.T, name string) {
		p := openPipeline(t, carriedModel(t, name), precast.Config{Backend: "go", NoCache: true})
		for _, steps := range []int{100_001, 1 << 24, 1 << 62} {
			r := smallRequest(p.Class())
			r.NumInferenceSteps = steps
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := p.Check(r)
			_, compileErr := p.Compile(context.Background(), precast.CompileOptions{Request: *r, CompileTo: "trace"})
			runtime.ReadMemStats(&after)
			for what, err := range map[string]error{"check": err, "compile": compileErr} {
				if want := fmt.Sprintf("number of inference steps: found %d, wanted at most 100000", steps); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: found %v, wanted %s", what, err, want)
				}
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 16<<20 {
				t.Errorf("%d steps: %d MB were allocated", steps, n>>20)
			}
		}
	})
}
