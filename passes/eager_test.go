package passes_test

import (
	"slices"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"precast/graph"
	"precast/passes"
)

// TestEager: one operation a program, equal ones once whatever they read, in the order of the nodes, with their scopes.
func TestEager(t *testing.T) {
	f := &graph.Func{Name: "main", ResultNames: []string{"argument", "sum", "again", "constant"}}
	shape := shapes.Make(dtypes.Float32, 4)
	a := f.NewParam("a", graph.Input, shape)
	w := f.NewParam("block.w", graph.Weight, shape)
	one, err := graph.NewSplat(dtypes.Float32, 1)
	if err != nil {
		t.Fatal(err)
	}
	c := f.Append(graph.OpConstant, nil, graph.Attrs(nil).With("value", one), shape).Results[0]
	add := func(scope string, x, y *graph.Value) *graph.Value {
		n := f.Append(graph.OpAdd, []*graph.Value{x, y}, nil, shape)
		n.Scope = scope
		return n.Results[0]
	}
	s := add("blocks.0", a, w)  // an argument and a weight
	s = add("blocks.1", s, a)   // the same operation on other values
	s = add("blocks.1.b", s, s) // one operand twice: another program
	s = add("", s, c)           // with a number: another program
	f.Results = []*graph.Value{a, s, s, c}
	module := &graph.Module{Name: "network", Funcs: []*graph.Func{f}}
	if err := graph.Verify(module); err != nil {
		t.Fatal(err)
	}
	p := passes.Eager(module)
	var scopes []string
	for _, s := range p.Steps {
		scopes = append(scopes, s.Scope)
	}
	// Four additions; then the constant, a copy of the argument and one of the result that is two.
	if want := []string{"blocks.0", "blocks.1", "blocks.1.b", "", "", "", ""}; !slices.Equal(scopes, want) {
		t.Errorf("scopes are %q, wanted %q", scopes, want)
	}
	if len(p.Programs) != 5 {
		t.Errorf("%d programs, wanted 5: add, add of one value, add of a number, reshape, constant", len(p.Programs))
	}
	if p.Steps[0].Program != p.Steps[1].Program || p.Steps[1].Program == p.Steps[2].Program {
		t.Errorf("the first three additions are programs %d, %d, %d; wanted the first two to be one", p.Steps[0].Program, p.Steps[1].Program, p.Steps[2].Program)
	}
	slots := map[int]bool{}
	for _, r := range p.Results {
		if slots[r] || r < len(p.Params) {
			t.Errorf("results are slots %v, wanted four of their own, none of them an argument's", p.Results)
		}
		slots[r] = true
	}
}

// TestEagerRandom: random modules give the same values node by node, and each program has one node beside its constants.
func TestEagerRandom(t *testing.T) {
	steps, programs := 0, 0
	for seed := range uint64(100) {
		m := readAll(randomModule(seed))
		given := arguments(m, seed)
		plan := passes.Eager(m)
		for _, p := range plan.Programs {
			if err := graph.Verify(p); err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, p)
			}
			nodes := 0
			for _, n := range p.Entry().Nodes {
				if n.Op != graph.OpConstant || len(p.Entry().Nodes) == 1 {
					nodes++
				}
			}
			if nodes > 1 || p.Name == "" {
				t.Fatalf("seed %d: a program %q has %d nodes\n%s", seed, p.Name, nodes, p)
			}
		}
		steps, programs = steps+len(plan.Steps), programs+len(plan.Programs)
		got, err := runPlan(plan, given)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, m)
		}
		want, err := evaluate(m, given, false)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, m)
		}
		if d := difference(got, want, 0); d != "" {
			t.Errorf("seed %d: %s\n%s", seed, d, m)
		}
	}
	if programs >= steps {
		t.Errorf("%d steps took %d programs, wanted fewer", steps, programs)
	}
}
