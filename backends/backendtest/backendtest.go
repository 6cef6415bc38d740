// Package backendtest is the compliance suite of package backends: whatever implements its interfaces runs RunAll. Programs are graphs
// in text form, and expected values are written beside them or computed by plain loops here, so that no backend is its own oracle.
package backendtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"precast/backends"
	"precast/graph"
	"precast/lower"
)

// Options are what the suite has to know about a backend.
type Options struct {
	// Live returns the counts of live handles by kind, which must be zero after each part of the suite; nil where there are none.
	Live func() map[string]int64
	// Skip lists tests by name ("ops/sort_pairs") with the reason why the backend can't do what they ask for.
	Skip map[string]string
	// Client are the options of the clients that the suite makes, and Compile those of its programs.
	Client  backends.ClientOptions
	Compile backends.CompileOptions
}

// RunAll runs the suite.
func RunAll(t *testing.T, p backends.Plugin, opts Options) {
	s := &suite{plugin: p, opts: opts}
	t.Run("ops", s.ops)
	t.Run("dtypes", s.dtypes)
	t.Run("programs", s.programs)
	t.Run("buffers", s.buffers)
	t.Run("execution", s.execution)
	t.Run("serialization", s.serialization)
	t.Run("lifetimes", s.lifetimes)
}

type suite struct {
	plugin backends.Plugin
	opts   Options
}

// client makes a client for one test and checks at its end that nothing is left.
func (s *suite) client(t *testing.T) backends.Client {
	t.Helper()
	if reason, ok := s.opts.Skip[strings.SplitN(t.Name(), "/", 2)[1]]; ok {
		t.Skip(reason)
	}
	c, err := s.plugin.NewClient(s.opts.Client)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close the client: %v", err)
		}
		s.checkLive(t)
	})
	return c
}

// checkLive fails where handles are left; events may take a moment to go.
func (s *suite) checkLive(t *testing.T) {
	t.Helper()
	if s.opts.Live == nil {
		return
	}
	var left string
	for range 200 {
		left = ""
		for kind, n := range s.opts.Live() {
			if n != 0 {
				left += " " + kind + "=" + strconv.FormatInt(n, 10)
			}
		}
		if left == "" {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Errorf("live handles:%s", left)
}

// Tensor is an array in host memory.
type Tensor struct {
	Shape shapes.Shape
	Data  []byte
}

// T makes a tensor of a shape such as "f32[2,3]" from its values in row-major order, rounded to the element type; a single value
// fills the shape. It panics on a value that doesn't fit.
func T(shape string, values ...float64) Tensor {
	name, dims, ok := strings.Cut(strings.TrimSuffix(shape, "]"), "[")
	d, known := graph.ParseDType(name)
	if !ok || !known {
		panic("BUG: backendtest: " + shape + " is not a shape")
	}
	s := shapes.Shape{DType: d}
	if dims != "" {
		for _, x := range strings.Split(dims, ",") {
			n, err := strconv.Atoi(x)
			if err != nil {
				panic("BUG: backendtest: " + shape + " is not a shape")
			}
			s.Dimensions = append(s.Dimensions, n)
		}
	}
	if n := s.Size(); len(values) == 1 && n != 1 {
		all := make([]float64, n)
		for i := range all {
			all[i] = values[0]
		}
		values = all
	}
	if len(values) != s.Size() {
		panic("BUG: backendtest: " + shape + " has " + strconv.Itoa(len(values)) + " values")
	}
	l, err := graph.NewLiteral(d, values...)
	if err != nil {
		panic("BUG: backendtest: " + err.Error())
	}
	return Tensor{Shape: s, Data: l.Data}
}

// floats are the tensor's values.
func (x Tensor) floats() []float64 {
	v, err := graph.Literal{Data: x.Data}.Floats(x.Shape.DType)
	if err != nil {
		panic("BUG: backendtest: " + err.Error())
	}
	return v
}

// Parse parses and checks a graph.
func Parse(t testing.TB, text string) *graph.Module {
	t.Helper()
	if !strings.Contains(text, "func @") {
		text = "func @main {\n" + text + "\n}\n"
	}
	if !strings.HasPrefix(strings.TrimSpace(text), "module") {
		text = "module @test\n" + text
	}
	m, err := graph.Parse("test", text)
	if err != nil {
		t.Fatal(err)
	}
	if err := graph.Verify(m); err != nil {
		t.Fatal(err)
	}
	return m
}

func (s *suite) compile(t testing.TB, c backends.Client, text string) backends.Executable {
	t.Helper()
	return Compile(t, c, Parse(t, text), s.opts.Compile)
}

// Compile lowers and compiles a module; the executable is closed at the end of the test.
func Compile(t testing.TB, c backends.Client, m *graph.Module, opts backends.CompileOptions) backends.Executable {
	t.Helper()
	p, err := lower.Lower(m)
	if err != nil {
		t.Fatal(err)
	}
	e, err := c.Compile(context.Background(), p, opts)
	if err != nil {
		if len(p.Code) > 4000 {
			t.Fatal(err)
		}
		t.Fatalf("%v\n%s", err, p.Code)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close the executable: %v", err)
		}
	})
	return e
}

// Upload makes a device buffer; it is deleted at the end of the test.
func Upload(t testing.TB, c backends.Client, x Tensor) backends.Buffer {
	t.Helper()
	b, err := c.BufferFromHost(x.Data, x.Shape, backends.HostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Delete(); err != nil {
			t.Errorf("delete a buffer: %v", err)
		}
	})
	return b
}

// Download copies a buffer to the host.
func Download(t testing.TB, b backends.Buffer) Tensor {
	t.Helper()
	x := Tensor{Shape: b.Shape(), Data: make([]byte, b.Shape().DType.SizeForDimensions(b.Shape().Size()))}
	if err := b.ToHost(context.Background(), x.Data); err != nil {
		t.Fatal(err)
	}
	return x
}

// Run executes on host tensors and returns the results.
func Run(t testing.TB, c backends.Client, e backends.Executable, args ...Tensor) []Tensor {
	t.Helper()
	in := make([]backends.Buffer, len(args))
	for i, a := range args {
		in[i] = Upload(t, c, a)
	}
	out, err := e.Execute(context.Background(), in, backends.ExecuteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range out {
		t.Cleanup(func() { _ = b.Delete() })
	}
	results := make([]Tensor, len(out))
	for i, b := range out {
		results[i] = Download(t, b)
	}
	return results
}

// Compare checks got against want: of floats the difference may be up to tolerance times 1 or the wanted magnitude, whichever is larger, and
// NaNs equal each other; with a tolerance of 0, and for all other types, the bits must be equal, but for those of NaNs.
func Compare(t testing.TB, name string, got, want Tensor, tolerance float64) {
	t.Helper()
	if !got.Shape.Equal(want.Shape) {
		t.Errorf("%s: found %s, wanted %s", name, got.Shape, want.Shape)
		return
	}
	if bytes.Equal(got.Data, want.Data) {
		return
	}
	if !got.Shape.DType.IsFloat() {
		if got.Shape.DType.IsComplex() {
			t.Errorf("%s: found bytes %x, wanted %x", name, got.Data, want.Data)
			return
		}
		t.Errorf("%s: found %v, wanted %v", name, got.floats(), want.floats())
		return
	}
	g, w := got.floats(), want.floats()
	bad := 0
	for i := range g {
		ok := g[i] == w[i] && (tolerance > 0 || math.Signbit(g[i]) == math.Signbit(w[i])) ||
			math.IsNaN(g[i]) && math.IsNaN(w[i]) ||
			math.Abs(g[i]-w[i]) <= tolerance*max(1, math.Abs(w[i]))
		if ok {
			continue
		}
		if bad++; bad <= 5 {
			t.Errorf("%s: element %d of %d: found %v, wanted %v (tolerance %g)", name, i, len(g), g[i], w[i], tolerance)
		}
	}
	if bad > 5 {
		t.Errorf("%s: %d of %d elements differ", name, bad, len(g))
	}
}

// bits32 is a float32 tensor of the given bits.
func bits32(dims []int, bits ...uint32) Tensor {
	var data []byte
	for _, b := range bits {
		data = binary.LittleEndian.AppendUint32(data, b)
	}
	return Tensor{Shape: shapes.Make(dtypes.Float32, dims...), Data: data}
}
