package tests

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"precast"
)

func qwenRequest() precast.Request {
	return precast.Request{
		Prompt: []string{"a photo of an astronaut"}, NegativePrompt: []string{"blurry"}, Height: 32, Width: 48, NumInferenceSteps: 2, NumImagesPerPrompt: 1,
		MaxSequenceLength: 100,
	}
}

// TestQwenImageBadCheckpoints has parts that do not fit together.
func TestQwenImageBadCheckpoints(t *testing.T) {
	index := func(component, library, class string) func(*testing.T, string) {
		return fields("model_index.json", map[string]any{component: []string{library, class}})
	}
	runBadCheckpoints(t, "tp-qwen", qwenRequest(), []badCheckpoint{
		{
			"a guidance embedding", fields("transformer/config.json", map[string]any{"guidance_embeds": true}),
			[]string{"transformer/config.json: guidance_embeds: not supported: found true"},
		},
		{
			"text width", fields("transformer/config.json", map[string]any{"joint_attention_dim": 40}),
			[]string{"transformer has joint_attention_dim 40, text_encoder has hidden_size 64; they must be equal"},
		},
		{
			"channels", fields("transformer/config.json", map[string]any{"in_channels": 32}),
			[]string{"transformer has in_channels 32, vae has 4 x z_dim 64", "transformer has in_channels 32, transformer has patch_size^2 x out_channels 64"},
		},
		{
			"patches", fields("transformer/config.json", map[string]any{"patch_size": 4, "out_channels": 4}),
			[]string{"transformer/config.json: patch_size: found 4, wanted 2"},
		},
		{
			"another family's text encoder", fields("text_encoder/config.json", map[string]any{"model_type": "qwen3", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}),
			[]string{"text_encoder/config.json: found the config of a Qwen3ForCausalLM, wanted that of a Qwen2_5_VLForConditionalGeneration"},
		},
		{
			"Wan's autoencoder", index("vae", "diffusers", "AutoencoderKLWan"),
			[]string{`component "vae" has class "AutoencoderKLWan"; QwenImagePipeline knows AutoencoderKLQwenImage`},
		},
		{
			"pictures with transparency", fields("vae/config.json", map[string]any{"input_channels": 4}),
			[]string{"vae/config.json: input_channels: found 4, wanted 3"},
		},
		{
			"no deviation", fields("vae/config.json", map[string]any{"latents_std": []float64{1, 2}}),
			[]string{"vae/config.json: latents_std: found 2 numbers, wanted as many as latent channels (z_dim): 16"},
		},
		{
			"a scheduler without sigmas", index("scheduler", "diffusers", "DDIMScheduler"),
			[]string{"scheduler DDIMScheduler", "can't drive QwenImagePipeline", "FlowMatchEulerDiscreteScheduler"},
		},
		{
			"a small vocabulary", fields("text_encoder/config.json", map[string]any{"text_config": map[string]any{
				"model_type": "qwen2_5_vl_text", "vocab_size": 100, "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 2, "intermediate_size": 76,
			}}),
			[]string{"text_encoder: the tokenizer gives id", "the embedding has 100 rows (vocab_size)"},
		},
		{
			"padding before the text", fields("tokenizer/tokenizer_config.json", map[string]any{"padding_side": "left"}),
			[]string{"text_encoder: the tokenizer puts padding before the text, wanted it behind: padding_side in tokenizer_config.json"},
		},
		{
			"a window", fields("text_encoder/config.json", map[string]any{"text_config": map[string]any{
				"model_type": "qwen2_5_vl_text", "vocab_size": 592, "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 2, "intermediate_size": 76,
				"use_sliding_window": true, "sliding_window": 64,
			}}),
			[]string{"max_sequence_length: text encoder: found 134 tokens, wanted at most sliding_window 64", "the 34 tokens of the template are among them"},
		},
	})
}

// TestQwenImageRequests checks the arguments.
func TestQwenImageRequests(t *testing.T) {
	embeds := func(length int) map[string]precast.HostTensor {
		return map[string]precast.HostTensor{
			"prompt_embeds": floatTensor(1, length, 64), "prompt_embeds_mask": floatTensor(1, length),
			"negative_prompt_embeds": floatTensor(1, length, 64), "negative_prompt_embeds_mask": floatTensor(1, length),
		}
	}
	runRequests(t, tinyCopy(t, "tp-qwen"), qwenRequest(), []madeRequest{
		{"good", func(*precast.Request) {}, ""},
		{"defaults", func(r *precast.Request) { *r = precast.Request{Prompt: []string{""}} }, ""},
		{"longest", func(r *precast.Request) { r.MaxSequenceLength = 1024 }, ""},
		{"too long", func(r *precast.Request) { r.MaxSequenceLength = 1025 }, "max_sequence_length: found 1025, wanted 1 to 1024"},
		{"negative length", func(r *precast.Request) { r.MaxSequenceLength = -1 }, "max_sequence_length: found -1, wanted 1 to 1024"},
		{"a long prompt", func(r *precast.Request) { r.Prompt = []string{strings.Repeat("a", 100000)} }, ""},
		{"guidance", func(r *precast.Request) { r.GuidanceScale = number(2) }, "guidance_scale has no effect"},
		{"true guidance without a negative prompt", func(r *precast.Request) { r.TrueCFGScale, r.NegativePrompt = number(2), nil }, "true_cfg_scale has no effect without negative_prompt"},
		{"a negative prompt without true guidance", func(r *precast.Request) { r.TrueCFGScale = number(1) }, "negative_prompt has no effect: true_cfg_scale is 1"},
		{"neither", func(r *precast.Request) { r.NegativePrompt = nil }, ""},
		{"second prompt", func(r *precast.Request) { r.Prompt2 = []string{"x"} }, "prompt_2: QwenImagePipeline has no such argument"},
		{"clip skip", func(r *precast.Request) { r.ClipSkip = 1 }, "clip_skip: QwenImagePipeline has no such argument"},
		{"a picture", func(r *precast.Request) { r.Image = &precast.Image{Height: 1, Width: 1, RGB: make([]byte, 3)} }, "image: QwenImagePipeline has no such argument"},
		{"odd", func(r *precast.Request) { r.Width = 40 }, "width: found 40, wanted a multiple of 16 from 16 to 16384; the nearest is 48"},
		{"sigmas", func(r *precast.Request) { r.NumInferenceSteps, r.Sigmas = 0, []float64{1, 0.5} }, ""},
		{"many steps", func(r *precast.Request) { r.NumInferenceSteps = 1 << 40 }, "found 1099511627776, wanted at most 100000"},
		// The last sigma is stretched to shift_terminal from the first, which with one step is it: diffusers divides 0 by 0.
		{"one step", func(r *precast.Request) { r.NumInferenceSteps = 1 }, "shift_terminal"},
		{"latents", func(r *precast.Request) { r.Latents = zeros(1, 6, 64) }, ""},
		{"unpacked latents", func(r *precast.Request) { r.Latents = zeros(1, 16, 4, 6) }, "latents: found (Float32)[1, 16, 4, 6], wanted float32 [1 6 64]"},
		{"embeddings", func(r *precast.Request) { r.Prompt, r.NegativePrompt, r.PromptEmbeds = nil, nil, embeds(100) }, ""},
		{"embeddings and their length", func(r *precast.Request) {
			r.Prompt, r.NegativePrompt, r.PromptEmbeds, r.MaxSequenceLength = nil, nil, embeds(70), 0
		}, ""},
		{"embeddings without a mask", func(r *precast.Request) {
			r.Prompt, r.NegativePrompt, r.PromptEmbeds = nil, nil, embeds(100)
			delete(r.PromptEmbeds, "negative_prompt_embeds_mask")
		}, "negative_prompt_embeds_mask is missing"},
	})
}

// TestQwenImageCounts has the text encoder, the transformer, the step with guidance and without, unpacking and the decoder: the length of a prompt is in none.
func TestQwenImageCounts(t *testing.T) {
	runCounts(t, tinyCopy(t, "tp-qwen"), qwenRequest(), 6, map[string]func(r *precast.Request){
		"prompt": func(r *precast.Request) {
			r.Prompt = []string{"a much longer prompt than it was before, with more tokens"}
		},
		"prompt that is cut": func(r *precast.Request) { r.Prompt = []string{strings.Repeat("a long prompt that is cut ", 20)} },
		"empty prompt":       func(r *precast.Request) { r.Prompt = []string{""} },
		"negative prompt":    func(r *precast.Request) { r.NegativePrompt = []string{"text, people and cars"} },
		"seed":               func(r *precast.Request) { r.Seed = 5 },
		"steps":              func(r *precast.Request) { r.NumInferenceSteps = 3 },
		"guidance":           func(r *precast.Request) { r.TrueCFGScale = number(2) },
		"no guidance":        func(r *precast.Request) { r.NegativePrompt = nil },
	})
}

// TestQwenImageBatch: each picture of two prompts of different lengths, two of each, is the one that is made of its prompt and seed alone.
func TestQwenImageBatch(t *testing.T) {
	p := openPipeline(t, tinyCopy(t, "tp-qwen"), precast.Config{Backend: "go", NoCache: true})
	r := qwenRequest()
	r.NumImagesPerPrompt, r.Seed = 2, 7
	r.Prompt = []string{"a red fox", "a cat holding a sign in front of a castle"}
	r.NegativePrompt = []string{"", "overexposed, watermark"}
	all, err := p.Generate(context.Background(), &r)
	must(t, err)
	if len(all.Images) != 4 {
		t.Fatalf("%d pictures, wanted 4", len(all.Images))
	}
	for k, img := range all.Images {
		alone := r
		alone.NumImagesPerPrompt, alone.Seed = 1, r.Seed+uint64(k)
		alone.Prompt, alone.NegativePrompt = r.Prompt[k/2:k/2+1], r.NegativePrompt[k/2:k/2+1]
		one, err := p.Generate(context.Background(), &alone)
		must(t, err)
		for i, v := range one.Images[0].RGB {
			if d := int(v) - int(img.RGB[i]); d < -1 || d > 1 {
				t.Errorf("picture %d: value %d is %d, alone %d", k, i, img.RGB[i], v)
				break
			}
		}
	}
}

// TestQwenImageCut: what a prompt has behind max_sequence_length is not used, which is said.
func TestQwenImageCut(t *testing.T) {
	p := openPipeline(t, tinyCopy(t, "tp-qwen"), precast.Config{Backend: "go", NoCache: true})
	generate := func(prompt string) ([]byte, string) {
		r, warnings := qwenRequest(), ""
		r.Prompt = []string{prompt}
		r.Warn = func(format string, args ...any) { warnings += fmt.Sprintf(format, args...) }
		out, err := p.Generate(context.Background(), &r)
		must(t, err)
		return out.Images[0].RGB, warnings
	}
	long := strings.Repeat("a long prompt that is cut ", 20)
	cut, warned := generate(long + "here")
	const want = "the prompt is longer than max_sequence_length, 100 tokens after the template's first 34: this part of it is not used"
	if !strings.Contains(warned, want) || !strings.Contains(warned, "here") {
		t.Errorf("found %q, wanted %q", warned, want)
	}
	if other, _ := generate(long + "somewhere else"); !slices.Equal(cut, other) {
		t.Error("what is cut changes the picture")
	}
	if _, warned := generate("a short one"); warned != "" {
		t.Errorf("found %q", warned)
	}
}
