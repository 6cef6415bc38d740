package main

import (
	"context"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"precast"
)

// parts are the flags of run that choose a part of it: some components, one network, texts encoded before, latents in place of pictures.
type parts struct {
	components []string
	inputs     string
	embeds     string
	saveEmbeds string
	outputType string
	fps        float64 // of a video; 0 is the default
	latents    string  // --latents as it was given
	reads      []read
}

// read is a file that a flag names to be read.
type read struct{ flag, path string }

func (q *parts) flags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&q.components, "components", nil, "run these components alone: text encoders (to --save-prompt-embeds), the denoiser (from --prompt-embeds to latents in -o FILE.safetensors), vae.decoder (from --latents)")
	fs.StringVar(&q.inputs, "inputs", "", "run one network of --components alone on the tensors of `FILE.safetensors` by the names of its inputs; its results go to -o FILE.safetensors")
	fs.StringVar(&q.embeds, "prompt-embeds", "", "use embeddings that --save-prompt-embeds wrote in place of prompts: no text encoder is loaded (`FILE.safetensors`)")
	fs.StringVar(&q.saveEmbeds, "save-prompt-embeds", "", "write the embeddings of the prompts to `FILE.safetensors`")
	fs.StringVar(&q.outputType, "output-type", "pil", "pil: pictures; latent: the latents, to -o FILE.safetensors")
}

// quick refuses what is missing in a plain run, before anything is opened.
func (q *parts) quick(req *precast.Request, output string) error {
	if len(q.components) > 0 || q.embeds != "" || q.outputType != "pil" || q.inputs != "" {
		return nil
	}
	if output == "" {
		return userError("output: none given; name a PNG file with -o")
	}
	if len(req.Prompt) == 0 {
		return userError("prompt: none given; give --prompt TEXT")
	}
	return nil
}

// work is what one run does.
type work struct {
	stages []precast.Stage
	single string // the network that runs alone on --inputs
}

func (w *work) has(s precast.Stage) bool { return slices.Contains(w.stages, s) }

// plan finds out what the flags ask for and refuses what does not go together.
func (q *parts) plan(p *precast.Pipeline, req *precast.Request, output string) (*work, error) {
	w := &work{stages: []precast.Stage{precast.StageEncode, precast.StageDenoise, precast.StageDecode}}
	if q.outputType != "pil" && q.outputType != "latent" {
		return nil, userError("output-type: found %q, wanted pil or latent", q.outputType)
	}
	if q.inputs != "" {
		if len(q.components) != 1 {
			return nil, userError("inputs: they are of one network; name it with --components, such as --components transformer")
		}
		w.single, w.stages = q.components[0], nil
		for _, f := range []struct {
			flag  string
			given bool
		}{
			{"prompt", hasTexts(req)},
			{"prompt-embeds", q.embeds != ""},
			{"save-prompt-embeds", q.saveEmbeds != ""},
			{"latents", req.Latents != nil},
			{"step-noise", req.StepNoise != nil},
			{"image", req.Image != nil},
			{"output-type", q.outputType != "pil"},
		} {
			if f.given {
				return nil, userError("%s: given, but --inputs runs %s alone, on that file's tensors; leave it out", f.flag, w.single)
			}
		}
		return w, wantTensorFile(output, "the results of "+w.single)
	}
	if len(q.components) > 0 {
		stages, err := p.StagesFor(q.components)
		if err != nil {
			return nil, err
		}
		w.stages = stages
	}
	if q.outputType == "latent" {
		w.stages = slices.DeleteFunc(slices.Clone(w.stages), func(s precast.Stage) bool { return s == precast.StageDecode })
	}
	switch {
	case len(w.stages) == 0:
		return nil, userError("output-type: latent needs the denoiser among the --components")
	case w.has(precast.StageEncode) && q.embeds != "":
		if len(q.components) > 0 {
			return nil, userError("prompt-embeds: given for a run of text encoders; leave them out of --components, or give --prompt")
		}
		w.stages = w.stages[1:]
	case !w.has(precast.StageEncode) && w.has(precast.StageDenoise) && q.embeds == "":
		return nil, userError("prompt-embeds: none given, and no text encoder is among the --components; name a file that --save-prompt-embeds wrote")
	}
	if w.has(precast.StageEncode) && len(req.Prompt) == 0 {
		return nil, userError("prompt: none given; give --prompt TEXT")
	}
	if !w.has(precast.StageEncode) && hasTexts(req) {
		return nil, userError("prompt: given, but no text encoder runs (%v); leave it out", q.reason())
	}
	if q.embeds != "" && !w.has(precast.StageDenoise) {
		return nil, userError("prompt-embeds: given, but no denoiser is among the --components that would use them; leave it out")
	}
	switch {
	case !w.has(precast.StageDenoise) && w.has(precast.StageDecode):
		if q.latents == "" {
			return nil, userError("latents: none given to decode; name a file that --output-type latent wrote")
		}
	case !w.has(precast.StageDenoise):
		if q.saveEmbeds == "" {
			return nil, userError("save-prompt-embeds: none given, and nothing else comes out of text encoders alone; name a file")
		}
		if output != "" {
			return nil, userError("output %q: text encoders alone make no picture; give --save-prompt-embeds only", output)
		}
	case !w.has(precast.StageDecode):
		return w, wantTensorFile(output, "latents")
	}
	if w.has(precast.StageDecode) && output == "" {
		return nil, userError("output: none given; name a PNG file with -o")
	}
	if q.saveEmbeds != "" && !w.has(precast.StageEncode) {
		return nil, userError("save-prompt-embeds: no text encoder runs (%s), so there is nothing to save", q.reason())
	}
	return w, nil
}

// hasTexts says that a request has a text for some encoder.
func hasTexts(r *precast.Request) bool {
	return len(r.Prompt)+len(r.Prompt2)+len(r.Prompt3)+len(r.NegativePrompt)+len(r.NegativePrompt2)+len(r.NegativePrompt3) > 0
}

func (q *parts) reason() string {
	if q.embeds != "" {
		return "--prompt-embeds"
	}
	return "--components"
}

func wantTensorFile(output, what string) error {
	if strings.EqualFold(filepath.Ext(output), ".safetensors") {
		return nil
	}
	return userError("output %q: %s go to a tensor file; name one with -o FILE.safetensors", output, what)
}

// run does what the flags ask for and returns the files that it wrote.
func (q *parts) run(ctx context.Context, p *precast.Pipeline, req *precast.Request, output, stats string) ([]string, error) {
	w, err := q.plan(p, req, output)
	if err != nil {
		return nil, err
	}
	if q.embeds != "" {
		if req.PromptEmbeds, req.Prompt, err = p.ReadEmbeds(q.embeds); err != nil {
			return nil, err
		}
	}
	saved, err := openResult("save-prompt-embeds", q.saveEmbeds)
	if err != nil {
		return nil, err
	}
	defer saved.abort()
	var embeds precast.Embeds
	req.Encoded = func(e precast.Embeds) { embeds = e }
	var paths []string
	switch {
	case w.single != "":
		paths, err = q.single(ctx, p, req, w.single, output, stats)
	case !w.has(precast.StageDenoise) && !w.has(precast.StageDecode):
		if err := q.checkOutputs(p, q.saveEmbeds, stats); err != nil {
			return nil, err
		}
		embeds, err = p.Encode(ctx, req)
	case !w.has(precast.StageDecode):
		paths, err = q.denoise(ctx, p, req, output, stats)
	case !w.has(precast.StageDenoise):
		paths, err = q.decode(ctx, p, req, output, stats)
	default:
		paths, err = q.pictures(p, req, output, stats, func() (*precast.Result, error) { return p.Generate(ctx, req) })
	}
	if err != nil {
		return nil, err
	}
	if q.saveEmbeds != "" {
		if err := saved.commit(func(f io.Writer) error { return p.WriteEmbeds(f, embeds, req) }); err != nil {
			return nil, err
		}
		paths = append(paths, q.saveEmbeds)
	}
	return paths, nil
}

// checkOutputs refuses outputs that would destroy what is read.
func (q *parts) checkOutputs(p *precast.Pipeline, paths ...string) error {
	for _, r := range q.reads {
		if err := precast.CheckApart("--"+r.flag, r.path, paths...); err != nil {
			return err
		}
	}
	return p.CheckOutputs(paths...)
}

// pictures opens the files, has the pictures made, and writes them.
func (q *parts) pictures(p *precast.Pipeline, req *precast.Request, output, stats string, generate func() (*precast.Result, error)) ([]string, error) {
	s, err := p.SizesFor(req)
	if err != nil {
		return nil, err
	}
	o := precast.OutputOptions{Count: s.Batch, Frames: s.Frames, FPS: q.fps}
	if err := q.checkOutputs(p, append(precast.OutputPaths(output, o), q.saveEmbeds, stats)...); err != nil {
		return nil, err
	}
	out, err := precast.OpenOutput(output, o)
	if err != nil {
		return nil, err
	}
	defer out.Abort()
	res, err := generate()
	if err != nil {
		return nil, err
	}
	return out.Write(res)
}

func (q *parts) decode(ctx context.Context, p *precast.Pipeline, req *precast.Request, output, stats string) ([]string, error) {
	latents, params, err := p.ReadLatents(q.latents)
	if err != nil {
		return nil, err
	}
	req.Latents = nil
	if n := latents.Shape.Dim(0); len(params) == n && n > 0 {
		// The sizes are those that the latents were made for, unless others are asked for.
		if req.Height == 0 && req.Width == 0 {
			req.Height, req.Width = params[0].Height, params[0].Width
		}
		if frames, ok := params[0].Extra["num_frames"].(float64); ok && req.NumFrames == 0 {
			req.NumFrames = int(frames)
		}
	}
	if len(req.Prompt) == 0 {
		req.Prompt = make([]string, min(max(latents.Shape.Dim(0), 1), 1024))
	}
	return q.pictures(p, req, output, stats, func() (*precast.Result, error) {
		res, err := p.Decode(ctx, req, latents)
		if err == nil && len(params) == len(res.Params) {
			res.Params = params
		}
		return res, err
	})
}

func (q *parts) denoise(ctx context.Context, p *precast.Pipeline, req *precast.Request, output, stats string) ([]string, error) {
	if err := q.checkOutputs(p, output, q.saveEmbeds, stats); err != nil {
		return nil, err
	}
	file, err := openResult("output", output)
	if err != nil {
		return nil, err
	}
	defer file.abort()
	latents, params, err := p.Denoise(ctx, req)
	if err != nil {
		return nil, err
	}
	return []string{output}, file.commit(func(f io.Writer) error { return p.WriteLatents(f, latents, params) })
}

func (q *parts) single(ctx context.Context, p *precast.Pipeline, req *precast.Request, name, output, stats string) ([]string, error) {
	if err := q.checkOutputs(p, output, stats); err != nil {
		return nil, err
	}
	inputs, err := precast.ReadTensors(q.inputs)
	if err != nil {
		return nil, userError("inputs: %w", err)
	}
	file, err := openResult("output", output)
	if err != nil {
		return nil, err
	}
	defer file.abort()
	s := precast.Sizes{Batch: req.NumImagesPerPrompt, Height: req.Height, Width: req.Width, Frames: req.NumFrames, MaxSequenceLength: req.MaxSequenceLength}
	results, err := p.RunComponent(ctx, name, s, inputs)
	if err != nil {
		return nil, err
	}
	return []string{output}, file.commit(func(f io.Writer) error { return precast.WriteTensors(f, results) })
}
