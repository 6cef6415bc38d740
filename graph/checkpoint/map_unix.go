//go:build linux || darwin

package checkpoint

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapFile maps the first size bytes of f for reading. The mapping outlives f.
func mapFile(f *os.File, size int64) (data []byte, unmap func() error, err error) {
	data, err = unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, os.NewSyscallError("mmap", err)
	}
	return data, func() error { return os.NewSyscallError("munmap", unix.Munmap(data)) }, nil
}

// releasePages drops the whole pages inside b, a part of a mapped file, from the resident set.
func releasePages(b []byte) {
	page := uintptr(os.Getpagesize())
	start := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	from := (start + page - 1) / page * page
	to := (start + uintptr(len(b))) / page * page
	if from >= to {
		return
	}
	// Advice only: where it fails, the pages stay until the kernel wants them.
	_ = unix.Madvise(b[from-start:to-start], unix.MADV_DONTNEED)
}
