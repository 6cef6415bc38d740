package tokenizer

import (
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// parseSentencePiece reads the pieces and the table of character replacements of a SentencePiece model file, a ModelProto message
// (sentencepiece_model.proto). The table is nil when the file has none. Only unigram models are read.
func parseSentencePiece(data []byte) (pieces []piece, table []byte, err error) {
	const unigram = 1
	kind := uint64(unigram)
	err = eachField(data, func(num protowire.Number, v uint64, b []byte) error {
		switch num {
		case 1:
			p, err := parsePiece(b)
			if err != nil {
				return fmt.Errorf("piece %d: %w", len(pieces), err)
			}
			pieces = append(pieces, p)
		case 2: // trainer_spec
			return eachField(b, func(num protowire.Number, v uint64, _ []byte) error {
				if num == 3 {
					kind = v
				}
				return nil
			})
		case 3: // normalizer_spec
			return eachField(b, func(num protowire.Number, _ uint64, b []byte) error {
				if num == 2 && len(b) > 0 {
					table = b
				}
				return nil
			})
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, nil, err
	case kind != unigram:
		return nil, nil, fmt.Errorf("model_type: found %d, wanted %d (a unigram model)", kind, unigram)
	case len(pieces) == 0:
		return nil, nil, errors.New("found no pieces, wanted a SentencePiece model")
	}
	return pieces, table, nil
}

func parsePiece(data []byte) (piece, error) {
	var p piece
	err := eachField(data, func(num protowire.Number, v uint64, b []byte) error {
		switch num {
		case 1:
			p.text = string(b)
		case 2:
			p.score = float64(math.Float32frombits(uint32(v)))
		}
		return nil
	})
	switch {
	case err != nil:
		return p, err
	case !utf8.ValidString(p.text):
		return p, fmt.Errorf("found the text %q, wanted UTF-8", p.text)
	case p.score-p.score != 0:
		return p, fmt.Errorf("found the score %v, wanted a finite number", p.score)
	}
	return p, nil
}

// eachField calls f for each field of a protobuf message: v is the value of a numeric field, b of one with a length.
func eachField(data []byte, f func(num protowire.Number, v uint64, b []byte) error) error {
	for len(data) > 0 {
		num, typ, n := protowire.ConsumeTag(data)
		if n < 0 {
			return fmt.Errorf("not a protobuf message: %w", protowire.ParseError(n))
		}
		data = data[n:]
		var v uint64
		var b []byte
		switch typ {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(data)
		case protowire.Fixed32Type:
			var x uint32
			x, n = protowire.ConsumeFixed32(data)
			v = uint64(x)
		case protowire.Fixed64Type:
			v, n = protowire.ConsumeFixed64(data)
		case protowire.BytesType:
			b, n = protowire.ConsumeBytes(data)
		default:
			n = protowire.ConsumeFieldValue(num, typ, data)
		}
		if n < 0 {
			return fmt.Errorf("not a protobuf message: field %d: %w", num, protowire.ParseError(n))
		}
		data = data[n:]
		if err := f(num, v, b); err != nil {
			return err
		}
	}
	return nil
}
