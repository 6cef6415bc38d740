package lower

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"precast/graph"
)

var update = flag.Bool("update", false, "write the .mlir files of testdata anew")

func parse(t testing.TB, file, text string) *graph.Module {
	t.Helper()
	m, err := graph.Parse(file, text)
	if err != nil {
		t.Fatal(err)
	}
	if err := graph.Verify(m); err != nil {
		t.Fatal(err)
	}
	return m
}

func read(t testing.TB, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func graphs(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.graph")
	if err != nil || len(files) == 0 {
		t.Fatalf("testdata/*.graph: found %d files, %v", len(files), err)
	}
	return files
}

// TestGolden lowers each testdata/NAME.graph and compares with NAME.mlir. The .mlir files were compiled and run by XLA through
// the tests of backends/pjrt; go test ./lower -update writes them anew.
func TestGolden(t *testing.T) {
	golden := map[string]bool{}
	for _, file := range graphs(t) {
		want := strings.TrimSuffix(file, ".graph") + ".mlir"
		golden[want] = true
		t.Run(filepath.Base(file), func(t *testing.T) {
			p, err := Lower(parse(t, file, read(t, file)))
			if err != nil {
				t.Fatal(err)
			}
			if *update {
				if err := os.WriteFile(want, p.Code, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(read(t, want), string(p.Code)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", want, diff)
			}
		})
	}
	files, err := filepath.Glob("testdata/*.mlir")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !golden[f] {
			t.Errorf("%s is obsolete: no .graph file is of that name", f)
		}
	}
}

// TestGoldenCoversEveryOp fails for an op that no golden has.
func TestGoldenCoversEveryOp(t *testing.T) {
	seen := map[graph.Op]bool{}
	var walk func(f *graph.Func)
	walk = func(f *graph.Func) {
		for _, n := range f.Nodes {
			seen[n.Op] = true
			for _, r := range n.Regions {
				walk(r)
			}
		}
	}
	for _, file := range graphs(t) {
		for _, f := range parse(t, file, read(t, file)).Funcs {
			walk(f)
		}
	}
	for _, op := range graph.Ops() {
		if !seen[op] {
			t.Errorf("no testdata/*.graph has the op %s", op)
		}
	}
}

// digest is a hash over the lowered text and signature of all of testdata.
func digest(t testing.TB) string {
	h := sha256.New()
	for _, file := range graphs(t) {
		p, err := Lower(parse(t, file, read(t, file)))
		if err != nil {
			t.Fatal(err)
		}
		h.Write([]byte(p.Fingerprint()))
	}
	return hex.EncodeToString(h.Sum(nil))
}

const childVariable = "PRECAST_LOWER_TEST_CHILD"

// TestSameInAnyProcess compares with another process, whose maps have other orders.
func TestSameInAnyProcess(t *testing.T) {
	if os.Getenv(childVariable) != "" {
		fmt.Println("digest " + digest(t))
		return
	}
	want := digest(t)
	for range 2 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestSameInAnyProcess$", "-test.v")
		cmd.Env = append(os.Environ(), childVariable+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if !bytes.Contains(out, []byte("digest "+want)) {
			t.Errorf("another process gave\n%s, wanted digest %s", out, want)
		}
	}
}

// TestTextFormKeepsTheProgram lowers what the text form gives back.
func TestTextFormKeepsTheProgram(t *testing.T) {
	for _, file := range graphs(t) {
		m := parse(t, file, read(t, file))
		a, err := Lower(m)
		if err != nil {
			t.Fatal(err)
		}
		b, err := Lower(parse(t, file, m.String()))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a.Code, b.Code) || a.Signature() != b.Signature() {
			t.Errorf("%s: printed and parsed, the module lowers to another program", file)
		}
	}
}

func TestScopesAreNotInTheProgram(t *testing.T) {
	const text = "module @m\nfunc @main {\n%%0 = input \"x\" : f32[2]\n%%1 = negate %%0 : f32[2]%s\nreturn %%1\n}\n"
	with := parse(t, "with", fmt.Sprintf(text, ` loc("blocks.0.a\"b")`))
	without := parse(t, "without", fmt.Sprintf(text, ""))
	a, err := Lower(with)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Lower(without)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a.Code, b.Code) {
		t.Error("the program depends on a scope")
	}
	located, err := Text(with, Options{Locations: true})
	if err != nil {
		t.Fatal(err)
	}
	if want := `%0 = stablehlo.negate %arg0 : tensor<2xf32> loc("blocks.0.a\22b")`; !strings.Contains(string(located), want) {
		t.Errorf("with locations: found\n%s, wanted the line %s", located, want)
	}
}

func TestSignature(t *testing.T) {
	p, err := Lower(parse(t, "s", `module @m
		func @main {
			%0 = input "latents" : f32[1,4,64,64] donated
			%1 = weight "conv_in.weight" : bf16[320,4,3,3]
			%2 = input "t" : i64[]
			return %0 "sample", %2 "t"
		}`))
	if err != nil {
		t.Fatal(err)
	}
	const want = `param latents input f32[1,4,64,64] donated
param conv_in.weight weight bf16[320,4,3,3]
param t input i64[]
result sample f32[1,4,64,64]
result t i64[]
`
	if diff := cmp.Diff(want, p.Signature()); diff != "" {
		t.Errorf("signature (-want +got):\n%s", diff)
	}
	if p.Name != "m" || p.Module == nil || p.Params[1].Kind != graph.Weight || !p.Params[0].Donated || p.Results[1].Name != "t" {
		t.Errorf("found program %+v", p)
	}
	renamed := *p
	renamed.Params = slices.Clone(p.Params)
	renamed.Params[1].Name = "conv_out.weight"
	if renamed.Fingerprint() == p.Fingerprint() {
		t.Error("the fingerprint does not depend on a parameter's name")
	}
}

func TestResultsWithoutNames(t *testing.T) {
	p, err := Lower(parse(t, "s", "module @m\nfunc @main {\n%0 = input \"x\" : f32[]\nreturn %0, %0\n}"))
	if err != nil {
		t.Fatal(err)
	}
	if p.Results[0].Name != "result_0" || p.Results[1].Name != "result_1" {
		t.Errorf("found %+v, wanted result_0 and result_1", p.Results)
	}
}

// TestErrors lowers modules that Verify would refuse.
func TestErrors(t *testing.T) {
	f32 := graph.Shape{DType: 0}
	f32.DType, _ = graph.ParseDType("f32")
	f8 := graph.Shape{DType: 200}
	build := func(edit func(m *graph.Module, f *graph.Func, x *graph.Value)) *graph.Module {
		m := graph.NewModule("bad")
		x := m.Entry().NewParam("x", graph.Input, f32)
		edit(m, m.Entry(), x)
		return m
	}
	for _, k := range []struct {
		name, want string
		m          *graph.Module
	}{
		{"no function", "lower bad: the module has no function", &graph.Module{Name: "bad"}},
		{"unknown op", "lower bad: func main, fold in a.b: the operation has no StableHLO form", build(func(m *graph.Module, f *graph.Func, x *graph.Value) {
			f.Append("fold", []*graph.Value{x}, nil, f32).Scope = "a.b"
		})},
		{"undefined value", "lower bad: func main: a value is used before it is defined", build(func(m *graph.Module, f *graph.Func, x *graph.Value) {
			f.Append(graph.OpNeg, []*graph.Value{{Shape: f32}}, nil, f32)
		})},
		{"undefined result", "lower bad: func main: a value is used before it is defined", build(func(m *graph.Module, f *graph.Func, x *graph.Value) {
			f.Results = []*graph.Value{{Shape: f32}}
		})},
		{"element type", "has no StableHLO element type", build(func(m *graph.Module, f *graph.Func, x *graph.Value) {
			f.Append(graph.OpConvert, []*graph.Value{x}, nil, f8)
		})},
		{"callee", `lower bad: func main, call: function "gone" is not among the module's private functions`, build(func(m *graph.Module, f *graph.Func, x *graph.Value) {
			f.Append(graph.OpCall, []*graph.Value{x}, graph.Attrs{{Name: "callee", Value: "gone"}}, f32)
		})},
		{"short constant", "lower bad: func main, constant: the constant has 2 bytes, too few", build(func(m *graph.Module, f *graph.Func, x *graph.Value) {
			f.Append(graph.OpConstant, nil, graph.Attrs{{Name: "value", Value: graph.Literal{Data: []byte{1, 2}, Splat: true}}}, f32)
		})},
		{"combiner", `lower bad: func main, reduce: combiner "mean" is not known`, build(func(m *graph.Module, f *graph.Func, x *graph.Value) {
			f.Append(graph.OpReduce, []*graph.Value{x}, graph.Attrs{{Name: "combiner", Value: "mean"}, {Name: "dimensions", Value: []int{}}}, f32)
		})},
	} {
		t.Run(k.name, func(t *testing.T) {
			p, err := Lower(k.m)
			if err == nil {
				t.Fatalf("found no error but\n%s", p.Code)
			}
			if !strings.Contains(err.Error(), k.want) {
				t.Errorf("found %q, wanted it to contain %q", err, k.want)
			}
		})
	}
}

// chain is a module of n nodes: matrix products, broadcasts and elementwise ops, as a network's.
func chain(t testing.TB, n int) *graph.Module {
	t.Helper()
	m := graph.NewModule("chain")
	f := m.Entry()
	b := graph.NewBuilder(m, f)
	b.Scope = "transformer_blocks.0.attn"
	d, _ := graph.ParseDType("f32")
	x := f.NewParam("x", graph.Input, graph.Shape{DType: d, Dimensions: []int{64, 64}})
	w := f.NewParam("w", graph.Weight, graph.Shape{DType: d, Dimensions: []int{64, 64}})
	must := func(node *graph.Node, err error) *graph.Value {
		if err != nil {
			t.Fatal(err)
		}
		return node.Results[0]
	}
	for len(f.Nodes) < n {
		x = must(b.Op(graph.OpDot, []*graph.Value{x, w}, graph.Attrs{{Name: "lhs_contracting", Value: []int{1}}, {Name: "rhs_contracting", Value: []int{1}}}))
		s := must(b.Op(graph.OpReduce, []*graph.Value{x}, graph.Attrs{{Name: "combiner", Value: "add"}, {Name: "dimensions", Value: []int{1}}}))
		s = must(b.Op(graph.OpBroadcast, []*graph.Value{s}, graph.Attrs{{Name: "broadcast_dimensions", Value: []int{0}}}, x.Shape))
		x = must(b.Op(graph.OpAdd, []*graph.Value{x, s}, nil))
		x = must(b.Op(graph.OpTanh, []*graph.Value{x}, nil))
	}
	f.Results = []*graph.Value{x}
	return m
}

// TestSpeed holds 15,000 nodes to 200 ms.
func TestSpeed(t *testing.T) {
	m := chain(t, 15000)
	best := time.Hour
	for range 5 {
		start := time.Now()
		if _, err := Lower(m); err != nil {
			t.Fatal(err)
		}
		best = min(best, time.Since(start))
	}
	if best > 200*time.Millisecond {
		t.Errorf("15,000 nodes took %v, wanted at most 200 ms", best)
	}
	t.Logf("15,000 nodes: %v", best)
}

func BenchmarkLower15k(b *testing.B) {
	m := chain(b, 15000)
	b.ReportAllocs()
	for b.Loop() {
		p, err := Lower(m)
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(p.Code)))
	}
}
