package pjrt

import "unsafe"

// The argument structs of the PJRT C API, field by field as in pjrt_c_api.h at API version 0.104. Handles are uintptr: the
// garbage collector has no business with them. Memory that C hands out and we read is unsafe.Pointer. Memory of ours that C reads is
// unsafe.Pointer and pinned by the caller for as long as C may read it.
//
// Every struct begins with its size and an extension chain that we leave empty.

type header struct {
	structSize uintptr
	extension  uintptr
}

// setSize writes the leading struct_size of any of the structs below.
func setSize[T any](p *T) *T {
	(*header)(unsafe.Pointer(p)).structSize = unsafe.Sizeof(*p)
	return p
}

type apiHeader struct {
	header
	version apiVersion
}

type apiVersion struct {
	header
	major, minor int32
}

// handleArgs has the layout of every struct that takes one handle and returns nothing: Destroy, Delete, Await, Error.
type handleArgs struct {
	header
	handle uintptr
}

// handleOutArgs is a struct that takes one handle and returns a handle, a size or a 64-bit number.
type handleOutArgs struct {
	header
	handle uintptr
	out    uintptr
}

// handleInt32Args takes one handle and returns an int or an enum.
type handleInt32Args struct {
	header
	handle uintptr
	out    int32
}

// handleBoolArgs takes one handle and returns a bool.
type handleBoolArgs struct {
	header
	handle uintptr
	out    bool
}

// handleBytesArgs takes one handle and returns a pointer with a count.
type handleBytesArgs struct {
	header
	handle uintptr
	data   unsafe.Pointer
	size   uintptr
}

// outBytesArgs takes nothing and returns a pointer with a count (PJRT_Plugin_Attributes_Args).
type outBytesArgs struct {
	header
	data unsafe.Pointer
	size uintptr
}

// countThenDataArgs is PJRT_Executable_GetCostAnalysis_Args and PJRT_DeviceDescription_Attributes_Args, where the count comes first.
type countThenDataArgs struct {
	header
	handle uintptr
	size   uintptr
	data   unsafe.Pointer
}

// outputDimensionsArgs is PJRT_Executable_OutputDimensions_Args.
type outputDimensionsArgs struct {
	header
	handle     uintptr
	numOutputs uintptr
	dims       unsafe.Pointer
	dimSizes   unsafe.Pointer
}

// serializeArgs is PJRT_Executable_Serialize_Args and PJRT_TopologyDescription_Serialize_Args.
type serializeArgs struct {
	header
	handle  uintptr
	data    unsafe.Pointer
	size    uintptr
	backing uintptr
	deleter uintptr
}

type onReadyArgs struct {
	header
	event    uintptr
	callback uintptr
	userArg  uintptr
}

type namedValue struct {
	header
	name     unsafe.Pointer
	nameSize uintptr
	kind     int32
	_        int32
	// value is the union: a pointer, an int64, a float32 or a bool in its first bytes.
	value [8]byte
	count uintptr
}

type clientCreateArgs struct {
	header
	options      unsafe.Pointer
	numOptions   uintptr
	kvGet        uintptr
	kvGetUser    uintptr
	kvPut        uintptr
	kvPutUser    uintptr
	client       uintptr
	kvTryGet     uintptr
	kvTryGetUser uintptr
}

type program struct {
	header
	code       unsafe.Pointer
	codeSize   uintptr
	format     unsafe.Pointer
	formatSize uintptr
}

type clientCompileArgs struct {
	header
	client      uintptr
	program     unsafe.Pointer
	options     unsafe.Pointer
	optionsSize uintptr
	executable  uintptr
}

type compileArgs struct {
	header
	topology    uintptr
	program     unsafe.Pointer
	options     unsafe.Pointer
	optionsSize uintptr
	client      uintptr
	executable  uintptr
}

type optimizedProgramArgs struct {
	header
	executable uintptr
	program    unsafe.Pointer
}

type deserializeArgs struct {
	header
	client      uintptr
	data        unsafe.Pointer
	size        uintptr
	executable  uintptr
	options     unsafe.Pointer
	optionsSize uintptr
}

type executeOptions struct {
	header
	sendCallbacks, recvCallbacks uintptr
	numSendOps, numRecvOps       uintptr
	launchID                     int32
	_                            int32
	nonDonatable                 unsafe.Pointer
	numNonDonatable              uintptr
	context                      uintptr
	callLocation                 uintptr
	numTasks                     uintptr
	taskIDs, incarnationIDs      uintptr
	multiSliceConfig             uintptr
}

type executeArgs struct {
	header
	executable     uintptr
	options        unsafe.Pointer
	arguments      unsafe.Pointer
	numDevices     uintptr
	numArgs        uintptr
	outputs        unsafe.Pointer
	completeEvents unsafe.Pointer
	device         uintptr
}

type bufferFromHostArgs struct {
	header
	client         uintptr
	data           unsafe.Pointer
	elementType    int32
	_              int32
	dims           unsafe.Pointer
	numDims        uintptr
	byteStrides    uintptr
	numByteStrides uintptr
	semantics      int32
	_              int32
	device         uintptr
	memory         uintptr
	deviceLayout   uintptr
	doneEvent      uintptr
	buffer         uintptr
}

// memoryLayout is PJRT_Buffer_MemoryLayout with the tiled member of its union.
type memoryLayout struct {
	header
	tiled struct {
		header
		minorToMajor     unsafe.Pointer
		minorToMajorSize uintptr
		tileDims         uintptr
		tileDimSizes     uintptr
		numTiles         uintptr
	}
	kind int32
	_    int32
}

type toHostArgs struct {
	header
	buffer  uintptr
	layout  unsafe.Pointer
	dst     unsafe.Pointer
	dstSize uintptr
	event   uintptr
}

type deviceMemoryArgs struct {
	header
	device    uintptr
	inUse     int64
	peak      int64
	peakSet   bool
	allocs    int64
	allocsSet bool
	largest   int64
	largestOK bool
	limit     int64
	limitSet  bool
	// Reserved, peak reserved, reservable limit, largest free block, pool and peak pool, each an int64 and a bool.
	_ [12]int64
}

type executableMemoryArgs struct {
	header
	executable  uintptr
	code        int64
	arguments   int64
	outputs     int64
	aliased     int64
	temporaries int64
	_           [5]int64 // the same on the host
	_           [5]int64 // peak and totals, since 0.7x
}

type topologyCreateArgs struct {
	header
	name       unsafe.Pointer
	nameSize   uintptr
	options    unsafe.Pointer
	numOptions uintptr
	topology   uintptr
}
