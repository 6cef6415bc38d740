// Package pjrt runs programs on a PJRT plugin: a shared library with XLA for one kind of device behind a C API
// (https://github.com/openxla/xla/blob/main/xla/pjrt/c/pjrt_c_api.h, read at API version 0.104). The library is loaded and called
// through purego, so that no C compiler is needed.
//
// The C API is versioned by struct sizes: every argument struct says how much of it the caller knows, and the function table says how
// far it reaches. Load refuses another major version and a table too short for what is needed; functions that came later are looked up
// when they are used, and their absence is an error of backends.Unimplemented.
//
// # Hazards
//
// A plugin can end the process where it should return an error: on bytes that aren't an executable of its own, or on empty compile
// options. So serialized executables carry a header and a checksum of ours that are checked first, and the options are never empty.
//
// # Threads
//
// A CPU plugin of XLA executes on a pool of its own with a thread for each CPU that the process may use. The environment variable
// PJRT_NPROC (older: NPROC) sets another number; it is read when a client is created. See Threads.
package pjrt

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"precast/backends"
)

func init() {
	backends.Register("pjrt", func(path string) (backends.Plugin, error) { return Load(path) })
}

// Plugin is a loaded plugin.
type Plugin struct {
	api          *api
	name         string
	path         string
	major, minor int
	attributes   map[string]any
}

var (
	loadMu sync.Mutex
	loaded = map[string]*Plugin{}
)

// Load loads the plugin in a shared library and initializes it. Loading a file again returns the same Plugin.
func Load(path string) (*Plugin, error) {
	if path == "" {
		return nil, errors.New("load plugin: found no path, wanted the path of a PJRT plugin's shared library")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("load plugin %s: %w", path, err)
	}
	if resolved, err := filepath.EvalSymlinks(abs); err == nil {
		abs = resolved
	}
	loadMu.Lock()
	defer loadMu.Unlock()
	if p, ok := loaded[abs]; ok {
		return p, nil
	}
	// The loader's own message for a missing file names no remedy.
	if info, err := os.Stat(abs); err != nil {
		return nil, fmt.Errorf("load plugin: %w", err)
	} else if info.IsDir() {
		return nil, fmt.Errorf("load plugin %s: found a folder, wanted a shared library", path)
	}
	p := &Plugin{path: abs, name: filepath.Base(abs)}
	p.prepareEnvironment()
	getAPI, err := openLibrary(abs)
	if err != nil {
		return nil, fmt.Errorf("load plugin %s: %w", path, err)
	}
	if p.api, p.major, p.minor, err = checkAPI(invokeGetAPI(getAPI)); err != nil {
		return nil, fmt.Errorf("load plugin %s: %w", path, err)
	}
	if err := p.api.call(fnPluginInitialize, unsafe.Pointer(setSize(&header{})), "initialize plugin "+p.name); err != nil {
		return nil, err
	}
	args := setSize(&outBytesArgs{})
	// Attributes are for information: a plugin without them works.
	if err := p.api.call(fnPluginAttributes, unsafe.Pointer(args), "read the attributes of plugin "+p.name); err == nil {
		p.attributes = decodeValues(args.data, args.size)
	}
	loaded[abs] = p
	return p, nil
}

// invokeGetAPI calls GetPjrtApi, which takes no argument and returns the table.
func invokeGetAPI(address uintptr) unsafe.Pointer {
	r := invoke(address, nil)
	// The table is C memory with the lifetime of the process; the double conversion says so to vet.
	return *(*unsafe.Pointer)(unsafe.Pointer(&r))
}

// checkAPI checks that the table is of our major version and reaches to every function that is needed.
func checkAPI(table unsafe.Pointer) (a *api, major, minor int, err error) {
	if table == nil {
		return nil, 0, 0, errors.New("GetPjrtApi returned no function table")
	}
	h := (*apiHeader)(table)
	if h.structSize < tableStart {
		return nil, 0, 0, fmt.Errorf("the function table has %d bytes, wanted at least %d", h.structSize, tableStart)
	}
	major, minor = int(h.version.major), int(h.version.minor)
	if major != apiMajor || minor < minMinor {
		return nil, major, minor, fmt.Errorf("found PJRT API version %d.%d, wanted %d.%d or a later %d.x: install another version of the plugin",
			major, minor, apiMajor, minMinor, apiMajor)
	}
	a = &api{table: table, size: h.structSize}
	if need := tableStart + (uintptr(lastRequired)+1)*unsafe.Sizeof(uintptr(0)); a.size < need {
		return nil, major, minor, fmt.Errorf("the function table of API version %d.%d has %d bytes, wanted at least %d", major, minor, a.size, need)
	}
	return a, major, minor, nil
}

// prepareEnvironment sets what a plugin reads from the environment while it is loaded. What the user has set stays.
func (p *Plugin) prepareEnvironment() {
	// XLA and abseil log warnings to standard error, where they would mix with precast's own; 3 leaves only fatal ones.
	setDefaultEnv("TF_CPP_MIN_LOG_LEVEL", "3")
	if p.isTPU() {
		prepareTPU()
	}
}

func setDefaultEnv(name, value string) {
	if _, ok := os.LookupEnv(name); !ok {
		_ = os.Setenv(name, value)
	}
}

// Threads sets the number of threads of the CPU clients that are created from now on; 0 leaves the plugin's own choice, one for each
// CPU that the process may use. It changes the environment of the process.
func Threads(n int) error {
	if n < 0 {
		return fmt.Errorf("threads: found %d, wanted 0 or more", n)
	}
	if n == 0 {
		return os.Unsetenv("PJRT_NPROC")
	}
	return os.Setenv("PJRT_NPROC", strconv.Itoa(n))
}

// Trim gives back memory that compiling took and that the C library would keep: what comes next, the weights, needs it. It takes milliseconds and changes
// nothing else.
func Trim() { trim() }

// Name is the file name of the plugin.
func (p *Plugin) Name() string { return p.name }

// Path is the plugin's file, absolute and without links.
func (p *Plugin) Path() string { return p.path }

// APIVersion implements backends.Plugin.
func (p *Plugin) APIVersion() (major, minor int) { return p.major, p.minor }

// Attributes implements backends.Plugin. The map must not be changed.
func (p *Plugin) Attributes() map[string]any { return p.attributes }

// isTPU reports whether the plugin is libtpu, which must be told about the machine before it is loaded.
func (p *Plugin) isTPU() bool { return strings.HasPrefix(p.name, "libtpu") }

var _ backends.AheadOfTime = (*Plugin)(nil)
