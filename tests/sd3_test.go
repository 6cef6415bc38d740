package tests

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"precast"
)

// badCheckpoint is a checkpoint whose parts do not fit together, and parts of the error that says so.
type badCheckpoint struct {
	name   string
	damage func(t *testing.T, dir string)
	want   []string
}

// run opens and runs each; nothing may be compiled.
func runBadCheckpoints(t *testing.T, model string, r precast.Request, cases []badCheckpoint) {
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			dir := tinyCopy(t, model)
			tc.damage(t, dir)
			p, err := precast.Open(context.Background(), dir, precast.Config{Backend: "go", NoCache: true})
			if err == nil {
				defer p.Close()
				request := r
				_, err = p.Generate(context.Background(), &request)
				if n := p.Stats().Counts["compile"]; n != 0 {
					t.Errorf("%d programs were compiled", n)
				}
			}
			if err == nil {
				t.Fatal("found no error")
			}
			for _, part := range tc.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("found  %v\nwanted %s", err, part)
				}
			}
		})
	}
}

// both damages a checkpoint twice.
func both(first, second func(*testing.T, string)) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		first(t, dir)
		second(t, dir)
	}
}

// madeRequest is a request with arguments that are checked, and what is said about them: part of the error, or of a warning; nothing where it is good.
type madeRequest struct {
	name string
	edit func(r *precast.Request)
	want string
}

func runRequests(t *testing.T, dir string, base precast.Request, cases []madeRequest) {
	p := openPipeline(t, dir, precast.Config{Backend: "go", NoCache: true})
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			r := base
			tc.edit(&r)
			checkAnswer(t, p, &r, tc.want)
		})
	}
}

// runCounts: another prompt, seed, number of steps or scale makes no program, and each changes the picture.
func runCounts(t *testing.T, dir string, base precast.Request, programs int, edits map[string]func(r *precast.Request)) {
	p := openPipeline(t, dir, precast.Config{Backend: "go", NoCache: true})
	generate := func(edit func(r *precast.Request)) []byte {
		t.Helper()
		r := base
		if edit != nil {
			edit(&r)
		}
		out, err := p.Generate(context.Background(), &r)
		if err != nil {
			t.Fatal(err)
		}
		return out.Images[0].RGB
	}
	first := generate(nil)
	made := p.Stats().Counts["trace"]
	if made != int64(programs) {
		t.Errorf("%d programs were traced, wanted %d", made, programs)
	}
	for what, edit := range edits {
		if slices.Equal(generate(edit), first) {
			t.Errorf("another %s gives the same picture", what)
		}
		if n := p.Stats().Counts["trace"]; n != made {
			t.Errorf("another %s: %d programs were traced", what, n-made)
		}
	}
	if !slices.Equal(generate(nil), first) {
		t.Error("the same request gives another picture")
	}
}

func number(v float64) *float64 { return &v }

func zeros(dims ...int) *precast.HostTensor {
	h := floatTensor(dims...)
	return &h
}

func sd3Request() precast.Request {
	return precast.Request{
		Prompt: []string{"a photo of an astronaut"}, Height: 32, Width: 48, NumInferenceSteps: 1, NumImagesPerPrompt: 1, MaxSequenceLength: 8,
	}
}

// TestStableDiffusion3BadCheckpoints has parts that do not fit together.
func TestStableDiffusion3BadCheckpoints(t *testing.T) {
	index := func(component, library, class string) func(*testing.T, string) {
		return fields("model_index.json", map[string]any{component: []string{library, class}})
	}
	withoutT5 := fields("model_index.json", map[string]any{"text_encoder_3": []any{nil, nil}, "tokenizer_3": []any{nil, nil}})
	runBadCheckpoints(t, "tp-sd3", sd3Request(), []badCheckpoint{
		{
			"pooled width", fields("transformer/config.json", map[string]any{"pooled_projection_dim": 50}),
			[]string{"transformer has pooled_projection_dim 50, text_encoder and text_encoder_2 together has projection_dim 56; they must be equal"},
		},
		{
			"T5's width", fields("text_encoder_3/config.json", map[string]any{"d_model": 64}),
			[]string{"transformer has joint_attention_dim 60, text_encoder_3 has d_model 64; they must be equal"},
		},
		{
			"too narrow for CLIP", both(withoutT5, fields("transformer/config.json", map[string]any{"joint_attention_dim": 50})),
			[]string{"text_encoder and text_encoder_2 have hidden_size 24 and 32, together 56, transformer has joint_attention_dim 50; wanted at most as many"},
		},
		{
			"latent channels", fields("vae/config.json", map[string]any{"latent_channels": 16}),
			[]string{"transformer has in_channels 8, vae has latent_channels 16", "transformer has out_channels 8, vae has latent_channels 16"},
		},
		{
			"CLIP without a projection", index("text_encoder", "transformers", "CLIPTextModel"),
			[]string{`component "text_encoder" has class "CLIPTextModel"; StableDiffusion3Pipeline knows CLIPTextModelWithProjection`},
		},
		{
			"UMT5", index("text_encoder_3", "transformers", "UMT5EncoderModel"),
			[]string{`component "text_encoder_3" has class "UMT5EncoderModel"; StableDiffusion3Pipeline knows T5EncoderModel`},
		},
		{
			"no second text encoder", fields("model_index.json", map[string]any{"text_encoder_2": []any{nil, nil}}),
			[]string{"text_encoder_2"},
		},
		{
			"T5 without a tokenizer", fields("model_index.json", map[string]any{"tokenizer_3": []any{nil, nil}}),
			[]string{"tokenizer_3"},
		},
		{
			"the table of positions", fields("transformer/config.json", map[string]any{"pos_embed_max_size": 16}),
			[]string{`tensor "pos_embed.pos_embed" has shape [1,144,32]`, "but the config gives [1,256,32]"},
		},
		{
			"a second attention", fields("transformer/config.json", map[string]any{"dual_attention_layers": []int{0, 1, 2}}),
			[]string{`"transformer_blocks.2.attn2.to_q.weight"`},
		},
		{
			"a scheduler of another kind", index("scheduler", "diffusers", "DDIMScheduler"),
			[]string{"scheduler DDIMScheduler", "can't drive StableDiffusion3Pipeline", "FlowMatchEulerDiscreteScheduler"},
		},
		{
			"a small vocabulary", fields("text_encoder_2/config.json", map[string]any{"vocab_size": 100}),
			[]string{"text_encoder_2: the tokenizer gives id", "the embedding has 100 rows (vocab_size)"},
		},
		{
			"no weights", func(t *testing.T, dir string) {
				must(t, os.Remove(filepath.Join(dir, "text_encoder_3", "model.safetensors")))
			}, []string{"text_encoder_3"},
		},
	})
}

// TestStableDiffusion3Requests checks the arguments.
func TestStableDiffusion3Requests(t *testing.T) {
	embeds := func(length int) map[string]precast.HostTensor {
		return map[string]precast.HostTensor{
			"prompt_embeds": floatTensor(1, length, 60), "pooled_prompt_embeds": floatTensor(1, 56),
			"negative_prompt_embeds": floatTensor(1, length, 60), "negative_pooled_prompt_embeds": floatTensor(1, 56),
		}
	}
	runRequests(t, tinyCopy(t, "tp-sd3"), sd3Request(), []madeRequest{
		{"good", func(*precast.Request) {}, ""},
		{"defaults", func(r *precast.Request) { *r = precast.Request{Prompt: []string{""}} }, ""},
		{"texts", func(r *precast.Request) {
			r.Prompt2, r.Prompt3, r.NegativePrompt3 = []string{"a"}, []string{"b"}, []string{"c"}
		}, ""},
		{"third not UTF-8", func(r *precast.Request) { r.Prompt3 = []string{"\xc3"} }, "prompt_3: text 0 is not valid UTF-8"},
		{"thirds for some", func(r *precast.Request) { r.NegativePrompt3 = []string{"a", "b"} }, "negative_prompt_3: 2 texts for 1 prompts"},
		{"length", func(r *precast.Request) { r.MaxSequenceLength = 513 }, "max_sequence_length: found 513, wanted 1 to 512"},
		{"negative length", func(r *precast.Request) { r.MaxSequenceLength = -1 }, "max_sequence_length: found -1, wanted 1 to 512"},
		{"clip skip", func(r *precast.Request) { r.ClipSkip = 1 }, ""},
		{"too much clip skip", func(r *precast.Request) { r.ClipSkip = 2 }, "clip_skip: found 2, wanted at most 1, one less than the layers of each CLIP text encoder"},
		{"largest", func(r *precast.Request) { r.Height, r.Width = 192, 16 }, ""},
		{"too large", func(r *precast.Request) { r.Height = 208 }, "height: found 208, wanted at most 192: the transformer has positions for 12 patches (pos_embed_max_size)"},
		{"odd", func(r *precast.Request) { r.Width = 40 }, "width: found 40, wanted a multiple of 16 from 16 to 16384; the nearest is 48"},
		{"negative prompt without guidance", func(r *precast.Request) { r.GuidanceScale, r.NegativePrompt = number(1), []string{"x"} }, "negative_prompt has no effect"},
		{"guidance", func(r *precast.Request) { r.GuidanceScale = number(math.Inf(1)) }, "guidance_scale: found +Inf, wanted a finite number"},
		{"timesteps", func(r *precast.Request) { r.Timesteps = []float64{1} }, "timesteps: StableDiffusion3Pipeline has no such argument"},
		{"true guidance", func(r *precast.Request) { r.TrueCFGScale = number(2) }, "true_cfg_scale: StableDiffusion3Pipeline has no such argument"},
		{"image", func(r *precast.Request) { r.Image = &precast.Image{Height: 1, Width: 1, RGB: make([]byte, 3)} }, "image: StableDiffusion3Pipeline has no such argument"},
		{"sigmas", func(r *precast.Request) { r.NumInferenceSteps, r.Sigmas = 0, []float64{1, 0.5} }, ""},
		{"steps", func(r *precast.Request) { r.NumInferenceSteps = -1 }, "num_inference_steps: found -1"},
		{"tiles", func(r *precast.Request) { r.VAETiling = true }, ""},
		{"latents", func(r *precast.Request) { r.Latents = zeros(1, 8, 4, 6) }, ""},
		{"packed latents", func(r *precast.Request) { r.Latents = zeros(1, 6, 32) }, "latents: found (Float32)[1, 6, 32], wanted float32 [1 8 4 6]"},
		{"embeddings", func(r *precast.Request) { r.Prompt, r.PromptEmbeds = nil, embeds(85) }, ""},
		{"embeddings and their length", func(r *precast.Request) { r.Prompt, r.PromptEmbeds, r.MaxSequenceLength = nil, embeds(90), 0 }, ""},
		{"embeddings of another length", func(r *precast.Request) { r.Prompt, r.PromptEmbeds = nil, embeds(90) }, "prompt_embeds is (Float32)[1, 90, 60], wanted float32 [1 prompts][85 60]"},
		{"embeddings without pooled ones", func(r *precast.Request) {
			r.Prompt, r.PromptEmbeds = nil, embeds(85)
			delete(r.PromptEmbeds, "pooled_prompt_embeds")
		}, "pooled_prompt_embeds is missing"},
	})
}

// TestStableDiffusion3Counts has both CLIP encoders, T5, the transformer, the step with guidance and without, unpacking and the decoder.
func TestStableDiffusion3Counts(t *testing.T) {
	runCounts(t, tinyCopy(t, "tp-sd3"), sd3Request(), 8, map[string]func(r *precast.Request){
		"prompt":          func(r *precast.Request) { r.Prompt = []string{strings.Repeat("a long prompt that is cut ", 20)} },
		"third prompt":    func(r *precast.Request) { r.Prompt3 = []string{"a cat"} },
		"negative prompt": func(r *precast.Request) { r.NegativePrompt = []string{"blurry"} },
		"seed":            func(r *precast.Request) { r.Seed = 5 },
		"steps":           func(r *precast.Request) { r.NumInferenceSteps = 3 },
		"guidance":        func(r *precast.Request) { r.GuidanceScale = number(3) },
		"no guidance":     func(r *precast.Request) { r.GuidanceScale = number(1) },
	})
}
