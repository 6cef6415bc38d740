// Package backends says what the rest of precast needs from something that compiles and runs a lowered program: the
// interfaces Plugin, Client, Device, Topology, Buffer and Executable, and a registry of implementations by name.
//
// The words and the semantics are PJRT's (https://github.com/openxla/xla/blob/main/xla/pjrt/c/pjrt_c_api.h), cut down to what a
// pipeline uses. backends/pjrt binds a PJRT plugin; backends/gobackend runs the same programs in pure Go.
//
// # Ownership
//
// Whoever receives a Client, Executable, Topology or Buffer owns it and closes it (Buffer.Delete, Close elsewhere) once; closing
// again does nothing and returns nil. A Client is closed last: closing it while its buffers or executables live is
// an error of FailedPrecondition and closes nothing. A Device belongs to its Client and is never closed.
//
// # Threads
//
// Every method may be called from several goroutines at once, except that a Buffer or Executable must not be used while
// another goroutine closes it.
package backends

import (
	"context"

	"github.com/gomlx/compute/shapes"

	"precast/lower"
)

// Plugin is a loaded implementation. It stays loaded until the process ends: no plugin supports being unloaded.
type Plugin interface {
	// Name identifies the implementation in messages and cache keys: a plugin's file name, or "go".
	Name() string
	// APIVersion is the version of the PJRT C API that the plugin implements; 0, 0 where there is none.
	APIVersion() (major, minor int)
	// Attributes are the plugin's own facts ("xla_version", "stablehlo_current_version"): values are string, bool, int64,
	// []int64 or float32. May be nil.
	Attributes() map[string]any
	// NewClient creates a client. Unknown options are an error of InvalidArgument where the plugin reports them.
	NewClient(opts ClientOptions) (Client, error)
}

// AheadOfTime is implemented by a Plugin that compiles for devices which need not be in the machine.
type AheadOfTime interface {
	Plugin
	// NewTopology describes the devices of that name ("v6e:2x2" for libtpu); options are the plugin's own.
	NewTopology(name string, options map[string]any) (Topology, error)
	// CompileFor compiles for the topology. The result can be serialized and inspected, not executed.
	CompileFor(ctx context.Context, t Topology, p *lower.Program, opts CompileOptions) (Compiled, error)
}

// ClientOptions are what a client may be created with.
type ClientOptions struct {
	// DeviceCount is the number of devices that a CPU client shows; 0 means 1. Accelerators ignore it.
	DeviceCount int
	// Extra holds the plugin's own options by its own names: string, bool, int64, []int64 or float32.
	Extra map[string]any
}

// Client owns devices and compiles, loads and executes on them.
type Client interface {
	// Platform is the kind of device ("cpu", "tpu", "cuda"), lower case.
	Platform() string
	// PlatformVersion names the compiler's build; it belongs in a cache key.
	PlatformVersion() string
	// Devices are the addressable devices, in the order of their IDs; at least one.
	Devices() []Device
	// Topology describes the client's own devices, for cache keys; it needs no closing. Nil where the backend knows none.
	Topology() Topology
	// Compile compiles a program for the client's devices. ctx is looked at before the work starts; a compile under way
	// can't be stopped.
	Compile(ctx context.Context, p *lower.Program, opts CompileOptions) (Executable, error)
	// LoadExecutable loads what Compiled.Serialize returned. The bytes must be unchanged and come from the same plugin on
	// a machine with the same CPU features: a backend can't be relied on to notice otherwise and may end the process, so
	// the caller (the cache) checks first. opts are those of the compile. serialized may be reused after the call.
	LoadExecutable(ctx context.Context, serialized []byte, opts CompileOptions) (Executable, error)
	// BufferFromHost makes a device buffer of dense row-major data, whose length must be shape.ByteSize().
	BufferFromHost(data []byte, shape shapes.Shape, opts HostOptions) (Buffer, error)
	// Close frees the client.
	Close() error
}

// Device is one addressable device of a client.
type Device interface {
	// ID is the device's number in device assignments.
	ID() int
	// Kind is the model of the device ("cpu", "TPU v6 lite").
	Kind() string
	// MemoryStats returns the device's memory use; an error of Unimplemented where the backend doesn't count.
	MemoryStats() (DeviceMemory, error)
}

// DeviceMemory is a device's memory use in bytes; -1 where unknown.
type DeviceMemory struct {
	InUse, PeakInUse, Limit int64
}

// Topology describes a set of devices to compile for, present or not.
type Topology interface {
	// Platform is the kind of device ("tpu").
	Platform() string
	// Kind is the model of the devices ("TPU v6 lite").
	Kind() string
	// Mesh is the arrangement of the devices (2, 2), major to minor; one number where there is no physical mesh.
	Mesh() []int
	// Fingerprint is equal for two topologies only if an executable compiled for one runs on the other. It is part of cache keys.
	Fingerprint() string
	Close() error
}

// HostSemantics says how long the host memory given to BufferFromHost must stay unchanged.
type HostSemantics int

const (
	// CopyDuringCall copies before BufferFromHost returns: data may be reused at once.
	CopyDuringCall HostSemantics = iota
	// UntilTransferCompletes allows the copy to go on after the return: data must stay unchanged until Release is called.
	UntilTransferCompletes
	// ZeroCopy allows the buffer to use data itself as its memory: data must stay mapped and unchanged until Release is called,
	// which is after the buffer's deletion where the memory is in use, and soon where the backend had to copy
	// (the CPU plugins want Alignment). A buffer made so must not be donated.
	ZeroCopy
)

// Alignment is the alignment in bytes that the CPU plugins want of host memory for ZeroCopy.
const Alignment = 64

// HostOptions say where a buffer goes and who owns the host memory.
type HostOptions struct {
	// Device is where the buffer goes; nil means the client's first device.
	Device    Device
	Semantics HostSemantics
	// Release is called once, from any goroutine, when the host memory may be changed, reused or unmapped. It is not called
	// when BufferFromHost returns an error: the memory is the caller's at once. May be nil.
	Release func()
}

// Buffer is an array on a device. It may not have been computed yet.
type Buffer interface {
	Shape() shapes.Shape
	Device() Device
	// ToHost waits for the buffer and copies it, dense and row-major, to dst, whose length must be Shape().ByteSize(). When ctx ends
	// first, ToHost returns its error at once or, where a copy has started, after that copy: dst is never written after the return.
	ToHost(ctx context.Context, dst []byte) error
	// Ready reports whether the buffer is computed, or has failed.
	Ready() bool
	// Await waits until the buffer is computed and returns the error of its computation, or ctx's.
	Await(ctx context.Context) error
	// Delete frees the device memory, once the computations that already use it are done. Deleting twice does nothing.
	Delete() error
	// Deleted reports whether the buffer was deleted or donated: every other method then fails with FailedPrecondition, but Shape.
	Deleted() bool
}

// CompileOptions are the facts about a compile that are not in the program. All of them belong in a cache key.
type CompileOptions struct {
	// NumPartitions is the number of devices that an SPMD program is split over; 0 means 1.
	NumPartitions int
	// DeviceIDs are the devices of the partitions; nil means the client's first ones.
	DeviceIDs []int
	// Shardy says that the program's shardings are sdy annotations rather than mhlo.sharding.
	Shardy bool
	// Overrides set XLA's debug options by name for this compile alone ("xla_cpu_enable_fast_math"): string, bool, int64 or float64.
	// The Go backend ignores them.
	Overrides map[string]any
}

// Compiled is a compiled program: what is true of it whether or not it is loaded on devices.
type Compiled interface {
	Name() string
	// NumOutputs is the number of results that Execute returns.
	NumOutputs() int
	// Serialize returns bytes that LoadExecutable takes; an error of Unimplemented where the backend can't.
	Serialize() ([]byte, error)
	// MemoryStats are the compiler's figures; Unimplemented where it gives none.
	MemoryStats() (ExecutableMemory, error)
	// CostAnalysis are the compiler's estimates ("flops", "bytes accessed"); Unimplemented where it gives none.
	CostAnalysis() (map[string]float64, error)
	// OptimizedHLO is the program after the compiler's passes, as text for people; Unimplemented where the backend gives none.
	OptimizedHLO() (string, error)
	// Fingerprint identifies the compiled program; empty where the backend gives none.
	Fingerprint() string
	Close() error
}

// ExecutableMemory is the memory that one execution needs, in bytes.
type ExecutableMemory struct {
	// Arguments and Outputs are the parameters' and the results' sizes; Aliased is the part of Outputs that reuses donated arguments.
	Arguments, Outputs, Aliased int64
	// Temporaries is the scratch memory and GeneratedCode the size of the code, on the device.
	Temporaries, GeneratedCode int64
}

// ExecuteOptions are the facts about one execution.
type ExecuteOptions struct {
	// Donate lists the positions of arguments whose memory the execution may reuse: those arguments are deleted by
	// Execute when it succeeds, whether or not the program makes use of them. An argument that the program marks as donated
	// and that isn't listed is kept (at the price of a copy).
	Donate []int
}

// Executable is a program loaded on its devices.
type Executable interface {
	Compiled
	// Execute starts the program on one device and returns its results, usually before they are computed: an error while
	// computing is reported by Buffer.Await or ToHost. The arguments, in the order of Program.Params, may be deleted after the
	// call. ctx is looked at before the start; an execution under way can't be stopped.
	Execute(ctx context.Context, args []Buffer, opts ExecuteOptions) ([]Buffer, error)
}

// Sharded is implemented by an Executable that can run on more than one device.
type Sharded interface {
	Executable
	// ExecuteSharded is Execute with the arguments of each partition, args[partition][param], and so the results.
	ExecuteSharded(ctx context.Context, args [][]Buffer, opts ExecuteOptions) ([][]Buffer, error)
	// Devices are the devices of the partitions.
	Devices() []Device
}
