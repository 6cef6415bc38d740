package graph

import (
	"testing"

	"github.com/gomlx/compute/dtypes"
)

func TestDTypes(t *testing.T) {
	for name, d := range dtypeByName {
		if got := DTypeName(d); got != name {
			t.Errorf("%s: found name %q", name, got)
		}
		if ClassOf(d) == 0 || !AnyType.Has(d) {
			t.Errorf("%s is in no class", name)
		}
		// gomlx and the IR agree on what one element takes in memory.
		if got := DTypeBits(d); got != d.Bits() {
			t.Errorf("%s: found %d bits, wanted %d", name, got, d.Bits())
		}
	}
	for _, d := range []DType{dtypes.InvalidDType, dtypes.TOKEN, dtypes.F8E4M3FN, dtypes.Int1, -1, 1000} {
		if DTypeBits(d) != 0 || ClassOf(d) != 0 {
			t.Errorf("%s is taken, wanted it refused", DTypeName(d))
		}
	}
}

func TestByteSize(t *testing.T) {
	for _, c := range []struct {
		shape Shape
		want  int64
	}{
		{Shape{DType: dtypes.Float32, Dimensions: []int{2, 3}}, 24},
		{Shape{DType: dtypes.BFloat16}, 2},
		{Shape{DType: dtypes.Int4, Dimensions: []int{3}}, 2},
		{Shape{DType: dtypes.Int64, Dimensions: []int{0, 1 << 60}}, 0},
		{Shape{DType: dtypes.Int64, Dimensions: []int{1 << 60, 1 << 60}}, 0},
		{Shape{DType: dtypes.Int64, Dimensions: []int{-1}}, 0},
	} {
		if got := ByteSize(c.shape); got != c.want {
			t.Errorf("%s: found %d bytes, wanted %d", ShapeString(c.shape), got, c.want)
		}
	}
	if got := (IntType | FloatType).String(); got != "signed integer or unsigned integer or float" {
		t.Errorf("found class %q", got)
	}
}
