package tests

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"precast"
	"precast/graph/checkpoint"
)

// zimageModel copies the Z-Image checkpoint, so that a test may damage it.
func zimageModel(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(reference(t), "tiny", "z-image", "model")
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("no reference: %v", err)
	}
	to := t.TempDir()
	must(t, os.CopyFS(to, os.DirFS(dir)))
	return to
}

func zimageRequest() *precast.Request {
	guidance := 4.0
	return &precast.Request{
		Prompt: []string{"a photo of an astronaut"}, Height: 32, Width: 48, NumInferenceSteps: 2, NumImagesPerPrompt: 1, MaxSequenceLength: 70, GuidanceScale: &guidance,
	}
}

// TestZImageBatch has prompts of different lengths in one batch, two pictures of each, with guidance that ends within the run and with guidance whose
// length is held: every step is compared. testdata/zimage/make_zimage.py recorded it.
func TestZImageBatch(t *testing.T) {
	dir := filepath.Join("testdata", "zimage")
	data, err := os.ReadFile(filepath.Join(dir, "golden.json"))
	must(t, err)
	var g struct {
		Runs map[string]struct {
			Call struct {
				Height, Width      int
				Steps              int      `json:"num_inference_steps"`
				MaxSequenceLength  int      `json:"max_sequence_length"`
				NumImagesPerPrompt int      `json:"num_images_per_prompt"`
				GuidanceScale      *float64 `json:"guidance_scale"`
				CFGTruncation      *float64 `json:"cfg_truncation"`
				CFGNormalization   bool     `json:"cfg_normalization"`
				Prompt             []string `json:"prompt"`
				NegativePrompt     []string `json:"negative_prompt"`
			} `json:"call"`
			Seed uint64 `json:"seed"`
		} `json:"runs"`
	}
	must(t, json.Unmarshal(data, &g))
	model, cache := zimageModel(t), t.TempDir()
	file, err := checkpoint.OpenFile(filepath.Join(dir, "golden.safetensors"))
	must(t, err)
	defer file.Close()
	for run, r := range g.Runs {
		for _, backend := range []string{"go", "pjrt"} {
			t.Run(run+"/"+backend, func(t *testing.T) {
				needBackend(t, backend)
				c := r.Call
				req := &precast.Request{
					Prompt: c.Prompt, NegativePrompt: c.NegativePrompt, Height: c.Height, Width: c.Width, NumInferenceSteps: c.Steps, MaxSequenceLength: c.MaxSequenceLength,
					NumImagesPerPrompt: c.NumImagesPerPrompt, GuidanceScale: c.GuidanceScale, CFGTruncation: c.CFGTruncation, CFGNormalization: c.CFGNormalization, Seed: r.Seed,
				}
				seen := map[string][]precast.HostTensor{}
				req.Observe = func(name string, h precast.HostTensor) { seen[name] = append(seen[name], h) }
				p := openPipeline(t, model, precast.Config{Backend: backend, CacheDir: cache})
				out, err := p.Generate(context.Background(), req)
				must(t, err)
				if len(out.Images) != 4 {
					t.Errorf("%d pictures, wanted 4", len(out.Images))
				}
				for _, name := range []string{"step_model_output", "step_latents"} {
					d := compareFloats(t, file, run+"/"+name, seen[name], runLimit)
					if d == nil {
						t.Fatalf("no golden %s", name)
					}
					t.Logf("%s: at most %.2g of the largest value from its golden", name, d.Rel)
				}
			})
		}
	}
}

// TestZImageBadCheckpoints opens and runs checkpoints whose parts do not fit together. Nothing may be compiled for them.
func TestZImageBadCheckpoints(t *testing.T) {
	fields := func(file string, set map[string]any) func(*testing.T, string) {
		return func(t *testing.T, dir string) { editJSON(t, filepath.Join(dir, filepath.FromSlash(file)), set) }
	}
	index := func(component, library, class string) func(*testing.T, string) {
		return fields("model_index.json", map[string]any{component: []string{library, class}})
	}
	for _, tc := range []struct {
		name   string
		damage func(t *testing.T, dir string)
		want   string
	}{
		{"layers", fields("transformer/config.json", map[string]any{"n_layers": -1}), "transformer/config.json: n_layers: found -1, wanted 0 to 1000"},
		{"axes", fields("transformer/config.json", map[string]any{"axes_dims": []int{4, 6, 8}}), "transformer/config.json: axes_dims: found [4 6 8], wanted 3 numbers with the sum dim/n_heads 16"},
		{"patches", fields("transformer/config.json", map[string]any{"all_patch_size": []int{4}}), "transformer/config.json: all_patch_size: found [4] with all_f_patch_size [1], wanted 2 with 1"},
		{"states", fields("transformer/config.json", map[string]any{"cap_feat_dim": 32}), "transformer has cap_feat_dim 32, text_encoder has hidden_size 24; they must be equal"},
		{"latents", fields("vae/config.json", map[string]any{"latent_channels": 16}), "transformer has in_channels 8, vae has latent_channels 16; they must be equal"},
		{"positions", fields("transformer/config.json", map[string]any{"axes_lens": []int{64, 1, 64}}), "a picture of 2 x 3 tokens is too large; wanted at most 1 x 64"},
		{"depth", fields("transformer/config.json", map[string]any{"n_layers": 4}), `missing tensor "layers.3.`},
		{"rope", fields("text_encoder/config.json", map[string]any{"rope_scaling": map[string]any{"rope_type": "yarn"}}), `text_encoder/config.json: rope_scaling.rope_type: found "yarn"`},
		{"window", fields("text_encoder/config.json", map[string]any{"use_sliding_window": true, "sliding_window": 32}), "text encoder: found 70 tokens, wanted at most sliding_window 32"},
		{"vocabulary", fields("text_encoder/config.json", map[string]any{"vocab_size": 100}), "the embedding has 100 rows (vocab_size)"},
		{"text encoder", index("text_encoder", "transformers", "T5EncoderModel"), `component "text_encoder" has class "T5EncoderModel"`},
		{"scheduler", index("scheduler", "diffusers", "DDIMScheduler"), "can't drive ZImagePipeline"},
		{
			"chat", func(t *testing.T, dir string) {
				removeKeys(t, filepath.Join(dir, "tokenizer", "tokenizer_config.json"), "chat_template")
			},
			"text_encoder: the tokenizer has no chat template",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := zimageModel(t)
			tc.damage(t, dir)
			p, err := precast.Open(context.Background(), dir, precast.Config{Backend: "go", NoCache: true})
			if err == nil {
				defer p.Close()
				_, err = p.Generate(context.Background(), zimageRequest())
				if n := p.Stats().Counts["compile"]; n != 0 {
					t.Errorf("%d programs were compiled", n)
				}
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("found  %v\nwanted %s", err, tc.want)
			}
		})
	}
}

// TestZImageRequests checks the arguments.
func TestZImageRequests(t *testing.T) {
	model := zimageModel(t)
	number := func(v float64) *float64 { return &v }
	// mask is one prompt's, with so many ones.
	mask := func(tokens int) precast.HostTensor {
		h := floatTensor(1, 300)
		for i := range tokens {
			copy(h.Data[4*i:], []byte{0, 0, 0x80, 0x3f})
		}
		return h
	}
	embeds := func(m precast.HostTensor) map[string]precast.HostTensor {
		return map[string]precast.HostTensor{"prompt_embeds": floatTensor(1, 300, 24), "prompt_embeds_mask": m}
	}
	gap := mask(5)
	copy(gap.Data[4*7:], []byte{0, 0, 0x80, 0x3f})
	long := strings.Repeat("word and word ", 100)
	for _, tc := range []struct {
		name string
		edit func(r *precast.Request)
		want string // part of the error, or of the warning; none where the request is good
	}{
		{"good", func(*precast.Request) {}, ""},
		{"defaults", func(r *precast.Request) { *r = precast.Request{Prompt: []string{""}} }, ""},
		{"negative", func(r *precast.Request) { r.NegativePrompt = []string{"x"} }, ""},
		{"sigmas", func(r *precast.Request) { r.NumInferenceSteps, r.Sigmas = 0, []float64{1, 0.5} }, ""},
		{"small guidance", func(r *precast.Request) { r.GuidanceScale, r.NegativePrompt = number(0.5), []string{"x"} }, ""},
		{"normed", func(r *precast.Request) { r.CFGNormalization, r.CFGTruncation = true, number(0.5) }, ""},
		{"negative without guidance", func(r *precast.Request) { r.GuidanceScale, r.NegativePrompt = number(0), []string{"x"} }, "negative_prompt has no effect: guidance_scale is 0"},
		{"normed without guidance", func(r *precast.Request) { r.GuidanceScale, r.CFGNormalization = number(0), true }, "cfg_normalization has no effect: guidance_scale is 0"},
		{"truncation", func(r *precast.Request) { r.CFGTruncation = number(math.NaN()) }, "cfg_truncation: found NaN, wanted a finite number"},
		{"second prompt", func(r *precast.Request) { r.Prompt2 = []string{"x"} }, "prompt_2: ZImagePipeline has no such argument"},
		{"true guidance", func(r *precast.Request) { r.TrueCFGScale = number(2) }, "true_cfg_scale: ZImagePipeline has no such argument"},
		{"timesteps", func(r *precast.Request) { r.Timesteps = []float64{1} }, "timesteps: ZImagePipeline has no such argument"},
		{"image", func(r *precast.Request) { r.Image = &precast.Image{Height: 1, Width: 1, RGB: make([]byte, 3)} }, "image: ZImagePipeline has no such argument"},
		{"height", func(r *precast.Request) { r.Height = 24 }, "height: found 24, wanted a multiple of 16"},
		{"too large", func(r *precast.Request) { r.Width = 65 * 16 }, "a picture of 2 x 65 tokens is too large; wanted at most 64 x 64"},
		{"no length", func(r *precast.Request) { r.MaxSequenceLength = -1 }, "max_sequence_length: found -1, wanted 1 to 512"},
		{"length", func(r *precast.Request) { r.MaxSequenceLength = 513 }, "max_sequence_length: found 513, wanted 1 to 512"},
		{"cut", func(r *precast.Request) { r.Prompt = []string{long} }, ""},
		{"longer than the positions", func(r *precast.Request) { r.Prompt, r.MaxSequenceLength = []string{long}, 512 }, "wanted at most 224, for which the transformer has positions (axes_lens [256 64 64])"},
		{"a negative prompt longer than the positions", func(r *precast.Request) { r.NegativePrompt, r.MaxSequenceLength = []string{long}, 512 }, "wanted at most 224, for which"},
		{"latents", func(r *precast.Request) { h := floatTensor(1, 8, 6, 4); r.Latents = &h }, "latents: found (Float32)[1, 8, 6, 4], wanted float32 [1 8 4 6]"},
		{"embeddings", func(r *precast.Request) {
			r.Prompt, r.PromptEmbeds, r.MaxSequenceLength, r.GuidanceScale = nil, embeds(mask(224)), 0, number(0)
		}, ""},
		{"embeddings for guidance", func(r *precast.Request) { r.Prompt, r.PromptEmbeds, r.MaxSequenceLength = nil, embeds(mask(9)), 0 }, "negative_prompt_embeds is missing"},
		{"long embeddings", func(r *precast.Request) {
			r.Prompt, r.PromptEmbeds, r.MaxSequenceLength, r.GuidanceScale = nil, embeds(mask(225)), 0, number(0)
		}, "prompt_embeds_mask of prompt 0: the prompt has 225 tokens"},
		{"no mask", func(r *precast.Request) {
			r.Prompt, r.PromptEmbeds, r.MaxSequenceLength, r.GuidanceScale = nil, embeds(mask(0)), 0, number(0)
		}, "prompt_embeds_mask of prompt 0: found no tokens"},
		{"gap", func(r *precast.Request) {
			r.Prompt, r.PromptEmbeds, r.MaxSequenceLength, r.GuidanceScale = nil, embeds(gap), 0, number(0)
		}, "prompt_embeds_mask of prompt 0: found 1 behind 5 tokens, wanted ones and then zeros"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := openPipeline(t, model, precast.Config{Backend: "go", NoCache: true})
			r := zimageRequest()
			tc.edit(r)
			checkAnswer(t, p, r, tc.want)
		})
	}
}

// TestZImageCounts: prompts of other lengths, up to one that is cut, make no program, nor does another number of steps or other guidance; the same
// text through saved embeddings gives the same picture.
func TestZImageCounts(t *testing.T) {
	p := openPipeline(t, zimageModel(t), precast.Config{Backend: "go", NoCache: true})
	var saved map[string]precast.HostTensor
	generate := func(edit func(r *precast.Request)) []byte {
		t.Helper()
		r := zimageRequest()
		edit(r)
		out, err := p.Generate(context.Background(), r)
		must(t, err)
		return out.Images[0].RGB
	}
	first := generate(func(r *precast.Request) { r.Encoded = func(e precast.Embeds) { saved = e } })
	made := p.Stats().Counts["trace"]
	// The text encoder, the transformer, the step with guidance and without, unpacking and the decoder.
	if made != 6 {
		t.Errorf("%d programs were traced, wanted 6", made)
	}
	for what, edit := range map[string]func(r *precast.Request){
		"short prompt":    func(r *precast.Request) { r.Prompt = []string{"a"} },
		"longer prompt":   func(r *precast.Request) { r.Prompt = []string{strings.Repeat("many words of it ", 2)} },
		"prompt cut":      func(r *precast.Request) { r.Prompt = []string{strings.Repeat("many words of it ", 20)} },
		"negative prompt": func(r *precast.Request) { r.NegativePrompt = []string{"blurry and more"} },
		"seed":            func(r *precast.Request) { r.Seed = 5 },
		"steps":           func(r *precast.Request) { r.NumInferenceSteps = 3 },
		"guidance":        func(r *precast.Request) { *r.GuidanceScale = 7 },
		"no guidance":     func(r *precast.Request) { *r.GuidanceScale = 0 },
	} {
		if slices.Equal(generate(edit), first) {
			t.Errorf("another %s gives the same picture", what)
		}
		if n := p.Stats().Counts["trace"]; n != made {
			t.Errorf("another %s: %d programs were traced", what, n-made)
		}
	}
	if !slices.Equal(generate(func(*precast.Request) {}), first) {
		t.Error("the same request gives another picture")
	}
	if !slices.Equal(generate(func(r *precast.Request) { r.Prompt, r.PromptEmbeds = nil, saved }), first) {
		t.Error("saved embeddings give another picture")
	}
}

// TestZImageTiling decodes in tiles where the autoencoder's own tile is smaller than the picture: other programs, another picture from the same latents.
func TestZImageTiling(t *testing.T) {
	p := openPipeline(t, zimageModel(t), precast.Config{Backend: "go", NoCache: true})
	pictures, latents := map[bool][]byte{}, map[bool][]byte{}
	for _, tiling := range []bool{false, true} {
		r := zimageRequest()
		r.Height, r.Width, r.VAETiling, r.NumInferenceSteps = 64, 160, tiling, 1
		r.Observe = func(name string, h precast.HostTensor) {
			if name == "vae_in" {
				latents[tiling] = h.Data
			}
		}
		out, err := p.Generate(context.Background(), r)
		must(t, err)
		if len(out.Images) != 1 || out.Images[0].Height != 64 || out.Images[0].Width != 160 {
			t.Fatalf("found %d pictures, the first %dx%d", len(out.Images), out.Images[0].Height, out.Images[0].Width)
		}
		pictures[tiling] = out.Images[0].RGB
	}
	if !slices.Equal(latents[true], latents[false]) {
		t.Error("tiling changes the latents")
	}
	if slices.Equal(pictures[true], pictures[false]) {
		t.Error("tiling changes nothing")
	}
}
