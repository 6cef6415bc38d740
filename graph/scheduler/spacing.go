package scheduler

import (
	"math"
	"slices"
)

// linspace is numpy.linspace with the end included.
func linspace(start, stop float64, n int) []float64 {
	out := make([]float64, n)
	if n == 1 {
		out[0] = start
		return out
	}
	step := (stop - start) / float64(n-1)
	for i := range out {
		out[i] = float64(float64(i)*step) + start
	}
	out[n-1] = stop
	return out
}

// countdown is numpy.arange(start, 0, -step). Its length is a rounded quotient, so it may have one entry more than start / step.
func countdown(start, step float64) []float64 {
	n := int(math.Ceil(start / step))
	delta := (start - step) - start
	out := make([]float64, n)
	for i := range out {
		out[i] = start + float64(float64(i)*delta)
	}
	return out
}

func round(list []float64) []float64 {
	for i, v := range list {
		list[i] = math.RoundToEven(v)
	}
	return list
}

// round32 rounds to float32, in place.
func round32(list []float64) []float64 {
	for i, v := range list {
		list[i] = float64(float32(v))
	}
	return list
}

// truncate drops the fraction, in place.
func truncate(list []float64) []float64 {
	for i, v := range list {
		list[i] = math.Trunc(v)
	}
	return list
}

// spacing picks the timesteps of a run among those of the training (Lin et al., Common Diffusion Noise Schedules and Sample Steps
// are Flawed, table 2).
type spacing struct {
	kind   string // timestep_spacing
	train  int    // num_train_timesteps
	offset int    // steps_offset, for "leading"
}

// inclusive returns n timesteps from high to low where both ends of the range may be used: the rule of DDIM, PNDM, DDPM and
// the Euler family. Only "linspace" yields fractions. It fails where n is more than the model's timesteps and "leading" would
// give one timestep n times.
func (s spacing) inclusive(n int) ([]float64, error) {
	switch s.kind {
	case "linspace":
		t := linspace(0, float64(s.train-1), n)
		slices.Reverse(t)
		return t, nil
	case "leading":
		if n > s.train {
			return nil, stepCountErrorf("the model has %d timesteps", s.train)
		}
		return s.leading(n, s.train/n, 0), nil
	}
	return s.trailing(s.train, n), nil
}

// exclusive returns n timesteps from high to low, leaving out the lowest of n + 1: the rule of the multistep solvers, whose
// last step ends there. last is one past the highest timestep in use.
func (s spacing) exclusive(n, last int) []float64 {
	switch s.kind {
	case "linspace":
		t := round(linspace(0, float64(last-1), n+1))
		slices.Reverse(t)
		return t[:n]
	case "leading":
		return s.leading(n, last/(n+1), 1)
	}
	return s.trailing(last, n)
}

// leading returns the multiples first..first+n-1 of ratio plus the offset, from high to low.
func (s spacing) leading(n, ratio, first int) []float64 {
	t := make([]float64, n)
	for i := range t {
		t[n-1-i] = float64((first+i)*ratio + s.offset)
	}
	return t
}

func (s spacing) trailing(last, n int) []float64 {
	t := round(countdown(float64(last), float64(s.train)/float64(n)))
	for i := range t {
		t[i]--
	}
	return t
}
