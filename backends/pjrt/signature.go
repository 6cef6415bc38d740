package pjrt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"google.golang.org/protobuf/encoding/protowire"

	"precast/backends"
	"precast/lower"
)

// signature is what Execute must know about a program that the plugin doesn't tell: it goes before the plugin's bytes in a serialized
// executable.
type signature struct {
	name       string
	partitions int
	params     []signatureParam
}

type signatureParam struct {
	name    string
	shape   shapes.Shape
	donated bool
}

func signatureOf(p *lower.Program, opts backends.CompileOptions) signature {
	s := signature{name: p.Name, partitions: max(opts.NumPartitions, 1)}
	for _, q := range p.Params {
		s.params = append(s.params, signatureParam{name: q.Name, shape: q.Shape, donated: q.Donated})
	}
	return s
}

// The serialized form: magic, CRC-32C of all that follows it, length of the signature, length of the plugin's bytes (each a
// little-endian uint32, uint32, uint64), the signature as a protobuf message, the plugin's bytes.
const (
	serialMagic  = "PRECPJX1"
	serialHeader = len(serialMagic) + 4 + 4 + 8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func encodeSerialized(s signature, executable []byte) []byte {
	var sig []byte
	sig = protowire.AppendString(protowire.AppendTag(sig, 1, protowire.BytesType), s.name)
	sig = protowire.AppendVarint(protowire.AppendTag(sig, 2, protowire.VarintType), uint64(s.partitions))
	for _, p := range s.params {
		var m, dims []byte
		m = protowire.AppendString(protowire.AppendTag(m, 1, protowire.BytesType), p.name)
		m = protowire.AppendVarint(protowire.AppendTag(m, 2, protowire.VarintType), uint64(bufferTypes[p.shape.DType]))
		for _, d := range p.shape.Dimensions {
			dims = protowire.AppendVarint(dims, uint64(d))
		}
		m = protowire.AppendBytes(protowire.AppendTag(m, 3, protowire.BytesType), dims)
		m = protowire.AppendVarint(protowire.AppendTag(m, 4, protowire.VarintType), protowire.EncodeBool(p.donated))
		sig = protowire.AppendBytes(protowire.AppendTag(sig, 3, protowire.BytesType), m)
	}
	out := make([]byte, serialHeader, serialHeader+len(sig)+len(executable))
	copy(out, serialMagic)
	binary.LittleEndian.PutUint32(out[12:], uint32(len(sig)))
	binary.LittleEndian.PutUint64(out[16:], uint64(len(executable)))
	out = append(append(out, sig...), executable...)
	binary.LittleEndian.PutUint32(out[8:], crc32.Checksum(out[12:], castagnoli))
	return out
}

// decodeSerialized checks the header and the checksum and returns the plugin's bytes, which are part of data.
func decodeSerialized(data []byte) (s signature, executable []byte, err error) {
	if len(data) < serialHeader || !bytes.HasPrefix(data, []byte(serialMagic)) {
		return s, nil, fmt.Errorf("found %d bytes without the header of a serialized PJRT executable", len(data))
	}
	sigLen, execLen := uint64(binary.LittleEndian.Uint32(data[12:])), binary.LittleEndian.Uint64(data[16:])
	if have := uint64(len(data) - serialHeader); sigLen > have || execLen != have-sigLen {
		return s, nil, fmt.Errorf("the header tells of %d and %d bytes, found %d", sigLen, execLen, have)
	}
	if want, got := binary.LittleEndian.Uint32(data[8:]), crc32.Checksum(data[12:], castagnoli); want != got {
		return s, nil, fmt.Errorf("checksum: found %08x, wanted %08x", got, want)
	}
	if s, err = decodeSignature(data[serialHeader : serialHeader+int(sigLen)]); err != nil {
		return s, nil, fmt.Errorf("signature: %w", err)
	}
	executable = data[serialHeader+int(sigLen):]
	if len(executable) == 0 {
		return s, nil, errors.New("found no executable after the signature")
	}
	return s, executable, nil
}

func decodeSignature(b []byte) (s signature, err error) {
	err = eachField(b, func(f field) error {
		switch f.number {
		case 1:
			s.name = string(f.bytes)
		case 2:
			s.partitions = int(f.varint)
		case 3:
			var p signatureParam
			if err := eachField(f.bytes, func(f field) error {
				switch f.number {
				case 1:
					p.name = string(f.bytes)
				case 2:
					d, ok := elementTypes[int32(f.varint)]
					if !ok {
						return fmt.Errorf("element type %d is not known", f.varint)
					}
					p.shape.DType = d
				case 3:
					dims, err := f.ints()
					if err != nil {
						return err
					}
					for _, d := range dims {
						p.shape.Dimensions = append(p.shape.Dimensions, int(d))
					}
				case 4:
					p.donated = f.varint != 0
				}
				return nil
			}); err != nil {
				return err
			}
			if p.shape.DType == dtypes.InvalidDType {
				return fmt.Errorf("parameter %q has no element type", p.name)
			}
			s.params = append(s.params, p)
		}
		return nil
	})
	return s, err
}

// check compares the arguments of one partition with the parameters.
func (s *signature) check(args []*Buffer, op string) error {
	if len(args) != len(s.params) {
		return backends.Errorf(backends.InvalidArgument, op, "found %d arguments, wanted %d", len(args), len(s.params))
	}
	if s.partitions > 1 {
		// The parameters' shapes are those of the whole arrays, the arguments are shards.
		return nil
	}
	for i, a := range args {
		if p := &s.params[i]; !a.shape.Equal(p.shape) {
			return backends.Errorf(backends.InvalidArgument, op, "argument %d (%s): found %s, wanted %s", i, p.name, a.shape, p.shape)
		}
	}
	return nil
}
