package flux2

import "precast/graph/nn"

// RoPE returns the tables of the rotary position embedding for text tokens followed by the h x w image tokens in rows: cos and sin,
// each [text + h*w, HeadDim], row-major. A position is time, row, column, text position: text token l is at (0, 0, 0, l), the image token of
// row i and column j at (0, i, j, 0). (Flux2PosEmbed; _prepare_text_ids and _prepare_latent_ids in pipelines/flux2)
func RoPE(cfg Config, text, h, w int) (cos, sin []float32) {
	t := nn.NewRotaryTables(cfg.RoPEAxes, cfg.RoPETheta, text+h*w)
	for l := range text {
		t.Add(0, 0, 0, l)
	}
	for i := range h {
		for j := range w {
			t.Add(0, i, j, 0)
		}
	}
	return t.Cos, t.Sin
}
