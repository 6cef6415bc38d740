package precast

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/pipelines"
)

// BenchSchema is the version of BenchReport's JSON form: it grows where a field changes its meaning or goes away.
const BenchSchema = 1

// BenchOptions say what Bench measures. Zero fields take the defaults that are named.
type BenchOptions struct {
	// Command starts a process that calls BenchChild with its standard input and output: the command line gives itself.
	Command []string
	// Variants are ways to run a program: eager, or a value of Config.Regions (inline, call, scan, split, auto), with +KEY=VALUE behind it for
	// what differs from the configuration in offload, enable-pass, disable-pass, plugin, backend, threads or lora. Default: eager, inline, split (under offload block without inline); of an artifact "artifact",
	// which is what it holds.
	Variants []string
	// Baseline is the variant that the others are compared with; default inline where it is one of them, else the first.
	Baseline string
	// Components are programs or components by name ("transformer", "vae.decoder", "text_encoder"); default: the denoiser.
	Components []string
	// Shapes are sizes, whose zero fields take the pipeline's defaults; default: one, the pipeline's own.
	Shapes []Sizes
	// DTypes are values of Config.DType; default: that of the configuration.
	DTypes []string
	// Steps are measured in each warm process (default 5; 2 where eager runs, unless EagerSteps says another number), after the first and Warmup more.
	Steps, EagerSteps, Warmup int
	// Rounds is how often every variant gets its turn (default 3).
	Rounds int
	// Budget ends the work; what was left out is said. 0 is no limit.
	Budget time.Duration
	// Seed of the inputs.
	Seed uint64
	// Progress is told about each process before it starts.
	Progress func(i, n int, what string)
}

// BenchReport is what Bench measured. Times are seconds, sizes bytes.
type BenchReport struct {
	Schema  int          `json:"schema"`
	Time    time.Time    `json:"time"`
	Precast string       `json:"precast"`
	Model   string       `json:"model"`
	Class   string       `json:"class"`
	Machine BenchMachine `json:"machine"`
	// Settings are the options, defaults filled in.
	Settings BenchSettings `json:"settings"`
	Cases    []*BenchCase  `json:"cases"`
	// Warnings say what makes the figures doubtful, LeftOut what the budget or an interruption left no time for.
	Warnings    []string `json:"warnings"`
	LeftOut     []string `json:"left_out"`
	Interrupted bool     `json:"interrupted"`
}

// BenchSettings are the options of a run of Bench.
type BenchSettings struct {
	Variants   []string `json:"variants"`
	Baseline   string   `json:"baseline"`
	Steps      int      `json:"steps"`
	EagerSteps int      `json:"eager_steps"`
	Warmup     int      `json:"warmup"`
	Rounds     int      `json:"rounds"`
	Budget     float64  `json:"budget_s"`
	Seed       uint64   `json:"seed"`
	Threads    int      `json:"threads"` // as asked for; 0 is the backend's choice
}

// BenchMachine is where it was measured.
type BenchMachine struct {
	CPU      string `json:"cpu"`
	CPUs     int    `json:"cpus"`
	Threads  int    `json:"threads"`
	Memory   int64  `json:"memory_bytes"`
	Platform string `json:"platform"`
	// System is the operating system's name and release, where it tells.
	System string `json:"system"`
	// Busy is the part of all processors that others used before the first process (0 to 1), -1 where the system does not tell.
	Busy float64 `json:"busy_before"`
	// Others is the same while the bench ran.
	Others float64 `json:"busy_others"`
}

// BenchPlugin is what a variant ran on.
type BenchPlugin struct {
	Name string `json:"name"`
	// Package is the version of the pinned package that it is from, where it is from one; Version is what its client says.
	Package  string `json:"package_version,omitempty"`
	Platform string `json:"platform"`
	Version  string `json:"platform_version"`
	SHA256   string `json:"sha256,omitempty"`
}

// BenchCase is one program at one size and dtype, in all variants.
type BenchCase struct {
	Program   string      `json:"program"`
	Component string      `json:"component"`
	Spec      string      `json:"spec"`
	Sizes     Sizes       `json:"sizes"`
	DType     string      `json:"dtype"`
	Rows      []*BenchRow `json:"rows"`

	id     string
	inputs string
	flag   string // Config.DType
}

// BenchRow is one variant of a case.
type BenchRow struct {
	Variant string      `json:"variant"`
	Plugin  BenchPlugin `json:"plugin"`
	// Runs are the processes that ended well: in each round one with an empty cache, then one that finds what it left.
	Runs []BenchRun `json:"runs"`
	// Figures are the measures over all runs, by BenchMeasure.Key; one that there is nothing of is not there.
	Figures map[string]BenchSpread `json:"figures"`
	// Difference is the largest absolute difference of any run's results from the baseline's first, relative to the largest absolute value of these.
	// Where the baseline has none, it is that of the first variant that has. DiffersFrom names it. Differs says that it is more than rounding.
	Difference  *float64 `json:"difference,omitempty"`
	DiffersFrom string   `json:"differs_from,omitempty"`
	Differs     bool     `json:"differs"`
	// NotFinite says that results hold NaN or infinity.
	NotFinite bool `json:"not_finite"`
	// Error says why the variant has no more runs.
	Error string `json:"error,omitempty"`

	outputs []string
	took    map[bool]time.Duration // the last process by cold
}

// BenchRun is one process.
type BenchRun struct {
	Round int  `json:"round"`
	Cold  bool `json:"cold"`
	// FirstStep is from the start of the process to the results of its first step.
	FirstStep float64 `json:"first_step_s"`
	// Steps are the measured ones, StepsCPU the processor time of each.
	Steps    []float64 `json:"steps_s"`
	StepsCPU []float64 `json:"steps_cpu_s"`
	// Phases are those of Stats.Seconds.
	Phases map[string]float64 `json:"phases_s"`
	// Executables and their bytes, serialized; Executions of them in one step; Compiles in this process.
	Executables     int   `json:"executables"`
	ExecutableBytes int64 `json:"executable_bytes"`
	Executions      int64 `json:"executions"`
	Compiles        int64 `json:"compiles"`
	// Weights are the bytes brought to the device.
	Weights int64 `json:"weight_bytes"`
	// PeakRSS is the process's peak resident set: host memory, mapped files among it.
	PeakRSS int64 `json:"peak_rss_bytes"`
	// Others is the part of all processors that other processes used meanwhile (0 to 1), -1 where the system does not tell.
	Others float64 `json:"busy_others"`
}

// BenchSpread sums up a measure: N values.
type BenchSpread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	P10    float64 `json:"p10"`
	P90    float64 `json:"p90"`
	N      int     `json:"n"`
}

// spreadOf sums up values; quantiles lie between the two nearest values, in proportion.
func spreadOf(values []float64) BenchSpread {
	v := slices.Sorted(slices.Values(values))
	at := func(q float64) float64 {
		x := q * float64(len(v)-1)
		i := int(x)
		if i+1 == len(v) {
			return v[i]
		}
		return v[i] + (x-float64(i))*(v[i+1]-v[i])
	}
	return BenchSpread{Median: at(0.5), Min: v[0], Max: v[len(v)-1], P10: at(0.1), P90: at(0.9), N: len(v)}
}

// BenchMeasure is a figure of a row.
type BenchMeasure struct {
	Key, Name string
	// Unit is "s", "B" or "" for a count.
	Unit   string
	values func(BenchRun) []float64
}

func phase(name string, cold bool) func(BenchRun) []float64 {
	return func(r BenchRun) []float64 {
		if v, ok := r.Phases[name]; ok && r.Cold == cold {
			return []float64{v}
		}
		return nil
	}
}

func when(cold bool, value func(BenchRun) float64) func(BenchRun) []float64 {
	return func(r BenchRun) []float64 {
		if v := value(r); r.Cold == cold && v > 0 {
			return []float64{v}
		}
		return nil
	}
}

// BenchMeasures lists the figures in the order of the table.
var BenchMeasures = []BenchMeasure{
	{"trace_s", "trace", "s", phase("trace", true)},
	{"passes_s", "passes", "s", phase("passes", true)},
	{"lower_s", "lower", "s", phase("lower", true)},
	{"compile_s", "compile", "s", phase("compile", true)},
	{"serialize_s", "serialize", "s", phase("serialize", true)},
	{"executables", "executables", "", when(false, func(r BenchRun) float64 { return float64(r.Executables) })},
	{"executable_bytes", "serialized size", "B", when(false, func(r BenchRun) float64 { return float64(r.ExecutableBytes) })},
	{"client_s", "plugin and client", "s", phase("client", false)},
	{"load_s", "load", "s", phase("load", false)},
	{"weights_s", "weights to the device", "s", phase("weights", true)},
	{"first_step_cold_s", "first step, cold", "s", when(true, func(r BenchRun) float64 { return r.FirstStep })},
	{"first_step_warm_s", "first step, warm", "s", when(false, func(r BenchRun) float64 { return r.FirstStep })},
	{"executions", "executions a step", "", when(false, func(r BenchRun) float64 { return float64(r.Executions) })},
	{"step_s", "step", "s", func(r BenchRun) []float64 { return r.Steps }},
	{"step_cpu_s", "  processor time", "s", func(r BenchRun) []float64 { return r.StepsCPU }},
	{"peak_rss_bytes", "peak memory", "B", when(false, func(r BenchRun) float64 { return float64(r.PeakRSS) })},
	{"peak_rss_cold_bytes", "  cold", "B", when(true, func(r BenchRun) float64 { return float64(r.PeakRSS) })},
}

// benchVariant is a variant and its configuration.
type benchVariant struct {
	name   string
	config Config
	eager  bool
}

// parseVariant reads NAME[+KEY=VALUE...] over a configuration.
func parseVariant(text string, base Config, artifact bool) (benchVariant, error) {
	v := benchVariant{name: text, config: base}
	name, rest, more := strings.Cut(text, "+")
	switch name {
	case "eager":
		v.config.Mode, v.config.Regions, v.eager = modeEager, "", true
	case "inline", "call", "scan", "split", "auto":
		v.config.Mode, v.config.Regions = "", name
	case "artifact":
		if !artifact {
			return v, userErrorf("variants: found artifact, which is what an artifact holds, and the model is a folder; name the .precast file")
		}
		v.config.Mode, v.config.Regions = "", ""
	default:
		return v, userErrorf("variants: found %q, wanted eager, inline, call, scan, split or auto, such as split+offload=model", text)
	}
	if more {
		for _, part := range strings.Split(rest, "+") {
			key, value, ok := strings.Cut(part, "=")
			if !ok || value == "" {
				return v, userErrorf("variants: found %q in %q, wanted KEY=VALUE, such as offload=model", part, text)
			}
			switch key {
			case "offload":
				v.config.Offload = value
			case "disable-pass":
				v.config.DisabledPasses = append(slices.Clone(v.config.DisabledPasses), value)
			case "enable-pass":
				v.config.EnabledPasses = append(slices.Clone(v.config.EnabledPasses), value)
			case "plugin":
				v.config.Plugin = value
			case "backend":
				if v.config.Backend = value; value == "go" && v.config.Plugin == base.Plugin {
					v.config.Plugin = ""
				}
			case "threads":
				n, err := strconv.Atoi(value)
				if err != nil || n < 1 {
					return v, userErrorf("variants: threads of %q: found %q, wanted a number of 1 or more", text, value)
				}
				v.config.Threads = n
			case "lora":
				v.config.LoRAs = append(slices.Clone(v.config.LoRAs), value)
			default:
				return v, userErrorf("variants: found %q in %q, wanted offload, enable-pass, disable-pass, plugin, backend, threads or lora", key, text)
			}
		}
	}
	if v.config.Offload == offloadBlock && name != "split" && name != "artifact" && !v.eager {
		return v, userErrorf("variants: %s: offload=block brings the weights to the device for one block after the other, which are programs of their own in split alone; found %s, wanted split, or offload=model", text, name)
	}
	c := v.config
	if _, err := c.check(); err != nil {
		return v, userErrorf("variants: %s: %w", text, err)
	}
	return v, nil
}

// defaults fills in and checks.
func (o *BenchOptions) defaults() error {
	for _, f := range []struct {
		name   string
		value  *int
		preset int
	}{{"steps", &o.Steps, 5}, {"eager-steps", &o.EagerSteps, min(2, cmp.Or(max(o.Steps, 0), 2))}, {"rounds", &o.Rounds, 3}} {
		if *f.value < 0 || *f.value > 100000 {
			return userErrorf("%s: found %d, wanted 1 to 100000", f.name, *f.value)
		}
		*f.value = cmp.Or(*f.value, f.preset)
	}
	if o.Warmup < 0 || o.Warmup > 100000 {
		return userErrorf("warmup: found %d, wanted 0 to 100000", o.Warmup)
	}
	if o.Budget < 0 {
		return userErrorf("budget: found %v, wanted a time above 0, or 0 for no limit", o.Budget)
	}
	if len(o.Command) == 0 {
		return userErrorf("bench: no command that starts a process of it is given")
	}
	if len(o.Shapes) == 0 {
		o.Shapes = []Sizes{{}}
	}
	return nil
}

// bench is a run of Bench.
type bench struct {
	o        BenchOptions
	path     string
	variants []benchVariant
	dir      string
	report   *BenchReport
	end      time.Time // of the budget, or zero
	busy     procStat  // used by others, in ticks, and of how many
}

// Bench runs programs of a model in several variants and measures them side by side. Each measurement is a process of its own: one with an empty cache
// ("cold"), then one that finds what that left ("warm"); variants take turns, round after round. Weights are the checkpoint's; inputs are what the
// pipeline's recipe gives the program for random texts and noise, the same for all variants, whose results are compared.
//
// A process that fails is its row's Error. Where ctx ends, the report so far comes with its error; else the error is nil or about the arguments.
func Bench(ctx context.Context, path string, cfg Config, o BenchOptions) (*BenchReport, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	b := &bench{o: o}
	if o.Budget > 0 {
		b.end = time.Now().Add(o.Budget)
	}
	info, err := os.Stat(path)
	artifact := err == nil && !info.IsDir()
	if b.path = path; !artifact {
		if b.path, err = Locate(ctx, path, cfg); err != nil {
			return nil, err
		}
		cfg.Revision = ""
	}
	names := o.Variants
	if len(names) == 0 {
		names = []string{"eager", "inline", "split"}
		if cfg.Offload == offloadBlock {
			names = []string{"eager", "split"} // the others have no blocks
		}
		if artifact {
			names = []string{"artifact"}
		}
	}
	for i, name := range names {
		v, err := parseVariant(name, cfg, artifact)
		if err != nil {
			return nil, err
		}
		if slices.Contains(names[:i], name) {
			return nil, userErrorf("variants: %s is given twice", name)
		}
		b.variants = append(b.variants, v)
	}
	baseline := o.Baseline
	switch {
	case baseline == "" && slices.Contains(names, "inline"):
		baseline = "inline"
	case baseline == "":
		baseline = names[0]
	case !slices.Contains(names, baseline):
		return nil, userErrorf("baseline: found %q, which is none of the variants %s", baseline, strings.Join(names, ", "))
	}
	if b.dir, err = os.MkdirTemp("", "precast-bench-"); err != nil {
		return nil, userErrorf("bench: no folder for caches: %w", err)
	}
	defer os.RemoveAll(b.dir)
	b.report = &BenchReport{
		Schema: BenchSchema, Time: time.Now().UTC().Truncate(time.Second), Precast: Version, Model: path, Machine: machineHere(),
		Settings: BenchSettings{Variants: names, Baseline: baseline, Steps: o.Steps, EagerSteps: o.EagerSteps, Warmup: o.Warmup, Rounds: o.Rounds, Budget: o.Budget.Seconds(), Seed: o.Seed, Threads: cfg.Threads},
		Cases:    []*BenchCase{}, Warnings: []string{}, LeftOut: []string{},
	}
	dtypes := o.DTypes
	if len(dtypes) == 0 {
		dtypes = []string{cfg.DType}
	}
	for _, d := range dtypes {
		for _, s := range o.Shapes {
			if err := b.prepare(ctx, cfg, d, s); err != nil {
				return nil, err
			}
		}
	}
	b.machineIsQuiet()
	err = b.rounds(ctx)
	b.finish()
	return b.report, err
}

// prepare adds the cases of one dtype and size: the programs and their inputs. What is wrong with the arguments is found here.
func (b *bench) prepare(ctx context.Context, cfg Config, dtype string, s Sizes) error {
	cfg.DType, cfg.Mode, cfg.Regions = dtype, "", ""
	p, err := Open(ctx, b.path, cfg)
	if err != nil {
		return err
	}
	defer p.Close()
	b.report.Class = p.Class()
	req := &Request{
		Prompt: slices.Repeat([]string{"a photograph of a red fox in the snow"}, cmp.Or(s.Batch, 1)),
		Height: s.Height, Width: s.Width, NumFrames: s.Frames, MaxSequenceLength: s.MaxSequenceLength, Seed: b.o.Seed, Warn: func(string, ...any) {},
	}
	if err := p.complete(req); err != nil {
		return err
	}
	all, err := p.pipe.Programs(req)
	if err != nil {
		return asUser(err)
	}
	var chosen []*pipelines.Program
	add := func(want func(*pipelines.Program) bool) bool {
		found := false
		for _, q := range all {
			if q.Component != "" && want(q) {
				found = true
				if !slices.ContainsFunc(chosen, func(have *pipelines.Program) bool { return have.ID() == q.ID() }) {
					chosen = append(chosen, q)
				}
			}
		}
		return found
	}
	if len(b.o.Components) == 0 {
		add(func(q *pipelines.Program) bool { return q.Stage == StageDenoise })
	}
	for _, c := range b.o.Components {
		if !add(func(q *pipelines.Program) bool { return q.Name == c || q.Component == c }) {
			return userErrorf("components: %q is none of this pipeline's with weights; it has %s", c, strings.Join(componentNames(all), ", "))
		}
	}
	if err := p.checkWeightFiles(chosen); err != nil {
		return err
	}
	inputs, err := p.inputsOf(ctx, req, chosen, b.o.Seed)
	if err != nil {
		return err
	}
	for _, q := range chosen {
		c := &BenchCase{Program: q.Name, Component: q.Component, Spec: q.Spec, Sizes: p.pipe.Sizes(req), DType: graph.DTypeName(p.options.DTypeFor(q.Component)), id: q.ID(), flag: dtype}
		if slices.ContainsFunc(b.report.Cases, func(have *BenchCase) bool { return have.id == c.id && have.DType == c.DType }) {
			continue // another size of the request, the same program
		}
		c.inputs = filepath.Join(b.dir, fmt.Sprintf("inputs%d.safetensors", len(b.report.Cases)))
		if err := checkpoint.WriteFile(c.inputs, tensorItems(inputs[q.ID()]), nil); err != nil {
			return userErrorf("bench: inputs can't be written: %w", err)
		}
		for i := range b.variants {
			v := &b.variants[i]
			v.config.Checkpoint = cfg.Checkpoint
			c.Rows = append(c.Rows, &BenchRow{Variant: v.name, Runs: []BenchRun{}, Figures: map[string]BenchSpread{}, took: map[bool]time.Duration{}})
		}
		b.report.Cases = append(b.report.Cases, c)
		readAhead(filepath.Join(p.ck.Dir(), q.Component))
	}
	return nil
}

// readAhead reads a folder's weight files, so that the first process does not wait for the disk where the others find them in memory.
func readAhead(dir string) {
	list, _ := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	for _, path := range list {
		if f, err := os.Open(path); err == nil {
			_, _ = io.Copy(io.Discard, f)
			f.Close()
		}
	}
}

// rounds runs every process in turn.
func (b *bench) rounds(ctx context.Context) error {
	n := b.o.Rounds * len(b.report.Cases) * len(b.variants) * 2
	i := 0
	for round := range b.o.Rounds {
		for ci, c := range b.report.Cases {
			for vi := range b.variants {
				v, row := &b.variants[vi], c.Rows[vi]
				cache := filepath.Join(b.dir, fmt.Sprintf("cache-%d-%d-%d", round, ci, vi))
				for _, cold := range []bool{true, false} {
					i++
					what := fmt.Sprintf("%s: %s, round %d, %s", c, v.name, round+1, temperature(cold))
					if row.Error != "" {
						continue
					}
					if ctx.Err() != nil || b.late(row, cold) {
						b.report.LeftOut = append(b.report.LeftOut, what)
						continue
					}
					if b.o.Progress != nil {
						b.o.Progress(i, n, what)
					}
					b.process(ctx, c, v, row, round, cold, cache)
					if ctx.Err() != nil {
						b.report.LeftOut = append(b.report.LeftOut, what)
					}
				}
				os.RemoveAll(cache)
			}
		}
	}
	if ctx.Err() != nil {
		b.report.Interrupted = true
		return asUser(fmt.Errorf("bench: interrupted: %w", ctx.Err()))
	}
	return nil
}

func temperature(cold bool) string {
	if cold {
		return "cold"
	}
	return "warm"
}

// String names the case for people.
func (c *BenchCase) String() string {
	name := c.Program
	if c.Spec != "" && c.Program == "vae.decoder" && c.Sizes.Frames > 0 {
		name += " " + c.Spec
	}
	return fmt.Sprintf("%s, %s, %s", name, c.Sizes, c.DType)
}

// late reports whether a process of the row would probably end after the budget: it takes as long as the last one did.
func (b *bench) late(row *BenchRow, cold bool) bool {
	return !b.end.IsZero() && time.Now().Add(row.took[cold]).After(b.end)
}

// process runs one process and takes down what it measured.
func (b *bench) process(ctx context.Context, c *BenchCase, v *benchVariant, row *BenchRow, round int, cold bool, cache string) {
	task := benchTask{
		Model: b.path, Config: v.config, Program: c.id, Name: c.Program, Sizes: c.Sizes, Inputs: c.inputs, Deadline: b.end,
		Output: filepath.Join(b.dir, fmt.Sprintf("out%d.safetensors", time.Now().UnixNano())),
	}
	task.Config.CacheDir, task.Config.NoCache, task.Config.CacheOnly = cache, false, false
	task.Config.DType = c.flag
	if !cold {
		task.Steps, task.Warmup = b.o.Steps, b.o.Warmup
		if v.eager {
			task.Steps = b.o.EagerSteps
		}
	}
	limited := ctx
	if !b.end.IsZero() {
		var cancel context.CancelFunc
		limited, cancel = context.WithDeadline(ctx, b.end.Add(2*time.Second))
		defer cancel()
	}
	cmd := exec.CommandContext(limited, b.o.Command[0], b.o.Command[1:]...)
	cmd.WaitDelay = 2 * time.Second
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	before := readProcStat()
	task.Started = time.Now()
	data, err := json.Marshal(task)
	if err != nil {
		row.Error = err.Error()
		return
	}
	cmd.Stdin = bytes.NewReader(data)
	err = cmd.Run()
	row.took[cold] = time.Since(task.Started)
	if cold {
		row.took[false] = max(row.took[false], row.took[true]/4)
	}
	if err != nil {
		if ctx.Err() == nil && limited.Err() != nil {
			b.report.LeftOut = append(b.report.LeftOut, fmt.Sprintf("%s: %s, round %d, %s (stopped when the budget ended)", c, v.name, round+1, temperature(cold)))
		} else if ctx.Err() == nil {
			row.Error = processError(err, stderr.String())
		}
		return
	}
	var answer benchAnswer
	if err := json.Unmarshal(out.Bytes(), &answer); err != nil {
		row.Error = fmt.Sprintf("its answer can't be read: %v", err)
		return
	}
	run := answer.Run
	run.Round, run.Cold, run.Others = round+1, cold, -1
	if after := readProcStat(); before.all > 0 && after.all > before.all {
		own := (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds() * procTicks
		used := procStat{busy: max(0, after.busy-before.busy-own), all: after.all - before.all}
		run.Others = used.busy / used.all
		b.busy.busy, b.busy.all = b.busy.busy+used.busy, b.busy.all+used.all
	}
	row.Plugin = answer.Plugin
	row.Runs = append(row.Runs, run)
	row.outputs = append(row.outputs, task.Output)
	for _, w := range answer.Warnings {
		b.warn(fmt.Sprintf("%s: %s: %s", c, v.name, w))
	}
}

func (b *bench) warn(text string) {
	if !slices.Contains(b.report.Warnings, text) {
		b.report.Warnings = append(b.report.Warnings, text)
	}
}

// processError says why a process failed: in precast's words where it ended in order, else what the crash left.
func processError(err error, stderr string) string {
	var own []string
	first := ""
	for line := range strings.Lines(stderr) {
		line = strings.TrimSpace(line)
		if text, ok := strings.CutPrefix(line, "precast: error: "); ok {
			own = append(own, text)
		}
		for _, start := range []string{"SIG", "fatal error:", "panic:", "F0", "F1"} {
			if first == "" && strings.HasPrefix(line, start) {
				first = line
			}
		}
	}
	var exit *exec.ExitError
	switch {
	case len(own) > 0:
		return strings.Join(own, "; ")
	case errors.As(err, &exit):
		text := "its process ended: " + exit.String()
		if first == "" && stderr != "" {
			first = lastLine(stderr, err)
		}
		if first != "" {
			text += ": " + first
		}
		if strings.Contains(text, "killed") {
			text += " (the system does that where memory runs out)"
		}
		return text
	}
	return "its process can't be started: " + err.Error()
}

// differenceLimits are the relative differences between variants that rounding explains, by dtype: what whole runs of the goldens are held to,
// and for half precision a few of its steps.
var differenceLimits = map[string]float64{"f32": 1e-3, "bf16": 5e-2, "f16": 2e-2}

// finish sums up.
func (b *bench) finish() {
	for _, c := range b.report.Cases {
		for _, row := range c.Rows {
			for _, m := range BenchMeasures {
				var values []float64
				for _, r := range row.Runs {
					values = append(values, m.values(r)...)
				}
				if len(values) > 0 {
					row.Figures[m.Key] = spreadOf(values)
				}
			}
		}
		b.compareResults(c)
	}
	m := &b.report.Machine
	m.Others = -1
	if b.busy.all > 0 {
		if m.Others = b.busy.busy / b.busy.all; m.Others > 0.1 {
			b.warn(fmt.Sprintf("other processes used %.0f %% of the processors while the bench ran: times are too long, and differ more than the variants do", 100*m.Others))
		}
	}
}

// compareResults finds how far the results of the variants are from the baseline's.
func (b *bench) compareResults(c *BenchCase) {
	ref := slices.IndexFunc(c.Rows, func(r *BenchRow) bool { return r.Variant == b.report.Settings.Baseline && len(r.outputs) > 0 })
	if ref < 0 {
		ref = slices.IndexFunc(c.Rows, func(r *BenchRow) bool { return len(r.outputs) > 0 })
	}
	if ref < 0 {
		return
	}
	want, err := wideTensors(c.Rows[ref].outputs[0])
	if err != nil {
		b.warn(fmt.Sprintf("%s: the results of %s can't be read: %v", c, c.Rows[ref].Variant, err))
		return
	}
	for _, row := range c.Rows {
		worst := 0.0
		for _, path := range row.outputs {
			got, err := wideTensors(path)
			if err != nil {
				b.warn(fmt.Sprintf("%s: the results of %s can't be read: %v", c, row.Variant, err))
				return
			}
			d, finite := resultDifference(got, want)
			worst, row.NotFinite = max(worst, d), row.NotFinite || !finite
		}
		if len(row.outputs) == 0 {
			continue
		}
		row.DiffersFrom = c.Rows[ref].Variant
		if row.NotFinite {
			b.warn(fmt.Sprintf("%s: the results of %s are not finite", c, row.Variant))
			continue
		}
		row.Difference = &worst
		if limit := differenceLimits[c.DType]; limit > 0 && worst > limit {
			row.Differs = true
			b.warn(fmt.Sprintf("%s: the results of %s are not those of %s: they differ by %.2g of the largest value, and rounding explains %.0e; its times compare with nothing", c, row.Variant, row.DiffersFrom, worst, limit))
		}
	}
}

// Wrong reports whether variants differ in their results by more than rounding, or made none that are finite.
func (r *BenchReport) Wrong() bool {
	for _, c := range r.Cases {
		for _, row := range c.Rows {
			if row.Differs || row.NotFinite {
				return true
			}
		}
	}
	return false
}

// Measured reports whether any variant has figures.
func (r *BenchReport) Measured() bool {
	for _, c := range r.Cases {
		for _, row := range c.Rows {
			if len(row.Runs) > 0 {
				return true
			}
		}
	}
	return false
}

// wideTensors reads a file's tensors as float64, integers left out.
func wideTensors(path string) (map[string][]byte, error) {
	all, err := ReadTensors(path)
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	for name, t := range all {
		if !t.Shape.DType.IsFloat() {
			continue
		}
		wide, err := convertTensor(t, shapes.Make(dtypes.Float64, t.Shape.Dimensions...))
		if err != nil {
			return nil, err
		}
		out[name] = wide.Data
	}
	return out, nil
}

// resultDifference is the largest absolute difference of any tensor, relative to the largest absolute value wanted of it; infinite where tensors are
// missing. finite says that none of got is NaN or infinite.
func resultDifference(got, want map[string][]byte) (worst float64, finite bool) {
	finite = true
	for name, w := range want {
		g := got[name]
		if len(g) != len(w) {
			return math.MaxFloat64, finite
		}
		var d, m float64
		for i := 0; i < len(w); i += 8 {
			x, y := float64At(g[i:]), float64At(w[i:])
			finite = finite && x-x == 0
			if y-y != 0 && x-x == 0 {
				return math.MaxFloat64, finite
			}
			d, m = max(d, math.Abs(x-y)), max(m, math.Abs(y))
		}
		if d > 0 && m > 0 {
			worst = max(worst, d/m)
		} else if d > 0 {
			worst = math.MaxFloat64
		}
	}
	return worst, finite
}
