//go:build linux || darwin

package checkpoint

import (
	"os"
	"syscall"
)

// fileNumber tells a file from the others of its file system: two of equal times are two files.
func fileNumber(info os.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}
