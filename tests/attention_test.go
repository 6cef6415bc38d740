package tests

import (
	"path/filepath"
	"strings"
	"testing"

	"precast"
)

// TestGoldensChunked: with attention in chunks of a few queries and keys the pictures are those of diffusers all the same, whole and by regions, with masks
// (Z-Image, Qwen-Image), causal text encoders, heads that share keys, and an autoencoder that attends.
func TestGoldensChunked(t *testing.T) {
	for _, c := range []struct{ name, regions, attention string }{
		{"sd15", "inline", "chunked:5x3"},
		{"flux1-dev", "scan", "chunked:3"},
		{"flux1-dev", "split", "chunked:7x4"},
		{"z-image", "call", "chunked:4x5"},
		{"tp-qwen", "inline", "chunked:6x4"},
	} {
		dir := filepath.Join("testdata", "tiny", c.name)
		run := recordedRuns(t, dir)[0]
		t.Run(c.name+"/"+c.regions+"/"+c.attention, func(t *testing.T) {
			g := readGolden(t, dir)
			var r goldenRun
			r.decode(t, g.Runs[run])
			checkRun(t, dir, run, &r, precast.Config{Backend: "go", Regions: c.regions, Variant: g.Variant, CacheDir: t.TempDir(), CheckPasses: true, Attention: c.attention})
		})
	}
}

// TestAttentionOption: the option reaches the graphs of each component that attends, and no other setting leaves scores whole.
func TestAttentionOption(t *testing.T) {
	for _, component := range []string{"unet", "vae.decoder", "text_encoder"} {
		loops := func(cfg precast.Config) int {
			x, err := precast.Inspect("testdata/tiny/sd15/model", precast.InspectOptions{Component: component, Config: cfg, Sizes: precast.Sizes{Height: 64, Width: 64}})
			if err != nil {
				t.Fatal(err)
			}
			return strings.Count(x.Module.String(), " = while ")
		}
		if n := loops(precast.Config{Attention: "chunked:2"}); n == 0 {
			t.Errorf("%s: chunked:2 leaves no loop", component)
		}
		for _, cfg := range []precast.Config{{}, {Attention: "whole"}, {Attention: "chunked:2", DisabledPasses: []string{"chunk-attention"}}} {
			if n := loops(cfg); n != 0 {
				t.Errorf("%s: attention %q without %q: found %d loops, wanted none", component, cfg.Attention, cfg.DisabledPasses, n)
			}
		}
	}
	if _, err := precast.Inspect("testdata/tiny/sd15/model", precast.InspectOptions{Component: "unet", Config: precast.Config{Attention: "chunked:x"}}); err == nil || !strings.Contains(err.Error(), "chunked:QUERIES") {
		t.Errorf("chunked:x: found %v, wanted an error", err)
	}
}
