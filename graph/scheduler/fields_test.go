package scheduler

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"precast/graph/checkpoint"
)

// TestBadFields replaces each field of the config of each class by absurd values, one at a time: an error that names the file and the field, or that this
// number of steps is impossible, or a plan of finite numbers. It takes neither time nor memory.
func TestBadFields(t *testing.T) {
	values := []string{
		"-1", "0", "1", "0.5", "1000000000", "1e300", "-9223372036854775808", `"x"`, `""`, "null", "true", "[]", "{}", "[-1]", "[1000000000, 1]", `["x", null]`, "NaN", "Infinity",
	}
	files, err := filepath.Glob("testdata/configs/*/scheduler_config.json")
	if err != nil || len(files) < 20 {
		t.Fatalf("%v, %d configs", err, len(files))
	}
	refused, planned := 0, 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var fields map[string]json.RawMessage
		// Python writes infinities that JSON does not have.
		if err := json.Unmarshal(bytes.ReplaceAll(data, []byte("-Infinity"), []byte(`"-Infinity"`)), &fields); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for key := range fields {
			for _, v := range values {
				// Written by hand, for encoding/json takes no NaN.
				text := strings.Builder{}
				text.WriteString("{")
				for k, raw := range fields {
					if k == key {
						raw = json.RawMessage(v)
					}
					text.WriteString(`"` + k + `": ` + string(raw) + ",")
				}
				text.WriteString(`"another": null}`)
				what := filepath.Base(filepath.Dir(file)) + ": " + key + " = " + v
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				start := time.Now()
				if planFields(t, what, key, text.String()) {
					planned++
				} else {
					refused++
				}
				if took := time.Since(start); took > 5*time.Second {
					t.Errorf("%s: took %v", what, took)
				}
				runtime.ReadMemStats(&after)
				if n := after.TotalAlloc - before.TotalAlloc; n > 128<<20 {
					t.Errorf("%s: %d MB were allocated", what, n>>20)
				}
			}
		}
	}
	t.Logf("%d refused, %d planned", refused, planned)
	if refused < 1000 || planned < 1000 {
		t.Errorf("%d configs were refused and %d planned", refused, planned)
	}
}

// planFields makes the plans of a config and judges what comes of it.
func planFields(t *testing.T, what, key, text string) bool {
	t.Helper()
	refused := func(err error, others ...string) bool {
		named := strings.Contains(err.Error(), key) || slices.ContainsFunc(others, func(o string) bool { return strings.Contains(err.Error(), o) })
		if !named || strings.Contains(err.Error(), "%!") || strings.Contains(err.Error(), "BUG") {
			t.Errorf("%s: %v", what, err)
		}
		return false
	}
	cfg, err := checkpoint.ParseConfig("scheduler_config.json", []byte(text))
	if err != nil {
		return refused(err, "scheduler_config.json:1:")
	}
	s, err := New("", cfg)
	if err != nil {
		// Of the class the message has the file and the name.
		return refused(err, "scheduler_config.json: class ")
	}
	for _, steps := range []int{1, 4, 20} {
		o := Options{Steps: steps}
		if s.DynamicShifting() {
			mu := s.ShiftRange().Mu(256)
			o.Mu = &mu
		}
		plan, err := s.Schedule(o)
		if err != nil {
			return refused(err, "cannot run ", "mu: found", "sigmas", "timesteps")
		}
		for _, c := range plan.Calls {
			if slices.ContainsFunc(slices.Concat(c.Coefficients...), notFinite) || notFinite(c.Timestep) || notFinite(c.InputScale) {
				t.Errorf("%s: %d steps: a plan with numbers that are not finite", what, steps)
				return true
			}
		}
		if notFinite(plan.InitNoiseSigma) || notFinite(plan.InputScale) {
			t.Errorf("%s: %d steps: the noise is scaled by %v and %v", what, steps, plan.InitNoiseSigma, plan.InputScale)
		}
	}
	return true
}
