package tests

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"precast"
	"precast/backends/gobackend"
	"precast/graph/checkpoint"
)

// wanModel copies a Wan checkpoint, so that a test may damage it.
func wanModel(t *testing.T, name string) string {
	t.Helper()
	to := t.TempDir()
	must(t, os.CopyFS(to, os.DirFS(carriedModel(t, name))))
	return to
}

func wanRequest() *precast.Request {
	return &precast.Request{
		Prompt: []string{"a photo of an astronaut"}, Height: 32, Width: 48, NumFrames: 5, NumInferenceSteps: 3, NumImagesPerPrompt: 1, MaxSequenceLength: 16, Seed: 1,
	}
}

// TestWanTI2V runs a pipeline in the form of Wan 2.2 TI2V-5B, which testdata/make_wan.py recorded: an autoencoder with residual resampling and patches, and
// expand_timesteps. Its arguments are rounded as the oracle rounds them.
func TestWanTI2V(t *testing.T) {
	dir := filepath.Join("testdata", "wan-ti2v")
	model := wanModel(t, "tp-wan")
	for _, component := range []string{"transformer", "vae"} {
		must(t, os.RemoveAll(filepath.Join(model, component)))
	}
	must(t, os.Remove(filepath.Join(model, "model_index.json")))
	must(t, os.CopyFS(model, os.DirFS(filepath.Join(dir, "model"))))
	file, err := checkpoint.OpenFile(filepath.Join(dir, "golden.safetensors"))
	must(t, err)
	defer file.Close()
	for _, backend := range []string{"go", "pjrt"} {
		t.Run(backend, func(t *testing.T) {
			needBackend(t, backend)
			var r goldenRun
			r.decode(t, readGolden(t, dir).Runs["a"])
			c := r.Call
			req := &precast.Request{
				Prompt: texts(t, c.Prompt), NegativePrompt: texts(t, c.NegativePrompt), Height: c.Height, Width: c.Width, NumFrames: c.NumFrames,
				NumInferenceSteps: c.Steps, GuidanceScale: c.GuidanceScale, MaxSequenceLength: c.MaxSequenceLength,
			}
			req.Latents, err = precast.ReadTensor(file.Path() + ":a/noise")
			must(t, err)
			var warnings []string
			req.Warn = func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
			seen := map[string][]precast.HostTensor{}
			req.Observe = func(name string, h precast.HostTensor) { seen[name] = append(seen[name], h) }
			p := openPipeline(t, model, precast.Config{Backend: backend, NoCache: true, CheckPasses: true})
			out, err := p.Generate(context.Background(), req)
			must(t, err)
			want := []string{"height: 80 is no multiple of 32, taken as 64", "num_frames: 11 is not one more than a multiple of 4, taken as 9"}
			if !slices.Equal(warnings, want) {
				t.Errorf("found warnings %q, wanted %q", warnings, want)
			}
			for name, limit := range map[string]float64{
				"encode_prompt/0/prompt_embeds": moduleLimit, "encode_prompt/0/negative_prompt_embeds": moduleLimit,
				"step_model_output": runLimit, "step_latents": runLimit, "vae_in": runLimit, "vae_out": runLimit,
			} {
				d := compareFloats(t, file, "a/"+name, seen[filepath.Base(name)], limit)
				if d == nil {
					t.Fatalf("no golden %s", name)
				}
				t.Logf("%s: at most %.2g of the largest value from its golden", name, d.Rel)
			}
			if out.Frames != 9 || len(out.Images) != 9 {
				t.Errorf("%d pictures in videos of %d frames, wanted 9 of 9", len(out.Images), out.Frames)
			}
			g, _ := file.Tensor("a/image_u8")
			var got []byte
			for _, img := range out.Images {
				got = append(got, img.RGB...)
			}
			if want := g.Bytes(); len(got) != len(want) {
				t.Errorf("pictures have %d values, golden %d", len(got), len(want))
			} else {
				for i := range got {
					if d := int(got[i]) - int(want[i]); d < -1 || d > 1 {
						t.Fatalf("picture value %d is %d, golden %d", i, got[i], want[i])
					}
				}
			}
		})
	}
}

// TestWanExperts: which expert denoises follows from boundary_ratio alone, an expert that is not needed may be absent, and weights that take turns on
// the device change nothing.
func TestWanExperts(t *testing.T) {
	// buffers is the largest number of values on the device after a step of the last run.
	var buffers int64
	latents := func(edit func(t *testing.T, dir string), cfg precast.Config) []byte {
		t.Helper()
		buffers = 0
		dir := wanModel(t, "wan22-t2v")
		edit(t, dir)
		cfg.Backend, cfg.NoCache = "go", true
		p := openPipeline(t, dir, cfg)
		r := wanRequest()
		r.Progress = func(int, int) { buffers = max(buffers, gobackend.Live()["buffer"]) }
		h, params, err := p.Denoise(t.Context(), r)
		must(t, err)
		must(t, p.Close())
		if n := params[0].Extra["num_frames"]; n != 5 {
			t.Errorf("num_frames is recorded as %v", n)
		}
		return h.Data
	}
	index := func(set map[string]any) func(*testing.T, string) {
		return func(t *testing.T, dir string) { editJSON(t, filepath.Join(dir, "model_index.json"), set) }
	}
	null, network := []any{nil, nil}, []any{"diffusers", "WanTransformer3DModel"}
	both := latents(index(nil), precast.Config{})
	together := buffers
	latents(index(nil), precast.Config{Offload: "model"})
	// Each expert has 96 weights, and the text encoder has some too.
	if buffers > together-96 {
		t.Errorf("%d values on the device where experts take turns, %d where they do not; wanted 96 fewer at least", buffers, together)
	}
	high := latents(index(map[string]any{"boundary_ratio": 0}), precast.Config{})
	low := latents(index(map[string]any{"boundary_ratio": 1}), precast.Config{})
	for a, list := range [][]byte{both, high, low} {
		for b, other := range [][]byte{both, high, low} {
			if (a == b) != bytes.Equal(list, other) {
				t.Errorf("boundaries %d and %d: the same latents is %v", a, b, a != b)
			}
		}
	}
	for name, same := range map[string]struct {
		want []byte
		edit func(*testing.T, string)
		cfg  precast.Config
	}{
		"offload":            {both, index(nil), precast.Config{Offload: "model"}},
		"no transformer_2":   {high, index(map[string]any{"boundary_ratio": 0, "transformer_2": null}), precast.Config{}},
		"no boundary":        {high, index(map[string]any{"boundary_ratio": nil}), precast.Config{}},
		"no boundary at all": {high, index(map[string]any{"boundary_ratio": nil, "transformer_2": null, "expand_timesteps": nil}), precast.Config{}},
		"no transformer":     {low, index(map[string]any{"boundary_ratio": 1, "transformer": null}), precast.Config{}},
		"expand_timesteps":   {both, index(map[string]any{"expand_timesteps": true}), precast.Config{}},
		"the other expert alone": {low, func(t *testing.T, dir string) {
			must(t, os.RemoveAll(filepath.Join(dir, "transformer")))
			must(t, os.Rename(filepath.Join(dir, "transformer_2"), filepath.Join(dir, "transformer")))
			index(map[string]any{"boundary_ratio": nil, "transformer_2": null, "transformer": network})(t, dir)
		}, precast.Config{}},
	} {
		if !bytes.Equal(latents(same.edit, same.cfg), same.want) {
			t.Errorf("%s: the latents differ", name)
		}
	}
}

// TestWanHalf: the denoiser in bfloat16 is near float32 through a whole run on both backends (bugs.md, row 23).
func TestWanHalf(t *testing.T) {
	dir := carriedModel(t, "tp-wan")
	for _, backend := range []string{"go", "pjrt"} {
		t.Run(backend, func(t *testing.T) {
			needBackend(t, backend)
			var results [2][]float32
			for i, dtype := range []string{"float32", "bfloat16,vae=float32"} {
				p := openPipeline(t, dir, precast.Config{Backend: backend, NoCache: true, DType: dtype})
				h, _, err := p.Denoise(t.Context(), wanRequest())
				must(t, err)
				must(t, p.Close())
				results[i] = floats(*h)
			}
			var off, all float64
			for i, want := range results[0] {
				d := float64(results[1][i] - want)
				off, all = off+d*d, all+float64(want)*float64(want)
			}
			// Text encoder and denoiser both round; PyTorch's denoiser alone is 1.5 % off in one call.
			relative := math.Sqrt(off / all)
			t.Logf("%.3g from float32", relative)
			if !(relative > 0 && relative < 0.05) {
				t.Errorf("%.3g from float32, wanted more than 0 and less than 0.05", relative)
			}
		})
	}
}

// TestWanBadCheckpoints opens and runs checkpoints whose parts do not fit together. Nothing may be compiled for them.
func TestWanBadCheckpoints(t *testing.T) {
	fields := func(file string, set map[string]any) func(*testing.T, string) {
		return func(t *testing.T, dir string) { editJSON(t, filepath.Join(dir, filepath.FromSlash(file)), set) }
	}
	index := func(set map[string]any) func(*testing.T, string) { return fields("model_index.json", set) }
	null := []any{nil, nil}
	const network = "found null, wanted [library, class]"
	for _, tc := range []struct {
		name   string
		damage func(t *testing.T, dir string)
		want   string
	}{
		{"no transformer", index(map[string]any{"transformer": null, "boundary_ratio": nil}), "model_index.json: transformer: " + network},
		{"no experts", index(map[string]any{"transformer": null, "transformer_2": null}), "transformer and transformer_2: " + network + " for one of them at least"},
		{
			"no second expert", index(map[string]any{"transformer_2": null}),
			"model_index.json: transformer_2: found null, but boundary_ratio 0.875 gives it the timesteps below 875, 1 of this run's 3",
		},
		{
			"no first expert", index(map[string]any{"transformer": null}),
			"model_index.json: transformer: found null, but boundary_ratio 0.875 gives it the timesteps from 875 on upwards, 2 of this run's 3",
		},
		{"boundary", index(map[string]any{"boundary_ratio": 1.5}), "model_index.json: boundary_ratio: found 1.5, wanted null or a number from 0 to 1"},
		{"boundary as text", index(map[string]any{"boundary_ratio": "0.9"}), `boundary_ratio: found the string "0.9", wanted a finite number`},
		{"expand_timesteps", index(map[string]any{"expand_timesteps": 1}), "expand_timesteps: found 1, wanted true or false"},
		{"text encoder", index(map[string]any{"text_encoder": []string{"transformers", "T5EncoderModel"}}), `component "text_encoder" has class "T5EncoderModel"`},
		{"vae", index(map[string]any{"vae": []string{"diffusers", "AutoencoderKL"}}), `component "vae" has class "AutoencoderKL"`},
		{
			"scheduler", func(t *testing.T, dir string) {
				index(map[string]any{"scheduler": []string{"diffusers", "EulerDiscreteScheduler"}})(t, dir)
				fields("scheduler/scheduler_config.json", map[string]any{"prediction_type": "epsilon"})(t, dir)
			},
			"scheduler EulerDiscreteScheduler with this config can't drive WanPipeline: it scales the noise or the model's input",
		},
		{"width", fields("transformer_2/config.json", map[string]any{"text_dim": 32}), "transformer_2 has text_dim 32, text_encoder has d_model 24; they must be equal"},
		{"latents", fields("transformer/config.json", map[string]any{"out_channels": 8}), "transformer has out_channels 8, vae has z_dim 16; they must be equal"},
		{"patches", fields("transformer_2/config.json", map[string]any{"patch_size": []int{1, 1, 1}}), "transformer has patch_size [1 2 2], transformer_2 has patch_size [1 1 1]"},
		{"image-to-video", fields("transformer/config.json", map[string]any{"image_dim": 1280}), "transformer/config.json: image_dim: not supported: found 1280"},
		{"time patches", func(t *testing.T, dir string) {
			for _, name := range []string{"transformer", "transformer_2"} {
				fields(name+"/config.json", map[string]any{"patch_size": []int{3, 2, 2}})(t, dir)
			}
		}, "num_frames: gives 2 in the latents, wanted a multiple of 3, the transformer's patch_size[0]"},
		{"positions", fields("transformer_2/config.json", map[string]any{"rope_max_seq_len": 2}), "width: gives 3 positions, and the transformer has 2 (rope_max_seq_len)"},
		{"layers", fields("transformer/config.json", map[string]any{"num_layers": 5}), `missing tensor "blocks.3.`},
		{"statistics", fields("vae/config.json", map[string]any{"latents_std": []float64{1, 2}}), "vae/config.json: latents_std: found 2 numbers, wanted as many as latent channels (z_dim): 16"},
		{"factor", fields("vae/config.json", map[string]any{"scale_factor_temporal": 8}), "vae/config.json: scale_factor_temporal: found 8, wanted 4"},
		{"vocabulary", fields("text_encoder/config.json", map[string]any{"vocab_size": 100}), "the embedding has 100 rows (vocab_size)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := wanModel(t, "wan22-t2v")
			tc.damage(t, dir)
			p, err := precast.Open(context.Background(), dir, precast.Config{Backend: "go", NoCache: true})
			if err == nil {
				defer p.Close()
				_, _, err = p.Denoise(context.Background(), wanRequest())
				if n := p.Stats().Counts["compile"]; n != 0 {
					t.Errorf("%d programs were compiled", n)
				}
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("found  %v\nwanted %s", err, tc.want)
			}
		})
	}
	if _, err := precast.Open(context.Background(), carriedModel(t, "wan22-t2v"), precast.Config{DType: "bfloat16,transformer=float32"}); err == nil ||
		!strings.Contains(err.Error(), "dtype: found f32 for transformer and bf16 for transformer_2, wanted the same") {
		t.Errorf("experts of two dtypes: found %v", err)
	}
}

// TestWanRequests checks the arguments.
func TestWanRequests(t *testing.T) {
	number := func(v float64) *float64 { return &v }
	long := strings.Repeat("many words and no end ", 40)
	for _, tc := range []struct {
		name, model string
		edit        func(r *precast.Request)
		want        string // part of the error, or all warnings; none where the request is good
	}{
		{"good", "wan22-t2v", func(*precast.Request) {}, ""},
		{"one frame", "tp-wan", func(r *precast.Request) { r.NumFrames = 1 }, ""},
		{"second guidance", "wan22-t2v", func(r *precast.Request) { r.GuidanceScale2 = number(2) }, ""},
		{"rounded frames", "tp-wan", func(r *precast.Request) { r.NumFrames = 6 }, "num_frames: 6 is not one more than a multiple of 4, taken as 5"},
		{"few frames", "tp-wan", func(r *precast.Request) { r.NumFrames = 3 }, "num_frames: 3 is not one more than a multiple of 4, taken as 1"},
		{"negative frames", "tp-wan", func(r *precast.Request) { r.NumFrames = -1 }, "num_frames: found -1, wanted one more than a multiple of 4 from 1 to 16381"},
		{"frames past the positions", "tp-wan", func(r *precast.Request) { r.NumFrames = 16381 }, "num_frames: gives 4096 positions, and the transformer has 1024 (rope_max_seq_len)"},
		{"absurd frames", "tp-wan", func(r *precast.Request) { r.NumFrames = math.MaxInt }, "num_frames: found 9223372036854775805, wanted one more than a multiple of 4"},
		{"height", "tp-wan", func(r *precast.Request) { r.Height = 40 }, "height: found 40, wanted a multiple of 16 from 16 to 16384; the nearest is 48"},
		{"width", "tp-wan", func(r *precast.Request) { r.Width = -16 }, "width: found -16, wanted a multiple of 16"},
		{"second guidance for one expert", "tp-wan", func(r *precast.Request) { r.GuidanceScale2 = number(2) }, "guidance_scale_2: given, but this checkpoint has one expert: boundary_ratio is null"},
		{
			"second guidance without the first", "wan22-t2v", func(r *precast.Request) { r.GuidanceScale, r.GuidanceScale2 = number(1), number(2) },
			"guidance_scale_2 has no effect: guidance_scale is 1; give one above 1",
		},
		{"guidance", "wan22-t2v", func(r *precast.Request) { r.GuidanceScale2 = number(math.Inf(1)) }, "guidance_scale_2: found +Inf, wanted a finite number"},
		{
			"negative prompt without guidance", "tp-wan", func(r *precast.Request) { r.GuidanceScale, r.NegativePrompt = number(0), []string{"x"} },
			"negative_prompt has no effect: guidance_scale is 0; give one above 1",
		},
		{"length", "tp-wan", func(r *precast.Request) { r.MaxSequenceLength = 2049 }, "max_sequence_length: found 2049, wanted 1 to 2048"},
		{"no length", "tp-wan", func(r *precast.Request) { r.MaxSequenceLength = -1 }, "max_sequence_length: found -1, wanted 1 to 2048"},
		{"second prompt", "tp-wan", func(r *precast.Request) { r.Prompt2 = []string{"x"} }, "prompt_2: WanPipeline has no such argument"},
		{"sigmas", "tp-wan", func(r *precast.Request) { r.Sigmas = []float64{1, 0.5} }, "sigmas: WanPipeline has no such argument"},
		{"image", "tp-wan", func(r *precast.Request) { r.Image = &precast.Image{Height: 1, Width: 1, RGB: make([]byte, 3)} }, "image: WanPipeline has no such argument"},
		{"latents", "tp-wan", func(r *precast.Request) { h := floatTensor(1, 16, 1, 4, 6); r.Latents = &h }, "latents: found (Float32)[1, 16, 1, 4, 6], wanted float32 [1 16 2 4 6]"},
		{"no steps", "tp-wan", func(r *precast.Request) { r.NumInferenceSteps = -1 }, "num_inference_steps: found -1, wanted 1 or more"},
		{"prompt that is cut", "tp-wan", func(r *precast.Request) { r.Prompt = []string{long} }, ""},
		{"embeddings of another length", "tp-wan", func(r *precast.Request) {
			r.Prompt, r.GuidanceScale, r.PromptEmbeds = nil, number(1), map[string]precast.HostTensor{"prompt_embeds": floatTensor(1, 17, 40)}
		}, "prompt_embeds: prompt_embeds is (Float32)[1, 17, 40], wanted float32 [1 prompts][16 40]"},
		{"embeddings without the negative", "tp-wan", func(r *precast.Request) {
			r.Prompt, r.PromptEmbeds = nil, map[string]precast.HostTensor{"prompt_embeds": floatTensor(1, 16, 40)}
		}, "negative_prompt_embeds is missing"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := openPipeline(t, carriedModel(t, tc.model), precast.Config{Backend: "go", NoCache: true})
			r := wanRequest()
			tc.edit(r)
			found := ""
			if err := p.Check(r); err != nil {
				found = err.Error()
			} else if tc.want != "" {
				// Check is silent; what Denoise warns of comes before any work.
				var warnings []string
				r.Warn = func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
				ctx, cancel := context.WithCancel(context.Background())
				cancel()
				if _, _, err := p.Denoise(ctx, r); err == nil {
					t.Error("a cancelled run made latents")
				}
				found = strings.Join(warnings, "\n")
				if found != tc.want {
					t.Errorf("found warnings %q", found)
				}
			}
			if !strings.Contains(found, tc.want) || tc.want == "" && found != "" {
				t.Errorf("found  %q\nwanted %q", found, tc.want)
			}
		})
	}
}

// TestWanCounts: a video of another length has the decoder's programs, and with no cache at all nothing but the denoiser and small programs is
// compiled for it.
func TestWanCounts(t *testing.T) {
	p := openPipeline(t, carriedModel(t, "tp-wan"), precast.Config{Backend: "go", NoCache: true})
	generate := func(frames int) map[string]int64 {
		t.Helper()
		r := wanRequest()
		r.NumFrames = frames
		out, err := p.Generate(t.Context(), r)
		must(t, err)
		if out.Frames != frames || len(out.Images) != frames {
			t.Errorf("%d pictures in videos of %d frames, wanted %d", len(out.Images), out.Frames, frames)
		}
		counts := map[string]int64{}
		for name, c := range p.Stats().Components {
			counts[name] = int64(c.Counts["trace"])
		}
		return counts
	}
	generate(5)
	counts := generate(13)
	for name, want := range map[string]int64{"text_encoder": 1, "transformer": 2, "vae.decoder": 1, "vae.decoder_later": 1} {
		if counts[name] != want {
			t.Errorf("%s was traced %d times, wanted %d", name, counts[name], want)
		}
	}
}
