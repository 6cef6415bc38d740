//go:build unix

package cache

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// writableByOthers says how others than the user can write to a folder, "" when they can't.
func writableByOthers(info fs.FileInfo) string {
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		return fmt.Sprintf("can be written by others (mode %#o)", mode)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() && st.Uid != 0 {
		return fmt.Sprintf("belongs to another user (uid %d)", st.Uid)
	}
	return ""
}
