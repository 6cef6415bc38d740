package sd3

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph"
	"precast/graph/nn"
	"precast/graph/trace"
)

// Options are the static sizes of one program of the transformer.
type Options struct {
	Batch         int
	Height, Width int // of the latents; multiples of the config's PatchSize
	TextLength    int // tokens of encoder_hidden_states
}

// Check says what in o does not fit cfg.
func (o Options) Check(cfg Config) error {
	if o.Batch < 1 || o.TextLength < 1 {
		return fmt.Errorf("transformer: found batch %d and %d text tokens, wanted 1 or more of each", o.Batch, o.TextLength)
	}
	largest := cfg.PosEmbedMaxSize * cfg.PatchSize
	for _, side := range []struct {
		name string
		n    int
	}{{"height", o.Height}, {"width", o.Width}} {
		if side.n < cfg.PatchSize || side.n > largest || side.n%cfg.PatchSize != 0 {
			return fmt.Errorf("transformer: found latents of %s %d, wanted a multiple of patch_size %d up to %d (pos_embed_max_size %d patches)",
				side.name, side.n, cfg.PatchSize, largest, cfg.PosEmbedMaxSize)
		}
	}
	return nil
}

// New returns SD3Transformer2DModel at the sizes of o, which must pass Options.Check, computing in dtype. Its inputs are those of the forward
// method:
//
//	hidden_states          [B, in_channels, height, width] dtype
//	encoder_hidden_states  [B, text, joint_attention_dim] dtype
//	pooled_projections     [B, pooled_projection_dim] dtype
//	timestep               [B] float32, from 0 to 1000
//
// The output is sample [B, out_channels, height, width].
func New(cfg Config, o Options, dtype graph.DType) trace.Network {
	return trace.Network{
		Name:  "transformer",
		Class: "SD3Transformer2DModel",
		DType: dtype,
		Inputs: []trace.Input{
			{Name: "hidden_states", Shape: shapes.Make(dtype, o.Batch, cfg.InChannels, o.Height, o.Width)},
			{Name: "encoder_hidden_states", Shape: shapes.Make(dtype, o.Batch, o.TextLength, cfg.JointDim)},
			{Name: "pooled_projections", Shape: shapes.Make(dtype, o.Batch, cfg.PooledDim)},
			{Name: "timestep", Shape: shapes.Make(dtypes.Float32, o.Batch)},
		},
		Outputs: []string{"sample"},
		Build: func(c *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
			if err := o.Check(cfg); err != nil {
				panic(err)
			}
			return []*ml.Node{transformer(c, cfg, in)}
		},
	}
}

func transformer(c *trace.Ctx, cfg Config, in map[string]*ml.Node) *ml.Node {
	latents := in["hidden_states"]
	image := patchEmbed(c, "pos_embed", cfg, latents)
	temb := nn.TimeTextEmbed(c, "time_text_embed", in["timestep"], nil, in["pooled_projections"], cfg.Dim())
	text := nn.Linear(c, "context_embedder", in["encoder_hidden_states"], cfg.Dim(), true)
	for i := range cfg.Layers {
		text, image = nn.JointBlock(c, fmt.Sprintf("transformer_blocks.%d", i), image, text, temb, cfg.block(i))
	}
	image = nn.AdaLayerNormContinuous(c, "norm_out", image, temb, 1e-6, true)
	image = nn.Linear(c, "proj_out", image, cfg.PatchSize*cfg.PatchSize*cfg.OutChannels, true)
	return nn.Unpatchify(image, cfg.PatchSize, latents.Shape().Dim(2), latents.Shape().Dim(3))
}

// block has the options of block i: the last one leaves the text out behind its attention.
func (c Config) block(i int) nn.JointBlockConfig {
	b := nn.JointBlockConfig{
		JointAttentionConfig: nn.JointAttentionConfig{Heads: c.Heads, Bias: true, ContextPreOnly: i == c.Layers-1},
		DualAttention:        slices.Contains(c.DualAttentionLayers, i),
	}
	if c.QKNorm {
		b.Eps = 1e-6
	}
	return b
}

// patchEmbed is PatchEmbed with cropping (diffusers, models/embeddings.py): latents [B, C, H, W] -> [B, h*w, Dim], a token a patch in rows, plus the middle
// h x w of the table of positions. The table is a buffer of the checkpoint, pos_embed_max_size patches high and wide.
func patchEmbed(c *trace.Ctx, name string, cfg Config, latents *ml.Node) *ml.Node {
	defer c.Enter(name)()
	x := nn.Conv2D(c, "proj", nn.ToNHWC(latents), cfg.Dim(), nn.Padded(cfg.PatchSize, cfg.PatchSize, 0))
	b, h, w := x.Shape().Dim(0), x.Shape().Dim(1), x.Shape().Dim(2)
	size := cfg.PosEmbedMaxSize
	top, left := (size-h)/2, (size-w)/2
	table := ml.Reshape(c.Weight("pos_embed", 1, size*size, cfg.Dim()), 1, size, size, cfg.Dim())
	crop := ml.Slice(table, ml.AxisRange(), ml.AxisRange(top, top+h), ml.AxisRange(left, left+w))
	return ml.Reshape(ml.Add(x, crop), b, h*w, cfg.Dim())
}
