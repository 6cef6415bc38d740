package gobackend

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"precast/backends"
	"precast/backends/backendtest"
	"precast/lower"
)

func testClient(t *testing.T) backends.Client {
	t.Helper()
	c, err := Plugin().NewClient(backends.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		for kind, n := range Live() {
			if n != 0 {
				t.Errorf("%d live handles of kind %s", n, kind)
			}
		}
	})
	return c
}

func wantError(t *testing.T, what string, err error, code backends.Code, text string) {
	t.Helper()
	if backends.CodeOf(err) != code || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: found %v, wanted %v with %q", what, err, code, text)
	}
}

func TestRegistered(t *testing.T) {
	p, err := backends.Open("go")
	if err != nil || p.Name() != "go" {
		t.Fatalf("found %v, %v, wanted the Go backend", p, err)
	}
	if _, err := backends.Open("go:x"); backends.CodeOf(err) != backends.InvalidArgument {
		t.Errorf("found %v, wanted INVALID_ARGUMENT for an argument", err)
	}
}

func TestClientOptions(t *testing.T) {
	_, err := Plugin().NewClient(backends.ClientOptions{DeviceCount: 4})
	wantError(t, "four devices", err, backends.InvalidArgument, "found device count 4, wanted 1")
	_, err = Plugin().NewClient(backends.ClientOptions{Extra: map[string]any{"threads": int64(2)}})
	wantError(t, "an option", err, backends.InvalidArgument, `option "threads" is not known`)
}

func TestCompileOptions(t *testing.T) {
	c := testClient(t)
	p, err := lower.Lower(backendtest.Parse(t, "%0 = input \"x\" : f32[2]\nreturn %0"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Compile(context.Background(), p, backends.CompileOptions{NumPartitions: 4})
	wantError(t, "four partitions", err, backends.Unimplemented, "found 4 partitions")
	_, err = c.Compile(context.Background(), p, backends.CompileOptions{DeviceIDs: []int{3}})
	wantError(t, "device 3", err, backends.InvalidArgument, "device 3 does not exist")
	p.Module = nil
	_, err = c.Compile(context.Background(), p, backends.CompileOptions{})
	wantError(t, "no graph", err, backends.InvalidArgument, "has no graph")
}

// TestLoadDamaged loads bytes that were cut, changed or made by something else.
func TestLoadDamaged(t *testing.T) {
	ctx := context.Background()
	c := testClient(t)
	e := backendtest.Compile(t, c, backendtest.Parse(t, "%0 = input \"x\" : f32[2]\n%1 = negate %0 : f32[2]\nreturn %1"), backends.CompileOptions{})
	good, err := e.Serialize()
	if err != nil {
		t.Fatal(err)
	}
	load := func(data []byte) error {
		e, err := c.LoadExecutable(ctx, data, backends.CompileOptions{})
		if err == nil {
			e.Close()
		}
		return err
	}
	if err := load(good); err != nil {
		t.Fatal(err)
	}
	wantError(t, "nothing", load(nil), backends.InvalidArgument, "found \"\" at the start")
	wantError(t, "something else", load([]byte("PK\x03\x04 a zip file")), backends.InvalidArgument, "found \"PK")
	for i := range good {
		if load(good[:i]) == nil {
			t.Errorf("cut to %d bytes it loads", i)
		}
		bad := bytes.Clone(good)
		bad[i] ^= 0x20
		if load(bad) == nil {
			t.Errorf("with byte %d changed it loads", i)
		}
	}
	forged := marshal(backendtest.Parse(t, "%0 = input \"x\" : f32[2]\nreturn %0"))
	if err := load(forged); err != nil {
		t.Errorf("a correct checksum: %v", err)
	}
}

func TestSerializedIsDeterministic(t *testing.T) {
	c := testClient(t)
	const text = "%0 = input \"x\" : f32[2]\n%1 = negate %0 : f32[2]\nreturn %1"
	a, b := backendtest.Compile(t, c, backendtest.Parse(t, text), backends.CompileOptions{}), backendtest.Compile(t, c, backendtest.Parse(t, text), backends.CompileOptions{})
	x, _ := a.Serialize()
	y, _ := b.Serialize()
	if !bytes.Equal(x, y) || a.Fingerprint() != b.Fingerprint() || a.Fingerprint() == "" {
		t.Error("two compiles of one module serialize to different bytes or fingerprints")
	}
}

func TestMemoryStats(t *testing.T) {
	c := testClient(t)
	// Of the chain two arrays of 4 KiB live at a time, the last being the output; the call adds its own inner array.
	e := backendtest.Compile(t, c, backendtest.Parse(t, `module @memory
		func @main {
			%0 = input "x" : f32[1024] donated
			%1 = input "y" : f32[1024]
			%2 = add %0, %1 : f32[1024]
			%3 = call %2 {callee = "f"} : f32[1024]
			%4 = tanh %3 : f32[1024]
			return %4
		}
		func @f {
			%0 = input "x" : f32[1024]
			%1 = negate %0 : f32[1024]
			%2 = sine %1 : f32[1024]
			return %2
		}`), backends.CompileOptions{})
	got, err := e.MemoryStats()
	if err != nil {
		t.Fatal(err)
	}
	if want := (backends.ExecutableMemory{Arguments: 8192, Outputs: 4096, Aliased: 4096, Temporaries: 8192}); got != want {
		t.Errorf("found %+v, wanted %+v", got, want)
	}
	cost, err := e.CostAnalysis()
	if err != nil {
		t.Fatal(err)
	}
	if cost["flops"] != 2*1024 || cost["transcendentals"] != 2*1024 {
		t.Errorf("found %v, wanted 2048 flops and as many transcendentals", cost)
	}
}

func TestCostOfProducts(t *testing.T) {
	c := testClient(t)
	e := backendtest.Compile(t, c, backendtest.Parse(t, `%0 = input "x" : f32[3,5]
		%1 = input "w" : f32[7,5]
		%2 = dot_general %0, %1 {lhs_contracting = [1], rhs_contracting = [1]} : f32[3,7]
		return %2`), backends.CompileOptions{})
	cost, err := e.CostAnalysis()
	if err != nil {
		t.Fatal(err)
	}
	if cost["flops"] != 2*3*5*7 || cost["bytes accessed"] != 4*(15+35+21) {
		t.Errorf("found %v, wanted 210 flops and 284 bytes", cost)
	}
}

func TestDeviceMemory(t *testing.T) {
	c := testClient(t)
	d := c.Devices()[0]
	x := backendtest.T("f32[1024]", 1)
	a, err := c.BufferFromHost(x.Data, x.Shape, backends.HostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.BufferFromHost(x.Data, x.Shape, backends.HostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := d.MemoryStats(); err != nil || m.InUse != 8192 || m.PeakInUse != 8192 || m.Limit != -1 {
		t.Errorf("with two buffers: found %+v, %v, wanted 8192 bytes in use", m, err)
	}
	a.Delete()
	b.Delete()
	if m, _ := d.MemoryStats(); m.InUse != 0 || m.PeakInUse != 8192 {
		t.Errorf("with none: found %+v, wanted nothing in use and a peak of 8192", m)
	}
}

func TestArgumentsOfAnotherClient(t *testing.T) {
	c, other := testClient(t), func() backends.Client {
		c, err := Plugin().NewClient(backends.ClientOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}()
	e := backendtest.Compile(t, c, backendtest.Parse(t, "%0 = input \"x\" : f32[2]\nreturn %0"), backends.CompileOptions{})
	x := backendtest.T("f32[2]", 1, 2)
	b, err := other.BufferFromHost(x.Data, x.Shape, backends.HostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.Execute(context.Background(), []backends.Buffer{b}, backends.ExecuteOptions{})
	wantError(t, "another client's buffer", err, backends.InvalidArgument, "argument 0 (x) is not a buffer of this client")
	_, err = c.BufferFromHost(x.Data, x.Shape, backends.HostOptions{Device: other.Devices()[0]})
	wantError(t, "another client's device", err, backends.InvalidArgument, "the device belongs to another client")
	b.Delete()
	if err := other.Close(); err != nil {
		t.Error(err)
	}
}

// TestFailureInExecution checks that a fault while computing comes out of every result, and out of what is computed from them.
func TestFailureInExecution(t *testing.T) {
	ctx := context.Background()
	c := testClient(t)
	e := backendtest.Compile(t, c, backendtest.Parse(t, "%0 = input \"x\" : f32[2]\n%1 = negate %0 : f32[2]\nreturn %1"), backends.CompileOptions{})
	broken := c.(*client).newBuffer(backendtest.T("f32[2]", 0).Shape)
	if err := c.(*client).open("test"); err != nil {
		t.Fatal(err)
	}
	broken.store.finish(nil, backends.Errorf(backends.Internal, "test", "the first computation failed"))
	out, err := e.Execute(ctx, []backends.Buffer{broken}, backends.ExecuteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, "Await", out[0].Await(ctx), backends.Internal, "the first computation failed")
	wantError(t, "ToHost", out[0].ToHost(ctx, make([]byte, 8)), backends.Internal, "the first computation failed")
	out[0].Delete()
	broken.Delete()
}
