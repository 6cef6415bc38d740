package pjrt

import (
	"unsafe"

	"precast/backends"
)

// fn is the position of a function in the PJRT_Api table, counted from the first function pointer. Positions never change within a
// major version; new functions are appended.
type fn int

// The functions that are used, in the table's order (pjrt_c_api.h, PJRT_Api).
const (
	fnErrorDestroy               fn = 0
	fnErrorMessage               fn = 1
	fnErrorGetCode               fn = 2
	fnPluginInitialize           fn = 3
	fnPluginAttributes           fn = 4
	fnEventDestroy               fn = 5
	fnEventIsReady               fn = 6
	fnEventError                 fn = 7
	fnEventOnReady               fn = 9
	fnClientCreate               fn = 10
	fnClientDestroy              fn = 11
	fnClientPlatformName         fn = 12
	fnClientPlatformVersion      fn = 14
	fnClientAddressableDevices   fn = 16
	fnClientCompile              fn = 20
	fnClientBufferFromHost       fn = 22
	fnDeviceDescriptionID        fn = 23
	fnDeviceDescriptionAttrs     fn = 25
	fnDeviceDescriptionKind      fn = 26
	fnDeviceGetDescription       fn = 29
	fnDeviceMemoryStats          fn = 34
	fnExecutableDestroy          fn = 40
	fnExecutableNumOutputs       fn = 44
	fnExecutableCostAnalysis     fn = 46
	fnExecutableOptimizedProgram fn = 48
	fnExecutableSerialize        fn = 49
	fnLoadedDestroy              fn = 50
	fnLoadedGetExecutable        fn = 51
	fnLoadedAddressableDevices   fn = 52
	fnLoadedExecute              fn = 55
	fnDeserializeAndLoad         fn = 56
	fnBufferDestroy              fn = 58
	fnBufferElementType          fn = 59
	fnBufferDimensions           fn = 60
	fnBufferIsDeleted            fn = 68
	fnBufferToHost               fn = 70
	fnBufferReadyEvent           fn = 72
	fnBufferUnsafePointer        fn = 73
	fnTopologyCreate             fn = 82
	fnTopologyDestroy            fn = 83
	fnTopologyPlatformName       fn = 84
	fnTopologyPlatformVersion    fn = 85
	fnTopologyDeviceDescriptions fn = 86
	fnTopologySerialize          fn = 87
	fnTopologyAttributes         fn = 88
	fnCompile                    fn = 89
	fnExecutableOutputTypes      fn = 90
	fnExecutableOutputDims       fn = 91
	fnExecutableFingerprint      fn = 94
	fnClientTopology             fn = 95
	fnExecutableMemoryStats      fn = 96
)

// lastRequired is the last function that a plugin must have: the later ones are looked up when they are wanted. With it goes
// minMinor, the API version whose header has it.
const (
	lastRequired = fnExecutableOutputDims
	apiMajor     = 0
	minMinor     = 40
)

// tableStart is the offset of the first function pointer in PJRT_Api: struct_size, extension_start, pjrt_api_version.
const tableStart = unsafe.Sizeof(apiHeader{})

// api is the function table of a loaded plugin.
type api struct {
	table unsafe.Pointer
	size  uintptr // the table's own struct_size
}

// has reports whether the plugin's table reaches to f and has something there.
func (a *api) has(f fn) bool {
	offset := tableStart + uintptr(f)*unsafe.Sizeof(uintptr(0))
	return offset+unsafe.Sizeof(uintptr(0)) <= a.size && *(*uintptr)(unsafe.Add(a.table, offset)) != 0
}

// call calls a function of the table with a struct made by setSize. op names what is being done in the error.
// The struct and what it points to must be pinned or on the heap and reachable: invoke makes args escape.
func (a *api) call(f fn, args unsafe.Pointer, op string) error {
	if !a.has(f) {
		return backends.Errorf(backends.Unimplemented, op, "the plugin's function table ends before function %d", int(f))
	}
	address := *(*uintptr)(unsafe.Add(a.table, tableStart+uintptr(f)*unsafe.Sizeof(uintptr(0))))
	return a.takeError(invoke(address, args), op)
}

// takeError turns a PJRT_Error* into an error of ours and frees it.
func (a *api) takeError(handle uintptr, op string) error {
	if handle == 0 {
		return nil
	}
	table := func(f fn, args unsafe.Pointer) {
		invoke(*(*uintptr)(unsafe.Add(a.table, tableStart+uintptr(f)*unsafe.Sizeof(uintptr(0)))), args)
	}
	message := setSize(&handleBytesArgs{handle: handle})
	table(fnErrorMessage, unsafe.Pointer(message))
	e := &backends.Error{Op: op, Message: goString(message.data, message.size)}
	code := setSize(&handleInt32Args{handle: handle})
	table(fnErrorGetCode, unsafe.Pointer(code))
	e.Code = backends.Code(code.out)
	table(fnErrorDestroy, unsafe.Pointer(setSize(&handleArgs{handle: handle})))
	return e
}

// destroy frees a handle of the given kind and counts it out. The error that C may return here names a fault of ours.
func (a *api) destroy(f fn, handle uintptr, kind liveKind) error {
	live[kind].Add(-1)
	return a.call(f, unsafe.Pointer(setSize(&handleArgs{handle: handle})), "free "+kind.String())
}

// text calls a function that returns a string owned by the handle.
func (a *api) text(f fn, handle uintptr, op string) (string, error) {
	args := setSize(&handleBytesArgs{handle: handle})
	if err := a.call(f, unsafe.Pointer(args), op); err != nil {
		return "", err
	}
	return goString(args.data, args.size), nil
}

// goString copies C text.
func goString(data unsafe.Pointer, size uintptr) string {
	if data == nil || size == 0 {
		return ""
	}
	return string(unsafe.Slice((*byte)(data), size))
}

// goSlice copies a C array.
func goSlice[T any](data unsafe.Pointer, count uintptr) []T {
	if data == nil || count == 0 {
		return nil
	}
	return append([]T(nil), unsafe.Slice((*T)(data), count)...)
}
