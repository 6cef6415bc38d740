package backendtest_test

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"precast/backends"
	"precast/backends/backendtest"
	"precast/backends/gobackend"
	"precast/backends/pjrt"
	"precast/backends/plugin"
	"precast/graph"
	"precast/lower"
)

var (
	seeds = flag.Int("seeds", 1, "random programs of each family of ops")
	seed  = flag.Uint64("seed", 1, "the first random program's seed")
)

func client(t *testing.T, p backends.Plugin) backends.Client {
	t.Helper()
	c, err := p.NewClient(backends.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// xla is the PJRT plugin of this machine; without one the test is skipped.
func xla(t *testing.T) backends.Plugin {
	t.Helper()
	found, err := plugin.Default()
	if missing := (*plugin.NotInstalledError)(nil); errors.As(err, &missing) || os.Getenv(plugin.PluginVariable) == "go" {
		t.Skip("no PJRT plugin is installed")
	}
	if err != nil {
		t.Fatal(err)
	}
	p, err := pjrt.Load(found.Path)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestGeneratorsCoverEveryOp fails for an op that random programs leave out.
func TestGeneratorsCoverEveryOp(t *testing.T) {
	have := backendtest.RandomOps()
	for _, op := range graph.Ops() {
		if op != graph.OpRngBits && op != graph.OpCall && !slices.Contains(have, op) {
			t.Errorf("there is no generator for %s", op)
		}
	}
}

// TestRandomProgramsRun runs random programs on the Go backend alone: none may fail, and none may change from one run to the next.
func TestRandomProgramsRun(t *testing.T) {
	c := client(t, gobackend.Plugin())
	p, err := backendtest.NewRandomProgram(*seed, 5, backendtest.RandomOps()...)
	if err != nil {
		t.Fatal(err)
	}
	e := backendtest.Compile(t, c, p.Module, backends.CompileOptions{})
	first, second := backendtest.Run(t, c, e, p.Args...), backendtest.Run(t, c, e, p.Args...)
	for i := range first {
		backendtest.Compare(t, p.Module.Entry().ResultNames[i], second[i], first[i], 0)
	}
}

// TestDifferential runs random programs on the Go backend and on XLA and compares every result.
func TestDifferential(t *testing.T) {
	a, b := client(t, gobackend.Plugin()), client(t, xla(t))
	ops := backendtest.RandomOps()
	for s := range uint64(*seeds) {
		for family := range slices.Chunk(ops, 20) {
			p, err := backendtest.NewRandomProgram(*seed+s, 3, family...)
			if err != nil {
				t.Fatal(err)
			}
			ea, eb := backendtest.Compile(t, a, p.Module, backends.CompileOptions{}), backendtest.Compile(t, b, p.Module, backends.CompileOptions{})
			want, got := backendtest.Run(t, a, ea, p.Args...), backendtest.Run(t, b, eb, p.Args...)
			f := p.Module.Entry()
			for i := range got {
				before := t.Failed()
				backendtest.Compare(t, f.ResultNames[i], got[i], want[i], p.Tolerances[i])
				if t.Failed() && !before {
					t.Logf("seed %d: %s", *seed+s, f.FormatNode(f.Results[i].Def))
				}
			}
		}
	}
}

// TestGoldensCompile compiles the StableHLO of package lower's goldens, those with a mesh for as many devices.
func TestGoldensCompile(t *testing.T) {
	p := xla(t)
	one := client(t, p)
	eight, err := p.NewClient(backends.ClientOptions{DeviceCount: 8})
	if err != nil {
		t.Fatal(err)
	}
	defer eight.Close()
	files, err := filepath.Glob("../../lower/testdata/*.graph")
	if err != nil || len(files) == 0 {
		t.Fatalf("lower/testdata: found %d graphs, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m, err := graph.Parse(file, string(text))
		if err != nil {
			t.Fatal(err)
		}
		c, opts := one, backends.CompileOptions{}
		if m.Mesh != nil {
			c, opts = eight, backends.CompileOptions{NumPartitions: 8, Shardy: true}
		}
		p, err := lower.Lower(m)
		if err != nil {
			t.Fatal(err)
		}
		golden, err := os.ReadFile(strings.TrimSuffix(file, ".graph") + ".mlir")
		if err != nil || string(golden) != string(p.Code) {
			t.Errorf("%s: the golden differs from the lowered text, %v", file, err)
		}
		e, err := c.Compile(context.Background(), p, opts)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}
