//go:build !((linux || darwin || freebsd || netbsd) && (amd64 || arm64))

package pjrt

import (
	"fmt"
	"runtime"
	"unsafe"
)

func openLibrary(path string) (uintptr, error) {
	return 0, fmt.Errorf("PJRT plugins can't be loaded on %s/%s: use the Go backend", runtime.GOOS, runtime.GOARCH)
}

func invoke(uintptr, unsafe.Pointer) uintptr {
	panic("BUG: a PJRT function called where no plugin can be loaded")
}

func trim() {}

func newCallback(func(errorHandle, userArg uintptr)) uintptr { return 0 }
