package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"precast"
	"precast/graph/checkpoint"
)

// shapesModel is the trained model that the repository ships; its README says what it draws.
const shapesModel = "testdata/shapes-flux1/model"

// shapesCase is one picture of its golden.json.
type shapesCase struct {
	Key           string  `json:"key"`
	Prompt        string  `json:"prompt"`
	Height        int     `json:"height"`
	Width         int     `json:"width"`
	Steps         int     `json:"steps"`
	GuidanceScale float64 `json:"guidance_scale"`
	MaxLength     int     `json:"max_sequence_length"`
	ClipIDs       []int64 `json:"clip_ids"`
	T5IDs         []int64 `json:"t5_ids"`
	PNG           string  `json:"png"`
}

func shapesCases(t *testing.T) []shapesCase {
	t.Helper()
	data, err := os.ReadFile("testdata/shapes-flux1/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var g struct {
		Cases []shapesCase `json:"cases"`
	}
	if err := json.Unmarshal(data, &g); err != nil {
		t.Fatal(err)
	}
	if len(g.Cases) != 4 {
		t.Fatalf("%d cases, wanted two prompts at two sizes", len(g.Cases))
	}
	return g.Cases
}

// TestShapes draws each golden of the trained model and compares what is computed on the way and the picture.
func TestShapes(t *testing.T) {
	file, err := checkpoint.OpenFile("testdata/shapes-flux1/golden.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cases := shapesCases(t)
	for _, backend := range []string{"pjrt", "go"} {
		t.Run(backend, func(t *testing.T) {
			needBackend(t, backend)
			p := openPipeline(t, shapesModel, precast.Config{Backend: backend, NoCache: true})
			for i, c := range cases {
				if backend == "go" && i%2 != 0 && !long() {
					continue // one prompt at each size: the backend is slow
				}
				t.Run(c.Key, func(t *testing.T) { checkShape(t, p, file, &c) })
			}
		})
	}
}

func checkShape(t *testing.T, p *precast.Pipeline, file *checkpoint.File, c *shapesCase) {
	latents, err := precast.ReadTensor(file.Path() + ":" + c.Key + ".latents_init")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string][]precast.HostTensor{}
	out, err := p.Generate(context.Background(), &precast.Request{
		Prompt: []string{c.Prompt}, Height: c.Height, Width: c.Width, NumInferenceSteps: c.Steps,
		GuidanceScale: &c.GuidanceScale, MaxSequenceLength: c.MaxLength, Latents: latents,
		Observe: func(name string, h precast.HostTensor) { seen[name] = append(seen[name], h) },
	})
	if err != nil {
		t.Fatal(err)
	}
	for component, want := range map[string][]int64{"text_encoder": c.ClipIDs, "text_encoder_2": c.T5IDs} {
		var got []int64
		for _, h := range seen[component+"/in/input_ids"] {
			got = append(got, integers(h)...)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: token ids differ:\n got %v\nwant %v", component, got, want)
		}
	}
	for golden, of := range map[string]struct {
		tensors string
		limit   float64
	}{
		"prompt_embeds": {"prompt_embeds", moduleLimit},
		"pooled":        {"pooled_prompt_embeds", moduleLimit},
		"latents_steps": {"step_latents", runLimit},
		"decoded":       {"vae_out", runLimit},
	} {
		if compareFloats(t, file, c.Key+"."+golden, seen[of.tensors], of.limit) == nil {
			t.Errorf("%s has no %s.%s", file.Path(), c.Key, golden)
		}
	}
	comparePNG(t, filepath.Join("testdata", "shapes-flux1", c.PNG), out.Images[0])
	if got, want := fmt.Sprintf("%dx%d", out.Images[0].Height, out.Images[0].Width), c.Key[:5]; got != want {
		t.Errorf("the picture is %s, wanted %s", got, want)
	}
}
