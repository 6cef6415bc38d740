package cache

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gofrs/flock"
)

const (
	// Waiting for a lock looks again after this time, then twice that, up to maxPoll.
	minPoll = 2 * time.Millisecond
	maxPoll = 100 * time.Millisecond
	// patience is how long a wait goes on before the user is told of it.
	patience = 10 * time.Second
)

var errNoLocks = errors.New("no lock can be had")

// Lock waits until no goroutine and no process holds the lock of key, and takes it: who has it makes the entry, the others find it afterwards. The
// system frees it when its process ends, however it ends. unlock may be called more than once. The error is ctx's alone; where there can be no locks
// (a directory that can't be written), unlock does nothing, and an entry may be made twice. A goroutine that takes a lock again waits for itself.
func (s *Store) Lock(ctx context.Context, key Key) (unlock func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if s.off() != nil {
		return func() {}, nil
	}
	unlock, err = s.acquire(ctx, key.Digest()+lockMark)
	switch {
	case errors.Is(err, errNoLocks):
		_ = s.turnOff(err)
		return func() {}, nil
	case err != nil:
		return nil, fmt.Errorf("waiting for another process that makes %s: %w", lockSubject(key), err)
	}
	return unlock, nil
}

func lockSubject(key Key) string {
	if program := key.Get("program"); program != "" {
		return fmt.Sprintf("program %q", program)
	}
	return "cache entry " + key.Digest()
}

// acquire takes the lock of a name. The error is errNoLocks or ctx's.
func (s *Store) acquire(ctx context.Context, name string) (unlock func(), err error) {
	path := filepath.Join(s.root, locksDir, name)
	start, wait := time.Now(), minPoll
	for {
		l := flock.New(path)
		got, err := l.TryLock()
		if err != nil {
			// The folder is not there yet, or has just been removed.
			if !vanished(err) || time.Since(start) > patience {
				return nil, fmt.Errorf("%w: %w", errNoLocks, err)
			}
			if err := s.ensure(filepath.Dir(path)); err != nil {
				return nil, fmt.Errorf("%w: %w", errNoLocks, err)
			}
		}
		if got {
			if sameFile(l, path) {
				return sync.OnceFunc(func() {
					// Lock files don't pile up. Who waits for the removed file finds that out by sameFile.
					_ = os.Remove(path)
					_ = l.Close()
				}), nil
			}
			_ = l.Close()
			continue
		}
		if time.Since(start) > patience {
			s.warnOnce(path, "waiting for another process that makes the same program (it holds %s)", path)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(wait):
			wait = min(2*wait, maxPoll)
		}
	}
}

// sameFile reports whether the locked file is still the one at path, not one that was removed between opening and locking.
func sameFile(l *flock.Flock, path string) bool {
	locked, err := l.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(locked, there)
}

// tryExisting takes the lock of a file that is there, without waiting; nil when it is held or gone.
func tryExisting(path string) (unlock func()) {
	l := flock.New(path, flock.SetFlag(os.O_RDWR))
	if got, err := l.TryLock(); err != nil || !got {
		return nil
	}
	if !sameFile(l, path) {
		_ = l.Close()
		return nil
	}
	return func() { _ = l.Close() }
}
