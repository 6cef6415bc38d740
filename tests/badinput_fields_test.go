package tests

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"precast"
)

// absurd are JSON texts that a config field may hold instead of what it should. NaN is not JSON, but Python writes it.
var absurd = []string{
	"-1", "0", "1", "0.5", "1.5", "1000000000", "1e300", "-9223372036854775808", `"x"`, `""`, "null", "true", "[]", "{}", "[-1]", "[0]", "[1000000000, 1]", `["x", null]`,
	"NaN", "Infinity",
}

// fieldsVariable makes the test binary sweep its share of the fields and report each case, in a process whose memory is bounded and whose crash is seen.
const fieldsVariable = "PRECAST_TEST_FIELDS"

// fieldCase is one field of one config file and the value that it gets.
type fieldCase struct {
	Model, File string
	// Path leads to the field: the keys of objects, and indexes of lists as text.
	Path  []string
	Value string
}

func (c fieldCase) String() string {
	return fmt.Sprintf("%s: %s: %s = %s", c.Model, c.File, strings.Join(c.Path, "."), c.Value)
}

// fieldOutcome is what came of a case.
type fieldOutcome struct {
	// Error is empty where there is a result.
	Error string
	// Internal tells that the error calls itself a fault of ours, Stepped that a step was done before it, Numbers that it found values that are not finite.
	Internal, Stepped, Numbers bool
	MilliSeconds               int64
	// PeakKB is the most resident memory while the case ran.
	PeakKB int64
}

// Limits of one case.
const (
	fieldTime   = 20 * time.Second
	fieldMemory = 600_000 // kB
)

// TestBadFields replaces each field of each config of every pipeline by absurd values, one at a time: that is an error that names file and field, or a
// picture. Never a crash, a hang, or a lot of memory. By default a field gets one of the values, once where components of several pipelines have its class;
// PRECAST_TEST_LONG=1 tries all values in each pipeline.
func TestBadFields(t *testing.T) {
	if share := os.Getenv(fieldsVariable); share != "" {
		sweepFields(t, share)
		return
	}
	if testing.Short() {
		t.Skip("runs a few hundred checkpoints")
	}
	for i := range fieldShares {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			runFields(t, i)
		})
	}
}

// fieldShares is the number of processes.
const fieldShares = 2

// runFields runs a process over its share and judges what it reports.
func runFields(t *testing.T, share int) {
	self, err := os.Executable()
	must(t, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	cmd := exec.CommandContext(ctx, self, "-test.run=^TestBadFields$", "-test.timeout=0")
	if runtime.GOOS == "linux" {
		cmd = exec.CommandContext(ctx, "sh", "-c", `ulimit -v "$0" && exec "$@"`, strconv.Itoa(runAddress), self, "-test.run=^TestBadFields$", "-test.timeout=0")
	}
	temp := t.TempDir()
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", fieldsVariable, share), "TMPDIR="+temp, "PRECAST_CACHE_DIR="+temp, "GOMEMLIMIT=400MiB")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	var c fieldCase
	watch := time.AfterFunc(time.Minute, func() { cancel(errors.New("it hangs")) })
	defer watch.Stop()
	cases, ran, spent := 0, 0, int64(0)
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		watch.Reset(fieldTime)
		if text, ok := strings.CutPrefix(lines.Text(), "CASE "); ok {
			must(t, json.Unmarshal([]byte(text), &c))
		}
		if text, ok := strings.CutPrefix(lines.Text(), "DONE "); ok {
			var o fieldOutcome
			must(t, json.Unmarshal([]byte(text), &o))
			cases++
			spent += o.MilliSeconds
			if o.MilliSeconds > 2000 {
				t.Logf("%s: took %d ms", c, o.MilliSeconds)
			}
			if o.Error == "" {
				ran++
			}
			c.judge(t, o)
		}
	}
	must(t, lines.Err())
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%s: %v %v\n%.4000s", c, err, context.Cause(ctx), stderr.String())
	}
	t.Logf("%d cases in %d ms, of which %d gave a picture", cases, spent, ran)
	if cases < 400 || ran == 0 || ran == cases {
		t.Errorf("%d cases of which %d gave a picture, wanted hundreds of both kinds", cases, ran)
	}
}

// judge asserts what a case may come to.
func (c fieldCase) judge(t *testing.T, o fieldOutcome) {
	t.Helper()
	if o.PeakKB > fieldMemory {
		t.Errorf("%s: took %d MB, wanted at most %d", c, o.PeakKB/1000, fieldMemory/1000)
	}
	if o.Error == "" {
		return
	}
	for _, word := range []string{"panic", "goroutine ", "BUG", "runtime error", "%!"} {
		if strings.Contains(o.Error, word) {
			t.Errorf("%s: the message holds %q:\n%.2000s", c, word, o.Error)
		}
	}
	component := filepath.Dir(c.File)
	if component == "." {
		// A field of model_index.json is a component, or one of the pipeline's own.
		component = c.Path[0]
		if strings.Contains(o.Error, c.File) {
			component = c.File
		}
	}
	// An entry of a list is named by the list. Where the value is a class it is named, where it is a size the weights that do not fit are, and what is
	// not JSON by its line and column; numbers that are only together no schedule are those of the scheduler.
	words := []string{"do not fit its config", c.File + ":1:", "cannot run 4 steps", "cannot run 2 steps", "do not belong together", "they must be equal"}
	if class := strings.Trim(c.Value, `"`); class != "" {
		words = append(words, fmt.Sprintf("class %q", class), fmt.Sprintf("(%s)", class))
	}
	for _, key := range c.Path {
		if _, err := strconv.Atoi(key); err != nil {
			words = append(words, key)
		}
	}
	named := slices.ContainsFunc(words, func(w string) bool { return strings.Contains(o.Error, w) })
	switch {
	case o.Internal:
		t.Errorf("%s: the message says that it is our fault:\n%.1000s", c, o.Error)
	case o.Numbers:
		// A factor may be anything; what it makes of the numbers is seen at the end.
	case o.Stepped:
		t.Errorf("%s: found after the work only:\n%.1000s", c, o.Error)
	case !strings.Contains(o.Error, component) || !named:
		t.Errorf("%s: the message does not name the component and the field:\n%.1000s", c, o.Error)
	}
}

// sweepFields is the child process.
func sweepFields(t *testing.T, share string) {
	cacheDir := t.TempDir()
	seen := map[string]bool{}
	n := 0
	for i, name := range carried {
		dir := filepath.Join(t.TempDir(), "model")
		must(t, os.CopyFS(dir, os.DirFS(carriedModel(t, name))))
		decoder := hasDecoder(t, dir)
		for _, file := range configFiles(t, dir) {
			was := readFile(t, filepath.Join(dir, file))
			for _, path := range fieldPaths(t, was) {
				values, id := absurd, fieldID(t, was, file, path)
				if long() {
					id += pipelineClass(t, carriedModel(t, name))
				} else {
					// Fields take turns, so that all values come up.
					values = absurd[n%len(absurd):][:1]
				}
				if seen[id] {
					continue
				}
				seen[id] = true
				n++
				if fmt.Sprint(i%fieldShares) != share {
					continue
				}
				for _, v := range values {
					report("CASE ", fieldCase{Model: name, File: file, Path: path, Value: v})
					writeFile(t, filepath.Join(dir, file), setField(t, was, path, v))
					report("DONE ", runField(dir, decoder, cacheDir))
				}
			}
			writeFile(t, filepath.Join(dir, file), was)
		}
	}
}

func report(prefix string, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	fmt.Printf("%s%s\n", prefix, data)
}

// fieldID is equal for the same field of the same class, or of the same file.
func fieldID(t *testing.T, data []byte, file string, path []string) string {
	t.Helper()
	var c struct {
		Class         string   `json:"_class_name"`
		Architectures []string `json:"architectures"`
		Tokenizer     string   `json:"tokenizer_class"`
	}
	must(t, json.Unmarshal(data, &c))
	id := append(c.Architectures, c.Class, c.Tokenizer, filepath.Base(file))
	return strings.Join(append(id, path...), "/")
}

// runField opens the checkpoint and makes the smallest picture.
func runField(dir string, decoder bool, cacheDir string) fieldOutcome {
	var o fieldOutcome
	// Start the peak anew; where the system does not do that, it is that of all cases.
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)
	start := time.Now()
	err := func() error {
		p, err := precast.Open(context.Background(), dir, precast.Config{Backend: "go", CacheDir: cacheDir, Threads: 1})
		if err != nil {
			return err
		}
		defer p.Close()
		r := smallRequest(p.Class())
		r.NumInferenceSteps = 2
		r.Progress = func(int, int) { o.Stepped = true }
		if !decoder {
			_, _, err = p.Denoise(context.Background(), r)
			return err
		}
		out, err := p.Generate(context.Background(), r)
		if err == nil && (len(out.Images) != max(1, out.Frames) || len(out.Images[0].RGB) != 3*32*32) {
			return fmt.Errorf("BUG: %d pictures of %d bytes", len(out.Images), len(out.Images[0].RGB))
		}
		return err
	}()
	o.MilliSeconds = time.Since(start).Milliseconds()
	if err != nil {
		o.Error = err.Error()
		_, o.Internal = errors.AsType[*precast.InternalError](err)
		o.Numbers = strings.Contains(o.Error, "NaN or infinity")
	}
	if status, err := os.ReadFile("/proc/self/status"); err == nil {
		_, text, _ := strings.Cut(string(status), "VmHWM:")
		_, _ = fmt.Sscan(text, &o.PeakKB)
	}
	return o
}

// configFiles are the JSON files of a checkpoint whose fields are settings.
func configFiles(t *testing.T, dir string) []string {
	t.Helper()
	files := []string{"model_index.json"}
	for _, pattern := range []string{"*/config.json", "*/scheduler_config.json", "*/tokenizer_config.json", "*/special_tokens_map.json"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		must(t, err)
		for _, f := range found {
			rel, err := filepath.Rel(dir, f)
			must(t, err)
			files = append(files, rel)
		}
	}
	return files
}

// fieldPaths are the paths to every field of an object and, below it, of objects and of the ends of lists.
func fieldPaths(t *testing.T, data []byte) [][]string {
	t.Helper()
	var root any
	must(t, json.Unmarshal(data, &root))
	var out [][]string
	var walk func(v any, path []string)
	walk = func(v any, path []string) {
		if len(path) > 0 {
			out = append(out, slices.Clone(path))
		}
		switch v := v.(type) {
		case map[string]any:
			keys := make([]string, 0, len(v))
			for k := range v {
				keys = append(keys, k)
			}
			slices.Sort(keys)
			if len(path) > 0 && len(keys) > 40 {
				keys = []string{keys[0], keys[len(keys)-1]} // a table, not settings
			}
			for _, k := range keys {
				walk(v[k], append(path, k))
			}
		case []any:
			if len(v) > 0 {
				walk(v[0], append(path, "0"))
			}
			if len(v) > 1 {
				last := len(v) - 1
				walk(v[last], append(path, strconv.Itoa(last)))
			}
		}
	}
	walk(root, nil)
	return out
}

// setField is data with one field replaced by a value that need not be JSON.
func setField(t *testing.T, data []byte, path []string, value string) []byte {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var root any
	must(t, d.Decode(&root))
	const mark = "field that is replaced"
	at := root
	for i, key := range path {
		last := i == len(path)-1
		switch v := at.(type) {
		case map[string]any:
			if last {
				v[key] = mark
			}
			at = v[key]
		case []any:
			k, err := strconv.Atoi(key)
			must(t, err)
			if last {
				v[k] = mark
			}
			at = v[k]
		}
	}
	out, err := json.Marshal(root)
	must(t, err)
	return bytes.Replace(out, []byte(`"`+mark+`"`), []byte(value), 1)
}
