package checkpoint

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/gomlx/compute/dtypes"
)

// mappedKB is the part of the process's resident set that file mappings fill, in KiB.
func mappedKB(t *testing.T) int {
	t.Helper()
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip(err)
	}
	for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); {
		var kb int
		if _, err := fmt.Sscanf(s.Text(), "RssFile: %d kB", &kb); err == nil {
			return kb
		}
	}
	t.Skip("the kernel does not say")
	return 0
}

// Weights count once: the mapped pages of a tensor that was copied leave the resident set, those of others stay.
func TestReleaseResidentSet(t *testing.T) {
	const size = 32 << 20
	path := filepath.Join(t.TempDir(), "w.safetensors")
	data := bytes.Repeat([]byte{1, 2, 3, 4}, size/4)
	if err := WriteFile(path, []Item{{"a", dtypes.Float32, []int{size / 4}, data}, {"b", dtypes.Float32, []int{size / 4}, data}}, nil); err != nil {
		t.Fatal(err)
	}
	start := mappedKB(t)
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if opened := mappedKB(t); opened-start > 4<<10 {
		t.Errorf("opening took %d KiB of memory, want headers only", opened-start)
	}
	dst := AlignedBytes(size)
	tensors := f.Tensors()
	for _, key := range f.Keys() {
		if err := tensors[key].Convert(dst, dtypes.Float32); err != nil {
			t.Fatal(err)
		}
	}
	read := mappedKB(t)
	if read-start < 2*size/1024*9/10 {
		t.Fatalf("reading both tensors mapped only %d KiB", read-start)
	}
	tensors["a"].Release()
	one := mappedKB(t)
	if gone := read - one; gone < size/1024*9/10 || gone > size/1024*11/10 {
		t.Errorf("releasing one of two tensors freed %d KiB, want %d", gone, size/1024)
	}
	tensors["b"].Release()
	if left := mappedKB(t) - start; left > 4<<10 {
		t.Errorf("%d KiB stay after both tensors were released", left)
	}
	if !bytes.Equal(tensors["a"].Bytes(), data) {
		t.Error("other bytes after Release")
	}
}
