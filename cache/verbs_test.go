package cache

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// filled is a store with an entry of each sort, and files that are not the store's.
type filled struct {
	*Store
	dir                                  string
	unet, vae, manifest, bad, stale      string // paths of entries
	temp, lock                           string
	foreign                              []string
	unetKey, vaeKey, badKey, manifestKey Key
}

func fill(t *testing.T) filled {
	t.Helper()
	dir := t.TempDir()
	s, _ := open(t, dir, Options{MaxBytes: 1 << 20})
	f := filled{Store: s, dir: dir}
	put := func(kind Kind, key Key, size int, old time.Duration) string {
		mustPut(t, s, kind, key, strings.Repeat("x", size))
		path := s.path(kind, key.Digest())
		age(t, path, old)
		return path
	}
	f.unetKey, f.vaeKey = NewKey("program", "unet", "plugin", "cpu"), NewKey("program", "vae", "plugin", "tpu")
	f.manifestKey, f.badKey = NewKey("program", "unet", "spec", "1", "plugin", "cpu"), NewKey("program", "bad", "plugin", "cpu")
	f.unet = put(Executable, f.unetKey, 1000, 2*time.Hour)
	f.vae = put(Executable, f.vaeKey, 2000, 48*time.Hour)
	f.manifest = put(Manifest, f.manifestKey, 10, 3*time.Hour)
	f.bad = put(Executable, f.badKey, 500, 4*time.Hour)
	f.stale = put(Executable, NewKey("program", "stale"), 500, 5*time.Hour)
	change := func(path string, at int) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		data[(at+len(data))%len(data)] ^= 1
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	change(f.bad, -1)
	age(t, f.bad, 4*time.Hour)
	change(f.stale, len(entryMagic))
	age(t, f.stale, 5*time.Hour)
	write := func(path string) string {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("12345"), 0o600); err != nil {
			t.Fatal(err)
		}
		age(t, path, 3*time.Hour)
		return path
	}
	part := "v1/executable/" + f.unetKey.Digest()[:2]
	f.temp = write(part + "/" + tempMark + "123")
	f.lock = write("v1/locks/" + f.unetKey.Digest() + lockMark)
	for _, name := range []string{
		"mine.txt", "v1/mine.txt", "v1/executable/mine.txt", part + "/mine.txt", part + "/" + strings.Repeat("g", 64), part + "/" + f.unetKey.Digest() + ".bak",
		"v1/locks/mine.lock", "v1/locks/mine.txt", "v1/Mine/ab/" + strings.Repeat("ab", 32), "v1/executable/abc/" + strings.Repeat("ab", 32),
		"v1/executable/00/" + strings.Repeat("ab", 32), "executable/ab/" + strings.Repeat("ab", 32),
	} {
		f.foreign = append(f.foreign, write(name))
	}
	if err := os.Symlink(f.dir, filepath.Join(s.root, "link")); err == nil {
		f.foreign = append(f.foreign, filepath.Join(s.root, "link"))
	}
	if err := os.Symlink(f.foreign[0], s.path(Executable, f.unetKey.Digest()[:2]+strings.Repeat("0", 62))); err == nil {
		f.foreign = append(f.foreign, s.path(Executable, f.unetKey.Digest()[:2]+strings.Repeat("0", 62)))
	}
	return f
}

func size(t *testing.T, paths ...string) int64 {
	t.Helper()
	var n int64
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		n += info.Size()
	}
	return n
}

func TestStatus(t *testing.T) {
	f := fill(t)
	st, err := f.Status()
	if err != nil {
		t.Fatal(err)
	}
	// Headers only: the flipped payload does not show.
	all := []string{f.unet, f.vae, f.manifest, f.bad, f.stale}
	if want := (Group{Files: 5, Bytes: size(t, all...)}); st.Entries != want {
		t.Errorf("Entries %+v, wanted %+v", st.Entries, want)
	}
	kinds := []Group{{"executable", 3, size(t, f.unet, f.vae, f.bad)}, {"manifest", 1, size(t, f.manifest)}}
	if !slices.Equal(st.Kinds, kinds) {
		t.Errorf("Kinds %+v, wanted %+v", st.Kinds, kinds)
	}
	plugins := []Group{{"cpu", 3, size(t, f.unet, f.manifest, f.bad)}, {"tpu", 1, size(t, f.vae)}}
	if !slices.Equal(st.Plugins, plugins) {
		t.Errorf("Plugins %+v, wanted %+v", st.Plugins, plugins)
	}
	if want := (Group{Files: 1, Bytes: size(t, f.stale)}); st.Stale != want {
		t.Errorf("Stale %+v, wanted %+v", st.Stale, want)
	}
	if want := (Group{Files: 1, Bytes: 5}); st.Temp != want {
		t.Errorf("Temp %+v, wanted %+v", st.Temp, want)
	}
	if st.Bad.Files != 0 {
		t.Errorf("Bad %+v", st.Bad)
	}
	if st.Dir != f.dir || st.MaxBytes != 1<<20 || st.Warning != "" {
		t.Errorf("Dir %q, MaxBytes %d, Warning %q", st.Dir, st.MaxBytes, st.Warning)
	}
	if old, young := time.Since(st.Oldest).Round(time.Minute), time.Since(st.Newest).Round(time.Minute); old != 48*time.Hour || young != 2*time.Hour {
		t.Errorf("Oldest %v ago, Newest %v ago", old, young)
	}
	if err := os.Truncate(f.vae, 100); err != nil {
		t.Fatal(err)
	}
	if st, err := f.Status(); err != nil || st.Bad != (Group{Files: 1, Bytes: 100}) || len(st.Plugins) != 1 {
		t.Errorf("with a cut entry: %+v, error %v", st, err)
	}
}

func TestListAndLookup(t *testing.T) {
	f := fill(t)
	list, err := f.List()
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, e := range list {
		paths = append(paths, e.Path)
		if e.Digest != filepath.Base(e.Path) || e.Bytes != size(t, e.Path) {
			t.Errorf("entry %+v", e)
		}
	}
	if want := []string{f.unet, f.manifest, f.bad, f.stale, f.vae}; !slices.Equal(paths, want) {
		t.Errorf("List: %q, wanted %q", paths, want)
	}
	e := list[0]
	if e.Kind != Executable || !slices.Equal(e.Key.Fields, f.unetKey.Fields) || e.Payload != 1000 || e.State != Good || e.Problem != "" || time.Since(e.Created) > time.Minute {
		t.Errorf("entry %+v", e)
	}
	if e := list[3]; e.State != Stale || !strings.Contains(e.Problem, "version 0, this one reads 1") || e.Key.Fields != nil {
		t.Errorf("stale entry %+v", e)
	}
	for what, want := range map[string][]string{
		"unet":                             {f.unet, f.manifest},
		f.vaeKey.Digest():                  {f.vae},
		f.vaeKey.Digest()[:12]:             {f.vae},
		strings.ToUpper(f.vaeKey.Digest()): {f.vae},
		"nothing":                          nil,
		f.vaeKey.Digest() + "0":            nil,
		filepath.Base(f.stale)[:10]:        {f.stale},
		f.manifestKey.Digest()[:20]:        {f.manifest},
		"un":                               nil,
	} {
		list, err := f.Lookup(what)
		var got []string
		for _, e := range list {
			got = append(got, e.Path)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("Lookup(%q): %q, error %v; wanted %q", what, got, err, want)
		}
	}
	if _, err := f.Lookup(""); err == nil {
		t.Error("Lookup of nothing: no error")
	}
}

func TestVerify(t *testing.T) {
	f := fill(t)
	// A good entry under another key's name.
	moved := f.path(Executable, strings.Repeat("ab", 32))
	if err := os.MkdirAll(filepath.Dir(moved), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(f.unet, moved); err != nil {
		t.Skip(err)
	}
	before := tree(t, f.dir)
	r, err := f.Verify(false)
	if err != nil {
		t.Fatal(err)
	}
	if r.Checked.Files != 6 || len(r.Stale) != 1 || r.Stale[0].Path != f.stale || len(r.Removed) != 0 {
		t.Errorf("report %+v", r)
	}
	if len(r.Bad) != 2 || r.Bad[0].Path != min(f.bad, moved) || r.Bad[1].Path != max(f.bad, moved) {
		t.Fatalf("Bad %+v", r.Bad)
	}
	for _, e := range r.Bad {
		want := "the payload's SHA-256 is "
		if e.Path == moved {
			want = "its key has the digest " + f.unetKey.Digest()
		}
		if e.State != Bad || !strings.Contains(e.Problem, want) || e.Key.Fields == nil {
			t.Errorf("bad entry %+v, wanted the problem %q", e, want)
		}
	}
	if after := tree(t, f.dir); !slices.Equal(before, after) {
		t.Error("Verify without being asked to removed something")
	}
	if r, err = f.Verify(true); err != nil || len(r.Removed) != 2 || exists(f.bad) || exists(moved) {
		t.Errorf("report %+v, error %v", r, err)
	}
	if len(tree(t, f.dir)) != len(before)-2 {
		t.Error("Verify removed more than the bad entries")
	}
	if r, err = f.Verify(true); err != nil || len(r.Bad) != 0 || r.Checked.Files != 4 {
		t.Errorf("report %+v, error %v", r, err)
	}
}

// removed lists the paths of a report, sorted.
func removed(r *RemovalReport) []string {
	var out []string
	for _, x := range r.Removed {
		out = append(out, x.Path)
	}
	slices.Sort(out)
	return out
}

func sorted(paths ...string) []string {
	slices.Sort(paths)
	return paths
}

func TestCleanup(t *testing.T) {
	for name, test := range map[string]struct {
		o    CleanupOptions
		gone func(f filled) []string
	}{
		"default":        {CleanupOptions{}, func(f filled) []string { return nil }},
		"age":            {CleanupOptions{OlderThan: 24 * time.Hour}, func(f filled) []string { return []string{f.vae} }},
		"age of none":    {CleanupOptions{OlderThan: 100 * time.Hour}, func(f filled) []string { return nil }},
		"cap":            {CleanupOptions{MaxBytes: 2000}, func(f filled) []string { return []string{f.vae, f.bad} }},
		"cap of nothing": {CleanupOptions{MaxBytes: 1}, func(f filled) []string { return []string{f.unet, f.vae, f.manifest, f.bad} }},
		"both":           {CleanupOptions{OlderThan: 150 * time.Minute, MaxBytes: 1 << 30}, func(f filled) []string { return []string{f.vae, f.manifest, f.bad} }},
	} {
		t.Run(name, func(t *testing.T) {
			f := fill(t)
			want := sorted(append(test.gone(f), f.stale, f.temp, f.lock)...)
			bytes := size(t, want...)
			before := tree(t, f.dir)
			dry := test.o
			dry.DryRun = true
			r, err := f.Cleanup(dry)
			if err != nil || !r.DryRun || !slices.Equal(removed(r), want) || r.Bytes != bytes {
				t.Errorf("dry run: %d bytes in %q, error %v; wanted %d in %q", r.Bytes, removed(r), err, bytes, want)
			}
			if after := tree(t, f.dir); !slices.Equal(before, after) {
				t.Fatal("the dry run removed something")
			}
			kept := r.Kept
			r, err = f.Cleanup(test.o)
			if err != nil || r.DryRun || !slices.Equal(removed(r), want) || r.Bytes != bytes || r.Kept != kept || r.Kept.Files != 7-len(want) {
				t.Errorf("report %+v, error %v; wanted %q, kept as in the dry run %+v", r, err, want, kept)
			}
			for _, x := range r.Removed {
				if x.Reason == "" || exists(x.Path) {
					t.Errorf("%+v is there: %v", x, exists(x.Path))
				}
			}
			if got := len(tree(t, f.dir)); got != len(before)-len(want) {
				t.Errorf("%d files left, wanted %d", got, len(before)-len(want))
			}
		})
	}
	f := fill(t)
	for _, o := range []CleanupOptions{{MaxBytes: -1}, {OlderThan: -1}} {
		if _, err := f.Cleanup(o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}

func TestClear(t *testing.T) {
	f := fill(t)
	want := sorted(f.unet, f.vae, f.manifest, f.bad, f.stale, f.temp, f.lock)
	bytes := size(t, want...)
	before := tree(t, f.dir)
	r, err := f.Clear(true)
	if err != nil || !slices.Equal(removed(r), want) || r.Bytes != bytes || !r.DryRun {
		t.Errorf("dry run: %+v, error %v", r, err)
	}
	if after := tree(t, f.dir); !slices.Equal(before, after) {
		t.Fatal("the dry run removed something")
	}
	if r, err = f.Clear(false); err != nil || !slices.Equal(removed(r), want) || r.Bytes != bytes || len(r.Failed) != 0 {
		t.Errorf("report %+v, error %v", r, err)
	}
	for _, path := range f.foreign {
		if !exists(path) {
			t.Errorf("%s is not the cache's and is gone", path)
		}
	}
	for _, path := range append(want, filepath.Join(f.root, "manifest"), filepath.Dir(f.vae)) {
		if exists(path) {
			t.Errorf("%s stayed", path)
		}
	}
	mustPut(t, f.Store, Executable, f.unetKey, "again")
	wantHit(t, f.Store, Executable, f.unetKey, "again")
}

// A cache that isn't there is an empty one; one that is no directory is an error of the verbs.
func TestVerbsWithoutDirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache")
	s, w := open(t, path, Options{})
	verbs := map[string]func() (int, error){
		"Status": func() (int, error) {
			st, err := s.Status()
			return count(st, err, func() int { return st.Entries.Files })
		},
		"List":   func() (int, error) { l, err := s.List(); return len(l), err },
		"Lookup": func() (int, error) { l, err := s.Lookup("a"); return len(l), err },
		"Verify": func() (int, error) {
			r, err := s.Verify(true)
			return count(r, err, func() int { return r.Checked.Files })
		},
		"Cleanup": func() (int, error) {
			r, err := s.Cleanup(CleanupOptions{})
			return count(r, err, func() int { return len(r.Removed) })
		},
		"Clear": func() (int, error) {
			r, err := s.Clear(false)
			return count(r, err, func() int { return len(r.Removed) })
		},
	}
	for name, verb := range verbs {
		if n, err := verb(); n != 0 || err != nil {
			t.Errorf("%s of no directory: %d, error %v", name, n, err)
		}
	}
	if exists(path) {
		t.Error("a verb made the directory")
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, verb := range verbs {
		if _, err := verb(); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s of a file: error %v", name, err)
		}
	}
	w.wantNone(t)
}

func count[T any](_ *T, err error, n func() int) (int, error) {
	if err != nil {
		return 0, err
	}
	return n(), nil
}

func TestVanished(t *testing.T) {
	_, err := os.Open(filepath.Join(t.TempDir(), "none"))
	if !vanished(err) || vanished(nil) || vanished(errors.New("x")) {
		t.Errorf("vanished(%v) %v", err, vanished(err))
	}
}
