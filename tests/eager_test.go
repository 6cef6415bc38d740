package tests

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"

	"precast"
	"precast/graph/checkpoint"
)

// TestEagerGoldens computes the run "a" of pipelines of each kind operation by operation, within the limits of compiled ones. No operation
// of them makes a NaN or an infinity. The plugin compiles hundreds of operations for each, so it takes one pipeline, and all when there is time.
func TestEagerGoldens(t *testing.T) {
	ref, cacheDir := reference(t), t.TempDir()
	for _, name := range []string{"flux1-dev", "sd15", "sdxl", "tp-flux2", "tp-sd3", "tp-qwen", "tp-wan", "z-image"} {
		dir := filepath.Join(ref, "tiny", name)
		g := readGolden(t, dir)
		for _, backend := range []string{"go", "pjrt"} {
			if !long() && name != "flux1-dev" && (backend == "pjrt" || name != "sdxl" && name != "tp-wan") {
				continue
			}
			t.Run(name+"/"+backend, func(t *testing.T) {
				var r goldenRun
				r.decode(t, g.Runs["a"])
				checkRun(t, dir, "a", &r, precast.Config{Backend: backend, Mode: "eager", CheckFinite: backend == "go", Variant: g.Variant, CacheDir: cacheDir, CheckPasses: true})
			})
		}
	}
}

// eagerRequest is a short run of the shapes model.
func eagerRequest() *precast.Request {
	return &precast.Request{Prompt: []string{"a red circle on a blue background"}, Height: 16, Width: 16, NumInferenceSteps: 2, MaxSequenceLength: 16}
}

func picture(t *testing.T, p *precast.Pipeline, r *precast.Request) []byte {
	t.Helper()
	out, err := p.Generate(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	return out.Images[0].RGB
}

// TestEagerCounts: thousands of operations take few executables, each compiled once for all programs that have the operation; a second start
// compiles nothing, and the picture is that of the compiled networks.
func TestEagerCounts(t *testing.T) {
	for _, backend := range []string{"go", "pjrt"} {
		t.Run(backend, func(t *testing.T) {
			needBackend(t, backend)
			cacheDir := t.TempDir()
			open := func(cfg precast.Config) *precast.Pipeline {
				cfg.Backend, cfg.CacheDir = backend, cacheDir
				return openPipeline(t, shapesModel, cfg)
			}
			p := open(precast.Config{Mode: "eager"})
			first := picture(t, p, eagerRequest())
			alone := func(cfg precast.Config) ([]byte, *precast.Stats) {
				p := open(cfg)
				defer p.Close()
				return picture(t, p, eagerRequest()), p.Stats()
			}
			c := maps.Clone(p.Stats().Counts)
			if c["compile"] == 0 || c["compile"] != c["operations"] {
				t.Errorf("%d executables were compiled for %d distinct operations", c["compile"], c["operations"])
			}
			report, err := p.Compile(context.Background(), precast.CompileOptions{Shapes: []precast.Sizes{{Height: 16, Width: 16, MaxSequenceLength: 16}}})
			if err != nil {
				t.Fatal(err)
			}
			steps, executables := 0, 0
			for _, q := range report.Programs {
				steps, executables = steps+q.Steps, executables+q.Executables
			}
			if int64(executables) <= c["operations"] || int64(steps) < 4*c["operations"] {
				t.Errorf("%d operations: %d distinct ones by program, %d of all; wanted programs to share them", steps, executables, c["operations"])
			}
			// The transformer and the step run twice, all else once.
			if c["execute"] <= int64(steps) {
				t.Errorf("%d executions of %d operations", c["execute"], steps)
			}
			if got := p.Stats().Counts["compile"]; got != c["compile"] {
				t.Errorf("%d executables were compiled again", got-c["compile"])
			}
			t.Logf("%d operations, %d distinct, %d executions", steps, c["operations"], c["execute"])

			must(t, p.Close())

			second, stats := alone(precast.Config{Mode: "eager", CacheOnly: true})
			if !slices.Equal(second, first) {
				t.Error("a second start gives another picture")
			}
			w := stats.Counts
			if w["compile"] != 0 || w["trace"] != 0 || w["operations"] != c["operations"] {
				t.Errorf("a second start compiled %d, traced %d and loaded %d executables; wanted 0, 0, %d", w["compile"], w["trace"], w["operations"], c["operations"])
			}
			compiled, _ := alone(precast.Config{})
			if d := largestDifference(compiled, first); d > 1 {
				t.Errorf("the compiled picture differs by %d levels", d)
			}
			mixed, stats := alone(precast.Config{Mode: "compiled,transformer=eager", Regions: "split"})
			if d := largestDifference(mixed, first); d > 1 {
				t.Errorf("with the transformer alone eager the picture differs by %d levels", d)
			}
			m := stats.Components
			if n := m["transformer"].Counts["execute"]; n < 500 {
				t.Errorf("the eager transformer made %d executions", n)
			}
			if n := m["step"].Counts["execute"]; n != 2 {
				t.Errorf("the compiled step made %d executions in 2 steps", n)
			}
		})
	}
}

// withWeights is a copy of a checkpoint in which edit has changed float32 weights of a component, each by its key.
func withWeights(t *testing.T, from, component string, edit map[string]func(data []byte)) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, component, "*.safetensors"))
	must(t, err)
	edited := 0
	for _, file := range files {
		editTensors(t, file, func(items []checkpoint.Item) []checkpoint.Item {
			for _, x := range items {
				if change := edit[x.Key]; change != nil && x.DType == dtypes.Float32 {
					change(x.Data)
					edited++
				}
			}
			return items
		})
	}
	if edited != len(edit) {
		t.Fatalf("%d of %d weights were found", edited, len(edit))
	}
	return dir
}

// filled sets every element of a float32 weight.
func filled(x float32) func([]byte) {
	return func(data []byte) {
		for i := 0; i < len(data); i += 4 {
			binary.LittleEndian.PutUint32(data[i:], math.Float32bits(x))
		}
	}
}

// TestCheckFinite: a NaN is found at the operation that reads it, an overflow at the operation that makes it, with the module's path.
func TestCheckFinite(t *testing.T) {
	model := filepath.Join(reference(t), "tiny", "flux1-dev", "model")
	const module = "transformer_blocks.0.ff.net.2"
	nan := withWeights(t, model, "transformer", map[string]func([]byte){
		module + ".weight": func(data []byte) { filled(float32(math.NaN()))(data[4*7 : 4*8]) },
	})
	// In half precision the product overflows, in single it does not.
	large := withWeights(t, model, "transformer", map[string]func([]byte){
		module + ".weight": filled(60000), "transformer_blocks.0.ff.net.0.proj.bias": filled(30),
	})
	request := func() *precast.Request {
		return &precast.Request{Prompt: []string{"a red circle"}, Height: 64, Width: 96, NumInferenceSteps: 2, MaxSequenceLength: 24}
	}
	for _, backend := range []string{"go", "pjrt"} {
		t.Run(backend, func(t *testing.T) {
			needBackend(t, backend)
			cacheDir := t.TempDir()
			run := func(dir, dtype string) (*precast.OperationNotFiniteError, error) {
				p := openPipeline(t, dir, precast.Config{Backend: backend, DType: dtype, Mode: "compiled,transformer=eager", CheckFinite: true, CacheDir: cacheDir})
				defer p.Close()
				_, _, err := p.Denoise(context.Background(), request())
				var found *precast.OperationNotFiniteError
				errors.As(err, &found)
				return found, err
			}
			found, err := run(nan, "float16")
			switch {
			case found == nil:
				t.Fatalf("a NaN among the weights: %v", err)
			case found.Operand != "weight "+module+".weight" || found.What != "NaN" || found.Element != 7 || found.Scope != module || !strings.HasPrefix(found.Program, "transformer["):
				t.Errorf("a NaN among the weights: found %+v", found)
			case precast.ExitCode(err) != 1 || !strings.Contains(err.Error(), module) || !strings.Contains(err.Error(), "step 0, call 0"):
				t.Errorf("exit code %d, message %q", precast.ExitCode(err), err)
			}
			found, err = run(large, "float16")
			switch {
			case found == nil:
				t.Fatalf("an overflow: %v", err)
			case found.Operand != "" || found.What != "infinity" || found.Scope != module || found.Op != "dot_general" || found.Largest != 60000:
				t.Errorf("an overflow: found %+v", found)
			case precast.ExitCode(err) != 1 || !strings.Contains(err.Error(), "dot_general in "+module):
				t.Errorf("exit code %d, message %q", precast.ExitCode(err), err)
			}
			if backend == "pjrt" && !long() {
				return // the operations in single precision would be compiled for this alone
			}
			if found, err := run(large, ""); err != nil {
				t.Errorf("the same weights in single precision: %+v, %v", found, err)
			}
		})
	}
}

// TestDumpValues: the values of a block that --dump-values writes are those that diffusers recorded of it.
func TestDumpValues(t *testing.T) {
	dir := filepath.Join(reference(t), "tiny", "flux1-dev")
	file, err := checkpoint.OpenFile(filepath.Join(dir, "golden.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	g := readGolden(t, dir)
	var r goldenRun
	r.decode(t, g.Runs["a"])
	latents, err := precast.ReadTensor(file.Path() + ":a/latents_init")
	if err != nil {
		t.Fatal(err)
	}
	for _, backend := range []string{"go", "pjrt"} {
		t.Run(backend, func(t *testing.T) {
			needBackend(t, backend)
			to := filepath.Join(t.TempDir(), "values")
			p := openPipeline(t, filepath.Join(dir, "model"), precast.Config{
				Backend: backend, Mode: "compiled,transformer=eager", DumpValues: "transformer:transformer_blocks.0", DumpValuesTo: to,
				Scheduler: schedulerOverride(&r), CacheDir: t.TempDir(),
			})
			_, _, err := p.Denoise(context.Background(), &precast.Request{
				Prompt: texts(t, r.Call.Prompt), Height: r.Call.Height, Width: r.Call.Width, NumInferenceSteps: r.Call.Steps,
				GuidanceScale: r.Call.GuidanceScale, MaxSequenceLength: r.Call.MaxSequenceLength, Latents: latents,
			})
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			for i := range r.Call.Steps {
				want = append(want, fmt.Sprintf("transformer.step%03d.0.safetensors", i))
			}
			entries, err := os.ReadDir(to)
			must(t, err)
			var got []string
			for _, e := range entries {
				got = append(got, e.Name())
			}
			if !slices.Equal(got, want) {
				t.Fatalf("files are %q, wanted %q", got, want)
			}
			values, err := precast.ReadTensors(filepath.Join(to, want[0]))
			if err != nil {
				t.Fatal(err)
			}
			for name := range values {
				if scope, _, _ := strings.Cut(name, "/"); scope != "transformer_blocks.0" && !strings.HasPrefix(scope, "transformer_blocks.0.") {
					t.Errorf("%q is in another module", name)
				}
			}
			for _, golden := range []string{"blocks/transformer.transformer_blocks.0/out/0", "blocks/transformer.transformer_blocks.0/out/1"} {
				x, ok := file.Tensor(golden)
				if !ok {
					t.Fatalf("no %s", golden)
				}
				expected, err := x.Float32s()
				if err != nil {
					t.Fatal(err)
				}
				best, where := math.Inf(1), ""
				for name, h := range values {
					if h.Shape.DType != dtypes.Float32 || !slices.Equal(h.Shape.Dimensions, x.Shape) {
						continue
					}
					var worst, largest float64
					for i, v := range floats(h) {
						worst = max(worst, math.Abs(float64(v-expected[i])))
						largest = max(largest, math.Abs(float64(expected[i])))
					}
					if worst/largest < best {
						best, where = worst/largest, name
					}
				}
				t.Logf("%s is %s, which differs by %.2g", golden, where, best)
				if !(best <= moduleLimit) {
					t.Errorf("%s: the nearest value is %q, which differs by %.3g, limit %g", golden, where, best, moduleLimit)
				}
			}
		})
	}
}

// TestEagerRefuses: what does not go together is refused before any work, by the names of the flags.
func TestEagerRefuses(t *testing.T) {
	for _, c := range []struct {
		cfg  precast.Config
		want string
	}{
		{precast.Config{Mode: "lazy"}, `mode: found "lazy", wanted compiled or eager`},
		{precast.Config{Mode: "compiled,eager"}, "wanted MODE[,COMPONENT=MODE...]"},
		{precast.Config{Mode: "transformer=eager,=eager"}, "wanted MODE[,COMPONENT=MODE...]"},
		{precast.Config{Mode: "compiled,unet=eager"}, `mode: "unet" is none of this checkpoint's components that compute; it has`},
		{precast.Config{Mode: "compiled,scheduler=eager"}, `mode: "scheduler" is none of this checkpoint's components that compute; it has`},
		{precast.Config{Mode: "eager", Regions: "split"}, "regions: found split, but --mode eager"},
		{precast.Config{CheckFinite: true}, "check-finite: it reads the result of each operation"},
		{precast.Config{DumpValues: "x_embedder", DumpValuesTo: "values"}, "dump-values: it writes the result of each operation"},
		{precast.Config{Mode: "eager", DumpValues: "x_embedder"}, "dump-values-to: none given"},
		{precast.Config{Mode: "eager", DumpValuesTo: "values"}, "dump-values: none given"},
	} {
		p, err := precast.Open(context.Background(), shapesModel, c.cfg)
		if err == nil {
			p.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || precast.ExitCode(err) != 1 {
			t.Errorf("%+v: found %v (exit code %d), wanted %q", c.cfg, err, precast.ExitCode(err), c.want)
		}
	}
	artifact := filepath.Join(t.TempDir(), "shapes.precast")
	sizes := precast.CompileOptions{Shapes: []precast.Sizes{{Height: 16, Width: 16, MaxSequenceLength: 16}}, Output: artifact}
	cfg := precast.Config{Backend: "go", CacheDir: t.TempDir()}
	for _, mode := range []string{"eager", "compiled,vae=eager"} {
		cfg.Mode = mode
		p := openPipeline(t, shapesModel, cfg)
		if _, err := p.Compile(context.Background(), sizes); err == nil || !strings.Contains(err.Error(), "mode: an artifact holds compiled programs, and --mode "+mode) {
			t.Errorf("an artifact with --mode %s: %v", mode, err)
		}
		must(t, p.Close())
	}
	cfg.Mode = "compiled"
	p := openPipeline(t, shapesModel, cfg)
	if _, err := p.Compile(context.Background(), sizes); err != nil {
		t.Fatal(err)
	}
	must(t, p.Close())
	cfg.Mode = "eager"
	if _, err := precast.Open(context.Background(), artifact, cfg); err == nil || !strings.Contains(err.Error(), "holds compiled programs, and --mode eager wants single operations; run the checkpoint folder") {
		t.Errorf("--mode eager of an artifact: %v", err)
	}
	// A module path that nothing has, and a component that is compiled: before anything runs.
	for mode, want := range map[string]string{
		"compiled,vae=eager": `has the module path "transformer_blocks.0"; there are vae.decoder:`,
		"eager":              `has the module path "vae:transformer_blocks.0"`,
	} {
		scope := "transformer_blocks.0"
		if mode == "eager" {
			scope = "vae:" + scope
		}
		to := filepath.Join(t.TempDir(), "values")
		p := openPipeline(t, shapesModel, precast.Config{Backend: "go", CacheDir: cfg.CacheDir, Mode: mode, DumpValues: scope, DumpValuesTo: to})
		_, err := p.Generate(context.Background(), eagerRequest())
		if err == nil || !strings.Contains(err.Error(), want) || precast.ExitCode(err) != 1 {
			t.Errorf("--mode %s --dump-values %s: %v", mode, scope, err)
		}
		if p.Stats().Counts["execute"] != 0 {
			t.Errorf("%d programs ran first", p.Stats().Counts["execute"])
		}
		if _, err := os.Stat(to); err == nil {
			t.Error("the folder was made")
		}
		must(t, p.Close())
	}
}
