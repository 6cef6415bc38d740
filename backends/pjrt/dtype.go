package pjrt

import (
	"fmt"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
)

// bufferTypes are PJRT_Buffer_Type's numbers for the element types that a whole number of bytes holds.
var bufferTypes = map[dtypes.DType]int32{
	dtypes.Bool: 1, dtypes.Int8: 2, dtypes.Int16: 3, dtypes.Int32: 4, dtypes.Int64: 5,
	dtypes.Uint8: 6, dtypes.Uint16: 7, dtypes.Uint32: 8, dtypes.Uint64: 9,
	dtypes.Float16: 10, dtypes.Float32: 11, dtypes.Float64: 12, dtypes.BFloat16: 13,
	dtypes.Complex64: 14, dtypes.Complex128: 15,
	dtypes.F8E5M2: 16, dtypes.F8E4M3FN: 17, dtypes.F8E4M3B11FNUZ: 18, dtypes.F8E5M2FNUZ: 19, dtypes.F8E4M3FNUZ: 20,
}

var elementTypes = func() map[int32]dtypes.DType {
	m := make(map[int32]dtypes.DType, len(bufferTypes))
	for d, t := range bufferTypes {
		m[t] = d
	}
	return m
}()

// shapeOf makes a Shape of a PJRT element type and dimensions.
func shapeOf(elementType int32, dims []int64) (shapes.Shape, error) {
	d, ok := elementTypes[elementType]
	if !ok {
		return shapes.Shape{}, fmt.Errorf("element type %d of the plugin is not known", elementType)
	}
	s := shapes.Shape{DType: d, Dimensions: make([]int, len(dims))}
	for i, n := range dims {
		s.Dimensions[i] = int(n)
	}
	return s, nil
}
