package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"precast"
	"precast/graph/checkpoint"
)

// imageRun is a run in testdata/imagetoimage/golden.json.
type imageRun struct {
	Model     string `json:"model"`
	Over      string `json:"over"` // folder with other components
	Variant   string `json:"variant"`
	Scheduler string `json:"scheduler"` // class that replaces the checkpoint's, or empty
	Picture   string `json:"picture"`   // empty for text-to-image
	Seed      uint64 `json:"seed"`
	Count     int    `json:"count"`
	Tiling    bool   `json:"tiling"`
	// Changes are fields of configs, by the config's path in the checkpoint.
	Changes map[string]map[string]any `json:"changes"`
	Call    struct {
		Prompt               string   `json:"prompt"`
		Prompt2              string   `json:"prompt_2"`
		NegativePrompt       string   `json:"negative_prompt"`
		NegativePrompt2      string   `json:"negative_prompt_2"`
		ClipSkip             int      `json:"clip_skip"`
		Height               int      `json:"height"`
		Width                int      `json:"width"`
		NumFrames            int      `json:"num_frames"`
		Steps                int      `json:"num_inference_steps"`
		Strength             *float64 `json:"strength"`
		GuidanceScale        *float64 `json:"guidance_scale"`
		GuidanceRescale      float64  `json:"guidance_rescale"`
		TrueCFGScale         *float64 `json:"true_cfg_scale"`
		MaxSequenceLength    int      `json:"max_sequence_length"`
		OriginalSize         *[2]int  `json:"original_size"`
		CropsCoordsTopLeft   *[2]int  `json:"crops_coords_top_left"`
		TargetSize           *[2]int  `json:"target_size"`
		NegativeOriginalSize *[2]int  `json:"negative_original_size"`
		NegativeCrops        *[2]int  `json:"negative_crops_coords_top_left"`
		NegativeTargetSize   *[2]int  `json:"negative_target_size"`
	} `json:"call"`
}

// TestImageToImage compares runs that start from a picture, and runs with tiles, with diffusers': testdata/imagetoimage/make_golden.py made
// them. Nothing but the seed says what the noise is.
func TestImageToImage(t *testing.T) {
	dir := filepath.Join("testdata", "imagetoimage")
	data, err := os.ReadFile(filepath.Join(dir, "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	var runs map[string]*imageRun
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&runs); err != nil {
		t.Fatal(err)
	}
	file, err := checkpoint.OpenFile(filepath.Join(dir, "golden.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cacheDir := t.TempDir()
	var names []string
	for name := range runs {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		for _, backend := range []string{"pjrt", "go"} {
			t.Run(name+"/"+backend, func(t *testing.T) {
				if backend == "pjrt" && name != "flux" && name != "sd15" && !long() {
					t.Skip("set PRECAST_TEST_LONG: compiling takes minutes")
				}
				needBackend(t, backend)
				runs[name].check(t, file, name, precast.Config{Backend: backend, CacheDir: cacheDir, CheckPasses: true})
			})
		}
	}
}

func (r *imageRun) check(t *testing.T, file *checkpoint.File, name string, cfg precast.Config) {
	folders := []string{filepath.Join("testdata", "tiny", r.Model, "model")}
	if r.Over != "" {
		folders = append(folders, filepath.Join("testdata", r.Over, "model"))
	}
	dir := changedModel(t, folders, r.Changes)
	cfg.Scheduler, cfg.Variant = r.Scheduler, r.Variant
	p := openPipeline(t, dir, cfg)
	c := r.Call
	req := &precast.Request{
		Prompt: []string{c.Prompt}, Height: c.Height, Width: c.Width, NumFrames: c.NumFrames, NumInferenceSteps: c.Steps, NumImagesPerPrompt: r.Count, Seed: r.Seed,
		Strength: c.Strength, GuidanceScale: c.GuidanceScale, GuidanceRescale: c.GuidanceRescale, TrueCFGScale: c.TrueCFGScale, MaxSequenceLength: c.MaxSequenceLength,
		OriginalSize: c.OriginalSize, CropsCoordsTopLeft: c.CropsCoordsTopLeft, NegativeOriginalSize: c.NegativeOriginalSize, NegativeTargetSize: c.NegativeTargetSize,
		TargetSize: c.TargetSize, NegativeCropsCoordsTopLeft: c.NegativeCrops, ClipSkip: c.ClipSkip, VAETiling: r.Tiling,
	}
	for text, to := range map[string]*[]string{c.Prompt2: &req.Prompt2, c.NegativePrompt: &req.NegativePrompt, c.NegativePrompt2: &req.NegativePrompt2} {
		if text != "" {
			*to = []string{text}
		}
	}
	if r.Picture != "" {
		picture, ok := file.Tensor(r.Picture)
		if !ok {
			t.Fatalf("no picture %s", r.Picture)
		}
		req.Image = &precast.Image{Height: picture.Shape[0], Width: picture.Shape[1], RGB: picture.Bytes()}
	}
	var steps []precast.HostTensor
	req.Observe = func(name string, h precast.HostTensor) {
		if name == "step_latents" {
			steps = append(steps, h)
		}
	}
	out, err := p.Generate(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	d := compareFloats(t, file, name+"/step_latents", steps, runLimit)
	if d == nil {
		t.Fatal("no latents to compare with")
	}
	want, ok := file.Tensor(name + "/image_u8")
	if !ok {
		t.Fatal("no picture to compare with")
	}
	var got []byte
	for _, img := range out.Images {
		got = append(got, img.RGB...)
	}
	if len(got) != len(want.Bytes()) {
		t.Fatalf("pictures have %d values, golden %v", len(got), want.Shape)
	}
	differ := 0
	for i, w := range want.Bytes() {
		if d := int(got[i]) - int(w); d < -1 || d > 1 {
			t.Fatalf("value %d is %d, golden %d", i, got[i], w)
		} else if d != 0 {
			differ++
		}
	}
	t.Logf("latents %.2g off, %d of %d values of the pictures by 1", d.Rel, differ, len(got))
}

// changedModel is a checkpoint folder, or a copy of it (by links): with what a second folder has in place of its own, and changed fields of configs.
func changedModel(t *testing.T, folders []string, changes map[string]map[string]any) string {
	t.Helper()
	if len(folders) == 1 && len(changes) == 0 {
		return folders[0]
	}
	out := t.TempDir()
	for _, dir := range folders {
		dir, err := filepath.Abs(dir)
		if err != nil {
			t.Fatal(err)
		}
		err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name, err := filepath.Rel(dir, path)
			if err != nil {
				return err
			}
			to := filepath.Join(out, name)
			if d.IsDir() {
				if name != "." {
					err = os.RemoveAll(to)
				}
				return errors.Join(err, os.MkdirAll(to, 0o777))
			}
			if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			fields, changed := changes[filepath.ToSlash(name)]
			if !changed {
				return os.Symlink(path, to)
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			config := map[string]any{}
			if err := json.Unmarshal(data, &config); err != nil {
				return err
			}
			maps.Copy(config, fields)
			if data, err = json.Marshal(config); err != nil {
				return err
			}
			return os.WriteFile(to, data, 0o666)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}
