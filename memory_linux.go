package precast

import "golang.org/x/sys/unix"

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
