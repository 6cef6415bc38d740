package precast

import (
	"testing"

	"precast/graph/pipelines"
	"precast/passes"
)

// TestWeightBytes: the check of memory knows what offloaded weights take at once: those of all components, of the largest, or of two of the largest
// blocks, from a manifest as from a trace; a run stays within it.
func TestWeightBytes(t *testing.T) {
	const dir = "tests/testdata/tiny/flux1-dev/model"
	cacheDir := t.TempDir()
	weights := func(offload string) (needed, peak int64) {
		t.Helper()
		p, err := Open(t.Context(), dir, Config{Backend: "go", Regions: "split", Offload: offload, CacheDir: cacheDir})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}()
		req := &Request{Prompt: []string{"x"}, Height: 32, Width: 32, NumInferenceSteps: 1, MaxSequenceLength: 16}
		checkedPrograms(t, p, req)
		needed = p.weightBytes()
		if _, err := p.Generate(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		return needed, p.Stats().Streamed.PeakBytes
	}
	traced, peak := weights(offloadBlock)
	stored, _ := weights(offloadBlock)
	all, _ := weights(offloadNone)
	largest, _ := weights(offloadModel)
	if traced != stored {
		t.Errorf("a trace needs %d bytes, its manifest %d", traced, stored)
	}
	if peak == 0 || peak > traced || traced > 2*peak {
		t.Errorf("%d bytes were on the device at once, %d are said to be needed", peak, traced)
	}
	if !(traced < largest && largest < all) {
		t.Errorf("block needs %d bytes, model %d, none %d; wanted less each time", traced, largest, all)
	}
}

// TestLayout: a weight that two steps read is brought for both, an argument that is given twice once.
func TestLayout(t *testing.T) {
	f := &planFile{
		Params: []slotFile{{Name: "x"}, {Name: "a", Weight: true}, {Name: "b", Weight: true}},
		Steps:  stepsOf([]int{0, 1, 1}, []int{3}, []int{3, 1, 2}),
	}
	got := f.layout()
	if len(got) != 3 || len(got[0]) != 1 || got[0][0] != 1 || len(got[1]) != 0 || len(got[2]) != 2 {
		t.Errorf("found %v, wanted [[1] [] [1 2]]", got)
	}
	if (&engine{cfg: &Config{Offload: offloadBlock}}).streams(&pipelines.Program{}, &manifest{Main: *f}) {
		t.Error("a program without a component is streamed")
	}
}

func stepsOf(args ...[]int) []passes.Step {
	var steps []passes.Step
	for _, a := range args {
		steps = append(steps, passes.Step{Args: a})
	}
	return steps
}
