package precast

import "testing"

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
