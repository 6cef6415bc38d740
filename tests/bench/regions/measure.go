//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"precast"
	"precast/graph/checkpoint"
	"precast/graph/models/flux"
	"precast/tests/bench/measure"
)

// measured is what one process found out.
type measured struct {
	// Wall and CPU are seconds around the compile of the transformer's program, from its trace to its last cache entry; Phases their parts.
	Wall   float64            `json:"wall_s,omitempty"`
	CPU    float64            `json:"cpu_s,omitempty"`
	Phases map[string]float64 `json:"phases_s,omitempty"`
	// Load is what loading the executables took in the process after.
	Load float64 `json:"load_s,omitempty"`
	// Executables are the number that was compiled or loaded and their bytes.
	Executables int   `json:"executables,omitempty"`
	Bytes       int64 `json:"bytes,omitempty"`
	// Steps and StepsCPU are seconds a call of the denoiser.
	Steps    []float64 `json:"steps_s,omitempty"`
	StepsCPU []float64 `json:"steps_cpu_s,omitempty"`
	// Differs is the largest difference from the reference output, relative to its largest value.
	Differs *float64 `json:"relative_difference,omitempty"`
	PeakRSS int64    `json:"peak_rss_bytes,omitempty"`
}

// sizes are those of every measurement.
var sizes = precast.Sizes{Batch: 1, Height: 256, Width: 256, MaxSequenceLength: 512}

// measureCompile compiles the transformer into an empty cache, or loads it from one that is filled. The plugin is loaded and has compiled once before: the
// scheduler's step, which every run has, is made ready first.
func measureCompile(ctx context.Context, dir string, cfg precast.Config) (*measured, error) {
	if err := warmUp(ctx, dir, cfg); err != nil {
		return nil, err
	}
	p, err := precast.Open(ctx, dir, cfg)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	start, used := time.Now(), measure.CPUTime()
	report, err := p.Compile(ctx, precast.CompileOptions{Shapes: []precast.Sizes{sizes}, Components: []string{"transformer"}})
	if err != nil {
		return nil, err
	}
	r := &measured{Wall: time.Since(start).Seconds(), CPU: (measure.CPUTime() - used).Seconds(), Phases: p.Stats().Seconds}
	for _, q := range report.Programs {
		if q.Name == "transformer" {
			r.Executables, r.Bytes = q.Executables, q.Bytes
		}
	}
	return r, nil
}

// warmUp makes the scheduler's step ready in a pipeline and a cache of its own, so that it is compiled whatever there is.
func warmUp(ctx context.Context, dir string, cfg precast.Config) error {
	cfg.Regions, cfg.NoCache, cfg.CacheDir = "inline", true, ""
	p, err := precast.Open(ctx, dir, cfg)
	if err != nil {
		return err
	}
	defer p.Close()
	_, err = p.Compile(ctx, precast.CompileOptions{Shapes: []precast.Sizes{sizes}, Components: []string{"step"}})
	return err
}

// measureSteps runs the transformer n times after a first. Where reference is a file that is there, its output is compared, else it is written.
func measureSteps(ctx context.Context, dir string, cfg precast.Config, n int, reference string) (*measured, error) {
	p, err := precast.Open(ctx, dir, cfg)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	prog, err := p.Program("transformer", sizes)
	if err != nil {
		return nil, err
	}
	in, err := randomInputs(dir, prog)
	if err != nil {
		return nil, err
	}
	r := &measured{}
	var out map[string]precast.HostTensor
	for i := range n + 1 {
		start, used := time.Now(), measure.CPUTime()
		if out, err = prog.Run(ctx, in); err != nil {
			return nil, err
		}
		if i > 0 {
			r.Steps = append(r.Steps, time.Since(start).Seconds())
			r.StepsCPU = append(r.StepsCPU, (measure.CPUTime() - used).Seconds())
		}
	}
	sample := out["sample"]
	if i := checkpoint.NonFinite(sample.Data, sample.Shape.DType); i >= 0 {
		return nil, fmt.Errorf("element %d of the output is not finite", i)
	}
	s := p.Stats()
	r.Phases, r.Bytes, r.PeakRSS = s.Seconds, s.Bytes["executables"], s.PeakRSS
	want, err := os.ReadFile(reference)
	switch {
	case os.IsNotExist(err):
		return r, os.WriteFile(reference, sample.Data, 0o644)
	case err != nil:
		return nil, err
	}
	expected, err := measure.Floats(precast.HostTensor{Shape: sample.Shape, Data: want})
	if err != nil {
		return nil, err
	}
	got, err := measure.Floats(sample)
	if err != nil {
		return nil, err
	}
	d, err := measure.Difference(got, expected)
	r.Differs = &d
	return r, err
}

func randomInputs(dir string, prog *precast.Program) (map[string]precast.HostTensor, error) {
	read, err := checkpoint.ReadConfig(filepath.Join(dir, "transformer", "config.json"))
	if err != nil {
		return nil, err
	}
	cfg, err := flux.ParseConfig(read)
	if err != nil {
		return nil, err
	}
	cos, sin := flux.RoPE(cfg, sizes.MaxSequenceLength, sizes.Height/16, sizes.Width/16)
	rng := rand.New(rand.NewPCG(1, 2))
	in := map[string]precast.HostTensor{}
	for _, q := range prog.Inputs() {
		values := make([]float32, q.Shape.Size())
		switch q.Name {
		case "rotary_cos":
			values = cos
		case "rotary_sin":
			values = sin
		case "timestep":
			values[0] = 0.7
		case "guidance":
			values[0] = 3.5
		default:
			for i := range values {
				values[i] = float32(rng.NormFloat64())
			}
		}
		if in[q.Name], err = measure.Tensor(q.Shape, values); err != nil {
			return nil, fmt.Errorf("%s: %w", q.Name, err)
		}
	}
	return in, nil
}

// machine names what was measured on.
func machine() string {
	cpu := "an unknown processor"
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range bytes.Lines(data) {
			if name, ok := bytes.CutPrefix(line, []byte("model name")); ok {
				cpu = strings.TrimSpace(strings.TrimLeft(string(name), "\t :"))
				break
			}
		}
	}
	memory := "?"
	if data, err := os.ReadFile("/proc/meminfo"); err == nil {
		if f := strings.Fields(string(data)); len(f) > 1 {
			if kb, err := strconv.Atoi(f[1]); err == nil {
				memory = fmt.Sprintf("%.0f", float64(kb)/1e6)
			}
		}
	}
	var kernel unix.Utsname
	release := "Linux"
	if unix.Uname(&kernel) == nil {
		release += " " + unix.ByteSliceToString(kernel.Release[:])
	}
	return fmt.Sprintf("%s, %d cores, %s GB, %s", cpu, runtime.NumCPU(), memory, release)
}
