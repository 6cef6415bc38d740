package unet2d

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"precast/graph/checkpoint"
	"precast/graph/nn"
)

// Config are the fields of UNet2DConditionModel's config.json, named as there. Fields that may be one number or a list are lists
// with one element a down block.
type Config struct {
	// SampleSize is the height and width, in latent pixels, that the model was trained at; zero where the file does not say.
	SampleSize              [2]int
	InChannels, OutChannels int
	CenterInputSample       bool

	FlipSinToCos       bool
	FreqShift          float64
	TimeEmbeddingDim   int    // width of the time embedding
	TimeEmbeddingActFn string // applied to the whole time embedding; empty for none
	TimestepPostAct    string // applied to the timestep's part of it; empty for none

	DownBlockTypes, UpBlockTypes []string
	MidBlockType                 string // empty: there is no mid block
	BlockOutChannels             []int
	LayersPerBlock               []int
	DownsamplePadding            int
	MidBlockScaleFactor          float64
	NormNumGroups                int
	NormEps                      float64
	ResnetTimeScaleShift         string

	// NumAttentionHeads is what the file calls attention_head_dim: UNet2DConditionModel has always read that field as the number of
	// heads (https://github.com/huggingface/diffusers/issues/2011).
	NumAttentionHeads         []int
	TransformerLayersPerBlock []int
	CrossAttentionDim         int
	OnlyCrossAttention        []bool
	UseLinearProjection       bool
	UpcastAttention           bool

	// EncoderHidDim is the width of the encoder_hidden_states given where a projection brings them to CrossAttentionDim, else 0.
	EncoderHidDim int

	// AdditionTimeEmbedDim and ProjectionClassEmbeddingsInputDim are set for addition_embed_type "text_time" (SDXL): the width
	// of the embedding of one time id, and that of the pooled text with all six.
	AdditionTimeEmbedDim              int
	ProjectionClassEmbeddingsInputDim int

	ConvInKernel, ConvOutKernel int
}

// maxLayers bounds the layers of a block; published models have at most 10 transformer layers and 3 ResNet layers.
const maxLayers = 256

// maxWidth bounds the number of heads and widths, as PositiveInt does.
const maxWidth = 1 << 24

// timeIDs is how many numbers SDXL's time_ids holds for a picture: original size, crop, target size.
const timeIDs = 6

var (
	downBlockTypes = []string{"CrossAttnDownBlock2D", "DownBlock2D"}
	upBlockTypes   = []string{"CrossAttnUpBlock2D", "UpBlock2D"}
	midBlockTypes  = []string{"UNetMidBlock2DCrossAttn", "UNetMidBlock2D"}
)

// ParseConfig reads the config of a UNet2DConditionModel. The error lists every field that is out of range, contradicts another, or
// asks for a part that this package does not have.
func ParseConfig(cfg *checkpoint.Config) (Config, error) {
	c := Config{
		InChannels:        cfg.PositiveInt("in_channels", 4),
		OutChannels:       cfg.PositiveInt("out_channels", 4),
		CenterInputSample: cfg.Bool("center_input_sample", false),

		FlipSinToCos: cfg.Bool("flip_sin_to_cos", true),
		FreqShift:    cfg.Float("freq_shift", 0),

		DownBlockTypes:      blockTypes(cfg, "down_block_types", downBlockTypes, []string{"CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"}),
		UpBlockTypes:        blockTypes(cfg, "up_block_types", upBlockTypes, []string{"UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"}),
		BlockOutChannels:    cfg.PositiveInts("block_out_channels", []int{320, 640, 1280, 1280}),
		DownsamplePadding:   cfg.Int("downsample_padding", 1),
		MidBlockScaleFactor: cfg.PositiveFloat("mid_block_scale_factor", 1),
		NormNumGroups:       cfg.PositiveInt("norm_num_groups", 32),
		NormEps:             cfg.PositiveFloat("norm_eps", 1e-5),

		ResnetTimeScaleShift: oneOf(cfg, "resnet_time_scale_shift", "default", []string{"default", "scale_shift"}),
		TimeEmbeddingActFn:   oneOf(cfg, "time_embedding_act_fn", "", nn.ActivationNames()),
		TimestepPostAct:      oneOf(cfg, "timestep_post_act", "", nn.ActivationNames()),

		UseLinearProjection: cfg.Bool("use_linear_projection", false),
		UpcastAttention:     cfg.Bool("upcast_attention", false),

		ConvInKernel:  oddKernel(cfg, "conv_in_kernel"),
		ConvOutKernel: oddKernel(cfg, "conv_out_kernel"),
	}
	oneOf(cfg, "act_fn", "silu", []string{"silu", "swish"})
	switch size := cfg.IntOrInts("sample_size", nil); {
	case len(size) == 1 && size[0] > 0:
		c.SampleSize = [2]int{size[0], size[0]}
	case len(size) == 2 && size[0] > 0 && size[1] > 0:
		c.SampleSize = [2]int(size)
	case size != nil:
		cfg.Problem("sample_size", "found %v, wanted one positive number or a height and a width", size)
	}
	if c.DownsamplePadding < 0 || c.DownsamplePadding > 1 {
		cfg.Problem("downsample_padding", "found %d, wanted 0 or 1", c.DownsamplePadding)
	}
	if cfg.IsNull("mid_block_type") {
		c.MidBlockType = ""
	} else {
		c.MidBlockType = oneOf(cfg, "mid_block_type", midBlockTypes[0], midBlockTypes)
	}
	if cfg.IsNull("norm_num_groups") {
		cfg.Problem("norm_num_groups", "not supported: found null, wanted a number of groups")
	}

	blocks := len(c.DownBlockTypes)
	if len(c.UpBlockTypes) != blocks {
		cfg.Problem("up_block_types", "found %d blocks, wanted as many as down_block_types: %d", len(c.UpBlockTypes), blocks)
	}
	if len(c.BlockOutChannels) != blocks {
		cfg.Problem("block_out_channels", "found %d numbers, wanted one a block of down_block_types: %d", len(c.BlockOutChannels), blocks)
	}
	for i, channels := range c.BlockOutChannels {
		if channels%c.NormNumGroups != 0 {
			cfg.Problem("norm_num_groups", "found %d, wanted a divisor of block_out_channels[%d], %d", c.NormNumGroups, i, channels)
		}
	}
	c.LayersPerBlock = perBlock(cfg, "layers_per_block", blocks, 2, maxLayers)
	c.NumAttentionHeads = perBlock(cfg, "attention_head_dim", blocks, 8, maxWidth)
	if cfg.Has("num_attention_heads") {
		cfg.Problem("num_attention_heads", "not supported: found %s; diffusers refuses this field, the number of heads is given as attention_head_dim", cfg.Raw("num_attention_heads"))
	}
	for i := range min(len(c.NumAttentionHeads), len(c.BlockOutChannels)) {
		if heads := c.NumAttentionHeads[i]; c.BlockOutChannels[i]%heads != 0 && c.attends(i) {
			cfg.Problem("attention_head_dim", "found %d heads for block %d, wanted a divisor of its %d channels (the field is the number of heads)", heads, i, c.BlockOutChannels[i])
		}
	}
	c.parseTransformer(cfg, blocks)
	c.parseEmbeddings(cfg)
	readWithoutEffect(cfg)
	return c, cfg.Err()
}

// readWithoutEffect checks the types of the fields that matter in training, or that diffusers hands to block classes which are refused
// here only.
func readWithoutEffect(cfg *checkpoint.Config) {
	cfg.Float("dropout", 0)
	cfg.Bool("resnet_skip_time_act", false)
	cfg.Float("resnet_out_scale_factor", 1)
	cfg.Bool("mid_block_only_cross_attention", false)
	cfg.String("cross_attention_norm", "")
	cfg.PositiveInt("addition_embed_type_num_heads", 64)
	cfg.PositiveInt("addition_time_embed_dim", 0)
	cfg.PositiveInt("projection_class_embeddings_input_dim", 0)
}

// attends tells whether down block i, its up block or the mid block below it has attention.
func (c *Config) attends(i int) bool {
	n := len(c.DownBlockTypes)
	cross := func(types []string, i int) bool {
		return i >= 0 && i < len(types) && strings.HasPrefix(types[i], "CrossAttn")
	}
	return cross(c.DownBlockTypes, i) || cross(c.UpBlockTypes, n-1-i) || (i == n-1 && c.MidBlockType == "UNetMidBlock2DCrossAttn")
}

func (c *Config) parseTransformer(cfg *checkpoint.Config, blocks int) {
	var nested []json.RawMessage
	if json.Unmarshal(cfg.Raw("transformer_layers_per_block"), &nested) == nil && slices.ContainsFunc(nested, func(r json.RawMessage) bool { return r[0] == '[' }) {
		cfg.Problem("transformer_layers_per_block", "not supported: found %s, wanted one number a block", cfg.Raw("transformer_layers_per_block"))
	} else {
		c.TransformerLayersPerBlock = perBlock(cfg, "transformer_layers_per_block", blocks, 1, maxLayers)
	}
	unsupported(cfg, "reverse_transformer_layers_per_block", "null")

	dims := perBlock(cfg, "cross_attention_dim", blocks, 1280, maxWidth)
	if slices.Max(dims) != slices.Min(dims) {
		cfg.Problem("cross_attention_dim", "not supported: found %v, wanted one width for all blocks", dims)
	}
	c.CrossAttentionDim = dims[0]

	if raw := cfg.Raw("only_cross_attention"); len(raw) > 0 && raw[0] == '[' {
		c.OnlyCrossAttention = cfg.Bools("only_cross_attention", nil)
		if len(c.OnlyCrossAttention) != blocks {
			cfg.Problem("only_cross_attention", "found %d values, wanted one a block of down_block_types: %d", len(c.OnlyCrossAttention), blocks)
		}
	} else {
		c.OnlyCrossAttention = slices.Repeat([]bool{cfg.Bool("only_cross_attention", false)}, blocks)
	}
	unsupported(cfg, "dual_cross_attention", "false")
	unsupported(cfg, "attention_type", `"default"`)
}

func (c *Config) parseEmbeddings(cfg *checkpoint.Config) {
	unsupported(cfg, "time_embedding_type", `"positional"`)
	unsupported(cfg, "time_cond_proj_dim", "null")
	unsupported(cfg, "class_embed_type", "null")
	unsupported(cfg, "num_class_embeds", "null")
	unsupported(cfg, "class_embeddings_concat", "false")
	c.TimeEmbeddingDim = cfg.PositiveInt("time_embedding_dim", 4*c.BlockOutChannels[0])
	c.checkFrequencies(cfg, "block_out_channels", c.BlockOutChannels[0])

	c.EncoderHidDim = cfg.PositiveInt("encoder_hid_dim", 0)
	switch kind := cfg.String("encoder_hid_dim_type", ""); {
	case kind != "" && kind != "text_proj":
		cfg.Problem("encoder_hid_dim_type", "not supported: found %q, wanted null or \"text_proj\"", kind)
	case kind != "" && c.EncoderHidDim == 0:
		cfg.Problem("encoder_hid_dim", "found nothing, wanted the width of the text, for encoder_hid_dim_type is %q", kind)
	}

	switch kind := cfg.String("addition_embed_type", ""); kind {
	case "":
	case "text_time":
		c.AdditionTimeEmbedDim = cfg.RequireInt("addition_time_embed_dim")
		c.ProjectionClassEmbeddingsInputDim = cfg.RequireInt("projection_class_embeddings_input_dim")
		if c.AdditionTimeEmbedDim > 0 {
			c.checkFrequencies(cfg, "addition_time_embed_dim", c.AdditionTimeEmbedDim)
		}
		if least := timeIDs*c.AdditionTimeEmbedDim + 1; c.ProjectionClassEmbeddingsInputDim < least {
			cfg.Problem("projection_class_embeddings_input_dim", "found %d, wanted the pooled text's width and %d x addition_time_embed_dim: at least %d", c.ProjectionClassEmbeddingsInputDim, timeIDs, least)
		}
	default:
		cfg.Problem("addition_embed_type", "not supported: found %q, wanted null or \"text_time\"", kind)
	}
}

// checkFrequencies checks that a sinusoidal embedding of width dim exists: the exponents are divided by dim/2 - freq_shift.
func (c *Config) checkFrequencies(cfg *checkpoint.Config, key string, dim int) {
	if dim < 2 {
		cfg.Problem(key, "found %d, wanted at least 2 for a sinusoidal embedding", dim)
	} else if float64(dim/2) <= c.FreqShift {
		cfg.Problem("freq_shift", "found %v, wanted less than half of the embedding's width, %d", c.FreqShift, dim)
	}
}

// PooledDim is the width of text_embeds, 0 where the network has no such input.
func (c *Config) PooledDim() int {
	if c.AdditionTimeEmbedDim == 0 {
		return 0
	}
	return c.ProjectionClassEmbeddingsInputDim - timeIDs*c.AdditionTimeEmbedDim
}

// TextDim is the width of encoder_hidden_states.
func (c *Config) TextDim() int {
	if c.EncoderHidDim > 0 {
		return c.EncoderHidDim
	}
	return c.CrossAttentionDim
}

// blockTypes reads a list of block classes, each one of known. diffusers also takes the names with the prefix "UNetRes".
func blockTypes(cfg *checkpoint.Config, key string, known, def []string) []string {
	types := slices.Clone(cfg.Strings(key, def))
	if len(types) == 0 {
		cfg.Problem(key, "found an empty list, wanted one or more of %s", strings.Join(known, ", "))
		return def
	}
	for i, t := range types {
		types[i] = strings.TrimPrefix(t, "UNetRes")
		if !slices.Contains(known, types[i]) {
			cfg.Problem(fmt.Sprintf("%s[%d]", key, i), "not supported: found %q, wanted one of %s", t, strings.Join(known, ", "))
			types[i] = known[0]
		}
	}
	return types
}

// oneOf is cfg.OneOf with "not supported" in the message: diffusers has more values than this package.
func oneOf(cfg *checkpoint.Config, key, def string, choices []string) string {
	v := cfg.String(key, def)
	if v != def && !slices.Contains(choices, v) {
		cfg.Problem(key, "not supported: found %q, wanted one of %s", v, strings.Join(choices, ", "))
		return def
	}
	return v
}

// unsupported reports a field whose value is not the one this package has.
func unsupported(cfg *checkpoint.Config, key, only string) {
	if raw := cfg.Raw(key); raw != nil && string(raw) != only {
		cfg.Problem(key, "not supported: found %s, wanted %s", raw, only)
	}
}

func oddKernel(cfg *checkpoint.Config, key string) int {
	size := cfg.PositiveInt(key, 3)
	if size%2 == 0 {
		cfg.Problem(key, "not supported: found %d, wanted an odd size", size)
	}
	return size
}

// perBlock reads a field that is one positive number for all blocks or a list of one a block. limit bounds the numbers.
func perBlock(cfg *checkpoint.Config, key string, blocks, def, limit int) []int {
	fallback := slices.Repeat([]int{def}, blocks)
	v := cfg.IntOrInts(key, fallback)
	if raw := cfg.Raw(key); len(raw) > 0 && raw[0] != '[' && len(v) == 1 {
		v = slices.Repeat(v, blocks)
	}
	if len(v) != blocks {
		cfg.Problem(key, "found %d numbers, wanted one, or one a block of down_block_types: %d", len(v), blocks)
		return fallback
	}
	for _, n := range v {
		if n < 1 || n > limit {
			cfg.Problem(key, "found %d, wanted a number from 1 to %d", n, limit)
			return fallback
		}
	}
	return v
}
