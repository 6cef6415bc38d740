package checkpoint

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestConfigGetters(t *testing.T) {
	c, err := ParseConfig("unet/config.json", []byte(`{"_class_name": "UNet2DConditionModel", "a": 3, "f": 4.0, "e": 1e3, "n": null,
		"eps": 1e-6, "b": true, "s": "silu", "ints": [1, 2], "empty": [], "strs": ["x", "y"], "nest": {"k": 5, "bad": "x"}, "head": 8}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Class(); got != "UNet2DConditionModel" {
		t.Errorf("Class() = %q", got)
	}
	for _, tt := range []struct {
		name      string
		got, want any
	}{
		{"int", c.Int("a", 0), 3},
		{"integral float", c.PositiveInt("f", 0), 4},
		{"exponent", c.Int("e", 0), 1000},
		{"null is the default", c.Int("n", 7), 7},
		{"absent is the default", c.Int("zz", 8), 8},
		{"has null", c.Has("n"), false},
		{"has", c.Has("a"), true},
		{"float", c.Float("eps", 0), 1e-6},
		{"float from int", c.Float("a", 0), 3.0},
		{"bool", c.Bool("b", false), true},
		{"bool null", c.Bool("n", true), true},
		{"string", c.String("s", ""), "silu"},
		{"oneof", c.OneOf("s", "gelu", "silu", "gelu"), "silu"},
		{"require", c.RequireInt("a"), 3},
		{"nested", c.Object("nest").Int("k", 0), 5},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, tt.got, tt.want)
		}
	}
	if got := c.Ints("ints", nil); !slices.Equal(got, []int{1, 2}) {
		t.Errorf("Ints = %v", got)
	}
	if got := c.IntOrInts("head", nil); !slices.Equal(got, []int{8}) {
		t.Errorf("IntOrInts = %v", got)
	}
	if got := c.Ints("empty", []int{9}); got == nil || len(got) != 0 {
		t.Errorf("empty list = %v, want an empty list and not the default", got)
	}
	if got := c.Strings("strs", nil); !slices.Equal(got, []string{"x", "y"}) {
		t.Errorf("Strings = %v", got)
	}
	if err := c.Err(); err != nil {
		t.Errorf("Err() = %v, want none", err)
	}
	if got := c.Unread(); got != nil {
		t.Errorf("Unread() = %v, want none", got)
	}
	c.Object("nest").Int("bad", 0)
	if err := c.Err(); err == nil || !strings.Contains(err.Error(), `unet/config.json: nest.bad: found the string "x", wanted an integer`) {
		t.Errorf("Err() = %v, want the nested problem", err)
	}
}

func TestConfigProblems(t *testing.T) {
	c, err := ParseConfig("config.json", []byte(`{"num_layers": -3, "heads": "8", "eps": true, "huge": 1e999, "big": 1e12, "half": 2.5, "flag": 1,
		"act": 3, "list": [1, "x"], "scalar": 4, "zero": [0], "none": [], "obj": [], "left": 1, "neg": -1.5, "choice": "tanh"}`))
	if err != nil {
		t.Fatal(err)
	}
	c.PositiveInt("num_layers", 1)
	c.Int("heads", 1)
	c.Float("eps", 1)
	c.Float("huge", 1)
	c.PositiveInt("big", 1)
	c.Int("half", 1)
	c.Bool("flag", false)
	c.String("act", "")
	c.Ints("list", nil)
	c.Ints("scalar", nil)
	c.PositiveInts("zero", nil)
	c.PositiveInts("none", nil)
	c.Object("obj")
	c.RequireInt("gone")
	c.PositiveFloat("neg", 1)
	c.OneOf("choice", "silu", "silu", "gelu")
	c.Problem("num_layers", "found %d, wanted a multiple of %d", -3, 2)
	c.Int("heads", 1) // asked twice, reported once
	want := `config.json: num_layers: found -3, wanted an integer of 1 or more
config.json: heads: found the string "8", wanted an integer
config.json: eps: found true, wanted a finite number
config.json: huge: found 1e999, wanted a finite number
config.json: big: found 1e12, wanted an integer of at most 16777216
config.json: half: found 2.5, wanted an integer
config.json: flag: found 1, wanted true or false
config.json: act: found 3, wanted a string
config.json: list[1]: found the string "x", wanted a list of integers
config.json: scalar: found 4, wanted a list of integers
config.json: zero[0]: found 0, wanted a list of one or more integers, each 1 or more
config.json: none: found an empty list, wanted a list of one or more integers, each 1 or more
config.json: obj: found a list [], wanted an object without repeated keys
config.json: gone: found nothing, wanted an integer of 1 or more
config.json: neg: found -1.5, wanted a number above 0
config.json: choice: found "tanh", wanted one of silu, gelu
config.json: num_layers: found -3, wanted a multiple of 2`
	if err := c.Err(); err == nil || err.Error() != want {
		t.Errorf("Err() =\n%v\nwant\n%s", err, want)
	}
	if got := c.Unread(); !slices.Equal(got, []string{"left"}) {
		t.Errorf("Unread() = %v, want [left]", got)
	}
}

func TestParseConfigErrors(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"empty", "", "c.json: found an empty file, wanted a JSON object"},
		{"blank", " \n", "c.json: found an empty file, wanted a JSON object"},
		{"list", `[1, 2]`, "c.json: found a list [1,2], wanted a JSON object"},
		{"string", `"x"`, `c.json: found the string "x", wanted a JSON object`},
		{"null", `null`, "c.json: found null, wanted a JSON object"},
		{"cut", "{\n  \"a\": 1", "c.json:2:9: broken JSON: the text ends in the middle of a value"},
		{"cut in a value", "{\n  \"a\": [1,", "c.json:2:11: broken JSON: the text ends in the middle of a value"},
		{"comma", "{\n  \"a\": 1,\n}", "c.json:3:1: broken JSON: "},
		{"bad value", "{\n  \"a\": 1,\n  \"b\": [2, x]\n}", "c.json:3:12: broken JSON: invalid character 'x'"},
		{"nan", "{\"a\": NaN}", "c.json:1:7: broken JSON: invalid character 'N'"},
		{"no quotes", "{a: 1}", "c.json:1:2: broken JSON: "},
		{"twice", "{\"a\": 1,\n \"a\": 2}", `c.json:2:5: key "a" is given twice`},
		{"more", "{} {}", "c.json:1:4: broken JSON: invalid character '{' after top-level value"},
		{"broken list", "[1,", "c.json:1:4: broken JSON: the text ends"},
		{"not utf-8", "{\"a\": \"\xff\"}", "c.json: found bytes that are not UTF-8"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseConfig("c.json", []byte(tt.text))
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}

func TestReadConfigErrors(t *testing.T) {
	dir := t.TempDir()
	loop := filepath.Join(dir, "loop.json")
	if err := os.Symlink(loop, loop); err != nil {
		t.Skip(err)
	}
	for _, tt := range []struct{ path, want string }{
		{filepath.Join(dir, "gone.json"), "gone.json: no such file or directory"},
		{loop, "loop.json: too many levels of symbolic links"},
		{dir, ": found a directory, wanted a file"},
	} {
		if _, err := ReadConfig(tt.path); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("ReadConfig(%s) = %v, want %s", tt.path, err, tt.want)
		}
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(`{"a": 1, "b": [1, 2], "c": {"d": null}, "architectures": ["X"]}`))
	f.Add([]byte("{\"a\": 1e999, \"b\": [\"x\", {}], \"c\": -0.0}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseConfig("f.json", data)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f.json:") {
				t.Errorf("error without the file's name: %v", err)
			}
			return
		}
		c.Class()
		for _, k := range c.Keys() {
			c.Int(k, 0)
			c.PositiveInts(k, nil)
			c.Floats(k, nil)
			c.Bools(k, nil)
			c.Strings(k, nil)
			c.Bool(k, false)
			if o := c.Object(k); o != nil {
				o.Class()
			}
		}
		_ = c.Err()
	})
}
