package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The largest value PositiveInt accepts. No count, width or table length of a published model comes near it, and the product
// of two such numbers still fits an int64.
const maxCount = 1 << 24

// The largest integer a JSON number carries exactly through a float64.
const maxExact = 1 << 53

// Config is one parsed JSON object of a checkpoint: a component's config.json, a scheduler_config.json, a nested object of one.
//
// The getters read one key each. An absent key and a null mean the default, as in diffusers and transformers. A value of another
// type or out of range yields the default too and is collected as a problem; Err returns all problems at once, so that a reader
// fetches every field first and checks once. A Config is not safe for concurrent use.
type Config struct {
	file   string // as printed in messages
	prefix string // key path of a nested object, with its final dot
	keys   []string
	fields map[string]json.RawMessage
	read   map[string]bool
	// sink is shared by a Config and its nested objects.
	sink *problems
}

// problems are the faults found so far in one file, without repeats.
type problems struct{ list []string }

// ParseConfig parses data, the content of the named file, which must hold one JSON object without repeated keys. An error names
// the file and, for broken JSON, the line and column.
func ParseConfig(file string, data []byte) (*Config, error) {
	// Windows editors put a byte order mark before the text.
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, fmt.Errorf("%s: found an empty file, wanted a JSON object", file)
	}
	if !utf8.Valid(data) {
		return nil, fmt.Errorf("%s: found bytes that are not UTF-8, wanted a JSON object", file)
	}
	keys, fields, err := parseObject(quoteInfinity(data))
	if err != nil {
		return nil, fmt.Errorf("%s%w", file, err)
	}
	return newConfig(file, "", keys, fields, &problems{}), nil
}

// ReadConfig reads and parses the JSON object in the file at path. Messages name the file as path.
func ReadConfig(path string) (*Config, error) {
	data, err := ReadFile(path)
	if err != nil {
		return nil, err
	}
	return ParseConfig(path, data)
}

// maxFile bounds the files that are read whole: the largest known index of a checkpoint is under 1 MB and the largest tokenizer.json
// under 40 MB.
const maxFile = 256 << 20

// ReadFile reads a regular file of at most 256 MB: a config, an index, a tokenizer's vocabulary.
func ReadFile(path string) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, FileError(path, err)
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: found a %s, wanted a file", path, fileKind(st.Mode()))
	}
	if st.Size() > maxFile {
		return nil, fmt.Errorf("%s: found %d bytes, wanted a file of at most %d", path, st.Size(), maxFile)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, FileError(path, err)
	}
	return data, nil
}

// fileKind names what a path is when it is not a regular file.
func fileKind(mode os.FileMode) string {
	switch {
	case mode.IsDir():
		return "directory"
	case mode&os.ModeNamedPipe != 0:
		return "named pipe"
	case mode&os.ModeSocket != 0:
		return "socket"
	case mode&os.ModeDevice != 0:
		return "device"
	}
	return "special file"
}

// FileError words an operating system error about path with the path first, once.
func FileError(path string, err error) error {
	if pe, ok := errors.AsType[*os.PathError](err); ok {
		err = pe.Err
	}
	return fmt.Errorf("%s: %w", path, err)
}

func newConfig(file, prefix string, keys []string, fields map[string]json.RawMessage, sink *problems) *Config {
	return &Config{file: file, prefix: prefix, keys: keys, fields: fields, read: map[string]bool{}, sink: sink}
}

// describe says what a JSON value is, for a message: its type and, where short, its text.
func describe(raw json.RawMessage) string {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return "nothing"
	}
	text := string(raw)
	var compact bytes.Buffer
	if json.Compact(&compact, raw) == nil {
		text = compact.String()
	}
	if len(text) > 60 {
		cut := 57
		for !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut] + "..."
	}
	switch raw[0] {
	case '{':
		return "an object " + text
	case '[':
		return "a list " + text
	case '"':
		return "the string " + text
	case 'n':
		return "null"
	}
	return text
}

// File returns the name that messages give this config.
func (c *Config) File() string { return c.file }

// Keys returns the keys in the file's order.
func (c *Config) Keys() []string { return slices.Clone(c.keys) }

// Has tells whether key is there and not null.
func (c *Config) Has(key string) bool { return c.value(key) != nil }

// IsNull tells an explicit null from an absent key, for the few fields where null is not the default.
func (c *Config) IsNull(key string) bool {
	c.read[key] = true
	return string(c.fields[key]) == "null"
}

// Raw returns the JSON text of key's value, nil when absent or null.
func (c *Config) Raw(key string) json.RawMessage { return c.value(key) }

// value marks key as read and returns its JSON text, nil when absent or null.
func (c *Config) value(key string) json.RawMessage {
	c.read[key] = true
	raw := c.fields[key]
	if string(raw) == "null" {
		return nil
	}
	return raw
}

// Unread returns the keys that no getter has asked for, in the file's order: fields of a newer format, or misspelt ones. Keys
// that begin with an underscore are records of the writer and left out.
func (c *Config) Unread() []string {
	var out []string
	for _, k := range c.keys {
		if !c.read[k] && !strings.HasPrefix(k, "_") {
			out = append(out, k)
		}
	}
	return out
}

// Set replaces or adds a field, as a command-line override does. The value must be valid JSON.
func (c *Config) Set(key string, value json.RawMessage) error {
	if !json.Valid(value) {
		return fmt.Errorf("%s: %s%s: found %q, wanted a JSON value", c.file, c.prefix, key, value)
	}
	if _, ok := c.fields[key]; !ok {
		c.keys = append(c.keys, key)
	}
	c.fields[key] = bytes.TrimSpace(value)
	return nil
}

// Class returns the class the file says it configures: "_class_name" (diffusers), else the first of "architectures"
// (transformers), else "".
func (c *Config) Class() string {
	if s := c.String("_class_name", ""); s != "" {
		return s
	}
	if a := c.Strings("architectures", nil); len(a) > 0 {
		return a[0]
	}
	return ""
}

// Problem records a fault of key; the format says what was found and what was wanted.
func (c *Config) Problem(key, format string, args ...any) {
	p := c.file + ": " + c.prefix + key + ": " + fmt.Sprintf(format, args...)
	if !slices.Contains(c.sink.list, p) {
		c.sink.list = append(c.sink.list, p)
	}
}

// Err returns every problem found so far, one a line, or nil. A nested object's problems are its parent's too.
func (c *Config) Err() error {
	if len(c.sink.list) == 0 {
		return nil
	}
	return errors.New(strings.Join(c.sink.list, "\n"))
}

// Int returns an integer of any sign, def when absent.
func (c *Config) Int(key string, def int) int {
	raw := c.value(key)
	if raw == nil {
		return def
	}
	v, ok := asInt(raw)
	if !ok {
		c.Problem(key, "found %s, wanted an integer", describe(raw))
		return def
	}
	return v
}

// PositiveInt returns an integer from 1 to 2^24, def when absent. It is the getter for sizes and counts.
func (c *Config) PositiveInt(key string, def int) int {
	raw := c.value(key)
	if raw == nil {
		return def
	}
	v, ok := asInt(raw)
	switch {
	case !ok || v < 1:
		c.Problem(key, "found %s, wanted an integer of 1 or more", describe(raw))
		return def
	case v > maxCount:
		c.Problem(key, "found %s, wanted an integer of at most %d", describe(raw), maxCount)
		return def
	}
	return v
}

// IntIn returns an integer from least to most, def when absent.
func (c *Config) IntIn(key string, def, least, most int) int {
	v := c.Int(key, def)
	if v < least || v > most {
		c.Problem(key, "found %d, wanted %d to %d", v, least, most)
		return def
	}
	return v
}

// PositiveIntUpTo is PositiveInt with a bound of the field's own.
func (c *Config) PositiveIntUpTo(key string, def, most int) int {
	v := c.PositiveInt(key, def)
	if v > most {
		c.Problem(key, "found %d, wanted at most %d", v, most)
		return def
	}
	return v
}

// RequireInt returns an integer from 1 to 2^24 that must be there; 0 when it is not.
func (c *Config) RequireInt(key string) int {
	if c.value(key) == nil {
		c.Problem(key, "found nothing, wanted an integer of 1 or more")
		return 0
	}
	return c.PositiveInt(key, 0)
}

// Float returns a finite number, def when absent.
func (c *Config) Float(key string, def float64) float64 {
	raw := c.value(key)
	if raw == nil {
		return def
	}
	v, ok := asFloat(raw)
	if !ok {
		c.Problem(key, "found %s, wanted a finite number", describe(raw))
		return def
	}
	return v
}

// PositiveFloat returns a finite number above 0, def when absent.
func (c *Config) PositiveFloat(key string, def float64) float64 {
	raw := c.value(key)
	if raw == nil {
		return def
	}
	v, ok := asFloat(raw)
	if !ok || v <= 0 {
		c.Problem(key, "found %s, wanted a number above 0", describe(raw))
		return def
	}
	return v
}

// Bool returns true or false, def when absent.
func (c *Config) Bool(key string, def bool) bool {
	switch raw := c.value(key); string(raw) {
	case "":
		return def
	case "true":
		return true
	case "false":
		return false
	default:
		c.Problem(key, "found %s, wanted true or false", describe(raw))
		return def
	}
}

// String returns a string, def when absent.
func (c *Config) String(key, def string) string {
	raw := c.value(key)
	if raw == nil {
		return def
	}
	s, ok := Text(raw)
	if !ok {
		c.Problem(key, "found %s, wanted a string", describe(raw))
		return def
	}
	return s
}

// OneOf returns a string that is one of choices, def when absent.
func (c *Config) OneOf(key, def string, choices ...string) string {
	s := c.String(key, def)
	if s != def && !slices.Contains(choices, s) {
		c.Problem(key, "found %q, wanted one of %s", s, strings.Join(choices, ", "))
		return def
	}
	return s
}

// Ints returns a list of integers, def when absent.
func (c *Config) Ints(key string, def []int) []int {
	return list(c, key, def, "a list of integers", asInt)
}

// IntOrInts returns a list of integers where the file may hold one integer for all; that gives a list of length 1.
func (c *Config) IntOrInts(key string, def []int) []int {
	if raw := c.value(key); raw != nil && raw[0] != '[' {
		v, ok := asInt(raw)
		if !ok {
			c.Problem(key, "found %s, wanted an integer or a list of integers", describe(raw))
			return def
		}
		return []int{v}
	}
	return c.Ints(key, def)
}

// PositiveInts returns a non-empty list of integers from 1 to 2^24, def when absent.
func (c *Config) PositiveInts(key string, def []int) []int {
	if c.value(key) == nil {
		return def
	}
	const wanted = "a list of one or more integers, each 1 or more"
	v := list(c, key, nil, wanted, func(raw json.RawMessage) (int, bool) {
		v, ok := asInt(raw)
		return v, ok && v >= 1 && v <= maxCount
	})
	if v == nil {
		return def
	}
	if len(v) == 0 {
		c.Problem(key, "found an empty list, wanted %s", wanted)
		return def
	}
	return v
}

// RoPEAxes returns how a head's channels are split among the coordinates of a position, for rotary embeddings that turn pairs of channels: as
// many even numbers as there are coordinates, whose sum is headDim, which messages call headKey.
func (c *Config) RoPEAxes(key string, def []int, headKey string, headDim int) []int {
	axes := c.PositiveInts(key, def)
	sum := 0
	for _, n := range axes {
		sum += n
		if n%2 != 0 {
			c.Problem(key, "found %v, wanted even numbers", axes)
		}
	}
	if len(axes) != len(def) || sum != headDim {
		c.Problem(key, "found %v, wanted %d numbers with the sum %s %d", axes, len(def), headKey, headDim)
	}
	return axes
}

// Floats returns a list of finite numbers, def when absent.
func (c *Config) Floats(key string, def []float64) []float64 {
	return list(c, key, def, "a list of finite numbers", asFloat)
}

// Bools returns a list of booleans, def when absent.
func (c *Config) Bools(key string, def []bool) []bool {
	return list(c, key, def, "a list of true or false", func(raw json.RawMessage) (bool, bool) {
		return string(raw) == "true", string(raw) == "true" || string(raw) == "false"
	})
}

// Strings returns a list of strings, def when absent.
func (c *Config) Strings(key string, def []string) []string {
	return list(c, key, def, "a list of strings", Text)
}

// Object returns the nested object at key, nil when absent. Its problems are collected with c's.
func (c *Config) Object(key string) *Config {
	raw := c.value(key)
	if raw == nil {
		return nil
	}
	keys, fields, err := splitObject(raw)
	if err != nil {
		c.Problem(key, "found %s, wanted an object without repeated keys", describe(raw))
		return nil
	}
	return newConfig(c.file, c.prefix+key+".", keys, fields, c.sink)
}

// list reads a JSON list element by element; it never returns nil for a list that is there and valid.
func list[T any](c *Config, key string, def []T, wanted string, elem func(json.RawMessage) (T, bool)) []T {
	raw := c.value(key)
	if raw == nil {
		return def
	}
	if raw[0] != '[' {
		c.Problem(key, "found %s, wanted %s", describe(raw), wanted)
		return def
	}
	out := []T{}
	for i, p := range ListElements(raw) {
		v, ok := elem(p)
		if !ok {
			c.Problem(fmt.Sprintf("%s[%d]", key, i), "found %s, wanted %s", describe(p), wanted)
			return def
		}
		out = append(out, v)
	}
	return out
}

// asInt reads a JSON number with an integral value ("8", "8.0", "1e3") within ±2^53.
func asInt(raw json.RawMessage) (int, bool) {
	text := string(raw)
	if v, err := strconv.ParseInt(text, 10, 64); err == nil {
		return int(v), v >= -maxExact && v <= maxExact
	}
	v, ok := asFloat(raw)
	if !ok || v != math.Trunc(v) || math.Abs(v) > maxExact {
		return 0, false
	}
	return int(v), true
}

// asFloat reads a JSON number that a float64 holds as a finite value.
func asFloat(raw json.RawMessage) (float64, bool) {
	if len(raw) == 0 || (raw[0] != '-' && (raw[0] < '0' || raw[0] > '9')) {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || math.IsInf(v, 0) || math.IsNaN(v) {
		return 0, false
	}
	return v, true
}
