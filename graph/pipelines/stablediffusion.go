package pipelines

import (
	"context"
	"encoding/json"
	"fmt"

	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/models/autoencoderkl"
	"precast/graph/models/clip"
	"precast/graph/models/unet2d"
	"precast/graph/scheduler"
	"precast/graph/trace"
)

// sdPipeline is StableDiffusionPipeline (diffusers, pipelines/stable_diffusion/pipeline_stable_diffusion.py), text to image.
type sdPipeline struct {
	ck        *checkpoint.Checkpoint
	opts      Options
	clip      clip.Config
	unet      unet2d.Config
	vae       autoencoderkl.Config
	scheduler *scheduler.Scheduler
	encoder   *textEncoder
}

func newStableDiffusion(ck *checkpoint.Checkpoint, o Options) (Pipeline, error) {
	p := &sdPipeline{ck: ck, opts: o}
	err := joinErrors(
		parse(ck, "text_encoder", clip.ParseConfig, &p.clip, "CLIPTextModel"),
		parse(ck, "unet", unet2d.ParseConfig, &p.unet, "UNet2DConditionModel"),
		parse(ck, "vae", autoencoderkl.ParseConfig, &p.vae, "AutoencoderKL"),
	)
	if err != nil {
		return nil, err
	}
	if p.scheduler, err = newScheduler(ck, o.Scheduler, func(cfg *checkpoint.Config) { sdSchedulerConfig(ck, cfg) }); err != nil {
		return nil, err
	}
	if p.unet.PooledDim() != 0 {
		return nil, fmt.Errorf("%s: addition_embed_type is set, which StableDiffusionPipeline does not feed; the folder may be of another pipeline class", ck.Path("unet", "config.json"))
	}
	if ck.Has("safety_checker") {
		ck.Note("the safety_checker is not run: pictures are not screened")
	}
	err = joinErrors(
		mustEqual(ck, "unet", "cross_attention_dim", p.unet.TextDim(), "text_encoder", "hidden_size", p.clip.HiddenSize),
		mustEqual(ck, "unet", "in_channels", p.unet.InChannels, "vae", "latent_channels", p.vae.LatentChannels),
		mustEqual(ck, "unet", "out_channels", p.unet.OutChannels, "vae", "latent_channels", p.vae.LatentChannels),
	)
	if err != nil {
		return nil, err
	}
	return p, nil
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

func (p *sdPipeline) Class() string { return "StableDiffusionPipeline" }

func (p *sdPipeline) Scheduler() string { return p.scheduler.Class }

func (p *sdPipeline) Defaults(r *Request) error {
	errs := refuse(r, p.Class(), "negative_prompt", "sigmas", "timesteps", "guidance_rescale", "eta", "clip_skip")
	scale := p.vae.ScaleFactor()
	for _, side := range []struct {
		v   *int
		def int
	}{{&r.Height, p.unet.SampleSize[0]}, {&r.Width, p.unet.SampleSize[1]}} {
		if *side.v == 0 {
			*side.v = side.def * scale
		}
	}
	setDefault(&r.NumInferenceSteps, 50, len(r.Sigmas) == 0 && len(r.Timesteps) == 0)
	if r.GuidanceScale == nil {
		r.GuidanceScale = ptr(7.5)
	}
	if r.ClipSkip >= p.clip.Layers {
		errs = append(errs, fmt.Errorf("clip_skip: found %d, wanted less than the text encoder's %d layers", r.ClipSkip, p.clip.Layers))
	}
	if r.Eta > 0 && p.scheduler.Class != "DDIMScheduler" {
		r.warn("eta has no effect: it is DDIMScheduler's, and the scheduler is %s", p.scheduler.Class)
	}
	if *r.GuidanceScale <= 1 {
		warnUnguided(r)
	}
	embeds := map[string][]int{"prompt_embeds": {p.clip.MaxPositions, p.clip.HiddenSize}}
	if p.kind(r) != plain {
		embeds["negative_prompt_embeds"] = embeds["prompt_embeds"]
	}
	dims := []int{r.Batch(), p.unet.InChannels, r.Height / scale, r.Width / scale}
	if err := joinErrors(append(errs, r.check(), r.PromptEmbeds.check(embeds), p.CheckSizes(p.Sizes(r)), checkLatents(r, dims...))...); err != nil {
		return err
	}
	schedule, err := p.schedule(r)
	if err != nil {
		return err
	}
	return checkStepNoise(r, schedule, dims...)
}

// schedule computes the sampler's plan.
func (p *sdPipeline) schedule(r *Request) (*scheduler.Schedule, error) {
	return p.scheduler.Schedule(scheduler.Options{Steps: r.NumInferenceSteps, Sigmas: r.Sigmas, Timesteps: r.Timesteps, Eta: r.Eta})
}

func (p *sdPipeline) Sizes(r *Request) Sizes {
	return Sizes{Batch: r.Batch(), Height: r.Height, Width: r.Width}
}

func (p *sdPipeline) CheckSizes(s Sizes) error {
	m := p.vae.ScaleFactor()
	least := m
	if p.unet.DownsamplePadding == 0 {
		// Each level but the last halves a side of two or more; with padding, one pixel stays one.
		least = m << min(len(p.unet.BlockOutChannels)-1, 15)
	}
	return joinErrors(checkBatch(s.Batch), checkSide("height", s.Height, m, least), checkSide("width", s.Width, m, least))
}

type sdPrograms struct {
	encoder, skipping, unet, unpack, decoder *Program
}

func (p *sdPipeline) programs(s Sizes, clipSkip int) *sdPrograms {
	h, w := s.Height/p.vae.ScaleFactor(), s.Width/p.vae.ScaleFactor()
	encode, denoise, decode := p.opts.DTypeFor("text_encoder"), p.opts.DTypeFor("unet"), p.opts.DTypeFor("vae")
	text := func(skip int) *Program {
		return &Program{
			Network:   clip.NewText(p.clip, clip.Options{Batch: 1, Length: p.clip.MaxPositions, Outputs: []string{"last_hidden_state"}, ClipSkip: skip}, encode),
			Component: "text_encoder", Aliases: clipAliases, Spec: fmt.Sprintf("1x%d %v last_hidden_state clip_skip=%d", p.clip.MaxPositions, graph.DTypeName(encode), skip),
		}
	}
	ps := &sdPrograms{
		encoder: text(0),
		unet: &Program{
			Network:   unet2d.New(p.unet, unet2d.Sizes{Batch: s.Batch, Height: h, Width: w, SequenceLength: p.clip.MaxPositions, DType: denoise}),
			Component: "unet", Stage: StageDenoise, Spec: fmt.Sprintf("%dx%dx%d, %d text tokens, %v", s.Batch, h, w, p.clip.MaxPositions, graph.DTypeName(denoise)),
		},
		unpack: p.unpackProgram(s.Batch, h, w),
		decoder: &Program{
			Network:   autoencoderkl.NewDecoder(p.vae, autoencoderkl.Sizes{Batch: 1, Height: h, Width: w, DType: decode}),
			Component: "vae", Stage: StageDecode, Aliases: autoencoderkl.Aliases, Spec: fmt.Sprintf("1x%dx%d %v", h, w, graph.DTypeName(decode)),
		},
	}
	ps.skipping = ps.encoder
	if clipSkip > 0 {
		ps.skipping = text(clipSkip)
	}
	return ps
}

// unpackProgram takes latents [B, C, h, w] to the autoencoder's scale and splits them by picture.
func (p *sdPipeline) unpackProgram(b, h, w int) *Program {
	n := trace.Network{Name: "unpack", Class: "unpack", DType: float32Type, Inputs: []trace.Input{{Name: "latents", Shape: f32(b, p.vae.LatentChannels, h, w)}}}
	for k := range b {
		n.Outputs = append(n.Outputs, fmt.Sprintf("latents%d", k))
	}
	n.Build = func(_ *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
		return unscale(in["latents"], p.vae, p.opts.DTypeFor("vae"))
	}
	return &Program{Network: n, Stage: StageDecode, Spec: fmt.Sprintf("%dx%dx%d %v", b, h, w, graph.DTypeName(p.opts.DTypeFor("vae")))}
}

func (p *sdPipeline) kind(r *Request) stepKind {
	switch {
	case *r.GuidanceScale <= 1:
		return plain
	case r.GuidanceRescale > 0:
		return rescaled
	}
	return guided
}

func (p *sdPipeline) Programs(s Sizes, r *Request) ([]*Program, error) {
	kind, skip := guided, 0
	if r != nil {
		kind, skip = p.kind(r), r.ClipSkip
	} else {
		r = &Request{NumInferenceSteps: 10}
	}
	schedule, err := p.schedule(r)
	if err != nil {
		return nil, err
	}
	ps := p.programs(s, skip)
	scale := p.vae.ScaleFactor()
	// Both forms of the small step program, so that turning guidance on or off compiles nothing.
	kinds := []stepKind{plain, guided}
	if kind == rescaled {
		kinds = append(kinds, rescaled)
	}
	out := []*Program{ps.encoder}
	if ps.skipping != ps.encoder {
		out = append(out, ps.skipping)
	}
	out = append(out, ps.unet)
	for _, k := range kinds {
		out = append(out, stepProgram([]int{s.Batch, p.unet.InChannels, s.Height / scale, s.Width / scale}, schedule.Slots, k, p.opts.DTypeFor("unet")))
	}
	return append(out, ps.unpack, ps.decoder), nil
}

func (p *sdPipeline) ActivationBytes(s Sizes) int64 {
	scale := p.vae.ScaleFactor()
	tokens := int64(s.Height/scale) * int64(s.Width/scale)
	c := int64(p.unet.BlockOutChannels[0])
	// The first level's activations with the skips that wait for the way up; the scores of one head at a time are the least any backend holds.
	unet := int64(s.Batch) * tokens * (c*20*int64(p.opts.DType.Size()) + tokens*4)
	return max(unet, vaeBytes(p.vae, s))
}

func (p *sdPipeline) open() error {
	if p.encoder != nil {
		return nil
	}
	tok, err := openTokenizer(p.ck, "tokenizer")
	if err != nil {
		return err
	}
	p.encoder = &textEncoder{component: "text_encoder", tok: tok, vocab: p.clip.VocabSize, length: p.clip.MaxPositions, limit: fmt.Sprintf("the %d tokens that CLIP takes", p.clip.MaxPositions)}
	return nil
}

func (p *sdPipeline) Prepare(r *Request) error {
	if err := p.open(); err != nil {
		return err
	}
	return p.encoder.check(r.Prompt, r.NegativePrompt)
}

func (p *sdPipeline) Encode(ctx context.Context, ex Executor, r *Request) (Embeds, error) {
	if err := p.open(); err != nil {
		return nil, err
	}
	ps, e := p.programs(p.Sizes(r), r.ClipSkip), Embeds{}
	encode := func(name string, program *Program, text string) error {
		out, err := p.encoder.encode(ctx, ex, r, program, text)
		if err != nil {
			return err
		}
		e.add(name, out["last_hidden_state"], p.clip.MaxPositions, p.clip.HiddenSize)
		r.observe(name, hostFloats(out["last_hidden_state"], 1, p.clip.MaxPositions, p.clip.HiddenSize))
		return nil
	}
	for _, text := range r.Prompt {
		if err := encode("prompt_embeds", ps.skipping, text); err != nil {
			return nil, err
		}
	}
	if p.kind(r) == plain {
		return e, nil
	}
	for i := range r.Prompt {
		// clip_skip is for the prompt alone: encode_prompt takes the negative one's last hidden state.
		text, _ := textFor(r.NegativePrompt, i)
		if err := encode("negative_prompt_embeds", ps.encoder, text); err != nil {
			return nil, err
		}
	}
	return e, nil
}

func (p *sdPipeline) Denoise(ctx context.Context, ex Executor, r *Request, e Embeds) (Tensor, error) {
	s := p.Sizes(r)
	ps := p.programs(s, r.ClipSkip)
	kind := p.kind(r)
	scale := p.vae.ScaleFactor()
	dims := []int{s.Batch, p.unet.InChannels, s.Height / scale, s.Width / scale}
	schedule, err := p.schedule(r)
	if err != nil {
		return nil, err
	}
	fixed := tensors{}
	defer fixed.free()
	if fixed["embeds"], err = e.put(ex, p.opts, "unet", "prompt_embeds", r.NumImagesPerPrompt); err != nil {
		return nil, err
	}
	if kind != plain {
		if fixed["negative"], err = e.put(ex, p.opts, "unet", "negative_prompt_embeds", r.NumImagesPerPrompt); err != nil {
			return nil, err
		}
	}
	gens := newGenerators(r.Seed, s.Batch)
	draw := func() []float32 { return gens.randn(dims[1:]...) }
	l := &loop{
		ex: ex, req: r, dims: dims, draw: draw, schedule: schedule, kind: kind, scaleAt: constant(*r.GuidanceScale),
		dtype: p.opts.DTypeFor("unet"), component: "unet",
	}
	if r.Latents != nil {
		l.latents = float32s(r.Latents.Data)
	} else {
		l.latents = draw()
	}
	l.denoise = func(ctx context.Context, input Tensor, i int) (cond, uncond Tensor, err error) {
		ts, err := ex.Put(f32(), float32Bytes([]float32{float32(schedule.Calls[i].Timestep)}))
		if err != nil {
			return nil, nil, err
		}
		defer ts.Free()
		call := func(embeds Tensor) (Tensor, error) {
			out, err := ex.Run(ctx, ps.unet, map[string]Tensor{"sample": input, "timestep": ts, "encoder_hidden_states": embeds})
			return out["sample"], err
		}
		if cond, err = call(fixed["embeds"]); err != nil || kind == plain {
			return cond, nil, err
		}
		if uncond, err = call(fixed["negative"]); err != nil {
			cond.Free()
		}
		return cond, uncond, err
	}
	return l.run(ctx)
}

func (p *sdPipeline) Decode(ctx context.Context, ex Executor, r *Request, latents Tensor) ([]Image, error) {
	s := p.Sizes(r)
	ps := p.programs(s, r.ClipSkip)
	return decodeImages(ctx, ex, r, ps.unpack, ps.decoder, latents, s)
}

func (p *sdPipeline) Extra(r *Request, _ int) map[string]any {
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
	return extra
}
