package pjrt

import (
	"context"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"precast/backends"
)

// An event is waited for by a callback of C into Go rather than by PJRT_Event_Await: a goroutine that waits so holds no thread of
// the operating system, however many buffers are in flight.

var (
	onReady    = sync.OnceValue(func() uintptr { return newCallback(eventReady) })
	waitersMu  sync.Mutex
	waiters    = map[uintptr]waiter{}
	nextWaiter uintptr
)

type waiter struct {
	api  *api
	op   string
	done func(error) // runs on a thread of the plugin: must not block
}

// eventReady is called by the plugin, on one of its threads or on ours inside PJRT_Event_OnReady.
func eventReady(errorHandle, id uintptr) {
	waitersMu.Lock()
	w, ok := waiters[id]
	delete(waiters, id)
	waitersMu.Unlock()
	if !ok {
		return
	}
	w.done(w.api.takeError(errorHandle, w.op))
}

// notify has done called with the event's error when it becomes ready, and takes over the event.
func (a *api) notify(event uintptr, op string, done func(error)) {
	destroy := func() { _ = a.destroy(fnEventDestroy, event, liveEvent) }
	waitersMu.Lock()
	nextWaiter++
	id := nextWaiter
	waiters[id] = waiter{api: a, op: op, done: func(err error) {
		// The event is freed outside its own callback.
		go func() {
			destroy()
			done(err)
		}()
	}}
	waitersMu.Unlock()
	args := setSize(&onReadyArgs{event: event, callback: onReady(), userArg: id})
	if err := a.call(fnEventOnReady, unsafe.Pointer(args), op); err != nil {
		waitersMu.Lock()
		delete(waiters, id)
		waitersMu.Unlock()
		destroy()
		done(err)
	}
}

// wait waits for the event and returns its error, and takes over the event. When ctx ends first, wait returns ctx's error and the
// event is freed when it becomes ready.
func (a *api) wait(ctx context.Context, event uintptr, op string) error {
	if event == 0 {
		return nil
	}
	if ready, err := a.pollEvent(event); err != nil || ready {
		if err == nil {
			err = a.call(fnEventError, unsafe.Pointer(setSize(&handleArgs{handle: event})), op)
		}
		if e := a.destroy(fnEventDestroy, event, liveEvent); err == nil {
			err = e
		}
		return err
	}
	result := make(chan error, 1)
	a.notify(event, op, func(err error) { result <- err })
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return backends.ContextError(ctx, op)
	}
}

// pollEvent asks for a moment whether the event is ready. A callback from a thread of the plugin costs about 100 microseconds, more than
// a small copy or computation takes.
func (a *api) pollEvent(event uintptr) (bool, error) {
	for start := time.Now(); ; runtime.Gosched() {
		if ready, err := a.eventIsReady(event); err != nil || ready || time.Since(start) > pollTime {
			return ready, err
		}
	}
}

const pollTime = 30 * time.Microsecond

func (a *api) eventIsReady(event uintptr) (bool, error) {
	args := setSize(&handleBoolArgs{handle: event})
	err := a.call(fnEventIsReady, unsafe.Pointer(args), "ask whether an event is ready")
	return args.out, err
}
