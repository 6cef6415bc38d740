// Package trace turns a network written with gomlx's graph API into a module of the graph IR, by running its code over a backend that
// records.
//
// Trace is for a Network, whose parameters are inputs and checkpoint weights; Function takes any gomlx function. Evaluate
// runs the same code over a real backend instead. Tracing reads no weight: a weight is a parameter named by its checkpoint key.
package trace

import (
	"fmt"
	"slices"

	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph"
)

// Trace runs n's Build over a Recorder and returns the module.
//
// The entry function "main" has n.Inputs as its first parameters, in order and also where the network does not use one, and the
// weights after them in order of first use. Its ResultNames are n.Outputs. Every node carries the module path that made it as its
// Scope. A failure anywhere in the network's code is an *Error that names the path.
func Trace(n Network) (*graph.Module, error) {
	m, err := record(n)
	if err != nil {
		return nil, err
	}
	m.Entry().ResultNames = slices.Clone(n.Outputs)
	return m, nil
}

// Function traces a gomlx function of tensors of the given shapes into a module called name. Its parameters are arg0, arg1, ... and its
// results result0, result1, ... Parameters that fn makes itself come after them, and are weights when their name starts with
// WeightPrefix.
//
// gomlx keeps one node for each scalar of a graph (Scalar, AddScalar, ...) and refuses it in a closure when another closure asked for it
// first: make such a scalar before the closures, or with Const in each.
func Function(name string, fn func(g *ml.Graph, in []*ml.Node) []*ml.Node, inputs ...graph.Shape) (*graph.Module, error) {
	n := Network{Name: name}
	for i, shape := range inputs {
		n.Inputs = append(n.Inputs, Input{fmt.Sprintf("arg%d", i), shape})
	}
	n.Build = func(c *Ctx, in map[string]*ml.Node) []*ml.Node {
		args := make([]*ml.Node, len(n.Inputs))
		for i, x := range n.Inputs {
			args[i] = in[x.Name]
		}
		return fn(c.G, args)
	}
	m, err := record(n)
	if err != nil {
		return nil, err
	}
	for i := range m.Entry().Results {
		m.Entry().ResultNames = append(m.Entry().ResultNames, fmt.Sprintf("result%d", i))
	}
	return m, nil
}

func record(n Network) (*graph.Module, error) {
	r := NewRecorder()
	g := ml.NewGraph(r, n.Name)
	defer g.Finalize()
	if err := n.run(g, r.SetScope); err != nil {
		return nil, err
	}
	m := r.Module()
	m.Name = n.Name
	return m, nil
}
