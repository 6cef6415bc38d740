//go:build unix

package plugin

import (
	"io/fs"
	"syscall"
)

// inode is the file's number in its file system; 0 where there is none.
func inode(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Ino)
	}
	return 0
}
