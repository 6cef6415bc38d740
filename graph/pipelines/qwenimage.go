package pipelines

import (
	"context"
	"fmt"
	"slices"
	"strings"

	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/models/autoencoderklwan"
	"precast/graph/models/causallm"
	"precast/graph/models/qwenimage"
	"precast/graph/scheduler"
	"precast/graph/tokenizer"
)

// qwenImagePipeline is QwenImagePipeline (diffusers, pipelines/qwenimage/pipeline_qwenimage.py), text to image.
//
// diffusers makes the text as long as the longest prompt of a batch. Here it has max_sequence_length tokens whatever the prompt, and a mask says which are the
// prompt's: the results are the same, and another prompt runs the same programs.
type qwenImagePipeline struct {
	ck        *checkpoint.Checkpoint
	opts      Options
	text      causallm.Config
	qwen      qwenimage.Config
	vae       autoencoderklwan.Config
	scheduler *scheduler.Scheduler
	tok       tokenizer.Tokenizer
}

const (
	// qwenTemplate is prompt_template_encode; %s is the prompt.
	qwenTemplate = "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial relationships of the objects " +
		"and background:<|im_end|>\n<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n"
	// qwenDrop is prompt_template_encode_start_idx: the tokens of the template before the prompt, whose embeddings are left out.
	qwenDrop = 34

	qwenSequence    = 512 // max_sequence_length where none is given
	qwenMaxSequence = 1024

	qwenTextClass = "Qwen2_5_VLForConditionalGeneration"
)

func newQwenImage(ck *checkpoint.Checkpoint, o Options) (Pipeline, error) {
	p := &qwenImagePipeline{ck: ck, opts: o}
	vae := func(c *checkpoint.Config) (autoencoderklwan.Config, error) {
		return autoencoderklwan.ParseConfig(c, autoencoderklwan.ClassQwenImage)
	}
	err := joinErrors(
		parse(ck, "text_encoder", causallm.ParseConfig, &p.text, qwenTextClass),
		parse(ck, "transformer", qwenimage.ParseConfig, &p.qwen, "QwenImageTransformer2DModel"),
		parse(ck, "vae", vae, &p.vae, autoencoderklwan.ClassQwenImage),
	)
	if err != nil {
		return nil, err
	}
	if p.scheduler, err = newScheduler(ck, o.Scheduler, nil); err != nil {
		return nil, err
	}
	if _, err := p.schedule(&Request{NumInferenceSteps: 4}, 16); err != nil {
		return nil, flowFault(p, "Qwen-Image", err)
	}
	var errs []error
	if p.text.Class != qwenTextClass {
		errs = append(errs, fmt.Errorf("%s: found the config of a %s, wanted that of a %s", ck.Path("text_encoder", "config.json"), p.text.Class, qwenTextClass))
	}
	if p.qwen.PatchSize != 2 {
		errs = append(errs, fmt.Errorf("%s: patch_size: found %d, wanted 2: QwenImagePipeline packs latents in squares of 2x2", ck.Path("transformer", "config.json"), p.qwen.PatchSize))
	}
	if p.vae.OutChannels != 3 {
		errs = append(errs, fmt.Errorf("%s: input_channels: found %d, wanted 3: pictures are RGB", ck.Path("vae", "config.json"), p.vae.OutChannels))
	}
	errs = append(errs,
		mustEqual(ck, "transformer", "joint_attention_dim", p.qwen.JointDim, "text_encoder", "hidden_size", p.text.HiddenSize),
		mustEqual(ck, "transformer", "in_channels", p.qwen.InChannels, "vae", "4 x z_dim", 4*p.vae.ZDim),
		mustEqual(ck, "transformer", "in_channels", p.qwen.InChannels, "transformer", "patch_size^2 x out_channels", p.qwen.PatchSize*p.qwen.PatchSize*p.qwen.OutChannels),
	)
	if err := joinErrors(errs...); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *qwenImagePipeline) Class() string { return "QwenImagePipeline" }

func (p *qwenImagePipeline) Scheduler() string { return p.scheduler.Class }

// multiple is what height and width must be multiples of: a latent pixel, times the 2x2 patches.
func (p *qwenImagePipeline) multiple() int { return 2 * p.vae.SpatialFactor() }

func (p *qwenImagePipeline) Defaults(r *Request) error {
	errs := refuse(r, p.Class(), "negative_prompt", "sigmas", "true_cfg_scale", "max_sequence_length", "vae_tiling", guidanceBatchArgument)
	setDefault(&r.Height, 128*p.vae.SpatialFactor())
	setDefault(&r.Width, 128*p.vae.SpatialFactor())
	r.stepsDefault(50)
	if r.GuidanceScale != nil {
		r.warn("guidance_scale has no effect: it is for models that are told it, which Qwen-Image is not; true_cfg_scale guides it")
	} else {
		r.GuidanceScale = ptr(1.0)
	}
	negative := len(r.NegativePrompt) > 0 || r.PromptEmbeds["negative_prompt_embeds"].Data != nil
	switch {
	case r.TrueCFGScale == nil:
		r.TrueCFGScale = ptr(4.0)
	case *r.TrueCFGScale > 1 && !negative:
		r.warn("true_cfg_scale has no effect without negative_prompt")
	case *r.TrueCFGScale <= 1 && negative:
		r.warn("negative_prompt has no effect: true_cfg_scale is %g; give one above 1", *r.TrueCFGScale)
	}
	r.sequenceDefault(qwenSequence, 0)
	embeds := map[string][]int{"prompt_embeds": {r.MaxSequenceLength, p.qwen.JointDim}, "prompt_embeds_mask": {r.MaxSequenceLength}}
	s := p.Sizes(r)
	if err := joinErrors(append(errs, r.check(), r.PromptEmbeds.check(p.kind(r), embeds), p.checkSizes(s), checkLatents(r, p.latents(s)...), checkVideoTiling(p.vae, r))...); err != nil {
		return err
	}
	schedule, err := p.schedule(r, p.tokens(s))
	if err != nil {
		return err
	}
	return checkStepNoise(r, schedule, p.latents(s)...)
}

func (p *qwenImagePipeline) Sizes(r *Request) Sizes {
	return Sizes{Batch: r.Batch(), Height: r.Height, Width: r.Width, MaxSequenceLength: r.MaxSequenceLength, VAETiling: r.VAETiling, GuidanceBatch: r.guidanceBatch()}
}

func (p *qwenImagePipeline) checkSizes(s Sizes) error {
	m := p.multiple()
	errs := []error{checkBatch(s.Batch), checkSide("height", s.Height, m, m), checkSide("width", s.Width, m, m)}
	if err := checkSequence(s.MaxSequenceLength, qwenMaxSequence); err != nil {
		errs = append(errs, err)
	} else if err := p.encoderOptions(s).Check(p.text); err != nil {
		errs = append(errs, fmt.Errorf("max_sequence_length: %w; the %d tokens of the template are among them", err, qwenDrop))
	}
	if err := joinErrors(errs...); err != nil {
		return err
	}
	if last := qwenimage.FirstText(s.Height/m, s.Width/m) + s.MaxSequenceLength; last > qwenimage.MaxPositions {
		return fmt.Errorf("max_sequence_length: the text's last position beside a picture of %dx%d is %d, wanted at most %d; make the picture or the text smaller",
			s.Height, s.Width, last, qwenimage.MaxPositions)
	}
	return nil
}

// tokens is the number of image tokens.
func (p *qwenImagePipeline) tokens(s Sizes) int {
	return (s.Height / p.multiple()) * (s.Width / p.multiple())
}

// latents is the shape of the latents, which are packed.
func (p *qwenImagePipeline) latents(s Sizes) []int {
	return []int{s.Batch, p.tokens(s), p.qwen.InChannels}
}

// qwenPrograms are the pipeline's programs at one set of sizes, less the step and the decoders.
type qwenPrograms struct {
	text, transformer, unpack *Program
}

// encoderOptions are those of the text encoder, which is given the template too. Its attention is causal, so a prompt that is cut has the same
// embeddings as far as they go.
func (p *qwenImagePipeline) encoderOptions(s Sizes) causallm.Options {
	return causallm.Options{Batch: 1, Length: qwenDrop + s.MaxSequenceLength, Outputs: []string{"last_hidden_state"}}
}

func (p *qwenImagePipeline) programs(s Sizes) *qwenPrograms {
	h, w := s.Height/p.multiple(), s.Width/p.multiple()
	text, denoise := p.opts.DTypeFor("text_encoder"), p.opts.DTypeFor("transformer")
	encoder := p.encoderOptions(s)
	return &qwenPrograms{
		text: &Program{
			Network:   causallm.New(p.text, encoder, text),
			Component: "text_encoder", Aliases: causallm.Aliases, Spec: fmt.Sprintf("1x%d %v %v", encoder.Length, graph.DTypeName(text), encoder.Outputs),
		},
		transformer: &Program{
			Network:   qwenimage.New(p.qwen, qwenimage.Options{Batch: s.Batch, TextLength: s.MaxSequenceLength, ImageLength: h * w}, denoise),
			Component: "transformer", Stage: StageDenoise,
			Spec: fmt.Sprintf("%dx%d image tokens, %d text tokens, %v", s.Batch, h*w, s.MaxSequenceLength, graph.DTypeName(denoise)),
		},
		unpack: p.unpackProgram(s.Batch, h, w),
	}
}

// latentSide is a side of the latents, which are packed 2x2.
func (p *qwenImagePipeline) latentSide(pixels int) int { return pixels / p.multiple() * 2 }

// unpackProgram turns packed latents [B, h*w, 4C] into what the decoder takes: for each picture [1, C, 1, 2h, 2w] at its scale.
func (p *qwenImagePipeline) unpackProgram(b, h, w int) *Program {
	dtype := p.opts.DTypeFor("vae")
	return unpackProgram([]int{b, h * w, 4 * p.vae.ZDim}, fmt.Sprintf("%dx%dx%d %v", b, 2*h, 2*w, graph.DTypeName(dtype)), func(x *ml.Node) *ml.Node {
		return unscaleVideo(ml.InsertAxes(spread2x2(x, h, w), 2), p.vae, dtype)
	})
}

// kind guides where the request asks for true classifier-free guidance, and can have it.
func (p *qwenImagePipeline) kind(r *Request) stepKind {
	if _, ok := r.PromptEmbeds["negative_prompt_embeds"]; *r.TrueCFGScale > 1 && (ok || len(r.NegativePrompt) > 0) {
		return tokenNormed
	}
	return plain
}

func (p *qwenImagePipeline) Programs(r *Request) ([]*Program, error) {
	s := p.Sizes(r)
	ps := p.programs(s)
	schedule, err := p.schedule(r, p.tokens(s))
	if err != nil {
		return nil, err
	}
	kind := p.kind(r)
	programs := []*Program{ps.text, p.programs(s.denoiser(kind)).transformer}
	// Both forms of the small step program, so that turning guidance on or off compiles nothing.
	for _, k := range s.stepKinds(kind, plain, tokenNormed) {
		programs = append(programs, stepProgram(p.latents(s), schedule.Slots, k, s.joins(k), p.opts.DTypeFor("transformer")))
	}
	return append(append(programs, ps.unpack), videoDecoders(p.vae, p.opts.DTypeFor("vae"), 1, p.latentSide(s.Height), p.latentSide(s.Width), s.VAETiling)...), nil
}

// schedule computes the sampler's plan for a number of image tokens.
func (p *qwenImagePipeline) schedule(r *Request, tokens int) (*scheduler.Schedule, error) {
	o := scheduler.Options{Steps: r.NumInferenceSteps, Sigmas: r.Sigmas, Mu: ptr(p.scheduler.ShiftRange().Mu(tokens))}
	if len(o.Sigmas) == 0 {
		o.Sigmas = scheduler.FlowSigmas(r.NumInferenceSteps)
	}
	return p.scheduler.Schedule(o)
}

func (p *qwenImagePipeline) open() error {
	if p.tok != nil {
		return nil
	}
	var err error
	p.tok, err = openTokenizer(p.ck, "tokenizer")
	return err
}

func (p *qwenImagePipeline) Prepare(r *Request) error {
	if err := p.open(); err != nil {
		return err
	}
	encoder := p.encoder(r)
	for _, text := range slices.Concat(r.Prompt, r.NegativePrompt) {
		if _, err := p.promptLength(encoder, text); err != nil {
			return err
		}
	}
	return nil
}

// encoder is the text encoder at the request's length.
func (p *qwenImagePipeline) encoder(r *Request) *textEncoder {
	return &textEncoder{
		component: "text_encoder", tok: p.tok, vocab: p.text.VocabSize,
		length: qwenDrop + r.MaxSequenceLength, limit: fmt.Sprintf("max_sequence_length, %d tokens after the template's first %d", r.MaxSequenceLength, qwenDrop),
		render: func(prompt string) (string, error) { return strings.Replace(qwenTemplate, "%s", prompt, 1), nil },
	}
}

// promptLength is the number of tokens of a prompt, those of the template behind it among them.
func (p *qwenImagePipeline) promptLength(e *textEncoder, prompt string) (int, error) {
	enc, err := e.tokens(prompt)
	if err != nil {
		return 0, err
	}
	n := -qwenDrop
	for i, seen := range enc.Mask {
		if seen != 0 && i != n+qwenDrop {
			return 0, fmt.Errorf("%s: the tokenizer puts padding before the text, wanted it behind: padding_side in tokenizer_config.json is right in Qwen-Image", e.component)
		}
		n += int(seen)
	}
	if n < 1 {
		return 0, fmt.Errorf("%s: the tokenizer makes %d tokens of a prompt in its template, wanted more than the %d that are left out before it; the tokenizer is not Qwen-Image's",
			e.component, n+qwenDrop, qwenDrop)
	}
	return n, nil
}

func (p *qwenImagePipeline) Encode(ctx context.Context, ex Executor, r *Request) (Embeds, error) {
	if err := p.open(); err != nil {
		return nil, err
	}
	program, encoder, e := p.programs(p.Sizes(r)).text, p.encoder(r), Embeds{}
	length, width := r.MaxSequenceLength, p.qwen.JointDim
	encode := func(name string, texts []string) error {
		longest := 0
		for i := range r.Prompt {
			text, _ := textFor(texts, i)
			n, err := p.promptLength(encoder, text)
			if err != nil {
				return err
			}
			longest = max(longest, n)
			out, err := encoder.encode(ctx, ex, r, program, text)
			if err != nil {
				return err
			}
			// What is behind the prompt is zero, as diffusers fills up shorter prompts of a batch.
			embeds, mask := make([]float32, length*width), make([]float32, length)
			copy(embeds, out["last_hidden_state"][qwenDrop*width:(qwenDrop+n)*width])
			for k := range n {
				mask[k] = 1
			}
			e.add(name, embeds, length, width)
			e.add(name+"_mask", mask, length)
		}
		// The reference's are as long as the longest of the prompts.
		var seen []float32
		for i := range r.Prompt {
			seen = append(seen, e.row(name, i)[:longest*width]...)
		}
		r.observe(name, hostFloats(seen, len(r.Prompt), longest, width))
		return nil
	}
	if err := encode("prompt_embeds", r.Prompt); err != nil {
		return nil, err
	}
	if p.kind(r) != plain {
		return e, encode("negative_prompt_embeds", r.NegativePrompt)
	}
	return e, nil
}

// give uploads the embeddings of prompts, or with prefix "negative_" of negative prompts, and their mask, a row a picture. Here it departs from
// diffusers 0.42.1, whose encode_prompt repeats the masks of several prompts in another order than their embeddings where num_images_per_prompt is above 1:
// each picture has its own prompt's.
func (p *qwenImagePipeline) give(to tensors, ex Executor, r *Request, e Embeds, prefix string) error {
	if err := e.give(to, ex, p.opts, "transformer", prefix, r.NumImagesPerPrompt, map[string]string{"encoder_hidden_states": "prompt_embeds"}); err != nil {
		return err
	}
	var mask []int32
	for i := range e.rows() {
		for range r.NumImagesPerPrompt {
			for _, v := range e.row(prefix+"prompt_embeds_mask", i) {
				seen := int32(0)
				if v != 0 {
					seen = 1
				}
				mask = append(mask, seen)
			}
		}
	}
	return to.putInts(ex, "encoder_hidden_states_mask", mask, r.Batch(), r.MaxSequenceLength)
}

func (p *qwenImagePipeline) Denoise(ctx context.Context, ex Executor, r *Request, e Embeds) (Tensor, error) {
	s := p.Sizes(r)
	kind, dims := p.kind(r), p.latents(s)
	transformer := p.programs(s.denoiser(kind)).transformer
	h, w := s.Height/p.multiple(), s.Width/p.multiple()
	schedule, err := p.schedule(r, h*w)
	if err != nil {
		return nil, err
	}
	c, err := newConditions(kind, func(to tensors, prefix string) error { return p.give(to, ex, r, e, prefix) })
	if err != nil {
		return nil, err
	}
	defer c.free()
	cos, sin := qwenimage.RoPE(p.qwen, s.MaxSequenceLength, h, w)
	if err := c.positive.putRotary(ex, cos, sin, s.MaxSequenceLength+h*w, p.qwen.HeadDim); err != nil {
		return nil, err
	}
	if s.joins(kind) {
		if err := c.join(ctx, ex, transformer); err != nil {
			return nil, err
		}
	}
	gens := newGenerators(r.Seed, s.Batch)
	l := &loop{
		ex: ex, req: r, dims: dims, draw: func() []float32 { return gens.randn(dims[1:]...) },
		schedule: schedule, kind: kind, joined: s.joins(kind), scaleAt: constant(*r.TrueCFGScale), dtype: p.opts.DTypeFor("transformer"), component: "transformer",
	}
	if r.Latents != nil {
		l.latents = float32s(r.Latents.Data)
	} else {
		l.latents = packLatents(gens.randn(p.vae.ZDim, 2*h, 2*w), s.Batch, p.vae.ZDim, h, w)
	}
	l.denoise = func(ctx context.Context, input Tensor, i int) (cond, uncond Tensor, err error) {
		// The pipeline divides by 1000; the network multiplies again.
		return callDenoiser(ctx, ex, transformer, kind, input, float32(schedule.Calls[i].Timestep)/1000, c)
	}
	return l.run(ctx)
}

func (p *qwenImagePipeline) Decode(ctx context.Context, ex Executor, r *Request, latents Tensor) ([]Image, error) {
	s := p.Sizes(r)
	return decodeImagesWith(ctx, ex, r, p.programs(s).unpack, latents, s, func(z Tensor) (v []float32, err error) {
		err = decodeFrames(ctx, ex, p.vae, p.opts.DTypeFor("vae"), s.VAETiling, []Tensor{z}, func(picture []float32) { v = picture })
		return v, err
	})
}

func (p *qwenImagePipeline) Extra(r *Request, _ int) map[string]any {
	extra := map[string]any{"max_sequence_length": r.MaxSequenceLength}
	if p.kind(r) != plain {
		extra["true_cfg_scale"] = *r.TrueCFGScale
	}
	return extra
}
