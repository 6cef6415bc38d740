package precast

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"precast/backends/plugin"
	"precast/graph/checkpoint"
	"precast/graph/pipelines"
)

// benchTask is what a process of a bench does; it comes as JSON on standard input.
type benchTask struct {
	Model   string `json:"model"`
	Config  Config `json:"config"`
	Program string `json:"program"` // its ID
	Name    string `json:"name"`
	Sizes   Sizes  `json:"sizes"`
	// Inputs and Output are safetensors files: what the program is given, and where the results of the last step go.
	Inputs string `json:"inputs"`
	Output string `json:"output"`
	// Steps are measured, after the first and Warmup more.
	Steps  int `json:"steps"`
	Warmup int `json:"warmup"`
	// Started is when the process was started, Deadline when it has to end (or zero): steps that are still to come then are left out.
	Started  time.Time `json:"started"`
	Deadline time.Time `json:"deadline"`
}

// benchAnswer is what it writes to standard output.
type benchAnswer struct {
	Run      BenchRun    `json:"run"`
	Plugin   BenchPlugin `json:"plugin"`
	Warnings []string    `json:"warnings,omitempty"`
}

// BenchChild is one process of a Bench: it reads its task from in and writes what it measured to out. BenchOptions.Command names a program that
// does nothing but call it.
func BenchChild(ctx context.Context, in io.Reader, out io.Writer) error {
	defer endWithParent()()
	var task benchTask
	if err := json.NewDecoder(in).Decode(&task); err != nil {
		return userErrorf("bench: the task of a child process can't be read: %w", err)
	}
	answer, err := task.run(ctx)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(answer)
}

// endWithParent ends the process soon after the one that started it: a bench that is killed can't stop its processes, and a compile can't be cancelled.
// The function that it returns calls that off.
func endWithParent() func() {
	parent, done := os.Getppid(), make(chan struct{})
	go func() {
		alive := time.NewTicker(time.Second)
		defer alive.Stop()
		for {
			select {
			case <-done:
				return
			case <-alive.C:
				if os.Getppid() != parent {
					os.Exit(1)
				}
			}
		}
	}()
	return func() { close(done) }
}

func (t *benchTask) run(ctx context.Context) (answer *benchAnswer, err error) {
	answer = &benchAnswer{}
	t.Config.Log = slog.New(&warningHandler{to: &answer.Warnings})
	inputs, err := ReadTensors(t.Inputs)
	if err != nil {
		return nil, err
	}
	p, err := Open(ctx, t.Model, t.Config)
	if err != nil {
		return nil, err
	}
	defer func() {
		if cerr := p.Close(); err == nil {
			err = cerr
		}
	}()
	programs, err := p.programsAt(t.Sizes)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(programs, func(q *pipelines.Program) bool { return q.ID() == t.Program })
	if i < 0 {
		return nil, &InternalError{Phase: "bench", Program: t.Program, Err: fmt.Errorf("%s has no such program", t.Sizes)}
	}
	prog := &Program{p: p, prog: programs[i]}
	alone := programs[i : i+1]
	if err := p.checkWeightFiles(alone); err != nil {
		return nil, err
	}
	if err := p.connect(); err != nil {
		return nil, err
	}
	e := p.engineOf(prog.prog)
	e.willRun = true
	if err := e.checkWeights(alone); err != nil {
		return nil, err
	}
	if err := p.checkRegions(alone, []string{t.Name}); err != nil {
		return nil, err
	}
	r := &answer.Run
	r.Steps, r.StepsCPU = []float64{}, []float64{}
	var results map[string]HostTensor
	executed := int64(0)
	for i := range 1 + t.Warmup + t.Steps {
		begin, used := time.Now(), processorTime()
		if results, err = prog.Run(ctx, inputs); err != nil {
			return nil, err
		}
		took, cpu := time.Since(begin), processorTime()-used
		switch {
		case i == 0:
			r.FirstStep = time.Since(t.Started).Seconds()
			executed = p.stats.counted("execute")
			r.Executions = executed
		case i > t.Warmup:
			r.Steps = append(r.Steps, took.Seconds())
			if cpu > 0 {
				r.StepsCPU = append(r.StepsCPU, cpu.Seconds())
			}
		}
		if i < t.Warmup+t.Steps && !t.Deadline.IsZero() && time.Now().Add(took).After(t.Deadline) {
			answer.Warnings = append(answer.Warnings, fmt.Sprintf("the budget ended after %d of %d steps", len(r.Steps), t.Steps))
			break
		}
	}
	answer.Plugin = describeBackend(e.backend)
	e.mu.Lock()
	made := e.programs[t.Program]
	e.mu.Unlock()
	if made.shared {
		r.Executables = len(e.operations.have)
	} else {
		for _, x := range slices.Concat(made.exes, made.prepare) {
			if x != nil {
				r.Executables++
			}
		}
	}
	s := p.Stats()
	r.PeakRSS, r.Phases, r.ExecutableBytes, r.Weights, r.Compiles = s.PeakRSS, s.Seconds, s.Bytes["executables"], s.Bytes["weights"], s.Counts["compile"]
	return answer, checkpoint.WriteFile(t.Output, tensorItems(results), nil)
}

// describeBackend says what a program ran on.
func describeBackend(b *backend) BenchPlugin {
	p := BenchPlugin{Name: b.name, Platform: b.client.Platform(), Version: b.client.PlatformVersion()}
	for _, f := range b.identity {
		if f.Name == "plugin_sha256" {
			p.SHA256 = f.Value
		}
	}
	store, err := plugin.Open()
	if err != nil {
		return p
	}
	for _, pin := range store.Pins {
		if pin.Name() == p.Name { // a name that is given only to a library whose hash is the pin's
			p.Package = pin.Version
		}
	}
	return p
}

// warningHandler keeps warnings as lines.
type warningHandler struct {
	mu sync.Mutex
	to *[]string
}

func (h *warningHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

func (h *warningHandler) Handle(_ context.Context, r slog.Record) error {
	var parts []string
	r.Attrs(func(a slog.Attr) bool {
		parts = append(parts, a.Key+" "+a.Value.String())
		return true
	})
	text := r.Message
	if len(parts) > 0 {
		text += " (" + strings.Join(parts, ", ") + ")"
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	*h.to = append(*h.to, text)
	return nil
}

func (h *warningHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h *warningHandler) WithGroup(string) slog.Handler      { return h }
