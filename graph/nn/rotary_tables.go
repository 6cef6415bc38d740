package nn

import "math"

// RotaryTables are the tables of a rotary position embedding whose positions have several coordinates, row, column and the like, as NewRotary takes
// them: [tokens, D] each, row-major. Each coordinate turns channels of its own, with frequencies theta^(-2k/d) for its d channels
// (get_1d_rotary_pos_embed in diffusers, models/embeddings.py). Angles are computed in float64.
type RotaryTables struct {
	Cos, Sin []float32
	// RoundAngles rounds angles to float32 before sine and cosine.
	RoundAngles bool

	axes  []int
	theta float64
	// rows has, by coordinate, what a position's channels are: there are few positions along an axis and many tokens.
	rows []map[int]rotaryRow
}

type rotaryRow struct{ cos, sin []float32 }

// NewRotaryTables makes empty tables with room for so many tokens. axes has the channels of each coordinate, even numbers.
func NewRotaryTables(axes []int, theta float64, tokens int) *RotaryTables {
	t := &RotaryTables{axes: axes, theta: theta}
	dim := 0
	for _, d := range axes {
		dim += d
		t.rows = append(t.rows, map[int]rotaryRow{})
	}
	t.Cos, t.Sin = make([]float32, 0, tokens*dim), make([]float32, 0, tokens*dim)
	return t
}

// Add appends a token at a position, a number for each coordinate.
func (t *RotaryTables) Add(position ...int) {
	for axis, dim := range t.axes {
		row, ok := t.rows[axis][position[axis]]
		if !ok {
			for k := 0; k < dim; k += 2 {
				angle := float64(position[axis]) / math.Pow(t.theta, float64(k)/float64(dim))
				if t.RoundAngles {
					angle = float64(float32(angle))
				}
				s, c := math.Sincos(angle)
				row.cos = append(row.cos, float32(c), float32(c))
				row.sin = append(row.sin, float32(s), float32(s))
			}
			t.rows[axis][position[axis]] = row
		}
		t.Cos, t.Sin = append(t.Cos, row.cos...), append(t.Sin, row.sin...)
	}
}
