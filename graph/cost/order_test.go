package cost

import (
	"testing"

	"precast/backends/backendtest"
	"precast/graph"
)

// TestExtent packs blocks whose best places are known.
func TestExtent(t *testing.T) {
	for _, c := range []struct {
		name   string
		blocks []block
		want   int64
	}{
		{"none", nil, 0},
		{"rounded to the alignment", []block{{size: 1, from: 0, until: 0}}, 64},
		{"one after the other share", []block{{size: 128, from: 0, until: 1}, {size: 64, from: 2, until: 3}}, 128},
		{"at the same time they don't", []block{{size: 128, from: 0, until: 2}, {size: 64, from: 2, until: 3}}, 192},
		{"a gap is used", []block{{size: 64, from: 0, until: 9}, {size: 128, from: 0, until: 3}, {size: 64, from: 4, until: 9}, {size: 64, from: 4, until: 9}}, 192},
	} {
		var list []*block
		for _, b := range c.blocks {
			list = append(list, &b)
		}
		if got := extent(list); got != c.want {
			t.Errorf("%s: found %d, wanted %d", c.name, got, c.want)
		}
		for i, a := range list {
			for _, b := range list[:i] {
				if a.from <= b.until && b.from <= a.until && a.offset < b.offset+b.size && b.offset < a.offset+a.size {
					t.Errorf("%s: blocks at %d and %d overlap", c.name, a.offset, b.offset)
				}
			}
		}
	}
}

// TestOrders has two chains that meet: one after the other in the depth, side by side in the breadth.
func TestOrders(t *testing.T) {
	m := backendtest.Parse(t, `module @m

func @m {
	%0 = input "x" : f32[64,64]
	%1 = dot_general %0, %0 {lhs_contracting = [1], rhs_contracting = [0]} : f32[64,64]
	%2 = dot_general %0, %0 {lhs_contracting = [0], rhs_contracting = [0]} : f32[64,64]
	%3 = dot_general %1, %0 {lhs_contracting = [1], rhs_contracting = [0]} : f32[64,64]
	%4 = dot_general %2, %0 {lhs_contracting = [1], rhs_contracting = [0]} : f32[64,64]
	%5 = dot_general %3, %4 {lhs_contracting = [1], rhs_contracting = [0]} : f32[64,64]
	return %5
}
`)
	f := m.Entry()
	for _, c := range []struct {
		order Order
		want  []int
		// temporaries in units of a value's bytes
		values int64
	}{
		{GraphOrder, []int{0, 1, 2, 3, 4}, 3},
		{DepthFirst, []int{0, 2, 1, 3, 4}, 3},
		{BreadthFirst, []int{0, 1, 2, 3, 4}, 3},
	} {
		p := place(f, c.order, func(*graph.Param) bool { return false })
		var got []int
		for _, n := range p.nodes {
			got = append(got, p.index[n])
		}
		if len(got) != len(c.want) {
			t.Fatalf("order %d: found %v, wanted %v", c.order, got, c.want)
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("order %d: found %v, wanted %v", c.order, got, c.want)
				break
			}
		}
		if r := Analyze(m, Options{Order: c.order}); r.Temporaries != c.values*64*64*4 {
			t.Errorf("order %d: found %d bytes, wanted %d values", c.order, r.Temporaries, c.values)
		}
	}
}
