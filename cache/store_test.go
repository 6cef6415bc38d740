package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// age makes a file look as if it was last used so long ago.
func age(t *testing.T, path string, d time.Duration) {
	t.Helper()
	then := time.Now().Add(-d)
	if err := os.Chtimes(path, then, then); err != nil {
		t.Fatal(err)
	}
}

func TestStore(t *testing.T) {
	s, w := open(t, filepath.Join(t.TempDir(), "a", "b"), Options{})
	wantMiss(t, s, Manifest, testKey)
	s.Delete(Manifest, testKey)
	mustPut(t, s, Manifest, testKey, "one")
	wantHit(t, s, Manifest, testKey, "one")
	wantMiss(t, s, Executable, testKey)
	mustPut(t, s, Manifest, testKey, "two")
	wantHit(t, s, Manifest, testKey, "two")
	mustPut(t, s, Executable, testKey, "")
	wantEmpty(t, s, Executable, testKey)
	s.Delete(Manifest, testKey)
	wantMiss(t, s, Manifest, testKey)
	wantEmpty(t, s, Executable, testKey)
	w.wantNone(t)
}

// wantEmpty wants an empty entry.
func wantEmpty(t *testing.T, s *Store, kind Kind, key Key) {
	t.Helper()
	if data, ok := s.Get(kind, key); !ok || len(data) != 0 {
		t.Fatalf("got %q, %v; wanted an empty entry", data, ok)
	}
}

// What a store puts into its directory, and with which rights.
func TestLayout(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	s, w := open(t, dir, Options{})
	if exists(dir) {
		t.Error("Open made the directory")
	}
	unlock, err := s.Lock(context.Background(), testKey)
	if err != nil {
		t.Fatal(err)
	}
	mustPut(t, s, Executable, testKey, "x")
	digest := testKey.Digest()
	want := []string{
		"v1", "v1/CACHEDIR.TAG", "v1/README",
		"v1/executable", "v1/executable/" + digest[:2], "v1/executable/" + digest[:2] + "/" + digest,
		"v1/locks", "v1/locks/" + digest + ".lock",
	}
	if got := tree(t, dir); !slices.Equal(got, want) {
		t.Errorf("files %q, wanted %q", got, want)
	}
	unlock()
	unlock()
	if exists(filepath.Join(dir, want[len(want)-1])) {
		t.Error("the lock file stayed")
	}
	tag, _ := os.ReadFile(filepath.Join(dir, "v1/CACHEDIR.TAG"))
	if !bytes.HasPrefix(tag, []byte("Signature: 8a477f597d28d172789f06886806bc55\n")) {
		t.Errorf("CACHEDIR.TAG: %q", tag)
	}
	for _, name := range append([]string{"."}, tree(t, dir)...) {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v: others can get at it", name, info.Mode())
		}
	}
	w.wantNone(t)
}

// tree lists all paths below dir.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(dir, path); rel != "." {
			out = append(out, filepath.ToSlash(rel))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestDefaultDir(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(DirVariable, "")
	t.Setenv("XDG_CACHE_HOME", dir)
	user, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	if got := Open("", Options{}).Dir(); got != filepath.Join(user, "precast") {
		t.Errorf("Dir %q, wanted precast in %q", got, user)
	}
	t.Setenv(DirVariable, filepath.Join(dir, "mine"))
	if got := Open("", Options{}).Dir(); got != filepath.Join(dir, "mine") {
		t.Errorf("Dir %q, wanted the one of %s", got, DirVariable)
	}
	t.Chdir(dir)
	t.Setenv(DirVariable, "relative")
	s := Open("", Options{})
	t.Chdir("/")
	mustPut(t, s, Manifest, testKey, "x")
	if !exists(filepath.Join(dir, "relative", "v1", "manifest")) {
		t.Error("a relative directory moved with the working directory")
	}
}

func TestNoHome(t *testing.T) {
	for _, name := range []string{DirVariable, "XDG_CACHE_HOME", "HOME", "LocalAppData"} {
		t.Setenv(name, "")
	}
	s, w := open(t, "", Options{})
	w.want(t, "the cache can't be written", DirVariable)
	wantUnusable(t, s, w)
	if _, err := s.Status(); !errors.Is(err, ErrUnavailable) {
		t.Errorf("Status: error %v", err)
	}
}

// wantUnusable checks that a store that has warned already works as one without entries, without another warning.
func wantUnusable(t *testing.T, s *Store, w *warnings) {
	t.Helper()
	for range 2 {
		if err := s.Put(Manifest, testKey, []byte("x")); !errors.Is(err, ErrUnavailable) {
			t.Errorf("Put: error %v, wanted ErrUnavailable", err)
		}
		wantMiss(t, s, Manifest, testKey)
		unlock, err := s.Lock(context.Background(), testKey)
		if err != nil {
			t.Errorf("Lock: %v", err)
		}
		unlock()
		unlock()
		s.Delete(Manifest, testKey)
		if key, ok := s.Nearest(Manifest, testKey); ok {
			t.Errorf("Nearest: %v", key)
		}
	}
	w.wantNone(t)
}

// A file in the directory's place can't be written by anybody, root included.
func TestFileInPlaceOfDirectory(t *testing.T) {
	for _, at := range []string{".", "v1", "v1/locks", "v1/manifest"} {
		t.Run(at, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "cache")
			path := filepath.Join(dir, at)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
				t.Fatal(err)
			}
			s, w := open(t, dir, Options{})
			wantMiss(t, s, Manifest, testKey)
			w.wantNone(t)
			unlock, err := s.Lock(context.Background(), testKey)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Put(Manifest, testKey, []byte("x")); !errors.Is(err, ErrUnavailable) {
				t.Errorf("Put: error %v", err)
			}
			unlock()
			w.want(t, "the cache can't be written", "not a directory")
			wantUnusable(t, s, w)
			if data, _ := os.ReadFile(path); string(data) != "mine" {
				t.Errorf("the file has %q now", data)
			}
		})
	}
}

// A directory that can't be written still gives what is in it.
func TestReadOnly(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir, Options{})
	other := NewKey("program", "other")
	mustPut(t, s, Manifest, testKey, "x")
	mustPut(t, s, Manifest, other, "y")
	s, w := open(t, dir, Options{})
	denied := &fs.PathError{Op: "open", Path: dir, Err: syscall.EROFS}
	s.disk.mkdirAll = func(string, fs.FileMode) error { return denied }
	s.disk.createTemp = func(string, string) (tempFile, error) { return nil, denied }
	wantHit(t, s, Manifest, testKey, "x")
	if err := s.Put(Manifest, NewKey("program", "new"), nil); !errors.Is(err, ErrUnavailable) || !errors.Is(err, syscall.EROFS) {
		t.Errorf("Put: error %v", err)
	}
	w.want(t, "the cache can't be written", "read-only file system")
	unlock, err := s.Lock(context.Background(), testKey)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	wantHit(t, s, Manifest, other, "y")
	w.wantNone(t)
}

// With permission bits, where they bind.
func TestReadOnlyMode(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir, Options{})
	mustPut(t, s, Manifest, testKey, "x")
	dirs := []string{dir}
	for _, name := range tree(t, dir) {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.IsDir() {
			dirs = append(dirs, filepath.Join(dir, name))
		}
	}
	for _, d := range dirs {
		if err := os.Chmod(d, 0o500); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Chmod(d, 0o700) })
	}
	if f, err := os.Create(filepath.Join(dir, "probe")); err == nil {
		_ = f.Close()
		t.Skip("this user may write where the permission bits forbid it")
	}
	s, w := open(t, dir, Options{})
	wantHit(t, s, Manifest, testKey, "x")
	unlock, err := s.Lock(context.Background(), testKey)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	if err := s.Put(Manifest, testKey, []byte("y")); !errors.Is(err, ErrUnavailable) {
		t.Errorf("Put: error %v", err)
	}
	w.want(t, "the cache can't be written", "permission denied")
	wantHit(t, s, Manifest, testKey, "x")
}

// fullFile is a file on a disk that is full after so many bytes.
type fullFile struct {
	*os.File
	left int
}

func (f *fullFile) Write(b []byte) (int, error) {
	n, err := f.File.Write(b[:min(len(b), f.left)])
	f.left -= n
	if err == nil && n < len(b) {
		err = syscall.ENOSPC
	}
	return n, err
}

func TestFullDisk(t *testing.T) {
	payload := bytes.Repeat([]byte("x"), 1000)
	for _, room := range []int{0, 10, 900} {
		dir := t.TempDir()
		s, w := open(t, dir, Options{})
		mustPut(t, s, Manifest, testKey, "before")
		s.disk.createTemp = func(dir, pattern string) (tempFile, error) {
			f, err := os.CreateTemp(dir, pattern)
			return &fullFile{f, room}, err
		}
		before := tree(t, dir)
		if err := s.Put(Manifest, testKey, payload); !errors.Is(err, syscall.ENOSPC) || !errors.Is(err, ErrUnavailable) {
			t.Errorf("room for %d: Put: error %v", room, err)
		}
		w.want(t, "the cache can't be written", "no space left on device")
		if after := tree(t, dir); !slices.Equal(before, after) {
			t.Errorf("room for %d: files %q, wanted %q", room, after, before)
		}
		if err := s.Put(Manifest, testKey, payload); !errors.Is(err, ErrUnavailable) {
			t.Errorf("room for %d: second Put: error %v", room, err)
		}
		wantHit(t, s, Manifest, testKey, "before")
		w.wantNone(t)
	}
}

type failingSync struct{ *os.File }

func (failingSync) Sync() error { return syscall.EIO }

// A write that isn't on the disk, or isn't in its place, is none.
func TestFailingSyncAndRename(t *testing.T) {
	dir := t.TempDir()
	for name, change := range map[string]func(*disk){
		"sync": func(d *disk) {
			d.createTemp = func(dir, pattern string) (tempFile, error) {
				f, err := os.CreateTemp(dir, pattern)
				return failingSync{f}, err
			}
		},
		"rename": func(d *disk) { d.rename = func(string, string) error { return syscall.EIO } },
	} {
		s, w := open(t, dir, Options{})
		change(&s.disk)
		if err := s.Put(Manifest, testKey, []byte("x")); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: error %v", name, err)
		}
		w.want(t, "input/output error")
		wantMiss(t, s, Manifest, testKey)
		for _, path := range tree(t, dir) {
			if strings.Contains(path, tempMark) {
				t.Errorf("%s: %s stayed", name, path)
			}
		}
	}
}

// Folders and temporary files that other processes remove while an entry is written are made again.
func TestPutWhileRemoved(t *testing.T) {
	s, w := open(t, t.TempDir(), Options{})
	var times int
	s.disk.rename = func(from, to string) error {
		if times++; times <= 3 {
			_ = os.RemoveAll(s.root)
		}
		return os.Rename(from, to)
	}
	mustPut(t, s, Manifest, testKey, "x")
	wantHit(t, s, Manifest, testKey, "x")
	w.wantNone(t)

	s.disk.rename = func(string, string) error { return fs.ErrNotExist }
	if err := s.Put(Manifest, testKey, []byte("y")); !errors.Is(err, ErrUnavailable) {
		t.Errorf("Put: error %v", err)
	}
	w.want(t, "another process removes it")
	// That is no lasting state.
	s.disk.rename = os.Rename
	mustPut(t, s, Manifest, testKey, "y")
	wantHit(t, s, Manifest, testKey, "y")
}

// A bad entry is one warning with file and reason, is gone afterwards, and can be made anew.
func TestBadEntries(t *testing.T) {
	payload := strings.Repeat("payload ", 1000)
	head, err := encodeHead(Executable, testKey, []byte(payload), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	flip := func(at int) func([]byte) []byte {
		return func(b []byte) []byte { b[at] ^= 1; return b }
	}
	cut := func(n int) func([]byte) []byte { return func(b []byte) []byte { return b[:n] } }
	end := len(head) + len(payload)
	tests := []struct {
		name   string
		change func([]byte) []byte
		reason string
	}{
		{"magic flipped", flip(0), "it starts with"},
		{"header length flipped", flip(12), "SHA-256"},
		{"header length high byte flipped", flip(15), "its header has"},
		{"header flipped", flip(40), "the header's SHA-256 is"},
		{"header checksum flipped", flip(len(head) - 1), "the header's SHA-256 is"},
		{"payload start flipped", flip(len(head)), "the payload's SHA-256 is"},
		{"payload middle flipped", flip(len(head) + 4000), "the payload's SHA-256 is"},
		{"payload end flipped", flip(end - 1), "the payload's SHA-256 is"},
		{"empty", cut(0), "the file is empty"},
		{"cut in the magic", cut(5), "the file ends after 5 of the 16 bytes of the start"},
		{"cut after the preamble", cut(16), "its header has"},
		{"cut in the header", cut(60), "its header has"},
		{"cut before the payload", cut(len(head)), "the payload has 0 bytes, wanted 8000"},
		{"cut in the payload", cut(end - 1), "the payload has 7999 bytes, wanted 8000"},
		{"byte added", func(b []byte) []byte { return append(b, 0) }, "the payload has 8001 bytes, wanted 8000"},
		{"another key's entry", func([]byte) []byte { return encode(t, Executable, NewKey("program", "vae"), []byte("x")) }, "it has the key " + NewKey("program", "vae").Digest()},
		{"another kind's entry", func([]byte) []byte { return encode(t, Manifest, testKey, []byte("x")) }, `it is of kind "manifest", wanted "executable"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s, w := open(t, t.TempDir(), Options{})
			mustPut(t, s, Executable, testKey, payload)
			path := s.path(Executable, testKey.Digest())
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, test.change(data), 0o600); err != nil {
				t.Fatal(err)
			}
			wantMiss(t, s, Executable, testKey)
			w.want(t, path, test.reason)
			if exists(path) {
				t.Error("the bad entry stayed")
			}
			wantMiss(t, s, Executable, testKey)
			w.wantNone(t)
			mustPut(t, s, Executable, testKey, payload)
			wantHit(t, s, Executable, testKey, payload)
			w.wantNone(t)
		})
	}
}

func TestStaleEntry(t *testing.T) {
	s, w := open(t, t.TempDir(), Options{})
	mustPut(t, s, Manifest, testKey, "x")
	path := s.path(Manifest, testKey.Digest())
	data, _ := os.ReadFile(path)
	data[len(entryMagic)]++
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	wantMiss(t, s, Manifest, testKey)
	w.wantNone(t)
	if !exists(path) {
		t.Error("an entry of another version is another precast's: it was deleted")
	}
	mustPut(t, s, Manifest, testKey, "y")
	wantHit(t, s, Manifest, testKey, "y")
}

// What is not a regular file is never opened: a pipe would wait for ever.
func TestIrregularEntry(t *testing.T) {
	s, w := open(t, t.TempDir(), Options{})
	mustPut(t, s, Manifest, testKey, "x")
	path := s.path(Manifest, testKey.Digest())
	_ = os.Remove(path)
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	wantMiss(t, s, Manifest, testKey)
	w.want(t, path, "not a regular file")
}

func TestEviction(t *testing.T) {
	payload := strings.Repeat("x", 1000)
	key := func(i int) Key { return NewKey("program", fmt.Sprint(i)) }
	head, _ := encodeHead(Executable, key(0), []byte(payload), time.Now())
	size := int64(len(head) + len(payload))
	s, w := open(t, t.TempDir(), Options{MaxBytes: 3 * size})
	for i := range 3 {
		mustPut(t, s, Executable, key(i), payload)
		age(t, s.path(Executable, key(i).Digest()), time.Duration(10-i)*time.Hour)
	}
	// Being read makes an entry young.
	wantHit(t, s, Executable, key(0), payload)
	mustPut(t, s, Executable, key(3), payload)
	wantMiss(t, s, Executable, key(1))
	for _, i := range []int{0, 2, 3} {
		wantHit(t, s, Executable, key(i), payload)
	}
	// Never the one just written, old though it may look.
	for i := range 4 {
		if p := s.path(Executable, key(i).Digest()); exists(p) {
			age(t, p, -time.Hour)
		}
	}
	large := strings.Repeat("y", 3*len(payload))
	mustPut(t, s, Executable, key(9), large)
	wantHit(t, s, Executable, key(9), large)
	if list, err := s.List(); err != nil || len(list) != 1 {
		t.Errorf("%d entries, error %v; wanted the last alone", len(list), err)
	}
	w.wantNone(t)
	if exists(filepath.Join(s.root, locksDir, evictionLock)) {
		t.Error("the lock of the eviction stayed")
	}
}

func TestTooLarge(t *testing.T) {
	s, w := open(t, t.TempDir(), Options{MaxBytes: 1000})
	mustPut(t, s, Manifest, testKey, "x")
	if err := s.Put(Executable, testKey, make([]byte, 1000)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("error %v", err)
	}
	w.want(t, "bytes is not cached: the cap of the cache is 1000")
	wantMiss(t, s, Executable, testKey)
	wantHit(t, s, Manifest, testKey, "x")
}

// What a writer left behind goes with the next eviction, when it is old.
func TestPutSweepsTemp(t *testing.T) {
	s, _ := open(t, t.TempDir(), Options{})
	mustPut(t, s, Manifest, testKey, "x")
	dir := filepath.Dir(s.path(Manifest, testKey.Digest()))
	old, young := filepath.Join(dir, tempMark+"1"), filepath.Join(dir, tempMark+"2")
	for _, path := range []string{old, young} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	age(t, old, 2*time.Hour)
	mustPut(t, s, Manifest, testKey, "y")
	if exists(old) || !exists(young) {
		t.Errorf("old is there: %v, young is there: %v; wanted the young alone", exists(old), exists(young))
	}
}

func TestNearest(t *testing.T) {
	s, w := open(t, t.TempDir(), Options{})
	if _, ok := s.Nearest(Manifest, testKey); ok {
		t.Error("found one in an empty cache")
	}
	other := NewKey("program", "vae", "plugin", "cpu", "threads", "2")   // one field differs, but it is the program
	near := NewKey("program", "unet", "plugin", "cpu", "threads", "4")   // one
	far := NewKey("program", "unet", "plugin", "tpu", "threads", "4")    // two
	wrong := NewKey("program", "unet", "plugin", "cpu", "threads", "2x") // of another kind
	mustPut(t, s, Manifest, other, "")
	wantNearest(t, s, other)
	mustPut(t, s, Manifest, far, "")
	wantNearest(t, s, far)
	mustPut(t, s, Manifest, near, "")
	mustPut(t, s, Executable, wrong, "")
	wantNearest(t, s, near)
	mustPut(t, s, Manifest, testKey, "")
	wantNearest(t, s, testKey)
	if err := os.WriteFile(s.path(Manifest, testKey.Digest()), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	wantNearest(t, s, near)
	w.wantNone(t)
}

func wantNearest(t *testing.T, s *Store, want Key) {
	t.Helper()
	if got, ok := s.Nearest(Manifest, testKey); !ok || got.Digest() != want.Digest() {
		t.Errorf("Nearest: %v, %v; wanted %v", got.Fields, ok, want.Fields)
	}
}

func TestLockExcludes(t *testing.T) {
	s, w := open(t, t.TempDir(), Options{})
	var inside, most atomic.Int32
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 10 {
				unlock, err := s.Lock(context.Background(), testKey)
				if err != nil {
					t.Error(err)
					return
				}
				most.Store(max(most.Load(), inside.Add(1)))
				time.Sleep(100 * time.Microsecond)
				inside.Add(-1)
				unlock()
			}
		})
	}
	group.Wait()
	if most.Load() != 1 {
		t.Errorf("%d goroutines had the lock at once", most.Load())
	}
	w.wantNone(t)
}

func TestLockContext(t *testing.T) {
	s, _ := open(t, t.TempDir(), Options{})
	unlock, err := s.Lock(context.Background(), testKey)
	if err != nil {
		t.Fatal(err)
	}
	// Another key is free.
	other, err := s.Lock(context.Background(), NewKey("program", "vae"))
	if err != nil {
		t.Fatal(err)
	}
	other()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := s.Lock(ctx, testKey); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), `program "unet"`) {
		t.Errorf("error %v", err)
	}
	unlock()
	if _, err := s.Lock(ctx, testKey); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a context that is over: error %v", err)
	}
	again, err := s.Lock(context.Background(), testKey)
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestWritableByOthers(t *testing.T) {
	if writableByOthers(fakeInfo(0o777)) == "" {
		t.Skip("no permission bits here")
	}
	dir := t.TempDir()
	for mode, wanted := range map[fs.FileMode]bool{0o700: false, 0o755: false, 0o750: false, 0o770: true, 0o707: true, 0o1777: true} {
		if err := os.Chmod(dir, mode.Perm()); err != nil {
			t.Fatal(err)
		}
		_, w := open(t, dir, Options{})
		if wanted {
			w.want(t, dir, "can be written by others", "entries are code")
		} else {
			w.wantNone(t)
		}
	}
}

type fakeInfo fs.FileMode

func (i fakeInfo) Mode() fs.FileMode { return fs.FileMode(i) }
func (fakeInfo) Name() string        { return "" }
func (fakeInfo) Size() int64         { return 0 }
func (fakeInfo) ModTime() time.Time  { return time.Time{} }
func (fakeInfo) IsDir() bool         { return true }
func (fakeInfo) Sys() any            { return nil }

// Many goroutines on one store: every read is one of the written values, whole.
func TestStoreConcurrently(t *testing.T) {
	s, w := open(t, t.TempDir(), Options{})
	values := []string{strings.Repeat("a", 5000), strings.Repeat("b", 7000)}
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			for n := range 25 {
				switch (i + n) % 4 {
				case 0:
					if err := s.Put(Executable, testKey, []byte(values[n%2])); err != nil {
						t.Error(err)
					}
				case 1:
					s.Delete(Executable, testKey)
				default:
					if got, ok := s.Get(Executable, testKey); ok && !slices.Contains(values, string(got)) {
						t.Errorf("read %d bytes that nobody wrote", len(got))
					}
				}
			}
		})
	}
	group.Wait()
	w.wantNone(t)
}
