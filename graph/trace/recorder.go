package trace

import (
	"fmt"
	"strings"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/notimplemented"
	"github.com/gomlx/compute/shapes"
	"github.com/pkg/errors"

	"precast/graph"
)

// Recorder is a gomlx backend that computes nothing: it writes every operation down as a node of a graph.Module. A gomlx graph made on
// it and compiled leaves the module in Module.
//
// A Recorder records one computation and is not safe for concurrent use. It holds no data: a transfer is an error, and so is executing
// what it compiled.
type Recorder struct {
	notimplemented.Backend

	scope  string
	module *graph.Module
}

var _ compute.Backend = (*Recorder)(nil)

// NewRecorder returns a Recorder with nothing in it.
func NewRecorder() *Recorder { return &Recorder{} }

// SetScope sets the module path that the nodes recorded from here on carry as their Scope.
func (r *Recorder) SetScope(path string) { r.scope = path }

// Module returns the module of the last compiled computation, nil before a Compile. Its name is the computation's and its entry
// function "main" has the inputs first and the weights (see WeightPrefix) after them, each in order of creation.
func (r *Recorder) Module() *graph.Module { return r.module }

// Name implements compute.Backend.
func (r *Recorder) Name() string { return "recorder" }

// String implements compute.Backend.
func (r *Recorder) String() string { return r.Name() }

// Description implements compute.Backend.
func (r *Recorder) Description() string {
	return "recorder of graph modules; it holds no data and computes nothing"
}

// DeviceDescription implements compute.Backend.
func (r *Recorder) DeviceDescription(compute.DeviceNum) string { return "no device" }

// Capabilities implements compute.Backend. Operations that are not in it are refused with compute.ErrNotImplemented; gomlx decomposes
// its fused ones then.
func (r *Recorder) Capabilities() compute.Capabilities { return capabilities.Clone() }

// Builder implements compute.Backend.
func (r *Recorder) Builder(name string) compute.Builder {
	b := &builder{rec: r, name: name}
	b.main = b.newFunction(compute.MainName, nil)
	b.top = []*function{b.main}
	return b
}

var errNoData = errors.New("the recorder holds no data; run the graph on a real backend")

// BufferFromFlatData implements compute.Backend. It always fails.
func (r *Recorder) BufferFromFlatData(compute.DeviceNum, any, shapes.Shape) (compute.Buffer, error) {
	return nil, errors.WithStack(errNoData)
}

// NewSharedBuffer implements compute.Backend. It always fails.
func (r *Recorder) NewSharedBuffer(compute.DeviceNum, shapes.Shape) (compute.Buffer, any, error) {
	return nil, nil, errors.WithStack(errNoData)
}

// builder implements compute.Builder: one computation, its main function first in top.
type builder struct {
	notimplemented.Builder

	rec  *Recorder
	name string
	main *function
	top  []*function
}

// Name implements compute.Builder.
func (b *builder) Name() string { return b.name }

// Main implements compute.Builder.
func (b *builder) Main() compute.Function { return b.main }

// NewFunction implements compute.Builder: a private function of the module, reached by call nodes.
func (b *builder) NewFunction(name string) (compute.Function, error) {
	for _, f := range b.top {
		if f.name == name {
			return nil, errors.Errorf("function %q exists already", name)
		}
	}
	f := b.newFunction(name, nil)
	b.top = append(b.top, f)
	return f, nil
}

func (b *builder) newFunction(name string, parent *function) *function {
	f := &function{b: b, parent: parent, name: name, rec: &graph.Func{Name: name}}
	f.Function.ErrFn = notRecorded
	return f
}

// callee is the function that a call names, nil for another operation.
func (b *builder) callee(op graph.Op, attrs graph.Attrs) *graph.Func {
	if op != graph.OpCall {
		return nil
	}
	for _, f := range b.top {
		if f.name == attrs.String("callee") {
			return f.rec
		}
	}
	return nil
}

// OpShape implements compute.Builder.
func (b *builder) OpShape(v compute.Value) (shapes.Shape, error) {
	x, ok := v.(*value)
	if !ok || x == nil {
		return shapes.Invalid(), errors.Errorf("%T is not a value of the recorder", v)
	}
	return x.v.Shape, nil
}

// Compile implements compute.Builder: it checks that every function returned and hands the module to the Recorder.
func (b *builder) Compile() (compute.Executable, error) {
	m := &graph.Module{Name: b.name}
	for _, f := range b.top {
		if !f.returned {
			return nil, errors.Errorf("function %q has no return", f.name)
		}
		m.Funcs = append(m.Funcs, f.rec)
	}
	if err := splitWeights(m.Entry()); err != nil {
		return nil, err
	}
	b.rec.module = m
	return &recording{m}, nil
}

// splitWeights gives the parameters that carry WeightPrefix their kind and bare name, and orders inputs before weights.
func splitWeights(f *graph.Func) error {
	var inputs, weights []*graph.Param
	names := make(map[string]bool, len(f.Params))
	for _, p := range f.Params {
		if key, ok := strings.CutPrefix(p.Name, WeightPrefix); ok {
			p.Name, p.Kind = key, graph.Weight
			weights = append(weights, p)
		} else {
			inputs = append(inputs, p)
		}
		if names[p.Name] {
			return errors.Errorf("%q names both an input and a weight; rename the input", p.Name)
		}
		names[p.Name] = true
	}
	f.Params = append(inputs, weights...)
	for i, p := range f.Params {
		p.Value.Index = i
	}
	return nil
}

// recording implements compute.Executable over a module. It describes the signature and refuses to run.
type recording struct{ m *graph.Module }

// Finalize implements compute.Executable.
func (e *recording) Finalize() {}

// Inputs implements compute.Executable.
func (e *recording) Inputs() (names []string, inputShapes []shapes.Shape) {
	for _, p := range e.m.Entry().Params {
		names = append(names, p.Name)
		inputShapes = append(inputShapes, p.Value.Shape)
	}
	return names, inputShapes
}

// Outputs implements compute.Executable.
func (e *recording) Outputs() (outputShapes []shapes.Shape) {
	for _, v := range e.m.Entry().Results {
		outputShapes = append(outputShapes, v.Shape)
	}
	return outputShapes
}

// Execute implements compute.Executable. It always fails.
func (e *recording) Execute([]compute.Buffer, []bool, compute.DeviceNum) ([]compute.Buffer, error) {
	return nil, errors.WithStack(errNoData)
}

// notRecorded is the error for an operation that has no form in the IR. It wraps compute.ErrNotImplemented, at which gomlx takes the
// decomposed form of a fused operation.
func notRecorded(op compute.OpType) error {
	return errors.WithStack(unsupported{fmt.Sprintf("%s cannot be recorded: the graph IR has no such operation", op)})
}

// unsupported is a compute.ErrNotImplemented with a message of its own.
type unsupported struct{ message string }

func (e unsupported) Error() string { return e.message }
func (e unsupported) Unwrap() error { return compute.ErrNotImplemented }

// recordedDTypes are the element types of the IR.
var recordedDTypes = map[dtypes.DType]bool{
	dtypes.Bool: true,
	dtypes.Int8: true, dtypes.Int16: true, dtypes.Int32: true, dtypes.Int64: true,
	dtypes.Uint8: true, dtypes.Uint16: true, dtypes.Uint32: true, dtypes.Uint64: true,
	dtypes.Float16: true, dtypes.BFloat16: true, dtypes.Float32: true, dtypes.Float64: true,
}
