package main

import (
	"io"
	"os"
	"path/filepath"
	"testing"
)

// A device is written to, never replaced by a file of its name.
func TestResultFileDevice(t *testing.T) {
	if info, err := os.Stat("/dev/null"); err != nil || info.Mode().IsRegular() {
		t.Skip("no /dev/null here")
	}
	path := filepath.Join(t.TempDir(), "out.json")
	if err := os.Symlink("/dev/null", path); err != nil {
		t.Fatal(err)
	}
	r, err := openResult("stats", path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.abort()
	if err := r.commit(func(w io.Writer) error { _, err := w.Write([]byte("{}")); return err }); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("after the write the link is %v, %v", info, err)
	}
	if info, err := os.Stat("/dev/null"); err != nil || info.Mode().IsRegular() {
		t.Errorf("/dev/null became %v, %v", info, err)
	}
}
