package checkpoint

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"unicode/utf8"
	"unsafe"

	"github.com/gomlx/compute/dtypes"
)

// maxHeader is the largest header the format allows, in bytes.
const maxHeader = 100_000_000

// File is an open safetensors file: its header in memory, its data mapped read-only and untouched until a tensor is read.
//
// The format (https://huggingface.co/docs/safetensors): eight bytes of little-endian header length, a JSON header that gives each
// tensor's dtype, shape and place, then the tensors' bytes without gaps. The methods are safe for concurrent use, Close excepted.
type File struct {
	path     string
	size     int64
	info     os.FileInfo // of the open file
	keys     []string    // in the order of the data
	tensors  map[string]Tensor
	metadata map[string]string
	digest   [sha256.Size]byte

	mu     sync.Mutex
	data   []byte // the whole file; nil after Close
	unmap  func() error
	closed bool
}

// Tensor is one tensor of a File: what the header says and, through the file, its bytes.
type Tensor struct {
	// Key is the tensor's name in the file ("transformer_blocks.0.attn.to_q.weight").
	Key string
	// DType is the stored element type.
	DType dtypes.DType
	// Shape are the stored dimensions, row-major; empty for a scalar.
	Shape []int
	// File is the file that holds the tensor.
	File *File
	// Offset is the place of the first byte in the file, Size the number of bytes.
	Offset, Size int64
}

// OpenFile opens the safetensors file at path and checks its whole header: every tensor must lie inside the file, have the size
// that its dtype and shape give, and follow the one before without overlap or gap up to the last byte of the file. No tensor
// byte is read.
func OpenFile(path string) (*File, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, FileError(path, err)
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: found a %s, wanted a safetensors file", path, fileKind(st.Mode()))
	}
	in, err := os.Open(path)
	if err != nil {
		return nil, FileError(path, err)
	}
	defer in.Close()
	// The size of the open file counts: the name may point elsewhere by now.
	if st, err = in.Stat(); err != nil {
		return nil, FileError(path, err)
	}
	header, err := readHeader(in, st.Size())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	f := &File{path: path, size: st.Size(), info: st, digest: sha256.Sum256(header)}
	if err := f.parseHeader(header); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if f.data, f.unmap, err = mapFile(in, f.size); err != nil {
		return nil, FileError(path, err)
	}
	return f, nil
}

// readHeader reads the header's JSON text from a safetensors file of the given size.
func readHeader(in io.ReaderAt, size int64) ([]byte, error) {
	if size == 0 {
		return nil, errors.New("found an empty file, wanted a safetensors file")
	}
	start := make([]byte, min(size, 64))
	if _, err := in.ReadAt(start, 0); err != nil {
		return nil, fmt.Errorf("reading the header: %w", err)
	}
	if other := foreignFormat(start); other != "" {
		return nil, fmt.Errorf("not a safetensors file (looks like %s)", other)
	}
	if size < 8 {
		return nil, fmt.Errorf("found %d bytes, wanted at least the 8 bytes of a safetensors header length: the file is truncated", size)
	}
	n := binary.LittleEndian.Uint64(start)
	switch {
	case n > maxHeader:
		return nil, fmt.Errorf("the header length is %d bytes, more than the format's limit of %d: not a safetensors file, or a broken one", n, maxHeader)
	case int64(n) > size-8:
		return nil, fmt.Errorf("the header is %d bytes long but the file has only %d: the file is truncated (expected at least %d bytes, found %d)", n, size-8, 8+n, size)
	}
	header := make([]byte, n)
	if _, err := in.ReadAt(header, 8); err != nil {
		return nil, fmt.Errorf("reading the header: %w", err)
	}
	return header, nil
}

// foreignFormat names the format that a file's first bytes belong to, "" when none is recognised. No safetensors file begins
// with any of these: as a header length each is far past the limit.
func foreignFormat(start []byte) string {
	for _, m := range []struct{ magic, name string }{
		{"PK\x03\x04", "a PyTorch zip file (.bin, .pt or .ckpt)"},
		{"PK\x05\x06", "an empty zip file"},
		{"\x80\x02", "a Python pickle (an old PyTorch .bin, .pt or .ckpt)"},
		{"\x80\x04", "a Python pickle"},
		{"\x80\x05", "a Python pickle"},
		{"GGUF", "a GGUF file"},
		{"version https://git-lfs", "a Git LFS pointer: the file itself was not downloaded; run git lfs pull"},
		{"version https://hawser", "a Git LFS pointer: the file itself was not downloaded; run git lfs pull"},
		{"<!DOCTYPE", "a web page"},
		{"<html", "a web page"},
		{"\x1f\x8b", "a gzip file"},
		{"\x89HDF", "an HDF5 file"},
		{"{\"", "JSON text"},
		{"{\n", "JSON text"},
	} {
		if bytes.HasPrefix(start, []byte(m.magic)) {
			// A header length in range has zeros in its upper four bytes.
			if len(start) >= 8 && binary.LittleEndian.Uint64(start) <= maxHeader {
				return ""
			}
			return m.name
		}
	}
	return ""
}

// parseHeader fills f's tensors and metadata from the header text and checks them against f.size.
func (f *File) parseHeader(header []byte) error {
	if len(header) == 0 || header[0] != '{' {
		return fmt.Errorf("the header begins with %q, wanted a JSON object: not a safetensors file, or a broken one", header[:min(len(header), 8)])
	}
	if !utf8.Valid(header) {
		return errors.New("the header is not UTF-8 text: not a safetensors file, or a broken one")
	}
	keys, fields, err := parseObject(header)
	if err != nil {
		return fmt.Errorf("header%w", err)
	}
	dataStart := int64(8 + len(header))
	f.metadata = map[string]string{}
	f.tensors = make(map[string]Tensor, len(keys))
	for _, key := range keys {
		if key == "__metadata__" {
			if err := parseMetadata(fields[key], f.metadata); err != nil {
				return err
			}
			continue
		}
		t, err := parseTensor(key, fields[key])
		if err != nil {
			return fmt.Errorf("header: tensor %q: %w", key, err)
		}
		if t.Offset > math.MaxInt64-dataStart-t.Size {
			return fmt.Errorf("header: tensor %q: data_offsets %d are past any file", key, t.Offset)
		}
		t.File = f
		t.Offset += dataStart
		f.tensors[key] = t
		f.keys = append(f.keys, key)
	}
	// Empty tensors sort before the tensor that begins where they lie.
	slices.SortFunc(f.keys, func(a, b string) int {
		ta, tb := f.tensors[a], f.tensors[b]
		return cmp.Or(cmp.Compare(ta.Offset, tb.Offset), cmp.Compare(ta.Size, tb.Size), cmp.Compare(a, b))
	})
	end, last := dataStart, ""
	for _, key := range f.keys {
		t := f.tensors[key]
		switch {
		case t.Offset < end:
			return fmt.Errorf("header: tensors %q and %q overlap: %q begins at byte %d of the data, %q ends at %d",
				last, key, key, t.Offset-dataStart, last, end-dataStart)
		case t.Offset > end:
			return fmt.Errorf("header: %d bytes before tensor %q belong to no tensor: it begins at byte %d of the data, the tensors before it end at %d",
				t.Offset-end, key, t.Offset-dataStart, end-dataStart)
		}
		end, last = t.Offset+t.Size, key
	}
	switch {
	case f.size < end:
		return fmt.Errorf("the file is truncated: expected %d bytes, found %d (%d missing; the last tensor is %q)", end, f.size, end-f.size, last)
	case f.size > end:
		return fmt.Errorf("the file has %d trailing bytes: expected %d bytes, found %d", f.size-end, end, f.size)
	}
	return nil
}

func parseMetadata(raw json.RawMessage, into map[string]string) error {
	if string(raw) == "null" {
		return nil
	}
	keys, fields, err := splitObject(raw)
	if err != nil {
		return fmt.Errorf("header: __metadata__: found %s, wanted an object of strings without repeated keys", describe(raw))
	}
	for _, k := range keys {
		s, ok := Text(fields[k])
		if !ok {
			return fmt.Errorf("header: __metadata__: key %q: found %s, wanted a string", k, describe(fields[k]))
		}
		into[k] = s
	}
	return nil
}

// parseTensor reads one header entry; the returned offset counts from the start of the data.
func parseTensor(key string, raw json.RawMessage) (Tensor, error) {
	t := Tensor{Key: key}
	_, fields, err := splitObject(raw)
	if err != nil {
		return t, fmt.Errorf("found %s, wanted an object with dtype, shape and data_offsets", describe(raw))
	}
	name, ok := Text(fields["dtype"])
	if !ok {
		return t, fmt.Errorf("dtype: found %s, wanted a string", describe(fields["dtype"]))
	}
	dtype, size, known := parseDType(name)
	if !known {
		return t, fmt.Errorf("dtype: found %q, wanted one of %s", name, dtypeList())
	}
	dims, ok := parseCounts(fields["shape"])
	if !ok {
		return t, fmt.Errorf("shape: found %s, wanted a list of integers of 0 or more", describe(fields["shape"]))
	}
	offsets, ok := parseCounts(fields["data_offsets"])
	if !ok || len(offsets) != 2 {
		return t, fmt.Errorf("data_offsets: found %s, wanted two integers of 0 or more", describe(fields["data_offsets"]))
	}
	begin, end := offsets[0], offsets[1]
	if begin > end {
		return t, fmt.Errorf("data_offsets: found [%d, %d], wanted the end at or after the begin", begin, end)
	}
	want, ok := byteSize(size, dims)
	if !ok {
		return t, fmt.Errorf("shape %v of %s has more bytes than fit a file", dims, name)
	}
	if want != end-begin {
		return t, fmt.Errorf("data_offsets [%d, %d] hold %d bytes, but shape %v of %s needs %d", begin, end, end-begin, dims, name, want)
	}
	t.DType, t.Offset, t.Size = dtype, begin, want
	t.Shape = make([]int, len(dims))
	for i, d := range dims {
		t.Shape[i] = int(d)
	}
	return t, nil
}

// parseCounts reads a JSON list of integers from 0 to 2^63-1, written as digits alone.
func parseCounts(raw json.RawMessage) ([]int64, bool) {
	if len(raw) == 0 || raw[0] != '[' {
		return nil, false
	}
	out := []int64{}
	for _, p := range ListElements(raw) {
		v, err := strconv.ParseInt(string(p), 10, 64)
		if err != nil || v < 0 || p[0] == '-' {
			return nil, false
		}
		out = append(out, v)
	}
	return out, true
}

// byteSize is elem times the product of dims; ok is false when it does not fit an int64.
func byteSize(elem int64, dims []int64) (size int64, ok bool) {
	size = elem
	// A zero makes the product zero, whatever overflowed before it.
	if slices.Contains(dims, 0) {
		return 0, true
	}
	for _, d := range dims {
		if size > math.MaxInt64/d {
			return 0, false
		}
		size *= d
	}
	return size, true
}

// Path returns the path the file was opened with.
func (f *File) Path() string { return f.path }

// Size returns the file's length in bytes.
func (f *File) Size() int64 { return f.size }

// Keys returns the tensors' keys in the order of their data.
func (f *File) Keys() []string { return slices.Clone(f.keys) }

// Tensor returns the tensor of that key; ok is false when the file has none.
func (f *File) Tensor(key string) (t Tensor, ok bool) {
	t, ok = f.tensors[key]
	return t, ok
}

// Tensors returns all tensors by key.
func (f *File) Tensors() map[string]Tensor { return maps.Clone(f.tensors) }

// Metadata returns the header's __metadata__, empty when the header has none.
func (f *File) Metadata() map[string]string { return maps.Clone(f.metadata) }

// HeaderDigest is the SHA-256 of the header text. It fixes every key, dtype, shape and offset, and so the file's length, but not
// the values.
func (f *File) HeaderDigest() [sha256.Size]byte { return f.digest }

// Intact returns an error, with the first tensor that is missing, where the file has become shorter since it was opened. What is missing of its last page reads as zeros, without a fault. A file that
// took its name, as an update does it, changes nothing: the one that was opened stays mapped.
func (f *File) Intact() error {
	st, err := os.Stat(f.path)
	if err != nil || !os.SameFile(st, f.info) || st.Size() >= f.size {
		return nil
	}
	key := f.keys[slices.IndexFunc(f.keys, func(k string) bool { return f.tensors[k].Offset+f.tensors[k].Size > st.Size() })]
	return fmt.Errorf("%s: tensor %q: the file was cut short while it is in use: it had %d bytes, found %d", f.path, key, f.size, st.Size())
}

// Identity tells the file's content from that of others without reading it: the path without links, the digest of the header, the length, the file's number
// in its file system, and when the content and the entry in its folder were last changed. The last of these can't be set, so a file that takes another's
// place is told from it; the number tells it from one that was made within the same tick of the clock.
func (f *File) Identity() string {
	path := f.path
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	return fmt.Sprintf("%q %x %d %d %d %d", path, f.digest, f.size, fileNumber(f.info), f.info.ModTime().UnixNano(), changeTime(f.info))
}

// Close unmaps the file. Every view that Bytes handed out is invalid from then on: reading one crashes the process.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	f.closed = true
	f.data = nil
	if err := f.unmap(); err != nil {
		return FileError(f.path, err)
	}
	return nil
}

// view returns the bytes of the file from offset.
func (f *File) view(offset, size int64) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		panic("BUG: checkpoint: read of a closed file " + f.path)
	}
	return f.data[offset : offset+size : offset+size]
}

// Bytes returns the tensor's bytes, little-endian, as a view of the mapped file: read-only (a write crashes the process) and
// valid until the file is closed. A file cut short by another process after it was opened makes a read of the view crash too;
// the copying accessors return an error then.
func (t Tensor) Bytes() []byte { return t.File.view(t.Offset, t.Size) }

// Len returns the number of elements.
func (t Tensor) Len() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Aligned tells whether the view that Bytes returns begins at a multiple of n bytes in memory.
func (t Tensor) Aligned(n int) bool {
	b := t.Bytes()
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%uintptr(n) == 0
}

// Release tells the operating system that the tensor's mapped pages are not needed in memory any more. They leave the process's
// resident set and are read from the file again on the next access, so views stay valid. Pages shared with a neighbouring
// tensor stay.
func (t Tensor) Release() {
	if t.Size > 0 {
		releasePages(t.Bytes())
	}
}

// String describes the tensor as "KEY DTYPE[DIMS]".
func (t Tensor) String() string {
	name, _, _ := dtypeName(t.DType)
	return t.Key + " " + name + formatDims(t.Shape)
}

// formatDims prints dimensions as "[2,3]".
func formatDims(dims []int) string {
	b := []byte{'['}
	for i, d := range dims {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(d), 10)
	}
	return string(append(b, ']'))
}
