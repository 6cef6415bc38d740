package plugin

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// fakeWheel writes a wheel and returns its file and a pin for it.
func fakeWheel(t *testing.T, library string) (string, Pin) {
	t.Helper()
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	for name, text := range map[string]string{
		"fake_plugin/__init__.py":                      "import os",
		"fake_plugin/fake.so":                          library,
		"fake_plugin/include/pjrt_c_api.h":             "// a header",
		"fake_plugin-1.0.dist-info/licenses/LICENSE":   "do as you like",
		"fake_plugin-1.0.dist-info/METADATA":           "Name: fake-plugin",
		"fake_plugin-1.0.dist-info/../../../evil.so":   "outside",
		"fake_plugin-1.0.dist-info/NOTICE/directory.x": "no notice",
	} {
		w, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "fake_plugin-1.0-py3-none-any.whl")
	if err := os.WriteFile(file, buf.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, Pin{
		Target: "cpu", Package: "fake-plugin", Version: "1.0", Licence: "MIT", Notice: "made for a test",
		Wheels: map[string]Wheel{Platform(): {
			SHA256: sum(buf.Bytes()), LibrarySHA256: sum([]byte(library)), Library: "fake_plugin/fake.so",
			Size: int64(buf.Len()), LibrarySize: int64(len(library)), Platform: "any_platform", Python: "3.11",
		}},
	}
}

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// fakePip puts a pip on PATH that runs a shell script with the destination in $dest; its arguments go to the returned file.
func fakePip(t *testing.T, script string) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the pip of this test is a shell script")
	}
	dir := t.TempDir()
	log := filepath.Join(dir, "arguments")
	text := "#!/bin/sh\necho \"$@\" >> " + log + "\nwhile [ $# -gt 0 ]; do if [ \"$1\" = --dest ]; then dest=$2; fi; shift; done\n" + script + "\n"
	if err := os.WriteFile(filepath.Join(dir, "pip"), []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	return log
}

func TestInstall(t *testing.T) {
	wheel, pin := fakeWheel(t, "the library")
	log := fakePip(t, "cp "+wheel+" $dest")
	s := &Store{Dir: filepath.Join(t.TempDir(), "new", "plugins"), Pins: []Pin{pin}}
	if _, err := s.Lookup("cpu"); !errors.As(err, new(*NotInstalledError)) || !strings.Contains(err.Error(), "run `precast plugin install cpu`") {
		t.Errorf("before: found %v, wanted a NotInstalledError that names the command", err)
	}
	var out strings.Builder
	have, err := s.Install(t.Context(), "cpu", InstallOptions{Out: &out})
	if err != nil {
		t.Fatal(err)
	}
	if have.Name != "cpu:fake-plugin" || have.Version != "1.0" || have.SHA256 != sum([]byte("the library")) {
		t.Errorf("found %+v", have)
	}
	if text, err := os.ReadFile(have.Path); err != nil || string(text) != "the library" {
		t.Errorf("library: found %q, %v", text, err)
	}
	for _, want := range []string{"fetching fake-plugin 1.0", "checked sha256", "licence: MIT", "notice: made for a test"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output: no %q in\n%s", want, out.String())
		}
	}
	names := files(t, s.Dir)
	want := "fake-plugin-1.0-" + strings.ReplaceAll(Platform(), "/", "_")
	if got := strings.Join(names, " "); got != strings.ReplaceAll(".lock W/LICENSE W/METADATA W/fake.so W/pjrt_c_api.h hashes/"+filepath.Base(s.sidecar(have.Path)), "W", want) {
		t.Errorf("files: found %s", got)
	}
	arguments, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"download", "--no-deps", "--platform any_platform", "--python-version 3.11 --implementation cp --abi cp311", "fake-plugin==1.0\n"} {
		if !strings.Contains(string(arguments), want) {
			t.Errorf("pip's arguments: no %q in %s", want, arguments)
		}
	}

	// A second installation needs neither network nor pip.
	t.Setenv("PATH", "")
	out.Reset()
	if _, err := s.Install(t.Context(), "cpu:fake-plugin", InstallOptions{Out: &out}); err != nil || !strings.Contains(out.String(), "is installed") {
		t.Errorf("again: found %v, %q", err, out.String())
	}
	// From a wheel that is there, it doesn't either.
	if _, err := s.Install(t.Context(), "cpu", InstallOptions{Force: true, Wheel: wheel}); err != nil {
		t.Errorf("from a wheel: %v", err)
	}
	list := s.List()
	if len(list) != 1 || !list[0].Default || list[0].Installed == nil || list[0].Err != nil {
		t.Errorf("list: found %+v", list)
	}
	t.Setenv(DirVariable, s.Dir)
	if _, err := Default(); err == nil || !strings.Contains(err.Error(), "lammps") && !errors.As(err, new(*NotInstalledError)) {
		t.Errorf("Default with the real pins: found %v", err)
	}
	t.Setenv(PluginVariable, have.Path)
	if got, err := Default(); err != nil || got.Path != have.Path || got.SHA256 != have.SHA256 || got.Package != "" {
		t.Errorf("Default by path: found %+v, %v", got, err)
	}
}

// files lists the files under a folder.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			names = append(names, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestInstallErrors(t *testing.T) {
	wheel, pin := fakeWheel(t, "the library")
	other, _ := fakeWheel(t, "another library")
	noWheel := pin
	noWheel.Package, noWheel.Wheels = "elsewhere", map[string]Wheel{"plan9/mips": {}}
	wrongLibrary := pin
	wrongLibrary.Package = "wrong-library"
	w := pin.Wheels[Platform()]
	w.LibrarySHA256 = strings.Repeat("0", 64)
	wrongLibrary.Wheels = map[string]Wheel{Platform(): w}
	missing := pin
	missing.Package = "no-library"
	w = pin.Wheels[Platform()]
	w.Library = "fake_plugin/other.so"
	missing.Wheels = map[string]Wheel{Platform(): w}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		name, plugin, script string
		ctx                  context.Context
		noPip                bool
		want                 []string
	}{
		{name: "unknown", plugin: "gpu", want: []string{`plugin "gpu" is not known`, "cpu:fake-plugin"}},
		{name: "no wheel for the platform", plugin: "cpu:elsewhere", want: []string{"no wheel for " + Platform(), "only for plan9/mips"}},
		{name: "no pip", plugin: "cpu", noPip: true, want: []string{"neither pip", "install Python's pip", "--wheel"}},
		{name: "offline", plugin: "cpu", script: "echo 'ERROR: No matching distribution found' >&2; exit 1", want: []string{"pip could not fetch fake-plugin 1.0", "check the network", "No matching distribution"}},
		{name: "silent failure", plugin: "cpu", script: "exit 3", want: []string{"exit status 3"}},
		{name: "pip brings nothing", plugin: "cpu", script: "true", want: []string{"pip left 0 wheels"}},
		{name: "full disk", plugin: "cpu", script: "echo 'OSError: [Errno 28] No space left on device' >&2; exit 1", want: []string{"no space left on device", "make room", DirVariable}},
		{name: "another file", plugin: "cpu", script: "cp " + other + " $dest/fake_plugin-1.0-py3-none-any.whl", want: []string{"has SHA-256", "wanted " + pin.Wheels[Platform()].SHA256, "nothing was installed"}},
		{name: "another library", plugin: "cpu:wrong-library", script: "cp " + wheel + " $dest", want: []string{"is damaged", "wanted 000"}},
		{name: "library missing", plugin: "cpu:no-library", script: "cp " + wheel + " $dest", want: []string{"found no fake_plugin/other.so"}},
		{name: "interrupted", plugin: "cpu", ctx: ended, script: "sleep 5", want: []string{"context canceled"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			fakePip(t, test.script)
			if test.noPip {
				t.Setenv("PATH", t.TempDir())
			}
			ctx := test.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			s := &Store{Dir: t.TempDir(), Pins: []Pin{pin, noWheel, wrongLibrary, missing}}
			_, err := s.Install(ctx, test.plugin, InstallOptions{})
			if err == nil {
				t.Fatal("found no error")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("found %v, wanted %q in it", err, want)
				}
			}
			for _, name := range files(t, s.Dir) {
				if name != ".lock" && test.plugin == "cpu" {
					t.Errorf("left behind: %s", name)
				}
			}
		})
	}
	t.Run("folder can't be made", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		s := &Store{Dir: filepath.Join(file, "plugins"), Pins: []Pin{pin}}
		if _, err := s.Install(t.Context(), "cpu", InstallOptions{}); err == nil || !strings.Contains(err.Error(), "set "+DirVariable) {
			t.Errorf("found %v, wanted the variable's name", err)
		}
	})
	t.Run("full disk while unpacking", func(t *testing.T) {
		err := (&Store{Dir: "/plugins"}).installError(&pin, w, fmt.Errorf("write: %w", syscall.ENOSPC))
		if !strings.Contains(err.Error(), "make room there or set "+DirVariable) {
			t.Errorf("found %v", err)
		}
	})
}

// TestDamage checks that a changed library is found, whatever its size and time say at first sight.
func TestDamage(t *testing.T) {
	wheel, pin := fakeWheel(t, "the library")
	s := &Store{Dir: t.TempDir(), Pins: []Pin{pin}}
	have, err := s.Install(t.Context(), "cpu", InstallOptions{Wheel: wheel})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(have.Path, []byte("The library"), 0o700); err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(have.Path, later, later); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Lookup("cpu"); err == nil || !strings.Contains(err.Error(), "is damaged") || errors.As(err, new(*NotInstalledError)) {
		t.Errorf("found %v, wanted an error that it is damaged", err)
	}
	if list := s.List(); list[0].Err == nil || list[0].Installed != nil {
		t.Errorf("list: found %+v", list[0])
	}
	if _, err := s.Install(t.Context(), "cpu", InstallOptions{Wheel: wheel}); err != nil {
		t.Fatalf("repair: %v", err)
	}
	if _, err := s.Lookup("cpu"); err != nil {
		t.Errorf("after the repair: %v", err)
	}
}

// TestHashIsKept checks that the hash isn't computed again, and that it is where the sidecar says nothing good.
func TestHashIsKept(t *testing.T) {
	s := &Store{Dir: t.TempDir()}
	file := filepath.Join(t.TempDir(), "lib.so")
	if err := os.WriteFile(file, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	hash := func() string {
		t.Helper()
		sum, err := s.fileHash(file)
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	if got := hash(); got != sum([]byte("one")) {
		t.Fatalf("found %s", got)
	}
	resolved, err := filepath.EvalSymlinks(file)
	if err != nil {
		t.Fatal(err)
	}
	sidecar := s.sidecar(resolved)
	text, err := os.ReadFile(sidecar)
	if err != nil {
		t.Fatal(err)
	}
	// A marked hash in the sidecar shows that it is used.
	marked := strings.Repeat("ab", 32)
	if err := os.WriteFile(sidecar, bytes.Replace(text, []byte(sum([]byte("one"))), []byte(marked), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := hash(); got != marked {
		t.Errorf("the kept hash was not used: found %s", got)
	}
	for _, bad := range []string{"", "{", `{"sha256":"x"}`} {
		if err := os.WriteFile(sidecar, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := hash(); got != sum([]byte("one")) {
			t.Errorf("sidecar %q: found %s", bad, got)
		}
	}
	// A file of the same size and time under the name, but another one.
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file+".new", []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(file, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	if got := hash(); got != sum([]byte("two")) {
		t.Errorf("another file of equal size and time: found %s", got)
	}
	if _, err := s.fileHash(t.TempDir()); err == nil {
		t.Error("a folder: found no error")
	}
}

// TestConcurrentInstall has several installations at once.
func TestConcurrentInstall(t *testing.T) {
	wheel, pin := fakeWheel(t, "the library")
	log := fakePip(t, "cp "+wheel+" $dest")
	s := &Store{Dir: t.TempDir(), Pins: []Pin{pin}}
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			if _, err := s.Install(t.Context(), "cpu", InstallOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n"); n != 1 {
		t.Errorf("pip ran %d times, wanted once", n)
	}
}

func TestFind(t *testing.T) {
	here, there := map[string]Wheel{Platform(): {}}, map[string]Wheel{"plan9/mips": {}}
	pins := []Pin{{Target: "cpu", Package: "a", Wheels: there}, {Target: "cpu", Package: "b", Wheels: here}, {Target: "cpu", Package: "c", Wheels: here}}
	for name, want := range map[string]string{"cpu": "b", "cpu:a": "a", "cpu:c": "c"} {
		if p, err := Find(pins, name); err != nil || p.Package != want {
			t.Errorf("%s: found %+v, %v, wanted %s", name, p, err, want)
		}
	}
	if p, err := Find(pins[:1], "cpu"); err != nil || p.Package != "a" {
		t.Errorf("a target without a wheel for this platform: found %+v, %v", p, err)
	}
	for _, name := range []string{"", "tpu", "cpu:x", "a"} {
		if _, err := Find(pins, name); err == nil {
			t.Errorf("%q: found no error", name)
		}
	}
}

// TestPins checks the table's form.
func TestPins(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range Pins {
		if seen[p.Name()] || p.Version == "" || p.Licence == "" || len(p.Wheels) == 0 {
			t.Errorf("%s: twice, or a field is empty", p.Name())
		}
		seen[p.Name()] = true
		for platform, w := range p.Wheels {
			for _, h := range []string{w.SHA256, w.LibrarySHA256} {
				if b, err := hex.DecodeString(h); err != nil || len(b) != sha256.Size {
					t.Errorf("%s on %s: %q is no SHA-256", p.Name(), platform, h)
				}
			}
			if w.Size == 0 || w.LibrarySize < w.Size || w.Platform == "" || filepath.Ext(w.Library) != ".so" {
				t.Errorf("%s on %s: found %+v", p.Name(), platform, w)
			}
		}
	}
}

func TestDefaultDir(t *testing.T) {
	for _, test := range []struct{ dir, data, home, want string }{
		{"/p", "/d", "/h", "/p"},
		{"", "/d", "/h", "/d/precast/plugins"},
		{"", "relative", "/h", "/h/.local/share/precast/plugins"},
		{"", "", "/h", "/h/.local/share/precast/plugins"},
	} {
		t.Setenv(DirVariable, test.dir)
		t.Setenv("XDG_DATA_HOME", test.data)
		t.Setenv("HOME", test.home)
		if got, err := DefaultDir(); err != nil || got != test.want {
			t.Errorf("%+v: found %s, %v", test, got, err)
		}
	}
}
