package zimage

import (
	"fmt"
	"math"
)

// multiple is what the lengths of prompt and picture are padded to (SEQ_MULTI_OF).
const multiple = 32

// padded rounds n up to a multiple.
func padded(n int) int { return (n + multiple - 1) / multiple * multiple }

// RoPE returns the tables of the rotary position embedding for the tokens of an h x w picture in rows with their padding, followed by those of a prompt
// of text tokens with padding up to textLength: cos and sin, each [padded(h*w) + padded(textLength), HeadDim], row-major.
//
// Token i of the prompt is at (1 + i, 0, 0), and so is its padding; the picture's token of row i and column j is at (1 + padded(text), i, j),
// its padding at the origin. Angles are rounded to float32 before sine and cosine (patchify_and_embed, RopeEmbedder). The error
// says what the model has no position for.
func RoPE(cfg Config, h, w, text, textLength int) (cos, sin []float32, err error) {
	if err := cfg.CheckText(text); err != nil {
		return nil, nil, err
	}
	if err := checkGrid(cfg, h, w); err != nil {
		return nil, nil, err
	}
	n := (padded(h*w) + padded(textLength)) * cfg.HeadDim()
	cos, sin = make([]float32, 0, n), make([]float32, 0, n)
	token := func(position ...int) {
		for axis, dim := range cfg.RoPEAxes {
			for k := 0; k < dim; k += 2 {
				angle := float32(float64(position[axis]) / math.Pow(cfg.RoPETheta, float64(k)/float64(dim)))
				s, c := math.Sincos(float64(angle))
				cos = append(cos, float32(c), float32(c))
				sin = append(sin, float32(s), float32(s))
			}
		}
	}
	for i := range h {
		for j := range w {
			token(1+padded(text), i, j)
		}
	}
	for range padded(h*w) - h*w {
		token(0, 0, 0)
	}
	for i := range padded(textLength) {
		token(1+i, 0, 0)
	}
	return cos, sin, nil
}

// MaxText is the longest prompt that the model has positions for, in tokens: the picture's come behind it.
func (c Config) MaxText() int { return (c.RoPELengths[0] - 2) / multiple * multiple }

// CheckText says that a prompt of text tokens is too long for the model.
func (c Config) CheckText(text int) error {
	if text > c.MaxText() {
		return fmt.Errorf("the prompt has %d tokens; wanted at most %d, for which the transformer has positions (axes_lens %v)", text, c.MaxText(), c.RoPELengths)
	}
	return nil
}

// checkGrid says where an h x w picture of tokens leaves the positions that the model has.
func checkGrid(cfg Config, h, w int) error {
	if h > cfg.RoPELengths[1] || w > cfg.RoPELengths[2] {
		return fmt.Errorf("a picture of %d x %d tokens is too large; wanted at most %d x %d, for which the transformer has positions (axes_lens %v)",
			h, w, cfg.RoPELengths[1], cfg.RoPELengths[2], cfg.RoPELengths)
	}
	return nil
}

// Masks returns the inputs text_mask and text_keys for a prompt of text tokens in textLength: see New.
func Masks(text, textLength int) (mask, keys []int32) {
	mask, keys = make([]int32, textLength), make([]int32, padded(textLength))
	for i := range text {
		mask[i] = 1
	}
	for i := range padded(text) {
		keys[i] = 1
	}
	return mask, keys
}
