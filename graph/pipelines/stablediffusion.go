package pipelines

import (
	"context"
	"fmt"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/models/clip"
)

// sdPipeline is StableDiffusionPipeline (diffusers, pipelines/stable_diffusion/pipeline_stable_diffusion.py): Stable Diffusion 1.x and 2.x; with a picture to start
// from, StableDiffusionImg2ImgPipeline (pipeline_stable_diffusion_img2img.py).
type sdPipeline struct {
	unetPart
	clip    clip.Config
	encoder *textEncoder
}

func newStableDiffusion(ck *checkpoint.Checkpoint, o Options) (Pipeline, error) {
	p := &sdPipeline{unetPart: unetPart{ck: ck, opts: o}}
	err := joinErrors(parse(ck, "text_encoder", clip.ParseConfig, &p.clip, "CLIPTextModel"), p.parse())
	if err != nil {
		return nil, err
	}
	p.tokens = p.clip.MaxPositions
	if p.scheduler, err = newScheduler(ck, o.Scheduler, func(cfg *checkpoint.Config) { sdSchedulerConfig(ck, cfg) }); err != nil {
		return nil, err
	}
	if p.unet.PooledDim() != 0 {
		return nil, fmt.Errorf("%s: addition_embed_type is set, which StableDiffusionPipeline does not feed; the folder may be of another pipeline class", ck.Path("unet", "config.json"))
	}
	if ck.Has("safety_checker") {
		ck.Note("the safety_checker is not run: pictures are not screened")
	}
	err = joinErrors(mustEqual(ck, "unet", "cross_attention_dim", p.unet.TextDim(), "text_encoder", "hidden_size", p.clip.HiddenSize), p.fit())
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (p *sdPipeline) Class() string { return "StableDiffusionPipeline" }

func (p *sdPipeline) Defaults(r *Request) error {
	has := []string{"negative_prompt", "sigmas", "timesteps", "eta", "clip_skip", "image", "strength", "vae_tiling", guidanceBatchArgument}
	class := p.Class()
	if r.Image != nil {
		class = "StableDiffusionImg2ImgPipeline"
	} else {
		has = append(has, "guidance_rescale")
	}
	errs := refuse(r, class, has...)
	if r.ClipSkip >= p.clip.Layers {
		errs = append(errs, fmt.Errorf("clip_skip: found %d, wanted less than the text encoder's %d layers", r.ClipSkip, p.clip.Layers))
	}
	errs = append(errs, p.defaults(r, 7.5, 0.8))
	embeds := map[string][]int{"prompt_embeds": {p.tokens, p.clip.HiddenSize}}
	if err := joinErrors(append(errs, r.PromptEmbeds.check(p.kind(r), embeds))...); err != nil {
		return err
	}
	return p.checkSchedule(r)
}

// encoders are the text encoder's programs for the negative prompt and for the prompt; they differ with clip_skip, which is for the prompt
// alone: encode_prompt takes the negative one's last hidden state.
func (p *sdPipeline) encoders(clipSkip int) (negative, positive *Program) {
	dtype := p.opts.DTypeFor("text_encoder")
	program := func(skip int) *Program {
		return &Program{
			Network:   clip.NewText(p.clip, clip.Options{Batch: 1, Length: p.tokens, Outputs: []string{"last_hidden_state"}, ClipSkip: skip}, dtype),
			Component: "text_encoder", Aliases: clip.Aliases, Spec: fmt.Sprintf("1x%d %v last_hidden_state clip_skip=%d", p.tokens, graph.DTypeName(dtype), skip),
		}
	}
	negative = program(0)
	if clipSkip == 0 {
		return negative, negative
	}
	return negative, program(clipSkip)
}

func (p *sdPipeline) Programs(r *Request) ([]*Program, error) {
	negative, positive := p.encoders(r.ClipSkip)
	out := []*Program{negative}
	if positive != negative {
		out = append(out, positive)
	}
	rest, err := p.programs(r)
	return append(out, rest...), err
}

func (p *sdPipeline) open() error {
	if p.encoder != nil {
		return nil
	}
	tok, err := openTokenizer(p.ck, "tokenizer")
	if err != nil {
		return err
	}
	p.encoder = clipEncoder("text_encoder", tok, p.clip)
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
	e := Embeds{}
	encode := func(name string, program *Program, text string) error {
		out, err := p.encoder.encode(ctx, ex, r, program, text)
		if err != nil {
			return err
		}
		e.record(r, name, out["last_hidden_state"], p.tokens, p.clip.HiddenSize)
		return nil
	}
	negative, positive := p.encoders(r.ClipSkip)
	for _, text := range r.Prompt {
		if err := encode("prompt_embeds", positive, text); err != nil {
			return nil, err
		}
	}
	if p.kind(r) == plain {
		return e, nil
	}
	for i := range r.Prompt {
		text, _ := textFor(r.NegativePrompt, i)
		if err := encode("negative_prompt_embeds", negative, text); err != nil {
			return nil, err
		}
	}
	return e, nil
}

func (p *sdPipeline) Denoise(ctx context.Context, ex Executor, r *Request, e Embeds) (Tensor, error) {
	c, err := newConditions(p.kind(r), func(to tensors, prefix string) error {
		return e.give(to, ex, p.opts, "unet", prefix, r.NumImagesPerPrompt, map[string]string{"encoder_hidden_states": "prompt_embeds"})
	})
	if err != nil {
		return nil, err
	}
	defer c.free()
	return p.denoise(ctx, ex, r, c)
}
