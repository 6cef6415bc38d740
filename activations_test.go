package precast

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"precast/graph/pipelines"
)

// TestMemoryIsKnown: a run that does not fit is refused before a weight is read or anything is compiled, and the error says what of it is too large. A warm
// start and an artifact know the same without a trace, an artifact from before it was counted by its graph.
func TestMemoryIsKnown(t *testing.T) {
	const dir = "tests/testdata/tiny/flux1-dev/model"
	real := availableMemory
	defer func() { availableMemory = real }()
	req := func() *Request {
		return &Request{Prompt: []string{"x"}, Height: 64, Width: 64, NumInferenceSteps: 1, MaxSequenceLength: 16}
	}
	open := func(path string, cfg Config) *Pipeline {
		t.Helper()
		cfg.Backend = "go"
		p, err := Open(t.Context(), path, cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
		return p
	}
	// 1 MiB is more than the picture and less than the weights; then activations are what is too large.
	refused := func(p *Pipeline, have int64, words ...string) {
		t.Helper()
		availableMemory = func() int64 { return have }
		defer func() { availableMemory = real }()
		_, err := p.Generate(t.Context(), req())
		var user *UserError
		if !errors.As(err, &user) {
			t.Fatalf("with %d bytes: found %v, wanted an error of the user", have, err)
		}
		for _, w := range append(words, "needs about", "of memory is available", "--dtype bfloat16") {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("with %d bytes: %v; wanted %q in it", have, err, w)
			}
		}
		s := p.Stats()
		if n := s.Counts["compile"] + s.Counts["execute"] + s.Bytes["weights"]; n != 0 {
			t.Errorf("work was done: %v, %v", s.Counts, s.Bytes)
		}
	}
	known := func(p *Pipeline) map[string]int64 {
		t.Helper()
		r := req()
		programs := checkedPrograms(t, p, r)
		out := map[string]int64{}
		for _, q := range programs {
			if q.Component != "" {
				out[q.ID()] = p.engine.knownActivations(q)
			}
		}
		return out
	}
	same := func(name string, p *Pipeline, want map[string]int64, traces bool) {
		t.Helper()
		got := known(p)
		if len(got) != len(want) {
			t.Errorf("%s: found %v, wanted %v", name, got, want)
		}
		for id, n := range want {
			if got[id] != n || n <= 0 {
				t.Errorf("%s: %s takes %d bytes, the trace said %d", name, id, got[id], n)
			}
		}
		if n := p.Stats().Counts["trace"]; (n > 0) != traces {
			t.Errorf("%s: %d traces", name, n)
		}
	}
	for _, regions := range []string{"inline", "split"} {
		cacheDir := t.TempDir()
		p := open(dir, Config{CacheDir: cacheDir, Regions: regions})
		refused(p, 1<<20, "64x64", "activations of vae", "--vae-tiling", "--offload model")
		for _, how := range []string{"one", "two"} {
			r := req()
			r.GuidanceBatch = how
			list := p.lessMemory(&pipelines.Program{Component: "transformer", Stage: StageDenoise}, r)
			if slices.Contains(list, "--guidance-batch two") != (how == "one") {
				t.Errorf("guidance_batch %s: less memory by %v", how, list)
			}
		}
		want := known(p)
		var largest int64
		for _, n := range want {
			largest = max(largest, n)
		}
		weights := p.weightBytes()
		refused(p, largest+weights-1, "activations of vae")
		// The Go backend keeps more at a time than what is counted: only the check is asked.
		availableMemory = func() int64 { return largest + weights }
		r := req()
		if err := p.complete(r); err != nil {
			t.Fatal(err)
		}
		programs, err := p.pipe.Programs(r)
		if err == nil {
			err = p.checkMemory(r, programs)
		}
		availableMemory = real
		if err != nil {
			t.Errorf("%s: with all that is needed: %v", regions, err)
		}
		file := filepath.Join(t.TempDir(), "x.precast")
		if _, err := p.Compile(t.Context(), CompileOptions{Output: file, Shapes: []Sizes{{Height: 64, Width: 64, MaxSequenceLength: 16}}}); err != nil {
			t.Fatal(err)
		}
		same(regions+", warm", open(dir, Config{CacheDir: cacheDir, Regions: regions}), want, false)
		same(regions+", artifact", open(file, Config{NoCache: true}), want, false)
		old := open(file, Config{NoCache: true})
		for _, m := range old.artifact.file.Programs {
			m.Activations = 0
		}
		same(regions+", older artifact", old, want, false)
		refused(old, 1<<20, "activations of vae")
	}
}

// checkedPrograms are the programs of a request, with their weights checked and their memory known.
func checkedPrograms(t *testing.T, p *Pipeline, r *Request) []*pipelines.Program {
	t.Helper()
	if err := p.complete(r); err != nil {
		t.Fatal(err)
	}
	programs, err := p.pipe.Programs(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.connect(); err != nil {
		t.Fatal(err)
	}
	if err := p.engine.checkWeights(programs); err != nil {
		t.Fatal(err)
	}
	return programs
}
