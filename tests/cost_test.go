package tests

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"precast"
	"precast/backends"
	"precast/backends/pjrt"
	"precast/backends/plugin"
	"precast/graph"
	"precast/graph/cost"
	"precast/lower"
	"precast/passes"
)

// costPlugin is the pinned plugin that has XLA's cost analysis.
const costPlugin = "cpu:xla-cpu-pjrt"

// costCases are programs of the tiny models.
var costCases = []struct {
	model, program string
	sizes          precast.Sizes
}{
	{"flux1-dev", "transformer", precast.Sizes{Height: 64, Width: 64, MaxSequenceLength: 32}},
	{"flux1-schnell", "text_encoder_2", precast.Sizes{Height: 64, Width: 64, MaxSequenceLength: 32}},
	{"flux1-dev", "text_encoder", precast.Sizes{Height: 64, Width: 64}},
	{"sd15", "unet", precast.Sizes{Height: 64, Width: 64}},
	{"sd15", "vae.decoder", precast.Sizes{Height: 64, Width: 64}},
	{"sdxl", "unet", precast.Sizes{Height: 64, Width: 64}},
	{"tp-sd3", "transformer", precast.Sizes{Height: 64, Width: 64}},
	{"tp-qwen", "transformer", precast.Sizes{Height: 64, Width: 64}},
	{"flux2-dev", "transformer", precast.Sizes{Height: 64, Width: 64}},
	{"z-image", "transformer", precast.Sizes{Height: 64, Width: 64}},
	{"wan22-t2v", "transformer", precast.Sizes{Height: 64, Width: 64, Frames: 5}},
	{"wan22-t2v", "vae.decoder", precast.Sizes{Height: 64, Width: 64, Frames: 5}},
}

// costClient opens costPlugin, or skips.
func costClient(t *testing.T) backends.Client {
	t.Helper()
	store, err := plugin.Open()
	if err != nil {
		t.Fatal(err)
	}
	found, err := store.Lookup(costPlugin)
	if missing := (*plugin.NotInstalledError)(nil); errors.As(err, &missing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	lib, err := pjrt.Load(found.Path)
	if err != nil {
		t.Fatal(err)
	}
	client, err := lib.NewClient(backends.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	return client
}

// TestCostAgainstXLA compares the counted operations and temporaries with what XLA says of the same program.
func TestCostAgainstXLA(t *testing.T) {
	client := costClient(t)
	for i, c := range costCases {
		t.Run(c.model+"/"+c.program, func(t *testing.T) {
			x, err := precast.Inspect("testdata/tiny/"+c.model+"/model", precast.InspectOptions{Component: c.program, Sizes: c.sizes})
			if err != nil {
				t.Fatal(err)
			}
			checkCost(t, client, x.Module, i == 0 || long())
		})
	}
}

// checkCost compiles a program and compares. In the order that saves memory (without what makes XLA start several operations at a time) temporaries are within 20 %; in
// XLA's own order, where more is alive and gaps between values are more, within 35 %. Temporaries and results are compared together, since XLA
// computes in a result's memory before the result is there. both asks for the second order, too.
func checkCost(t *testing.T, client backends.Client, m *graph.Module, both bool) {
	t.Helper()
	program, err := lower.Lower(passes.Whole(m).Programs[0])
	must(t, err)
	within := func(what string, got, want, share float64) {
		t.Helper()
		t.Logf("%s: %.0f, by XLA %.0f: %.3f", what, got, want, got/want)
		if want <= 0 || math.Abs(got/want-1) > share {
			t.Errorf("%s: found %.0f, by XLA %.0f", what, got, want)
		}
	}
	for _, c := range []struct {
		order   cost.Order
		options map[string]any
		share   float64
	}{
		{cost.DepthFirst, map[string]any{"xla_cpu_enable_concurrency_optimized_scheduler": false}, 0.2},
		{cost.BreadthFirst, map[string]any{"xla_cpu_enable_concurrency_optimized_scheduler": true}, 0.35},
	} {
		if c.order == cost.BreadthFirst && !both {
			continue
		}
		exe, err := client.Compile(context.Background(), program, backends.CompileOptions{Overrides: c.options})
		must(t, err)
		defer exe.Close()
		theirs, err := exe.CostAnalysis()
		must(t, err)
		mem, err := exe.MemoryStats()
		must(t, err)
		r := cost.Analyze(m, cost.Options{Order: c.order})
		within("flops", r.Total.Flops, theirs["flops"], 0.1)
		within("transcendentals", r.Total.Transcendentals, theirs["transcendentals"], 0.1)
		within(fmt.Sprintf("temporaries and results, order %d", c.order), float64(r.Temporaries+r.OutputBytes), float64(mem.Temporaries+mem.Outputs), c.share)
	}
}
