// Package pipelines knows how diffusers' pipelines put their networks together: which components a class has, which programs a set of sizes
// needs, and the recipe from a prompt to decoded pictures.
//
// A recipe runs against an Executor, which compiles (or finds) each Program and holds the tensors; nothing here knows a backend.
// The step loop is host code: a step is two or three programs that take every scalar as an argument, so another prompt, seed, guidance
// scale or number of steps needs no other program.
//
// To add a pipeline: one file with a type that implements Pipeline, and its class name in the table classes.
package pipelines

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/scheduler"
	"precast/graph/trace"
)

// Sizes are the static sizes that programs are compiled for: everything about a request that is part of a shape.
type Sizes struct {
	// Batch is the number of pictures made together: prompts times images per prompt.
	Batch int `json:"batch"`
	// Height and Width are in pixels.
	Height int `json:"height"`
	Width  int `json:"width"`
	// Frames is the length of a video; 0 where the pipeline makes pictures.
	Frames int `json:"frames,omitempty"`
	// MaxSequenceLength is the number of text tokens of the encoder that has a choice (T5 in FLUX.1); 0 where the pipeline has none.
	MaxSequenceLength int `json:"max_sequence_length,omitempty"`
	// VAETiling tells that the autoencoder works on tiles, which bounds its memory.
	VAETiling bool `json:"vae_tiling,omitempty"`
	// GuidanceBatch is "one" where the two halves of classifier-free guidance are one batch; empty where they are two calls.
	GuidanceBatch string `json:"guidance_batch,omitempty"`
}

// String is the sizes as users write them: "1x512x512", and the text length where there is one.
func (s Sizes) String() string {
	t := fmt.Sprintf("batch %d, %dx%d (height x width)", s.Batch, s.Height, s.Width)
	if s.Frames > 0 {
		t += fmt.Sprintf(", %d frames", s.Frames)
	}
	if s.MaxSequenceLength > 0 {
		t += fmt.Sprintf(", %d text tokens", s.MaxSequenceLength)
	}
	if s.VAETiling {
		t += ", VAE tiling"
	}
	if s.GuidanceBatch == guidanceOne {
		t += ", guidance in one batch"
	}
	return t
}

// Stage is the part of a run that a program belongs to.
type Stage int

// The stages in the order in which they run.
const (
	StageEncode  Stage = iota // prompts to embeddings
	StageDenoise              // embeddings and noise to latents
	StageDecode               // latents to pictures
)

func (s Stage) String() string { return [...]string{"encode", "denoise", "decode"}[s] }

// Program is one compiled unit of a pipeline: a network at its sizes, and whose weights it reads.
type Program struct {
	trace.Network
	// Stage is where in a run it is used.
	Stage Stage
	// Component is the checkpoint folder that the weights come from ("vae"), empty for a program without weights.
	Component string
	// Aliases are other spellings of the network's checkpoint keys that old files use.
	Aliases []checkpoint.Alias
	// Spec says every static size and choice that the network was made from; with Name it identifies the program within its pipeline.
	Spec string
	// Donate names inputs whose memory the program may reuse for its results.
	Donate []string
}

// ID names the program within its pipeline.
func (p *Program) ID() string { return p.Name + "[" + p.Spec + "]" }

// Tensor is a value held by an Executor.
type Tensor interface {
	Shape() graph.Shape
	// Read waits for the value and returns it: little-endian elements, row-major.
	Read(ctx context.Context) ([]byte, error)
	// Free gives the memory back; a second call does nothing.
	Free()
}

// Executor runs programs.
type Executor interface {
	// Run executes p on inputs by name and returns its results by name. It returns before the values are ready. Donated inputs are freed.
	Run(ctx context.Context, p *Program, in map[string]Tensor) (map[string]Tensor, error)
	// RunAll is Run on several inputs, which may share values that are not donated; result k is that of in[k]. It may take less than one Run after the other.
	RunAll(ctx context.Context, p *Program, in []map[string]Tensor) ([]map[string]Tensor, error)
	// Put copies data (little-endian, row-major) to the device.
	Put(shape graph.Shape, data []byte) (Tensor, error)
	// Release tells that a component's programs are not needed again in this request.
	Release(component string)
}

// Pipeline is one pipeline of a checkpoint. A run is Encode, Denoise, Decode (see Generate); each stage can be had alone.
type Pipeline interface {
	// Class is the class name in model_index.json; Scheduler is that of the scheduler.
	Class() string
	Scheduler() string
	// Defaults fills in what the request leaves open and checks every argument and the sizes; problems name the argument, and the nearest size
	// that the model can do. It does no work.
	Defaults(req *Request) error
	// Sizes are the static sizes that a request (with its defaults filled in) needs.
	Sizes(req *Request) Sizes
	// Programs lists what has to be compiled for a request (with its defaults filled in), in order of use.
	Programs(req *Request) ([]*Program, error)
	// Prepare opens what Encode needs besides programs and weights, so that a missing tokenizer is found before any work, and a text of the
	// request (with its defaults filled in) that the tokenizer or its text encoder can't take.
	Prepare(req *Request) error
	// Encode turns the request's texts into embeddings, one row a prompt; those of the negative texts are there where the request guides.
	Encode(ctx context.Context, ex Executor, req *Request) (Embeds, error)
	// Denoise makes latents: what diffusers returns for output_type="latent".
	Denoise(ctx context.Context, ex Executor, req *Request, e Embeds) (Tensor, error)
	// Decode makes the pictures of latents, which it frees. The frames of a video follow one another.
	Decode(ctx context.Context, ex Executor, req *Request, latents Tensor) ([]Image, error)
	// Extra are the parameters of picture k that not every pipeline has.
	Extra(req *Request, k int) map[string]any
}

// Generate runs all stages of a request (with its defaults filled in), letting go of each component behind it.
func Generate(ctx context.Context, ex Executor, p Pipeline, r *Request) (*Output, error) {
	programs, err := p.Programs(r)
	if err != nil {
		return nil, err
	}
	release := func(stage Stage) {
		for _, q := range programs {
			later := slices.ContainsFunc(programs, func(o *Program) bool { return o.Component == q.Component && o.Stage > stage })
			if q.Stage == stage && q.Component != "" && !later {
				ex.Release(q.Component)
			}
		}
	}
	e, err := EncodeOnce(ctx, ex, p, r)
	if err != nil {
		return nil, err
	}
	release(StageEncode)
	latents, err := p.Denoise(ctx, ex, r, e)
	if err != nil {
		return nil, err
	}
	release(StageDenoise)
	images, err := p.Decode(ctx, ex, r, latents)
	release(StageDecode)
	if err != nil {
		return nil, err
	}
	return NewOutput(p, r, images), nil
}

// NewOutput are decoded pictures with what made them.
func NewOutput(p Pipeline, r *Request, images []Image) *Output {
	out := &Output{Images: images, Frames: p.Sizes(r).Frames, Params: Describe(p, r)}
	if v, ok := p.(interface{ FPS() float64 }); ok {
		out.FPS = v.FPS()
	}
	return out
}

// EncodeOnce is Encode, or the embeddings that the request brings along.
func EncodeOnce(ctx context.Context, ex Executor, p Pipeline, r *Request) (Embeds, error) {
	e := r.PromptEmbeds
	if e == nil {
		var err error
		if e, err = p.Encode(ctx, ex, r); err != nil {
			return nil, err
		}
	}
	if r.Encoded != nil {
		r.Encoded(e)
	}
	return e, nil
}

// Classes are the pipeline classes that are supported, sorted.
func Classes() []string { return slices.Sorted(maps.Keys(classes)) }

type class struct {
	open func(*checkpoint.Checkpoint, Options) (Pipeline, error)
	// makes says what of what, the usual case first.
	makes []string
}

const (
	textToImage  = "text to image"
	imageToImage = "image to image"
	textToVideo  = "text to video"
)

var classes = map[string]class{
	"Flux2KleinPipeline":        {newFlux2(flux2Klein), []string{textToImage}},
	"Flux2Pipeline":             {newFlux2(flux2Dev), []string{textToImage}},
	"FluxPipeline":              {newFlux, []string{textToImage, imageToImage}},
	"QwenImagePipeline":         {newQwenImage, []string{textToImage}},
	"StableDiffusion3Pipeline":  {newStableDiffusion3, []string{textToImage}},
	"StableDiffusionPipeline":   {newStableDiffusion, []string{textToImage, imageToImage}},
	"StableDiffusionXLPipeline": {newStableDiffusionXL, []string{textToImage, imageToImage}},
	"WanPipeline":               {newWan, []string{textToVideo}},
	"ZImagePipeline":            {newZImage, []string{textToImage}},
}

// Makes says what a pipeline class makes: "text to image", "image to image", "text to video".
func Makes(name string) []string { return classes[name].makes }

// Options are choices that hold for all of a pipeline's programs.
type Options struct {
	// DType is the dtype that the networks compute in; DTypes has that of components that differ.
	DType  graph.DType
	DTypes map[string]graph.DType
	// Scheduler replaces the checkpoint's scheduler: CLASS[,key=value...]; empty keeps it.
	Scheduler string
}

// DTypeFor is the dtype that a component computes in.
func (o Options) DTypeFor(component string) graph.DType {
	if d, ok := o.DTypes[component]; ok {
		return d
	}
	return o.DType
}

// New makes the pipeline that the checkpoint's model_index.json names. Problems in configs are reported all at once, each with file and key.
func New(ck *checkpoint.Checkpoint, o Options) (Pipeline, error) {
	class := ck.Class()
	known, ok := classes[class]
	if !ok {
		return nil, fmt.Errorf("%s: pipeline class %q is not supported; known are %s", ck.Path("model_index.json"), class, strings.Join(Classes(), ", "))
	}
	return known.open(ck, o)
}

// componentConfig returns the parsed config of a component that must be there with one of the given classes.
func componentConfig(ck *checkpoint.Checkpoint, name string, known ...string) (*checkpoint.Config, error) {
	comp, err := ck.Component(name)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(known, comp.Class) {
		return nil, fmt.Errorf("%s: component %q has class %q; %s knows %s", ck.Path("model_index.json"), name, comp.Class, ck.Class(), strings.Join(known, ", "))
	}
	return comp.Config()
}

// newScheduler makes the checkpoint's scheduler or the one that the options ask for in its place.
func newScheduler(ck *checkpoint.Checkpoint, override string, adjust func(*checkpoint.Config)) (*scheduler.Scheduler, error) {
	comp, err := ck.Component("scheduler")
	if err != nil {
		return nil, err
	}
	if known := scheduler.Known(); override == "" && !slices.Contains(known, comp.Class) {
		return nil, fmt.Errorf("%s: component \"scheduler\" has class %q; wanted one of %s; --scheduler takes another in its place",
			ck.Path("model_index.json"), comp.Class, strings.Join(known, ", "))
	}
	cfg, err := comp.Config()
	if err != nil {
		return nil, err
	}
	if adjust != nil {
		adjust(cfg)
	}
	if override != "" {
		return scheduler.Parse(override, cfg)
	}
	if own := cfg.Class(); own != "" && own != comp.Class {
		ck.Note("%s names %s and model_index.json %s: the second is taken, as in diffusers; --scheduler %s, or that class in model_index.json, gives the first",
			cfg.File(), own, comp.Class, own)
	}
	return scheduler.New(comp.Class, cfg)
}
