package cache

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// childVariable names the entry of children that a process of the test binary runs instead of the tests.
const childVariable = "PRECAST_CACHE_TEST_CHILD"

var children = map[string]func(args []string) error{}

func TestMain(m *testing.M) {
	if name := os.Getenv(childVariable); name != "" {
		if err := children[name](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child makes the command of a child process.
func child(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	if children[name] == nil {
		t.Fatalf("no child %q", name)
	}
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), childVariable+"="+name)
	cmd.Stderr = os.Stderr
	return cmd
}

// startAndWaitFor starts a child and returns when it has written line. The child is killed at the end of the test at the latest.
func startAndWaitFor(t *testing.T, cmd *exec.Cmd, line string) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kill(cmd) })
	timer := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	got, _ := bufio.NewReader(out).ReadString('\n')
	if strings.TrimSpace(got) != line {
		t.Fatalf("the child wrote %q, wanted %q", got, line)
	}
}

// kill ends a child as kill -9 does and waits until it is gone.
func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// warnings collects what a store warns of.
type warnings struct {
	mu   sync.Mutex
	list []string
}

func (w *warnings) add(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = append(w.list, fmt.Sprintf(format, args...))
}

// take returns the warnings since the last take.
func (w *warnings) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.list
	w.list = nil
	return out
}

// wantWarning fails unless there was exactly one warning since the last look, with every one of the parts in it.
func (w *warnings) want(t *testing.T, parts ...string) {
	t.Helper()
	list := w.take()
	if len(list) != 1 {
		t.Fatalf("%d warnings, wanted one with %q: %q", len(list), parts, list)
	}
	for _, p := range parts {
		if !strings.Contains(list[0], p) {
			t.Errorf("warning %q, wanted one with %q", list[0], p)
		}
	}
}

func (w *warnings) wantNone(t *testing.T) {
	t.Helper()
	if list := w.take(); len(list) != 0 {
		t.Errorf("warnings, wanted none: %q", list)
	}
}

// open opens a store whose warnings are collected.
func open(t *testing.T, dir string, o Options) (*Store, *warnings) {
	t.Helper()
	w := &warnings{}
	o.Warn = w.add
	return Open(dir, o), w
}

func mustPut(t *testing.T, s *Store, kind Kind, key Key, data string) {
	t.Helper()
	if err := s.Put(kind, key, []byte(data)); err != nil {
		t.Fatal(err)
	}
}

func wantHit(t *testing.T, s *Store, kind Kind, key Key, data string) {
	t.Helper()
	got, ok := s.Get(kind, key)
	if !ok || string(got) != data {
		t.Fatalf("got %.40q, %v; wanted %.40q", got, ok, data)
	}
}

func wantMiss(t *testing.T, s *Store, kind Kind, key Key) {
	t.Helper()
	if got, ok := s.Get(kind, key); ok || got != nil {
		t.Fatalf("got %.40q, %v; wanted a miss", got, ok)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
