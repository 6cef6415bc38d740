package graph

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
)

// TestHashGolden holds that the hash is the same in every process and on every machine. It changes when hashFormat does.
func TestHashGolden(t *testing.T) {
	h := Hash(sample(t))
	golden(t, "sample.hash", hex.EncodeToString(h[:])+"\n")
}

func TestHashChanges(t *testing.T) {
	text := sample(t).String()
	base := Hash(sample(t))
	seen := map[[32]byte]string{base: "the sample"}
	for _, c := range []struct {
		old, new string
		equal    bool
	}{
		// Names that nobody outside sees, and where the nodes come from, do not count.
		{"sample one", "other", true},
		{`loc("blocks.0")`, `loc("other")`, true},
		{` loc("blocks.1")`, ``, true},
		{` class "blocks"`, ``, true},
		{"region @cond", "region @elsewhere", true},
		{`%0 = input "i"`, `%0 = input "counter"`, true},
		{"func @block class \"blocks\" {\n  %0 = input \"x\"", "func @block class \"blocks\" {\n  %0 = input \"hidden\"", true},
		// What the module computes, and how it is called, counts.
		{`input "x" : f32[2,4] donated`, `input "y" : f32[2,4] donated`, false},
		{`donated`, ``, false},
		{`"blocks.0.proj.weight"`, `"blocks.7.proj.weight"`, false},
		{`weight "blocks.0`, `input "blocks.0`, false},
		{`weight "proj.weight"`, `weight "out.weight"`, false},
		{`weight "proj.weight"`, `input "proj.weight"`, false},
		{`[["model"], []]`, `[[], ["model"]]`, false},
		{`[["model"], []]`, `[[], []]`, false},
		{` sharding [["model"], []]`, ``, false},
		{`"model" = 2`, `"model" = 4`, false},
		{`"GT"`, `"GE"`, false},
		{`splat<i32: 1>`, `splat<i32: 2>`, false},
		{`nan:0x7fc00001`, `nan`, false},
		{`-0,`, `0,`, false},
		{`subtract %0, %2`, `subtract %2, %0`, false},
		{`subtract %0, %2`, `add %0, %2`, false},
		{`lhs_contracting = [1]`, `lhs_contracting = [0]`, false},
		{`return %7 "sample", %6 "left"`, `return %7 "image", %6 "left"`, false},
		{`return %7 "sample", %6 "left"`, `return %5 "sample", %6 "left"`, false},
		{`call %4, %2`, `call %0, %2`, false},
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
		h := Hash(m)
		if c.equal != (h == base) {
			t.Errorf("%q to %q: found equal hashes: %v, wanted %v", c.old, c.new, h == base, c.equal)
		}
		if other, dup := seen[h]; dup && !c.equal {
			t.Errorf("%q to %q: the hash is that of %s", c.old, c.new, other)
		}
		seen[h] = c.new
	}
}

func TestHashEqual(t *testing.T) {
	base := Hash(sample(t))
	if Hash(Clone(sample(t))) != base {
		t.Error("the clone has another hash")
	}
	// The private func under another name, behind one that nobody calls.
	m := sample(t)
	m.Funcs[1].Name = "renamed"
	for _, n := range m.Entry().Nodes[:2] {
		n.Attrs[0].Value = "renamed"
	}
	m.Funcs = []*Func{m.Funcs[0], {Name: "unused"}, m.Funcs[1]}
	if err := Verify(m); err != nil {
		t.Fatal(err)
	}
	if Hash(m) != base {
		t.Error("names and order of private funcs count")
	}
	// A default written out.
	m = sample(t)
	dot := m.Funcs[1].Nodes[0]
	dot.Attrs = dot.FullAttrs()
	if len(dot.Attrs) != 5 || Hash(m) != base {
		t.Error("a default that is written out counts")
	}
	dot.Attrs = dot.Attrs.With("precision", "HIGH")
	if Hash(m) == base {
		t.Error("another precision does not count")
	}
}

// TestHashSplit holds that items do not run into each other.
func TestHashSplit(t *testing.T) {
	build := func(names ...string) *Module {
		m := NewModule("m")
		for _, n := range names {
			m.Entry().NewParam(n, Input, Shape{DType: dtypes.Float32})
		}
		return m
	}
	if Hash(build("ab", "c")) == Hash(build("a", "bc")) {
		t.Error("the names ab, c hash as a, bc")
	}
}

func TestHashFunc(t *testing.T) {
	m := sample(t)
	f := m.Funcs[1]
	g, _ := CloneFunc(f)
	g.Name, g.BlockClass, g.Nodes[0].Scope = "g", "", "elsewhere"
	g.Params[0].Name = "hidden"
	if HashFunc(m, f, false) != HashFunc(m, g, false) {
		t.Error("names, scopes and classes count")
	}
	g.Params[1].Name = "blocks.9.proj.weight"
	if HashFunc(m, f, false) == HashFunc(m, g, false) {
		t.Error("the weight's key does not count")
	}
	if HashFunc(m, f, true) != HashFunc(m, g, true) {
		t.Error("the weight's key counts though only the structure was asked for")
	}
	g.Params[1].Kind = Input
	if HashFunc(m, f, true) != HashFunc(m, g, true) {
		t.Error("a parameter's kind counts though only the structure was asked for")
	}
	g.Params[0].Value.Shape = Shape{DType: dtypes.Float32, Dimensions: []int{3, 4}}
	if HashFunc(m, f, true) == HashFunc(m, g, true) {
		t.Error("a parameter's shape does not count")
	}
}

// TestHashLiteral holds that every byte of a large constant counts, and whether it is a splat.
func TestHashLiteral(t *testing.T) {
	build := func(change int, splat bool) *Module {
		m := NewModule("m")
		data := make([]byte, 1<<13)
		if change >= 0 {
			data[change] = 1
		}
		m.Entry().Append(OpConstant, nil, Attrs{{"value", Literal{data, splat}}}, Shape{DType: dtypes.Uint8, Dimensions: []int{len(data)}})
		return m
	}
	seen := map[[32]byte]bool{}
	for _, change := range []int{-1, 0, 4095, 4096, 1<<13 - 1} {
		seen[Hash(build(change, false))] = true
	}
	seen[Hash(build(-1, true))] = true
	if len(seen) != 6 {
		t.Errorf("found %d hashes, wanted 6", len(seen))
	}
}
