package trace

import (
	"github.com/gomlx/compute"
	"github.com/gomlx/compute/notimplemented"
	"github.com/gomlx/compute/shapes"
	"github.com/pkg/errors"

	"precast/graph"
)

// value is the recorder's compute.Value: a value of the IR and the function that it belongs to.
type value struct {
	v  *graph.Value
	fn *function
}

// function implements compute.Function: the main function, a private one, or a closure. A closure becomes a region where it is used
// (see controlflow.go).
type function struct {
	notimplemented.Function

	b        *builder
	parent   *function // set for a closure
	name     string    // empty for a closure
	rec      *graph.Func
	returned bool

	// local holds what stands for an outer function's value here: a copy of a constant, or a captured value.
	local map[*graph.Value]*value
	// captures are the outer values that a closure uses, in order of first use. They get parameters when the closure becomes a region.
	captures []capture
}

// capture is one outer value used in a closure and the value that stands for it there.
type capture struct {
	outer *value
	inner *graph.Value
}

var _ compute.Function = (*function)(nil)

// Name implements compute.Function.
func (f *function) Name() string { return f.name }

// Builder implements compute.Function.
func (f *function) Builder() compute.Builder { return f.b }

// Parent implements compute.Function.
func (f *function) Parent() compute.Function {
	if f.parent == nil {
		return nil
	}
	return f.parent
}

// Closure implements compute.Function.
func (f *function) Closure() (compute.Function, error) { return f.b.newFunction("", f), nil }

// Shape implements compute.Function.
func (f *function) Shape(v compute.Value) (shapes.Shape, error) { return f.b.OpShape(v) }

// Parameter implements compute.Function.
func (f *function) Parameter(name string, shape shapes.Shape, sharding *compute.ShardingSpec) (compute.Value, error) {
	if err := f.open(); err != nil {
		return nil, err
	}
	shape, err := static("parameter "+name, shape)
	if err != nil {
		return nil, err
	}
	if sharding != nil {
		return nil, errors.Errorf("parameter %s: a sharding was given; the recorder takes none, sharding is decided when lowering", name)
	}
	return &value{f.rec.NewParam(name, graph.Input, shape), f}, nil
}

// Return implements compute.Function.
func (f *function) Return(outputs []compute.Value, shardings []*compute.ShardingSpec) error {
	for _, s := range shardings {
		if s != nil {
			return errors.New("Return: a sharding was given; the recorder takes none, sharding is decided when lowering")
		}
	}
	results, err := f.use("Return", outputs...)
	if err != nil {
		return err
	}
	f.rec.Results = results
	f.returned = true
	return nil
}

// open reports an operation added to a function that has returned.
func (f *function) open() error {
	if f.returned {
		return errors.Errorf("function %q has returned; nothing can be added to it", f.name)
	}
	return nil
}

// use resolves operands of an operation in f. A constant of another function is copied into f, any other outer value of a closure is
// captured.
func (f *function) use(op string, operands ...compute.Value) ([]*graph.Value, error) {
	if err := f.open(); err != nil {
		return nil, err
	}
	out := make([]*graph.Value, len(operands))
	for i, operand := range operands {
		x, ok := operand.(*value)
		if !ok || x == nil {
			return nil, errors.Errorf("%s: operand %d is %T, not a value of the recorder", op, i, operand)
		}
		if x.fn.b != f.b {
			return nil, errors.Errorf("%s: operand %d belongs to another computation (%q)", op, i, x.fn.b.name)
		}
		var err error
		if out[i], err = f.resolve(op, x); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (f *function) resolve(op string, x *value) (*graph.Value, error) {
	if x.fn == f {
		f.share(x.v)
		return x.v, nil
	}
	if inner := f.local[x.v]; inner != nil {
		f.share(inner.v)
		return inner.v, nil
	}
	var inner *value
	switch {
	case x.v.Def != nil && x.v.Def.Op == graph.OpConstant:
		// gomlx keeps one node for each scalar of a graph, whichever function asked for it first.
		inner = &value{f.add(graph.OpConstant, x.v.Def.Attrs, x.v.Shape), f}
	case f.parent != nil:
		inner = &value{&graph.Value{Shape: x.v.Shape}, f}
		f.captures = append(f.captures, capture{x, inner.v})
	default:
		return nil, errors.Errorf("%s: an operand of shape %s belongs to function %q and cannot be used in %q; pass it as an argument",
			op, x.v.Shape, x.fn.label(), f.label())
	}
	if f.local == nil {
		f.local = map[*graph.Value]*value{}
	}
	f.local[x.v] = inner
	return inner.v, nil
}

func (f *function) label() string {
	if f.parent != nil {
		return "closure"
	}
	return f.name
}

// share moves a constant up to the module that encloses all its uses: gomlx keeps one node for each scalar of a graph, so the scope of
// the first use says nothing about the others.
func (f *function) share(v *graph.Value) {
	if v.Def != nil && v.Def.Op == graph.OpConstant && v.Def.Scope != f.b.rec.scope {
		v.Def.Scope = enclosing(v.Def.Scope, f.b.rec.scope)
	}
}

// enclosing is the longest module path that both paths are inside of.
func enclosing(a, b string) string {
	n := 0
	for i := 0; ; i++ {
		endA, endB := i == len(a) || a[i] == '.', i == len(b) || b[i] == '.'
		if endA && endB {
			n = i
		}
		if i == len(a) || i == len(b) || a[i] != b[i] {
			return a[:n]
		}
	}
}

// emit appends a node with one result in the current scope, after checking it against the op table.
func (f *function) emit(op graph.Op, operands []*graph.Value, attrs graph.Attrs, shape graph.Shape) (compute.Value, error) {
	out, err := f.emitAll(op, operands, attrs, nil, shape)
	if err != nil {
		return nil, err
	}
	return out[0], nil
}

// emitAll appends a node in the current scope, after checking it against the op table.
func (f *function) emitAll(op graph.Op, operands []*graph.Value, attrs graph.Attrs, regions []*graph.Func, results ...graph.Shape) (
	[]compute.Value, error,
) {
	for i := range results {
		results[i].AxisNames = nil // gomlx's names for dynamic axes
	}
	in := shapesOf(operands)
	attrs = graph.Resolve(op, attrs, in)
	if _, err := graph.Infer(op, in, attrs, regions, f.b.callee(op, attrs), results...); err != nil {
		return nil, errors.WithStack(err)
	}
	n := f.rec.Append(op, operands, attrs, results...)
	n.Scope = f.b.rec.scope
	n.Regions = regions
	out := make([]compute.Value, len(n.Results))
	for i, r := range n.Results {
		out[i] = &value{r, f}
	}
	return out, nil
}

// add appends a node that the recorder composes itself from checked parts.
func (f *function) add(op graph.Op, attrs graph.Attrs, shape graph.Shape, operands ...*graph.Value) *graph.Value {
	v, err := f.emit(op, operands, attrs, shape)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return v.(*value).v
}

// static checks that a shape is one the IR can hold.
func static(what string, shape shapes.Shape) (shapes.Shape, error) {
	switch {
	case shape.IsTuple() || !recordedDTypes[shape.DType]:
		return shape, errors.Errorf("%s: the shape is %s; the graph IR holds arrays of bool, int8..int64, uint8..uint64, float16, bfloat16, "+
			"float32 and float64", what, shape)
	case shape.IsDynamic():
		return shape, errors.Errorf("%s: the shape %s has a dynamic dimension; give every size", what, shape)
	}
	shape.AxisNames = nil
	return shape, nil
}
