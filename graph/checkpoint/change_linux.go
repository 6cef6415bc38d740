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
