package tests

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"precast"
)

// phasesVariable makes the test binary write every phase of every program of the models to the folder that it names, and end.
const phasesVariable = "PRECAST_TEST_WRITE_PHASES"

// tinyModels are the checkpoints that every test may use.
func tinyModels(t *testing.T) []string {
	models := []string{shapesModel}
	for _, name := range []string{"flux1-dev", "flux1-schnell", "sd15"} {
		models = append(models, filepath.Join(reference(t), "tiny", name, "model"))
	}
	return models
}

// writePhases traces, optimizes and lowers every program of every model, whole, with loops and split, and writes each phase below dir.
func writePhases(t *testing.T, dir string) {
	for i, model := range tinyModels(t) {
		for _, regions := range []string{"inline", "scan", "split"} {
			p, err := precast.Open(context.Background(), model, precast.Config{
				Regions: regions, NoCache: true, DumpDir: filepath.Join(dir, fmt.Sprint(i), regions),
			})
			if err != nil {
				t.Fatal(err)
			}
			_, err = p.Compile(context.Background(), precast.CompileOptions{
				Shapes: []precast.Sizes{{Batch: 2, Height: 64, Width: 96}}, CompileTo: "stablehlo",
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestDeterminism traces, optimizes and lowers in two processes: every phase must have the same bytes, as keys are made of them.
func TestDeterminism(t *testing.T) {
	if dir := os.Getenv(phasesVariable); dir != "" {
		writePhases(t, dir)
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var phases [2]map[string][]byte
	for i := range phases {
		dir := t.TempDir()
		cmd := exec.Command(self, "-test.run=^TestDeterminism$")
		// Another number of threads gives the goroutines another order.
		cmd.Env = append(os.Environ(), phasesVariable+"="+dir, fmt.Sprintf("GOMAXPROCS=%d", 1+3*i))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		phases[i] = readTree(t, dir)
	}
	lowered := 0
	for name, first := range phases[0] {
		second, ok := phases[1][name]
		if !ok {
			t.Errorf("%s is written by the first process only", name)
			continue
		}
		if !bytes.Equal(first, second) {
			t.Errorf("%s differs: %s", name, firstDifference(first, second))
		}
		if strings.HasSuffix(name, ".mlir") {
			lowered++
		}
	}
	if len(phases[1]) != len(phases[0]) {
		t.Errorf("one process wrote %d files, the other %d", len(phases[0]), len(phases[1]))
	}
	// Four models with five programs or more each, in three forms.
	if lowered < 60 {
		t.Errorf("only %d programs were lowered", lowered)
	}
}

func readTree(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		files[rel], err = os.ReadFile(name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// firstDifference shows the first line that differs.
func firstDifference(a, b []byte) string {
	x, y := bytes.Split(a, []byte("\n")), bytes.Split(b, []byte("\n"))
	for i := range min(len(x), len(y)) {
		if !bytes.Equal(x[i], y[i]) {
			return fmt.Sprintf("line %d:\n%.300s\n%.300s", i+1, x[i], y[i])
		}
	}
	return fmt.Sprintf("%d lines and %d", len(x), len(y))
}

// TestCounts asserts what is traced, optimized, lowered and compiled, and when: another prompt, seed, guidance scale or number of steps makes
// nothing, another size makes its programs once, and a start with a cache makes nothing at all.
func TestCounts(t *testing.T) {
	for _, backend := range []string{"go", "pjrt"} {
		t.Run(backend, func(t *testing.T) {
			needBackend(t, backend)
			cacheDir := t.TempDir()
			open := func(t *testing.T) *precast.Pipeline {
				return openPipeline(t, shapesModel, precast.Config{Backend: backend, CacheDir: cacheDir})
			}
			base := func() *precast.Request {
				return &precast.Request{Prompt: []string{"a red circle on a blue background"}, Height: 16, Width: 16, NumInferenceSteps: 1, MaxSequenceLength: 16}
			}
			generate := func(t *testing.T, p *precast.Pipeline, r *precast.Request) []byte {
				t.Helper()
				out, err := p.Generate(context.Background(), r)
				if err != nil {
					t.Fatal(err)
				}
				return out.Images[0].RGB
			}
			made := func(p *precast.Pipeline) [4]int64 {
				c := p.Stats().Counts
				return [4]int64{c["trace"], c["passes"], c["lower"], c["compile"]}
			}
			var first []byte
			t.Run("cold", func(t *testing.T) {
				p := open(t)
				first = generate(t, p, base())
				// The two text encoders, the transformer, the step, unpacking and the decoder.
				before := made(p)
				if before[0] != 6 || before[1] != 6 || before[2] != 6 || before[3] < 6 {
					t.Errorf("trace, passes, lower, compile are %v, wanted 6 of each and at least 6 compiled", before)
				}
				guidance := 7.0
				for _, c := range []struct {
					what   string
					change func(*precast.Request)
				}{
					{"prompt", func(r *precast.Request) { r.Prompt = []string{"large green star, white background"} }},
					{"seed", func(r *precast.Request) { r.Seed = 7 }},
					{"guidance scale", func(r *precast.Request) { r.GuidanceScale = &guidance }},
					{"number of steps", func(r *precast.Request) { r.NumInferenceSteps = 3 }},
				} {
					r := base()
					c.change(r)
					if bytes.Equal(generate(t, p, r), first) {
						t.Errorf("another %s gives the same picture", c.what)
					}
					if after := made(p); after != before {
						t.Errorf("another %s made programs: %v before, %v after", c.what, before, after)
					}
				}
				if !bytes.Equal(generate(t, p, base()), first) {
					t.Error("the same request gives another picture")
				}
				// The text encoders don't know the picture's size, the other four programs do.
				r := base()
				r.Width = 32
				generate(t, p, r)
				if after := made(p); after[0] != before[0]+4 || after[3] <= before[3] {
					t.Errorf("another width: %v before, %v after, wanted 4 more traced", before, after)
				}
				before = made(p)
				generate(t, p, r)
				if after := made(p); after != before {
					t.Errorf("the same width again: %v before, %v after", before, after)
				}
			})
			t.Run("warm", func(t *testing.T) {
				p := open(t)
				if !bytes.Equal(generate(t, p, base()), first) {
					t.Error("the cached programs give another picture")
				}
				if m := made(p); m != [4]int64{} {
					t.Errorf("a start with the cache made programs: trace, passes, lower, compile are %v", m)
				}
				if c := p.Stats().Counts; c["cache_hit"] != 6 || c["cache_miss"] != 0 {
					t.Errorf("cache_hit is %d and cache_miss %d, wanted 6 and 0", c["cache_hit"], c["cache_miss"])
				}
			})
			t.Run("artifact", func(t *testing.T) {
				artifact := filepath.Join(t.TempDir(), "shapes.precast")
				p := open(t)
				_, err := p.Compile(context.Background(), precast.CompileOptions{
					Shapes: []precast.Sizes{{Height: 16, Width: 16, MaxSequenceLength: 16}}, Output: artifact,
				})
				if err != nil {
					t.Fatal(err)
				}
				if n := p.Stats().Counts["compile"]; n != 0 {
					t.Errorf("%d programs were compiled though the cache has them", n)
				}
				if err := p.Close(); err != nil {
					t.Fatal(err)
				}
				a := openPipeline(t, artifact, precast.Config{Backend: backend, NoCache: true, CacheOnly: true})
				if !slices.Equal(generate(t, a, base()), first) {
					t.Error("the artifact gives another picture")
				}
				if m := made(a); m != [4]int64{} {
					t.Errorf("a start with an artifact made programs: trace, passes, lower, compile are %v", m)
				}
			})
		})
	}
}
