//go:build !linux && !darwin

package checkpoint

import (
	"io"
	"os"
)

// mapFile reads the first size bytes of f into memory: the fallback where files are not mapped.
func mapFile(f *os.File, size int64) (data []byte, unmap func() error, err error) {
	data = AlignedBytes(int(size))
	if _, err := io.ReadFull(io.NewSectionReader(f, 0, size), data); err != nil {
		return nil, nil, err
	}
	return data, func() error { return nil }, nil
}

// releasePages does nothing: the bytes have no file behind them to be read from again.
func releasePages([]byte) {}
