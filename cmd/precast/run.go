package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"precast"
)

var runCommand = command{
	name: "run", args: "OUT.precast|MODEL_DIR|ORG/NAME --prompt TEXT -o FILE.png",
	short: "make pictures and videos from a checkpoint folder, a model at the hub or an artifact",
	long: `
Makes pictures and videos. What has to be compiled is compiled once and kept in the cache; another prompt, seed, guidance scale or number of steps compiles
nothing. The arguments of the pipeline's __call__ in diffusers are flags of the same name. A prompt given several times makes a batch, and a
list (sigmas, timesteps) is given with commas; of a flag with one value that is given twice, the last counts.

The model is a folder, an artifact, or ORG/NAME[@REVISION] at the Hugging Face hub: what is read of it is downloaded once, into the cache that Python's
huggingface_hub keeps. HF_HUB_OFFLINE=1 uses what is there.

Noise: picture k is drawn from a generator with seed SEED + k, by PyTorch's rule for torch.Generator("cpu").`,
	setup: setupRun,
}

// callFlags declares the arguments of a pipeline's __call__.
func callFlags(fs *pflag.FlagSet, r *precast.Request) (finish func() error) {
	fs.StringArrayVarP(&r.Prompt, "prompt", "p", nil, "what the picture shows; several times for a batch")
	fs.StringArrayVar(&r.Prompt2, "prompt-2", nil, "`TEXT` for the second text encoder, where it differs")
	fs.StringArrayVar(&r.Prompt3, "prompt-3", nil, "`TEXT` for the third text encoder (T5 of Stable Diffusion 3), where it differs")
	fs.StringArrayVar(&r.NegativePrompt, "negative-prompt", nil, "what it does not show; once for all prompts, or once a prompt")
	fs.StringArrayVar(&r.NegativePrompt2, "negative-prompt-2", nil, "negative text for the second text encoder, where it differs")
	fs.StringArrayVar(&r.NegativePrompt3, "negative-prompt-3", nil, "negative text for the third text encoder, where it differs")
	fs.IntVar(&r.Height, "height", 0, "height in pixels (default: the model's, or the image's)")
	fs.IntVar(&r.Width, "width", 0, "width in pixels (default: the model's, or the image's)")
	frames := fs.Int("num-frames", 0, "frames of a video, one more than a multiple of 4 (default: Wan 81)")
	picture := fs.String("image", "", "picture to start from, a PNG, JPEG or GIF `FILE`: image-to-image, for Stable Diffusion, SDXL and FLUX.1")
	strength := fs.Float64("strength", 0, "with --image: how much of it is replaced, 0 to 1; so many of the steps are done (default: Stable Diffusion 0.8, SDXL 0.3, FLUX.1 0.6)")
	steps := fs.Int("num-inference-steps", 0, "denoising steps (default: the pipeline's, such as FLUX.1 28, Stable Diffusion 50)")
	guidance := fs.Float64("guidance-scale", 0, "guidance scale (default: the pipeline's, such as FLUX.1 3.5, with an image 7; SDXL 5; Stable Diffusion 7.5)")
	guidance2 := fs.Float64("guidance-scale-2", 0, "Wan 2.2: guidance scale of the second expert (default: that of the first)")
	trueCFG := fs.Float64("true-cfg-scale", 0, "FLUX.1 and Qwen-Image: classifier-free guidance with the negative prompt, above 1 (default: FLUX.1 1, Qwen-Image 4)")
	fs.Float64Var(&r.GuidanceRescale, "guidance-rescale", 0, "Stable Diffusion and SDXL: rescale the guided prediction, 0 to 1")
	fs.BoolVar(&r.CFGNormalization, "cfg-normalization", false, "Z-Image: hold the guided prediction to the size of the prompt's")
	truncation := fs.Float64("cfg-truncation", 1, "Z-Image: no guidance past this part of the way, 0 to 1")
	fs.Float64Var(&r.Eta, "eta", 0, "DDIM: amount of noise added, 0 to 1")
	for _, size := range []struct {
		name string
		to   **[2]int
		what string
	}{
		{"original-size", &r.OriginalSize, "`HEIGHTxWIDTH` of the picture that it is to look like it was made from (default: its own)"},
		{"crops-coords-top-left", &r.CropsCoordsTopLeft, "`TOPxLEFT` corner where it is to look cut from that picture (default: 0x0)"},
		{"target-size", &r.TargetSize, "`HEIGHTxWIDTH` that it is to look made for (default: its own)"},
		{"negative-original-size", &r.NegativeOriginalSize, "the negative prompt's original size, `HEIGHTxWIDTH`"},
		{"negative-crops-coords-top-left", &r.NegativeCropsCoordsTopLeft, "the negative prompt's crop, `TOPxLEFT`"},
		{"negative-target-size", &r.NegativeTargetSize, "the negative prompt's target size, `HEIGHTxWIDTH`"},
	} {
		fs.Var(&pair{size.to}, size.name, "SDXL: "+size.what)
	}
	fs.BoolVar(&r.VAETiling, "vae-tiling", false, "decode (and encode) in overlapping tiles, so that large pictures take less memory; changes the picture a little")
	guidanceBatchFlag(fs, &r.GuidanceBatch)
	fs.Bool("vae-slicing", false, "decode a picture at a time: always so, the flag is accepted for scripts")
	clipSkip := fs.Int("clip-skip", 0, "Stable Diffusion, SDXL and Stable Diffusion 3: layers of CLIP to leave out at its end")
	length := fs.Int("max-sequence-length", 0, "text tokens, where a pipeline has a choice (default: its own, such as FLUX.1 512)")
	images := fs.Int("num-images-per-prompt", 1, "pictures of each prompt")
	fs.VarP((*floats)(&r.Sigmas), "sigmas", "", "noise levels in place of the scheduler's own")
	fs.VarP((*floats)(&r.Timesteps), "timesteps", "", "timesteps in place of the scheduler's own")
	fs.Uint64Var(&r.Seed, "seed", 0, "seed of the first picture, 0 where none is given; picture k has seed + k")
	latents := fs.String("latents", "", "start noise, meaning what diffusers' latents= does: `FILE[:TENSOR]`, a safetensors file and the tensor's name where it has several")
	noise := fs.String("step-noise", "", "noise of stochastic schedulers, with one more leading axis, the steps: `FILE[:TENSOR]`")
	return func() error {
		r.NumInferenceSteps, r.ClipSkip, r.MaxSequenceLength, r.NumImagesPerPrompt = *steps, *clipSkip, *length, *images
		var errs []error
		if err := atLeastOne(fs, "num-inference-steps", "max-sequence-length", "num-images-per-prompt", "height", "width", "num-frames"); err != nil {
			errs = append(errs, err)
		}
		if fs.Changed("guidance-scale-2") {
			r.GuidanceScale2 = guidance2
		}
		r.NumFrames = *frames
		if fs.Changed("guidance-scale") {
			r.GuidanceScale = guidance
		}
		if fs.Changed("cfg-truncation") {
			r.CFGTruncation = truncation
		}
		if fs.Changed("true-cfg-scale") {
			r.TrueCFGScale = trueCFG
		}
		if fs.Changed("strength") {
			r.Strength = strength
		}
		var err error
		if *picture != "" {
			if r.Image, err = precast.ReadImage(*picture); err != nil {
				errs = append(errs, fmt.Errorf("image: %w", err))
			}
		}
		if *latents != "" {
			if r.Latents, err = precast.ReadTensor(*latents); err != nil {
				errs = append(errs, fmt.Errorf("latents: %w", err))
			}
		}
		if *noise != "" {
			if r.StepNoise, err = precast.ReadTensor(*noise); err != nil {
				errs = append(errs, fmt.Errorf("step-noise: %w", err))
			}
		}
		if err := errors.Join(errs...); err != nil {
			return userError("%w", err)
		}
		return nil
	}
}

func setupRun(c *cli, fs *pflag.FlagSet) func(context.Context, []string) error {
	var req precast.Request
	var cfg precast.Config
	finish := callFlags(fs, &req)
	output := fs.StringP("output", "o", "", "PNG `FILE`, or a folder with / at its end for 0000.png, 0001.png ...; several pictures go to FILE-0.png, FILE-1.png ...; "+
		"a video: .mp4 (through ffmpeg), .png (animated, lossless), or a folder for a PNG a frame; tensors: .safetensors")
	fps := fs.Float64("fps", 0, "frames a second of a video (default: the pipeline's, 16 for Wan)")
	var part parts
	part.flags(fs)
	stats := fs.String("stats", "", "JSON `FILE` to write counts, bytes, seconds and peak memory to")
	fs.StringVar(&cfg.Checkpoint, "checkpoint", "", "`DIR` or ORG/NAME that an artifact's weights are read from, where the folder has moved")
	fs.BoolVar(&cfg.CheckFinite, "check-finite", false, "with --mode eager: stop at the first operation that makes a NaN or an infinity, and name it and its module")
	fs.StringVar(&cfg.DumpValues, "dump-values", "", "with --mode eager: write the results of all operations in a module to --dump-values-to: `[COMPONENT:]SCOPE`, such as transformer_blocks.0 or vae:")
	fs.StringVar(&cfg.DumpValuesTo, "dump-values-to", "", "`DIR` for --dump-values: a safetensors file each time that a program runs, with the step in its name")
	engineFlags(fs, &cfg)
	return func(ctx context.Context, args []string) error {
		if err := wantArgs(args, "OUT.precast or MODEL_DIR"); err != nil {
			return err
		}
		if fs.Changed("fps") && *fps <= 0 {
			return userError("fps: found %g, wanted a number of frames a second above 0 and up to 1000", *fps)
		}
		if err := finish(); err != nil {
			return err
		}
		part.fps = *fps
		part.latents = fs.Lookup("latents").Value.String()
		for _, flag := range []string{"inputs", "prompt-embeds", "latents", "step-noise", "image"} {
			part.reads = append(part.reads, read{flag, fs.Lookup(flag).Value.String()})
		}
		if err := part.quick(&req, *output); err != nil {
			return err
		}
		statsFile, err := openResult("stats", *stats)
		if err != nil {
			return err
		}
		defer statsFile.abort()
		cfg.Log, cfg.Download, cfg.Components = c.logger(), c.download(), part.components
		p, err := precast.Open(ctx, args[0], cfg)
		if err != nil {
			return err
		}
		defer p.Close()
		if show := c.progress("step"); show != nil {
			req.Progress = show
		}
		paths, err := part.run(ctx, p, &req, *output, *stats)
		if err != nil {
			return err
		}
		for _, n := range p.Notes() {
			cfg.Log.Info(n)
		}
		if err := statsFile.commit(p.Stats().WriteJSON); err != nil {
			return err
		}
		if c.verbose {
			if err := p.Stats().WriteTable(c.err); err != nil {
				return err
			}
		}
		fmt.Fprintln(c.out, strings.Join(paths, "\n"))
		return nil
	}
}

// pair is a flag that takes two numbers with an x between.
type pair struct{ to **[2]int }

func (p *pair) Type() string { return "AxB" }

func (p *pair) String() string {
	if p.to == nil || *p.to == nil {
		return ""
	}
	return fmt.Sprintf("%dx%d", (*p.to)[0], (*p.to)[1])
}

func (p *pair) Set(text string) error {
	a, b, ok := strings.Cut(strings.ToLower(text), "x")
	first, err1 := strconv.Atoi(a)
	second, err2 := strconv.Atoi(b)
	if !ok || err1 != nil || err2 != nil {
		return fmt.Errorf("found %q, wanted two numbers with an x between, such as 1024x768", text)
	}
	*p.to = &[2]int{first, second}
	return nil
}

// floats is a flag that takes numbers separated by commas; given twice, the last list counts.
type floats []float64

func (f *floats) Type() string { return "float64Slice" }

func (f *floats) String() string {
	if len(*f) == 0 {
		return ""
	}
	return fmt.Sprint([]float64(*f))
}

func (f *floats) Set(text string) error {
	var list []float64
	for part := range strings.SplitSeq(text, ",") {
		v, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
		if err != nil {
			return fmt.Errorf("found %q, wanted a number; separate numbers with commas", part)
		}
		list = append(list, v)
	}
	*f = list
	return nil
}
