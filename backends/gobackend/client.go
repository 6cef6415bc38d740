package gobackend

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"precast/backends"
	"precast/lower"
)

// client is a backends.Client over one gomlx backend.
type client struct {
	backend compute.Backend
	device  *device

	mu      sync.Mutex
	closed  bool
	objects int // live buffers and executables
	memory  backends.DeviceMemory
	runs    sync.WaitGroup // executions under way
}

func (c *client) Platform() string            { return "cpu" }
func (c *client) Devices() []backends.Device  { return []backends.Device{c.device} }
func (c *client) Topology() backends.Topology { return topology{} }

// PlatformVersion names gomlx's version as it was built in.
func (c *client) PlatformVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			if d.Path == "github.com/gomlx/compute" {
				return "go " + d.Version
			}
		}
	}
	return "go"
}

// Close waits for executions whose results nobody wanted.
func (c *client) Close() error {
	c.mu.Lock()
	if c.objects > 0 {
		n := c.objects
		c.mu.Unlock()
		return backends.Errorf(backends.FailedPrecondition, "close the Go client", "%d buffers and executables are still open", n)
	}
	first := !c.closed
	c.closed = true
	c.mu.Unlock()
	if first {
		c.runs.Wait()
		c.backend.Finalize()
		liveClients.Add(-1)
	}
	return nil
}

// open counts a new buffer or executable; it fails on a closed client.
func (c *client) open(op string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return backends.Errorf(backends.FailedPrecondition, op, "the client is closed")
	}
	c.objects++
	return nil
}

func (c *client) BufferFromHost(data []byte, shape shapes.Shape, opts backends.HostOptions) (backends.Buffer, error) {
	const op = "make a buffer"
	if !shape.Ok() || shape.IsDynamic() {
		return nil, backends.Errorf(backends.InvalidArgument, op, "shape %s is not static", shape)
	}
	if want := byteSize(shape); len(data) != want {
		return nil, backends.Errorf(backends.InvalidArgument, op, "found %d bytes for %s, wanted %d", len(data), shape, want)
	}
	if opts.Device != nil && opts.Device != backends.Device(c.device) {
		return nil, backends.Errorf(backends.InvalidArgument, op, "the device belongs to another client")
	}
	if err := c.open(op); err != nil {
		return nil, err
	}
	shared, flat, err := c.backend.NewSharedBuffer(0, shape)
	if err != nil {
		c.shut()
		return nil, backends.Errorf(backends.Internal, op, "%s: %v", shape, err)
	}
	dst := dtypes.UnsafeByteSliceFromAny(flat)
	if shape.DType == dtypes.Bool { // a Go bool holds 0 or 1 only
		for i, x := range data {
			dst[i] = 0
			if x != 0 {
				dst[i] = 1
			}
		}
	} else {
		copy(dst, data)
	}
	b := c.newBuffer(shape)
	b.store.finish(shared, nil)
	if opts.Release != nil {
		opts.Release()
	}
	return b, nil
}

// shut uncounts a buffer or executable.
func (c *client) shut() {
	c.mu.Lock()
	c.objects--
	c.mu.Unlock()
}

func (c *client) Compile(ctx context.Context, p *lower.Program, opts backends.CompileOptions) (backends.Executable, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if p.Module == nil {
		return nil, backends.Errorf(backends.InvalidArgument, "compile "+p.Name, "the program has no graph, which the Go backend needs")
	}
	return c.build(p.Module, opts)
}

func (c *client) LoadExecutable(ctx context.Context, serialized []byte, opts backends.CompileOptions) (backends.Executable, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m, err := unmarshal(serialized)
	if err != nil {
		return nil, err
	}
	return c.build(m, opts)
}

// byteSize is the number of bytes of a static shape.
func byteSize(s shapes.Shape) int {
	return s.DType.SizeForDimensions(s.Size())
}

type device struct{ c *client }

func (d *device) ID() int      { return 0 }
func (d *device) Kind() string { return "go " + runtime.GOARCH }

// MemoryStats counts buffers; the temporaries of executions are not in it.
func (d *device) MemoryStats() (backends.DeviceMemory, error) {
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	m := d.c.memory
	m.Limit = -1
	return m, nil
}

type topology struct{}

func (topology) Platform() string    { return "cpu" }
func (topology) Kind() string        { return "go" }
func (topology) Mesh() []int         { return []int{1} }
func (topology) Fingerprint() string { return "go" }
func (topology) Close() error        { return nil }
