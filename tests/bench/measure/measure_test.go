//go:build linux

package measure

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
)

func TestClocks(t *testing.T) {
	start, err := ProcessStart()
	if age := time.Since(start); err != nil || age < 0 || age > time.Hour {
		t.Errorf("the process started %v ago, %v", age, err)
	}
	before := CPUTime()
	for CPUTime() == before {
	}
	if used := CPUTime(); used <= before || used > time.Since(start)*100 {
		t.Errorf("processor time %v after %v", used, before)
	}
}

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   string
	}{{nil, ""}, {[]float64{2}, "2.000 (2.000-2.000)"}, {[]float64{3, 1, 2}, "2.000 (1.000-3.000)"}, {[]float64{4, 1, 2, 3}, "2.500 (1.000-4.000)"}} {
		if got := Spread(c.values); got != c.want {
			t.Errorf("%v: found %q, wanted %q", c.values, got, c.want)
		}
	}
	if !math.IsNaN(Median(nil)) {
		t.Error("nothing has a median")
	}
}

func TestTensor(t *testing.T) {
	values := []float32{1, -0.5, 3}
	for _, d := range []dtypes.DType{dtypes.Float32, dtypes.BFloat16, dtypes.Float16} {
		x, err := Tensor(shapes.Make(d, 3), values)
		if err != nil || len(x.Data) != 3*d.Size() {
			t.Fatalf("%s: %d bytes, %v", d, len(x.Data), err)
		}
		if got, err := Floats(x); err != nil || !slices.Equal(got, values) {
			t.Errorf("%s: found %v, %v", d, got, err)
		}
	}
	if _, err := Tensor(shapes.Make(dtypes.Float32, 2), values); err == nil {
		t.Error("three values make two elements")
	}
}

func TestDifference(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, c := range []struct {
		got, want []float32
		d         float64
		bad       bool
	}{
		{got: []float32{1, -4}, want: []float32{1, -4}},
		{got: []float32{0, 0}, want: []float32{0, 0}},
		{got: []float32{1, -3}, want: []float32{2, -4}, d: 0.25},
		{got: []float32{1}, want: []float32{0}, d: math.Inf(1)},
		{got: []float32{1}, want: []float32{1, 2}, bad: true},
		{got: []float32{inf}, want: []float32{1}, bad: true},
		{got: []float32{inf - inf}, want: []float32{1}, bad: true},
	} {
		if d, err := Difference(c.got, c.want); d != c.d || (err != nil) != c.bad {
			t.Errorf("%v, %v: found %v, %v", c.got, c.want, d, err)
		}
	}
}
