package nn

import (
	"fmt"

	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph/trace"
)

// FeedForward is diffusers' FeedForward (models/attention.py): x [..., n] -> net.0 -> net.2 -> [..., n], inner wide between. kind is
// activation_fn: "gelu", "gelu-approximate", or the gated "geglu" and "swiglu", whose projection is 2 inner wide with the gate in its second half.
func FeedForward(c *trace.Ctx, name string, x *ml.Node, inner int, kind string) *ml.Node {
	defer enter(c, name)()
	var h *ml.Node
	switch kind {
	case "gelu":
		h = GELU(Linear(c, "net.0.proj", x, inner, true))
	case "gelu-approximate":
		h = GELUTanh(Linear(c, "net.0.proj", x, inner, true))
	case "geglu":
		h = Gated(Linear(c, "net.0.proj", x, 2*inner, true), GELU)
	case "swiglu":
		h = Gated(Linear(c, "net.0.proj", x, 2*inner, true), SiLU)
	default:
		panic(fmt.Sprintf("BUG: feed-forward of kind %q", kind))
	}
	return Linear(c, "net.2", h, x.Shape().Dim(-1), true)
}

// GatedMLP is the feed-forward block of language models: down(act(gate(x)) * up(x)), three linear layers of these names without biases, x [..., n] ->
// [..., n] with inner wide between (https://arxiv.org/abs/2002.05202).
func GatedMLP(c *trace.Ctx, gate, up, down string, x *ml.Node, inner int, act Activation) *ml.Node {
	h := ml.Mul(act(Linear(c, gate, x, inner, false)), Linear(c, up, x, inner, false))
	return Linear(c, down, h, x.Shape().Dim(-1), false)
}

// Gated is a gated linear unit (https://arxiv.org/abs/2002.05202): x [..., 2n] -> x[..., :n] * act(x[..., n:]).
func Gated(x *ml.Node, act Activation) *ml.Node {
	h := ml.Split(x, -1, 2)
	return ml.Mul(h[0], act(h[1]))
}
