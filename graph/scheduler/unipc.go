package scheduler

import (
	"fmt"
	"math"
	"slices"
)

// uniPC is UniPCMultistepScheduler (Zhao et al., UniPC: A Unified Predictor-Corrector Framework for Fast Sampling of Diffusion
// Models). Each call first corrects the sample it was given with the new model output, then predicts the next.
type uniPC struct {
	multistep
	limits       sigmaLimits
	terminal     *float64
	predictClean bool // predict_x0
	bh1          bool // solver_type
	// uncorrected are the steps after which there is no correction.
	uncorrected []int
}

func readUniPC(f *fields) rule {
	s := &uniPC{
		multistep:    f.multistep(),
		limits:       f.sigmaLimits(),
		terminal:     f.shiftTerminal(),
		predictClean: f.bool("predict_x0", true),
		uncorrected:  f.ints("disable_corrector"),
	}
	s.bh1 = f.oneOf("solver_type", "bh2", "bh1", "bh2", "midpoint", "heun", "logrho") == "bh1"
	if f.cfg.Has(f.key("solver_p")) {
		f.problem("solver_p", "found a predictor, which is not supported, wanted null")
	}
	if s.terminal != nil && !s.flow {
		f.problem("shift_terminal", "found %v with use_flow_sigmas false, wanted use_flow_sigmas true", *s.terminal)
	}
	if s.prediction == "flow_prediction" && !s.predictClean {
		f.problem("prediction_type", "found flow_prediction with predict_x0 false, wanted predict_x0 true")
	}
	return s
}

func (s *uniPC) tables(o Options) (*tables, error) {
	own := s.flow && s.kind == asGiven
	// Pipelines give mu whether the shift is dynamic or not.
	if err := o.takes(given{sigmas: own, mu: true}); err != nil {
		return nil, err
	}
	if s.dynamic && o.Mu == nil {
		return nil, fmt.Errorf("mu: found none, wanted a number, as use_dynamic_shifting is true")
	}
	n, train := o.count(), float64(s.train)
	if len(o.Sigmas) > 0 && len(o.Sigmas) != n {
		return nil, fmt.Errorf("found %d sigmas and %d steps, wanted as many", len(o.Sigmas), n)
	}
	all := s.sigmas()
	t := &tables{integer: true, initNoiseSigma: 1}
	last := all[0]
	switch {
	case s.kind != asGiven:
		descending := slices.Clone(all)
		slices.Reverse(descending)
		t.sigmas = s.limits.spread(s.kind, descending, n)
		if s.kind == karras && s.flow {
			for i, v := range t.sigmas {
				t.sigmas[i] = v / (v + 1)
				t.timesteps = append(t.timesteps, t.sigmas[i]*train)
			}
		} else {
			t.timesteps = timestepsOf(t.sigmas, logs(all))
			if s.kind == karras {
				round(t.timesteps)
			}
		}
		last = t.sigmas[n-1]
	case s.flow:
		if t.sigmas = slices.Clone(o.Sigmas); len(t.sigmas) == 0 {
			t.sigmas = linspace(1, 1/train, n+1)[:n]
		}
		if s.dynamic {
			timeShift(s.shiftKind, *o.Mu, t.sigmas)
		} else {
			for i, v := range t.sigmas {
				t.sigmas[i] = shiftSigma(v, s.shift)
			}
		}
		if s.terminal != nil {
			if err := stretchToTerminal(t.sigmas, *s.terminal); err != nil {
				return nil, err
			}
		}
		// At 1 the logarithm of the signal is infinite.
		const margin = 1e-6
		if math.Abs(t.sigmas[0]-1) < margin {
			t.sigmas[0] -= margin
		}
		for _, v := range t.sigmas {
			t.timesteps = append(t.timesteps, v*train)
		}
		last = t.sigmas[n-1]
	default:
		t.timesteps = s.spacing.exclusive(n, s.train)
		t.sigmas = interpolateAll(t.timesteps, all)
	}
	truncate(t.timesteps)
	if !s.finalMin {
		last = 0
	}
	t.sigmas = round32(append(t.sigmas, last))
	return t, nil
}

func (s *uniPC) calls(t *tables, _ Options, b *builder) {
	if s.standsStill(t, b) {
		return
	}
	// Slot k is the converted model output of k + 1 steps ago; the last slot is the sample of the last step, corrected.
	b.slots = s.order + 1
	lastSample := s.order
	order := 0 // of the last step
	for i := t.begin; i < len(t.timesteps); i++ {
		c := b.step(t.timesteps[i])
		alpha, sigma := s.scales(t.sigmas[i])
		var m form
		if s.predictClean {
			m = clean(s.prediction, alpha, sigma, c.sample, c.output)
		} else {
			m = noiseOf(s.prediction, alpha, sigma, c.sample, c.output)
		}
		outputs := []form{m}
		for k := range s.order {
			outputs = append(outputs, c.slot(k))
			c.keep(k, outputs[k])
		}
		sample := c.sample
		if i > t.begin && !slices.Contains(s.uncorrected, i-1) {
			sample = s.solve(t.sigmas[:i+1], c.slot(lastSample), outputs[1:order+1], m)
		}
		c.keep(lastSample, sample)
		order = min(s.order, i-t.begin+1)
		if s.lowerOrderFinal {
			order = min(order, len(t.timesteps)-i)
		}
		c.finish(s.solve(t.sigmas[:i+2], sample, outputs[:order], nil))
	}
}

// solve steps from the second last sigma to the last, of the order that there are outputs, newest first. It is the predictor
// UniP where newer is nil, else the corrector UniC, and newer the output at the step's end.
func (s *uniPC) solve(sigmas []float64, x form, outputs []form, newer form) form {
	at := len(sigmas) - 2
	alphaT, sigmaT := s.scales(sigmas[at+1])
	alphaS, sigmaS := s.scales(sigmas[at])
	lambda := s.lambda(sigmas[at])
	h := s.lambda(sigmas[at+1]) - lambda
	order := len(outputs)

	// The divided differences to earlier outputs, at the ratios rs; the step's end is at ratio 1.
	var rs []float64
	var differences []form
	for k := 1; k < order; k++ {
		r := (s.lambda(sigmas[at-k]) - lambda) / h
		rs = append(rs, r)
		differences = append(differences, outputs[k].sub(outputs[0]).div(r))
	}
	rs = append(rs, 1)

	hh, ratio, scale := -h, sigmaT/sigmaS, alphaT
	if !s.predictClean {
		hh, ratio, scale = h, alphaT/alphaS, sigmaT
	}
	phi1 := math.Expm1(hh)
	bh := phi1
	if s.bh1 {
		bh = hh
	}
	// Row i of the Vandermonde system is sum_k rho_k r_k^i = b_i.
	matrix, b := make([][]float64, order), make([]float64, order)
	phi, factorial := phi1/hh-1, 1.0
	for i := range order {
		for _, r := range rs {
			matrix[i] = append(matrix[i], math.Pow(r, float64(i)))
		}
		b[i] = phi * factorial / bh
		factorial *= float64(i + 2)
		phi = phi/hh - 1/factorial
	}

	out := x.mul(ratio).sub(outputs[0].mul(scale * phi1))
	var rhos []float64
	switch {
	case newer == nil && order == 1:
		return out
	case newer == nil && order == 2, newer != nil && order == 1:
		rhos = []float64{0.5}
	case newer == nil:
		for i := range matrix {
			matrix[i] = matrix[i][:order-1]
		}
		rhos = solveLinear(matrix[:order-1], b[:order-1])
	default:
		rhos = solveLinear(matrix, b)
	}
	if newer != nil {
		differences = append(differences, newer.sub(outputs[0]))
	}
	for k, d := range differences {
		out = out.sub(d.mul(scale * bh * rhos[k]))
	}
	return out
}

// solveLinear solves the square system matrix * x = b by Gaussian elimination with row exchange. Values that are not finite come out
// where the matrix is singular.
func solveLinear(matrix [][]float64, b []float64) []float64 {
	n := len(b)
	x := slices.Clone(b)
	for i := range n {
		pivot := i
		for r := i + 1; r < n; r++ {
			if math.Abs(matrix[r][i]) > math.Abs(matrix[pivot][i]) {
				pivot = r
			}
		}
		matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
		x[i], x[pivot] = x[pivot], x[i]
		for r := i + 1; r < n; r++ {
			f := matrix[r][i] / matrix[i][i]
			for k := i; k < n; k++ {
				matrix[r][k] -= f * matrix[i][k]
			}
			x[r] -= f * x[i]
		}
	}
	for i := n - 1; i >= 0; i-- {
		for k := i + 1; k < n; k++ {
			x[i] -= matrix[i][k] * x[k]
		}
		x[i] /= matrix[i][i]
	}
	return x
}
