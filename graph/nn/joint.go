package nn

import (
	"github.com/gomlx/compute/dtypes"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph/trace"
)

// JointAttentionConfig has the options of JointAttention.
type JointAttentionConfig struct {
	Heads int
	// Bias gives every projection a bias.
	Bias bool
	// Eps is that of the norms of queries and keys, which are not normalised where it is 0.
	Eps float64
	// Rotary turns queries and keys of the joint sequence; nil leaves them.
	Rotary *Rotary
	// Mask is that of AttentionConfig over the joint sequence.
	Mask *ml.Node
	// ContextPreOnly says that nothing reads the text behind the attention, as in SD3's last block: it has no output projection.
	ContextPreOnly bool
}

// JointAttention is the attention of a double-stream block (https://arxiv.org/abs/2403.03206; FluxAttention in diffusers,
// models/transformers/transformer_flux.py, and its kin, Attention with JointAttnProcessor2_0): image [B, I, C] and text [B, T, C] -> the same, each
// position attending to all of both. Each stream has projections and query and key norms of its own; the text comes first in the joint sequence. textOut
// is nil under ContextPreOnly. A nil text leaves the image's self-attention.
func JointAttention(c *trace.Ctx, name string, image, text *ml.Node, cfg JointAttentionConfig) (imageOut, textOut *ml.Node) {
	defer enter(c, name)()
	dim := image.Shape().Dim(2)
	heads := func(x *ml.Node, name, norm string) *ml.Node {
		h := SplitHeads(Linear(c, name, x, dim, cfg.Bias), cfg.Heads)
		if norm == "" || cfg.Eps == 0 {
			return h
		}
		return RMSNorm(c, norm, h, cfg.Eps)
	}
	join := func(textName, textNorm, imageName, imageNorm string) *ml.Node {
		if text == nil {
			return heads(image, imageName, imageNorm)
		}
		return ml.Concatenate([]*ml.Node{heads(text, textName, textNorm), heads(image, imageName, imageNorm)}, 1)
	}
	q := join("add_q_proj", "norm_added_q", "to_q", "norm_q")
	k := join("add_k_proj", "norm_added_k", "to_k", "norm_k")
	v := join("add_v_proj", "", "to_v", "")
	if cfg.Rotary != nil {
		q, k = cfg.Rotary.Apply(q), cfg.Rotary.Apply(k)
	}
	imageOut = MergeHeads(Attention(q, k, v, AttentionConfig{Mask: cfg.Mask}))
	if text != nil {
		textOut, imageOut = SplitTokens(imageOut, text.Shape().Dim(1))
		if cfg.ContextPreOnly {
			textOut = nil
		} else {
			textOut = Linear(c, "to_add_out", textOut, dim, cfg.Bias)
		}
	}
	return Linear(c, "to_out.0", imageOut, dim, cfg.Bias), textOut
}

// SplitTokens cuts x [B, L, C] into the first n tokens [B, n, C] and the rest [B, L-n, C].
func SplitTokens(x *ml.Node, n int) (first, rest *ml.Node) {
	return ml.Slice(x, ml.AxisRange(), ml.AxisRangeFromStart(n)), ml.Slice(x, ml.AxisRange(), ml.AxisRangeToEnd(n))
}

// ClipFloat16 clamps a float16 x to the finite numbers of its dtype, as diffusers' transformer blocks do with their streams; other dtypes pass.
func ClipFloat16(x *ml.Node) *ml.Node {
	if x.DType() != dtypes.Float16 {
		return x
	}
	return ml.ClipScalar(x, -65504, 65504)
}
