package scheduler

import (
	"math"
	"slices"
)

// ddpm is DDPMScheduler (Ho et al., Denoising Diffusion Probabilistic Models).
type ddpm struct {
	*diffusion
	spacing spacing
	// clip bounds the predicted clean sample, 0 for not.
	clip float64
	// large tells that the noise has the variance beta, the upper bound, not the posterior's.
	large bool
}

func readDDPM(f *fields) rule {
	d := f.diffusion(diffusionKeys{
		moreSchedules: []string{"laplace", "sigmoid"}, predictions: []string{"sample", "v_prediction"}, rescale: true,
	})
	f.thresholding()
	s := &ddpm{
		diffusion: d, clip: f.clipSample(true),
		spacing: spacing{kind: f.spacing("leading"), train: d.train, offset: f.int("steps_offset", 0)},
	}
	const key = "variance_type"
	switch t := f.oneOf(key, "fixed_small", "fixed_small", "fixed_small_log", "fixed_large", "fixed_large_log", "learned", "learned_range"); t {
	case "fixed_large":
		s.large = true
	case "fixed_large_log", "learned", "learned_range":
		f.problem(key, "found %q, which is not supported, wanted fixed_small, fixed_small_log or fixed_large", t)
	}
	return s
}

func (s *ddpm) tables(o Options) (*tables, error) {
	if err := o.takes(given{timesteps: true}); err != nil {
		return nil, err
	}
	t := &tables{integer: true, initNoiseSigma: 1}
	var err error
	if len(o.Timesteps) > 0 {
		t.timesteps, err = o.listed()
		truncate(t.timesteps)
		return t, err
	}
	if o.Steps > s.train {
		return nil, stepCountErrorf("the model has %d timesteps", s.train)
	}
	t.timesteps, err = s.spacing.inclusive(o.Steps)
	round(t.timesteps)
	return t, err
}

func (s *ddpm) calls(t *tables, _ Options, b *builder) {
	for _, timestep := range t.timesteps[t.begin:] {
		c := b.step(timestep)
		to := -1.0
		if i := slices.Index(t.timesteps, timestep); i+1 < len(t.timesteps) {
			to = t.timesteps[i+1]
		}
		a, prev := s.alpha(timestep, b), s.alphaOr(to, 1, b)
		x0 := clean(s.prediction, math.Sqrt(a), math.Sqrt(1-a), c.sample, c.output)
		if s.clip > 0 {
			x0 = c.clamp(x0, s.clip)
		}
		// Equation 7 of the paper.
		beta := 1 - a/prev
		next := x0.mul(math.Sqrt(prev) * beta / (1 - a)).add(c.sample.mul(math.Sqrt(a/prev) * (1 - prev) / (1 - a)))
		if timestep > 0 {
			variance := max((1-prev)/(1-a)*beta, 1e-20)
			if s.large {
				variance = beta
			}
			next = next.add(c.noise().mul(math.Sqrt(variance)))
		}
		c.finish(next)
	}
}
