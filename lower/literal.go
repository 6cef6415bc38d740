package lower

import (
	"fmt"
	"reflect"

	"github.com/gomlx/compute/dtypes"

	"precast/graph"
)

// literalSlice returns a literal's elements as a Go slice of the dtype's Go type, freshly allocated: n elements, or one for a splat.
func literalSlice(l graph.Literal, dtype graph.DType, n int) (any, error) {
	if l.Splat {
		n = 1
	}
	want := dtype.SizeForDimensions(n)
	if len(l.Data) != want {
		return nil, fmt.Errorf("constant of %s with %d elements: found %d bytes, wanted %d", dtype, n, len(l.Data), want)
	}
	flat := dtypes.MakeAnySlice(dtype, n)
	copy(dtypes.UnsafeByteSliceFromAny(flat), l.Data)
	return flat, nil
}

// hasNegativeZero reports whether float data (little-endian elements of size bytes) holds a negative zero.
func hasNegativeZero(data []byte, size int) bool {
next:
	for ; len(data) >= size; data = data[size:] {
		if data[size-1] != 0x80 {
			continue
		}
		for _, b := range data[:size-1] {
			if b != 0 {
				continue next
			}
		}
		return true
	}
	return false
}

// oneElement is a slice that holds v alone.
func oneElement(v any) any {
	s := reflect.MakeSlice(reflect.SliceOf(reflect.TypeOf(v)), 1, 1)
	s.Index(0).Set(reflect.ValueOf(v))
	return s.Interface()
}
