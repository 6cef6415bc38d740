package clip

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/nn"
	"precast/graph/trace"
)

// Aliases are the other spelling of the keys: without the level "text_model.", which transformers 5 dropped.
var Aliases = []checkpoint.Alias{{Pattern: `^text_model\.(.*)$`, Stored: "$1"}}

// NewText returns CLIPTextModel, or with the output text_embeds CLIPTextModelWithProjection, at the sizes of o, computing in dtype. Its one input is input_ids [B, L] int32. o must pass
// Options.Check.
func NewText(cfg Config, o Options, dtype graph.DType) trace.Network {
	if err := o.Check(cfg); err != nil {
		panic("BUG: unchecked options: " + err.Error())
	}
	if o.Name == "" {
		o.Name = "text_encoder"
	}
	outputs := slices.Clone(o.Outputs)
	if len(outputs) == 0 {
		outputs = []string{"last_hidden_state", "pooler_output"}
	}
	class := "CLIPTextModel"
	if slices.Contains(outputs, "text_embeds") {
		class = "CLIPTextModelWithProjection"
	}
	return trace.Network{
		Name:    o.Name,
		Class:   class,
		DType:   dtype,
		Inputs:  []trace.Input{{Name: "input_ids", Shape: shapes.Make(dtypes.Int32, o.Batch, o.Length)}},
		Outputs: outputs,
		Build: func(c *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
			return outputNodes(c, cfg, in["input_ids"], outputs, o)
		},
	}
}

// outputNodes computes the named outputs. Layers past the last one that an output needs are not built.
func outputNodes(c *trace.Ctx, cfg Config, ids *ml.Node, outputs []string, o Options) []*ml.Node {
	results := make([]*ml.Node, len(outputs))
	last := 0
	for _, name := range outputs {
		k, _ := outputLayer(name, cfg)
		switch name {
		case "last_hidden_state":
			k = cfg.Layers - o.ClipSkip
		case "pooler_output", "text_embeds":
			k = cfg.Layers
		}
		last = max(last, k)
	}

	leave := c.Enter("text_model")
	states := []*ml.Node{Embeddings(c, cfg, ids)}
	mask := nn.CausalMask(c.G, ids.Shape().Dim(1))
	for i := range last {
		states = append(states, EncoderLayer(c, fmt.Sprintf("encoder.layers.%d", i), cfg, states[i], mask))
	}

	normed := map[int]*ml.Node{}
	norm := func(k int) *ml.Node {
		if normed[k] == nil {
			normed[k] = nn.LayerNorm(c, "final_layer_norm", states[k], cfg.LayerNormEps, true)
		}
		return normed[k]
	}
	for i, name := range outputs {
		switch k, _ := outputLayer(name, cfg); name {
		case "last_hidden_state":
			results[i] = norm(cfg.Layers - o.ClipSkip)
		case "pooler_output", "text_embeds":
			results[i] = Pooler(cfg, norm(cfg.Layers), ids)
		default:
			results[i] = states[k]
		}
	}
	leave()
	for i, name := range outputs {
		if name == "text_embeds" {
			// The projection lies outside text_model.
			results[i] = nn.Linear(c, "text_projection", results[i], cfg.ProjectionDim, false)
		}
	}
	return results
}

// Embeddings is CLIPTextEmbeddings: ids [B, L] -> token and position embeddings added, [B, L, C].
func Embeddings(c *trace.Ctx, cfg Config, ids *ml.Node) *ml.Node {
	defer c.Enter("embeddings")()
	tokens := nn.Embedding(c, "token_embedding", ids, cfg.VocabSize, cfg.HiddenSize)
	leave := c.Enter("position_embedding")
	positions := c.Weight("weight", cfg.MaxPositions, cfg.HiddenSize)
	leave()
	positions = ml.Slice(positions, ml.AxisRange(0, ids.Shape().Dim(1)), ml.AxisRange())
	return ml.Add(tokens, ml.ExpandAndBroadcast(positions, tokens.Shape().Dimensions, []int{0}))
}

// EncoderLayer is CLIPEncoderLayer: x [B, L, C] -> [B, L, C], pre-norm self-attention under the additive mask and feed-forward, each added to
// the stream.
func EncoderLayer(c *trace.Ctx, name string, cfg Config, x, mask *ml.Node) *ml.Node {
	defer c.Enter(name)()
	x = ml.Add(x, selfAttention(c, cfg, nn.LayerNorm(c, "layer_norm1", x, cfg.LayerNormEps, true), mask))
	return ml.Add(x, mlp(c, cfg, nn.LayerNorm(c, "layer_norm2", x, cfg.LayerNormEps, true)))
}

func selfAttention(c *trace.Ctx, cfg Config, x, mask *ml.Node) *ml.Node {
	defer c.Enter("self_attn")()
	project := func(name string) *ml.Node {
		return nn.SplitHeads(nn.Linear(c, name, x, cfg.HiddenSize, true), cfg.Heads)
	}
	y := nn.Attention(project("q_proj"), project("k_proj"), project("v_proj"), nn.AttentionConfig{Mask: mask})
	return nn.Linear(c, "out_proj", nn.MergeHeads(y), cfg.HiddenSize, true)
}

func mlp(c *trace.Ctx, cfg Config, x *ml.Node) *ml.Node {
	defer c.Enter("mlp")()
	act, ok := nn.ActivationByName(cfg.HiddenAct)
	if !ok {
		panic(fmt.Sprintf("BUG: activation %q passed ParseConfig", cfg.HiddenAct))
	}
	return nn.Linear(c, "fc2", act(nn.Linear(c, "fc1", x, cfg.IntermediateSize, true)), cfg.HiddenSize, true)
}

// legacyEOS is the eos_token_id of configs written before transformers pull request 24773. It is not the id the tokenizer emits.
const legacyEOS = 2

// Pooler takes one position of x [B, L, C] for each sequence of ids [B, L]: that of the first end-of-text token, or, where
// the config has the legacy id 2, that of the largest id, which the end of text has in CLIP's vocabulary -> [B, C].
func Pooler(cfg Config, x, ids *ml.Node) *ml.Node {
	score := ids
	if cfg.EOSTokenID != legacyEOS {
		eos := ml.Scalar(ids.Graph(), ids.DType(), cfg.EOSTokenID)
		score = ml.ConvertDType(ml.Equal(ids, eos), dtypes.Int32)
	}
	// The first of equals is taken, and position 0 where there is none.
	position := ml.InsertAxes(ml.ArgMax(score, 1, dtypes.Int32), -1)
	sequence := ml.Iota(ids.Graph(), position.Shape(), 0)
	return ml.Gather(x, ml.Concatenate([]*ml.Node{sequence, position}, 1))
}
