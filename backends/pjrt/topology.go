package pjrt

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"precast/backends"
	"precast/lower"
)

// Topology describes devices to compile for. A client's own topology is freed with the client.
type Topology struct {
	api         *api
	handle      uintptr
	owned       bool
	platform    string
	kind        string
	mesh        []int
	fingerprint string
	closeOnce   sync.Once
}

// NewTopology implements backends.AheadOfTime. The names are the plugin's ("v6e:2x2" for libtpu).
func (p *Plugin) NewTopology(name string, options map[string]any) (backends.Topology, error) {
	op := "describe topology " + name
	var pinner runtime.Pinner
	defer pinner.Unpin()
	data, count, err := encodeValues(options, &pinner)
	if err != nil {
		return nil, backends.Errorf(backends.InvalidArgument, op, "%v", err)
	}
	args := setSize(&topologyCreateArgs{name: pinString(name, &pinner), nameSize: uintptr(len(name)), options: data, numOptions: count})
	if err := p.api.call(fnTopologyCreate, unsafe.Pointer(args), op); err != nil {
		return nil, err
	}
	live[liveTopology].Add(1)
	t, err := newTopology(p.api, args.topology, true)
	if err != nil {
		_ = p.api.destroy(fnTopologyDestroy, args.topology, liveTopology)
		return nil, err
	}
	return t, nil
}

// newTopology reads what is known about a topology.
func newTopology(a *api, handle uintptr, owned bool) (*Topology, error) {
	const op = "describe a topology"
	t := &Topology{api: a, handle: handle, owned: owned}
	var err error
	if t.platform, err = a.text(fnTopologyPlatformName, handle, op); err != nil {
		return nil, err
	}
	t.platform = strings.ToLower(t.platform)
	version, err := a.text(fnTopologyPlatformVersion, handle, op)
	if err != nil {
		return nil, err
	}
	args := setSize(&handleBytesArgs{handle: handle})
	if err := a.call(fnTopologyDeviceDescriptions, unsafe.Pointer(args), op); err != nil {
		return nil, err
	}
	devices := goSlice[uintptr](args.data, args.size)
	if len(devices) == 0 {
		return nil, backends.Errorf(backends.Internal, op, "the topology has no device")
	}
	if t.kind, err = a.text(fnDeviceDescriptionKind, devices[0], op); err != nil {
		return nil, err
	}
	t.mesh = a.mesh(devices)
	t.fingerprint = a.topologyFingerprint(handle, t, version, len(devices))
	return t, nil
}

// mesh is the extent of the devices' coordinates, or their number where they have none.
func (a *api) mesh(devices []uintptr) []int {
	var extent []int
	for _, d := range devices {
		args := setSize(&countThenDataArgs{handle: d})
		if err := a.call(fnDeviceDescriptionAttrs, unsafe.Pointer(args), "read a device's attributes"); err != nil {
			return []int{len(devices)}
		}
		coords, ok := decodeValues(args.data, args.size)["coords"].([]int64)
		if !ok {
			return []int{len(devices)}
		}
		if extent == nil {
			extent = make([]int, len(coords))
		}
		for i := range min(len(extent), len(coords)) {
			extent[i] = max(extent[i], int(coords[i])+1)
		}
	}
	return extent
}

// topologyFingerprint hashes the plugin's serialization of the topology, and what describes it where the plugin has none.
func (a *api) topologyFingerprint(handle uintptr, t *Topology, version string, devices int) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n%s\n%v\n%d\n", t.platform, version, t.kind, t.mesh, devices)
	if serialized, err := a.serialized(fnTopologySerialize, handle, "serialize a topology"); err == nil {
		h.Write(serialized)
	}
	args := setSize(&handleBytesArgs{handle: handle})
	if err := a.call(fnTopologyAttributes, unsafe.Pointer(args), "read a topology's attributes"); err == nil {
		values := decodeValues(args.data, args.size)
		for _, name := range slices.Sorted(maps.Keys(values)) {
			fmt.Fprintf(h, "%s=%v\n", name, values[name])
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// serialized calls a function that returns bytes with a deleter, copies them and frees the plugin's.
func (a *api) serialized(f fn, handle uintptr, op string) ([]byte, error) {
	args := setSize(&serializeArgs{handle: handle})
	if err := a.call(f, unsafe.Pointer(args), op); err != nil {
		return nil, err
	}
	live[liveSerialized].Add(1)
	b := goSlice[byte](args.data, args.size)
	if args.deleter != 0 {
		invoke(args.deleter, *(*unsafe.Pointer)(unsafe.Pointer(&args.backing)))
	}
	live[liveSerialized].Add(-1)
	return b, nil
}

// Platform implements backends.Topology.
func (t *Topology) Platform() string { return t.platform }

// Kind implements backends.Topology.
func (t *Topology) Kind() string { return t.kind }

// Mesh implements backends.Topology.
func (t *Topology) Mesh() []int { return slices.Clone(t.mesh) }

// Fingerprint implements backends.Topology.
func (t *Topology) Fingerprint() string { return t.fingerprint }

// Close implements backends.Topology. A client's own topology is not freed by it.
func (t *Topology) Close() error {
	var err error
	t.closeOnce.Do(func() {
		if t.owned {
			err = t.api.destroy(fnTopologyDestroy, t.handle, liveTopology)
		}
	})
	return err
}

// CompileFor implements backends.AheadOfTime.
func (p *Plugin) CompileFor(ctx context.Context, t backends.Topology, prog *lower.Program, opts backends.CompileOptions) (backends.Compiled, error) {
	op := "compile " + prog.Name
	own, ok := t.(*Topology)
	if !ok || own.api != p.api {
		return nil, backends.Errorf(backends.InvalidArgument, op, "the topology belongs to another plugin")
	}
	if ctx.Err() != nil {
		return nil, backends.ContextError(ctx, op)
	}
	encoded, err := encodeCompileOptions(own.platform, opts)
	if err != nil {
		return nil, backends.Errorf(backends.InvalidArgument, op, "%v", err)
	}
	var pinner runtime.Pinner
	defer pinner.Unpin()
	args := setSize(&compileArgs{
		topology: own.handle, program: pinProgram(prog.Code, &pinner),
		options: pinSlice(encoded, &pinner), optionsSize: uintptr(len(encoded)),
	})
	if err := p.api.call(fnCompile, unsafe.Pointer(args), op); err != nil {
		return nil, err
	}
	live[liveExecutable].Add(1)
	e := &compiled{api: p.api, handle: args.executable, signature: signatureOf(prog, opts)}
	e.refs.init(func() error { return e.api.destroy(fnExecutableDestroy, e.handle, liveExecutable) })
	if err := e.describe(); err != nil {
		_ = e.Close()
		return nil, err
	}
	return e, nil
}
