package scheduler

import "math"

// lcm is LCMScheduler (Luo et al., Latent Consistency Models): predict the clean sample, then draw fresh noise at the next
// timestep of those the model was distilled for.
type lcm struct {
	*diffusion
	// original is the number of timesteps the model was distilled for.
	original int
	// scaling is timestep_scaling, of the boundary condition.
	scaling float64
	// clip bounds the predicted clean sample, 0 for not.
	clip float64
}

func readLCM(f *fields) rule {
	d := f.diffusion(diffusionKeys{
		betaStart: 0.00085, betaEnd: 0.012, schedule: "scaled_linear", predictions: []string{"sample", "v_prediction"}, rescale: true,
	})
	f.thresholding()
	// The spacing follows from original_inference_steps alone, and no step goes below timestep 0.
	f.spacing("leading")
	f.ignored("steps_offset", "set_alpha_to_one")
	s := &lcm{
		diffusion: d, original: f.int("original_inference_steps", 50),
		scaling: f.positive("timestep_scaling", 10), clip: f.clipSample(false),
	}
	if s.original < 1 || s.original > d.train {
		f.problem("original_inference_steps", "found %d, wanted a number from 1 to num_train_timesteps = %d", s.original, d.train)
		s.original = d.train
	}
	return s
}

func (s *lcm) tables(o Options) (*tables, error) {
	if err := o.takes(given{timesteps: true}); err != nil {
		return nil, err
	}
	t := &tables{integer: true, initNoiseSigma: 1}
	if len(o.Timesteps) > 0 {
		var err error
		t.timesteps, err = o.listed()
		truncate(t.timesteps)
		return t, err
	}
	if o.Steps > s.original {
		return nil, stepCountErrorf("the model was distilled for original_inference_steps = %d", s.original)
	}
	step := float64(s.original) / float64(o.Steps)
	for i := range o.Steps {
		k := s.original - int(math.Floor(float64(i)*step))
		t.timesteps = append(t.timesteps, float64(k*(s.train/s.original)-1))
	}
	return t, nil
}

func (s *lcm) calls(t *tables, _ Options, b *builder) {
	const dataVariance = 0.25 // sigma_data = 0.5
	for i := t.begin; i < len(t.timesteps); i++ {
		timestep := t.timesteps[i]
		c := b.step(timestep)
		a := s.alpha(timestep, b)
		x0 := clean(s.prediction, math.Sqrt(a), math.Sqrt(1-a), c.sample, c.output)
		if s.clip > 0 {
			x0 = c.clamp(x0, s.clip)
		}
		// Equation 8 and appendix C of the paper.
		scaled := timestep * s.scaling
		skip, weight := dataVariance/(scaled*scaled+dataVariance), scaled/math.Sqrt(scaled*scaled+dataVariance)
		next := x0.mul(weight).add(c.sample.mul(skip))
		if i+1 < len(t.timesteps) {
			prev := s.alpha(t.timesteps[i+1], b)
			next = next.mul(math.Sqrt(prev)).add(c.noise().mul(math.Sqrt(1 - prev)))
		}
		c.finish(next)
	}
}
