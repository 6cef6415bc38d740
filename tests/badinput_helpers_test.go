package tests

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"image/png"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"precast"

	"precast/graph/checkpoint"
)

// commandLine is the program under test and where its children put things. It runs as a process of its own, so that a crash, a hang and
// memory are seen as such.
type commandLine struct {
	binary string
	// warm is a cache that rows without a cache of their own share.
	warm string
	// models holds a copy of each checkpoint that was asked for.
	models string
	copied sync.Mutex
}

// newCommandLine builds the program.
func newCommandLine(t *testing.T) *commandLine {
	t.Helper()
	c := &commandLine{binary: filepath.Join(t.TempDir(), "precast"), warm: t.TempDir(), models: t.TempDir()}
	cmd := exec.Command("go", "build", "-o", c.binary, "precast/cmd/precast")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return c
}

// Limits of one run: a tiny checkpoint takes a second and 60 MB at most.
const (
	runTime    = 10 * time.Second
	runMemory  = 600 << 20 // resident
	runAddress = 4 << 20   // KiB of address space, so that a wild allocation ends the child and not the machine
)

// invocation is one run of the program.
type invocation struct {
	args []string
	env  []string
	// dir is the working folder.
	dir string
	// fileBlocks, when set, is the largest file that the run may write, in blocks of 512 bytes: a full disk that is at hand everywhere.
	fileBlocks int
	// interrupt is called with the process once it runs.
	interrupt func(p *os.Process, stderr *lockedBuffer)
}

// outcome is how it ended.
type outcome struct {
	code           int
	stdout, stderr string
	memory         int64
	took           time.Duration
}

// lockedBuffer is a buffer that is read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// run runs the program and fails the test where it crashes, hangs, takes too much memory, leaves temporary files or calls the input's
// fault its own.
func (c *commandLine) run(t *testing.T, in invocation) outcome {
	t.Helper()
	temp := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), runTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.binary, in.args...)
	if runtime.GOOS == "linux" {
		limits := `ulimit -v "$0" && exec "$@"`
		if in.fileBlocks > 0 {
			limits = fmt.Sprintf("ulimit -f %d && ", in.fileBlocks) + limits
		}
		cmd = exec.CommandContext(ctx, "sh", append([]string{"-c", limits, strconv.Itoa(runAddress), c.binary}, in.args...)...)
	}
	cmd.Dir = in.dir
	cmd.Env = append(os.Environ(), "TMPDIR="+temp, "HOME="+temp, "XDG_CACHE_HOME="+temp, "XDG_DATA_HOME="+temp, "PRECAST_CACHE_DIR="+c.warm)
	cmd.Env = append(cmd.Env, in.env...)
	var stdout, stderr lockedBuffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	start := time.Now()
	err := cmd.Start()
	if err == nil {
		if in.interrupt != nil {
			in.interrupt(cmd.Process, &stderr)
		}
		err = cmd.Wait()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v", in.args, err)
	}
	out := outcome{code: cmd.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String(), took: time.Since(start)}
	if u, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok && runtime.GOOS == "linux" {
		out.memory = u.Maxrss << 10
	}
	if ctx.Err() != nil {
		t.Fatalf("%s: still running after %v\n%s", in.args, runTime, out.stderr)
	}
	if out.code < 0 || out.code > 3 || out.code == 2 {
		t.Errorf("%s: exit code %d, wanted 0, 1 or 3", in.args, out.code)
	}
	for _, word := range []string{"panic", "goroutine ", "BUG", "fatal error", "runtime error", "%!"} {
		if strings.Contains(out.stderr, word) {
			t.Errorf("%s: the message holds %q:\n%.3000s", in.args, word, out.stderr)
		}
	}
	if out.memory > runMemory {
		t.Errorf("%s: took %d MB of memory, wanted at most %d", in.args, out.memory>>20, runMemory>>20)
	}
	// The digest of a plugin's file is kept beside the installed plugins.
	left := slices.DeleteFunc(listing(t, temp), func(f string) bool { return strings.HasPrefix(f, "precast/") })
	if len(left) > 0 {
		t.Errorf("%s: left temporary files: %v", in.args, left)
	}
	return out
}

// listing is every file below dir with its size, nil for none.
func listing(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if d.IsDir() {
			rel += "/"
		} else {
			rel += fmt.Sprintf(" %d", info.Size())
		}
		out = append(out, rel)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// model returns the folder of a tiny checkpoint; it is not to be written to.
func model(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(reference(t), "tiny", name, "model")
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("no reference checkpoint: %v", err)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}

// copyModel returns a copy of a tiny checkpoint that may be damaged. Its files are links to one copy that all tests share, so they are replaced,
// never written to: writeFile, checkpoint.WriteFile.
func (c *commandLine) copyModel(t *testing.T, name string) string {
	t.Helper()
	from := filepath.Join(c.models, name)
	c.copied.Lock()
	if _, err := os.Stat(from); err != nil {
		must(t, os.CopyFS(from, os.DirFS(model(t, name))))
	}
	c.copied.Unlock()
	dir := filepath.Join(t.TempDir(), "model")
	must(t, filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(dir, strings.TrimPrefix(path, from))
		if d.IsDir() {
			return os.Mkdir(to, 0o755)
		}
		return os.Link(path, to)
	}))
	return dir
}

// runArgs are the arguments of a small, quick run.
func runArgs(dir, output string, more ...string) []string {
	args := []string{"run", dir, "--backend", "go", "--height", "16", "--width", "16", "--num-inference-steps", "1", "-o", output}
	if !slices.Contains(more, "--prompt") {
		args = append(args, "--prompt", "a cat")
	}
	if _, err := os.Stat(filepath.Join(dir, "text_encoder_2")); err == nil {
		args = append(args, "--max-sequence-length", "16")
	}
	return append(args, more...)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return data
}

// writeFile replaces a file, and never writes into one that is there.
func writeFile(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	must(t, os.WriteFile(path, data, 0o644))
}

// editFile replaces a file by what edit makes of it.
func editFile(t *testing.T, path string, edit func(data []byte) []byte) {
	t.Helper()
	writeFile(t, path, edit(readFile(t, path)))
}

// editJSON changes the fields of a JSON object in a file. A value of nil is written as null; see removeKeys.
func editJSON(t *testing.T, path string, set map[string]any) {
	t.Helper()
	var fields map[string]json.RawMessage
	must(t, json.Unmarshal(readFile(t, path), &fields))
	for key, v := range set {
		if raw, ok := v.(json.RawMessage); ok {
			fields[key] = raw
			continue
		}
		raw, err := json.Marshal(v)
		must(t, err)
		fields[key] = raw
	}
	writeFile(t, path, joinObject(t, fields))
}

// removeKeys takes fields out of a JSON object in a file.
func removeKeys(t *testing.T, path string, keys ...string) {
	t.Helper()
	var fields map[string]json.RawMessage
	must(t, json.Unmarshal(readFile(t, path), &fields))
	for _, k := range keys {
		delete(fields, k)
	}
	writeFile(t, path, joinObject(t, fields))
}

// joinObject writes an object whose values need not be JSON: encoding/json would refuse NaN.
func joinObject(t *testing.T, fields map[string]json.RawMessage) []byte {
	t.Helper()
	var b bytes.Buffer
	b.WriteString("{")
	keys := make([]string, 0, len(fields))
	for k := range fields {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for i, k := range keys {
		if i > 0 {
			b.WriteString(",\n")
		}
		name, err := json.Marshal(k)
		must(t, err)
		b.Write(name)
		b.WriteString(": ")
		b.Write(fields[k])
	}
	b.WriteString("}")
	return b.Bytes()
}

// editHeader changes the header text of a safetensors file and leaves the data as it is.
func editHeader(t *testing.T, path string, edit func(header string) string) {
	t.Helper()
	editFile(t, path, func(data []byte) []byte {
		n := binary.LittleEndian.Uint64(data)
		header := edit(string(data[8 : 8+n]))
		out := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
		return append(append(out, header...), data[8+n:]...)
	})
}

// editTensors rewrites a safetensors file with what edit makes of its tensors, in their order.
func editTensors(t *testing.T, path string, edit func(items []checkpoint.Item) []checkpoint.Item) {
	t.Helper()
	items := tensors(t, path)
	must(t, checkpoint.WriteFile(path, edit(items), map[string]string{"format": "pt"}))
}

// tensors reads a safetensors file.
func tensors(t *testing.T, path string) []checkpoint.Item {
	t.Helper()
	f, err := checkpoint.OpenFile(path)
	must(t, err)
	defer f.Close()
	var items []checkpoint.Item
	for _, key := range f.Keys() {
		x, _ := f.Tensor(key)
		items = append(items, checkpoint.Item{Key: key, DType: x.DType, Shape: x.Shape, Data: bytes.Clone(x.Bytes())})
	}
	return items
}

// pixels decodes a PNG to its bytes.
func pixels(t *testing.T, path string) []byte {
	t.Helper()
	img, err := png.Decode(bytes.NewReader(readFile(t, path)))
	must(t, err)
	b := img.Bounds()
	var out []byte
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			r, g, bl, _ := img.At(x, y).RGBA()
			out = append(out, byte(r>>8), byte(g>>8), byte(bl>>8))
		}
	}
	return out
}

// largestDifference is how far two pictures are apart in any channel.
func largestDifference(a, b []byte) int {
	if len(a) != len(b) {
		return 256
	}
	worst := 0
	for i := range a {
		d := int(a[i]) - int(b[i])
		worst = max(worst, d, -d)
	}
	return worst
}

// kill runs the program and ends it without a chance to tidy up.
func (c *commandLine) kill(t *testing.T, args []string, dir string, wait func(stderr *lockedBuffer)) {
	t.Helper()
	var stderr lockedBuffer
	cmd := exec.CommandContext(t.Context(), c.binary, args...)
	cmd.Dir, cmd.Stderr = dir, &stderr
	must(t, cmd.Start())
	wait(&stderr)
	must(t, cmd.Process.Kill())
	if err := cmd.Wait(); err == nil {
		t.Errorf("the run was over before it was killed:\n%.500s", stderr.String())
	}
}

// checkAnswer holds what a request is told, the error of Check or else the warnings of a run that is cancelled before any work, against want: a part
// of it, or nothing at all where want is empty.
func checkAnswer(t *testing.T, p *precast.Pipeline, r *precast.Request, want string) {
	t.Helper()
	found := ""
	if err := p.Check(r); err != nil {
		found = err.Error()
	} else if want != "" {
		// Check is silent; what a run warns of comes before any work. Latents are as far as a checkpoint without a decoder's weights goes.
		var warnings []string
		r.Warn = func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, _, err := p.Denoise(ctx, r); err == nil {
			t.Error("a cancelled run made latents")
		}
		found = strings.Join(warnings, "\n")
	}
	if !strings.Contains(found, want) || want == "" && found != "" {
		t.Errorf("found  %q\nwanted %q", found, want)
	}
}
