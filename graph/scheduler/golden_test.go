package scheduler

import (
	"encoding/binary"
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"

	"precast/graph/checkpoint"
)

// reduce rewrites testdata from the reference: the configs, the tables of few steps and the trajectories of 4 steps.
var reduce = flag.Bool("reduce", false, "rewrite testdata from the reference")

// golden is what diffusers computed: testdata has a part of it, the reference set all.
type golden struct {
	// configs is a folder of NAME/scheduler_config.json.
	configs string
	runs    map[string]goldenConfig
	tensors map[string][]float64
	shapes  map[string][]int
	integer map[string]bool
	mus     mus
}

type goldenConfig struct {
	Class        string `json:"class"`
	SetTimesteps struct {
		FlowSigmas bool     `json:"flow_sigmas"`
		Mu         *float64 `json:"mu"`
	} `json:"set_timesteps"`
	Steps map[string]goldenRun `json:"steps"`
}

type goldenRun struct {
	Calls int `json:"calls"`
	// InitNoiseSigma is the text "nan" or "inf" where it is not finite.
	InitNoiseSigma any      `json:"init_noise_sigma"`
	Error          string   `json:"error,omitempty"`
	FirstStepError string   `json:"first_step_error,omitempty"`
	NotFinite      []string `json:"not_finite,omitempty"`
}

type mus struct {
	Flux1 []goldenMu `json:"flux1_mu"`
	Qwen  []goldenMu `json:"qwen_mu"`
	Flux2 []goldenMu `json:"flux2_mu"`
}

type goldenMu struct {
	ImageSeqLen int     `json:"image_seq_len"`
	Steps       int     `json:"steps,omitempty"`
	Mu          float64 `json:"mu"`
}

// referenceDir is the reference's scheduler folder, "" where there is none.
func referenceDir() string {
	root := os.Getenv("PRECAST_REFERENCE")
	if root == "" {
		root = filepath.Join("..", "..", "..", "shared", "reference")
	}
	dir := filepath.Join(root, "tiny", "schedulers")
	if _, err := os.Stat(dir); err != nil {
		return ""
	}
	return dir
}

// goldens calls f with testdata and, where it is there, with the reference.
func goldens(t *testing.T, f func(t *testing.T, g *golden)) {
	t.Run("testdata", func(t *testing.T) { f(t, loadGolden(t, "testdata", "golden")) })
	t.Run("reference", func(t *testing.T) {
		dir := referenceDir()
		if dir == "" {
			t.Skip("the reference set is not there (PRECAST_REFERENCE)")
		}
		f(t, loadGolden(t, dir, "golden", "tables"))
	})
}

func loadGolden(t *testing.T, dir string, names ...string) *golden {
	t.Helper()
	g := &golden{
		configs: filepath.Join(dir, "configs"), runs: map[string]goldenConfig{},
		tensors: map[string][]float64{}, shapes: map[string][]int{}, integer: map[string]bool{},
	}
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(dir, name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		var doc struct {
			Configs map[string]goldenConfig `json:"configs"`
			mus
		}
		if err := json.Unmarshal(data, &doc); err != nil {
			t.Fatal(err)
		}
		for k, v := range doc.Configs {
			if old, ok := g.runs[k]; ok {
				for n, r := range v.Steps {
					old.Steps[n] = r
				}
			} else {
				g.runs[k] = v
			}
		}
		if doc.Flux1 != nil {
			g.mus = doc.mus
		}
		file, err := checkpoint.OpenFile(filepath.Join(dir, name+".safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		for k, v := range file.Tensors() {
			g.tensors[k], g.integer[k] = floats(t, v)
			g.shapes[k] = v.Shape
		}
	}
	return g
}

func floats(t *testing.T, v checkpoint.Tensor) (out []float64, integer bool) {
	b := v.Bytes()
	switch v.DType {
	case dtypes.Float32:
		for ; len(b) > 0; b = b[4:] {
			out = append(out, float64(math.Float32frombits(binary.LittleEndian.Uint32(b))))
		}
	case dtypes.Int64:
		integer = true
		for ; len(b) > 0; b = b[8:] {
			out = append(out, float64(int64(binary.LittleEndian.Uint64(b))))
		}
	default:
		t.Fatalf("%s: dtype %s", v.Key, v.DType)
	}
	return out, integer
}

func (g *golden) names() []string {
	var out []string
	for k := range g.runs {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// scheduler makes the scheduler of a named config.
func (g *golden) scheduler(t *testing.T, name string) *Scheduler {
	t.Helper()
	cfg, err := checkpoint.ReadConfig(filepath.Join(g.configs, name, "scheduler_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(g.runs[name].Class, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// options are the arguments that the golden was made with.
func (c goldenConfig) options(steps int) Options {
	o := Options{Steps: steps, Mu: c.SetTimesteps.Mu}
	if c.SetTimesteps.FlowSigmas {
		o.Sigmas = FlowSigmas(steps)
	}
	return o
}

// closeTo reports where a is further from g than tolerance times the largest value of g.
func closeTo(t *testing.T, what string, a, g []float64, tolerance float64) {
	t.Helper()
	if len(a) != len(g) {
		t.Errorf("%s: %d values, want %d", what, len(a), len(g))
		return
	}
	largest, worst, at := 0.0, 0.0, 0
	for i := range g {
		largest = max(largest, math.Abs(g[i]))
		if d := math.Abs(a[i] - g[i]); d > worst || math.IsNaN(d) {
			worst, at = d, i
		}
	}
	if !(worst <= tolerance*largest) {
		t.Errorf("%s: [%d] is %v, want %v: off by %.2g of the largest value, limit %.2g", what, at, a[at], g[at], worst/largest, tolerance)
	}
}

func TestReduceGolden(t *testing.T) {
	if !*reduce {
		t.Skip("run with -reduce to rewrite testdata")
	}
	dir := referenceDir()
	g := loadGolden(t, dir, "golden", "tables")
	for _, name := range g.names() {
		data, err := os.ReadFile(filepath.Join(g.configs, name, "scheduler_config.json"))
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join("testdata", "configs", name)
		if err := os.MkdirAll(to, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, "scheduler_config.json"), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var items []checkpoint.Item
	for _, source := range []string{"golden", "tables"} {
		file, err := checkpoint.OpenFile(filepath.Join(dir, source+".safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		for _, k := range file.Keys() {
			v, _ := file.Tensor(k)
			long := strings.Contains(k, "/999/") || strings.Contains(k, "/1000/") || strings.HasSuffix(k, "/alphas_cumprod")
			keep := strings.HasPrefix(k, "ddim-trailing-zsnr-v/") || strings.HasPrefix(k, "sd15-pndm/")
			trajectory := len(v.Shape) > 1 && strings.Contains(k, "/20/")
			if (!long || keep) && !trajectory {
				items = append(items, checkpoint.Item{Key: k, DType: v.DType, Shape: v.Shape, Data: slices.Clone(v.Bytes())})
			}
		}
	}
	if err := checkpoint.WriteFile(filepath.Join("testdata", "golden.safetensors"), items, nil); err != nil {
		t.Fatal(err)
	}
	doc := map[string]any{"configs": g.runs, "flux1_mu": g.mus.Flux1, "qwen_mu": g.mus.Qwen, "flux2_mu": g.mus.Flux2}
	data, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join("testdata", "golden.json"), append(data, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}
