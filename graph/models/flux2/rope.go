package flux2

import "math"

// RoPE returns the tables of the rotary position embedding for text tokens followed by the h x w image tokens in rows: cos and sin,
// each [text + h*w, HeadDim], row-major. A position is time, row, column, text position: text token l is at (0, 0, 0, l), the image token of row i and
// column j at (0, i, j, 0). Angles are computed in float64. (Flux2PosEmbed; _prepare_text_ids and _prepare_latent_ids in pipelines/flux2)
func RoPE(cfg Config, text, h, w int) (cos, sin []float32) {
	n := (text + h*w) * cfg.HeadDim
	cos, sin = make([]float32, 0, n), make([]float32, 0, n)
	token := func(position [coordinates]int) {
		for axis, dim := range cfg.RoPEAxes {
			for k := 0; k < dim; k += 2 {
				s, c := math.Sincos(float64(position[axis]) / math.Pow(cfg.RoPETheta, float64(k)/float64(dim)))
				cos = append(cos, float32(c), float32(c))
				sin = append(sin, float32(s), float32(s))
			}
		}
	}
	for l := range text {
		token([coordinates]int{3: l})
	}
	for i := range h {
		for j := range w {
			token([coordinates]int{1: i, 2: j})
		}
	}
	return cos, sin
}
