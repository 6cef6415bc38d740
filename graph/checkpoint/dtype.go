package checkpoint

import (
	"slices"
	"strings"

	"github.com/gomlx/compute/dtypes"
)

// dtypeNames are the dtype names of the safetensors format whose elements fill whole bytes, in the order messages list them.
// Source: the Dtype enum in safetensors/src/tensor.rs.
var dtypeNames = []struct {
	name  string
	dtype dtypes.DType
	size  int64
}{
	{"BOOL", dtypes.Bool, 1},
	{"U8", dtypes.Uint8, 1},
	{"I8", dtypes.Int8, 1},
	{"F8_E5M2", dtypes.F8E5M2, 1},
	{"F8_E4M3", dtypes.F8E4M3FN, 1},
	{"F8_E8M0", dtypes.F8E8M0FNU, 1},
	{"I16", dtypes.Int16, 2},
	{"U16", dtypes.Uint16, 2},
	{"F16", dtypes.Float16, 2},
	{"BF16", dtypes.BFloat16, 2},
	{"I32", dtypes.Int32, 4},
	{"U32", dtypes.Uint32, 4},
	{"F32", dtypes.Float32, 4},
	{"C64", dtypes.Complex64, 8},
	{"F64", dtypes.Float64, 8},
	{"I64", dtypes.Int64, 8},
	{"U64", dtypes.Uint64, 8},
}

// parseDType returns the element type of a safetensors dtype name and its size in bytes.
func parseDType(name string) (dtype dtypes.DType, size int64, ok bool) {
	for _, d := range dtypeNames {
		if d.name == name {
			return d.dtype, d.size, true
		}
	}
	return dtypes.InvalidDType, 0, false
}

// dtypeName returns the safetensors name of dtype and its element size in bytes; ok is false when the format has none.
func dtypeName(dtype dtypes.DType) (name string, size int64, ok bool) {
	for _, d := range dtypeNames {
		if d.dtype == dtype {
			return d.name, d.size, true
		}
	}
	return "", 0, false
}

// dtypeList is the list of known names for a message.
func dtypeList() string {
	names := make([]string, 0, len(dtypeNames))
	for _, d := range dtypeNames {
		names = append(names, d.name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
