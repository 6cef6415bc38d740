package pjrt

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"unsafe"
)

// PJRT_NamedValue_Type.
const (
	valueString = iota
	valueInt64
	valueInt64List
	valueFloat
	valueBool
)

// encodeValues makes PJRT_NamedValues, sorted by name, of string, bool, int, int64, []int64 and float32 values; pinner holds what they
// point to. The address is nil for no values.
func encodeValues(values map[string]any, pinner *runtime.Pinner) (unsafe.Pointer, uintptr, error) {
	if len(values) == 0 {
		return nil, 0, nil
	}
	list := make([]namedValue, 0, len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		v := namedValue{count: 1}
		v.structSize = unsafe.Sizeof(v)
		v.name, v.nameSize = pinString(name, pinner), uintptr(len(name))
		switch x := values[name].(type) {
		case string:
			v.kind, v.count = valueString, uintptr(len(x))
			*(*unsafe.Pointer)(unsafe.Pointer(&v.value)) = pinString(x, pinner)
		case int:
			v.kind = valueInt64
			binary.NativeEndian.PutUint64(v.value[:], uint64(x))
		case int64:
			v.kind = valueInt64
			binary.NativeEndian.PutUint64(v.value[:], uint64(x))
		case []int64:
			v.kind, v.count = valueInt64List, uintptr(len(x))
			*(*unsafe.Pointer)(unsafe.Pointer(&v.value)) = pinSlice(x, pinner)
		case float32:
			v.kind = valueFloat
			binary.NativeEndian.PutUint32(v.value[:], math.Float32bits(x))
		case bool:
			v.kind = valueBool
			if x {
				v.value[0] = 1
			}
		default:
			return nil, 0, fmt.Errorf("option %s: found a %T, wanted string, bool, int, int64, []int64 or float32", name, x)
		}
		list = append(list, v)
	}
	return pinSlice(list, pinner), uintptr(len(list)), nil
}

// decodeValues copies PJRT_NamedValues; a value of an unknown type is left out. Each element's own struct_size is the stride.
func decodeValues(data unsafe.Pointer, count uintptr) map[string]any {
	if data == nil || count == 0 {
		return nil
	}
	m := make(map[string]any, count)
	for range count {
		v := (*namedValue)(data)
		name := goString(v.name, v.nameSize)
		switch v.kind {
		case valueString:
			m[name] = goString(*(*unsafe.Pointer)(unsafe.Pointer(&v.value)), v.count)
		case valueInt64:
			m[name] = int64(binary.NativeEndian.Uint64(v.value[:]))
		case valueInt64List:
			m[name] = goSlice[int64](*(*unsafe.Pointer)(unsafe.Pointer(&v.value)), v.count)
		case valueFloat:
			m[name] = math.Float32frombits(binary.NativeEndian.Uint32(v.value[:]))
		case valueBool:
			m[name] = v.value[0] != 0
		}
		// An array in C has the stride of the plugin's own struct, which is ours within this major version: the struct has
		// never grown, and the struct_size of an element may leave out the padding at its end.
		data = unsafe.Add(data, unsafe.Sizeof(namedValue{}))
	}
	return m
}

// pinString copies s to memory that doesn't move, ended by a zero byte, and returns its address.
func pinString(s string, pinner *runtime.Pinner) unsafe.Pointer {
	b := make([]byte, len(s)+1)
	copy(b, s)
	return pinSlice(b, pinner)
}

// pinSlice pins a slice and returns its address; nil for an empty slice.
func pinSlice[T any](s []T, pinner *runtime.Pinner) unsafe.Pointer {
	if len(s) == 0 {
		return nil
	}
	p := unsafe.SliceData(s)
	pinner.Pin(p)
	return unsafe.Pointer(p)
}
