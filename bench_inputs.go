package precast

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"precast/graph"
	"precast/graph/pipelines"
	"precast/graph/trace"
)

// errRecorded ends a recipe once it has said what it gives to the programs that are asked about.
var errRecorded = errors.New("recorded")

// recorder is a pipelines.Executor that computes nothing: results are seeded random numbers of the right shapes. So a pipeline's own recipe says
// what its programs are given (positions, masks, timesteps, token ids), and neither weights are read nor a device is used.
type recorder struct {
	seed   uint64
	wanted []string // program IDs
	calls  uint64
	inputs map[string]map[string]HostTensor // by program ID and input
	shapes map[string][]namedShape          // of results, by program ID
}

type namedShape struct {
	name  string
	shape graph.Shape
}

// recorded is a pipelines.Tensor in host memory.
type recorded struct{ t HostTensor }

func (r *recorded) Shape() graph.Shape                   { return r.t.Shape }
func (r *recorded) Read(context.Context) ([]byte, error) { return slices.Clone(r.t.Data), nil }
func (r *recorded) Free()                                {}

func (r *recorder) Release(string) {}

func (r *recorder) Put(shape graph.Shape, data []byte) (pipelines.Tensor, error) {
	return &recorded{HostTensor{Shape: shape, Data: slices.Clone(data)}}, nil
}

// RunAll implements pipelines.Executor.
func (r *recorder) RunAll(ctx context.Context, p *pipelines.Program, in []map[string]pipelines.Tensor) ([]map[string]pipelines.Tensor, error) {
	var out []map[string]pipelines.Tensor
	for _, one := range in {
		res, err := r.Run(ctx, p, one)
		if err != nil {
			return nil, err
		}
		out = append(out, res)
	}
	return out, nil
}

func (r *recorder) Run(ctx context.Context, p *pipelines.Program, in map[string]pipelines.Tensor) (map[string]pipelines.Tensor, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	id := p.ID()
	if slices.Contains(r.wanted, id) && r.inputs[id] == nil {
		r.inputs[id] = map[string]HostTensor{}
		for name, t := range in {
			r.inputs[id][name] = t.(*recorded).t
		}
	}
	if !slices.ContainsFunc(r.wanted, func(id string) bool { return r.inputs[id] == nil }) {
		return nil, errRecorded
	}
	if r.shapes[id] == nil {
		m, err := trace.Trace(p.Network)
		if err != nil {
			return nil, &InternalError{Phase: "trace", Program: id, Err: err}
		}
		f := m.Entry()
		for i, v := range f.Results {
			name := fmt.Sprintf("result%d", i)
			if i < len(f.ResultNames) {
				name = f.ResultNames[i]
			}
			r.shapes[id] = append(r.shapes[id], namedShape{name, v.Shape})
		}
	}
	r.calls++
	h := fnv.New64a()
	h.Write([]byte(id))
	rng := rand.New(rand.NewPCG(r.seed, h.Sum64()+r.calls))
	out := map[string]pipelines.Tensor{}
	for _, s := range r.shapes[id] {
		t, err := randomTensor(rng, s.shape)
		if err != nil {
			return nil, err
		}
		out[s.name] = &recorded{t}
	}
	return out, nil
}

// randomTensor is standard normal; integers are 0 and booleans true, which is what the recipes that read them (whether all is finite) go on with.
func randomTensor(rng *rand.Rand, shape graph.Shape) (HostTensor, error) {
	t := HostTensor{Shape: shape, Data: make([]byte, graph.ByteSize(shape))}
	switch {
	case shape.DType == dtypes.Bool:
		for i := range t.Data {
			t.Data[i] = 1
		}
	case shape.DType.IsFloat():
		wide := HostTensor{Shape: shapes.Make(dtypes.Float32, shape.Dimensions...), Data: make([]byte, 4*shape.Size())}
		for i := range shape.Size() {
			binary.LittleEndian.PutUint32(wide.Data[4*i:], math.Float32bits(float32(rng.NormFloat64())))
		}
		return convertTensor(wide, shape)
	}
	return t, nil
}

// inputsOf returns what a run with random texts and noise gives to each of the programs at its first call, by program ID. The request has its
// defaults filled in.
func (p *Pipeline) inputsOf(ctx context.Context, req *Request, programs []*pipelines.Program, seed uint64) (map[string]map[string]HostTensor, error) {
	r := &recorder{seed: seed, inputs: map[string]map[string]HostTensor{}, shapes: map[string][]namedShape{}}
	stages := map[Stage]bool{}
	for _, q := range programs {
		r.wanted = append(r.wanted, q.ID())
		stages[q.Stage] = true
	}
	err := func() error {
		var embeds Embeds
		if stages[StageEncode] || stages[StageDenoise] {
			if err := asUser(p.pipe.Prepare(req)); err != nil {
				return err
			}
			var err error
			if embeds, err = p.pipe.Encode(ctx, r, req); err != nil {
				return err
			}
		}
		if stages[StageDenoise] {
			if _, err := p.pipe.Denoise(ctx, r, req, embeds); err != nil {
				return err
			}
		}
		if stages[StageDecode] {
			shape, err := p.latents(req)
			if err != nil {
				return err
			}
			latents, err := randomTensor(rand.New(rand.NewPCG(seed, 0)), shape)
			if err != nil {
				return err
			}
			_, err = p.pipe.Decode(ctx, r, req, &recorded{latents})
			return err
		}
		return nil
	}()
	var missing []string
	for _, q := range programs {
		if r.inputs[q.ID()] == nil {
			missing = append(missing, q.ID())
		}
	}
	switch {
	case len(missing) == 0:
		return r.inputs, nil
	case err != nil && ctx.Err() != nil:
		return nil, asUser(err)
	case err != nil:
		return nil, err
	}
	return nil, userErrorf("components: a run of %s never calls %s", p.pipe.Sizes(req), strings.Join(missing, ", "))
}
