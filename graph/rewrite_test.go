package graph

import (
	"strings"
	"testing"
)

func mustParse(t testing.TB, text string) *Module {
	t.Helper()
	m, err := Parse("test", text)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

const chain = `module @chain

func @main {
  %0 = input "x" : f32[2]
  %1 = abs %0 : f32[2]
  %2 = negate %1 : f32[2]
  %3 = add %1, %2 : f32[2]
  %4 = add %3, %3 : f32[2]
  return %4, %1
}
`

func TestUses(t *testing.T) {
	f := mustParse(t, chain).Entry()
	uses := Uses(f)
	n := f.Nodes
	check := func(v *Value, want ...Use) {
		t.Helper()
		got := uses[v]
		if len(got) != len(want) {
			t.Fatalf("found %d uses, wanted %d", len(got), len(want))
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("use %d: found %+v, wanted %+v", i, got[i], want[i])
			}
		}
	}
	check(f.Params[0].Value, Use{n[0], 0})
	check(n[0].Results[0], Use{n[1], 0}, Use{n[2], 0}, Use{nil, 1})
	check(n[2].Results[0], Use{n[3], 0}, Use{n[3], 1})
	check(n[3].Results[0], Use{nil, 0})
}

func TestReplaceUses(t *testing.T) {
	m := mustParse(t, chain)
	f := m.Entry()
	ReplaceAllUses(f, f.Nodes[0].Results[0], f.Params[0].Value)
	if want := strings.NewReplacer("negate %1", "negate %0", "add %1, %2", "add %0, %2", "return %4, %1", "return %4, %0").Replace(chain); m.String() != want {
		t.Errorf("found\n%s\nwanted\n%s", m, want)
	}

	m = mustParse(t, chain)
	f = m.Entry()
	shared := f.Nodes[3].Operands
	f.Nodes[2].Operands = shared[:2:2]
	f.Nodes[2].Operands = []*Value{f.Nodes[0].Results[0], f.Nodes[1].Results[0]}
	ReplaceUses(f, map[*Value]*Value{ // a chain: %2 to %1 to %0
		f.Nodes[1].Results[0]: f.Nodes[0].Results[0],
		f.Nodes[0].Results[0]: f.Params[0].Value,
	})
	if want := strings.NewReplacer("negate %1", "negate %0", "add %1, %2", "add %0, %0", "return %4, %1", "return %4, %0").Replace(chain); m.String() != want {
		t.Errorf("found\n%s\nwanted\n%s", m, want)
	}

	// An operand slice of two nodes changes in the func alone.
	m = mustParse(t, chain)
	f = m.Entry()
	outside := f.Nodes[3].Operands
	ReplaceAllUses(f, f.Nodes[2].Results[0], f.Params[0].Value)
	if outside[0] != f.Nodes[2].Results[0] {
		t.Error("a shared operand slice was changed in place")
	}

	defer func() {
		if r, _ := recover().(string); !strings.HasPrefix(r, "BUG: ") {
			t.Errorf("a cycle of replacements: found panic %q", r)
		}
	}()
	a, b := f.Nodes[0].Results[0], f.Nodes[1].Results[0]
	ReplaceUses(f, map[*Value]*Value{a: b, b: a})
}

func TestTopoSort(t *testing.T) {
	m := mustParse(t, chain)
	f := m.Entry()
	if err := f.TopoSort(); err != nil || m.String() != chain {
		t.Errorf("a sorted func: found %v and\n%s", err, m)
	}
	f.Nodes[0], f.Nodes[2] = f.Nodes[2], f.Nodes[0]
	if err := Verify(m); err == nil {
		t.Fatal("the shuffled func is accepted")
	}
	if err := f.TopoSort(); err != nil {
		t.Fatal(err)
	}
	if err := Verify(m); err != nil {
		t.Error(err)
	}
	if m.String() != chain {
		t.Errorf("found\n%s", m)
	}
	f.Nodes[0].Operands[0] = f.Nodes[2].Results[0]
	if err := f.TopoSort(); err == nil || !strings.Contains(err.Error(), "func @main: node `%") || !strings.Contains(err.Error(), "reads itself") {
		t.Errorf("a cycle: found error %v", err)
	}
	if len(f.Nodes) != 4 {
		t.Error("a cycle: the func changed")
	}
}

func TestClone(t *testing.T) {
	m := sample(t)
	c := Clone(m)
	if d := Diff(m, c); d != "" {
		t.Fatal(d)
	}
	if err := Verify(c); err != nil {
		t.Fatal(err)
	}
	text := m.String()
	// Whatever changes in the clone leaves the original as it is.
	c.Mesh.AxisSizes[0], c.Mesh.AxisNames[0] = 9, "z"
	for _, f := range c.Funcs {
		f.Name += "x"
		for _, p := range f.Params {
			p.Name += "x"
			if p.Sharding != nil {
				for _, a := range p.Sharding.Axes {
					for i := range a {
						a[i] += "x"
					}
				}
			}
		}
		f.WalkNodes(func(n *Node) {
			n.Scope += "x"
			for i := range n.Operands {
				n.Operands[i] = nil
			}
			for i := range n.Attrs {
				n.Attrs[i].Value = "x"
			}
			for _, r := range n.Regions {
				r.Name += "x"
				r.Results[0] = nil
			}
		})
		for i := range f.ResultNames {
			f.ResultNames[i] += "x"
		}
		f.Results[0] = nil
	}
	if m.String() != text {
		t.Errorf("the original changed with its clone:\n%s", m)
	}
}
