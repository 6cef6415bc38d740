package graph

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/gomlx/compute/dtypes"
)

// NewLiteral encodes values as elements of dtype: rounded to nearest even for floats, exact for integers and bool (0 or 1). It is
// an error when a value does not fit. Complex and packed element types have no such form: build Literal.Data directly.
func NewLiteral(dtype DType, values ...float64) (Literal, error) {
	data := make([]byte, 0, literalSize(dtype, len(values)))
	for _, v := range values {
		var err error
		if data, err = appendElement(data, dtype, v); err != nil {
			return Literal{}, err
		}
	}
	return Literal{Data: data}, nil
}

// NewSplat is a literal whose every element is value; see NewLiteral.
func NewSplat(dtype DType, value float64) (Literal, error) {
	l, err := NewLiteral(dtype, value)
	l.Splat = true
	return l, err
}

func appendElement(b []byte, dtype DType, v float64) ([]byte, error) {
	le := binary.LittleEndian
	switch dtype {
	case dtypes.Float64:
		return le.AppendUint64(b, math.Float64bits(v)), nil
	case dtypes.Float32:
		return le.AppendUint32(b, math.Float32bits(float32(v))), nil
	case dtypes.Float16:
		return le.AppendUint16(b, narrowFloat(v, 5, 10)), nil
	case dtypes.BFloat16:
		return le.AppendUint16(b, narrowFloat(v, 8, 7)), nil
	}
	lo, hi, ok := integerRange(dtype)
	if !ok {
		return nil, fmt.Errorf("literal of %s: found a number, wanted an element type among bool, i8 to i64, u8 to u64, f16, bf16, f32, f64", DTypeName(dtype))
	}
	// hi is exclusive so that it is exact in float64 for 64 bits, too.
	if v != math.Trunc(v) || v < lo || v >= hi {
		return nil, fmt.Errorf("literal of %s: found %v, wanted a whole number in [%g, %g)", DTypeName(dtype), v, lo, hi)
	}
	u := uint64(0)
	if v < 0 {
		u = uint64(int64(v))
	} else {
		u = uint64(v)
	}
	return appendUint(b, DTypeBits(dtype)/8, u), nil
}

func appendUint(b []byte, size int, u uint64) []byte {
	for range size {
		b = append(b, byte(u))
		u >>= 8
	}
	return b
}

func readUint(b []byte) (u uint64) {
	for i, x := range b {
		u |= uint64(x) << (8 * i)
	}
	return u
}

// integerRange is the half-open range of an unpacked integer element type or bool.
func integerRange(d DType) (lo, hi float64, ok bool) {
	bits := DTypeBits(d)
	switch {
	case d == dtypes.Bool:
		return 0, 2, true
	case !d.IsInt() || bits < 8:
		return 0, 0, false
	case d.IsUnsigned():
		return 0, math.Ldexp(1, bits), true
	}
	return -math.Ldexp(1, bits-1), math.Ldexp(1, bits-1), true
}

// Floats decodes the literal's stored elements (one for a splat) to float64, which is exact up to 2^53. It is an error for
// complex and packed element types, and for data that is not a whole number of elements.
func (l Literal) Floats(dtype DType) ([]float64, error) {
	size := DTypeBits(dtype) / 8
	if size == 0 || dtype.IsComplex() {
		return nil, fmt.Errorf("literal of %s: wanted an element type among bool, i8 to i64, u8 to u64, f16, bf16, f32, f64", DTypeName(dtype))
	}
	if len(l.Data)%size != 0 {
		return nil, fmt.Errorf("literal of %s: found %d bytes, wanted a multiple of %d", DTypeName(dtype), len(l.Data), size)
	}
	out := make([]float64, 0, len(l.Data)/size)
	for i := 0; i < len(l.Data); i += size {
		u := readUint(l.Data[i : i+size])
		switch {
		case dtype == dtypes.Float64:
			out = append(out, math.Float64frombits(u))
		case dtype == dtypes.Float32:
			out = append(out, float64(math.Float32frombits(uint32(u))))
		case dtype == dtypes.Float16:
			out = append(out, widenFloat(uint16(u), 5, 10))
		case dtype == dtypes.BFloat16:
			out = append(out, widenFloat(uint16(u), 8, 7))
		case dtype == dtypes.Bool, dtype.IsUnsigned():
			out = append(out, float64(u))
		default:
			shift := 64 - 8*size
			out = append(out, float64(int64(u<<shift)>>shift))
		}
	}
	return out, nil
}
