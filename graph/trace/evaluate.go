package trace

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/gobackend"
	ml "github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"precast/graph"
)

// Evaluate runs n's Build directly over a real gomlx backend, with no module in between, and returns the outputs in the order of
// n.Outputs. It is the reference that a traced, optimized and compiled program is compared with.
//
// A nil backend is gomlx's Go backend. weights is asked once for each weight the network uses, in order of first use, and must return
// a tensor of exactly that shape; it may be nil for a network without weights. inputs holds a tensor for each of n.Inputs.
// Errors are of type *Error.
func Evaluate(
	backend compute.Backend,
	n Network,
	weights func(key string, shape graph.Shape) (*tensors.Tensor, error),
	inputs map[string]*tensors.Tensor,
) (outputs []*tensors.Tensor, err error) {
	if backend == nil {
		backend = gobackend.GetBackend()
	}
	fail := func(format string, args ...any) ([]*tensors.Tensor, error) {
		return nil, &Error{Component: n.Name, Err: fmt.Errorf(format, args...)}
	}
	for name := range inputs {
		if !slices.ContainsFunc(n.Inputs, func(in Input) bool { return in.Name == name }) {
			return fail("input %q is given, but the network has no such input; it has %s", name, inputNames(n))
		}
	}
	g := ml.NewGraph(backend, n.Name)
	defer g.Finalize()
	if err := n.run(g, nil); err != nil {
		return nil, err
	}
	args := make([]any, g.NumParameters())
	for i := range args {
		p := g.GetParameterByHandle(ml.ParameterHandle(i))
		name := p.GetParameterName()
		var t *tensors.Tensor
		if key, isWeight := strings.CutPrefix(name, WeightPrefix); isWeight {
			if weights == nil {
				return fail("weight %s is needed, but no weights were given", key)
			}
			var err error
			if t, err = weights(key, p.Shape()); err != nil {
				return fail("weight %s: %w", key, err)
			}
		} else {
			t = inputs[name]
		}
		if t == nil {
			return fail("%s: no tensor given, wanted one of shape %s", name, p.Shape())
		}
		if !t.Shape().Equal(p.Shape()) {
			return fail("%s: the tensor given has shape %s, wanted %s", name, t.Shape(), p.Shape())
		}
		args[i] = t
	}
	defer func() {
		if failure := recover(); failure != nil {
			e := panicked(failure, "")
			e.Component = n.Name
			outputs, err = nil, e
		}
	}()
	return g.Run(args...), nil
}

func inputNames(n Network) string {
	names := make([]string, len(n.Inputs))
	for i, in := range n.Inputs {
		names[i] = in.Name
	}
	return strings.Join(names, ", ")
}
