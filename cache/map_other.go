//go:build !linux && !darwin

package cache

import (
	"io"
	"os"
)

// mapEntry reads an entry's file into memory: the fallback where files are not mapped.
func mapEntry(f *os.File, size int64) (data []byte, release func(), err error) {
	data = aligned(int(size))
	if _, err := io.ReadFull(io.NewSectionReader(f, 0, size), data); err != nil {
		return nil, nil, err
	}
	return data, func() {}, nil
}

func freeBytes(string) (int64, bool) { return 0, false }
