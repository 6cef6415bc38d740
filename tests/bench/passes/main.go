//go:build linux

// Command passes times one program of a checkpoint with passes on and off, side by side in one process: a step of each variant in turn, so that what
// else the machine does falls on all of them alike. Start-ups are measured in processes of their own, the executables in the cache.
//
//	passes --program transformer --size 256x256 --variants default,+merge-dots --start-ups 3 MODEL_DIR
//
// A variant is "default", or passes with + (enabled) or - (disabled) in front of each, as in "+merge-dots:-cse". The first is what the others are
// compared with. With --out FILE the result goes into FILE.json, in place of an earlier one of the same work, and FILE.md is written anew from all.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"precast"
	"precast/tests/bench/measure"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "passes:", err)
		os.Exit(1)
	}
}

// work is what is measured: what identifies a result in FILE.json.
type work struct {
	Model   string `json:"model"`
	Program string `json:"program"`
	Size    string `json:"size"`
	Frames  int    `json:"frames,omitempty"`
	Batch   int    `json:"batch"`
	DType   string `json:"dtype"`
	Regions string `json:"regions"`
	Plugin  string `json:"plugin"`
	Threads int    `json:"threads"`
}

// measured is one variant's figures; times are seconds.
type measured struct {
	Variant string `json:"variant"`
	// Steps are wall times of a step, CPU the processor time of the process meanwhile.
	Steps []float64 `json:"steps_s"`
	CPU   []float64 `json:"steps_cpu_s"`
	// Compile is what tracing, passes and compiling took where the cache had nothing.
	Compile float64 `json:"compile_s"`
	// StartUps are from the start of a process until the first step is done, its executables cached; StartUpCPU is its processor time.
	StartUps   []float64 `json:"start_ups_s,omitempty"`
	StartUpCPU []float64 `json:"start_ups_cpu_s,omitempty"`
	// StartUpRSS is the peak resident memory of a start-up in bytes.
	StartUpRSS []int64 `json:"start_ups_peak_rss,omitempty"`
	// Difference is the largest absolute difference of an output from the first variant's, relative to its largest absolute value.
	Difference float64 `json:"relative_difference"`
}

type result struct {
	work
	Command  string     `json:"command"`
	Measured string     `json:"measured"`
	Variants []measured `json:"variants"`
}

func run() error {
	w := work{}
	flag.StringVar(&w.Program, "program", "transformer", "program: transformer, unet, vae.decoder")
	flag.StringVar(&w.Size, "size", "256x256", "HEIGHTxWIDTH in pixels")
	flag.IntVar(&w.Frames, "frames", 0, "frames of a video")
	flag.IntVar(&w.Batch, "batch", 1, "pictures")
	flag.StringVar(&w.DType, "dtype", "float32", "dtype to compute in")
	flag.StringVar(&w.Regions, "regions", "inline", "inline, call, scan, split or auto")
	flag.StringVar(&w.Plugin, "plugin", "", "PJRT plugin, by name or path")
	flag.IntVar(&w.Threads, "threads", 2, "threads of the backend")
	variants := flag.String("variants", "default", "variants, with commas between them")
	steps := flag.Int("steps", 8, "steps to time of each variant after the first")
	startUps := flag.Int("start-ups", 0, "start-ups to time of each variant")
	cache := flag.String("cache", "", "folder of the cache; empty: one that is removed in the end")
	out := flag.String("out", "", "write FILE.json and FILE.md")
	child := flag.String("child", "", "measure one start-up of this variant and print it (what --start-ups runs)")
	flag.Parse()
	if flag.NArg() != 1 {
		return fmt.Errorf("found %d arguments, wanted MODEL_DIR", flag.NArg())
	}
	dir := flag.Arg(0)
	w.Model = filepath.Base(strings.TrimSuffix(filepath.Clean(dir), "/model"))
	ctx := context.Background()
	if *child != "" {
		return startUp(ctx, w, dir, *child, *cache)
	}
	if *cache == "" {
		tmp, err := os.MkdirTemp("", "precast-passes-*")
		if err != nil {
			return err
		}
		defer os.RemoveAll(tmp)
		*cache = tmp
	}
	list := strings.Split(*variants, ",")
	r := result{work: w, Measured: time.Now().Format(time.DateOnly)}
	r.Command = strings.Join(append([]string{"passes"}, withoutPlaces(os.Args[1:], dir)...), " ")
	var programs []*precast.Program
	for _, v := range list {
		p, q, m, err := ready(ctx, w, dir, v, *cache)
		if err != nil {
			return err
		}
		defer p.Close()
		r.Variants, programs = append(r.Variants, m), append(programs, q)
	}
	if err := r.timeSteps(ctx, programs, *steps); err != nil {
		return err
	}
	if err := r.timeStartUps(ctx, dir, *cache, *startUps); err != nil {
		return err
	}
	fmt.Print(r.table())
	if *out != "" {
		return write(*out, r)
	}
	return nil
}

// ready opens the model for a variant and makes its program ready: m has what that took. The caller closes the pipeline.
func ready(ctx context.Context, w work, dir, variant, cache string) (p *precast.Pipeline, q *precast.Program, m measured, err error) {
	begin := time.Now()
	if p, q, err = open(ctx, w, dir, variant, cache); err != nil {
		return nil, nil, m, err
	}
	if err := q.Prepare(ctx); err != nil {
		p.Close()
		return nil, nil, m, err
	}
	m.Variant = variant
	for phase, s := range p.Stats().Seconds {
		if slices.Contains([]string{"trace", "passes", "lower", "compile"}, phase) {
			m.Compile += s
		}
	}
	fmt.Fprintf(os.Stderr, "passes: %s is ready after %.2f s\n", variant, time.Since(begin).Seconds())
	return p, q, m, nil
}

// timeSteps runs the variants' programs in turns, n times after a first, whose results are compared.
func (r *result) timeSteps(ctx context.Context, programs []*precast.Program, n int) error {
	in, err := inputs(programs[0])
	if err != nil {
		return err
	}
	var first map[string][]float32
	for i := range n + 1 {
		for k := range programs {
			// The order turns, so that none always follows the same one.
			if i%2 == 1 {
				k = len(programs) - 1 - k
			}
			m := &r.Variants[k]
			begin, used := time.Now(), measure.CPUTime()
			got, err := programs[k].Run(ctx, in)
			if err != nil {
				return err
			}
			if i > 0 {
				m.Steps = append(m.Steps, time.Since(begin).Seconds())
				m.CPU = append(m.CPU, (measure.CPUTime() - used).Seconds())
				continue
			}
			values, err := floats(got)
			if err != nil {
				return err
			}
			if k == 0 {
				first = values
			}
			if m.Difference, err = difference(values, first); err != nil {
				return fmt.Errorf("%s: %w", m.Variant, err)
			}
		}
	}
	return nil
}

// timeStartUps starts this program anew for every variant, n times in turns, on the cache that the steps have filled.
func (r *result) timeStartUps(ctx context.Context, dir, cache string, n int) error {
	for range n {
		for k := range r.Variants {
			m := &r.Variants[k]
			cmd := exec.CommandContext(ctx, os.Args[0], append(slices.Clone(os.Args[1:len(os.Args)-1]), "--cache="+cache, "--child="+m.Variant, dir)...)
			cmd.Stderr = os.Stderr
			line, err := cmd.Output()
			if err != nil {
				return fmt.Errorf("start-up of %s: %w", m.Variant, err)
			}
			var one measured
			if err := json.Unmarshal(line, &one); err != nil {
				return fmt.Errorf("start-up of %s: %w", m.Variant, err)
			}
			m.StartUps, m.StartUpCPU, m.StartUpRSS = append(m.StartUps, one.StartUps...), append(m.StartUpCPU, one.StartUpCPU...), append(m.StartUpRSS, one.StartUpRSS...)
		}
	}
	return nil
}

// withoutPlaces are the arguments with the model's name in place of its folder, and without those that say where results go.
func withoutPlaces(args []string, dir string) []string {
	var kept []string
	for i := 0; i < len(args); i++ {
		name, _, joined := strings.Cut(strings.TrimLeft(args[i], "-"), "=")
		switch {
		case args[i] == dir:
			kept = append(kept, filepath.Base(strings.TrimSuffix(filepath.Clean(dir), "/model")))
		case strings.HasPrefix(args[i], "-") && (name == "cache" || name == "out"):
			if !joined {
				i++
			}
		default:
			kept = append(kept, args[i])
		}
	}
	return kept
}

// apply fills in the passes of a variant.
func apply(variant string, cfg *precast.Config) error {
	if variant == "default" {
		return nil
	}
	for part := range strings.SplitSeq(variant, ":") {
		if len(part) < 2 || part[0] != '+' && part[0] != '-' || part[1] == '+' || part[1] == '-' {
			return fmt.Errorf("variant %q: wanted default, or passes with + or - in front of each and : between them", variant)
		}
		if part[0] == '+' {
			cfg.EnabledPasses = append(cfg.EnabledPasses, part[1:])
		} else {
			cfg.DisabledPasses = append(cfg.DisabledPasses, part[1:])
		}
	}
	return nil
}

func open(ctx context.Context, w work, dir, variant, cache string) (*precast.Pipeline, *precast.Program, error) {
	cfg := precast.Config{DType: w.DType, Regions: w.Regions, Plugin: w.Plugin, Threads: w.Threads, CacheDir: cache}
	if err := apply(variant, &cfg); err != nil {
		return nil, nil, err
	}
	height, width, _ := strings.Cut(w.Size, "x")
	h, err1 := strconv.Atoi(height)
	wd, err2 := strconv.Atoi(width)
	if err1 != nil || err2 != nil {
		return nil, nil, fmt.Errorf("size: found %q, wanted HEIGHTxWIDTH", w.Size)
	}
	p, err := precast.Open(ctx, dir, cfg)
	if err != nil {
		return nil, nil, err
	}
	q, err := p.Program(w.Program, precast.Sizes{Batch: w.Batch, Height: h, Width: wd, Frames: w.Frames})
	if err != nil {
		p.Close()
		return nil, nil, err
	}
	return p, q, nil
}

// startUp runs one step in this process, as a user's first, and prints what it took.
func startUp(ctx context.Context, w work, dir, variant, cache string) error {
	p, q, err := open(ctx, w, dir, variant, cache)
	if err != nil {
		return err
	}
	defer p.Close()
	in, err := inputs(q)
	if err != nil {
		return err
	}
	if _, err := q.Run(ctx, in); err != nil {
		return err
	}
	start, err := measure.ProcessStart()
	if err != nil {
		return err
	}
	wall, cpu, s := time.Since(start), measure.CPUTime(), p.Stats()
	if n := s.Counts["compile"]; n > 0 {
		return fmt.Errorf("the start-up compiled %d programs", n)
	}
	return json.NewEncoder(os.Stdout).Encode(measured{StartUps: []float64{wall.Seconds()}, StartUpCPU: []float64{cpu.Seconds()}, StartUpRSS: []int64{s.PeakRSS}})
}

// inputs are random, the same in every run; integers and booleans are 0.
func inputs(q *precast.Program) (map[string]precast.HostTensor, error) {
	rng := rand.New(rand.NewPCG(1, 2))
	in := map[string]precast.HostTensor{}
	for _, x := range q.Inputs() {
		if !x.Shape.DType.IsFloat() {
			in[x.Name] = precast.HostTensor{Shape: x.Shape, Data: make([]byte, x.Shape.ByteSize())}
			continue
		}
		values := make([]float32, x.Shape.Size())
		for i := range values {
			values[i] = float32(rng.NormFloat64())
		}
		t, err := measure.Tensor(x.Shape, values)
		if err != nil {
			return nil, err
		}
		in[x.Name] = t
	}
	return in, nil
}

// floats are the results that are numbers.
func floats(results map[string]precast.HostTensor) (map[string][]float32, error) {
	out := map[string][]float32{}
	for name, t := range results {
		if !t.Shape.DType.IsFloat() {
			continue
		}
		values, err := measure.Floats(t)
		if err != nil {
			return nil, fmt.Errorf("result %s: %w", name, err)
		}
		out[name] = values
	}
	return out, nil
}

// difference is the largest of any result.
func difference(got, want map[string][]float32) (float64, error) {
	var most float64
	for name, values := range got {
		d, err := measure.Difference(values, want[name])
		if err != nil {
			return 0, fmt.Errorf("result %s: %w", name, err)
		}
		most = max(most, d)
	}
	return most, nil
}
