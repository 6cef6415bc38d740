package scheduler

import "math"

// betaQuantile is the quantile function of the beta distribution with both shape parameters a: the x at which its cumulated
// probability is p, to about 1e-15.
func betaQuantile(p, a float64) float64 {
	switch {
	case p <= 0:
		return 0
	case p >= 1:
		return 1
	case p > 0.5:
		return 1 - betaQuantile(1-p, a)
	}
	low, high := 0.0, 0.5
	for range 64 {
		if x := (low + high) / 2; betaCumulated(x, a) < p {
			low = x
		} else {
			high = x
		}
	}
	return (low + high) / 2
}

// betaCumulated is the regularized incomplete beta function I_x(a, a) for x in (0, 1/2], by its continued fraction (Abramowitz
// and Stegun, 26.5.8), evaluated with Lentz's method.
func betaCumulated(x, a float64) float64 {
	lgA, _ := math.Lgamma(a)
	lg2A, _ := math.Lgamma(2 * a)
	front := math.Exp(a*math.Log(x)+a*math.Log1p(-x)+lg2A-2*lgA) / a
	c, d := 1.0, 1/(1-2*a*x/(a+1))
	fraction := d
	for m := 1.0; m < 500; m++ {
		even := m * (a - m) * x / ((a + 2*m - 1) * (a + 2*m))
		odd := -(a + m) * (2*a + m) * x / ((a + 2*m) * (a + 2*m + 1))
		var change float64
		for _, term := range []float64{even, odd} {
			d = 1 / (1 + term*d)
			c = 1 + term/c
			change = c * d
			fraction *= change
		}
		if math.Abs(change-1) < 1e-16 {
			break
		}
	}
	return front * fraction
}
