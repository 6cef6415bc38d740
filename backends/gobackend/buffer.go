package gobackend

import (
	"context"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"precast/backends"
)

// buffer is a handle on a store. Its fields are guarded by the client's mutex.
type buffer struct {
	c     *client
	shape shapes.Shape
	store *store // nil after deletion or donation
}

// store is an array that is, or will be, computed. It is freed when nothing holds it: neither its buffer nor an execution or a copy.
type store struct {
	c     *client
	bytes int64
	holds int // guarded by the client's mutex

	done chan struct{} // closed once data and err are set
	data compute.Buffer
	err  error
}

// newBuffer makes a buffer whose data is to come; the caller has counted it with open.
func (c *client) newBuffer(shape shapes.Shape) *buffer {
	s := &store{c: c, bytes: int64(byteSize(shape)), holds: 1, done: make(chan struct{})}
	c.mu.Lock()
	c.memory.InUse += s.bytes
	c.memory.PeakInUse = max(c.memory.PeakInUse, c.memory.InUse)
	c.mu.Unlock()
	liveBuffers.Add(1)
	return &buffer{c: c, shape: shape, store: s}
}

// finish gives the store its data or error.
func (s *store) finish(data compute.Buffer, err error) {
	s.data, s.err = data, err
	close(s.done)
}

// release drops one hold. The client's mutex must be held.
func (s *store) release() {
	if s.holds--; s.holds == 0 {
		s.c.memory.InUse -= s.bytes
		// The memory itself goes to the garbage collector with the last reference.
	}
}

// hold takes a hold on the buffer's store.
func (b *buffer) hold(op string) (*store, error) {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	if b.store == nil {
		return nil, backends.Errorf(backends.FailedPrecondition, op, "the buffer %s was deleted or donated", b.shape)
	}
	b.store.holds++
	return b.store, nil
}

func (b *buffer) unhold(s *store) {
	b.c.mu.Lock()
	s.release()
	b.c.mu.Unlock()
}

// drop ends the buffer's own hold; the client's mutex must be held.
func (b *buffer) drop() {
	b.store.release()
	b.store = nil
	b.c.objects--
	liveBuffers.Add(-1)
}

func (b *buffer) Shape() shapes.Shape     { return b.shape }
func (b *buffer) Device() backends.Device { return b.c.device }

func (b *buffer) ToHost(ctx context.Context, dst []byte) error {
	const op = "copy a buffer to the host"
	s, err := b.hold(op)
	if err != nil {
		return err
	}
	defer b.unhold(s)
	if want := byteSize(b.shape); len(dst) != want {
		return backends.Errorf(backends.InvalidArgument, op, "found %d bytes for %s, wanted %d", len(dst), b.shape, want)
	}
	if err := s.wait(ctx); err != nil {
		return err
	}
	flat, err := s.data.Data()
	if err != nil {
		return backends.Errorf(backends.Internal, op, "%v", err)
	}
	copy(dst, dtypes.UnsafeByteSliceFromAny(flat))
	return nil
}

// wait waits for the data.
func (s *store) wait(ctx context.Context) error {
	select {
	case <-s.done:
		return s.err
	default:
	}
	select {
	case <-s.done:
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *buffer) Ready() bool {
	b.c.mu.Lock()
	s := b.store
	b.c.mu.Unlock()
	if s == nil {
		return false
	}
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

func (b *buffer) Await(ctx context.Context) error {
	s, err := b.hold("wait for a buffer")
	if err != nil {
		return err
	}
	defer b.unhold(s)
	return s.wait(ctx)
}

func (b *buffer) Delete() error {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	if b.store != nil {
		b.drop()
	}
	return nil
}

func (b *buffer) Deleted() bool {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	return b.store == nil
}
