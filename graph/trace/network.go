package trace

import (
	"github.com/gomlx/compute/shapes"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph"
)

var shapesMake = shapes.Make

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
	Class   string
	DType   graph.DType
	Inputs  []Input
	Outputs []string
	// Build computes the outputs, in the order of Outputs, from the inputs by name. It panics, as gomlx does, on a shape that does not fit.
	Build func(c *Ctx, in map[string]*ml.Node) []*ml.Node
}
