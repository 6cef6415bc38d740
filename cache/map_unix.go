//go:build linux || darwin

package cache

import (
	"os"

	"golang.org/x/sys/unix"
)

// mapEntry maps an entry's file for reading. The mapping outlives f.
func mapEntry(f *os.File, size int64) (data []byte, release func(), err error) {
	data, err = unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, os.NewSyscallError("mmap", err)
	}
	advise(data)
	return data, func() { _ = unix.Munmap(data) }, nil
}

// freeBytes is what an ordinary user may still write to the disk of a folder.
func freeBytes(dir string) (int64, bool) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, false
	}
	return int64(st.Bavail) * int64(st.Bsize), true
}
