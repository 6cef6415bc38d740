package passes_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/gobackend"
	"github.com/gomlx/gomlx/core/tensors"

	"precast/graph"
	"precast/lower"
	"precast/passes"
)

// array is a value on the host: little-endian elements in row-major order.
type array struct {
	shape graph.Shape
	data  []byte
}

// backend is gomlx's Go backend, one operation after another: with calls in parallel its pool of workers can run dry.
var backend = func() compute.Backend {
	b, err := gobackend.New("ops_sequential,creation_order")
	if err != nil {
		panic(err)
	}
	return b
}()

// execute runs a module's entry on gomlx's Go backend.
func execute(m *graph.Module, args []array) (results []array, err error) {
	b := backend.Builder(m.Name)
	if err := lower.ToBuilder(m, b); err != nil {
		return nil, err
	}
	exec, err := b.Compile()
	if err != nil {
		return nil, err
	}
	defer exec.Finalize()
	var buffers []compute.Buffer
	for _, a := range args {
		t := tensors.FromShape(a.shape)
		if err := t.MutableBytes(func(data []byte) { copy(data, a.data) }); err != nil {
			return nil, err
		}
		buffer, err := t.Buffer(backend, 0)
		if err != nil {
			return nil, err
		}
		buffers = append(buffers, buffer)
	}
	out, err := exec.Execute(buffers, nil, 0)
	if err != nil {
		return nil, err
	}
	for i, o := range out {
		t, err := tensors.FromBuffer(o)
		if err != nil {
			return nil, err
		}
		a := array{shape: m.Entry().Results[i].Shape}
		if err := t.ConstBytes(func(data []byte) { a.data = bytes.Clone(data) }); err != nil {
			return nil, err
		}
		results = append(results, a)
	}
	return results, nil
}

// bind gives arguments for a function's parameters by name.
func bind(params []passes.Slot, given map[string]array) ([]array, error) {
	var args []array
	for _, p := range params {
		a, ok := given[p.Name]
		if !ok {
			return nil, fmt.Errorf("no argument for parameter %q", p.Name)
		}
		if !a.shape.Equal(p.Shape) {
			return nil, fmt.Errorf("parameter %q: found %s, wanted %s", p.Name, a.shape, p.Shape)
		}
		args = append(args, a)
	}
	return args, nil
}

// runPlan executes a plan step by step.
func runPlan(p *passes.Plan, given map[string]array) ([]array, error) {
	slots, err := bind(p.Params, given)
	if err != nil {
		return nil, err
	}
	for i, s := range p.Steps {
		var args []array
		for _, a := range s.Args {
			if a < 0 || a >= len(slots) {
				return nil, fmt.Errorf("step %d reads slot %d of %d", i, a, len(slots))
			}
			args = append(args, slots[a])
		}
		out, err := execute(p.Programs[s.Program], args)
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", i, err)
		}
		if len(out) != len(s.Results) {
			return nil, fmt.Errorf("step %d gives %d results for %d slots", i, len(out), len(s.Results))
		}
		for k, r := range s.Results {
			if r != len(slots) {
				return nil, fmt.Errorf("step %d, result %d: found slot %d, wanted the next, %d", i, k, r, len(slots))
			}
			slots = append(slots, out[k])
		}
	}
	var results []array
	for _, r := range p.Results {
		if r < 0 || r >= len(slots) {
			return nil, fmt.Errorf("a result is slot %d of %d", r, len(slots))
		}
		results = append(results, slots[r])
	}
	return results, nil
}

// prepared adds to given what the module's function prepare computes.
func prepared(m *graph.Module, given map[string]array) (map[string]array, error) {
	plan := passes.Prepare(m)
	if plan == nil {
		return given, nil
	}
	out, err := runPlan(plan, given)
	if err != nil {
		return nil, fmt.Errorf("prepare: %w", err)
	}
	all := map[string]array{}
	for k, v := range given {
		all[k] = v
	}
	for i, name := range plan.ResultNames {
		all[name] = out[i]
	}
	return all, nil
}

// evaluate computes a module, with its weights prepared, as one program, or as the plan of Split.
func evaluate(m *graph.Module, given map[string]array, split bool) ([]array, error) {
	given, err := prepared(m, given)
	if err != nil {
		return nil, err
	}
	plan := passes.Whole(m)
	if split {
		if plan, err = passes.Split(m); err != nil {
			return nil, err
		}
		for _, p := range plan.Programs {
			if err := graph.Verify(p); err != nil {
				return nil, fmt.Errorf("a program of the plan does not verify: %w\n%s", err, p)
			}
		}
	}
	return runPlan(plan, given)
}

// arguments makes values for a module's parameters: floats around zero, small whole numbers.
func arguments(m *graph.Module, seed uint64) map[string]array {
	out := map[string]array{}
	rng := rand.New(rand.NewPCG(seed, 1))
	params := m.Entry().Params
	if prep := m.Func(passes.PrepareFunc); prep != nil {
		params = append(slices.Clone(params), prep.Params...)
	}
	for _, p := range params {
		if out[p.Name].data == nil && !passes.IsPrepared(p.Name) {
			out[p.Name] = randomArray(rng, p.Value.Shape)
		}
	}
	return out
}

func randomArray(rng *rand.Rand, shape graph.Shape) array {
	a := array{shape: shape}
	for range shape.Size() {
		v := rng.NormFloat64()
		switch {
		case shape.DType == dtypes.Bool:
			v = float64(rng.IntN(2))
		case shape.DType.IsInt() && shape.DType.IsUnsigned():
			v = float64(rng.IntN(5))
		case shape.DType.IsInt():
			v = float64(rng.IntN(9) - 4)
		}
		lit, err := graph.NewLiteral(shape.DType, v)
		if err != nil {
			panic(err)
		}
		a.data = append(a.data, lit.Data...)
	}
	return a
}

// difference describes where two lists of arrays differ by more than tolerance times one and the size of the value; "" where nowhere. With tolerance 0
// every bit counts, save that all NaNs are one.
func difference(got, want []array, tolerance float64) string {
	if len(got) != len(want) {
		return fmt.Sprintf("found %d results, wanted %d", len(got), len(want))
	}
	for i := range got {
		if !got[i].shape.Equal(want[i].shape) {
			return fmt.Sprintf("result %d: found %s, wanted %s", i, got[i].shape, want[i].shape)
		}
		if bytes.Equal(got[i].data, want[i].data) {
			continue
		}
		x, err := graph.Literal{Data: got[i].data}.Floats(got[i].shape.DType)
		if err != nil {
			return err.Error()
		}
		y, err := graph.Literal{Data: want[i].data}.Floats(want[i].shape.DType)
		if err != nil {
			return err.Error()
		}
		for k := range x {
			same := math.Float64bits(x[k]) == math.Float64bits(y[k]) || math.IsNaN(x[k]) && math.IsNaN(y[k])
			if !same && !(math.Abs(x[k]-y[k]) <= tolerance*(1+math.Abs(y[k])) && tolerance > 0) {
				return fmt.Sprintf("result %d, element %d: found %v, wanted %v", i, k, x[k], y[k])
			}
		}
	}
	return ""
}

func parse(t testing.TB, name, text string) *graph.Module {
	t.Helper()
	m, err := graph.Parse(name, text)
	if err != nil {
		t.Fatal(err)
	}
	if err := graph.Verify(m); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return m
}

func passByName(t testing.TB, name string) passes.Pass {
	t.Helper()
	i := slices.IndexFunc(passes.List, func(p passes.Pass) bool { return p.Name == name })
	if i < 0 {
		t.Fatalf("%q is not a pass; the passes are %s", name, strings.Join(passes.Names(), ", "))
	}
	return passes.List[i]
}
