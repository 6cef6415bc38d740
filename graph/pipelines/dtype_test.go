package pipelines

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/trace"
)

// keptWide says which modules the reference keeps in float32 under a half precision, by class: diffusers' _keep_in_fp32_modules under every one
// (models/modeling_utils.py), transformers' under float16 alone (modeling_utils.py, _get_dtype and _keep_in_fp32_modules). A module's name is a level of a path.
var keptWide = map[string]struct {
	modules []string
	half    bool // float16 alone
}{
	"WanTransformer3DModel": {modules: []string{"rope", "time_embedder", "scale_shift_table", "norm1", "norm2", "norm3"}},
	"T5EncoderModel":        {modules: []string{"wo"}, half: true},
	"UMT5EncoderModel":      {modules: []string{"wo"}, half: true},
	// Not of a list: the pipeline undoes the batch norm of the latents with these two, and the sum is ours.
	"AutoencoderKLFlux2": {modules: []string{"running_mean", "running_var"}},
}

// TestKeptWide traces every program of every reference pipeline in both half precisions and looks at the dtype in which each weight is read.
func TestKeptWide(t *testing.T) {
	dir := os.Getenv("PRECAST_REFERENCE")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "reference")
	}
	if _, err := os.Stat(filepath.Join(dir, "tiny")); err != nil {
		dir = filepath.Join("..", "..", "tests", "testdata")
	}
	models, err := filepath.Glob(filepath.Join(dir, "tiny", "*", "model"))
	if err != nil || len(models) < 3 {
		t.Fatalf("%d models, %v", len(models), err)
	}
	for _, model := range models {
		for _, dtype := range []graph.DType{dtypes.BFloat16, dtypes.Float16} {
			t.Run(fmt.Sprintf("%s/%s", filepath.Base(filepath.Dir(model)), dtype), func(t *testing.T) {
				checkKeptWide(t, model, dtype)
			})
		}
	}
}

func checkKeptWide(t *testing.T, model string, dtype graph.DType) {
	ck, err := checkpoint.Open(model)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	if !slices.Contains(Classes(), ck.Class()) {
		t.Skipf("%s is not there yet", ck.Class())
	}
	p, err := New(ck, Options{DType: dtype})
	if err != nil {
		t.Fatal(err)
	}
	r := &Request{Prompt: []string{"x"}, Height: 64, Width: 64, NumInferenceSteps: 4, NumImagesPerPrompt: 1}
	if err := p.Defaults(r); err != nil {
		t.Fatal(err)
	}
	programs, err := p.Programs(r)
	if err != nil {
		t.Fatal(err)
	}
	wide := map[string]int{}
	for _, q := range programs {
		m, err := trace.Trace(q.Network)
		if err != nil {
			t.Fatalf("%s: %v", q.Name, err)
		}
		class := ""
		if q.Component != "" {
			comp, err := ck.Component(q.Component)
			if err != nil {
				t.Fatal(err)
			}
			class = comp.Class
		}
		kept := keptWide[class]
		for _, w := range m.Entry().Params {
			if w.Kind != graph.Weight {
				continue
			}
			want := dtype
			for _, level := range strings.Split(w.Name, ".") {
				if slices.Contains(kept.modules, level) && (!kept.half || dtype == dtypes.Float16) {
					want = dtypes.Float32
				}
			}
			// SDXL decodes in float32 (pipeline_stable_diffusion_xl.py, force_upcast).
			if ck.Class() == "StableDiffusionXLPipeline" && q.Component == "vae" && dtype == dtypes.Float16 {
				want = dtypes.Float32
			}
			if found := w.Value.Shape.DType; found != want {
				t.Errorf("%s: %s (%s) is read in %s, wanted %s", q.Name, w.Name, class, found, want)
			}
			if want == dtypes.Float32 {
				wide[class]++
			}
		}
		if found := q.Component != "" && class == ""; found {
			t.Errorf("%s has no class", q.Component)
		}
	}
	for _, name := range ck.Components() {
		comp, err := ck.Component(name)
		if err != nil {
			continue
		}
		if kept, ok := keptWide[comp.Class]; ok && wide[comp.Class] == 0 && (!kept.half || dtype == dtypes.Float16) {
			t.Errorf("%s keeps nothing in float32", comp.Class)
		}
	}
}
