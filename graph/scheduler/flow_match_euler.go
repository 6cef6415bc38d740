package scheduler

import "fmt"

// flowMatchEuler is FlowMatchEulerDiscreteScheduler: Euler's method along the straight path between noise (sigma 1) and sample
// (sigma 0), whose velocity the model predicts.
type flowMatchEuler struct {
	train     int
	shift     float64
	dynamic   bool
	shiftKind string
	terminal  *float64
	kind      respacing
	invert    bool
	// stochastic replaces Euler's step by drawing fresh noise at the next level.
	stochastic bool
}

func readFlowMatchEuler(f *fields) rule {
	s := &flowMatchEuler{
		train:      f.int("num_train_timesteps", 1000),
		shift:      f.positive("shift", 1),
		dynamic:    f.bool("use_dynamic_shifting", false),
		shiftKind:  f.oneOf("time_shift_type", "exponential", "exponential", "linear"),
		terminal:   f.shiftTerminal(),
		kind:       f.respacing(),
		invert:     f.bool("invert_sigmas", false),
		stochastic: f.bool("stochastic_sampling", false),
	}
	if s.train < 1 || s.train > maxTrainTimesteps {
		f.problem("num_train_timesteps", "found %d, wanted an integer from 1 to %d", s.train, maxTrainTimesteps)
	}
	// These serve the pipelines: see ShiftRange.
	f.ignored("base_shift", "max_shift", "base_image_seq_len", "max_image_seq_len")
	return s
}

// shiftTerminal reads the value the last sigma is stretched to; 0 and absent mean none.
func (f *fields) shiftTerminal() *float64 {
	v := f.optional("shift_terminal")
	if v == nil || *v == 0 {
		return nil
	}
	if *v < 0 || *v >= 1 {
		f.problem("shift_terminal", "found %v, wanted a number from 0 to below 1", *v)
	}
	return v
}

func (s *flowMatchEuler) tables(o Options) (*tables, error) {
	if err := o.takes(given{sigmas: true, timesteps: true, mu: true}); err != nil {
		return nil, err
	}
	if s.dynamic && o.Mu == nil {
		return nil, fmt.Errorf("mu: found none, wanted a number, as use_dynamic_shifting is true")
	}
	train := float64(s.train)
	n := o.count()
	if len(o.Sigmas) > 0 && len(o.Sigmas) != n {
		return nil, fmt.Errorf("found %d sigmas and %d steps, wanted as many", len(o.Sigmas), n)
	}
	if len(o.Timesteps) > 0 && len(o.Timesteps) != n {
		return nil, fmt.Errorf("found %d timesteps and %d steps, wanted as many", len(o.Timesteps), n)
	}
	var sigmas []float64
	switch {
	case len(o.Sigmas) > 0:
		sigmas = round32(append([]float64(nil), o.Sigmas...))
	case len(o.Timesteps) > 0:
		for _, t := range o.Timesteps {
			sigmas = append(sigmas, t/train)
		}
	default:
		// The ends of the range are the shifted ends of the training's, and the sigmas between are shifted once more below.
		high, low := 1.0, 1/train
		if !s.dynamic {
			high, low = shiftSigma(high, s.shift), shiftSigma(low, s.shift)
		}
		sigmas = linspace(float64(float32(high))*train, float64(float32(low))*train, n)
		for i := range sigmas {
			sigmas[i] /= train
		}
	}
	if s.dynamic {
		timeShift(s.shiftKind, *o.Mu, sigmas)
	} else {
		for i, v := range sigmas {
			if len(o.Sigmas) > 0 {
				sigmas[i] = float64(shiftSigma32(float32(v), float32(s.shift), float32(s.shift-1)))
			} else {
				sigmas[i] = shiftSigma(v, s.shift)
			}
		}
	}
	if s.terminal != nil {
		if err := stretchToTerminal(sigmas, *s.terminal); err != nil {
			return nil, err
		}
	}
	if s.kind != asGiven {
		sigmas = s.kind.spread(sigmas[0], sigmas[n-1], n)
	}
	round32(sigmas)
	end := 0.0
	if s.invert {
		end = 1
		for i, v := range sigmas {
			sigmas[i] = 1 - v
		}
	}
	t := &tables{initNoiseSigma: 1, sigmas: append(sigmas, end)}
	if len(o.Timesteps) > 0 && !s.invert {
		t.timesteps = round32(append([]float64(nil), o.Timesteps...))
	} else {
		for _, v := range sigmas {
			t.timesteps = append(t.timesteps, v*train)
		}
		round32(t.timesteps)
	}
	return t, nil
}

func (s *flowMatchEuler) usesDynamicShifting() bool { return s.dynamic }

func (s *flowMatchEuler) start(t *tables, i int, _ *builder) (sample, noise float64) {
	return 1 - t.sigmas[i], t.sigmas[i]
}

func (s *flowMatchEuler) calls(t *tables, _ Options, b *builder) {
	for i := t.begin; i < len(t.timesteps); i++ {
		c := b.step(t.timesteps[i])
		sigma, next := t.sigmas[i], t.sigmas[i+1]
		if s.stochastic {
			x0 := c.sample.sub(c.output.mul(sigma))
			c.finish(x0.mul(1 - next).add(c.noise().mul(next)))
		} else {
			c.finish(c.sample.add(c.output.mul(next - sigma)))
		}
	}
}
