package t5

import (
	"fmt"
	"math"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/nn"
	"precast/graph/trace"
)

// Aliases are the other spelling of the token embedding's key: published files have the first, the second or both, with equal data.
var Aliases = []checkpoint.Alias{{Pattern: `^shared\.weight$`, Stored: "encoder.embed_tokens.weight"}}

// biasTable is the module, below encoder, that has a block's table of the position bias.
func biasTable(block int) string {
	return fmt.Sprintf("block.%d.layer.0.SelfAttention.relative_attention_bias", block)
}

// Options are the static sizes and choices of one program of the encoder.
type Options struct {
	// Name is the component's name, "text_encoder_2" where it is empty.
	Name   string
	Batch  int
	Length int // tokens
	// Mask adds the input attention_mask. Without it padding is attended to.
	Mask bool
}

// New returns T5EncoderModel, or UMT5EncoderModel where cfg is one's. Its inputs are
//
//	input_ids       [B, L] int32
//	attention_mask  [B, L] int32, 0 at padding; only with Options.Mask
//
// and its output is last_hidden_state [B, L, d_model], also at padding. FLUX.1 and Stable Diffusion 3 give no mask, Wan does.
func New(cfg Config, o Options, dtype graph.DType) trace.Network {
	if o.Name == "" {
		o.Name = "text_encoder_2"
	}
	ids := shapes.Make(dtypes.Int32, o.Batch, o.Length)
	n := trace.Network{
		Name:    o.Name,
		Class:   "T5EncoderModel",
		DType:   dtype,
		Inputs:  []trace.Input{{Name: "input_ids", Shape: ids}},
		Outputs: []string{"last_hidden_state"},
		Build: func(c *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
			return []*ml.Node{encoder(c, cfg, o, in["input_ids"], in["attention_mask"])}
		},
	}
	if cfg.BiasEach {
		n.Class = "UMT5EncoderModel"
	}
	if o.Mask {
		n.Inputs = append(n.Inputs, trace.Input{Name: "attention_mask", Shape: ids})
	}
	return n
}

func encoder(c *trace.Ctx, cfg Config, o Options, ids, attention *ml.Node) *ml.Node {
	x := nn.Embedding(c, "shared", ids, cfg.VocabSize, cfg.Model)
	if x.DType() == dtypes.Float16 {
		// Feed-forward blocks give float32 then (see feedForward), and so the stream is float32 from the first on.
		x = ml.ConvertDType(x, dtypes.Float32)
	}
	defer c.Enter("encoder")()
	var keep, bias *ml.Node
	if attention != nil {
		keep = nn.KeepKeys(attention)
	}
	for i := range cfg.Layers {
		if i == 0 || cfg.BiasEach {
			bias = maskBias(PositionBias(c, biasTable(i), cfg, o.Length), keep)
		}
		x = Block(c, fmt.Sprintf("block.%d", i), cfg, x, bias)
	}
	return nn.RMSNorm(c, "final_layer_norm", x, cfg.Eps)
}

// maskBias puts the lowest number in place of the bias [1, H, L, L] at keys that are not in keep [B, 1, 1, L] -> [B, H, L, L]. Where keep is
// nil the bias stays as it is.
func maskBias(bias, keep *ml.Node) *ml.Node {
	if keep == nil {
		return bias
	}
	dims := bias.Shape().Clone().Dimensions
	dims[0] = keep.Shape().Dim(0)
	bias = ml.ConvertDType(bias, dtypes.Float32)
	return ml.Where(ml.BroadcastToDims(keep, dims...), ml.BroadcastToDims(bias, dims...),
		ml.BroadcastToDims(ml.Scalar(bias.Graph(), dtypes.Float32, -math.MaxFloat32), dims...))
}

// Block is T5Block or UMT5Block of an encoder: x [B, L, C] and the position bias [1 or B, H, L, L], which holds the mask too -> [B, L, C]. x is
// in the compute dtype, or float32 where that is float16.
func Block(c *trace.Ctx, name string, cfg Config, x, bias *ml.Node) *ml.Node {
	defer c.Enter(name)()
	x = addTo(x, selfAttention(c, "layer.0", cfg, x, bias))
	return addTo(x, feedForward(c, "layer.1", cfg, x))
}

// addTo adds a branch to the stream, in the stream's dtype.
func addTo(stream, branch *ml.Node) *ml.Node {
	return ml.Add(stream, ml.ConvertDType(branch, stream.DType()))
}

func selfAttention(c *trace.Ctx, name string, cfg Config, x, bias *ml.Node) *ml.Node {
	defer c.Enter(name)()
	x = nn.RMSNorm(c, "layer_norm", x, cfg.Eps)
	defer c.Enter("SelfAttention")()
	project := func(name string) *ml.Node {
		return nn.SplitHeads(nn.Linear(c, name, x, cfg.Heads*cfg.KV, false), cfg.Heads)
	}
	// The scores are not scaled: T5 folded the factor into its initialisation.
	y := nn.Attention(project("q"), project("k"), project("v"), nn.AttentionConfig{Scale: 1, Mask: bias})
	return nn.Linear(c, "o", nn.MergeHeads(y), cfg.Model, false)
}

func feedForward(c *trace.Ctx, name string, cfg Config, x *ml.Node) *ml.Node {
	defer c.Enter(name)()
	x = nn.RMSNorm(c, "layer_norm", x, cfg.Eps)
	defer c.Enter("DenseReluDense")()
	act, ok := nn.ActivationByName(cfg.Act)
	if !ok {
		panic(fmt.Sprintf("BUG: activation %q passed ParseConfig", cfg.Act))
	}
	var h *ml.Node
	if cfg.Gated {
		h = ml.Mul(act(nn.Linear(c, "wi_0", x, cfg.FF, false)), nn.Linear(c, "wi_1", x, cfg.FF, false))
	} else {
		h = act(nn.Linear(c, "wi", x, cfg.FF, false))
	}
	// T5's values leave the range of float16 here, so transformers keeps this weight in float32 then, and only then
	// (_keep_in_fp32_modules, modeling_t5.py and modeling_utils.py).
	wide := c.DType
	if wide == dtypes.Float16 {
		wide = dtypes.Float32
	}
	return nn.LinearAs(c, wide, "wo", h, cfg.Model, false)
}

// PositionBias is the additive attention bias [1, H, n, n] of n positions from the table weight [buckets, H].
//
// It depends on key minus query position only. The buckets of the 2n-1 differences are a small constant; their rows are then
// spread over the matrix.
func PositionBias(c *trace.Ctx, name string, cfg Config, n int) *ml.Node {
	defer c.Enter(name)()
	buckets := ml.InsertAxes(ml.Const(c.G, relativeBuckets(n, cfg.Buckets, cfg.MaxDistance)), -1)
	rows := ml.Gather(c.Weight("weight", cfg.Buckets, cfg.Heads), buckets) // [2n-1, H]
	index := shapes.Make(dtypes.Int32, n, n, 1)
	difference := ml.AddScalar(ml.Sub(ml.Iota(c.G, index, 1), ml.Iota(c.G, index, 0)), int32(n-1))
	bias := ml.TransposeAllAxes(ml.Gather(rows, difference), 2, 0, 1)
	return ml.InsertAxes(bias, 0)
}

// relativeBuckets returns the bucket of each difference from -(n-1) to n-1: half of the buckets for each sign, of these half for single
// distances and the rest growing logarithmically up to maxDistance. Rounding follows _relative_position_bucket in float32, since
// the bounds of some buckets fall on integers.
func relativeBuckets(n, buckets, maxDistance int) []int32 {
	half := buckets / 2
	exact := half / 2
	out := make([]int32, 2*n-1)
	for i := range out {
		d := i - (n - 1)
		b := 0
		if d > 0 {
			b = half
		} else {
			d = -d
		}
		if d < exact {
			b += d
		} else {
			ratio := float32(math.Log(float64(float32(d) / float32(exact))))
			ratio = ratio / float32(math.Log(float64(maxDistance)/float64(exact))) * float32(half-exact)
			b += min(exact+int(ratio), half-1)
		}
		out[i] = int32(b)
	}
	return out
}
