package pipelines

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/models/autoencoderkl"
	"precast/graph/models/clip"
	"precast/graph/models/sd3"
	"precast/graph/models/t5"
	"precast/graph/scheduler"
)

// sd3Pipeline is StableDiffusion3Pipeline (diffusers, pipelines/stable_diffusion_3/pipeline_stable_diffusion_3.py): Stable Diffusion 3 and 3.5, text to
// image. Skip-layer guidance and IP adapters are not supported.
type sd3Pipeline struct {
	ck        *checkpoint.Checkpoint
	opts      Options
	clip      [2]clip.Config
	t5        *t5.Config // nil where the checkpoint has no text_encoder_3: its embeddings are then zeros
	sd3       sd3.Config
	vae       autoencoderkl.Config
	scheduler *scheduler.Scheduler
	encoders  []*textEncoder // CLIP, CLIP and, where it is there, T5, whose length is the request's
}

// sd3Encoders are the names of the text encoders; the tokenizers are numbered likewise.
var sd3Encoders = [3]string{"text_encoder", "text_encoder_2", "text_encoder_3"}

func newStableDiffusion3(ck *checkpoint.Checkpoint, o Options) (Pipeline, error) {
	p := &sd3Pipeline{ck: ck, opts: o}
	errs := []error{
		parse(ck, sd3Encoders[0], clip.ParseConfig, &p.clip[0], "CLIPTextModelWithProjection"),
		parse(ck, sd3Encoders[1], clip.ParseConfig, &p.clip[1], "CLIPTextModelWithProjection"),
		parse(ck, "transformer", sd3.ParseConfig, &p.sd3, "SD3Transformer2DModel"),
		parse(ck, "vae", autoencoderkl.ParseConfig, &p.vae, "AutoencoderKL"),
	}
	if ck.Has(sd3Encoders[2]) {
		p.t5 = &t5.Config{}
		errs = append(errs, parse(ck, sd3Encoders[2], t5.ParseConfig, p.t5, "T5EncoderModel"))
	}
	if err := joinErrors(errs...); err != nil {
		return nil, err
	}
	var err error
	if p.scheduler, err = newScheduler(ck, o.Scheduler, nil); err != nil {
		return nil, err
	}
	if !p.scheduler.UsesFlowSigmas() && !strings.HasPrefix(p.scheduler.Class, "FlowMatch") {
		return nil, fmt.Errorf("scheduler %s with this config can't drive StableDiffusion3Pipeline, whose transformer predicts a flow; Stable Diffusion 3 comes with FlowMatchEulerDiscreteScheduler",
			p.scheduler.Class)
	}
	errs = []error{
		mustEqual(ck, "transformer", "pooled_projection_dim", p.sd3.PooledDim, "text_encoder and text_encoder_2 together", "projection_dim", p.clip[0].ProjectionDim+p.clip[1].ProjectionDim),
		mustEqual(ck, "transformer", "in_channels", p.sd3.InChannels, "vae", "latent_channels", p.vae.LatentChannels),
		mustEqual(ck, "transformer", "out_channels", p.sd3.OutChannels, "vae", "latent_channels", p.vae.LatentChannels),
	}
	if width := p.clip[0].HiddenSize + p.clip[1].HiddenSize; width > p.sd3.JointDim {
		errs = append(errs, fmt.Errorf("%s: the components do not fit together: text_encoder and text_encoder_2 have hidden_size %d and %d, together %d, transformer has joint_attention_dim %d; wanted at most as many",
			ck.Dir(), p.clip[0].HiddenSize, p.clip[1].HiddenSize, width, p.sd3.JointDim))
	}
	if p.t5 != nil {
		errs = append(errs, mustEqual(ck, "transformer", "joint_attention_dim", p.sd3.JointDim, sd3Encoders[2], "d_model", p.t5.Model))
	} else {
		ck.Note("there is no text_encoder_3: its part of the embeddings is zeros, as in diffusers")
	}
	if err := joinErrors(errs...); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *sd3Pipeline) Class() string { return "StableDiffusion3Pipeline" }

func (p *sd3Pipeline) Scheduler() string { return p.scheduler.Class }

// multiple is what height and width must be multiples of: a latent pixel, times the patches.
func (p *sd3Pipeline) multiple() int { return p.sd3.PatchSize * p.vae.ScaleFactor() }

const (
	sd3Sequence    = 256 // max_sequence_length where none is given
	sd3MaxSequence = 512
)

// clipLength is the number of tokens of both CLIP encoders.
func (p *sd3Pipeline) clipLength() int {
	return min(p.clip[0].MaxPositions, p.clip[1].MaxPositions, 77)
}

func (p *sd3Pipeline) Defaults(r *Request) error {
	errs := refuse(r, p.Class(), "prompt_2", "prompt_3", "negative_prompt", "negative_prompt_2", "negative_prompt_3", "sigmas", "clip_skip", "max_sequence_length", "vae_tiling", guidanceBatchArgument)
	setDefault(&r.Height, p.sd3.SampleSize*p.vae.ScaleFactor())
	setDefault(&r.Width, p.sd3.SampleSize*p.vae.ScaleFactor())
	r.stepsDefault(28)
	if r.GuidanceScale == nil {
		r.GuidanceScale = ptr(7.0)
	}
	r.sequenceDefault(sd3Sequence, p.clipLength())
	errs = append(errs, checkSequence(r.MaxSequenceLength, sd3MaxSequence))
	if most := min(p.clip[0].Layers, p.clip[1].Layers) - 1; r.ClipSkip > most {
		errs = append(errs, fmt.Errorf("clip_skip: found %d, wanted at most %d, one less than the layers of each CLIP text encoder", r.ClipSkip, most))
	}
	if *r.GuidanceScale <= 1 {
		warnUnguided(r)
	}
	embeds := map[string][]int{"prompt_embeds": {p.textLength(r.MaxSequenceLength), p.sd3.JointDim}, "pooled_prompt_embeds": {p.sd3.PooledDim}}
	s := p.Sizes(r)
	if err := joinErrors(append(errs, r.check(), r.PromptEmbeds.check(p.kind(r), embeds), p.checkSizes(s), checkLatents(r, p.latents(s)...), p.autoencoder().check(r))...); err != nil {
		return err
	}
	schedule, err := p.schedule(r, s)
	if err != nil {
		return err
	}
	return checkStepNoise(r, schedule, p.latents(s)...)
}

func (p *sd3Pipeline) Sizes(r *Request) Sizes {
	return Sizes{Batch: r.Batch(), Height: r.Height, Width: r.Width, MaxSequenceLength: r.MaxSequenceLength, VAETiling: r.VAETiling, GuidanceBatch: r.guidanceBatch()}
}

func (p *sd3Pipeline) checkSizes(s Sizes) error {
	side := func(name string, n int) error {
		if err := checkSide(name, n, p.multiple(), p.multiple()); err != nil {
			return err
		}
		if most := p.sd3.PosEmbedMaxSize * p.multiple(); n > most {
			return fmt.Errorf("%s: found %d, wanted at most %d: the transformer has positions for %d patches (pos_embed_max_size)", name, n, most, p.sd3.PosEmbedMaxSize)
		}
		return nil
	}
	return joinErrors(checkBatch(s.Batch), side("height", s.Height), side("width", s.Width))
}

// latents is the shape of the latents.
func (p *sd3Pipeline) latents(s Sizes) []int {
	return []int{s.Batch, p.vae.LatentChannels, s.Height / p.vae.ScaleFactor(), s.Width / p.vae.ScaleFactor()}
}

// textLength is the number of text tokens that the transformer is given: CLIP's, then T5's.
func (p *sd3Pipeline) textLength(t5 int) int { return p.clipLength() + t5 }

func (p *sd3Pipeline) autoencoder() autoencoder { return newAutoencoder(p.vae, p.opts) }

// sd3Programs are the pipeline's programs at one set of sizes, less the step and the decoders; t5 is nil where there is none.
type sd3Programs struct {
	clip                    [2]*Program
	t5, transformer, unpack *Program
}

func (p *sd3Pipeline) programs(s Sizes, clipSkip int) *sd3Programs {
	latents := p.latents(s)
	h, w, text := latents[2], latents[3], p.textLength(s.MaxSequenceLength)
	denoise := p.opts.DTypeFor("transformer")
	ps := &sd3Programs{
		transformer: &Program{
			Network:   sd3.New(p.sd3, sd3.Options{Batch: s.Batch, Height: h, Width: w, TextLength: text}, denoise),
			Component: "transformer", Stage: StageDenoise, Spec: fmt.Sprintf("%dx%dx%d, %d text tokens, %v", s.Batch, h, w, text, graph.DTypeName(denoise)),
		},
		unpack: p.autoencoder().unpack(s.Batch, h, w),
	}
	for i := range ps.clip {
		component, outputs := sd3Encoders[i], []string{"text_embeds", p.hiddenStates(i, 0)}
		if clipSkip > 0 {
			outputs = append(outputs, p.hiddenStates(i, clipSkip))
		}
		dtype := p.opts.DTypeFor(component)
		ps.clip[i] = &Program{
			Network:   clip.NewText(p.clip[i], clip.Options{Name: component, Batch: 1, Length: p.clipLength(), Outputs: outputs}, dtype),
			Component: component, Aliases: clip.Aliases, Spec: fmt.Sprintf("1x%d %v %v", p.clipLength(), graph.DTypeName(dtype), outputs),
		}
	}
	if p.t5 != nil {
		component := sd3Encoders[2]
		dtype := p.opts.DTypeFor(component)
		ps.t5 = &Program{
			Network:   t5.New(*p.t5, t5.Options{Name: component, Batch: 1, Length: s.MaxSequenceLength}, dtype),
			Component: component, Aliases: t5.Aliases, Spec: fmt.Sprintf("1x%d %v", s.MaxSequenceLength, graph.DTypeName(dtype)),
		}
	}
	return ps
}

// hiddenStates names the state of CLIP encoder i that the prompt's embeddings are: the last but one, or clipSkip layers before it.
func (p *sd3Pipeline) hiddenStates(i, clipSkip int) string {
	return fmt.Sprintf("hidden_states/%d", p.clip[i].Layers-1-clipSkip)
}

func (p *sd3Pipeline) kind(r *Request) stepKind {
	if *r.GuidanceScale <= 1 {
		return plain
	}
	return guided
}

func (p *sd3Pipeline) Programs(r *Request) ([]*Program, error) {
	s := p.Sizes(r)
	schedule, err := p.schedule(r, s)
	if err != nil {
		return nil, err
	}
	ps := p.programs(s, r.ClipSkip)
	out := ps.clip[:]
	if ps.t5 != nil {
		out = append(out, ps.t5)
	}
	kind := p.kind(r)
	out = append(out, p.programs(s.denoiser(kind), r.ClipSkip).transformer)
	// Both forms of the small step program, so that turning guidance on or off compiles nothing.
	for _, k := range s.stepKinds(kind, plain, guided) {
		out = append(out, stepProgram(p.latents(s), schedule.Slots, k, s.joins(k), p.opts.DTypeFor("transformer")))
	}
	latents := p.latents(s)
	decoders, err := p.autoencoder().decoders(latents[2], latents[3], s.VAETiling)
	if err != nil {
		return nil, err
	}
	return append(append(out, ps.unpack), decoders...), nil
}

// schedule computes the sampler's plan. The sigmas are the scheduler's own, and mu is given only where it shifts by the size.
func (p *sd3Pipeline) schedule(r *Request, s Sizes) (*scheduler.Schedule, error) {
	o := scheduler.Options{Steps: r.NumInferenceSteps, Sigmas: r.Sigmas}
	if p.scheduler.DynamicShifting() {
		o.Mu = ptr(p.scheduler.ShiftRange().Mu((s.Height / p.multiple()) * (s.Width / p.multiple())))
	}
	return p.scheduler.Schedule(o)
}

func (p *sd3Pipeline) open() error {
	if p.encoders != nil {
		return nil
	}
	var encoders []*textEncoder
	for i, component := range sd3Encoders {
		if !p.ck.Has(component) {
			continue
		}
		tok, err := openTokenizer(p.ck, []string{"tokenizer", "tokenizer_2", "tokenizer_3"}[i])
		if err != nil {
			return err
		}
		e := &textEncoder{component: component, tok: tok}
		if i < 2 {
			e.vocab, e.length, e.limit = p.clip[i].VocabSize, p.clipLength(), fmt.Sprintf("the %d tokens that CLIP takes", p.clipLength())
		} else {
			e.vocab = p.t5.VocabSize
		}
		encoders = append(encoders, e)
	}
	p.encoders = encoders
	return nil
}

// encodersFor are the encoders at the request's lengths.
func (p *sd3Pipeline) encodersFor(r *Request) []*textEncoder {
	encoders := slices.Clone(p.encoders)
	if p.t5 != nil {
		encoders[2] = encoders[2].at(r.MaxSequenceLength)
	}
	return encoders
}

func (p *sd3Pipeline) Prepare(r *Request) error {
	if err := p.open(); err != nil {
		return err
	}
	var errs []error
	for i, e := range p.encodersFor(r) {
		own := [][2][]string{{r.Prompt, r.NegativePrompt}, {r.Prompt2, r.NegativePrompt2}, {r.Prompt3, r.NegativePrompt3}}[i]
		errs = append(errs, e.check(r.Prompt, r.NegativePrompt, own[0], own[1]))
	}
	return joinErrors(errs...)
}

func (p *sd3Pipeline) Encode(ctx context.Context, ex Executor, r *Request) (Embeds, error) {
	if err := p.open(); err != nil {
		return nil, err
	}
	ps, encoders, e := p.programs(p.Sizes(r), r.ClipSkip), p.encodersFor(r), Embeds{}
	// encode encodes texts for each encoder; lists after the first replace it. prefix is that of the names in diffusers.
	encode := func(prefix string, clipSkip int, lists [3][]string) error {
		for i := range r.Prompt {
			var texts [3]string
			for k, list := range lists {
				text, ok := textFor(list, i)
				if !ok {
					text = texts[0]
				}
				texts[k] = text
			}
			var states [2][]float32
			var pooled, long []float32
			for k := range states {
				out, err := encoders[k].encode(ctx, ex, r, ps.clip[k], texts[k])
				if err != nil {
					return err
				}
				states[k], pooled = out[p.hiddenStates(k, clipSkip)], append(pooled, out["text_embeds"]...)
			}
			if p.t5 != nil {
				out, err := encoders[2].encode(ctx, ex, r, ps.t5, texts[2])
				if err != nil {
					return err
				}
				long = out["last_hidden_state"]
			}
			length := p.textLength(r.MaxSequenceLength)
			embeds := p.join(states, long, length)
			e.record(r, prefix+"prompt_embeds", embeds, length, p.sd3.JointDim)
			e.record(r, prefix+"pooled_prompt_embeds", pooled, p.sd3.PooledDim)
		}
		return nil
	}
	if err := encode("", r.ClipSkip, [3][]string{r.Prompt, r.Prompt2, r.Prompt3}); err != nil {
		return nil, err
	}
	if p.kind(r) == guided {
		// clip_skip is for the prompt alone: encode_prompt gives the negative one none.
		return e, encode("negative_", 0, [3][]string{r.NegativePrompt, r.NegativePrompt2, r.NegativePrompt3})
	}
	return e, nil
}

// join puts the embeddings of the encoders together: the states of both CLIP encoders side by side, filled up with zeros to the transformer's width, and T5's
// tokens after theirs, zeros where there is no T5. The result is [length, joint_attention_dim].
func (p *sd3Pipeline) join(clip [2][]float32, t5 []float32, length int) []float32 {
	out := make([]float32, length*p.sd3.JointDim)
	for i := range p.clipLength() {
		row := out[i*p.sd3.JointDim:]
		for k, states := range clip {
			width := p.clip[k].HiddenSize
			copy(row, states[i*width:(i+1)*width])
			row = row[width:]
		}
	}
	copy(out[p.clipLength()*p.sd3.JointDim:], t5)
	return out
}

func (p *sd3Pipeline) Denoise(ctx context.Context, ex Executor, r *Request, e Embeds) (Tensor, error) {
	s := p.Sizes(r)
	kind, dims := p.kind(r), p.latents(s)
	transformer := p.programs(s.denoiser(kind), r.ClipSkip).transformer
	schedule, err := p.schedule(r, s)
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
	if s.joins(kind) {
		if err := c.join(ctx, ex, transformer); err != nil {
			return nil, err
		}
	}
	gens := newGenerators(r.Seed, s.Batch)
	draw := func() []float32 { return gens.randn(dims[1:]...) }
	l := &loop{
		ex: ex, req: r, dims: dims, draw: draw, schedule: schedule, kind: kind, joined: s.joins(kind), scaleAt: constant(*r.GuidanceScale),
		dtype: p.opts.DTypeFor("transformer"), component: "transformer",
	}
	if r.Latents != nil {
		l.latents = float32s(r.Latents.Data)
	} else {
		l.latents = draw()
	}
	l.denoise = func(ctx context.Context, input Tensor, i int) (cond, uncond Tensor, err error) {
		return callDenoiser(ctx, ex, transformer, kind, input, float32(schedule.Calls[i].Timestep), c)
	}
	return l.run(ctx)
}

func (p *sd3Pipeline) Decode(ctx context.Context, ex Executor, r *Request, latents Tensor) ([]Image, error) {
	s := p.Sizes(r)
	return p.autoencoder().decode(ctx, ex, r, p.programs(s, 0).unpack, latents, s)
}

func (p *sd3Pipeline) Extra(r *Request, k int) map[string]any {
	extra := map[string]any{"max_sequence_length": r.MaxSequenceLength}
	if r.ClipSkip > 0 {
		extra["clip_skip"] = r.ClipSkip
	}
	for name, list := range map[string][]string{"prompt_2": r.Prompt2, "prompt_3": r.Prompt3, "negative_prompt_2": r.NegativePrompt2, "negative_prompt_3": r.NegativePrompt3} {
		if t, ok := textFor(list, k/r.NumImagesPerPrompt); ok {
			extra[name] = t
		}
	}
	return extra
}
