package cache

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"
)

// staleTemp is the age from which a temporary file is one that its writer left behind.
const staleTemp = time.Hour

// evictionLock is the name of the lock under which entries are evicted, so that two processes don't both make room for the same bytes.
const evictionLock = "eviction" + lockMark

type fileClass int

const (
	entryFile fileClass = iota
	tempEntry
	lockFile
)

// file is a file of the layout.
type file struct {
	class  fileClass
	kind   Kind   // of an entryFile or tempEntry
	digest string // of an entryFile
	path   string
	size   int64
	used   time.Time // last modified, which is last used
}

// vanished reports whether err says that there is no such file: the path's end or a folder on the way is missing, or a file stands in its place.
func vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// files lists what is in the layout, in the order of its paths. Whatever else lies there is left out: it is not ours. A folder that vanishes or can't
// be read has no files.
func (s *Store) files() []file {
	var out []file
	if s.root == "" {
		return nil
	}
	add := func(dir string, d fs.DirEntry, f file) {
		info, err := d.Info()
		if err != nil {
			return
		}
		f.path, f.size, f.used = filepath.Join(dir, d.Name()), info.Size(), info.ModTime()
		out = append(out, f)
	}
	for _, kind := range readDir(s.root) {
		if !kind.IsDir() {
			continue
		}
		dir := filepath.Join(s.root, kind.Name())
		if kind.Name() == locksDir {
			for _, d := range readDir(dir) {
				if name, ok := strings.CutSuffix(d.Name(), lockMark); ok && d.Type().IsRegular() && (isDigest(name) || d.Name() == evictionLock) {
					add(dir, d, file{class: lockFile})
				}
			}
			continue
		}
		if !isKind(kind.Name()) {
			continue
		}
		for _, part := range readDir(dir) {
			if !part.IsDir() || len(part.Name()) != 2 || !isHex(part.Name()) {
				continue
			}
			dir := filepath.Join(dir, part.Name())
			for _, d := range readDir(dir) {
				switch name := d.Name(); {
				case !d.Type().IsRegular():
				case strings.HasPrefix(name, tempMark):
					add(dir, d, file{class: tempEntry, kind: Kind(kind.Name())})
				case isDigest(name) && strings.HasPrefix(name, part.Name()):
					add(dir, d, file{class: entryFile, kind: Kind(kind.Name()), digest: name})
				}
			}
		}
	}
	return out
}

func readDir(dir string) []fs.DirEntry {
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	return list
}

func (h *header) liesAt(f file) error {
	if h.Kind != f.kind {
		return badEntry("it is of kind %q in the folder of kind %q", h.Kind, f.kind)
	}
	if found := h.Key.Digest(); found != f.digest {
		return badEntry("its key has the digest %s, its name is %s", found, f.digest)
	}
	return nil
}

// byUse orders files by when they were last used, longest ago first.
func byUse(a, b file) int {
	return cmp.Or(a.used.Compare(b.used), strings.Compare(a.path, b.path))
}

// overCaps returns the entries that have to go, longest unused first, so that the weights have no more than their limit of bytes and the other entries
// no more than theirs; keep is never among them.
func overCaps(files []file, limit, limitWeights int64, keep string) []file {
	weights := func(f file) bool { return f.kind == Weights }
	others := func(f file) bool { return f.kind != Weights }
	return append(overCap(slices.DeleteFunc(slices.Clone(files), weights), limit, keep), overCap(slices.DeleteFunc(slices.Clone(files), others), limitWeights, keep)...)
}

// overCap returns the entries that have to go, longest unused first, so that the others have no more than limit bytes; keep is never among them.
func overCap(files []file, limit int64, keep string) []file {
	var total int64
	var entries []file
	for _, f := range files {
		if f.class == entryFile {
			total += f.size
			entries = append(entries, f)
		}
	}
	slices.SortFunc(entries, byUse)
	var out []file
	for _, f := range entries {
		if total <= limit {
			break
		}
		if f.path != keep {
			total -= f.size
			out = append(out, f)
		}
	}
	return out
}

// evict brings the store down to its cap, without the entry at keep. Where another process holds the lock for long, it does the same work.
func (s *Store) evict(keep string) {
	files := s.files()
	old := slices.DeleteFunc(slices.Clone(files), func(f file) bool { return !leftBehind(f, staleTemp) })
	if len(overCaps(files, s.max, s.maxWeights, keep)) == 0 && len(old) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	unlock, err := s.acquire(ctx, evictionLock)
	if err != nil {
		return
	}
	defer unlock()
	for _, f := range append(old, overCaps(s.files(), s.max, s.maxWeights, keep)...) {
		_ = os.Remove(f.path)
	}
}

// leftBehind reports whether f is a temporary file that no living process writes, as far as its age and its lock say.
func leftBehind(f file, age time.Duration) bool {
	if f.class != tempEntry || time.Since(f.used) < age {
		return false
	}
	l := flock.New(f.path, flock.SetFlag(os.O_RDWR))
	got, err := l.TryLock()
	_ = l.Close()
	// Without locks there is only the age.
	return got || err != nil && !vanished(err) && time.Since(f.used) >= staleTemp
}
