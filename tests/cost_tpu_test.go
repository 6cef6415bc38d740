package tests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"precast"
	"precast/backends"
	"precast/backends/pjrt"
	"precast/backends/plugin"
	"precast/graph"
	"precast/graph/cost"
	"precast/lower"
	"precast/passes"
)

// tpuCostVariable makes the test binary compile one program for a TPU and print what libtpu says of it: libtpu sets up the whole process.
const tpuCostVariable = "PRECAST_TEST_TPU_COST"

type tpuCost struct {
	Ours, Theirs                struct{ Flops, Temporaries float64 }
	Serialized, OptimizedLength int
}

// TestCostAgainstTPU compiles for a topology of TPUs, which needs none, and compares with libtpu's figures.
//
// libtpu keeps in the chip's vector memory (128 MB of a v6e) what fits there, which is no temporary in its statistics, and computes the scores of an attention a second time
// rather than store them. So our memory is an upper bound of theirs and our operations are a lower one.
func TestCostAgainstTPU(t *testing.T) {
	modules := func(i int) (string, *graph.Module) {
		if i < len(midCases) {
			return midCases[i].name + "/" + midCases[i].program, midCases[i].module(t)
		}
		c := costCases[i-len(midCases)]
		x, err := precast.Inspect("testdata/tiny/"+c.model+"/model", precast.InspectOptions{Component: c.program, Sizes: c.sizes})
		must(t, err)
		return "tiny " + c.model + "/" + c.program, x.Module
	}
	if v := os.Getenv(tpuCostVariable); v != "" {
		i, err := strconv.Atoi(v)
		must(t, err)
		_, m := modules(i)
		compileForTPU(t, m)
		return
	}
	store, err := plugin.Open()
	must(t, err)
	_, err = store.Lookup("tpu:libtpu")
	if missing := (*plugin.NotInstalledError)(nil); errors.As(err, &missing) {
		t.Skip(err)
	}
	must(t, err)
	self, err := os.Executable()
	must(t, err)
	for i := range len(midCases) + len(costCases) {
		mid := i < len(midCases)
		if mid && midCases[i].name == "FLUX.1-dev 1024x1024" {
			continue // a minute of compiling and more
		}
		name, _ := modules(i)
		t.Run(name, func(t *testing.T) {
			if !long() && name != "tiny flux1-dev/transformer" {
				t.Skip("compiles for long: PRECAST_TEST_LONG")
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, self, "-test.run=^TestCostAgainstTPU$")
			cmd.Env = append(os.Environ(), tpuCostVariable+"="+strconv.Itoa(i))
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			_, line, ok := strings.Cut(string(out), "COST ")
			line, _, _ = strings.Cut(line, "\n")
			var r tpuCost
			if err := json.Unmarshal([]byte(line), &r); !ok || err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			flops := r.Ours.Flops / r.Theirs.Flops
			t.Logf("flops %.3f of libtpu's; temporaries %.0f, libtpu's %.0f; serialized %d", flops, r.Ours.Temporaries, r.Theirs.Temporaries, r.Serialized)
			least := 0.7 // of a tiny model, whose elementwise operations count
			if mid {
				least = 0.85
			}
			if flops > 1.1 || flops < least {
				t.Errorf("flops are %.3f of libtpu's, wanted %g to 1.1", flops, least)
			}
			if mid && r.Ours.Temporaries < 0.8*r.Theirs.Temporaries {
				t.Errorf("temporaries %.0f, libtpu has %.0f", r.Ours.Temporaries, r.Theirs.Temporaries)
			}
			if r.Serialized == 0 || r.OptimizedLength == 0 {
				t.Errorf("serialized to %d bytes, optimized HLO of %d", r.Serialized, r.OptimizedLength)
			}
		})
	}
}

// compileForTPU is the child.
func compileForTPU(t *testing.T, m *graph.Module) {
	store, err := plugin.Open()
	must(t, err)
	found, err := store.Lookup("tpu:libtpu")
	must(t, err)
	lib, err := pjrt.Load(found.Path)
	must(t, err)
	topology, err := lib.NewTopology("v6e:2x2", nil)
	must(t, err)
	defer topology.Close()
	program, err := lower.Lower(passes.Whole(m).Programs[0])
	must(t, err)
	exe, err := lib.CompileFor(t.Context(), topology, program, backends.CompileOptions{})
	must(t, err)
	defer exe.Close()
	theirs, err := exe.CostAnalysis()
	must(t, err)
	mem, err := exe.MemoryStats()
	must(t, err)
	data, err := exe.Serialize()
	must(t, err)
	text, err := exe.OptimizedHLO()
	must(t, err)
	ours := cost.Analyze(m, cost.Options{Order: cost.DepthFirst})
	var r tpuCost
	r.Ours.Flops, r.Ours.Temporaries = ours.Total.Flops, float64(ours.Temporaries+ours.OutputBytes)
	r.Theirs.Flops, r.Theirs.Temporaries = theirs["flops"], float64(mem.Temporaries+mem.Outputs)
	r.Serialized, r.OptimizedLength = len(data), len(text)
	line, err := json.Marshal(r)
	must(t, err)
	fmt.Printf("COST %s\n", line)
}
