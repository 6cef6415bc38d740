package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"

	"github.com/spf13/pflag"

	"precast"
)

var compileCommand = command{
	name: "compile", args: "MODEL_DIR|ORG/NAME -o OUT.precast | --model-config NAME",
	short: "compile a checkpoint's networks for one or more sizes into an artifact",
	long: `
Compiles every program of a pipeline for the given sizes and writes them with their graphs to an artifact, a zip file that precast run takes in
place of the folder. Weights stay in the folder. ORG/NAME[@REVISION] is a model at the hub (precast help run); with --config-only only its configs are
downloaded. Without -o the cache is filled.

--compile-to PHASE stops after trace, a pass, passes or stablehlo. --config-only does the same with the config files alone, without weights and
tokenizers, and goes as far as StableHLO where nothing else is asked; it counts the parameters of each component. --model-config NAME takes the configs
of a published checkpoint, which precast has, in place of a folder.`,
	setup: setupCompile,
}

func setupCompile(c *cli, fs *pflag.FlagSet) func(context.Context, []string) error {
	var cfg precast.Config
	var o precast.CompileOptions
	fs.StringVarP(&o.Output, "output", "o", "", "artifact `FILE` to write, usually NAME.precast")
	target := fs.String("target", "cpu", "what to compile for: cpu, the only one yet")
	sizes := sizeFlags(fs)
	batch := fs.Int("batch-size", 1, "prompts in a batch")
	images := fs.Int("num-images-per-prompt", 1, "pictures of each prompt")
	guidance := fs.Float64("guidance-scale", 0, "guidance scale that the run will have; another compiles nothing")
	trueCFG := fs.Float64("true-cfg-scale", 1, "FLUX.1: above 1, compile for classifier-free guidance")
	rescale := fs.Float64("guidance-rescale", 0, "Stable Diffusion and SDXL: above 0, compile for rescaled guidance")
	clipSkip := fs.Int("clip-skip", 0, "Stable Diffusion, SDXL and Stable Diffusion 3: layers of CLIP to leave out at its end")
	fs.BoolVar(&o.Request.VAETiling, "vae-tiling", false, "compile the VAE for tiles, as run --vae-tiling uses it")
	guidanceBatchFlag(fs, &o.Request.GuidanceBatch)
	fs.BoolVar(&o.ImageToImage, "image-to-image", false, "compile the VAE's encoder, too, as run --image uses it")
	steps := fs.Int("num-inference-steps", 0, "steps that the run will have; another number compiles nothing")
	fs.StringSliceVar(&o.Components, "components", nil, "components or programs to compile, such as transformer,vae.decoder (default: all)")
	fs.StringVar(&o.CompileTo, "compile-to", "", "`PHASE` to stop after: trace, a pass's name, passes, stablehlo")
	configOnly := fs.Bool("config-only", false, "read config files only, no weights and no tokenizers; goes up to --compile-to (default stablehlo)")
	modelConfigFlag(fs, &cfg)
	asJSON := fs.Bool("json", false, "print the report as JSON")
	stats := fs.String("stats", "", "JSON `FILE` to write counts, bytes, seconds and peak memory to")
	engineFlags(fs, &cfg)
	return func(ctx context.Context, args []string) error {
		dir, err := modelArg(args, "MODEL_DIR", cfg.ModelConfig)
		if err != nil {
			return err
		}
		if *target != "cpu" {
			return userError("target: found %q, wanted cpu (TPU targets are not built yet)", *target)
		}
		if *configOnly || cfg.ModelConfig != "" {
			if o.Output != "" || o.CompileTo == "executable" {
				return userError("config-only: an executable needs the weights' files, and only configs are read; leave out -o and --compile-to executable")
			}
			if o.CompileTo == "" {
				o.CompileTo = "stablehlo"
			}
		}
		if err := atLeastOne(fs, "batch-size", "num-images-per-prompt", "height", "width", "max-sequence-length", "num-inference-steps", "num-frames"); err != nil {
			return err
		}
		if o.Shapes, err = sizes(); err != nil {
			return err
		}
		if *batch > math.MaxInt / *images {
			return userError("batch-size: found %d, and %d times num-images-per-prompt, wanted fewer pictures", *batch, *images)
		}
		for i := range o.Shapes {
			o.Shapes[i].Batch = *batch * *images
		}
		o.Request.NumInferenceSteps, o.Request.ClipSkip, o.Request.GuidanceRescale = *steps, *clipSkip, *rescale
		if fs.Changed("guidance-scale") {
			o.Request.GuidanceScale = guidance
		}
		if *trueCFG > 1 {
			o.Request.TrueCFGScale, o.Request.NegativePrompt = trueCFG, []string{""}
		}
		statsFile, err := openResult("stats", *stats)
		if err != nil {
			return err
		}
		defer statsFile.abort()
		cfg.Log, cfg.ConfigOnly, cfg.Download = c.logger(), *configOnly, c.download()
		p, err := precast.Open(ctx, dir, cfg)
		if err != nil {
			return err
		}
		defer p.Close()
		if err := p.CheckOutputs(o.Output, *stats); err != nil {
			return err
		}
		if show := c.progress("program"); show != nil {
			o.Progress = func(i, n int, _ string) { show(i+1, n) }
		}
		report, err := p.Compile(ctx, o)
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
		if *asJSON {
			enc := json.NewEncoder(c.out)
			enc.SetIndent("", "  ")
			return enc.Encode(report)
		}
		return c.printReport(report, o.CompileTo)
	}
}

func (c *cli) printReport(r *precast.CompileReport, phase string) error {
	t := table(c.out)
	fmt.Fprintln(t, "program\tsizes\tnodes\tweights\texecutables\tbytes\tseconds")
	for _, p := range r.Programs {
		nodes, note := fmt.Sprint(p.Nodes), ""
		if p.Nodes == 0 {
			nodes = "-"
		}
		if p.Cached {
			note = " cached"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%s\t%.2f%s\n", p.Name, p.Spec, nodes, p.Weights, p.Executables, precast.FormatBytes(p.Bytes), p.Seconds, note)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, p := range r.Programs {
		for _, b := range p.Blocks {
			if b.Instances < 2 {
				// A block of another shape than its class: a function for its form, with nothing repeated.
				continue
			}
			fmt.Fprintf(c.out, "%s: %d equal blocks %s, %d nodes each, are one function %s\n", p.Name, b.Instances, b.Class, b.Nodes, b.Function)
		}
	}
	if len(r.Components) > 0 {
		fmt.Fprintln(c.out)
		fmt.Fprintln(t, "component\tweights\tparameters")
		for _, k := range r.Components {
			fmt.Fprintf(t, "%s\t%d\t%s\n", k.Name, k.Weights, count(k.Parameters))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if r.Artifact != "" {
		fmt.Fprintln(c.out, r.Artifact)
	}
	return nil
}
