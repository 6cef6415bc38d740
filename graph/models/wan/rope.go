package wan

import "math"

// ropeTheta is the base of the rotary frequencies, fixed in WanRotaryPosEmbed.
const ropeTheta = 10000

// RoPE returns the tables of the rotary position embedding for frames x h x w tokens, the last axis fastest: cos and sin, each
// [frames*h*w, HeadDim], row-major. A head's channels are split among frame, row and column: a third to each of the last two, rounded down to
// an even number, the rest to the first. Angles are computed in float64 (WanRotaryPosEmbed).
func RoPE(cfg Config, frames, h, w int) (cos, sin []float32) {
	side := 2 * (cfg.HeadDim / 6)
	dims := [3]int{cfg.HeadDim - 2*side, side, side}
	// Along an axis there are few positions, so each has its row made once.
	var rows [3][][2][]float32
	for axis, n := range [3]int{frames, h, w} {
		rows[axis] = make([][2][]float32, n)
		for i := range rows[axis] {
			row := &rows[axis][i]
			for k := 0; k < dims[axis]; k += 2 {
				s, c := math.Sincos(float64(i) / math.Pow(ropeTheta, float64(k)/float64(dims[axis])))
				row[0] = append(row[0], float32(c), float32(c))
				row[1] = append(row[1], float32(s), float32(s))
			}
		}
	}
	n := frames * h * w * cfg.HeadDim
	cos, sin = make([]float32, 0, n), make([]float32, 0, n)
	for f := range frames {
		for i := range h {
			for j := range w {
				for axis, position := range [3]int{f, i, j} {
					cos = append(cos, rows[axis][position][0]...)
					sin = append(sin, rows[axis][position][1]...)
				}
			}
		}
	}
	return cos, sin
}
