//go:build linux

// Command regions measures what --regions costs and gives, by the number of blocks: compile time and its phases, executables, their bytes and load time,
// latency of a step. It writes RESULTS-REGIONS.json and RESULTS-REGIONS.md to --out.
//
//	regions [--only compile,steps] [--depths 1+1,6+12,19+38] [--rounds 5] [--models DIR] [--out tests/bench]
//
// Every measurement is a process of its own. The modes run in turn, round after round, so that a machine that slows down slows all of them. A part and
// depth that was measured keeps its figures until it is measured again. The checkpoints are random and are written where they are missing (4 GB
// for the depths above); compiling reads none of their weights.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"precast"
	"precast/tests/bench/measure"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "regions:", err)
		os.Exit(1)
	}
}

var modes = []string{"inline", "call", "scan", "split"}

func run() error {
	var cfg precast.Config
	var (
		only      = flag.String("only", "compile,steps", "parts to measure")
		depths    = flag.String("depths", "1+1,6+12,19+38", "double+single blocks; steps leave out those where nothing repeats")
		rounds    = flag.Int("rounds", 5, "rounds, each a process a mode")
		steps     = flag.Int("steps", 5, "steps a process, after the first")
		models    = flag.String("models", filepath.Join("tests", "bench", ".models"), "folder of the checkpoints")
		out       = flag.String("out", filepath.Join("tests", "bench"), "folder of the results")
		child     = flag.String("measure", "", "what a process that this one starts measures: compile or steps")
		dir       = flag.String("dir", "", "with --measure: the checkpoint")
		reference = flag.String("reference", "", "with --measure steps: file of the output to compare with, written where it is missing")
	)
	flag.IntVar(&cfg.Threads, "threads", 2, "threads of the backend")
	flag.StringVar(&cfg.Plugin, "plugin", "", "PJRT plugin, by name or path")
	flag.StringVar(&cfg.Regions, "regions", "", "modes to measure (default: all)")
	flag.StringVar(&cfg.CacheDir, "cache", "", "with --measure: folder of the cache")
	flag.Parse()
	ctx := context.Background()
	if *child != "" {
		return measureIn(ctx, *child, *dir, cfg, *steps, *reference)
	}
	b := &bench{models: *models, rounds: *rounds, steps: *steps, threads: cfg.Threads, plugin: cfg.Plugin, modes: modes}
	if cfg.Regions != "" {
		b.modes = strings.Split(cfg.Regions, ",")
	}
	stored, err := readResults(filepath.Join(*out, resultsName+".json"))
	if err != nil {
		return err
	}
	for part := range strings.SplitSeq(*only, ",") {
		for text := range strings.SplitSeq(*depths, ",") {
			var d depth
			if _, err := fmt.Sscanf(text, "%d+%d", &d.double, &d.single); err != nil || d.double < 1 || d.single < 1 {
				return fmt.Errorf("depths: found %q, wanted DOUBLE+SINGLE", text)
			}
			if part == "steps" && d.double == 1 && d.single == 1 {
				continue
			}
			r, err := b.part(part, d)
			if err != nil {
				return err
			}
			stored[part+" "+d.String()] = r
			if err := writeJSON(filepath.Join(*out, resultsName+".json"), stored); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(*out, resultsName+".md"), []byte(stored.markdown()), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// measureIn is what a child does: it prints one line of JSON.
func measureIn(ctx context.Context, what, dir string, cfg precast.Config, steps int, reference string) error {
	var r *measured
	var err error
	switch what {
	case "compile":
		r, err = measureCompile(ctx, dir, cfg)
	case "steps":
		r, err = measureSteps(ctx, dir, cfg, steps, reference)
	default:
		err = fmt.Errorf("measure: found %q, wanted compile or steps", what)
	}
	if err != nil {
		return err
	}
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	fmt.Println(string(line))
	return nil
}

type bench struct {
	models                 string
	rounds, steps, threads int
	plugin                 string
	modes                  []string
}

// part measures one part at one depth.
func (b *bench) part(part string, d depth) (*result, error) {
	dir := filepath.Join(b.models, fmt.Sprintf("flux-768-%d-%d", d.double, d.single))
	if err := writeCheckpoint(dir, d.double, d.single); err != nil {
		return nil, err
	}
	scratch, err := os.MkdirTemp("", "precast-regions-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(scratch)
	r := &result{Date: time.Now().Format(time.DateOnly), Machine: machine(), Threads: b.threads, Plugin: b.plugin, Modes: map[string][]*measured{}}
	chosen := b.modes
	if d.double == 1 && d.single == 1 {
		chosen = []string{"inline"} // nothing repeats, so that the others refuse
	}
	reference := filepath.Join(scratch, "reference")
	for i := range b.rounds {
		for _, mode := range chosen {
			cache := filepath.Join(scratch, mode)
			args := []string{"--measure", part, "--dir", dir, "--regions", mode, "--threads", fmt.Sprint(b.threads), "--plugin", b.plugin}
			switch part {
			case "compile":
				cache += fmt.Sprint(i)
				m, err := b.child(append(args, "--cache", cache)...)
				if err != nil {
					return nil, err
				}
				warm, err := b.child(append(args, "--cache", cache)...)
				if err != nil {
					return nil, err
				}
				m.Load = warm.Phases["load"]
				r.Modes[mode] = append(r.Modes[mode], m)
				fmt.Fprintf(os.Stderr, "%s %s: wall %.3f s, processor %.3f s, load %.3f s\n", d, mode, m.Wall, m.CPU, m.Load)
			case "steps":
				args = append(args, "--cache", cache, "--reference", reference)
				if i == 0 { // unmeasured: the cache is filled and the file's pages are in memory
					if _, err := b.child(append(args, "--steps", "0")...); err != nil {
						return nil, err
					}
				}
				m, err := b.child(append(args, "--steps", fmt.Sprint(b.steps))...)
				if err != nil {
					return nil, err
				}
				r.Modes[mode] = append(r.Modes[mode], m)
				fmt.Fprintf(os.Stderr, "%s %s: step %.3f s, processor %.3f s\n", d, mode, measure.Median(m.Steps), measure.Median(m.StepsCPU))
			default:
				return nil, fmt.Errorf("only: found %q, wanted compile or steps", part)
			}
		}
	}
	return r, nil
}

// child runs this program again and reads what it measured.
func (b *bench) child(args ...string) (*measured, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, args...)
	var errText strings.Builder
	cmd.Stderr = &errText
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, errText.String())
	}
	r := &measured{}
	if err := json.Unmarshal(out, r); err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return r, nil
}

// resultsName is the name of the results' files without their endings.
const resultsName = "RESULTS-REGIONS"

// result is one part at one depth.
type result struct {
	Date    string                 `json:"date"`
	Machine string                 `json:"machine"`
	Threads int                    `json:"threads"`
	Plugin  string                 `json:"plugin,omitempty"`
	Modes   map[string][]*measured `json:"modes"`
}

// results are by part and depth ("compile 6+12").
type results map[string]*result

func readResults(path string) (results, error) {
	r := results{}
	data, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return r, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// of collects one figure of a mode's processes.
func (r *result) of(mode string, get func(*measured) []float64) []float64 {
	if r == nil {
		return nil
	}
	var out []float64
	for _, m := range r.Modes[mode] {
		out = append(out, get(m)...)
	}
	return out
}

func one(get func(*measured) float64) func(*measured) []float64 {
	return func(m *measured) []float64 { return []float64{get(m)} }
}

func phase(name string) func(*measured) []float64 {
	return one(func(m *measured) float64 { return m.Phases[name] })
}

var (
	wall     = one(func(m *measured) float64 { return m.Wall })
	cpu      = one(func(m *measured) float64 { return m.CPU })
	load     = one(func(m *measured) float64 { return m.Load })
	peak     = one(func(m *measured) float64 { return float64(m.PeakRSS) / 1e9 })
	steps    = func(m *measured) []float64 { return m.Steps }
	stepsCPU = func(m *measured) []float64 { return m.StepsCPU }
)

// depths lists the depths that a part was measured at, the smallest first.
func (r results) depths(part string) []depth {
	var out []depth
	for key := range r {
		var d depth
		if rest, ok := strings.CutPrefix(key, part+" "); ok {
			if _, err := fmt.Sscanf(rest, "%d+%d", &d.double, &d.single); err == nil {
				out = append(out, d)
			}
		}
	}
	slices.SortFunc(out, func(a, b depth) int { return a.double + a.single - b.double - b.single })
	return out
}

const about = `# Regions by the number of blocks

FLUX.1's transformer at hidden size 768, one picture of 256x256, 512 text tokens, float32: double + single blocks, with every mode of --regions. Written by
tests/bench/regions (make bench-regions), which measures each row in processes of its own, the modes in turn, round after round. Figures are medians,
with the lowest and the highest in brackets: of the processes, and for steps of all steps of all processes.
`

const aboutCompile = `
## Compile

Wall and processor time are those from the trace of the program to its last cache entry, in a process that has loaded the plugin and compiled another
program before. Passes, lowering, compile (XLA) and serialize are parts of it; programs of one plan are compiled at the same time, so their sum can be
more than the wall time. Load is the time to load all executables in the next process. Nothing repeats in 1+1 blocks, where every mode but inline is
an error.

| blocks | regions | wall, s | of inline | processor, s | of inline | passes | compile | serialize | programs | MB | load, s |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
`

const aboutSteps = `
## Steps

A step is one call of the transformer; the time of the processor is that of all threads together. Outputs are compared with inline's, relative to the largest value.

| blocks | regions | step, s | of inline | step, processor, s | of inline | peak RSS, GB | difference |
| --- | --- | --- | --- | --- | --- | --- | --- |
`

func ratio(a, b []float64) string { return fmt.Sprintf("%.2f x", measure.Median(a)/measure.Median(b)) }

// markdown writes the tables of what was measured.
func (r results) markdown() string {
	var b strings.Builder
	b.WriteString(about)
	for _, key := range slices.Sorted(func(yield func(string) bool) {
		seen := map[string]bool{}
		for _, x := range r {
			plugin := x.Plugin
			if plugin == "" {
				plugin = "the default plugin"
			}
			line := fmt.Sprintf("\nMeasured %s: %s; %d threads, %s.\n", x.Date, x.Machine, x.Threads, plugin)
			if !seen[line] && !yield(line) {
				return
			}
			seen[line] = true
		}
	}) {
		b.WriteString(key)
	}
	if list := r.depths("compile"); len(list) > 0 {
		b.WriteString(aboutCompile)
		for _, d := range list {
			x := r["compile "+d.String()]
			for _, mode := range modes {
				if len(x.Modes[mode]) == 0 {
					continue
				}
				first := x.Modes[mode][0]
				fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %.3f | %.3f | %.3f | %d | %.2f | %s |\n", d, mode,
					measure.Spread(x.of(mode, wall)), ratio(x.of(mode, wall), x.of("inline", wall)), measure.Spread(x.of(mode, cpu)), ratio(x.of(mode, cpu), x.of("inline", cpu)),
					measure.Median(x.of(mode, phase("passes"))), measure.Median(x.of(mode, phase("compile"))), measure.Median(x.of(mode, phase("serialize"))),
					first.Executables, float64(first.Bytes)/1e6, measure.Spread(x.of(mode, load)))
			}
		}
		r.flat(&b, list)
	}
	if list := r.depths("steps"); len(list) > 0 {
		b.WriteString(aboutSteps)
		for _, d := range list {
			x := r["steps "+d.String()]
			for _, mode := range modes {
				if len(x.Modes[mode]) == 0 {
					continue
				}
				differs := 0.0
				for _, m := range x.Modes[mode] {
					if m.Differs != nil {
						differs = max(differs, *m.Differs)
					}
				}
				fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %.2f | %.1e |\n", d, mode, measure.Spread(x.of(mode, steps)), ratio(x.of(mode, steps), x.of("inline", steps)),
					measure.Spread(x.of(mode, stepsCPU)), ratio(x.of(mode, stepsCPU), x.of("inline", stepsCPU)), measure.Median(x.of(mode, peak)), differs)
			}
		}
	}
	return b.String()
}

// flat says how compile time grows from the second depth to the last: from the first on which blocks repeat.
func (r results) flat(b *strings.Builder, list []depth) {
	list = slices.DeleteFunc(slices.Clone(list), func(d depth) bool { return len(r["compile "+d.String()].Modes) < 2 })
	if len(list) < 2 {
		return
	}
	few, many := list[0], list[len(list)-1]
	var parts []string
	for _, mode := range modes {
		a, z := r["compile "+few.String()].of(mode, wall), r["compile "+many.String()].of(mode, wall)
		if len(a) > 0 && len(z) > 0 {
			parts = append(parts, mode+" "+ratio(z, a))
		}
	}
	fmt.Fprintf(b, "\nWall time with %s blocks, of that with %s: %s.\n", many, few, strings.Join(parts, ", "))
}
