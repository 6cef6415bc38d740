package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// goldenFile is testdata/transformers.json; testdata/make_golden.py makes it.
type goldenFile struct {
	Texts   []string
	Folders map[string]struct {
		Class   string
		Files   []string
		Configs map[string]json.RawMessage
		// Rows hold a text's ids, its ids and number of ids that are not padding at a length of 9, and its ids decoded.
		Rows [][4]json.RawMessage
	}
}

func readGolden(t testing.TB) goldenFile {
	data, err := os.ReadFile(filepath.Join("testdata", "transformers.json"))
	if err != nil {
		t.Fatal(err)
	}
	var g goldenFile
	if err := json.Unmarshal(data, &g); err != nil {
		t.Fatal(err)
	}
	return g
}

// assemble makes a tokenizer's folder of files of testdata/base and the texts of further files.
func assemble(t testing.TB, files []string, configs map[string]json.RawMessage) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range files {
		data, err := os.ReadFile(filepath.Join("testdata", "base", name))
		if err != nil {
			t.Fatal(err)
		}
		write(t, dir, filepath.Base(name), data)
	}
	for name, text := range configs {
		write(t, dir, name, text)
	}
	return dir
}

func write(t testing.TB, dir, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func decode[T any](t *testing.T, raw json.RawMessage) (v T) {
	t.Helper()
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// Folders of every form, from CLIP's published ones to a lone SentencePiece file, give what transformers gives for odd strings.
func TestTransformers(t *testing.T) {
	g := readGolden(t)
	for name, f := range g.Folders {
		t.Run(name, func(t *testing.T) {
			tok, err := Open(assemble(t, f.Files, f.Configs), f.Class)
			if err != nil {
				t.Fatal(err)
			}
			if len(f.Rows) != len(g.Texts) {
				t.Fatalf("%d rows of %d texts", len(f.Rows), len(g.Texts))
			}
			for i, text := range g.Texts {
				ids := decode[[]int32](t, f.Rows[i][0])
				e, err := tok.Encode(text, Options{AddSpecial: true})
				if err != nil || !slices.Equal(e.IDs, ids) {
					t.Errorf("%q: got %v, %v\nwant %v", text, e.IDs, err, ids)
				}
				short := decode[[]int32](t, f.Rows[i][1])
				ones := 0
				e, err = tok.Encode(text, Options{MaxLength: 9, Pad: true, Truncate: true, AddSpecial: true})
				for _, m := range e.Mask {
					ones += int(m)
				}
				if err != nil || !slices.Equal(e.IDs, short) || ones != decode[int](t, f.Rows[i][2]) {
					t.Errorf("%q at 9: got %v with %d of text, %v\nwant %v with %s", text, e.IDs, ones, err, short, f.Rows[i][2])
				}
				if got, want := tok.Decode(ids), decode[string](t, f.Rows[i][3]); got != want {
					t.Errorf("%v decoded: got %q, want %q", ids, got, want)
				}
			}
		})
	}
}
