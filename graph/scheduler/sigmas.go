package scheduler

import (
	"fmt"
	"math"
	"slices"
	"sort"
)

// interpolate is numpy.interp over the points (0, table[0]), (1, table[1]) ...: linear between, constant outside.
func interpolate(x float64, table []float64) float64 {
	last := float64(len(table) - 1)
	switch {
	case x <= 0:
		return table[0]
	case x >= last:
		return table[len(table)-1]
	}
	i := int(x)
	slope := table[i+1] - table[i]
	return float64(slope*(x-float64(i))) + table[i]
}

func interpolateAll(xs, table []float64) []float64 {
	out := make([]float64, len(xs))
	for i, x := range xs {
		out[i] = interpolate(x, table)
	}
	return out
}

// logs is the natural logarithm of each entry in float32.
func logs(list []float64) []float64 {
	out := make([]float64, len(list))
	for i, v := range list {
		out[i] = float64(float32(math.Log(v)))
	}
	return out
}

// timestepOf is the (fractional) training timestep whose sigma is nearest in the logarithm; logSigmas ascends.
func timestepOf(sigma float64, logSigmas []float64) float64 {
	if len(logSigmas) < 2 {
		return 0
	}
	l := math.Log(max(sigma, 1e-10))
	// The last entry that is not above l.
	i := sort.Search(len(logSigmas), func(i int) bool { return logSigmas[i] > l }) - 1
	i = min(max(i, 0), len(logSigmas)-2)
	low, high := logSigmas[i], logSigmas[i+1]
	w := min(max((low-l)/float64(float32(low-high)), 0), 1)
	return float64((1-w)*float64(i)) + float64(w*float64(i+1))
}

func timestepsOf(sigmas, logSigmas []float64) []float64 {
	out := make([]float64, len(sigmas))
	for i, s := range sigmas {
		out[i] = timestepOf(s, logSigmas)
	}
	return out
}

// respacing is a rule that spreads n sigmas between a highest and a lowest one.
type respacing string

const (
	asGiven     respacing = ""
	karras      respacing = "use_karras_sigmas"
	exponential respacing = "use_exponential_sigmas"
	beta        respacing = "use_beta_sigmas"
)

// respacing reads the switches of the sigma rules, of which at most one may be on.
func (f *fields) respacing() respacing {
	kind := asGiven
	for _, k := range []respacing{karras, exponential, beta} {
		if !f.bool(string(k), false) {
			continue
		}
		if kind != asGiven {
			f.problem(string(k), "found true beside %s, wanted at most one of the two", kind)
		}
		kind = k
	}
	return kind
}

// spread returns n sigmas from high to low.
func (k respacing) spread(high, low float64, n int) []float64 {
	ramp := linspace(0, 1, n)
	switch k {
	case karras:
		// Karras et al., Elucidating the Design Space of Diffusion-Based Generative Models, equation 5, rho = 7.
		const rho = 7
		a, b := math.Pow(high, 1.0/rho), math.Pow(low, 1.0/rho)
		for i, r := range ramp {
			ramp[i] = math.Pow(a+float64(r*(b-a)), rho)
		}
	case exponential:
		ramp = linspace(math.Log(high), math.Log(low), n)
		for i, r := range ramp {
			ramp[i] = math.Exp(r)
		}
	case beta:
		// Lee et al., Beta Sampling is All You Need, with alpha = beta = 0.6.
		for i, r := range ramp {
			ramp[i] = low + betaQuantile(1-r, 0.6)*(high-low)
		}
	default:
		panic("BUG: no rule to spread sigmas by")
	}
	return ramp
}

// sigmaLimits are the optional sigma_min and sigma_max.
type sigmaLimits struct{ min, max *float64 }

func (f *fields) sigmaLimits() sigmaLimits {
	return sigmaLimits{min: f.optional("sigma_min"), max: f.optional("sigma_max")}
}

// spread is respacing.spread between the limits, or where absent the ends of from, which descends.
func (l sigmaLimits) spread(k respacing, from []float64, n int) []float64 {
	high, low := from[0], from[len(from)-1]
	if l.max != nil {
		high = *l.max
	}
	if l.min != nil {
		low = *l.min
	}
	return k.spread(high, low, n)
}

// shiftSigma moves a flow matching noise level towards 1 for shift > 1 (Esser et al., Scaling Rectified Flow Transformers,
// equation 23).
func shiftSigma(sigma, shift float64) float64 { return shift * sigma / (1 + (shift-1)*sigma) }

// shiftSigma32 is shiftSigma with every operation rounded to float32, as diffusers computes it for sigmas that it is given; less is shift - 1.
// A last digit of a sigma is 1e-4 in the timestep that the model embeds as a sine.
func shiftSigma32(sigma, shift, less float32) float32 {
	return float32(shift*sigma) / float32(1+float32(less*sigma))
}

// timeShift moves sigmas by mu, in place: exponentially by e^mu, else ("linear") by mu itself.
func timeShift(kind string, mu float64, sigmas []float64) {
	m := mu
	if kind == "exponential" {
		m = math.Exp(mu)
	}
	for i, s := range sigmas {
		sigmas[i] = m / (m + (1/s - 1))
	}
}

// stretchToTerminal stretches sigmas, in place, so that the last one is terminal and 1 stays.
func stretchToTerminal(sigmas []float64, terminal float64) error {
	rest := 1 - sigmas[len(sigmas)-1]
	if rest == 0 {
		return stepCountErrorf("shift_terminal %v cannot be reached from a last sigma of 1; use 2 or more", terminal)
	}
	factor := rest / (1 - terminal)
	for i, s := range sigmas {
		sigmas[i] = 1 - (1-s)/factor
	}
	return nil
}

// FlowSigmas are the sigmas that FLUX-like pipelines give to their scheduler: n values evenly from 1 to 1/n. There are none for a number of
// steps that Schedule refuses, so that an absurd one costs no memory.
func FlowSigmas(n int) []float64 {
	if n < 1 || n > MaxSteps {
		return nil
	}
	return linspace(1, 1/float64(n), n)
}

// given says which of the options beside Steps a class takes; a check in the class's tables.
type given struct{ sigmas, timesteps, mu bool }

// takes refuses options that the class does not have.
func (o Options) takes(g given) error {
	switch {
	case len(o.Sigmas) > 0 && !g.sigmas:
		return fmt.Errorf("sigmas: it takes none with this config")
	case len(o.Timesteps) > 0 && !g.timesteps:
		return fmt.Errorf("timesteps: it takes none with this config")
	case o.Mu != nil && !g.mu:
		return fmt.Errorf("mu: it takes none with this config")
	case len(o.Sigmas) > 0 && len(o.Timesteps) > 0 && len(o.Sigmas) != len(o.Timesteps):
		return fmt.Errorf("found %d sigmas and %d timesteps, wanted as many", len(o.Sigmas), len(o.Timesteps))
	}
	return nil
}

// listed checks that a list of timesteps fits the number of steps and descends, and returns a copy.
func (o Options) listed() ([]float64, error) {
	if o.Steps > 0 && o.Steps != len(o.Timesteps) {
		return nil, fmt.Errorf("found %d timesteps and %d steps, wanted as many", len(o.Timesteps), o.Steps)
	}
	for i := 1; i < len(o.Timesteps); i++ {
		if o.Timesteps[i] >= o.Timesteps[i-1] {
			return nil, fmt.Errorf("timesteps[%d]: found %v after %v, wanted a descending list", i, o.Timesteps[i], o.Timesteps[i-1])
		}
	}
	return slices.Clone(o.Timesteps), nil
}
