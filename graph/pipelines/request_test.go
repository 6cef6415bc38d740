package pipelines

import (
	"fmt"
	"math"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"precast/graph/checkpoint"
)

// openPipeline opens one of the pipelines in tests/testdata.
func openPipeline(t *testing.T, name, override string) Pipeline {
	t.Helper()
	ck, err := checkpoint.Open(filepath.Join("..", "..", "tests", "testdata", "tiny", name, "model"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ck.Close() })
	p, err := New(ck, Options{DType: float32Type, Scheduler: override})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// request is a request that every pipeline takes, with changes.
func request(edit func(r *Request)) *Request {
	r := &Request{Prompt: []string{"a cat"}, Height: 64, Width: 96, NumInferenceSteps: 4, NumImagesPerPrompt: 1}
	if edit != nil {
		edit(r)
	}
	return r
}

func TestRequestErrors(t *testing.T) {
	sd, flux := openPipeline(t, "sd15", ""), openPipeline(t, "flux1-dev", "")
	ancestral := openPipeline(t, "sd15", "EulerAncestralDiscreteScheduler")
	inf := math.Inf(1)
	for _, tc := range []struct {
		name string
		p    Pipeline
		edit func(r *Request)
		want []string // parts of the error; none where the request is good
	}{
		{"good", sd, nil, nil},
		{"good", flux, nil, nil},
		{"empty prompt", sd, func(r *Request) { r.Prompt = []string{""} }, nil},
		{"no prompt", sd, func(r *Request) { r.Prompt = nil }, []string{"prompt: none given; give --prompt TEXT"}},
		{"no prompt", flux, func(r *Request) { r.Prompt = nil }, []string{"prompt: none given"}},
		{"not UTF-8", sd, func(r *Request) { r.Prompt = []string{"a", "b\xff"} }, []string{`prompt: text 1 is not valid UTF-8 ("b\xff")`}},
		{"negative not UTF-8", sd, func(r *Request) { r.NegativePrompt = []string{"\xc3"} }, []string{"negative_prompt: text 0 is not valid UTF-8"}},
		{"second not UTF-8", flux, func(r *Request) { r.Prompt2 = []string{"\xc3"} }, []string{"prompt_2: text 0 is not valid UTF-8"}},
		{"one negative for all", sd, func(r *Request) { r.Prompt, r.NegativePrompt = []string{"a", "b", "c"}, []string{"n"} }, nil},
		{
			"negatives for some", sd, func(r *Request) { r.Prompt, r.NegativePrompt = []string{"a", "b", "c"}, []string{"n", "m"} },
			[]string{"negative_prompt: 2 texts for 3 prompts; give one for all or one a prompt"},
		},
		{"seconds for some", flux, func(r *Request) { r.Prompt2 = []string{"n", "m"} }, []string{"prompt_2: 2 texts for 1 prompts"}},
		{"negative steps", sd, func(r *Request) { r.NumInferenceSteps = -1 }, []string{"num_inference_steps: found -1, wanted 1 or more"}},
		{"no pictures", sd, func(r *Request) { r.NumImagesPerPrompt = 0 }, []string{"num_images_per_prompt: found 0, wanted 1 to 1024"}},
		{"negative clip skip", sd, func(r *Request) { r.ClipSkip = -1 }, []string{"clip_skip: found -1, wanted 0 or more"}},
		{"clip skip", sd, func(r *Request) { r.ClipSkip = 100 }, []string{"clip_skip: found 100, wanted less than the text encoder's"}},
		{"guidance NaN", sd, func(r *Request) { r.GuidanceScale = ptr(math.NaN()) }, []string{"guidance_scale: found NaN, wanted a finite number"}},
		{"guidance infinite", flux, func(r *Request) { r.GuidanceScale = ptr(-inf) }, []string{"guidance_scale: found -Inf, wanted a finite number"}},
		{"true CFG infinite", flux, func(r *Request) { r.TrueCFGScale = ptr(inf) }, []string{"true_cfg_scale: found +Inf"}},
		{"rescale NaN", sd, func(r *Request) { r.GuidanceRescale = math.NaN() }, []string{"guidance_rescale: found NaN"}},
		{"eta", sd, func(r *Request) { r.Eta = 1.5 }, []string{"eta: found 1.5, wanted 0 to 1"}},
		{"eta NaN", sd, func(r *Request) { r.Eta = math.NaN() }, []string{"eta: found NaN"}},
		{"sigmas", flux, func(r *Request) { r.Sigmas = []float64{1, inf} }, []string{"sigmas: found +Inf"}},
		{"timesteps", sd, func(r *Request) { r.Timesteps = []float64{math.NaN()} }, []string{"timesteps: found NaN"}},
		{"sequence", flux, func(r *Request) { r.MaxSequenceLength = 513 }, []string{"max_sequence_length: found 513, wanted 1 to 512"}},
		{"negative sequence", flux, func(r *Request) { r.MaxSequenceLength = -1 }, []string{"max_sequence_length: found -1"}},
		{
			"arguments of others", flux, func(r *Request) { r.ClipSkip, r.GuidanceRescale, r.Eta, r.Timesteps = 1, 0.5, 0.5, []float64{1} },
			[]string{"clip_skip: FluxPipeline has no", "guidance_rescale: FluxPipeline has no", "eta: FluxPipeline has no", "timesteps: FluxPipeline has no"},
		},
		{
			"arguments of others", sd, func(r *Request) { r.MaxSequenceLength, r.TrueCFGScale, r.Prompt2 = 77, ptr(2.0), []string{"x"} },
			[]string{"max_sequence_length: StableDiffusionPipeline has no", "true_cfg_scale: StableDiffusionPipeline has no", "prompt_2: StableDiffusionPipeline has no"},
		},
		{"latents", sd, func(r *Request) { r.Latents = &HostTensor{Shape: f32(1, 4, 8, 12)} }, nil},
		{
			"latents of another size", sd, func(r *Request) { r.Latents = &HostTensor{Shape: f32(1, 4, 12, 8)} },
			[]string{"latents: found (Float32)[1, 4, 12, 8], wanted float32 [1 4 8 12]"},
		},
		{"packed latents", flux, func(r *Request) { r.Latents = &HostTensor{Shape: f32(1, 24, 32)} }, nil},
		{
			"unpacked latents", flux, func(r *Request) { r.Latents = &HostTensor{Shape: f32(1, 8, 8, 12)} },
			[]string{"latents: found (Float32)[1, 8, 8, 12], wanted float32 [1 24 32]"},
		},
		{"latents in another dtype", flux, func(r *Request) { r.Latents = &HostTensor{Shape: shape(int32Type, 1, 24, 32)} }, []string{"latents: found (Int32)"}},
		{"step noise", ancestral, func(r *Request) { r.StepNoise = &HostTensor{Shape: f32(4, 1, 4, 8, 12)} }, nil},
		{"step noise too short", ancestral, func(r *Request) { r.StepNoise = &HostTensor{Shape: f32(1, 1, 4, 8, 12)} }, []string{"step_noise: holds noise for 1 steps"}},
		{"step noise without an axis", ancestral, func(r *Request) { r.StepNoise = &HostTensor{Shape: f32(4, 4, 8, 12)} }, []string{"step_noise: found"}},
		{
			"several", sd, func(r *Request) { r.NumInferenceSteps, r.Eta, r.Height = -5, 2, 65 },
			[]string{"num_inference_steps: found -5", "eta: found 2", "height: found 65"},
		},
	} {
		t.Run(tc.p.Class()+"/"+tc.name, func(t *testing.T) {
			err := tc.p.Defaults(request(tc.edit))
			if len(tc.want) == 0 {
				if err != nil {
					t.Errorf("found error %v, wanted none", err)
				}
				return
			}
			for _, part := range tc.want {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("found   %v\nwanted  %s", err, part)
				}
			}
		})
	}
}

// TestRequestWarnings: arguments that change nothing are said so.
func TestRequestWarnings(t *testing.T) {
	sd, dev, schnell := openPipeline(t, "sd15", ""), openPipeline(t, "flux1-dev", ""), openPipeline(t, "flux1-schnell", "")
	for _, tc := range []struct {
		name string
		p    Pipeline
		edit func(r *Request)
		want string
	}{
		{"plain", sd, nil, ""},
		{"plain", dev, nil, ""},
		{"plain", schnell, nil, ""},
		{"zero guidance", schnell, func(r *Request) { r.GuidanceScale = ptr(0.0) }, ""},
		{"guidance", dev, func(r *Request) { r.GuidanceScale = ptr(2.0) }, ""},
		{"guidance", schnell, func(r *Request) { r.GuidanceScale = ptr(2.0) }, "guidance_scale has no effect"},
		{"negative", dev, func(r *Request) { r.NegativePrompt = []string{"x"} }, "negative_prompt has no effect: true_cfg_scale is 1"},
		{"true CFG", dev, func(r *Request) { r.TrueCFGScale = ptr(4.0) }, "true_cfg_scale has no effect without negative_prompt"},
		{"both", dev, func(r *Request) { r.TrueCFGScale, r.NegativePrompt = ptr(4.0), []string{""} }, ""},
		{"negative", sd, func(r *Request) { r.NegativePrompt = []string{"x"} }, ""},
		{"step noise", sd, func(r *Request) { r.StepNoise = &HostTensor{Shape: f32(1, 1, 4, 8, 12)} }, "step_noise has no effect: this scheduler draws no noise"},
		{"low guidance", sd, func(r *Request) { r.NegativePrompt, r.GuidanceScale = []string{"x"}, ptr(1.0) }, "negative_prompt has no effect: guidance_scale is 1"},
	} {
		t.Run(tc.p.Class()+"/"+tc.name, func(t *testing.T) {
			var warnings []string
			r := request(tc.edit)
			r.Warn = func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
			if err := tc.p.Defaults(r); err != nil {
				t.Fatal(err)
			}
			got := strings.Join(warnings, "\n")
			if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
				t.Errorf("found warnings %q, wanted %q", got, tc.want)
			}
		})
	}
}

// TestDefaults has what diffusers takes where nothing is given.
func TestDefaults(t *testing.T) {
	for _, tc := range []struct {
		name                         string
		height, width, steps, tokens int
		guidance                     float64
	}{
		{"sd15", 64, 64, 50, 0, 7.5},
		{"flux1-dev", 1024, 1024, 28, 512, 3.5},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := openPipeline(t, tc.name, "")
			r := &Request{Prompt: []string{"a", "b"}, NumImagesPerPrompt: 3}
			if err := p.Defaults(r); err != nil {
				t.Fatal(err)
			}
			if r.Height != tc.height || r.Width != tc.width || r.NumInferenceSteps != tc.steps || *r.GuidanceScale != tc.guidance {
				t.Errorf("found %dx%d, %d steps, guidance %g; wanted %+v", r.Height, r.Width, r.NumInferenceSteps, *r.GuidanceScale, tc)
			}
			if want := (Sizes{Batch: 6, Height: tc.height, Width: tc.width, MaxSequenceLength: tc.tokens}); p.Sizes(r) != want {
				t.Errorf("found sizes %v, wanted %v", p.Sizes(r), want)
			}
		})
	}
}

// TestSizes has the nearest sizes: 8 pixels a latent for Stable Diffusion, 16 a token for FLUX.1.
func TestSizes(t *testing.T) {
	sd, flux := openPipeline(t, "sd15", "").(*sdPipeline), openPipeline(t, "flux1-dev", "").(*fluxPipeline)
	for _, tc := range []struct {
		p interface {
			Class() string
			checkSizes(s Sizes) error
		}
		height, width int
		want          string // the end of the error; empty where the size is good
	}{
		{sd, 8, 16384, ""},
		{flux, 16, 16384, ""},
		{sd, 0, 64, "height: found 0, wanted a multiple of 8 from 8 to 16384; the nearest is 8"},
		{sd, -512, 64, "height: found -512, wanted a multiple of 8 from 8 to 16384; the nearest is 8"},
		{sd, 7, 64, "the nearest is 8"},
		{sd, 64, 67, "width: found 67, wanted a multiple of 8 from 8 to 16384; the nearest is 64"},
		{sd, 64, 68, "the nearest is 72"},
		{sd, 16385, 64, "the nearest is 16384"},
		{sd, math.MaxInt, 64, "the nearest is 16384"},
		{sd, math.MinInt, 64, "the nearest is 8"},
		{flux, 8, 64, "height: found 8, wanted a multiple of 16 from 16 to 16384; the nearest is 16"},
		{flux, 1000, 64, "the nearest is 1008"},
		{flux, 999, 64, "the nearest is 992"},
		{flux, 1080, 1920, "height: found 1080, wanted a multiple of 16 from 16 to 16384; the nearest is 1088"},
	} {
		t.Run(fmt.Sprintf("%s/%dx%d", tc.p.Class(), tc.height, tc.width), func(t *testing.T) {
			err := tc.p.checkSizes(Sizes{Batch: 1, Height: tc.height, Width: tc.width, MaxSequenceLength: 512})
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("found error %v, wanted none", err)
			case tc.want != "" && (err == nil || !strings.HasSuffix(err.Error(), tc.want)):
				t.Errorf("found   %v\nwanted  %s", err, tc.want)
			}
		})
	}
	for batch, good := range map[int]bool{-1: false, 0: false, 1: true, 1024: true, 1025: false} {
		err := sd.checkSizes(Sizes{Batch: batch, Height: 64, Width: 64})
		if (err == nil) != good {
			t.Errorf("batch %d: found error %v", batch, err)
		}
	}
	// Both sides are reported at once.
	err := sd.checkSizes(Sizes{Batch: 1, Height: 1, Width: 1})
	if err == nil || !strings.Contains(err.Error(), "height: ") || !strings.Contains(err.Error(), "width: ") {
		t.Errorf("found %v, wanted complaints about height and width", err)
	}
}

// TestCheckSideLeast: a network that halves its sides has a least size, which may be above the largest.
func TestCheckSideLeast(t *testing.T) {
	for _, tc := range []struct {
		v, multiple, least int
		want               string
	}{
		{32, 8, 32, ""},
		{24, 8, 32, "height: found 24, wanted a multiple of 8 from 32 to 16384; the nearest is 32"},
		{33, 8, 32, "height: found 33, wanted a multiple of 8 from 32 to 16384; the nearest is 32"},
		{64, 8, 1 << 18, "no size up to 16384 will do"},
		{16384, 24, 24, "height: found 16384, wanted a multiple of 24 from 24 to 16368; the nearest is 16368"},
	} {
		err := checkSide("height", tc.v, tc.multiple, tc.least)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%d: found %v, wanted %q", tc.v, err, tc.want)
		}
	}
}

// TestDescribe: what replaces the scheduler's spacing is among a picture's parameters, and its length is the number of steps.
func TestDescribe(t *testing.T) {
	for _, tc := range []struct {
		name, pipeline, scheduler string
		edit                      func(r *Request)
		steps                     int
		key                       string
		value                     any
	}{
		{"neither", "flux1-dev", "", nil, 4, "sigmas", nil},
		{"sigmas", "flux1-dev", "", func(r *Request) { r.NumInferenceSteps, r.Sigmas = 0, []float64{1, 0.5} }, 2, "sigmas", []float64{1, 0.5}},
		{"timesteps", "sd15", "EulerDiscreteScheduler", func(r *Request) { r.NumInferenceSteps, r.Timesteps = 0, []float64{900, 500, 1} }, 3, "timesteps", []float64{900, 500, 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, r := openPipeline(t, tc.pipeline, tc.scheduler), request(tc.edit)
			if err := p.Defaults(r); err != nil {
				t.Fatal(err)
			}
			got := Describe(p, r)
			if len(got) != 1 || got[0].NumInferenceSteps != tc.steps || !reflect.DeepEqual(got[0].Extra[tc.key], tc.value) {
				t.Errorf("found %+v, wanted one with %d steps and %s %v", got, tc.steps, tc.key, tc.value)
			}
		})
	}
}
