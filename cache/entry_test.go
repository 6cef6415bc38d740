package cache

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
)

var testKey = NewKey("program", "unet", "plugin", "cpu", "threads", "2")

// encode makes the bytes of an entry file.
func encode(t testing.TB, kind Kind, key Key, payload []byte) []byte {
	t.Helper()
	head, err := encodeHead(kind, key, payload, time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	return append(head, payload...)
}

// decode reads an entry as Get does.
func decode(file []byte, kind Kind, key Key) ([]byte, error) {
	r := bytes.NewReader(file)
	h, err := readHead(r, int64(len(file)))
	if err != nil {
		return nil, err
	}
	if err := h.is(kind, key); err != nil {
		return nil, err
	}
	return h.readPayload(r)
}

// rawEntry makes an entry with a header as given, with all checksums right.
func rawEntry(version uint32, head string, payload string) []byte {
	out := []byte(entryMagic)
	out = binary.LittleEndian.AppendUint32(out, version)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(head)))
	out = append(out, head...)
	sum := sha256.Sum256(out)
	return append(append(out, sum[:]...), payload...)
}

// The bytes of an entry are a format that other versions of precast read: a change needs a new entryVersion.
func TestEntryBytes(t *testing.T) {
	got := encode(t, Executable, NewKey("program", "vae", "plugin", "cpu"), []byte("payload"))
	head := `{"kind":"executable","key":[{"name":"program","value":"vae"},{"name":"plugin","value":"cpu"}],"payload":7,` +
		`"sha256":"239f59ed55e737c77147cf55ad0c1b030b6d7ee748a7426952f9b852d5a935e5","created":"2026-01-02T03:04:05Z"}`
	want := "\x8fprecast" + "\x01\x00\x00\x00" + "\xd7\x00\x00\x00" + head
	sum := sha256.Sum256([]byte(want))
	want += string(sum[:]) + "payload"
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("entry (-want +got):\n%s", diff)
	}
}

func TestEntryRoundTrip(t *testing.T) {
	for _, n := range []int{0, 1, 63, 64, 65, readChunk - 1, readChunk, readChunk + 1, 3*readChunk + 7} {
		payload := bytes.Repeat([]byte{7, 0, 255}, n/3+1)[:n]
		got, err := decode(encode(t, Manifest, testKey, payload), Manifest, testKey)
		if err != nil || !bytes.Equal(got, payload) {
			t.Errorf("%d bytes: got %d bytes, error %v", n, len(got), err)
		}
		if n > 0 && uintptr(unsafe.Pointer(&got[0]))%payloadAlign != 0 {
			t.Errorf("%d bytes: not aligned", n)
		}
		if cap(got) != n {
			t.Errorf("%d bytes: capacity %d", n, cap(got))
		}
	}
}

// A reader may return less than it is asked for.
func TestEntryShortReads(t *testing.T) {
	file := encode(t, Manifest, testKey, []byte("some payload"))
	for name, r := range map[string]io.Reader{"one": iotest.OneByteReader(bytes.NewReader(file)), "data and EOF": iotest.DataErrReader(bytes.NewReader(file))} {
		h, err := readHead(r, int64(len(file)))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, err := h.readPayload(r); err != nil || string(got) != "some payload" {
			t.Errorf("%s: got %q, error %v", name, got, err)
		}
	}
}

// An error of the disk is not the entry's fault.
func TestEntryReadError(t *testing.T) {
	file := encode(t, Manifest, testKey, []byte("some payload"))
	broken := errors.New("input/output error")
	for _, n := range []int{0, 10, 40, len(file) - 4} {
		r := io.MultiReader(bytes.NewReader(file[:n]), iotest.ErrReader(broken))
		h, err := readHead(r, int64(len(file)))
		if err == nil {
			_, err = h.readPayload(r)
		}
		if !errors.Is(err, broken) {
			t.Errorf("after %d bytes: error %v, wanted %v", n, err, broken)
		}
	}
}

// Every byte of the file is covered.
func TestEntryEachByteFlipped(t *testing.T) {
	file := encode(t, Executable, testKey, []byte("0123456789abcdef"))
	for i := range file {
		for _, flip := range []byte{0x01, 0x20, 0x80, 0xff} {
			bad := slices.Clone(file)
			bad[i] ^= flip
			_, err := decode(bad, Executable, testKey)
			if err == nil {
				t.Fatalf("byte %d of %d ^ %#x: no error", i, len(file), flip)
			}
			isVersion := i >= len(entryMagic) && i < len(entryMagic)+4
			var reason *badEntryError
			if errors.Is(err, errStale) != isVersion || errors.As(err, &reason) == isVersion {
				t.Errorf("byte %d ^ %#x: error %v; is it the version: %v", i, flip, err, isVersion)
			}
		}
	}
}

// Every length but the right one is found.
func TestEntryEachLength(t *testing.T) {
	file := encode(t, Executable, testKey, []byte("0123456789abcdef"))
	for n := range len(file) {
		var reason *badEntryError
		if _, err := decode(file[:n], Executable, testKey); !errors.As(err, &reason) {
			t.Errorf("%d of %d bytes: error %v", n, len(file), err)
		}
	}
	var reason *badEntryError
	if _, err := decode(append(slices.Clone(file), 0), Executable, testKey); !errors.As(err, &reason) {
		t.Errorf("one byte more: error %v", err)
	}
}

func TestEntryRefused(t *testing.T) {
	sum := func(s string) string {
		h := sha256.Sum256([]byte(s))
		return hex.EncodeToString(h[:])
	}
	key, _ := json.Marshal(testKey)
	head := func(kind string, key string, n int, sum string) string {
		return fmt.Sprintf(`{"kind":%q,"key":%s,"payload":%d,"sha256":%q,"created":"2026-01-02T03:04:05Z"}`, kind, key, n, sum)
	}
	good := head("manifest", string(key), 3, sum("abc"))
	if _, err := decode(rawEntry(entryVersion, good, "abc"), Manifest, testKey); err != nil {
		t.Fatalf("the good entry: %v", err)
	}
	long := []byte(entryMagic)
	long = binary.LittleEndian.AppendUint32(long, entryVersion)
	long = binary.LittleEndian.AppendUint32(long, 0xffffffff)
	tests := []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, "the file is empty"},
		{"zeros", make([]byte, 4096), `it starts with "\x00`},
		{"another file", []byte("#!/bin/sh\nexit 0\nexit 0\nexit 0\n"), `it starts with "#!/bin/s", wanted "\x8fprecast"`},
		{"header longer than any", append(long, make([]byte, 100)...), "its header has 4294967295 bytes in a file of 116 bytes"},
		{"version 0", rawEntry(0, good, "abc"), "version 0, this one reads 1"},
		{"version 2", rawEntry(2, good, "abc"), "version 2, this one reads 1"},
		{"not JSON", rawEntry(entryVersion, "{", "abc"), "the header is not what this precast writes"},
		{"empty header", rawEntry(entryVersion, "", "abc"), "the header is not what this precast writes"},
		{"null", rawEntry(entryVersion, "null", "abc"), "the payload has 3 bytes, wanted 0"},
		{"another type", rawEntry(entryVersion, `{"payload":"3"}`, "abc"), "the header is not what this precast writes"},
		{"another kind", rawEntry(entryVersion, head("executable", string(key), 3, sum("abc")), "abc"), `it is of kind "executable", wanted "manifest"`},
		{"another key", rawEntry(entryVersion, head("manifest", `[{"name":"program","value":"vae"}]`, 3, sum("abc")), "abc"), "it has the key "},
		{"no key", rawEntry(entryVersion, head("manifest", `null`, 3, sum("abc")), "abc"), "it has the key "},
		{"negative length", rawEntry(entryVersion, head("manifest", string(key), -3, sum("abc")), "abc"), "the payload has 3 bytes, wanted -3"},
		{"huge length", rawEntry(entryVersion, head("manifest", string(key), 1<<50, sum("abc")), "abc"), "the payload has 3 bytes, wanted 1125899906842624"},
		{"another payload", rawEntry(entryVersion, good, "abd"), "the payload's SHA-256 is " + sum("abd") + ", wanted " + sum("abc")},
		{"no digest", rawEntry(entryVersion, head("manifest", string(key), 3, ""), "abc"), "the payload's SHA-256 is " + sum("abc")},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			data, err := decode(test.file, Manifest, testKey)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %q, error %v; wanted an error with %q", data, err, test.want)
			}
		})
	}
}

func TestEncodeHeadRefuses(t *testing.T) {
	if _, err := encodeHead(Manifest, NewKey("flags", "\xff"), nil, time.Now()); err == nil || !strings.Contains(err.Error(), `field "flags" of the cache key is not UTF-8`) {
		t.Errorf("a key that isn't UTF-8: error %v", err)
	}
	if _, err := encodeHead(Manifest, NewKey("spec", strings.Repeat("x", maxHeader)), nil, time.Now()); err == nil || !strings.Contains(err.Error(), "the cache key is too long") {
		t.Errorf("a key that is too long: error %v", err)
	}
}

func TestKeyDigest(t *testing.T) {
	// A digest that changes makes every cache miss once.
	if got, want := testKey.Digest(), "9a7f8697febf2bc392a7e11e7b9f920411984a454e753344c11c0066cdffdbf5"; got != want {
		t.Errorf("digest %s, wanted %s", got, want)
	}
	seen := map[string]Key{}
	for _, k := range []Key{{}, NewKey("a", ""), NewKey("", "a"), NewKey("a", "b"), NewKey("ab", ""), NewKey("a", "b", "c", "d"), NewKey("c", "d", "a", "b"), NewKey("a", "b\n1:c=1:d")} {
		if other, twice := seen[k.Digest()]; twice {
			t.Errorf("%q and %q have the same digest", k, other)
		}
		seen[k.Digest()] = k
	}
}

func TestKeyDiff(t *testing.T) {
	a := NewKey("program", "unet", "plugin", "cpu", "threads", "2")
	b := NewKey("program", "unet", "plugin", "tpu", "chips", "4")
	want := []Difference{{"plugin", "cpu", "tpu"}, {"threads", "2", ""}, {"chips", "", "4"}}
	if diff := cmp.Diff(want, a.Diff(b)); diff != "" {
		t.Errorf("Diff (-want +got):\n%s", diff)
	}
	if got := a.Diff(a); got != nil {
		t.Errorf("Diff of a key with itself: %v", got)
	}
}

// FuzzEntry reads arbitrary files, and files with one changed byte or another length.
func FuzzEntry(f *testing.F) {
	for _, payload := range []string{"", "x", strings.Repeat("payload ", 100)} {
		f.Add(encode(f, Manifest, testKey, []byte(payload)), uint32(0), byte(0), uint16(0))
		f.Add([]byte(payload), uint32(9), byte(1), uint16(0))
		f.Add([]byte(payload), uint32(300), byte(0x80), uint16(0))
		f.Add([]byte(payload), uint32(0), byte(0), uint16(1))
	}
	f.Add(rawEntry(entryVersion, `{"payload":3}`, "abc"), uint32(0), byte(0), uint16(0))
	f.Fuzz(func(t *testing.T, data []byte, at uint32, flip byte, cut uint16) {
		// As a file: it is read or refused, and what is read has the digest that the file says.
		r := bytes.NewReader(data)
		if h, err := readHead(r, int64(len(data))); err == nil {
			payload, err := h.readPayload(r)
			if sum := sha256.Sum256(payload); err == nil && hex.EncodeToString(sum[:]) != h.SHA256 {
				t.Fatalf("payload %q read with the digest %s", payload, h.SHA256)
			}
			if err == nil && !bytes.HasSuffix(data, payload) {
				t.Fatalf("payload %q is not the end of the file", payload)
			}
		}
		// As a payload: any change of its entry is found.
		file := encode(t, Executable, testKey, data)
		file[int(at)%len(file)] ^= flip
		file = file[:max(0, len(file)-int(cut))]
		payload, err := decode(file, Executable, testKey)
		if whole := flip == 0 && cut == 0; whole != (err == nil) {
			t.Fatalf("byte %d ^ %#x, cut by %d: error %v", at, flip, cut, err)
		}
		if err == nil && !bytes.Equal(payload, data) {
			t.Fatalf("payload %q, wanted %q", payload, data)
		}
	})
}

// BenchmarkGet reads an entry as large as a compiled transformer.
func BenchmarkGet(b *testing.B) {
	const n = 50 << 20
	s := Open(b.TempDir(), Options{Warn: b.Logf})
	payload := make([]byte, n)
	for i := range payload {
		payload[i] = byte(i * 7 >> 3)
	}
	if err := s.Put(Executable, testKey, payload); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(n)
	for b.Loop() {
		if _, ok := s.Get(Executable, testKey); !ok {
			b.Fatal("miss")
		}
	}
	_ = os.Remove(s.path(Executable, testKey.Digest()))
}
