package scheduler

import (
	"math"
	"testing"
)

// TestBetaQuantile compares with scipy.stats.beta.ppf(p, 0.6, 0.6) and, for a = 1/2, with the arcsine distribution's sin^2(pi p / 2).
func TestBetaQuantile(t *testing.T) {
	for p, want := range map[float64]float64{0: 0.0, 0.001: 1.855873851745199e-05, 0.02: 0.002732982024577027, 0.25: 0.17568037865269498, 0.5: 0.5000000000000001, 0.6: 0.6372990092467856, 0.9: 0.9604155944112192, 0.999: 0.9999814412614826, 1: 1.0} {
		if got := betaQuantile(p, 0.6); math.Abs(got-want) > 1e-12*want {
			t.Errorf("at %v: %v, want %v", p, got, want)
		}
	}
	for p := 0.001; p < 1; p += 0.0371 {
		want := math.Pow(math.Sin(math.Pi*p/2), 2)
		if got := betaQuantile(p, 0.5); math.Abs(got-want) > 1e-13 {
			t.Errorf("a = 1/2 at %v: %v, want %v", p, got, want)
		}
	}
}
