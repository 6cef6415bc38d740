//go:build (linux || darwin || freebsd || netbsd) && (amd64 || arm64)

package pjrt

import (
	"fmt"
	"unsafe"

	"github.com/ebitengine/purego"
)

// openLibrary loads a shared library and returns the address of its GetPjrtApi. The symbols stay local, so that two plugins, each
// with an XLA of its own, don't meet.
func openLibrary(path string) (uintptr, error) {
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return 0, fmt.Errorf("the plugin can't be loaded: %w", err)
	}
	address, err := purego.Dlsym(handle, "GetPjrtApi")
	if err != nil {
		return 0, fmt.Errorf("%s is a shared library but no PJRT plugin: it has no GetPjrtApi", path)
	}
	return address, nil
}

// invoke calls a C function that takes one pointer and returns one, or nothing.
func invoke(address uintptr, args unsafe.Pointer) uintptr {
	r, _, _ := purego.SyscallN(address, uintptr(args))
	return r
}

// trim gives memory that the C library has kept free back to the system, where that library can.
func trim() {
	if f, err := purego.Dlsym(purego.RTLD_DEFAULT, "malloc_trim"); err == nil && f != 0 {
		purego.SyscallN(f, 0)
	}
}

// newCallback makes a C function of a Go one. It is never freed: call it once for each function.
func newCallback(f func(errorHandle, userArg uintptr)) uintptr {
	return purego.NewCallback(f)
}
