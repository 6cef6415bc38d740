package pipelines

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/gomlx/compute/dtypes"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/models/clip"
)

// sdxlPipeline is StableDiffusionXLPipeline (diffusers, pipelines/stable_diffusion_xl/pipeline_stable_diffusion_xl.py), without the refiner; with a picture
// to start from, StableDiffusionXLImg2ImgPipeline (pipeline_stable_diffusion_xl_img2img.py). No watermark is added: diffusers adds one where the
// package invisible-watermark is installed.
type sdxlPipeline struct {
	unetPart
	clip     [2]clip.Config
	encoders [2]*textEncoder
	// zeros tells that a negative prompt that is not given is zeros, not the encoding of "" (force_zeros_for_empty_prompt).
	zeros bool
}

// The text encoders' names.
var sdxlEncoders = [2]string{"text_encoder", "text_encoder_2"}

func newStableDiffusionXL(ck *checkpoint.Checkpoint, o Options) (Pipeline, error) {
	p := &sdxlPipeline{unetPart: unetPart{ck: ck, opts: o}}
	err := joinErrors(
		parse(ck, "text_encoder", clip.ParseConfig, &p.clip[0], "CLIPTextModel"),
		parse(ck, "text_encoder_2", clip.ParseConfig, &p.clip[1], "CLIPTextModelWithProjection"),
		p.parse(),
	)
	if err != nil {
		return nil, err
	}
	p.tokens = p.clip[0].MaxPositions
	if p.scheduler, err = newScheduler(ck, o.Scheduler, nil); err != nil {
		return nil, err
	}
	index := ck.Index()
	p.zeros = index.Bool("force_zeros_for_empty_prompt", true)
	if index.Bool("requires_aesthetics_score", false) {
		index.Problem("requires_aesthetics_score", "found true, as in the refiner, which is not supported; wanted false")
	}
	if err := index.Err(); err != nil {
		return nil, err
	}
	if p.unet.PooledDim() == 0 {
		return nil, fmt.Errorf("%s: addition_embed_type is null, wanted \"text_time\": StableDiffusionXLPipeline gives the UNet pooled text and sizes", ck.Path("unet", "config.json"))
	}
	err = joinErrors(
		mustEqual(ck, "unet", "cross_attention_dim", p.unet.TextDim(), "text_encoder and text_encoder_2", "hidden_size together", p.clip[0].HiddenSize+p.clip[1].HiddenSize),
		mustEqual(ck, "unet", "projection_class_embeddings_input_dim less 6 x addition_time_embed_dim", p.unet.PooledDim(), "text_encoder_2", "projection_dim", p.clip[1].ProjectionDim),
		mustEqual(ck, "text_encoder", "max_position_embeddings", p.clip[0].MaxPositions, "text_encoder_2", "max_position_embeddings", p.clip[1].MaxPositions),
		p.fit(),
	)
	if err != nil {
		return nil, err
	}
	if p.vae.ForceUpcast {
		p.upcastEncoder = true
		if _, chosen := o.DTypes["vae"]; !chosen && o.DType == dtypes.Float16 {
			// The published autoencoder overflows in float16; the pipeline decodes in float32 (upcast_vae).
			p.opts.DTypes = maps.Clone(o.DTypes)
			if p.opts.DTypes == nil {
				p.opts.DTypes = map[string]graph.DType{}
			}
			p.opts.DTypes["vae"] = float32Type
			ck.Note("the vae computes in float32, for its config has force_upcast: it would overflow in float16")
		}
	}
	return p, nil
}

func (p *sdxlPipeline) Class() string { return "StableDiffusionXLPipeline" }

func (p *sdxlPipeline) Defaults(r *Request) error {
	class := p.Class()
	if r.Image != nil {
		class = "StableDiffusionXLImg2ImgPipeline"
	}
	errs := refuse(r, class, "prompt_2", "negative_prompt", "negative_prompt_2", "sigmas", "timesteps", "guidance_rescale", "eta", "clip_skip", "image", "strength", "vae_tiling", guidanceBatchArgument,
		"original_size", "crops_coords_top_left", "target_size", "negative_original_size", "negative_crops_coords_top_left", "negative_target_size")
	// The prompt's embedding is the stream before the last layer, clip_skip layers further up.
	if most := min(p.clip[0].Layers, p.clip[1].Layers) - 1; r.ClipSkip > most {
		errs = append(errs, fmt.Errorf("clip_skip: found %d, wanted at most %d with the text encoders' %d and %d layers", r.ClipSkip, most, p.clip[0].Layers, p.clip[1].Layers))
	}
	errs = append(errs, p.defaults(r, 5, 0.3), p.sizeDefaults(r))
	if p.kind(r) != plain && p.zerosNegative(r) && len(r.NegativePrompt2) > 0 {
		r.warn("negative_prompt_2 has no effect without negative_prompt, as in diffusers; give negative_prompt")
	}
	embeds := map[string][]int{"prompt_embeds": {p.tokens, p.unet.TextDim()}, "pooled_prompt_embeds": {p.unet.PooledDim()}}
	if err := joinErrors(append(errs, r.PromptEmbeds.check(p.kind(r), embeds))...); err != nil {
		return err
	}
	return p.checkSchedule(r)
}

// sizeDefaults checks the sizes that the UNet is conditioned on and fills in those that follow from the picture's.
func (p *sdxlPipeline) sizeDefaults(r *Request) error {
	var errs []error
	for _, c := range []struct {
		name  string
		v     *[2]int
		least int
	}{
		{"original_size", r.OriginalSize, 1},
		{"crops_coords_top_left", r.CropsCoordsTopLeft, 0},
		{"target_size", r.TargetSize, 1},
		{"negative_original_size", r.NegativeOriginalSize, 1},
		{"negative_crops_coords_top_left", r.NegativeCropsCoordsTopLeft, 0},
		{"negative_target_size", r.NegativeTargetSize, 1},
	} {
		const most = 1 << 20
		if v := c.v; v != nil && (v[0] < c.least || v[1] < c.least || v[0] > most || v[1] > most) {
			errs = append(errs, fmt.Errorf("%s: found %v, wanted two numbers from %d to %d", c.name, *v, c.least, most))
		}
	}
	size := func(v **[2]int, def [2]int) {
		if *v == nil {
			*v = &def
		}
	}
	size(&r.OriginalSize, [2]int{r.Height, r.Width})
	size(&r.CropsCoordsTopLeft, [2]int{})
	size(&r.TargetSize, [2]int{r.Height, r.Width})
	given := r.NegativeOriginalSize != nil || r.NegativeCropsCoordsTopLeft != nil || r.NegativeTargetSize != nil
	switch {
	case r.Image != nil:
		// pipeline_stable_diffusion_xl_img2img.py, _get_add_time_ids: the negative crop is not used.
		if r.NegativeCropsCoordsTopLeft != nil {
			r.warn("negative_crops_coords_top_left has no effect with an image, as in diffusers")
		}
		size(&r.NegativeOriginalSize, *r.OriginalSize)
		size(&r.NegativeTargetSize, *r.TargetSize)
		r.NegativeCropsCoordsTopLeft = r.CropsCoordsTopLeft
	case r.NegativeOriginalSize != nil && r.NegativeTargetSize != nil:
		size(&r.NegativeCropsCoordsTopLeft, [2]int{})
	default:
		if given {
			r.warn("the negative sizes have no effect: negative_original_size and negative_target_size count when both are given, as in diffusers")
		}
		r.NegativeOriginalSize, r.NegativeCropsCoordsTopLeft, r.NegativeTargetSize = r.OriginalSize, r.CropsCoordsTopLeft, r.TargetSize
	}
	return joinErrors(errs...)
}

// zerosNegative tells that the negative embeddings are zeros.
func (p *sdxlPipeline) zerosNegative(r *Request) bool { return p.zeros && len(r.NegativePrompt) == 0 }

// textPrograms are the two text encoders: of both the stream skip layers before the last but one, of the second the pooled projection, too.
func (p *sdxlPipeline) textPrograms(skip int) [2]*Program {
	var out [2]*Program
	for i, name := range sdxlEncoders {
		dtype := p.opts.DTypeFor(name)
		outputs := []string{p.stream(i, skip)}
		if i == 1 {
			outputs = append(outputs, "text_embeds")
		}
		out[i] = &Program{
			Network:   clip.NewText(p.clip[i], clip.Options{Name: name, Batch: 1, Length: p.tokens, Outputs: outputs}, dtype),
			Component: name, Aliases: clip.Aliases, Spec: fmt.Sprintf("1x%d %v %v", p.tokens, graph.DTypeName(dtype), outputs),
		}
	}
	return out
}

// stream names the output of encoder i that is part of prompt_embeds.
func (p *sdxlPipeline) stream(i, skip int) string {
	return fmt.Sprintf("hidden_states/%d", p.clip[i].Layers-1-skip)
}

func (p *sdxlPipeline) Programs(r *Request) ([]*Program, error) {
	programs := p.textPrograms(0)
	out := programs[:]
	if r.ClipSkip > 0 {
		skipping := p.textPrograms(r.ClipSkip)
		if p.kind(r) == plain || p.zerosNegative(r) {
			out = nil
		}
		out = append(out, skipping[:]...)
	}
	rest, err := p.programs(r)
	return append(out, rest...), err
}

func (p *sdxlPipeline) open() error {
	if p.encoders[1] != nil {
		return nil
	}
	for i, name := range [2]string{"tokenizer", "tokenizer_2"} {
		tok, err := openTokenizer(p.ck, name)
		if err != nil {
			return err
		}
		p.encoders[i] = clipEncoder(sdxlEncoders[i], tok, p.clip[i])
	}
	return nil
}

func (p *sdxlPipeline) Prepare(r *Request) error {
	if err := p.open(); err != nil {
		return err
	}
	return joinErrors(p.encoders[0].check(r.Prompt, r.NegativePrompt), p.encoders[1].check(r.Prompt, r.Prompt2, r.NegativePrompt, r.NegativePrompt2))
}

func (p *sdxlPipeline) Encode(ctx context.Context, ex Executor, r *Request) (Embeds, error) {
	if err := p.open(); err != nil {
		return nil, err
	}
	e := Embeds{}
	add := func(prefix string, embeds, pooled []float32) {
		e.record(r, prefix+"prompt_embeds", embeds, p.tokens, p.unet.TextDim())
		e.record(r, prefix+"pooled_prompt_embeds", pooled, p.unet.PooledDim())
	}
	encode := func(prefix string, texts, texts2 []string, skip int) error {
		programs := p.textPrograms(skip)
		for i := range r.Prompt {
			text, _ := textFor(texts, i)
			text2, _ := textFor(texts2, i)
			if text2 == "" {
				text2 = text
			}
			var streams [2][]float32
			var pooled []float32
			for k, t := range [2]string{text, text2} {
				out, err := p.encoders[k].encode(ctx, ex, r, programs[k], t)
				if err != nil {
					return err
				}
				streams[k], pooled = out[p.stream(k, skip)], out["text_embeds"]
			}
			add(prefix, p.join(streams), pooled)
		}
		return nil
	}
	if err := encode("", r.Prompt, r.Prompt2, r.ClipSkip); err != nil || p.kind(r) == plain {
		return e, err
	}
	if !p.zerosNegative(r) {
		return e, encode("negative_", r.NegativePrompt, r.NegativePrompt2, 0)
	}
	for range r.Prompt {
		add("negative_", make([]float32, p.tokens*p.unet.TextDim()), make([]float32, p.unet.PooledDim()))
	}
	return e, nil
}

// join puts the encoders' streams [L, C1] and [L, C2] side by side.
func (p *sdxlPipeline) join(streams [2][]float32) []float32 {
	var out []float32
	a, b := p.clip[0].HiddenSize, p.clip[1].HiddenSize
	for t := range p.tokens {
		out = append(out, streams[0][t*a:(t+1)*a]...)
		out = append(out, streams[1][t*b:(t+1)*b]...)
	}
	return out
}

func (p *sdxlPipeline) Denoise(ctx context.Context, ex Executor, r *Request, e Embeds) (Tensor, error) {
	names := map[string]string{"encoder_hidden_states": "prompt_embeds", "text_embeds": "pooled_prompt_embeds"}
	c, err := newConditions(p.kind(r), func(to tensors, prefix string) error {
		if err := e.give(to, ex, p.opts, "unet", prefix, r.NumImagesPerPrompt, names); err != nil {
			return err
		}
		sizes := []*[2]int{r.OriginalSize, r.CropsCoordsTopLeft, r.TargetSize}
		if prefix != "" {
			sizes = []*[2]int{r.NegativeOriginalSize, r.NegativeCropsCoordsTopLeft, r.NegativeTargetSize}
		}
		ids, err := p.timeIDs(sizes)
		if err != nil {
			return err
		}
		// Each picture has these. diffusers 0.42.1 repeats [negative, positive] as a whole for a batch, so that its pictures get one or the other by
		// turns in both halves; a picture of a batch would then differ from the same alone.
		return to.put(ex, "time_ids", float32Type, slices.Repeat(ids, r.Batch()), r.Batch(), len(ids))
	})
	if err != nil {
		return nil, err
	}
	defer c.free()
	return p.denoise(ctx, ex, r, c)
}

// timeIDs are the sizes as the UNet is given them: rounded to the text's dtype, which the pipeline makes them in.
func (p *sdxlPipeline) timeIDs(sizes []*[2]int) ([]float32, error) {
	var ids []float32
	for _, s := range sizes {
		ids = append(ids, float32(s[0]), float32(s[1]))
	}
	dtype := p.opts.DTypeFor("text_encoder_2")
	if dtype == float32Type {
		return ids, nil
	}
	narrow, err := encodeFloats(dtype, ids)
	if err != nil {
		return nil, err
	}
	wide := make([]byte, 4*len(ids))
	err = checkpoint.ConvertBytes(wide, float32Type, narrow, dtype)
	return float32s(wide), err
}

func (p *sdxlPipeline) Extra(r *Request, k int) map[string]any {
	extra := p.unetPart.Extra(r, k)
	if t, ok := textFor(r.Prompt2, k/r.NumImagesPerPrompt); ok {
		extra["prompt_2"] = t
	}
	if t, ok := textFor(r.NegativePrompt2, k/r.NumImagesPerPrompt); ok {
		extra["negative_prompt_2"] = t
	}
	whole := [2]int{r.Height, r.Width}
	for name, c := range map[string]struct {
		v   *[2]int
		def [2]int
	}{
		"original_size": {r.OriginalSize, whole}, "crops_coords_top_left": {r.CropsCoordsTopLeft, [2]int{}}, "target_size": {r.TargetSize, whole},
		"negative_original_size": {r.NegativeOriginalSize, *r.OriginalSize}, "negative_crops_coords_top_left": {r.NegativeCropsCoordsTopLeft, *r.CropsCoordsTopLeft},
		"negative_target_size": {r.NegativeTargetSize, *r.TargetSize},
	} {
		if *c.v != c.def {
			extra[name] = *c.v
		}
	}
	return extra
}
