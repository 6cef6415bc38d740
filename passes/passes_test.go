package passes_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gomlx/compute/dtypes"

	"precast/graph"
	"precast/passes"
)

const small = `module @small

func @main {
  %x = input "x" : f32[2,3]
  %w = weight "w" : f32[4,3]
  %0 = transpose %w {permutation = [1, 0]} : f32[3,4]
  %1 = dot_general %x, %0 {lhs_contracting = [1], rhs_contracting = [0]} : f32[2,4]
  return %1 "y"
}
`

// TestAfter: each pass that runs is reported once, in order, with a position and a time; an error of the callback ends the run.
func TestAfter(t *testing.T) {
	p := pipeline("cse")
	var names []string
	p.After = func(position int, name string, m *graph.Module, took time.Duration) error {
		names = append(names, name)
		if position != len(names) || took < 0 || m == nil {
			t.Errorf("%s: found position %d and %v, wanted position %d and a time", name, position, took, len(names))
		}
		return nil
	}
	if err := p.Run(parse(t, "small", small)); err != nil {
		t.Fatal(err)
	}
	if want := p.Passes(); !slices.Equal(names, want) || slices.Contains(want, "cse") {
		t.Errorf("found %q, wanted %q", names, want)
	}
	full := errors.New("disk full")
	p.After = func(int, string, *graph.Module, time.Duration) error { return full }
	if err := p.Run(parse(t, "small", small)); !errors.Is(err, full) {
		t.Errorf("found %v, wanted the callback's error", err)
	}
}

// TestNames: names are unique, known ones may be disabled, others are refused with the list.
func TestNames(t *testing.T) {
	for _, name := range passes.Names() {
		if passByName(t, name).Doc == "" {
			t.Errorf("%s says nothing of itself", name)
		}
		if err := errors.Join(passes.CheckNames(nil, []string{name}), passes.CheckNames([]string{name}, nil)); err != nil {
			t.Error(err)
		}
	}
	for _, lists := range [][2][]string{{nil, {"cse", "inline"}}, {{"cse", "inline"}, nil}} {
		err := passes.CheckNames(lists[0], lists[1])
		if err == nil || !strings.Contains(err.Error(), `"inline"`) || !strings.Contains(err.Error(), "hoist-weights") {
			t.Errorf("found %v, wanted an error that names the pass and the known ones", err)
		}
	}
	if err := passes.CheckNames([]string{"dce", "cse"}, []string{"cse"}); err == nil || !strings.Contains(err.Error(), `"cse" is both`) {
		t.Errorf("found %v, wanted an error that names the pass in both lists", err)
	}
}

// TestKey: what changes what the passes do changes the key.
func TestKey(t *testing.T) {
	keys := map[string]bool{}
	for _, p := range []*passes.Pipeline{
		pipeline(),
		pipeline("cse"),
		{Options: passes.Options{MaxConstant: 1, Outline: true, MinBlock: 40}},
		{Options: passes.Options{MaxConstant: 4096, MinBlock: 40}},
		{Options: passes.Options{MaxConstant: 4096, Outline: true, Scan: true, MinBlock: 40}},
		{Options: passes.Options{MaxConstant: 4096, Outline: true, MinBlock: 41}},
	} {
		if keys[p.Key()] {
			t.Errorf("the key %q is not new", p.Key())
		}
		keys[p.Key()] = true
	}
	if checked := (&passes.Pipeline{Options: passes.DefaultOptions()}); checked.Key() != pipeline().Key() {
		t.Error("checking changes the key")
	}
}

// TestDefaults: a pass runs by its rule for the target where neither list names it, else by the lists, of which Disabled comes first.
func TestDefaults(t *testing.T) {
	all := passes.List
	t.Cleanup(func() { passes.List = all })
	passes.List = append(slices.Clone(all), passes.Pass{
		Name: "for-tpu", Default: func(t passes.Target) bool { return t.Platform == "tpu" && t.DType == dtypes.BFloat16 },
		Run: func(m *graph.Module, _ *passes.Options) error { m.Name = "for-tpu"; return nil },
	})
	tpu := passes.Target{Platform: "tpu", DType: dtypes.BFloat16}
	for _, tc := range []struct {
		target            passes.Target
		enabled, disabled []string
		want              bool
	}{
		{target: passes.Target{Platform: "cpu", DType: dtypes.BFloat16}},
		{target: passes.Target{Platform: "tpu", DType: dtypes.Float32}},
		{target: tpu, want: true},
		{target: tpu, disabled: []string{"for-tpu"}},
		{enabled: []string{"for-tpu"}, want: true},
		{enabled: []string{"for-tpu"}, disabled: []string{"for-tpu"}},
	} {
		p := pipeline(tc.disabled...)
		p.Target, p.Enabled = tc.target, tc.enabled
		m := parse(t, "small", small)
		if err := p.Run(m); err != nil {
			t.Fatal(err)
		}
		if listed := slices.Contains(p.Passes(), "for-tpu"); listed != tc.want || strings.Contains(p.Key(), "for-tpu") != tc.want || (m.Name == "for-tpu") != tc.want {
			t.Errorf("%+v: found listed %v, key %q, module %s; wanted %v", tc, listed, p.Key(), m.Name, tc.want)
		}
	}
}

// TestCheck: with Check a module that does not verify is refused before the first pass.
func TestCheck(t *testing.T) {
	m := parse(t, "small", small)
	m.Entry().Nodes[0].Attrs = graph.Attrs(nil).With("permutation", []int{0, 1})
	if err := pipeline().Run(m); err == nil || !strings.Contains(err.Error(), "before the first pass") {
		t.Errorf("found %v, wanted a fault before the first pass", err)
	}
}

// TestSplitPlans are modules whose results need care when they are cut into steps.
func TestSplitPlans(t *testing.T) {
	const f = "\nfunc @f {\n  %x = input \"x\" : f32[2]\n  %y = input \"y\" : f32[2]\n  %0 = call %x {callee = \"g\"} : f32[2]\n  %1 = add %0, %y : f32[2]\n  return %1, %0\n}\n" +
		"\nfunc @g {\n  %x = input \"x\" : f32[2]\n  %0 = sine %x : f32[2]\n  return %0\n}\n"
	x := `%x = input "x" : f32[2]`
	for name, tc := range map[string]struct {
		text  string
		steps int
	}{
		"no call":                        {text(x, "%0 = sine %x : f32[2]", "return %0"), 1},
		"no node":                        {text(x, "return %x, %x"), 1},
		"result is a parameter":          {text(x, `%a, %b = call %x, %x {callee = "f"} : f32[2], f32[2]`, "return %a, %x, %b, %a") + f, 1},
		"constant passed":                {text(x, "%c = constant {value = splat<f32: 2>} : f32[2]", `%a, %b = call %c, %x {callee = "f"} : f32[2], f32[2]`, `%d, %e = call %a, %c {callee = "f"} : f32[2], f32[2]`, "return %d, %e") + f, 3},
		"constant is a result":           {text(x, "%c = constant {value = splat<f32: 2>} : f32[2]", "%i = iota {iota_dimension = 0} : f32[2]", `%a, %b = call %c, %x {callee = "f"} : f32[2], f32[2]`, "%s = add %c, %b : f32[2]", "return %s, %c, %i, %a") + f, 3},
		"equal glue":                     {text(x, "%0 = cosine %x : f32[2]", `%a, %b = call %0, %x {callee = "f"} : f32[2], f32[2]`, "%1 = cosine %a : f32[2]", `%d, %e = call %1, %b {callee = "f"} : f32[2], f32[2]`, "return %d, %e") + f, 4},
		"glue read late":                 {text(x, "%0 = cosine %x : f32[2]", `%a, %b = call %0, %x {callee = "f"} : f32[2], f32[2]`, `%d, %e = call %a, %b {callee = "f"} : f32[2], f32[2]`, "%1 = add %0, %e : f32[2]", "return %d, %1, %0") + f, 4},
		"call inside a region":           {text(x, `%n = input "n" : i32[]`, `%i, %y = while %n, %x region @cond {`, `%a = input "a" : i32[]`, `%b = input "b" : f32[2]`, "%z = constant {value = splat<i32: 0>} : i32[]", `%r = compare %a, %z {direction = "GT"} : bool[]`, "return %r", "} region @body {", `%a = input "a" : i32[]`, `%b = input "b" : f32[2]`, "%o = constant {value = splat<i32: 1>} : i32[]", "%c = subtract %a, %o : i32[]", `%d = call %b {callee = "g"} : f32[2]`, "return %c, %d", "} : i32[], f32[2]", "return %y") + f, 1},
		"nothing of a call is read":      {text(x, `%a, %b = call %x, %x {callee = "f"} : f32[2], f32[2]`, "%0 = sine %x : f32[2]", "return %0") + f, 2},
		"large constant between steps":   {text(`%x = input "x" : f32[20]`, "%c = constant {value = dense<f32: 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2>} : f32[20]", `%a = call %x {callee = "h"} : f32[20]`, "%0 = add %a, %c : f32[20]", "return %0") + "\nfunc @h {\n  %x = input \"x\" : f32[20]\n  %0 = sine %x : f32[20]\n  return %0\n}\n", 3},
		"call of another function twice": {text(x, `%a = call %x {callee = "g"} : f32[2]`, `%b = call %a {callee = "g"} : f32[2]`, "return %b") + f, 2},
	} {
		t.Run(name, func(t *testing.T) {
			m := parse(t, name, tc.text)
			plan, err := passes.Split(m)
			if err != nil {
				t.Fatal(err)
			}
			if len(plan.Steps) != tc.steps {
				t.Errorf("found %d steps, wanted %d: %+v", len(plan.Steps), tc.steps, plan.Steps)
			}
			given := arguments(m, 3)
			want, err := evaluate(m, given, false)
			if err != nil {
				t.Fatal(err)
			}
			got, err := evaluate(m, given, true)
			if err != nil {
				t.Fatal(err)
			}
			if d := difference(got, want, 0); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestPrepareSteps: large independent parts of a preparation are steps of their own and equal ones share a program; parts that read one weight
// are one.
func TestPrepareSteps(t *testing.T) {
	m := parse(t, "large", text(
		`%x = input "x" : f32[1]`,
		`%a = weight "a" : f32[4096,4096]`,
		`%b = weight "b" : f32[4096,4096]`,
		`%c = weight "c" : f32[4096,4096]`,
		"%0 = transpose %a {permutation = [1, 0]} : f32[4096,4096]",
		"%1 = transpose %b {permutation = [1, 0]} : f32[4096,4096]",
		"%2 = negate %c : f32[4096,4096]",
		"%3 = transpose %c {permutation = [1, 0]} : f32[4096,4096]",
		"return %x, %0, %1, %2, %3"))
	o := passes.DefaultOptions()
	if err := passByName(t, "hoist-weights").Run(m, &o); err != nil {
		t.Fatal(err)
	}
	plan := passes.Prepare(m)
	if len(plan.Steps) != 3 || len(plan.Programs) != 2 {
		t.Fatalf("found %d steps of %d programs, wanted 3 of 2", len(plan.Steps), len(plan.Programs))
	}
	if plan.Steps[0].Program != plan.Steps[1].Program || len(plan.Steps[2].Results) != 2 {
		t.Errorf("found the steps %+v, wanted one program for the first two, and two results of the third", plan.Steps)
	}
}

// TestDoubleRowsDefault: the pass is for the CPU in bfloat16 where nobody says otherwise.
func TestDoubleRowsDefault(t *testing.T) {
	for target, want := range map[passes.Target]bool{
		{Platform: "cpu", DType: dtypes.BFloat16}: true,
		{Platform: "cpu", DType: dtypes.Float16}:  false,
		{Platform: "cpu", DType: dtypes.Float32}:  false,
		{Platform: "tpu", DType: dtypes.BFloat16}: false,
	} {
		p := passes.Pipeline{Target: target}
		if got := slices.Contains(p.Passes(), "double-rows"); got != want {
			t.Errorf("%v: found %v, wanted %v", target, got, want)
		}
	}
}
