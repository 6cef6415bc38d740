package pjrt

import "sync/atomic"

// refs frees a handle once: when it was closed and no call uses it any more. A call that starts after the close is refused, one that
// is under way goes on.
type refs struct {
	count  atomic.Int64
	closed atomic.Bool
	free   func() error
}

func (r *refs) init(free func() error) {
	r.free = free
	r.count.Store(1)
}

// acquire reports whether the handle may be used; release must follow if so.
func (r *refs) acquire() bool {
	for {
		n := r.count.Load()
		if n == 0 || r.closed.Load() {
			return false
		}
		if r.count.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (r *refs) release() error {
	if r.count.Add(-1) == 0 {
		return r.free()
	}
	return nil
}

// close gives up the owner's reference, once.
func (r *refs) close() error {
	if r.closed.CompareAndSwap(false, true) {
		return r.release()
	}
	return nil
}
