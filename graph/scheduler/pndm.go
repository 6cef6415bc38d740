package scheduler

import (
	"math"
	"slices"
)

// pndm is PNDMScheduler (Liu et al., Pseudo Numerical Methods for Diffusion Models on Manifolds): a linear multistep method over
// the predicted noise. It starts with twelve Runge-Kutta calls, or with skip_prk_steps by calling the second timestep twice.
type pndm struct {
	*diffusion
	spacing spacing
	skipPRK bool
	// final is the cumulated alpha after the last step.
	final float64
}

func readPNDM(f *fields) rule {
	d := f.diffusion(diffusionKeys{predictions: []string{"v_prediction"}})
	return &pndm{
		diffusion: d,
		skipPRK:   f.bool("skip_prk_steps", false),
		final:     d.finalAlpha(f.bool("set_alpha_to_one", false)),
		spacing:   spacing{kind: f.spacing("leading"), train: d.train, offset: f.int("steps_offset", 0)},
	}
}

// prkCalls is the number of Runge-Kutta calls: three rounds of four.
const prkCalls = 12

func (s *pndm) tables(o Options) (*tables, error) {
	if err := o.takes(given{}); err != nil {
		return nil, err
	}
	if o.Steps > s.train {
		return nil, stepCountErrorf("the model has %d timesteps", s.train)
	}
	all, err := s.spacing.inclusive(o.Steps)
	if err != nil {
		return nil, err
	}
	all = round(all)
	t := &tables{initNoiseSigma: 1, integer: true}
	switch {
	case !s.skipPRK && len(all) < 4:
		return nil, stepCountErrorf("its Runge-Kutta start takes 4 steps or more; skip_prk_steps=true takes fewer")
	case !s.skipPRK:
		// Each round of four visits a timestep, twice the midpoint to the next, and the next.
		var points []float64
		half := float64(s.train / o.Steps / 2)
		for _, v := range all[:4] {
			points = append(points, v+half, v)
		}
		points = points[1:]
		for _, v := range points {
			t.timesteps = append(t.timesteps, v, v)
		}
		t.timesteps = t.timesteps[1 : prkCalls+1]
		t.timesteps = append(t.timesteps, all[3:]...)
	case len(all) == 1:
		t.timesteps = all
	default:
		t.timesteps = slices.Insert(slices.Clone(all), 2, all[1])
	}
	return t, nil
}

func (s *pndm) calls(t *tables, o Options, b *builder) {
	// Slots 0 to 2 are the latest predictions of the noise, newest first; 3 is the sample that a start's calls go from; 4 the
	// weighted sum of a Runge-Kutta round.
	const base, sum = 3, 4
	b.slots = 4
	if !s.skipPRK {
		b.slots = 5
	}
	ratio := float64(s.train / o.Steps)
	half := float64(s.train / o.Steps / 2)
	stored := 0 // predictions in slots
	// The class counts calls, whatever the timestep it begins at.
	for i, timestep := range t.timesteps[t.begin:] {
		c := b.step(timestep)
		newest := []form{c.slot(0), c.slot(1), c.slot(2)}
		push := func() {
			newest = slices.Insert(newest, 0, c.output)
			stored = min(stored+1, 4)
		}
		if !s.skipPRK && i < prkCalls {
			round, from := i%4, c.slot(base)
			output, total := c.output, c.slot(sum)
			switch round {
			case 0:
				from, total = c.sample, c.output.mul(1.0/6)
				push()
			case 1, 2:
				total = total.add(c.output.mul(1.0 / 3))
			case 3:
				output = total.add(c.output.mul(1.0 / 6))
			}
			c.keep(base, from)
			c.keep(sum, total)
			to := timestep
			if i%2 == 0 {
				to -= half
			}
			c.finish(s.transfer(t.timesteps[i-round], to, from, output, b))
		} else {
			from, at, to := c.sample, timestep, timestep-ratio
			var output form
			switch {
			case i == 1:
				// The second call goes from the first's sample again, with the mean of both predictions.
				at, to = timestep+ratio, timestep
				from = c.slot(base)
				output = c.output.add(newest[0]).div(2)
			default:
				push()
				if i == 0 {
					c.keep(base, c.sample)
				}
				output = adamsBashforth(newest, stored)
			}
			c.finish(s.transfer(at, to, from, output, b))
		}
		for k := range 3 {
			c.keep(k, newest[k])
		}
	}
}

// adamsBashforth is the multistep formula over the n newest values.
func adamsBashforth(newest []form, n int) form {
	weights := [][]float64{{1}, {3.0 / 2, -1.0 / 2}, {23.0 / 12, -16.0 / 12, 5.0 / 12}, {55.0 / 24, -59.0 / 24, 37.0 / 24, -9.0 / 24}}
	var out form
	for k, w := range weights[n-1] {
		if out == nil {
			out = newest[k].mul(w)
		} else {
			out = out.add(newest[k].mul(w))
		}
	}
	return out
}

// transfer is the paper's equation 11: the sample at timestep to, given the one at timestep at.
func (s *pndm) transfer(at, to float64, sample, output form, b *builder) form {
	a, prev := s.alpha(at, b), s.alphaOr(to, s.final, b)
	if s.prediction == "v_prediction" {
		output = noiseOf(s.prediction, math.Sqrt(a), math.Sqrt(1-a), sample, output)
	}
	divisor := a*math.Sqrt(1-prev) + math.Sqrt(a*(1-a)*prev)
	return sample.mul(math.Sqrt(prev / a)).sub(output.mul((prev - a) / divisor))
}
