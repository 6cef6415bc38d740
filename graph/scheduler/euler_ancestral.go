package scheduler

import "math"

// eulerAncestral is EulerAncestralDiscreteScheduler: an Euler step below the next sigma, then noise up to it.
type eulerAncestral struct{ exploding }

func readEulerAncestral(f *fields) rule {
	d := f.diffusion(diffusionKeys{predictions: []string{"v_prediction"}, rescale: true, floorLastAlpha: true})
	return &eulerAncestral{exploding{d, spacing{kind: f.spacing("linspace"), train: d.train, offset: f.int("steps_offset", 0)}}}
}

func (s *eulerAncestral) tables(o Options) (*tables, error) {
	if err := o.takes(given{}); err != nil {
		return nil, err
	}
	timesteps, err := s.spacing.inclusive(o.Steps)
	if err != nil {
		return nil, err
	}
	round32(timesteps)
	sigmas := append(interpolateAll(timesteps, s.sigmas()), 0)
	return s.complete(&tables{timesteps: timesteps, sigmas: round32(sigmas)}), nil
}

func (s *eulerAncestral) calls(t *tables, _ Options, b *builder) {
	for i := t.begin; i < len(t.timesteps); i++ {
		c := b.step(t.timesteps[i])
		from, to := t.sigmas[i], t.sigmas[i+1]
		up := math.Sqrt(to * to * (from*from - to*to) / (from * from))
		down := math.Sqrt(to*to - up*up)
		derivative := c.sample.sub(s.clean(from, c.sample, c.output)).div(from)
		c.finish(c.sample.add(derivative.mul(down - from)).add(c.noise().mul(up)))
	}
}
