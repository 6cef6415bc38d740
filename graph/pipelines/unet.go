package pipelines

import (
	"context"
	"encoding/json"
	"fmt"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/models/autoencoderkl"
	"precast/graph/models/clip"
	"precast/graph/models/unet2d"
	"precast/graph/scheduler"
	"precast/graph/tokenizer"
)

// unetPart is what pipelines with a UNet2DConditionModel and an AutoencoderKL have in common: all but the text.
type unetPart struct {
	ck        *checkpoint.Checkpoint
	opts      Options
	unet      unet2d.Config
	vae       autoencoderkl.Config
	scheduler *scheduler.Scheduler
	// tokens is the number of text tokens that the UNet is given.
	tokens int
	// upcastEncoder makes the VAE's encoder compute in float32, whatever the decoder does.
	upcastEncoder bool
}

// parse reads the configs of UNet and VAE.
func (p *unetPart) parse() error {
	return joinErrors(
		parse(p.ck, "unet", unet2d.ParseConfig, &p.unet, "UNet2DConditionModel"),
		parse(p.ck, "vae", autoencoderkl.ParseConfig, &p.vae, "AutoencoderKL"),
	)
}

// fit checks that the VAE's latents are the UNet's.
func (p *unetPart) fit() error {
	return joinErrors(
		mustEqual(p.ck, "unet", "in_channels", p.unet.InChannels, "vae", "latent_channels", p.vae.LatentChannels),
		mustEqual(p.ck, "unet", "out_channels", p.unet.OutChannels, "vae", "latent_channels", p.vae.LatentChannels),
	)
}

// sdSchedulerConfig changes outdated settings as StableDiffusionPipeline's constructor does.
func sdSchedulerConfig(ck *checkpoint.Checkpoint, cfg *checkpoint.Config) {
	set := func(key string, value string) {
		ck.Note("%s: %s is taken as %s, as diffusers does for this pipeline", cfg.File(), key, value)
		if err := cfg.Set(key, json.RawMessage(value)); err != nil {
			panic("BUG: " + err.Error())
		}
	}
	if cfg.Has("steps_offset") && cfg.Int("steps_offset", 1) != 1 {
		set("steps_offset", "1")
	}
	if cfg.Bool("clip_sample", false) {
		set("clip_sample", "false")
	}
}

func (p *unetPart) Scheduler() string { return p.scheduler.Class }

// defaults fills in what the pipelines share and checks it; guidance is the default of guidance_scale, strength that of strength.
func (p *unetPart) defaults(r *Request, guidance, strength float64) error {
	scale := p.vae.ScaleFactor()
	sizeFromImage(r, scale)
	warnResized(r)
	setDefault(&r.Height, p.unet.SampleSize[0]*scale)
	setDefault(&r.Width, p.unet.SampleSize[1]*scale)
	r.stepsDefault(50)
	if r.GuidanceScale == nil {
		r.GuidanceScale = ptr(guidance)
	}
	if r.Image != nil && r.Strength == nil {
		r.Strength = ptr(strength)
	}
	if r.Eta > 0 && p.scheduler.Class != "DDIMScheduler" {
		r.warn("eta has no effect: it is DDIMScheduler's, and the scheduler is %s", p.scheduler.Class)
	}
	if *r.GuidanceScale <= 1 {
		warnUnguided(r)
	}
	return joinErrors(r.check(), p.checkSizes(p.Sizes(r)), checkLatents(r, p.dims(p.Sizes(r))...), checkImage(r), p.autoencoder().check(r))
}

// checkSchedule computes the schedule, which needs everything else of the request to be right, and checks what goes with it.
func (p *unetPart) checkSchedule(r *Request) error {
	schedule, err := p.schedule(r)
	if err != nil {
		return err
	}
	return checkStepNoise(r, schedule, p.dims(p.Sizes(r))...)
}

// schedule computes the sampler's plan, from the step on where a picture comes in.
func (p *unetPart) schedule(r *Request) (*scheduler.Schedule, error) {
	o := scheduler.Options{Steps: r.NumInferenceSteps, Sigmas: r.Sigmas, Timesteps: r.Timesteps, Eta: r.Eta}
	plan, err := p.scheduler.Schedule(o)
	if err != nil || r.Image == nil {
		return plan, err
	}
	steps := r.NumInferenceSteps
	if len(o.Sigmas) > 0 || len(o.Timesteps) > 0 {
		steps = len(plan.Timesteps)
	}
	// get_timesteps of pipeline_stable_diffusion_img2img.py: the number of steps that are done is rounded down.
	o.Skip = steps - min(int(float64(steps)*(*r.Strength)), steps)
	return startAt(p.scheduler, o, steps, *r.Strength)
}

func (p *unetPart) Sizes(r *Request) Sizes {
	return Sizes{Batch: r.Batch(), Height: r.Height, Width: r.Width, VAETiling: r.VAETiling, GuidanceBatch: r.guidanceBatch()}
}

func (p *unetPart) checkSizes(s Sizes) error {
	m := p.vae.ScaleFactor()
	least := m
	if p.unet.DownsamplePadding == 0 {
		// Each level but the last halves a side of two or more; with padding, one pixel stays one.
		least = m << min(len(p.unet.BlockOutChannels)-1, 15)
	}
	return joinErrors(checkBatch(s.Batch), checkSide("height", s.Height, m, least), checkSide("width", s.Width, m, least))
}

// dims is the shape of the latents.
func (p *unetPart) dims(s Sizes) []int {
	scale := p.vae.ScaleFactor()
	return []int{s.Batch, p.unet.InChannels, s.Height / scale, s.Width / scale}
}

func (p *unetPart) autoencoder() autoencoder {
	a := newAutoencoder(p.vae, p.opts)
	if p.upcastEncoder {
		a.encodes = float32Type
	}
	return a
}

func (p *unetPart) unetProgram(s Sizes) *Program {
	d, dtype := p.dims(s), p.opts.DTypeFor("unet")
	return &Program{
		Network:   unet2d.New(p.unet, unet2d.Sizes{Batch: s.Batch, Height: d[2], Width: d[3], SequenceLength: p.tokens, DType: dtype}),
		Component: "unet", Stage: StageDenoise, Spec: fmt.Sprintf("%dx%dx%d, %d text tokens, %v", s.Batch, d[2], d[3], p.tokens, graph.DTypeName(dtype)),
	}
}

// kind is guided above a scale of 1. Some of these pipelines rescale it.
func (p *unetPart) kind(r *Request) stepKind {
	switch {
	case *r.GuidanceScale <= 1:
		return plain
	case r.GuidanceRescale > 0:
		return rescaled
	}
	return guided
}

// programs lists what comes after the text encoders.
func (p *unetPart) programs(r *Request) ([]*Program, error) {
	s := p.Sizes(r)
	schedule, err := p.schedule(r)
	if err != nil {
		return nil, err
	}
	out, err := p.autoencoder().encoders(r)
	if err != nil {
		return nil, err
	}
	kind := p.kind(r)
	out = append(out, p.unetProgram(s.denoiser(kind)))
	for _, k := range s.stepKinds(kind, plain, guided) {
		out = append(out, stepProgram(p.dims(s), schedule.Slots, k, s.joins(k), p.opts.DTypeFor("unet")))
	}
	d := p.dims(s)
	decoders, err := p.autoencoder().decoders(d[2], d[3], s.VAETiling)
	return append(append(out, p.autoencoder().unpack(s.Batch, d[2], d[3])), decoders...), err
}

// clipEncoder is a CLIP text encoder at its full length.
func clipEncoder(component string, tok tokenizer.Tokenizer, c clip.Config) *textEncoder {
	return &textEncoder{component: component, tok: tok, vocab: c.VocabSize, length: c.MaxPositions, limit: fmt.Sprintf("the %d tokens that CLIP takes", c.MaxPositions)}
}

// denoise runs the loop.
func (p *unetPart) denoise(ctx context.Context, ex Executor, r *Request, c *conditions) (Tensor, error) {
	s, kind := p.Sizes(r), p.kind(r)
	dims, unet := p.dims(s), p.unetProgram(s.denoiser(kind))
	if s.joins(kind) {
		if err := c.join(ctx, ex, unet); err != nil {
			return nil, err
		}
	}
	schedule, err := p.schedule(r)
	if err != nil {
		return nil, err
	}
	gens := newGenerators(r.Seed, s.Batch)
	draw := func() []float32 { return gens.randn(dims[1:]...) }
	l := &loop{
		ex: ex, req: r, dims: dims, draw: draw, schedule: schedule, kind: kind, joined: s.joins(kind), scaleAt: constant(*r.GuidanceScale),
		dtype: p.opts.DTypeFor("unet"), component: "unet",
	}
	switch {
	case r.Image != nil:
		posterior, err := p.autoencoder().encode(ctx, ex, r)
		if err != nil {
			return nil, err
		}
		// Each picture's generator draws the sample of the posterior, then the noise.
		clean := posterior.sample(gens.randn(dims[1:]...))
		p.autoencoder().scale(clean, dims[2]*dims[3])
		l.begin(clean, draw())
	case r.Latents != nil:
		l.latents = float32s(r.Latents.Data)
	default:
		l.latents = draw()
	}
	l.denoise = func(ctx context.Context, input Tensor, i int) (cond, uncond Tensor, err error) {
		return callDenoiser(ctx, ex, unet, kind, input, float32(schedule.Calls[i].Timestep), c)
	}
	return l.run(ctx)
}

func (p *unetPart) Decode(ctx context.Context, ex Executor, r *Request, latents Tensor) ([]Image, error) {
	s := p.Sizes(r)
	d := p.dims(s)
	return p.autoencoder().decode(ctx, ex, r, p.autoencoder().unpack(s.Batch, d[2], d[3]), latents, s)
}

func (p *unetPart) Extra(r *Request, _ int) map[string]any {
	extra := map[string]any{}
	if r.ClipSkip > 0 {
		extra["clip_skip"] = r.ClipSkip
	}
	if r.GuidanceRescale > 0 {
		extra["guidance_rescale"] = r.GuidanceRescale
	}
	if r.Eta > 0 {
		extra["eta"] = r.Eta
	}
	if r.Image != nil {
		extra["strength"] = *r.Strength
	}
	return extra
}
