package cache

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"
)

// IsEntry reports whether the file at path begins as an entry of a store does. It may be damaged: Describe says so.
func IsEntry(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	start := make([]byte, len(entryMagic))
	_, err = io.ReadFull(f, start)
	return err == nil && bytes.Equal(start, []byte(entryMagic))
}

// Describe reads the entry in one file from end to end, wherever the file lies. What is wrong with the entry is in its State and Problem; the
// error is that of a file which can't be read.
func Describe(path string) (Entry, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Entry{}, err
	}
	r, err := os.Open(path)
	if err != nil {
		return Entry{}, err
	}
	defer r.Close()
	e := Entry{Path: path, Digest: filepath.Base(path), Bytes: info.Size(), Used: info.ModTime().Truncate(time.Second), State: Good}
	h, err := readHead(r, info.Size())
	if err == nil {
		e.Kind, e.Key, e.Payload, e.Created, e.Digest = h.Kind, h.Key, h.Payload, h.Created, h.Key.Digest()
		err = h.checkPayload(r)
	}
	if err != nil {
		e.State, e.Problem = Bad, err.Error()
		if errors.Is(err, errStale) {
			e.State = Stale
		}
	}
	return e, nil
}
