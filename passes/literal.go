package passes

import (
	"encoding/binary"
	"math"

	"github.com/gomlx/compute/dtypes"

	"precast/graph"
)

// literal is the data of a constant's value.
func literal(v *graph.Value) (graph.Literal, bool) {
	if v.Def == nil || v.Def.Op != graph.OpConstant {
		return graph.Literal{}, false
	}
	lit, ok := v.Def.Attrs.Get("value").(graph.Literal)
	return lit, ok
}

func isConstant(v *graph.Value) bool {
	_, ok := literal(v)
	return ok
}

// toConstant turns n into a constant of its result's shape. One element is always written as a splat, so that equal constants look equal.
func toConstant(n *graph.Node, lit graph.Literal) bool {
	lit.Splat = lit.Splat || n.Results[0].Shape.Size() == 1
	n.Op, n.Operands, n.Attrs = graph.OpConstant, nil, graph.Attrs(nil).With("value", lit)
	return true
}

// splat returns the one element that a constant repeats.
func splat(v *graph.Value) (element, bool) {
	lit, ok := literal(v)
	if !ok || !(lit.Splat || v.Shape.Size() == 1) || !readable(v.Shape.DType) {
		return element{}, false
	}
	return decode(v.Shape.DType, lit.Data), true
}

// splatEquals reports whether v is a constant whose every element is the number x.
func splatEquals(v *graph.Value, x float64) bool {
	e, ok := splat(v)
	return ok && e.number() == x
}

// isPlusZero reports whether v is a constant of zeros without sign.
func isPlusZero(v *graph.Value) bool {
	lit, ok := literal(v)
	if !ok || !(lit.Splat || v.Shape.Size() == 1) {
		return false
	}
	for _, b := range lit.Data {
		if b != 0 {
			return false
		}
	}
	return true
}

// repeats reports whether a dense literal of dtype d holds the same bits in every element, of which there is at least one.
func repeats(d graph.DType, data []byte) bool {
	size := d.Size()
	if !readable(d) || len(data) < size {
		return false
	}
	for i := size; i < len(data); i++ {
		if data[i] != data[i-size] {
			return false
		}
	}
	return true
}

// element is one number of a constant: a float in f, an integer or a bool in i (the bits of a uint64).
type element struct {
	f     float64
	i     int64
	float bool
}

func (e element) number() float64 {
	if e.float {
		return e.f
	}
	return float64(e.i)
}

// foldable lists the dtypes whose arithmetic element represents. uint64 is left out: its arithmetic is not int64's.
func foldable(d graph.DType) bool { return readable(d) && d != dtypes.Uint64 }

// readable lists the dtypes that decode reads.
func readable(d graph.DType) bool {
	switch d {
	case dtypes.Bool, dtypes.Int8, dtypes.Int16, dtypes.Int32, dtypes.Int64, dtypes.Uint8, dtypes.Uint16, dtypes.Uint32, dtypes.Uint64,
		dtypes.BFloat16, dtypes.Float16, dtypes.Float32, dtypes.Float64:
		return true
	}
	return false
}

// decode reads the first element of data, which is of a readable dtype.
func decode(d graph.DType, data []byte) element {
	if d.IsFloat() {
		f, err := graph.Literal{Data: data[:d.Size()]}.Floats(d)
		if err != nil {
			panic("BUG: " + err.Error())
		}
		return element{f: f[0], float: true}
	}
	le := binary.LittleEndian
	switch d {
	case dtypes.Bool:
		return truth(data[0] != 0)
	case dtypes.Uint8:
		return element{i: int64(data[0])}
	case dtypes.Int8:
		return element{i: int64(int8(data[0]))}
	case dtypes.Int16:
		return element{i: int64(int16(le.Uint16(data)))}
	case dtypes.Uint16:
		return element{i: int64(le.Uint16(data))}
	case dtypes.Int32:
		return element{i: int64(int32(le.Uint32(data)))}
	case dtypes.Uint32:
		return element{i: int64(le.Uint32(data))}
	}
	return element{i: int64(le.Uint64(data))}
}

// encode appends e as a d. Integers wrap, anything but zero is true; floats round to nearest even.
func encode(out []byte, d graph.DType, e element) []byte {
	if d.IsFloat() {
		lit, err := graph.NewLiteral(d, e.f)
		if err != nil {
			panic("BUG: " + err.Error())
		}
		return append(out, lit.Data...)
	}
	le := binary.LittleEndian
	switch d {
	case dtypes.Bool:
		return append(out, byte(truth(e.i != 0).i))
	case dtypes.Uint8, dtypes.Int8:
		return append(out, byte(e.i))
	case dtypes.Int16, dtypes.Uint16:
		return le.AppendUint16(out, uint16(e.i))
	case dtypes.Int32, dtypes.Uint32:
		return le.AppendUint32(out, uint32(e.i))
	}
	return le.AppendUint64(out, uint64(e.i))
}

func truth(b bool) element {
	if b {
		return element{i: 1}
	}
	return element{}
}

// settled reports whether every machine computes with e, an element of dtype d, alike: which NaN comes out of an operation differs, and a backend may
// flush subnormal numbers to zero.
func settled(d graph.DType, e element) bool {
	if !e.float {
		return true
	}
	least := 0x1p-126
	switch d {
	case dtypes.Float64:
		least = 0x1p-1022
	case dtypes.Float16:
		least = 0x1p-14
	}
	return e.f == 0 || math.Abs(e.f) >= least
}

// exact reports whether a d holds e without rounding.
func exact(d graph.DType, e element) bool {
	back := decode(d, encode(nil, d, e))
	return back == e
}

// widens reports whether converting from a to b and on to anything equals converting from a directly.
func widens(a, b graph.DType) bool {
	switch {
	case a == b:
		return true
	case a == dtypes.BFloat16 || a == dtypes.Float16:
		return b == dtypes.Float32 || b == dtypes.Float64
	case a == dtypes.Float32:
		return b == dtypes.Float64
	}
	return false
}
