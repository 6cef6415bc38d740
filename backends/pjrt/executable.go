package pjrt

import (
	"context"
	"encoding/hex"
	"runtime"
	"strings"
	"unsafe"

	"github.com/gomlx/compute/shapes"

	"precast/backends"
	"precast/lower"
)

// compiled is a PJRT_Executable: a program compiled, but not necessarily loaded.
type compiled struct {
	api         *api
	handle      uintptr
	signature   signature
	outputs     []shapes.Shape // nil where the plugin doesn't tell
	numOutputs  int
	fingerprint string
	refs        refs
}

// Executable is a program loaded on its devices.
type Executable struct {
	compiled
	client  *Client
	loaded  uintptr
	devices []*Device
	donates bool // a parameter is donated
}

var (
	_ backends.Sharded  = (*Executable)(nil)
	_ backends.Compiled = (*compiled)(nil)
)

var mlirFormat = []byte("mlir")

// pinProgram makes a PJRT_Program of StableHLO text.
func pinProgram(code []byte, pinner *runtime.Pinner) unsafe.Pointer {
	p := setSize(&program{
		code: pinSlice(code, pinner), codeSize: uintptr(len(code)),
		format: pinSlice(mlirFormat, pinner), formatSize: uintptr(len(mlirFormat)),
	})
	pinner.Pin(p)
	return unsafe.Pointer(p)
}

// Compile implements backends.Client.
func (c *Client) Compile(ctx context.Context, p *lower.Program, opts backends.CompileOptions) (backends.Executable, error) {
	op := "compile " + p.Name
	if len(p.Code) == 0 {
		return nil, backends.Errorf(backends.InvalidArgument, op, "found no code, wanted StableHLO text")
	}
	encoded, err := encodeCompileOptions(c.platform, opts)
	if err != nil {
		return nil, backends.Errorf(backends.InvalidArgument, op, "%v", err)
	}
	if ctx.Err() != nil {
		return nil, backends.ContextError(ctx, op)
	}
	if err := c.enter(op); err != nil {
		return nil, err
	}
	defer c.leave()
	var pinner runtime.Pinner
	defer pinner.Unpin()
	args := setSize(&clientCompileArgs{
		client: c.handle, program: pinProgram(p.Code, &pinner), options: pinSlice(encoded, &pinner), optionsSize: uintptr(len(encoded)),
	})
	if err := c.api.call(fnClientCompile, unsafe.Pointer(args), op); err != nil {
		return nil, err
	}
	return c.newExecutable(args.executable, signatureOf(p, opts))
}

// LoadExecutable implements backends.Client. A header and a checksum of ours are checked before the plugin sees a byte.
func (c *Client) LoadExecutable(ctx context.Context, serialized []byte, opts backends.CompileOptions) (backends.Executable, error) {
	const op = "load executable"
	s, data, err := decodeSerialized(serialized)
	if err != nil {
		return nil, backends.Errorf(backends.DataLoss, op, "%v", err)
	}
	if want := max(opts.NumPartitions, 1); s.partitions != want {
		return nil, backends.Errorf(backends.InvalidArgument, op, "%s was compiled for %d partitions, wanted %d", s.name, s.partitions, want)
	}
	encoded, err := encodeCompileOptions(c.platform, opts)
	if err != nil {
		return nil, backends.Errorf(backends.InvalidArgument, op, "%v", err)
	}
	if ctx.Err() != nil {
		return nil, backends.ContextError(ctx, op)
	}
	if err := c.enter(op); err != nil {
		return nil, err
	}
	defer c.leave()
	var pinner runtime.Pinner
	defer pinner.Unpin()
	args := setSize(&deserializeArgs{
		client: c.handle, data: pinSlice(data, &pinner), size: uintptr(len(data)),
		options: pinSlice(encoded, &pinner), optionsSize: uintptr(len(encoded)),
	})
	if err := c.api.call(fnDeserializeAndLoad, unsafe.Pointer(args), op+" "+s.name); err != nil {
		return nil, err
	}
	return c.newExecutable(args.executable, s)
}

// newExecutable takes over a PJRT_LoadedExecutable.
func (c *Client) newExecutable(loaded uintptr, s signature) (*Executable, error) {
	op := "describe " + s.name
	live[liveLoaded].Add(1)
	c.open.Add(1)
	e := &Executable{client: c, loaded: loaded}
	e.api, e.signature = c.api, s
	e.refs.init(func() error {
		defer c.leave()
		var err error
		if e.handle != 0 {
			err = c.api.destroy(fnExecutableDestroy, e.handle, liveExecutable)
		}
		if e := c.api.destroy(fnLoadedDestroy, loaded, liveLoaded); err == nil {
			err = e
		}
		return err
	})
	for _, p := range s.params {
		e.donates = e.donates || p.donated
	}
	err := func() error {
		inner := setSize(&handleOutArgs{handle: loaded})
		if err := c.api.call(fnLoadedGetExecutable, unsafe.Pointer(inner), op); err != nil {
			return err
		}
		live[liveExecutable].Add(1)
		e.handle = inner.out
		if err := e.describe(); err != nil {
			return err
		}
		args := setSize(&handleBytesArgs{handle: loaded})
		if err := c.api.call(fnLoadedAddressableDevices, unsafe.Pointer(args), op); err != nil {
			return err
		}
		for _, h := range goSlice[uintptr](args.data, args.size) {
			d, ok := c.byHandle[h]
			if !ok {
				return backends.Errorf(backends.Internal, op, "the plugin names a device that its client doesn't have")
			}
			e.devices = append(e.devices, d)
		}
		if len(e.devices) == 0 {
			return backends.Errorf(backends.InvalidArgument, op, "the program runs on none of this client's devices")
		}
		return nil
	}()
	if err != nil {
		_ = e.Close()
		return nil, err
	}
	return e, nil
}

// describe reads what never changes about the executable.
func (e *compiled) describe() error {
	op := "describe " + e.signature.name
	count := setSize(&handleOutArgs{handle: e.handle})
	if err := e.api.call(fnExecutableNumOutputs, unsafe.Pointer(count), op); err != nil {
		return err
	}
	e.numOutputs = int(count.out)
	if e.api.has(fnExecutableFingerprint) {
		if text, err := e.api.text(fnExecutableFingerprint, e.handle, op); err == nil {
			// Some plugins return the bytes of a hash.
			if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
				text = hex.EncodeToString([]byte(text))
			}
			e.fingerprint = text
		}
	}
	if e.signature.partitions == 1 {
		// Each output buffer tells its shape, too, at the price of two calls an execution.
		e.outputs, _ = e.outputShapes(op)
	}
	return nil
}

// outputShapes reads the shapes of the results.
func (e *compiled) outputShapes(op string) ([]shapes.Shape, error) {
	kinds := setSize(&handleBytesArgs{handle: e.handle})
	if err := e.api.call(fnExecutableOutputTypes, unsafe.Pointer(kinds), op); err != nil {
		return nil, err
	}
	args := setSize(&outputDimensionsArgs{handle: e.handle})
	if err := e.api.call(fnExecutableOutputDims, unsafe.Pointer(args), op); err != nil {
		return nil, err
	}
	types, ranks := goSlice[int32](kinds.data, kinds.size), goSlice[uintptr](args.dimSizes, args.numOutputs)
	if len(types) != e.numOutputs || len(ranks) != e.numOutputs {
		return nil, backends.Errorf(backends.Internal, op, "the plugin tells %d types and %d ranks of %d results", len(types), len(ranks), e.numOutputs)
	}
	var total uintptr
	for _, r := range ranks {
		total += r
	}
	dims := goSlice[int64](args.dims, total)
	list := make([]shapes.Shape, len(types))
	for i, t := range types {
		s, err := shapeOf(t, dims[:ranks[i]])
		if err != nil {
			return nil, err
		}
		list[i], dims = s, dims[ranks[i]:]
	}
	return list, nil
}

// use keeps the executable open during a call.
func (e *compiled) use(op string) error {
	if !e.refs.acquire() {
		return backends.Errorf(backends.FailedPrecondition, op, "the executable is closed")
	}
	return nil
}

func (e *compiled) unuse() { _ = e.refs.release() }

// Close implements backends.Compiled.
func (e *compiled) Close() error { return e.refs.close() }

// Name implements backends.Compiled.
func (e *compiled) Name() string { return e.signature.name }

// NumOutputs implements backends.Compiled.
func (e *compiled) NumOutputs() int { return e.numOutputs }

// Fingerprint implements backends.Compiled.
func (e *compiled) Fingerprint() string { return e.fingerprint }

// Serialize implements backends.Compiled.
func (e *compiled) Serialize() ([]byte, error) {
	op := "serialize " + e.signature.name
	if err := e.use(op); err != nil {
		return nil, err
	}
	defer e.unuse()
	data, err := e.api.serialized(fnExecutableSerialize, e.handle, op)
	if err != nil {
		return nil, err
	}
	if len(data) == 0 {
		return nil, backends.Errorf(backends.Internal, op, "the plugin returned no bytes")
	}
	return encodeSerialized(e.signature, data), nil
}

// MemoryStats implements backends.Compiled.
func (e *compiled) MemoryStats() (backends.ExecutableMemory, error) {
	op := "read the memory statistics of " + e.signature.name
	if err := e.use(op); err != nil {
		return backends.ExecutableMemory{}, err
	}
	defer e.unuse()
	args := setSize(&executableMemoryArgs{executable: e.handle})
	if err := e.api.call(fnExecutableMemoryStats, unsafe.Pointer(args), op); err != nil {
		return backends.ExecutableMemory{}, err
	}
	return backends.ExecutableMemory{
		Arguments: args.arguments, Outputs: args.outputs, Aliased: args.aliased,
		Temporaries: args.temporaries, GeneratedCode: args.code,
	}, nil
}

// CostAnalysis implements backends.Compiled.
func (e *compiled) CostAnalysis() (map[string]float64, error) {
	op := "read the cost analysis of " + e.signature.name
	if err := e.use(op); err != nil {
		return nil, err
	}
	defer e.unuse()
	args := setSize(&countThenDataArgs{handle: e.handle})
	if err := e.api.call(fnExecutableCostAnalysis, unsafe.Pointer(args), op); err != nil {
		return nil, err
	}
	costs := map[string]float64{}
	for name, v := range decodeValues(args.data, args.size) {
		switch x := v.(type) {
		case float32:
			costs[name] = float64(x)
		case int64:
			costs[name] = float64(x)
		}
	}
	return costs, nil
}

// OptimizedHLO implements backends.Compiled.
func (e *compiled) OptimizedHLO() (string, error) {
	op := "read the optimized program of " + e.signature.name
	if err := e.use(op); err != nil {
		return "", err
	}
	defer e.unuse()
	var pinner runtime.Pinner
	defer pinner.Unpin()
	p := setSize(&program{})
	pinner.Pin(p)
	args := setSize(&optimizedProgramArgs{executable: e.handle, program: unsafe.Pointer(p)})
	// The first call tells the size, the second one fills the memory.
	if err := e.api.call(fnExecutableOptimizedProgram, unsafe.Pointer(args), op); err != nil {
		return "", err
	}
	code := make([]byte, p.codeSize)
	if len(code) == 0 {
		return "", backends.Errorf(backends.Unimplemented, op, "the plugin returned no program")
	}
	p.code = pinSlice(code, &pinner)
	if err := e.api.call(fnExecutableOptimizedProgram, unsafe.Pointer(args), op); err != nil {
		return "", err
	}
	switch format := goString(p.format, p.formatSize); format {
	case "hlo_with_config", "hlo":
		text, err := hloText(code, format == "hlo_with_config")
		if err != nil {
			return "", backends.Errorf(backends.Internal, op, "%v", err)
		}
		return text, nil
	case "mlir":
		return string(code), nil
	default:
		return "", backends.Errorf(backends.Unimplemented, op, "the program's format %q is not known", format)
	}
}

// Devices implements backends.Sharded.
func (e *Executable) Devices() []backends.Device {
	list := make([]backends.Device, len(e.devices))
	for i, d := range e.devices {
		list[i] = d
	}
	return list
}

// Execute implements backends.Executable. A CPU plugin runs a program that it takes for cheap before Execute returns (its estimate looks
// at the operations once, so a loop counts as one turn), and a longer one on its own threads.
func (e *Executable) Execute(ctx context.Context, args []backends.Buffer, opts backends.ExecuteOptions) ([]backends.Buffer, error) {
	results, err := e.ExecuteSharded(ctx, [][]backends.Buffer{args}, opts)
	if err != nil {
		return nil, err
	}
	return results[0], nil
}

// ExecuteSharded implements backends.Sharded.
func (e *Executable) ExecuteSharded(ctx context.Context, args [][]backends.Buffer, opts backends.ExecuteOptions) ([][]backends.Buffer, error) {
	op := "execute " + e.signature.name
	if ctx.Err() != nil {
		return nil, backends.ContextError(ctx, op)
	}
	if err := e.use(op); err != nil {
		return nil, err
	}
	defer e.unuse()
	if len(args) != len(e.devices) {
		return nil, backends.Errorf(backends.InvalidArgument, op, "found arguments of %d partitions, wanted %d", len(args), len(e.devices))
	}
	donate, err := e.donated(opts, op)
	if err != nil {
		return nil, err
	}
	held, err := e.hold(args, donate, op)
	defer func() {
		for _, list := range held {
			for _, b := range list {
				_ = b.refs.release()
			}
		}
	}()
	if err != nil {
		return nil, err
	}
	outputs, err := e.launch(held, donate, op)
	if err != nil {
		e.closeConsumed(held, donate)
		return nil, err
	}
	for _, list := range held {
		for i, b := range list {
			if donate[i] {
				_ = b.Delete()
			}
		}
	}
	return e.results(outputs)
}

// donated turns the list of donated positions into a set.
func (e *Executable) donated(opts backends.ExecuteOptions, op string) ([]bool, error) {
	set := make([]bool, len(e.signature.params))
	for _, i := range opts.Donate {
		if i < 0 || i >= len(set) {
			return nil, backends.Errorf(backends.InvalidArgument, op, "donated argument %d: wanted 0 to %d", i, len(set)-1)
		}
		if set[i] {
			return nil, backends.Errorf(backends.InvalidArgument, op, "donated argument %d: listed twice", i)
		}
		set[i] = true
	}
	return set, nil
}

// hold acquires and checks the arguments. The acquired ones are returned with an error, too, and must be released.
func (e *Executable) hold(args [][]backends.Buffer, donate []bool, op string) ([][]*Buffer, error) {
	held := make([][]*Buffer, len(args))
	for p, list := range args {
		held[p] = make([]*Buffer, 0, len(list))
		for i, a := range list {
			b, ok := a.(*Buffer)
			if !ok || b == nil || b.client != e.client {
				return held, backends.Errorf(backends.InvalidArgument, op, "argument %d is not a buffer of this client", i)
			}
			if !b.refs.acquire() {
				return held, backends.Errorf(backends.FailedPrecondition, op, "argument %d (%s) was deleted or donated", i, e.paramName(i))
			}
			held[p] = append(held[p], b)
			if b.device != e.devices[p] {
				return held, backends.Errorf(backends.InvalidArgument, op, "argument %d (%s) is on device %d, wanted device %d",
					i, e.paramName(i), b.device.id, e.devices[p].id)
			}
			if i < len(donate) && donate[i] && b.zeroCopy {
				return held, backends.Errorf(backends.InvalidArgument, op, "argument %d (%s) may use host memory: it can't be donated", i, e.paramName(i))
			}
		}
		if err := e.signature.check(held[p], op); err != nil {
			return held, err
		}
		if err := e.checkDonation(held[p], donate, op); err != nil {
			return held, err
		}
	}
	return held, nil
}

// checkDonation refuses a donated buffer that is also another argument: not every plugin notices.
func (e *Executable) checkDonation(args []*Buffer, donate []bool, op string) error {
	first := map[*Buffer]int{}
	for i, b := range args {
		if donate[i] {
			first[b] = i
		}
	}
	if len(first) == 0 {
		return nil
	}
	for i, b := range args {
		if d, ok := first[b]; ok && d != i {
			return backends.Errorf(backends.InvalidArgument, op, "argument %d (%s) can't be donated: it is argument %d (%s), too",
				d, e.paramName(d), i, e.paramName(i))
		}
	}
	return nil
}

func (e *Executable) paramName(i int) string {
	if i < len(e.signature.params) {
		return e.signature.params[i].name
	}
	return "not a parameter"
}

// launch calls PJRT_LoadedExecutable_Execute and returns the results' handles by partition.
func (e *Executable) launch(args [][]*Buffer, donate []bool, op string) ([][]uintptr, error) {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	inputs, outputs := make([]unsafe.Pointer, len(args)), make([]unsafe.Pointer, len(args))
	results := make([][]uintptr, len(args))
	for p, list := range args {
		handles := make([]uintptr, len(list))
		for i, b := range list {
			handles[i] = b.handle
		}
		results[p] = make([]uintptr, e.numOutputs)
		inputs[p], outputs[p] = pinSlice(handles, &pinner), pinSlice(results[p], &pinner)
	}
	options := setSize(&executeOptions{})
	if e.donates {
		keep := make([]int64, 0, len(donate))
		for i, d := range donate {
			if !d {
				keep = append(keep, int64(i))
			}
		}
		options.nonDonatable, options.numNonDonatable = pinSlice(keep, &pinner), uintptr(len(keep))
	}
	pinner.Pin(options)
	call := setSize(&executeArgs{
		executable: e.loaded, options: unsafe.Pointer(options), arguments: pinSlice(inputs, &pinner), numDevices: uintptr(len(args)),
		numArgs: uintptr(len(args[0])), outputs: pinSlice(outputs, &pinner),
	})
	if err := e.api.call(fnLoadedExecute, unsafe.Pointer(call), op); err != nil {
		return nil, err
	}
	return results, nil
}

// closeConsumed closes the donated arguments that a failed execution has taken.
func (e *Executable) closeConsumed(args [][]*Buffer, donate []bool) {
	for _, list := range args {
		for i, b := range list {
			if !donate[i] {
				continue
			}
			deleted := setSize(&handleBoolArgs{handle: b.handle})
			if err := e.api.call(fnBufferIsDeleted, unsafe.Pointer(deleted), "ask whether a buffer is deleted"); err == nil && deleted.out {
				_ = b.Delete()
			}
		}
	}
}

// results makes Buffers of the results' handles.
func (e *Executable) results(handles [][]uintptr) ([][]backends.Buffer, error) {
	var failure error
	all := make([][]backends.Buffer, len(handles))
	for p, list := range handles {
		all[p] = make([]backends.Buffer, len(list))
		for i, h := range list {
			var shape shapes.Shape
			if e.outputs != nil {
				shape = e.outputs[i]
			} else {
				var err error
				if shape, err = e.api.pluginShape(h); err != nil && failure == nil {
					failure = err
				}
			}
			all[p][i] = e.client.newBuffer(h, e.devices[p], shape)
		}
	}
	if failure != nil {
		for _, list := range all {
			for _, b := range list {
				_ = b.Delete()
			}
		}
		return nil, failure
	}
	return all, nil
}
