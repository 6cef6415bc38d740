//go:build linux

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"precast"
)

func TestVariants(t *testing.T) {
	for _, tc := range []struct {
		variant           string
		enabled, disabled []string
	}{
		{variant: "default"},
		{variant: "+merge-dots", enabled: []string{"merge-dots"}},
		{variant: "+late-dce:-cse:+dce", enabled: []string{"late-dce", "dce"}, disabled: []string{"cse"}},
	} {
		var cfg precast.Config
		if err := apply(tc.variant, &cfg); err != nil || !slices.Equal(cfg.EnabledPasses, tc.enabled) || !slices.Equal(cfg.DisabledPasses, tc.disabled) {
			t.Errorf("%s: found %q, %q, %v", tc.variant, cfg.EnabledPasses, cfg.DisabledPasses, err)
		}
	}
	for _, bad := range []string{"", "cse", "+cse:", "++cse"} {
		if err := apply(bad, &precast.Config{}); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// TestWrite: a result takes the place of one of the same work, and stands beside others; the command has nothing of the machine's folders.
func TestWrite(t *testing.T) {
	file := filepath.Join(t.TempDir(), "PASSES")
	one := result{work: work{Model: "a", DType: "float32"}, Variants: []measured{{Variant: "default", Steps: []float64{2, 4}}, {Variant: "-cse", Steps: []float64{1, 3}}}}
	two := one
	two.Model = "b"
	again := one
	again.Measured = "later"
	for _, r := range []result{one, two, again} {
		if err := write(file, r); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(file + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var all []result
	if err := json.Unmarshal(data, &all); err != nil || len(all) != 2 || all[0].Measured != "later" || all[1].Model != "b" {
		t.Errorf("found %+v, %v", all, err)
	}
	text, err := os.ReadFile(file + ".md")
	if err != nil || !strings.Contains(string(text), "| -cse | 2.000 (1.000-3.000) | 0.625 |") {
		t.Errorf("found %s, %v", text, err)
	}
	if got := withoutPlaces([]string{"--size", "64x64", "--cache", "/x", "--out=/y", "/m/flux-768/model"}, "/m/flux-768/model"); !slices.Equal(got, []string{"--size", "64x64", "flux-768"}) {
		t.Errorf("found %q", got)
	}
}
