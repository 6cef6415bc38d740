package cache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/gofrs/flock"
)

// Kind says what an entry holds. It is a folder of the layout: lower-case letters and '-'.
type Kind string

// The kinds that precast stores.
const (
	// Manifest says how a program is run: its executables' keys, parameters and results. Its key is known before anything is traced.
	Manifest Kind = "manifest"
	// Executable is a compiled program as the plugin serialized it. Its key holds the digest of the program's text.
	Executable Kind = "executable"
	// Weights are weights of a component in the dtype, order and alignment in which a device takes them: see Create and Map. They have a cap of their own.
	Weights Kind = "weights"
)

// DefaultMaxBytes is the cap of a store for which no other was set: 20 GiB.
const DefaultMaxBytes = 20 << 30

// DefaultMaxWeightBytes is the cap of the entries of kind Weights for which no other was set: 100 GiB.
const DefaultMaxWeightBytes = 100 << 30

// Options of a store.
type Options struct {
	// MaxBytes is the cap: what was used longest ago goes when the entries have more bytes. 0 is DefaultMaxBytes.
	MaxBytes int64
	// MaxWeightBytes is the cap of the entries of kind Weights, which don't count against MaxBytes. 0 is DefaultMaxWeightBytes.
	MaxWeightBytes int64
	// Warn gets what the user should know, a line each, nil to drop it.
	Warn func(format string, args ...any)
}

// Errors of Put. The store has already warned when it returns them: a caller just goes on without the cache.
var (
	// ErrUnavailable says that the cache directory can't be written.
	ErrUnavailable = errors.New("the cache can't be written")
	// ErrTooLarge says that a payload is larger than the store's cap.
	ErrTooLarge = errors.New("the entry is larger than the cache's cap")
)

// Store keeps entries in a directory. It is safe for many goroutines, and the directory for many processes: entries appear whole or not at all, and
// one that another process removes is a miss. A directory that can't be used costs the cache, not the run: there is one warning, and misses.
type Store struct {
	dir  string // the user's
	root string // dir/v1, all that is ours
	max  int64
	// maxWeights is the cap of the entries of kind Weights.
	maxWeights int64
	disk       disk

	noted    sync.Once
	mu       sync.Mutex
	warn     func(format string, args ...any)
	warned   map[string]bool
	unusable error // why nothing is written any more, nil while it is
}

// Open returns the store in dir, "" being DefaultDir. It never fails: what is wrong with the directory shows as one warning when it is first written,
// and its entries are found as far as it can be read. The directory is made when the first entry is.
func Open(dir string, o Options) *Store {
	s := &Store{max: o.MaxBytes, maxWeights: o.MaxWeightBytes, disk: realDisk, warn: o.Warn, warned: map[string]bool{}}
	if s.max <= 0 {
		s.max = DefaultMaxBytes
	}
	if s.maxWeights <= 0 {
		s.maxWeights = DefaultMaxWeightBytes
	}
	var err error
	if dir == "" {
		dir, err = DefaultDir()
	} else {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		s.turnOff(err)
		return s
	}
	s.dir, s.root = dir, filepath.Join(dir, layoutDir)
	s.checkPrivate()
	return s
}

// Dir is the cache directory, "" when there is none.
func (s *Store) Dir() string { return s.dir }

// MaxBytes is the store's cap.
func (s *Store) MaxBytes() int64 { return s.max }

// warnOnce warns once a subject.
func (s *Store) warnOnce(subject, format string, args ...any) {
	s.mu.Lock()
	known := s.warned[subject]
	s.warned[subject] = true
	s.mu.Unlock()
	if s.warn != nil && !known {
		s.warn(format, args...)
	}
}

// turnOff ends writing for this store's life: a disk that is full or can't be written will not be better for the next entry, and one warning is
// enough.
func (s *Store) turnOff(err error) error {
	s.warnOnce("off", "the cache can't be written, programs are compiled on each start: %v", err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unusable == nil {
		s.unusable = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return s.unusable
}

// off is why nothing can be written, nil when it can.
func (s *Store) off() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unusable
}

// Get returns the payload of an entry, verified, in a buffer of its own that is aligned to 64 bytes. An entry that is not there, or is of another
// format version, is a miss. One that is damaged or has another key than its name says is a warning and a miss, and is deleted.
func (s *Store) Get(kind Kind, key Key) (data []byte, ok bool) {
	if s.root == "" {
		return nil, false
	}
	path := s.path(kind, key.Digest())
	f, info, err := openEntry(path)
	if err == nil {
		defer f.Close()
		var h *header
		if h, err = readHead(f, info.Size()); err == nil {
			if err = h.is(kind, key); err == nil {
				data, err = h.readPayload(f)
			}
		}
	}
	var bad *badEntryError
	switch {
	case err == nil:
		now := time.Now()
		// The time of the last use orders eviction. A read-only cache has none.
		_ = os.Chtimes(path, now, now)
		return data, true
	case errors.As(err, &bad):
		s.warnOnce(path, "cache entry %s is bad and is made anew: %v", path, err)
		removeIfSame(path, info)
	case errors.Is(err, errStale), vanished(err):
	default:
		// What is wrong is seldom one entry's own: a folder without permission, a link to itself, a disk that fails.
		s.warnOnce("unreadable", "cache entry %s can't be read (further ones are not named): %v", path, err)
	}
	return nil, false
}

// openEntry opens the file of an entry.
func openEntry(path string) (*os.File, fs.FileInfo, error) {
	// Opening a pipe would wait for a writer.
	info, err := os.Lstat(path)
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, info, badEntry("it is not a regular file (%s)", info.Mode().Type())
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, info, err
	}
	if info, err = f.Stat(); err != nil {
		_ = f.Close()
		return nil, info, err
	}
	return f, info, nil
}

// removeIfSame removes the file that info describes, unless another process has put a new one in its place, and reports whether it did.
func removeIfSame(path string, info fs.FileInfo) bool {
	now, err := os.Lstat(path)
	return err == nil && (info == nil || os.SameFile(info, now)) && os.Remove(path) == nil
}

// Put stores an entry: a temporary file beside its place, synced, then renamed, so that no reader and no crash sees a part of it. Entries that were
// used longest ago go when the store is over its cap. An error says that the entry is not stored, which the store has warned of already: it costs the
// next start a compile and no more.
func (s *Store) Put(kind Kind, key Key, data []byte) error {
	if !isKind(string(kind)) {
		panic(fmt.Sprintf("BUG: %q is no kind of cache entry", kind))
	}
	if err := s.off(); err != nil {
		return err
	}
	head, err := encodeHead(kind, key, data, time.Now())
	if err != nil {
		s.warnOnce("key", "an entry is not cached: %v", err)
		return err
	}
	if size := int64(len(head)) + int64(len(data)); size > s.max {
		s.warnOnce(key.Digest(), "an entry of %d bytes is not cached: the cap of the cache is %d", size, s.max)
		return fmt.Errorf("%w: %d bytes, the cap is %d", ErrTooLarge, size, s.max)
	}
	path := s.path(kind, key.Digest())
	for range 100 {
		// Another process may remove the folder, or the temporary file, between two steps.
		if err = s.write(path, head, data); err == nil {
			s.evict(path)
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return s.turnOff(err)
		}
		time.Sleep(time.Millisecond)
	}
	s.warnOnce("vanishes", "an entry is not cached, another process removes it while it is written: %v", err)
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

func (s *Store) write(path string, head, data []byte) (err error) {
	dir := filepath.Dir(path)
	if err := s.ensure(dir); err != nil {
		return err
	}
	f, alive, err := s.createTemp(dir)
	if err != nil {
		return err
	}
	renamed := false
	defer func() {
		if !renamed {
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
		_ = alive.Close()
	}()
	if _, err := f.Write(head); err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := s.disk.rename(f.Name(), path); err != nil {
		return err
	}
	renamed = true
	syncDir(dir)
	return nil
}

// createTemp makes a temporary file for an entry of the folder. The lock says to who clears the cache that this file's writer is alive. Where there are no
// locks, the file's age has to do; on Windows a lock would keep the file from being written.
func (s *Store) createTemp(dir string) (tempFile, *flock.Flock, error) {
	f, err := s.disk.createTemp(dir, tempMark+"*")
	if err != nil {
		return nil, nil, err
	}
	alive := flock.New(f.Name(), flock.SetFlag(os.O_RDWR))
	if runtime.GOOS != "windows" {
		_, _ = alive.TryLock()
	}
	return f, alive, nil
}

// Delete removes an entry: one that turned out not to load. An entry that isn't there is no error.
func (s *Store) Delete(kind Kind, key Key) {
	if s.root == "" {
		return
	}
	path := s.path(kind, key.Digest())
	if err := os.Remove(path); err != nil && !vanished(err) {
		s.warnOnce(path, "cache entry %s can't be deleted: %v", path, err)
	}
}

// Nearest returns the key of the stored entry of a kind that differs from key in the fewest fields; an entry with the same field "program" is nearer
// than any without. ok is false when there is none. It reads headers only.
func (s *Store) Nearest(kind Kind, key Key) (nearest Key, ok bool) {
	program := key.Get("program")
	best := 0
	for _, f := range s.files() {
		if f.class != entryFile || f.kind != kind {
			continue
		}
		h, err := readEntry(f, false)
		if err != nil {
			continue
		}
		distance := len(key.Diff(h.Key))
		if h.Key.Get("program") != program {
			distance += 1 << 20
		}
		if !ok || distance < best {
			nearest, best, ok = h.Key, distance, true
		}
	}
	return nearest, ok
}
