package graph

import (
	"math"
	"strconv"

	"github.com/gomlx/compute/dtypes"
)

// dtypeInfo is what the IR knows about an element type.
type dtypeInfo struct {
	name string // in the text form, as in StableHLO; unsigned integers are u8, not ui8
	bits int    // storage bits of one element
}

// dtypeTable holds the element types that a value of the IR may have; all others are refused by Verify.
var dtypeTable = [...]dtypeInfo{
	dtypes.Bool:       {"bool", 8},
	dtypes.Int2:       {"i2", 2},
	dtypes.Int4:       {"i4", 4},
	dtypes.Int8:       {"i8", 8},
	dtypes.Int16:      {"i16", 16},
	dtypes.Int32:      {"i32", 32},
	dtypes.Int64:      {"i64", 64},
	dtypes.Uint2:      {"u2", 2},
	dtypes.Uint4:      {"u4", 4},
	dtypes.Uint8:      {"u8", 8},
	dtypes.Uint16:     {"u16", 16},
	dtypes.Uint32:     {"u32", 32},
	dtypes.Uint64:     {"u64", 64},
	dtypes.Float16:    {"f16", 16},
	dtypes.BFloat16:   {"bf16", 16},
	dtypes.Float32:    {"f32", 32},
	dtypes.Float64:    {"f64", 64},
	dtypes.Complex64:  {"c64", 64},
	dtypes.Complex128: {"c128", 128},
}

var dtypeByName = func() map[string]DType {
	m := map[string]DType{}
	for d, info := range dtypeTable {
		if info.name != "" {
			m[info.name] = DType(d)
		}
	}
	return m
}()

// DTypeName is the name of an element type in the text form: bool, i2 i4 i8 i16 i32 i64, u2 to u64, f16, bf16, f32, f64, c64
// (two f32), c128. An element type that the IR does not have gives "dtype(N)".
func DTypeName(d DType) string {
	if d >= 0 && int(d) < len(dtypeTable) && dtypeTable[d].name != "" {
		return dtypeTable[d].name
	}
	return "dtype(" + strconv.Itoa(int(d)) + ")"
}

// ParseDType returns the element type of that name in the text form.
func ParseDType(name string) (DType, bool) {
	d, ok := dtypeByName[name]
	return d, ok
}

// DTypeBits is the number of bits that one stored element takes (8 for bool), 0 for an element type that the IR does not have.
func DTypeBits(d DType) int {
	if d < 0 || int(d) >= len(dtypeTable) {
		return 0
	}
	return dtypeTable[d].bits
}

// ShapeString is the shape in the text form: "f32[2,3]", "i32[]" for a scalar.
func ShapeString(s Shape) string { return string(appendShape(nil, s)) }

func appendShape(b []byte, s Shape) []byte {
	if len(s.TupleShapes) > 0 {
		b = append(b, '(')
		for i, t := range s.TupleShapes {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendShape(b, t)
		}
		return append(b, ')')
	}
	b = append(b, DTypeName(s.DType)...)
	b = append(b, '[')
	for i, d := range s.Dimensions {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(d), 10)
	}
	return append(b, ']')
}

// maxElements bounds the elements of one value, so that sizes in bytes fit an int64 with room to add them up.
const maxElements = 1 << 48

// elements is the number of elements of dims; ok is false when a dimension is negative or the product is past maxElements.
func elements(dims []int) (n int, ok bool) {
	n = 1
	zero := false
	for _, d := range dims {
		switch {
		case d < 0:
			return 0, false
		case d == 0:
			zero = true
		case d > maxElements/n:
			return 0, false
		default:
			n *= d
		}
	}
	if zero {
		return 0, true
	}
	return n, true
}

// ByteSize is the number of bytes of a value of that shape, stored densely (i4 and i2 packed). It is 0 for a shape that Verify
// would refuse.
func ByteSize(s Shape) int64 {
	n, ok := elements(s.Dimensions)
	if !ok {
		return 0
	}
	return (int64(n)*int64(DTypeBits(s.DType)) + 7) / 8
}

// literalSize is the number of data bytes of a literal of n elements.
func literalSize(d DType, n int) int { return (n*DTypeBits(d) + 7) / 8 }

func sameShape(a, b Shape) bool { return a.DType == b.DType && sameDims(a, b) }

func sameDims(a, b Shape) bool {
	if len(a.Dimensions) != len(b.Dimensions) {
		return false
	}
	for i, d := range a.Dimensions {
		if b.Dimensions[i] != d {
			return false
		}
	}
	return true
}

// narrowFloat rounds f to nearest even in a binary format of expBits exponent and manBits mantissa bits (IEEE 754 layout with
// infinities and NaNs), straight from float64 so that no value is rounded twice. A NaN becomes the quiet NaN of the same sign.
func narrowFloat(f float64, expBits, manBits uint) uint16 {
	bits := math.Float64bits(f)
	sign := uint16(bits>>63) << (expBits + manBits)
	infinity := uint16(1<<expBits-1) << manBits
	switch {
	case math.IsNaN(f):
		return sign | infinity | 1<<(manBits-1)
	case math.IsInf(f, 0):
		return sign | infinity
	case f == 0:
		return sign
	}
	bias := 1<<(expBits-1) - 1
	frac, exp := math.Frexp(math.Abs(f)) // frac in [0.5, 1): the leading bit has weight 2^(exp-1)
	e := exp - 1
	if e < 1-bias {
		e = 1 - bias // subnormal: the unit in the last place stays that of the smallest normal
	}
	// The value counted in units of the last place; RoundToEven is exact here since manBits is far below 52.
	ulps := math.RoundToEven(math.Ldexp(frac, exp-e+int(manBits)))
	if ulps >= 2*float64(uint32(1)<<manBits) {
		e++
		ulps /= 2
	}
	if e > bias {
		return sign | infinity
	}
	m := uint16(ulps)
	if m < 1<<manBits { // subnormal
		return sign | m
	}
	return sign | uint16(e+bias)<<manBits | m&(1<<manBits-1)
}

// widenFloat is the value of a number in such a format.
func widenFloat(b uint16, expBits, manBits uint) float64 {
	sign := 1.0
	if b>>(expBits+manBits)&1 != 0 {
		sign = -1
	}
	bias := 1<<(expBits-1) - 1
	e := int(b >> manBits & (1<<expBits - 1))
	m := float64(b & (1<<manBits - 1))
	switch {
	case e == 1<<expBits-1 && m != 0:
		return math.NaN()
	case e == 1<<expBits-1:
		return math.Inf(int(sign))
	case e == 0:
		return math.Copysign(math.Ldexp(m, 1-bias-int(manBits)), sign)
	}
	return sign * math.Ldexp(float64(int(1)<<manBits)+m, e-bias-int(manBits))
}
