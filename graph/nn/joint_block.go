package nn

import (
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph/trace"
)

// JointBlockConfig has the options of JointBlock: those of its attention, where ContextPreOnly leaves out all that comes behind it for the text.
type JointBlockConfig struct {
	JointAttentionConfig
	// DualAttention gives the image a second attention, "attn2", to itself alone (SD3.5 medium).
	DualAttention bool
}

// JointBlock is a block of a multimodal transformer (https://arxiv.org/abs/2403.03206; diffusers, JointTransformerBlock in models/attention.py and
// FluxTransformerBlock in models/transformers/transformer_flux.py): image [B, I, C] and text [B, T, C] attend to each other in one attention and have
// modulation by temb [B, C] and feed-forward of their own. newText is nil under ContextPreOnly.
func JointBlock(c *trace.Ctx, name string, image, text, temb *ml.Node, cfg JointBlockConfig) (newText, newImage *ml.Node) {
	defer enter(c, name)()
	dim := image.Shape().Dim(2)
	var x, x2, gateMSA, shiftMLP, scaleMLP, gateMLP, gateMSA2 *ml.Node
	if cfg.DualAttention {
		x, gateMSA, shiftMLP, scaleMLP, gateMLP, x2, gateMSA2 = SD35AdaLayerNormZeroX(c, "norm1", image, temb)
	} else {
		x, gateMSA, shiftMLP, scaleMLP, gateMLP = AdaLayerNormZero(c, "norm1", image, temb)
	}
	var y, textGateMSA, textShiftMLP, textScaleMLP, textGateMLP *ml.Node
	if cfg.ContextPreOnly {
		y = AdaLayerNormContinuous(c, "norm1_context", text, temb, 1e-6, true)
	} else {
		y, textGateMSA, textShiftMLP, textScaleMLP, textGateMLP = AdaLayerNormZero(c, "norm1_context", text, temb)
	}
	imageOut, textOut := JointAttention(c, "attn", x, y, cfg.JointAttentionConfig)

	image = ml.Add(image, Gate(imageOut, gateMSA))
	if cfg.DualAttention {
		own, _ := JointAttention(c, "attn2", x2, nil, cfg.JointAttentionConfig)
		image = ml.Add(image, Gate(own, gateMSA2))
	}
	x = Modulate(LayerNorm(c, "norm2", image, 1e-6, false), scaleMLP, shiftMLP)
	image = ml.Add(image, Gate(FeedForward(c, "ff", x, 4*dim, "gelu-approximate"), gateMLP))
	if cfg.ContextPreOnly {
		return nil, image
	}

	text = ml.Add(text, Gate(textOut, textGateMSA))
	y = Modulate(LayerNorm(c, "norm2_context", text, 1e-6, false), textScaleMLP, textShiftMLP)
	return ml.Add(text, Gate(FeedForward(c, "ff_context", y, 4*dim, "gelu-approximate"), textGateMLP)), image
}

// SD35AdaLayerNormZeroX is AdaLayerNormZero for a block with two attentions (diffusers, models/normalization.py): the projection "linear" goes to 9 n, and
// the normalised x is modulated a second time, to y2 with gateMSA2, for the second of them.
func SD35AdaLayerNormZeroX(c *trace.Ctx, name string, x, emb *ml.Node) (y, gateMSA, shiftMLP, scaleMLP, gateMLP, y2, gateMSA2 *ml.Node) {
	defer enter(c, name)()
	p := ml.Split(Linear(c, "linear", SiLU(emb), 9*x.Shape().Dim(-1), true), 1, 9)
	h := LayerNorm(c, "norm", x, 1e-6, false)
	return Modulate(h, p[1], p[0]), p[2], p[3], p[4], p[5], Modulate(h, p[7], p[6]), p[8]
}

// TimeTextEmbed is CombinedTimestepTextProjEmbeddings, or with guidance CombinedTimestepGuidanceTextProjEmbeddings (diffusers,
// models/embeddings.py): timestep and guidance [B] on the scale of 0 to 1000, pooled [B, P] -> [B, dim].
func TimeTextEmbed(c *trace.Ctx, name string, timestep, guidance, pooled *ml.Node, dim int) *ml.Node {
	defer enter(c, name)()
	sinusoids := TimestepsConfig{Channels: 256, FlipSinToCos: true}
	emb := TimestepEmbedding(c, "timestep_embedder", Timesteps(timestep, sinusoids), dim, true)
	if guidance != nil {
		emb = ml.Add(emb, TimestepEmbedding(c, "guidance_embedder", Timesteps(guidance, sinusoids), dim, true))
	}
	return ml.Add(emb, TimestepEmbedding(c, "text_embedder", pooled, dim, true))
}
