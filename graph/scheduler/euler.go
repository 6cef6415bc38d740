package scheduler

import (
	"fmt"
	"math"
	"slices"
)

// exploding is what the Euler family shares: steps over sigmas of a variance exploding process whose model wants its input
// divided by sqrt(sigma^2 + 1).
type exploding struct {
	*diffusion
	spacing spacing
}

// clean is the prediction of the clean sample; the model saw sample / sqrt(sigma^2 + 1).
func (s *exploding) clean(sigma float64, sample, output form) form {
	if s.prediction == "v_prediction" {
		q := sigma*sigma + 1
		return sample.div(q).sub(output.mul(sigma / math.Sqrt(q)))
	}
	return clean(s.prediction, 1, sigma, sample, output)
}

func (s *exploding) start(t *tables, i int, _ *builder) (sample, noise float64) {
	return 1, t.sigmas[i]
}

// complete fills in what follows from timesteps and sigmas; call i stands at sigmas[i].
func (s *exploding) complete(t *tables) *tables {
	t.initNoiseSigma = slices.Max(t.sigmas)
	if s.spacing.kind == "leading" {
		t.initNoiseSigma = math.Hypot(t.initNoiseSigma, 1)
	}
	for i := range t.timesteps {
		t.inputScales = append(t.inputScales, 1/math.Hypot(t.sigmas[i], 1))
	}
	return t
}

// euler is EulerDiscreteScheduler (Karras et al., Elucidating the Design Space of Diffusion-Based Generative Models, algorithm
// 2 without churn).
type euler struct {
	exploding
	kind       respacing
	limits     sigmaLimits
	logLinear  bool // interpolation_type
	continuous bool // timesteps are log(sigma) / 4
	finalMin   bool // final_sigmas_type is sigma_min
}

func readEuler(f *fields) rule {
	d := f.diffusion(diffusionKeys{
		predictions: []string{"v_prediction", "sample", "original_sample"}, rescale: true, floorLastAlpha: true,
	})
	s := &euler{
		exploding: exploding{d, spacing{kind: f.spacing("linspace"), train: d.train, offset: f.int("steps_offset", 0)}},
		kind:      f.respacing(),
		limits:    f.sigmaLimits(),
		logLinear: f.oneOf("interpolation_type", "linear", "linear", "log_linear") == "log_linear",
		finalMin:  f.finalSigmaMin(),
	}
	s.continuous = f.oneOf("timestep_type", "discrete", "discrete", "continuous") == "continuous" && d.prediction == "v_prediction"
	return s
}

// finalSigmaMin reads final_sigmas_type.
func (f *fields) finalSigmaMin() bool {
	return f.oneOf("final_sigmas_type", "zero", "zero", "sigma_min") == "sigma_min"
}

func (s *euler) tables(o Options) (*tables, error) {
	own := s.kind == asGiven && !s.continuous
	if err := o.takes(given{sigmas: own, timesteps: own}); err != nil {
		return nil, err
	}
	if len(o.Sigmas) > 0 && len(o.Timesteps) > 0 {
		return nil, fmt.Errorf("found both sigmas and timesteps, wanted one of the two")
	}
	all := s.sigmas()
	logSigmas := logs(all)
	t := &tables{}
	switch {
	case len(o.Sigmas) > 0:
		if len(o.Sigmas) < 2 || (o.Steps > 0 && o.Steps != len(o.Sigmas)-1) {
			return nil, fmt.Errorf("found %d sigmas, wanted one more than there are steps (%d)", len(o.Sigmas), o.Steps)
		}
		t.sigmas = round32(slices.Clone(o.Sigmas))
		t.timesteps = timestepsOf(t.sigmas[:len(t.sigmas)-1], logSigmas)
	default:
		var err error
		if len(o.Timesteps) > 0 {
			t.timesteps, err = o.listed()
		} else {
			t.timesteps, err = s.spacing.inclusive(o.Steps)
		}
		if err != nil {
			return nil, err
		}
		round32(t.timesteps)
		n := o.count()
		if s.logLinear {
			for _, v := range linspace(logSigmas[len(all)-1], logSigmas[0], n+1) {
				t.sigmas = append(t.sigmas, math.Exp(v))
			}
		} else {
			t.sigmas = interpolateAll(t.timesteps, all)
		}
		if s.kind != asGiven {
			t.sigmas = s.limits.spread(s.kind, t.sigmas, n)
			t.timesteps = timestepsOf(t.sigmas, logSigmas)
		}
		last := 0.0
		if s.finalMin {
			last = all[0]
		}
		t.sigmas = round32(append(t.sigmas, last))
	}
	if s.continuous {
		for i := range t.timesteps {
			t.timesteps[i] = 0.25 * math.Log(t.sigmas[i])
		}
	}
	round32(t.timesteps)
	return s.complete(t), nil
}

func (s *euler) calls(t *tables, _ Options, b *builder) {
	for i := t.begin; i < len(t.timesteps); i++ {
		c := b.step(t.timesteps[i])
		sigma, next := t.sigmas[i], t.sigmas[i+1]
		derivative := c.sample.sub(s.clean(sigma, c.sample, c.output)).div(sigma)
		c.finish(c.sample.add(derivative.mul(next - sigma)))
	}
}
