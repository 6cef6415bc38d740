package precast

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"precast/backends"
	"precast/graph"
	"precast/graph/pipelines"
)

// tensor is a pipelines.Tensor on the device.
type tensor struct {
	e    *engine
	buf  backends.Buffer
	once sync.Once
}

func (e *engine) newTensor(b backends.Buffer) *tensor {
	t := &tensor{e: e, buf: b}
	e.mu.Lock()
	e.live[t] = true
	e.mu.Unlock()
	return t
}

func (t *tensor) Shape() graph.Shape { return t.buf.Shape() }

func (t *tensor) Read(ctx context.Context) ([]byte, error) {
	start := time.Now()
	defer func() { t.e.stats.time("", "wait", start) }()
	out := make([]byte, graph.ByteSize(t.buf.Shape()))
	if err := t.buf.ToHost(ctx, out); err != nil {
		return nil, deviceError("execute", "a value on the device", err)
	}
	return out, nil
}

func (t *tensor) Free() {
	t.once.Do(func() {
		t.e.mu.Lock()
		delete(t.e.live, t)
		t.e.mu.Unlock()
		// An error here can only say that the buffer was donated: it is gone either way.
		_ = t.buf.Delete()
	})
}

// Put implements pipelines.Executor.
func (e *engine) Put(shape graph.Shape, data []byte) (pipelines.Tensor, error) {
	if int64(len(data)) != graph.ByteSize(shape) {
		return nil, &InternalError{Phase: "execute", Program: "put", Err: fmt.Errorf("%d bytes for %s", len(data), shape)}
	}
	buf, err := e.backend.client.BufferFromHost(data, shape, backends.HostOptions{Semantics: backends.CopyDuringCall})
	if err != nil {
		return nil, deviceError("execute", "an input", err)
	}
	return e.newTensor(buf), nil
}

// Release implements pipelines.Executor: with --offload model and block a component's weights leave the device.
func (e *engine) Release(component string) {
	if e.cfg.Offload == offloadNone {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.programs {
		if p.manifest.Component == component {
			p.bound = nil
		}
	}
	if err := e.weights.release(component); err != nil {
		e.cfg.Log.Warn("weights could not be freed", "component", component, "reason", err.Error())
	}
}

// Run implements pipelines.Executor: the steps of the program's plan, each started without waiting for the one before.
func (e *engine) Run(ctx context.Context, p *pipelines.Program, in map[string]pipelines.Tensor) (map[string]pipelines.Tensor, error) {
	out, err := e.RunAll(ctx, p, []map[string]pipelines.Tensor{in})
	if err != nil {
		return nil, err
	}
	return out[0], nil
}

// RunAll implements pipelines.Executor: the runs follow one another, or, where weights are streamed, take each step together.
func (e *engine) RunAll(ctx context.Context, p *pipelines.Program, in []map[string]pipelines.Tensor) ([]map[string]pipelines.Tensor, error) {
	made, err := e.get(ctx, p)
	if err != nil {
		return nil, err
	}
	if err := e.weights.bind(ctx, p, made); err != nil {
		return nil, err
	}
	if made.stream != nil {
		return e.run(ctx, p, made, in)
	}
	var out []map[string]pipelines.Tensor
	for i := range in {
		one, err := e.run(ctx, p, made, in[i:i+1])
		if err != nil {
			for _, have := range out {
				for _, t := range have {
					t.Free()
				}
			}
			return nil, err
		}
		out = append(out, one...)
	}
	return out, nil
}

// run runs the steps on each of the inputs, step by step.
func (e *engine) run(ctx context.Context, p *pipelines.Program, made *program, in []map[string]pipelines.Tensor) ([]map[string]pipelines.Tensor, error) {
	start := time.Now()
	defer func() { e.stats.time(p.Name, "execute", start) }()
	plan := &made.manifest.Main
	fault := func(format string, args ...any) error {
		return &InternalError{Phase: "execute", Program: p.ID(), Err: fmt.Errorf(format, args...)}
	}
	given := func(slot int) bool { return slot < len(plan.Params) }
	runs := make([]map[int]backends.Buffer, len(in)) // by slot
	for k := range in {
		runs[k] = make(map[int]backends.Buffer, len(plan.Params)+len(plan.Steps))
		for i, q := range plan.Params {
			if q.Weight {
				runs[k][i] = made.bound[i]
				continue
			}
			t, ok := in[k][q.Name].(*tensor)
			if !ok {
				return nil, fault("input %q is not given", q.Name)
			}
			if got := t.buf.Shape(); graph.DTypeName(got.DType) != q.DType || !slices.Equal(got.Dimensions, q.Dims) {
				return nil, fault("input %q has shape %s, wanted (%s)%v", q.Name, got, q.DType, q.Dims)
			}
			runs[k][i] = t.buf
		}
	}
	var weights *streaming
	if made.stream != nil {
		var err error
		if weights, err = e.weights.start(ctx, p, made.stream); err != nil {
			return nil, err
		}
		defer weights.end()
	}
	look := e.probe(p, made)
	// Whatever is not a result in the end is freed.
	var values []backends.Buffer
	results := map[backends.Buffer]bool{}
	defer func() {
		for _, b := range values {
			if !results[b] {
				_ = b.Delete()
			}
		}
	}()
	for i, s := range plan.Steps {
		var streamed map[int]backends.Buffer
		if weights != nil {
			var err error
			if streamed, err = weights.weights(ctx, i); err != nil {
				return nil, err
			}
		}
		var donate []int
		for _, k := range plan.Executables[s.Program].Donated {
			if a := s.Args[k]; plan.Params[a].Donated {
				donate = append(donate, k)
			}
		}
		var computed []backends.Buffer
		for _, slots := range runs {
			args := make([]backends.Buffer, len(s.Args))
			for k, a := range s.Args {
				if args[k] = slots[a]; streamed[a] != nil {
					args[k] = streamed[a]
				}
			}
			if err := look.before(ctx, i, s, args); err != nil {
				return nil, errors.Join(err, look.done())
			}
			res, err := made.exes[s.Program].Execute(ctx, args, backends.ExecuteOptions{Donate: donate})
			e.stats.count(p.Name, "execute")
			if err != nil {
				return nil, deviceError("execute", p.ID(), fmt.Errorf("step %d of %d (%s): %w", i+1, len(plan.Steps), s.Scope, err))
			}
			values, computed = append(values, res...), append(computed, res...)
			if err := look.after(ctx, i, s, res); err != nil {
				return nil, errors.Join(err, look.done())
			}
			for k, r := range s.Results {
				slots[r] = res[k]
			}
		}
		if weights != nil {
			if err := weights.done(ctx, computed); err != nil {
				return nil, err
			}
		}
		for _, slots := range runs {
			for _, a := range s.Args {
				if !given(a) && made.lastUse[a] == i && slots[a] != nil {
					_ = slots[a].Delete()
					slots[a] = nil
				}
			}
		}
	}
	if err := look.done(); err != nil {
		return nil, err
	}
	names := make([]string, len(plan.Results))
	for i, r := range plan.Results {
		names[i] = fmt.Sprintf("result%d", i)
		if i < len(plan.ResultNames) {
			names[i] = plan.ResultNames[i]
		}
		if given(r) || slices.Index(plan.Results, r) != i {
			return nil, fault("result %q is an argument or another result", names[i])
		}
	}
	var out []map[string]pipelines.Tensor
	for k, slots := range runs {
		one := map[string]pipelines.Tensor{}
		for i, r := range plan.Results {
			results[slots[r]] = true
			one[names[i]] = e.newTensor(slots[r])
		}
		out = append(out, one)
		for _, q := range plan.Params {
			if t, is := in[k][q.Name].(*tensor); is && q.Donated {
				t.Free()
			}
		}
	}
	return out, nil
}

// parseDType reads the dtype of a manifest.
func parseDType(name string) (graph.DType, error) {
	d, ok := graph.ParseDType(name)
	if !ok {
		return d, fmt.Errorf("dtype %q is not known", name)
	}
	return d, nil
}
