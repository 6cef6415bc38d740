package flux

import "precast/graph/nn"

// ropeTheta is the base of the rotary frequencies, fixed in FluxPosEmbed.
const ropeTheta = 10000

// RoPE returns the tables of the rotary position embedding for text tokens followed by the h x w image tokens in rows: cos and sin,
// each [text + h*w, HeadDim], row-major. Text tokens are at (0, 0, 0), the image token of row i and column j at (0, i, j). (FluxPosEmbed;
// prepare_latent_image_ids in pipelines/flux)
func RoPE(cfg Config, text, h, w int) (cos, sin []float32) {
	t := nn.NewRotaryTables(cfg.RoPEAxes, ropeTheta, text+h*w)
	for range text {
		t.Add(0, 0, 0)
	}
	for i := range h {
		for j := range w {
			t.Add(0, i, j)
		}
	}
	return t.Cos, t.Sin
}
