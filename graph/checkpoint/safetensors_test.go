package checkpoint

import (
	"archive/zip"
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/google/go-cmp/cmp"
)

// raw makes a safetensors file from a header and data as they are.
func raw(header string, data int) []byte {
	b := le.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	return append(b, make([]byte, data)...)
}

func entry(key, dtype, shape string, begin, end int) string {
	return fmt.Sprintf(`%q:{"dtype":%q,"shape":%s,"data_offsets":[%d,%d]}`, key, dtype, shape, begin, end)
}

func put(t *testing.T, dir, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestOpenFileErrors(t *testing.T) {
	var zipped bytes.Buffer
	w := zip.NewWriter(&zipped)
	if m, err := w.Create("archive/data.pkl"); err != nil {
		t.Fatal(err)
	} else if _, err := m.Write(make([]byte, 200)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	a := entry("a", "F32", "[2]", 0, 8)
	for _, tt := range []struct {
		name string
		data []byte
		want string
	}{
		{"empty", nil, "found an empty file"},
		{"few bytes", []byte{1, 2, 3}, "found 3 bytes, wanted at least the 8 bytes"},
		{"zip", zipped.Bytes(), "not a safetensors file (looks like a PyTorch zip file"},
		{"pickle", []byte("\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01K\x01u."), "looks like a Python pickle"},
		{"gguf", append([]byte("GGUF\x03\x00\x00\x00\x01"), make([]byte, 80)...), "looks like a GGUF file"},
		{"lfs pointer", []byte("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"), "looks like a Git LFS pointer"},
		{"json", []byte(`{"a": 1, "b": 2}`), "looks like JSON text"},
		{"header past the limit", append(le.AppendUint64(nil, 100_000_001), make([]byte, 100)...), "header length is 100000001 bytes, more than the format's limit"},
		{"header of 2^64-1", append(le.AppendUint64(nil, math.MaxUint64), make([]byte, 100)...), "more than the format's limit"},
		{"header past the file", append(le.AppendUint64(nil, 1000), '{', '}'), "the header is 1000 bytes long but the file has only 2: the file is truncated (expected at least 1008 bytes, found 10)"},
		{"header not JSON", raw("hello {}", 0), `the header begins with "hello {}", wanted a JSON object`},
		{"header empty", raw("", 0), "the header begins with"},
		{"header broken", raw("{\"a\":", 0), "header:1:6: broken JSON"},
		{"header not UTF-8", raw("{\"\xff\":1}", 0), "not UTF-8"},
		{"header a list", raw("[]", 0), "wanted a JSON object"},
		{"duplicate key", raw("{"+a+","+a+"}", 8), `key "a" is given twice`},
		{"unknown dtype", raw("{"+entry("a", "F12", "[2]", 0, 8)+"}", 8), `tensor "a": dtype: found "F12", wanted one of BF16, BOOL`},
		{"dtype a number", raw(`{"a":{"dtype":3,"shape":[2],"data_offsets":[0,8]}}`, 8), `tensor "a": dtype: found 3, wanted a string`},
		{"no dtype", raw(`{"a":{"shape":[2],"data_offsets":[0,8]}}`, 8), `tensor "a": dtype: found nothing, wanted a string`},
		{"no shape", raw(`{"a":{"dtype":"F32","data_offsets":[0,8]}}`, 8), "shape: found nothing"},
		{"entry null", raw(`{"a":null}`, 0), `tensor "a": found null, wanted an object`},
		{"begin after end", raw("{"+entry("a", "F32", "[2]", 8, 0)+"}", 8), "data_offsets: found [8, 0], wanted the end at or after the begin"},
		{"three offsets", raw(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,16]}}`, 8), "data_offsets: found a list [0,8,16], wanted two integers"},
		{"negative dimension", raw("{"+entry("a", "F32", "[-2]", 0, 8)+"}", 8), "shape: found a list [-2], wanted a list of integers of 0 or more"},
		{"fractional dimension", raw("{"+entry("a", "F32", "[2.0]", 0, 8)+"}", 8), "shape: found a list [2.0]"},
		{"null dimension", raw("{"+entry("a", "F32", "[null]", 0, 8)+"}", 8), "shape: found a list [null]"},
		{"huge offset", raw("{"+entry("a", "F32", "[0]", math.MaxInt64, math.MaxInt64)+"}", 8), `tensor "a": data_offsets`},
		{"offset past int64", raw(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,99999999999999999999]}}`, 8), "data_offsets: found"},
		{"size and shape differ", raw("{"+entry("a", "F32", "[3]", 0, 8)+"}", 8), `tensor "a": data_offsets [0, 8] hold 8 bytes, but shape [3] of F32 needs 12`},
		{"overflowing shape", raw("{"+entry("a", "F32", "[4294967296,4294967296]", 0, 0)+"}", 0), "more bytes than fit a file"},
		{"overlap", raw("{"+a+","+entry("b", "F32", "[2]", 4, 12)+"}", 12), `tensors "a" and "b" overlap`},
		{"hole", raw("{"+a+","+entry("b", "F32", "[2]", 12, 20)+"}", 20), `4 bytes before tensor "b" belong to no tensor`},
		{"hole at the start", raw("{"+entry("b", "F32", "[2]", 4, 12)+"}", 12), `4 bytes before tensor "b" belong to no tensor`},
		{"truncated", raw("{"+a+"}", 5), `the file is truncated: expected 70 bytes, found 67 (3 missing; the last tensor is "a")`},
		{"trailing bytes", raw("{"+a+"}", 12), "the file has 4 trailing bytes: expected 70 bytes, found 74"},
		{"metadata not strings", raw(`{"__metadata__":{"n":3},`+a+"}", 8), `__metadata__: key "n": found 3, wanted a string`},
		{"metadata a list", raw(`{"__metadata__":[],`+a+"}", 8), "__metadata__: found a list [], wanted an object"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := put(t, t.TempDir(), "w.safetensors", tt.data)
			f, err := OpenFile(path)
			if err == nil {
				f.Close()
				t.Fatal("opened without an error")
			}
			if !strings.HasPrefix(err.Error(), path+": ") || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v\nwant %s: ... %s", err, path, tt.want)
			}
		})
	}
}

func TestOpenFilePathErrors(t *testing.T) {
	dir := t.TempDir()
	loop := filepath.Join(dir, "loop")
	if err := os.Symlink("loop", loop); err != nil {
		t.Skip(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "gone"): "gone: no such file or directory",
		loop:                       "loop: too many levels of symbolic links",
		dir:                        "found a directory, wanted a safetensors file",
		os.DevNull:                 "found a device, wanted a safetensors file",
	} {
		if _, err := OpenFile(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("OpenFile(%s) = %v, want %s", path, err, want)
		}
	}
}

func float32Bytes(v ...float32) []byte {
	var b []byte
	for _, x := range v {
		b = le.AppendUint32(b, math.Float32bits(x))
	}
	return b
}

// Metadata may be absent, tensors may begin at any offset, have no dimensions or no elements.
func TestOpenFileOddOffsets(t *testing.T) {
	header := "{" + entry("b", "U8", "[3]", 0, 3) + "," + entry("f", "F32", "[2]", 3, 11) + "," + entry("i", "I64", "[]", 11, 19) +
		"," + entry("e", "F32", "[0,7]", 3, 3) + "," + entry("h", "BF16", "[2,1]", 19, 23) + "}"
	data := append([]byte{1, 2, 250}, float32Bytes(1.5, -2)...)
	data = le.AppendUint64(data, ^uint64(6))
	data = le.AppendUint16(data, 0x3fc0)
	data = le.AppendUint16(data, 0xc000)
	path := put(t, t.TempDir(), "odd.safetensors", append(raw(header, 0), data...))
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, want := f.Keys(), []string{"b", "e", "f", "i", "h"}; !slices.Equal(got, want) {
		t.Errorf("Keys() = %v, want %v", got, want)
	}
	if len(f.Metadata()) != 0 {
		t.Errorf("Metadata() = %v", f.Metadata())
	}
	ten := f.Tensors()
	for key, want := range map[string][]float32{"b": {1, 2, 250}, "f": {1.5, -2}, "i": {-7}, "e": {}, "h": {1.5, -2}} {
		got, err := ten[key].Float32s()
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %v, %v; want %v", key, got, err, want)
		}
	}
	if got, err := ten["i"].Int64s(); err != nil || !slices.Equal(got, []int64{-7}) {
		t.Errorf("i: %v, %v", got, err)
	}
	if _, err := ten["f"].Int64s(); err == nil {
		t.Error("Int64s of F32 gave no error")
	}
	if ten["f"].Aligned(2) {
		t.Errorf("offset %d counts as aligned", ten["f"].Offset)
	}
	c, err := ten["f"].Copy()
	if err != nil || !bytes.Equal(c, float32Bytes(1.5, -2)) {
		t.Errorf("Copy() = %v, %v", c, err)
	}
	if got := ten["h"].String(); got != "h BF16[2,1]" {
		t.Errorf("String() = %q", got)
	}
	if _, ok := f.Tensor("none"); ok {
		t.Error("a tensor that is not there")
	}
	for range 2 {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "w.safetensors")
	items := []Item{
		{"odd", dtypes.Uint8, []int{3}, []byte{7, 8, 9}},
		{"scalar", dtypes.Float32, nil, float32Bytes(3)},
		{"z", dtypes.Float32, []int{4, 8}, make([]byte, 128)},
		{"bias", dtypes.Float32, []int{8}, make([]byte, 32)},
		{"a \"quoted\" é", dtypes.BFloat16, []int{32}, make([]byte, 64)},
		{"empty", dtypes.Float16, []int{0, 4}, nil},
	}
	meta := map[string]string{"format": "pt", "b": "<x>"}
	if err := WriteFile(path, items, meta); err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(items)
	if err := WriteFile(path, items, meta); err != nil {
		t.Fatal(err)
	}
	if second, _ := os.ReadFile(path); !bytes.Equal(first, second) {
		t.Error("the file depends on the order of the items")
	}
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if diff := cmp.Diff(meta, f.Metadata()); diff != "" {
		t.Error(diff)
	}
	for _, it := range items {
		got, ok := f.Tensor(it.Key)
		if !ok || got.DType != it.DType || !slices.Equal(got.Shape, it.Shape) || !bytes.Equal(got.Bytes(), it.Data) {
			t.Errorf("%s: got %v %v", it.Key, got, ok)
		}
		if len(it.Data)%64 == 0 && len(it.Data) > 0 && !got.Aligned(64) {
			t.Errorf("%s at offset %d is not aligned to 64", it.Key, got.Offset)
		}
		if it.Key == "bias" && !got.Aligned(32) || it.Key == "scalar" && !got.Aligned(4) {
			t.Errorf("%s at offset %d is not aligned to its size", it.Key, got.Offset)
		}
		got.Release()
		if !bytes.Equal(got.Bytes(), it.Data) {
			t.Errorf("%s: other bytes after Release", it.Key)
		}
	}
	for _, tt := range []struct {
		name  string
		items []Item
		path  string
		want  string
	}{
		{"twice", []Item{items[0], items[0]}, path, "given twice"},
		{"reserved", []Item{{"__metadata__", dtypes.Uint8, []int{1}, []byte{1}}}, path, "reserved"},
		{"size", []Item{{"a", dtypes.Float32, []int{2}, []byte{1}}}, path, "found 1 bytes, shape [2] of F32 needs 8"},
		{"negative", []Item{{"a", dtypes.Float32, []int{-2}, nil}}, path, "negative dimension"},
		{"dtype", []Item{{"a", dtypes.Int4, []int{2}, []byte{1}}}, path, "has no name"},
		{"no folder", items, filepath.Join(dir, "gone", "w.safetensors"), "no such file or directory"},
		{"a folder in the way", items, dir, ": "},
	} {
		if err := WriteFile(tt.path, tt.items, nil); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %s", tt.name, err, tt.want)
		}
	}
	if kept, _ := os.ReadFile(path); !bytes.Equal(first, kept) {
		t.Error("a failed write changed the file")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) != 0 {
		t.Errorf("files left behind: %v", left)
	}
}

func TestHeaderDigest(t *testing.T) {
	dir := t.TempDir()
	open := func(name, key string, v float32) [32]byte {
		path := filepath.Join(dir, name)
		if err := WriteFile(path, []Item{{key, dtypes.Float32, nil, float32Bytes(v)}}, nil); err != nil {
			t.Fatal(err)
		}
		f, err := OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return f.HeaderDigest()
	}
	a, b, c := open("a", "k", 1), open("b", "k", 2), open("c", "l", 1)
	if a != b || a == c {
		t.Error("the digest must follow the header alone")
	}
}

// A file that takes another's place with the same header, length and time is another.
func TestFileIdentity(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "w.safetensors"), filepath.Join(dir, "other.safetensors")
	then := time.Unix(1e9, 0)
	write := func(path string, v float32) {
		if err := WriteFile(path, []Item{{"k", dtypes.Float32, nil, float32Bytes(v)}}, nil); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, then, then); err != nil {
			t.Fatal(err)
		}
	}
	open := func() *File {
		f, err := OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	write(path, 1)
	write(other, 2)
	first := open()
	if again := open(); again.Identity() != first.Identity() {
		t.Errorf("one file has the identities %s and %s", first.Identity(), again.Identity())
	}
	if err := os.Rename(other, path); err != nil {
		t.Fatal(err)
	}
	second := open()
	if second.Identity() == first.Identity() {
		t.Errorf("two files have the identity %s", first.Identity())
	}
	if runtime.GOOS != "windows" && fileNumber(first.info) == fileNumber(second.info) {
		t.Errorf("two files have the number %d", fileNumber(first.info))
	}
}

// A file cut short after it was opened is an error of the copying accessors.
func TestFileShrinks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.safetensors")
	if err := WriteFile(path, []Item{{"a", dtypes.Float32, []int{1 << 16}, make([]byte, 1<<18)}}, nil); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Truncate(path, 4096); err != nil {
		t.Skip(err)
	}
	a, _ := f.Tensor("a")
	if _, err := a.Float32s(); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "cut short") {
		t.Errorf("got %v, want an error that names the file", err)
	}
}

func FuzzHeader(f *testing.F) {
	a := entry("a", "F32", "[2]", 0, 8)
	f.Add(raw("{"+a+"}", 8))
	f.Add(raw("{"+a+","+entry("b", "BF16", "[2,1]", 8, 12)+`,"__metadata__":{"format":"pt"}}`, 12))
	f.Add(raw("{"+a+","+entry("b", "U8", "[0]", 0, 0)+"}  ", 8))
	f.Add(raw("{"+entry("a", "F32", "[9223372036854775807,2]", 0, 8)+"}", 8))
	f.Add([]byte("PK\x03\x04\x00\x00\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		size := int64(len(data))
		header, err := readHeader(bytes.NewReader(data), size)
		if err != nil {
			return
		}
		file := &File{size: size}
		if err := file.parseHeader(header); err != nil {
			return
		}
		covered := int64(8 + len(header))
		for _, key := range file.keys {
			ten := file.tensors[key]
			if ten.Offset != covered || ten.Size < 0 || ten.Offset+ten.Size > size {
				t.Fatalf("%s: offset %d size %d in a file of %d, want offset %d", key, ten.Offset, ten.Size, size, covered)
			}
			covered += ten.Size
		}
		if covered != size {
			t.Fatalf("tensors cover %d of %d bytes", covered, size)
		}
	})
}
