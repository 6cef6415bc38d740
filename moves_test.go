package precast

import (
	"reflect"
	"slices"
	"testing"

	"precast/graph"
)

func TestMoveCheck(t *testing.T) {
	args := []slotFile{{Name: "w", Weight: true, DType: "f32", Dims: []int{4, 3, 2}}}
	good := move{Arg: 0, Dims: []int{4, 6}, Permutation: []int{1, 0}, DType: "f32", Shape: []int{6, 4}}
	if err := good.check(args); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*move){
		"argument":    func(m *move) { m.Arg = 1 },
		"negative":    func(m *move) { m.Arg = -1 },
		"permutation": func(m *move) { m.Permutation = []int{1, 1} },
		"axes":        func(m *move) { m.Permutation = []int{0} },
		"larger":      func(m *move) { m.Shape = []int{7, 4} },
		"dims":        func(m *move) { m.Dims = []int{4, 7} },
		"dtype":       func(m *move) { m.DType = "bf16" },
		"unknown":     func(m *move) { m.DType = "f99" },
		"below zero":  func(m *move) { m.Shape = []int{-6, -4} },
	} {
		bad := good
		change(&bad)
		if bad.check(args) == nil {
			t.Errorf("%s: %+v is accepted", name, bad)
		}
	}
}

// TestStackedMoves: what prepare stacks is moved by the loader, whether as it is stored or transposed; what is computed or moved in different ways is not.
func TestStackedMoves(t *testing.T) {
	const head = "module @m\n\nfunc @main {\n  %a = weight \"a\" : f32[2,3]\n  %b = weight \"b\" : f32[2,3]\n"
	for name, c := range map[string]struct {
		body string
		want []move
	}{
		"as stored": {`  %0 = reshape %b : f32[1,2,3]
  %1 = reshape %a : f32[1,2,3]
  %2 = concatenate %0, %1 {dimension = 0} : f32[2,2,3]
  return %2
}
`, []move{{Arg: 1, Stacked: []int{0}, Dims: []int{6}, Permutation: []int{0}, DType: "f32", Shape: []int{2, 2, 3}}}},
		"transposed": {`  %0 = transpose %a {permutation = [1, 0]} : f32[3,2]
  %1 = transpose %b {permutation = [1, 0]} : f32[3,2]
  %2 = reshape %0 : f32[1,3,2]
  %3 = reshape %1 : f32[1,3,2]
  %4 = concatenate %2, %3 {dimension = 0} : f32[2,3,2]
  return %4
}
`, []move{{Arg: 0, Stacked: []int{1}, Dims: []int{2, 3}, Permutation: []int{1, 0}, DType: "f32", Shape: []int{2, 3, 2}}}},
		"one of two transposed": {`  %0 = transpose %a {permutation = [1, 0]} : f32[3,2]
  %1 = reshape %0 : f32[1,3,2]
  %2 = reshape %b : f32[1,3,2]
  %3 = concatenate %1, %2 {dimension = 0} : f32[2,3,2]
  return %3
}
`, nil},
		"computed": {`  %0 = negate %a : f32[2,3]
  %1 = concatenate %0, %b {dimension = 0} : f32[4,3]
  return %1
}
`, nil},
		"along another axis": {`  %0 = concatenate %a, %b {dimension = 1} : f32[2,6]
  return %0
}
`, nil},
		"reshaped alone": {"  %0 = reshape %a : f32[6]\n  return %0\n}\n", nil},
	} {
		m, err := graph.Parse(name, head+c.body)
		if err != nil {
			t.Fatal(err)
		}
		if err := graph.Verify(m); err != nil {
			t.Fatal(err)
		}
		got := movesOf(m)
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: found %+v, wanted %+v", name, got, c.want)
		}
		args := []slotFile{{Name: "a", Weight: true, DType: "f32", Dims: []int{2, 3}}, {Name: "b", Weight: true, DType: "f32", Dims: []int{2, 3}}}
		for _, mv := range got {
			if err := mv.check(args); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			for what, bad := range map[string]func(*move){
				"argument": func(m *move) { m.Stacked = []int{2} },
				"negative": func(m *move) { m.Stacked = []int{-1} },
				"fewer":    func(m *move) { m.Stacked = nil },
				"more":     func(m *move) { m.Stacked = []int{1, 1} },
				"dims":     func(m *move) { m.Dims[0]++ },
			} {
				worse := mv
				worse.Dims = slices.Clone(mv.Dims)
				bad(&worse)
				if worse.check(args) == nil {
					t.Errorf("%s, %s: %+v is accepted", name, what, worse)
				}
			}
		}
	}
}

// TestUnequalMoves: weights that lie as they are stored are put behind one another whatever their sizes; a manifest whose sizes don't add up is refused.
func TestUnequalMoves(t *testing.T) {
	m, err := graph.Parse("unequal", "module @m\n\nfunc @main {\n  %a = weight \"a\" : f32[2,3]\n  %b = weight \"b\" : f32[5,3]\n  %0 = concatenate %b, %a {dimension = 0} : f32[7,3]\n  return %0\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	got := movesOf(m)
	if want := []move{{Arg: 1, Stacked: []int{0}, Dims: []int{15}, Permutation: []int{0}, DType: "f32", Shape: []int{7, 3}}}; !reflect.DeepEqual(got, want) {
		t.Fatalf("found %+v, wanted %+v", got, want)
	}
	args := []slotFile{{Name: "a", Weight: true, DType: "f32", Dims: []int{2, 3}}, {Name: "b", Weight: true, DType: "f32", Dims: []int{5, 3}}}
	if err := got[0].check(args); err != nil {
		t.Fatal(err)
	}
	for what, bad := range map[string]func(*move){
		"other order": func(m *move) { m.Arg, m.Stacked = 0, []int{1} },
		"fewer":       func(m *move) { m.Stacked = nil },
		"more":        func(m *move) { m.Stacked = []int{0, 0} },
		"dims":        func(m *move) { m.Dims = []int{21} },
		"larger":      func(m *move) { m.Shape = []int{8, 3} },
		"transposed":  func(m *move) { m.Dims, m.Permutation = []int{5, 3}, []int{1, 0} },
	} {
		worse := got[0]
		bad(&worse)
		if worse.check(args) == nil {
			t.Errorf("%s: %+v is accepted", what, worse)
		}
	}
}
