package autoencoderkl

import (
	"fmt"
	"slices"

	"precast/graph/checkpoint"
)

// Config are the fields of the config.json of AutoencoderKL and AutoencoderKLFlux2, named as there.
type Config struct {
	// Class is which of the two it is.
	Class string

	InChannels, OutChannels int
	LatentChannels          int
	BlockOutChannels        []int
	// DecoderBlockOutChannels are those of the decoder, from its last block to its first; only AutoencoderKLFlux2 can have others than BlockOutChannels.
	DecoderBlockOutChannels []int
	LayersPerBlock          int
	NormNumGroups           int
	UseQuantConv            bool
	UsePostQuantConv        bool
	MidBlockAddAttention    bool

	// SampleSize is the picture's height and width that the model was trained at.
	SampleSize [2]int
	// ForceUpcast asks that the networks run in float32 where the pipeline runs in float16: SDXL's overflow otherwise.
	ForceUpcast bool

	// The networks of this package work on unscaled latents; a pipeline decodes latents / ScalingFactor + ShiftFactor, or, where the file
	// has them, latents * LatentsStd / ScalingFactor + LatentsMean (one number a latent channel).
	ScalingFactor, ShiftFactor float64
	LatentsMean, LatentsStd    []float64

	// BatchNormEps is that of AutoencoderKLFlux2's statistics, which take the place of these: see NewUnpack.
	BatchNormEps float64
}

// maxLayers bounds layers_per_block, maxBlocks the number of blocks; published models have 2 or 3 and 4.
const (
	maxLayers = 256
	maxBlocks = 16
)

// ParseConfig reads the config of an AutoencoderKL. The error lists every field that is out of range, contradicts another, or asks
// for a part that this package does not have.
func ParseConfig(cfg *checkpoint.Config) (Config, error) {
	c := Config{
		Class:          "AutoencoderKL",
		ForceUpcast:    cfg.Bool("force_upcast", true),
		ScalingFactor:  cfg.PositiveFloat("scaling_factor", 0.18215),
		ShiftFactor:    cfg.Float("shift_factor", 0),
		LatentsMean:    cfg.Floats("latents_mean", nil),
		LatentsStd:     cfg.Floats("latents_std", nil),
		LatentChannels: cfg.PositiveInt("latent_channels", 4),
	}
	c.layers(cfg, []int{64}, 1, 32)
	c.DecoderBlockOutChannels = c.BlockOutChannels
	c.check(cfg)
	perLatentChannel(cfg, "latents_mean", c.LatentsMean, c.LatentChannels)
	perLatentChannel(cfg, "latents_std", c.LatentsStd, c.LatentChannels)
	if slices.ContainsFunc(c.LatentsStd, func(v float64) bool { return v <= 0 }) {
		cfg.Problem("latents_std", "found %v, wanted numbers above 0", c.LatentsStd)
	}
	return c, cfg.Err()
}

// ParseFlux2Config is ParseConfig for an AutoencoderKLFlux2 (diffusers, models/autoencoders/autoencoder_kl_flux2.py).
func ParseFlux2Config(cfg *checkpoint.Config) (Config, error) {
	c := Config{
		Class:          "AutoencoderKLFlux2",
		LatentChannels: cfg.PositiveInt("latent_channels", 32),
		BatchNormEps:   cfg.Float("batch_norm_eps", 1e-4),
	}
	c.layers(cfg, []int{128, 256, 512, 512}, 2, 1024)
	c.DecoderBlockOutChannels = cfg.PositiveInts("decoder_block_out_channels", c.BlockOutChannels)
	c.check(cfg)
	if c.BatchNormEps < 0 {
		cfg.Problem("batch_norm_eps", "found %g, wanted 0 or more", c.BatchNormEps)
	}
	// The momentum is for training alone.
	cfg.Float("batch_norm_momentum", 0.1)
	if size := cfg.IntOrInts("patch_size", []int{2, 2}); !slices.Equal(size, []int{2, 2}) {
		cfg.Problem("patch_size", "not supported: found %v, wanted [2 2], the patches of FLUX.2's transformer", size)
	}
	return c, cfg.Err()
}

// layers reads the fields that both classes have; their defaults differ.
func (c *Config) layers(cfg *checkpoint.Config, blocks []int, layers, sampleSize int) {
	c.InChannels = cfg.PositiveInt("in_channels", 3)
	c.OutChannels = cfg.PositiveInt("out_channels", 3)
	c.BlockOutChannels = cfg.PositiveInts("block_out_channels", blocks)
	c.LayersPerBlock = cfg.PositiveInt("layers_per_block", layers)
	c.NormNumGroups = cfg.PositiveInt("norm_num_groups", 32)
	c.UseQuantConv = cfg.Bool("use_quant_conv", true)
	c.UsePostQuantConv = cfg.Bool("use_post_quant_conv", true)
	c.MidBlockAddAttention = cfg.Bool("mid_block_add_attention", true)
	switch size := cfg.IntOrInts("sample_size", []int{sampleSize}); {
	case len(size) == 1 && size[0] > 0:
		c.SampleSize = [2]int{size[0], size[0]}
	case len(size) == 2 && size[0] > 0 && size[1] > 0:
		c.SampleSize = [2]int(size)
	default:
		cfg.Problem("sample_size", "found %v, wanted one positive number or a height and a width", size)
	}
}

// check checks what layers read, and DecoderBlockOutChannels.
func (c *Config) check(cfg *checkpoint.Config) {
	if act := cfg.String("act_fn", "silu"); act != "silu" && act != "swish" {
		cfg.Problem("act_fn", "not supported: found %q, wanted \"silu\"", act)
	}
	if c.LayersPerBlock > maxLayers {
		cfg.Problem("layers_per_block", "found %d, wanted at most %d", c.LayersPerBlock, maxLayers)
	}
	if n := len(c.BlockOutChannels); n > maxBlocks {
		cfg.Problem("block_out_channels", "found %d blocks, wanted at most %d", n, maxBlocks)
	}
	if n := len(c.DecoderBlockOutChannels); n != len(c.BlockOutChannels) {
		cfg.Problem("decoder_block_out_channels", "found %d blocks, wanted as many as block_out_channels: %d", n, len(c.BlockOutChannels))
	}
	for i, channels := range c.BlockOutChannels {
		if channels%c.NormNumGroups != 0 {
			cfg.Problem("norm_num_groups", "found %d, wanted a divisor of block_out_channels[%d], %d", c.NormNumGroups, i, channels)
		}
	}
	if !slices.Equal(c.DecoderBlockOutChannels, c.BlockOutChannels) {
		for i, channels := range c.DecoderBlockOutChannels {
			if channels%c.NormNumGroups != 0 {
				cfg.Problem("norm_num_groups", "found %d, wanted a divisor of decoder_block_out_channels[%d], %d", c.NormNumGroups, i, channels)
			}
		}
	}
	blockTypes(cfg, "down_block_types", "DownEncoderBlock2D", c.Class, len(c.BlockOutChannels))
	blockTypes(cfg, "up_block_types", "UpDecoderBlock2D", c.Class, len(c.BlockOutChannels))
}

// ScaleFactor is how many pixels a latent pixel stands for in each axis.
func (c *Config) ScaleFactor() int { return 1 << (len(c.BlockOutChannels) - 1) }

// blockTypes checks a list of block classes: as many as blocks, all of the one class there is here. Absent means one block, or the four of AutoencoderKLFlux2.
func blockTypes(cfg *checkpoint.Config, key, class, of string, blocks int) {
	def := []string{class}
	if of == "AutoencoderKLFlux2" {
		def = slices.Repeat(def, 4)
	}
	types := cfg.Strings(key, def)
	if len(types) != blocks {
		cfg.Problem(key, "found %d blocks, wanted as many as block_out_channels: %d", len(types), blocks)
	}
	for i, t := range types {
		if t != class {
			cfg.Problem(fmt.Sprintf("%s[%d]", key, i), "not supported: found %q, wanted %q", t, class)
		}
	}
}

func perLatentChannel(cfg *checkpoint.Config, key string, list []float64, channels int) {
	if list != nil && len(list) != channels {
		cfg.Problem(key, "found %d numbers, wanted as many as latent_channels: %d", len(list), channels)
	}
}
