//go:build !linux && !darwin

package hub

// freeSpace is not known here.
var freeSpace = func(string) (bytes int64, ok bool) { return 0, false }
