package plugin

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/gofrs/flock"
)

// InstallOptions say how to install.
type InstallOptions struct {
	// Out gets a line for each stage; nil means none.
	Out io.Writer
	// Wheel is a wheel that was fetched by other means, for a machine without network; empty means pip fetches it.
	Wheel string
	// Force installs again what is there and good.
	Force bool
}

// Install installs a plugin by name: pip fetches the pinned wheel, its hash is checked, the library, the licences and the headers are
// unpacked to a folder beside and that is renamed, so that a part is never seen. A plugin that is there and good needs no network.
func (s *Store) Install(ctx context.Context, name string, opts InstallOptions) (*Installed, error) {
	pin, err := Find(s.Pins, name)
	if err != nil {
		return nil, err
	}
	w, err := pin.wheel()
	if err != nil {
		return nil, err
	}
	out := opts.Out
	if out == nil {
		out = io.Discard
	}
	if !opts.Force {
		if have, err := s.verify(pin, w, name); err == nil {
			fmt.Fprintf(out, "%s %s is installed: %s\n", pin.Package, pin.Version, have.Path)
			return have, nil
		}
	}
	if err := os.MkdirAll(s.Dir, 0o777); err != nil {
		return nil, fmt.Errorf("install plugin %s: %w: set %s to a folder that can be written", name, err, DirVariable)
	}
	lock := flock.New(filepath.Join(s.Dir, ".lock"))
	if err := lock.Lock(); err != nil {
		return nil, fmt.Errorf("install plugin %s: %w: set %s to a folder that can be written", name, err, DirVariable)
	}
	defer func() { _ = lock.Unlock() }()
	if !opts.Force {
		// Another process may have installed it while this one waited for the lock.
		if have, err := s.verify(pin, w, name); err == nil {
			return have, nil
		}
	}
	temp, err := os.MkdirTemp(s.Dir, ".install-*")
	if err != nil {
		return nil, s.installError(pin, w, err)
	}
	defer os.RemoveAll(temp)
	wheel := opts.Wheel
	if wheel == "" {
		fmt.Fprintf(out, "fetching %s %s (%.0f MB) with pip\n", pin.Package, pin.Version, float64(w.Size)/1e6)
		if wheel, err = fetch(ctx, pin, w, temp); err != nil {
			return nil, s.installError(pin, w, err)
		}
	}
	sum, err := hashFile(wheel)
	if err != nil {
		return nil, s.installError(pin, w, err)
	}
	if sum != w.SHA256 {
		return nil, fmt.Errorf("install plugin %s: %s has SHA-256 %s, wanted %s: the index served another file than the pinned one; nothing was installed",
			name, filepath.Base(wheel), sum, w.SHA256)
	}
	fmt.Fprintf(out, "checked sha256 %s\n", sum)
	unpacked := filepath.Join(temp, "unpacked")
	if err := unpack(wheel, w, unpacked); err != nil {
		return nil, s.installError(pin, w, err)
	}
	if err := replaceFolder(unpacked, s.folder(pin), temp); err != nil {
		return nil, s.installError(pin, w, err)
	}
	have, err := s.verify(pin, w, name)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "installed %s\nlicence: %s\n", have.Path, pin.Licence)
	if pin.Notice != "" {
		fmt.Fprintf(out, "notice: %s\n", pin.Notice)
	}
	return have, nil
}

// installError says what to do about the usual failures.
func (s *Store) installError(p *Pin, w Wheel, err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("install plugin %s: %w: it needs %.1f GB in %s while it is installed: make room there or set %s to another folder",
			p.Name(), err, float64(2*w.Size+w.LibrarySize)/1e9, s.Dir, DirVariable)
	}
	return fmt.Errorf("install plugin %s: %w", p.Name(), err)
}

// pip finds pip's command line.
func pip() ([]string, error) {
	for _, command := range [][]string{{"pip"}, {"pip3"}, {"python3", "-m", "pip"}} {
		if found, err := exec.LookPath(command[0]); err == nil {
			return append([]string{found}, command[1:]...), nil
		}
	}
	return nil, errors.New("found neither pip, pip3 nor python3 on PATH")
}

// fetch has pip download the pinned wheel to a folder and returns its file.
func fetch(ctx context.Context, p *Pin, w Wheel, dir string) (string, error) {
	byHand := fmt.Sprintf("or fetch the wheel of %s %s for %s elsewhere and give it with --wheel", p.Package, p.Version, w.Platform)
	command, err := pip()
	if err != nil {
		return "", fmt.Errorf("%w: install Python's pip, %s", err, byHand)
	}
	// The tags are given so that every version of Python gets the pinned file.
	args := append(command[1:], "download", "--no-deps", "--only-binary=:all:", "--quiet", "--disable-pip-version-check", "--no-input",
		"--platform", w.Platform, "--dest", dir)
	if w.Python != "" {
		args = append(args, "--python-version", w.Python, "--implementation", "cp", "--abi", "cp"+strings.ReplaceAll(w.Python, ".", ""))
	}
	args = append(args, p.Package+"=="+p.Version)
	cmd := exec.CommandContext(ctx, command[0], args...)
	// pip's own temporary files go where the room is wanted anyway.
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		text := strings.TrimSpace(stderr.String())
		if strings.Contains(text, "No space left on device") {
			return "", fmt.Errorf("pip: %w", syscall.ENOSPC)
		}
		if text == "" {
			text = err.Error()
		}
		return "", fmt.Errorf("pip could not fetch %s %s: check the network and pip's index settings (pip config list), %s; pip says: %s",
			p.Package, p.Version, byHand, lastLines(text, 4))
	}
	wheels, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil || len(wheels) != 1 {
		return "", fmt.Errorf("pip left %d wheels of %s %s, wanted 1: %s", len(wheels), p.Package, p.Version, byHand)
	}
	return wheels[0], nil
}

func lastLines(text string, n int) string {
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(len(lines)-n, 0):], "\n")
}

// unpack writes the library, the licence texts, the package's description and the C headers of a wheel to a new folder.
func unpack(wheel string, w Wheel, dir string) error {
	z, err := zip.OpenReader(wheel)
	if err != nil {
		return fmt.Errorf("wheel %s: %w", filepath.Base(wheel), err)
	}
	defer z.Close()
	if err := os.Mkdir(dir, 0o777); err != nil {
		return err
	}
	found := false
	for _, f := range z.File {
		base := path.Base(f.Name)
		isLibrary := f.Name == w.Library
		if !isLibrary && !isText(f.Name) {
			continue
		}
		if limit := uint64(max(w.LibrarySize, 16<<20)); f.UncompressedSize64 > limit {
			return fmt.Errorf("wheel %s: %s has %d bytes, wanted at most %d", filepath.Base(wheel), f.Name, f.UncompressedSize64, limit)
		}
		err := extract(f, filepath.Join(dir, base), isLibrary)
		if errors.Is(err, os.ErrExist) && !isLibrary {
			// A text of that name is there already.
			continue
		}
		if err != nil {
			return fmt.Errorf("wheel %s: %s: %w", filepath.Base(wheel), f.Name, err)
		}
		found = found || isLibrary
	}
	if !found {
		return fmt.Errorf("wheel %s: found no %s in it", filepath.Base(wheel), w.Library)
	}
	return nil
}

// isText reports whether a member of a wheel is a licence, a notice, the package's description or a C header.
func isText(name string) bool {
	base := strings.ToUpper(path.Base(name))
	return strings.HasPrefix(base, "LICEN") || strings.Contains(base, "NOTICE") || base == "METADATA" || strings.HasSuffix(base, ".H")
}

// extract writes one member and has it on disk when it returns.
func extract(f *zip.File, to string, executable bool) error {
	r, err := f.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	mode := os.FileMode(0o644)
	if executable {
		mode = 0o755
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(out, r, make([]byte, 1<<20))
	if err == nil && executable {
		err = out.Sync()
	}
	if e := out.Close(); err == nil {
		err = e
	}
	return err
}

// replaceFolder renames from to to, and what was there to the temporary folder, which is removed later.
func replaceFolder(from, to, temp string) error {
	old := filepath.Join(temp, "old")
	if err := os.Rename(to, old); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		_ = os.Rename(old, to)
		return err
	}
	return nil
}
