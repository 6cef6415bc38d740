package nn

import (
	"math"

	ml "github.com/gomlx/gomlx/core/graph"
)

// Activation is an elementwise function that keeps shape and dtype.
type Activation func(x *ml.Node) *ml.Node

// ActivationByName returns the activation that a config calls by this name; ok is false for one that is not known. The names
// are those of ACT2FN in transformers (activations.py) and of get_activation in diffusers (models/activations.py).
func ActivationByName(name string) (act Activation, ok bool) {
	act, ok = activations[name]
	return act, ok
}

// ActivationNames lists what ActivationByName knows, for error messages.
func ActivationNames() []string {
	return []string{"gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu", "swish"}
}

var activations = map[string]Activation{
	"gelu":              GELU,
	"gelu_new":          GELUTanh,
	"gelu_pytorch_tanh": GELUTanh,
	"quick_gelu":        QuickGELU,
	"relu":              ReLU,
	"silu":              SiLU,
	"swish":             SiLU,
}

// wide runs f in float32 where x is half precision and rounds once.
func wide(x *ml.Node, f Activation) *ml.Node { return ml.ConvertDType(f(widen(x)), x.DType()) }

// GELU is the exact Gaussian error linear unit, x/2 (1 + erf(x/sqrt 2)) (https://arxiv.org/abs/1606.08415).
func GELU(x *ml.Node) *ml.Node {
	return wide(x, func(x *ml.Node) *ml.Node {
		return ml.Mul(ml.MulScalar(x, 0.5), ml.AddScalar(ml.Erf(ml.MulScalar(x, math.Sqrt2/2)), 1.0))
	})
}

// GELUTanh is GELU's tanh approximation, x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): "gelu_new", "gelu-approximate".
func GELUTanh(x *ml.Node) *ml.Node {
	return wide(x, func(x *ml.Node) *ml.Node {
		// x + a x^3 as x (1 + a x^2): no power, one multiplication less.
		inner := ml.Mul(x, ml.AddScalar(ml.MulScalar(ml.Mul(x, x), 0.044715*math.Sqrt(2/math.Pi)), math.Sqrt(2/math.Pi)))
		return ml.Mul(ml.MulScalar(x, 0.5), ml.AddScalar(ml.Tanh(inner), 1.0))
	})
}

// QuickGELU is x sigmoid(1.702 x), CLIP's activation.
func QuickGELU(x *ml.Node) *ml.Node {
	return wide(x, func(x *ml.Node) *ml.Node { return ml.Mul(x, ml.Logistic(ml.MulScalar(x, 1.702))) })
}

// SiLU is x sigmoid(x) (https://arxiv.org/abs/1710.05941).
func SiLU(x *ml.Node) *ml.Node {
	return wide(x, func(x *ml.Node) *ml.Node { return ml.Mul(x, ml.Logistic(x)) })
}

// ReLU is max(x, 0).
func ReLU(x *ml.Node) *ml.Node { return ml.MaxScalar(x, 0.0) }
