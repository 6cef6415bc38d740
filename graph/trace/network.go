package trace

import (
	"fmt"
	"strings"

	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph"
)

// Input is one argument of a network.
type Input struct {
	Name  string
	Shape graph.Shape
}

// Network is one network at one set of static sizes: what Trace turns into a module. A model's package makes it from the
// component's config and the sizes.
type Network struct {
	// Name is the component's name in the pipeline, with the part after a dot where a component has several programs
	// ("transformer", "vae.decoder").
	Name string
	// Class is the class name in diffusers or transformers.
	Class  string
	DType  graph.DType
	Inputs []Input
	// Outputs names what Build returns.
	Outputs []string
	// Build computes the outputs, in the order of Outputs, from the inputs by name. It panics, as gomlx does, on a shape that does not fit.
	Build func(c *Ctx, in map[string]*ml.Node) []*ml.Node
}

// check reports what is wrong with the network's declaration.
func (n Network) check() error {
	if n.Build == nil {
		return fmt.Errorf("the network has no Build function")
	}
	names := map[string]bool{}
	for i, in := range n.Inputs {
		switch {
		case in.Name == "":
			return fmt.Errorf("input %d has no name", i)
		case strings.HasPrefix(in.Name, WeightPrefix):
			return fmt.Errorf("input %q: the prefix %q is kept for weights; choose another name", in.Name, WeightPrefix)
		case names[in.Name]:
			return fmt.Errorf("input %q is declared twice", in.Name)
		case !in.Shape.Ok() || in.Shape.IsTuple() || in.Shape.IsDynamic():
			return fmt.Errorf("input %q has the shape %s; wanted a dtype and static dimensions", in.Name, in.Shape)
		}
		names[in.Name] = true
	}
	return nil
}

// run declares the inputs in order on g, builds the network over it and compiles g. Whatever panics on the way becomes an *Error that
// names the network and the module path.
func (n Network) run(g *ml.Graph, scoped func(path string)) (err error) {
	if err := n.check(); err != nil {
		return &Error{Component: n.Name, Err: err}
	}
	c := NewCtx(g, n.DType, scoped)
	defer func() {
		if failure := recover(); failure != nil {
			e := panicked(failure, c.Path())
			e.Component = n.Name
			err = e
		}
	}()
	in := make(map[string]*ml.Node, len(n.Inputs))
	for _, x := range n.Inputs {
		in[x.Name] = ml.Parameter(g, x.Name, x.Shape)
	}
	out := n.Build(c, in)
	if len(out) == 0 {
		return &Error{Component: n.Name, Err: fmt.Errorf("the function Build returned no outputs; a program needs at least one")}
	}
	if n.Outputs != nil && len(out) != len(n.Outputs) {
		return &Error{Component: n.Name, Err: fmt.Errorf("the function Build returned %d outputs, the network declares %d (%s)",
			len(out), len(n.Outputs), strings.Join(n.Outputs, ", "))}
	}
	if err := g.Compile(out...); err != nil {
		return &Error{Component: n.Name, Err: err}
	}
	return nil
}

// panicf panics with an error, gomlx's way to report a graph that cannot be built.
func panicf(format string, args ...any) { panic(fmt.Errorf(format, args...)) }
