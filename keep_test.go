package precast

import (
	"bytes"
	"testing"

	"precast/backends"
)

// TestOperationsAreBounded: eager runs of many sizes keep the operations of Config.MaxPrograms programs and no others; those that a kept program runs stay
// open, and a size that comes again makes the same picture.
func TestOperationsAreBounded(t *testing.T) {
	p, err := Open(t.Context(), "tests/testdata/tiny/flux1-dev/model", Config{Backend: "go", Mode: "eager", NoCache: true, MaxPrograms: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	run := func(side int) ([]byte, map[string]backends.Executable) {
		t.Helper()
		out, err := p.Generate(t.Context(), &Request{Prompt: []string{"x"}, Height: side, Width: side, NumInferenceSteps: 1, MaxSequenceLength: 16})
		if err != nil {
			t.Fatal(err)
		}
		held := map[backends.Executable]bool{}
		for _, q := range p.engine.programs {
			for _, x := range q.exes {
				held[x] = true
			}
		}
		have := map[string]backends.Executable{}
		for id, op := range p.engine.operations.have {
			if have[id] = op.exe; !held[op.exe] {
				t.Errorf("%d: an operation that no program runs is kept", side)
			}
		}
		if len(have) != len(held) {
			t.Errorf("%d: %d operations are kept, programs run %d", side, len(have), len(held))
		}
		return out.Images[0].RGB, have
	}
	picture, first := run(16)
	_, second := run(32)
	shared, gone := 0, 0
	for id, x := range first {
		switch second[id] {
		case x:
			shared++
		case nil:
			gone++
		default:
			t.Error("an operation that is in use was made again")
		}
	}
	// The text encoders are those of both sizes.
	if shared == 0 || gone == 0 {
		t.Errorf("%d operations of the first size are kept, %d are not; wanted some of both", shared, gone)
	}
	again, third := run(16)
	if !bytes.Equal(again, picture) {
		t.Error("a size that was forgotten makes another picture")
	}
	if len(third) != len(first) {
		t.Errorf("%d operations are kept for the size that had %d", len(third), len(first))
	}
}
