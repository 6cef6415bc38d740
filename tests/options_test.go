package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"precast"
	"precast/graph/checkpoint"
)

// optionRun is a run of testdata/options, which make_options.py beside it made.
type optionRun struct {
	Changes struct {
		Absent    []string       `json:"absent"`    // components that the checkpoint then lacks
		Scheduler map[string]any `json:"scheduler"` // fields of the scheduler's config
		Tiling    bool           `json:"tiling"`    // of the decoder
	} `json:"changes"`
	Call struct {
		Prompt             json.RawMessage `json:"prompt"`
		Prompt2            json.RawMessage `json:"prompt_2"`
		Prompt3            json.RawMessage `json:"prompt_3"`
		NegativePrompt     json.RawMessage `json:"negative_prompt"`
		NegativePrompt2    json.RawMessage `json:"negative_prompt_2"`
		NegativePrompt3    json.RawMessage `json:"negative_prompt_3"`
		Height             int             `json:"height"`
		Width              int             `json:"width"`
		Steps              int             `json:"num_inference_steps"`
		GuidanceScale      *float64        `json:"guidance_scale"`
		TrueCFGScale       *float64        `json:"true_cfg_scale"`
		MaxSequenceLength  int             `json:"max_sequence_length"`
		ClipSkip           int             `json:"clip_skip"`
		NumImagesPerPrompt int             `json:"num_images_per_prompt"`
	} `json:"call"`
}

// TestOptions compares arguments that the reference's runs leave at their defaults: text for each encoder, clip_skip, a checkpoint without T5, prompts of
// different lengths in one batch, one of them cut, a shift by the size, a decoder in tiles.
func TestOptions(t *testing.T) {
	for _, name := range []string{"tp-sd3", "tp-qwen"} {
		data, err := os.ReadFile(filepath.Join("testdata", "options", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		d := json.NewDecoder(bytes.NewReader(data))
		d.DisallowUnknownFields()
		runs := map[string]optionRun{}
		if err := d.Decode(&runs); err != nil {
			t.Fatal(err)
		}
		for label, run := range runs {
			for _, backend := range []string{"go", "pjrt"} {
				t.Run(name+"/"+label+"/"+backend, func(t *testing.T) {
					needBackend(t, backend)
					checkOptions(t, name, label, run, backend)
				})
			}
		}
	}
}

func checkOptions(t *testing.T, name, label string, run optionRun, backend string) {
	dir := tinyCopy(t, name)
	for _, component := range run.Changes.Absent {
		editJSON(t, filepath.Join(dir, "model_index.json"), map[string]any{component: []any{nil, nil}})
	}
	if run.Changes.Scheduler != nil {
		editJSON(t, filepath.Join(dir, "scheduler", "scheduler_config.json"), run.Changes.Scheduler)
	}
	file, err := checkpoint.OpenFile(filepath.Join("testdata", "options", name+".safetensors"))
	must(t, err)
	defer file.Close()
	call := run.Call
	latents, err := precast.ReadTensor(file.Path() + ":" + label + "/latents")
	must(t, err)
	r := &precast.Request{
		Prompt: texts(t, call.Prompt), Prompt2: texts(t, call.Prompt2), Prompt3: texts(t, call.Prompt3),
		NegativePrompt: texts(t, call.NegativePrompt), NegativePrompt2: texts(t, call.NegativePrompt2), NegativePrompt3: texts(t, call.NegativePrompt3),
		Height: call.Height, Width: call.Width, NumInferenceSteps: call.Steps, GuidanceScale: call.GuidanceScale, TrueCFGScale: call.TrueCFGScale,
		MaxSequenceLength: call.MaxSequenceLength, ClipSkip: call.ClipSkip, NumImagesPerPrompt: max(1, call.NumImagesPerPrompt),
		VAETiling: run.Changes.Tiling, Latents: latents,
	}
	seen := map[string][]float32{}
	r.Observe = func(name string, h precast.HostTensor) {
		if slices.Contains([]string{"prompt_embeds", "negative_prompt_embeds", "pooled_prompt_embeds", "negative_pooled_prompt_embeds", "step_model_output", "step_latents"}, name) {
			seen[name] = append(seen[name], floats(h)...)
		}
	}
	p := openPipeline(t, dir, precast.Config{Backend: backend, NoCache: true})
	out, err := p.Generate(context.Background(), r)
	must(t, err)

	compare := func(ours, golden string, rows int, limit float64) {
		t.Helper()
		g, ok := file.Tensor(label + "/" + golden)
		if !ok {
			return
		}
		want, err := g.Float32s()
		must(t, err)
		// The reference has a row a picture where ours has one a prompt.
		if rows > 0 {
			size := len(want) / (rows * r.NumImagesPerPrompt)
			var each []float32
			for i := range rows {
				each = append(each, want[i*r.NumImagesPerPrompt*size:][:size]...)
			}
			want = each
		}
		got := seen[ours]
		if len(got) != len(want) {
			t.Errorf("%s: found %d values, golden %s has %d", ours, len(got), golden, len(want))
			return
		}
		var largest, worst float64
		for i, w := range want {
			d := math.Abs(float64(got[i]) - float64(w))
			if math.IsNaN(d) {
				d = math.Inf(1)
			}
			largest, worst = max(largest, math.Abs(float64(w))), max(worst, d)
		}
		if !(worst <= limit*largest) {
			t.Errorf("%s differs from %s by %.3g, limit is %g of %.3g", ours, golden, worst, limit, largest)
		}
		delete(seen, ours)
	}
	prompts := len(r.Prompt)
	compare("prompt_embeds", "encode_prompt/0/0", prompts, moduleLimit)
	if name == "tp-qwen" {
		compare("negative_prompt_embeds", "encode_prompt/1/0", prompts, moduleLimit)
	} else {
		compare("negative_prompt_embeds", "encode_prompt/0/1", prompts, moduleLimit)
		compare("pooled_prompt_embeds", "encode_prompt/0/2", prompts, moduleLimit)
		compare("negative_pooled_prompt_embeds", "encode_prompt/0/3", prompts, moduleLimit)
	}
	compare("step_model_output", "step_model_output", 0, runLimit)
	compare("step_latents", "step_latents", 0, runLimit)
	for ours := range seen {
		t.Errorf("%s was not compared", ours)
	}
	pictures, ok := file.Tensor(label + "/image_u8")
	if !ok {
		t.Fatal("no pictures")
	}
	var got []byte
	for _, img := range out.Images {
		got = append(got, img.RGB...)
	}
	want := pictures.Bytes()
	if len(got) != len(want) {
		t.Fatalf("the pictures have %d values, the golden %d", len(got), len(want))
	}
	for i := range got {
		if d := int(got[i]) - int(want[i]); d < -1 || d > 1 {
			t.Fatalf("picture value %d is %d, golden %d", i, got[i], want[i])
		}
	}
}

// tinyCopy copies a checkpoint of the reference, so that a test may change it.
func tinyCopy(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(reference(t), "tiny", name, "model")
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("no reference: %v", err)
	}
	to := t.TempDir()
	must(t, os.CopyFS(to, os.DirFS(dir)))
	return to
}
