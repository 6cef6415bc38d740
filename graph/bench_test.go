package graph

import (
	"fmt"
	"io"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
)

// largeModule is as large as the trace of FLUX.1's transformer: blocks of about 260 nodes each with 16 weights.
func largeModule(t testing.TB, blocks int) *Module {
	t.Helper()
	m := NewModule("large")
	f := m.Entry()
	b := NewBuilder(m, f)
	shape := shapes.Make(dtypes.BFloat16, 1, 512, 64)
	must := func(v *Value, err error) *Value {
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	x := f.NewParam("hidden_states", Input, shape)
	for i := range blocks {
		for k := range 16 {
			b.Scope = fmt.Sprintf("transformer_blocks.%d.attn.to_%d", i, k)
			w := f.NewParam(b.Scope+".weight", Weight, shapes.Make(dtypes.BFloat16, 64, 64))
			n, err := b.Op(OpDot, []*Value{x, w}, Attrs{{"lhs_contracting", []int{2}}, {"rhs_contracting", []int{1}}})
			x = must(n.Results[0], err)
			for range 2 {
				f32 := must(b.Apply(OpConvert, []*Value{x}, shapes.Make(dtypes.Float32, 1, 512, 64)))
				n, err = b.Op(OpReduce, []*Value{f32}, Attrs{{"combiner", "add"}, {"dimensions", []int{2}}})
				sum := must(n.Results[0], err)
				eps := must(b.Splat(sum.Shape, 1e-6))
				scale := must(b.Apply(OpRsqrt, []*Value{must(b.Apply(OpAdd, []*Value{sum, eps}))}))
				n, err = b.Op(OpBroadcast, []*Value{scale}, Attrs{{"broadcast_dimensions", []int{0, 1}}}, f32.Shape)
				x = must(b.Apply(OpConvert, []*Value{must(b.Apply(OpMul, []*Value{f32, must(n.Results[0], err)}))}, shape))
			}
		}
	}
	f.Results = []*Value{x}
	f.ResultNames = []string{"sample"}
	return m
}

func TestLargeModule(t *testing.T) {
	m := largeModule(t, 4)
	if err := Verify(m); err != nil {
		t.Fatal(err)
	}
	again, err := Parse("printed", m.String())
	if err != nil {
		t.Fatal(err)
	}
	if d := Diff(m, again); d != "" {
		t.Error(d)
	}
	if Hash(m) != Hash(again) {
		t.Error("the hash differs after printing and parsing")
	}
}

func BenchmarkLarge(b *testing.B) {
	m := largeModule(b, 57)
	text := m.String()
	b.Logf("%d nodes, %d bytes of text", len(m.Entry().Nodes), len(text))
	b.Run("Print", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_ = Print(io.Discard, m)
		}
	})
	b.Run("Parse", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Parse("x", text); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Verify", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := Verify(m); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Hash", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			Hash(m)
		}
	})
	b.Run("Clone", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			Clone(m)
		}
	})
	b.Run("Uses", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			Uses(m.Entry())
		}
	})
	b.Run("JSON", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_ = WriteJSON(io.Discard, m)
		}
	})
}
