package passes_test

import (
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"precast/graph"
	"precast/passes"
)

var update = flag.Bool("update", false, "write what the passes give into the cases in testdata")

// readCase reads a case of testdata/<pass>: a comment that says what it shows and may set options in lines of the form "min-block: 3", a
// section before, and a section after. A line "tolerance: 1e-7" is for a pass that changes roundings; the comment then says why.
func readCase(t *testing.T, path string) (a *txtar.Archive, before, after string, o passes.Options, tolerance float64) {
	t.Helper()
	a, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range a.Files {
		names = append(names, f.Name)
	}
	if !slices.Equal(names, []string{"before", "after"}) && !(*update && slices.Equal(names, []string{"before"})) {
		t.Fatalf("found the sections %q, wanted before and after (run with -update to write after)", names)
	}
	before = string(a.Files[0].Data)
	if len(a.Files) > 1 {
		after = string(a.Files[1].Data)
	}
	o = passes.DefaultOptions()
	said := false
	for line := range strings.Lines(string(a.Comment)) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), ": ")
		number, err := strconv.Atoi(value)
		switch {
		case ok && err == nil && key == "min-block":
			o.MinBlock = number
		case ok && err == nil && key == "max-constant":
			o.MaxConstant = number
		case ok && err == nil && key == "attention":
			o.Attention.Queries = number
		case ok && err == nil && key == "apart":
			o.Attention = passes.Attention{Budget: 1, Chunk: 1, Fused: 1 << 20, Apart: number}
		case ok && key == "attention" && value == "off":
		case ok && key == "outline" && value == "off":
			o.Outline = false
		case ok && key == "scan" && value == "on":
			o.Scan = true
		case ok && key == "tolerance":
			if tolerance, err = strconv.ParseFloat(value, 64); err != nil || tolerance <= 0 || tolerance > 1e-6 {
				t.Fatalf("tolerance: found %q, wanted a number above 0 and up to 1e-6", value)
			}
		case strings.TrimSpace(line) != "":
			said = true
		}
	}
	if !said {
		t.Error("the comment does not say what the case shows")
	}
	return a, before, after, o, tolerance
}

// TestCases runs each pass on the cases in its folder: the text after it is as written down, the module verifies, a second run changes nothing,
// and the values are the same, to the last bit where the case states no tolerance.
func TestCases(t *testing.T) {
	for _, pass := range passes.List {
		folder := filepath.Join("testdata", pass.Name)
		files, err := filepath.Glob(filepath.Join(folder, "*.txtar"))
		if err != nil {
			t.Fatal(err)
		}
		if len(files) == 0 && pass.Name != "late-dce" { // the same function as dce
			t.Errorf("pass %s has no cases in %s", pass.Name, folder)
		}
		for _, path := range files {
			t.Run(pass.Name+"/"+strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
				archive, before, after, o, tolerance := readCase(t, path)
				m := parse(t, "before", before)
				original := graph.Clone(m)
				if err := pass.Run(m, &o); err != nil {
					t.Fatal(err)
				}
				if err := graph.Verify(m); err != nil {
					t.Fatalf("%v\n%s", err, m)
				}
				if *update {
					archive.Files = append(archive.Files[:1], txtar.File{Name: "after", Data: []byte(m.String())})
					if err := os.WriteFile(path, txtar.Format(archive), 0o666); err != nil {
						t.Fatal(err)
					}
				} else if d := cmp.Diff(after, m.String()); d != "" {
					t.Errorf("the text after the pass differs (-want +got; -update writes it):\n%s", d)
				}
				once := m.String()
				if err := pass.Run(m, &o); err != nil {
					t.Fatalf("second run: %v", err)
				}
				if d := cmp.Diff(once, m.String()); d != "" {
					t.Errorf("a second run changes the module:\n%s", d)
				}
				for seed := range uint64(2) {
					given := arguments(original, seed)
					want, err := evaluate(original, given, false)
					if err != nil {
						t.Fatalf("before: %v", err)
					}
					for _, split := range []bool{false, true} {
						got, err := evaluate(m, given, split)
						if err != nil {
							t.Fatalf("after (split %v): %v\n%s", split, err, m)
						}
						if d := difference(got, want, tolerance); d != "" {
							t.Errorf("the values change (split %v): %s", split, d)
						}
					}
				}
			})
		}
	}
}

// TestNothingObsolete fails for files in testdata that no test reads.
func TestNothingObsolete(t *testing.T) {
	known := map[string]bool{"flux1-dev-real-transformer.json": true}
	for _, m := range models {
		known[m.name+".json"] = true
	}
	err := filepath.WalkDir("testdata", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		folder := filepath.Base(filepath.Dir(path))
		isCase := slices.Contains(passes.Names(), folder) && filepath.Ext(path) == ".txtar"
		isConfig := folder == "configs" && known[d.Name()]
		isSeed := strings.HasPrefix(path, filepath.Join("testdata", "fuzz", "FuzzPipeline"))
		if !isCase && !isConfig && !isSeed {
			t.Errorf("%s: no test reads it", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// text makes a module of one function from its parameters and nodes.
func text(lines ...string) string {
	return "module @m\n\nfunc @main {\n  " + strings.Join(lines, "\n  ") + "\n}\n"
}
