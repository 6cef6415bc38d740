package cache

import "golang.org/x/sys/unix"

// advise asks for large pages where the mapping's file has to be read from the disk.
func advise(data []byte) { _ = unix.Madvise(data, unix.MADV_HUGEPAGE) }
