package graph

import (
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
)

// update rewrites the golden files of this package's tests: UPDATE_SNAPSHOTS=1 go test ./graph.
var update = os.Getenv("UPDATE_SNAPSHOTS") == "1"

// golden compares got with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: found\n%s\nwanted\n%s", path, got, want)
	}
}

func sample(t testing.TB) *Module {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "sample.graph"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := Parse("sample.graph", string(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := Verify(m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestPrintParse(t *testing.T) {
	m := sample(t)
	text := m.String()
	golden(t, "sample.golden", text)
	again, err := Parse("printed", text)
	if err != nil {
		t.Fatal(err)
	}
	if d := Diff(m, again); d != "" {
		t.Errorf("differs after printing and parsing: %s", d)
	}
	if again.String() != text {
		t.Error("the second printing differs from the first")
	}
	f := m.Entry()
	if f.Params[0].Kind != Input || !f.Params[0].Donated || f.Params[1].Kind != Weight || f.Params[1].Sharding.Axes[0][0] != "model" {
		t.Errorf("parameters were read wrong: %+v", f.Params)
	}
	if got := m.Funcs[1].BlockClass; got != "blocks" {
		t.Errorf("found class %q, wanted blocks", got)
	}
	if got := f.Nodes[2].Regions[1].Nodes[3].Scope; got != `blocks."odd"` {
		t.Errorf("found scope %q", got)
	}
}

// TestLiteralBits holds that every bit pattern of the 16-bit floats survives the text form, as do the corners of the others.
func TestLiteralBits(t *testing.T) {
	check := func(dtype DType, data []byte, n int) {
		t.Helper()
		f := &Func{Name: "main"}
		c := f.Append(OpConstant, nil, Attrs{{"value", Literal{Data: data}}}, shapes.Make(dtype, n))
		f.Results = c.Results
		m := &Module{Name: "m", Funcs: []*Func{f}}
		again, err := Parse("printed", m.String())
		if err != nil {
			t.Fatalf("%s %x: %v", DTypeName(dtype), data, err)
		}
		if got := again.Entry().Nodes[0].Attrs.Get("value").(Literal); !bytes.Equal(got.Data, data) {
			t.Fatalf("%s: found %x, wanted %x\n%s", DTypeName(dtype), got.Data, data, m)
		}
	}
	for _, d := range []DType{dtypes.Float16, dtypes.BFloat16, dtypes.Int16, dtypes.Uint16} {
		for start := 0; start < 1<<16; start += maxReadable {
			var data []byte
			for i := range maxReadable {
				data = appendUint(data, 2, uint64(start+i))
			}
			check(d, data, maxReadable)
		}
	}
	corners := []uint64{0, 1, 2, 1 << 31, 1<<31 + 1, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001, 0x3f800000, 0x007fffff, 0x7f7fffff}
	for _, d := range []DType{dtypes.Float32, dtypes.Int32, dtypes.Uint32} {
		for _, u := range corners {
			check(d, appendUint(nil, 4, u), 1)
		}
	}
	for _, d := range []DType{dtypes.Float64, dtypes.Int64, dtypes.Uint64} {
		for _, u := range []uint64{0, 1, 1 << 63, 0x7ff0000000000000, 0xfff0000000000000, 0x7ff8000000000000, 0x7ff0000000000001, math.MaxUint64, math.Float64bits(0.1)} {
			check(d, appendUint(nil, 8, u), 1)
		}
	}
	for u := range uint64(256) {
		for _, d := range []DType{dtypes.Bool, dtypes.Int8, dtypes.Uint8} {
			check(d, []byte{byte(u)}, 1)
		}
	}
	check(dtypes.Complex64, []byte{1, 2, 3, 4, 5, 6, 7, 8}, 1)
	check(dtypes.Int4, []byte{0x21}, 2)
	check(dtypes.Float32, make([]byte, 4*(maxReadable+1)), maxReadable+1)
	check(dtypes.Float32, []byte{1, 2, 3}, 1) // malformed for Verify, kept by the text form
}

func TestNewLiteral(t *testing.T) {
	for _, c := range []struct {
		dtype DType
		value float64
		want  uint64 // bits
	}{
		{dtypes.Float32, 0.1, 0x3dcccccd},
		{dtypes.Float16, 65504, 0x7bff},
		{dtypes.Float16, 65519.99, 0x7bff},
		{dtypes.Float16, 65520, 0x7c00},
		{dtypes.Float16, math.Ldexp(1, -24), 1},
		{dtypes.Float16, math.Ldexp(1, -25), 0},
		{dtypes.Float16, math.Ldexp(1.5, -25), 1},
		{dtypes.Float16, math.Ldexp(1023.75, -24), 0x400}, // rounds up into the normal numbers
		{dtypes.Float16, math.Copysign(0, -1), 0x8000},
		{dtypes.Float16, math.Inf(-1), 0xfc00},
		{dtypes.Float16, math.NaN(), 0x7e00},
		{dtypes.BFloat16, 1, 0x3f80},
		{dtypes.BFloat16, 1 + 1.0/256, 0x3f80},
		{dtypes.BFloat16, 1 + 3.0/256, 0x3f82},
		// Halfway in bf16 but for a bit that float32 drops: rounding through float32 gives 0x3f80.
		{dtypes.BFloat16, 1 + 1.0/256 + math.Ldexp(1, -40), 0x3f81},
		{dtypes.Int8, -128, 0x80},
		{dtypes.Uint8, 255, 0xff},
		{dtypes.Bool, 1, 1},
		{dtypes.Int64, math.MinInt64, 1 << 63},
		{dtypes.Uint64, 1 << 63, 1 << 63},
	} {
		l, err := NewLiteral(c.dtype, c.value)
		if err != nil {
			t.Errorf("%s %v: %v", DTypeName(c.dtype), c.value, err)
			continue
		}
		if got := readUint(l.Data); got != c.want {
			t.Errorf("%s %v: found %#x, wanted %#x", DTypeName(c.dtype), c.value, got, c.want)
		}
	}
	for _, c := range []struct {
		dtype DType
		value float64
	}{
		{dtypes.Int8, 128},
		{dtypes.Int8, 0.5},
		{dtypes.Uint8, -1},
		{dtypes.Uint8, 256},
		{dtypes.Bool, 2},
		{dtypes.Int32, math.NaN()},
		{dtypes.Int64, 1 << 63},
		{dtypes.Complex64, 1},
		{dtypes.Int4, 1},
		{dtypes.InvalidDType, 1},
	} {
		if l, err := NewLiteral(c.dtype, c.value); err == nil {
			t.Errorf("%s %v: found %x, wanted an error", DTypeName(c.dtype), c.value, l.Data)
		}
	}
	// Every bf16 and f16 value comes back.
	for _, d := range []DType{dtypes.Float16, dtypes.BFloat16} {
		for u := range uint64(1 << 16) {
			values, err := Literal{Data: appendUint(nil, 2, u)}.Floats(d)
			if err != nil {
				t.Fatal(err)
			}
			if math.IsNaN(values[0]) {
				continue // one NaN stands for all
			}
			if l, _ := NewLiteral(d, values[0]); readUint(l.Data) != u {
				t.Fatalf("%s %#x: decoded to %v, encoded to %x", DTypeName(d), u, values[0], l.Data)
			}
		}
	}
	if v, _ := (Literal{Data: []byte{0xfe, 0xff}}).Floats(dtypes.Int16); v[0] != -2 {
		t.Errorf("i16 fffe: found %v, wanted -2", v)
	}
	if _, err := (Literal{Data: []byte{1}}).Floats(dtypes.Int16); err == nil {
		t.Error("i16 of one byte: found no error")
	}
}

func TestParseErrors(t *testing.T) {
	in := func(body string) string { return "module @m\nfunc @f {\n" + body + "\n}" }
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", `x:1:1: found the end of the text, wanted "module"`},
		{"no func", "module @m\n", `x:2:1: found no func`},
		{"no name", "module @ m", `x:1:9: found`},
		{"unknown op", in("  %a = frobnicate : f32[]"), `x:3:8: found "frobnicate", wanted an operation or return`},
		{"undefined", in("return %a"), `x:3:8: found %a, which is not defined before`},
		{"self", in("%a = abs %a : f32[] return %a"), `x:3:10: found %a, which is not defined before`},
		{"twice", in("%a = input \"a\" : f32[]\n%a = abs %a : f32[]"), `x:4:1: found a second definition of %a`},
		{"late param", in("%c = constant {value = splat<f32: 1>} : f32[]\n%a = input \"a\" : f32[]"), `x:4:1: found a parameter after a node`},
		{"dtype", in(`%a = input "a" : f33[]`), `x:3:18: found "f33[]", wanted an element type`},
		{"dim", in(`%a = input "a" : f32[-1]`), `x:3:22: found dimension -1`},
		{"big dim", in(`%a = input "a" : f32[99999999999999999999]`), `x:3:22: found "99999999999999999999", wanted a whole number`},
		{"too few types", in("%a, %b = abs : f32[]\nreturn"), `x:4:1: found "return", wanted ','`},
		{"too many types", in("%a = abs : f32[], f32[] return"), `x:3:17: found more result types`},
		{"attr twice", in(`%a = abs {x = 1, x = 2} : f32[] return`), `x:3:18: found attribute x twice`},
		{"string", in("%a = abs {x = \"abc\n"), `x:3:15: found a string without its closing quote`},
		{"escape", in(`%a = abs {x = "\q"} : f32[]`), `x:3:15: found a string with a bad escape`},
		{"utf8", in("%a = abs {x = \"\xff\"} : f32[]"), `x:3:15: found a string with a bad escape or bytes that are not UTF-8`},
		{"hex", in(`%a = constant {value = dense<0x123>} : f32[]`), `x:3:30: found hexadecimal bytes`},
		{"no numbers", in(`%a = constant {value = dense<c64: 1>} : c64[]`), `x:3:30: found "c64:", wanted 0x`},
		{"range", in(`%a = constant {value = dense<i8: 128>} : i8[]`), `x:3:34: found "128>}", wanted a number of type i8`},
		{"infinite", in(`%a = constant {value = dense<f32: 1e99>} : f32[]`), `wanted a finite number of type f32`},
		{"infinite bf16", in(`%a = constant {value = dense<bf16: 1e39>} : bf16[]`), `wanted a finite number of type bf16`},
		{"nan bits", in(`%a = constant {value = dense<f32: nan:0x1>} : f32[]`), `wanted the bits of a NaN`},
		{"bool", in(`%a = constant {value = dense<bool: 1>} : bool[]`), `wanted true or false`},
		{"word", in(`%a = abs {x = yes} : f32[]`), `x:3:15: found "yes}", wanted a number`},
		{"pair", in(`%a = abs {x = [[1, 2], [3]]} : f32[]`), `x:3:24: found 1 numbers, wanted a pair`},
		{"some names", in("%a = input \"a\" : f32[]\n%b = input \"b\" : f32[]\nreturn %a \"x\", %b"), `found names for some results`},
		{"names late", in("%a = input \"a\" : f32[]\n%b = input \"b\" : f32[]\nreturn %a, %b \"x\""), `found names for some results`},
		{"trailing", "module @m\nfunc @f { return }\n}", `x:3:1: found "}", wanted "func"`},
		{"open", "module @m\nfunc @f {", `x:2:10: found the end of the text, wanted an operation or return`},
		{"capture", in("%a = input \"a\" : f32[]\n%b = while %a region { return %a } : f32[]"), `x:4:31: found %a, which is not defined before in this func or region`},
		{"deep", in(strings.Repeat("if region {", maxDepth+1)), `found regions nested more than 64 deep`},
	} {
		_, err := Parse("x", c.text)
		var pe *ParseError
		if !errors.As(err, &pe) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: found error %v, wanted %q", c.name, err, c.want)
		}
	}
}

func TestParseAttrs(t *testing.T) {
	// Attribute kinds that no op of the table takes are kept all the same; they are written sorted.
	text := `module @m
func @main {
  %0 = abs {z = 1, a = -2.5, b = [[1, -2]], c = [[]], d = [], e = bf16, f = "q\"\x00", g = nan, h = 2e+100, i = -inf, j = 3.0, k = true} : f32[]
  return
}
`
	m, err := Parse("x", text)
	if err != nil {
		t.Fatal(err)
	}
	a := m.Entry().Nodes[0].Attrs
	for name, want := range map[string]any{
		"a": -2.5, "b": [][2]int{{1, -2}}, "c": [][2]int{}, "d": []int{}, "e": dtypes.BFloat16, "f": "q\"\x00", "g": math.Float64frombits(0x7ff8000000000000),
		"h": 2e100, "i": math.Inf(-1), "j": 3.0, "k": true, "z": 1,
	} {
		if got := a.Get(name); !EqualAttr(got, want) {
			t.Errorf("attribute %s: found %v (%T), wanted %v (%T)", name, got, got, want, want)
		}
	}
	again, err := Parse("y", m.String())
	if err != nil {
		t.Fatal(err)
	}
	if d := Diff(m, again); d != "" {
		t.Error(d)
	}
}

func TestDiff(t *testing.T) {
	text := sample(t).String()
	if d := Diff(sample(t), sample(t)); d != "" {
		t.Errorf("equal modules: found %q", d)
	}
	for _, c := range []struct{ old, new, want string }{
		{"sample one", "sample two", "module: name"},
		{`"model" = 2`, `"model" = 4`, "mesh"},
		{` mesh "devices" ["data" = 1, "model" = 2]`, "", "one has a mesh"},
		{` donated`, "", "func @main: parameter 0: `input"},
		{`"blocks.0.proj.weight"`, `"other"`, "func @main: parameter 1"},
		{`weight "blocks.0`, `input "blocks.0`, "parameter 1"},
		{`[["model"], []]`, `[[], []]`, "parameter 1"},
		{`loc("blocks.0")`, `loc("blocks.5")`, "func @main: node 0: `%4 = call %0, %1"},
		{`call %0, %1`, `call %0, %2`, "node 0"},
		{`{direction = "GT"}`, `{direction = "GE"}`, "region 0: func @cond: node 1"},
		{`splat<i32: 1>`, `splat<i32: 2>`, "region 1: func @body: node 0"},
		{`nan:0x7fc00001`, `nan`, "region 1"},
		{`return %7 "sample"`, `return %5 "sample"`, "results differ"},
		{`"sample",`, `"image",`, "result names"},
		{`class "blocks"`, `class "others"`, "block class"},
		{"func @block", "func @blocks", "name against"},
		{"  %2 = dot_general", "  %8 = abs %0 : f32[2,4]\n  %2 = dot_general", "func @block: node 0"},
	} {
		changed := strings.Replace(text, c.old, c.new, 1)
		if changed == text {
			t.Errorf("%q is not in the text", c.old)
			continue
		}
		m, err := Parse("changed", changed)
		if err != nil {
			t.Errorf("%q: %v", c.new, err)
			continue
		}
		for _, d := range []string{Diff(sample(t), m), Diff(m, sample(t))} {
			if !strings.Contains(d, c.want) && !strings.Contains(d, "func @block") && !strings.Contains(d, "name against") {
				t.Errorf("%q to %q: found %q, wanted %q in it", c.old, c.new, d, c.want)
			}
		}
	}
}

// TestPrintBroken holds that dumps of modules which Verify refuses do not panic.
func TestPrintBroken(t *testing.T) {
	m := sample(t)
	m.Entry().Nodes[0].Operands[0] = nil
	m.Entry().Nodes[1].Operands[0] = &Value{}
	m.Entry().Nodes[1].Attrs = Attrs{{"x", struct{}{}}}
	m.Entry().Nodes[2].Regions[0] = nil
	m.Mesh.AxisSizes = nil
	if err := Print(io.Discard, m); err != nil {
		t.Error(err)
	}
	if s := m.String(); !strings.Contains(s, "call %?, %1") || !strings.Contains(s, "{x = <struct {}>}") {
		t.Errorf("found\n%s", s)
	}
	if err := Verify(m); err == nil {
		t.Error("found it accepted")
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestPrintError(t *testing.T) {
	for name, err := range map[string]error{
		"Print": Print(failingWriter{}, sample(t)), "WriteDOT": WriteDOT(failingWriter{}, sample(t)), "WriteJSON": WriteJSON(failingWriter{}, sample(t)),
	} {
		if err == nil || err.Error() != "disk full" {
			t.Errorf("%s: found error %v, wanted that of the writer", name, err)
		}
	}
}

// FuzzParse: no text makes Parse or Verify panic; what parses prints to a text that parses to an equal module with the same hash.
func FuzzParse(f *testing.F) {
	for _, c := range validOps {
		f.Add(caseModule(f, c))
	}
	for _, cases := range invalidOps {
		for _, c := range cases {
			f.Add(caseModule(f, c))
		}
	}
	f.Add(sample(f).String())
	f.Fuzz(func(t *testing.T, text string) {
		m, err := Parse("fuzz", text)
		if err != nil {
			return
		}
		verr := Verify(m)
		printed := m.String()
		again, err := Parse("printed", printed)
		if err != nil {
			t.Fatalf("printed text does not parse: %v\n%s", err, printed)
		}
		if d := Diff(m, again); d != "" {
			t.Fatalf("differs after printing and parsing: %s\n%s", d, printed)
		}
		if again.String() != printed {
			t.Fatalf("printed again it differs\n%s\n%s", printed, again)
		}
		if verr != nil {
			return
		}
		if Hash(m) != Hash(again) {
			t.Fatalf("the hash differs after printing and parsing\n%s", printed)
		}
		c := Clone(m)
		if err := Verify(c); err != nil {
			t.Fatalf("the clone is refused: %v", err)
		}
		if d := Diff(m, c); d != "" {
			t.Fatalf("the clone differs: %s", d)
		}
		_ = Stats(m)
		if err := errors.Join(WriteDOT(io.Discard, m), WriteJSON(io.Discard, m)); err != nil {
			t.Fatal(err)
		}
	})
}
