// Package cache keeps compiled programs: what identifies one (Key), where they lie (Store), and the file that carries them to another
// machine (Bundle).
package cache

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// Field is one named part of a key.
type Field struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Key identifies an entry by named fields, so that a miss can say which of them differ from the nearest entry. Two keys are equal when
// their fields are, in order.
type Key struct {
	Fields []Field
}

// NewKey makes a key of name, value pairs.
func NewKey(pairs ...string) Key {
	if len(pairs)%2 != 0 {
		panic("BUG: NewKey wants pairs of name and value")
	}
	var k Key
	for i := 0; i < len(pairs); i += 2 {
		k.Fields = append(k.Fields, Field{pairs[i], pairs[i+1]})
	}
	return k
}

// Digest is the key's SHA-256 in hexadecimal: its name in the store. Each field goes in with its length, so that no two keys run together.
func (k Key) Digest() string {
	h := sha256.New()
	for _, f := range k.Fields {
		fmt.Fprintf(h, "%d:%s=%d:%s\n", len(f.Name), f.Name, len(f.Value), f.Value)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// String is the digest.
func (k Key) String() string { return k.Digest() }

// Get is a field's value, "" when the key has none.
func (k Key) Get(name string) string {
	for _, f := range k.Fields {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

// MarshalJSON writes the fields as a list.
func (k Key) MarshalJSON() ([]byte, error) { return json.Marshal(k.Fields) }

// UnmarshalJSON reads what MarshalJSON wrote.
func (k *Key) UnmarshalJSON(data []byte) error { return json.Unmarshal(data, &k.Fields) }

// Difference is one field in which two keys differ.
type Difference struct {
	Name, Want, Found string
}

// Diff lists the fields in which found differs from k, in k's order, then those that only found has.
func (k Key) Diff(found Key) []Difference {
	var out []Difference
	for _, f := range k.Fields {
		if v := found.Get(f.Name); v != f.Value {
			out = append(out, Difference{f.Name, f.Value, v})
		}
	}
	for _, f := range found.Fields {
		has := false
		for _, g := range k.Fields {
			has = has || g.Name == f.Name
		}
		if !has {
			out = append(out, Difference{f.Name, "", f.Value})
		}
	}
	return out
}
