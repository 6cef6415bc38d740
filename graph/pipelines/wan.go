package pipelines

import (
	"context"
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/models/autoencoderklwan"
	"precast/graph/models/t5"
	"precast/graph/models/wan"
	"precast/graph/scheduler"
	"precast/graph/trace"
)

// wanPipeline is WanPipeline (diffusers, pipelines/wan/pipeline_wan.py): Wan 2.1 and 2.2, text to video.
type wanPipeline struct {
	ck        *checkpoint.Checkpoint
	opts      Options
	t5        t5.Config
	experts   [2]*wan.Config // transformer and transformer_2, each nil where the checkpoint has none or it is not used
	vae       autoencoderklwan.Config
	scheduler *scheduler.Scheduler
	// boundary is boundary_ratio: from that part of num_train_timesteps on downwards the second expert takes over. Nil: there is one.
	boundary *float64
	expand   bool         // expand_timesteps: it is TI2V-5B
	encoder  *textEncoder // its length is the request's
}

// wanExperts are the components of the denoisers: that of high noise and that of low.
var wanExperts = [2]string{"transformer", "transformer_2"}

func newWan(ck *checkpoint.Checkpoint, o Options) (Pipeline, error) {
	p := &wanPipeline{ck: ck, opts: o}
	index := ck.Index()
	if index.Has("boundary_ratio") {
		p.boundary = ptr(index.Float("boundary_ratio", 0))
		if !(*p.boundary >= 0 && *p.boundary <= 1) {
			index.Problem("boundary_ratio", "found %v, wanted null or a number from 0 to 1", *p.boundary)
		}
	}
	// It gives each token a timestep of its own, so that a first frame that is given has 0. Without one they are all the same, and one timestep gives
	// the same values.
	p.expand = index.Bool("expand_timesteps", false)
	errs := []error{
		index.Err(),
		parse(ck, "text_encoder", t5.ParseConfig, &p.t5, "UMT5EncoderModel"),
		parse(ck, "vae", func(c *checkpoint.Config) (autoencoderklwan.Config, error) {
			return autoencoderklwan.ParseConfig(c, autoencoderklwan.ClassWan)
		}, &p.vae, autoencoderklwan.ClassWan),
	}
	for i, name := range wanExperts {
		switch {
		case !ck.Has(name):
			continue
		case i == 1 && p.boundary == nil:
			ck.Note("transformer_2 is not used: boundary_ratio is null")
			continue
		}
		cfg := &wan.Config{}
		errs = append(errs, parse(ck, name, wan.ParseConfig, cfg, "WanTransformer3DModel"))
		p.experts[i] = cfg
	}
	if p.experts == [2]*wan.Config{} {
		problem := "transformer: found null, wanted [library, class]"
		if p.boundary != nil {
			problem = "transformer and transformer_2: found null, wanted [library, class] for one of them at least"
		}
		errs = append(errs, fmt.Errorf("%s: %s", ck.Path("model_index.json"), problem))
	}
	err := joinErrors(errs...)
	if err != nil {
		return nil, err
	}
	if p.scheduler, err = newScheduler(ck, o.Scheduler, nil); err != nil {
		return nil, err
	}
	plan, err := p.scheduler.Schedule(scheduler.Options{Steps: 4})
	if err == nil && (plan.InitNoiseSigma != 1 || plan.ScalesInput) {
		err = fmt.Errorf("it scales the noise or the model's input, and the pipeline scales neither")
	}
	if err != nil {
		return nil, fmt.Errorf("scheduler %s with this config can't drive WanPipeline: %w; Wan comes with UniPCMultistepScheduler, and FlowMatchEulerDiscreteScheduler works too",
			p.scheduler.Class, err)
	}
	if err := p.fit(); err != nil {
		return nil, err
	}
	if o.DTypeFor(wanExperts[0]) == dtypes.Float16 {
		ck.Note("the transformer computes in float16, whose range Wan's activations can leave: bfloat16 holds them")
	}
	return p, nil
}

// fit checks that what one component gives is what the next one takes.
func (p *wanPipeline) fit() error {
	var errs []error
	for i, cfg := range p.experts {
		if cfg == nil {
			continue
		}
		name := wanExperts[i]
		errs = append(errs,
			mustEqual(p.ck, name, "text_dim", cfg.TextDim, "text_encoder", "d_model", p.t5.Model),
			mustEqual(p.ck, name, "in_channels", cfg.InChannels, "vae", "z_dim", p.vae.ZDim),
			mustEqual(p.ck, name, "out_channels", cfg.OutChannels, "vae", "z_dim", p.vae.ZDim))
	}
	if a, b := p.experts[0], p.experts[1]; a != nil && b != nil {
		if a.PatchSize != b.PatchSize {
			errs = append(errs, fmt.Errorf("%s: the components do not fit together: transformer has patch_size %v, transformer_2 has patch_size %v; they must be equal",
				p.ck.Dir(), a.PatchSize, b.PatchSize))
		}
		if x, y := p.opts.DTypeFor(wanExperts[0]), p.opts.DTypeFor(wanExperts[1]); x != y {
			errs = append(errs, fmt.Errorf("dtype: found %s for transformer and %s for transformer_2, wanted the same: they denoise the same latents", graph.DTypeName(x), graph.DTypeName(y)))
		}
	}
	return joinErrors(errs...)
}

func (p *wanPipeline) Class() string { return "WanPipeline" }

func (p *wanPipeline) Scheduler() string { return p.scheduler.Class }

// expert is the config of either expert: what it is asked for is the same in both.
func (p *wanPipeline) expert() *wan.Config {
	if p.experts[0] != nil {
		return p.experts[0]
	}
	return p.experts[1]
}

// patch is what height and width in pixels are multiples of: a latent pixel, times the transformer's patches.
func (p *wanPipeline) patch() (height, width int) {
	patch := p.expert().PatchSize
	return p.vae.SpatialFactor() * patch[1], p.vae.SpatialFactor() * patch[2]
}

const (
	// wanMultiple is what the pipeline wants sizes to be a multiple of, whatever the model; other sizes than the model's multiples are
	// rounded down.
	wanMultiple    = 16
	wanMaxSequence = 2048
	wanMaxFrames   = 1 << 14
)

func (p *wanPipeline) Defaults(r *Request) error {
	errs := refuse(r, p.Class(), "negative_prompt", "num_frames", "guidance_scale_2", "max_sequence_length", "vae_tiling", guidanceBatchArgument)
	setDefault(&r.Height, 480)
	setDefault(&r.Width, 832)
	setDefault(&r.NumFrames, 81)
	r.stepsDefault(50)
	if r.GuidanceScale == nil {
		r.GuidanceScale = ptr(5.0)
	}
	switch {
	case p.boundary == nil && r.GuidanceScale2 != nil:
		errs = append(errs, fmt.Errorf("guidance_scale_2: given, but this checkpoint has one expert: boundary_ratio is null in %s", p.ck.Path("model_index.json")))
	case p.boundary != nil && r.GuidanceScale2 == nil:
		r.GuidanceScale2 = r.GuidanceScale
	case r.GuidanceScale2 != nil && *r.GuidanceScale <= 1 && *r.GuidanceScale2 > 1:
		r.warn("guidance_scale_2 has no effect: guidance_scale is %g; give one above 1", *r.GuidanceScale)
	}
	if *r.GuidanceScale <= 1 {
		warnUnguided(r)
	}
	r.sequenceDefault(512, 0)
	errs = append(errs, checkSequence(r.MaxSequenceLength, wanMaxSequence))
	if err := p.roundSizes(r); err != nil {
		errs = append(errs, err)
	} else {
		errs = append(errs, p.checkSizes(p.Sizes(r)), checkLatents(r, p.dims(p.Sizes(r))...))
	}
	embeds := map[string][]int{"prompt_embeds": {r.MaxSequenceLength, p.t5.Model}}
	if err := joinErrors(append(errs, checkVideoTiling(p.vae, r), r.check(), r.PromptEmbeds.check(p.kind(r), embeds))...); err != nil {
		return err
	}
	schedule, err := p.schedule(r)
	if err != nil {
		return err
	}
	return joinErrors(p.checkExperts(schedule), checkStepNoise(r, schedule, p.dims(p.Sizes(r))...))
}

// roundSizes rounds frames and sides down to what the model can do, as __call__ does, and refuses what it refuses.
func (p *wanPipeline) roundSizes(r *Request) error {
	h, w := p.patch()
	var errs []error
	for _, side := range []struct {
		name     string
		v        *int
		multiple int
	}{{"height", &r.Height, h}, {"width", &r.Width, w}} {
		if err := checkSide(side.name, *side.v, wanMultiple, wanMultiple); err != nil {
			errs = append(errs, err)
			continue
		}
		if near := *side.v / side.multiple * side.multiple; near != *side.v {
			r.warn("%s: %d is no multiple of %d, taken as %d", side.name, *side.v, side.multiple, near)
			*side.v = near
		}
	}
	if f := p.vae.TemporalFactor(); f > 1 && r.NumFrames > 0 && r.NumFrames%f != 1 {
		near := r.NumFrames/f*f + 1
		r.warn("num_frames: %d is not one more than a multiple of %d, taken as %d", r.NumFrames, f, near)
		r.NumFrames = near
	}
	return joinErrors(errs...)
}

func (p *wanPipeline) Sizes(r *Request) Sizes {
	return Sizes{Batch: r.Batch(), Height: r.Height, Width: r.Width, Frames: r.NumFrames, MaxSequenceLength: r.MaxSequenceLength, VAETiling: r.VAETiling, GuidanceBatch: r.guidanceBatch()}
}

func (p *wanPipeline) checkSizes(s Sizes) error {
	h, w := p.patch()
	errs := []error{checkBatch(s.Batch), checkSide("height", s.Height, h, h), checkSide("width", s.Width, w, w)}
	if f := p.vae.TemporalFactor(); s.Frames < 1 || s.Frames > wanMaxFrames || f > 1 && s.Frames%f != 1 {
		errs = append(errs, fmt.Errorf("num_frames: found %d, wanted one more than a multiple of %d from 1 to %d", s.Frames, f, wanMaxFrames/f*f-f+1))
	}
	if err := joinErrors(errs...); err != nil {
		return err
	}
	d := p.dims(s)
	for _, cfg := range p.experts {
		if cfg == nil {
			continue
		}
		for axis, what := range []string{"num_frames", "height", "width"} {
			n, patch := d[2+axis], cfg.PatchSize[axis]
			if n%patch != 0 {
				errs = append(errs, fmt.Errorf("%s: gives %d in the latents, wanted a multiple of %d, the transformer's patch_size[%d]", what, n, patch, axis))
			} else if n/patch > cfg.RoPEMaxSeqLen {
				errs = append(errs, fmt.Errorf("%s: gives %d positions, and the transformer has %d (rope_max_seq_len)", what, n/patch, cfg.RoPEMaxSeqLen))
			}
		}
	}
	return joinErrors(errs...)
}

// dims is the shape of the latents.
func (p *wanPipeline) dims(s Sizes) []int {
	f := p.vae.SpatialFactor()
	return []int{s.Batch, p.vae.ZDim, p.latentFrames(s), s.Height / f, s.Width / f}
}

func (p *wanPipeline) latentFrames(s Sizes) int { return (s.Frames-1)/p.vae.TemporalFactor() + 1 }

// wanPrograms are the pipeline's programs at one set of sizes, less the step and the decoders; an expert that is not there is nil.
type wanPrograms struct {
	text    *Program
	experts [2]*Program
	unpack  *Program
}

func (p *wanPipeline) programs(s Sizes) *wanPrograms {
	d, text := p.dims(s), p.opts.DTypeFor("text_encoder")
	ps := &wanPrograms{
		text: &Program{
			Network:   t5.New(p.t5, t5.Options{Name: "text_encoder", Batch: 1, Length: s.MaxSequenceLength, Mask: true}, text),
			Component: "text_encoder", Aliases: t5.Aliases, Spec: fmt.Sprintf("1x%d masked %v", s.MaxSequenceLength, graph.DTypeName(text)),
		},
		unpack: p.unpackProgram(d),
	}
	for i, cfg := range p.experts {
		if cfg == nil {
			continue
		}
		name := wanExperts[i]
		dtype := p.opts.DTypeFor(name)
		ps.experts[i] = &Program{
			Network:   wan.New(*cfg, wan.Options{Name: name, Batch: s.Batch, TextLength: s.MaxSequenceLength, Frames: d[2], Height: d[3], Width: d[4]}, dtype),
			Component: name, Stage: StageDenoise,
			Spec: fmt.Sprintf("%dx%dx%dx%d, %d text tokens, %v", s.Batch, d[2], d[3], d[4], s.MaxSequenceLength, graph.DTypeName(dtype)),
		}
	}
	return ps
}

// latentFrame names frame f of video k among the results of unpack.
func latentFrame(k, f int) string { return fmt.Sprintf("latents%d_%d", k, f) }

// unpackProgram takes latents [B, C, frames, h, w] to the autoencoder's scale and splits them by video and frame: [1, C, 1, h, w] each.
func (p *wanPipeline) unpackProgram(dims []int) *Program {
	dtype := p.opts.DTypeFor("vae")
	n := trace.Network{Name: "unpack", Class: "unpack", DType: float32Type, Inputs: []trace.Input{{Name: "latents", Shape: f32(dims...)}}}
	for k := range dims[0] {
		for f := range dims[2] {
			n.Outputs = append(n.Outputs, latentFrame(k, f))
		}
	}
	n.Build = func(_ *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
		x := unscaleVideo(in["latents"], p.vae, dtype)
		var out []*ml.Node
		for k := range dims[0] {
			for f := range dims[2] {
				out = append(out, ml.Slice(x, ml.AxisRange(k, k+1), ml.AxisRange(), ml.AxisRange(f, f+1), ml.AxisRange(), ml.AxisRange()))
			}
		}
		return out
	}
	return &Program{Network: n, Stage: StageDecode, Spec: fmt.Sprintf("%v %v", dims, graph.DTypeName(dtype))}
}

func (p *wanPipeline) Programs(r *Request) ([]*Program, error) {
	s := p.Sizes(r)
	kind := p.kind(r)
	ps := p.programs(s)
	schedule, err := p.schedule(r)
	if err != nil {
		return nil, err
	}
	out := []*Program{ps.text}
	for i, q := range p.programs(s.denoiser(kind)).experts {
		if q == nil {
			continue
		}
		out = append(out, q)
		// Both forms of the small step program, so that turning guidance on or off compiles nothing.
		for _, k := range s.stepKinds(kind, plain, guided) {
			step := stepProgram(p.dims(s), schedule.Slots, k, s.joins(k), p.opts.DTypeFor(wanExperts[i]))
			if !slices.ContainsFunc(out, func(q *Program) bool { return q.ID() == step.ID() }) {
				out = append(out, step)
			}
		}
	}
	d := p.dims(s)
	return append(append(out, ps.unpack), videoDecoders(p.vae, p.opts.DTypeFor("vae"), d[2], d[3], d[4], s.VAETiling)...), nil
}

// kind is guided above a scale of 1: that of the first expert decides for both.
func (p *wanPipeline) kind(r *Request) stepKind {
	if *r.GuidanceScale > 1 {
		return guided
	}
	return plain
}

// schedule computes the sampler's plan.
func (p *wanPipeline) schedule(r *Request) (*scheduler.Schedule, error) {
	return p.scheduler.Schedule(scheduler.Options{Steps: r.NumInferenceSteps})
}

// boundaryTimestep is the timestep from which on downwards the second expert denoises.
func (p *wanPipeline) boundaryTimestep() float64 {
	return *p.boundary * float64(p.scheduler.TrainTimesteps)
}

// expertAt is the index of the expert that denoises at a timestep. The comparison is one of float32, as PyTorch's of a tensor with a number.
func (p *wanPipeline) expertAt(timestep float64) int {
	if p.boundary == nil || float32(timestep) >= float32(p.boundaryTimestep()) {
		return 0
	}
	return 1
}

// checkExperts makes sure that the experts that a schedule needs are there.
func (p *wanPipeline) checkExperts(s *scheduler.Schedule) error {
	var calls [2]int
	for i := range s.Calls {
		calls[p.expertAt(s.Calls[i].Timestep)]++
	}
	for i, name := range wanExperts {
		if calls[i] > 0 && p.experts[i] == nil {
			side := "from %g on upwards"
			if i == 1 {
				side = "below %g"
			}
			return fmt.Errorf("%s: %s: found null, but boundary_ratio %g gives it the timesteps "+side+", %d of this run's %d; a checkpoint with both experts has them",
				p.ck.Path("model_index.json"), name, *p.boundary, p.boundaryTimestep(), calls[i], len(s.Calls))
		}
	}
	return nil
}

func (p *wanPipeline) open() error {
	if p.encoder != nil {
		return nil
	}
	tok, err := openTokenizer(p.ck, "tokenizer")
	if err != nil {
		return err
	}
	p.encoder = &textEncoder{component: "text_encoder", tok: tok, vocab: p.t5.VocabSize}
	return nil
}

func (p *wanPipeline) Prepare(r *Request) error {
	if err := p.open(); err != nil {
		return err
	}
	return p.encoder.at(r.MaxSequenceLength).check(cleanPrompts(r.Prompt), cleanPrompts(r.NegativePrompt))
}

func (p *wanPipeline) Encode(ctx context.Context, ex Executor, r *Request) (Embeds, error) {
	if err := p.open(); err != nil {
		return nil, err
	}
	program, encoder, e := p.programs(p.Sizes(r)).text, p.encoder.at(r.MaxSequenceLength), Embeds{}
	encode := func(name string, texts []string) error {
		for i := range r.Prompt {
			text, _ := textFor(texts, i)
			text = cleanPrompt(text)
			enc, err := encoder.tokens(text)
			if err != nil {
				return err
			}
			out, err := encoder.encode(ctx, ex, r, program, text)
			if err != nil {
				return err
			}
			// What padding gave is not used: zeros stand for it.
			v, seen := out["last_hidden_state"], 0
			for _, m := range enc.Mask {
				if m > 0 {
					seen++
				}
			}
			clear(v[seen*p.t5.Model:])
			e.record(r, name, v, r.MaxSequenceLength, p.t5.Model)
		}
		return nil
	}
	if err := encode("prompt_embeds", r.Prompt); err != nil {
		return nil, err
	}
	if p.kind(r) == guided {
		return e, encode("negative_prompt_embeds", r.NegativePrompt)
	}
	return e, nil
}

func (p *wanPipeline) Denoise(ctx context.Context, ex Executor, r *Request, e Embeds) (Tensor, error) {
	s := p.Sizes(r)
	kind, dims := p.kind(r), p.dims(s)
	experts := p.programs(s.denoiser(kind)).experts
	schedule, err := p.schedule(r)
	if err != nil {
		return nil, err
	}
	at := func(i int) int { return p.expertAt(schedule.Calls[i].Timestep) }
	// The experts follow one another, so what an expert is given is uploaded when it takes over.
	current, given := -1, &conditions{}
	defer func() { given.free() }()
	enter := func(expert int) error {
		if current == expert {
			return nil
		}
		if current >= 0 {
			ex.Release(wanExperts[current])
		}
		given.free()
		next, err := p.conditions(ex, r, e, expert, dims)
		if err != nil {
			given = &conditions{}
			return err
		}
		current, given = expert, next
		if s.joins(kind) {
			return given.join(ctx, ex, experts[expert])
		}
		return nil
	}
	gens := newGenerators(r.Seed, s.Batch)
	draw := func() []float32 { return gens.randn(dims[1:]...) }
	l := &loop{
		ex: ex, req: r, dims: dims, draw: draw, schedule: schedule, kind: kind, joined: s.joins(kind), dtype: p.opts.DTypeFor(wanExperts[at(0)]),
		scaleAt: func(i int) float64 {
			if at(i) == 1 {
				return *r.GuidanceScale2
			}
			return *r.GuidanceScale
		},
		componentAt: func(i int) string { return wanExperts[at(i)] },
	}
	if r.Latents != nil {
		l.latents = float32s(r.Latents.Data)
	} else {
		l.latents = draw()
	}
	l.denoise = func(ctx context.Context, input Tensor, i int) (cond, uncond Tensor, err error) {
		if err := enter(at(i)); err != nil {
			return nil, nil, err
		}
		return callDenoiser(ctx, ex, experts[current], kind, input, float32(schedule.Calls[i].Timestep), given)
	}
	return l.run(ctx)
}

// conditions uploads what an expert is given besides the latents and the timestep.
func (p *wanPipeline) conditions(ex Executor, r *Request, e Embeds, expert int, dims []int) (*conditions, error) {
	name, cfg := wanExperts[expert], *p.experts[expert]
	c, err := newConditions(p.kind(r), func(to tensors, prefix string) error {
		return e.give(to, ex, p.opts, name, prefix, r.NumImagesPerPrompt, map[string]string{"encoder_hidden_states": "prompt_embeds"})
	})
	if err != nil {
		return nil, err
	}
	frames, h, w := dims[2]/cfg.PatchSize[0], dims[3]/cfg.PatchSize[1], dims[4]/cfg.PatchSize[2]
	cos, sin := wan.RoPE(cfg, frames, h, w)
	if err := c.positive.putRotary(ex, cos, sin, frames*h*w, cfg.HeadDim); err != nil {
		c.free()
		return nil, err
	}
	return c, nil
}

func (p *wanPipeline) Decode(ctx context.Context, ex Executor, r *Request, latents Tensor) ([]Image, error) {
	s := p.Sizes(r)
	frames, err := ex.Run(ctx, p.unpackProgram(p.dims(s)), map[string]Tensor{"latents": latents})
	latents.Free()
	if err != nil {
		return nil, err
	}
	defer tensors(frames).free()
	var images []Image
	for k := range s.Batch {
		video, err := p.decodeVideo(ctx, ex, r, s, k, frames)
		if err != nil {
			return nil, err
		}
		images = append(images, video...)
	}
	return images, nil
}

// decodeVideo decodes video k and frees its latent frames.
func (p *wanPipeline) decodeVideo(ctx context.Context, ex Executor, r *Request, s Sizes, k int, latents map[string]Tensor) ([]Image, error) {
	d := p.dims(s)
	frames := make([]Tensor, d[2])
	var given, made videoParts // for observers
	for f := range frames {
		frames[f] = latents[latentFrame(k, f)]
		if r.Observe == nil {
			continue
		}
		v, err := readFloats(ctx, frames[f], "transformer", "the latents of the decoder")
		if err != nil {
			return nil, err
		}
		given.add(v, d[1], 1)
	}
	var images []Image
	err := decodeFrames(ctx, ex, p.vae, p.opts.DTypeFor("vae"), s.VAETiling, frames, func(v []float32) {
		n := len(v) / (3 * s.Height * s.Width)
		if r.Observe != nil {
			made.add(v, 3, n)
		}
		for i := range n {
			images = append(images, toImage(frameOf(v, i, n), s.Height, s.Width))
		}
	})
	if err != nil {
		return nil, err
	}
	if r.Observe != nil {
		r.observe("vae_in", given.join(d[1], d[3], d[4]))
		r.observe("vae_out", made.join(3, s.Height, s.Width))
	}
	return images, nil
}

// frameOf cuts frame i of n out of v [3, n, H, W].
func frameOf(v []float32, i, n int) []float32 {
	plane := len(v) / (3 * n)
	out := make([]float32, 0, 3*plane)
	for c := range 3 {
		out = append(out, v[(c*n+i)*plane:(c*n+i+1)*plane]...)
	}
	return out
}

// videoParts are parts of a video, [C, frames, H, W] each, one after another.
type videoParts struct {
	parts  [][]float32
	frames []int
}

func (p *videoParts) add(v []float32, channels, frames int) {
	if len(v)%(channels*frames) != 0 {
		panic(fmt.Sprintf("BUG: %d values for %d channels of %d frames", len(v), channels, frames))
	}
	p.parts, p.frames = append(p.parts, v), append(p.frames, frames)
}

// join is the video [1, C, frames, h, w].
func (p *videoParts) join(channels, h, w int) HostTensor {
	var all []float32
	total := 0
	for c := range channels {
		for i, v := range p.parts {
			n := p.frames[i] * h * w
			all = append(all, v[c*n:(c+1)*n]...)
		}
	}
	for _, n := range p.frames {
		total += n
	}
	return hostFloats(all, 1, channels, total, h, w)
}

// FPS is what the model was trained on: 24 frames a second for TI2V-5B, 16 for the others (the models' cards).
func (p *wanPipeline) FPS() float64 {
	if p.expand {
		return 24
	}
	return 16
}

func (p *wanPipeline) Extra(r *Request, _ int) map[string]any {
	extra := map[string]any{"num_frames": r.NumFrames, "max_sequence_length": r.MaxSequenceLength}
	if p.boundary != nil {
		extra["guidance_scale_2"] = *r.GuidanceScale2
	}
	return extra
}
