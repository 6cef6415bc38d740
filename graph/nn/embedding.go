package nn

import (
	"fmt"
	"math"

	"github.com/gomlx/compute/dtypes"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph/trace"
)

// Embedding is torch.nn.Embedding: ids [...] of an integer dtype, table weight [rows, dim] -> [..., dim]. An id past the table is
// clamped to its last row, as XLA's gather does; callers check ids before they run.
func Embedding(c *trace.Ctx, name string, ids *ml.Node, rows, dim int) *ml.Node {
	defer enter(c, name)()
	return ml.Gather(c.Weight("weight", rows, dim), ml.InsertAxes(ids, -1))
}

// TimestepsConfig has the options of Timesteps.
type TimestepsConfig struct {
	// Channels is the width of the result.
	Channels int
	// FlipSinToCos puts the cosines first.
	FlipSinToCos bool
	// DownscaleFreqShift is taken from the number of frequencies where the exponent is divided by it.
	DownscaleFreqShift float64
	// MaxPeriod is the longest period, 10000 where it is 0.
	MaxPeriod float64
	// Scale multiplies the product of timestep and frequency, 1 where it is 0.
	Scale float64
}

// Timesteps is the sinusoidal embedding of diffusers' Timesteps (models/embeddings.py, get_timestep_embedding): t [N] -> [N, Channels] in
// float32 whatever the compute dtype; the layer after it converts. The frequencies are a constant of Channels/2 numbers.
func Timesteps(t *ml.Node, cfg TimestepsConfig) *ml.Node {
	if t.Rank() != 1 {
		panic(fmt.Sprintf("timesteps: found shape %s, wanted one axis", t.Shape()))
	}
	half := cfg.Channels / 2
	arg := ml.Mul(
		ml.InsertAxes(ml.ConvertDType(t, dtypes.Float32), -1),
		ml.InsertAxes(ml.Const(t.Graph(), timestepFrequencies(half, cfg.DownscaleFreqShift, cfg.MaxPeriod)), 0))
	if cfg.Scale != 0 {
		arg = ml.MulScalar(arg, cfg.Scale)
	}
	parts := []*ml.Node{ml.Sin(arg), ml.Cos(arg)}
	if cfg.FlipSinToCos {
		parts[0], parts[1] = parts[1], parts[0]
	}
	if cfg.Channels%2 == 1 {
		parts = append(parts, ml.Zeros(t.Graph(), parts[0].Shape().Clone()))
		parts[2] = ml.Slice(parts[2], ml.AxisRange(), ml.AxisRange(0, 1))
	}
	return ml.Concatenate(parts, 1)
}

// timestepFrequencies are exp(-k log(maxPeriod) / (half - shift)) for k < half. Each operation is rounded to float32 as the
// reference's is: at t = 1000 a last digit of a frequency is a visible part of the phase.
func timestepFrequencies(half int, shift, maxPeriod float64) []float32 {
	if maxPeriod == 0 {
		maxPeriod = 10000
	}
	step := float32(-math.Log(maxPeriod))
	out := make([]float32, half)
	for k := range out {
		exponent := step * float32(k) / float32(float64(half)-shift)
		out[k] = float32(math.Exp(float64(exponent)))
	}
	return out
}

// TimestepEmbedding is the two-layer perceptron of the same name in diffusers (models/embeddings.py): x [N, in] -> linear_1 -> SiLU ->
// linear_2 -> [N, out], both layers out wide, with biases or without (sample_proj_bias). PixArtAlphaTextProjection with act_fn "silu" is the
// same. x is converted to the compute dtype.
func TimestepEmbedding(c *trace.Ctx, name string, x *ml.Node, out int, bias bool) *ml.Node {
	defer enter(c, name)()
	h := Linear(c, "linear_1", x, out, bias)
	return Linear(c, "linear_2", SiLU(h), out, bias)
}
