package autoencoderkl

import "precast/graph/checkpoint"

// Aliases are the names that the attention layers had in diffusers' first versions. The autoencoder of Stable Diffusion 1.5 is stored so,
// and where its file was converted from the original repository the weights are 1x1 convolutions
// (https://github.com/huggingface/diffusers/issues/4790).
var Aliases = []checkpoint.Alias{
	{Pattern: `^((?:encoder|decoder)\.mid_block\.attentions\.0)\.to_q\.(weight|bias)$`, Stored: "$1.query.$2"},
	{Pattern: `^((?:encoder|decoder)\.mid_block\.attentions\.0)\.to_k\.(weight|bias)$`, Stored: "$1.key.$2"},
	{Pattern: `^((?:encoder|decoder)\.mid_block\.attentions\.0)\.to_v\.(weight|bias)$`, Stored: "$1.value.$2"},
	{Pattern: `^((?:encoder|decoder)\.mid_block\.attentions\.0)\.to_out\.0\.(weight|bias)$`, Stored: "$1.proj_attn.$2"},
}
