package flux2

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

// New returns Flux2Transformer2DModel at the sizes of o, computing in dtype. Its inputs are those of the forward method,
// with the rotary tables of RoPE in place of the ids they follow from:
//
//	hidden_states          [B, image, in_channels] dtype
//	encoder_hidden_states  [B, text, joint_attention_dim] dtype
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
		Class:   "Flux2Transformer2DModel",
		DType:   dtype,
		Inputs:  inputs,
		Outputs: []string{"sample"},
		Build: func(c *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
			return []*ml.Node{transformer(c, cfg, in)}
		},
	}
}

func transformer(c *trace.Ctx, cfg Config, in map[string]*ml.Node) *ml.Node {
	var guidance *ml.Node
	if cfg.GuidanceEmbeds {
		guidance = ml.MulScalar(in["guidance"], 1000)
	}
	temb := timeGuidanceEmbed(c, cfg, ml.MulScalar(in["timestep"], 1000), guidance)
	// All blocks of a kind share their modulation.
	imageMod := modulation(c, "double_stream_modulation_img", temb, 2)
	textMod := modulation(c, "double_stream_modulation_txt", temb, 2)
	jointMod := modulation(c, "single_stream_modulation", temb, 1)

	image := nn.Linear(c, "x_embedder", in["hidden_states"], cfg.Dim(), false)
	text := nn.Linear(c, "context_embedder", in["encoder_hidden_states"], cfg.Dim(), false)
	rotary := nn.NewRotary(in["rotary_cos"], in["rotary_sin"])

	for i := range cfg.Layers {
		text, image = block(c, fmt.Sprintf("transformer_blocks.%d", i), cfg, image, text, imageMod, textMod, rotary)
	}
	// The single blocks work on text and image together: the two are joined once, text first.
	joint := ml.Concatenate([]*ml.Node{text, image}, 1)
	for i := range cfg.SingleLayers {
		joint = singleBlock(c, fmt.Sprintf("single_transformer_blocks.%d", i), cfg, joint, jointMod, rotary)
	}
	_, image = nn.SplitTokens(joint, text.Shape().Dim(1))

	image = nn.AdaLayerNormContinuous(c, "norm_out", image, temb, cfg.Eps, false)
	return nn.Linear(c, "proj_out", image, cfg.PatchSize*cfg.PatchSize*cfg.OutChannels, false)
}

// timeGuidanceEmbed is Flux2TimestepGuidanceEmbeddings: timestep and guidance [B] on the scale of 0 to 1000, guidance nil where the model has none -> [B, C].
func timeGuidanceEmbed(c *trace.Ctx, cfg Config, timestep, guidance *ml.Node) *ml.Node {
	defer c.Enter("time_guidance_embed")()
	sinusoids := nn.TimestepsConfig{Channels: cfg.TimeChannels, FlipSinToCos: true}
	emb := nn.TimestepEmbedding(c, "timestep_embedder", nn.Timesteps(timestep, sinusoids), cfg.Dim(), false)
	if guidance != nil {
		emb = ml.Add(emb, nn.TimestepEmbedding(c, "guidance_embedder", nn.Timesteps(guidance, sinusoids), cfg.Dim(), false))
	}
	return emb
}

// modulate conditions one branch of a block: its input is scaled and shifted, its result gated; each [B, C].
type modulate struct{ shift, scale, gate *ml.Node }

// modulation is Flux2Modulation: temb [B, C] -> the modulation of as many branches.
func modulation(c *trace.Ctx, name string, temb *ml.Node, branches int) []modulate {
	return split(modulationLinear(c, name, temb, branches), branches)
}

// modulationLinear is Flux2Modulation's forward: temb [B, C] -> [B, 3 branches C].
func modulationLinear(c *trace.Ctx, name string, temb *ml.Node, branches int) *ml.Node {
	defer c.Enter(name)()
	return nn.Linear(c, "linear", nn.SiLU(temb), 3*branches*temb.Shape().Dim(1), false)
}

// split is Flux2Modulation.split.
func split(mod *ml.Node, branches int) []modulate {
	p := ml.Split(mod, 1, 3*branches)
	out := make([]modulate, branches)
	for i := range out {
		out[i] = modulate{shift: p[3*i], scale: p[3*i+1], gate: p[3*i+2]}
	}
	return out
}

// block is Flux2TransformerBlock: image [B, I, C] and text [B, T, C] attend to each other in one attention and have feed-forward
// and modulation (of attention and feed-forward) of their own.
func block(c *trace.Ctx, name string, cfg Config, image, text *ml.Node, imageMod, textMod []modulate, rotary *nn.Rotary) (newText, newImage *ml.Node) {
	defer c.Enter(name)()
	norm := func(name string, x *ml.Node, m modulate) *ml.Node {
		return nn.Modulate(nn.LayerNorm(c, name, x, cfg.Eps, false), m.scale, m.shift)
	}
	imageOut, textOut := nn.JointAttention(c, "attn", norm("norm1", image, imageMod[0]), norm("norm1_context", text, textMod[0]), cfg.attention(rotary))

	image = ml.Add(image, nn.Gate(imageOut, imageMod[0].gate))
	image = ml.Add(image, nn.Gate(feedForward(c, "ff", cfg, norm("norm2", image, imageMod[1])), imageMod[1].gate))

	text = ml.Add(text, nn.Gate(textOut, textMod[0].gate))
	text = ml.Add(text, nn.Gate(feedForward(c, "ff_context", cfg, norm("norm2_context", text, textMod[1])), textMod[1].gate))
	return nn.ClipFloat16(text), image
}

// attention says that of Flux2Attention: no projection has a bias.
func (c Config) attention(rotary *nn.Rotary) nn.JointAttentionConfig {
	return nn.JointAttentionConfig{Heads: c.Heads, Eps: c.Eps, Rotary: rotary}
}

// feedForward is Flux2FeedForward: x [B, L, C] -> the same.
func feedForward(c *trace.Ctx, name string, cfg Config, x *ml.Node) *ml.Node {
	defer c.Enter(name)()
	h := swiGLU(nn.Linear(c, "linear_in", x, 2*cfg.InnerDim(), false))
	return nn.Linear(c, "linear_out", h, cfg.Dim(), false)
}

// swiGLU is Flux2SwiGLU, which has the gate in its first half: x [..., 2n] -> silu(x[..., :n]) * x[..., n:].
func swiGLU(x *ml.Node) *ml.Node {
	h := ml.Split(x, -1, 2)
	return ml.Mul(nn.SiLU(h[0]), h[1])
}

// singleBlock is Flux2SingleTransformerBlock over text and image joined: x [B, T+I, C] -> the same.
func singleBlock(c *trace.Ctx, name string, cfg Config, x *ml.Node, mod []modulate, rotary *nn.Rotary) *ml.Node {
	defer c.Enter(name)()
	h := nn.Modulate(nn.LayerNorm(c, "norm", x, cfg.Eps, false), mod[0].scale, mod[0].shift)
	return nn.ClipFloat16(ml.Add(x, nn.Gate(parallelAttention(c, cfg, h, rotary), mod[0].gate)))
}

// parallelAttention is Flux2ParallelSelfAttention: x [B, L, C] -> the same. Attention and feed-forward read one input side by side, through one matrix that
// holds query, key, value and the two halves of the feed-forward one below the other, and share the projection back
// (https://arxiv.org/abs/2302.05442).
func parallelAttention(c *trace.Ctx, cfg Config, x *ml.Node, rotary *nn.Rotary) *ml.Node {
	defer c.Enter("attn")()
	dim, inner := cfg.Dim(), cfg.InnerDim()
	packed := nn.Linear(c, "to_qkv_mlp_proj", x, 3*dim+2*inner, false)
	part := func(from, to int) *ml.Node { return ml.SliceAxis(packed, 2, ml.AxisRange(from, to)) }
	heads := func(i int) *ml.Node { return nn.SplitHeads(part(i*dim, (i+1)*dim), cfg.Heads) }
	q := rotary.Apply(nn.RMSNorm(c, "norm_q", heads(0), cfg.Eps))
	k := rotary.Apply(nn.RMSNorm(c, "norm_k", heads(1), cfg.Eps))
	attended := nn.MergeHeads(nn.Attention(q, k, heads(2), nn.AttentionConfig{}))
	mlp := swiGLU(part(3*dim, 3*dim+2*inner))
	return nn.Linear(c, "to_out", ml.Concatenate([]*ml.Node{attended, mlp}, 2), dim, false)
}
