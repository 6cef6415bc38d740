package causallm

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/nn"
	"precast/graph/trace"
)

// Aliases are the other places of the text model's keys. The network asks for those of Qwen3ForCausalLM, "model.layers.0...", which Qwen2.5-VL is
// published with too; Mistral3 is published below "language_model.model.", transformers 5 writes both below "model.language_model.", and a model
// that was saved without its head lacks the first level.
var Aliases = []checkpoint.Alias{
	{Pattern: `^model\.(.+)$`, Stored: "language_model.model.$1"},
	{Pattern: `^model\.(.+)$`, Stored: "model.language_model.$1"},
	{Pattern: `^model\.(.+)$`, Stored: "language_model.$1"},
	{Pattern: `^model\.(.+)$`, Stored: "$1"},
}

// Options are the static sizes and choices of one program.
type Options struct {
	// Name is the component's name, "text_encoder" where it is empty.
	Name   string
	Batch  int
	Length int // tokens, with padding
	// Outputs are the program's results in order: "last_hidden_state" [B, L, C], and "hidden_states/K" with one or more layers K with commas
	// between, "hidden_states/9,18,27": the stream after so many layers (0: the embeddings), one after another along the
	// last axis, [B, L, n C]. After the last layer it has gone through the final norm, as in transformers, and is last_hidden_state. Layers
	// past the last one that an output needs are not built, and their weights not asked for. Empty means last_hidden_state.
	Outputs []string
}

// Check says what in o does not fit cfg.
func (o Options) Check(cfg Config) error {
	if o.Batch < 1 || o.Length < 1 {
		return fmt.Errorf("text encoder: found batch %d and %d tokens, wanted 1 or more of each", o.Batch, o.Length)
	}
	if cfg.Window > 0 && o.Length > cfg.Window {
		return fmt.Errorf("text encoder: found %d tokens, wanted at most sliding_window %d: attention within a window is not supported", o.Length, cfg.Window)
	}
	for _, name := range o.Outputs {
		if _, err := outputLayers(name, cfg); err != nil {
			return err
		}
	}
	return nil
}

// outputLayers returns the layers whose results make the named output.
func outputLayers(name string, cfg Config) ([]int, error) {
	if name == "last_hidden_state" {
		return []int{cfg.Layers}, nil
	}
	list, ok := strings.CutPrefix(name, "hidden_states/")
	var layers []int
	for _, part := range strings.Split(list, ",") {
		k, err := strconv.Atoi(part)
		ok = ok && err == nil && k >= 0 && k <= cfg.Layers && part == strconv.Itoa(k)
		layers = append(layers, k)
	}
	if !ok {
		return nil, fmt.Errorf("text encoder: found output %q, wanted last_hidden_state or hidden_states/K with K from 0 to num_hidden_layers %d, or several with commas between",
			name, cfg.Layers)
	}
	return layers, nil
}

// New returns the text model at the sizes of o, computing in dtype. Its inputs are
//
//	input_ids       [B, L] int32
//	attention_mask  [B, L] int32, 0 at padding, which may be on either side
//
// Positions count padding. A position that sees no token, as left padding does, gets 0 from each attention. o must pass Options.Check.
func New(cfg Config, o Options, dtype graph.DType) trace.Network {
	if err := o.Check(cfg); err != nil {
		panic("BUG: unchecked options: " + err.Error())
	}
	if o.Name == "" {
		o.Name = "text_encoder"
	}
	outputs := slices.Clone(o.Outputs)
	if len(outputs) == 0 {
		outputs = []string{"last_hidden_state"}
	}
	ids := shapes.Make(dtypes.Int32, o.Batch, o.Length)
	return trace.Network{
		Name:    o.Name,
		Class:   cfg.Class,
		DType:   dtype,
		Inputs:  []trace.Input{{Name: "input_ids", Shape: ids}, {Name: "attention_mask", Shape: ids}},
		Outputs: outputs,
		Build: func(c *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
			return outputNodes(c, cfg, outputs, in["input_ids"], in["attention_mask"])
		},
	}
}

func outputNodes(c *trace.Ctx, cfg Config, outputs []string, ids, attention *ml.Node) []*ml.Node {
	defer c.Enter("model")()
	needed := make([][]int, len(outputs))
	last := 0
	for i, name := range outputs {
		needed[i], _ = outputLayers(name, cfg)
		last = max(last, slices.Max(needed[i]))
	}

	rotary := Rotary(c.G, cfg, ids.Shape().Dim(1))
	keep := nn.CausalKeep(attention)
	states := []*ml.Node{nn.Embedding(c, "embed_tokens", ids, cfg.VocabSize, cfg.HiddenSize)}
	for i := range last {
		states = append(states, Layer(c, fmt.Sprintf("layers.%d", i), cfg, states[i], keep, rotary))
	}
	if last == cfg.Layers {
		states[last] = nn.RMSNorm(c, "norm", states[last], cfg.Eps)
	}

	results := make([]*ml.Node, len(outputs))
	for i, layers := range needed {
		var parts []*ml.Node
		for _, k := range layers {
			parts = append(parts, states[k])
		}
		results[i] = ml.Concatenate(parts, 2)
	}
	return results
}

// Layer is a decoder layer (Qwen3DecoderLayer and its kin): x [B, L, C] and the boolean mask [B, 1, L, L] -> [B, L, C].
func Layer(c *trace.Ctx, name string, cfg Config, x, keep *ml.Node, rotary *nn.Rotary) *ml.Node {
	defer c.Enter(name)()
	x = ml.Add(x, selfAttention(c, cfg, nn.RMSNorm(c, "input_layernorm", x, cfg.Eps), keep, rotary))
	return ml.Add(x, mlp(c, cfg, nn.RMSNorm(c, "post_attention_layernorm", x, cfg.Eps)))
}

func selfAttention(c *trace.Ctx, cfg Config, x, keep *ml.Node, rotary *nn.Rotary) *ml.Node {
	defer c.Enter("self_attn")()
	project := func(name string, heads int) *ml.Node {
		return nn.SplitHeads(nn.Linear(c, name, x, heads*cfg.HeadDim, cfg.QKVBias), heads)
	}
	q, k, v := project("q_proj", cfg.Heads), project("k_proj", cfg.KVHeads), project("v_proj", cfg.KVHeads)
	if cfg.QKNorm {
		q, k = nn.RMSNorm(c, "q_norm", q, cfg.Eps), nn.RMSNorm(c, "k_norm", k, cfg.Eps)
	}
	y := nn.Attention(rotary.Apply(q), rotary.Apply(k), v, nn.AttentionConfig{Mask: keep})
	return nn.Linear(c, "o_proj", nn.MergeHeads(y), cfg.HiddenSize, cfg.OutBias)
}

func mlp(c *trace.Ctx, cfg Config, x *ml.Node) *ml.Node {
	defer c.Enter("mlp")()
	act, ok := nn.ActivationByName(cfg.HiddenAct)
	if !ok {
		panic(fmt.Sprintf("BUG: activation %q passed ParseConfig", cfg.HiddenAct))
	}
	return nn.GatedMLP(c, "gate_proj", "up_proj", "down_proj", x, cfg.IntermediateSize, act)
}

// Rotary prepares the rotary positions 0 to n-1. The tables are computed in the graph from one constant of HeadDim/2 frequencies, in float32 as the
// reference's are (compute_default_rope_parameters; the angles of some hundred positions have their last digits from it).
func Rotary(g *ml.Graph, cfg Config, n int) *nn.Rotary {
	frequencies := make([]float32, cfg.HeadDim/2)
	for i := range frequencies {
		frequencies[i] = 1 / float32(math.Pow(cfg.RoPETheta, float64(float32(2*i)/float32(cfg.HeadDim))))
	}
	table := shapes.Make(dtypes.Float32, n, len(frequencies))
	angles := ml.Mul(ml.Iota(g, table, 0), ml.ExpandAndBroadcast(ml.Const(g, frequencies), table.Dimensions, []int{0}))
	return nn.NewRotaryHalves(ml.Cos(angles), ml.Sin(angles))
}
