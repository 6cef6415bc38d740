package pipelines

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"precast/graph"
)

// Request holds the arguments of a pipeline's __call__, by their names in diffusers. A nil or zero field takes the pipeline's default.
type Request struct {
	// Prompt has one text a picture; Prompt2 and Prompt3 go to the second and third text encoder where they differ.
	Prompt, Prompt2, Prompt3 []string
	// NegativePrompt is empty (not given), one text for all prompts, or one a prompt.
	NegativePrompt, NegativePrompt2, NegativePrompt3 []string
	// PromptEmbeds replaces the text encoders by what they gave an earlier request; Prompt may then be empty, or say what was encoded.
	PromptEmbeds Embeds
	// Height and Width are in pixels.
	Height, Width int
	// NumFrames is the length of a video.
	NumFrames         int
	NumInferenceSteps int
	// Sigmas and Timesteps replace the scheduler's own spacing.
	Sigmas, Timesteps []float64
	GuidanceScale     *float64
	// GuidanceScale2 is that of the second expert (Wan 2.2).
	GuidanceScale2  *float64
	TrueCFGScale    *float64
	GuidanceRescale float64
	// CFGNormalization and CFGTruncation are Z-Image's.
	CFGNormalization  bool
	CFGTruncation     *float64
	Eta               float64
	ClipSkip          int
	MaxSequenceLength int
	// SDXL's micro-conditioning, each (height, width) or (top, left).
	OriginalSize, CropsCoordsTopLeft, TargetSize                         *[2]int
	NegativeOriginalSize, NegativeCropsCoordsTopLeft, NegativeTargetSize *[2]int
	// NumImagesPerPrompt pictures (videos) are made of each prompt.
	NumImagesPerPrompt int
	// Image is the picture to start from, with Strength between 0 (as it is) and 1 (noise alone).
	Image    *Image
	Strength *float64
	// VAETiling decodes (and encodes) in tiles, as diffusers' enable_tiling. What enable_slicing does, a picture at a time, is always done.
	VAETiling bool
	// GuidanceBatch says how the denoiser computes the two halves of classifier-free guidance: "one" joins them in one batch, "two" calls it twice;
	// empty and "auto" are two calls.
	GuidanceBatch string
	// Seed of the first picture; picture k has seed Seed+k (see Noise).
	Seed uint64
	// Latents replaces the start noise; it means what diffusers' latents= argument means for the pipeline.
	Latents *HostTensor
	// StepNoise gives the noise of stochastic schedulers: one more leading axis, in order of use.
	StepNoise *HostTensor

	// Progress is called after each step.
	Progress func(step, steps int)
	// Encoded, when set, is given the embeddings before they are used.
	Encoded func(Embeds)
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
	// Frames is the length of a video, whose frames follow one another in Images; 0 for pictures.
	Frames int
	// FPS is the number of frames a second that a video is meant for; 0 leaves it to whoever writes it.
	FPS float64
	// Params are the parameters that made each picture, for the file's metadata.
	Params []Params
}

// Params describes how one picture was made. Scheduler is the class, with the options that a run gave it in place of the checkpoint's.
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

// Prompts is the number of prompts.
func (r *Request) Prompts() int {
	if r.PromptEmbeds != nil {
		return r.PromptEmbeds.rows()
	}
	return len(r.Prompt)
}

// Batch is the number of pictures.
func (r *Request) Batch() int { return r.Prompts() * max(1, r.NumImagesPerPrompt) }

// arguments has the arguments that not every pipeline takes, by their names in diffusers, and whether a request gives them.
var arguments = []struct {
	name  string
	given func(r *Request) bool
}{
	{"prompt_2", func(r *Request) bool { return len(r.Prompt2) > 0 }},
	{"prompt_3", func(r *Request) bool { return len(r.Prompt3) > 0 }},
	{"negative_prompt", func(r *Request) bool { return len(r.NegativePrompt) > 0 }},
	{"negative_prompt_2", func(r *Request) bool { return len(r.NegativePrompt2) > 0 }},
	{"negative_prompt_3", func(r *Request) bool { return len(r.NegativePrompt3) > 0 }},
	{"num_frames", func(r *Request) bool { return r.NumFrames != 0 }},
	{"sigmas", func(r *Request) bool { return len(r.Sigmas) > 0 }},
	{"timesteps", func(r *Request) bool { return len(r.Timesteps) > 0 }},
	{"guidance_scale_2", func(r *Request) bool { return r.GuidanceScale2 != nil }},
	{"true_cfg_scale", func(r *Request) bool { return r.TrueCFGScale != nil }},
	{"guidance_rescale", func(r *Request) bool { return r.GuidanceRescale != 0 }},
	{"cfg_normalization", func(r *Request) bool { return r.CFGNormalization }},
	{"cfg_truncation", func(r *Request) bool { return r.CFGTruncation != nil }},
	{"eta", func(r *Request) bool { return r.Eta != 0 }},
	{"clip_skip", func(r *Request) bool { return r.ClipSkip != 0 }},
	{"max_sequence_length", func(r *Request) bool { return r.MaxSequenceLength != 0 }},
	{"original_size", func(r *Request) bool { return r.OriginalSize != nil }},
	{"crops_coords_top_left", func(r *Request) bool { return r.CropsCoordsTopLeft != nil }},
	{"target_size", func(r *Request) bool { return r.TargetSize != nil }},
	{"negative_original_size", func(r *Request) bool { return r.NegativeOriginalSize != nil }},
	{"negative_crops_coords_top_left", func(r *Request) bool { return r.NegativeCropsCoordsTopLeft != nil }},
	{"negative_target_size", func(r *Request) bool { return r.NegativeTargetSize != nil }},
	{"image", func(r *Request) bool { return r.Image != nil }},
	{"strength", func(r *Request) bool { return r.Strength != nil }},
	{"vae_tiling", func(r *Request) bool { return r.VAETiling }},
	{guidanceBatchArgument, func(r *Request) bool { return r.GuidanceBatch == guidanceOne }},
}

// refuse finds the arguments that a request gives and that the pipeline's __call__ does not have. It is called before defaults are filled in.
func refuse(r *Request, class string, has ...string) []error {
	var errs []error
	for _, a := range arguments {
		if a.given(r) && !slices.Contains(has, a.name) {
			errs = append(errs, fmt.Errorf("%s: %s has no such argument; of those that not every pipeline has it takes %s", a.name, class, strings.Join(has, ", ")))
		}
	}
	for _, name := range has {
		if !slices.ContainsFunc(arguments, func(a struct {
			name  string
			given func(r *Request) bool
		},
		) bool {
			return a.name == name
		}) {
			panic("BUG: argument " + name + " is in no table")
		}
	}
	return errs
}

// check finds what is wrong with a request whatever the pipeline.
func (r *Request) check() error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if r.PromptEmbeds != nil {
		if n := len(r.Prompt); n > 0 && n != r.Prompts() {
			add("prompt: %d texts beside prompt_embeds for %d prompts; leave them out, or give one each", n, r.Prompts())
		}
	} else if len(r.Prompt) == 0 {
		add("prompt: none given; give --prompt TEXT (an empty text is allowed)")
	}
	for _, l := range []struct {
		name string
		list []string
	}{
		{"prompt", r.Prompt},
		{"prompt_2", r.Prompt2},
		{"prompt_3", r.Prompt3},
		{"negative_prompt", r.NegativePrompt},
		{"negative_prompt_2", r.NegativePrompt2},
		{"negative_prompt_3", r.NegativePrompt3},
	} {
		for i, s := range l.list {
			if !utf8.ValidString(s) {
				add("%s: text %d is not valid UTF-8 (%q); give UTF-8 text", l.name, i, s)
			}
		}
		if n := len(l.list); n > 1 && n != r.Prompts() {
			add("%s: %d texts for %d prompts; give one for all or one a prompt", l.name, n, r.Prompts())
		}
	}
	if r.NumInferenceSteps < 1 && len(r.Sigmas) == 0 && len(r.Timesteps) == 0 {
		add("num_inference_steps: found %d, wanted 1 or more", r.NumInferenceSteps)
	}
	if r.NumImagesPerPrompt < 1 || r.NumImagesPerPrompt > maxBatch {
		// The batch is a product, which may overflow to a size that is fine.
		add("num_images_per_prompt: found %d, wanted 1 to %d", r.NumImagesPerPrompt, maxBatch)
	}
	if choices := []string{guidanceAuto, guidanceOne, guidanceTwo}; r.GuidanceBatch != "" && !slices.Contains(choices, r.GuidanceBatch) {
		add("%s: found %q, wanted one of %s", guidanceBatchArgument, r.GuidanceBatch, strings.Join(choices, ", "))
	}
	if r.ClipSkip < 0 {
		add("clip_skip: found %d, wanted 0 or more", r.ClipSkip)
	}
	finite := func(name string, v float64) {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			add("%s: found %v, wanted a finite number", name, v)
		}
	}
	for name, v := range map[string]*float64{
		"guidance_scale": r.GuidanceScale, "guidance_scale_2": r.GuidanceScale2, "true_cfg_scale": r.TrueCFGScale, "cfg_truncation": r.CFGTruncation,
	} {
		if v != nil {
			finite(name, *v)
		}
	}
	if v := r.Strength; v != nil && !(*v >= 0 && *v <= 1) {
		add("strength: found %v, wanted 0 to 1", *v)
	}
	if r.Strength != nil && r.Image == nil {
		add("strength: given without an image to start from; give --image FILE")
	}
	if v := r.Image; v != nil && (v.Height < 1 || v.Width < 1 || len(v.RGB) != 3*v.Height*v.Width) {
		add("image: found %d bytes for %dx%d, wanted height x width x 3", len(v.RGB), v.Height, v.Width)
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

func setDefault(v *int, def int) {
	if *v == 0 {
		*v = def
	}
}

func ptr[T any](v T) *T { return &v }

// stepsDefault gives a request without steps, sigmas and timesteps a number of steps.
func (r *Request) stepsDefault(n int) {
	if len(r.Sigmas) == 0 && len(r.Timesteps) == 0 {
		setDefault(&r.NumInferenceSteps, n)
	}
}

// sequenceDefault gives a request without max_sequence_length that of its embeddings, which have so many other tokens in front, or def.
func (r *Request) sequenceDefault(def, others int) {
	if r.MaxSequenceLength != 0 {
		return
	}
	r.MaxSequenceLength = def
	if d := r.PromptEmbeds["prompt_embeds"].Shape.Dimensions; len(d) == 3 && d[1] > others {
		r.MaxSequenceLength = d[1] - others
	}
}

// checkSequence checks max_sequence_length.
func checkSequence(n, most int) error {
	if n < 1 || n > most {
		return fmt.Errorf("max_sequence_length: found %d, wanted 1 to %d", n, most)
	}
	return nil
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
