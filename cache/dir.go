package cache

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// DirVariable is the environment variable that names the cache directory.
const DirVariable = "PRECAST_CACHE_DIR"

// DefaultDir is $PRECAST_CACHE_DIR, else the folder "precast" in the user's cache folder ($XDG_CACHE_HOME or ~/.cache on Linux).
func DefaultDir() (string, error) {
	if dir := os.Getenv(DirVariable); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no folder for the cache: %w; set %s", err, DirVariable)
	}
	return filepath.Join(dir, "precast"), nil
}

// Everything of the store lies below this folder of the cache directory, the notes too: the directory may be one that the user has for other
// things as well, and a tag in it would keep those out of backups.
const (
	layoutDir = "v1"
	locksDir  = "locks"
	tempMark  = ".tmp-"
	lockMark  = ".lock"
)

// notes are the files that say to people and to backup programs what the folder is (https://bford.info/cachedir/).
var notes = map[string]string{
	"CACHEDIR.TAG": "Signature: 8a477f597d28d172789f06886806bc55\n" +
		"# This file marks a folder of precast's cache: backup programs may leave it out.\n",
	"README": "This folder holds programs that precast has compiled, and weights as a device takes them where --weights-cache asked for\n" +
		"it. It can be deleted at any time: `precast cache clear` does so.\n\n" +
		"Entries are trusted code: precast loads them and runs them with the rights of its user. Checksums find damage, not\n" +
		"malice. Nobody but that user may be able to write here, and entries from elsewhere don't belong here.\n",
}

// disk is what writing needs of the file system.
type disk struct {
	mkdirAll   func(path string, mode fs.FileMode) error
	createTemp func(dir, pattern string) (tempFile, error)
	rename     func(from, to string) error
}

type tempFile interface {
	io.WriteCloser
	io.WriterAt
	Name() string
	Sync() error
}

var realDisk = disk{
	mkdirAll:   os.MkdirAll,
	createTemp: func(dir, pattern string) (tempFile, error) { return os.CreateTemp(dir, pattern) },
	rename:     os.Rename,
}

// path is the place of an entry.
func (s *Store) path(kind Kind, digest string) string {
	return filepath.Join(s.root, string(kind), digest[:2], digest)
}

// ensure makes a folder of the layout.
func (s *Store) ensure(dir string) error {
	if err := s.disk.mkdirAll(dir, 0o700); err != nil {
		return err
	}
	s.noted.Do(func() {
		for name, text := range notes {
			// A note that can't be written, or is there, is no loss.
			if f, err := os.OpenFile(filepath.Join(s.root, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
				_, _ = f.WriteString(text)
				_ = f.Close()
			}
		}
	})
	return nil
}

// checkPrivate warns when others than the user can put code where it will be run.
func (s *Store) checkPrivate() {
	for _, dir := range []string{s.dir, s.root} {
		info, err := os.Stat(dir)
		if err != nil || !info.IsDir() {
			continue
		}
		if problem := writableByOthers(info); problem != "" {
			s.warnOnce(dir, "cache directory %s %s: entries are code that precast runs; make it private (chmod 700) or set %s", dir, problem, DirVariable)
			return
		}
	}
}

// syncDir makes a rename durable. An error is no loss: an entry that isn't there after a crash is a miss.
func syncDir(dir string) {
	if d, err := os.Open(dir); err == nil {
		_ = d.Sync()
		_ = d.Close()
	}
}

// isDigest reports whether name is a key's digest.
func isDigest(name string) bool {
	return len(name) == 64 && isHex(name)
}

func isHex(s string) bool {
	return strings.Trim(s, "0123456789abcdef") == ""
}

// isKind reports whether name can be the folder of a kind.
func isKind(name string) bool {
	return name != "" && name != locksDir && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz-") == ""
}
