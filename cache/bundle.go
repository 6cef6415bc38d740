package cache

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// A bundle is a plain zip whose first member, manifest.json, lists all others with their sizes and digests:
//
//	{"format": 1, "precast": "0.1.0", "members": {"name": {"size": 3, "sha256": "..."}}, "content": ...}
//
// content is the caller's. Text is deflated, everything else stored. The bytes of a bundle depend on its content alone: members are in the order of
// their names and have one fixed time.
const (
	bundleManifest = "manifest.json"
	bundleFormat   = 1
	// Limits on what a foreign file can make us allocate. Deflate can't expand more than maxRatio times.
	maxManifest = 64 << 20
	maxDeflated = 1 << 30
	maxRatio    = 1032
	maxMembers  = 1 << 16
)

// bundleTime is every member's time: the earliest that a zip can hold.
var bundleTime = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)

type outerManifest struct {
	Format  int                   `json:"format"`
	Precast string                `json:"precast"`
	Members map[string]memberInfo `json:"members"`
	Content json.RawMessage       `json:"content"`
}

type memberInfo struct {
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Member is one file in a bundle.
type Member struct {
	Name string `json:"name"`
	// Size is that of the content, in bytes.
	Size int64 `json:"size"`
	// SHA256 of the content, hexadecimal.
	SHA256 string `json:"sha256"`
}

// checkName refuses names that could mean something else than a file below the bundle, here or where somebody unpacks it.
func checkName(name string) error {
	switch {
	case !fs.ValidPath(name) || name == ".":
		return fmt.Errorf("member name %q: wanted a relative path without empty, . or .. elements", name)
	case strings.ContainsAny(name, `\:`) || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fmt.Errorf("member name %q: backslashes, colons and control characters are not allowed", name)
	}
	return nil
}

// isText reports whether data is worth deflating: UTF-8 without zero bytes.
func isText(data []byte) bool {
	return bytes.IndexByte(data, 0) < 0 && utf8.Valid(data)
}

// BundleWriter makes a bundle. The file appears under its name when Commit has returned without an error, and not before.
type BundleWriter struct {
	path, version string
	spool         *os.File // the members, one after the other, as Add got them
	members       map[string]spooled
	end           int64
	done          bool
}

type spooled struct {
	memberInfo
	offset int64
	text   bool
}

// Create begins a bundle at path, which precast names the version that writes it. A file that is there stays until Commit replaces it. The caller ends
// with Commit or Abort; a deferred Abort after a Commit does nothing.
func Create(path, precast string) (*BundleWriter, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: can't write the artifact: it is there and is not a regular file", path)
	}
	spool, err := createBeside(path)
	if err != nil {
		return nil, fmt.Errorf("%s: can't write the artifact: %w", path, err)
	}
	return &BundleWriter{path: path, version: precast, spool: spool, members: map[string]spooled{}}, nil
}

// createBeside makes a new file in path's folder, with the mode that a new file at path would have.
func createBeside(path string) (*os.File, error) {
	dir, base := filepath.Split(path)
	for {
		f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf(".%s.tmp-%08x", base, rand.Uint32())), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
		if !errors.Is(err, fs.ErrExist) {
			return f, err
		}
	}
}

// Add puts a member in. Its name is a slash-separated relative path; names are unique, and "manifest.json" is the bundle's own.
func (w *BundleWriter) Add(name string, data []byte) error {
	if w.done {
		panic("BUG: Add after Commit or Abort")
	}
	if err := checkName(name); err != nil {
		return fmt.Errorf("%s: %w", w.path, err)
	}
	if _, twice := w.members[name]; twice || name == bundleManifest {
		return fmt.Errorf("%s: member %q is there already", w.path, name)
	}
	if _, err := w.spool.WriteAt(data, w.end); err != nil {
		return fmt.Errorf("%s: member %q: %w", w.path, name, err)
	}
	sum := sha256.Sum256(data)
	w.members[name] = spooled{
		memberInfo: memberInfo{int64(len(data)), hex.EncodeToString(sum[:])},
		offset:     w.end, text: len(data) <= maxDeflated && isText(data),
	}
	w.end += int64(len(data))
	return nil
}

// Commit writes the bundle with content, which is made JSON, in its manifest, and puts it in its place: synced, then renamed. After an error nothing
// is left.
func (w *BundleWriter) Commit(content any) error {
	if w.done {
		panic("BUG: Commit after Commit or Abort")
	}
	defer w.Abort()
	m := outerManifest{Format: bundleFormat, Precast: w.version, Members: map[string]memberInfo{}}
	for name, member := range w.members {
		m.Members[name] = member.memberInfo
	}
	var err error
	if m.Content, err = json.Marshal(content); err != nil {
		return fmt.Errorf("%s: content of the manifest: %w", w.path, err)
	}
	text, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return fmt.Errorf("%s: %s: %w", w.path, bundleManifest, err)
	}
	if len(text) > maxManifest || len(m.Members) >= maxMembers {
		return fmt.Errorf("%s: the manifest has %d bytes and %d members, the limits are %d and %d", w.path, len(text), len(m.Members), maxManifest, maxMembers-1)
	}
	f, err := createBeside(w.path)
	if err != nil {
		return fmt.Errorf("%s: can't write the artifact: %w", w.path, err)
	}
	err = w.write(f, text)
	if err == nil {
		err = f.Sync()
	}
	if closing := f.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = os.Rename(f.Name(), w.path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("%s: can't write the artifact: %w", w.path, err)
	}
	syncDir(filepath.Dir(w.path))
	return nil
}

func (w *BundleWriter) write(f *os.File, manifest []byte) error {
	z := zip.NewWriter(f)
	one := func(name string, method uint16, r io.Reader) error {
		to, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: method, Modified: bundleTime})
		if err == nil {
			_, err = io.Copy(to, r)
		}
		return err
	}
	if err := one(bundleManifest, zip.Deflate, bytes.NewReader(manifest)); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(w.members)) {
		member := w.members[name]
		method := zip.Store
		if member.text {
			method = zip.Deflate
		}
		if err := one(name, method, io.NewSectionReader(w.spool, member.offset, member.Size)); err != nil {
			return err
		}
	}
	return z.Close()
}

// Abort gives the bundle up and leaves nothing of it.
func (w *BundleWriter) Abort() {
	if w.done {
		return
	}
	w.done = true
	_ = w.spool.Close()
	_ = os.Remove(w.spool.Name())
}

// Bundle is an open bundle, checked but for its members' digests: those Read checks. It is safe for use by many goroutines.
type Bundle struct {
	path     string
	file     *os.File
	manifest outerManifest
	members  map[string]*zip.File
}

// OpenBundle opens a bundle and checks that it is whole: a zip with a manifest of this format, members with proper names, and exactly those that the
// manifest lists, in their sizes. Errors name the file, the member, what was found and what was wanted.
func OpenBundle(path string) (*Bundle, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not an artifact: it is not a regular file")
	}
	b := &Bundle{path: path, file: f}
	if err == nil {
		err = b.open(f, info.Size())
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return b, nil
}

func (b *Bundle) open(r io.ReaderAt, size int64) error {
	z, err := zip.NewReader(r, size)
	if z == nil || (err != nil && !errors.Is(err, zip.ErrInsecurePath)) {
		start := make([]byte, 4)
		if n, _ := r.ReadAt(start, 0); n == 4 && string(start) == zipMagic {
			return fmt.Errorf("the artifact is truncated or damaged: a zip file starts here but its directory at the end can't be read (%w); make it again with precast compile", err)
		}
		return fmt.Errorf("not an artifact: wanted a zip file made by precast compile (%w)", err)
	}
	if len(z.File) > maxMembers {
		return fmt.Errorf("the zip has %d members, the limit is %d", len(z.File), maxMembers)
	}
	b.members = map[string]*zip.File{}
	var packed uint64
	for _, f := range z.File {
		if dir, ok := strings.CutSuffix(f.Name, "/"); ok && f.UncompressedSize64 == 0 && checkName(dir) == nil {
			continue // some programs write folders into a zip
		}
		if err := checkName(f.Name); err != nil {
			return err
		}
		if _, twice := b.members[f.Name]; twice {
			return fmt.Errorf("member %q is there twice", f.Name)
		}
		if err := checkMember(f, size); err != nil {
			return fmt.Errorf("member %q: %w", f.Name, err)
		}
		// Members that share bytes would unpack to more than any ratio allows.
		if packed += f.CompressedSize64; packed > uint64(size) {
			return fmt.Errorf("member %q: the members up to it have %d bytes, the file has %d", f.Name, packed, size)
		}
		b.members[f.Name] = f
	}
	return b.readManifest()
}

// checkMember checks what the zip's directory says about a member in a file of size bytes.
func checkMember(f *zip.File, size int64) error {
	packed, unpacked := f.CompressedSize64, f.UncompressedSize64
	switch {
	case f.Flags&1 != 0:
		return errors.New("it is encrypted")
	case !f.Mode().IsRegular():
		return fmt.Errorf("it is not a regular file (%s)", f.Mode().Type())
	case packed > uint64(size):
		return fmt.Errorf("it says that it has %d bytes in a file of %d", packed, size)
	case f.Method == zip.Store && packed != unpacked:
		return fmt.Errorf("it is stored with %d bytes and says that its content has %d", packed, unpacked)
	case f.Method == zip.Deflate && (unpacked > maxDeflated || unpacked > packed*maxRatio):
		return fmt.Errorf("it says that its %d compressed bytes unpack to %d; wanted at most %d times as many and %d", packed, unpacked, maxRatio, maxDeflated)
	case f.Method != zip.Store && f.Method != zip.Deflate:
		return fmt.Errorf("compression method %d, wanted stored (0) or deflated (8)", f.Method)
	}
	return nil
}

func (b *Bundle) readManifest() error {
	f := b.members[bundleManifest]
	if f == nil {
		return fmt.Errorf("not an artifact: it has no member %q", bundleManifest)
	}
	delete(b.members, bundleManifest)
	if f.UncompressedSize64 > maxManifest {
		return fmt.Errorf("%s has %d bytes, the limit is %d", bundleManifest, f.UncompressedSize64, maxManifest)
	}
	r, err := f.Open()
	if err != nil {
		return fmt.Errorf("%s: %w", bundleManifest, err)
	}
	defer r.Close()
	// The reader checks the CRC at the end, which io.ReadAll reads past.
	text, err := io.ReadAll(io.LimitReader(r, maxManifest+1))
	if err != nil {
		return fmt.Errorf("%s is damaged: %w", bundleManifest, err)
	}
	// The format first: another one may have other types in the same fields.
	var format struct{ Format *int }
	if err := json.Unmarshal(text, &format); err != nil || format.Format == nil {
		if err == nil {
			err = errors.New(`the field "format" is missing`)
		}
		return fmt.Errorf("not an artifact: %s: %w", bundleManifest, err)
	}
	if *format.Format != bundleFormat {
		var by struct{ Precast any }
		_ = json.Unmarshal(text, &by)
		return fmt.Errorf("the artifact has format %d (written by precast %v), this precast reads format %d; make it again with precast compile", *format.Format, by.Precast, bundleFormat)
	}
	if err := json.Unmarshal(text, &b.manifest); err != nil {
		return fmt.Errorf("%s: %w", bundleManifest, err)
	}
	var content bytes.Buffer
	if err := json.Compact(&content, b.manifest.Content); err == nil {
		b.manifest.Content = content.Bytes()
	}
	for _, name := range slices.Sorted(maps.Keys(b.manifest.Members)) {
		want, f := b.manifest.Members[name], b.members[name]
		switch {
		case f == nil:
			return fmt.Errorf("member %q is missing: %s lists it", name, bundleManifest)
		case want.Size < 0 || f.UncompressedSize64 != uint64(want.Size):
			return fmt.Errorf("member %q has %d bytes, %s says %d", name, f.UncompressedSize64, bundleManifest, want.Size)
		case !isDigest(want.SHA256):
			return fmt.Errorf("member %q: %s has the SHA-256 %q, wanted 64 hexadecimal digits", name, bundleManifest, want.SHA256)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.members)) {
		if _, ok := b.manifest.Members[name]; !ok {
			return fmt.Errorf("member %q is not listed in %s", name, bundleManifest)
		}
	}
	return nil
}

// Content is what the writer gave Commit.
func (b *Bundle) Content() json.RawMessage { return b.manifest.Content }

// Precast is the version of precast that wrote the bundle.
func (b *Bundle) Precast() string { return b.manifest.Precast }

// Path is the file's path as OpenBundle got it.
func (b *Bundle) Path() string { return b.path }

// Members lists the members in the order of their names, without the manifest.
func (b *Bundle) Members() []Member {
	var out []Member
	for _, name := range slices.Sorted(maps.Keys(b.manifest.Members)) {
		m := b.manifest.Members[name]
		out = append(out, Member{name, m.Size, m.SHA256})
	}
	return out
}

// Read returns a member's content, checked against the manifest's digest, in a buffer of its own that is aligned to 64 bytes.
func (b *Bundle) Read(name string) ([]byte, error) {
	f, ok := b.members[name]
	if !ok {
		return nil, fmt.Errorf("%s: no member %q", b.path, name)
	}
	want := b.manifest.Members[name]
	data, err := unpack(f, want.Size)
	if err != nil {
		return nil, fmt.Errorf("%s: member %q is damaged: %w; make the artifact again with precast compile", b.path, name, err)
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != want.SHA256 {
		return nil, fmt.Errorf("%s: member %q is damaged: its SHA-256 is %x, wanted %s; make the artifact again with precast compile", b.path, name, sum, want.SHA256)
	}
	return data, nil
}

// unpack reads a member of size bytes. The zip's CRC is not looked at: the manifest's digest decides.
func unpack(f *zip.File, size int64) ([]byte, error) {
	r, err := f.OpenRaw()
	if err != nil {
		return nil, err
	}
	if f.Method == zip.Deflate {
		inflate := flate.NewReader(r)
		defer inflate.Close()
		r = inflate
	}
	data := aligned(int(size))
	if n, err := io.ReadFull(r, data); err != nil {
		return nil, fmt.Errorf("it ends after %d bytes, wanted %d: %w", n, size, err)
	}
	var more [1]byte
	if n, err := io.ReadFull(r, more[:]); n != 0 || !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("it goes on after %d bytes", size)
	}
	return data, nil
}

// Close closes the file. Contents that Read returned stay valid.
func (b *Bundle) Close() error {
	if b.file == nil {
		return nil
	}
	return b.file.Close()
}

const zipMagic = "PK\x03\x04"

// IsBundle reports whether path is meant to be a bundle: a zip file that starts with a manifest.json, or one that has a manifest with a format, as a
// bundle that another program packed again has. It may be damaged: OpenBundle says so.
func IsBundle(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	// The name of the first member lies 30 bytes into its header (APPNOTE.TXT 4.3.7).
	start := make([]byte, 30+len(bundleManifest))
	n, _ := f.ReadAt(start, 0)
	if n < len(zipMagic) || string(start[:len(zipMagic)]) != zipMagic {
		return false
	}
	if n == len(start) && string(start[30:]) == bundleManifest && int(start[26])|int(start[27])<<8 == len(bundleManifest) {
		return true
	}
	z, err := zip.NewReader(f, info.Size())
	if err != nil {
		return false
	}
	i := slices.IndexFunc(z.File, func(f *zip.File) bool { return f.Name == bundleManifest })
	if i < 0 || z.File[i].UncompressedSize64 > maxManifest {
		return false
	}
	r, err := z.File[i].Open()
	if err != nil {
		return false
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, maxManifest))
	var format struct{ Format *int }
	return err == nil && json.Unmarshal(text, &format) == nil && format.Format != nil
}
