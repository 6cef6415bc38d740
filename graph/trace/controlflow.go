package trace

import (
	"fmt"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/pkg/errors"

	"precast/graph"
)

// Regions of the IR refer only to their own values, while gomlx's closures may use values of the functions around them. So a captured
// value becomes an operand of the node: a loop-invariant part of a while's state, an argument of both branches of an if.

// closure checks that fn is a finished closure with the given parameters.
func (f *function) closure(op, role string, fn compute.Function, params []graph.Shape) (*function, error) {
	c, ok := fn.(*function)
	switch {
	case !ok || c == nil:
		return nil, errors.Errorf("%s: the %s is %T, not a closure of the recorder", op, role, fn)
	case c.b != f.b || c.parent == nil:
		return nil, errors.Errorf("%s: the %s is not a closure of this computation", op, role)
	case !c.returned:
		return nil, errors.Errorf("%s: the %s has no return", op, role)
	case len(c.rec.Params) != len(params):
		return nil, errors.Errorf("%s: the %s takes %d parameters, wanted %d", op, role, len(c.rec.Params), len(params))
	}
	for i, p := range c.rec.Params {
		if !p.Value.Shape.Equal(params[i]) {
			return nil, errors.Errorf("%s: parameter %d of the %s has shape %s, wanted %s", op, i, role, p.Value.Shape, params[i])
		}
	}
	return c, nil
}

// results checks what a closure returns.
func (f *function) results(op, role string, wanted []graph.Shape) error {
	if len(f.rec.Results) != len(wanted) {
		return errors.Errorf("%s: the %s returns %d values, wanted %d", op, role, len(f.rec.Results), len(wanted))
	}
	for i, r := range f.rec.Results {
		if !r.Shape.Equal(wanted[i]) {
			return errors.Errorf("%s: result %d of the %s has shape %s, wanted %s", op, i, role, r.Shape, wanted[i])
		}
	}
	return nil
}

// captured is what closures use of the functions around them, each value once, and as operands in f.
func (f *function) captured(op string, closures ...*function) (outer []*value, operands []*graph.Value, err error) {
	seen := map[*graph.Value]bool{}
	for _, c := range closures {
		for _, x := range c.captures {
			if seen[x.outer.v] {
				continue
			}
			seen[x.outer.v] = true
			in, err := f.use(op, x.outer)
			if err != nil {
				return nil, nil, err
			}
			outer = append(outer, x.outer)
			operands = append(operands, in[0])
		}
	}
	return outer, operands, nil
}

// region copies a closure into a region that takes the closure's parameters and then one for each of outer. The second result are the
// values of those.
func (f *function) region(outer []*value) (*graph.Func, []*graph.Value) {
	r := &graph.Func{}
	mapped := map[*graph.Value]*graph.Value{}
	names := map[string]bool{}
	for _, p := range f.rec.Params {
		mapped[p.Value] = r.NewParam(p.Name, graph.Input, p.Value.Shape)
		names[p.Name] = true
	}
	inner := map[*graph.Value]*graph.Value{}
	for _, c := range f.captures {
		inner[c.outer.v] = c.inner
	}
	passed := make([]*graph.Value, len(outer))
	for i, x := range outer {
		name := fmt.Sprintf("captured%d", i)
		for names[name] {
			name += "_"
		}
		passed[i] = r.NewParam(name, graph.Input, x.v.Shape)
		if v := inner[x.v]; v != nil {
			mapped[v] = passed[i]
		}
	}
	for _, n := range f.rec.Nodes {
		r.Nodes = append(r.Nodes, graph.CloneNode(n, mapped))
	}
	for _, v := range f.rec.Results {
		r.Results = append(r.Results, mapped[v])
	}
	return r, passed
}

func shapesOf(vs []*graph.Value) []graph.Shape {
	out := make([]graph.Shape, len(vs))
	for i, v := range vs {
		out[i] = v.Shape
	}
	return out
}

// While implements compute.Function. What the closures capture is carried along as state that no iteration changes.
func (f *function) While(cond, body compute.Function, initialState ...compute.Value) ([]compute.Value, error) {
	in, err := f.use("While", initialState...)
	if err != nil {
		return nil, err
	}
	if len(in) == 0 {
		return nil, errors.New("While: no state")
	}
	state := shapesOf(in)
	condition, err := f.closure("While", "condition", cond, state)
	if err != nil {
		return nil, err
	}
	if err := condition.results("While", "condition", []graph.Shape{{DType: dtypes.Bool}}); err != nil {
		return nil, err
	}
	step, err := f.closure("While", "body", body, state)
	if err != nil {
		return nil, err
	}
	if err := step.results("While", "body", state); err != nil {
		return nil, err
	}
	outer, extra, err := f.captured("While", condition, step)
	if err != nil {
		return nil, err
	}
	condRegion, _ := condition.region(outer)
	bodyRegion, passed := step.region(outer)
	bodyRegion.Results = append(bodyRegion.Results, passed...)
	in = append(in, extra...)
	out, err := f.emitAll(graph.OpWhile, in, nil, []*graph.Func{condRegion, bodyRegion}, shapesOf(in)...)
	if err != nil {
		return nil, err
	}
	return out[:len(state)], nil
}

// If implements compute.Function. What either branch captures is an argument of both.
func (f *function) If(pred compute.Value, trueBranch, falseBranch compute.Function) ([]compute.Value, error) {
	in, err := f.use("If", pred)
	if err != nil {
		return nil, err
	}
	if s := in[0].Shape; !s.IsScalar() || s.DType != dtypes.Bool {
		return nil, errors.Errorf("If: the predicate has shape %s; wanted a bool scalar", s)
	}
	onTrue, err := f.closure("If", "true branch", trueBranch, nil)
	if err != nil {
		return nil, err
	}
	onFalse, err := f.closure("If", "false branch", falseBranch, nil)
	if err != nil {
		return nil, err
	}
	if len(onTrue.rec.Results) == 0 {
		return nil, errors.New("If: the branches return nothing")
	}
	if err := onFalse.results("If", "false branch", shapesOf(onTrue.rec.Results)); err != nil {
		return nil, err
	}
	outer, extra, err := f.captured("If", onTrue, onFalse)
	if err != nil {
		return nil, err
	}
	trueRegion, _ := onTrue.region(outer)
	falseRegion, _ := onFalse.region(outer)
	return f.emitAll(graph.OpIf, append(in, extra...), nil, []*graph.Func{trueRegion, falseRegion}, shapesOf(onTrue.rec.Results)...)
}

// Sort implements compute.Function. The comparator may use constants of the functions around it and nothing else of them.
func (f *function) Sort(comparator compute.Function, axis int, isStable bool, inputs ...compute.Value) ([]compute.Value, error) {
	in, err := f.use("Sort", inputs...)
	if err != nil {
		return nil, err
	}
	if len(in) == 0 {
		return nil, errors.New("Sort: no operands")
	}
	for _, x := range in {
		if !x.Shape.EqualDimensions(in[0].Shape) {
			return nil, errors.Errorf("Sort: operands of shapes %s and %s; wanted the same dimensions", in[0].Shape, x.Shape)
		}
	}
	if axis < 0 || axis >= in[0].Shape.Rank() {
		return nil, errors.Errorf("Sort: axis %d is out of range for operands of shape %s", axis, in[0].Shape)
	}
	// The comparator's parameters are each operand's left and right element in turn, for StableHLO and for gomlx's SortFunc and backends
	// alike (the comment at compute.Function.Sort has another order).
	given := make([]graph.Shape, 0, 2*len(in))
	for _, x := range in {
		given = append(given, graph.Shape{DType: x.Shape.DType}, graph.Shape{DType: x.Shape.DType})
	}
	less, err := f.closure("Sort", "comparator", comparator, given)
	if err != nil {
		return nil, err
	}
	if err := less.results("Sort", "comparator", []graph.Shape{{DType: dtypes.Bool}}); err != nil {
		return nil, err
	}
	if len(less.captures) > 0 {
		return nil, errors.Errorf("Sort: the comparator uses a value of shape %s from outside; it may use its arguments and constants",
			less.captures[0].outer.v.Shape)
	}
	region, _ := less.region(nil)
	return f.emitAll(graph.OpSort, in, graph.Attrs{
		{Name: "dimension", Value: axis},
		{Name: "is_stable", Value: isStable},
	}, []*graph.Func{region}, shapesOf(in)...)
}

// Call implements compute.Function.
func (f *function) Call(target compute.Function, inputs ...compute.Value) ([]compute.Value, error) {
	in, err := f.use("Call", inputs...)
	if err != nil {
		return nil, err
	}
	callee, ok := target.(*function)
	switch {
	case !ok || callee == nil || callee.b != f.b || callee.parent != nil || callee == f.b.main:
		return nil, errors.New("Call: the target is not a function of this computation made by NewFunction")
	case !callee.returned:
		return nil, errors.Errorf("Call: function %q has no return", callee.name)
	case len(in) != len(callee.rec.Params):
		return nil, errors.Errorf("Call: function %q takes %d arguments, got %d", callee.name, len(callee.rec.Params), len(in))
	}
	for i, p := range callee.rec.Params {
		if !in[i].Shape.Equal(p.Value.Shape) {
			return nil, errors.Errorf("Call: argument %d of function %q has shape %s, wanted %s", i, callee.name, in[i].Shape, p.Value.Shape)
		}
	}
	return f.emitAll(graph.OpCall, in, graph.Attrs{{Name: "callee", Value: callee.name}}, nil, shapesOf(callee.rec.Results)...)
}
