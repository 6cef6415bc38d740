package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"precast"
)

// engineFlags declares the flags that shape programs and say where they run and are kept.
func engineFlags(fs *pflag.FlagSet, cfg *precast.Config) {
	fs.StringVar(&cfg.DType, "dtype", "", "dtype that the networks compute in: float32 (default), bfloat16, float16; components that differ behind it, as in bfloat16,vae=float32")
	fs.StringVar(&cfg.Regions, "regions", "", "inline: one program a component (default); call: one with a function for each class of repeated blocks; scan: one with a loop for blocks that follow one another; split: a program for each class; auto: split where the blocks are many, else call. It is an error if nothing repeats (call, scan, split), or a component of --components does not")
	fs.StringVar(&cfg.Attention, "attention", "", "auto (default): in chunks where the scores take more memory than is good for the target; whole; `chunked:QUERIES[xKEYS]`: chunks of so many queries, and of so many keys with a running softmax")
	fs.StringVar(&cfg.Mode, "mode", "", "compiled (default); eager: each operation is dispatched alone, for debugging; components that differ behind it, as in compiled,unet=eager")
	fs.StringVar(&cfg.Offload, "offload", "", "none (default); model: the weights of one component at a time are on the device, and leave it when its work is done; block: of a component that repeats, those of one block, and of the next on its way (implies --regions split)")
	fs.StringVar(&cfg.TextEncoderDevice, "text-encoder-device", "", "cpu: text encoders run on the CPU, whatever the rest runs on")
	fs.IntVar(&cfg.TensorParallelSize, "tensor-parallel-size", 1, "number of devices: 1, the only one yet")
	fs.StringVar(&cfg.Scheduler, "scheduler", "", "scheduler in place of the checkpoint's: `CLASS[,KEY=VALUE...]`")
	fs.StringVar(&cfg.Variant, "variant", "", "weight files to read, such as fp16 for *.fp16.safetensors")
	fs.StringArrayVar(&cfg.LoRAs, "lora", nil, "LoRA to add to the weights: `FILE[:SCALE]`, a safetensors file and how strongly it applies (default 1); several times for several")
	fs.StringVar(&cfg.Revision, "revision", "", "branch, tag or commit of a model named ORG/NAME, as ORG/NAME@REVISION (default main)")
	fs.StringVar(&cfg.Backend, "backend", "", "auto (default): the PJRT plugin where one is installed, else go; pjrt; go")
	fs.StringVar(&cfg.Plugin, "plugin", "", "PJRT plugin: a `PATH` or a name of precast plugin list")
	fs.IntVar(&cfg.Threads, "threads", 0, "threads to compute with (default: the machine's processors)")
	fs.StringVar(&cfg.CacheDir, "cache-dir", "", "`DIR` of the cache (default: $PRECAST_CACHE_DIR, else precast in the user's cache folder)")
	fs.BoolVar(&cfg.NoCache, "no-cache", false, "neither read nor write the cache")
	fs.StringVar(&cfg.WeightsCache, "weights-cache", "", "off (default); on: weights that take work to load (another dtype or order, not aligned, LoRAs) are written to the cache once, as large as they are in memory, and later runs map them; what --offload block streams comes from the checkpoint")
	fs.BoolVar(&cfg.CacheOnly, "cache-only", false, "fail with exit code 3 where something would have to be compiled")
	fs.StringSliceVar(&cfg.DisabledPasses, "disable-pass", nil, "passes to leave out, by their names; several times or with commas")
	fs.StringSliceVar(&cfg.EnabledPasses, "enable-pass", nil, "passes to run though they do not by default, by their names; several times or with commas")
	fs.BoolVar(&cfg.CheckPasses, "check", false, "verify the graph around each pass")
	fs.StringVar(&cfg.DumpDir, "dump-compilation-phases-to", "", "`DIR` for every phase of what is compiled: graphs, StableHLO, optimized HLO")
}

// modelConfigFlag declares --model-config.
func modelConfigFlag(fs *pflag.FlagSet, cfg *precast.Config) {
	fs.StringVar(&cfg.ModelConfig, "model-config", "", "configs of a published checkpoint in place of a folder, without weights: a `NAME`, one of "+strings.Join(precast.ModelConfigs(), ", "))
}

// modelArg is the one argument, which --model-config replaces.
func modelArg(args []string, name, modelConfig string) (string, error) {
	if modelConfig == "" {
		if err := wantArgs(args, name); err != nil {
			return "", err
		}
		return args[0], nil
	}
	if len(args) > 0 {
		return "", userError("model-config: found the argument %q, too; give either a folder or --model-config", args[0])
	}
	return "", nil
}

// atLeastOne refuses a whole number below 1 that the user gave.
func atLeastOne(fs *pflag.FlagSet, names ...string) error {
	var errs []error
	for _, name := range names {
		if v, err := fs.GetInt(name); err == nil && fs.Changed(name) && v < 1 {
			errs = append(errs, fmt.Errorf("%s: found %d, wanted 1 or more", name, v))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return userError("%w", err)
	}
	return nil
}

// guidanceBatchFlag declares how the halves of classifier-free guidance are computed.
func guidanceBatchFlag(fs *pflag.FlagSet, to *string) {
	fs.StringVar(to, "guidance-batch", "auto", "`HOW` the two halves of classifier-free guidance are computed: two calls, or one of twice the batch, "+
		"which takes more memory for activations: auto, one, two; auto is two on every platform")
}

// sizeFlags declares the flags for the sizes that a command prepares programs for. What it returns reads them, once they are parsed: at least one size,
// its batch left to the command.
func sizeFlags(fs *pflag.FlagSet) func() ([]precast.Sizes, error) {
	shapes := fs.StringArray("shape", nil, "`HEIGHTxWIDTH` in pixels; several times for several sizes (default: the model's)")
	height := fs.Int("height", 0, "height in pixels, in place of --shape")
	width := fs.Int("width", 0, "width in pixels, in place of --shape")
	frames := fs.Int("num-frames", 0, "frames of a video (default: Wan 81)")
	length := fs.Int("max-sequence-length", 0, "text tokens, where a pipeline has a choice (default: its own, such as FLUX.1 512)")
	return func() ([]precast.Sizes, error) {
		var list []precast.Sizes
		for _, s := range *shapes {
			size, err := parseShape(s)
			if err != nil {
				return nil, err
			}
			list = append(list, size)
		}
		switch {
		case len(list) == 0:
			list = []precast.Sizes{{Height: *height, Width: *width}}
		case *height != 0 || *width != 0:
			return nil, userError("shape: give either --shape or --height and --width")
		}
		for i := range list {
			list[i].Frames, list[i].MaxSequenceLength = *frames, *length
		}
		return list, nil
	}
}

// parseShape reads HEIGHTxWIDTH.
func parseShape(s string) (precast.Sizes, error) {
	h, w, ok := strings.Cut(strings.ToLower(s), "x")
	height, err1 := strconv.Atoi(h)
	width, err2 := strconv.Atoi(w)
	if !ok || err1 != nil || err2 != nil || height < 1 || width < 1 {
		return precast.Sizes{}, userError("shape: found %q, wanted HEIGHTxWIDTH in pixels, such as 1024x768", s)
	}
	return precast.Sizes{Height: height, Width: width}, nil
}

// progress shows long work: a bar on a terminal, plain lines elsewhere, nothing with --quiet.
func (c *cli) progress(what string) func(i, n int) {
	if c.quiet {
		return nil
	}
	if c.json {
		log := c.logger()
		return func(i, n int) { log.Info("progress", what, i, "of", n) }
	}
	if f, ok := c.err.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		var bar *progressbar.ProgressBar
		return func(i, n int) {
			if bar == nil {
				bar = progressbar.NewOptions(n, progressbar.OptionSetWriter(c.err), progressbar.OptionSetDescription(what),
					progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetItsString(what), progressbar.OptionClearOnFinish())
			}
			_ = bar.Set(i)
		}
	}
	return func(i, n int) { fmt.Fprintf(c.err, "precast: %s %d/%d\n", what, i, n) }
}

// resultFile is a file that appears whole or not at all. It is opened before the work, so that a place that can't be written is found then.
type resultFile struct {
	path string
	f    *os.File // nil where no file is wanted
	// device says that path is a device or a pipe, which is written to and never replaced.
	device bool
}

// openResult opens the file for path, which is empty where none is wanted. The caller defers abort.
func openResult(flag, path string) (*resultFile, error) {
	if path == "" {
		return &resultFile{}, nil
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil, userError("%s: %q is a folder; name a file", flag, path)
	} else if err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return nil, userError("%s: %q can't be written: %w", flag, path, err)
		}
		return &resultFile{path: path, f: f, device: true}, nil
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".precast-*")
	if err != nil {
		var p *os.PathError
		if errors.As(err, &p) {
			err = p.Err // the temporary name says nothing to the user
		}
		return nil, userError("%s: %q can't be written: %w", flag, path, err)
	}
	return &resultFile{path: path, f: f}, nil
}

// commit fills the file and gives it its name. An error of write is returned as it is.
func (r *resultFile) commit(write func(w io.Writer) error) error {
	if r.f == nil {
		return nil
	}
	defer r.abort()
	w := &failingWriter{w: r.f}
	if err := write(w); err != nil {
		if w.err != nil {
			return userError("%q can't be written: %w", r.path, w.err)
		}
		return err
	}
	if r.device {
		return nil
	}
	if err := errors.Join(r.f.Chmod(0o644), r.f.Close()); err != nil {
		return userError("%q can't be written: %w", r.path, err)
	}
	if err := os.Rename(r.f.Name(), r.path); err != nil {
		return userError("%q can't be written: %w", r.path, err)
	}
	return nil
}

// abort removes what openResult made; after commit it does nothing.
func (r *resultFile) abort() {
	if r.f != nil {
		_ = r.f.Close()
		if !r.device {
			_ = os.Remove(r.f.Name())
		}
		r.f = nil
	}
}

// failingWriter keeps the error of the file, to tell it from one of what is written.
type failingWriter struct {
	w   io.Writer
	err error
}

func (w *failingWriter) Write(b []byte) (int, error) {
	n, err := w.w.Write(b)
	if err != nil {
		w.err = err
	}
	return n, err
}
