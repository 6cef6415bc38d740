package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"

	"precast"
)

var benchCommand = command{
	name: "bench", args: "MODEL_DIR|ORG/NAME|OUT.precast",
	short: "measure a model's networks in several variants, side by side",
	long: `
Runs networks of a checkpoint in several variants and prints what each takes: trace, passes, lowering, compile, the size of what is kept, loading, the
time to the first step with an empty cache (cold) and with a full one (warm), a step, memory, and how far the results of the variants are from each other.

  eager             each operation dispatched alone
  inline            one program a component
  call, scan        one with a function, or a loop, for repeated blocks
  split             a program for each class of repeated blocks
  auto              what --regions auto takes
  split+offload=model   +KEY=VALUE sets offload, enable-pass, disable-pass, plugin, backend, threads or lora
                    of this variant

Every measurement is a process of its own; the variants take turns, round after round, so that what disturbs the machine disturbs all. Weights are the
checkpoint's, in the page cache before the first process. Inputs are what the pipeline gives its networks for random texts and noise, the same for all variants.
A variant that fails, or whose plugin crashes, has its error in the table. Where results differ by more than rounding, or no variant could be measured, the
exit code is 1.`,
	setup: setupBench,
}

func setupBench(c *cli, fs *pflag.FlagSet) func(context.Context, []string) error {
	var cfg precast.Config
	var o precast.BenchOptions
	fs.StringSliceVar(&o.Variants, "variants", nil, "variants to measure, see above (default: eager,inline,split, under --offload block without inline; of an artifact what it holds)")
	fs.StringVar(&o.Baseline, "baseline", "", "`VARIANT` that the others are compared with (default: inline, else the first)")
	fs.StringSliceVar(&o.Components, "components", nil, "components or programs to measure, such as transformer,vae.decoder,text_encoder (default: the denoiser)")
	sizes := sizeFlags(fs)
	batch := fs.Int("batch-size", 1, "pictures in a batch")
	dtypes := fs.StringArray("dtype", nil, "`DTYPE` to compute in: float32 (default), bfloat16, float16, with COMPONENT=DTYPE behind it for one that differs; several times for several")
	fs.IntVar(&o.Steps, "steps", 5, "steps to measure in each warm process")
	fs.IntVar(&o.EagerSteps, "eager-steps", 0, "the same where eager runs (default: 2, or --steps where that is less)")
	fs.IntVar(&o.Warmup, "warmup", 1, "steps after the first that are not measured")
	fs.IntVar(&o.Rounds, "rounds", 3, "turns of every variant")
	fs.DurationVar(&o.Budget, "budget", 10*time.Minute, "time after which no more is begun, such as 90s; 0: no limit. What was left out is said")
	fs.Uint64Var(&o.Seed, "seed", 0, "seed of the inputs")
	jsonFile := fs.String("json", "", "write every process's figures and the machine to `FILE.json`")
	plot := fs.String("plot", "", "draw the figures to `FILE`, an .svg or .png")
	compare := fs.String("compare", "", "print the figures as multiples of those in `FILE.json`, which --json wrote earlier")
	fs.StringVar(&cfg.Offload, "offload", "", "none (default), model, or block (in split and artifacts made with it), for all variants that do not say their own")
	fs.StringSliceVar(&cfg.EnabledPasses, "enable-pass", nil, "passes to run in all variants though they do not by default")
	fs.StringSliceVar(&cfg.DisabledPasses, "disable-pass", nil, "passes to leave out of all variants")
	fs.StringVar(&cfg.Scheduler, "scheduler", "", "scheduler in place of the checkpoint's: `CLASS[,KEY=VALUE...]`")
	fs.StringVar(&cfg.Variant, "variant", "", "weight files to read, such as fp16 for *.fp16.safetensors")
	fs.StringArrayVar(&cfg.LoRAs, "lora", nil, "LoRA to add to the weights: `FILE[:SCALE]`; several times for several")
	fs.StringVar(&cfg.Revision, "revision", "", "branch, tag or commit of a model named ORG/NAME (default main)")
	fs.StringVar(&cfg.Checkpoint, "checkpoint", "", "an artifact's weights, where they are not where it was compiled: a `DIR`")
	fs.StringVar(&cfg.Backend, "backend", "", "auto (default): the PJRT plugin where one is installed, else go; pjrt; go")
	fs.StringVar(&cfg.Plugin, "plugin", "", "PJRT plugin: a `PATH` or a name of precast plugin list")
	fs.IntVar(&cfg.Threads, "threads", 0, "threads to compute with (default: the machine's processors)")
	child := fs.Bool("child", false, "be one measuring process: the task comes on standard input")
	_ = fs.MarkHidden("child")
	return func(ctx context.Context, args []string) error {
		if *child {
			if err := wantArgs(args); err != nil {
				return err
			}
			return precast.BenchChild(ctx, c.in, c.out)
		}
		if err := wantArgs(args, "MODEL_DIR"); err != nil {
			return err
		}
		if err := atLeastOne(fs, "steps", "eager-steps", "rounds", "batch-size", "height", "width", "max-sequence-length", "num-frames", "threads"); err != nil {
			return err
		}
		var err error
		if o.Shapes, err = sizes(); err != nil {
			return err
		}
		for i := range o.Shapes {
			o.Shapes[i].Batch = *batch
		}
		o.DTypes = *dtypes
		var then *precast.BenchReport
		if *compare != "" {
			if then, err = precast.ReadBench(*compare); err != nil {
				return err
			}
		}
		if *plot != "" {
			if err := precast.CheckPlot(*plot); err != nil {
				return err
			}
		}
		if err := precast.CheckApart("precast bench", args[0], *jsonFile, *plot); err != nil {
			return err
		}
		jsonOut, err := openResult("json", *jsonFile)
		if err != nil {
			return err
		}
		defer jsonOut.abort()
		plotOut, err := openResult("plot", *plot)
		if err != nil {
			return err
		}
		defer plotOut.abort()
		self, err := os.Executable()
		if err != nil {
			return err
		}
		o.Command = []string{self, "bench", "--child"}
		cfg.Log, cfg.Download = c.logger(), c.download()
		if !c.quiet {
			o.Progress = func(i, n int, what string) { cfg.Log.Info(fmt.Sprintf("%d/%d %s", i, n, what)) }
		}
		report, err := precast.Bench(ctx, args[0], cfg, o)
		if report == nil {
			return err
		}
		if werr := report.WriteTable(c.out); werr != nil {
			return werr
		}
		if then != nil && report.Measured() {
			if werr := report.WriteComparison(c.out, then, *compare); werr != nil {
				return werr
			}
		}
		if werr := jsonOut.commit(report.WriteJSON); werr != nil {
			return werr
		}
		if *plot != "" && report.Measured() {
			if werr := plotOut.commit(report.PlotTo(*plot)); werr != nil {
				return werr
			}
		}
		switch {
		case err != nil && report.Interrupted:
			return userError("bench: interrupted; the figures are of what was measured until then")
		case err != nil:
			return err
		case !report.Measured():
			return userError("bench: no variant could be measured; the table says why")
		case report.Wrong():
			return userError("bench: the results of the variants differ by more than rounding, or are not finite; the table says where")
		}
		return nil
	}
}
