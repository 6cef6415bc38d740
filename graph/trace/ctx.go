package trace

import (
	"strings"

	"github.com/gomlx/compute/shapes"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph"
)

// Ctx is what a network's code sees while it is traced: the gomlx graph under construction, the current module path, and the
// weights by checkpoint key. It is not safe for concurrent use.
//
// Ctx works over any gomlx backend: over the recorder (see Trace) it builds a graph.Module; over a real backend
// the same code computes (see Evaluate), which is how the networks' own tests run them.
type Ctx struct {
	// G is gomlx's graph under construction.
	G *ml.Graph
	// DType is the dtype that activations are computed in; Weight returns weights in it.
	DType graph.DType

	path    []string // one entry a module entered: the whole path from the root
	weights map[string]*ml.Node
	scoped  func(path string) // told about each change of the module path; nil over a real backend
}

// WeightPrefix marks a gomlx parameter as a weight; what follows it is the checkpoint key.
const WeightPrefix = "weight:"

// NewCtx returns a Ctx over g. The recorder passes scoped to follow the module path; elsewhere it is nil.
func NewCtx(g *ml.Graph, dtype graph.DType, scoped func(path string)) *Ctx {
	return &Ctx{G: g, DType: dtype, weights: map[string]*ml.Node{}, scoped: scoped}
}

// Enter descends into the submodule name ("attn", "transformer_blocks.3") and returns the function that leaves it:
//
//	defer c.Enter("attn")()
//
// Deferred like that, leave also marks a panic that passes through it with the path it happened at: the panic's value becomes an
// *Error.
func (c *Ctx) Enter(name string) (leave func()) {
	depth := len(c.path)
	path := name
	if depth > 0 {
		path = c.path[depth-1] + "." + name
	}
	c.path = append(c.path, path)
	c.tell()
	return func() {
		failure := recover()
		if failure != nil {
			// A submodule that was left without defer is still on the path: it is the one that failed.
			failure = panicked(failure, c.Path())
		}
		c.path = c.path[:depth]
		c.tell()
		if failure != nil {
			panic(failure)
		}
	}
}

func (c *Ctx) tell() {
	if c.scoped != nil {
		c.scoped(c.Path())
	}
}

// Path is the current module path ("transformer_blocks.3.attn").
func (c *Ctx) Path() string {
	if len(c.path) == 0 {
		return ""
	}
	return c.path[len(c.path)-1]
}

// Weight is the parameter under the current path ("weight" in "attn.to_q" is "attn.to_q.weight"), in the compute dtype. The
// dimensions are those of the checkpoint (PyTorch's layout); the loader checks them. Asking twice for one key gives the same node.
func (c *Ctx) Weight(name string, dims ...int) *ml.Node { return c.WeightAs(c.DType, name, dims...) }

// WeightAs is Weight in a dtype of its own, for a model's float32 islands. Asking for one key in two shapes or dtypes panics.
func (c *Ctx) WeightAs(dtype graph.DType, name string, dims ...int) *ml.Node {
	key := name
	if p := c.Path(); p != "" {
		key = p + "." + name
	}
	shape := shapes.Make(dtype, dims...)
	if w := c.weights[key]; w != nil {
		if !w.Shape().Equal(shape) {
			panicf("weight %s: asked for as %s, but an earlier use has it as %s; ask for it once, or convert it", key, shape, w.Shape())
		}
		return w
	}
	if strings.HasPrefix(key, WeightPrefix) {
		panicf("weight %s: the key must not start with %q, which marks weights inside a traced graph", key, WeightPrefix)
	}
	w := ml.Parameter(c.G, WeightPrefix+key, shape)
	c.weights[key] = w
	return w
}
