package pipelines

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/models/autoencoderkl"
	"precast/graph/models/causallm"
	"precast/graph/models/flux2"
	"precast/graph/scheduler"
	"precast/graph/tokenizer"
)

// flux2Pipeline is Flux2Pipeline and Flux2KleinPipeline (diffusers, pipelines/flux2/pipeline_flux2.py and pipeline_flux2_klein.py), text to image. dev is
// told guidance_scale, klein is guided by a second call for the empty prompt, or not at all where it is distilled.
type flux2Pipeline struct {
	flux2Class
	ck        *checkpoint.Checkpoint
	opts      Options
	distilled bool // is_distilled in model_index.json
	text      causallm.Config
	flux      flux2.Config
	vae       autoencoderkl.Config
	scheduler *scheduler.Scheduler
	tok       tokenizer.Tokenizer
}

// flux2Class has what differs between the classes.
type flux2Class struct {
	class, textEncoder string
	klein              bool
	// layers is text_encoder_out_layers: the hidden states that are put one after another for each token.
	layers []int
	// chat is what the tokenizer's template makes the text for a prompt of.
	chat func(prompt string) ([]tokenizer.Message, tokenizer.ChatOptions)
}

// flux2SystemMessage stands before each prompt of Flux2Pipeline (pipelines/flux2/system_messages.py: SYSTEM_MESSAGE, line break included).
const flux2SystemMessage = "You are an AI that reasons about image descriptions. You give structured responses focusing on object relationships, object\n" +
	"attribution and actions without speculation."

var flux2Dev = flux2Class{
	class: "Flux2Pipeline", textEncoder: "Mistral3ForConditionalGeneration", layers: []int{10, 20, 30},
	chat: func(prompt string) ([]tokenizer.Message, tokenizer.ChatOptions) {
		return []tokenizer.Message{
			{Role: "system", Blocks: []string{flux2SystemMessage}},
			// The mark of a picture would be counted against pictures that are not there.
			{Role: "user", Blocks: []string{strings.ReplaceAll(prompt, "[IMG]", "")}},
		}, tokenizer.ChatOptions{}
	},
}

var flux2Klein = flux2Class{
	class: "Flux2KleinPipeline", textEncoder: "Qwen3ForCausalLM", layers: []int{9, 18, 27}, klein: true,
	chat: func(prompt string) ([]tokenizer.Message, tokenizer.ChatOptions) {
		return []tokenizer.Message{{Role: "user", Content: prompt}}, tokenizer.ChatOptions{AddGenerationPrompt: true, EnableThinking: ptr(false)}
	},
}

func newFlux2(class flux2Class) func(*checkpoint.Checkpoint, Options) (Pipeline, error) {
	return func(ck *checkpoint.Checkpoint, o Options) (Pipeline, error) {
		p := &flux2Pipeline{flux2Class: class, ck: ck, opts: o}
		if p.klein {
			p.distilled = ck.Index().Bool("is_distilled", false)
		}
		err := joinErrors(
			ck.Index().Err(),
			parse(ck, "text_encoder", causallm.ParseConfig, &p.text, p.textEncoder),
			parse(ck, "transformer", flux2.ParseConfig, &p.flux, "Flux2Transformer2DModel"),
			parse(ck, "vae", autoencoderkl.ParseFlux2Config, &p.vae, "AutoencoderKLFlux2"),
		)
		if err != nil {
			return nil, err
		}
		if p.scheduler, err = newScheduler(ck, o.Scheduler, nil); err != nil {
			return nil, err
		}
		if _, err := p.schedule(&Request{NumInferenceSteps: 4}, 16); err != nil {
			return nil, flowFault(p, "FLUX.2", err)
		}
		if err := p.checkComponents(); err != nil {
			return nil, err
		}
		// klein's pipeline gives the transformer no guidance, whatever the config says.
		p.flux.GuidanceEmbeds = p.flux.GuidanceEmbeds && !p.klein
		return p, nil
	}
}

// checkComponents finds components that do not fit together, and a transformer that does not fit its weights.
func (p *flux2Pipeline) checkComponents() error {
	var errs []error
	if p.text.Class != p.textEncoder {
		errs = append(errs, fmt.Errorf("%s: found the config of a %s, wanted that of a %s", p.ck.Path("text_encoder", "config.json"), p.text.Class, p.textEncoder))
	}
	if deepest := slices.Max(p.layers); p.text.Layers < deepest {
		errs = append(errs, fmt.Errorf("%s: num_hidden_layers: found %d, wanted %d or more: %s takes the results of layers %v (text_encoder_out_layers)",
			p.ck.Path("text_encoder", "config.json"), p.text.Layers, deepest, p.class, p.layers))
	}
	out := p.flux.PatchSize * p.flux.PatchSize * p.flux.OutChannels
	errs = append(errs,
		p.checkTransformerFile(),
		mustEqual(p.ck, "transformer", "joint_attention_dim", p.flux.JointDim, "text_encoder", fmt.Sprintf("%d x hidden_size", len(p.layers)), len(p.layers)*p.text.HiddenSize),
		mustEqual(p.ck, "transformer", "in_channels", p.flux.InChannels, "vae", "4 x latent_channels", 4*p.vae.LatentChannels),
		mustEqual(p.ck, "transformer", "in_channels", p.flux.InChannels, "transformer", "patch_size^2 x out_channels", out),
	)
	return joinErrors(errs...)
}

// checkTransformerFile compares the transformer's config with its weights, where there are any: a folder without weights can be traced, and whatever else
// is wrong with them is said when they are opened for use.
func (p *flux2Pipeline) checkTransformerFile() error {
	comp, err := p.ck.Component("transformer")
	if err != nil {
		return err
	}
	stored, err := comp.Tensors()
	if err != nil {
		return nil
	}
	file, err := comp.Config()
	if err != nil {
		return err
	}
	return flux2.CheckSizes(file, p.flux, stored)
}

func (p *flux2Pipeline) Class() string { return p.class }

func (p *flux2Pipeline) Scheduler() string { return p.scheduler.Class }

// multiple is what height and width must be multiples of: a latent pixel, times the 2x2 patches.
func (p *flux2Pipeline) multiple() int { return 2 * p.vae.ScaleFactor() }

// flux2MaxSequence bounds max_sequence_length, which diffusers leaves open; its default is 512.
const flux2MaxSequence = 8192

func (p *flux2Pipeline) Defaults(r *Request) error {
	var errs []error
	if r.Image != nil {
		// The classes have image: pictures that the new one is to be like, which join the sequence as further tokens.
		errs = append(errs, fmt.Errorf("image: the reference pictures of %s are not supported; only text to image is", p.class))
	}
	others := *r
	others.Image = nil
	errs = append(errs, refuse(&others, p.class, "sigmas", "max_sequence_length", "vae_tiling", guidanceBatchArgument)...)
	setDefault(&r.Height, 128*p.vae.ScaleFactor())
	setDefault(&r.Width, 128*p.vae.ScaleFactor())
	r.stepsDefault(flux2Steps)
	switch {
	case r.GuidanceScale == nil:
		r.GuidanceScale = ptr(4.0)
	case p.distilled && *r.GuidanceScale > 1:
		r.warn("guidance_scale has no effect: the model is distilled (is_distilled in model_index.json)")
	case !p.klein && !p.flux.GuidanceEmbeds:
		r.warn("guidance_scale has no effect: the transformer has no guidance embedding (guidance_embeds is false)")
	}
	r.sequenceDefault(512, 0)
	embeds := map[string][]int{"prompt_embeds": {r.MaxSequenceLength, p.flux.JointDim}}
	h, w := r.Height/p.multiple(), r.Width/p.multiple()
	err := joinErrors(append(errs, r.check(), r.PromptEmbeds.check(p.kind(r), embeds), p.checkSizes(p.Sizes(r)), checkLatents(r, r.Batch(), p.flux.InChannels, h, w), p.autoencoder().check(r))...)
	if err != nil {
		return err
	}
	schedule, err := p.schedule(r, h*w)
	if err != nil {
		return err
	}
	return checkStepNoise(r, schedule, r.Batch(), h*w, p.flux.InChannels)
}

func (p *flux2Pipeline) Sizes(r *Request) Sizes {
	return Sizes{Batch: r.Batch(), Height: r.Height, Width: r.Width, MaxSequenceLength: r.MaxSequenceLength, VAETiling: r.VAETiling, GuidanceBatch: r.guidanceBatch()}
}

func (p *flux2Pipeline) checkSizes(s Sizes) error {
	length := checkSequence(s.MaxSequenceLength, flux2MaxSequence)
	if length == nil {
		if err := p.encoderOptions(s.MaxSequenceLength).Check(p.text); err != nil {
			length = fmt.Errorf("max_sequence_length: %w", err)
		}
	}
	return joinErrors(checkBatch(s.Batch), checkSide("height", s.Height, p.multiple(), p.multiple()), checkSide("width", s.Width, p.multiple(), p.multiple()), length)
}

// flux2Programs are the pipeline's programs at one set of sizes, less the step and the decoder.
type flux2Programs struct {
	text, transformer, unpack *Program
}

// encoderOutput names the text encoder's result: the hidden states of text_encoder_out_layers, one after another along the last axis.
func (p *flux2Pipeline) encoderOutput() string {
	return "hidden_states/" + strings.ReplaceAll(strings.Trim(fmt.Sprint(p.layers), "[]"), " ", ",")
}

func (p *flux2Pipeline) encoderOptions(length int) causallm.Options {
	return causallm.Options{Batch: 1, Length: length, Outputs: []string{p.encoderOutput()}}
}

func (p *flux2Pipeline) programs(s Sizes) *flux2Programs {
	h, w := s.Height/p.multiple(), s.Width/p.multiple()
	text, denoise, decode := p.opts.DTypeFor("text_encoder"), p.opts.DTypeFor("transformer"), p.opts.DTypeFor("vae")
	pictures := autoencoderkl.Sizes{Batch: s.Batch, Height: 2 * h, Width: 2 * w, DType: decode}
	return &flux2Programs{
		text: &Program{
			Network:   causallm.New(p.text, p.encoderOptions(s.MaxSequenceLength), text),
			Component: "text_encoder", Aliases: causallm.Aliases, Spec: fmt.Sprintf("1x%d %v %s", s.MaxSequenceLength, graph.DTypeName(text), p.encoderOutput()),
		},
		transformer: &Program{
			Network:   flux2.New(p.flux, flux2.Options{Batch: s.Batch, TextLength: s.MaxSequenceLength, ImageLength: h * w}, denoise),
			Component: "transformer", Stage: StageDenoise,
			Spec: fmt.Sprintf("%dx%d image tokens, %d text tokens, %v", s.Batch, h*w, s.MaxSequenceLength, graph.DTypeName(denoise)),
		},
		unpack: &Program{
			Network:   autoencoderkl.NewUnpack(p.vae, pictures),
			Component: "vae", Stage: StageDecode, Spec: fmt.Sprintf("%dx%dx%d %v", s.Batch, 2*h, 2*w, graph.DTypeName(decode)),
		},
	}
}

func (p *flux2Pipeline) autoencoder() autoencoder { return newAutoencoder(p.vae, p.opts) }

func (p *flux2Pipeline) Programs(r *Request) ([]*Program, error) {
	s := p.Sizes(r)
	kind := p.kind(r)
	ps := p.programs(s)
	tokens := (s.Height / p.multiple()) * (s.Width / p.multiple())
	schedule, err := p.schedule(r, tokens)
	if err != nil {
		return nil, err
	}
	// Both forms of the small step program where a request may have either, so that turning guidance on or off compiles nothing.
	kinds := []stepKind{plain}
	if p.klein && !p.distilled {
		kinds = append(kinds, guided)
	}
	programs := []*Program{ps.text, p.programs(s.denoiser(kind)).transformer}
	for _, k := range s.stepKinds(kind, kinds...) {
		programs = append(programs, stepProgram([]int{s.Batch, tokens, p.flux.InChannels}, schedule.Slots, k, s.joins(k), p.opts.DTypeFor("transformer")))
	}
	decoders, err := p.autoencoder().decoders(s.Height/p.vae.ScaleFactor(), s.Width/p.vae.ScaleFactor(), s.VAETiling)
	return append(append(programs, ps.unpack), decoders...), err
}

// kind is guided where klein needs a call for the negative prompt (do_classifier_free_guidance). r has its defaults.
func (p *flux2Pipeline) kind(r *Request) stepKind {
	if p.klein && !p.distilled && *r.GuidanceScale > 1 {
		return guided
	}
	return plain
}

// flux2Steps is the default of num_inference_steps.
const flux2Steps = 50

// schedule computes the sampler's plan for a number of image tokens.
func (p *flux2Pipeline) schedule(r *Request, tokens int) (*scheduler.Schedule, error) {
	steps := r.NumInferenceSteps
	if steps == 0 {
		// Beside sigmas it keeps its default, and compute_empirical_mu goes by it.
		steps = flux2Steps
	}
	o := scheduler.Options{Mu: ptr(scheduler.Flux2Mu(tokens, steps))}
	switch {
	case p.scheduler.UsesFlowSigmas():
		o.Steps = steps
	case len(r.Sigmas) > 0:
		o.Sigmas = r.Sigmas
	default:
		o.Steps, o.Sigmas = steps, scheduler.FlowSigmas(steps)
	}
	return p.scheduler.Schedule(o)
}

func (p *flux2Pipeline) open() error {
	if p.tok != nil {
		return nil
	}
	var err error
	p.tok, err = openTokenizer(p.ck, "tokenizer")
	return err
}

func (p *flux2Pipeline) Prepare(r *Request) error {
	if err := p.open(); err != nil {
		return err
	}
	encoder := p.encoder(r)
	return joinErrors(encoder.check(r.Prompt), encoder.check([]string{""}))
}

// encoder is the text encoder at the request's length.
func (p *flux2Pipeline) encoder(r *Request) *textEncoder {
	return &textEncoder{
		component: "text_encoder", tok: p.tok, vocab: p.text.VocabSize,
		length: r.MaxSequenceLength, limit: fmt.Sprintf("max_sequence_length, %d tokens", r.MaxSequenceLength),
		render: func(prompt string) (string, error) { return p.tok.RenderChat(p.chat(prompt)) },
	}
}

func (p *flux2Pipeline) Encode(ctx context.Context, ex Executor, r *Request) (Embeds, error) {
	if err := p.open(); err != nil {
		return nil, err
	}
	program, encoder, e := p.programs(p.Sizes(r)).text, p.encoder(r), Embeds{}
	encode := func(name string, texts []string) error {
		for _, text := range texts {
			got, err := encoder.encode(ctx, ex, r, program, text)
			if err != nil {
				return err
			}
			e.record(r, name, got[p.encoderOutput()], r.MaxSequenceLength, p.flux.JointDim)
		}
		return nil
	}
	if err := encode("prompt_embeds", r.Prompt); err != nil {
		return nil, err
	}
	if p.kind(r) == guided {
		// The pipeline has no negative_prompt: it is the empty text for each.
		return e, encode("negative_prompt_embeds", make([]string, len(r.Prompt)))
	}
	return e, nil
}

// Denoise returns the latents as the transformer has them, [B, tokens, 4 latent_channels], for both classes. (Flux2KleinPipeline's output_type="latent"
// unpacks them first.)
func (p *flux2Pipeline) Denoise(ctx context.Context, ex Executor, r *Request, e Embeds) (Tensor, error) {
	s := p.Sizes(r)
	kind := p.kind(r)
	transformer := p.programs(s.denoiser(kind)).transformer
	h, w := s.Height/p.multiple(), s.Width/p.multiple()
	schedule, err := p.schedule(r, h*w)
	if err != nil {
		return nil, err
	}
	c, err := newConditions(kind, func(to tensors, prefix string) error {
		return e.give(to, ex, p.opts, "transformer", prefix, r.NumImagesPerPrompt, map[string]string{"encoder_hidden_states": "prompt_embeds"})
	})
	if err != nil {
		return nil, err
	}
	defer c.free()
	cos, sin := flux2.RoPE(p.flux, s.MaxSequenceLength, h, w)
	if err := c.positive.putRotary(ex, cos, sin, s.MaxSequenceLength+h*w, p.flux.HeadDim); err != nil {
		return nil, err
	}
	if p.flux.GuidanceEmbeds {
		scale := slices.Repeat([]float32{float32(*r.GuidanceScale)}, s.Batch)
		if err := c.positive.put(ex, "guidance", float32Type, scale, s.Batch); err != nil {
			return nil, err
		}
	}

	if s.joins(kind) {
		if err := c.join(ctx, ex, transformer); err != nil {
			return nil, err
		}
	}
	gens := newGenerators(r.Seed, s.Batch)
	var start []float32
	if r.Latents != nil {
		start = float32s(r.Latents.Data)
	} else {
		start = gens.randn(p.flux.InChannels, h, w)
	}
	l := &loop{
		ex: ex, req: r, latents: packChannels(start, s.Batch, p.flux.InChannels, h*w), dims: []int{s.Batch, h * w, p.flux.InChannels},
		draw:     func() []float32 { return gens.randn(h*w, p.flux.InChannels) },
		schedule: schedule, kind: kind, joined: s.joins(kind), scaleAt: constant(*r.GuidanceScale), dtype: p.opts.DTypeFor("transformer"), component: "transformer",
	}
	l.denoise = func(ctx context.Context, input Tensor, i int) (cond, uncond Tensor, err error) {
		// The pipeline divides by 1000 in the latents' dtype; the network multiplies again.
		return callDenoiser(ctx, ex, transformer, kind, input, float32(schedule.Calls[i].Timestep)/1000, c)
	}
	return l.run(ctx)
}

func (p *flux2Pipeline) Decode(ctx context.Context, ex Executor, r *Request, latents Tensor) ([]Image, error) {
	s := p.Sizes(r)
	return p.autoencoder().decode(ctx, ex, r, p.programs(s).unpack, latents, s)
}

func (p *flux2Pipeline) Extra(r *Request, _ int) map[string]any {
	return map[string]any{"max_sequence_length": r.MaxSequenceLength}
}

// packChannels packs [B, C, n] into tokens [B, n, C] (pipeline_flux2.py, _pack_latents).
func packChannels(v []float32, b, c, n int) []float32 {
	out := make([]float32, len(v))
	for k := range b {
		for ch := range c {
			for i := range n {
				out[(k*n+i)*c+ch] = v[(k*c+ch)*n+i]
			}
		}
	}
	return out
}
