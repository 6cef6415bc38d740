package precast

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"precast/graph"
)

const regionModule = `module @regions

func @main {
  %0 = input "x" : f32[4]
  %1 = weight "a.b.weight" : f32[4]
  %2 = multiply %0, %1 : f32[4] loc("a.b")
  %3 = sort %2 {dimension = 0, is_stable = true} region {
    %0 = input "l" : f32[]
    %1 = input "r" : f32[]
    %2 = compare %0, %1 {direction = "LT", total = false} : bool[]
    return %2
  } : f32[4] loc("a.c")
  %4 = call %3 {callee = "f"} : f32[4]
  return %4 "out<put>"
}

func @f class "blocks" {
  %0 = input "x" : f32[4]
  %1 = negate %0 : f32[4] loc("a.b")
  return %1
}
`

// TestFuncTexts: each node has its own text, with the lines of its regions.
func TestFuncTexts(t *testing.T) {
	m, err := parseModule("test", []byte(regionModule))
	if err != nil {
		t.Fatal(err)
	}
	texts := funcTexts(m)
	if len(texts) != len(m.Funcs) {
		t.Fatalf("%d texts for %d funcs", len(texts), len(m.Funcs))
	}
	for i, f := range m.Funcs {
		text := texts[i]
		if len(text.params) != len(f.Params) || len(text.nodes) != len(f.Nodes) || !strings.HasPrefix(text.result, "return") {
			t.Fatalf("func %s: %d params, %d nodes, %q", f.Name, len(text.params), len(text.nodes), text.result)
		}
		for k, n := range f.Nodes {
			if !strings.Contains(text.nodes[k], "= "+string(n.Op)+" ") {
				t.Errorf("node %d of %s is %q, wanted %s", k, f.Name, text.nodes[k], n.Op)
			}
		}
	}
	if sort := texts[0].nodes[1]; !strings.Contains(sort, "compare") || !strings.HasSuffix(sort, `loc("a.c")`) {
		t.Errorf("the sort is %q", sort)
	}
}

// TestHTML: one page, nothing from elsewhere, every link has its target, texts are escaped.
func TestHTML(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.graph")
	if err := os.WriteFile(path, []byte(regionModule), 0o644); err != nil {
		t.Fatal(err)
	}
	x, err := Inspect(path, InspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if x.Kind != KindGraph || x.Graph.Nodes != 5 {
		t.Fatalf("a %s of %d nodes", x.Kind, x.Graph.Nodes)
	}
	var b strings.Builder
	if err := x.WriteGraph(&b, "html"); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	ids := map[string]int{}
	for _, m := range regexp.MustCompile(` id="([^"]+)"`).FindAllStringSubmatch(page, -1) {
		ids[m[1]]++
	}
	for id, n := range ids {
		if n > 1 {
			t.Errorf("%d elements have the id %s", n, id)
		}
	}
	links := regexp.MustCompile(`href="#([^"]+)"`).FindAllStringSubmatch(page, -1)
	if len(links) < 5 {
		t.Errorf("found %d links", len(links))
	}
	for _, m := range links {
		if ids[m[1]] != 1 {
			t.Errorf("the link to %s has no target", m[1])
		}
	}
	for _, wanted := range []string{"&#34;out&lt;put&gt;&#34;", "<summary>a <span>2</span>", `callee = <a href="#func-f">@f</a>`, "blocks blocks", "called once,"} {
		if !strings.Contains(page, wanted) {
			t.Errorf("%q is missing", wanted)
		}
	}
	if strings.Contains(page, "src=") || strings.Contains(page, "http") {
		t.Error("the page needs something from elsewhere")
	}
}

// TestGraphTextParsesBack: the figures above the text are comments.
func TestGraphTextParsesBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.graph")
	if err := os.WriteFile(path, []byte("// a note\n\n"+regionModule), 0o644); err != nil {
		t.Fatal(err)
	}
	x, err := Inspect(path, InspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := x.WriteGraph(&b, "text"); err != nil {
		t.Fatal(err)
	}
	m, err := graph.Parse("again", b.String())
	if err != nil {
		t.Fatal(err)
	}
	if d := graph.Diff(x.Module, m); d != "" {
		t.Error(d)
	}
}
