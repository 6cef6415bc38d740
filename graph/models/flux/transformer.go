package flux

import (
	"fmt"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph"
	"precast/graph/nn"
	"precast/graph/trace"
)

// Options are the static sizes of one program of the transformer.
type Options struct {
	Batch       int
	TextLength  int // tokens of encoder_hidden_states
	ImageLength int // tokens of hidden_states, one for each 2x2 patch of the latents
}

// New returns FluxTransformer2DModel at the sizes of o, computing in dtype. Its inputs are those of the forward method,
// with the rotary tables of RoPE in place of the ids they follow from:
//
//	hidden_states          [B, image, in_channels] dtype
//	encoder_hidden_states  [B, text, joint_attention_dim] dtype
//	pooled_projections     [B, pooled_projection_dim] dtype
//	timestep               [B] float32, from 0 to 1 (it is multiplied by 1000 here)
//	guidance               [B] float32, the guidance scale (likewise); only where the config has guidance_embeds
//	rotary_cos, rotary_sin [text + image, head size] float32
//
// The output is sample [B, image, patch_size^2 out_channels].
func New(cfg Config, o Options, dtype graph.DType) trace.Network {
	tokens := o.TextLength + o.ImageLength
	inputs := []trace.Input{
		{Name: "hidden_states", Shape: shapes.Make(dtype, o.Batch, o.ImageLength, cfg.InChannels)},
		{Name: "encoder_hidden_states", Shape: shapes.Make(dtype, o.Batch, o.TextLength, cfg.JointDim)},
		{Name: "pooled_projections", Shape: shapes.Make(dtype, o.Batch, cfg.PooledDim)},
		{Name: "timestep", Shape: shapes.Make(dtypes.Float32, o.Batch)},
	}
	if cfg.GuidanceEmbeds {
		inputs = append(inputs, trace.Input{Name: "guidance", Shape: shapes.Make(dtypes.Float32, o.Batch)})
	}
	inputs = append(inputs,
		trace.Input{Name: "rotary_cos", Shape: shapes.Make(dtypes.Float32, tokens, cfg.HeadDim)},
		trace.Input{Name: "rotary_sin", Shape: shapes.Make(dtypes.Float32, tokens, cfg.HeadDim)})
	return trace.Network{
		Name:    "transformer",
		Class:   "FluxTransformer2DModel",
		DType:   dtype,
		Inputs:  inputs,
		Outputs: []string{"sample"},
		Build: func(c *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
			return []*ml.Node{transformer(c, cfg, in)}
		},
	}
}

func transformer(c *trace.Ctx, cfg Config, in map[string]*ml.Node) *ml.Node {
	image := nn.Linear(c, "x_embedder", in["hidden_states"], cfg.Dim(), true)
	var guidance *ml.Node
	if cfg.GuidanceEmbeds {
		guidance = ml.MulScalar(in["guidance"], 1000)
	}
	temb := nn.TimeTextEmbed(c, "time_text_embed", ml.MulScalar(in["timestep"], 1000), guidance, in["pooled_projections"], cfg.Dim())
	text := nn.Linear(c, "context_embedder", in["encoder_hidden_states"], cfg.Dim(), true)
	rotary := nn.NewRotary(in["rotary_cos"], in["rotary_sin"])

	for i := range cfg.Layers {
		text, image = block(c, fmt.Sprintf("transformer_blocks.%d", i), cfg, image, text, temb, rotary)
	}
	// The single blocks work on text and image together: the two are joined once, text first.
	joint := ml.Concatenate([]*ml.Node{text, image}, 1)
	for i := range cfg.SingleLayers {
		joint = singleBlock(c, fmt.Sprintf("single_transformer_blocks.%d", i), cfg, joint, temb, rotary)
	}
	_, image = nn.SplitTokens(joint, text.Shape().Dim(1))

	image = nn.AdaLayerNormContinuous(c, "norm_out", image, temb, 1e-6, true)
	return nn.Linear(c, "proj_out", image, cfg.PatchSize*cfg.PatchSize*cfg.OutChannels, true)
}

// block is FluxTransformerBlock: image [B, I, C] and text [B, T, C] as in nn.JointBlock.
func block(c *trace.Ctx, name string, cfg Config, image, text, temb *ml.Node, rotary *nn.Rotary) (newText, newImage *ml.Node) {
	text, image = nn.JointBlock(c, name, image, text, temb, nn.JointBlockConfig{JointAttentionConfig: cfg.joint(rotary)})
	return nn.ClipFloat16(text), image
}

func (c Config) joint(rotary *nn.Rotary) nn.JointAttentionConfig {
	return nn.JointAttentionConfig{Heads: c.Heads, Bias: true, Eps: 1e-6, Rotary: rotary}
}

// singleBlock is FluxSingleTransformerBlock over text and image joined: x [B, T+I, C] -> the same. Attention and feed-forward read one
// normalised input side by side and share the projection back.
func singleBlock(c *trace.Ctx, name string, cfg Config, x, temb *ml.Node, rotary *nn.Rotary) *ml.Node {
	defer c.Enter(name)()
	h, gate := nn.AdaLayerNormZeroSingle(c, "norm", x, temb)
	mlp := nn.GELUTanh(nn.Linear(c, "proj_mlp", h, 4*cfg.Dim(), true))
	both := ml.Concatenate([]*ml.Node{selfAttention(c, cfg, h, rotary), mlp}, 2)
	return nn.ClipFloat16(ml.Add(x, nn.Gate(nn.Linear(c, "proj_out", both, cfg.Dim(), true), gate)))
}

// selfAttention is FluxAttention of a single block, without an output projection: x [B, L, C] -> [B, L, C].
func selfAttention(c *trace.Ctx, cfg Config, x *ml.Node, rotary *nn.Rotary) *ml.Node {
	defer c.Enter("attn")()
	q := rotary.Apply(nn.RMSNorm(c, "norm_q", heads(c, cfg, "to_q", x), 1e-6))
	k := rotary.Apply(nn.RMSNorm(c, "norm_k", heads(c, cfg, "to_k", x), 1e-6))
	return nn.MergeHeads(nn.Attention(q, k, heads(c, cfg, "to_v", x), nn.AttentionConfig{}))
}

// heads projects x [B, L, C] to [B, L, H, D].
func heads(c *trace.Ctx, cfg Config, name string, x *ml.Node) *ml.Node {
	return nn.SplitHeads(nn.Linear(c, name, x, cfg.Dim(), true), cfg.Heads)
}
