package cache

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// pattern is n bytes of which no two blocks are equal.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i ^ i>>8 ^ i>>16)
	}
	return b
}

// makeWeights writes an entry in pieces.
func makeWeights(t *testing.T, s *Store, key Key, data []byte, piece int) {
	t.Helper()
	w, err := s.Create(Weights, key, int64(len(data)))
	if err != nil || w == nil {
		t.Fatalf("Create: %v, %v", w, err)
	}
	for part := range slices.Chunk(data, piece) {
		if _, err := w.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
}

func wantWeights(t *testing.T, s *Store, key Key, want []byte) {
	t.Helper()
	got, release, ok := s.Map(Weights, key, int64(len(want)))
	if !ok {
		t.Fatal("found nothing")
	}
	defer release()
	if !bytes.Equal(got, want) {
		t.Errorf("found %d bytes that differ from what was written", len(got))
	}
	if at := uintptr(unsafe.Pointer(unsafe.SliceData(got))); at%payloadAlign != 0 {
		t.Errorf("the payload lies at %#x", at)
	}
}

func wantNoWeights(t *testing.T, s *Store, size int) {
	t.Helper()
	if data, _, ok := s.Map(Weights, testKey, int64(size)); ok || data != nil {
		t.Error("found an entry, wanted none")
	}
}

func TestWeights(t *testing.T) {
	for _, size := range []int{1, PayloadAlign, writeBlock - 1, writeBlock + 1, 2*writeBlock + 12345} {
		dir := t.TempDir()
		s, w := open(t, dir, Options{MaxBytes: 10})
		data := pattern(size)
		wantNoWeights(t, s, size)
		makeWeights(t, s, testKey, data, 1<<20+7)
		wantWeights(t, s, testKey, data)
		wantNoWeights(t, s, size+1) // which is another entry's size: the key says otherwise, so this one goes
		w.want(t, "is bad and is made anew", "payload")
		makeWeights(t, s, testKey, data, size)
		wantWeights(t, s, testKey, data)
		r, err := s.Verify(false)
		if err != nil || r.Checked.Files != 1 || len(r.Bad) != 0 {
			t.Errorf("Verify: %+v, %v", r, err)
		}
		st, err := s.Status()
		if err != nil || st.Weights.Files != 1 || st.Weights.Bytes < int64(size) || st.Entries.Files != 0 || st.MaxWeightBytes != DefaultMaxWeightBytes {
			t.Errorf("Status: %+v, %v", st, err)
		}
		w.wantNone(t)
	}
}

// What was mapped stays readable when the entry goes.
func TestWeightsRemovedWhileMapped(t *testing.T) {
	s, _ := open(t, t.TempDir(), Options{})
	data := pattern(100_000)
	makeWeights(t, s, testKey, data, 5000)
	got, release, ok := s.Map(Weights, testKey, int64(len(data)))
	if !ok {
		t.Fatal("found nothing")
	}
	if _, err := s.Clear(false); err != nil {
		t.Fatal(err)
	}
	wantNoWeights(t, s, len(data))
	if !bytes.Equal(got, data) {
		t.Error("the mapping changed")
	}
	release()
	release()
}

func TestWeightsAbort(t *testing.T) {
	dir := t.TempDir()
	s, w := open(t, dir, Options{})
	one, err := s.Create(Weights, testKey, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if two, err := s.Create(Weights, testKey, 1000); two != nil || err != nil {
		t.Errorf("a second writer: %v, %v; wanted none", two, err)
	}
	if _, err := one.Write(pattern(500)); err != nil {
		t.Fatal(err)
	}
	wantNoWeights(t, s, 1000)
	one.Abort()
	for _, path := range tree(t, dir) {
		if strings.Contains(path, tempMark) || strings.HasSuffix(path, lockMark) {
			t.Errorf("%s stayed", path)
		}
	}
	makeWeights(t, s, testKey, pattern(1000), 1000)
	if again, err := s.Create(Weights, testKey, 1000); again != nil || err != nil {
		t.Errorf("a writer of what is there: %v, %v; wanted none", again, err)
	}
	w.wantNone(t)
}

func TestWeightsDamaged(t *testing.T) {
	data := pattern(20_000)
	other := NewKey("program", "vae")
	for name, damage := range map[string]func(t *testing.T, s *Store, path string){
		"header": func(t *testing.T, _ *Store, path string) { flip(t, path, 40) },
		"filled": func(t *testing.T, _ *Store, path string) { flip(t, path, PayloadAlign-40) },
		"truncated": func(t *testing.T, _ *Store, path string) {
			if err := os.Truncate(path, 15_000); err != nil {
				t.Fatal(err)
			}
		},
		"cut in the header": func(t *testing.T, _ *Store, path string) {
			if err := os.Truncate(path, 100); err != nil {
				t.Fatal(err)
			}
		},
		"zeros": func(t *testing.T, _ *Store, path string) {
			if err := os.WriteFile(path, make([]byte, 24_096), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"another's": func(t *testing.T, s *Store, path string) {
			makeWeights(t, s, other, data, 4000)
			if err := os.Rename(s.path(Weights, other.Digest()), path); err != nil {
				t.Fatal(err)
			}
		},
		"not aligned": func(t *testing.T, _ *Store, path string) {
			if err := os.WriteFile(path, encode(t, Weights, testKey, data), 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, w := open(t, t.TempDir(), Options{})
			makeWeights(t, s, testKey, data, 4000)
			path := s.path(Weights, testKey.Digest())
			damage(t, s, path)
			wantNoWeights(t, s, len(data))
			w.want(t, "is bad and is made anew")
			if _, err := os.Stat(path); err == nil {
				t.Error("it stayed")
			}
			makeWeights(t, s, testKey, data, 4000)
			wantWeights(t, s, testKey, data)
		})
	}
	t.Run("payload", func(t *testing.T) {
		s, w := open(t, t.TempDir(), Options{})
		makeWeights(t, s, testKey, data, 4000)
		flip(t, s.path(Weights, testKey.Digest()), PayloadAlign+10)
		// Reading all of it would take what the entry saves.
		if _, release, ok := s.Map(Weights, testKey, int64(len(data))); !ok {
			t.Error("found nothing")
		} else {
			release()
		}
		w.wantNone(t)
		r, err := s.Verify(true)
		if err != nil || len(r.Bad) != 1 || len(r.Removed) != 1 {
			t.Errorf("Verify: %+v, %v", r, err)
		}
		wantNoWeights(t, s, len(data))
	})
}

func flip(t *testing.T, path string, at int) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[at] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Weights and programs have caps of their own, and a full disk costs the weights only.
func TestWeightsCap(t *testing.T) {
	s, w := open(t, t.TempDir(), Options{MaxBytes: 2000, MaxWeightBytes: 30_000})
	mustPut(t, s, Executable, testKey, "a program")
	if out, err := s.Create(Weights, testKey, 40_000); out != nil || !errors.Is(err, ErrTooLarge) {
		t.Errorf("over the cap: %v, %v", out, err)
	}
	w.want(t, "weights", "the cap is 30000")
	a, b := NewKey("program", "a"), NewKey("program", "b")
	makeWeights(t, s, a, pattern(14_000), 14_000)
	past := time.Now().Add(-time.Minute)
	if err := os.Chtimes(s.path(Weights, a.Digest()), past, past); err != nil {
		t.Fatal(err)
	}
	makeWeights(t, s, b, pattern(14_000), 14_000)
	if _, _, ok := s.Map(Weights, a, 14_000); ok {
		t.Error("what was used longest ago stayed over the cap")
	}
	wantWeights(t, s, b, pattern(14_000))
	wantHit(t, s, Executable, testKey, "a program")
	r, err := s.Cleanup(CleanupOptions{MaxWeightBytes: 1})
	if err != nil || len(r.Removed) != 1 || r.Kept.Files != 1 {
		t.Errorf("Cleanup: %+v, %v", r, err)
	}
	wantHit(t, s, Executable, testKey, "a program")
}

func TestWeightsFullDisk(t *testing.T) {
	for _, room := range []int{0, 10, writeBlock + 10} {
		dir := t.TempDir()
		s, w := open(t, dir, Options{})
		mustPut(t, s, Manifest, testKey, "before")
		real := s.disk.createTemp
		s.disk.createTemp = func(dir, pattern string) (tempFile, error) {
			f, err := os.CreateTemp(dir, pattern)
			return &fullFile{f, room}, err
		}
		out, err := s.Create(Weights, testKey, 2*writeBlock)
		if err != nil {
			t.Fatal(err)
		}
		_, err = out.Write(pattern(2 * writeBlock))
		if err == nil {
			err = out.Commit()
		} else {
			out.Fail(err)
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("room for %d: %v", room, err)
		}
		w.want(t, "weights", "are not cached", "no space left on device")
		for _, path := range tree(t, dir) {
			if strings.Contains(path, tempMark) {
				t.Errorf("%s stayed", path)
			}
		}
		wantNoWeights(t, s, 2*writeBlock)
		// There may be room for what is small.
		s.disk.createTemp = real
		mustPut(t, s, Manifest, testKey, "after")
		w.wantNone(t)
	}
}

func TestWeightsReadOnly(t *testing.T) {
	if os.Getuid() == 0 {
		t.Log("the superuser may write anywhere: the folder's place is taken by a file")
	}
	dir := t.TempDir()
	s, w := open(t, dir, Options{})
	data := pattern(9000)
	makeWeights(t, s, testKey, data, 9000)
	if err := os.RemoveAll(filepath.Join(s.root, locksDir)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.root, locksDir), nil, 0o400); err != nil {
		t.Fatal(err)
	}
	other := NewKey("program", "other")
	if out, err := s.Create(Weights, other, 10); out != nil || !errors.Is(err, ErrUnavailable) {
		t.Errorf("Create: %v, %v", out, err)
	}
	w.want(t, "weights", "are not cached")
	wantWeights(t, s, testKey, data)
}
