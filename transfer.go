package precast

import (
	"context"
	"slices"

	"precast/graph"
	"precast/graph/pipelines"
)

// engines are the engines of a pipeline: one, or two where the text encoders run on a device of their own.
func (p *Pipeline) engines() []*engine {
	if p.text == nil {
		return []*engine{p.engine}
	}
	return []*engine{p.engine, p.text}
}

// engineOf is the engine that runs a program.
func (p *Pipeline) engineOf(q *pipelines.Program) *engine {
	if p.text != nil && q.Stage == StageEncode {
		return p.text
	}
	return p.engine
}

// on lists the programs that run on e.
func (p *Pipeline) on(e *engine, programs []*pipelines.Program) []*pipelines.Program {
	var list []*pipelines.Program
	for _, q := range programs {
		if p.engineOf(q) == e {
			list = append(list, q)
		}
	}
	return list
}

func (p *Pipeline) executor() pipelines.Executor {
	if p.text == nil {
		return p.engine
	}
	return &transfers{p}
}

// transfers runs each program on its own device. A value that one device made and another reads is carried over, through the host.
type transfers struct{ p *Pipeline }

// placed is a value put by the recipe: it is on no device until a program there reads it.
type placed struct {
	shape graph.Shape
	data  []byte
	on    map[*engine]pipelines.Tensor
}

func (t *placed) Shape() graph.Shape { return t.shape }

func (t *placed) Read(context.Context) ([]byte, error) { return slices.Clone(t.data), nil }

func (t *placed) Free() {
	for _, d := range t.on {
		d.Free()
	}
	clear(t.on)
}

func (x *transfers) Put(shape graph.Shape, data []byte) (pipelines.Tensor, error) {
	return &placed{shape: shape, data: slices.Clone(data), on: map[*engine]pipelines.Tensor{}}, nil
}

func (x *transfers) Release(component string) {
	for _, e := range x.p.engines() {
		e.Release(component)
	}
}

func (x *transfers) Run(ctx context.Context, q *pipelines.Program, in map[string]pipelines.Tensor) (map[string]pipelines.Tensor, error) {
	out, err := x.RunAll(ctx, q, []map[string]pipelines.Tensor{in})
	if err != nil {
		return nil, err
	}
	return out[0], nil
}

func (x *transfers) RunAll(ctx context.Context, q *pipelines.Program, in []map[string]pipelines.Tensor) ([]map[string]pipelines.Tensor, error) {
	e := x.p.engineOf(q)
	var carried []pipelines.Tensor
	defer func() {
		for _, t := range carried {
			t.Free()
		}
	}()
	args := make([]map[string]pipelines.Tensor, len(in))
	for k := range in {
		args[k] = map[string]pipelines.Tensor{}
		for name, t := range in[k] {
			switch t := t.(type) {
			case *placed:
				if t.on[e] == nil {
					d, err := e.Put(t.shape, t.data)
					if err != nil {
						return nil, err
					}
					t.on[e] = d
				}
				args[k][name] = t.on[e]
			case *tensor:
				args[k][name] = t
				if t.e == e {
					continue
				}
				data, err := t.Read(ctx)
				if err != nil {
					return nil, err
				}
				d, err := e.Put(t.Shape(), data)
				if err != nil {
					return nil, err
				}
				carried = append(carried, d)
				args[k][name] = d
			}
		}
	}
	out, err := e.RunAll(ctx, q, args)
	for k := range in {
		for name, t := range in[k] {
			if slices.Contains(q.Donate, name) && err == nil {
				// The program has its memory now.
				t.Free()
			}
		}
	}
	return out, err
}
