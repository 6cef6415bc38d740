package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"precast"
)

// TestRegionCounts: each form of regions has keys of its own in one cache, compiles what it should and no more, starts warm without a compile, and makes the
// picture that inline makes, from the cache and from an artifact.
func TestRegionCounts(t *testing.T) {
	dir := model(t, "flux1-schnell")
	// The programs of the main part; preparations are not among them.
	executables := map[string]int{"inline": 6, "call": 6, "scan": 6, "auto": 6}
	for _, backend := range []string{"go", "pjrt"} {
		t.Run(backend, func(t *testing.T) {
			needBackend(t, backend)
			cacheDir := t.TempDir()
			request := func() *precast.Request {
				return &precast.Request{Prompt: []string{"a red fox"}, Height: 64, Width: 64, NumInferenceSteps: 1, MaxSequenceLength: 16}
			}
			generate := func(t *testing.T, p *precast.Pipeline) []byte {
				t.Helper()
				out, err := p.Generate(context.Background(), request())
				if err != nil {
					t.Fatal(err)
				}
				return out.Images[0].RGB
			}
			compiled := map[string]int64{}
			var first []byte
			for _, regions := range []string{"inline", "call", "scan", "split", "auto"} {
				// Pipelines are closed one after the other, so that each is held to leave no handle.
				open := func(path string, cfg precast.Config, work func(*testing.T, *precast.Pipeline)) {
					t.Run(regions, func(t *testing.T) { work(t, openPipeline(t, path, cfg)) })
				}
				cached := precast.Config{Backend: backend, Regions: regions, CacheDir: cacheDir}
				var picture []byte
				open(dir, cached, func(t *testing.T, p *precast.Pipeline) {
					picture = generate(t, p)
					if first == nil {
						first = picture
					}
					if d := largestDifference(picture, first); d > 1 {
						t.Errorf("%s: the picture differs from inline's by %d of 255, wanted at most 1", regions, d)
					}
					c := p.Stats().Counts
					if c["cache_hit"] != 0 || c["trace"] != 6 {
						t.Errorf("%s: %d programs came from a cache of other regions, %d were traced, wanted 0 and 6", regions, c["cache_hit"], c["trace"])
					}
					compiled[regions] = c["compile"]
					r := request()
					r.Prompt, r.Seed, r.NumInferenceSteps = []string{"a green house"}, 4, 2
					if _, err := p.Generate(context.Background(), r); err != nil {
						t.Fatal(err)
					}
					if n := p.Stats().Counts["compile"]; n != compiled[regions] {
						t.Errorf("%s: another prompt, seed and number of steps compiled %d programs", regions, n-compiled[regions])
					}
				})
				artifact := filepath.Join(t.TempDir(), regions+".precast")
				open(dir, cached, func(t *testing.T, warm *precast.Pipeline) {
					if !bytes.Equal(generate(t, warm), picture) {
						t.Errorf("%s: the cached programs give another picture", regions)
					}
					if c := warm.Stats().Counts; c["compile"] != 0 || c["trace"] != 0 || c["cache_hit"] != 6 {
						t.Errorf("%s: a warm start has the counts %v", regions, c)
					}
					report, err := warm.Compile(context.Background(), precast.CompileOptions{
						Shapes: []precast.Sizes{{Height: 64, Width: 64, MaxSequenceLength: 16}}, Output: artifact,
					})
					if err != nil {
						t.Fatal(err)
					}
					steps := 0
					for _, q := range report.Programs {
						steps += q.Steps
					}
					if want := executables[regions]; want != 0 && steps != want || want == 0 && steps <= 12 {
						t.Errorf("%s: the programs have %d steps, wanted %d (0: more than 12)", regions, steps, want)
					}
				})
				open(artifact, precast.Config{Backend: backend, NoCache: true, CacheOnly: true}, func(t *testing.T, a *precast.Pipeline) {
					if !bytes.Equal(generate(t, a), picture) {
						t.Errorf("%s: the artifact gives another picture", regions)
					}
				})
				other := "inline"
				if regions == "inline" {
					other = "scan"
				}
				if _, err := precast.Open(context.Background(), artifact, precast.Config{Backend: backend, Regions: other}); err == nil || !strings.Contains(err.Error(), "--regions "+regions) {
					t.Errorf("%s: opened with --regions %s: found %v, wanted an error", regions, other, err)
				}
			}
			// Blocks are compiled once: split has a few programs more than inline, whatever the number of blocks.
			if compiled["call"] > compiled["inline"] || compiled["split"] <= compiled["inline"] {
				t.Errorf("compiled: %v", compiled)
			}
		})
	}
}

// TestRegionErrors: regions are an error where nothing repeats, or where a component that was named does not; others are noted.
func TestRegionErrors(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "model")
	must(t, os.CopyFS(dir, os.DirFS(model(t, "flux1-schnell"))))
	editJSON(t, filepath.Join(dir, "transformer", "config.json"), map[string]any{"num_layers": 1, "num_single_layers": 1})
	editJSON(t, filepath.Join(dir, "text_encoder", "config.json"), map[string]any{"num_hidden_layers": 1})
	for _, c := range []struct {
		regions    string
		components []string
		want       []string // of the error; none where there is none
		noted      []string
	}{
		{regions: "call", noted: []string{"text_encoder", "transformer"}},
		{regions: "scan", noted: []string{"text_encoder", "transformer"}},
		{regions: "split", noted: []string{"text_encoder", "transformer"}},
		{regions: "auto"},
		{regions: "inline", components: []string{"transformer"}},
		{regions: "auto", components: []string{"transformer"}},
		{regions: "split", components: []string{"text_encoder_2"}},
		{regions: "split", components: []string{"text_encoder_2", "transformer"}, want: []string{"--regions split", `"transformer"`, "repeated blocks are in text_encoder_2", "--regions inline"}},
		{regions: "scan", components: []string{"transformer"}, want: []string{"--regions scan", `"transformer"`, "no component here has any"}},
		{regions: "call", components: []string{"step"}, want: []string{"--regions call", `"step"`}},
	} {
		t.Run(c.regions+" "+strings.Join(c.components, ","), func(t *testing.T) {
			var log bytes.Buffer
			p, err := precast.Open(context.Background(), dir, precast.Config{
				Regions: c.regions, ConfigOnly: true, NoCache: true, Log: slog.New(slog.NewJSONHandler(&log, nil)),
			})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			_, err = p.Compile(context.Background(), precast.CompileOptions{
				Shapes: []precast.Sizes{{Height: 64, Width: 64, MaxSequenceLength: 16}}, Components: c.components, CompileTo: "stablehlo",
			})
			if (err != nil) != (c.want != nil) {
				t.Fatalf("found the error %v, wanted one with %q", err, c.want)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q is not in: %v", w, err)
				}
			}
			noted := map[string]bool{}
			for line := range strings.Lines(log.String()) {
				var entry struct{ Component, Msg string }
				must(t, json.Unmarshal([]byte(line), &entry))
				if strings.Contains(entry.Msg, "no repeated blocks") {
					noted[entry.Component] = true
				}
			}
			if got := slices.Sorted(maps.Keys(noted)); !slices.Equal(got, c.noted) {
				t.Errorf("noted are %q, wanted %q", got, c.noted)
			}
		})
	}
	// A run is refused before anything is compiled, and so is one network alone.
	transformer := model(t, "flux1-schnell")
	p := openPipeline(t, transformer, precast.Config{Backend: "go", Regions: "scan", NoCache: true, Components: []string{"step"}})
	_, err := p.Generate(context.Background(), &precast.Request{Prompt: []string{"x"}, Height: 64, Width: 64, NumInferenceSteps: 1, MaxSequenceLength: 16})
	if err == nil || !strings.Contains(err.Error(), `"step"`) || p.Stats().Counts["compile"] != 0 {
		t.Errorf("a run: found %v after %d compiles, wanted an error before any", err, p.Stats().Counts["compile"])
	}
}
