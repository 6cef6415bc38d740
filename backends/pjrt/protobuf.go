package pjrt

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// field is one field of a protobuf message: bytes for the length-delimited type, varint for the numeric ones.
type field struct {
	number protowire.Number
	kind   protowire.Type
	bytes  []byte
	varint uint64
}

// eachField calls f for each field of a message in order; groups are skipped.
func eachField(b []byte, f func(field) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("protobuf: %w", protowire.ParseError(n))
		}
		b = b[n:]
		v := field{number: number, kind: kind}
		switch kind {
		case protowire.VarintType:
			v.varint, n = protowire.ConsumeVarint(b)
		case protowire.Fixed32Type:
			var x uint32
			x, n = protowire.ConsumeFixed32(b)
			v.varint = uint64(x)
		case protowire.Fixed64Type:
			v.varint, n = protowire.ConsumeFixed64(b)
		case protowire.BytesType:
			v.bytes, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(number, kind, b)
		}
		if n < 0 {
			return fmt.Errorf("protobuf: field %d: %w", number, protowire.ParseError(n))
		}
		b = b[n:]
		if err := f(v); err != nil {
			return err
		}
	}
	return nil
}

// ints returns the integers of a repeated field's part: packed or single.
func (f field) ints() ([]int64, error) {
	if f.kind != protowire.BytesType {
		return []int64{int64(f.varint)}, nil
	}
	var list []int64
	for b := f.bytes; len(b) > 0; {
		v, n := protowire.ConsumeVarint(b)
		if n < 0 {
			return nil, fmt.Errorf("protobuf: field %d: %w", f.number, protowire.ParseError(n))
		}
		list = append(list, int64(v))
		b = b[n:]
	}
	return list, nil
}
