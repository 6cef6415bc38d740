package precast

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/xml"
	"errors"
	"fmt"
	"image/png"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"precast/graph/pipelines"
)

const benchChildVariable = "PRECAST_TEST_BENCH_CHILD"

// TestBenchChild is no test: it is the process that the other tests have Bench start.
func TestBenchChild(t *testing.T) {
	if os.Getenv(benchChildVariable) == "" {
		t.Skip("not started by another test")
	}
	if err := BenchChild(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "precast: error: "+err.Error())
		os.Exit(1)
	}
	os.Exit(0)
}

// TestBenchChildEnds: a process of a bench ends by itself where the bench was killed.
func TestBenchChildEnds(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the parent's number stays what it was")
	}
	// The shell is the bench: it ends without a signal to the child, which waits for its task on a pipe that stays open.
	in, keep, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer keep.Close()
	out, childs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command("sh", "-c", `exec 3<&0; "$0" -test.run='^TestBenchChild$' <&3 & echo $!; sleep 2`, os.Args[0])
	cmd.Env = append(os.Environ(), benchChildVariable+"=1")
	cmd.Stdin, cmd.Stdout = in, childs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	childs.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := out.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Skip(err)
	}
	// The end of the pipe is the child's: it holds the last copy of the other end.
	said, err := io.ReadAll(out)
	if err != nil {
		if pid, perr := strconv.Atoi(strings.TrimSpace(string(said))); perr == nil {
			if p, perr := os.FindProcess(pid); perr == nil {
				_ = p.Kill()
			}
		}
		t.Errorf("the child runs on 30 s after the end of its parent: %v", err)
	}
}

// benchOptions are small: one round on a tiny model.
func benchOptions(t *testing.T, variants ...string) BenchOptions {
	t.Helper()
	t.Setenv(benchChildVariable, "1")
	return BenchOptions{
		Command: []string{os.Args[0], "-test.run=^TestBenchChild$"}, Variants: variants, Steps: 2, Rounds: 1,
		Shapes: []Sizes{{Height: 64, Width: 64, MaxSequenceLength: 16}},
	}
}

const benchModel = "tests/testdata/tiny/flux1-schnell/model"

func TestBench(t *testing.T) {
	o := benchOptions(t, "eager", "inline", "split")
	o.EagerSteps = 1
	var said []string
	o.Progress = func(i, n int, what string) { said = append(said, fmt.Sprintf("%d/%d %s", i, n, what)) }
	r, err := Bench(context.Background(), benchModel, Config{Backend: "go"}, o)
	if err != nil {
		t.Fatal(err)
	}
	if len(said) != 6 || !strings.HasPrefix(said[5], "6/6 transformer, batch 1, 64x64") || !strings.HasSuffix(said[5], ": split, round 1, warm") {
		t.Errorf("progress was %q", said)
	}
	if r.Wrong() || !r.Measured() || r.Interrupted || len(r.LeftOut) > 0 || len(r.Cases) != 1 {
		t.Fatalf("found %+v", r)
	}
	c := r.Cases[0]
	if c.Program != "transformer" || c.DType != "f32" || c.Sizes.Height != 64 || r.Settings.Baseline != "inline" {
		t.Errorf("found the case %+v", c)
	}
	executions := map[string]int64{}
	for _, row := range c.Rows {
		if row.Error != "" || len(row.Runs) != 2 || row.Plugin.Name != "go" {
			t.Fatalf("%s: found %+v", row.Variant, row)
		}
		cold, warm := row.Runs[0], row.Runs[1]
		steps := 2
		if row.Variant == "eager" {
			steps = 1
		}
		if !cold.Cold || warm.Cold || cold.Compiles == 0 || warm.Compiles != 0 || len(cold.Steps) != 0 || len(warm.Steps) != steps {
			t.Errorf("%s: found %+v, %+v", row.Variant, cold, warm)
		}
		if _, traced := warm.Phases["trace"]; traced || cold.Phases["trace"] <= 0 || warm.Phases["load"] <= 0 {
			t.Errorf("%s: phases cold %v, warm %v", row.Variant, cold.Phases, warm.Phases)
		}
		if row.Difference == nil || *row.Difference > 1e-4 || row.DiffersFrom != "inline" {
			t.Errorf("%s differs by %v from %s", row.Variant, row.Difference, row.DiffersFrom)
		}
		if cold.ExecutableBytes != warm.ExecutableBytes || cold.Executables != warm.Executables {
			t.Errorf("%s: %d bytes in %d executables cold, %d in %d warm", row.Variant, cold.ExecutableBytes, cold.Executables, warm.ExecutableBytes, warm.Executables)
		}
		for _, key := range []string{"trace_s", "passes_s", "lower_s", "compile_s", "serialize_s", "load_s", "first_step_cold_s", "first_step_warm_s", "step_s", "executable_bytes", "executables", "executions"} {
			if s := row.Figures[key]; s.N == 0 || s.Median <= 0 || s.Min > s.P10 || s.P10 > s.Median || s.Median > s.P90 || s.P90 > s.Max {
				t.Errorf("%s: %s is %+v", row.Variant, key, s)
			}
		}
		executions[row.Variant] = warm.Executions
	}
	if executions["inline"] != 1 || executions["split"] <= 1 || executions["eager"] <= executions["split"] {
		t.Errorf("executions a step are %v", executions)
	}
	checkBenchOutputs(t, r)
}

// checkBenchOutputs reads back every form of a report.
func checkBenchOutputs(t *testing.T, r *BenchReport) {
	t.Helper()
	var table bytes.Buffer
	if err := r.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"eager", "split", "step, ", "p10 to p90", "of inline", "1.00 x", "difference of results", "executions a step", "(1 where eager)"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table has no %q:\n%s", want, table.String())
		}
	}
	file := filepath.Join(t.TempDir(), "bench.json")
	var data bytes.Buffer
	if err := errors.Join(r.WriteJSON(&data), os.WriteFile(file, data.Bytes(), 0o644)); err != nil {
		t.Fatal(err)
	}
	again, err := ReadBench(file)
	if err != nil {
		t.Fatal(err)
	}
	ratios := r.Compare(again)
	if len(ratios) < 3*len(comparedMeasures)-6 {
		t.Errorf("found %d ratios", len(ratios))
	}
	for _, x := range ratios {
		if x.Ratio != 1 || !x.Overlap {
			t.Errorf("against itself: %+v", x)
		}
	}
	var compared bytes.Buffer
	if err := r.WriteComparison(&compared, again, "bench.json"); err != nil || !strings.Contains(compared.String(), "1.00 x") || strings.Contains(compared.String(), "note:") {
		t.Errorf("found %v, %s", err, compared.String())
	}
	again.Machine.CPU = "another"
	if err := r.WriteComparison(&compared, again, "bench.json"); err != nil || !strings.Contains(compared.String(), "note: the processor differs") {
		t.Errorf("found %v, %s", err, compared.String())
	}
	again.Cases[0].DType = "bf16"
	if err := r.WriteComparison(io.Discard, again, "bench.json"); err == nil || !strings.Contains(err.Error(), "none of these programs") {
		t.Errorf("found %v", err)
	}
	var svg, picture bytes.Buffer
	if err := r.PlotTo("x.SVG")(&svg); err != nil {
		t.Fatal(err)
	}
	words := ""
	for d := xml.NewDecoder(&svg); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("the SVG is no XML: %v", err)
		}
		if text, ok := token.(xml.CharData); ok {
			words += string(text)
		}
	}
	for _, want := range []string{"eager", "split", "first step, cold", "peak memory", "serialized size"} {
		if !strings.Contains(words, want) {
			t.Errorf("the plot has no %q", want)
		}
	}
	if err := r.PlotTo("x.png")(&picture); err != nil {
		t.Fatal(err)
	}
	if m, err := png.Decode(&picture); err != nil || m.Bounds().Dx() < 1000 || m.Bounds().Dy() < 300 {
		t.Errorf("the picture: %v", err)
	}
}

// TestBenchCrash has a process crash, and one that answers nonsense, beside one that is well.
func TestBenchCrash(t *testing.T) {
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip(err)
	}
	o := benchOptions(t, "inline", "inline+threads=1", "inline+threads=2", "split+disable-pass=cse")
	o.Command = append([]string{"sh", "-c", `task=$(cat); case "$task" in *'"Threads":1,'*) kill -SEGV $$;; *'"Threads":2,'*) echo hello; exit;; *'"cse"'*) echo 'precast: error: no such thing' >&2; exit 1;; esac; printf %s "$task" | "$@"`, "sh"}, o.Command...)
	r, err := Bench(context.Background(), benchModel, Config{Backend: "go"}, o)
	if err != nil {
		t.Fatal(err)
	}
	rows := r.Cases[0].Rows
	for i, want := range []string{"", "its process ended: signal: segmentation fault", "its answer can't be read", "no such thing"} {
		if got := rows[i].Error; !strings.HasPrefix(got, want) || (want == "") != (got == "") {
			t.Errorf("%s: found the error %q, wanted %q", rows[i].Variant, got, want)
		}
	}
	if len(rows[0].Runs) != 2 || len(rows[1].Runs) != 0 {
		t.Errorf("found %d and %d runs", len(rows[0].Runs), len(rows[1].Runs))
	}
	var table bytes.Buffer
	if err := r.WriteTable(&table); err != nil || !strings.Contains(table.String(), "inline+threads=1 failed: its process ended") {
		t.Errorf("%v: %s", err, table.String())
	}
	if err := r.WritePlot(io.Discard, "svg"); err != nil {
		t.Error(err)
	}
}

// TestBenchWrongResults has a LoRA change what a variant computes.
func TestBenchWrongResults(t *testing.T) {
	o := benchOptions(t, "inline", "inline+lora=tests/testdata/lora/flux-diffusers.safetensors:30")
	o.Steps = 1
	r, err := Bench(context.Background(), "tests/testdata/tiny/flux1-dev/model", Config{Backend: "go"}, o)
	if err != nil {
		t.Fatal(err)
	}
	row := r.Cases[0].Rows[1]
	if row.Error != "" || !row.Differs || !r.Wrong() || *row.Difference < 1e-3 {
		t.Fatalf("found %+v", row)
	}
	if !slices.ContainsFunc(r.Warnings, func(w string) bool { return strings.Contains(w, "are not those of inline") }) {
		t.Errorf("warnings are %q", r.Warnings)
	}
}

func TestBenchInterruptedAndBudget(t *testing.T) {
	o := benchOptions(t, "inline", "split")
	ctx, cancel := context.WithCancel(context.Background())
	o.Progress = func(i, _ int, _ string) {
		if i == 3 {
			cancel()
		}
	}
	r, err := Bench(ctx, benchModel, Config{Backend: "go"}, o)
	if !errors.Is(err, context.Canceled) || r == nil || !r.Interrupted || len(r.LeftOut) != 2 || !r.Measured() || len(r.Cases[0].Rows[0].Runs) != 2 {
		t.Fatalf("found %v, %+v", err, r)
	}
	o.Progress, o.Budget = nil, time.Nanosecond
	if r, err = Bench(context.Background(), benchModel, Config{Backend: "go"}, o); err != nil || len(r.LeftOut) != 4 || r.Measured() || r.Interrupted {
		t.Fatalf("found %v, %+v", err, r)
	}
	var table bytes.Buffer
	if err := r.WriteTable(&table); err != nil || !strings.Contains(table.String(), "left out: transformer") {
		t.Errorf("%v: %s", err, table.String())
	}
}

// TestBenchInputs: of every pipeline, each program with weights is given all its inputs, in their shapes, and the same ones again for the same seed.
func TestBenchInputs(t *testing.T) {
	for _, name := range []string{"flux1-dev", "sd15", "sdxl", "tp-sd3", "tp-qwen", "flux2-dev", "tp-flux2", "z-image", "tp-wan", "wan22-t2v"} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			p, err := Open(ctx, filepath.Join("tests/testdata/tiny", name, "model"), Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			get := func(seed uint64) (map[string]map[string]HostTensor, []*pipelines.Program) {
				req := &Request{Prompt: []string{"a fox"}, Height: 64, Width: 64}
				if strings.Contains(name, "wan") {
					req.NumFrames = 9
				}
				if err := p.complete(req); err != nil {
					t.Fatal(err)
				}
				all, err := p.pipe.Programs(req)
				if err != nil {
					t.Fatal(err)
				}
				all = slices.DeleteFunc(all, func(q *pipelines.Program) bool { return q.Component == "" })
				in, err := p.inputsOf(ctx, req, all, seed)
				if err != nil {
					t.Fatal(err)
				}
				return in, all
			}
			in, programs := get(1)
			again, _ := get(1)
			for _, q := range programs {
				for _, want := range q.Inputs {
					got, ok := in[q.ID()][want.Name]
					if !ok || !got.Shape.Equal(want.Shape) || len(got.Data) != int(want.Shape.ByteSize()) {
						t.Errorf("%s: %s is %s, wanted %s", q.ID(), want.Name, got.Shape, want.Shape)
					}
					if !bytes.Equal(got.Data, again[q.ID()][want.Name].Data) {
						t.Errorf("%s: %s is another the second time", q.ID(), want.Name)
					}
				}
			}
		})
	}
}

func TestBenchRefuses(t *testing.T) {
	ctx := context.Background()
	ok := func() BenchOptions {
		return BenchOptions{Command: []string{"sh"}, Shapes: []Sizes{{Height: 64, Width: 64}}}
	}
	for _, c := range []struct {
		name, model, want string
		change            func(*BenchOptions)
	}{
		{"variant", benchModel, `variants: found "fast", wanted eager, inline`, func(o *BenchOptions) { o.Variants = []string{"fast"} }},
		{"option", benchModel, `variants: found "colour" in "split+colour=red"`, func(o *BenchOptions) { o.Variants = []string{"split+colour=red"} }},
		{"no value", benchModel, `variants: found "offload" in "split+offload", wanted KEY=VALUE`, func(o *BenchOptions) { o.Variants = []string{"split+offload"} }},
		{"offload", benchModel, `variants: split+offload=all: offload: found "all"`, func(o *BenchOptions) { o.Variants = []string{"split+offload=all"} }},
		{"blocks without split", benchModel, `variants: inline+offload=block: offload=block brings`, func(o *BenchOptions) { o.Variants = []string{"split", "inline+offload=block"} }},
		{"a plugin of the Go backend", benchModel, `variants: inline+plugin=cpu: plugin: found "cpu", but --backend go`, func(o *BenchOptions) { o.Variants = []string{"inline+plugin=cpu"} }},
		{"threads", benchModel, `variants: threads of "inline+threads=x": found "x"`, func(o *BenchOptions) { o.Variants = []string{"inline+threads=x"} }},
		{"pass", benchModel, `"nonsense"`, func(o *BenchOptions) { o.Variants = []string{"inline+disable-pass=nonsense"} }},
		{"twice", benchModel, `variants: split is given twice`, func(o *BenchOptions) { o.Variants = []string{"split", "split"} }},
		{"artifact", benchModel, `variants: found artifact`, func(o *BenchOptions) { o.Variants = []string{"artifact"} }},
		{"baseline", benchModel, `baseline: found "call", which is none of the variants`, func(o *BenchOptions) { o.Baseline = "call" }},
		{"component", benchModel, `components: "unet" is none of this pipeline's with weights; it has `, func(o *BenchOptions) { o.Components = []string{"unet"} }},
		{"no weights of its own", benchModel, `components: "step" is none of this pipeline's with weights`, func(o *BenchOptions) { o.Components = []string{"step"} }},
		{"steps", benchModel, `steps: found -1, wanted 1 to 100000`, func(o *BenchOptions) { o.Steps = -1 }},
		{"warmup", benchModel, `warmup: found -1`, func(o *BenchOptions) { o.Warmup = -1 }},
		{"rounds", benchModel, `rounds: found -2`, func(o *BenchOptions) { o.Rounds = -2 }},
		{"budget", benchModel, `budget: found -1s`, func(o *BenchOptions) { o.Budget = -time.Second }},
		{"size", benchModel, `height`, func(o *BenchOptions) { o.Shapes = []Sizes{{Height: 63, Width: 64}} }},
		{"dtype", benchModel, `dtype: found "int8"`, func(o *BenchOptions) { o.DTypes = []string{"int8"} }},
		{"command", benchModel, `no command`, func(o *BenchOptions) { o.Command = nil }},
		{"folder", "no/such/folder", `no such file or folder`, func(*BenchOptions) {}},
		{"no weights", "tests/testdata/tiny/flux2-dev/model", `vae`, func(o *BenchOptions) { o.Components = []string{"vae"} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := ok()
			c.change(&o)
			r, err := Bench(ctx, c.model, Config{Backend: "go"}, o)
			var user *UserError
			if r != nil || !errors.As(err, &user) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("found %v, wanted %q", err, c.want)
			}
		})
	}
}

func TestReadBenchRefuses(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"hello", "is not a report of precast bench --json"},
		{"{}", "has the schema version none, wanted 1"},
		{`{"schema": 2}`, "has the schema version 2, wanted 1"},
		{`{"schema": 1, "cases": 3}`, "is not a report of precast bench --json"},
		{`{"schema": 1, "cases": [null]}`, "case 0 of"},
		{`{"schema": 1, "cases": [{"rows": [null]}]}`, "row 0 of case 0 of"},
	} {
		file := filepath.Join(t.TempDir(), "b.json")
		if err := os.WriteFile(file, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadBench(file); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: found %v, wanted %q", c.text, err, c.want)
		}
	}
	if _, err := ReadBench("no/such.json"); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("found %v", err)
	}
}

func TestSpread(t *testing.T) {
	if got, want := spreadOf([]float64{3, 1, 2}), (BenchSpread{Median: 2, Min: 1, Max: 3, P10: 1.2, P90: 2.8, N: 3}); math.Abs(got.P10-want.P10) > 1e-12 || math.Abs(got.P90-want.P90) > 1e-12 ||
		got.Median != want.Median || got.Min != want.Min || got.Max != want.Max || got.N != want.N {
		t.Errorf("found %+v, wanted %+v", got, want)
	}
	if got := spreadOf([]float64{7}); got != (BenchSpread{7, 7, 7, 7, 7, 1}) {
		t.Errorf("of one: %+v", got)
	}
	if got := spreadOf([]float64{1, 2, 3, 10}).Median; got != 2.5 {
		t.Errorf("of an even number: %v", got)
	}
}

func TestResultDifference(t *testing.T) {
	wide := func(v ...float64) map[string][]byte {
		var b []byte
		for _, x := range v {
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
		}
		return map[string][]byte{"sample": b}
	}
	for _, c := range []struct {
		name      string
		got, want map[string][]byte
		d         float64
		finite    bool
	}{
		{"equal", wide(1, -4), wide(1, -4), 0, true},
		{"relative to the largest", wide(1, -3), wide(1, -4), 0.25, true},
		{"zeros", wide(0, 0), wide(0, 0), 0, true},
		{"of zeros", wide(0, 1), wide(0, 0), math.MaxFloat64, true},
		{"missing", nil, wide(1), math.MaxFloat64, true},
		{"another size", wide(1, 2), wide(1), math.MaxFloat64, true},
		{"NaN", wide(1, math.NaN()), wide(1, 2), 0, false},
		{"infinity", wide(math.Inf(1), 2), wide(1, 2), math.Inf(1), false},
		{"baseline NaN", wide(1, 2), wide(1, math.NaN()), math.MaxFloat64, true},
	} {
		d, finite := resultDifference(c.got, c.want)
		if finite != c.finite || finite && d != c.d {
			t.Errorf("%s: found %v, %v, wanted %v, %v", c.name, d, finite, c.d, c.finite)
		}
	}
}

func TestProcessError(t *testing.T) {
	exit := exec.Command("sh", "-c", "exit 2").Run()
	for _, c := range []struct{ stderr, want string }{
		{"precast: warning: x\nprecast: error: one\nprecast: error: two\n", "one; two"},
		{"loading\nSIGABRT: abort\nPC=0x0\n\ngoroutine 1\n", "its process ended: exit status 2: SIGABRT: abort"},
		{"loading\nfatal error: out of memory\nmore", "its process ended: exit status 2: fatal error: out of memory"},
		{"something\nelse\n", "its process ended: exit status 2: else"},
		{"", "its process ended: exit status 2"},
	} {
		if got := processError(exit, c.stderr); got != c.want {
			t.Errorf("%q: found %q, wanted %q", c.stderr, got, c.want)
		}
	}
	if got := processError(errors.New("no such file"), ""); got != "its process can't be started: no such file" {
		t.Errorf("found %q", got)
	}
}
