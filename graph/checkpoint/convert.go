package checkpoint

import (
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"sync"
	"unsafe"

	"github.com/gomlx/compute/dtypes"
)

// le is the byte order of safetensors and of device buffers. The compiler turns its accessors into single loads and stores on
// little-endian machines, for any alignment.
var le = binary.LittleEndian

// chunk is the least number of elements worth a goroutine.
const chunk = 1 << 18

// AlignedBytes returns n zeroed bytes whose first lies at a multiple of 64, which device runtimes take without a copy.
func AlignedBytes(n int) []byte {
	if n == 0 {
		return nil
	}
	const align = 64
	b := make([]byte, n+align-1)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) % align)
	return b[skip : skip+n : skip+n]
}

// ConvertBytes converts n = len(src)/size(from) little-endian elements of type from to type to, in dst, which must hold exactly n
// elements and not overlap src. Neither needs alignment. Narrowing rounds to nearest, ties to even; NaN stays NaN; a value past
// the range of a float type becomes an infinity. Every pair of Float64, Float32, Float16 and BFloat16 is possible, the integer
// types, the 8-bit float types of weights and Bool convert to those four, and each type converts to itself. All processors share the work.
func ConvertBytes(dst []byte, to dtypes.DType, src []byte, from dtypes.DType) error {
	_, fromSize, okFrom := dtypeName(from)
	_, toSize, okTo := dtypeName(to)
	if !okFrom || !okTo {
		return fmt.Errorf("no conversion from %s to %s", from, to)
	}
	conv := converter(to, from)
	if conv == nil {
		return fmt.Errorf("no conversion from %s to %s", from, to)
	}
	if int64(len(src))%fromSize != 0 || int64(len(dst))/toSize != int64(len(src))/fromSize || int64(len(dst))%toSize != 0 {
		panic(fmt.Sprintf("BUG: checkpoint: conversion of %d bytes of %s to %d bytes of %s", len(src), from, len(dst), to))
	}
	return parallel(len(src)/int(fromSize), func(lo, hi int) {
		conv(dst[lo*int(toSize):hi*int(toSize)], src[lo*int(fromSize):hi*int(fromSize)])
	})
}

// converter returns the loop for a pair of types, nil when there is none.
func converter(to, from dtypes.DType) func(dst, src []byte) {
	type pair struct{ to, from dtypes.DType }
	switch (pair{to, from}) {
	case pair{dtypes.Float32, dtypes.BFloat16}:
		return bfloat16ToFloat32
	case pair{dtypes.Float32, dtypes.Float16}:
		return float16ToFloat32
	case pair{dtypes.BFloat16, dtypes.Float32}:
		return float32ToBFloat16
	case pair{dtypes.Float16, dtypes.Float32}:
		return float32ToFloat16
	}
	if to == from {
		return func(dst, src []byte) { copy(dst, src) }
	}
	load, store := loader(from), storer(to)
	if load == nil || store == nil {
		return nil
	}
	_, fromSize, _ := dtypeName(from)
	_, toSize, _ := dtypeName(to)
	return func(dst, src []byte) {
		for len(src) > 0 {
			store(dst, load(src))
			src, dst = src[fromSize:], dst[toSize:]
		}
	}
}

// parallel splits n elements over the processors, see share.
func parallel(n int, work func(lo, hi int)) error { return share(n, chunk, work) }

// share splits [0, n) over the processors, least of it to each or more. A fault while reading a mapped file (the file shrank, the disk
// failed) becomes an error.
func share(n, least int, work func(lo, hi int)) error {
	workers := max(1, min(runtime.GOMAXPROCS(0), n/least))
	if workers == 1 {
		return guarded(func() { work(0, n) })
	}
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			errs[w] = guarded(func() { work(n/workers*w, end(n, workers, w)) })
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// end is the upper bound of part w of n elements in equal parts; the last part takes the rest.
func end(n, workers, w int) int {
	if w == workers-1 {
		return n
	}
	return n / workers * (w + 1)
}

// guarded runs work and turns a memory fault into an error.
func guarded(work func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			fault, ok := r.(interface{ Addr() uintptr })
			if !ok {
				panic(r)
			}
			err = fmt.Errorf("read fault at address %#x: the file was cut short or can't be read", fault.Addr())
		}
	}()
	work()
	return nil
}

// bfloat16ToFloat32 widens four elements a turn: a bfloat16 is the upper half of a float32.
func bfloat16ToFloat32(dst, src []byte) {
	for len(src) >= 16 && len(dst) >= 32 {
		x, y := le.Uint64(src), le.Uint64(src[8:])
		le.PutUint64(dst, x<<16&0xffff0000|x<<32&0xffff0000_00000000)
		le.PutUint64(dst[8:], x>>16&0xffff0000|x&0xffff0000_00000000)
		le.PutUint64(dst[16:], y<<16&0xffff0000|y<<32&0xffff0000_00000000)
		le.PutUint64(dst[24:], y>>16&0xffff0000|y&0xffff0000_00000000)
		src, dst = src[16:], dst[32:]
	}
	for len(src) >= 2 && len(dst) >= 4 {
		le.PutUint32(dst, uint32(le.Uint16(src))<<16)
		src, dst = src[2:], dst[4:]
	}
}

func float16ToFloat32(dst, src []byte) {
	for len(src) >= 8 && len(dst) >= 16 {
		x := le.Uint64(src)
		le.PutUint64(dst, uint64(widen16(uint32(x&0xffff)))|uint64(widen16(uint32(x>>16&0xffff)))<<32)
		le.PutUint64(dst[8:], uint64(widen16(uint32(x>>32&0xffff)))|uint64(widen16(uint32(x>>48)))<<32)
		src, dst = src[8:], dst[16:]
	}
	for len(src) >= 2 && len(dst) >= 4 {
		le.PutUint32(dst, widen16(uint32(le.Uint16(src))))
		src, dst = src[2:], dst[4:]
	}
}

// widen16 converts binary16 bits to binary32 bits. Exponent and fraction are moved into place and the bias is corrected by a
// multiplication, which is exact and covers subnormals; infinities and NaN keep an all-ones exponent.
func widen16(h uint32) uint32 {
	bits := math.Float32bits(math.Float32frombits(h&0x7fff<<13) * 0x1p112)
	if h&0x7c00 == 0x7c00 {
		bits |= 0x7f800000
	}
	return bits | h&0x8000<<16
}

func float32ToBFloat16(dst, src []byte) {
	for len(src) >= 8 && len(dst) >= 4 {
		x := le.Uint64(src)
		le.PutUint32(dst, narrowB16(uint32(x))|narrowB16(uint32(x>>32))<<16)
		src, dst = src[8:], dst[4:]
	}
	if len(src) >= 4 && len(dst) >= 2 {
		le.PutUint16(dst, uint16(narrowB16(le.Uint32(src))))
	}
}

// narrowB16 rounds binary32 bits to bfloat16 bits, to nearest, ties to even. The carry of the rounding moves the exponent where
// it must, up to infinity.
func narrowB16(bits uint32) uint32 {
	if bits&0x7fffffff > 0x7f800000 {
		return bits>>16 | 0x40 // NaN: quiet, so that the cut fraction can't make it an infinity
	}
	return (bits + 0x7fff + bits>>16&1) >> 16
}

func float32ToFloat16(dst, src []byte) {
	for len(src) >= 8 && len(dst) >= 4 {
		x := le.Uint64(src)
		le.PutUint32(dst, narrow16(uint32(x))|narrow16(uint32(x>>32))<<16)
		src, dst = src[8:], dst[4:]
	}
	if len(src) >= 4 && len(dst) >= 2 {
		le.PutUint16(dst, uint16(narrow16(le.Uint32(src))))
	}
}

// narrow16 rounds binary32 bits to binary16 bits, to nearest, ties to even.
func narrow16(bits uint32) uint32 {
	sign, abs := bits>>16&0x8000, bits&0x7fffffff
	switch {
	case abs > 0x7f800000: // NaN, made quiet
		return sign | 0x7e00 | abs>>13&0x1ff
	case abs >= 0x477ff000: // 65520 and above round past the largest binary16, 65504
		return sign | 0x7c00
	case abs < 0x38800000: // below 2^-14: subnormal
		// Adding 0.5 puts the unit of the last place at 2^-24, the step of subnormals, so the addition does the rounding.
		return sign | (math.Float32bits(math.Float32frombits(abs)+0.5) - 0x3f000000)
	}
	return sign | (abs-0x38000000+0xfff+abs>>13&1)>>13
}

// loader returns a function that reads the first element of its argument as a float64, nil when the type is not a number here.
func loader(from dtypes.DType) func([]byte) float64 {
	switch from {
	case dtypes.Float64:
		return func(b []byte) float64 { return math.Float64frombits(le.Uint64(b)) }
	case dtypes.Float32:
		return func(b []byte) float64 { return float64(math.Float32frombits(le.Uint32(b))) }
	case dtypes.Float16:
		return func(b []byte) float64 { return float64(math.Float32frombits(widen16(uint32(le.Uint16(b))))) }
	case dtypes.BFloat16:
		return func(b []byte) float64 { return float64(math.Float32frombits(uint32(le.Uint16(b)) << 16)) }
	case dtypes.F8E4M3FN:
		return func(b []byte) float64 { return float8(b[0], 3, 7, true) }
	case dtypes.F8E5M2:
		return func(b []byte) float64 { return float64(math.Float32frombits(widen16(uint32(b[0]) << 8))) }
	case dtypes.Int64:
		return func(b []byte) float64 { return float64(int64(le.Uint64(b))) }
	case dtypes.Uint64:
		return func(b []byte) float64 { return float64(le.Uint64(b)) }
	case dtypes.Int32:
		return func(b []byte) float64 { return float64(int32(le.Uint32(b))) }
	case dtypes.Uint32:
		return func(b []byte) float64 { return float64(le.Uint32(b)) }
	case dtypes.Int16:
		return func(b []byte) float64 { return float64(int16(le.Uint16(b))) }
	case dtypes.Uint16:
		return func(b []byte) float64 { return float64(le.Uint16(b)) }
	case dtypes.Int8:
		return func(b []byte) float64 { return float64(int8(b[0])) }
	case dtypes.Uint8, dtypes.Bool:
		return func(b []byte) float64 { return float64(b[0]) }
	}
	return nil
}

// float8 reads an 8-bit float with the given number of fraction bits and exponent bias. With finite set there are no infinities
// and only the all-ones pattern is NaN, as in E4M3FN (OCP 8-bit Floating Point Specification).
func float8(b byte, fraction int, bias int, finite bool) float64 {
	sign := 1.0
	if b&0x80 != 0 {
		sign = -1
	}
	exp, frac := int(b&0x7f)>>fraction, float64(b&(1<<fraction-1))
	switch {
	case finite && b&0x7f == 0x7f:
		return math.NaN()
	case exp == 0:
		return sign * math.Ldexp(frac, 1-bias-fraction)
	}
	return sign * math.Ldexp(frac+float64(int(1)<<fraction), exp-bias-fraction)
}

// storer returns a function that writes a float64 as the first element of its argument, nil for a type that is not a float.
func storer(to dtypes.DType) func([]byte, float64) {
	switch to {
	case dtypes.Float64:
		return func(b []byte, v float64) { le.PutUint64(b, math.Float64bits(v)) }
	case dtypes.Float32:
		return func(b []byte, v float64) { le.PutUint32(b, math.Float32bits(float32(v))) }
	case dtypes.Float16:
		return func(b []byte, v float64) { le.PutUint16(b, uint16(narrow16(roundOdd(v)))) }
	case dtypes.BFloat16:
		return func(b []byte, v float64) { le.PutUint16(b, uint16(narrowB16(roundOdd(v)))) }
	}
	return nil
}

// roundOdd converts v to binary32 bits so that a second rounding to a narrower type gives what one rounding of v gives: where the
// conversion is inexact, the last bit is set (Boldo and Melquiond, "When double rounding is odd", 2005).
func roundOdd(v float64) uint32 {
	f := float32(v)
	bits := math.Float32bits(f)
	if float64(f) == v || math.IsNaN(v) || math.IsInf(float64(f), 0) {
		return bits
	}
	if math.Abs(float64(f)) > math.Abs(v) {
		bits-- // towards zero
	}
	return bits | 1
}

// Convert writes the tensor's elements as type to into dst, which must hold exactly Len elements. The bytes of the tensor may lie
// at any offset.
func (t Tensor) Convert(dst []byte, to dtypes.DType) error {
	if err := ConvertBytes(dst, to, t.Bytes(), t.DType); err != nil {
		return fmt.Errorf("%s: tensor %q: %w", t.File.path, t.Key, err)
	}
	return nil
}

// Copy returns the tensor's bytes in memory of their own, aligned to 64 bytes.
func (t Tensor) Copy() ([]byte, error) {
	dst := AlignedBytes(int(t.Size))
	return dst, t.Convert(dst, t.DType)
}

// Float32s returns the elements as float32, whatever numeric type is stored.
func (t Tensor) Float32s() ([]float32, error) {
	out := make([]float32, t.Len())
	if len(out) == 0 {
		return out, nil
	}
	// The host is little-endian wherever the runtimes that take these bytes exist.
	dst := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(out))), 4*len(out))
	return out, t.Convert(dst, dtypes.Float32)
}

// Float64s returns the elements as float64, whatever numeric type is stored.
func (t Tensor) Float64s() ([]float64, error) {
	out := make([]float64, t.Len())
	if len(out) == 0 {
		return out, nil
	}
	dst := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(out))), 8*len(out))
	return out, t.Convert(dst, dtypes.Float64)
}

// Int64s returns the elements of an integer or Bool tensor.
func (t Tensor) Int64s() ([]int64, error) {
	_, size, _ := dtypeName(t.DType)
	out := make([]int64, t.Len())
	var load func(b []byte) int64
	switch t.DType {
	case dtypes.Bool, dtypes.Uint8:
		load = func(b []byte) int64 { return int64(b[0]) }
	case dtypes.Int8:
		load = func(b []byte) int64 { return int64(int8(b[0])) }
	case dtypes.Int16:
		load = func(b []byte) int64 { return int64(int16(le.Uint16(b))) }
	case dtypes.Uint16:
		load = func(b []byte) int64 { return int64(le.Uint16(b)) }
	case dtypes.Int32:
		load = func(b []byte) int64 { return int64(int32(le.Uint32(b))) }
	case dtypes.Uint32:
		load = func(b []byte) int64 { return int64(le.Uint32(b)) }
	case dtypes.Int64, dtypes.Uint64:
		load = func(b []byte) int64 { return int64(le.Uint64(b)) }
	default:
		return nil, fmt.Errorf("%s: tensor %q: found %s, wanted an integer type", t.File.path, t.Key, t.DType)
	}
	src := t.Bytes()
	err := guarded(func() {
		for i := range out {
			out[i] = load(src[int64(i)*size:])
		}
	})
	if err != nil {
		return nil, fmt.Errorf("%s: tensor %q: %w", t.File.path, t.Key, err)
	}
	return out, nil
}
