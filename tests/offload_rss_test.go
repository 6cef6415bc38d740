package tests

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"precast"
	"precast/graph/checkpoint"
)

const (
	// offloadVariable names a checkpoint of FLUX.1 that is measured in place of the one that the test makes, such as flux-1536 of the reference.
	offloadVariable = "PRECAST_TEST_OFFLOAD_MODEL"
	// offloadChildVariable makes the test binary run a checkpoint and print what it took.
	offloadChildVariable = "PRECAST_TEST_OFFLOAD_RUN"
)

// offloadReport is what a run of a child was: Latents is the digest of every step's, Step the median time of a step after the first.
type offloadReport struct {
	Peak     int64
	Step     float64
	Latents  string
	Compiles int64
	Streamed precast.StreamedWeights
	Bytes    map[string]int64
	Seconds  map[string]float64
}

// TestOffloadPeak runs a transformer of 1.9 GB in bfloat16, 3.8 GB as it is computed in float32, in processes of their own, from the cache, without offload and with
// each kind, and prints the table of README.md. With --offload block the peak of the resident set is at most a third of the float32 weights and 0.5 GB, and
// the latents of every step have the bytes of the same programs without offload.
func TestOffloadPeak(t *testing.T) {
	if args := os.Getenv(offloadChildVariable); args != "" {
		measureOffload(t, strings.Split(args, "|"))
		return
	}
	model := os.Getenv(offloadVariable)
	if model == "" && !long() {
		t.Skip("takes gigabytes: PRECAST_TEST_LONG")
	}
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells the peak of the resident set")
	}
	needBackend(t, "pjrt")
	if model == "" {
		model = bigFlux(t, 12, 6, 12)
	}
	weights := transformerBytes(t, model)
	limit := weights/3 + 500e6
	cacheDir := t.TempDir()
	child := func(offload string) offloadReport {
		t.Helper()
		var r offloadReport
		measuredChild(t, "TestOffloadPeak", offloadChildVariable, []string{model, cacheDir, offload}, &r)
		return r
	}
	child("none") // compiles for all
	reports := map[string]offloadReport{}
	kinds := []string{"none", "model", "block"}
	for _, kind := range kinds {
		reports[kind] = child(kind)
	}
	t.Logf("transformer: %.2f GB in float32; the limit of the peak under block is %.2f GB", float64(weights)/1e9, float64(limit)/1e9)
	for _, kind := range kinds {
		r := reports[kind]
		t.Logf("| %s | %.2f GB | %.2f s | %.2f x |", kind, float64(r.Peak)/1e9, r.Step, r.Step/reports["none"].Step)
		if r.Compiles != 0 {
			t.Errorf("%s: %d compiles from a full cache", kind, r.Compiles)
		}
		if r.Latents != reports["none"].Latents {
			t.Errorf("%s: the latents differ from those without offload", kind)
		}
	}
	r := reports["block"]
	t.Logf("block: %.2f GB streamed in %d blocks, at most %d on the device, %.2f GB; loading %.2f s, waiting for it %.2f s, computing %.2f s",
		float64(r.Bytes["streamed"])/1e9, r.Streamed.Units, r.Streamed.Peak, float64(r.Streamed.PeakBytes)/1e9,
		r.Seconds["stream_load"], r.Seconds["stream_wait"], r.Seconds["stream_compute"])
	if weights < 1e9 {
		t.Errorf("the weights are only %d bytes", weights)
	}
	if r.Peak > limit {
		t.Errorf("the peak is %d bytes, wanted at most %d", r.Peak, limit)
	}
	if r.Streamed.Peak != 2 {
		t.Errorf("%d blocks were on the device at once, wanted 2", r.Streamed.Peak)
	}
}

// transformerBytes is what the transformer's weights take in float32.
func transformerBytes(t *testing.T, model string) int64 {
	t.Helper()
	ck, err := checkpoint.Open(model)
	must(t, err)
	defer ck.Close()
	comp, err := ck.Component("transformer")
	must(t, err)
	tensors, err := comp.Tensors()
	must(t, err)
	var sum int64
	for _, w := range tensors {
		sum += 4 * int64(w.Len())
	}
	return sum
}

// measureOffload is the child: the steps of a picture.
func measureOffload(t *testing.T, args []string) {
	cfg := precast.Config{Backend: "pjrt", Regions: "split", CacheDir: args[1], Offload: args[2]}
	p, err := precast.Open(context.Background(), args[0], cfg)
	must(t, err)
	defer p.Close()
	latents := sha256.New()
	var times []float64
	last := time.Time{}
	_, _, err = p.Denoise(context.Background(), &precast.Request{
		Prompt: []string{"a red circle"}, Height: 256, Width: 256, NumInferenceSteps: 5, MaxSequenceLength: 512,
		Observe: func(name string, h precast.HostTensor) {
			if name == "step_latents" {
				latents.Write(h.Data)
			}
		},
		Progress: func(int, int) {
			now := time.Now()
			if !last.IsZero() {
				times = append(times, now.Sub(last).Seconds())
			}
			last = now
		},
	})
	// Weights that nobody trained may give latents of anything.
	if err != nil && !strings.Contains(err.Error(), "NaN") {
		t.Fatal(err)
	}
	slices.Sort(times)
	s := p.Stats()
	printMeasured(t, offloadReport{
		Peak: s.PeakRSS, Step: times[len(times)/2], Latents: hex.EncodeToString(latents.Sum(nil)), Compiles: s.Counts["compile"],
		Streamed: s.Streamed, Bytes: s.Bytes, Seconds: s.Seconds,
	})
}
