package precast

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// allocate maps anonymous memory, with large pages where the system has them: weights are written once and read for long.
func allocate(n int64) ([]byte, func([]byte), error) {
	mem, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, nil, err
	}
	// Advice only: without large pages the memory is as good.
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	return mem, func(b []byte) { _ = unix.Munmap(b) }, nil
}

// populate maps the pages of a file's mapping at once, from the page cache or by reading ahead, rather than one fault after the other in the
// first execution. Older systems don't know the advice: then the faults come.
func populate(b []byte) {
	if len(b) == 0 {
		return
	}
	page := uintptr(unix.Getpagesize())
	start := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	from := start &^ (page - 1)
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, start+uintptr(len(b))-from, unix.MADV_POPULATE_READ)
}
