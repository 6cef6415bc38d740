package autoencoderklwan

import (
	"slices"

	"precast/graph/checkpoint"
)

// Config are the fields of AutoencoderKLWan's config.json, named as there. AutoencoderKLQwenImage has some of them.
type Config struct {
	// Class is the class's name in diffusers.
	Class string

	BaseDim, DecoderBaseDim int
	ZDim                    int
	DimMult                 []int
	NumResBlocks            int
	// TemporalDownsample says for each downsampling of height and width whether it halves the frames too; the file spells it
	// "temperal_downsample".
	TemporalDownsample []bool
	// InChannels and OutChannels count a pixel's channels after patchify: 3 PatchSize^2 for RGB.
	InChannels, OutChannels int
	// PatchSize is the side of the squares of pixels that patchify turns into channels; 1 for none.
	PatchSize int
	// IsResidual is Wan 2.2's form: blocks with a shortcut around their resampling.
	IsResidual bool

	// The networks of this package work on latents * LatentsStd + LatentsMean (one number a latent channel), latents being the denoiser's.
	LatentsMean, LatentsStd []float64
}

// The classes that this package serves.
const (
	ClassWan       = "AutoencoderKLWan"
	ClassQwenImage = "AutoencoderKLQwenImage"
)

// Bounds of num_res_blocks, dim_mult's length and its entries, and the numbers of channels; published models have 2, 4, 4 and 256.
const (
	maxLayers   = 256
	maxBlocks   = 8
	maxMultiple = 64
	maxWidth    = 1 << 16
)

// Defaults of diffusers, models/autoencoders/autoencoder_kl_wan.py.
var (
	defaultMean = []float64{
		-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508,
		0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921,
	}
	defaultStd = []float64{
		2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743,
		3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160,
	}
)

// ParseConfig reads the config of an AutoencoderKLWan or, where class is ClassQwenImage, an AutoencoderKLQwenImage. The error lists every field that
// is out of range, contradicts another, or asks for a part that this package does not have.
func ParseConfig(cfg *checkpoint.Config, class string) (Config, error) {
	c := Config{
		Class:              class,
		BaseDim:            cfg.PositiveInt("base_dim", 96),
		ZDim:               cfg.PositiveInt("z_dim", 16),
		DimMult:            cfg.PositiveInts("dim_mult", []int{1, 2, 4, 4}),
		NumResBlocks:       cfg.PositiveInt("num_res_blocks", 2),
		TemporalDownsample: cfg.Bools("temperal_downsample", []bool{false, true, true}),
		LatentsMean:        cfg.Floats("latents_mean", defaultMean),
		LatentsStd:         cfg.Floats("latents_std", defaultStd),
		PatchSize:          1,
	}
	c.DecoderBaseDim = c.BaseDim
	if class == ClassQwenImage {
		c.InChannels = cfg.PositiveInt("input_channels", 3)
		c.OutChannels = c.InChannels
	} else {
		c.DecoderBaseDim = cfg.PositiveInt("decoder_base_dim", c.BaseDim)
		c.InChannels = cfg.PositiveInt("in_channels", 3)
		c.OutChannels = cfg.PositiveInt("out_channels", 3)
		c.PatchSize = cfg.PositiveInt("patch_size", 1)
		c.IsResidual = cfg.Bool("is_residual", false)
	}
	if scales := cfg.Floats("attn_scales", nil); len(scales) > 0 {
		cfg.Problem("attn_scales", "not supported: found %v, wanted none; diffusers cannot run these blocks either", scales)
	}
	cfg.Float("dropout", 0) // training only
	c.checkBlocks(cfg)
	c.checkLatents(cfg)
	if class != ClassQwenImage {
		if n := cfg.PositiveInt("scale_factor_spatial", 8); n != c.SpatialFactor() {
			cfg.Problem("scale_factor_spatial", "found %d, wanted %d: 2 for each of the %d downsamplings, times patch_size %d",
				n, c.SpatialFactor(), len(c.DimMult)-1, c.PatchSize)
		}
		if n := cfg.PositiveInt("scale_factor_temporal", 4); n != c.TemporalFactor() {
			cfg.Problem("scale_factor_temporal", "found %d, wanted %d: 2 for each true in temperal_downsample", n, c.TemporalFactor())
		}
	}
	if err := cfg.Err(); err != nil {
		return Config{}, err
	}
	return c, nil
}

func (c *Config) checkBlocks(cfg *checkpoint.Config) {
	if c.NumResBlocks > maxLayers {
		cfg.Problem("num_res_blocks", "found %d, wanted at most %d", c.NumResBlocks, maxLayers)
	}
	for _, field := range []struct {
		key string
		n   int
	}{{"base_dim", c.BaseDim}, {"decoder_base_dim", c.DecoderBaseDim}, {"z_dim", c.ZDim}, {"in_channels", c.InChannels}, {"out_channels", c.OutChannels}} {
		if field.n > maxWidth {
			cfg.Problem(field.key, "found %d, wanted at most %d", field.n, maxWidth)
		}
	}
	switch n := len(c.DimMult); {
	case n > maxBlocks:
		cfg.Problem("dim_mult", "found %d blocks, wanted at most %d", n, maxBlocks)
	case slices.Max(c.DimMult) > maxMultiple:
		cfg.Problem("dim_mult", "found %v, wanted numbers up to %d", c.DimMult, maxMultiple)
	case len(c.TemporalDownsample) != n-1:
		cfg.Problem("temperal_downsample", "found %d values, wanted one fewer than dim_mult has blocks: %d", len(c.TemporalDownsample), n-1)
	}
	if p := c.PatchSize; p <= 64 && (c.InChannels%(p*p) != 0 || c.OutChannels%(p*p) != 0) {
		cfg.Problem("patch_size", "found %d with in_channels %d and out_channels %d, wanted multiples of its square", p, c.InChannels, c.OutChannels)
	} else if p > 64 {
		cfg.Problem("patch_size", "found %d, wanted at most 64", p)
	}
	if len(c.TemporalDownsample) != len(c.DimMult)-1 {
		return
	}
	for i, shape := range c.decoderBlocks() {
		if shape.in < 1 {
			cfg.Problem("decoder_base_dim", "found %d, too narrow: decoder block %d would have 0 channels", c.DecoderBaseDim, i)
		}
	}
	if !c.IsResidual {
		return
	}
	// The shortcuts of the residual form average, or repeat, a whole number of channels.
	for i, shape := range c.encoderBlocks() {
		if shape.in*shape.factor()%shape.out != 0 {
			cfg.Problem("dim_mult", "encoder block %d goes from %d channels to %d, wanted a divisor of %d times as many", i, shape.in, shape.out, shape.factor())
		}
	}
	for i, shape := range c.decoderBlocks() {
		if shape.spatial && shape.out*shape.factor()%shape.in != 0 {
			cfg.Problem("dim_mult", "decoder block %d goes from %d channels to %d, wanted a divisor of %d times as many", i, shape.in, shape.out, shape.factor())
		}
	}
}

func (c *Config) checkLatents(cfg *checkpoint.Config) {
	perChannel := func(key string, list []float64) {
		if len(list) != c.ZDim {
			cfg.Problem(key, "found %d numbers, wanted as many as latent channels (z_dim): %d", len(list), c.ZDim)
		}
	}
	perChannel("latents_mean", c.LatentsMean)
	perChannel("latents_std", c.LatentsStd)
	if slices.ContainsFunc(c.LatentsStd, func(v float64) bool { return v <= 0 }) {
		cfg.Problem("latents_std", "found %v, wanted numbers above 0", c.LatentsStd)
	}
}

// SpatialFactor is how many pixels a latent pixel stands for in height and width.
func (c *Config) SpatialFactor() int { return c.PatchSize << (len(c.DimMult) - 1) }

// TemporalFactor is how many frames a latent frame stands for, the first one excepted: it stands for one.
func (c *Config) TemporalFactor() int {
	factor := 1
	for _, down := range c.TemporalDownsample {
		if down {
			factor *= 2
		}
	}
	return factor
}

// blockShape is what a block of the encoder or decoder does to its input.
type blockShape struct {
	in, out           int  // channels
	spatial, temporal bool // whether it resamples height and width, and frames
}

// factor is the number of values of the finer video that one of the coarser stands for.
func (b blockShape) factor() int {
	factor := 1
	if b.spatial {
		factor *= 4
	}
	if b.temporal {
		factor *= 2
	}
	return factor
}

// encoderBlocks are the encoder's blocks in order.
func (c *Config) encoderBlocks() []blockShape {
	blocks, in := make([]blockShape, len(c.DimMult)), c.BaseDim
	for i, m := range c.DimMult {
		down := i < len(c.DimMult)-1
		blocks[i] = blockShape{in, c.BaseDim * m, down, down && c.TemporalDownsample[i]}
		in = c.BaseDim * m
	}
	return blocks
}

// decoderBlocks are the decoder's blocks in order.
func (c *Config) decoderBlocks() []blockShape {
	n := len(c.DimMult)
	blocks, in := make([]blockShape, n), c.DecoderBaseDim*c.DimMult[n-1]
	for i := range blocks {
		up := i < n-1
		blocks[i] = blockShape{in, c.DecoderBaseDim * c.DimMult[n-1-i], up, up && c.TemporalDownsample[n-2-i]}
		in = blocks[i].out
		if !c.IsResidual {
			in /= 2 // by the upsampler's convolution
		}
	}
	return blocks
}
