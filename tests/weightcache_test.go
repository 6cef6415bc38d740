package tests

import (
	"bytes"
	"context"
	"encoding/binary"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"precast"
)

// weightRun opens a checkpoint, makes a picture of two steps and returns all latents and the picture, and what was counted, after everything is closed. Warnings end
// up in the text.
func weightRun(t *testing.T, dir string, cfg precast.Config) (values []byte, bytes map[string]int64, warnings string) {
	t.Helper()
	var log lockedBuffer
	cfg.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	p, err := precast.Open(context.Background(), dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	closed := false
	defer func() {
		if !closed {
			p.Close()
		}
	}()
	req := &precast.Request{Prompt: []string{"a red circle"}, Height: 32, Width: 32, NumInferenceSteps: 2, Seed: 3}
	if p.Class() == "FluxPipeline" {
		req.MaxSequenceLength = 16
	}
	steps, out := latentsWith(t, p, req)
	for _, h := range steps {
		values = append(values, h.Data...)
	}
	for _, img := range out.Images {
		values = append(values, img.RGB...)
	}
	closed = true
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	return values, maps.Clone(p.Stats().Bytes), log.String()
}

// TestWeightsCache runs without the cache of weights, with an empty one and with a full one: the values are equal bit for bit, and the last run reads nothing from the
// checkpoint but what it can use as it lies there.
func TestWeightsCache(t *testing.T) {
	lora := loraRuns(t)
	var loras []string
	for _, r := range lora {
		if r.Model == "flux1-dev" && r.Variant == "" {
			loras = r.specs()
		}
	}
	for _, c := range []struct {
		name, model string
		cfg         precast.Config
	}{
		{"flux float32", "flux1-dev", precast.Config{}},
		{"flux bfloat16", "flux1-dev", precast.Config{DType: "bfloat16"}},
		{"flux float16, loops", "flux1-dev", precast.Config{DType: "float16", Regions: "scan"}},
		{"flux split", "flux1-dev", precast.Config{Regions: "split"}},
		{"flux LoRA", "flux1-dev", precast.Config{LoRAs: loras}},
		{"flux one component at a time", "flux1-dev", precast.Config{Offload: "model"}},
		{"sd15 float32", "sd15", precast.Config{}},
		{"sd15 bfloat16", "sd15", precast.Config{DType: "bfloat16"}},
		{"sd15 pjrt", "sd15", precast.Config{Backend: "pjrt", DType: "bfloat16,vae=float32"}},
		{"flux pjrt", "flux1-dev", precast.Config{Backend: "pjrt", Regions: "auto"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := model(t, c.model)
			cfg := c.cfg
			if cfg.Backend == "" {
				cfg.Backend = "go"
			}
			if strings.Contains(c.name, "LoRA") && len(loras) == 0 {
				t.Fatal("there is no LoRA")
			}
			needBackend(t, cfg.Backend)
			cfg.CacheDir = t.TempDir()
			want, _, _ := weightRun(t, dir, cfg)
			cfg.WeightsCache = "on"
			first, made, warned := weightRun(t, dir, cfg)
			if !bytes.Equal(first, want) {
				t.Error("the run that fills the cache gives other values")
			}
			if made["weights_cache_written"] == 0 || made["cached"] != 0 || warned != "" {
				t.Errorf("the first run: %v, %s", made, warned)
			}
			second, found, warned := weightRun(t, dir, cfg)
			if !bytes.Equal(second, want) {
				t.Error("the run from the cache gives other values")
			}
			if found["cached"] == 0 || found["copied"]+found["converted"]+found["folded"]+found["weights_cache_written"] != 0 || warned != "" {
				t.Errorf("the second run: %v, %s", found, warned)
			}
			if found["cached"]+found["mapped"] != found["weights"] {
				t.Errorf("of %d bytes of weights %d are from the cache and %d from the checkpoint", found["weights"], found["cached"], found["mapped"])
			}
			if s, err := precast.OpenCache(cfg.CacheDir, nil).Verify(false); err != nil || len(s.Bad) > 0 {
				t.Errorf("verify: %+v, %v", s, err)
			}
		})
	}
}

// weightEntries are the files of the cache that hold weights.
func weightEntries(t *testing.T, cacheDir string) []string {
	t.Helper()
	var list []string
	must(t, filepath.WalkDir(filepath.Join(cacheDir, "v1", precast.CacheWeights), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			list = append(list, path)
		}
		return nil
	}))
	return list
}

// Another scale of a LoRA, another dtype and a checkpoint whose file was replaced by one of the same header are other weights.
func TestWeightsCacheMisses(t *testing.T) {
	c := newCommandLine(t)
	dir := c.copyModel(t, "flux1-dev")
	var spec string
	for _, r := range loraRuns(t) {
		if r.Model == "flux1-dev" && r.Variant == "" && len(r.LoRAs) > 0 {
			spec = filepath.Join(loraDir, r.LoRAs[0].File+".safetensors")
		}
	}
	base := precast.Config{Backend: "go", CacheDir: t.TempDir(), WeightsCache: "on"}
	run := func(what string, hit bool, cfg precast.Config) {
		t.Helper()
		got, counted, warned := weightRun(t, dir, cfg)
		cfg.WeightsCache = "off"
		want, _, _ := weightRun(t, dir, cfg)
		if !bytes.Equal(got, want) {
			t.Errorf("%s: the values differ from those without the cache", what)
		}
		if (counted["copied"]+counted["converted"]+counted["folded"] == 0) != hit || warned != "" {
			t.Errorf("%s: %v, %s; wanted a hit: %v", what, counted, warned, hit)
		}
	}
	run("new", false, base)
	run("again", true, base)
	half := base
	half.DType = "float16"
	run("another dtype", false, half)
	strong := base
	strong.LoRAs = []string{spec + ":0.5"}
	run("a LoRA", false, strong)
	strong.LoRAs = []string{spec + ":0.75"}
	run("the LoRA at another scale", false, strong)
	files, err := filepath.Glob(filepath.Join(dir, "transformer", "*.safetensors"))
	must(t, err)
	info, err := os.Stat(files[0])
	must(t, err)
	data := readFile(t, files[0])
	for k := 8 + int(binary.LittleEndian.Uint64(data)); k < len(data); k += 4 {
		data[k] ^= 1 // the last bit of a value
	}
	writeFile(t, files[0], data)
	must(t, os.Chtimes(files[0], info.ModTime(), info.ModTime()))
	if now, err := os.Stat(files[0]); err != nil || now.Size() != info.Size() {
		t.Fatalf("%v: the file has another size", err)
	}
	run("other values", false, base)
	run("other values again", true, base)
}

// A bad entry is a warning and made anew, a cache that can't be written costs nothing but the entry.
func TestWeightsCacheDamaged(t *testing.T) {
	dir := model(t, "flux1-dev")
	cfg := precast.Config{Backend: "go", CacheDir: t.TempDir(), WeightsCache: "on"}
	want, _, _ := weightRun(t, dir, cfg)
	entries := weightEntries(t, cfg.CacheDir)
	if len(entries) < 2 {
		t.Fatalf("entries %q", entries)
	}
	for i, path := range entries {
		info, err := os.Stat(path)
		must(t, err)
		if i%2 == 0 {
			must(t, os.Truncate(path, info.Size()-64))
		} else {
			data := readFile(t, path)
			data[20] ^= 0xff
			writeFile(t, path, data)
		}
	}
	got, counted, warned := weightRun(t, dir, cfg)
	if !bytes.Equal(got, want) || counted["cached"] != 0 || strings.Count(warned, "is bad and is made anew") != len(entries) {
		t.Errorf("damaged: equal %v, %v, %s", bytes.Equal(got, want), counted, warned)
	}
	got, counted, warned = weightRun(t, dir, cfg)
	if !bytes.Equal(got, want) || counted["cached"] == 0 || warned != "" {
		t.Errorf("made anew: equal %v, %v, %s", bytes.Equal(got, want), counted, warned)
	}
	if left := weightEntries(t, cfg.CacheDir); !slices.Equal(left, entries) {
		t.Errorf("files %q, wanted %q", left, entries)
	}
}

// Runs that start together share the entries: each is whole, and nothing else is left.
func TestWeightsCacheTogether(t *testing.T) {
	dir := model(t, "flux1-dev")
	cfg := precast.Config{Backend: "go", CacheDir: t.TempDir(), WeightsCache: "on"}
	var wg sync.WaitGroup
	values := make([][]byte, 3)
	for i := range values {
		wg.Go(func() { values[i], _, _ = weightRun(t, dir, cfg) })
	}
	wg.Wait()
	again, counted, _ := weightRun(t, dir, cfg)
	for i, v := range values {
		if !bytes.Equal(v, again) {
			t.Errorf("run %d gave other values", i)
		}
	}
	if counted["converted"]+counted["copied"] != 0 {
		t.Errorf("afterwards: %v", counted)
	}
	for _, path := range weightEntries(t, cfg.CacheDir) {
		if strings.HasPrefix(filepath.Base(path), ".") {
			t.Errorf("%s stayed", path)
		}
	}
}

// limitVariable makes the test binary run a checkpoint, named with a cache folder, in a process that may write no large file.
const limitVariable = "PRECAST_TEST_FILE_LIMIT"

// A limit on the size of files is met like a full disk: a warning, and the run goes on.
func TestWeightsCacheFileLimit(t *testing.T) {
	if args := strings.Split(os.Getenv(limitVariable), "|"); len(args) == 2 {
		_, counted, warned := weightRun(t, args[0], precast.Config{Backend: "go", CacheDir: args[1], WeightsCache: "on"})
		if counted["weights_cache_written"] != 0 || !strings.Contains(warned, "are not cached") || !strings.Contains(warned, "file too large") {
			t.Errorf("%v, %s", counted, warned)
		}
		return
	}
	if runtime.GOOS != "linux" {
		t.Skip("the limit is set by a shell of Linux")
	}
	dir, cacheDir := model(t, "flux1-dev"), t.TempDir()
	weightRun(t, dir, precast.Config{Backend: "go", CacheDir: cacheDir}) // programs are there
	self, err := os.Executable()
	must(t, err)
	cmd := exec.Command("sh", "-c", `ulimit -f 32; exec "$0" "$@"`, self, "-test.run=^TestWeightsCacheFileLimit$")
	cmd.Env = append(os.Environ(), limitVariable+"="+dir+"|"+cacheDir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if left := weightEntries(t, cacheDir); len(left) > 0 {
		t.Errorf("%q is there", left)
	}
}

func TestWeightsCacheRefused(t *testing.T) {
	dir := model(t, "flux1-dev")
	for want, cfg := range map[string]precast.Config{
		`weights-cache: found "maybe", wanted off or on`: {WeightsCache: "maybe"},
		"weights-cache: found on, but --no-cache":        {WeightsCache: "on", NoCache: true},
	} {
		if _, err := precast.Open(context.Background(), dir, cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, wanted %q", err, want)
		}
	}
}
