package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"unicode/utf8"
)

// The functions below walk JSON text that is known to be valid, such as Config.Raw returns, without parsing it again: vocabularies of
// tokenizers and indexes of checkpoints have hundreds of thousands of entries.

// ObjectFields yields the keys and values of a JSON object in order, repeated keys included. It yields nothing for valid text that
// is not an object; text that is not valid JSON gives an unspecified sequence.
func ObjectFields(raw json.RawMessage) iter.Seq2[string, json.RawMessage] {
	return func(yield func(string, json.RawMessage) bool) {
		for i, key := range fieldsAt(raw) {
			start := skipSpace(raw, i)
			if !yield(key, raw[start:skipValue(raw, start)]) {
				return
			}
		}
	}
}

// fieldsAt yields, for each field of an object, the offset after the key's colon and the key.
func fieldsAt(raw []byte) iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		i := skipSpace(raw, 0)
		if i >= len(raw) || raw[i] != '{' {
			return
		}
		for i = skipSpace(raw, i+1); i < len(raw) && raw[i] == '"'; {
			end := skipValue(raw, i)
			key, _ := Text(raw[i:end])
			i = min(skipSpace(raw, end)+1, len(raw)) // past the colon
			if !yield(i, key) {
				return
			}
			i = skipSpace(raw, skipValue(raw, skipSpace(raw, i)))
			if i < len(raw) && raw[i] == ',' {
				i = skipSpace(raw, i+1)
			}
		}
	}
}

// ListElements yields the positions and values of a JSON list. It yields nothing for valid text that is not a list; text that is not
// valid JSON gives an unspecified sequence.
func ListElements(raw json.RawMessage) iter.Seq2[int, json.RawMessage] {
	return func(yield func(int, json.RawMessage) bool) {
		i := skipSpace(raw, 0)
		if i >= len(raw) || raw[i] != '[' {
			return
		}
		i = skipSpace(raw, i+1)
		for n := 0; i < len(raw) && raw[i] != ']'; n++ {
			end := skipValue(raw, i)
			if !yield(n, raw[i:end]) {
				return
			}
			i = skipSpace(raw, end)
			if i < len(raw) && raw[i] == ',' {
				i = skipSpace(raw, i+1)
			}
		}
	}
}

// Text returns the string that a JSON value is; ok is false when it is none.
func Text(raw json.RawMessage) (s string, ok bool) {
	if len(raw) < 2 || raw[0] != '"' {
		return "", false
	}
	if in := raw[1 : len(raw)-1]; bytes.IndexByte(in, '\\') < 0 {
		return string(in), true
	}
	return s, json.Unmarshal(raw, &s) == nil
}

// skipSpace returns the offset of the first byte from i on that is no JSON white space.
func skipSpace(raw []byte, i int) int {
	for i < len(raw) && (raw[i] == ' ' || raw[i] == '\n' || raw[i] == '\t' || raw[i] == '\r') {
		i++
	}
	return i
}

// skipValue returns the offset after the value that begins at i. It moves on by at least a byte and never past the end.
func skipValue(raw []byte, i int) int {
	depth := 0
	for i < len(raw) {
		switch raw[i] {
		case '"':
			i = skipString(raw, i)
		case '{', '[':
			depth++
			i++
		case '}', ']':
			depth--
			i++
		default:
			if depth > 0 {
				i++
				continue
			}
			// A number or a word.
			for i++; i < len(raw) && !endsWord(raw[i]); {
				i++
			}
		}
		if depth <= 0 {
			return i
		}
	}
	return len(raw)
}

// endsWord tells whether c can't be part of a number, true, false or null.
func endsWord(c byte) bool {
	switch c {
	case ' ', '\n', '\t', '\r', ',', ']', '}', ':':
		return true
	}
	return false
}

func skipString(raw []byte, i int) int {
	for i++; i < len(raw); i++ {
		n := bytes.IndexByte(raw[i:], '"')
		if n < 0 {
			return len(raw)
		}
		i += n
		// The quote counts unless an odd number of backslashes stands before it.
		slashes := 0
		for raw[i-1-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return i + 1
		}
	}
	return len(raw)
}

// parseObject checks JSON text and splits it into the fields of the object it must be, in the text's order. Its errors begin with
// ":line:col: " or ": ", so that the caller puts the file's name in front.
func parseObject(data []byte) ([]string, map[string]json.RawMessage, error) {
	if !json.Valid(data) {
		var v any
		return nil, nil, syntaxError(data, json.Unmarshal(data, &v))
	}
	return splitObject(data)
}

// splitObject is parseObject for text that is known to be valid JSON.
func splitObject(data []byte) ([]string, map[string]json.RawMessage, error) {
	if i := skipSpace(data, 0); i >= len(data) || data[i] != '{' {
		return nil, nil, fmt.Errorf(": found %s, wanted a JSON object", describe(data))
	}
	var keys []string
	fields := map[string]json.RawMessage{}
	for i, key := range fieldsAt(data) {
		if _, dup := fields[key]; dup {
			line, col := position(data, int64(i-1))
			return nil, nil, fmt.Errorf(":%d:%d: key %q is given twice", line, col, key)
		}
		start := skipSpace(data, i)
		keys = append(keys, key)
		fields[key] = data[start:skipValue(data, start)]
	}
	return keys, fields, nil
}

// syntaxError words an error of json.Unmarshal with its line and column.
func syntaxError(data []byte, err error) error {
	offset := int64(len(data))
	if se, ok := errors.AsType[*json.SyntaxError](err); ok {
		if strings.HasPrefix(se.Error(), "unexpected end") {
			err = errors.New("the text ends in the middle of a value")
		} else {
			// Offset counts the bytes read, the offending one included.
			offset = se.Offset - 1
		}
	}
	line, col := position(data, offset)
	return fmt.Errorf(":%d:%d: broken JSON: %w", line, col, err)
}

// position converts a byte offset to a line and a column in characters, both from 1.
func position(data []byte, offset int64) (line, col int) {
	before := data[:min(max(offset, 0), int64(len(data)))]
	start := bytes.LastIndexByte(before, '\n') + 1
	return bytes.Count(before, []byte{'\n'}) + 1, utf8.RuneCount(before[start:]) + 1
}
