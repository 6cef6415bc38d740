package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func init() {
	children["write"] = childWrite
	children["compile"] = childCompile
	children["hold"] = childHold
	children["stall"] = childStall
}

func childStore(dir string) (*Store, *warnings) {
	w := &warnings{}
	return Open(dir, Options{Warn: w.add}), w
}

func (w *warnings) err() error {
	if list := w.take(); len(list) > 0 {
		return fmt.Errorf("warnings: %q", list)
	}
	return nil
}

// childWrite makes, reads and deletes entries that other processes make, read and delete.
func childWrite(args []string) error {
	s, w := childStore(args[0])
	for n := range 24 {
		key := NewKey("program", fmt.Sprint(n%5))
		want := bytes.Repeat([]byte(key.Digest()), 200+n%5)
		unlock, err := s.Lock(context.Background(), key)
		if err != nil {
			return err
		}
		got, ok := s.Get(Executable, key)
		if ok && !bytes.Equal(got, want) {
			return fmt.Errorf("key %d: read %d bytes that nobody wrote", n%5, len(got))
		}
		if !ok {
			if err := s.Put(Executable, key, want); err != nil {
				return err
			}
		}
		unlock()
		// Without the lock, too.
		if n%3 == 0 {
			if err := s.Put(Executable, key, want); err != nil {
				return err
			}
		}
		if n%4 == 0 {
			s.Delete(Executable, key)
		}
	}
	return w.err()
}

// Eight processes write the same entries while they are cleared, cleaned up and listed: no error, no warning, nothing left behind.
func TestProcessesWriteAndClear(t *testing.T) {
	dir := t.TempDir()
	s, w := open(t, dir, Options{})
	running := make(chan error, 8)
	for range cap(running) {
		cmd := child(t, "write", dir)
		go func() { running <- cmd.Run() }()
	}
	rounds := 0
	for left := cap(running); left > 0; rounds++ {
		select {
		case err := <-running:
			if err != nil {
				t.Error(err)
			}
			left--
		default:
			for _, f := range []func() error{
				func() error { _, err := s.Clear(false); return err },
				func() error { _, err := s.Cleanup(CleanupOptions{MaxBytes: 1}); return err },
				func() error { _, err := s.Status(); return err },
				func() error { _, err := s.Verify(false); return err },
			} {
				if err := f(); err != nil {
					t.Fatal(err)
				}
			}
			r, err := s.Verify(false)
			if err != nil || len(r.Bad) > 0 {
				t.Fatalf("bad entries %v, error %v", r.Bad, err)
			}
			time.Sleep(time.Millisecond)
		}
	}
	w.wantNone(t)
	if _, err := s.Clear(false); err != nil {
		t.Fatal(err)
	}
	if files := s.files(); len(files) != 0 {
		t.Errorf("after %d rounds and the last clear there are %v", rounds, files)
	}
}

// childCompile makes the entry when it is missing, and says so.
func childCompile(args []string) error {
	s, w := childStore(args[0])
	for n := range 3 {
		key := NewKey("program", fmt.Sprint(n))
		if _, ok := s.Get(Executable, key); ok {
			continue
		}
		unlock, err := s.Lock(context.Background(), key)
		if err != nil {
			return err
		}
		if _, ok := s.Get(Executable, key); !ok {
			f, err := os.OpenFile(filepath.Join(args[1]), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(f, "%d\n", n); err != nil {
				return err
			}
			_ = f.Close()
			time.Sleep(20 * time.Millisecond)
			if err := s.Put(Executable, key, []byte("x")); err != nil {
				return err
			}
		}
		unlock()
	}
	return w.err()
}

// However many processes want a key, one makes it.
func TestProcessesCompileOnce(t *testing.T) {
	dir, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
	running := make(chan error, 8)
	for range cap(running) {
		cmd := child(t, "compile", dir, log)
		go func() { running <- cmd.Run() }()
	}
	for range cap(running) {
		if err := <-running; err != nil {
			t.Error(err)
		}
	}
	if made, err := os.ReadFile(log); err != nil || string(made) != "0\n1\n2\n" {
		t.Errorf("made %q, error %v; wanted each key once", made, err)
	}
}

// childHold takes the lock and keeps it.
func childHold(args []string) error {
	s, _ := childStore(args[0])
	if _, err := s.Lock(context.Background(), testKey); err != nil {
		return err
	}
	fmt.Println("locked")
	time.Sleep(time.Minute) // until it is killed
	return nil
}

// A lock is free when its holder is, whatever ended it; neither Clear nor Cleanup takes it from a living one.
func TestLockOfKilledProcess(t *testing.T) {
	dir := t.TempDir()
	s, w := open(t, dir, Options{})
	cmd := child(t, "hold", dir)
	startAndWaitFor(t, cmd, "locked")
	path := filepath.Join(s.root, locksDir, testKey.Digest()+lockMark)
	age(t, path, 2*time.Hour)
	for _, f := range []func() (*RemovalReport, error){
		func() (*RemovalReport, error) { return s.Clear(false) },
		func() (*RemovalReport, error) { return s.Cleanup(CleanupOptions{}) },
	} {
		if r, err := f(); err != nil || len(r.Removed)+len(r.Failed) > 0 {
			t.Errorf("removed %v, failed %v, error %v; wanted nothing: a process holds it", r.Removed, r.Failed, err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Lock(ctx, testKey); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("while the child holds it: error %v", err)
	}
	kill(cmd)
	if !exists(path) {
		t.Error("the killed process's lock file is gone: this tests nothing")
	}
	ctx, cancel = context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	unlock, err := s.Lock(ctx, testKey)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	w.wantNone(t)
}

// A wait that began before the holder was killed ends, too.
func TestWaitForKilledProcess(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir, Options{})
	cmd := child(t, "hold", dir)
	startAndWaitFor(t, cmd, "locked")
	time.AfterFunc(50*time.Millisecond, func() { _ = cmd.Process.Kill() })
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	unlock, err := s.Lock(ctx, testKey)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

// childStall writes an entry and never comes to its rename.
func childStall(args []string) error {
	s, _ := childStore(args[0])
	s.disk.rename = func(string, string) error {
		fmt.Println("written")
		time.Sleep(time.Minute) // until it is killed
		return nil
	}
	return s.Put(Executable, testKey, []byte("x"))
}

// What a process that is killed while it writes leaves behind is no entry; it is removed when no process writes it any more.
func TestKilledWriter(t *testing.T) {
	dir := t.TempDir()
	s, w := open(t, dir, Options{})
	cmd := child(t, "stall", dir)
	startAndWaitFor(t, cmd, "written")
	temps := func() []string {
		list, err := filepath.Glob(filepath.Join(s.root, "executable", "*", tempMark+"*"))
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	if len(temps()) != 1 {
		t.Fatalf("temporary files %q, wanted one", temps())
	}
	wantMiss(t, s, Executable, testKey)
	age(t, temps()[0], 2*time.Hour)
	_, _ = s.Clear(false)
	_, _ = s.Cleanup(CleanupOptions{})
	if len(temps()) != 1 {
		t.Fatal("the file of a living writer was removed")
	}
	kill(cmd)
	wantMiss(t, s, Executable, testKey)
	age(t, temps()[0], 30*time.Minute)
	if r, err := s.Cleanup(CleanupOptions{}); err != nil || len(r.Removed) != 0 {
		t.Errorf("Cleanup of a young file: %v, error %v", r, err)
	}
	if st, err := s.Status(); err != nil || st.Temp.Files != 1 || st.Entries.Files != 0 {
		t.Errorf("Status %+v, error %v", st, err)
	}
	age(t, temps()[0], 61*time.Minute)
	r, err := s.Cleanup(CleanupOptions{})
	if err != nil || len(r.Removed) != 1 || !strings.Contains(r.Removed[0].Reason, "left behind") || len(temps()) != 0 {
		t.Errorf("Cleanup of an old file: %+v, error %v, left %q", r, err, temps())
	}
	w.wantNone(t)
}
