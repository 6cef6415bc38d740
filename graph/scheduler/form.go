package scheduler

import (
	"math"
	"slices"
)

// form is a linear combination of the operands W of a step: one factor a column.
type form []float64

func (f form) mul(c float64) form {
	out := make(form, len(f))
	for i, v := range f {
		if v != 0 { // an infinite c must not turn absent terms into NaN
			out[i] = v * c
		}
	}
	return out
}

func (f form) div(c float64) form { return f.mul(1 / c) }

func (f form) add(g form) form {
	out := slices.Clone(f)
	for i, v := range g {
		out[i] += v
	}
	return out
}

func (f form) sub(g form) form { return f.add(g.mul(-1)) }

// step is one call under construction. Its forms refer to the operands before the step.
type step struct {
	slots int
	call  Call
	// sample and output are the latents given to the denoiser (unscaled) and its output.
	sample, output form
	rows           []form
}

func (s *step) unit(column int) form {
	f := make(form, Columns(s.slots))
	f[column] = 1
	return f
}

// noise is the step's draw of standard normal noise.
func (s *step) noise() form {
	s.call.NeedsNoise = true
	return s.unit(2)
}

// slot is what an earlier step kept in slot k.
func (s *step) slot(k int) form { return s.unit(3 + k) }

// keep stores f in slot k for the next step. A slot that is not kept becomes zero.
func (s *step) keep(k int, f form) { s.rows[3+k] = f }

// clamp bounds f, the class's prediction of the clean sample, to [-limit, limit]. A step clamps at most once.
func (s *step) clamp(f form, limit float64) form {
	s.rows[0] = f
	s.call.Lo, s.call.Hi = -limit, limit
	return s.unit(3 + s.slots)
}

// finish sets the step's result.
func (s *step) finish(prev form) { s.rows[1] = prev }

// builder collects the steps of a run.
type builder struct {
	slots int
	steps []*step
	// err is the first fault; the steps after it do not matter.
	err error
}

// fail records the first fault of the number of steps.
func (b *builder) fail(format string, args ...any) {
	if b.err == nil {
		b.err = stepCountErrorf(format, args...)
	}
}

// step begins the call at timestep.
func (b *builder) step(timestep float64) *step {
	s := &step{slots: b.slots, call: Call{Timestep: timestep, Lo: math.Inf(-1), Hi: math.Inf(1)}}
	s.sample, s.output = s.unit(0), s.unit(1)
	for range Rows(b.slots) {
		s.rows = append(s.rows, make(form, Columns(b.slots)))
	}
	b.steps = append(b.steps, s)
	return s
}

// schedule checks the steps and puts them together.
func (b *builder) schedule(t *tables) (*Schedule, error) {
	if b.err != nil {
		return nil, b.err
	}
	out := &Schedule{
		Timesteps: t.timesteps[t.begin:], IntegerTimesteps: t.integer, Sigmas: t.sigmas, InitNoiseSigma: t.initNoiseSigma, Slots: b.slots,
	}
	if t.sigmas != nil {
		out.Sigmas = t.sigmas[t.begin:]
	}
	scale := func(i int) float64 {
		if i += t.begin; i >= len(t.inputScales) {
			return 1
		}
		return t.inputScales[i]
	}
	out.InputScale = scale(0)
	for i, s := range b.steps {
		s.call.InputScale = scale(i)
		out.ScalesInput = out.ScalesInput || s.call.InputScale != 1
		s.rows[2] = s.rows[1].mul(scale(i + 1))
		for _, row := range s.rows {
			if i := slices.IndexFunc(row, func(v float64) bool { return !finite(float64(float32(v))) }); i >= 0 {
				return nil, stepCountErrorf("the step at timestep %v has a coefficient of %v", s.call.Timestep, row[i])
			}
			s.call.Coefficients = append(s.call.Coefficients, row)
		}
		out.Calls = append(out.Calls, s.call)
	}
	return out, nil
}
