package zimage

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
	Batch int
	// TextLength is how many tokens encoder_hidden_states has. In diffusers a prompt comes at its own length; here it is padded to this one, so
	// that one program serves every prompt.
	TextLength int
	// Height and Width are those of the latents, even.
	Height, Width int
}

// Check says what in o does not fit cfg.
func (o Options) Check(cfg Config) error {
	if o.Batch < 1 || o.TextLength < 1 {
		return fmt.Errorf("transformer: found batch %d and %d text tokens, wanted 1 or more of each", o.Batch, o.TextLength)
	}
	if o.Height < patchSize || o.Width < patchSize || o.Height%patchSize != 0 || o.Width%patchSize != 0 {
		return fmt.Errorf("transformer: found latents of %d x %d, wanted multiples of the patch size %d", o.Height, o.Width, patchSize)
	}
	return checkGrid(cfg, o.Height/patchSize, o.Width/patchSize)
}

// sequences returns the lengths of the two sequences in the transformer, with padding.
func (o Options) sequences() (image, text int) {
	return padded(o.Height / patchSize * (o.Width / patchSize)), padded(o.TextLength)
}

// New returns ZImageTransformer2DModel at the sizes of o, computing in dtype. o must pass Options.Check. Its inputs are those of the forward method, with the lists
// stacked and the positions as tables:
//
//	hidden_states          [B, in_channels, height, width] dtype
//	timestep               [B] float32, from 0 to 1 (it is multiplied by t_scale here)
//	encoder_hidden_states  [B, text, cap_feat_dim] dtype; what is past a prompt's end must be finite and is not read
//	text_mask              [B, text] int32, 1 at the prompt's tokens
//	text_keys              [B, padded text] int32, 1 at the tokens that are attended to: the prompt's and the padding tokens that fill
//	                       it up to a multiple of 32
//	rotary_cos, rotary_sin [B, padded image + padded text, head size] float32
//
// Masks and RoPE make the last four. The output is sample [B, in_channels, height, width], as the model returns it: the pipeline negates it.
func New(cfg Config, o Options, dtype graph.DType) trace.Network {
	if err := o.Check(cfg); err != nil {
		panic("BUG: unchecked options: " + err.Error())
	}
	image, text := o.sequences()
	return trace.Network{
		Name:  "transformer",
		Class: "ZImageTransformer2DModel",
		DType: dtype,
		Inputs: []trace.Input{
			{Name: "hidden_states", Shape: shapes.Make(dtype, o.Batch, cfg.InChannels, o.Height, o.Width)},
			{Name: "timestep", Shape: shapes.Make(dtypes.Float32, o.Batch)},
			{Name: "encoder_hidden_states", Shape: shapes.Make(dtype, o.Batch, o.TextLength, cfg.CaptionDim)},
			{Name: "text_mask", Shape: shapes.Make(dtypes.Int32, o.Batch, o.TextLength)},
			{Name: "text_keys", Shape: shapes.Make(dtypes.Int32, o.Batch, text)},
			{Name: "rotary_cos", Shape: shapes.Make(dtypes.Float32, o.Batch, image+text, cfg.HeadDim())},
			{Name: "rotary_sin", Shape: shapes.Make(dtypes.Float32, o.Batch, image+text, cfg.HeadDim())},
		},
		Outputs: []string{"sample"},
		Build: func(c *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
			return []*ml.Node{transformer(c, cfg, in)}
		},
	}
}

func transformer(c *trace.Ctx, cfg Config, in map[string]*ml.Node) *ml.Node {
	latents, captions := in["hidden_states"], in["encoder_hidden_states"]
	height, width := latents.Shape().Dim(2), latents.Shape().Dim(3)
	tokens := height / patchSize * (width / patchSize)
	length := padded(tokens)
	// All of the picture's tokens are attended to, its padding too.
	imageKeys := ml.Ones(c.G, shapes.Make(dtypes.Int32, latents.Shape().Dim(0), length))
	textKeys := nn.KeepKeys(in["text_keys"])
	keys := nn.KeepKeys(ml.Concatenate([]*ml.Node{imageKeys, in["text_keys"]}, 1))
	imageRotary := nn.NewRotary(ml.SliceAxis(in["rotary_cos"], 1, ml.AxisRangeFromStart(length)), ml.SliceAxis(in["rotary_sin"], 1, ml.AxisRangeFromStart(length)))
	textRotary := nn.NewRotary(ml.SliceAxis(in["rotary_cos"], 1, ml.AxisRangeToEnd(length)), ml.SliceAxis(in["rotary_sin"], 1, ml.AxisRangeToEnd(length)))
	jointRotary := nn.NewRotary(in["rotary_cos"], in["rotary_sin"])
	temb := timeEmbedder(c, cfg, in["timestep"])

	image := nn.Linear(c, patchName("all_x_embedder"), patchify(latents), cfg.Dim, true)
	image = pad(image, c.Weight("x_pad_token", 1, cfg.Dim))
	for i := range cfg.RefinerLayers {
		image = block(c, fmt.Sprintf("noise_refiner.%d", i), cfg, image, temb, nil, imageRotary)
	}

	text := captionEmbedder(c, cfg, captions, in["text_mask"])
	for i := range cfg.RefinerLayers {
		text = block(c, fmt.Sprintf("context_refiner.%d", i), cfg, text, nil, textKeys, textRotary)
	}

	// Picture and prompt are joined, the picture first.
	joint := ml.Concatenate([]*ml.Node{image, text}, 1)
	for i := range cfg.Layers {
		joint = block(c, fmt.Sprintf("layers.%d", i), cfg, joint, temb, keys, jointRotary)
	}
	image = finalLayer(c, cfg, ml.SliceAxis(joint, 1, ml.AxisRangeFromStart(tokens)), temb)
	return nn.Unpatchify(image, patchSize, height, width)
}

// patchName is the module of a list that has the embedder or the last layer of a pair of patch sizes.
func patchName(list string) string { return fmt.Sprintf("%s.%d-1", list, patchSize) }

// timeEmbedder is TimestepEmbedder: t [B], from 0 to 1 -> [B, min(dim, 256)].
func timeEmbedder(c *trace.Ctx, cfg Config, t *ml.Node) *ml.Node {
	defer c.Enter("t_embedder")()
	x := nn.Timesteps(ml.MulScalar(t, cfg.TimeScale), nn.TimestepsConfig{Channels: 256, FlipSinToCos: true})
	x = nn.SiLU(nn.Linear(c, "mlp.0", ml.ConvertDType(x, c.DType), 1024, true))
	return nn.Linear(c, "mlp.2", x, modulationDim(cfg), true)
}

// modulationDim is the width of the embedded time (ADALN_EMBED_DIM).
func modulationDim(cfg Config) int { return min(cfg.Dim, 256) }

// captionEmbedder brings the prompt's states x [B, T, E] to the stream's width and puts the learned padding token where mask [B, T] is 0 and
// up to a multiple of 32 -> [B, padded T, C].
func captionEmbedder(c *trace.Ctx, cfg Config, x, mask *ml.Node) *ml.Node {
	length := x.Shape().Dim(1)
	leave := c.Enter("cap_embedder")
	x = nn.Linear(c, "1", nn.RMSNorm(c, "0", x, cfg.NormEps), cfg.Dim, true)
	leave()
	token := c.Weight("cap_pad_token", 1, cfg.Dim)
	keep := ml.InsertAxes(ml.NotEqual(mask, ml.ZerosLike(mask)), -1)
	x = ml.Where(ml.BroadcastToDims(keep, x.Shape().Dimensions...), x, repeat(token, x.Shape().Dim(0), length))
	return pad(x, token)
}

// pad appends token [1, C] to x [B, L, C] up to a length that is a multiple of 32.
func pad(x, token *ml.Node) *ml.Node {
	if n := padded(x.Shape().Dim(1)) - x.Shape().Dim(1); n > 0 {
		return ml.Concatenate([]*ml.Node{x, repeat(token, x.Shape().Dim(0), n)}, 1)
	}
	return x
}

// repeat is token [1, C] -> [batch, n, C].
func repeat(token *ml.Node, batch, n int) *ml.Node {
	return ml.BroadcastToDims(ml.InsertAxes(token, 0), batch, n, token.Shape().Dim(1))
}

// block is ZImageTransformerBlock: x [B, L, C] -> the same. With temb [B, M] it is modulated by the time: scales before, gates after each
// of its two branches. keys [B, 1, 1, L] says which tokens are attended to, nil all.
func block(c *trace.Ctx, name string, cfg Config, x, temb, keys *ml.Node, rotary *nn.Rotary) *ml.Node {
	defer c.Enter(name)()
	scale := func(x, by *ml.Node) *ml.Node { return x }
	gate := scale
	mod := make([]*ml.Node, 4) // scale and gate of the attention, scale and gate of the feed-forward
	if temb != nil {
		mod = ml.Split(nn.Linear(c, "adaLN_modulation.0", temb, 4*cfg.Dim, true), 1, 4)
		scale = func(x, by *ml.Node) *ml.Node { return nn.Gate(x, ml.AddScalar(by, 1.0)) }
		gate = func(x, by *ml.Node) *ml.Node { return nn.Gate(x, ml.Tanh(by)) }
	}
	h := attention(c, cfg, scale(nn.RMSNorm(c, "attention_norm1", x, cfg.NormEps), mod[0]), keys, rotary)
	x = ml.Add(x, gate(nn.RMSNorm(c, "attention_norm2", h, cfg.NormEps), mod[1]))
	h = feedForward(c, cfg, scale(nn.RMSNorm(c, "ffn_norm1", x, cfg.NormEps), mod[2]))
	return ml.Add(x, gate(nn.RMSNorm(c, "ffn_norm2", h, cfg.NormEps), mod[3]))
}

// attention is diffusers' Attention with ZSingleStreamAttnProcessor: x [B, L, C] -> the same.
func attention(c *trace.Ctx, cfg Config, x, keys *ml.Node, rotary *nn.Rotary) *ml.Node {
	defer c.Enter("attention")()
	heads := func(name string) *ml.Node { return nn.SplitHeads(nn.Linear(c, name, x, cfg.Dim, false), cfg.Heads) }
	q, k, v := heads("to_q"), heads("to_k"), heads("to_v")
	if cfg.QKNorm {
		q, k = nn.RMSNorm(c, "norm_q", q, 1e-5), nn.RMSNorm(c, "norm_k", k, 1e-5)
	}
	y := nn.Attention(rotary.Apply(q), rotary.Apply(k), v, nn.AttentionConfig{Mask: keys})
	return nn.Linear(c, "to_out.0", nn.MergeHeads(y), cfg.Dim, false)
}

func feedForward(c *trace.Ctx, cfg Config, x *ml.Node) *ml.Node {
	defer c.Enter("feed_forward")()
	return nn.GatedMLP(c, "w1", "w3", "w2", x, int(float64(cfg.Dim)/3*8), nn.SiLU)
}

// finalLayer is FinalLayer: x [B, L, C], temb [B, M] -> [B, L, patch^2 in_channels].
func finalLayer(c *trace.Ctx, cfg Config, x, temb *ml.Node) *ml.Node {
	defer c.Enter(patchName("all_final_layer"))()
	scale := nn.Linear(c, "adaLN_modulation.1", nn.SiLU(temb), cfg.Dim, true)
	x = nn.Gate(nn.LayerNorm(c, "norm_final", x, 1e-6, false), ml.AddScalar(scale, 1.0))
	return nn.Linear(c, "linear", x, patchSize*patchSize*cfg.InChannels, true)
}

// patchify is x [B, C, H, W] -> [B, H/2 W/2, 4 C], patches in rows, the channel last within a patch.
func patchify(x *ml.Node) *ml.Node {
	d := x.Shape().Dimensions
	h, w := d[2]/patchSize, d[3]/patchSize
	x = ml.Reshape(x, d[0], d[1], h, patchSize, w, patchSize)
	return ml.Reshape(ml.TransposeAllAxes(x, 0, 2, 4, 3, 5, 1), d[0], h*w, patchSize*patchSize*d[1])
}
