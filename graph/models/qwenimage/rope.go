package qwenimage

import "precast/graph/nn"

// ropeTheta is the base of the rotary frequencies, fixed in QwenImageTransformer2DModel.
const ropeTheta = 10000

// MaxPositions is the number of positions that diffusers keeps frequencies of: FirstText and the text's length together stay below it.
const MaxPositions = 4096

// FirstText is the position of the first text token beside an image of h x w tokens, on all three axes.
func FirstText(h, w int) int { return max(h/2, w/2) }

// RoPE returns the tables of the rotary position embedding for text tokens followed by the h x w image tokens in rows: cos and sin, each
// [text + h*w, HeadDim], row-major, each angle twice. The image's coordinates are centred: the token of row i and column j is at
// (0, i - h + h/2, j - w + w/2), divided as integers. The text runs on along the diagonal from FirstText, so that no token of it is where
// the image is. (QwenEmbedRope with scale_rope)
func RoPE(cfg Config, text, h, w int) (cos, sin []float32) {
	t := nn.NewRotaryTables(cfg.RoPEAxes, ropeTheta, text+h*w)
	for i := range text {
		p := FirstText(h, w) + i
		t.Add(p, p, p)
	}
	for i := range h {
		for j := range w {
			t.Add(0, i-h+h/2, j-w+w/2)
		}
	}
	return t.Cos, t.Sin
}
