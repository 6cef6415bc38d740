package precast

import (
	"fmt"
	"slices"

	"precast/graph"
)

// move says that a prepared weight is a stored one with its elements in another order: the stored tensor seen as Dims, its axes permuted; or
// several such, one behind another. The loader does that while it copies the weight, which saves a compile and a second pass over the memory.
type move struct {
	// Arg is the position of the weight in the step's arguments.
	Arg int `json:"arg"`
	// Stacked are the positions of the weights that follow it in the result, each moved in the same way. Those that lie as they are stored may differ in size.
	Stacked []int `json:"stacked,omitempty"`
	// Dims are those of each weight; of one that lies as it is stored, the number of elements of the first.
	Dims        []int `json:"dims"`
	Permutation []int `json:"permutation"`
	// DType and Shape are those of the result.
	DType string `json:"dtype"`
	Shape []int  `json:"shape"`
}

// movesOf returns one move for each result of a program that does nothing but reorder weights, nil for any other program.
func movesOf(m *graph.Module) []move {
	f := m.Entry()
	if len(m.Funcs) != 1 {
		return nil
	}
	var list []move
	for _, r := range f.Results {
		mv, ok := moveOf(r)
		if !ok {
			return nil
		}
		list = append(list, mv)
	}
	return list
}

// moveOf describes a value that is moved.
func moveOf(v *graph.Value) (move, bool) {
	n := v.Def
	if n == nil || n.Op != graph.OpConcat || n.Attrs.Int("dimension") != 0 {
		mv, ok := straightMoveOf(v)
		return mv, ok && mv.Permutation != nil
	}
	var all move
	for i, o := range n.Operands {
		mv, ok := straightMoveOf(o)
		if !ok {
			return move{}, false
		}
		if mv.Permutation == nil { // as it is stored
			mv.Dims, mv.Permutation = []int{mv.result().Size()}, []int{0}
		}
		switch {
		case i == 0:
			all = mv
		case !slices.Equal(mv.Permutation, all.Permutation) || !mv.straight() && !slices.Equal(mv.Dims, all.Dims):
			return move{}, false
		default:
			all.Stacked = append(all.Stacked, mv.Arg)
		}
	}
	all.Shape = slices.Clone(v.Shape.Dimensions)
	return all, true
}

// straightMoveOf follows a value back over reshapes and at most one transpose to a parameter; without a transpose the permutation is nil.
func straightMoveOf(v *graph.Value) (move, bool) {
	mv := move{DType: graph.DTypeName(v.Shape.DType), Shape: slices.Clone(v.Shape.Dimensions)}
	switch v.Shape.DType.Size() {
	case 1, 2, 4, 8:
	default:
		return move{}, false
	}
	for v.Def != nil {
		n := v.Def
		switch {
		case n.Op == graph.OpReshape:
		case n.Op == graph.OpTranspose && mv.Permutation == nil:
			mv.Permutation = slices.Clone(n.Attrs.Ints("permutation"))
			mv.Dims = slices.Clone(n.Operands[0].Shape.Dimensions)
		default:
			return move{}, false
		}
		v = n.Operands[0]
	}
	if v.Param == nil {
		return move{}, false
	}
	mv.Arg = v.Index
	return mv, true
}

// straight says that the weights lie as they are stored.
func (mv *move) straight() bool { return len(mv.Permutation) == 1 }

// args are the positions of the weights, in their order in the result.
func (mv *move) args() []int { return append([]int{mv.Arg}, mv.Stacked...) }

// result is the shape of the prepared weight; check has made sure that there is one.
func (mv *move) result() graph.Shape {
	s, err := slotFile{DType: mv.DType, Dims: mv.Shape}.shape()
	if err != nil {
		panic("BUG: a move of an unchecked manifest: " + err.Error())
	}
	return s
}

// check refuses a move that would read or write past its tensors: args are the parameters that its step reads.
func (mv *move) check(args []slotFile) error {
	for _, a := range mv.args() {
		if a < 0 || a >= len(args) {
			return fmt.Errorf("it reads argument %d of %d", a, len(args))
		}
	}
	if len(mv.Dims) != len(mv.Permutation) {
		return fmt.Errorf("permutation %v of %d axes", mv.Permutation, len(mv.Dims))
	}
	sorted := slices.Sorted(slices.Values(mv.Permutation))
	for i, p := range sorted {
		if p != i {
			return fmt.Errorf("%v is no permutation", mv.Permutation)
		}
	}
	shape, err := slotFile{Name: args[mv.Arg].Name, DType: mv.DType, Dims: mv.Shape}.shape()
	if err != nil {
		return err
	}
	switch shape.DType.Size() {
	case 1, 2, 4, 8:
	default:
		return fmt.Errorf("it moves elements of %s", mv.DType)
	}
	left := shape.Size()
	for i, a := range mv.args() {
		arg := args[a]
		stored, err := arg.shape()
		if err != nil {
			return err
		}
		seen, err := slotFile{Name: arg.Name, DType: mv.DType, Dims: mv.Dims}.shape()
		if err != nil {
			return err
		}
		if mv.DType != arg.DType || stored.Size() > left || stored.Size() != seen.Size() && (i == 0 || !mv.straight()) {
			return fmt.Errorf("it makes %s%v of %s%v, %d in all", mv.DType, mv.Shape, arg.DType, arg.Dims, len(mv.args()))
		}
		left -= stored.Size()
	}
	if left != 0 {
		return fmt.Errorf("it makes %s%v of %d weights that have %d elements fewer", mv.DType, mv.Shape, len(mv.args()), left)
	}
	return nil
}
