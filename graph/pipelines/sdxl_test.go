package pipelines

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/scheduler"
)

// editedCheckpoint is a copy of a tiny checkpoint's configs with changed fields, by the config's path; a nil value takes a field away.
func editedCheckpoint(t *testing.T, name string, changes map[string]map[string]any) *checkpoint.Checkpoint {
	t.Helper()
	from, to := filepath.Join("..", "..", "tests", "testdata", "tiny", name, "model"), t.TempDir()
	paths, err := filepath.Glob(filepath.Join(from, "*", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(paths, filepath.Join(from, "model_index.json")) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			t.Fatal(err)
		}
		if fields := changes[filepath.ToSlash(rel)]; fields != nil {
			config := map[string]any{}
			if err := json.Unmarshal(data, &config); err != nil {
				t.Fatal(err)
			}
			for k, v := range fields {
				if config[k] = v; v == nil {
					delete(config, k)
				}
			}
			if data, err = json.Marshal(config); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(to, rel)), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, rel), data, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	ck, err := checkpoint.Open(to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ck.Close() })
	return ck
}

func TestSDXLConfigErrors(t *testing.T) {
	for _, tc := range []struct {
		file   string
		fields map[string]any
		want   string
	}{
		{"model_index.json", map[string]any{"requires_aesthetics_score": true}, "model_index.json: requires_aesthetics_score: found true, as in the refiner"},
		{"model_index.json", map[string]any{"force_zeros_for_empty_prompt": 1}, "model_index.json: force_zeros_for_empty_prompt: found 1, wanted true or false"},
		{"model_index.json", map[string]any{"text_encoder": []any{nil, nil}}, "model_index.json: text_encoder: found no such component"},
		{"model_index.json", map[string]any{"text_encoder_2": []any{"transformers", "CLIPTextModel"}}, `component "text_encoder_2" has class "CLIPTextModel"; StableDiffusionXLPipeline knows CLIPTextModelWithProjection`},
		{"unet/config.json", map[string]any{"addition_embed_type": nil}, "addition_embed_type is null"},
		{"unet/config.json", map[string]any{"cross_attention_dim": 64}, "text_encoder and text_encoder_2 has hidden_size together 80"},
		{"unet/config.json", map[string]any{"projection_class_embeddings_input_dim": 90}, "text_encoder_2 has projection_dim 40"},
		{"unet/config.json", map[string]any{"time_cond_proj_dim": 256}, "unet/config.json: time_cond_proj_dim: not supported"},
		{"unet/config.json", map[string]any{"in_channels": 9}, "unet has in_channels 9, vae has latent_channels 4"},
		{"text_encoder/config.json", map[string]any{"max_position_embeddings": 64}, "max_position_embeddings 64"},
	} {
		_, err := New(editedCheckpoint(t, "sdxl", map[string]map[string]any{tc.file: tc.fields}), Options{DType: float32Type})
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s %v: error %v, wanted %s", tc.file, tc.fields, err, tc.want)
		}
	}
}

// TestSDXLUpcast: the autoencoder computes in float32 where the rest does in float16 and its config says so, unless it is told otherwise. The
// encoder always does then.
func TestSDXLUpcast(t *testing.T) {
	for _, tc := range []struct {
		name          string
		upcast        bool
		o             Options
		decode, begin graph.DType
		notes         int
	}{
		{"float16", true, Options{DType: dtypes.Float16}, dtypes.Float32, dtypes.Float32, 1},
		{"float16, no upcast", false, Options{DType: dtypes.Float16}, dtypes.Float16, dtypes.Float16, 0},
		{"float16, told", true, Options{DType: dtypes.Float16, DTypes: map[string]graph.DType{"vae": dtypes.BFloat16}}, dtypes.BFloat16, dtypes.Float32, 0},
		{"bfloat16", true, Options{DType: dtypes.BFloat16}, dtypes.BFloat16, dtypes.Float32, 0},
	} {
		ck := editedCheckpoint(t, "sdxl", map[string]map[string]any{"vae/config.json": {"force_upcast": tc.upcast}})
		p, err := New(ck, tc.o)
		if err != nil {
			t.Fatal(err)
		}
		r := request(func(r *Request) { r.Image = &Image{Height: 64, Width: 96, RGB: make([]byte, 3*64*96)} })
		if err := p.Defaults(r); err != nil {
			t.Fatal(err)
		}
		programs, err := p.Programs(r)
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]string{}
		for _, q := range programs {
			found[q.Name] = graph.DTypeName(q.Inputs[0].Shape.DType)
		}
		want := map[string]string{
			"vae.decoder": graph.DTypeName(tc.decode), "vae.encoder": graph.DTypeName(tc.begin), "unet": graph.DTypeName(tc.o.DType),
		}
		for name, dtype := range want {
			if found[name] != dtype {
				t.Errorf("%s: %s computes in %q, wanted %s", tc.name, name, found[name], dtype)
			}
		}
		if notes := ck.Notes(); len(notes) != tc.notes {
			t.Errorf("%s: notes %v", tc.name, notes)
		}
	}
}

// TestEditedScheduler edits the class of the scheduler: in both files it runs, in its config alone model_index.json's does, as in diffusers, and a
// note says so.
func TestEditedScheduler(t *testing.T) {
	index := func(class string) map[string]any { return map[string]any{"scheduler": []any{"diffusers", class}} }
	config := func(class string) map[string]any { return map[string]any{"_class_name": class} }
	for _, class := range scheduler.Known() {
		ck := editedCheckpoint(t, "sd15", map[string]map[string]any{"scheduler/scheduler_config.json": config(class), "model_index.json": index(class)})
		p := mustOpen(t, ck)
		if p.Scheduler() != class || len(ck.Notes()) > 0 {
			t.Errorf("%s: found %s, notes %v", class, p.Scheduler(), ck.Notes())
		}
		if err := p.Defaults(request(nil)); err != nil {
			t.Errorf("%s: %v", class, err)
		}
		if p = mustOpen(t, editedCheckpoint(t, "sd15", map[string]map[string]any{"model_index.json": index(class)})); p.Scheduler() != class {
			t.Errorf("%s in model_index.json: found %s", class, p.Scheduler())
		}
	}
	ck := editedCheckpoint(t, "sd15", map[string]map[string]any{"scheduler/scheduler_config.json": config("EulerDiscreteScheduler")})
	if got := mustOpen(t, ck).Scheduler(); got != "PNDMScheduler" {
		t.Errorf("scheduler %s", got)
	}
	if notes := strings.Join(ck.Notes(), "\n"); !strings.Contains(notes, "names EulerDiscreteScheduler and model_index.json PNDMScheduler: the second is taken") {
		t.Errorf("notes: %s", notes)
	}
	_, err := New(editedCheckpoint(t, "sd15", map[string]map[string]any{"model_index.json": index("KDPM2DiscreteScheduler")}), Options{DType: float32Type})
	if err == nil || !strings.Contains(err.Error(), "KDPM2DiscreteScheduler") || !strings.Contains(err.Error(), "DDIMScheduler") {
		t.Errorf("an unknown class: %v", err)
	}
}

func TestImageRequests(t *testing.T) {
	sd, xl, flux := openPipeline(t, "sd15", ""), mustOpen(t, editedCheckpoint(t, "sdxl", nil)), openPipeline(t, "flux1-dev", "")
	picture := func(h, w int) *Image { return &Image{Height: h, Width: w, RGB: make([]byte, 3*h*w)} }
	size := func(a, b int) *[2]int { return &[2]int{a, b} }
	for _, tc := range []struct {
		name string
		p    Pipeline
		edit func(r *Request)
		want string // part of the error; empty where the request is good
	}{
		{"good", sd, func(r *Request) { r.Image = picture(64, 96) }, ""},
		{"good", xl, func(r *Request) { r.Image, r.GuidanceRescale = picture(64, 96), 0.5 }, ""},
		{"good", flux, func(r *Request) { r.Image = picture(64, 96) }, ""},
		{"rescale", sd, func(r *Request) { r.Image, r.GuidanceRescale = picture(64, 96), 0.5 }, "guidance_rescale: StableDiffusionImg2ImgPipeline has no such argument"},
		{"no bytes", sd, func(r *Request) { r.Image = &Image{Height: 64, Width: 96} }, "image: found 0 bytes for 64x96"},
		{"no steps", sd, func(r *Request) { r.Image, r.Strength = picture(64, 96), ptr(0.2) }, "strength: 0.2 of 4 steps leaves no step to do; give a strength of 0.25 or more"},
		{"no steps", flux, func(r *Request) { r.Image, r.Strength = picture(64, 96), ptr(0.0) }, "strength: 0 of 4 steps"},
		{"strength alone", xl, func(r *Request) { r.Strength = ptr(0.5) }, "strength: given without an image"},
		{"strength", xl, func(r *Request) { r.Image, r.Strength = picture(64, 96), ptr(-0.1) }, "strength: found -0.1, wanted 0 to 1"},
		{"too small", sd, func(r *Request) { r.Image, r.Height, r.Width = picture(5, 96), 0, 0 }, "height: found 5"},
		{"latents", sd, func(r *Request) { r.Image, r.Latents = picture(64, 96), &HostTensor{Shape: f32(1, 4, 8, 12)} }, "latents: given beside an image"},
		{"latents", flux, func(r *Request) { r.Image, r.Latents = picture(64, 96), &HostTensor{Shape: f32(1, 24, 32)} }, "latents: given beside an image"},
		{"sizes", xl, func(r *Request) {
			r.OriginalSize, r.CropsCoordsTopLeft, r.TargetSize = size(128, 96), size(0, 4), size(64, 96)
		}, ""},
		{"original size", xl, func(r *Request) { r.OriginalSize = size(0, 96) }, "original_size: found [0 96], wanted two numbers from 1"},
		{"crop", xl, func(r *Request) { r.NegativeCropsCoordsTopLeft = size(-1, 0) }, "negative_crops_coords_top_left: found [-1 0], wanted two numbers from 0"},
		{"sizes", sd, func(r *Request) { r.TargetSize = size(64, 96) }, "target_size: StableDiffusionPipeline has no such argument"},
		{"clip skip", xl, func(r *Request) { r.ClipSkip = 3 }, "clip_skip: found 3, wanted at most 2"},
		{"true CFG", xl, func(r *Request) { r.TrueCFGScale = ptr(2.0) }, "true_cfg_scale: StableDiffusionXLPipeline has no such argument"},
	} {
		err := tc.p.Defaults(request(tc.edit))
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s, %s: error %v, wanted %q", tc.p.Class(), tc.name, err, tc.want)
		}
	}
}

// TestImageDefaults: sizes, strengths and scales where none is given.
func TestImageDefaults(t *testing.T) {
	for _, tc := range []struct {
		p    Pipeline
		want string
	}{
		{openPipeline(t, "sd15", ""), "48x72 strength 0.8 guidance 7.5 warnings 1"},
		{mustOpen(t, editedCheckpoint(t, "sdxl", nil)), "48x72 strength 0.3 guidance 5 warnings 1"},
		{openPipeline(t, "flux1-dev", ""), "1024x1024 strength 0.6 guidance 7 warnings 1"},
	} {
		warnings := 0
		r := request(func(r *Request) {
			r.Height, r.Width, r.Image = 0, 0, &Image{Height: 50, Width: 77, RGB: make([]byte, 3*50*77)}
		})
		r.Warn = func(format string, args ...any) { warnings++ }
		if err := tc.p.Defaults(r); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%dx%d strength %v guidance %v warnings %d", r.Height, r.Width, *r.Strength, *r.GuidanceScale, warnings); got != tc.want {
			t.Errorf("%s: %s, wanted %s", tc.p.Class(), got, tc.want)
		}
	}
}

func mustOpen(t *testing.T, ck *checkpoint.Checkpoint) Pipeline {
	t.Helper()
	p, err := New(ck, Options{DType: float32Type})
	if err != nil {
		t.Fatal(err)
	}
	return p
}
