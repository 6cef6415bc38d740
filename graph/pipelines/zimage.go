package pipelines

import (
	"context"
	"fmt"

	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/models/autoencoderkl"
	"precast/graph/models/causallm"
	"precast/graph/models/zimage"
	"precast/graph/scheduler"
	"precast/graph/tokenizer"
	"precast/graph/trace"
)

// zimagePipeline is ZImagePipeline (diffusers, pipelines/z_image/pipeline_z_image.py): Z-Image and Z-Image-Turbo, text to image.
//
// In diffusers a prompt goes to the transformer at its own length. Here it is padded to max_sequence_length, with masks and positions that make the
// padding of no effect, so that another prompt compiles nothing.
type zimagePipeline struct {
	ck        *checkpoint.Checkpoint
	opts      Options
	text      causallm.Config
	zimage    zimage.Config
	vae       autoencoderkl.Config
	scheduler *scheduler.Scheduler
	tok       tokenizer.Tokenizer
}

func newZImage(ck *checkpoint.Checkpoint, o Options) (Pipeline, error) {
	p := &zimagePipeline{ck: ck, opts: o}
	err := joinErrors(
		parse(ck, "text_encoder", causallm.ParseConfig, &p.text, "Qwen3Model", "Qwen3ForCausalLM"),
		parse(ck, "transformer", zimage.ParseConfig, &p.zimage, "ZImageTransformer2DModel"),
		parse(ck, "vae", autoencoderkl.ParseConfig, &p.vae, "AutoencoderKL"),
	)
	if err != nil {
		return nil, err
	}
	if p.scheduler, err = newScheduler(ck, o.Scheduler, nil); err != nil {
		return nil, err
	}
	if _, err := p.schedule(&Request{NumInferenceSteps: 4}, 16); err != nil {
		return nil, flowFault(p, "Z-Image", err)
	}
	err = joinErrors(
		mustEqual(ck, "transformer", "cap_feat_dim", p.zimage.CaptionDim, "text_encoder", "hidden_size", p.text.HiddenSize),
		mustEqual(ck, "transformer", "in_channels", p.zimage.InChannels, "vae", "latent_channels", p.vae.LatentChannels),
	)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (p *zimagePipeline) Class() string { return "ZImagePipeline" }

func (p *zimagePipeline) Scheduler() string { return p.scheduler.Class }

// multiple is what height and width must be multiples of: a latent pixel, times the 2x2 patches.
func (p *zimagePipeline) multiple() int { return 2 * p.vae.ScaleFactor() }

const zimageSequence = 512 // max_sequence_length where none is given

// maxSequence is the longest text that is of use: the transformer has no positions for more, and the default is always possible, since a prompt may be
// shorter.
func (p *zimagePipeline) maxSequence() int { return max(zimageSequence, p.zimage.MaxText()) }

func (p *zimagePipeline) Defaults(r *Request) error {
	errs := refuse(r, p.Class(), "negative_prompt", "sigmas", "cfg_normalization", "cfg_truncation", "max_sequence_length", "vae_tiling", guidanceBatchArgument)
	setDefault(&r.Height, 1024/p.multiple()*p.multiple())
	setDefault(&r.Width, 1024/p.multiple()*p.multiple())
	r.stepsDefault(50)
	if r.GuidanceScale == nil {
		r.GuidanceScale = ptr(5.0)
	}
	if r.CFGTruncation == nil {
		r.CFGTruncation = ptr(1.0)
	}
	if *r.CFGTruncation < 1 && r.GuidanceBatch == guidanceOne {
		errs = append(errs, fmt.Errorf("%s: found %s with cfg_truncation %g, wanted %s: past it the denoiser has the prompts' half alone", guidanceBatchArgument, guidanceOne, *r.CFGTruncation, guidanceTwo))
	}
	r.sequenceDefault(zimageSequence, 0)
	if *r.GuidanceScale <= 0 {
		for name, given := range map[string]bool{"negative_prompt": len(r.NegativePrompt) > 0, "cfg_normalization": r.CFGNormalization} {
			if given {
				r.warn("%s has no effect: guidance_scale is %g; give one above 0", name, *r.GuidanceScale)
			}
		}
	}
	embeds := map[string][]int{"prompt_embeds": {r.MaxSequenceLength, p.text.HiddenSize}, "prompt_embeds_mask": {r.MaxSequenceLength}}
	s := p.Sizes(r)
	if err := joinErrors(append(errs, r.check(), r.PromptEmbeds.check(p.kind(r), embeds), p.checkSizes(s), p.autoencoder().check(r))...); err != nil {
		return err
	}
	if err := joinErrors(checkLatents(r, p.latents(s)...), p.checkEmbeds(r)); err != nil {
		return err
	}
	schedule, err := p.schedule(r, p.tokens(s))
	if err != nil {
		return err
	}
	return checkStepNoise(r, schedule, p.latents(s)...)
}

// checkEmbeds finds given embeddings whose masks say nothing, or more than the transformer has positions for.
func (p *zimagePipeline) checkEmbeds(r *Request) error {
	var errs []error
	for _, name := range []string{"prompt_embeds_mask", "negative_prompt_embeds_mask"} {
		if _, ok := r.PromptEmbeds[name]; !ok {
			continue
		}
		for i := range r.Prompts() {
			n, err := textTokens(r.PromptEmbeds.row(name, i))
			if err == nil {
				err = p.zimage.CheckText(n)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s of prompt %d: %w", name, i, err))
			}
		}
	}
	return joinErrors(errs...)
}

func (p *zimagePipeline) Sizes(r *Request) Sizes {
	return Sizes{Batch: r.Batch(), Height: r.Height, Width: r.Width, MaxSequenceLength: r.MaxSequenceLength, VAETiling: r.VAETiling, GuidanceBatch: r.guidanceBatch()}
}

func (p *zimagePipeline) checkSizes(s Sizes) error {
	err := joinErrors(checkBatch(s.Batch), checkSide("height", s.Height, p.multiple(), p.multiple()), checkSide("width", s.Width, p.multiple(), p.multiple()))
	if err != nil {
		return err
	}
	if err := checkSequence(s.MaxSequenceLength, p.maxSequence()); err != nil {
		return err
	}
	return joinErrors(p.encoderOptions(s).Check(p.text), p.transformerOptions(s).Check(p.zimage))
}

// latents is the shape of the latents.
func (p *zimagePipeline) latents(s Sizes) []int {
	return []int{s.Batch, p.vae.LatentChannels, s.Height / p.vae.ScaleFactor(), s.Width / p.vae.ScaleFactor()}
}

// tokens is the number of image tokens.
func (p *zimagePipeline) tokens(s Sizes) int {
	return (s.Height / p.multiple()) * (s.Width / p.multiple())
}

// encoderOptions ask for the states before the last layer: hidden_states[-2] of _encode_prompt.
func (p *zimagePipeline) encoderOptions(s Sizes) causallm.Options {
	return causallm.Options{Batch: 1, Length: s.MaxSequenceLength, Outputs: []string{p.states()}}
}

func (p *zimagePipeline) states() string { return fmt.Sprintf("hidden_states/%d", p.text.Layers-1) }

func (p *zimagePipeline) transformerOptions(s Sizes) zimage.Options {
	latents := p.latents(s)
	return zimage.Options{Batch: s.Batch, TextLength: s.MaxSequenceLength, Height: latents[2], Width: latents[3]}
}

func (p *zimagePipeline) autoencoder() autoencoder { return newAutoencoder(p.vae, p.opts) }

// zimagePrograms are the pipeline's programs at one set of sizes, less the step and the decoders.
type zimagePrograms struct {
	text, transformer, unpack *Program
}

func (p *zimagePipeline) programs(s Sizes) *zimagePrograms {
	latents := p.latents(s)
	h, w := latents[2], latents[3]
	text, denoise := p.opts.DTypeFor("text_encoder"), p.opts.DTypeFor("transformer")
	return &zimagePrograms{
		text: &Program{
			Network:   causallm.New(p.text, p.encoderOptions(s), text),
			Component: "text_encoder", Aliases: causallm.Aliases, Spec: fmt.Sprintf("1x%d %v %s", s.MaxSequenceLength, graph.DTypeName(text), p.states()),
		},
		transformer: &Program{
			Network:   negated(zimage.New(p.zimage, p.transformerOptions(s), denoise)),
			Component: "transformer", Stage: StageDenoise,
			Spec: fmt.Sprintf("%dx%dx%d, %d text tokens, %v", s.Batch, h, w, s.MaxSequenceLength, graph.DTypeName(denoise)),
		},
		unpack: p.autoencoder().unpack(s.Batch, h, w),
	}
}

// negated is the transformer with its results negated, as the scheduler takes them. Guidance and its normalisation are the same before and after a
// change of sign.
func negated(n trace.Network) trace.Network {
	build := n.Build
	n.Build = func(c *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
		out := build(c, in)
		for i, x := range out {
			out[i] = ml.Neg(x)
		}
		return out
	}
	return n
}

// kind says how a request guides. Unlike in other pipelines any scale above 0 does: the formula is cond + scale (cond - uncond).
func (p *zimagePipeline) kind(r *Request) stepKind {
	switch {
	case *r.GuidanceScale <= 0:
		return plain
	case r.CFGNormalization:
		return pictureNormed
	}
	return guided
}

func (p *zimagePipeline) Programs(r *Request) ([]*Program, error) {
	s := p.Sizes(r)
	// Both forms of the small step program, so that turning guidance on or off compiles nothing.
	kind := p.kind(r)
	kinds := s.stepKinds(kind, plain, guided)
	schedule, err := p.schedule(r, p.tokens(s))
	if err != nil {
		return nil, err
	}
	ps := p.programs(s)
	out := []*Program{ps.text, p.programs(s.denoiser(kind)).transformer}
	for _, k := range kinds {
		out = append(out, stepProgram(p.latents(s), schedule.Slots, k, s.joins(k), p.opts.DTypeFor("transformer")))
	}
	latents := p.latents(s)
	decoders, err := p.autoencoder().decoders(latents[2], latents[3], s.VAETiling)
	if err != nil {
		return nil, err
	}
	return append(append(out, ps.unpack), decoders...), nil
}

// schedule computes the sampler's plan for a number of image tokens.
func (p *zimagePipeline) schedule(r *Request, tokens int) (*scheduler.Schedule, error) {
	o := scheduler.Options{Steps: r.NumInferenceSteps, Sigmas: r.Sigmas, Mu: ptr(p.scheduler.ShiftRange().Mu(tokens))}
	if len(o.Sigmas) == 0 {
		// The scheduler refuses too many steps; the list need not be made for that.
		o.Sigmas = zimageSigmas(min(r.NumInferenceSteps, scheduler.MaxSteps))
	}
	return p.scheduler.Schedule(o)
}

// zimageSigmas are n values evenly from 1 to 1/n in float32 (get_default_z_image_sigmas). torch.linspace counts the first half from the start and the
// rest from the end, each value rounded once. Even spacing in float64 gives other last digits, which the transformer's embedding of the time, a sine of up
// to 1000, turns into differences of 1e-4.
func zimageSigmas(n int) []float64 {
	if n < 1 {
		return nil
	}
	sigmas := make([]float64, n)
	end := float32(1 / float64(n))
	step := float64((end - 1) / float32(max(n-1, 1)))
	for i := range sigmas {
		v := 1 + step*float64(i)
		if i >= n/2 {
			v = float64(end) - step*float64(n-1-i)
		}
		sigmas[i] = float64(float32(v))
	}
	return sigmas
}

func (p *zimagePipeline) open() error {
	if p.tok != nil {
		return nil
	}
	var err error
	p.tok, err = openTokenizer(p.ck, "tokenizer")
	return err
}

// encoder is the text encoder at the request's length. A prompt is the user's message of a chat.
func (p *zimagePipeline) encoder(r *Request) *textEncoder {
	return &textEncoder{
		component: "text_encoder", tok: p.tok, vocab: p.text.VocabSize,
		length: r.MaxSequenceLength, limit: fmt.Sprintf("max_sequence_length, %d tokens with those of the chat", r.MaxSequenceLength),
		render: func(prompt string) (string, error) {
			return p.tok.RenderChat([]tokenizer.Message{{Role: "user", Content: prompt}}, tokenizer.ChatOptions{AddGenerationPrompt: true, EnableThinking: ptr(true)})
		},
	}
}

func (p *zimagePipeline) Prepare(r *Request) error {
	if err := p.open(); err != nil {
		return err
	}
	encoder := p.encoder(r)
	check := func(text string) error {
		e, err := encoder.tokens(text)
		if err != nil {
			return err
		}
		n := 0
		for _, m := range e.Mask {
			n += int(m)
		}
		return p.zimage.CheckText(n)
	}
	var errs []error
	for i := range r.Prompt {
		errs = append(errs, check(r.Prompt[i]))
		if p.kind(r) != plain {
			text, _ := textFor(r.NegativePrompt, i)
			errs = append(errs, check(text))
		}
	}
	return joinErrors(errs...)
}

func (p *zimagePipeline) Encode(ctx context.Context, ex Executor, r *Request) (Embeds, error) {
	if err := p.open(); err != nil {
		return nil, err
	}
	program, encoder, e := p.programs(p.Sizes(r)).text, p.encoder(r), Embeds{}
	width := p.text.HiddenSize
	// encode adds the states of the prompt's own tokens, in front, and how many there are as a mask.
	encode := func(prefix, text string) error {
		ids, err := encoder.tokens(text)
		if err != nil {
			return err
		}
		out, err := encoder.encode(ctx, ex, r, program, text)
		if err != nil {
			return err
		}
		states, mask := make([]float32, r.MaxSequenceLength*width), make([]float32, r.MaxSequenceLength)
		n := 0
		for i, m := range ids.Mask {
			if m != 0 {
				copy(states[n*width:], out[p.states()][i*width:(i+1)*width])
				mask[n] = 1
				n++
			}
		}
		e.add(prefix+"prompt_embeds", states, r.MaxSequenceLength, width)
		e.add(prefix+"prompt_embeds_mask", mask, r.MaxSequenceLength)
		r.observe(prefix+"prompt_embeds", hostFloats(states[:n*width], n, width))
		return nil
	}
	for _, text := range r.Prompt {
		if err := encode("", text); err != nil {
			return nil, err
		}
	}
	if p.kind(r) == plain {
		return e, nil
	}
	for i := range r.Prompt {
		text, _ := textFor(r.NegativePrompt, i)
		if err := encode("negative_", text); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// textTokens reads a row of a mask: ones at the tokens, in front, then zeros.
func textTokens(mask []float32) (int, error) {
	n := 0
	for n < len(mask) && mask[n] == 1 {
		n++
	}
	for _, m := range mask[n:] {
		if m != 0 {
			return 0, fmt.Errorf("found %g behind %d tokens, wanted ones and then zeros", m, n)
		}
	}
	if n == 0 {
		return 0, fmt.Errorf("found no tokens, wanted one or more")
	}
	return n, nil
}

// give uploads what the transformer is given of the prompts, or with prefix "negative_" of the negative ones, a row a picture.
func (p *zimagePipeline) give(to tensors, ex Executor, r *Request, s Sizes, e Embeds, prefix string) error {
	latents := p.latents(s)
	var mask, keys []int32
	var cos, sin []float32
	for k := range s.Batch {
		n, err := textTokens(e.row(prefix+"prompt_embeds_mask", k/r.NumImagesPerPrompt))
		if err != nil {
			return fmt.Errorf("%sprompt_embeds_mask of prompt %d: %w", prefix, k/r.NumImagesPerPrompt, err)
		}
		m, seen := zimage.Masks(n, s.MaxSequenceLength)
		c, si, err := zimage.RoPE(p.zimage, latents[2]/2, latents[3]/2, n, s.MaxSequenceLength)
		if err != nil {
			return err
		}
		mask, keys, cos, sin = append(mask, m...), append(keys, seen...), append(cos, c...), append(sin, si...)
	}
	if err := e.give(to, ex, p.opts, "transformer", prefix, r.NumImagesPerPrompt, map[string]string{"encoder_hidden_states": "prompt_embeds"}); err != nil {
		return err
	}
	if err := to.putInts(ex, "text_mask", mask, s.Batch, len(mask)/s.Batch); err != nil {
		return err
	}
	if err := to.putInts(ex, "text_keys", keys, s.Batch, len(keys)/s.Batch); err != nil {
		return err
	}
	return to.putRotary(ex, cos, sin, s.Batch, len(cos)/s.Batch/p.zimage.HeadDim(), p.zimage.HeadDim())
}

func (p *zimagePipeline) Denoise(ctx context.Context, ex Executor, r *Request, e Embeds) (Tensor, error) {
	s := p.Sizes(r)
	kind, dims := p.kind(r), p.latents(s)
	transformer := p.programs(s.denoiser(kind)).transformer
	schedule, err := p.schedule(r, p.tokens(s))
	if err != nil {
		return nil, err
	}
	c, err := newConditions(kind, func(to tensors, prefix string) error { return p.give(to, ex, r, s, e, prefix) })
	if err != nil {
		return nil, err
	}
	defer c.free()
	// time is what the transformer is told at call i: 0 is noise, 1 the picture.
	time := func(i int) float32 { return (1000 - float32(schedule.Calls[i].Timestep)) / 1000 }
	// Past cfg_truncation there is no guidance.
	truncated := func(i int) bool { return *r.CFGTruncation <= 1 && float64(time(i)) > *r.CFGTruncation }

	if s.joins(kind) {
		if err := c.join(ctx, ex, transformer); err != nil {
			return nil, err
		}
	}
	gens := newGenerators(r.Seed, s.Batch)
	draw := func() []float32 { return gens.randn(dims[1:]...) }
	l := &loop{
		ex: ex, req: r, dims: dims, draw: draw, schedule: schedule, kind: kind, joined: s.joins(kind),
		// cond + scale (cond - uncond) is uncond + (1 + scale) (cond - uncond).
		scaleAt: constant(1 + *r.GuidanceScale),
		dtype:   p.opts.DTypeFor("transformer"), component: "transformer",
	}
	if r.Latents != nil {
		l.latents = float32s(r.Latents.Data)
	} else {
		l.latents = draw()
	}
	l.denoise = func(ctx context.Context, input Tensor, i int) (cond, uncond Tensor, err error) {
		if kind != plain && truncated(i) {
			// Guided by itself, the result stays what it is.
			cond, _, err = callDenoiser(ctx, ex, transformer, plain, input, time(i), c)
			return cond, cond, err
		}
		return callDenoiser(ctx, ex, transformer, kind, input, time(i), c)
	}
	return l.run(ctx)
}

func (p *zimagePipeline) Decode(ctx context.Context, ex Executor, r *Request, latents Tensor) ([]Image, error) {
	s := p.Sizes(r)
	return p.autoencoder().decode(ctx, ex, r, p.programs(s).unpack, latents, s)
}

func (p *zimagePipeline) Extra(r *Request, _ int) map[string]any {
	extra := map[string]any{"max_sequence_length": r.MaxSequenceLength}
	if p.kind(r) != plain {
		extra["cfg_normalization"], extra["cfg_truncation"] = r.CFGNormalization, *r.CFGTruncation
	}
	return extra
}
