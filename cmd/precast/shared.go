package main

import (
	"fmt"
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
	fs.StringVar(&cfg.DType, "dtype", "", "dtype that the networks compute in: float32 (default), bfloat16, float16")
	fs.StringVar(&cfg.Regions, "regions", "", "inline: one program a component (default); split: one for each class of repeated blocks")
	fs.StringVar(&cfg.Mode, "mode", "", "compiled (default)")
	fs.StringVar(&cfg.Offload, "offload", "", "none (default); model: the weights of one component at a time are on the device")
	fs.IntVar(&cfg.TensorParallelSize, "tensor-parallel-size", 1, "number of devices; 1 for now")
	fs.StringVar(&cfg.Scheduler, "scheduler", "", "scheduler in place of the checkpoint's: CLASS[,key=value...]")
	fs.StringVar(&cfg.Variant, "variant", "", "weight files to read, such as fp16 for *.fp16.safetensors")
	fs.StringVar(&cfg.Backend, "backend", "", "auto (default): the PJRT plugin where one is installed, else go; pjrt; go")
	fs.StringVar(&cfg.Plugin, "plugin", "", "PJRT plugin: a path or a name of precast plugin list")
	fs.IntVar(&cfg.Threads, "threads", 0, "threads to compute with (default: the machine's processors)")
	fs.StringVar(&cfg.CacheDir, "cache-dir", "", "folder of the cache")
	fs.BoolVar(&cfg.NoCache, "no-cache", false, "neither read nor write the cache")
	fs.BoolVar(&cfg.CacheOnly, "cache-only", false, "fail with exit code 3 where something would have to be compiled")
	fs.StringSliceVar(&cfg.DisabledPasses, "disable-pass", nil, "leave out these passes")
	fs.BoolVar(&cfg.CheckPasses, "check", false, "verify the graph around each pass")
	fs.StringVar(&cfg.DumpDir, "dump-compilation-phases-to", "", "folder for every phase of what is compiled: graphs, StableHLO, optimized HLO")
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
	if c.quiet || c.json {
		return nil
	}
	if f, ok := c.err.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		var bar *progressbar.ProgressBar
		return func(i, n int) {
			if bar == nil {
				bar = progressbar.NewOptions(n, progressbar.OptionSetWriter(c.err), progressbar.OptionSetDescription(what),
					progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetItsString("step"), progressbar.OptionClearOnFinish())
			}
			_ = bar.Set(i)
		}
	}
	return func(i, n int) { fmt.Fprintf(c.err, "precast: %s %d/%d\n", what, i, n) }
}

// checkWritable finds out before the work whether writeFile can write there; an empty path is fine.
func checkWritable(path string) error {
	if path == "" {
		return nil
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return userError("%q can't be written: it is a folder", path)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".precast-*")
	if err != nil {
		return userError("%q can't be written: %w", path, err)
	}
	f.Close()
	return os.Remove(f.Name())
}

// writeFile writes a small result file whole or not at all.
func writeFile(path string, write func(f *os.File) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".precast-*")
	if err != nil {
		return userError("%q can't be written: %w", path, err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := write(f); err != nil {
		return userError("%q can't be written: %w", path, err)
	}
	if err := f.Chmod(0o644); err != nil {
		return userError("%q can't be written: %w", path, err)
	}
	if err := f.Close(); err != nil {
		return userError("%q can't be written: %w", path, err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return userError("%q can't be written: %w", path, err)
	}
	return nil
}
