package backendtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"precast/backends"
	"precast/lower"
)

// wantCode fails unless err has one of the codes.
func wantCode(t *testing.T, what string, err error, codes ...backends.Code) {
	t.Helper()
	got := backends.CodeOf(err)
	for _, c := range codes {
		if got == c {
			return
		}
	}
	t.Errorf("%s: found %v (%v), wanted %v", what, err, got, codes)
}

const double = `%0 = input "x" : f32[4]
	%1 = add %0, %0 : f32[4]
	return %1`

// buffers checks host transfers.
func (s *suite) buffers(t *testing.T) {
	ctx := context.Background()
	c := s.client(t)
	t.Run("round_trip", func(t *testing.T) {
		for _, x := range []Tensor{count("f32[3,5]"), T("i64[]", -5), T("bool[4]", 1, 0, 0, 1), T("f32[0,3]"), Random("bf16[7]", 1), bits32([]int{2}, 0x7fc00001, 0x80000000)} {
			b := Upload(t, c, x)
			if err := b.Await(ctx); err != nil {
				t.Error(err)
			}
			if !b.Ready() || b.Deleted() {
				t.Errorf("%s: ready %v, deleted %v, wanted true and false", x.Shape, b.Ready(), b.Deleted())
			}
			if b.Device() == nil {
				t.Errorf("%s: no device", x.Shape)
			}
			got := Download(t, b)
			if string(got.Data) != string(x.Data) || !got.Shape.Equal(x.Shape) {
				t.Errorf("%s: found %x, wanted %x", x.Shape, got.Data, x.Data)
			}
		}
	})
	t.Run("wrong_sizes", func(t *testing.T) {
		_, err := c.BufferFromHost(make([]byte, 15), shapes.Make(dtypes.Float32, 4), backends.HostOptions{})
		wantCode(t, "too few bytes", err, backends.InvalidArgument)
		_, err = c.BufferFromHost(make([]byte, 17), shapes.Make(dtypes.Float32, 4), backends.HostOptions{})
		wantCode(t, "too many bytes", err, backends.InvalidArgument)
		b := Upload(t, c, T("f32[4]", 1, 2, 3, 4))
		wantCode(t, "ToHost to too few bytes", b.ToHost(ctx, make([]byte, 8)), backends.InvalidArgument)
		wantCode(t, "ToHost to too many bytes", b.ToHost(ctx, make([]byte, 32)), backends.InvalidArgument)
	})
	t.Run("copied", func(t *testing.T) {
		x := T("f32[4]", 1, 2, 3, 4)
		released := 0
		var mu sync.Mutex
		b, err := c.BufferFromHost(x.Data, x.Shape, backends.HostOptions{Semantics: backends.CopyDuringCall, Release: func() {
			mu.Lock()
			released++
			mu.Unlock()
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Delete()
		clear(x.Data)
		Compare(t, "after the host memory changed", Download(t, b), T("f32[4]", 1, 2, 3, 4), 0)
		mu.Lock()
		defer mu.Unlock()
		if released != 1 {
			t.Errorf("Release was called %d times, wanted 1", released)
		}
	})
	for name, semantics := range map[string]backends.HostSemantics{"until_transfer": backends.UntilTransferCompletes, "zero_copy": backends.ZeroCopy} {
		t.Run(name, func(t *testing.T) {
			// Aligned and not aligned.
			for offset := range 2 {
				x := count("f32[1000]")
				memory := make([]byte, len(x.Data)+2*backends.Alignment)
				data := memory[backends.Alignment+4*offset:][:len(x.Data)]
				copy(data, x.Data)
				released := make(chan struct{})
				b, err := c.BufferFromHost(data, x.Shape, backends.HostOptions{Semantics: semantics, Release: func() { close(released) }})
				if err != nil {
					t.Fatal(err)
				}
				Compare(t, "values", Download(t, b), x, 0)
				e := s.compile(t, c, "%0 = input \"x\" : f32[1000]\n%1 = negate %0 : f32[1000]\nreturn %1")
				out, err := e.Execute(ctx, []backends.Buffer{b}, backends.ExecuteOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if err := b.Delete(); err != nil {
					t.Error(err)
				}
				got := Download(t, out[0])
				if err := out[0].Delete(); err != nil {
					t.Error(err)
				}
				if v := got.floats()[999]; v != -999 {
					t.Errorf("found %v, wanted -999", v)
				}
				<-released
			}
		})
	}
	t.Run("deleted", func(t *testing.T) {
		b := Upload(t, c, T("f32[4]", 1, 2, 3, 4))
		for range 2 {
			if err := b.Delete(); err != nil {
				t.Error(err)
			}
		}
		if !b.Deleted() {
			t.Error("Deleted is false after Delete")
		}
		wantCode(t, "ToHost of a deleted buffer", b.ToHost(ctx, make([]byte, 16)), backends.FailedPrecondition)
		wantCode(t, "Await of a deleted buffer", b.Await(ctx), backends.FailedPrecondition)
		if got := b.Shape(); !got.Equal(shapes.Make(dtypes.Float32, 4)) {
			t.Errorf("shape of a deleted buffer: found %s, wanted f32[4]", got)
		}
	})
	t.Run("canceled", func(t *testing.T) {
		done, cancel := context.WithCancel(ctx)
		cancel()
		e := s.compile(t, c, double)
		b := Upload(t, c, T("f32[4]", 1, 2, 3, 4))
		if _, err := e.Execute(done, []backends.Buffer{b}, backends.ExecuteOptions{}); !errors.Is(err, context.Canceled) {
			t.Errorf("Execute: found %v, wanted context.Canceled", err)
		}
		p, err := lower.Lower(Parse(t, double))
		if err != nil {
			t.Fatal(err)
		}
		if e, err := c.Compile(done, p, s.opts.Compile); !errors.Is(err, context.Canceled) {
			t.Errorf("Compile: found %v, wanted context.Canceled", err)
			if err == nil {
				e.Close()
			}
		}
	})
}

// execution checks arguments, donation, chains and concurrency.
func (s *suite) execution(t *testing.T) {
	ctx := context.Background()
	c := s.client(t)
	four := T("f32[4]", 1, 2, 3, 4)
	t.Run("wrong_arguments", func(t *testing.T) {
		e := s.compile(t, c, double)
		good := Upload(t, c, four)
		deleted := Upload(t, c, four)
		if err := deleted.Delete(); err != nil {
			t.Fatal(err)
		}
		for _, k := range []struct {
			name   string
			args   []backends.Buffer
			donate []int
			codes  []backends.Code
		}{
			{"none", nil, nil, []backends.Code{backends.InvalidArgument}},
			{"two", []backends.Buffer{good, good}, nil, []backends.Code{backends.InvalidArgument}},
			{"nil", []backends.Buffer{nil}, nil, []backends.Code{backends.InvalidArgument}},
			{"shape", []backends.Buffer{Upload(t, c, T("f32[5]", 1))}, nil, []backends.Code{backends.InvalidArgument}},
			{"rank", []backends.Buffer{Upload(t, c, T("f32[4,1]", 1))}, nil, []backends.Code{backends.InvalidArgument}},
			{"dtype", []backends.Buffer{Upload(t, c, T("i32[4]", 1))}, nil, []backends.Code{backends.InvalidArgument}},
			{"deleted", []backends.Buffer{deleted}, nil, []backends.Code{backends.FailedPrecondition, backends.InvalidArgument}},
			{"donated position", []backends.Buffer{good}, []int{1}, []backends.Code{backends.InvalidArgument}},
		} {
			out, err := e.Execute(ctx, k.args, backends.ExecuteOptions{Donate: k.donate})
			wantCode(t, k.name, err, k.codes...)
			for _, b := range out {
				b.Delete()
			}
		}
		// The executable and the argument are still good.
		out, err := e.Execute(ctx, []backends.Buffer{good}, backends.ExecuteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		Compare(t, "after the errors", Download(t, out[0]), T("f32[4]", 2, 4, 6, 8), 0)
		out[0].Delete()
	})
	donating := `%0 = input "x" : f32[4] donated
		%1 = input "y" : f32[4]
		%2 = add %0, %1 : f32[4]
		return %2`
	t.Run("donation", func(t *testing.T) {
		e := s.compile(t, c, donating)
		x, y := Upload(t, c, four), Upload(t, c, T("f32[4]", 10, 20, 30, 40))
		out, err := e.Execute(ctx, []backends.Buffer{x, y}, backends.ExecuteOptions{Donate: []int{0}})
		if err != nil {
			t.Fatal(err)
		}
		defer out[0].Delete()
		if !x.Deleted() || y.Deleted() {
			t.Errorf("deleted: x %v, y %v, wanted true and false", x.Deleted(), y.Deleted())
		}
		wantCode(t, "ToHost of a donated buffer", x.ToHost(ctx, make([]byte, 16)), backends.FailedPrecondition)
		_, err = e.Execute(ctx, []backends.Buffer{x, y}, backends.ExecuteOptions{})
		wantCode(t, "executing on a donated buffer", err, backends.FailedPrecondition, backends.InvalidArgument)
		Compare(t, "sum", Download(t, out[0]), T("f32[4]", 11, 22, 33, 44), 0)
		Compare(t, "the argument that is kept", Download(t, y), T("f32[4]", 10, 20, 30, 40), 0)
		if err := x.Delete(); err != nil {
			t.Errorf("delete a donated buffer: %v", err)
		}
	})
	t.Run("donation_not_made", func(t *testing.T) {
		// The program may take the first argument's memory, the execution doesn't offer it.
		e := s.compile(t, c, donating)
		x, y := Upload(t, c, four), Upload(t, c, T("f32[4]", 10, 20, 30, 40))
		for range 2 {
			out, err := e.Execute(ctx, []backends.Buffer{x, y}, backends.ExecuteOptions{})
			if err != nil {
				t.Fatal(err)
			}
			Compare(t, "sum", Download(t, out[0]), T("f32[4]", 11, 22, 33, 44), 0)
			out[0].Delete()
		}
		Compare(t, "the first argument", Download(t, x), four, 0)
	})
	t.Run("donation_and_argument", func(t *testing.T) {
		e := s.compile(t, c, donating)
		x := Upload(t, c, four)
		out, err := e.Execute(ctx, []backends.Buffer{x, x}, backends.ExecuteOptions{Donate: []int{0}})
		wantCode(t, "one buffer donated and kept", err, backends.InvalidArgument)
		for _, b := range out {
			b.Delete()
		}
	})
	t.Run("same_buffer_twice", func(t *testing.T) {
		e := s.compile(t, c, donating)
		x := Upload(t, c, four)
		out, err := e.Execute(ctx, []backends.Buffer{x, x}, backends.ExecuteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer out[0].Delete()
		Compare(t, "sum", Download(t, out[0]), T("f32[4]", 2, 4, 6, 8), 0)
	})
	t.Run("donation_loop", func(t *testing.T) {
		// A step loop: each step's result is the next one's donated argument, nothing is waited for.
		e := s.compile(t, c, donating)
		one := Upload(t, c, T("f32[4]", 1))
		var x backends.Buffer = Upload(t, c, four)
		for range 100 {
			out, err := e.Execute(ctx, []backends.Buffer{x, one}, backends.ExecuteOptions{Donate: []int{0}})
			if err != nil {
				t.Fatal(err)
			}
			x = out[0]
		}
		defer x.Delete()
		Compare(t, "after 100 steps", Download(t, x), T("f32[4]", 101, 102, 103, 104), 0)
	})
	t.Run("donated_while_in_use", func(t *testing.T) {
		// An execution that was started before keeps seeing the old values.
		slow := s.compile(t, c, "%0 = input \"x\" : f32[64,64]\n%1 = dot_general %0, %0 {lhs_contracting = [1], rhs_contracting = [0]} : f32[64,64]\n%2 = subtract %0, %1 : f32[64,64]\nreturn %2")
		take := s.compile(t, c, "%0 = input \"x\" : f32[64,64] donated\n%1 = negate %0 : f32[64,64]\nreturn %1")
		for range 20 {
			x := Upload(t, c, T("f32[64,64]", 1))
			first, err := slow.Execute(ctx, []backends.Buffer{x}, backends.ExecuteOptions{})
			if err != nil {
				t.Fatal(err)
			}
			second, err := take.Execute(ctx, []backends.Buffer{x}, backends.ExecuteOptions{Donate: []int{0}})
			if err != nil {
				t.Fatal(err)
			}
			Compare(t, "first", Download(t, first[0]), T("f32[64,64]", -63), 0)
			Compare(t, "second", Download(t, second[0]), T("f32[64,64]", -1), 0)
			first[0].Delete()
			second[0].Delete()
		}
	})
	t.Run("deleted_after_start", func(t *testing.T) {
		e := s.compile(t, c, double)
		x := Upload(t, c, four)
		out, err := e.Execute(ctx, []backends.Buffer{x}, backends.ExecuteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer out[0].Delete()
		if err := x.Delete(); err != nil {
			t.Fatal(err)
		}
		Compare(t, "result", Download(t, out[0]), T("f32[4]", 2, 4, 6, 8), 0)
	})
	t.Run("results_dropped", func(t *testing.T) {
		e := s.compile(t, c, double)
		x := Upload(t, c, four)
		for range 10 {
			out, err := e.Execute(ctx, []backends.Buffer{x}, backends.ExecuteOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if err := out[0].Delete(); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("concurrent", func(t *testing.T) {
		e := s.compile(t, c, `%0 = input "x" : f32[32,32]
			%1 = input "y" : f32[]
			%2 = broadcast_in_dim %1 {broadcast_dimensions = []} : f32[32,32]
			%3 = add %0, %2 : f32[32,32]
			%4 = dot_general %3, %0 {lhs_contracting = [1], rhs_contracting = [0], precision = "HIGHEST"} : f32[32,32]
			return %4`)
		x := Upload(t, c, T("f32[32,32]", 1))
		var wg sync.WaitGroup
		errs := make(chan error, 8)
		for g := range 8 {
			wg.Go(func() {
				y := T("f32[]", float64(g))
				b, err := c.BufferFromHost(y.Data, y.Shape, backends.HostOptions{})
				if err != nil {
					errs <- err
					return
				}
				defer b.Delete()
				for range 10 {
					out, err := e.Execute(ctx, []backends.Buffer{x, b}, backends.ExecuteOptions{})
					if err != nil {
						errs <- err
						return
					}
					got := Tensor{Shape: out[0].Shape(), Data: make([]byte, 32*32*4)}
					if err := out[0].ToHost(ctx, got.Data); err != nil {
						errs <- err
					}
					out[0].Delete()
					for i, v := range got.floats() {
						if want := 32 * float64(1+g); v != want {
							errs <- fmt.Errorf("execution %d, element %d: found %v, wanted %v", g, i, v, want)
							return
						}
					}
				}
			})
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			t.Error(err)
		}
	})
	t.Run("deterministic", func(t *testing.T) {
		e := s.compile(t, c, "%0 = input \"x\" : f32[64,200]\n%1 = dot_general %0, %0 {lhs_contracting = [1], rhs_contracting = [1]} : f32[64,64]\n%2 = reduce %1 {combiner = \"add\", dimensions = [0, 1]} : f32[]\nreturn %1, %2")
		x := Random("f32[64,200]", 3)
		first := Run(t, c, e, x)
		for range 5 {
			for i, got := range Run(t, c, e, x) {
				if string(got.Data) != string(first[i].Data) {
					t.Fatalf("result %d differs from run to run", i)
				}
			}
		}
	})
	t.Run("facts", func(t *testing.T) {
		e := s.compile(t, c, donating)
		if e.NumOutputs() != 1 {
			t.Errorf("NumOutputs: found %d, wanted 1", e.NumOutputs())
		}
		if m, err := e.MemoryStats(); err != nil {
			wantCode(t, "MemoryStats", err, backends.Unimplemented)
		} else if m.Arguments != 32 || m.Outputs != 16 || m.Temporaries < 0 || m.Aliased != 16 {
			t.Errorf("MemoryStats: found %+v, wanted 32 bytes of arguments, 16 of outputs, all aliased", m)
		}
		if cost, err := e.CostAnalysis(); err != nil {
			wantCode(t, "CostAnalysis", err, backends.Unimplemented)
		} else if len(cost) == 0 {
			t.Error("CostAnalysis: found nothing")
		}
		if text, err := e.OptimizedHLO(); err != nil {
			wantCode(t, "OptimizedHLO", err, backends.Unimplemented)
		} else if text == "" {
			t.Error("OptimizedHLO: found nothing")
		}
	})
}

// serialization checks that an executable survives being written and read.
func (s *suite) serialization(t *testing.T) {
	ctx := context.Background()
	c := s.client(t)
	e := s.compile(t, c, `module @"a name" 
		func @main {
			%0 = input "x" : f32[2,3] donated
			%1 = weight "layer.0.weight" : f32[4,3]
			%2 = dot_general %0, %1 {lhs_contracting = [1], rhs_contracting = [1], precision = "HIGHEST"} : f32[2,4] loc("layer.0")
			%3 = constant {value = dense<f32: 0.1, -0.0, inf, 1e-30>} : f32[4]
			%4 = broadcast_in_dim %3 {broadcast_dimensions = [1]} : f32[2,4]
			%5 = add %2, %4 : f32[2,4]
			return %5 "y"
		}`)
	x, w := Random("f32[2,3]", 1), Random("f32[4,3]", 2)
	want := Run(t, c, e, x, w)
	data, err := e.Serialize()
	if backends.CodeOf(err) == backends.Unimplemented {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := c.LoadExecutable(ctx, data, s.opts.Compile)
	if err != nil {
		t.Fatal(err)
	}
	defer loaded.Close()
	clear(data) // the bytes may be reused after the call
	got := Run(t, c, loaded, x, w)
	if string(got[0].Data) != string(want[0].Data) {
		t.Error("the loaded executable gives other bits")
	}
	if loaded.NumOutputs() != 1 {
		t.Errorf("NumOutputs of the loaded executable: found %d, wanted 1", loaded.NumOutputs())
	}
	in := Upload(t, c, T("f32[2,4]", 0))
	_, err = loaded.Execute(ctx, []backends.Buffer{in, in}, backends.ExecuteOptions{})
	wantCode(t, "wrong arguments of a loaded executable", err, backends.InvalidArgument)
	_, err = loaded.Execute(ctx, []backends.Buffer{in}, backends.ExecuteOptions{})
	wantCode(t, "too few arguments of a loaded executable", err, backends.InvalidArgument)
	again, err := loaded.Serialize()
	if err != nil && backends.CodeOf(err) != backends.Unimplemented {
		t.Errorf("serialize a loaded executable: %v", err)
	} else if err == nil && len(again) == 0 {
		t.Error("serialize a loaded executable: found no bytes")
	}
}

// lifetimes checks closing in every order.
func (s *suite) lifetimes(t *testing.T) {
	ctx := context.Background()
	t.Run("client_last", func(t *testing.T) {
		c := s.client(t)
		x := T("f32[4]", 1, 2, 3, 4)
		b, err := c.BufferFromHost(x.Data, x.Shape, backends.HostOptions{})
		if err != nil {
			t.Fatal(err)
		}
		wantCode(t, "closing a client with a buffer", c.Close(), backends.FailedPrecondition)
		if err := b.Delete(); err != nil {
			t.Fatal(err)
		}
		p, err := lower.Lower(Parse(t, double))
		if err != nil {
			t.Fatal(err)
		}
		e, err := c.Compile(ctx, p, s.opts.Compile)
		if err != nil {
			t.Fatal(err)
		}
		wantCode(t, "closing a client with an executable", c.Close(), backends.FailedPrecondition)
		for range 2 {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
		for range 2 {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("results_outlive_the_executable", func(t *testing.T) {
		c := s.client(t)
		p, err := lower.Lower(Parse(t, double))
		if err != nil {
			t.Fatal(err)
		}
		e, err := c.Compile(ctx, p, s.opts.Compile)
		if err != nil {
			t.Fatal(err)
		}
		x := Upload(t, c, T("f32[4]", 1, 2, 3, 4))
		out, err := e.Execute(ctx, []backends.Buffer{x}, backends.ExecuteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer out[0].Delete()
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		Compare(t, "result", Download(t, out[0]), T("f32[4]", 2, 4, 6, 8), 0)
		_, err = e.Execute(ctx, []backends.Buffer{x}, backends.ExecuteOptions{})
		wantCode(t, "executing a closed executable", err, backends.FailedPrecondition)
	})
	t.Run("devices", func(t *testing.T) {
		c := s.client(t)
		if len(c.Devices()) == 0 {
			t.Fatal("the client has no device")
		}
		if c.Platform() == "" {
			t.Error("the platform has no name")
		}
		d := c.Devices()[0]
		x := T("f32[4]", 1, 2, 3, 4)
		b, err := c.BufferFromHost(x.Data, x.Shape, backends.HostOptions{Device: d})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Delete()
		if b.Device() == nil || b.Device().ID() != d.ID() {
			t.Errorf("the buffer is not on device %d", d.ID())
		}
		if _, err := d.MemoryStats(); err != nil {
			wantCode(t, "MemoryStats of a device", err, backends.Unimplemented)
		}
		if topology := c.Topology(); topology != nil && topology.Fingerprint() == "" {
			t.Error("the topology has no fingerprint")
		}
	})
}
