package tests

import (
	"context"
	"errors"
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

// TestCostAgainstXLA compares the counted operations and temporaries with what XLA says of the same program.
func TestCostAgainstXLA(t *testing.T) {
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
	defer func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, c := range costCases {
		t.Run(c.model+"/"+c.program, func(t *testing.T) {
			x, err := precast.Inspect("testdata/tiny/"+c.model+"/model", precast.InspectOptions{Component: c.program, Sizes: c.sizes})
			if err != nil {
				t.Fatal(err)
			}
			checkCost(t, client, x.Module)
		})
	}
}

// checkCost compiles a program without what makes XLA run several operations at a time at the price of memory: its order is then made for memory, as
// ours is. Temporaries and results are compared together, since XLA computes in a result's memory before the result is there.
func checkCost(t *testing.T, client backends.Client, m *graph.Module) {
	t.Helper()
	program, err := lower.Lower(passes.Whole(m).Programs[0])
	if err != nil {
		t.Fatal(err)
	}
	exe, err := client.Compile(context.Background(), program, backends.CompileOptions{
		Overrides: map[string]any{"xla_cpu_enable_concurrency_optimized_scheduler": false},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	theirs, err := exe.CostAnalysis()
	if err != nil {
		t.Fatal(err)
	}
	mem, err := exe.MemoryStats()
	if err != nil {
		t.Fatal(err)
	}
	r := cost.Analyze(m)
	within := func(what string, got, want, factor float64) {
		t.Logf("%s: %.0f, by XLA %.0f: %.3f", what, got, want, got/want)
		if want <= 0 || got/want > factor || got/want < 1/factor {
			t.Errorf("%s: found %.0f, by XLA %.0f", what, got, want)
		}
	}
	within("flops", r.Total.Flops, theirs["flops"], 1.1)
	within("transcendentals", r.Total.Transcendentals, theirs["transcendentals"], 1.1)
	within("temporaries and results", float64(r.Temporaries+r.OutputBytes), float64(mem.Temporaries+mem.Outputs), 2)
}
