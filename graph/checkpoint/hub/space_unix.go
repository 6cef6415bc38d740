//go:build linux || darwin

package hub

import "golang.org/x/sys/unix"

// freeSpace is the room that the file system of dir has for this user; ok is false where it does not tell. Tests replace it.
var freeSpace = func(dir string) (bytes int64, ok bool) {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil {
		return 0, false
	}
	return int64(s.Bavail) * int64(s.Bsize), true
}
