package plugin

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// DirVariable and PluginVariable are the environment variables that say where plugins lie and which one is used.
const (
	DirVariable    = "PRECAST_PLUGIN_DIR"
	PluginVariable = "PRECAST_PLUGIN"
)

// Store is the folder that plugins are installed in.
type Store struct {
	// Dir is the folder; it need not exist before the first installation.
	Dir string
	// Pins are the plugins that the store knows.
	Pins []Pin
}

// Installed is a plugin on disk, verified.
type Installed struct {
	// Name is the pin's full name, or the path where the plugin is a file of the user's.
	Name string
	// Package and Version are empty for a file of the user's.
	Package, Version string
	// Path is the library's file.
	Path string
	// SHA256 is the library's hash in hexadecimal, for cache keys.
	SHA256 string
}

// NotInstalledError says that a pinned plugin isn't there.
type NotInstalledError struct {
	Name, Dir string
}

// Error names the command that installs the plugin.
func (e *NotInstalledError) Error() string {
	return fmt.Sprintf("plugin %s is not installed in %s: run `precast plugin install %s`", e.Name, e.Dir, e.Name)
}

// DefaultDir is $PRECAST_PLUGIN_DIR, else precast/plugins in $XDG_DATA_HOME or ~/.local/share.
func DefaultDir() (string, error) {
	if dir := os.Getenv(DirVariable); dir != "" {
		return filepath.Abs(dir)
	}
	// The XDG specification has relative paths ignored.
	if data := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(data) {
		return filepath.Join(data, "precast", "plugins"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("plugin folder: %w: set %s", err, DirVariable)
	}
	return filepath.Join(home, ".local", "share", "precast", "plugins"), nil
}

// Open opens the default store.
func Open() (*Store, error) {
	dir, err := DefaultDir()
	if err != nil {
		return nil, err
	}
	return &Store{Dir: dir, Pins: Pins}, nil
}

// Default returns the plugin that programs run on: $PRECAST_PLUGIN, which is the path of a library or a name as in Find, else the
// installed plugin for the CPU. The error is a *NotInstalledError where there is none. A file of the user's is taken as it is. Whoever
// also has the Go backend looks at the variable first: "go" is no plugin.
func Default() (*Installed, error) {
	s, err := Open()
	if err != nil {
		return nil, err
	}
	name := os.Getenv(PluginVariable)
	if name == "" {
		name = "cpu"
	}
	return s.Resolve(name)
}

// Resolve returns a plugin by name or by path: what holds a separator or ends as a shared library does is a path.
func (s *Store) Resolve(name string) (*Installed, error) {
	if !strings.ContainsRune(name, filepath.Separator) && filepath.Ext(name) != ".so" && filepath.Ext(name) != ".dylib" {
		return s.Lookup(name)
	}
	path, err := filepath.Abs(name)
	if err != nil {
		return nil, fmt.Errorf("plugin %s: %w", name, err)
	}
	sum, err := s.fileHash(path)
	if err != nil {
		return nil, fmt.Errorf("plugin %s: %w", name, err)
	}
	return &Installed{Name: path, Path: path, SHA256: sum}, nil
}

// Lookup returns an installed plugin by name, verified. The error is a *NotInstalledError where it isn't there.
func (s *Store) Lookup(name string) (*Installed, error) {
	pin, err := Find(s.Pins, name)
	if err != nil {
		return nil, err
	}
	w, err := pin.wheel()
	if err != nil {
		return nil, err
	}
	return s.verify(pin, w, name)
}

// Status is what List tells of a pin.
type Status struct {
	Pin *Pin
	// Default says that the target's plain name means this pin.
	Default bool
	// Installed is nil where the plugin isn't there or Err says what is wrong with it.
	Installed *Installed
	Err       error
}

// List tells of every pin that has a wheel for this platform, in the order of the pins.
func (s *Store) List() []Status {
	var list []Status
	seen := map[string]bool{}
	for i := range s.Pins {
		p := &s.Pins[i]
		w, err := p.wheel()
		if err != nil {
			continue
		}
		st := Status{Pin: p, Default: !seen[p.Target]}
		seen[p.Target] = true
		if st.Installed, err = s.verify(p, w, p.Name()); err != nil {
			if missing := (*NotInstalledError)(nil); !errors.As(err, &missing) {
				st.Err = err
			}
		}
		list = append(list, st)
	}
	return list
}

// folder is where a pin lies: version and platform are in the name, so that two can lie side by side.
func (s *Store) folder(p *Pin) string {
	return filepath.Join(s.Dir, p.Package+"-"+p.Version+"-"+strings.ReplaceAll(Platform(), "/", "_"))
}

// verify checks an installed plugin against its pin.
func (s *Store) verify(p *Pin, w Wheel, name string) (*Installed, error) {
	library := filepath.Join(s.folder(p), filepath.Base(w.Library))
	if _, err := os.Stat(library); errors.Is(err, fs.ErrNotExist) {
		return nil, &NotInstalledError{Name: name, Dir: s.Dir}
	}
	sum, err := s.fileHash(library)
	if err != nil {
		return nil, fmt.Errorf("plugin %s: %w", name, err)
	}
	if sum != w.LibrarySHA256 {
		return nil, fmt.Errorf("plugin %s is damaged: %s has SHA-256 %s, wanted %s: run `precast plugin install %s` again", name, library, sum, w.LibrarySHA256, name)
	}
	return &Installed{Name: p.Name(), Package: p.Package, Version: p.Version, Path: library, SHA256: sum}, nil
}

// hashRecord remembers the hash of a file for as long as the file's identity stays.
type hashRecord struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	Mtime  int64  `json:"mtime_ns"`
	Inode  uint64 `json:"inode"`
	SHA256 string `json:"sha256"`
}

// fileHash returns a file's SHA-256. A library has hundreds of megabytes: the hash is kept beside the store's plugins and taken
// from there while the file's size, modification time and inode are those that it was computed with.
func (s *Store) fileHash(path string) (string, error) {
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		path = resolved
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("found no regular file, wanted a shared library")
	}
	want := hashRecord{Path: path, Size: info.Size(), Mtime: info.ModTime().UnixNano(), Inode: inode(info)}
	sidecar := s.sidecar(path)
	if data, err := os.ReadFile(sidecar); err == nil {
		var have hashRecord
		if json.Unmarshal(data, &have) == nil && len(have.SHA256) == 2*sha256.Size {
			want.SHA256 = have.SHA256
			if have == want {
				return have.SHA256, nil
			}
		}
	}
	if want.SHA256, err = hashFile(path); err != nil {
		return "", err
	}
	// Where the sidecar can't be written the next start computes the hash again.
	_ = writeRecord(sidecar, want)
	return want.SHA256, nil
}

// sidecar is the file that remembers the hash of the file at path.
func (s *Store) sidecar(path string) string {
	key := sha256.Sum256([]byte(path))
	return filepath.Join(s.Dir, "hashes", hex.EncodeToString(key[:8])+".json")
}

func writeRecord(path string, r hashRecord) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".hash-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(append(data, '\n'))
	if err == nil {
		// Another user of a shared folder reads it, too.
		err = f.Chmod(0o644)
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func hashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.CopyBuffer(h, f, make([]byte, 1<<20)); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
