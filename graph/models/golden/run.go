package golden

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gomlx/gomlx/core/tensors"

	"precast/backends"
	"precast/backends/gobackend"
	"precast/backends/pjrt"
	"precast/backends/plugin"
	"precast/graph"
	"precast/graph/trace"
	"precast/lower"
	"precast/passes"
)

// The sides that a network is computed on.
const (
	// Direct is gomlx's Go backend, built by the network's code itself: nothing of the recorder, the passes and the lowering.
	Direct = "direct"
	// Go and PJRT are the whole way: trace, passes, plan, lower, backends/gobackend or the installed CPU plugin.
	Go   = "go"
	PJRT = "pjrt"
	// PJRTSplit is PJRT with each class of repeated blocks compiled on its own.
	PJRTSplit = "pjrt split"
)

// Side is one output of a network as one side computed it.
type Side struct {
	Name   string
	Tensor *tensors.Tensor
}

// Output is one output of a network on all sides. There is no PJRT side where no plugin is installed.
type Output []Side

// WeightFunc gives a weight by its checkpoint key, in exactly that shape.
type WeightFunc = func(key string, shape graph.Shape) (*tensors.Tensor, error)

// Job is a network with what it is computed from.
type Job struct {
	Network trace.Network
	// Weights may be nil for a network without weights.
	Weights WeightFunc
	Inputs  map[string]*tensors.Tensor
	// Donate names the inputs that the program may reuse the memory of.
	Donate []string
	// Split adds the side PJRTSplit.
	Split bool
	// Light leaves out the PJRT sides unless the environment sets PRECAST_TEST_LONG: XLA compiles for tens of seconds where a package has many
	// large cases of the same kind.
	Light bool
}

// Run computes the job on all sides and returns the network's outputs in order.
func (j Job) Run(t testing.TB) []Output {
	t.Helper()
	direct, err := trace.Evaluate(nil, j.Network, j.Weights, j.Inputs)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]Output, len(direct))
	add := func(side string, values []*tensors.Tensor) {
		if len(values) != len(out) {
			t.Fatalf("%s: %d results on side %s, %d on side %s", j.Network.Name, len(values), side, len(out), Direct)
		}
		for i, v := range values {
			out[i] = append(out[i], Side{side, v})
		}
	}
	add(Direct, direct)

	m, err := j.module()
	if err != nil {
		t.Fatal(err)
	}
	run := func(side string, client backends.Client, plan *passes.Plan) {
		values, err := execute(context.Background(), client, passes.Prepare(m), plan, j)
		if err != nil {
			t.Fatalf("%s on side %s: %v", j.Network.Name, side, err)
		}
		add(side, values)
	}
	c := clients()
	run(Go, c.goBackend, passes.Whole(m))
	if c.pjrt == nil || j.Light && os.Getenv("PRECAST_TEST_LONG") == "" {
		return out
	}
	run(PJRT, c.pjrt, passes.Whole(m))
	if j.Split {
		plan, err := passes.Split(m)
		if err != nil {
			t.Fatal(err)
		}
		run(PJRTSplit, c.pjrt, plan)
	}
	return out
}

// module traces the network and runs the passes, verified around each.
func (j Job) module() (*graph.Module, error) {
	m, err := trace.Trace(j.Network)
	if err != nil {
		return nil, err
	}
	for _, p := range m.Entry().Params {
		p.Donated = slices.Contains(j.Donate, p.Name)
	}
	pipeline := passes.Pipeline{Options: passes.DefaultOptions(), Check: true}
	return m, pipeline.Run(m)
}

// execute runs the preparation of the weights, where there is one, and then the plan. Whatever it makes is freed again.
func execute(ctx context.Context, client backends.Client, prepare, plan *passes.Plan, j Job) (values []*tensors.Tensor, err error) {
	var made []backends.Buffer
	defer func() {
		for _, b := range made {
			err = errors.Join(err, b.Delete())
		}
	}()
	prepared := map[string]backends.Buffer{}
	param := func(s passes.Slot) (backends.Buffer, error) {
		t := j.Inputs[s.Name]
		if s.Kind == graph.Weight {
			if prepared[s.Name] != nil {
				return prepared[s.Name], nil
			}
			var err error
			if t, err = j.Weights(s.Name, s.Shape); err != nil {
				return nil, fmt.Errorf("weight %s: %w", s.Name, err)
			}
		}
		if t == nil || !t.Shape().Equal(s.Shape) {
			return nil, fmt.Errorf("no tensor of shape %s for %q", s.Shape, s.Name)
		}
		b, err := upload(client, t)
		if err == nil {
			made = append(made, b)
		}
		return b, err
	}
	run := func(p *passes.Plan) ([]backends.Buffer, error) {
		var err error
		slots := map[int]backends.Buffer{}
		for i, s := range p.Params {
			if slots[i], err = param(s); err != nil {
				return nil, err
			}
		}
		executables := make([]backends.Executable, len(p.Programs))
		donated := make([][]int, len(p.Programs))
		for i, m := range p.Programs {
			program, err := lower.Lower(m)
			if err != nil {
				return nil, err
			}
			if executables[i], err = clients().compile(ctx, client, program); err != nil {
				return nil, err
			}
			for k, q := range program.Params {
				if q.Donated {
					donated[i] = append(donated[i], k)
				}
			}
		}
		for _, s := range p.Steps {
			var args []backends.Buffer
			for _, a := range s.Args {
				args = append(args, slots[a])
			}
			results, err := executables[s.Program].Execute(ctx, args, backends.ExecuteOptions{Donate: donated[s.Program]})
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.Scope, err)
			}
			for k, r := range s.Results {
				slots[r] = results[k]
			}
			made = append(made, results...)
		}
		var out []backends.Buffer
		for _, r := range p.Results {
			out = append(out, slots[r])
		}
		return out, nil
	}
	if prepare != nil {
		results, err := run(prepare)
		if err != nil {
			return nil, fmt.Errorf("prepare: %w", err)
		}
		for i, name := range prepare.ResultNames {
			prepared[name] = results[i]
		}
	}
	results, err := run(plan)
	if err != nil {
		return nil, err
	}
	for _, b := range results {
		t := tensors.FromShape(b.Shape())
		var readErr error
		if err := t.MutableBytes(func(data []byte) { readErr = b.ToHost(ctx, data) }); err != nil || readErr != nil {
			return nil, errors.Join(err, readErr)
		}
		values = append(values, t)
	}
	return values, nil
}

func upload(client backends.Client, t *tensors.Tensor) (b backends.Buffer, err error) {
	readErr := t.ConstBytes(func(data []byte) {
		b, err = client.BufferFromHost(data, t.Shape(), backends.HostOptions{Semantics: backends.CopyDuringCall})
	})
	return b, errors.Join(readErr, err)
}

// shared are the clients of the process, made at the first use: a plugin's client starts threads.
type shared struct {
	goBackend, pjrt backends.Client
	// missing says why pjrt is nil.
	missing error
	// compiled holds what was compiled, by client and the program's fingerprint: many cases are one network on other inputs.
	compiled map[string]backends.Executable
}

func (s *shared) compile(ctx context.Context, client backends.Client, p *lower.Program) (backends.Executable, error) {
	key := client.PlatformVersion() + " " + p.Fingerprint()
	if e := s.compiled[key]; e != nil {
		return e, nil
	}
	e, err := client.Compile(ctx, p, backends.CompileOptions{})
	if err == nil {
		s.compiled[key] = e
	}
	return e, err
}

// close closes everything and reports what can't be, and the handles that are left after it.
func (s *shared) close() error {
	var errs []error
	for _, e := range s.compiled {
		errs = append(errs, e.Close())
	}
	for _, client := range []backends.Client{s.goBackend, s.pjrt} {
		if client != nil {
			errs = append(errs, client.Close())
		}
	}
	// Events are freed when they become ready, which may be a moment after the last close.
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		left := map[string]int64{}
		for backend, live := range map[string]map[string]int64{Go: gobackend.Live(), PJRT: pjrt.Live()} {
			for kind, n := range live {
				if n != 0 {
					left[backend+" "+kind] = n
				}
			}
		}
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			errs = append(errs, fmt.Errorf("handles left: %v", left))
			break
		}
	}
	return errors.Join(errs...)
}

var clients = sync.OnceValue(func() *shared {
	s := &shared{compiled: map[string]backends.Executable{}}
	var err error
	if s.goBackend, err = gobackend.Plugin().NewClient(backends.ClientOptions{}); err != nil {
		panic(err)
	}
	if os.Getenv("PRECAST_PLUGIN") == "go" {
		s.missing = errors.New("PRECAST_PLUGIN asks for the Go backend alone")
		return s
	}
	installed, err := plugin.Default()
	if missing := (*plugin.NotInstalledError)(nil); errors.As(err, &missing) {
		s.missing = err
		return s
	}
	if err != nil {
		panic(err)
	}
	p, err := pjrt.Load(installed.Path)
	if err == nil {
		s.pjrt, err = p.NewClient(backends.ClientOptions{})
	}
	if err != nil {
		panic(err)
	}
	return s
})

// Main is the TestMain of a package that uses Job: it runs the tests, closes the clients and fails where a handle is left.
func Main(m *testing.M) {
	code := m.Run()
	if err := clients().close(); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}
