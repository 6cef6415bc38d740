package scheduler

import "math"

// ddim is DDIMScheduler (Song et al., Denoising Diffusion Implicit Models).
type ddim struct {
	*diffusion
	spacing spacing
	// clip bounds the predicted clean sample, 0 for not.
	clip float64
	// final is the cumulated alpha after the last step.
	final float64
}

func readDDIM(f *fields) rule {
	d := f.diffusion(diffusionKeys{predictions: []string{"sample", "v_prediction"}, rescale: true})
	f.thresholding()
	return &ddim{
		diffusion: d,
		clip:      f.clipSample(true),
		final:     d.finalAlpha(f.bool("set_alpha_to_one", true)),
		spacing:   spacing{kind: f.spacing("leading"), train: d.train, offset: f.int("steps_offset", 0)},
	}
}

func (s *ddim) tables(o Options) (*tables, error) {
	if err := o.takes(given{}); err != nil {
		return nil, err
	}
	if o.Steps > s.train {
		return nil, stepCountErrorf("the model has %d timesteps", s.train)
	}
	timesteps, err := s.spacing.inclusive(o.Steps)
	if err != nil {
		return nil, err
	}
	return &tables{timesteps: round(timesteps), integer: true, initNoiseSigma: 1}, nil
}

func (s *ddim) calls(t *tables, o Options, b *builder) {
	for _, timestep := range t.timesteps[t.begin:] {
		c := b.step(timestep)
		a := s.alpha(timestep, b)
		prev := s.alphaOr(timestep-float64(s.train/o.Steps), s.final, b)
		alpha, sigma := math.Sqrt(a), math.Sqrt(1-a)
		x0 := clean(s.prediction, alpha, sigma, c.sample, c.output)
		noise := noiseOf(s.prediction, alpha, sigma, c.sample, c.output)
		if s.clip > 0 {
			x0 = c.clamp(x0, s.clip)
		}
		// Equations 12 and 16 of the paper.
		variance := (1 - prev) / (1 - a) * (1 - a/prev)
		std := o.Eta * math.Sqrt(variance)
		next := x0.mul(math.Sqrt(prev)).add(noise.mul(math.Sqrt(1 - prev - std*std)))
		if o.Eta > 0 {
			next = next.add(c.noise().mul(std))
		}
		c.finish(next)
	}
}
