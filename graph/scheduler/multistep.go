package scheduler

import "math"

// multistep is what DPM-Solver and UniPC share: steps in the half log signal-to-noise ratio over a table of sigmas, either of
// a variance preserving process (sample = (clean + sigma * noise) / sqrt(sigma^2 + 1)) or, with use_flow_sigmas, of the straight
// path (sample = (1 - sigma) * clean + sigma * noise).
type multistep struct {
	*diffusion
	spacing spacing
	kind    respacing
	flow    bool
	// shift is flow_shift.
	shift     float64
	dynamic   bool
	shiftKind string
	finalMin  bool // final_sigmas_type is sigma_min
	order     int
	// lowerOrderFinal lowers the order over the last steps.
	lowerOrderFinal bool
}

// multistep reads the fields that both classes have.
func (f *fields) multistep() multistep {
	d := f.diffusion(diffusionKeys{
		predictions: []string{"sample", "v_prediction", "flow_prediction"}, rescale: true, floorLastAlpha: true,
	})
	f.thresholding()
	s := multistep{
		diffusion: d,
		spacing:   spacing{kind: f.spacing("linspace"), train: d.train, offset: f.int("steps_offset", 0)},
		kind:      f.respacing(),
		flow:      f.bool("use_flow_sigmas", false),
		shift:     f.positive("flow_shift", 1),
		dynamic:   f.bool("use_dynamic_shifting", false),
		shiftKind: f.oneOf("time_shift_type", "exponential", "exponential", "linear"),
		finalMin:  f.finalSigmaMin(),
		order:     f.int("solver_order", 2), lowerOrderFinal: f.bool("lower_order_final", true),
	}
	if s.order < 1 || s.order > 3 {
		f.problem("solver_order", "found %d, wanted 1, 2 or 3", s.order)
		s.order = 2
	}
	if s.prediction == "flow_prediction" && !s.flow {
		f.problem("prediction_type", "found flow_prediction with use_flow_sigmas false, wanted use_flow_sigmas true")
	}
	return s
}

func (s *multistep) usesFlowSigmas() bool { return s.flow }

func (s *multistep) usesDynamicShifting() bool { return s.dynamic }

// scales splits a sigma of the table into the factors of the clean sample and of the noise.
func (s *multistep) scales(sigma float64) (alpha, sigmaT float64) {
	if s.flow {
		return 1 - sigma, sigma
	}
	alpha = 1 / math.Sqrt(sigma*sigma+1)
	return alpha, sigma * alpha
}

func (s *multistep) start(t *tables, i int, _ *builder) (sample, noise float64) {
	return s.scales(t.sigmas[i])
}

// lambda is the half log signal-to-noise ratio at a sigma of the table, infinite at 0.
func (s *multistep) lambda(sigma float64) float64 {
	alpha, sigmaT := s.scales(sigma)
	return math.Log(alpha) - math.Log(sigmaT)
}

// standsStill records a fault where the first step stays at its sigma: the next one would divide by the distance in lambda.
// "leading" timesteps past the model's last do so.
func (s *multistep) standsStill(t *tables, b *builder) bool {
	first := t.sigmas[t.begin]
	if s.order == 1 || len(t.timesteps)-t.begin < 3 || first != t.sigmas[t.begin+1] {
		return false
	}
	b.fail("the first two steps have the same sigma, %v", first)
	return true
}
