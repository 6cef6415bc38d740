// Package unet2d is UNet2DConditionModel, the denoiser of Stable Diffusion 1.x, 2.x and SDXL (diffusers,
// models/unets/unet_2d_condition.py and unet_2d_blocks.py; Rombach et al. 2022, https://arxiv.org/abs/2112.10752).
//
// Scopes are diffusers' module paths and weights have its keys. Inside, activations are channels-last ([B, H, W, C]); the network takes
// and gives diffusers' [B, C, H, W].
package unet2d

import (
	"fmt"
	"strings"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph"
	"precast/graph/nn"
	"precast/graph/trace"
)

// Sizes are the static sizes of one program.
type Sizes struct {
	// Batch counts both halves of classifier-free guidance.
	Batch int
	// Height and Width are in latent pixels.
	Height, Width int
	// SequenceLength is the number of text tokens (77).
	SequenceLength int
	// DType is the dtype of the activations and weights.
	DType graph.DType
}

// New is the network "unet" at these sizes. Its inputs, in order:
//
//	sample                 [B, in_channels, H, W]  the scaled latents
//	timestep               float32 scalar
//	encoder_hidden_states  [B, L, TextDim]
//	text_embeds            [B, PooledDim]          SDXL only
//	time_ids               float32 [B, 6]          SDXL only
//
// and its output is sample [B, out_channels, H, W]. Everything but timestep and time_ids is in the network's dtype.
func New(cfg Config, s Sizes) trace.Network {
	inputs := []trace.Input{
		{Name: "sample", Shape: shapes.Make(s.DType, s.Batch, cfg.InChannels, s.Height, s.Width)},
		{Name: "timestep", Shape: shapes.Make(dtypes.Float32)},
		{Name: "encoder_hidden_states", Shape: shapes.Make(s.DType, s.Batch, s.SequenceLength, cfg.TextDim())},
	}
	if pooled := cfg.PooledDim(); pooled > 0 {
		inputs = append(
			inputs,
			trace.Input{Name: "text_embeds", Shape: shapes.Make(s.DType, s.Batch, pooled)},
			trace.Input{Name: "time_ids", Shape: shapes.Make(dtypes.Float32, s.Batch, timeIDs)},
		)
	}
	return trace.Network{
		Name: "unet", Class: "UNet2DConditionModel", DType: s.DType,
		Inputs: inputs, Outputs: []string{"sample"},
		Build: func(c *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
			return []*ml.Node{(&model{Config: cfg, Ctx: c}).forward(in)}
		},
	}
}

// model builds one UNet in one Ctx.
type model struct {
	Config
	*trace.Ctx
}

func (m *model) forward(in map[string]*ml.Node) *ml.Node {
	x := nn.ToNHWC(in["sample"])
	if m.CenterInputSample {
		x = ml.AddScalar(ml.MulScalar(x, 2.0), -1.0)
	}
	temb := m.timeEmbedding(in["timestep"], in["text_embeds"], in["time_ids"])
	text := in["encoder_hidden_states"]
	if m.EncoderHidDim > 0 {
		text = nn.Linear(m.Ctx, "encoder_hid_proj", text, m.CrossAttentionDim, true)
	}

	x = nn.Conv2D(m.Ctx, "conv_in", x, m.BlockOutChannels[0], nn.Same(m.ConvInKernel))
	skips := []*ml.Node{x}
	for i := range m.DownBlockTypes {
		var states []*ml.Node
		x, states = m.downBlock(i, x, temb, text)
		skips = append(skips, states...)
	}
	x = m.midBlock(x, temb, text)
	for i := range m.UpBlockTypes {
		n := len(skips) - m.upLayers(i)
		x = m.upBlock(i, x, skips[n:], temb, text, imageSize(skips[:n]))
		skips = skips[:n]
	}

	x = nn.SiLU(nn.GroupNorm(m.Ctx, "conv_norm_out", x, m.NormNumGroups, m.NormEps))
	x = nn.Conv2D(m.Ctx, "conv_out", x, m.OutChannels, nn.Same(m.ConvOutKernel))
	return nn.ToNCHW(x)
}

// imageSize is the height and width of the last of the skip connections left, the size to upsample to; zero where none is left.
func imageSize(skips []*ml.Node) [2]int {
	if len(skips) == 0 {
		return [2]int{}
	}
	s := skips[len(skips)-1].Shape()
	return [2]int{s.Dim(1), s.Dim(2)}
}

// timeEmbedding is the time embedding, [1, TimeEmbeddingDim], or [B, TimeEmbeddingDim] where SDXL's text_embeds and time_ids are part of it.
func (m *model) timeEmbedding(timestep, textEmbeds, timeIDs *ml.Node) *ml.Node {
	emb := nn.TimestepEmbedding(m.Ctx, "time_embedding", m.timesteps(ml.Reshape(timestep, 1), m.BlockOutChannels[0]), m.TimeEmbeddingDim, true)
	emb = activate(m.TimestepPostAct, emb)
	if textEmbeds != nil {
		batch := textEmbeds.Shape().Dim(0)
		ids := ml.Reshape(m.timesteps(ml.Reshape(timeIDs, -1), m.AdditionTimeEmbedDim), batch, -1)
		added := ml.Concatenate([]*ml.Node{textEmbeds, convert(ids, m.DType)}, 1)
		emb = ml.Add(emb, nn.TimestepEmbedding(m.Ctx, "add_embedding", added, m.TimeEmbeddingDim, true))
	}
	return activate(m.TimeEmbeddingActFn, emb)
}

// timesteps is the sinusoidal embedding [N, channels], in float32, of t [N].
func (m *model) timesteps(t *ml.Node, channels int) *ml.Node {
	return nn.Timesteps(t, nn.TimestepsConfig{Channels: channels, FlipSinToCos: m.FlipSinToCos, DownscaleFreqShift: m.FreqShift})
}

// downBlock is CrossAttnDownBlock2D or DownBlock2D: the result and the skip connections it leaves, one a layer and one of the downsampler.
func (m *model) downBlock(i int, x, temb, text *ml.Node) (*ml.Node, []*ml.Node) {
	defer m.Enter(fmt.Sprintf("down_blocks.%d", i))()
	var states []*ml.Node
	for j := range m.LayersPerBlock[i] {
		x = m.resnet(j, x, temb, m.BlockOutChannels[i], 1)
		if strings.HasPrefix(m.DownBlockTypes[i], "CrossAttn") {
			x = m.transformer2D(j, x, text, i, m.OnlyCrossAttention[i])
		}
		states = append(states, x)
	}
	if i < len(m.DownBlockTypes)-1 {
		x = nn.Downsample2D(m.Ctx, "downsamplers.0", x, m.BlockOutChannels[i], m.DownsamplePadding)
		states = append(states, x)
	}
	return x, states
}

// midBlock is UNetMidBlock2DCrossAttn, UNetMidBlock2D without attention, or nothing.
func (m *model) midBlock(x, temb, text *ml.Node) *ml.Node {
	if m.MidBlockType == "" {
		return x
	}
	defer m.Enter("mid_block")()
	last := len(m.BlockOutChannels) - 1
	channels := m.BlockOutChannels[last]
	x = m.resnet(0, x, temb, channels, m.MidBlockScaleFactor)
	if m.MidBlockType == "UNetMidBlock2DCrossAttn" {
		x = m.transformer2D(0, x, text, last, false)
		x = m.resnet(1, x, temb, channels, m.MidBlockScaleFactor)
	}
	return x
}

// upLayers is the number of layers of up block i, one more than the down block beside it.
func (m *model) upLayers(i int) int { return m.LayersPerBlock[len(m.LayersPerBlock)-1-i] + 1 }

// upBlock is CrossAttnUpBlock2D or UpBlock2D; it takes the skip connections from the last on and upsamples to size.
func (m *model) upBlock(i int, x *ml.Node, skips []*ml.Node, temb, text *ml.Node, size [2]int) *ml.Node {
	defer m.Enter(fmt.Sprintf("up_blocks.%d", i))()
	down := len(m.UpBlockTypes) - 1 - i
	for j := range len(skips) {
		x = ml.Concatenate([]*ml.Node{x, skips[len(skips)-1-j]}, 3)
		x = m.resnet(j, x, temb, m.BlockOutChannels[down], 1)
		if strings.HasPrefix(m.UpBlockTypes[i], "CrossAttn") {
			x = m.transformer2D(j, x, text, down, m.OnlyCrossAttention[down])
		}
	}
	if down > 0 {
		x = nn.Upsample2D(m.Ctx, "upsamplers.0", x, m.BlockOutChannels[down], size[0], size[1])
	}
	return x
}

func (m *model) resnet(j int, x, temb *ml.Node, out int, scale float64) *ml.Node {
	return nn.ResnetBlock2D(m.Ctx, fmt.Sprintf("resnets.%d", j), x, temb, nn.ResnetBlock2DConfig{
		Out: out, Groups: m.NormNumGroups, Eps: m.NormEps,
		ScaleShift: m.ResnetTimeScaleShift == "scale_shift", OutputScaleFactor: scale,
	})
}

// transformer2D is Transformer2DModel over an image [B, H, W, C] of block, that is block_out_channels[block], beside a residual
// (models/transformers/transformer_2d.py). In this layout the projections are the same products whether stored as linear or 1x1 convolution.
func (m *model) transformer2D(j int, x, text *ml.Node, block int, onlyCross bool) *ml.Node {
	defer m.Enter(fmt.Sprintf("attentions.%d", j))()
	d := x.Shape().Dimensions
	project := func(name string, h *ml.Node) *ml.Node {
		if m.UseLinearProjection {
			return nn.Linear(m.Ctx, name, h, d[3], true)
		}
		return nn.Conv2D(m.Ctx, name, h, d[3], nn.Same(1))
	}
	h := project("proj_in", nn.GroupNorm(m.Ctx, "norm", x, m.NormNumGroups, 1e-6))
	h = ml.Reshape(h, d[0], d[1]*d[2], d[3])
	for k := range m.TransformerLayersPerBlock[block] {
		h = m.basicTransformerBlock(k, h, text, m.NumAttentionHeads[block], onlyCross)
	}
	return ml.Add(project("proj_out", ml.Reshape(h, d...)), x)
}

// basicTransformerBlock is BasicTransformerBlock of models/attention.py with norm_type "layer_norm": x [B, L, C], text [B, N, D].
func (m *model) basicTransformerBlock(k int, x, text *ml.Node, heads int, onlyCross bool) *ml.Node {
	defer m.Enter(fmt.Sprintf("transformer_blocks.%d", k))()
	h := m.layerNorm("norm1", x)
	if onlyCross {
		x = ml.Add(x, m.attention("attn1", h, text, heads))
	} else {
		x = ml.Add(x, m.attention("attn1", h, h, heads))
	}
	x = ml.Add(x, m.attention("attn2", m.layerNorm("norm2", x), text, heads))
	return ml.Add(x, nn.FeedForward(m.Ctx, "ff", m.layerNorm("norm3", x), 4*x.Shape().Dim(-1), "geglu"))
}

func (m *model) layerNorm(name string, x *ml.Node) *ml.Node {
	return nn.LayerNorm(m.Ctx, name, x, 1e-5, true)
}

// attention is Attention of models/attention_processor.py without biases on query, key and value: x [B, L, C] attends to context [B, N, D].
func (m *model) attention(name string, x, context *ml.Node, heads int) *ml.Node {
	defer m.Enter(name)()
	channels := x.Shape().Dim(-1)
	q := nn.Linear(m.Ctx, "to_q", x, channels, false)
	k := nn.Linear(m.Ctx, "to_k", context, channels, false)
	v := nn.Linear(m.Ctx, "to_v", context, channels, false)
	if m.UpcastAttention {
		q, k = convert(q, dtypes.Float32), convert(k, dtypes.Float32)
		v = convert(v, dtypes.Float32)
	}
	h := nn.Attention(nn.SplitHeads(q, heads), nn.SplitHeads(k, heads), nn.SplitHeads(v, heads), nn.AttentionConfig{})
	return nn.Linear(m.Ctx, "to_out.0", convert(nn.MergeHeads(h), x.DType()), channels, true)
}

func activate(name string, x *ml.Node) *ml.Node {
	if act, ok := nn.ActivationByName(name); ok {
		return act(x)
	}
	return x
}

func convert(x *ml.Node, dtype dtypes.DType) *ml.Node {
	if x.DType() == dtype {
		return x
	}
	return ml.ConvertDType(x, dtype)
}
