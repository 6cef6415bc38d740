package lower

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/shapes"

	"precast/graph"
)

// ToBuilder builds the module on any gomlx compute.Builder: its entry becomes the builder's main function, with the parameters in order
// and the results returned; the caller compiles. Private functions become functions of the builder, or are inlined where the builder
// has none.
//
// The builder gets no operation whose meaning differs between gomlx's backends and StableHLO: those are composed from simpler ones
// (dynamic slices, total-order comparison, integer division by zero, conversion out of range, convolution as a matrix product over
// patches, ...), so that the results are those of the StableHLO specification, with the exception of rng_bit_generator, whose bits are the
// builder's own. Dot precision is a hint that gomlx lacks; sharding is left out.
//
// The module must be valid (graph.Verify); a fault of it is an error that names the function and the operation.
func ToBuilder(m *graph.Module, b compute.Builder) (err error) {
	e := &emitter{b: b, m: m, funcs: map[string]compute.Function{}}
	defer e.recover(&err)
	if len(m.Funcs) == 0 {
		return fmt.Errorf("module %q has no function", m.Name)
	}
	s := e.newScope(b.Main(), m.Entry(), false)
	for _, p := range m.Entry().Params {
		s.vals[p.Value] = s.v(s.f.Parameter(p.Name, p.Value.Shape, nil))
	}
	s.body()
	return nil
}

// failure carries an error of the builder up to ToBuilder.
type failure struct{ err error }

// emitter holds what the scopes of one ToBuilder call share.
type emitter struct {
	b     compute.Builder
	m     *graph.Module
	funcs map[string]compute.Function // private functions built so far; nil where the builder has no functions
	where []string                    // function and operation being built, for messages
}

func (e *emitter) recover(err *error) {
	switch r := recover().(type) {
	case nil:
	case failure:
		*err = fmt.Errorf("%s: %w", e.place(), r.err)
	default:
		// gomlx's builders panic on faults that they don't expect.
		*err = fmt.Errorf("%s: %v", e.place(), r)
	}
}

func (e *emitter) place() string {
	if len(e.where) == 0 {
		return "module " + e.m.Name
	}
	return e.where[len(e.where)-1]
}

// scope builds one function or closure.
type scope struct {
	e    *emitter
	f    compute.Function
	fn   *graph.Func
	vals map[*graph.Value]compute.Value
	// nested says that f is not the builder's main function.
	nested bool
}

func (e *emitter) newScope(f compute.Function, fn *graph.Func, nested bool) *scope {
	return &scope{e: e, f: f, fn: fn, nested: nested, vals: make(map[*graph.Value]compute.Value, len(fn.Nodes)+len(fn.Params))}
}

// v passes a builder's value through and turns its error into a failure.
func (s *scope) v(x compute.Value, err error) compute.Value {
	if err != nil {
		panic(failure{err})
	}
	return x
}

// vs is v for several values.
func (s *scope) vs(xs []compute.Value, err error) []compute.Value {
	if err != nil {
		panic(failure{err})
	}
	return xs
}

func (s *scope) check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

func (s *scope) failf(format string, args ...any) {
	panic(failure{fmt.Errorf(format, args...)})
}

// body builds the nodes and returns the results.
func (s *scope) body() {
	s.e.where = append(s.e.where, "func "+s.fn.Name)
	s.check(s.f.Return(s.distinct(s.run()), nil))
	s.e.where = s.e.where[:len(s.e.where)-1]
}

// run builds the nodes and gives the values of the results.
func (s *scope) run() []compute.Value {
	for _, n := range s.fn.Nodes {
		s.e.where = append(s.e.where, fmt.Sprintf("func %s, %s", s.fn.Name, n.Op))
		results := s.node(n)
		if len(results) != len(n.Results) {
			s.failf("the builder gave %d results, wanted %d", len(results), len(n.Results))
		}
		for i, r := range n.Results {
			s.vals[r] = results[i]
		}
		s.e.where = s.e.where[:len(s.e.where)-1]
	}
	return s.all(s.fn.Results)
}

// distinct gives results that repeat a value an identity of their own: gomlx's Go backend hands each returned buffer out once.
func (s *scope) distinct(results []compute.Value) []compute.Value {
	out := slices.Clone(results)
	for i, x := range results {
		if !reflect.TypeOf(x).Comparable() {
			continue
		}
		for _, y := range results[:i] {
			if reflect.TypeOf(y).Comparable() && x == y {
				out[i] = s.v(s.f.Identity(x))
				break
			}
		}
	}
	return out
}

func (s *scope) get(v *graph.Value) compute.Value {
	x, ok := s.vals[v]
	if !ok {
		s.failf("an operand is used before it is defined")
	}
	return x
}

func (s *scope) all(vs []*graph.Value) []compute.Value {
	out := make([]compute.Value, len(vs))
	for i, v := range vs {
		out[i] = s.get(v)
	}
	return out
}

// call builds a call of a private function, which is built on its first use.
func (s *scope) call(callee string, args []compute.Value) []compute.Value {
	fn := s.e.m.Func(callee)
	if fn == nil {
		s.failf("function %q is not in the module", callee)
	}
	f, built := s.e.funcs[callee]
	if !built {
		name := callee
		if name == compute.MainName {
			name += "_" // the builder's own main function has that name
		}
		var err error
		f, err = s.e.b.NewFunction(name)
		if err != nil {
			f = nil // no functions: inline
		}
		s.e.funcs[callee] = f
		if f != nil {
			t := s.e.newScope(f, fn, true)
			for _, p := range fn.Params {
				t.vals[p.Value] = t.v(f.Parameter(p.Name, p.Value.Shape, nil))
			}
			t.body()
		}
	}
	if f != nil {
		return s.vs(s.f.Call(f, args...))
	}
	t := s.e.newScope(s.f, fn, s.nested)
	for i, p := range fn.Params {
		t.vals[p.Value] = args[i]
	}
	return t.run()
}

// closure builds a region as a closure with its parameters.
func (s *scope) closure(region *graph.Func) compute.Function {
	f, err := s.f.Closure()
	s.check(err)
	t := s.e.newScope(f, region, true)
	for i, p := range region.Params {
		t.vals[p.Value] = t.v(f.Parameter(fmt.Sprintf("%s_%d", p.Name, i), p.Value.Shape, nil))
	}
	t.body()
	return f
}

// branch builds a region as a closure without parameters that captures args, which is the form of gomlx's If.
func (s *scope) branch(region *graph.Func, args []compute.Value) compute.Function {
	f, err := s.f.Closure()
	s.check(err)
	t := s.e.newScope(f, region, true)
	for i, p := range region.Params {
		// A closure can't return what it captures: an identity makes it the closure's own.
		t.vals[p.Value] = t.v(f.Identity(args[i]))
	}
	t.body()
	return f
}

// broadcastInDim broadcasts x to a shape; dims are increasing.
//
// gomlx's Go backend lets element-wise operations read the operand of a broadcast of equal rank (its pass ImplicitBroadcastFusion), and does so
// after it has counted the uses of the values of functions and closures: there, the value would be freed before it is read. A
// reshape between the two, which copies nothing, keeps the broadcast.
func (s *scope) broadcastInDim(x compute.Value, shape shapes.Shape, dims []int) compute.Value {
	x = s.v(s.f.BroadcastInDim(x, shape, dims))
	if s.nested && len(dims) == shape.Rank() {
		x = s.v(s.f.Reshape(x, shape.Dimensions...))
	}
	return x
}

// one wraps a single result.
func one(x compute.Value) []compute.Value { return []compute.Value{x} }

// withDType is a shape with another dtype.
func withDType(s shapes.Shape, d graph.DType) shapes.Shape {
	return shapes.Make(d, s.Dimensions...)
}
