package cache

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gofrs/flock"
)

// PayloadAlign is the alignment in its file of the payload of an entry that Create writes, and with it of what Map returns in memory.
const PayloadAlign = 4096

// writeBlock is how much Writer writes at once, at multiples of it in the file: Linux keeps what was written so in large pages, which are mapped in a tenth
// of the time and are cheaper to read. It is a multiple of the large pages' size.
const writeBlock = 8 << 20

// spareDisk is what Create leaves free on the disk: weights can be read from their checkpoint as well, other files have no second copy.
const spareDisk = 1 << 30

// Writer writes an entry piece by piece. It is used by one goroutine.
type Writer struct {
	s          *Store
	kind       Kind
	key        Key
	path       string
	f          tempFile
	alive      *flock.Flock
	unlock     func()
	sum        hash.Hash
	head       int
	size, done int64
	// block is what was given and is not written yet, up to the file's next multiple of writeBlock.
	block []byte
}

// Create begins an entry with a payload of size bytes, which is larger than one would want to have in memory twice. Nobody finds it before Commit, and the
// caller ends it by Commit or Abort. A nil Writer without an error says that another goroutine or process is writing the same entry. An error has been
// warned of; unlike one of Put it leaves the store in use, since there may be room for what is smaller.
func (s *Store) Create(kind Kind, key Key, size int64) (_ *Writer, err error) {
	if !isKind(string(kind)) {
		panic(fmt.Sprintf("BUG: %q is no kind of cache entry", kind))
	}
	if err := s.off(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.warnOnce("create", "%s of %s are not cached: %v", kind, lockSubject(key), err)
		}
	}()
	// The head has the same length whatever the checksum and the time turn out to be.
	head, err := encodeHeadOf(kind, key, size, [sha256.Size]byte{}, time.Now(), PayloadAlign)
	if err != nil {
		return nil, err
	}
	limit := s.max
	if kind == Weights {
		limit = s.maxWeights
	}
	total := size + int64(len(head))
	if total > limit {
		return nil, fmt.Errorf("%w: %d bytes, the cap is %d", ErrTooLarge, total, limit)
	}
	unlock, busy, err := s.tryLock(key)
	if err != nil || busy {
		return nil, err
	}
	w := &Writer{s: s, kind: kind, key: key, path: s.path(kind, key.Digest()), unlock: unlock, sum: sha256.New(), head: len(head), size: size}
	if _, err := os.Lstat(w.path); err == nil {
		unlock() // another process has made it meanwhile
		return nil, nil
	}
	dir := filepath.Dir(w.path)
	if err := s.ensure(dir); err != nil {
		unlock()
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if free, ok := freeBytes(dir); ok && free < total+spareDisk {
		unlock()
		return nil, fmt.Errorf("%w: they take %d bytes, and the disk of %s has %d free, of which %d stay free", ErrUnavailable, total, s.dir, free, int64(spareDisk))
	}
	if w.f, w.alive, err = s.createTemp(dir); err != nil {
		unlock()
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	// The head's place is taken by zeros, which no reader takes for one.
	w.block = make([]byte, len(head), max(len(head), writeBlock))
	return w, nil
}

// Write appends to the payload. After an error the caller aborts.
func (w *Writer) Write(p []byte) (int, error) {
	if w.done+int64(len(p)) > w.size {
		panic(fmt.Sprintf("BUG: cache: %d bytes written to an entry of %d", w.done+int64(len(p)), w.size))
	}
	total := len(p)
	for len(p) > 0 {
		// What is hashed is still in the processor's cache when it is copied.
		n := min(len(p), readChunk, cap(w.block)-len(w.block))
		w.sum.Write(p[:n])
		w.block = append(w.block, p[:n]...)
		w.done += int64(n)
		p = p[n:]
		if len(w.block) == cap(w.block) {
			if err := w.flush(); err != nil {
				return total - len(p), err
			}
		}
	}
	return total, nil
}

func (w *Writer) flush() error {
	_, err := w.f.Write(w.block)
	w.block = w.block[:0]
	return err
}

// Skip appends n zeros to the payload.
func (w *Writer) Skip(n int64) error {
	for n > 0 {
		part := min(n, PayloadAlign)
		if _, err := w.Write(make([]byte, part)); err != nil {
			return err
		}
		n -= part
	}
	return nil
}

// Commit puts the entry in its place: synced first, since Map does not read the payload to check it.
func (w *Writer) Commit() error {
	if w.done != w.size {
		panic(fmt.Sprintf("BUG: cache: an entry of %d bytes is committed after %d", w.size, w.done))
	}
	err := func() error {
		if err := w.flush(); err != nil {
			return err
		}
		head, err := encodeHeadOf(w.kind, w.key, w.size, [sha256.Size]byte(w.sum.Sum(nil)), time.Now(), PayloadAlign)
		if err != nil {
			return err
		}
		if len(head) != w.head {
			return fmt.Errorf("the head has %d bytes, wanted %d", len(head), w.head)
		}
		if _, err := w.f.WriteAt(head, 0); err != nil {
			return err
		}
		if err := w.f.Sync(); err != nil {
			return err
		}
		if err := w.f.Close(); err != nil {
			return err
		}
		return w.s.disk.rename(w.f.Name(), w.path)
	}()
	if err != nil {
		w.Fail(err)
		return err
	}
	syncDir(filepath.Dir(w.path))
	w.release()
	w.s.evict(w.path)
	return nil
}

// Fail is Abort with a warning of the reason.
func (w *Writer) Fail(err error) {
	w.s.warnOnce("create", "%s of %s are not cached: %v", w.kind, lockSubject(w.key), err)
	w.Abort()
}

// Abort ends the entry: nothing is left of it.
func (w *Writer) Abort() {
	_ = w.f.Close()
	_ = os.Remove(w.f.Name())
	w.release()
}

func (w *Writer) release() {
	if w.alive != nil {
		_ = w.alive.Close()
	}
	w.unlock()
}

// Map returns the payload, of size bytes, of an entry that Create wrote, as a read-only mapping of its file where the system has such, aligned to PayloadAlign. The
// header is checked and the file's length, not the payload: that would take as long as what the entry saves, and Verify does it. An entry that is not there, or is
// of another format version, is a miss; a bad one is a warning and a miss, and is deleted. What Map returned stays readable when another process removes the
// entry; release gives it back.
func (s *Store) Map(kind Kind, key Key, size int64) (data []byte, release func(), ok bool) {
	if s.root == "" {
		return nil, nil, false
	}
	path := s.path(kind, key.Digest())
	f, info, err := openEntry(path)
	if err == nil {
		defer f.Close()
		var h *header
		if h, err = readHead(f, info.Size()); err == nil {
			if err = h.is(kind, key); err == nil && (h.Payload != size || (info.Size()-size)%PayloadAlign != 0) {
				err = badEntry("it has a payload of %d bytes after %d, wanted %d after a multiple of %d", h.Payload, info.Size()-h.Payload, size, PayloadAlign)
			}
		}
		if err == nil {
			if data, release, err = mapEntry(f, info.Size()); err == nil {
				data = data[info.Size()-size:]
			}
		}
	}
	var bad *badEntryError
	switch {
	case err == nil:
		now := time.Now()
		_ = os.Chtimes(path, now, now)
		return data, sync.OnceFunc(release), true
	case errors.As(err, &bad):
		s.warnOnce(path, "cache entry %s is bad and is made anew: %v", path, err)
		removeIfSame(path, info)
	case errors.Is(err, errStale), vanished(err):
	default:
		s.warnOnce("unreadable", "cache entry %s can't be read (further ones are not named): %v", path, err)
	}
	return nil, nil, false
}

// tryLock is Lock without the waiting; busy says that someone else holds the lock.
func (s *Store) tryLock(key Key) (unlock func(), busy bool, err error) {
	path := filepath.Join(s.root, locksDir, key.Digest()+lockMark)
	for range 100 {
		l := flock.New(path)
		got, err := l.TryLock()
		switch {
		case err != nil && vanished(err):
			if err := s.ensure(filepath.Dir(path)); err != nil {
				return nil, false, fmt.Errorf("%w: %w", ErrUnavailable, err)
			}
			continue
		case err != nil:
			return nil, false, fmt.Errorf("%w: %w", ErrUnavailable, err)
		case !got:
			return nil, true, nil
		case sameFile(l, path):
			return sync.OnceFunc(func() {
				_ = os.Remove(path)
				_ = l.Close()
			}), false, nil
		}
		_ = l.Close()
	}
	return nil, true, nil
}
