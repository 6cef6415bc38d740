package precast

import (
	"context"
	"slices"
	"strings"

	"precast/graph"
	"precast/graph/pipelines"
)

// Program is one program of a pipeline ("transformer", "unet", "vae.decoder") at fixed sizes, to be run on its own: by a server with a sampling
// loop of its own, by a benchmark. Its methods may be called from one goroutine at a time, as those of its Pipeline, which it must not outlive.
type Program struct {
	p    *Pipeline
	prog *pipelines.Program
}

// ProgramInput is an argument of a Program.
type ProgramInput struct {
	Name  string
	Shape graph.Shape
}

// Program returns the program of that name at the sizes, whose zero fields take the pipeline's defaults. Nothing is compiled yet.
func (p *Pipeline) Program(name string, s Sizes) (*Program, error) {
	programs, err := p.programsAt(s)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, q := range programs {
		if q.Name == name {
			return &Program{p: p, prog: q}, nil
		}
		names = append(names, q.Name)
	}
	slices.Sort(names)
	return nil, userErrorf("program: found %q, wanted one of %s", name, strings.Join(slices.Compact(names), ", "))
}

// Inputs lists the program's arguments: what Run wants.
func (q *Program) Inputs() []ProgramInput {
	var list []ProgramInput
	for _, in := range q.prog.Inputs {
		list = append(list, ProgramInput{in.Name, in.Shape})
	}
	return list
}

// Component is the checkpoint's folder that the program's weights are in, empty for a program without weights.
func (q *Program) Component() string { return q.prog.Component }

// Prepare makes the program ready: it is loaded from the artifact or the cache, or compiled, and its weights are brought to the device. Run
// does so where Prepare was not called.
func (q *Program) Prepare(ctx context.Context) error {
	if err := q.p.checkWeightFiles([]*pipelines.Program{q.prog}); err != nil {
		return err
	}
	if err := q.p.connect(); err != nil {
		return err
	}
	e := q.p.engineOf(q.prog)
	e.willRun = true
	made, err := e.get(ctx, q.prog)
	if err != nil {
		return err
	}
	if err := q.p.checkScope([]*pipelines.Program{q.prog}); err != nil {
		return err
	}
	return e.weights.bind(ctx, q.prog, made)
}

// Run executes the program on inputs by name and returns its results by name, when they are computed.
func (q *Program) Run(ctx context.Context, inputs map[string]HostTensor) (map[string]HostTensor, error) {
	for _, want := range q.prog.Inputs {
		got, ok := inputs[want.Name]
		if !ok {
			return nil, userErrorf("%s: input %q is not given, wanted %s", q.prog.Name, want.Name, want.Shape)
		}
		if !got.Shape.Equal(want.Shape) || len(got.Data) != int(want.Shape.ByteSize()) {
			return nil, userErrorf("%s: input %q: found %s in %d bytes, wanted %s in %d", q.prog.Name, want.Name, got.Shape, len(got.Data), want.Shape, int(want.Shape.ByteSize()))
		}
	}
	if err := q.Prepare(ctx); err != nil {
		return nil, err
	}
	e := q.p.engineOf(q.prog)
	args := map[string]pipelines.Tensor{}
	defer func() {
		for _, t := range args {
			t.Free()
		}
	}()
	for _, in := range q.prog.Inputs {
		t, err := e.Put(in.Shape, inputs[in.Name].Data)
		if err != nil {
			return nil, err
		}
		args[in.Name] = t
	}
	results, err := e.Run(ctx, q.prog, args)
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, t := range results {
			t.Free()
		}
	}()
	out := map[string]HostTensor{}
	for name, t := range results {
		data, err := t.Read(ctx)
		if err != nil {
			return nil, err
		}
		out[name] = HostTensor{Shape: t.Shape(), Data: data}
	}
	return out, nil
}
