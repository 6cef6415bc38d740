package pipelines

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"precast/graph"
)

// Request holds the arguments of a pipeline's __call__, by their names in diffusers. A nil or zero field takes the pipeline's default.
type Request struct {
	// Prompt has one text a picture; Prompt2 goes to the second text encoder where it differs.
	Prompt, Prompt2 []string
	// NegativePrompt is empty (not given), one text for all prompts, or one a prompt.
	NegativePrompt, NegativePrompt2 []string
	// Height and Width are in pixels.
	Height, Width     int
	NumInferenceSteps int
	// Sigmas and Timesteps replace the scheduler's own spacing.
	Sigmas, Timesteps []float64
	GuidanceScale     *float64
	TrueCFGScale      *float64
	GuidanceRescale   float64
	Eta               float64
	ClipSkip          int
	MaxSequenceLength int
	// NumImagesPerPrompt pictures are made of each prompt.
	NumImagesPerPrompt int
	// Seed of the first picture; picture k has seed Seed+k (see Noise).
	Seed uint64
	// Latents replaces the start noise; it means what diffusers' latents= argument means for the pipeline.
	Latents *HostTensor
	// StepNoise gives the noise of stochastic schedulers: one more leading axis, in order of use.
	StepNoise *HostTensor

	// Progress is called after each step.
	Progress func(step, steps int)
	// Warn is told what was changed or cut.
	Warn func(format string, args ...any)
	// Observe, when set, is given intermediate tensors by the names of the reference ("step_latents", "vae_in"): tests use it. Reading
	// them waits for the device.
	Observe func(name string, t HostTensor)
}

// HostTensor is a tensor in host memory.
type HostTensor struct {
	Shape graph.Shape
	// Data is little-endian, row-major.
	Data []byte
}

// Image is one decoded picture: values in [0, 255], height x width x 3.
type Image struct {
	Height, Width int
	RGB           []byte
}

// Output is what Generate made.
type Output struct {
	Images []Image
	// Params are the parameters that made each picture, for the file's metadata.
	Params []Params
}

// Params describes how one picture was made.
type Params struct {
	Prompt            string         `json:"prompt"`
	NegativePrompt    string         `json:"negative_prompt,omitempty"`
	Seed              *uint64        `json:"seed,omitempty"`
	Height            int            `json:"height"`
	Width             int            `json:"width"`
	NumInferenceSteps int            `json:"num_inference_steps"`
	GuidanceScale     float64        `json:"guidance_scale"`
	Scheduler         string         `json:"scheduler"`
	Pipeline          string         `json:"pipeline"`
	Extra             map[string]any `json:"extra,omitempty"`
}

func (r *Request) warn(format string, args ...any) {
	if r.Warn != nil {
		r.Warn(format, args...)
	}
}

func (r *Request) observe(name string, t HostTensor) {
	if r.Observe != nil {
		r.Observe(name, t)
	}
}

// Batch is the number of pictures.
func (r *Request) Batch() int { return len(r.Prompt) * max(1, r.NumImagesPerPrompt) }

// check finds what is wrong with a request whatever the pipeline.
func (r *Request) check() error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(r.Prompt) == 0 {
		add("prompt: none given; give --prompt TEXT (an empty text is allowed)")
	}
	for _, l := range []struct {
		name string
		list []string
	}{{"prompt", r.Prompt}, {"prompt_2", r.Prompt2}, {"negative_prompt", r.NegativePrompt}, {"negative_prompt_2", r.NegativePrompt2}} {
		for i, s := range l.list {
			if !utf8.ValidString(s) {
				add("%s: text %d is not valid UTF-8 (%q); give UTF-8 text", l.name, i, s)
			}
		}
		if n := len(l.list); n > 1 && n != len(r.Prompt) {
			add("%s: %d texts for %d prompts; give one for all or one a prompt", l.name, n, len(r.Prompt))
		}
	}
	if r.NumInferenceSteps < 1 && len(r.Sigmas) == 0 && len(r.Timesteps) == 0 {
		add("num_inference_steps: found %d, wanted 1 or more", r.NumInferenceSteps)
	}
	if r.NumImagesPerPrompt < 1 {
		add("num_images_per_prompt: found %d, wanted 1 or more", r.NumImagesPerPrompt)
	}
	if r.ClipSkip < 0 {
		add("clip_skip: found %d, wanted 0 or more", r.ClipSkip)
	}
	finite := func(name string, v float64) {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			add("%s: found %v, wanted a finite number", name, v)
		}
	}
	if r.GuidanceScale != nil {
		finite("guidance_scale", *r.GuidanceScale)
	}
	if r.TrueCFGScale != nil {
		finite("true_cfg_scale", *r.TrueCFGScale)
	}
	finite("guidance_rescale", r.GuidanceRescale)
	finite("eta", r.Eta)
	if r.Eta < 0 || r.Eta > 1 {
		add("eta: found %v, wanted 0 to 1", r.Eta)
	}
	for i, v := range r.Sigmas {
		finite("sigmas", v)
		if i > 0 && v >= r.Sigmas[i-1] {
			r.warn("sigmas are not in descending order: %g follows %g", v, r.Sigmas[i-1])
		}
	}
	for _, v := range r.Timesteps {
		finite("timesteps", v)
	}
	return errors.Join(errs...)
}

// textFor is the text of prompt i in a list that is empty, has one entry for all, or one each.
func textFor(list []string, i int) (string, bool) {
	switch {
	case len(list) == 0:
		return "", false
	case len(list) == 1:
		return list[0], true
	}
	return list[i], true
}

// checkSide checks one side of a picture: a multiple of multiple, least (which is one) or more.
func checkSide(name string, v, multiple, least int) error {
	const largest = 16384
	if v >= least && v <= largest && v%multiple == 0 {
		return nil
	}
	most := largest / multiple * multiple
	if least > most {
		return fmt.Errorf("%s: found %d, and no size up to %d will do: the model halves it until less than %d pixels are left", name, v, largest, least)
	}
	near := most
	if v < most {
		near = max((v+multiple/2)/multiple*multiple, least)
	}
	return fmt.Errorf("%s: found %d, wanted a multiple of %d from %d to %d; the nearest is %d", name, v, multiple, least, most, near)
}

func joinErrors(errs ...error) error {
	err := errors.Join(errs...)
	if err == nil {
		return nil
	}
	return errors.New(strings.TrimSpace(err.Error()))
}
