//go:build linux

// Command denoiser times one network of a checkpoint, the denoiser where --component names no other, on the CPU: this project's side of the benchmarks. torch_denoiser.py is the other side, with
// the same flags where they mean the same and the same line of JSON.
//
//	denoiser --size 512x512 --steps 5 --threads 2 MODEL_DIR
//
// Inputs come from --inputs, a safetensors file that torch_denoiser.py wrote, else they are random.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"time"

	"precast"
	"precast/graph/checkpoint"
	"precast/graph/models/flux"
	"precast/graph/models/wan"
	"precast/tests/bench/measure"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "denoiser:", err)
		os.Exit(1)
	}
}

// report is the line that is printed. Times are seconds since the start of the process, but step times.
type report struct {
	Model    string             `json:"model"`
	Network  string             `json:"component"`
	Size     string             `json:"size"`
	Batch    int                `json:"batch"`
	DType    string             `json:"dtype"`
	Mode     string             `json:"mode"`
	Threads  int                `json:"threads"`
	Opened   float64            `json:"opened_s"`
	Loaded   float64            `json:"loaded_s"`
	First    float64            `json:"first_step_done_s"`
	Call     float64            `json:"first_call_s"`
	Steps    []float64          `json:"steps_s"`
	CPU      []float64          `json:"steps_cpu_s"`
	StepMin  float64            `json:"step_min_s"`
	Median   float64            `json:"step_median_s"`
	PeakRSS  int64              `json:"peak_rss_kb"`
	LoadRSS  int64              `json:"loaded_rss_kb"`
	Seconds  map[string]float64 `json:"phases_s"`
	Counts   map[string]int64   `json:"counts"`
	Bytes    map[string]int64   `json:"bytes"`
	Relative *float64           `json:"relative_difference,omitempty"`
}

func run() error {
	var (
		cfg     precast.Config
		size    = flag.String("size", "256x256", "HEIGHTxWIDTH in pixels")
		batch   = flag.Int("batch", 1, "pictures; the UNet's inputs have as many rows")
		frames  = flag.Int("frames", 5, "frames of a video")
		network = flag.String("component", "", "network to time: vae.decoder, or the denoiser")
		steps   = flag.Int("steps", 5, "steps to time after the first")
		inputs  = flag.String("inputs", "", "safetensors file with the inputs, and the output to compare with as \"sample\"")
		output  = flag.String("output", "", "write the output to this safetensors file")
		convert = flag.String("convert", "", "write the checkpoint's denoiser to this folder in --dtype, with data aligned for use without a copy, and end")
		profile = flag.String("cpuprofile", "", "write a CPU profile of the Go side to this file")
		verbose = flag.Bool("verbose", false, "log to standard error")
	)
	flag.StringVar(&cfg.DType, "dtype", "float32", "dtype to compute in")
	flag.IntVar(&cfg.Threads, "threads", 2, "threads of the backend")
	flag.StringVar(&cfg.Plugin, "plugin", "", "PJRT plugin, by name or path")
	flag.StringVar(&cfg.Regions, "regions", "inline", "inline, call, scan, split or auto")
	flag.StringVar(&cfg.Attention, "attention", "", "auto, whole or chunked:QUERIES[xKEYS]")
	flag.StringVar(&cfg.CacheDir, "cache", "", "folder of the cache")
	flag.StringVar(&cfg.WeightsCache, "weights-cache", "off", "on: weights that take work to load are written to the cache and mapped by later processes")
	flag.StringVar(&cfg.DumpDir, "dump-compilation-phases-to", "", "folder for every phase of what is compiled")
	flag.Parse()
	if flag.NArg() != 1 {
		return fmt.Errorf("found %d arguments, wanted MODEL_DIR", flag.NArg())
	}
	if *convert != "" {
		return convertWeights(flag.Arg(0), *convert)
	}
	if *verbose {
		cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if *profile != "" {
		f, err := os.Create(*profile)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	start, err := measure.ProcessStart()
	if err != nil {
		return err
	}
	since := func() float64 { return time.Since(start).Seconds() }
	height, width, ok := strings.Cut(*size, "x")
	h, err1 := strconv.Atoi(height)
	w, err2 := strconv.Atoi(width)
	if !ok || err1 != nil || err2 != nil {
		return fmt.Errorf("size: found %q, wanted HEIGHTxWIDTH", *size)
	}

	ctx := context.Background()
	p, err := precast.Open(ctx, flag.Arg(0), cfg)
	if err != nil {
		return err
	}
	defer p.Close()
	r := report{Model: p.Class(), Size: *size, Batch: *batch, DType: cfg.DType, Mode: cfg.Regions, Threads: cfg.Threads, Opened: since()}
	name, sizes := *network, precast.Sizes{Batch: *batch, Height: h, Width: w}
	switch p.Class() {
	case "WanPipeline":
		sizes.Frames, sizes.MaxSequenceLength = *frames, 512
		name = cmp.Or(name, "transformer")
	case "FluxPipeline":
		sizes.MaxSequenceLength = 512
		name = cmp.Or(name, "transformer")
	default:
		name = cmp.Or(name, "unet")
	}
	r.Network = name
	prog, err := p.Program(name, sizes)
	if err != nil {
		return err
	}
	in, want, err := readInputs(flag.Arg(0), *inputs, prog, sizes)
	if err != nil {
		return err
	}
	if err := prog.Prepare(ctx); err != nil {
		return err
	}
	r.Loaded, r.LoadRSS = since(), residentKB()
	var out map[string]precast.HostTensor
	for i := range *steps + 1 {
		begin, used := time.Now(), measure.CPUTime()
		if out, err = prog.Run(ctx, in); err != nil {
			return err
		}
		if i == 0 {
			r.First, r.Call = since(), time.Since(begin).Seconds()
		} else {
			r.Steps = append(r.Steps, time.Since(begin).Seconds())
			r.CPU = append(r.CPU, (measure.CPUTime() - used).Seconds())
		}
	}
	if len(r.Steps) > 0 {
		r.StepMin, r.Median = slices.Min(r.Steps), measure.Median(r.Steps)
	}
	s := p.Stats() // before the output is looked at: that takes memory too
	r.PeakRSS, r.Seconds, r.Counts, r.Bytes = s.PeakRSS>>10, s.Seconds, s.Counts, s.Bytes
	if i := checkpoint.NonFinite(out["sample"].Data, out["sample"].Shape.DType); i >= 0 {
		return fmt.Errorf("element %d of the output is not finite", i)
	}
	if want != nil {
		got, err := measure.Floats(out["sample"])
		if err != nil {
			return err
		}
		d, err := measure.Difference(got, want)
		if err != nil {
			return fmt.Errorf("the output, compared with %s: %w", *inputs, err)
		}
		r.Relative = &d
	}
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	fmt.Println(string(line))
	if *output != "" {
		t := out["sample"]
		return checkpoint.WriteFile(*output, []checkpoint.Item{{Key: "sample", DType: t.Shape.DType, Shape: t.Shape.Dimensions, Data: t.Data}}, nil)
	}
	return nil
}

// readInputs returns the program's inputs: from the file where it has them, the rotary tables computed, the rest random. want is the file's output.
func readInputs(dir, path string, prog *precast.Program, s precast.Sizes) (in map[string]precast.HostTensor, want []float32, err error) {
	in = map[string]precast.HostTensor{}
	var file *checkpoint.File
	if path != "" {
		if file, err = checkpoint.OpenFile(path); err != nil {
			return nil, nil, err
		}
		defer file.Close()
		if t, ok := file.Tensor("sample_out"); ok {
			if want, err = t.Float32s(); err != nil {
				return nil, nil, err
			}
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, q := range prog.Inputs() {
		n := q.Shape.Size()
		values := make([]float32, n)
		switch q.Name {
		case "rotary_cos", "rotary_sin":
			cos, sin, err := rotary(dir, s)
			if err != nil {
				return nil, nil, err
			}
			if values = cos; q.Name == "rotary_sin" {
				values = sin
			}
		case "timestep":
			for i := range values {
				values[i] = 700
				if s.Frames == 0 && prog.Component() == "transformer" {
					values[i] = 0.7
				}
			}
		case "guidance":
			for i := range values {
				values[i] = 3.5
			}
		default:
			for i := range values {
				values[i] = float32(rng.NormFloat64())
			}
		}
		if file != nil {
			if t, ok := file.Tensor(q.Name); ok {
				got, err := t.Float32s()
				if err != nil {
					return nil, nil, err
				}
				if len(got) == 1 {
					got = slices.Repeat(got, n)
				}
				if len(got) != n {
					return nil, nil, fmt.Errorf("%s: %s has %d values, the program wants %s", path, q.Name, len(got), q.Shape)
				}
				values = got
			}
		}
		if in[q.Name], err = measure.Tensor(q.Shape, values); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", q.Name, err)
		}
	}
	return in, want, nil
}

// rotary computes the transformer's rotary tables.
func rotary(dir string, s precast.Sizes) (cos, sin []float32, err error) {
	c, err := checkpoint.ReadConfig(filepath.Join(dir, "transformer", "config.json"))
	if err != nil {
		return nil, nil, err
	}
	if s.Frames > 0 {
		cfg, err := wan.ParseConfig(c)
		if err != nil {
			return nil, nil, err
		}
		cos, sin = wan.RoPE(cfg, (s.Frames-1)/4+1, s.Height/16, s.Width/16)
		return cos, sin, nil
	}
	cfg, err := flux.ParseConfig(c)
	if err != nil {
		return nil, nil, err
	}
	cos, sin = flux.RoPE(cfg, s.MaxSequenceLength, s.Height/16, s.Width/16)
	return cos, sin, nil
}

// residentKB is VmRSS of /proc/self/status, 0 where it can't be read.
func residentKB() int64 {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n
		}
	}
	return 0
}
