package pipelines

import (
	"context"
	"fmt"
	"slices"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/models/autoencoderkl"
	"precast/graph/models/clip"
	"precast/graph/models/flux"
	"precast/graph/models/t5"
	"precast/graph/scheduler"
)

// fluxPipeline is FluxPipeline (diffusers, pipelines/flux/pipeline_flux.py): FLUX.1 dev and schnell; with a picture to start from,
// FluxImg2ImgPipeline (pipeline_flux_img2img.py).
type fluxPipeline struct {
	ck        *checkpoint.Checkpoint
	opts      Options
	clip      clip.Config
	t5        t5.Config
	flux      flux.Config
	vae       autoencoderkl.Config
	scheduler *scheduler.Scheduler
	encoders  [2]*textEncoder // CLIP; T5, whose length is the request's
}

func newFlux(ck *checkpoint.Checkpoint, o Options) (Pipeline, error) {
	p := &fluxPipeline{ck: ck, opts: o}
	err := joinErrors(
		parse(ck, "text_encoder", clip.ParseConfig, &p.clip, "CLIPTextModel"),
		parse(ck, "text_encoder_2", t5.ParseConfig, &p.t5, "T5EncoderModel"),
		parse(ck, "transformer", flux.ParseConfig, &p.flux, "FluxTransformer2DModel"),
		parse(ck, "vae", autoencoderkl.ParseConfig, &p.vae, "AutoencoderKL"),
	)
	if err != nil {
		return nil, err
	}
	if p.scheduler, err = newScheduler(ck, o.Scheduler, nil); err != nil {
		return nil, err
	}
	if _, err := p.schedule(&Request{NumInferenceSteps: 4}, 16); err != nil {
		return nil, flowFault(p, "FLUX.1", err)
	}
	// What one component gives has to be what the next one takes.
	err = joinErrors(
		mustEqual(ck, "transformer", "joint_attention_dim", p.flux.JointDim, "text_encoder_2", "d_model", p.t5.Model),
		mustEqual(ck, "transformer", "pooled_projection_dim", p.flux.PooledDim, "text_encoder", "hidden_size", p.clip.HiddenSize),
		mustEqual(ck, "transformer", "in_channels", p.flux.InChannels, "vae", "4 x latent_channels", 4*p.vae.LatentChannels),
	)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (p *fluxPipeline) Class() string { return "FluxPipeline" }

func (p *fluxPipeline) Scheduler() string { return p.scheduler.Class }

// multiple is what height and width must be multiples of: a latent pixel, times the 2x2 patches.
func (p *fluxPipeline) multiple() int { return 2 * p.vae.ScaleFactor() }

const fluxMaxSequence = 512

func (p *fluxPipeline) Defaults(r *Request) error {
	class, guidance := p.Class(), 3.5
	if r.Image != nil {
		class, guidance = "FluxImg2ImgPipeline", 7
	}
	errs := refuse(r, class, "prompt_2", "negative_prompt", "negative_prompt_2", "sigmas", "true_cfg_scale", "max_sequence_length", "image", "strength", "vae_tiling", guidanceBatchArgument)
	setDefault(&r.Height, 128*p.vae.ScaleFactor())
	setDefault(&r.Width, 128*p.vae.ScaleFactor())
	r.stepsDefault(28)
	if r.GuidanceScale == nil {
		r.GuidanceScale = ptr(guidance)
	} else if !p.flux.GuidanceEmbeds && *r.GuidanceScale != 0 {
		r.warn("guidance_scale has no effect: the transformer has no guidance embedding (guidance_embeds is false, as in FLUX.1 schnell)")
	}
	if r.TrueCFGScale == nil {
		r.TrueCFGScale = ptr(1.0)
	}
	r.sequenceDefault(fluxMaxSequence, 0)
	if r.Image != nil && r.Strength == nil {
		r.Strength = ptr(0.6)
	}
	warnResized(r)
	errs = append(errs, checkSequence(r.MaxSequenceLength, fluxMaxSequence))
	if len(r.NegativePrompt) > 0 && *r.TrueCFGScale <= 1 {
		r.warn("negative_prompt has no effect: true_cfg_scale is %g; give one above 1", *r.TrueCFGScale)
	}
	if *r.TrueCFGScale > 1 && p.kind(r) == plain {
		r.warn("true_cfg_scale has no effect without negative_prompt")
	}
	embeds := map[string][]int{"prompt_embeds": {r.MaxSequenceLength, p.flux.JointDim}, "pooled_prompt_embeds": {p.flux.PooledDim}}
	tokens := p.tokens(r.Height, r.Width)
	if err := joinErrors(append(errs, r.check(), r.PromptEmbeds.check(p.kind(r), embeds), p.checkSizes(p.Sizes(r)), checkLatents(r, r.Batch(), tokens, p.flux.InChannels),
		checkImage(r), p.autoencoder().check(r))...); err != nil {
		return err
	}
	schedule, err := p.schedule(r, tokens)
	if err != nil {
		return err
	}
	return checkStepNoise(r, schedule, r.Batch(), tokens, p.flux.InChannels)
}

func (p *fluxPipeline) Sizes(r *Request) Sizes {
	return Sizes{Batch: r.Batch(), Height: r.Height, Width: r.Width, MaxSequenceLength: r.MaxSequenceLength, VAETiling: r.VAETiling, GuidanceBatch: r.guidanceBatch()}
}

func (p *fluxPipeline) checkSizes(s Sizes) error {
	return joinErrors(checkBatch(s.Batch), checkSide("height", s.Height, p.multiple(), p.multiple()), checkSide("width", s.Width, p.multiple(), p.multiple()))
}

// fluxPrograms are the pipeline's programs at one set of sizes, less the step and the autoencoder.
type fluxPrograms struct {
	clip, t5, transformer, unpack *Program
}

func (p *fluxPipeline) programs(s Sizes) *fluxPrograms {
	h, w := s.Height/p.multiple(), s.Width/p.multiple()
	first, second, denoise := p.opts.DTypeFor("text_encoder"), p.opts.DTypeFor("text_encoder_2"), p.opts.DTypeFor("transformer")
	return &fluxPrograms{
		clip: &Program{
			Network:   clip.NewText(p.clip, clip.Options{Batch: 1, Length: p.clipLength(), Outputs: []string{"pooler_output"}}, first),
			Component: "text_encoder", Aliases: clip.Aliases, Spec: fmt.Sprintf("1x%d %s pooler_output", p.clipLength(), graph.DTypeName(first)),
		},
		t5: &Program{
			Network:   t5.New(p.t5, t5.Options{Batch: 1, Length: s.MaxSequenceLength}, second),
			Component: "text_encoder_2", Aliases: t5.Aliases, Spec: fmt.Sprintf("1x%d %v", s.MaxSequenceLength, graph.DTypeName(second)),
		},
		transformer: &Program{
			Network:   flux.New(p.flux, flux.Options{Batch: s.Batch, TextLength: s.MaxSequenceLength, ImageLength: h * w}, denoise),
			Component: "transformer", Stage: StageDenoise,
			Spec: fmt.Sprintf("%dx%d image tokens, %d text tokens, %v", s.Batch, h*w, s.MaxSequenceLength, graph.DTypeName(denoise)),
		},
		unpack: p.autoencoder().unpack2x2(s.Batch, h, w),
	}
}

func (p *fluxPipeline) autoencoder() autoencoder { return newAutoencoder(p.vae, p.opts) }

func (p *fluxPipeline) clipLength() int {
	return min(p.clip.MaxPositions, 77)
}

func (p *fluxPipeline) Programs(r *Request) ([]*Program, error) {
	s := p.Sizes(r)
	kind := p.kind(r)
	ps := p.programs(s)
	schedule, err := p.schedule(r, p.tokens(s.Height, s.Width))
	if err != nil {
		return nil, err
	}
	step := stepProgram([]int{s.Batch, p.tokens(s.Height, s.Width), p.flux.InChannels}, schedule.Slots, kind, s.joins(kind), p.opts.DTypeFor("transformer"))
	encoders, err := p.autoencoder().encoders(r)
	if err != nil {
		return nil, err
	}
	decoders, err := p.autoencoder().decoders(s.Height/p.vae.ScaleFactor(), s.Width/p.vae.ScaleFactor(), s.VAETiling)
	out := append([]*Program{ps.clip, ps.t5}, encoders...)
	return append(append(out, p.programs(s.denoiser(kind)).transformer, step, ps.unpack), decoders...), err
}

// kind is guided where the request asks for true classifier-free guidance, and can have it.
func (p *fluxPipeline) kind(r *Request) stepKind {
	if *r.TrueCFGScale > 1 {
		if _, ok := r.PromptEmbeds["negative_prompt_embeds"]; ok || len(r.NegativePrompt) > 0 {
			return guided
		}
	}
	return plain
}

// tokens is the number of image tokens at a size.
func (p *fluxPipeline) tokens(height, width int) int {
	return (height / p.multiple()) * (width / p.multiple())
}

// schedule computes the sampler's plan for a number of image tokens.
func (p *fluxPipeline) schedule(r *Request, tokens int) (*scheduler.Schedule, error) {
	o := scheduler.Options{Steps: r.NumInferenceSteps, Sigmas: r.Sigmas}
	if len(o.Sigmas) == 0 && !p.scheduler.UsesFlowSigmas() {
		o.Sigmas = scheduler.FlowSigmas(r.NumInferenceSteps)
	}
	o.Mu = ptr(p.scheduler.ShiftRange().Mu(tokens))
	if r.Image == nil {
		return p.scheduler.Schedule(o)
	}
	steps := r.NumInferenceSteps
	if len(r.Sigmas) > 0 {
		steps = len(r.Sigmas)
	}
	// get_timesteps of pipeline_flux_img2img.py: unlike in Stable Diffusion the number of steps that are left out is rounded down.
	o.Skip = int(float64(steps) - min(float64(steps)*(*r.Strength), float64(steps)))
	return startAt(p.scheduler, o, steps, *r.Strength)
}

func (p *fluxPipeline) open() error {
	if p.encoders[0] != nil {
		return nil
	}
	clipTok, err := openTokenizer(p.ck, "tokenizer")
	if err != nil {
		return err
	}
	t5Tok, err := openTokenizer(p.ck, "tokenizer_2")
	if err != nil {
		return err
	}
	p.encoders = [2]*textEncoder{
		{component: "text_encoder", tok: clipTok, vocab: p.clip.VocabSize, length: p.clipLength(), limit: fmt.Sprintf("the %d tokens that CLIP takes", p.clipLength())},
		{component: "text_encoder_2", tok: t5Tok, vocab: p.t5.VocabSize},
	}
	return nil
}

func (p *fluxPipeline) Prepare(r *Request) error {
	if err := p.open(); err != nil {
		return err
	}
	second := p.encoders[1].at(r.MaxSequenceLength)
	return joinErrors(p.encoders[0].check(r.Prompt, r.NegativePrompt), second.check(r.Prompt, r.Prompt2, r.NegativePrompt, r.NegativePrompt2))
}

func (p *fluxPipeline) Encode(ctx context.Context, ex Executor, r *Request) (Embeds, error) {
	if err := p.open(); err != nil {
		return nil, err
	}
	ps, second, e := p.programs(p.Sizes(r)), p.encoders[1].at(r.MaxSequenceLength), Embeds{}
	// encode encodes one text a prompt for both encoders; prefix is that of the names in diffusers.
	encode := func(prefix string, texts, texts2 []string) error {
		for i := range r.Prompt {
			text, _ := textFor(texts, i)
			text2, ok := textFor(texts2, i)
			if !ok {
				text2 = text
			}
			a, err := p.encoders[0].encode(ctx, ex, r, ps.clip, text)
			if err != nil {
				return err
			}
			b, err := second.encode(ctx, ex, r, ps.t5, text2)
			if err != nil {
				return err
			}
			e.record(r, prefix+"prompt_embeds", b["last_hidden_state"], r.MaxSequenceLength, p.flux.JointDim)
			e.record(r, prefix+"pooled_prompt_embeds", a["pooler_output"], p.flux.PooledDim)
		}
		return nil
	}
	if err := encode("", r.Prompt, r.Prompt2); err != nil {
		return nil, err
	}
	if p.kind(r) == guided {
		return e, encode("negative_", r.NegativePrompt, r.NegativePrompt2)
	}
	return e, nil
}

func (p *fluxPipeline) Denoise(ctx context.Context, ex Executor, r *Request, e Embeds) (Tensor, error) {
	s := p.Sizes(r)
	kind := p.kind(r)
	transformer := p.programs(s.denoiser(kind)).transformer
	h, w := s.Height/p.multiple(), s.Width/p.multiple()
	schedule, err := p.schedule(r, h*w)
	if err != nil {
		return nil, err
	}
	c, err := newConditions(kind, func(to tensors, prefix string) error {
		return e.give(to, ex, p.opts, "transformer", prefix, r.NumImagesPerPrompt, map[string]string{"pooled_projections": "pooled_prompt_embeds", "encoder_hidden_states": "prompt_embeds"})
	})
	if err != nil {
		return nil, err
	}
	defer c.free()
	cos, sin := flux.RoPE(p.flux, s.MaxSequenceLength, h, w)
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
	channels := p.vae.LatentChannels
	l := &loop{
		ex: ex, req: r, dims: []int{s.Batch, h * w, p.flux.InChannels}, draw: func() []float32 { return gens.randn(h*w, p.flux.InChannels) },
		schedule: schedule, kind: kind, joined: s.joins(kind), scaleAt: constant(*r.TrueCFGScale), dtype: p.opts.DTypeFor("transformer"), component: "transformer",
	}
	switch {
	case r.Image != nil:
		posterior, err := p.autoencoder().encode(ctx, ex, r)
		if err != nil {
			return nil, err
		}
		// The picture is encoded once for the batch: the first generator draws the sample of the posterior, then each its noise.
		clean := posterior.sample(gens[:1].randn(channels, 2*h, 2*w))
		p.autoencoder().scale(clean, 4*h*w)
		l.begin(packLatents(slices.Repeat(clean, s.Batch), s.Batch, channels, h, w), packLatents(gens.randn(channels, 2*h, 2*w), s.Batch, channels, h, w))
	case r.Latents != nil:
		l.latents = float32s(r.Latents.Data)
	default:
		l.latents = packLatents(gens.randn(channels, 2*h, 2*w), s.Batch, channels, h, w)
	}
	l.denoise = func(ctx context.Context, input Tensor, i int) (cond, uncond Tensor, err error) {
		// The pipeline divides by 1000 in the latents' dtype; the network multiplies again.
		return callDenoiser(ctx, ex, transformer, kind, input, float32(schedule.Calls[i].Timestep)/1000, c)
	}
	return l.run(ctx)
}

func (p *fluxPipeline) Decode(ctx context.Context, ex Executor, r *Request, latents Tensor) ([]Image, error) {
	s := p.Sizes(r)
	return p.autoencoder().decode(ctx, ex, r, p.programs(s).unpack, latents, s)
}

func (p *fluxPipeline) Extra(r *Request, k int) map[string]any {
	extra := map[string]any{"max_sequence_length": r.MaxSequenceLength}
	if r.Image != nil {
		extra["strength"] = *r.Strength
	}
	if p.kind(r) == guided {
		extra["true_cfg_scale"] = *r.TrueCFGScale
	}
	if t, ok := textFor(r.Prompt2, k/r.NumImagesPerPrompt); ok {
		extra["prompt_2"] = t
	}
	return extra
}

// packLatents packs [B, C, 2h, 2w] into tokens [B, h*w, 4C] (pipeline_flux.py, _pack_latents).
func packLatents(v []float32, b, c, h, w int) []float32 {
	out := make([]float32, len(v))
	for k := range b {
		for ch := range c {
			for y := range 2 * h {
				for x := range 2 * w {
					token := (y/2)*w + x/2
					out[((k*h*w)+token)*4*c+4*ch+2*(y%2)+x%2] = v[((k*c+ch)*2*h+y)*2*w+x]
				}
			}
		}
	}
	return out
}
