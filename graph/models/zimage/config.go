// Package zimage has Z-Image's transformer (diffusers, models/transformers/transformer_z_image.py) in its basic mode: one picture from one
// prompt.
package zimage

import (
	"precast/graph/checkpoint"
)

// Config has the fields of ZImageTransformer2DModel's config.json that the forward pass uses. n_kv_heads is none of them: diffusers has as many
// heads of keys as of queries.
type Config struct {
	InChannels    int
	Dim           int // the width of the stream
	Layers        int
	RefinerLayers int // blocks for the picture alone, and as many for the prompt alone
	Heads         int
	NormEps       float64
	QKNorm        bool
	CaptionDim    int // cap_feat_dim, the width of encoder_hidden_states
	RoPETheta     float64
	TimeScale     float64 // t_scale
	// RoPEAxes splits a head's channels among the three coordinates of a position, each below its RoPELengths.
	RoPEAxes    []int
	RoPELengths []int
}

// HeadDim is the width of a head.
func (c Config) HeadDim() int { return c.Dim / c.Heads }

// patchSize is the side of the patches of latents; the pipeline passes no other (ZImageTransformer2DModel.forward's defaults).
const patchSize = 2

// ParseConfig reads a transformer's config.json. Its error lists every bad field.
func ParseConfig(c *checkpoint.Config) (Config, error) {
	cfg := Config{
		InChannels:    c.PositiveInt("in_channels", 16),
		Dim:           c.PositiveInt("dim", 3840),
		Layers:        c.IntIn("n_layers", 30, 0, 1000),
		RefinerLayers: c.IntIn("n_refiner_layers", 2, 0, 1000),
		Heads:         c.PositiveInt("n_heads", 30),
		NormEps:       c.PositiveFloat("norm_eps", 1e-5),
		QKNorm:        c.Bool("qk_norm", true),
		CaptionDim:    c.PositiveInt("cap_feat_dim", 2560),
		RoPETheta:     c.PositiveFloat("rope_theta", 256),
		TimeScale:     c.PositiveFloat("t_scale", 1000),
		RoPELengths:   c.PositiveInts("axes_lens", []int{1024, 512, 512}),
	}
	if cfg.Dim%cfg.Heads != 0 {
		c.Problem("dim", "found %d, wanted a multiple of n_heads %d", cfg.Dim, cfg.Heads)
	}
	cfg.RoPEAxes = c.RoPEAxes("axes_dims", []int{32, 48, 48}, "dim/n_heads", cfg.HeadDim())
	if len(cfg.RoPELengths) != 3 || cfg.RoPELengths[0] < multiple+2 {
		c.Problem("axes_lens", "found %v, wanted 3 numbers, the first at least %d", cfg.RoPELengths, multiple+2)
	}
	checkPatches(c)
	if err := c.Err(); err != nil {
		return Config{}, err
	}
	return cfg, nil
}

// checkPatches wants the pair of patch sizes that the pipeline works with.
func checkPatches(c *checkpoint.Config) {
	sides, frames := c.PositiveInts("all_patch_size", []int{patchSize}), c.PositiveInts("all_f_patch_size", []int{1})
	if len(sides) != len(frames) {
		c.Problem("all_f_patch_size", "found %v, wanted as many numbers as all_patch_size %v", frames, sides)
		return
	}
	for i, side := range sides {
		if side == patchSize && frames[i] == 1 {
			return
		}
	}
	c.Problem("all_patch_size", "found %v with all_f_patch_size %v, wanted %d with 1 at one place", sides, frames, patchSize)
}
