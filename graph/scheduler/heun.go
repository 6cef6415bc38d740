package scheduler

// heun is HeunDiscreteScheduler (Karras et al., Elucidating the Design Space of Diffusion-Based Generative Models, algorithm 1
// without churn): each step but the last calls the denoiser at both ends and uses the mean of the derivatives.
type heun struct {
	exploding
	kind respacing
	// clip bounds the predicted clean sample, 0 for not.
	clip float64
}

func readHeun(f *fields) rule {
	d := f.diffusion(diffusionKeys{
		betaStart: 0.00085, betaEnd: 0.012, moreSchedules: []string{"exp"}, predictions: []string{"v_prediction", "sample"},
	})
	return &heun{
		exploding: exploding{d, spacing{kind: f.spacing("linspace"), train: d.train, offset: f.int("steps_offset", 0)}},
		kind:      f.respacing(),
		clip:      f.clipSample(false),
	}
}

func (s *heun) tables(o Options) (*tables, error) {
	if err := o.takes(given{timesteps: s.kind == asGiven}); err != nil {
		return nil, err
	}
	var timesteps []float64
	var err error
	if len(o.Timesteps) > 0 {
		timesteps, err = o.listed()
	} else {
		timesteps, err = s.spacing.inclusive(o.Steps)
	}
	if err != nil {
		return nil, err
	}
	round32(timesteps)
	all := s.sigmas()
	sigmas := interpolateAll(timesteps, all)
	if s.kind != asGiven {
		sigmas = sigmaLimits{}.spread(s.kind, sigmas, len(sigmas))
		timesteps = timestepsOf(sigmas, logs(all))
	}
	// Both ends of a step have an entry; the first and the last belong to one step only.
	t := &tables{}
	for i := range timesteps {
		t.timesteps = append(t.timesteps, timesteps[i])
		t.sigmas = append(t.sigmas, sigmas[i])
		if i > 0 {
			t.timesteps = append(t.timesteps, timesteps[i])
			t.sigmas = append(t.sigmas, sigmas[i])
		}
	}
	round32(t.timesteps)
	t.sigmas = round32(append(t.sigmas, 0))
	return s.complete(t), nil
}

func (s *heun) calls(t *tables, _ Options, b *builder) {
	const derivative, base = 0, 1 // of the first call of a step
	b.slots = 2
	for i := t.begin; i < len(t.timesteps); i++ { // t.begin is even
		c := b.step(t.timesteps[i])
		sigma := t.sigmas[i]
		x0 := s.clean(sigma, c.sample, c.output)
		if s.clip > 0 {
			x0 = c.clamp(x0, s.clip)
		}
		d := c.sample.sub(x0).div(sigma)
		if i%2 == 0 {
			c.keep(derivative, d)
			c.keep(base, c.sample)
			c.finish(c.sample.add(d.mul(t.sigmas[i+1] - sigma)))
		} else {
			mean := c.slot(derivative).add(d).div(2)
			c.finish(c.slot(base).add(mean.mul(sigma - t.sigmas[i-1])))
		}
	}
}
