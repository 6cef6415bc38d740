package passes

import (
	"encoding/binary"
	"math"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"

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

// toConstant turns n into a constant of its result's shape.
func toConstant(n *graph.Node, lit graph.Literal) bool {
	n.Op, n.Operands, n.Attrs = graph.OpConstant, nil, graph.Attrs(nil).With("value", lit)
	return true
}

// splatEquals reports whether v is a constant whose every element is the number x.
func splatEquals(v *graph.Value, x float64) bool {
	lit, ok := literal(v)
	if !ok || !(lit.Splat || v.Shape.Size() == 1) || v.Shape.DType.IsComplex() {
		return false
	}
	e := decode(v.Shape.DType, lit.Data)
	return e.number() == x
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

func boolSplat(v *graph.Value) (value, ok bool) {
	lit, ok := literal(v)
	if !ok || v.Shape.DType != dtypes.Bool || !(lit.Splat || v.Shape.Size() == 1) {
		return false, false
	}
	return lit.Data[0] != 0, true
}

// element is one number of a constant: a float in f, an integer or a bool in i.
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

// foldable lists the dtypes that elements represent without loss. uint64 is left out: its arithmetic is not int64's.
func foldable(d graph.DType) bool {
	switch d {
	case dtypes.Bool, dtypes.Int8, dtypes.Int16, dtypes.Int32, dtypes.Int64, dtypes.Uint8, dtypes.Uint16, dtypes.Uint32,
		dtypes.BFloat16, dtypes.Float16, dtypes.Float32, dtypes.Float64:
		return true
	}
	return false
}

// decode reads the first element of data.
func decode(d graph.DType, data []byte) element {
	le := binary.LittleEndian
	switch d {
	case dtypes.Float32:
		return element{f: float64(math.Float32frombits(le.Uint32(data))), float: true}
	case dtypes.Float64:
		return element{f: math.Float64frombits(le.Uint64(data)), float: true}
	case dtypes.BFloat16:
		return element{f: float64(bfloat16.FromBits(le.Uint16(data)).Float32()), float: true}
	case dtypes.Float16:
		return element{f: float64(float16.FromBits(le.Uint16(data)).Float32()), float: true}
	case dtypes.Bool, dtypes.Uint8:
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
	case dtypes.Int64, dtypes.Uint64:
		return element{i: int64(le.Uint64(data))}
	}
	return element{f: math.NaN(), float: true}
}

// encode appends e as a d. Integers wrap; floats round to nearest even.
func encode(out []byte, d graph.DType, e element) []byte {
	le := binary.LittleEndian
	switch d {
	case dtypes.Float32:
		return le.AppendUint32(out, math.Float32bits(float32(e.f)))
	case dtypes.Float64:
		return le.AppendUint64(out, math.Float64bits(e.f))
	case dtypes.BFloat16:
		return le.AppendUint16(out, bfloat16.FromFloat32(float32(e.f)).Bits())
	case dtypes.Float16:
		return le.AppendUint16(out, float16.FromFloat32(float32(e.f)).Bits())
	case dtypes.Bool, dtypes.Uint8, dtypes.Int8:
		return append(out, byte(e.i))
	case dtypes.Int16, dtypes.Uint16:
		return le.AppendUint16(out, uint16(e.i))
	case dtypes.Int32, dtypes.Uint32:
		return le.AppendUint32(out, uint32(e.i))
	}
	return le.AppendUint64(out, uint64(e.i))
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
