//go:build !unix

package cache

import "io/fs"

// writableByOthers knows nothing where there are no permission bits: the user's cache folder is private there by its access list.
func writableByOthers(fs.FileInfo) string { return "" }
