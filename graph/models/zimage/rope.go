package zimage

import (
	"fmt"

	"precast/graph/nn"
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
	t := nn.NewRotaryTables(cfg.RoPEAxes, cfg.RoPETheta, padded(h*w)+padded(textLength))
	t.RoundAngles = true
	for i := range h {
		for j := range w {
			t.Add(1+padded(text), i, j)
		}
	}
	for range padded(h*w) - h*w {
		t.Add(0, 0, 0)
	}
	for i := range padded(textLength) {
		t.Add(1+i, 0, 0)
	}
	return t.Cos, t.Sin, nil
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
