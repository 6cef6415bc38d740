package scheduler

import (
	"encoding/json"
	"math"
	"slices"
)

// dpmSolver is DPMSolverMultistepScheduler (Lu et al., DPM-Solver++: Fast Solver for Guided Sampling of Diffusion Probabilistic
// Models), in its four algorithms.
type dpmSolver struct {
	multistep
	algorithm    string
	midpoint     bool // solver_type
	eulerAtFinal bool
	lu           bool // use_lu_lambdas
	// lambdaMin is lambda_min_clipped.
	lambdaMin float64
}

func readDPMSolver(f *fields) rule {
	s := &dpmSolver{
		multistep:    f.multistep(),
		eulerAtFinal: f.bool("euler_at_final", false),
		lu:           f.bool("use_lu_lambdas", false),
		lambdaMin:    f.lambdaMinClipped(),
	}
	// Names of other solvers come in with the config of another scheduler and stand for the nearest one here, as in diffusers.
	s.algorithm = f.oneOf("algorithm_type", "dpmsolver++", "dpmsolver", "dpmsolver++", "sde-dpmsolver", "sde-dpmsolver++", "deis")
	if s.algorithm == "deis" {
		s.algorithm = "dpmsolver++"
	}
	s.midpoint = f.oneOf("solver_type", "midpoint", "midpoint", "heun", "logrho", "bh1", "bh2") != "heun"
	if t := f.oneOf("variance_type", "", "learned", "learned_range"); t != "" {
		f.problem("variance_type", "found %q, which is not supported, wanted null", t)
	}
	if s.predictsNoise() {
		if !s.finalMin {
			f.problem("final_sigmas_type", "found zero with algorithm_type %s, wanted sigma_min", s.algorithm)
		}
		if s.prediction == "flow_prediction" {
			f.problem("prediction_type", "found flow_prediction with algorithm_type %s, wanted dpmsolver++ or sde-dpmsolver++", s.algorithm)
		}
		if s.algorithm == "sde-dpmsolver" && s.order == 3 {
			f.problem("solver_order", "found 3 with algorithm_type sde-dpmsolver, wanted 1 or 2")
		}
	}
	if s.lu && s.kind != asGiven {
		f.problem("use_lu_lambdas", "found true beside %s, wanted at most one of the two", s.kind)
	}
	return s
}

// lambdaMinClipped reads lambda_min_clipped, a number or -Infinity.
func (f *fields) lambdaMinClipped() float64 {
	const key = "lambda_min_clipped"
	var text string
	if json.Unmarshal(f.cfg.Raw(f.key(key)), &text) == nil && text == "-Infinity" || !f.cfg.Has(key) {
		return math.Inf(-1)
	}
	return f.cfg.Float(key, math.Inf(-1))
}

// predictsNoise tells that the solver's variable is the noise, not the clean sample.
func (s *dpmSolver) predictsNoise() bool {
	return s.algorithm == "dpmsolver" || s.algorithm == "sde-dpmsolver"
}

func (s *dpmSolver) stochastic() bool {
	return s.algorithm == "sde-dpmsolver" || s.algorithm == "sde-dpmsolver++"
}

func (s *dpmSolver) tables(o Options) (*tables, error) {
	own := s.kind == asGiven && !s.lu && !s.flow
	if err := o.takes(given{timesteps: own, mu: s.dynamic && s.shiftKind == "exponential"}); err != nil {
		return nil, err
	}
	n, shift := o.count(), s.shift
	if o.Mu != nil {
		shift = math.Exp(*o.Mu)
	}
	all := s.sigmas()
	logSigmas := logs(all)
	t := &tables{integer: true, initNoiseSigma: 1}
	if len(o.Timesteps) > 0 {
		var err error
		if t.timesteps, err = o.listed(); err != nil {
			return nil, err
		}
	} else {
		t.timesteps = s.spacing.exclusive(n, s.lastTimestep())
	}
	descending := slices.Clone(all)
	slices.Reverse(descending)
	switch {
	case s.lu:
		// Lu et al., DPM-Solver, section 3.4: even steps in lambda.
		t.sigmas = linspace(logSigmas[len(all)-1], logSigmas[0], n)
		for i, v := range t.sigmas {
			t.sigmas[i] = math.Exp(v)
		}
		t.timesteps = timestepsOf(t.sigmas, logSigmas)
	case s.kind != asGiven:
		t.sigmas = sigmaLimits{}.spread(s.kind, descending, n)
		t.timesteps = timestepsOf(t.sigmas, logSigmas)
	case s.flow:
		t.timesteps = nil
		alphas := linspace(1, 1/float64(s.train), n+1)
		for i := n; i >= 1; i-- {
			sigma := shiftSigma(1-alphas[i], shift)
			t.sigmas = append(t.sigmas, sigma)
			t.timesteps = append(t.timesteps, sigma*float64(s.train))
		}
	default:
		t.sigmas = interpolateAll(t.timesteps, all)
	}
	if s.lu || s.kind == karras {
		round(t.timesteps)
	}
	truncate(t.timesteps)
	last := 0.0
	if s.finalMin {
		last = all[0]
	}
	t.sigmas = round32(append(t.sigmas, last))
	return t, nil
}

// lastTimestep is one past the highest timestep whose lambda is not below lambda_min_clipped.
func (s *dpmSolver) lastTimestep() int {
	for i := s.train; i > 0; i-- {
		a := s.alphas[i-1]
		if math.Log(math.Sqrt(a))-math.Log(math.Sqrt(1-a)) >= s.lambdaMin {
			return i
		}
	}
	return 1
}

func (s *dpmSolver) calls(t *tables, _ Options, b *builder) {
	if s.standsStill(t, b) {
		return
	}
	// Slot k is the converted model output of k + 1 steps ago.
	b.slots = s.order - 1
	n := len(t.timesteps)
	for i := t.begin; i < n; i++ {
		c := b.step(t.timesteps[i])
		alpha, sigma := s.scales(t.sigmas[i])
		var m form
		if s.predictsNoise() {
			m = noiseOf(s.prediction, alpha, sigma, c.sample, c.output)
		} else {
			m = clean(s.prediction, alpha, sigma, c.sample, c.output)
		}
		outputs := []form{m}
		for k := range b.slots {
			outputs = append(outputs, c.slot(k))
			c.keep(k, outputs[k])
		}
		order := min(s.order, i-t.begin+1)
		few := s.lowerOrderFinal && n < 15
		if i == n-1 && (s.eulerAtFinal || few || !s.finalMin) {
			order = 1
		} else if i == n-2 && few {
			order = min(order, 2)
		}
		c.finish(s.solve(t.sigmas[:i+2], c, outputs[:order]))
	}
}

// solve is one step from the second last sigma to the last, of the order that there are outputs, newest first.
func (s *dpmSolver) solve(sigmas []float64, c *step, outputs []form) form {
	at := len(sigmas) - 2
	to, from := sigmas[at+1], sigmas[at]
	alphaT, sigmaT := s.scales(to)
	alphaS, sigmaS := s.scales(from)
	h := s.lambda(to) - s.lambda(from)
	// The factors of the sample, of the output and of its first (midpoint and Heun) and second divided differences.
	var ratio, d0, heun, d2, noise float64
	switch s.algorithm {
	case "dpmsolver++":
		e := math.Expm1(-h)
		ratio, d0 = sigmaT/sigmaS, -alphaT*e
		heun, d2 = alphaT*(e/h+1), -alphaT*((e+h)/(h*h)-0.5)
	case "dpmsolver":
		e := math.Expm1(h)
		ratio, d0 = alphaT/alphaS, -sigmaT*e
		heun, d2 = -sigmaT*(e/h-1), -sigmaT*((e-h)/(h*h)-0.5)
	case "sde-dpmsolver++":
		e := -math.Expm1(-2 * h)
		ratio, d0 = sigmaT/sigmaS*math.Exp(-h), alphaT*e
		heun, d2 = alphaT*(e/(-2*h)+1), alphaT*((e-2*h)/(4*h*h)-0.5)
		noise = sigmaT * math.Sqrt(e)
	case "sde-dpmsolver":
		e := math.Expm1(h)
		ratio, d0 = alphaT/alphaS, -2*sigmaT*e
		heun = -2 * sigmaT * (e/h - 1)
		noise = sigmaT * math.Sqrt(math.Expm1(2*h))
	}
	x := c.sample.mul(ratio).add(outputs[0].mul(d0))
	if len(outputs) >= 2 {
		h0 := s.lambda(from) - s.lambda(sigmas[at-1])
		first := outputs[0].sub(outputs[1]).mul(h / h0)
		switch {
		case len(outputs) == 3:
			h1 := s.lambda(sigmas[at-1]) - s.lambda(sigmas[at-2])
			r0, r1 := h0/h, h1/h
			bend := first.sub(outputs[1].sub(outputs[2]).mul(1 / r1))
			x = x.add(first.add(bend.mul(r0 / (r0 + r1))).mul(heun)).add(bend.mul(d2 / (r0 + r1)))
		case s.midpoint:
			x = x.add(first.mul(d0 / 2))
		default:
			x = x.add(first.mul(heun))
		}
	}
	if s.stochastic() {
		x = x.add(c.noise().mul(noise))
	}
	return x
}
