package wan

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
	Name       string
	Batch      int
	TextLength int // tokens of encoder_hidden_states
	// Frames, Height and Width are in latent pixels, multiples of the config's PatchSize.
	Frames, Height, Width int
	// TimestepPerToken takes a timestep for each token instead of one for all: expand_timesteps of a pipeline whose first frame is given.
	TimestepPerToken bool
}

// Tokens is the length of the sequence.
func (o Options) Tokens(cfg Config) int {
	return o.Frames / cfg.PatchSize[0] * (o.Height / cfg.PatchSize[1]) * (o.Width / cfg.PatchSize[2])
}

// New returns WanTransformer3DModel at the sizes of o, computing in dtype. Its inputs are those of the forward method, with the rotary tables of
// RoPE:
//
//	hidden_states          [B, in_channels, frames, height, width] dtype
//	encoder_hidden_states  [B, text, text_dim] dtype
//	timestep               [B], or [B, tokens], float32, from 0 to 1000
//	rotary_cos, rotary_sin [tokens, head size] float32
//
// The output is sample [B, out_channels, frames, height, width].
//
// Where dtype is a half precision, these stay in float32, weights among them, as diffusers keeps them (_keep_in_fp32_modules): the embedding of the
// timestep, the tables scale_shift_table with the modulation they give, the norms of the stream, and the sums into the stream.
func New(cfg Config, o Options, dtype graph.DType) trace.Network {
	if o.Name == "" {
		o.Name = "transformer"
	}
	tokens := o.Tokens(cfg)
	timestep := shapes.Make(dtypes.Float32, o.Batch)
	if o.TimestepPerToken {
		timestep = shapes.Make(dtypes.Float32, o.Batch, tokens)
	}
	return trace.Network{
		Name:  o.Name,
		Class: "WanTransformer3DModel",
		DType: dtype,
		Inputs: []trace.Input{
			{Name: "hidden_states", Shape: shapes.Make(dtype, o.Batch, cfg.InChannels, o.Frames, o.Height, o.Width)},
			{Name: "encoder_hidden_states", Shape: shapes.Make(dtype, o.Batch, o.TextLength, cfg.TextDim)},
			{Name: "timestep", Shape: timestep},
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
	x := nn.Conv3D(c, "patch_embedding", nn.ToNTHWC(in["hidden_states"]), cfg.Dim(), nn.Window3D{Size: cfg.PatchSize, Stride: cfg.PatchSize})
	grid := x.Shape().Clone().Dimensions // [B, frames, h, w, C] of the tokens
	x = ml.Reshape(x, grid[0], grid[1]*grid[2]*grid[3], cfg.Dim())
	temb, modulation, text := conditionEmbedder(c, cfg, in["timestep"], in["encoder_hidden_states"])
	rotary := nn.NewRotary(in["rotary_cos"], in["rotary_sin"])
	for i := range cfg.Layers {
		x = block(c, fmt.Sprintf("blocks.%d", i), cfg, x, text, modulation, rotary)
	}
	m := modulate(c, 2, temb, cfg.Dim())
	x = ml.ConvertDType(nn.Modulate(nn.FP32LayerNorm(c, "norm_out", x, cfg.Eps, false), m[1], m[0]), c.DType)
	x = nn.Linear(c, "proj_out", x, cfg.Patch()*cfg.OutChannels, true)
	return unpatchify(x, cfg, grid)
}

// conditionEmbedder is WanTimeTextImageEmbedding: timestep [B] or [B, L] and text [B, T, text_dim] -> the embedding of the timestep [B, C] or [B, L, C], the
// six parts of the blocks' modulation in a row [B, 6 C] or [B, L, 6 C], and the text [B, T, C], all in the compute dtype.
func conditionEmbedder(c *trace.Ctx, cfg Config, timestep, text *ml.Node) (temb, modulation, textOut *ml.Node) {
	defer c.Enter("condition_embedder")()
	t := timestep.Shape().Dimensions
	h := nn.Timesteps(ml.Reshape(timestep, timestep.Shape().Size()), nn.TimestepsConfig{Channels: cfg.FreqDim, FlipSinToCos: true})
	h = ml.Reshape(h, append(append([]int{}, t...), cfg.FreqDim)...)
	wide := nn.Wide(c.DType)
	h = nn.LinearAs(c, wide, "time_embedder.linear_1", h, cfg.Dim(), true)
	h = nn.LinearAs(c, wide, "time_embedder.linear_2", nn.SiLU(h), cfg.Dim(), true)
	temb = ml.ConvertDType(h, c.DType)
	modulation = nn.Linear(c, "time_proj", nn.SiLU(temb), 6*cfg.Dim(), true)
	// PixArtAlphaTextProjection.
	text = nn.GELUTanh(nn.Linear(c, "text_embedder.linear_1", text, cfg.Dim(), true))
	return temb, modulation, nn.Linear(c, "text_embedder.linear_2", text, cfg.Dim(), true)
}

// modulate adds the weight scale_shift_table [1, n, C] to emb, n parts [B, n C] or [B, L, n C] in a row, or one part for all [B, C] or [B, L, C], and returns
// each sum [B, C] or [B, L, C] in float32.
func modulate(c *trace.Ctx, n int, emb *ml.Node, dim int) []*ml.Node {
	table := ml.Split(c.WeightAs(nn.Wide(c.DType), "scale_shift_table", 1, n, dim), 1, n)
	emb = ml.ConvertDType(emb, nn.Wide(c.DType))
	axis := emb.Rank() - 1
	parts := make([]*ml.Node, n)
	for i := range parts {
		part := emb
		if emb.Shape().Dim(axis) == n*dim {
			part = ml.SliceAxis(emb, axis, ml.AxisRange(i*dim, (i+1)*dim))
		}
		row := make([]int, emb.Rank())
		for k := range row {
			row[k] = 1
		}
		row[axis] = dim
		parts[i] = ml.Add(part, ml.Reshape(table[i], row...))
	}
	return parts
}

// block is WanTransformerBlock: x [B, L, C], text [B, T, C] -> x.
func block(c *trace.Ctx, name string, cfg Config, x, text, modulation *ml.Node, rotary *nn.Rotary) *ml.Node {
	defer c.Enter(name)()
	m := modulate(c, 6, modulation, cfg.Dim())
	shift, scale, gate, shiftFFN, scaleFFN, gateFFN := m[0], m[1], m[2], m[3], m[4], m[5]
	// add is a sum into the stream in float32, rounded once.
	add := func(x, branch, gate *ml.Node) *ml.Node {
		wide := nn.Wide(c.DType)
		return ml.ConvertDType(ml.Add(ml.ConvertDType(x, wide), nn.Gate(ml.ConvertDType(branch, wide), gate)), c.DType)
	}

	h := ml.ConvertDType(nn.Modulate(nn.FP32LayerNorm(c, "norm1", x, cfg.Eps, false), scale, shift), c.DType)
	x = add(x, attention(c, "attn1", cfg, h, h, rotary), gate)

	h = x
	if cfg.CrossAttnNorm {
		h = ml.ConvertDType(nn.FP32LayerNorm(c, "norm2", x, cfg.Eps, true), c.DType)
	}
	x = ml.Add(x, attention(c, "attn2", cfg, h, text, nil))

	h = ml.ConvertDType(nn.Modulate(nn.FP32LayerNorm(c, "norm3", x, cfg.Eps, false), scaleFFN, shiftFFN), c.DType)
	return add(x, nn.FeedForward(c, "ffn", h, cfg.FFNDim, "gelu-approximate"), gateFFN)
}

// attention is WanAttention: x [B, L, C] attends to y [B, M, C]. Queries and keys are normalised over all heads together, before rotary turns them
// where it is not nil.
func attention(c *trace.Ctx, name string, cfg Config, x, y *ml.Node, rotary *nn.Rotary) *ml.Node {
	defer c.Enter(name)()
	heads := func(norm, name string, x *ml.Node) *ml.Node {
		h := nn.Linear(c, name, x, cfg.Dim(), true)
		if norm != "" {
			h = nn.RMSNorm(c, norm, h, cfg.Eps)
		}
		h = nn.SplitHeads(h, cfg.Heads)
		if norm != "" && rotary != nil {
			h = rotary.Apply(h)
		}
		return h
	}
	q, k, v := heads("norm_q", "to_q", x), heads("norm_k", "to_k", y), heads("", "to_v", y)
	return nn.Linear(c, "to_out.0", nn.MergeHeads(nn.Attention(q, k, v, nn.AttentionConfig{})), cfg.Dim(), true)
}

// unpatchify spreads each token [patch * channels] over its pixels: x [B, L, ...] -> [B, out_channels, frames, height, width].
func unpatchify(x *ml.Node, cfg Config, grid []int) *ml.Node {
	p := cfg.PatchSize
	x = ml.Reshape(x, grid[0], grid[1], grid[2], grid[3], p[0], p[1], p[2], cfg.OutChannels)
	x = ml.TransposeAllAxes(x, 0, 7, 1, 4, 2, 5, 3, 6)
	return ml.Reshape(x, grid[0], cfg.OutChannels, grid[1]*p[0], grid[2]*p[1], grid[3]*p[2])
}
