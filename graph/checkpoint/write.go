package checkpoint

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/bits"
	"os"
	"path/filepath"
	"slices"

	"github.com/gomlx/compute/dtypes"
)

// Item is one tensor to write.
type Item struct {
	Key   string
	DType dtypes.DType
	Shape []int
	// Data are the little-endian elements, row-major.
	Data []byte
}

// dataAlign is where the data of a written file begins, and its tensors as far as their sizes allow: device runtimes take a
// mapped tensor without a copy from there.
const dataAlign = 64

// WriteFile writes items as a safetensors file at path, replacing what is there, or nothing at all: the bytes go to a temporary
// file in the same folder that takes the name when it is complete and on the disk.
//
// The header is padded with spaces so that the data begins at a multiple of 64 bytes. The format has no room between tensors, so
// those whose size is a multiple of 64 come first, then multiples of 32, 16 and so on, by key within each: all of the first
// group begin at a multiple of 64, and a tensor of the others at least at a multiple of its own size's largest power of two.
func WriteFile(path string, items []Item, metadata map[string]string) (err error) {
	order, header, err := layout(items, metadata)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	out, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(FileError(path, err), ignoreClosed(out.Close()), os.Remove(out.Name()))
		}
	}()
	if err := writeAll(out, header, order); err != nil {
		return err
	}
	// CreateTemp makes the file private; a checkpoint is as readable as any file the user writes.
	if err := out.Chmod(0o644); err != nil {
		return err
	}
	if err := out.Sync(); err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	return os.Rename(out.Name(), path)
}

// Write writes items as a safetensors file to w, laid out as WriteFile does.
func Write(w io.Writer, items []Item, metadata map[string]string) error {
	order, header, err := layout(items, metadata)
	if err != nil {
		return err
	}
	return writeAll(w, header, order)
}

func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

func writeAll(w io.Writer, header []byte, items []Item) error {
	if _, err := w.Write(header); err != nil {
		return err
	}
	for _, it := range items {
		if _, err := w.Write(it.Data); err != nil {
			return err
		}
	}
	return nil
}

// layout checks and orders items and makes the header, length and padding included.
func layout(items []Item, metadata map[string]string) ([]Item, []byte, error) {
	order := slices.Clone(items)
	slices.SortFunc(order, func(a, b Item) int {
		return cmp.Or(-cmp.Compare(alignOf(len(a.Data)), alignOf(len(b.Data))), cmp.Compare(a.Key, b.Key))
	})
	var head bytes.Buffer
	head.WriteByte('{')
	if len(metadata) > 0 {
		head.WriteString(`"__metadata__":{`)
		for i, k := range slices.Sorted(maps.Keys(metadata)) {
			if i > 0 {
				head.WriteByte(',')
			}
			fmt.Fprintf(&head, "%s:%s", quote(k), quote(metadata[k]))
		}
		head.WriteByte('}')
	}
	seen := map[string]bool{"__metadata__": true}
	offset := 0
	for _, it := range order {
		name, size, ok := dtypeName(it.DType)
		if !ok {
			return nil, nil, fmt.Errorf("tensor %q: dtype %s has no name in the safetensors format", it.Key, it.DType)
		}
		if seen[it.Key] {
			return nil, nil, fmt.Errorf("tensor %q: the key is reserved or given twice", it.Key)
		}
		seen[it.Key] = true
		dims := make([]int64, len(it.Shape))
		for i, d := range it.Shape {
			if d < 0 {
				return nil, nil, fmt.Errorf("tensor %q: shape %v has a negative dimension", it.Key, it.Shape)
			}
			dims[i] = int64(d)
		}
		if want, ok := byteSize(size, dims); !ok || want != int64(len(it.Data)) {
			return nil, nil, fmt.Errorf("tensor %q: found %d bytes, shape %v of %s needs %d", it.Key, len(it.Data), it.Shape, name, want)
		}
		if head.Len() > 1 {
			head.WriteByte(',')
		}
		fmt.Fprintf(&head, `%s:{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}`, quote(it.Key), name, formatDims(it.Shape), offset, offset+len(it.Data))
		offset += len(it.Data)
	}
	head.WriteByte('}')
	for (8+head.Len())%dataAlign != 0 {
		head.WriteByte(' ')
	}
	if head.Len() > maxHeader {
		return nil, nil, fmt.Errorf("the header would be %d bytes, more than the format's limit of %d", head.Len(), maxHeader)
	}
	return order, append(le.AppendUint64(nil, uint64(head.Len())), head.Bytes()...), nil
}

// alignOf is the largest power of two up to dataAlign that divides n.
func alignOf(n int) int {
	if n == 0 {
		return dataAlign
	}
	return min(1<<bits.TrailingZeros(uint(n)), dataAlign)
}

// quote writes s as a JSON string.
func quote(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic("BUG: checkpoint: " + err.Error())
	}
	return b
}
