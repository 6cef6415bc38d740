package lower

import (
	"fmt"
	"strconv"

	"github.com/gomlx/compute/dtypes"

	"precast/graph"
)

// elementTypes are the MLIR element types of the dtypes that a program may hold.
var elementTypes = map[graph.DType]string{
	dtypes.Bool:       "i1",
	dtypes.Int4:       "i4",
	dtypes.Int8:       "i8",
	dtypes.Int16:      "i16",
	dtypes.Int32:      "i32",
	dtypes.Int64:      "i64",
	dtypes.Uint4:      "ui4",
	dtypes.Uint8:      "ui8",
	dtypes.Uint16:     "ui16",
	dtypes.Uint32:     "ui32",
	dtypes.Uint64:     "ui64",
	dtypes.Float16:    "f16",
	dtypes.BFloat16:   "bf16",
	dtypes.Float32:    "f32",
	dtypes.Float64:    "f64",
	dtypes.Complex64:  "complex<f32>",
	dtypes.Complex128: "complex<f64>",
}

// elementType is the MLIR element type of a dtype.
func elementType(d graph.DType) (string, error) {
	if t, ok := elementTypes[d]; ok {
		return t, nil
	}
	return "", fmt.Errorf("dtype %s has no StableHLO element type here; wanted bool, an integer, a float or a complex dtype", d)
}

// shapeText is a shape in signatures and messages: "f32[1,64]", "f32[]" for a scalar.
func shapeText(s graph.Shape) string {
	t, err := elementType(s.DType)
	if err != nil {
		t = s.DType.String()
	}
	b := append([]byte(t), '[')
	for i, d := range s.Dimensions {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(d), 10)
	}
	return string(append(b, ']'))
}
