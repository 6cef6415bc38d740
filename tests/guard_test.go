package tests

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"precast"
)

// Outputs that would destroy what is read, and two of one name, are refused.
func TestCheckOutputs(t *testing.T) {
	dir := filepath.Join(reference(t), "tiny", "sd15", "model")
	p := openPipeline(t, dir, precast.Config{Backend: "go", NoCache: true})
	out := t.TempDir()
	for name, paths := range map[string][]string{
		"inside":    {filepath.Join(dir, "unet", "config.json")},
		"index":     {filepath.Join(dir, "model_index.json")},
		"dots":      {filepath.Join(out, "..", filepath.Base(out), "a.png"), filepath.Join(out, "a.png")},
		"new":       {filepath.Join(dir, "fox.png")},
		"named too": {"x.png", "./x.png"},
	} {
		if err := p.CheckOutputs(paths...); precast.ExitCode(err) != 1 {
			t.Errorf("%s: %v gives %v, wanted an error of the user", name, paths, err)
		}
	}
	for _, cfg := range []precast.Config{{Backend: "go", NoCache: true, DumpDir: dir}, {Backend: "go", CacheDir: filepath.Join(dir, "unet", "cache")}} {
		p, err := precast.Open(context.Background(), dir, cfg)
		if precast.ExitCode(err) != 1 || !strings.Contains(err.Error(), "lies in the folder") {
			t.Errorf("%+v: error %v", cfg, err)
		}
		if err == nil {
			p.Close()
		}
	}
	if err := p.CheckOutputs(filepath.Join(out, "a.png"), "", filepath.Join(out, "b.json")); err != nil {
		t.Error(err)
	}
}

// A latents file whose tensor has no axes is refused; what it is decoded to counts pictures by the first.
func TestScalarLatents(t *testing.T) {
	p := openPipeline(t, filepath.Join(reference(t), "tiny", "sd15", "model"), precast.Config{Backend: "go", NoCache: true})
	path := filepath.Join(t.TempDir(), "scalar.safetensors")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := precast.WriteTensors(f, map[string]precast.HostTensor{"latents": {Shape: shapes.Make(dtypes.Float32), Data: make([]byte, 4)}}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.ReadLatents(path); precast.ExitCode(err) != 1 {
		t.Errorf("error %v, wanted one of the user", err)
	}
}

// Each warning comes once, and none about what the request does not say.
func TestWarnings(t *testing.T) {
	dir := filepath.Join(reference(t), "tiny", "flux1-schnell", "model")
	p := openPipeline(t, dir, precast.Config{Backend: "go"})
	var warnings int
	req := &precast.Request{Prompt: []string{"x"}, Height: 16, Width: 16, NumInferenceSteps: 1, MaxSequenceLength: 16, Warn: func(string, ...any) { warnings++ }}
	if err := p.Check(req); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Generate(context.Background(), req); err != nil {
		t.Fatal(err)
	}
	if warnings != 0 {
		t.Errorf("%d warnings about nothing", warnings)
	}
	req.NegativePrompt = []string{"y"}
	if err := p.Check(req); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Generate(context.Background(), req); err != nil {
		t.Fatal(err)
	}
	if warnings != 1 {
		t.Errorf("%d warnings about a negative prompt without effect, wanted 1", warnings)
	}
}
