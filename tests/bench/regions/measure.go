//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"precast"
	"precast/graph/checkpoint"
	"precast/graph/models/flux"
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

func cpuTime() float64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		panic(err) // the clock is there on every Linux
	}
	return time.Duration(ts.Nano()).Seconds()
}

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
	start, used := time.Now(), cpuTime()
	report, err := p.Compile(ctx, precast.CompileOptions{Shapes: []precast.Sizes{sizes}, Components: []string{"transformer"}})
	if err != nil {
		return nil, err
	}
	r := &measured{Wall: time.Since(start).Seconds(), CPU: cpuTime() - used, Phases: phases(p)}
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

func phases(p *precast.Pipeline) map[string]float64 {
	out := map[string]float64{}
	for name, s := range p.Stats().Seconds {
		out[name] = s
	}
	return out
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
		start, used := time.Now(), cpuTime()
		if out, err = prog.Run(ctx, in); err != nil {
			return nil, err
		}
		if i > 0 {
			r.Steps = append(r.Steps, time.Since(start).Seconds())
			r.StepsCPU = append(r.StepsCPU, cpuTime()-used)
		}
	}
	sample := out["sample"]
	if i := checkpoint.NonFinite(sample.Data, sample.Shape.DType); i >= 0 {
		return nil, fmt.Errorf("element %d of the output is not finite", i)
	}
	r.Phases, r.Bytes, r.PeakRSS = phases(p), p.Stats().Bytes["executables"], peakRSS()
	want, err := os.ReadFile(reference)
	switch {
	case os.IsNotExist(err):
		return r, os.WriteFile(reference, sample.Data, 0o644)
	case err != nil:
		return nil, err
	}
	d, err := difference(sample.Data, want)
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
		data := make([]byte, 0, 4*len(values))
		for _, v := range values {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
		}
		in[q.Name] = precast.HostTensor{Shape: q.Shape, Data: data}
	}
	return in, nil
}

// difference is the largest absolute difference of float32 numbers, relative to the largest absolute value wanted.
func difference(got, want []byte) (float64, error) {
	if len(got) != len(want) || len(got) == 0 {
		return 0, fmt.Errorf("the output has %d bytes, the reference %d", len(got), len(want))
	}
	var d, m float64
	for i := 0; i < len(got); i += 4 {
		a, b := float64(math.Float32frombits(binary.LittleEndian.Uint32(got[i:]))), float64(math.Float32frombits(binary.LittleEndian.Uint32(want[i:])))
		d, m = max(d, math.Abs(a-b)), max(m, math.Abs(b))
	}
	return d / m, nil
}

// peakRSS is VmHWM of this process in bytes.
func peakRSS() int64 {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n << 10
		}
	}
	return 0
}

func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	if len(s) == 0 {
		return math.NaN()
	}
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
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
