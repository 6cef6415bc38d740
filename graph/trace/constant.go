package trace

import (
	"bytes"
	"encoding/binary"
	"reflect"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/pkg/errors"

	"precast/graph"
)

// Constant implements compute.Function: flat is a Go slice of the elements in row-major order. Its bytes are copied.
func (f *function) Constant(flat any, dims ...int) (compute.Value, error) {
	if err := f.open(); err != nil {
		return nil, err
	}
	v := reflect.ValueOf(flat)
	if v.Kind() != reflect.Slice {
		return nil, errors.Errorf("Constant: got %T, wanted a slice of the elements", flat)
	}
	dtype := dtypes.FromGoType(v.Type().Elem())
	if dtype == dtypes.InvalidDType {
		return nil, errors.Errorf("Constant: %T has no element type of the graph IR", flat)
	}
	shape, err := static("Constant", shapes.Make(dtype, append([]int(nil), dims...)...))
	if err != nil {
		return nil, err
	}
	if v.Len() != shape.Size() {
		return nil, errors.Errorf("Constant: %d elements given, the shape %s holds %d", v.Len(), shape, shape.Size())
	}
	data, err := littleEndian(flat, dtype)
	if err != nil {
		return nil, err
	}
	return f.emit(graph.OpConstant, nil, graph.Attrs{{Name: "value", Value: literal(data, dtype.Size())}}, shape)
}

// littleEndian is the bytes of a Go slice.
func littleEndian(flat any, dtype dtypes.DType) ([]byte, error) {
	if ints, ok := flat.([]int); ok {
		// Go's int has the dtype of its size on this platform.
		out := make([]byte, 0, len(ints)*dtype.Size())
		for _, x := range ints {
			if dtype == dtypes.Int32 {
				out = binary.LittleEndian.AppendUint32(out, uint32(x))
			} else {
				out = binary.LittleEndian.AppendUint64(out, uint64(x))
			}
		}
		return out, nil
	}
	data, err := binary.Append(nil, binary.LittleEndian, flat)
	return data, errors.Wrapf(err, "Constant: %T", flat)
}

// literal makes a splat of data whose elements, of size bytes, are all the same.
func literal(data []byte, size int) graph.Literal {
	if n := len(data); n >= size && n > 0 && bytes.Equal(data[size:], data[:n-size]) {
		return graph.Literal{Data: data[:size:size], Splat: true}
	}
	return graph.Literal{Data: data}
}

// splat emits a constant that holds x, rounded to the dtype of shape, in every element.
func (f *function) splat(x float64, shape graph.Shape) *graph.Value {
	l, err := graph.NewSplat(shape.DType, x)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return f.add(graph.OpConstant, graph.Attrs{{Name: "value", Value: l}}, shape)
}
