package pjrt

import "sync/atomic"

// liveKind is a kind of handle that is owned by us and must be freed.
type liveKind int

const (
	liveClient liveKind = iota
	liveLoaded
	liveExecutable
	liveBuffer
	liveEvent
	liveTopology
	liveSerialized
	liveHostMemory // Release functions that are due
	numLive
)

var liveNames = [numLive]string{"client", "loaded_executable", "executable", "buffer", "event", "topology", "serialized", "host_memory"}

// String returns the kind's name as in Live.
func (k liveKind) String() string { return liveNames[k] }

var live [numLive]atomic.Int64

// Live returns the number of handles of each kind that were made and not yet freed, in the whole process: all zero after everything is
// closed. "host_memory" counts the Release functions of HostOptions that are still due. An event that nobody waits for any more is
// freed when it becomes ready, so the counters may reach zero a moment after the last Close.
func Live() map[string]int64 {
	m := make(map[string]int64, numLive)
	for k := range live {
		m[liveNames[k]] = live[k].Load()
	}
	return m
}
