package precast

import (
	"errors"
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
// first execution. Older systems don't know the advice: then the faults come. What can't be read is an error.
func populate(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	page := uintptr(unix.Getpagesize())
	start := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	from := start &^ (page - 1)
	_, _, errno := unix.Syscall(unix.SYS_MADVISE, from, start+uintptr(len(b))-from, unix.MADV_POPULATE_READ)
	if errno == unix.EFAULT || errno == unix.EHWPOISON || errno == unix.EIO {
		return errors.New("the file was cut short or can't be read")
	}
	return nil
}
