package gobackend

import "sync/atomic"

var liveClients, liveExecutables, liveBuffers atomic.Int64

// Live returns the number of clients, executables and buffers that were made and not yet closed, in the whole process: all zero
// after everything is closed.
func Live() map[string]int64 {
	return map[string]int64{
		"client": liveClients.Load(), "executable": liveExecutables.Load(), "buffer": liveBuffers.Load(),
	}
}
