package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// reference is the folder of the golden tests: the one that PRECAST_REFERENCE names, else the whole set beside the repository, else the part
// of it that the repository ships.
func reference(t testing.TB) string {
	t.Helper()
	for _, dir := range []string{
		os.Getenv("PRECAST_REFERENCE"),
		filepath.Join("..", "..", "..", "shared", "reference"),
		filepath.Join("..", "..", "tests", "testdata"),
	} {
		if _, err := os.Stat(filepath.Join(dir, "tiny")); dir != "" && err == nil {
			return dir
		}
	}
	t.Fatal("no reference set: tests/testdata is not there")
	return ""
}

// golden is one tokenizer's part of a tokenizers.json: what transformers made of each string.
type golden struct {
	Class string `json:"class"`
	PadID int32  `json:"pad_id"`
	EosID int32  `json:"eos_id"`

	Strings []struct {
		Text   string  `json:"text"`
		IDs    []int32 `json:"ids"`
		IDs77  []int32 `json:"ids_77"`
		Mask77 []int32 `json:"mask_77"`
		IDs24  []int32 `json:"ids_24"`
		Mask24 []int32 `json:"mask_24"`
	} `json:"strings"`
}

// check compares a tokenizer with what transformers gave.
func check(t *testing.T, tok Tokenizer, g golden) {
	t.Helper()
	if len(g.Strings) < 60 {
		t.Fatalf("only %d strings", len(g.Strings))
	}
	encode := func(text string, o Options) Encoding {
		e, err := tok.Encode(text, o)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		return e
	}
	for _, s := range g.Strings {
		all := encode(s.Text, Options{AddSpecial: true})
		if !slices.Equal(all.IDs, s.IDs) {
			t.Errorf("%q:\n got %v\nwant %v", s.Text, all.IDs, s.IDs)
		}
		n, ids, mask := 77, s.IDs77, s.Mask77
		if ids == nil {
			n, ids, mask = 24, s.IDs24, s.Mask24
		}
		e := encode(s.Text, Options{MaxLength: n, Pad: true, Truncate: true, AddSpecial: true})
		if !slices.Equal(e.IDs, ids) || !slices.Equal(e.Mask, mask) {
			t.Errorf("%q at %d:\n got %v %v\nwant %v %v", s.Text, n, e.IDs, e.Mask, ids, mask)
		}
		if (e.Cut != "") != (len(s.IDs) > n) {
			t.Errorf("%q at %d: cut %q of %d ids", s.Text, n, e.Cut, len(s.IDs))
		}
	}
}

// Every tokenizer of the reference set whose class is read gives the ids of transformers for every string.
func TestReference(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(reference(t), "tiny", "*", "tokenizers.json"))
	if err != nil || len(files) == 0 {
		t.Fatal("no goldens", err)
	}
	checked := 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var all map[string]golden
		if err := json.Unmarshal(data, &all); err != nil {
			t.Fatal(err)
		}
		for name, g := range all {
			if classes[g.Class] == nil {
				continue
			}
			t.Run(filepath.Base(filepath.Dir(file))+"/"+name, func(t *testing.T) {
				tok, err := Open(filepath.Join(filepath.Dir(file), "model", name), g.Class)
				if err != nil {
					t.Fatal(err)
				}
				check(t, tok, g)
			})
			checked++
		}
	}
	if checked < 5 {
		t.Errorf("only %d tokenizers checked", checked)
	}
}
