package graph

import (
	"errors"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
)

// TestVerifyModule breaks each module constraint in a valid module.
func TestVerifyModule(t *testing.T) {
	type breakage struct {
		number string
		name   string
		do     func(m *Module)
	}
	entry := func(do func(f *Func)) func(m *Module) { return func(m *Module) { do(m.Entry()) } }
	region := func(do func(r *Func)) func(m *Module) {
		return func(m *Module) { do(m.Entry().Nodes[2].Regions[1]) }
	}
	cases := []breakage{
		{"M1", "no funcs", func(m *Module) { m.Funcs = nil }},
		{"M1", "nil func", func(m *Module) { m.Funcs[1] = nil }},
		{"M1", "nil param", entry(func(f *Func) { f.Params[1] = nil })},
		{"M1", "param without value", entry(func(f *Func) { f.Params[1].Value = nil })},
		{"M1", "param of a later callee without value", func(m *Module) { m.Funcs[1].Params[1].Value = nil }},
		{"M1", "nil node", entry(func(f *Func) { f.Nodes[1] = nil })},
		{"M1", "nil result value", entry(func(f *Func) { f.Nodes[1].Results[0] = nil })},
		{"M1", "nil region", entry(func(f *Func) { f.Nodes[2].Regions[1] = nil })},
		{"M2", "same name", func(m *Module) { m.Funcs[1].Name = "main" }},
		{"M2", "no name", func(m *Module) { m.Funcs[1].Name = "" }},
		{"M3", "same name", entry(func(f *Func) { f.Params[1].Name = "x" })},
		{"M3", "no name", entry(func(f *Func) { f.Params[1].Name = "" })},
		{"M3", "same name in a region", region(func(r *Func) { r.Params[1].Name = "i" })},
		{"M4", "index of a param", entry(func(f *Func) { f.Params[1].Value.Index = 0 })},
		{"M4", "params swapped", entry(func(f *Func) { f.Params[0], f.Params[1] = f.Params[1], f.Params[0] })},
		{"M4", "one value for two params", entry(func(f *Func) { f.Params[1].Value = f.Params[0].Value })},
		{"M4", "param with a definition", entry(func(f *Func) { f.Params[1].Value.Def = f.Nodes[0] })},
		{"M4", "def", entry(func(f *Func) { f.Nodes[1].Results[0].Def = f.Nodes[0] })},
		{"M4", "index of a result", entry(func(f *Func) { f.Nodes[1].Results[0].Index = 1 })},
		{"M4", "result that is a param", entry(func(f *Func) { f.Nodes[1].Results[0].Param = f.Params[0] })},
		{"M4", "node twice", entry(func(f *Func) { f.Nodes = append(f.Nodes, f.Nodes[1]) })},
		{"M5", "order", entry(func(f *Func) { f.Nodes[0], f.Nodes[1] = f.Nodes[1], f.Nodes[0] })},
		{"M5", "nil operand", entry(func(f *Func) { f.Nodes[0].Operands[0] = nil })},
		{"M5", "own result", entry(func(f *Func) { f.Nodes[1].Operands[0] = f.Nodes[1].Results[0] })},
		{"M5", "another func's value", func(m *Module) { m.Entry().Nodes[0].Operands[0] = m.Funcs[1].Params[0].Value }},
		{"M5", "capture", func(m *Module) { m.Entry().Nodes[2].Regions[1].Nodes[3].Operands[0] = m.Entry().Params[0].Value }},
		{"M6", "foreign result", func(m *Module) { m.Entry().Results[0] = m.Funcs[1].Results[0] }},
		{"M1", "nil result of a later callee", func(m *Module) { m.Funcs[1].Results[0] = nil }},
		{"M6", "nil result", entry(func(f *Func) { f.Results[0] = nil })},
		{"M6", "captured result of a region", func(m *Module) { m.Entry().Nodes[2].Regions[1].Results[1] = m.Entry().Params[0].Value }},
		{"M7", "count", entry(func(f *Func) { f.ResultNames = f.ResultNames[:1] })},
		{"M7", "same name", entry(func(f *Func) { f.ResultNames[1] = f.ResultNames[0] })},
		{"M7", "no name", entry(func(f *Func) { f.ResultNames[1] = "" })},
		{"M8", "dynamic", entry(func(f *Func) { f.Params[0].Value.Shape.Dimensions = []int{-1, 4} })},
		{"M8", "element type", entry(func(f *Func) { f.Params[0].Value.Shape.DType = dtypes.TOKEN })},
		{"M8", "element type out of range", entry(func(f *Func) { f.Nodes[0].Results[0].Shape.DType = 1000 })},
		{"M8", "tuple", entry(func(f *Func) { f.Params[0].Value.Shape = shapes.MakeTuple([]Shape{shapes.Make(dtypes.Float32)}) })},
		{"M8", "axis names", entry(func(f *Func) { f.Params[0].Value.Shape.AxisNames = []string{"a", "b"} })},
		{"M8", "too large", entry(func(f *Func) { f.Nodes[0].Results[0].Shape.Dimensions = []int{1 << 40, 1 << 40} })},
		{"M9", "direct", func(m *Module) { call(m.Funcs[1], "block") }},
		{"M9", "through another", func(m *Module) {
			other, _ := CloneFunc(m.Funcs[1])
			other.Name = "other"
			m.Funcs = append(m.Funcs, other)
			call(m.Funcs[1], "other")
			call(other, "block")
		}},
		{"M10", "weight", region(func(r *Func) { r.Params[1].Kind = Weight })},
		{"M11", "donated", region(func(r *Func) { r.Params[1].Donated = true })},
		{"M11", "sharded", region(func(r *Func) { r.Params[1].Sharding = &Sharding{Axes: [][]string{{}, {}}} })},
		{"M12", "sizes", func(m *Module) { m.Mesh.AxisSizes = m.Mesh.AxisSizes[:1] }},
		{"M12", "size 0", func(m *Module) { m.Mesh.AxisSizes[0] = 0 }},
		{"M12", "same name", func(m *Module) { m.Mesh.AxisNames[1] = "data" }},
		{"M12", "no name", func(m *Module) { m.Mesh.AxisNames[1] = "" }},
		{"M12", "too many devices", func(m *Module) { m.Mesh.AxisSizes[0], m.Mesh.AxisSizes[1] = 1<<40, 1<<40 }},
		{"M13", "no mesh", func(m *Module) { m.Mesh = nil }},
		{"M13", "axis", entry(func(f *Func) { f.Params[1].Sharding.Axes[0][0] = "rows" })},
		{"M13", "axis twice", entry(func(f *Func) { f.Params[1].Sharding.Axes[1] = []string{"model"} })},
		{"M13", "rank", entry(func(f *Func) { f.Params[1].Sharding.Axes = f.Params[1].Sharding.Axes[:1] })},
		{"M13", "not divisible", func(m *Module) { m.Mesh.AxisSizes[1] = 3 }},
		{"M14", "entry", entry(func(f *Func) { f.BlockClass = "blocks" })},
		{"M14", "region", region(func(r *Func) { r.BlockClass = "blocks" })},
		{"M15", "op", entry(func(f *Func) { f.Nodes[1].Op = "frobnicate" })},
	}
	covered := map[string]bool{}
	for _, c := range cases {
		m := sample(t)
		c.do(m)
		err := Verify(m)
		var ve *VerifyError
		if !errors.As(err, &ve) || ve.Number != c.number || !strings.Contains(err.Error(), c.number+": ") {
			t.Errorf("%s, %s: found error %v", c.number, c.name, err)
			continue
		}
		covered[c.number] = true
	}
	for _, c := range ModuleConstraints {
		if !covered[c.Number] {
			t.Errorf("no negative case for %s (%s)", c.Number, c.Text)
		}
	}
	if err := Verify(nil); err == nil {
		t.Error("a nil module was accepted")
	}
}

// call adds a call of callee, on the parameters, to f.
func call(f *Func, callee string) {
	f.Append(OpCall, []*Value{f.Params[0].Value, f.Params[1].Value}, Attrs{{"callee", callee}}, f.Results[0].Shape)
}

func TestVerifyErrorText(t *testing.T) {
	m := sample(t)
	r := m.Entry().Nodes[2].Regions[1]
	r.Nodes[3].Operands = r.Nodes[3].Operands[:1]
	want := "func @main, region 1 of while: node `%5 = multiply %1 : f32[2,4] loc(\"blocks.\\\"odd\\\"\")`: multiply A1: found 1 operands, wanted 2"
	if err := Verify(m); err == nil || err.Error() != want {
		t.Errorf("found  %v\nwanted %s", err, want)
	}
}

// TestVerifyAccepts holds what must not be refused.
func TestVerifyAccepts(t *testing.T) {
	for name, do := range map[string]func(m *Module){
		"unused private func":   func(m *Module) { m.Entry().Nodes[0].Attrs[0].Value = "block" },
		"no result names":       func(m *Module) { m.Entry().ResultNames = nil },
		"a param as a result":   func(m *Module) { m.Entry().Results[0] = m.Entry().Params[0].Value },
		"a result twice":        func(m *Module) { m.Entry().Results[1] = m.Entry().Results[0] },
		"an unused mesh":        func(m *Module) { m.Entry().Params[1].Sharding, m.Entry().Params[2].Sharding = nil, nil },
		"a donated weight":      func(m *Module) { m.Entry().Params[1].Donated = true },
		"calls in both orders":  func(m *Module) { m.Funcs = append(m.Funcs, &Func{Name: "a"}) },
		"a func without nodes":  func(m *Module) { m.Funcs = append(m.Funcs, &Func{Name: "empty"}) },
		"a value used by name?": func(m *Module) { m.Funcs[1].Params[0].Name = "any text at all" },
	} {
		m := sample(t)
		do(m)
		if err := Verify(m); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
