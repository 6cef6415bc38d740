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

// message is a parsed protobuf message: its fields by number, in order.
type message map[protowire.Number][]field

func parseMessage(b []byte) (message, error) {
	m := message{}
	err := eachField(b, func(f field) error {
		m[f.number] = append(m[f.number], f)
		return nil
	})
	return m, err
}

// int returns the last value of a numeric field, 0 where it is absent.
func (m message) int(n protowire.Number) int64 {
	if list := m[n]; len(list) > 0 {
		return int64(list[len(list)-1].varint)
	}
	return 0
}

// str returns the last value of a string or bytes field.
func (m message) str(n protowire.Number) string {
	if list := m[n]; len(list) > 0 {
		return string(list[len(list)-1].bytes)
	}
	return ""
}

// ints returns a repeated integer field; what can't be read is left out.
func (m message) ints(n protowire.Number) []int64 {
	var all []int64
	for _, f := range m[n] {
		list, _ := f.ints()
		all = append(all, list...)
	}
	return all
}

// messages returns a repeated message field; what can't be read is empty.
func (m message) messages(n protowire.Number) []message {
	list := make([]message, 0, len(m[n]))
	for _, f := range m[n] {
		sub, _ := parseMessage(f.bytes)
		list = append(list, sub)
	}
	return list
}

// message returns a message field, nil where it is absent.
func (m message) message(n protowire.Number) message {
	list := m[n]
	if len(list) == 0 {
		return nil
	}
	sub, _ := parseMessage(list[len(list)-1].bytes)
	return sub
}
