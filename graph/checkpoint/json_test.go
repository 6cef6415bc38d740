package checkpoint

import (
	"encoding/json"
	"reflect"
	"strconv"
	"testing"
	"unicode/utf8"
)

// rebuild makes of walked JSON text what json.Unmarshal makes of it.
func rebuild(raw json.RawMessage) any {
	switch raw[0] {
	case '{':
		m := map[string]any{}
		for k, v := range ObjectFields(raw) {
			m[k] = rebuild(v)
		}
		return m
	case '[':
		l := []any{}
		for i, v := range ListElements(raw) {
			if i != len(l) {
				panic("position " + strconv.Itoa(i))
			}
			l = append(l, rebuild(v))
		}
		return l
	case '"':
		s, ok := Text(raw)
		if !ok {
			panic("not a string: " + string(raw))
		}
		return s
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		panic(err)
	}
	return v
}

// Walking valid JSON gives what the standard library's parser gives, and walking anything else ends.
func FuzzWalk(f *testing.F) {
	for _, s := range []string{
		`{}`, `[]`, ` { "a" : [ 1 , -2.5e3 , null , true ] , "b\"\\" : { "c" : "d\\\"" } } `, `[[],[[]],{},"",[1,[2]]]`,
		`{"a":"\\","b":"\\\\\"","\u00e9":"\ud83e\udd8a"}`, "[1\n,\t2\r]", `"x"`, `3`, `{"a"`, `["`, `"\`, `{"a":1,"a":2}`, "{\"\xff\":1}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for range ObjectFields(data) {
		}
		for range ListElements(data) {
		}
		Text(data)
		var want any
		if json.Unmarshal(data, &want) != nil || !utf8.Valid(data) {
			return
		}
		start := skipSpace(data, 0)
		if got := rebuild(data[start:skipValue(data, start)]); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, want %v", data, got, want)
		}
	})
}
