package pjrt

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"precast/backends"
	"precast/backends/backendtest"
	"precast/backends/plugin"
	"precast/lower"
)

// testPlugin loads the plugin that precast uses on this machine, or skips.
func testPlugin(t testing.TB) *Plugin {
	t.Helper()
	found, err := plugin.Default()
	if missing := (*plugin.NotInstalledError)(nil); errors.As(err, &missing) || os.Getenv(plugin.PluginVariable) == "go" {
		t.Skip("no PJRT plugin: run `go run ./cmd/precast plugin install cpu`")
	}
	if err != nil {
		t.Fatal(err)
	}
	p, err := Load(found.Path)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// testClient makes a client; at the end of the test it is closed and nothing may be left.
func testClient(t testing.TB, opts backends.ClientOptions) *Client {
	t.Helper()
	return clientOf(t, testPlugin(t), opts)
}

func clientOf(t testing.TB, p *Plugin, opts backends.ClientOptions) *Client {
	t.Helper()
	before := liveText()
	c, err := p.NewClient(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := c.Close(); err != nil {
			t.Errorf("second close: %v", err)
		}
		deadline := time.Now().Add(2 * time.Second)
		for liveText() != before && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
		if left := liveText(); left != before {
			t.Errorf("live handles: %q at the end of the test, %q at its beginning", left, before)
		}
	})
	return c.(*Client)
}

// TestCompliance runs the suite that every backend runs, on the default plugin; PRECAST_TEST_PLUGINS=all has it run on each CPU plugin
// that is installed.
func TestCompliance(t *testing.T) {
	p := testPlugin(t)
	backendtest.RunAll(t, p, backendtest.Options{Live: Live})
	if os.Getenv("PRECAST_TEST_PLUGINS") != "all" {
		return
	}
	store, err := plugin.Open()
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range store.List() {
		if st.Pin.Target != "cpu" || st.Installed == nil || st.Installed.Path == p.Path() {
			continue
		}
		t.Run(st.Pin.Package, func(t *testing.T) {
			p, err := Load(st.Installed.Path)
			if err != nil {
				t.Fatal(err)
			}
			backendtest.RunAll(t, p, backendtest.Options{Live: Live})
		})
	}
}

var f32x4 = shapes.Make(dtypes.Float32, 4)

// addProgram is a + b; a is donated to the result.
var addProgram = &lower.Program{
	Name: "add",
	Code: []byte(`module @add {
  func.func public @main(%a: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %b: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %a, %b : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}`),
	Params:  []lower.Param{{Name: "a", Shape: f32x4, Donated: true}, {Name: "b", Shape: f32x4}},
	Results: []lower.Result{{Name: "sum", Shape: f32x4}},
}

// slowProgram multiplies an n x n matrix with itself several times. A program that the compiler takes for cheap is executed before
// Execute returns.
func slowProgram(n int) *lower.Program {
	typ := fmt.Sprintf("tensor<%dx%dxf32>", n, n)
	var b strings.Builder
	fmt.Fprintf(&b, "module @slow {\n  func.func public @main(%%v0: %s) -> %s {\n", typ, typ)
	const times = 4
	for i := range times {
		fmt.Fprintf(&b, "    %%v%d = stablehlo.dot_general %%v%d, %%v0, contracting_dims = [1] x [0] : (%s, %s) -> %s\n", i+1, i, typ, typ, typ)
	}
	fmt.Fprintf(&b, "    return %%v%d : %s\n  }\n}\n", times, typ)
	return &lower.Program{Name: "slow", Code: []byte(b.String()), Params: []lower.Param{{Name: "v0", Shape: shapes.Make(dtypes.Float32, n, n)}}}
}

func uploadZeros(t testing.TB, c *Client, shape shapes.Shape) *Buffer {
	t.Helper()
	b, err := c.BufferFromHost(make([]byte, shape.ByteSize()), shape, backends.HostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Delete() })
	return b.(*Buffer)
}

func floatBytes(values ...float32) []byte {
	b := make([]byte, 0, 4*len(values))
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func upload(t testing.TB, c *Client, values ...float32) *Buffer {
	t.Helper()
	b, err := c.BufferFromHost(floatBytes(values...), shapes.Make(dtypes.Float32, len(values)), backends.HostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Delete() })
	return b.(*Buffer)
}

func compile(t testing.TB, c *Client, p *lower.Program, opts backends.CompileOptions) *Executable {
	t.Helper()
	e, err := c.Compile(t.Context(), p, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e.(*Executable)
}

func download(t testing.TB, b backends.Buffer) []byte {
	t.Helper()
	out := make([]byte, b.Shape().ByteSize())
	if err := b.ToHost(t.Context(), out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestDonation checks what becomes of the arguments and that the memory is reused.
func TestDonation(t *testing.T) {
	c := testClient(t, backends.ClientOptions{})
	e := compile(t, c, addProgram, backends.CompileOptions{})
	serialized, err := e.Serialize()
	if err != nil {
		t.Fatal(err)
	}
	again, err := c.LoadExecutable(t.Context(), serialized, backends.CompileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	for name, e := range map[string]backends.Executable{"compiled": e, "loaded": again} {
		for _, donate := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s donate=%v", name, donate), func(t *testing.T) {
				a, b := upload(t, c, 1, 2, 3, 4), upload(t, c, 10, 20, 30, 40)
				before := unsafePointer(t, a)
				var opts backends.ExecuteOptions
				if donate {
					opts.Donate = []int{0}
				}
				r, err := e.Execute(t.Context(), []backends.Buffer{a, b}, opts)
				if err != nil {
					t.Fatal(err)
				}
				defer r[0].Delete()
				if got, want := download(t, r[0]), floatBytes(11, 22, 33, 44); !bytes.Equal(got, want) {
					t.Errorf("found %v, wanted %v", got, want)
				}
				if a.Deleted() != donate || b.Deleted() {
					t.Errorf("deleted: found %v and %v, wanted %v and false", a.Deleted(), b.Deleted(), donate)
				}
				if reused := unsafePointer(t, r[0].(*Buffer)) == before; reused != donate {
					t.Errorf("memory reused: found %v, wanted %v", reused, donate)
				}
				if !donate {
					if got, want := download(t, a), floatBytes(1, 2, 3, 4); !bytes.Equal(got, want) {
						t.Errorf("the argument that wasn't donated changed to %v", got)
					}
					return
				}
				if err := a.Await(t.Context()); backends.CodeOf(err) != backends.FailedPrecondition {
					t.Errorf("await of a donated buffer: found %v, wanted FAILED_PRECONDITION", err)
				}
				_, err = e.Execute(t.Context(), []backends.Buffer{a, b}, opts)
				if backends.CodeOf(err) != backends.FailedPrecondition || !strings.Contains(err.Error(), "argument 0 (a)") {
					t.Errorf("execute with a donated buffer: found %v, wanted FAILED_PRECONDITION that names argument 0 (a)", err)
				}
			})
		}
	}
}

func unsafePointer(t testing.TB, b *Buffer) uintptr {
	t.Helper()
	args := setSize(&handleOutArgs{handle: b.handle})
	if err := b.client.api.call(fnBufferUnsafePointer, unsafe.Pointer(args), "test"); err != nil {
		t.Fatal(err)
	}
	return args.out
}

// TestExecuteErrors checks that a wrong call is refused by us, with the argument's name, before the plugin sees it.
func TestExecuteErrors(t *testing.T) {
	c := testClient(t, backends.ClientOptions{})
	other := clientOf(t, c.plugin, backends.ClientOptions{})
	e := compile(t, c, addProgram, backends.CompileOptions{})
	a, b := upload(t, c, 1, 2, 3, 4), upload(t, c, 1, 2, 3, 4)
	deleted := upload(t, c, 1, 2, 3, 4)
	if err := deleted.Delete(); err != nil {
		t.Fatal(err)
	}
	aligned := alignedBytes(16, 0)
	zero, err := c.BufferFromHost(aligned, f32x4, backends.HostOptions{Semantics: backends.ZeroCopy})
	if err != nil {
		t.Fatal(err)
	}
	defer zero.Delete()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	tests := []struct {
		name string
		ctx  context.Context
		args []backends.Buffer
		opts backends.ExecuteOptions
		code backends.Code
		text string
	}{
		{name: "too few", args: []backends.Buffer{a}, code: backends.InvalidArgument, text: "found 1 arguments, wanted 2"},
		{name: "too many", args: []backends.Buffer{a, b, b}, code: backends.InvalidArgument, text: "found 3 arguments, wanted 2"},
		{name: "shape", args: []backends.Buffer{a, upload(t, c, 1)}, code: backends.InvalidArgument, text: "argument 1 (b): found (Float32)[1], wanted (Float32)[4]"},
		{name: "nil", args: []backends.Buffer{a, nil}, code: backends.InvalidArgument, text: "argument 1 is not a buffer of this client"},
		{name: "other client", args: []backends.Buffer{a, upload(t, other, 1, 2, 3, 4)}, code: backends.InvalidArgument, text: "not a buffer of this client"},
		{name: "deleted", args: []backends.Buffer{a, deleted}, code: backends.FailedPrecondition, text: "argument 1 (b) was deleted or donated"},
		{name: "donate out of range", args: []backends.Buffer{a, b}, opts: backends.ExecuteOptions{Donate: []int{2}}, code: backends.InvalidArgument, text: "donated argument 2"},
		{name: "donate host memory", args: []backends.Buffer{zero, b}, opts: backends.ExecuteOptions{Donate: []int{0}}, code: backends.InvalidArgument, text: "argument 0 (a) may use host memory"},
		{name: "donate what is used twice", args: []backends.Buffer{a, a}, opts: backends.ExecuteOptions{Donate: []int{0}}, code: backends.InvalidArgument, text: "donate"},
		{name: "ended context", ctx: ended, args: []backends.Buffer{a, b}, code: backends.Cancelled, text: "context canceled"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			ctx := test.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			_, err := e.Execute(ctx, test.args, test.opts)
			if backends.CodeOf(err) != test.code || !strings.Contains(err.Error(), test.text) {
				t.Errorf("found %v, wanted %v with %q", err, test.code, test.text)
			}
		})
	}
	if got := download(t, a); !bytes.Equal(got, floatBytes(1, 2, 3, 4)) {
		t.Errorf("an argument of refused calls changed to %v", got)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Execute(t.Context(), []backends.Buffer{a, b}, backends.ExecuteOptions{}); backends.CodeOf(err) != backends.FailedPrecondition {
		t.Errorf("execute after close: found %v, wanted FAILED_PRECONDITION", err)
	}
}

func TestCompileErrors(t *testing.T) {
	c := testClient(t, backends.ClientOptions{})
	ended, cancel := context.WithTimeoutCause(t.Context(), 0, errors.New("out of patience"))
	defer cancel()
	<-ended.Done()
	tests := []struct {
		name string
		ctx  context.Context
		code string
		opts backends.CompileOptions
		want backends.Code
		text string
	}{
		{name: "no code", want: backends.InvalidArgument, text: "found no code"},
		{name: "not MLIR", code: "hello", want: backends.Unknown, text: "error"},
		{name: "type error", code: strings.Replace(string(addProgram.Code), "tensor<4xf32> {", "tensor<5xf32> {", 1), want: backends.Unknown, text: "5xf32"},
		{name: "unknown override", code: string(addProgram.Code), opts: backends.CompileOptions{Overrides: map[string]any{"xla_no_such_option": true}}, want: backends.InvalidArgument, text: "xla_no_such_option"},
		{name: "override of a wrong type", code: string(addProgram.Code), opts: backends.CompileOptions{Overrides: map[string]any{"xla_x": struct{}{}}}, want: backends.InvalidArgument, text: "override xla_x: found a struct {}"},
		{name: "negative partitions", code: string(addProgram.Code), opts: backends.CompileOptions{NumPartitions: -1}, want: backends.InvalidArgument, text: "partitions: found -1"},
		{name: "ids and partitions", code: string(addProgram.Code), opts: backends.CompileOptions{NumPartitions: 2, DeviceIDs: []int{0}}, want: backends.InvalidArgument, text: "found 1 for 2 partitions"},
		{name: "no such device", code: string(addProgram.Code), opts: backends.CompileOptions{DeviceIDs: []int{77}}, want: backends.InvalidArgument, text: "77"},
		{name: "deadline", ctx: ended, code: string(addProgram.Code), want: backends.DeadlineExceeded, text: "out of patience"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			ctx := test.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			e, err := c.Compile(ctx, &lower.Program{Name: "broken", Code: []byte(test.code)}, test.opts)
			if err == nil {
				_ = e.Close()
				t.Fatal("found no error")
			}
			if backends.CodeOf(err) != test.want || !strings.Contains(err.Error(), test.text) || !strings.HasPrefix(err.Error(), "compile broken: ") {
				t.Errorf("found %v, wanted %v with %q", err, test.want, test.text)
			}
		})
	}
	if _, err := c.Compile(ended, addProgram, backends.CompileOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("found %v, wanted an error that is the context's", err)
	}
}

// TestOverride shows that an override reaches the compiler, and that without one a NaN stays a NaN.
func TestOverride(t *testing.T) {
	c := testClient(t, backends.ClientOptions{})
	p := &lower.Program{Name: "max", Code: []byte(`module @max {
  func.func public @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.maximum %a, %b : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}`), Params: []lower.Param{{Name: "a", Shape: f32x4}, {Name: "b", Shape: f32x4}}}
	nan := float32(math.NaN())
	x, y := upload(t, c, nan, nan, 3, 1), upload(t, c, 1, 2, nan, 2)
	nans := func(o map[string]any) (n int) {
		r, err := compile(t, c, p, backends.CompileOptions{Overrides: o}).Execute(t.Context(), []backends.Buffer{x, y}, backends.ExecuteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer r[0].Delete()
		out := download(t, r[0])
		for ; len(out) > 0; out = out[4:] {
			if f := math.Float32frombits(binary.LittleEndian.Uint32(out)); f != f {
				n++
			}
		}
		return n
	}
	if n := nans(nil); n != 3 {
		t.Errorf("maximum with NaN: found %d NaN, wanted 3", n)
	}
	if n := nans(map[string]any{"xla_cpu_enable_fast_min_max": true}); n >= 3 {
		t.Errorf("fast maximum with NaN: found %d NaN, wanted fewer than 3", n)
	}
}

// TestSerialized checks that nothing but whole bytes of ours reach the plugin.
func TestSerialized(t *testing.T) {
	c := testClient(t, backends.ClientOptions{})
	good, err := compile(t, c, addProgram, backends.CompileOptions{}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	load := func(data []byte, opts backends.CompileOptions) error {
		e, err := c.LoadExecutable(t.Context(), data, opts)
		if err == nil {
			_ = e.Close()
		}
		return err
	}
	if err := load(good, backends.CompileOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 1 << (i % 8)
		if err := load(bad, backends.CompileOptions{}); backends.CodeOf(err) != backends.DataLoss {
			t.Fatalf("byte %d flipped: found %v, wanted DATA_LOSS", i, err)
		}
	}
	for _, n := range []int{0, 1, serialHeader - 1, serialHeader, len(good) / 2, len(good) - 1} {
		if err := load(good[:n], backends.CompileOptions{}); backends.CodeOf(err) != backends.DataLoss {
			t.Errorf("cut to %d bytes: found %v, wanted DATA_LOSS", n, err)
		}
	}
	if err := load(append(bytes.Clone(good), 0), backends.CompileOptions{}); backends.CodeOf(err) != backends.DataLoss {
		t.Errorf("a byte more: found %v, wanted DATA_LOSS", err)
	}
	if err := load(good, backends.CompileOptions{NumPartitions: 2}); backends.CodeOf(err) != backends.InvalidArgument {
		t.Errorf("loaded for 2 partitions: found %v, wanted INVALID_ARGUMENT", err)
	}
}

// alignedBytes returns n bytes that begin off bytes after a multiple of the alignment.
func alignedBytes(n, off int) []byte {
	b := make([]byte, n+2*backends.Alignment)
	start := backends.Alignment - int(uintptr(unsafe.Pointer(&b[0]))%backends.Alignment)
	return b[start+off : start+off+n]
}

// TestHostMemory checks when the host memory is free again, and that aligned memory isn't copied.
func TestHostMemory(t *testing.T) {
	c := testClient(t, backends.ClientOptions{})
	shape := shapes.Make(dtypes.Float32, 1024)
	for _, test := range []struct {
		name      string
		semantics backends.HostSemantics
		offset    int
		shares    bool
	}{
		{"copy during call", backends.CopyDuringCall, 0, false},
		{"until transfer completes", backends.UntilTransferCompletes, 0, false},
		{"zero copy", backends.ZeroCopy, 0, true},
		{"zero copy of memory that isn't aligned", backends.ZeroCopy, 4, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			data := alignedBytes(4096, test.offset)
			for i := range data {
				data[i] = byte(i)
			}
			want := bytes.Clone(data)
			var released atomic.Int32
			b, err := c.BufferFromHost(data, shape, backends.HostOptions{Semantics: test.semantics, Release: func() { released.Add(1) }})
			if err != nil {
				t.Fatal(err)
			}
			if test.semantics == backends.CopyDuringCall && released.Load() != 1 {
				t.Errorf("released %d times at the return, wanted once", released.Load())
			}
			if err := b.Await(t.Context()); err != nil {
				t.Fatal(err)
			}
			if shares := unsafePointer(t, b.(*Buffer)) == uintptr(unsafe.Pointer(&data[0])); shares != test.shares {
				t.Errorf("shares memory: found %v, wanted %v", shares, test.shares)
			}
			if test.shares {
				time.Sleep(20 * time.Millisecond)
				if released.Load() != 0 {
					t.Error("released while the buffer uses the memory")
				}
			} else {
				waitFor(t, func() bool { return released.Load() == 1 })
				clear(data)
			}
			if got := download(t, b); !bytes.Equal(got, want) {
				t.Error("the buffer holds other data than was given")
			}
			if err := b.Delete(); err != nil {
				t.Fatal(err)
			}
			waitFor(t, func() bool { return released.Load() == 1 })
		})
	}
}

// TestCloseWaitsForReleases: what owns host memory may unmap it as soon as the client is closed, however late the plugin's callbacks run.
func TestCloseWaitsForReleases(t *testing.T) {
	c := testClient(t, backends.ClientOptions{})
	var released atomic.Int32
	const n = 8
	for range n {
		b, err := c.BufferFromHost(alignedBytes(4096, 0), shapes.Make(dtypes.Float32, 1024), backends.HostOptions{
			Semantics: backends.ZeroCopy,
			Release: func() {
				time.Sleep(50 * time.Millisecond)
				released.Add(1)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Delete(); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if got := released.Load(); got != n {
		t.Errorf("%d Release functions have returned when Close does, wanted %d", got, n)
	}
}

func waitFor(t testing.TB, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited 2 s in vain")
		}
	}
}

func TestBufferErrors(t *testing.T) {
	c := testClient(t, backends.ClientOptions{})
	other := clientOf(t, c.plugin, backends.ClientOptions{})
	fail := func(name string, data []byte, shape shapes.Shape, opts backends.HostOptions, text string) {
		t.Helper()
		opts.Release = func() { t.Errorf("%s: released after an error", name) }
		if _, err := c.BufferFromHost(data, shape, opts); backends.CodeOf(err) != backends.InvalidArgument || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: found %v, wanted INVALID_ARGUMENT with %q", name, err, text)
		}
	}
	fail("too short", make([]byte, 15), f32x4, backends.HostOptions{}, "found 15 bytes, wanted 16")
	fail("no type", nil, shapes.Shape{}, backends.HostOptions{}, "wanted a static array")
	fail("half bytes", make([]byte, 2), shapes.Make(dtypes.Int4, 4), backends.HostOptions{}, "wanted a static array")
	fail("device", make([]byte, 16), f32x4, backends.HostOptions{Device: other.devices[0]}, "belongs to another client")
	fail("semantics", make([]byte, 16), f32x4, backends.HostOptions{Semantics: 9}, "semantics 9")
	b := upload(t, c, 1, 2, 3, 4)
	if err := b.ToHost(t.Context(), make([]byte, 15)); backends.CodeOf(err) != backends.InvalidArgument {
		t.Errorf("copy to 15 bytes: found %v, wanted INVALID_ARGUMENT", err)
	}
	if err := c.Close(); backends.CodeOf(err) != backends.FailedPrecondition || !strings.Contains(err.Error(), "still open") {
		t.Errorf("close with an open buffer: found %v, wanted FAILED_PRECONDITION", err)
	}
	for range 2 {
		if err := b.Delete(); err != nil {
			t.Errorf("delete: %v", err)
		}
	}
	if err := b.ToHost(t.Context(), make([]byte, 16)); backends.CodeOf(err) != backends.FailedPrecondition {
		t.Errorf("copy of a deleted buffer: found %v, wanted FAILED_PRECONDITION", err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := other.BufferFromHost(make([]byte, 16), f32x4, backends.HostOptions{}); backends.CodeOf(err) != backends.FailedPrecondition {
		t.Errorf("buffer of a closed client: found %v, wanted FAILED_PRECONDITION", err)
	}
}

// TestAsynchronous checks that Execute returns before the result is there, that a wait can be given up, that other goroutines run
// meanwhile, and that arguments may be deleted while they are in use.
func TestAsynchronous(t *testing.T) {
	c := testClient(t, backends.ClientOptions{})
	p := slowProgram(1200)
	e := compile(t, c, p, backends.CompileOptions{})
	x := uploadZeros(t, c, p.Params[0].Shape)
	start := time.Now()
	r, err := e.Execute(t.Context(), []backends.Buffer{x}, backends.ExecuteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer r[0].Delete()
	returned := time.Since(start)
	if r[0].Ready() {
		t.Fatalf("the result was ready at once, after %v: the program is too short for this test", returned)
	}
	if err := x.Delete(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if err := r[0].Await(ctx); !errors.Is(err, context.DeadlineExceeded) || backends.CodeOf(err) != backends.DeadlineExceeded {
		t.Errorf("await with a deadline: found %v, wanted DEADLINE_EXCEEDED", err)
	}
	if err := r[0].ToHost(ctx, make([]byte, p.Params[0].Shape.ByteSize())); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("copy with a deadline: found %v, wanted DEADLINE_EXCEEDED", err)
	}
	done := make(chan error)
	go func() { done <- r[0].Await(context.Background()) }()
	ticks := 0
	for running := true; running; {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			running = false
		case <-time.After(time.Millisecond):
			ticks++
		}
	}
	total := time.Since(start)
	if returned > total/4 {
		t.Errorf("Execute returned after %v of %v", returned, total)
	}
	if ticks < 5 {
		t.Errorf("another goroutine ran %d times in %v", ticks, total)
	}
	download(t, r[0])
}

// TestManyWaiters holds more waits than a process could hold threads for at a time.
func TestManyWaiters(t *testing.T) {
	c := testClient(t, backends.ClientOptions{})
	p := slowProgram(600)
	e := compile(t, c, p, backends.CompileOptions{})
	x := uploadZeros(t, c, p.Params[0].Shape)
	r, err := e.Execute(t.Context(), []backends.Buffer{x}, backends.ExecuteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer r[0].Delete()
	const n = 5000
	done := make(chan error, n)
	for range n {
		go func() { done <- r[0].Await(context.Background()) }()
	}
	for range n {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if threads := threadCount(t); threads > 100 {
		t.Errorf("the process has %d threads after %d waits, wanted at most 100", threads, n)
	}
}

func threadCount(t testing.TB) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip(err)
	}
	var n int
	_, rest, _ := strings.Cut(string(status), "\nThreads:")
	if _, err := fmt.Sscan(rest, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestThreads(t *testing.T) {
	t.Setenv("PJRT_NPROC", "")
	count := func(n int) int {
		if err := Threads(n); err != nil {
			t.Fatal(err)
		}
		before := threadCount(t)
		c := clientOf(t, testPlugin(t), backends.ClientOptions{})
		defer c.Close()
		return threadCount(t) - before
	}
	count(1) // the first client starts threads of the process, too
	if one, nine := count(1), count(9); nine < one+8 {
		t.Errorf("clients of 1 and 9 threads start %d and %d threads", one, nine)
	}
	if err := Threads(-1); err == nil {
		t.Error("Threads(-1): found no error")
	}
}

// TestFacts checks what an executable tells about itself.
func TestFacts(t *testing.T) {
	c := testClient(t, backends.ClientOptions{})
	e := compile(t, c, addProgram, backends.CompileOptions{})
	if e.Name() != "add" || e.NumOutputs() != 1 || len(e.Devices()) != 1 {
		t.Errorf("found %q, %d outputs, %d devices", e.Name(), e.NumOutputs(), len(e.Devices()))
	}
	m, err := e.MemoryStats()
	if err != nil {
		t.Fatal(err)
	}
	if m.Arguments != 32 || m.Outputs != 16 || m.Aliased != 16 {
		t.Errorf("memory: found %+v, wanted 32 bytes of arguments and 16 of outputs, all aliased", m)
	}
	costs, err := e.CostAnalysis()
	if err == nil && costs["flops"] != 4 || err != nil && backends.CodeOf(err) != backends.Unimplemented {
		t.Errorf("costs: found %v, %v, wanted 4 flops or UNIMPLEMENTED", costs, err)
	}
	if _, err := c.Devices()[0].MemoryStats(); err != nil && backends.CodeOf(err) != backends.Unimplemented {
		t.Errorf("device memory: found %v, wanted figures or UNIMPLEMENTED", err)
	}
	if c.Platform() != "cpu" || c.PlatformVersion() == "" {
		t.Errorf("platform: found %q, %q", c.Platform(), c.PlatformVersion())
	}
	if top := c.Topology(); top == nil || top.Platform() != "cpu" || len(top.Fingerprint()) != 64 || top.Close() != nil {
		t.Errorf("topology: found %+v", top)
	}
	text, err := e.OptimizedHLO()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"HloModule add, input_output_alias={ {}: (0, {}, may-alias) }", "ENTRY %main", "f32[4]{0} parameter(1)", "add("} {
		if !strings.Contains(text, want) {
			t.Errorf("the optimized HLO has no %q:\n%s", want, text)
		}
	}
}

// TestSharded splits an addition over two of four devices, before and after serialization.
func TestSharded(t *testing.T) {
	c := testClient(t, backends.ClientOptions{DeviceCount: 4})
	if len(c.Devices()) != 4 {
		t.Fatalf("found %d devices, wanted 4", len(c.Devices()))
	}
	whole := shapes.Make(dtypes.Float32, 8)
	for _, shardy := range []bool{false, true} {
		prelude, sharding := "", `{mhlo.sharding = "{devices=[2]0,1}"}`
		if shardy {
			prelude, sharding = `sdy.mesh @mesh = <["x"=2]>`, `{sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}`
		}
		p := &lower.Program{
			Name: "sum",
			Code: []byte(`module @sum attributes {mhlo.num_partitions = 2 : i32} {
  ` + prelude + `
  func.func public @main(%a: tensor<8xf32> ` + sharding + `) -> (tensor<8xf32> ` + sharding + `, tensor<f32>) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.add %a, %a : tensor<8xf32>
    %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    return %0, %1 : tensor<8xf32>, tensor<f32>
  }
}`),
			Params: []lower.Param{{Name: "a", Shape: whole}},
		}
		opts := backends.CompileOptions{NumPartitions: 2, DeviceIDs: []int{2, 3}, Shardy: shardy}
		e := compile(t, c, p, opts)
		serialized, err := e.Serialize()
		if err != nil {
			t.Fatal(err)
		}
		again, err := c.LoadExecutable(t.Context(), serialized, opts)
		if err != nil {
			t.Fatal(err)
		}
		defer again.Close()
		for name, e := range map[string]backends.Sharded{"compiled": e, "loaded": again.(backends.Sharded)} {
			t.Run(fmt.Sprintf("%s shardy=%v", name, shardy), func(t *testing.T) {
				devices := e.Devices()
				if len(devices) != 2 || devices[0].ID() != 2 || devices[1].ID() != 3 {
					t.Fatalf("devices: found %v, wanted 2 and 3", devices)
				}
				var args [][]backends.Buffer
				for i, d := range devices {
					f := float32(4 * i)
					b, err := c.BufferFromHost(floatBytes(f, f+1, f+2, f+3), f32x4, backends.HostOptions{Device: d})
					if err != nil {
						t.Fatal(err)
					}
					defer b.Delete()
					args = append(args, []backends.Buffer{b})
				}
				r, err := e.ExecuteSharded(t.Context(), args, backends.ExecuteOptions{})
				if err != nil {
					t.Fatal(err)
				}
				for i, want := range [][]byte{floatBytes(0, 2, 4, 6), floatBytes(8, 10, 12, 14)} {
					if got := download(t, r[i][0]); !bytes.Equal(got, want) || !r[i][0].Shape().Equal(f32x4) || r[i][0].Device() != devices[i] {
						t.Errorf("shard %d: found %v of %s on device %d, wanted %v", i, got, r[i][0].Shape(), r[i][0].Device().ID(), want)
					}
					if got := download(t, r[i][1]); !bytes.Equal(got, floatBytes(56)) {
						t.Errorf("sum on shard %d: found %v, wanted 56", i, got)
					}
					_, _ = r[i][0].Delete(), r[i][1].Delete()
				}
				args[0][0], args[1][0] = args[1][0], args[0][0]
				if _, err := e.ExecuteSharded(t.Context(), args, backends.ExecuteOptions{}); backends.CodeOf(err) != backends.InvalidArgument {
					t.Errorf("arguments on each other's devices: found %v, wanted INVALID_ARGUMENT", err)
				}
				if _, err := e.Execute(t.Context(), args[0], backends.ExecuteOptions{}); backends.CodeOf(err) != backends.InvalidArgument {
					t.Errorf("arguments of one partition: found %v, wanted INVALID_ARGUMENT", err)
				}
			})
		}
	}
}

// TestCompileFor compiles for the client's own topology; the result can be loaded.
func TestCompileFor(t *testing.T) {
	c := testClient(t, backends.ClientOptions{})
	compiled, err := c.plugin.CompileFor(t.Context(), c.Topology(), addProgram, backends.CompileOptions{})
	if code := backends.CodeOf(err); code == backends.Unimplemented || code == backends.NotFound {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer compiled.Close()
	if _, err := compiled.MemoryStats(); err != nil {
		t.Error(err)
	}
	serialized, err := compiled.Serialize()
	if err != nil {
		t.Fatal(err)
	}
	e, err := c.LoadExecutable(t.Context(), serialized, backends.CompileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	r, err := e.Execute(t.Context(), []backends.Buffer{upload(t, c, 1, 2, 3, 4), upload(t, c, 1, 1, 1, 1)}, backends.ExecuteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer r[0].Delete()
	if got := download(t, r[0]); !bytes.Equal(got, floatBytes(2, 3, 4, 5)) {
		t.Errorf("found %v, wanted 2 3 4 5", got)
	}
}
