package flux

import "math"

// ropeTheta is the base of the rotary frequencies, fixed in FluxPosEmbed.
const ropeTheta = 10000

// RoPE returns the tables of the rotary position embedding for text tokens followed by the h x w image tokens in rows: cos and sin,
// each [text + h*w, HeadDim], row-major. Text tokens are at (0, 0, 0), the image token of row i and column j at (0, i, j). Angles
// are computed in float64 (FluxPosEmbed; prepare_latent_image_ids in pipelines/flux).
func RoPE(cfg Config, text, h, w int) (cos, sin []float32) {
	n := (text + h*w) * cfg.HeadDim
	cos, sin = make([]float32, 0, n), make([]float32, 0, n)
	token := func(position [3]float64) {
		for axis, dim := range cfg.RoPEAxes {
			for k := 0; k < dim; k += 2 {
				s, c := math.Sincos(position[axis] / math.Pow(ropeTheta, float64(k)/float64(dim)))
				cos = append(cos, float32(c), float32(c))
				sin = append(sin, float32(s), float32(s))
			}
		}
	}
	for range text {
		token([3]float64{})
	}
	for i := range h {
		for j := range w {
			token([3]float64{0, float64(i), float64(j)})
		}
	}
	return cos, sin
}
