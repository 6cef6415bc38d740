package qwenimage

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
	TextLength  int // tokens of encoder_hidden_states, those that are only padding among them
	ImageLength int // tokens of hidden_states, one for each patch of the latents
}

// New returns QwenImageTransformer2DModel at the sizes of o, computing in dtype. Its inputs are those of the forward method, with the rotary tables of
// RoPE in place of the sizes they follow from:
//
//	hidden_states               [B, image, in_channels] dtype
//	encoder_hidden_states       [B, text, joint_attention_dim] dtype
//	encoder_hidden_states_mask  [B, text] int32: 1 at the prompt's tokens, 0 at padding, which nothing attends to
//	timestep                    [B] float32, from 0 to 1
//	rotary_cos, rotary_sin      [text + image, head size] float32
//
// The output is sample [B, image, patch_size^2 out_channels]. It does not depend on how much padding there is.
func New(cfg Config, o Options, dtype graph.DType) trace.Network {
	tokens := o.TextLength + o.ImageLength
	return trace.Network{
		Name:  "transformer",
		Class: "QwenImageTransformer2DModel",
		DType: dtype,
		Inputs: []trace.Input{
			{Name: "hidden_states", Shape: shapes.Make(dtype, o.Batch, o.ImageLength, cfg.InChannels)},
			{Name: "encoder_hidden_states", Shape: shapes.Make(dtype, o.Batch, o.TextLength, cfg.JointDim)},
			{Name: "encoder_hidden_states_mask", Shape: shapes.Make(dtypes.Int32, o.Batch, o.TextLength)},
			{Name: "timestep", Shape: shapes.Make(dtypes.Float32, o.Batch)},
			{Name: "rotary_cos", Shape: shapes.Make(dtypes.Float32, tokens, cfg.HeadDim)},
			{Name: "rotary_sin", Shape: shapes.Make(dtypes.Float32, tokens, cfg.HeadDim)},
		},
		Outputs: []string{"sample"},
		Build: func(c *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
			return []*ml.Node{transformer(c, cfg, in)}
		},
	}
}

func transformer(c *trace.Ctx, cfg Config, in map[string]*ml.Node) *ml.Node {
	image := nn.Linear(c, "img_in", in["hidden_states"], cfg.Dim(), true)
	text := nn.RMSNorm(c, "txt_norm", in["encoder_hidden_states"], 1e-6)
	text = nn.Linear(c, "txt_in", text, cfg.Dim(), true)
	temb := timeTextEmbed(c, "time_text_embed", in["timestep"], cfg.Dim())
	attn := cfg.attention(nn.NewRotary(in["rotary_cos"], in["rotary_sin"]))
	// The image's tokens are always attended to.
	imageKeys := ml.Ones(c.G, shapes.Make(dtypes.Int32, image.Shape().Dimensions[:2]...))
	attn.Mask = nn.KeepKeys(ml.Concatenate([]*ml.Node{in["encoder_hidden_states_mask"], imageKeys}, 1))
	for i := range cfg.Layers {
		text, image = block(c, fmt.Sprintf("transformer_blocks.%d", i), image, text, temb, attn)
	}
	image = nn.AdaLayerNormContinuous(c, "norm_out", image, temb, 1e-6, true)
	return nn.Linear(c, "proj_out", image, cfg.PatchSize*cfg.PatchSize*cfg.OutChannels, true)
}

// attention has the options of every block's attention, without a mask.
func (c Config) attention(rotary *nn.Rotary) nn.JointAttentionConfig {
	return nn.JointAttentionConfig{Heads: c.Heads, Bias: true, Eps: 1e-6, Rotary: rotary}
}

// timeTextEmbed is QwenTimestepProjEmbeddings: timestep [B] from 0 to 1 -> [B, dim].
func timeTextEmbed(c *trace.Ctx, name string, timestep *ml.Node, dim int) *ml.Node {
	defer c.Enter(name)()
	sinusoids := nn.Timesteps(timestep, nn.TimestepsConfig{Channels: 256, FlipSinToCos: true, Scale: 1000})
	return nn.TimestepEmbedding(c, "timestep_embedder", sinusoids, dim, true)
}

// block is QwenImageTransformerBlock: image [B, I, C] and text [B, T, C] attend to each other in one attention and have modulation by temb [B, C] and
// feed-forward of their own.
func block(c *trace.Ctx, name string, image, text, temb *ml.Node, attn nn.JointAttentionConfig) (newText, newImage *ml.Node) {
	defer c.Enter(name)()
	dim := image.Shape().Dim(2)
	// For each of the two norms of a stream: shift, scale, gate.
	imageMod := ml.Split(nn.Linear(c, "img_mod.1", nn.SiLU(temb), 6*dim, true), 1, 6)
	textMod := ml.Split(nn.Linear(c, "txt_mod.1", nn.SiLU(temb), 6*dim, true), 1, 6)
	modulated := func(x *ml.Node, norm string, mod []*ml.Node) *ml.Node {
		return nn.Modulate(nn.LayerNorm(c, norm, x, 1e-6, false), mod[1], mod[0])
	}
	feedForward := func(x *ml.Node, name string) *ml.Node { return nn.FeedForward(c, name, x, 4*dim, "gelu-approximate") }

	imageOut, textOut := nn.JointAttention(c, "attn", modulated(image, "img_norm1", imageMod), modulated(text, "txt_norm1", textMod), attn)
	image = ml.Add(image, nn.Gate(imageOut, imageMod[2]))
	text = ml.Add(text, nn.Gate(textOut, textMod[2]))

	image = ml.Add(image, nn.Gate(feedForward(modulated(image, "img_norm2", imageMod[3:]), "img_mlp"), imageMod[5]))
	text = ml.Add(text, nn.Gate(feedForward(modulated(text, "txt_norm2", textMod[3:]), "txt_mlp"), textMod[5]))
	return nn.ClipFloat16(text), nn.ClipFloat16(image)
}
