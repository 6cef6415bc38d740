package wan

import "precast/graph/nn"

// ropeTheta is the base of the rotary frequencies, fixed in WanRotaryPosEmbed.
const ropeTheta = 10000

// RoPE returns the tables of the rotary position embedding for frames x h x w tokens, the last axis fastest: cos and sin, each
// [frames*h*w, HeadDim], row-major. A head's channels are split among frame, row and column: a third to each of the last two, rounded down to
// an even number, the rest to the first. (WanRotaryPosEmbed)
func RoPE(cfg Config, frames, h, w int) (cos, sin []float32) {
	side := 2 * (cfg.HeadDim / 6)
	t := nn.NewRotaryTables([]int{cfg.HeadDim - 2*side, side, side}, ropeTheta, frames*h*w)
	for f := range frames {
		for i := range h {
			for j := range w {
				t.Add(f, i, j)
			}
		}
	}
	return t.Cos, t.Sin
}
