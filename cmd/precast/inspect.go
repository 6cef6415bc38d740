package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/spf13/pflag"

	"precast"
)

var inspectCommand = command{
	name: "inspect", args: "FILE|DIR|ORG/NAME|--model-config NAME [--component NAME]",
	short: "show what a checkpoint, artifact, graph, cache entry or picture holds",
	long: `
Shows what a file or folder holds; what it is shows from its content:

  a checkpoint folder   components, dtypes, parameters, files; with --component, the graph of a program at
                        the given sizes, made from the config files alone
  an artifact           programs, sizes, executables, the target; with --component, a graph
  a .graph dump         the graph and its figures
  a cache entry         its key, field by field
  a safetensors file    its tensors
  a PNG                 the parameters that made it, where precast did

ORG/NAME[@REVISION] is a model at the hub, of which configs alone are downloaded: what is not in the cache already is not described.
--model-config NAME takes the configs of a published checkpoint, which precast has, in place of a folder.

With --cost a graph's operations, bytes, weights and live activations are counted by module, --depth levels deep. Nothing is compiled or run: bytes are
those of each operation by itself, and what is alive is an estimate of what a compiler makes of the graph (loops joined, memory used again).

A graph is printed as text (which parses back), StableHLO, JSON, DOT for Graphviz, or one HTML page to read in a browser.`,
	setup: setupInspect,
}

func setupInspect(c *cli, fs *pflag.FlagSet) func(context.Context, []string) error {
	var o precast.InspectOptions
	fs.StringVarP(&o.Component, "component", "c", "", "program whose graph is wanted, such as unet or vae.decoder; without it the folder or file is described")
	fs.StringVar(&o.Phase, "phase", "", "`PHASE` that the graph is shown after: trace, a pass's name, passes (default), stablehlo")
	format := fs.StringP("format", "f", "", "`FORM` of the output: "+strings.Join(precast.GraphFormats, ", ")+" (default text); what isn't a graph is text or json")
	output := fs.StringP("output", "o", "", "`FILE` to write instead of standard output")
	figures := fs.Bool("stats", false, "print a graph's figures only: nodes by operation, functions, weights")
	costs := fs.Bool("cost", false, "print what one run of a graph costs, by module: operations, bytes, weights, activations alive")
	var cost precast.CostOptions
	fs.IntVar(&cost.Depth, "depth", 1, "levels of modules that --cost shows")
	fs.StringVar(&cost.Scope, "scope", "", "`MODULE` that --cost begins at, such as transformer_blocks.3 (default: all)")
	fs.IntVar(&o.Sizes.Height, "height", 0, "height in pixels (default: the model's)")
	fs.IntVar(&o.Sizes.Width, "width", 0, "width in pixels (default: the model's)")
	fs.IntVar(&o.Sizes.Frames, "num-frames", 0, "frames of a video (default: Wan 81)")
	fs.IntVar(&o.Sizes.Batch, "batch-size", 0, "pictures in a batch (default 1)")
	fs.IntVar(&o.Sizes.MaxSequenceLength, "max-sequence-length", 0, "text tokens, where a pipeline has a choice (default: its own, such as FLUX.1 512)")
	fs.StringVar(&o.Config.DType, "dtype", "", "dtype that the networks compute in: float32 (default), bfloat16, float16")
	fs.StringVar(&o.Config.Regions, "regions", "", "inline (default); call, split and auto outline repeated blocks, scan makes loops of them")
	fs.StringVar(&o.Config.Attention, "attention", "", "auto (default), whole, or `chunked:QUERIES[xKEYS]`, as for run")
	fs.StringVar(&o.Config.Scheduler, "scheduler", "", "scheduler in place of the checkpoint's: `CLASS[,KEY=VALUE...]`")
	fs.StringVar(&o.Config.Variant, "variant", "", "weight files to look at, such as fp16 for *.fp16.safetensors")
	fs.StringVar(&o.Config.Revision, "revision", "", "branch, tag or commit of a model named ORG/NAME (default main)")
	modelConfigFlag(fs, &o.Config)
	fs.StringSliceVar(&o.Config.DisabledPasses, "disable-pass", nil, "leave out these passes")
	fs.StringSliceVar(&o.Config.EnabledPasses, "enable-pass", nil, "run these passes, which do not by default")
	return func(ctx context.Context, args []string) error {
		path, err := modelArg(args, "FILE|DIR", o.Config.ModelConfig)
		if err != nil {
			return err
		}
		if *format != "" && !slices.Contains(precast.GraphFormats, *format) {
			return userError("format: found %q, wanted one of %s", *format, strings.Join(precast.GraphFormats, ", "))
		}
		if *costs {
			if o.Cost = &cost; *figures {
				return userError("cost: --stats is something else; ask for one of the two")
			}
			if *format != "" && *format != "text" && *format != "json" {
				return userError("format: found %q; --cost is written as text or json", *format)
			}
		} else if fs.Changed("depth") || fs.Changed("scope") {
			return userError("depth, scope: these are of --cost")
		}
		if cost.Depth < 0 {
			return userError("depth: found %d, wanted 0 or more", cost.Depth)
		}
		if err := atLeastOne(fs, "height", "width", "batch-size", "max-sequence-length", "num-frames"); err != nil {
			return err
		}
		if *output == "-" {
			*output = ""
		}
		file, err := openResult("output", *output)
		if err != nil {
			return err
		}
		defer file.abort()
		if o.Config.ModelConfig == "" {
			o.Config.ConfigOnly, o.Config.Log, o.Config.Download = true, c.logger(), c.download()
			if path, err = precast.Locate(ctx, path, o.Config); err != nil {
				return err
			}
			o.Config.ConfigOnly, o.Config.Revision = false, ""
			if err := precast.CheckApart("inspect", path, *output); err != nil {
				return err
			}
		}
		x, err := precast.Inspect(path, o)
		if err != nil {
			return err
		}
		write := func(w io.Writer) error { return c.printInspection(w, x, *format, *figures) }
		if *output == "" {
			return write(c.out)
		}
		return file.commit(write)
	}
}

func (c *cli) printInspection(w io.Writer, x *precast.Inspection, format string, figures bool) error {
	switch {
	case figures && x.Graph == nil:
		return userError("stats: %s is a %s; --stats is for a graph, add --component NAME", x.Path, x.Kind)
	case x.Cost != nil && format != "json":
		return printCost(w, x)
	case x.Cost != nil, figures && format == "json", x.Graph == nil && format == "json":
		return x.WriteJSON(w)
	case figures:
		_, err := io.WriteString(w, x.Graph.String())
		return err
	case x.Graph != nil:
		if format == "" {
			format = "text"
			if x.Phase == "stablehlo" {
				format = "stablehlo"
			}
		}
		return x.WriteGraph(w, format)
	case format != "" && format != "text":
		return x.WriteGraph(w, format) // its error says what the format is for
	case x.Checkpoint != nil:
		return printCheckpoint(w, x.Path, x.Checkpoint)
	case x.Artifact != nil:
		return printArtifact(w, x.Path, x.Artifact)
	case x.Entry != nil:
		return printEntry(w, x.Entry)
	case x.Tensors != nil:
		return printTensors(w, x.Path, x.Tensors)
	}
	return printParameters(w, x.Path, x.Parameters)
}

// pairs prints "name  value" lines.
func pairs(w io.Writer, list ...string) error {
	t := table(w)
	for i := 0; i+1 < len(list); i += 2 {
		if list[i+1] != "" {
			fmt.Fprintf(t, "%s\t%s\n", list[i], list[i+1])
		}
	}
	return t.Flush()
}

// table lines up what is written with tabs in columns.
func table(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 2, 8, 2, ' ', 0) }

func printCheckpoint(w io.Writer, path string, k *precast.CheckpointInfo) error {
	if err := pairs(w, "checkpoint", path, "pipeline", k.Pipeline, "problem", k.Problem); err != nil {
		return err
	}
	fmt.Fprintln(w)
	t := table(w)
	fmt.Fprintln(t, "component\tclass\tdtype\ttensors\tparameters\tbytes\tfiles")
	for _, p := range k.Components {
		if len(p.Files) == 0 && p.Tensors > 0 {
			fmt.Fprintf(t, "%s\t%s\t-\t%d\t%s\t-\t-\n", p.Name, p.Class, p.Tensors, count(p.Parameters))
			continue
		}
		if len(p.Files) == 0 {
			note := "-"
			if p.Problem != "" {
				note = "see below"
			}
			fmt.Fprintf(t, "%s\t%s\t-\t-\t-\t-\t%s\n", p.Name, p.Class, note)
			continue
		}
		var files []string
		for _, f := range p.Files {
			files = append(files, f.Name)
		}
		text := files[0]
		if len(files) > 1 {
			text = fmt.Sprintf("%s ... (%d files)", files[0], len(files))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\t%s\n", p.Name, p.Class, strings.Join(p.DTypes, ","), p.Tensors, count(p.Parameters),
			precast.FormatBytes(p.Bytes), text)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, p := range k.Components {
		if p.Problem != "" {
			fmt.Fprintf(w, "problem: %s: %s\n", p.Name, p.Problem)
		}
	}
	if k.Sizes != nil {
		fmt.Fprintf(w, "\nprograms at %s\n", k.Sizes)
		t := table(w)
		for _, p := range k.Programs {
			fmt.Fprintf(t, "  %s\t%s\n", p.Name, p.Spec)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	for _, n := range k.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
	return nil
}

// count writes a number for people: 443604 as "443,604".
func count(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func printArtifact(w io.Writer, path string, a *precast.ArtifactInfo) error {
	if err := pairs(w, "artifact", path, "made by", "precast "+a.Precast, "pipeline", a.Pipeline, "weights in", a.Checkpoint, "dtype", a.DType,
		"regions", a.Regions, "scheduler", a.Scheduler, "variant", a.Variant); err != nil {
		return err
	}
	for _, s := range a.Shapes {
		fmt.Fprintf(w, "sizes       %s\n", s)
	}
	fmt.Fprintln(w, "\nruns as it is where these are equal; elsewhere it is compiled again from its graphs")
	t := table(w)
	for _, f := range a.Target {
		fmt.Fprintf(t, "  %s\t%s\n", f.Name, orDash(f.Value))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	t = table(w)
	fmt.Fprintln(t, "program\tsizes\tweights\tsteps\texecutables\tbytes")
	for _, p := range a.Programs {
		bytes := int64(0)
		for _, x := range p.Executables {
			bytes += x.Bytes
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%s\n", p.Name, p.Spec, p.Weights, p.Steps, len(p.Executables), precast.FormatBytes(bytes))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	t = table(w)
	uses := map[string][]string{}
	for _, p := range a.Programs {
		use := func(member, what string) {
			if !slices.Contains(uses[member], what) {
				uses[member] = append(uses[member], what)
			}
		}
		use(p.Graph, p.Name)
		for _, x := range p.Executables {
			if x.Prepare {
				use(x.Member, p.Name+" (prepares weights)")
			} else {
				use(x.Member, p.Name)
			}
		}
	}
	fmt.Fprintln(t, "member\tbytes\tsha256\tof")
	for _, m := range a.Members {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\n", m.Name, m.Size, m.SHA256[:min(16, len(m.SHA256))], strings.Join(uses[m.Name], ", "))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(a.Headers) > 0 {
		fmt.Fprintln(w)
		t = table(w)
		fmt.Fprintln(t, "component\tsha256 of its weight files' headers")
		for _, name := range slices.Sorted(maps.Keys(a.Headers)) {
			fmt.Fprintf(t, "%s\t%s\n", name, a.Headers[name])
		}
		return t.Flush()
	}
	return nil
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func printTensors(w io.Writer, path string, f *precast.TensorFileInfo) error {
	if err := pairs(w, "safetensors", path, "bytes", precast.FormatBytes(f.Bytes), "parameters", count(f.Parameters), "tensors", fmt.Sprint(len(f.Tensors))); err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(f.Metadata)) {
		fmt.Fprintf(w, "metadata %s = %q\n", key, f.Metadata[key])
	}
	fmt.Fprintln(w)
	t := table(w)
	fmt.Fprintln(t, "tensor\tdtype\tshape\tbytes\tat")
	for _, x := range f.Tensors {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\n", x.Key, x.DType, strings.Join(strings.Fields(fmt.Sprint(x.Shape)), ","), x.Bytes, x.Offset)
	}
	return t.Flush()
}

func printParameters(w io.Writer, path string, p *precast.Params) error {
	seed := ""
	if p.Seed != nil {
		seed = fmt.Sprint(*p.Seed)
	}
	list := []string{
		"picture", path, "pipeline", visible(p.Pipeline), "prompt", quoted(p.Prompt), "negative prompt", visible(p.NegativePrompt), "seed", seed,
		"height", fmt.Sprint(p.Height), "width", fmt.Sprint(p.Width), "num_inference_steps", fmt.Sprint(p.NumInferenceSteps),
		"guidance_scale", fmt.Sprint(p.GuidanceScale), "scheduler", visible(p.Scheduler),
	}
	for _, key := range slices.Sorted(maps.Keys(p.Extra)) {
		list = append(list, visible(key), visible(fmt.Sprint(p.Extra[key])))
	}
	return pairs(w, list...)
}

// quoted shows that a text is there and empty, and keeps control characters of a file from elsewhere off the terminal.
func quoted(s string) string {
	if s == "" || strings.ContainsFunc(s, unicode.IsControl) {
		return strconv.Quote(s)
	}
	return s
}

// visible is quoted for a text that may be empty.
func visible(s string) string {
	if s == "" {
		return ""
	}
	return quoted(s)
}
