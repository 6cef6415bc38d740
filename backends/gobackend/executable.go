package gobackend

import (
	"context"
	"fmt"
	"slices"

	"github.com/gomlx/compute"

	"precast/backends"
	"precast/graph"
	"precast/lower"
)

// executable is a built program.
type executable struct {
	c       *client
	exe     compute.Executable
	m       *graph.Module
	params  []lower.Param
	results []lower.Result

	// Guarded by the client's mutex.
	closed  bool
	running int
}

func (c *client) build(m *graph.Module, opts backends.CompileOptions) (_ *executable, err error) {
	op := "compile " + m.Name
	if opts.NumPartitions > 1 {
		return nil, backends.Errorf(backends.Unimplemented, op, "found %d partitions: the Go backend has one device", opts.NumPartitions)
	}
	for _, id := range opts.DeviceIDs {
		if id != 0 {
			return nil, backends.Errorf(backends.InvalidArgument, op, "device %d does not exist: the Go backend has device 0 alone", id)
		}
	}
	if err := c.open(op); err != nil {
		return nil, err
	}
	defer func() {
		if r := recover(); r != nil { // gomlx panics on faults that it doesn't expect
			err = backends.Errorf(backends.Internal, op, "%v", r)
		}
		if err != nil {
			c.shut()
		}
	}()
	b := c.backend.Builder(m.Name)
	if err := lower.ToBuilder(m, b); err != nil {
		return nil, backends.Errorf(backends.InvalidArgument, op, "%v", err)
	}
	exe, err := b.Compile()
	if err != nil {
		return nil, backends.Errorf(backends.Internal, op, "%v", err)
	}
	e := &executable{c: c, exe: exe, m: m}
	e.params, e.results = lower.SignatureOf(m)
	liveExecutables.Add(1)
	return e, nil
}

func (e *executable) Name() string        { return e.m.Name }
func (e *executable) NumOutputs() int     { return len(e.results) }
func (e *executable) Fingerprint() string { return fingerprint(e.m) }

func (e *executable) Serialize() ([]byte, error) { return marshal(e.m), nil }

func (e *executable) MemoryStats() (backends.ExecutableMemory, error) { return memoryOf(e.m), nil }

func (e *executable) CostAnalysis() (map[string]float64, error) { return costOf(e.m), nil }

func (e *executable) OptimizedHLO() (string, error) {
	return "", backends.Errorf(backends.Unimplemented, "read the optimized program of "+e.m.Name, "the Go backend has none")
}

func (e *executable) Close() error {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	if e.closed {
		return nil
	}
	e.closed = true
	e.c.objects--
	liveExecutables.Add(-1)
	if e.running == 0 {
		e.exe.Finalize()
	}
	return nil
}

// Execute starts the program. See backends.Executable.
func (e *executable) Execute(ctx context.Context, args []backends.Buffer, opts backends.ExecuteOptions) ([]backends.Buffer, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	op := "execute " + e.m.Name
	ins, err := e.arguments(op, args, opts.Donate)
	if err != nil {
		return nil, err
	}
	c := e.c
	c.mu.Lock()
	if err := e.take(op, ins, opts.Donate); err != nil {
		c.mu.Unlock()
		return nil, err
	}
	stores := make([]*store, len(ins))
	for i, b := range ins {
		stores[i] = b.store
		stores[i].holds++
	}
	for _, i := range opts.Donate {
		ins[i].drop()
	}
	e.running++
	c.runs.Add(1)
	c.objects += len(e.results)
	c.mu.Unlock()

	outs := make([]*buffer, len(e.results))
	results := make([]*store, len(outs))
	for i, r := range e.results {
		outs[i] = c.newBuffer(r.Shape)
		results[i] = outs[i].store
		results[i].holds++ // until computed
	}
	donated := make([]bool, len(ins))
	for _, i := range opts.Donate {
		donated[i] = true
	}
	go e.run(op, stores, donated, results)
	bufs := make([]backends.Buffer, len(outs))
	for i, b := range outs {
		bufs[i] = b
	}
	return bufs, nil
}

// arguments checks the arguments against the signature.
func (e *executable) arguments(op string, args []backends.Buffer, donate []int) ([]*buffer, error) {
	if len(args) != len(e.params) {
		return nil, backends.Errorf(backends.InvalidArgument, op, "found %d arguments, wanted %d", len(args), len(e.params))
	}
	ins := make([]*buffer, len(args))
	for i, a := range args {
		b, ok := a.(*buffer)
		if !ok || b == nil || b.c != e.c {
			return nil, backends.Errorf(backends.InvalidArgument, op, "argument %d (%s) is not a buffer of this client", i, e.params[i].Name)
		}
		if !b.shape.Equal(e.params[i].Shape) {
			return nil, backends.Errorf(backends.InvalidArgument, op, "argument %d (%s): found %s, wanted %s", i, e.params[i].Name, b.shape,
				e.params[i].Shape)
		}
		ins[i] = b
	}
	for n, i := range donate {
		if i < 0 || i >= len(args) {
			return nil, backends.Errorf(backends.InvalidArgument, op, "donated argument %d does not exist: there are %d", i, len(args))
		}
		if slices.Contains(donate[:n], i) {
			return nil, backends.Errorf(backends.InvalidArgument, op, "argument %d (%s) is donated twice", i, e.params[i].Name)
		}
		for j, other := range ins {
			if j != i && other == ins[i] {
				return nil, backends.Errorf(backends.InvalidArgument, op, "argument %d (%s) is donated and is argument %d too", i, e.params[i].Name, j)
			}
		}
	}
	return ins, nil
}

// take checks what only the mutex, which must be held, makes certain.
func (e *executable) take(op string, ins []*buffer, donate []int) error {
	if e.closed {
		return backends.Errorf(backends.FailedPrecondition, op, "the executable is closed")
	}
	for i, b := range ins {
		if b.store == nil {
			return backends.Errorf(backends.FailedPrecondition, op, "argument %d (%s) was deleted or donated", i, e.params[i].Name)
		}
	}
	return nil
}

// run waits for the arguments, computes, and gives the results their data.
func (e *executable) run(op string, args []*store, donated []bool, results []*store) {
	defer e.c.runs.Done()
	out, err := e.compute(op, args, donated)
	for i, r := range results {
		if err != nil {
			r.finish(nil, err)
		} else {
			r.finish(out[i], nil)
		}
	}
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	for _, s := range args {
		s.release()
	}
	for _, r := range results {
		r.release()
	}
	if e.running--; e.running == 0 && e.closed {
		e.exe.Finalize()
	}
}

func (e *executable) compute(op string, args []*store, donated []bool) (out []compute.Buffer, err error) {
	defer func() {
		if r := recover(); r != nil { // gomlx panics on faults that it doesn't expect
			err = backends.Errorf(backends.Internal, op, "%v", r)
		}
	}()
	ins := make([]compute.Buffer, len(args))
	for i, s := range args {
		<-s.done
		if s.err != nil {
			return nil, s.err
		}
		ins[i] = s.data
	}
	// Memory is given away only where this execution is alone in holding it.
	donate := make([]bool, len(args))
	e.c.mu.Lock()
	for i, s := range args {
		donate[i] = donated[i] && s.holds == 1
	}
	e.c.mu.Unlock()
	out, err = e.exe.Execute(ins, donate, 0)
	if err != nil {
		return nil, backends.Errorf(backends.Internal, op, "%v", err)
	}
	if len(out) != len(e.results) {
		return nil, backends.Errorf(backends.Internal, op, "BUG: %s", fmt.Sprintf("found %d results, wanted %d", len(out), len(e.results)))
	}
	return out, nil
}
