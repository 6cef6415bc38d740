package checkpoint

import (
	"os"
	"syscall"
)

// changeTime is when a file was last written, renamed or given other rights, in nanoseconds; no program can set it.
func changeTime(info os.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Ctim.Nano()
	}
	return 0
}

// fileNumber tells a file from the others of its file system: two of equal times are two files.
func fileNumber(info os.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}
