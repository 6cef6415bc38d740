package tests

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"precast"
	"precast/graph/checkpoint"
)

// flux2Model copies a FLUX.2 checkpoint, so that a test may damage it.
func flux2Model(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(reference(t), "tiny", name, "model")
	to := t.TempDir()
	must(t, os.CopyFS(to, os.DirFS(dir)))
	return to
}

func flux2Request() *precast.Request {
	guidance := 4.0
	return &precast.Request{
		Prompt: []string{"a photo of an astronaut"}, Height: 16, Width: 32, NumInferenceSteps: 1, NumImagesPerPrompt: 1, MaxSequenceLength: 40, GuidanceScale: &guidance,
	}
}

// needDecoder skips where testdata has left the decoder's weights out.
func needDecoder(t *testing.T, dir string) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(dir, "vae", "diffusion_pytorch_model.safetensors")); err != nil {
		t.Skipf("%v: PRECAST_REFERENCE names the whole reference", err)
	}
}

// TestFlux2BadCheckpoints opens and runs checkpoints whose parts do not fit together. Nothing may be compiled for them.
func TestFlux2BadCheckpoints(t *testing.T) {
	const weights = "diffusion_pytorch_model.safetensors"
	fields := func(file string, set map[string]any) func(*testing.T, string) {
		return func(t *testing.T, dir string) { editJSON(t, filepath.Join(dir, filepath.FromSlash(file)), set) }
	}
	without := func(file string, keys ...string) func(*testing.T, string) {
		return func(t *testing.T, dir string) { removeKeys(t, filepath.Join(dir, filepath.FromSlash(file)), keys...) }
	}
	statistics := func(edit func(items []checkpoint.Item) []checkpoint.Item) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			needDecoder(t, dir)
			editTensors(t, filepath.Join(dir, "vae", weights), edit)
		}
	}
	index := func(component, library, class string) func(*testing.T, string) {
		return fields("model_index.json", map[string]any{component: []string{library, class}})
	}
	for _, tc := range []struct {
		name   string
		model  string
		damage func(t *testing.T, dir string)
		want   []string
	}{
		{
			// https://github.com/huggingface/diffusers/issues/13001
			"klein's weights beside a config without its sizes", "tp-flux2", without("transformer/config.json", "num_layers", "num_single_layers", "num_attention_heads"),
			[]string{
				"transformer/config.json: num_layers: found nothing, which means 8, but the weights have 2",
				"num_single_layers: found nothing, which means 48, but the weights have 2", "num_attention_heads: found nothing, which means 48, but the weights have 4",
			},
		},
		{
			"klein's weights beside dev's config", "tp-flux2", func(t *testing.T, dir string) {
				writeFile(t, filepath.Join(dir, "transformer", "config.json"), []byte(`{"_class_name": "Flux2Transformer2DModel"}`))
			}, []string{"joint_attention_dim: found nothing, which means 15360, but the weights have 72", "in_channels: found nothing, which means 128, but the weights have 32"},
		},
		{
			// https://github.com/invoke-ai/InvokeAI/pull/8838
			"no statistics", "tp-flux2", statistics(func(items []checkpoint.Item) []checkpoint.Item {
				return slices.DeleteFunc(items, func(i checkpoint.Item) bool { return strings.HasPrefix(i.Key, "bn.running_") })
			}), []string{"vae", `missing tensor "bn.running_mean", wanted shape [32]`, `missing tensor "bn.running_var", wanted shape [32]`},
		},
		{
			"statistics of other channels", "flux2-dev", statistics(func(items []checkpoint.Item) []checkpoint.Item {
				for i := range items {
					if items[i].Key == "bn.running_var" {
						items[i].Shape, items[i].Data = []int{16}, items[i].Data[:64]
					}
				}
				return items
			}), []string{`tensor "bn.running_var" has shape [16]`, "but the config gives [32]"},
		},
		{
			"few layers", "tp-flux2", fields("text_encoder/config.json", map[string]any{"num_hidden_layers": 20}),
			[]string{"text_encoder/config.json: num_hidden_layers: found 20, wanted 27 or more", "[9 18 27]"},
		},
		{
			"few layers", "flux2-dev", fields("text_encoder/config.json", map[string]any{"text_config": map[string]any{
				"model_type": "mistral", "num_hidden_layers": 29, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": nil,
			}}),
			[]string{"text_encoder/config.json: num_hidden_layers: found 29, wanted 30 or more", "[10 20 30]"},
		},
		{
			"a wider text encoder", "tp-flux2", fields("text_encoder/config.json", map[string]any{"hidden_size": 32}),
			[]string{"transformer has joint_attention_dim 72, text_encoder has 3 x hidden_size 96; they must be equal"},
		},
		{
			"another family's text encoder", "tp-flux2", fields("text_encoder/config.json", map[string]any{"model_type": "qwen2_5_vl", "num_attention_heads": 4}),
			[]string{"text_encoder/config.json: found the config of a Qwen2_5_VLForConditionalGeneration, wanted that of a Qwen3ForCausalLM"},
		},
		{
			"latent channels", "flux2-dev", fields("vae/config.json", map[string]any{"latent_channels": 16}),
			[]string{"transformer has in_channels 32, vae has 4 x latent_channels 64; they must be equal"},
		},
		{
			"out channels", "flux2-dev", fields("transformer/config.json", map[string]any{"out_channels": 16}),
			[]string{"transformer has in_channels 32, transformer has patch_size^2 x out_channels 16; they must be equal"},
		},
		{
			"FLUX.1's autoencoder", "flux2-dev", index("vae", "diffusers", "AutoencoderKL"),
			[]string{`component "vae" has class "AutoencoderKL"`, "AutoencoderKLFlux2"},
		},
		{
			"FLUX.1's transformer", "tp-flux2", index("transformer", "diffusers", "FluxTransformer2DModel"),
			[]string{`component "transformer" has class "FluxTransformer2DModel"`, "Flux2Transformer2DModel"},
		},
		{
			"the other text encoder", "flux2-dev", index("text_encoder", "transformers", "Qwen3ForCausalLM"),
			[]string{`component "text_encoder" has class "Qwen3ForCausalLM"`, "Mistral3ForConditionalGeneration"},
		},
		{
			"patches", "flux2-dev", fields("vae/config.json", map[string]any{"patch_size": []int{1, 1}}),
			[]string{"vae/config.json: patch_size: not supported: found [1 1], wanted [2 2]"},
		},
		{
			"is_distilled", "tp-flux2", fields("model_index.json", map[string]any{"is_distilled": "no"}),
			[]string{`model_index.json: is_distilled: found the string "no", wanted true or false`},
		},
		{
			"a scheduler without sigmas", "tp-flux2", index("scheduler", "diffusers", "DDIMScheduler"),
			[]string{"scheduler DDIMScheduler", "can't drive Flux2KleinPipeline", "FlowMatchEulerDiscreteScheduler"},
		},
		{
			"no chat template", "tp-flux2", without("tokenizer/tokenizer_config.json", "chat_template"),
			[]string{"text_encoder: the tokenizer has no chat template"},
		},
		{
			"another chat template", "flux2-dev", func(t *testing.T, dir string) {
				writeFile(t, filepath.Join(dir, "tokenizer", "chat_template.jinja"), []byte("{{ raise_exception('no such role') }}"))
			}, []string{"chat_template.jinja: the chat template fails", "no such role"},
		},
		{
			"a small vocabulary", "tp-flux2", fields("text_encoder/config.json", map[string]any{"vocab_size": 100}),
			[]string{"text_encoder: the tokenizer gives id", "the embedding has 100 rows (vocab_size)"},
		},
	} {
		t.Run(tc.model+"/"+tc.name, func(t *testing.T) {
			dir := flux2Model(t, tc.model)
			tc.damage(t, dir)
			p, err := precast.Open(context.Background(), dir, precast.Config{Backend: "go", NoCache: true})
			if err == nil {
				defer p.Close()
				_, err = p.Generate(context.Background(), flux2Request())
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

// TestFlux2NegativeVariance has statistics of which there is no square root: what the decoder makes of them is no picture.
func TestFlux2NegativeVariance(t *testing.T) {
	dir := flux2Model(t, "tp-flux2")
	editTensors(t, filepath.Join(dir, "vae", "diffusion_pytorch_model.safetensors"), func(items []checkpoint.Item) []checkpoint.Item {
		for _, i := range items {
			if i.Key == "bn.running_var" {
				copy(i.Data, []byte{0, 0, 0x80, 0xbf}) // -1
			}
		}
		return items
	})
	p := openPipeline(t, dir, precast.Config{Backend: "go", NoCache: true})
	_, err := p.Generate(context.Background(), flux2Request())
	if err == nil || !strings.Contains(err.Error(), "vae: the decoded picture's values hold NaN or infinity") {
		t.Errorf("found %v", err)
	}
}

// TestFlux2Requests checks the arguments of both classes.
func TestFlux2Requests(t *testing.T) {
	dev, klein := flux2Model(t, "flux2-dev"), flux2Model(t, "tp-flux2")
	quiet := flux2Model(t, "flux2-dev")
	editJSON(t, filepath.Join(quiet, "transformer", "config.json"), map[string]any{"guidance_embeds": false})
	distilled := flux2Model(t, "tp-flux2")
	editJSON(t, filepath.Join(distilled, "model_index.json"), map[string]any{"is_distilled": true})
	number := func(v float64) *float64 { return &v }
	latents := func(dims ...int) *precast.HostTensor {
		h := floatTensor(dims...)
		return &h
	}
	embeds := map[string]precast.HostTensor{"prompt_embeds": floatTensor(1, 40, 72)}
	both := map[string]precast.HostTensor{"prompt_embeds": floatTensor(1, 40, 72), "negative_prompt_embeds": floatTensor(1, 40, 72)}
	for _, tc := range []struct {
		name, model string
		edit        func(r *precast.Request)
		want        string // part of the error, or of the warning; none where the request is good
	}{
		{"good", dev, func(*precast.Request) {}, ""},
		{"good", klein, func(*precast.Request) {}, ""},
		{"defaults", klein, func(r *precast.Request) { *r = precast.Request{Prompt: []string{""}} }, ""},
		{"sigmas", dev, func(r *precast.Request) { r.NumInferenceSteps, r.Sigmas = 0, []float64{1, 0.5} }, ""},
		{"image", dev, func(r *precast.Request) { r.Image = &precast.Image{Height: 1, Width: 1, RGB: make([]byte, 3)} }, "image: the reference pictures of Flux2Pipeline are not supported"},
		{"image", klein, func(r *precast.Request) { r.Image = &precast.Image{Height: 1, Width: 1, RGB: make([]byte, 3)} }, "image: the reference pictures of Flux2KleinPipeline"},
		{"strength", dev, func(r *precast.Request) { r.Strength = number(0.5) }, "strength: Flux2Pipeline has no such argument"},
		{"negative prompt", klein, func(r *precast.Request) { r.NegativePrompt = []string{"x"} }, "negative_prompt: Flux2KleinPipeline has no such argument"},
		{"second prompt", dev, func(r *precast.Request) { r.Prompt2 = []string{"x"} }, "prompt_2: Flux2Pipeline has no such argument"},
		{"true guidance", klein, func(r *precast.Request) { r.TrueCFGScale = number(2) }, "true_cfg_scale: Flux2KleinPipeline has no such argument"},
		{"timesteps", klein, func(r *precast.Request) { r.Timesteps = []float64{1} }, "timesteps: Flux2KleinPipeline has no such argument"},
		{"guidance", klein, func(r *precast.Request) { r.GuidanceScale = number(math.NaN()) }, "guidance_scale: found NaN"},
		{"a distilled model's guidance", distilled, func(*precast.Request) {}, "guidance_scale has no effect: the model is distilled"},
		{"a distilled model without guidance", distilled, func(r *precast.Request) { r.GuidanceScale = number(1) }, ""},
		{"guidance without an embedding", quiet, func(*precast.Request) {}, "guidance_scale has no effect: the transformer has no guidance embedding"},
		{"no length", dev, func(r *precast.Request) { r.MaxSequenceLength = -1 }, "max_sequence_length: found -1, wanted 1 to 8192"},
		{"length", dev, func(r *precast.Request) { r.MaxSequenceLength = 1 << 40 }, "max_sequence_length: found 1099511627776, wanted 1 to 8192"},
		{"a short length", klein, func(r *precast.Request) { r.MaxSequenceLength = 3 }, ""},
		{"height", dev, func(r *precast.Request) { r.Height = 24 }, "height: found 24, wanted a multiple of 16 from 16 to 16384; the nearest is 32"},
		{"width", klein, func(r *precast.Request) { r.Width = -16 }, "width: found -16, wanted a multiple of 16"},
		{"steps", dev, func(r *precast.Request) { r.NumInferenceSteps = 1 << 40 }, "found 1099511627776, wanted at most 100000"},
		{"negative steps", klein, func(r *precast.Request) { r.NumInferenceSteps = -1 }, "num_inference_steps: found -1, wanted 1 or more"},
		{"latents", dev, func(r *precast.Request) { r.Latents = latents(1, 32, 1, 2) }, ""},
		{"packed latents", dev, func(r *precast.Request) { r.Latents = latents(1, 2, 32) }, "latents: found (Float32)[1, 2, 32], wanted float32 [1 32 1 2]"},
		{"embeddings", klein, func(r *precast.Request) { r.Prompt, r.PromptEmbeds = nil, both }, ""},
		{"embeddings and their length", klein, func(r *precast.Request) { r.Prompt, r.PromptEmbeds, r.MaxSequenceLength = nil, both, 0 }, ""},
		{"embeddings for guidance", klein, func(r *precast.Request) { r.Prompt, r.PromptEmbeds = nil, embeds }, "negative_prompt_embeds is missing"},
		{"embeddings without guidance", klein, func(r *precast.Request) { r.Prompt, r.PromptEmbeds, r.GuidanceScale = nil, embeds, number(1) }, ""},
		{"embeddings of a distilled model", distilled, func(r *precast.Request) { r.Prompt, r.PromptEmbeds, r.GuidanceScale = nil, embeds, number(1) }, ""},
		{"another model's embeddings", dev, func(r *precast.Request) { r.Prompt, r.PromptEmbeds = nil, embeds }, "prompt_embeds is (Float32)[1, 40, 72], wanted float32 [1 prompts][40 96]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := openPipeline(t, tc.model, precast.Config{Backend: "go", NoCache: true})
			r := flux2Request()
			tc.edit(r)
			checkAnswer(t, p, r, tc.want)
		})
	}
}

// floatTensor is a float32 tensor of zeros.
func floatTensor(dims ...int) precast.HostTensor {
	n := 1
	for _, d := range dims {
		n *= d
	}
	return precast.HostTensor{Shape: shapes.Make(dtypes.Float32, dims...), Data: make([]byte, 4*n)}
}

// TestFlux2Tiling: tiles make another picture where there are several (sample_size 64 is their side), and the same where there is one.
func TestFlux2Tiling(t *testing.T) {
	p := openPipeline(t, flux2Model(t, "tp-flux2"), precast.Config{Backend: "go", NoCache: true})
	for width, same := range map[int]bool{64: true, 96: false} {
		var pictures [2][]byte
		for i, tiling := range []bool{false, true} {
			r := flux2Request()
			r.Height, r.Width, r.VAETiling = 32, width, tiling
			out, err := p.Generate(context.Background(), r)
			if err != nil {
				t.Fatal(err)
			}
			pictures[i] = out.Images[0].RGB
		}
		if slices.Equal(pictures[0], pictures[1]) != same {
			t.Errorf("width %d: the same picture with tiles: %v, wanted %v", width, !same, same)
		}
	}
}

// TestFlux2Counts: another prompt, seed, number of steps or guidance, also none, makes no program.
func TestFlux2Counts(t *testing.T) {
	p := openPipeline(t, flux2Model(t, "tp-flux2"), precast.Config{Backend: "go", NoCache: true})
	generate := func(edit func(r *precast.Request)) []byte {
		t.Helper()
		r := flux2Request()
		edit(r)
		out, err := p.Generate(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		return out.Images[0].RGB
	}
	first := generate(func(*precast.Request) {})
	made := p.Stats().Counts["trace"]
	// The text encoder, the transformer, the step with guidance and without, unpacking and the decoder.
	if made != 6 {
		t.Errorf("%d programs were traced, wanted 6", made)
	}
	for what, edit := range map[string]func(r *precast.Request){
		"prompt":   func(r *precast.Request) { r.Prompt = []string{strings.Repeat("a long prompt that is cut ", 20)} },
		"seed":     func(r *precast.Request) { r.Seed = 5 },
		"steps":    func(r *precast.Request) { r.NumInferenceSteps = 3 },
		"guidance": func(r *precast.Request) { *r.GuidanceScale = 7 },
		"no guidance": func(r *precast.Request) {
			*r.GuidanceScale = 1
		},
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
}
