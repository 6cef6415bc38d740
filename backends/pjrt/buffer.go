package pjrt

import (
	"context"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/gomlx/compute/shapes"

	"precast/backends"
)

// Buffer is an array on a device.
type Buffer struct {
	client *Client
	device *Device
	handle uintptr
	shape  shapes.Shape
	// zeroCopy says that host memory may be the buffer's own, so that it must not be donated.
	zeroCopy bool
	ready    atomic.Bool // computed without an error
	refs     refs
}

// newBuffer takes over a PJRT_Buffer.
func (c *Client) newBuffer(handle uintptr, device *Device, shape shapes.Shape) *Buffer {
	live[liveBuffer].Add(1)
	c.open.Add(1)
	b := &Buffer{client: c, device: device, handle: handle, shape: shape}
	b.refs.init(func() error {
		defer c.leave()
		return c.api.destroy(fnBufferDestroy, handle, liveBuffer)
	})
	return b
}

// PJRT_HostBufferSemantics, by backends.HostSemantics.
var hostSemantics = map[backends.HostSemantics]int32{
	backends.CopyDuringCall: 0, backends.UntilTransferCompletes: 1, backends.ZeroCopy: 2,
}

// emptyData is what C gets as the address of no bytes: some plugins refuse null.
var emptyData [backends.Alignment]byte

// BufferFromHost implements backends.Client.
func (c *Client) BufferFromHost(data []byte, shape shapes.Shape, opts backends.HostOptions) (backends.Buffer, error) {
	const op = "buffer from host"
	elementType, ok := bufferTypes[shape.DType]
	if !ok || shape.IsTuple() || shape.IsDynamic() {
		return nil, backends.Errorf(backends.InvalidArgument, op, "found shape %s, wanted a static array of whole bytes", shape)
	}
	if int64(len(data)) != shape.ByteSize() {
		return nil, backends.Errorf(backends.InvalidArgument, op, "found %d bytes, wanted %d for %s", len(data), shape.ByteSize(), shape)
	}
	semantics, ok := hostSemantics[opts.Semantics]
	if !ok {
		return nil, backends.Errorf(backends.InvalidArgument, op, "host semantics %d are not known", opts.Semantics)
	}
	device, err := c.device(opts.Device, op)
	if err != nil {
		return nil, err
	}
	if err := c.enter(op); err != nil {
		return nil, err
	}
	defer c.leave()

	dims := make([]int64, shape.Rank())
	for i, d := range shape.Dimensions {
		dims[i] = int64(d)
	}
	var pinner, call runtime.Pinner
	defer call.Unpin()
	address := pinSlice(data, &pinner)
	if address == nil {
		address = pinSlice(emptyData[:], &pinner)
	}
	args := setSize(&bufferFromHostArgs{
		client: c.handle, data: address, elementType: elementType, dims: pinSlice(dims, &call), numDims: uintptr(len(dims)),
		semantics: semantics, device: device.handle,
	})
	if err := c.api.call(fnClientBufferFromHost, unsafe.Pointer(args), op); err != nil {
		pinner.Unpin()
		return nil, err
	}
	b := c.newBuffer(args.buffer, device, shape.Clone())
	b.zeroCopy = opts.Semantics == backends.ZeroCopy
	if args.doneEvent != 0 {
		live[liveEvent].Add(1)
	}
	release := func() {
		pinner.Unpin()
		if opts.Release != nil {
			live[liveHostMemory].Add(-1)
			opts.Release()
		}
	}
	if opts.Release != nil {
		live[liveHostMemory].Add(1)
	}
	switch {
	case args.doneEvent == 0:
		release()
	case opts.Semantics == backends.CopyDuringCall:
		release()
		_ = c.api.destroy(fnEventDestroy, args.doneEvent, liveEvent)
	default:
		// A failed transfer is the buffer's error, too: it is reported by Await.
		c.due.Add(1)
		c.api.notify(args.doneEvent, op, func(error) {
			defer c.due.Done()
			release()
		})
	}
	return b, nil
}

// Shape implements backends.Buffer.
func (b *Buffer) Shape() shapes.Shape { return b.shape }

// Device implements backends.Buffer.
func (b *Buffer) Device() backends.Device { return b.device }

// Deleted implements backends.Buffer.
func (b *Buffer) Deleted() bool { return b.refs.closed.Load() }

// Delete implements backends.Buffer.
func (b *Buffer) Delete() error { return b.refs.close() }

func (b *Buffer) deletedError(op string) error {
	return backends.Errorf(backends.FailedPrecondition, op, "the buffer of %s was deleted or donated", b.shape)
}

// readyEvent returns the buffer's event, which is the caller's to free.
func (b *Buffer) readyEvent(op string) (uintptr, error) {
	args := setSize(&handleOutArgs{handle: b.handle})
	if err := b.client.api.call(fnBufferReadyEvent, unsafe.Pointer(args), op); err != nil {
		return 0, err
	}
	live[liveEvent].Add(1)
	return args.out, nil
}

// Ready implements backends.Buffer.
func (b *Buffer) Ready() bool {
	if b.ready.Load() || !b.refs.acquire() {
		return true
	}
	defer func() { _ = b.refs.release() }()
	event, err := b.readyEvent("ask whether a buffer is ready")
	if err != nil {
		return true
	}
	defer func() { _ = b.client.api.destroy(fnEventDestroy, event, liveEvent) }()
	ready, err := b.client.api.eventIsReady(event)
	return ready || err != nil
}

// Await implements backends.Buffer.
func (b *Buffer) Await(ctx context.Context) error {
	const op = "await buffer"
	if !b.refs.acquire() {
		return b.deletedError(op)
	}
	defer func() { _ = b.refs.release() }()
	return b.await(ctx, op)
}

// await waits with the buffer acquired.
func (b *Buffer) await(ctx context.Context, op string) error {
	if b.ready.Load() {
		return nil
	}
	event, err := b.readyEvent(op)
	if err != nil {
		return err
	}
	if err := b.client.api.wait(ctx, event, op); err != nil {
		return err
	}
	b.ready.Store(true)
	return nil
}

// ToHost implements backends.Buffer.
func (b *Buffer) ToHost(ctx context.Context, dst []byte) error {
	const op = "copy buffer to host"
	if int64(len(dst)) != b.shape.ByteSize() {
		return backends.Errorf(backends.InvalidArgument, op, "found room for %d bytes, wanted %d for %s", len(dst), b.shape.ByteSize(), b.shape)
	}
	if !b.refs.acquire() {
		return b.deletedError(op)
	}
	defer func() { _ = b.refs.release() }()
	if err := b.await(ctx, op); err != nil {
		return err
	}
	if len(dst) == 0 {
		return nil
	}
	var pinner runtime.Pinner
	defer pinner.Unpin()
	// Without a layout the plugin would copy in the device's own.
	order := make([]int64, b.shape.Rank())
	for i := range order {
		order[i] = int64(len(order) - 1 - i)
	}
	layout := setSize(&memoryLayout{})
	setSize(&layout.tiled)
	layout.tiled.minorToMajor, layout.tiled.minorToMajorSize = pinSlice(order, &pinner), uintptr(len(order))
	pinner.Pin(layout)
	args := setSize(&toHostArgs{buffer: b.handle, layout: unsafe.Pointer(layout), dst: pinSlice(dst, &pinner), dstSize: uintptr(len(dst))})
	if err := b.client.api.call(fnBufferToHost, unsafe.Pointer(args), op); err != nil {
		return err
	}
	if args.event == 0 {
		return nil
	}
	live[liveEvent].Add(1)
	// The copy is under way and dst must not be written after the return: ctx no longer counts.
	return b.client.api.wait(context.Background(), args.event, op)
}

// pluginShape asks the plugin for the shape of a buffer.
func (a *api) pluginShape(handle uintptr) (shapes.Shape, error) {
	const op = "read a buffer's shape"
	kind := setSize(&handleInt32Args{handle: handle})
	if err := a.call(fnBufferElementType, unsafe.Pointer(kind), op); err != nil {
		return shapes.Shape{}, err
	}
	dims := setSize(&handleBytesArgs{handle: handle})
	if err := a.call(fnBufferDimensions, unsafe.Pointer(dims), op); err != nil {
		return shapes.Shape{}, err
	}
	s, err := shapeOf(kind.out, goSlice[int64](dims.data, dims.size))
	if err != nil {
		return s, backends.Errorf(backends.Unimplemented, op, "%v", err)
	}
	return s, nil
}
