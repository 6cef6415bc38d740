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
	// Name is the component's name, "transformer" where it is empty.
	Name        string
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
	if o.Name == "" {
		o.Name = "transformer"
	}
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
		Name:    o.Name,
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
	temb := timeTextEmbed(c, cfg, ml.MulScalar(in["timestep"], 1000), guidance, in["pooled_projections"])
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
	_, image = splitTokens(joint, text.Shape().Dim(1))

	image = nn.AdaLayerNormContinuous(c, "norm_out", image, temb, 1e-6)
	return nn.Linear(c, "proj_out", image, cfg.PatchSize*cfg.PatchSize*cfg.OutChannels, true)
}

// timeTextEmbed is CombinedTimestepTextProjEmbeddings, or with guidance CombinedTimestepGuidanceTextProjEmbeddings (diffusers,
// models/embeddings.py): timestep and guidance [B] on the scale of 0 to 1000, pooled [B, P] -> [B, C].
func timeTextEmbed(c *trace.Ctx, cfg Config, timestep, guidance, pooled *ml.Node) *ml.Node {
	defer c.Enter("time_text_embed")()
	sinusoids := nn.TimestepsConfig{Channels: 256, FlipSinToCos: true}
	emb := nn.TimestepEmbedding(c, "timestep_embedder", nn.Timesteps(timestep, sinusoids), cfg.Dim())
	if guidance != nil {
		emb = ml.Add(emb, nn.TimestepEmbedding(c, "guidance_embedder", nn.Timesteps(guidance, sinusoids), cfg.Dim()))
	}
	return ml.Add(emb, nn.TimestepEmbedding(c, "text_embedder", pooled, cfg.Dim()))
}

// block is FluxTransformerBlock: image [B, I, C] and text [B, T, C] attend to each other in one attention and have modulation
// and feed-forward of their own; temb [B, C].
func block(c *trace.Ctx, name string, cfg Config, image, text, temb *ml.Node, rotary *nn.Rotary) (newText, newImage *ml.Node) {
	defer c.Enter(name)()
	x, gateMSA, shiftMLP, scaleMLP, gateMLP := nn.AdaLayerNormZero(c, "norm1", image, temb)
	y, textGateMSA, textShiftMLP, textScaleMLP, textGateMLP := nn.AdaLayerNormZero(c, "norm1_context", text, temb)
	imageOut, textOut := jointAttention(c, cfg, x, y, rotary)

	image = ml.Add(image, nn.Gate(imageOut, gateMSA))
	x = nn.Modulate(nn.LayerNorm(c, "norm2", image, 1e-6, false), scaleMLP, shiftMLP)
	image = ml.Add(image, nn.Gate(nn.FeedForward(c, "ff", x, 4*cfg.Dim(), "gelu-approximate"), gateMLP))

	text = ml.Add(text, nn.Gate(textOut, textGateMSA))
	y = nn.Modulate(nn.LayerNorm(c, "norm2_context", text, 1e-6, false), textScaleMLP, textShiftMLP)
	text = ml.Add(text, nn.Gate(nn.FeedForward(c, "ff_context", y, 4*cfg.Dim(), "gelu-approximate"), textGateMLP))
	return finite(text), image
}

// jointAttention is FluxAttention of a double block: image [B, I, C] and text [B, T, C] -> the same, each position attending to all of
// both. The text comes first in the joint sequence.
func jointAttention(c *trace.Ctx, cfg Config, image, text *ml.Node, rotary *nn.Rotary) (imageOut, textOut *ml.Node) {
	defer c.Enter("attn")()
	join := func(textName, imageName string) *ml.Node {
		return ml.Concatenate([]*ml.Node{heads(c, cfg, textName, text), heads(c, cfg, imageName, image)}, 1)
	}
	joinNormed := func(textName, textNorm, imageName, imageNorm string) *ml.Node {
		return rotary.Apply(ml.Concatenate([]*ml.Node{
			nn.RMSNorm(c, textNorm, heads(c, cfg, textName, text), 1e-6),
			nn.RMSNorm(c, imageNorm, heads(c, cfg, imageName, image), 1e-6),
		}, 1))
	}
	q := joinNormed("add_q_proj", "norm_added_q", "to_q", "norm_q")
	k := joinNormed("add_k_proj", "norm_added_k", "to_k", "norm_k")
	v := join("add_v_proj", "to_v")
	out := nn.MergeHeads(nn.Attention(q, k, v, nn.AttentionConfig{}))
	textOut, imageOut = splitTokens(out, text.Shape().Dim(1))
	return nn.Linear(c, "to_out.0", imageOut, cfg.Dim(), true), nn.Linear(c, "to_add_out", textOut, cfg.Dim(), true)
}

// singleBlock is FluxSingleTransformerBlock over text and image joined: x [B, T+I, C] -> the same. Attention and feed-forward read one
// normalised input side by side and share the projection back.
func singleBlock(c *trace.Ctx, name string, cfg Config, x, temb *ml.Node, rotary *nn.Rotary) *ml.Node {
	defer c.Enter(name)()
	h, gate := nn.AdaLayerNormZeroSingle(c, "norm", x, temb)
	mlp := nn.GELUTanh(nn.Linear(c, "proj_mlp", h, 4*cfg.Dim(), true))
	both := ml.Concatenate([]*ml.Node{selfAttention(c, cfg, h, rotary), mlp}, 2)
	return finite(ml.Add(x, nn.Gate(nn.Linear(c, "proj_out", both, cfg.Dim(), true), gate)))
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

// splitTokens cuts x [B, T+I, C] into [B, T, C] and [B, I, C].
func splitTokens(x *ml.Node, text int) (textTokens, imageTokens *ml.Node) {
	return ml.Slice(x, ml.AxisRange(), ml.AxisRangeFromStart(text)), ml.Slice(x, ml.AxisRange(), ml.AxisRangeToEnd(text))
}

// finite clamps a float16 stream to the range of the dtype; other dtypes pass.
func finite(x *ml.Node) *ml.Node {
	if x.DType() != dtypes.Float16 {
		return x
	}
	return ml.ClipScalar(x, -65504, 65504)
}
