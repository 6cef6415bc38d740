package tests

import (
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// allowedImports says which of our packages a folder's packages may import: the folder itself and those below it, save those with
// a row of their own. The direction is cmd -> root -> {graph/*, passes, lower, backends, cache} -> graph.
var allowedImports = map[string][]string{
	"cmd/precast":             {"."},
	".":                       {"graph", "graph/cost", "graph/trace", "graph/checkpoint", "graph/checkpoint/hub", "graph/lora", "graph/pipelines", "graph/pipelines/configs", "passes", "lower", "backends", "backends/pjrt", "backends/gobackend", "backends/plugin", "cache"},
	"graph":                   {},
	"graph/cost":              {"graph"},
	"graph/trace":             {"graph"},
	"graph/nn":                {"graph/trace"},
	"graph/models":            {"graph", "graph/trace", "graph/nn", "graph/checkpoint"},
	"graph/pipelines":         {"graph", "graph/trace", "graph/models", "graph/scheduler", "graph/tokenizer", "graph/checkpoint"},
	"graph/pipelines/configs": {},
	"graph/scheduler":         {"graph", "graph/trace", "graph/checkpoint"},
	"graph/tokenizer":         {"graph/checkpoint"},
	"graph/checkpoint/hub":    {"graph/checkpoint"},
	"graph/checkpoint":        {},
	"graph/lora":              {"graph/checkpoint"},
	"passes":                  {"graph"},
	"lower":                   {"graph"},
	"backends":                {"lower"},
	"backends/pjrt":           {"backends", "lower"},
	"backends/gobackend":      {"backends", "lower", "graph", "graph/cost"},
	"backends/plugin":         {},
	"backends/backendtest":    {"backends", "lower", "graph"},
	"cache":                   {},
}

// importExceptions are packages that only tests import and that therefore may import more; each says why.
var importExceptions = map[string]string{
	"graph/checkpoint/hub/hubtest": "a hub on this machine, for the tests of the hub and of the command line",
	"graph/models/golden":          "compares networks with goldens on every backend, for the tests of all model packages",
	"tests":                        "what crosses packages",
}

// gomlxGraph is gomlx's own package graph. Networks are written with it, so it is imported where networks are, and always as ml.
const gomlxGraph = "github.com/gomlx/gomlx/core/graph"

// networkFolders are the folders that may import it.
var networkFolders = []string{"graph/trace", "graph/nn", "graph/models", "graph/scheduler", "graph/pipelines"}

// topFolders are the folders beside the root package's files.
var topFolders = []string{"backends", "cache", "cmd", "docs", "graph", "lower", "passes", "tests"}

// goFile is a file that is no test: its folder, and its imports with the names given to them ("" for none).
type goFile struct {
	file    string
	dir     string
	imports map[string]string
}

func goFiles(t *testing.T) []goFile {
	t.Helper()
	var files []goFile
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		if d.IsDir() {
			if name != ".." && (strings.HasPrefix(base, ".") || base == "testdata" || base == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(base, ".go") || strings.HasSuffix(base, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		for _, group := range f.Comments {
			for _, c := range group.List {
				if constraint.IsGoBuild(c.Text) && strings.Contains(c.Text, "ignore") {
					return nil
				}
			}
		}
		rel, err := filepath.Rel("..", name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		g := goFile{file: rel, dir: path.Dir(rel), imports: map[string]string{}}
		for _, i := range f.Imports {
			p, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			g.imports[p] = ""
			if i.Name != nil {
				g.imports[p] = i.Name.Name
			}
		}
		files = append(files, g)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// row returns the entry of table that dir falls under: its own or that of the nearest folder above.
func row(dir string, has func(string) bool) (string, bool) {
	for d := dir; ; d = path.Dir(d) {
		if has(d) && (d != "." || dir == ".") {
			return d, true
		}
		if d == "." {
			return "", false
		}
	}
}

// importProblem says what is wrong with a file of folder dir that imports a package by name, "" where nothing is.
func importProblem(dir, pkg, name string) string {
	if _, ok := row(dir, func(d string) bool { _, ok := importExceptions[d]; return ok }); ok {
		return ""
	}
	if pkg == gomlxGraph {
		if _, ok := row(dir, func(d string) bool { return slices.Contains(networkFolders, d) }); !ok {
			return "networks are written in " + strings.Join(networkFolders, ", ") + " only"
		}
		if name != "ml" {
			return "gomlx's graph is imported as ml"
		}
		return ""
	}
	inner, ours := strings.CutPrefix(pkg, "precast/")
	if pkg == "precast" {
		inner, ours = ".", true
	}
	if !ours {
		return ""
	}
	if _, ok := importExceptions[inner]; ok {
		return "only tests may import it"
	}
	own, ok := row(dir, func(d string) bool { _, ok := allowedImports[d]; return ok })
	if !ok {
		return "the folder has no row in the table of imports"
	}
	if target, ok := row(inner, func(d string) bool { _, ok := allowedImports[d]; return ok }); !ok || !slices.Contains(allowedImports[own], target) {
		return own + " may import " + strings.Join(allowedImports[own], ", ")
	}
	return ""
}

// TestImports holds the imports of all files that are no tests against the table.
func TestImports(t *testing.T) {
	files := goFiles(t)
	seen := map[string]bool{}
	for _, f := range files {
		for _, list := range []func(string) bool{
			func(d string) bool { _, ok := allowedImports[d]; return ok },
			func(d string) bool { _, ok := importExceptions[d]; return ok },
		} {
			if d, ok := row(f.dir, list); ok {
				seen[d] = true
			}
		}
		for pkg, name := range f.imports {
			if problem := importProblem(f.dir, pkg, name); problem != "" {
				t.Errorf("%s imports %s: %s", f.file, pkg, problem)
			}
			if pkg == "C" {
				t.Errorf("%s imports C: everything builds without a C compiler", f.file)
			}
		}
	}
	if len(files) < 100 {
		t.Errorf("only %d files were read", len(files))
	}
	for d := range allowedImports {
		if !seen[d] {
			t.Errorf("the table has a row for %s, which has no files", d)
		}
	}
	for d := range importExceptions {
		if !seen[d] {
			t.Errorf("there is an exception for %s, which has no files", d)
		}
	}
}

// TestImportRules gives the check what it must refuse and what it must not.
func TestImportRules(t *testing.T) {
	for _, c := range []struct {
		dir, pkg, name string
		ok             bool
	}{
		{"cmd/precast", "precast", "", true},
		{"cmd/precast", "precast/cache", "", false},
		{"passes", "precast/backends", "", false},
		{"lower", "precast/backends", "", false},
		{"cache", "precast/graph", "", false},
		{"graph", "precast/graph/trace", "", false},
		{"graph/models/flux", "precast/graph/nn", "", true},
		{"graph/models/flux", "precast/graph/models/clip", "", false},
		{"graph/pipelines", "precast/graph/models/flux", "", true},
		{"backends/pjrt", "precast/backends/gobackend", "", false},
		{"graph/pipelines", "precast/graph/models/golden", "", false},
		{"backends/backendtest", "precast/backends", "", true},
		{"elsewhere", "precast/graph", "", false},
		{"graph/nn", gomlxGraph, "ml", true},
		{"graph/nn", gomlxGraph, "", false},
		{"lower", gomlxGraph, "ml", false},
		{"tests/bench/denoiser", "precast/graph/models/flux", "", true},
		{"graph", "fmt", "", true},
	} {
		if problem := importProblem(c.dir, c.pkg, c.name); (problem == "") != c.ok {
			t.Errorf("%s imports %s as %q: got %q", c.dir, c.pkg, c.name, problem)
		}
	}
}

// TestFolders holds the top of the tree: no folder beside the known ones, and none anywhere that gathers what has no place.
func TestFolders(t *testing.T) {
	entries, err := os.ReadDir("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") && e.Name() != "bin" && !slices.Contains(topFolders, e.Name()) {
			t.Errorf("folder %s is not one of %s", e.Name(), strings.Join(topFolders, ", "))
		}
	}
	for _, f := range goFiles(t) {
		for part := range strings.SplitSeq(f.dir, "/") {
			if slices.Contains([]string{"util", "utils", "common", "helpers", "misc", "pkg"}, part) {
				t.Errorf("%s: a folder is named for its subject, not %q", f.file, part)
			}
		}
	}
}
