package qwenimage

import "math"

// ropeTheta is the base of the rotary frequencies, fixed in QwenImageTransformer2DModel.
const ropeTheta = 10000

// MaxPositions is the number of positions that diffusers keeps frequencies of: FirstText and the text's length together stay below it.
const MaxPositions = 4096

// FirstText is the position of the first text token beside an image of h x w tokens, on all three axes.
func FirstText(h, w int) int { return max(h/2, w/2) }

// RoPE returns the tables of the rotary position embedding for text tokens followed by the h x w image tokens in rows: cos and sin, each
// [text + h*w, HeadDim], row-major, each angle twice. The image's coordinates are centred: the token of row i and column j is at
// (0, i - h + h/2, j - w + w/2), divided as integers. The text runs on along the diagonal from FirstText, so that no token of it is where
// the image is. Angles are computed in float64 (QwenEmbedRope with scale_rope).
func RoPE(cfg Config, text, h, w int) (cos, sin []float32) {
	n := (text + h*w) * cfg.HeadDim
	cos, sin = make([]float32, 0, n), make([]float32, 0, n)
	token := func(position [3]int) {
		for axis, dim := range cfg.RoPEAxes {
			for k := 0; k < dim; k += 2 {
				s, c := math.Sincos(float64(position[axis]) / math.Pow(ropeTheta, float64(k)/float64(dim)))
				cos = append(cos, float32(c), float32(c))
				sin = append(sin, float32(s), float32(s))
			}
		}
	}
	for i := range text {
		p := FirstText(h, w) + i
		token([3]int{p, p, p})
	}
	for i := range h {
		for j := range w {
			token([3]int{0, i - h + h/2, j - w + w/2})
		}
	}
	return cos, sin
}
