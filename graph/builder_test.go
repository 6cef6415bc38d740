package graph

import (
	"errors"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
)

func TestBuilder(t *testing.T) {
	m := NewModule("m")
	b := NewBuilder(m, m.Entry())
	b.Scope = "block.0"
	x := m.Entry().NewParam("x", Input, shapes.Make(dtypes.Float32, 2, 3))
	w := m.Entry().NewParam("w", Weight, shapes.Make(dtypes.Float32, 4, 3))
	dot, err := b.Op(OpDot, []*Value{x, w}, Attrs{{"lhs_contracting", []int{1}}, {"rhs_contracting", []int{1}}})
	if err != nil {
		t.Fatal(err)
	}
	y := dot.Results[0]
	if got := ShapeString(y.Shape); got != "f32[2,4]" {
		t.Errorf("dot_general: found result %s, wanted f32[2,4]", got)
	}
	if got := dot.Attrs.String("precision"); got != "DEFAULT" {
		t.Errorf("dot_general: found precision %q, wanted the default filled in", got)
	}
	if dot.Scope != "block.0" {
		t.Errorf("found scope %q, wanted block.0", dot.Scope)
	}
	one, err := b.Splat(y.Shape, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Apply(OpAdd, []*Value{y, one}); err != nil {
		t.Fatal(err)
	}
	before := len(m.Entry().Nodes)
	_, err = b.Apply(OpAdd, []*Value{x, y})
	var c *ConstraintError
	if !errors.As(err, &c) || c.Number != "C1" || !strings.HasPrefix(err.Error(), "block.0: add C1: found lhs f32[2,3] and rhs f32[2,4]") {
		t.Errorf("add of unequal shapes: found error %v, wanted add C1 with the scope and both shapes", err)
	}
	if len(m.Entry().Nodes) != before {
		t.Error("a refused op left a node behind")
	}
}

func TestBuilderErrors(t *testing.T) {
	m := NewModule("m")
	b := NewBuilder(m, m.Entry())
	x := m.Entry().NewParam("x", Input, shapes.Make(dtypes.Float32, 2))
	for name, c := range map[string]struct {
		do   func() error
		want string
	}{
		"unknown op":  {func() error { _, err := b.Op("frobnicate", nil, nil); return err }, `op "frobnicate": found no such operation`},
		"nil operand": {func() error { _, err := b.Op(OpAbs, []*Value{nil}, nil); return err }, "abs: operand 0 is nil"},
		"nil region":  {func() error { _, err := b.OpWithRegions(OpWhile, []*Value{x}, nil, []*Func{nil, nil}); return err }, "while A6: region 0 is nil"},
		"broken region": {func() error {
			_, err := b.OpWithRegions(OpWhile, []*Value{x}, nil, []*Func{{Params: []*Param{{}}}, {}})
			return err
		}, "while A6: region 0"},
		"foreign call":  {func() error { _, err := b.Call(&Func{Name: "f"}, x); return err }, `call C1: found no private function "f"`},
		"wanted result": {func() error { _, err := b.Apply(OpConvert, []*Value{x}); return err }, "convert R2: found no wanted result"},
		"splat":         {func() error { _, err := b.Splat(shapes.Make(dtypes.Int8), 300); return err }, "literal of i8: found 300"},
		"negative dims": {func() error {
			_, err := b.Apply(OpReshape, []*Value{x}, Shape{DType: dtypes.Float32, Dimensions: []int{-2}})
			return err
		}, "reshape R3"},
		"token": {func() error {
			_, err := b.Apply(OpConvert, []*Value{x}, Shape{DType: dtypes.TOKEN, Dimensions: []int{2}})
			return err
		}, "convert R3"},
	} {
		if err := c.do(); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: found error %v, wanted %q", name, err, c.want)
		}
	}
	if len(m.Entry().Nodes) != 0 {
		t.Errorf("refused ops left %d nodes behind", len(m.Entry().Nodes))
	}
}
