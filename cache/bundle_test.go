package cache

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
)

type content struct {
	Programs []string `json:"programs"`
}

var (
	testContent = content{[]string{"unet", "vae"}}
	testMembers = map[string]string{
		"executables/unet.bin": strings.Repeat("\x00\x01machine code", 500),
		"executables/vae.bin":  "\x7fELF\x00\x00",
		"graph/unet.graph":     strings.Repeat("%1 = add %a, %b : f32[1,4]\n", 300),
		"empty":                "",
	}
)

// writeBundle makes a bundle of members, added in the order of names.
func writeBundle(t testing.TB, path string, names []string) {
	t.Helper()
	w, err := Create(path, "1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	for _, name := range names {
		if err := w.Add(name, []byte(testMembers[name])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(testContent); err != nil {
		t.Fatal(err)
	}
}

func bundlePath(t testing.TB) string { return filepath.Join(t.TempDir(), "out.precast") }

func memberNames() []string {
	return []string{"graph/unet.graph", "executables/vae.bin", "empty", "executables/unet.bin"}
}

func TestBundle(t *testing.T) {
	path := bundlePath(t)
	writeBundle(t, path, memberNames())
	if !IsBundle(path) {
		t.Error("IsBundle: false")
	}
	b, err := OpenBundle(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(b.Content()), `{"programs":["unet","vae"]}`; got != want {
		t.Errorf("Content %s, wanted %s", got, want)
	}
	if b.Precast() != "1.2.3" || b.Path() != path {
		t.Errorf("Precast %q, Path %q", b.Precast(), b.Path())
	}
	var want []Member
	for _, name := range slices.Sorted(slices.Values(memberNames())) {
		sum := sha256.Sum256([]byte(testMembers[name]))
		want = append(want, Member{name, int64(len(testMembers[name])), hex.EncodeToString(sum[:])})
		data, err := b.Read(name)
		if err != nil || string(data) != testMembers[name] {
			t.Errorf("%s: %d bytes, error %v", name, len(data), err)
		}
		if len(data) > 0 && uintptr(unsafe.Pointer(&data[0]))%payloadAlign != 0 {
			t.Errorf("%s is not aligned", name)
		}
	}
	if diff := cmp.Diff(want, b.Members()); diff != "" {
		t.Errorf("Members (-want +got):\n%s", diff)
	}
	for _, name := range []string{"", "manifest.json", "none"} {
		if _, err := b.Read(name); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), fmt.Sprintf("no member %q", name)) {
			t.Errorf("Read(%q): error %v", name, err)
		}
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if list, _ := os.ReadDir(filepath.Dir(path)); len(list) != 1 {
		t.Errorf("files %v, wanted the bundle alone", list)
	}
}

// Any unzip can read it: names in order, one time, text deflated, the rest stored.
func TestBundleIsPlainZip(t *testing.T) {
	path := bundlePath(t)
	writeBundle(t, path, memberNames())
	z, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	var got []string
	for _, f := range z.File {
		got = append(got, fmt.Sprintf("%s %d %s", f.Name, f.Method, f.Modified.UTC().Format(time.DateTime)))
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		// Reading to the end checks the CRC.
		data, err := io.ReadAll(r)
		if want, ok := testMembers[f.Name]; err != nil || ok && string(data) != want {
			t.Errorf("%s: %d bytes, error %v", f.Name, len(data), err)
		}
	}
	want := []string{
		"manifest.json 8 1980-01-01 00:00:00", "empty 8 1980-01-01 00:00:00", "executables/unet.bin 0 1980-01-01 00:00:00",
		"executables/vae.bin 0 1980-01-01 00:00:00", "graph/unet.graph 8 1980-01-01 00:00:00",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("members (-want +got):\n%s", diff)
	}
}

func TestBundleIsDeterministic(t *testing.T) {
	a, b := bundlePath(t), bundlePath(t)
	names := memberNames()
	writeBundle(t, a, names)
	slices.Reverse(names)
	writeBundle(t, b, names)
	one, _ := os.ReadFile(a)
	two, _ := os.ReadFile(b)
	if len(one) == 0 || !bytes.Equal(one, two) {
		t.Errorf("%d and %d bytes, which differ", len(one), len(two))
	}
}

// A bundle that another program unpacked and packed again, with folders and in another order, is one.
func TestBundlePackedAgain(t *testing.T) {
	path := bundlePath(t)
	writeBundle(t, path, memberNames())
	parts := unpackAll(t, path)
	slices.Reverse(parts)
	parts = append([]part{{name: "executables/"}, {name: "graph/"}}, parts...)
	for i := range parts {
		parts[i].method = zip.Deflate
	}
	packed := pack(t, parts)
	if err := os.WriteFile(path, packed, 0o600); err != nil {
		t.Fatal(err)
	}
	if !IsBundle(path) {
		t.Error("IsBundle: false")
	}
	b, err := OpenBundle(path)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for name, want := range testMembers {
		if data, err := b.Read(name); err != nil || string(data) != want {
			t.Errorf("%s: %d bytes, error %v", name, len(data), err)
		}
	}
}

func TestBundleWriterRefuses(t *testing.T) {
	path := bundlePath(t)
	w, err := Create(path, "1")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Add("a", nil); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"", ".", "..", "/a", "a/", "a//b", "a/../b", "../a", "./a", `a\b`, `..\a`, "C:a", "a\x00", "a\nb", "\xff", "a\x7f",
		"a", "manifest.json",
	} {
		if err := w.Add(name, nil); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("Add(%q): error %v", name, err)
		}
	}
	for _, name := range []string{"a b", "ä/ö.bin", "...", "a..b", "-", strings.Repeat("x", 300)} {
		if err := w.Add(name, []byte(name)); err != nil {
			t.Errorf("Add(%q): %v", name, err)
		}
	}
	if err := w.Commit(func() {}); err == nil || !strings.Contains(err.Error(), "content of the manifest") {
		t.Errorf("Commit of a function: error %v", err)
	}
	if list, _ := os.ReadDir(filepath.Dir(path)); len(list) != 0 {
		t.Errorf("after a failed Commit there are %v", list)
	}
}

func TestBundleAbort(t *testing.T) {
	path := bundlePath(t)
	if err := os.WriteFile(path, []byte("before"), 0o640); err != nil {
		t.Fatal(err)
	}
	w, err := Create(path, "1")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Add("a", []byte("x")); err != nil {
		t.Fatal(err)
	}
	w.Abort()
	w.Abort()
	list, _ := os.ReadDir(filepath.Dir(path))
	if data, _ := os.ReadFile(path); len(list) != 1 || string(data) != "before" {
		t.Errorf("files %v, the old one has %q", list, data)
	}
	// A Commit replaces it.
	writeBundle(t, path, memberNames())
	if !IsBundle(path) {
		t.Error("Commit did not replace the file")
	}
}

func TestBundleCreateRefuses(t *testing.T) {
	dir := t.TempDir()
	if _, err := Create(dir, "1"); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("Create over a directory: error %v", err)
	}
	path := filepath.Join(dir, "none", "out.precast")
	if _, err := Create(path, "1"); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("Create in no directory: error %v", err)
	}
	// The directory goes while the bundle is made.
	path = filepath.Join(dir, "goes", "out.precast")
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	w, err := Create(path, "1")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Dir(path)); err != nil {
		t.Skip(err)
	}
	if err := w.Commit(nil); err == nil || !strings.Contains(err.Error(), path+": can't write the artifact") {
		t.Errorf("Commit: error %v", err)
	}
}

// part is a member of a zip that a test makes by hand.
type part struct {
	name, data string
	method     uint16
	edit       func(*zip.FileHeader) // of a raw header: sizes that are not right
}

func unpackAll(t testing.TB, path string) []part {
	t.Helper()
	z, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	var out []part
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, part{name: f.Name, data: string(data), method: f.Method})
	}
	return out
}

func pack(t testing.TB, parts []part) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	for _, p := range parts {
		h := &zip.FileHeader{Name: p.name, Method: p.method}
		var to io.Writer
		var err error
		if p.edit != nil {
			h.CompressedSize64, h.UncompressedSize64 = uint64(len(p.data)), uint64(len(p.data))
			p.edit(h)
			to, err = z.CreateRaw(h)
		} else {
			to, err = z.CreateHeader(h)
		}
		if err == nil {
			_, err = io.WriteString(to, p.data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestOpenBundleRefuses(t *testing.T) {
	path := bundlePath(t)
	writeBundle(t, path, memberNames())
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// edited is the bundle with some of its parts changed.
	edited := func(f func([]part) []part) []byte { return pack(t, f(unpackAll(t, path))) }
	manifest := func(text string) []byte {
		return edited(func(p []part) []part { p[0].data = text; return p })
	}
	replaced := func(from, to string) []byte {
		return edited(func(p []part) []part {
			if !strings.Contains(p[0].data, from) {
				t.Fatalf("the manifest has no %q:\n%s", from, p[0].data)
			}
			p[0].data = strings.Replace(p[0].data, from, to, 1)
			return p
		})
	}
	extra := func(p part) []byte { return edited(func(list []part) []part { return append(list, p) }) }
	member := func(name string, f func(*zip.FileHeader)) []byte {
		return edited(func(p []part) []part {
			i := slices.IndexFunc(p, func(p part) bool { return p.name == name })
			p[i].edit = f
			return p
		})
	}
	many := make([]part, maxMembers+1)
	for i := range many {
		many[i] = part{name: fmt.Sprint(i)}
	}
	tests := []struct {
		name string
		file []byte
		want string
		is   bool // what IsBundle says
	}{
		{"empty", nil, "not an artifact: wanted a zip file made by precast compile", false},
		{"another file", []byte("\x89PNG\r\n\x1a\n and so on"), "not an artifact: wanted a zip file", false},
		{"cut in the first member", good[:100], "the artifact is truncated or damaged", true},
		{"cut by half", good[:len(good)/2], "the artifact is truncated or damaged", true},
		{"cut at the end", good[:len(good)-1], "the artifact is truncated or damaged", true},
		{"magic alone", good[:4], "the artifact is truncated or damaged", false},
		{"another zip", pack(t, []part{{name: "model_index.json", data: "{}"}}), `not an artifact: it has no member "manifest.json"`, false},
		{"empty zip", pack(t, nil), `not an artifact: it has no member "manifest.json"`, false},
		{"no manifest", edited(func(p []part) []part { return p[1:] }), `not an artifact: it has no member "manifest.json"`, false},
		{"manifest in a folder", edited(func(p []part) []part { p[0].name = "x/manifest.json"; return p }), `no member "manifest.json"`, false},
		{"manifest not JSON", manifest("{"), "not an artifact: manifest.json: unexpected end of JSON input", true},
		{"manifest empty", manifest(""), "not an artifact: manifest.json: unexpected end", true},
		{"manifest of another program", manifest(`{"name": "web app"}`), `not an artifact: manifest.json: the field "format" is missing`, true},
		{"manifest a list", manifest(`[1]`), "not an artifact: manifest.json: json: cannot unmarshal array", true},
		{"format a text", replaced(`"format": 1`, `"format": "one"`), "not an artifact: manifest.json: json: cannot unmarshal string", true},
		{"format 2", manifest(`{"format": 2, "precast": "9.0", "members": []}`), "the artifact has format 2 (written by precast 9.0), this precast reads format 1", true},
		{"format 0", replaced(`"format": 1`, `"format": 0`), "the artifact has format 0 (written by precast 1.2.3)", true},
		{"members a list", replaced(`"members": {`, `"members": [], "other": {`), "manifest.json: json: cannot unmarshal array", true},
		{"member missing", edited(func(p []part) []part { return p[:len(p)-1] }), `member "graph/unet.graph" is missing: manifest.json lists it`, true},
		{"member too many", extra(part{name: "more", data: "x"}), `member "more" is not listed in manifest.json`, true},
		{"member twice", extra(part{name: "empty"}), `member "empty" is there twice`, true},
		{"manifest twice", extra(part{name: "manifest.json", data: "{}"}), `member "manifest.json" is there twice`, true},
		{"another size", replaced(`"size": 6,`, `"size": 7,`), `member "executables/vae.bin" has 6 bytes, manifest.json says 7`, true},
		{"negative size", replaced(`"size": 6,`, `"size": -6,`), `member "executables/vae.bin" has 6 bytes, manifest.json says -6`, true},
		{"no digest", replaced(`"sha256": "`, `"sha256": "0`), `wanted 64 hexadecimal digits`, true},
		{"path up", extra(part{name: "../../etc/passwd", data: "x"}), `member name "../../etc/passwd": wanted a relative path`, true},
		{"absolute path", extra(part{name: "/etc/passwd", data: "x"}), `member name "/etc/passwd"`, true},
		{"backslashes", extra(part{name: `..\x`, data: "x"}), `member name "..\\x": backslashes, colons`, true},
		{"drive", extra(part{name: `C:x`, data: "x"}), `member name "C:x"`, true},
		{"name not UTF-8", extra(part{name: "\xff\xfe", data: "x"}), `member name "\xff\xfe"`, true},
		{"folder up", extra(part{name: "../x/"}), `member name "../x/"`, true},
		{"symbolic link", member("empty", func(h *zip.FileHeader) { h.SetMode(os.ModeSymlink | 0o777); h.Method = zip.Store }), `member "empty": it is not a regular file`, true},
		{"encrypted", member("executables/vae.bin", func(h *zip.FileHeader) { h.Flags |= 1 }), `member "executables/vae.bin": it is encrypted`, true},
		{"another method", member("executables/vae.bin", func(h *zip.FileHeader) { h.Method = 93 }), `member "executables/vae.bin": compression method 93`, true},
		{"stored with another size", member("executables/vae.bin", func(h *zip.FileHeader) { h.UncompressedSize64 = 1 << 40 }), `member "executables/vae.bin": it is stored with 6 bytes and says that its content has 1099511627776`, true},
		{"deflate bomb", member("graph/unet.graph", func(h *zip.FileHeader) { h.Method = zip.Deflate; h.UncompressedSize64 = 1 << 29 }), `member "graph/unet.graph": it says that its 8100 compressed bytes unpack to 536870912; wanted at most 1032 times`, true},
		{"deflate over the limit", member("graph/unet.graph", func(h *zip.FileHeader) { h.Method = zip.Deflate; h.UncompressedSize64 = 1 << 62 }), `unpack to 4611686018427387904`, true},
		{"larger than the file", member("executables/vae.bin", func(h *zip.FileHeader) { h.CompressedSize64, h.UncompressedSize64 = 1<<40, 1<<40 }), `it says that it has 1099511627776 bytes in a file of`, true},
		{"too many members", pack(t, many), "the limit is 65536", false},
		{"members that share bytes", overlapping(t, good), "the members up to it have ", true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "bad.precast")
			if err := os.WriteFile(path, test.file, 0o600); err != nil {
				t.Fatal(err)
			}
			b, err := OpenBundle(path)
			if err == nil {
				_ = b.Close()
				t.Fatal("no error")
			}
			if !strings.HasPrefix(err.Error(), path+": ") || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, wanted one with the path and %q", err, test.want)
			}
			if got := IsBundle(path); got != test.is {
				t.Errorf("IsBundle %v, wanted %v", got, test.is)
			}
		})
	}
	dir := t.TempDir()
	if _, err := OpenBundle(dir); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("OpenBundle of a directory: error %v", err)
	}
	if _, err := OpenBundle(filepath.Join(dir, "none")); !os.IsNotExist(err) {
		t.Errorf("OpenBundle of nothing: error %v", err)
	}
	if IsBundle(dir) || IsBundle(filepath.Join(dir, "none")) {
		t.Error("IsBundle of a directory or of nothing: true")
	}
}

// overlapping makes a zip whose directory has many more entries for the bytes of one large member.
func overlapping(t *testing.T, good []byte) []byte {
	t.Helper()
	z, err := zip.NewReader(bytes.NewReader(good), int64(len(good)))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(z.File, func(f *zip.File) bool { return f.Name == "executables/unet.bin" })
	offset, err := z.File[i].DataOffset()
	if err != nil {
		t.Fatal(err)
	}
	// The directory's records, 46 bytes and the name each (APPNOTE.TXT 4.3.12), with the end record behind them.
	end := bytes.LastIndex(good, []byte("PK\x05\x06"))
	start := int(binary.LittleEndian.Uint32(good[end+16:]))
	header := int(offset) - 30 - len("executables/unet.bin") - len(z.File[i].Extra)
	if string(good[header:header+4]) != zipMagic {
		header = bytes.LastIndex(good[:offset], []byte(zipMagic))
	}
	out := slices.Clone(good[:end])
	for n := range 20 {
		name := fmt.Sprintf("copy/%02d", n)
		record := make([]byte, 46)
		copy(record, "PK\x01\x02")
		binary.LittleEndian.PutUint32(record[16:], z.File[i].CRC32)
		binary.LittleEndian.PutUint32(record[20:], uint32(z.File[i].CompressedSize64))
		binary.LittleEndian.PutUint32(record[24:], uint32(z.File[i].UncompressedSize64))
		binary.LittleEndian.PutUint16(record[28:], uint16(len(name)))
		binary.LittleEndian.PutUint32(record[42:], uint32(header))
		out = append(append(out, record...), name...)
	}
	tail := slices.Clone(good[end:])
	binary.LittleEndian.PutUint16(tail[8:], uint16(len(z.File)+20))
	binary.LittleEndian.PutUint16(tail[10:], uint16(len(z.File)+20))
	binary.LittleEndian.PutUint32(tail[12:], uint32(len(out)-start))
	return append(out, tail...)
}

// Damage in a member shows when it is read, with file, member, what was found and what was wanted; the others can be read.
func TestReadDamagedMember(t *testing.T) {
	path := bundlePath(t)
	writeBundle(t, path, memberNames())
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	z, err := zip.NewReader(bytes.NewReader(good), int64(len(good)))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range z.File[1:] {
		if f.CompressedSize64 == 0 || f.Name == "empty" {
			continue
		}
		offset, err := f.DataOffset()
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range []int64{0, int64(f.CompressedSize64) / 2, int64(f.CompressedSize64) - 1} {
			bad := slices.Clone(good)
			bad[offset+at] ^= 0x10
			path := bundlePath(t)
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			b, err := OpenBundle(path)
			if err != nil {
				t.Fatalf("%s, byte %d: %v", f.Name, at, err)
			}
			data, err := b.Read(f.Name)
			if err == nil || data != nil {
				t.Fatalf("%s, byte %d: %d bytes, error %v", f.Name, at, len(data), err)
			}
			want := []string{path, fmt.Sprintf("member %q is damaged", f.Name)}
			if f.Method == zip.Store {
				want = append(want, "its SHA-256 is", "wanted "+b.manifest.Members[f.Name].SHA256)
			}
			for _, w := range want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%s, byte %d: error %v, wanted one with %q", f.Name, at, err, w)
				}
			}
			for name := range testMembers {
				if name == f.Name {
					continue
				}
				if _, err := b.Read(name); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			_ = b.Close()
		}
	}
}

// Members whose stream is longer or shorter than the sizes say.
func TestReadOtherLength(t *testing.T) {
	path := bundlePath(t)
	writeBundle(t, path, memberNames())
	var packed bytes.Buffer
	z := zip.NewWriter(&packed)
	to, _ := z.CreateHeader(&zip.FileHeader{Name: "x", Method: zip.Deflate})
	_, _ = to.Write(bytes.Repeat([]byte("12345678"), 100))
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := zip.NewReader(bytes.NewReader(packed.Bytes()), int64(packed.Len()))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := r.File[0].OpenRaw()
	if err != nil {
		t.Fatal(err)
	}
	stream, err := io.ReadAll(raw)
	if err != nil {
		t.Fatal(err)
	}
	for size, want := range map[int]string{799: "it goes on after 799 bytes", 801: "it ends after 800 bytes, wanted 801", 800: ""} {
		manifest, _ := json.Marshal(outerManifest{Format: 1, Members: map[string]memberInfo{"x": {int64(size), digestOf(strings.Repeat("12345678", 100))}}})
		file := pack(t, []part{{name: "manifest.json", data: string(manifest)}, {name: "x", data: string(stream), method: zip.Deflate, edit: func(h *zip.FileHeader) { h.UncompressedSize64 = uint64(size) }}})
		path := bundlePath(t)
		if err := os.WriteFile(path, file, 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := OpenBundle(path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.Read("x")
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("size %d: error %v, wanted %q", size, err, want)
		}
		_ = b.Close()
	}
}

func digestOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// FuzzBundle opens arbitrary files, and a bundle with one byte changed: whatever is read has the digest that the manifest lists, and of the changed
// bundle only true contents are read.
func FuzzBundle(f *testing.F) {
	// A small one: the fuzzer shortens what it finds interesting, which takes long for a long input.
	members := map[string]string{"a": "text text text", "b": "\x00\x01"}
	path := bundlePath(f)
	w, err := Create(path, "1")
	if err != nil {
		f.Fatal(err)
	}
	for name, data := range members {
		if err := w.Add(name, []byte(data)); err != nil {
			f.Fatal(err)
		}
	}
	if err := w.Commit(nil); err != nil {
		f.Fatal(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good, uint32(0), byte(0))
	f.Add(good[:len(good)/2], uint32(100), byte(1))
	f.Add([]byte{}, uint32(len(good)-10), byte(1))
	f.Add(pack(f, []part{{name: "manifest.json", data: `{"format":1,"members":{}}`}}), uint32(40), byte(0x80))
	f.Fuzz(func(t *testing.T, data []byte, at uint32, flip byte) {
		read := func(data []byte) map[string]string {
			b := &Bundle{path: "x"}
			if b.open(bytes.NewReader(data), int64(len(data))) != nil {
				return nil
			}
			out := map[string]string{}
			for _, m := range b.Members() {
				if m.Size > 1<<22 {
					continue // right, but slow
				}
				got, err := b.Read(m.Name)
				if err != nil {
					continue
				}
				if int64(len(got)) != m.Size || digestOf(string(got)) != m.SHA256 {
					t.Fatalf("member %q has other bytes than the manifest says", m.Name)
				}
				out[m.Name] = string(got)
			}
			return out
		}
		read(data)
		changed := slices.Clone(good)
		changed[int(at)%len(changed)] ^= flip
		for name, got := range read(changed) {
			if want, ok := members[name]; !ok || got != want {
				t.Fatalf("byte %d ^ %#x: member %q has %d bytes that nobody wrote", at, flip, name, len(got))
			}
		}
	})
}
