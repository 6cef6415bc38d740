package cost

import (
	"encoding/binary"
	"math"

	"precast/graph"
)

// TripCount is the number of turns of a while, where it shows: a counter that starts at a constant, to which each turn adds a positive
// constant, and that the condition compares (LT or LE) with a constant. A constant may also be a value that is carried through unchanged.
func TripCount(n *graph.Node) (turns int64, known bool) {
	if n.Op != graph.OpWhile || len(n.Regions) != 2 {
		return 0, false
	}
	cond, body := n.Regions[0], n.Regions[1]
	test := cond.Results[0].Def
	if test == nil || test.Op != graph.OpCompare || test.Operands[0].Param == nil {
		return 0, false
	}
	counter := test.Operands[0].Index
	limit, ok := carried(n, test.Operands[1])
	start, ok2 := constant(n.Operands[counter])
	if !ok || !ok2 {
		return 0, false
	}
	add := body.Results[counter].Def
	if add == nil || add.Op != graph.OpAdd {
		return 0, false
	}
	x, y := add.Operands[0], add.Operands[1]
	if x != body.Params[counter].Value {
		x, y = y, x
	}
	step, ok := carried(n, y)
	if !ok || x != body.Params[counter].Value || step <= 0 {
		return 0, false
	}
	distance := limit - start
	if distance < 0 && limit >= 0 && start < 0 || distance > 0 && limit < 0 && start >= 0 {
		return 0, false // past an int64
	}
	switch test.Attrs.String("direction") {
	case "LT":
		if distance <= 0 {
			return 0, true
		}
		return (distance-1)/step + 1, true
	case "LE":
		if distance < 0 {
			return 0, true
		}
		return distance/step + 1, distance/step < math.MaxInt64
	}
	return 0, false
}

// carried is the value of v within a region of a while: a constant there, or one before the loop that no turn changes.
func carried(n *graph.Node, v *graph.Value) (int64, bool) {
	if v.Param == nil {
		return constant(v)
	}
	body := n.Regions[1]
	if body.Results[v.Index] != body.Params[v.Index].Value {
		return 0, false
	}
	return constant(n.Operands[v.Index])
}

// constant is the value of a constant of one integer.
func constant(v *graph.Value) (int64, bool) {
	if v.Def == nil || v.Def.Op != graph.OpConstant || !graph.IntType.Has(v.Shape.DType) || v.Shape.Rank() != 0 {
		return 0, false
	}
	l, _ := v.Def.Attrs.Get("value").(graph.Literal)
	signed := graph.SignedIntType.Has(v.Shape.DType)
	switch len(l.Data) {
	case 1:
		if graph.DTypeBits(v.Shape.DType) != 8 {
			return 0, false // packed
		}
		if signed {
			return int64(int8(l.Data[0])), true
		}
		return int64(l.Data[0]), true
	case 2:
		u := binary.LittleEndian.Uint16(l.Data)
		if signed {
			return int64(int16(u)), true
		}
		return int64(u), true
	case 4:
		u := binary.LittleEndian.Uint32(l.Data)
		if signed {
			return int64(int32(u)), true
		}
		return int64(u), true
	case 8:
		u := binary.LittleEndian.Uint64(l.Data)
		return int64(u), signed || u <= math.MaxInt64
	}
	return 0, false
}

// comparisons is n log2 n for each row that a sort orders.
func comparisons(n *graph.Node) float64 {
	length := float64(n.Operands[0].Shape.Dimensions[n.Attrs.Int("dimension")])
	if length < 2 {
		return 0
	}
	return elements(n.Operands[0]) * math.Ceil(math.Log2(length))
}
