package trace

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	ml "github.com/gomlx/gomlx/core/graph"
)

// TestErrorScope checks that a failure inside a network names the module path it happened at, whichever way the code left it.
func TestErrorScope(t *testing.T) {
	mismatch := func(in map[string]*ml.Node) *ml.Node { return ml.Add(in["x"], in["y"]) }
	const mismatchText = "dimension of axis #0 doesn't match and cannot be broadcast for BinaryOp (Add), got shapes (Float32)[2] and (Float32)[3]"
	for _, tc := range []struct {
		name  string
		build func(c *Ctx, in map[string]*ml.Node) []*ml.Node
		want  string
	}{
		{"top level", func(c *Ctx, in map[string]*ml.Node) []*ml.Node {
			return []*ml.Node{mismatch(in)}
		}, "trace: toy: " + mismatchText},
		{"nested", func(c *Ctx, in map[string]*ml.Node) []*ml.Node {
			defer c.Enter("transformer_blocks.3")()
			func() { defer c.Enter("norm")() }()
			defer c.Enter("attn")()
			return []*ml.Node{mismatch(in)}
		}, "trace: toy: at transformer_blocks.3.attn: " + mismatchText},
		{"after a submodule was left", func(c *Ctx, in map[string]*ml.Node) []*ml.Node {
			defer c.Enter("block")()
			func() { defer c.Enter("attn")() }()
			return []*ml.Node{mismatch(in)}
		}, "trace: toy: at block: " + mismatchText},
		{"left without defer", func(c *Ctx, in map[string]*ml.Node) []*ml.Node {
			defer c.Enter("block")()
			leave := c.Enter("attn")
			y := mismatch(in)
			leave()
			return []*ml.Node{y}
		}, "trace: toy: at block.attn: " + mismatchText},
		{"weight in two shapes", func(c *Ctx, in map[string]*ml.Node) []*ml.Node {
			defer c.Enter("proj")()
			c.Weight("weight", 2)
			return []*ml.Node{c.Weight("weight", 3)}
		}, "trace: toy: at proj: weight proj.weight: asked for as (Float32)[3], but an earlier use has it as (Float32)[2]; " +
			"ask for it once, or convert it"},
		{"not an error value", func(c *Ctx, in map[string]*ml.Node) []*ml.Node {
			defer c.Enter("proj")()
			panic("heads 3")
		}, "trace: toy: at proj: heads 3"},
		{"nil node", func(c *Ctx, in map[string]*ml.Node) []*ml.Node {
			defer c.Enter("proj")()
			return []*ml.Node{ml.Neg(in["z"])}
		}, "trace: toy: at proj: "},
		{"outputs", func(c *Ctx, in map[string]*ml.Node) []*ml.Node {
			return []*ml.Node{in["x"], in["y"]}
		}, "trace: toy: the function Build returned 2 outputs, the network declares 1 (out)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := Network{
				Name: "toy", DType: dtypes.Float32, Outputs: []string{"out"}, Build: tc.build,
				Inputs: []Input{{"x", shapes.Make(dtypes.Float32, 2)}, {"y", shapes.Make(dtypes.Float32, 3)}},
			}
			for _, run := range []struct {
				name string
				err  error
			}{{"evaluate", second(Evaluate(nil, n, nil, nil))}, {"trace", second(Trace(n))}} {
				if run.err == nil || !strings.HasPrefix(run.err.Error(), tc.want) {
					t.Fatalf("%s: got  %v\nwant %s", run.name, run.err, tc.want)
				}
				if strings.Contains(run.err.Error(), "\n") {
					t.Errorf("%s: the message is more than one line: %q", run.name, run.err)
				}
				var e *Error
				if !errors.As(run.err, &e) {
					t.Fatalf("%s: %T is no *Error", run.name, run.err)
				}
				if long := fmt.Sprintf("%+v", run.err); tc.name != "outputs" && !strings.Contains(long, "error_test.go") {
					t.Errorf("%s: %%+v does not show where the network failed:\n%s", run.name, long)
				}
			}
		})
	}
}

func second[T any](_ T, err error) error { return err }

func TestNetworkCheck(t *testing.T) {
	build := func(c *Ctx, in map[string]*ml.Node) []*ml.Node { return []*ml.Node{in["x"]} }
	x := Input{"x", shapes.Make(dtypes.Float32, 2)}
	for want, n := range map[string]Network{
		"trace: n: the network has no Build function":                             {Outputs: []string{"y"}},
		"trace: n: the function Build returned 1 outputs, the network declares 0": {Build: build, Outputs: []string{}, Inputs: []Input{x}},
		`trace: n: input "x" is declared twice`:                                   {Build: build, Outputs: []string{"y"}, Inputs: []Input{x, x}},
		"trace: n: input 0 has no name":                                           {Build: build, Outputs: []string{"y"}, Inputs: []Input{{"", x.Shape}}},
		`trace: n: input "weight:a": the prefix`:                                  {Build: build, Outputs: []string{"y"}, Inputs: []Input{{"weight:a", x.Shape}}},
		`trace: n: input "x" has the shape`:                                       {Build: build, Outputs: []string{"y"}, Inputs: []Input{{"x", shapes.Invalid()}}},
	} {
		n.Name = "n"
		if _, err := Evaluate(nil, n, nil, nil); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
