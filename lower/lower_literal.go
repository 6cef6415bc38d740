package lower

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"strconv"
	"strings"

	"github.com/gomlx/compute/dtypes"

	"precast/graph"
)

// literal writes a constant's elements as dense<...>, bit for bit: a splat as a number where decimal is exact and as its bits where it is
// not (NaN, infinities, 0.1), other data as a string of hexadecimal bytes, and bools and packed integers, whose bytes MLIR lays
// out in a way of its own, element by element.
func (w *writer) literal(n *graph.Node, l graph.Literal, shape graph.Shape) {
	size := shape.Size()
	switch {
	case size == 0:
		w.str("dense<>")
	case l.Splat || size == 1:
		w.str("dense<")
		w.element(n, l.Data, shape.DType, 0)
		w.char('>')
	case shape.DType == dtypes.Bool || shape.DType.IsPacked():
		w.str("dense<")
		i := 0
		w.nested(n, l.Data, shape, 0, &i)
		w.char('>')
	default:
		w.str("dense<\"0x")
		start := len(w.buf)
		w.buf = append(w.buf, make([]byte, hex.EncodedLen(len(l.Data)))...)
		hex.Encode(w.buf[start:], l.Data)
		for i, c := range w.buf[start:] {
			if c >= 'a' {
				w.buf[start+i] = c - 'a' + 'A'
			}
		}
		w.str("\">")
	}
}

// nested writes elements as lists of lists.
func (w *writer) nested(n *graph.Node, data []byte, shape graph.Shape, axis int, i *int) {
	if axis == shape.Rank() {
		w.element(n, data, shape.DType, *i)
		*i++
		return
	}
	w.char('[')
	for k := range shape.Dimensions[axis] {
		if k > 0 {
			w.str(", ")
		}
		w.nested(n, data, shape, axis+1, i)
	}
	w.char(']')
}

// element writes element i of data.
func (w *writer) element(n *graph.Node, data []byte, d graph.DType, i int) {
	if d.IsPacked() {
		bits := graph.DTypeBits(d)
		if at := i * bits / 8; at >= len(data) {
			w.fail(n, "the constant has %d bytes, too few", len(data))
			return
		}
		u := uint64(data[i*bits/8]>>(i*bits%8)) & (1<<bits - 1)
		w.integer(u, d, bits)
		return
	}
	size := d.Size()
	if len(data) < (i+1)*size {
		w.fail(n, "the constant has %d bytes, too few", len(data))
		return
	}
	data = data[i*size : (i+1)*size]
	switch d {
	case dtypes.Bool:
		w.str(strconv.FormatBool(data[0] != 0))
	case dtypes.Complex64:
		w.char('(')
		w.float(uint64(binary.LittleEndian.Uint32(data)), 4, dtypes.Float32)
		w.str(", ")
		w.float(uint64(binary.LittleEndian.Uint32(data[4:])), 4, dtypes.Float32)
		w.char(')')
	case dtypes.Complex128:
		w.char('(')
		w.float(binary.LittleEndian.Uint64(data), 8, dtypes.Float64)
		w.str(", ")
		w.float(binary.LittleEndian.Uint64(data[8:]), 8, dtypes.Float64)
		w.char(')')
	default:
		var u uint64
		for k, b := range data {
			u |= uint64(b) << (8 * k)
		}
		if d.IsFloat() {
			w.float(u, size, d)
		} else {
			w.integer(u, d, 8*size)
		}
	}
}

func (w *writer) integer(u uint64, d graph.DType, bits int) {
	if d.IsUnsigned() {
		w.buf = strconv.AppendUint(w.buf, u, 10)
		return
	}
	w.buf = strconv.AppendInt(w.buf, int64(u<<(64-bits))>>(64-bits), 10)
}

// float writes a float of size bytes from its bits: in decimal where a short decimal is exact, else as the bits.
func (w *writer) float(bits uint64, size int, d graph.DType) {
	var x float64
	switch d {
	case dtypes.Float64:
		x = math.Float64frombits(bits)
	case dtypes.Float32:
		x = float64(math.Float32frombits(uint32(bits)))
	case dtypes.BFloat16:
		x = float64(math.Float32frombits(uint32(bits) << 16))
	default:
		l := graph.Literal{Data: binary.LittleEndian.AppendUint16(nil, uint16(bits))}
		if v, err := l.Floats(d); err == nil {
			x = v[0]
		}
	}
	if x == math.Trunc(x*64)/64 && math.Abs(x) < 1e6 {
		text := strconv.FormatFloat(x, 'f', -1, 64)
		if !strings.Contains(text, ".") {
			text += ".0"
		}
		w.str(text)
		return
	}
	w.str("0x")
	const digits = "0123456789ABCDEF"
	for i := 2*size - 1; i >= 0; i-- {
		w.char(digits[bits>>(4*i)&15])
	}
}
