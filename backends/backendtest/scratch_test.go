package backendtest_test

import (
	"os"
	"testing"

	"precast/backends"
	"precast/backends/backendtest"
	"precast/backends/pjrt"
)

func TestScratch(t *testing.T) {
	p, err := pjrt.Load(os.Getenv("SCRATCH_PLUGIN"))
	if err != nil {
		t.Fatal(err)
	}
	backendtest.RunAll(t, p, backendtest.Options{Live: pjrt.Live, Compile: backends.CompileOptions{Overrides: map[string]any{"xla_cpu_enable_fast_min_max": false}}})
}
