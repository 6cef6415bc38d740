package tests

import (
	"context"
	"encoding/binary"
	"math"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	peershapes "github.com/gomlx/go-xla/types/shapes"

	"github.com/gomlx/go-xla/stablehlo"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/backends"
	"precast/backends/pjrt"
	"precast/backends/plugin"
	"precast/graph/trace"
	"precast/lower"
	"precast/passes"
)

// TestStableHLO has one computation, softmax(tanh(x w)), written twice: with go-xla's StableHLO builder and as a gomlx function that goes
// through trace, passes and lower. The plugin must take both texts and compute equal values: what our printer writes means what another
// printer's text means.
func TestStableHLO(t *testing.T) {
	needBackend(t, "pjrt")
	const rows, inner, columns = 3, 5, 7
	x, w := shapes.Make(dtypes.Float32, rows, inner), shapes.Make(dtypes.Float32, inner, columns)
	module, err := trace.Function("softmax", func(_ *ml.Graph, in []*ml.Node) []*ml.Node {
		return []*ml.Node{ml.Softmax(ml.Tanh(ml.Dot(in[0], in[1]).Product()), -1)}
	}, x, w)
	if err != nil {
		t.Fatal(err)
	}
	if err := (&passes.Pipeline{Options: passes.DefaultOptions(), Check: true}).Run(module); err != nil {
		t.Fatal(err)
	}
	ours, err := lower.Lower(module)
	if err != nil {
		t.Fatal(err)
	}
	peer := *ours
	peer.Code = peerSoftmax(t, rows, inner, columns)

	installed, err := plugin.Default()
	if err != nil {
		t.Fatal(err)
	}
	lib, err := pjrt.Load(installed.Path)
	if err != nil {
		t.Fatal(err)
	}
	client, err := lib.NewClient(backends.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}()
	run := func(p *lower.Program) []byte {
		exe, err := client.Compile(context.Background(), p, backends.CompileOptions{})
		if err != nil {
			t.Fatalf("%v\n%s", err, p.Code)
		}
		defer exe.Close()
		var args []backends.Buffer
		for _, s := range []shapes.Shape{x, w} {
			data := make([]byte, s.ByteSize())
			for i := range s.Size() {
				v := float32(math.Sin(float64(3*i + s.Dimensions[0])))
				binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(v))
			}
			b, err := client.BufferFromHost(data, s, backends.HostOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Delete()
			args = append(args, b)
		}
		out, err := exe.Execute(context.Background(), args, backends.ExecuteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer out[0].Delete()
		values := make([]byte, 4*rows*columns)
		if err := out[0].ToHost(context.Background(), values); err != nil {
			t.Fatal(err)
		}
		return values
	}
	got, want := run(ours), run(&peer)
	sum := float32(0)
	for i := range rows * columns {
		a := math.Float32frombits(binary.LittleEndian.Uint32(got[4*i:]))
		b := math.Float32frombits(binary.LittleEndian.Uint32(want[4*i:]))
		if d := math.Abs(float64(a - b)); !(d <= 1e-6) {
			t.Errorf("value %d is %v, and %v by go-xla's text", i, a, b)
		}
		sum += a
	}
	if math.Abs(float64(sum-rows)) > 1e-5 {
		t.Errorf("the rows of a softmax sum up to %v, wanted %d", sum, rows)
	}
}

// peerSoftmax is the text that go-xla's builder writes.
func peerSoftmax(t *testing.T, rows, inner, columns int) []byte {
	t.Helper()
	value := func(v *stablehlo.Value, err error) *stablehlo.Value {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	shape := func(dims ...int) peershapes.Shape { return peershapes.Make(dtypes.Float32, dims...) }
	b := stablehlo.New("softmax")
	fn := b.Main()
	x := value(fn.NamedInput("x", shape(rows, inner)))
	w := value(fn.NamedInput("w", shape(inner, columns)))
	y := value(stablehlo.Tanh(value(stablehlo.DotGeneral(x, []int{1}, nil, w, []int{0}, nil).Done())))
	reduce := func(v *stablehlo.Value, start float32, op func(a, b *stablehlo.Value) (*stablehlo.Value, error)) *stablehlo.Value {
		closure := fn.Closure()
		l, r := value(closure.NamedInput("l", shape())), value(closure.NamedInput("r", shape()))
		if err := closure.Return(value(op(l, r))); err != nil {
			t.Fatal(err)
		}
		reduced := value(stablehlo.Reduce(v, value(fn.ConstantFromScalar(start)), closure, 1))
		return value(stablehlo.BroadcastInDim(reduced, shape(rows, columns), []int{0}))
	}
	e := value(stablehlo.Exponential(value(stablehlo.Subtract(y, reduce(y, float32(math.Inf(-1)), stablehlo.Maximum)))))
	if err := fn.Return(value(stablehlo.Divide(e, reduce(e, 0, stablehlo.Add)))); err != nil {
		t.Fatal(err)
	}
	text, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return text
}
