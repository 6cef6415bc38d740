package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"precast"
	"precast/backends/gobackend"
	"precast/backends/pjrt"
)

// TestOffloadBlockGoldens: what diffusers computes is computed with streamed weights, too, and by every pipeline the bytes of the same programs without
// offload. Two blocks' weights at most are on the device at once.
func TestOffloadBlockGoldens(t *testing.T) {
	cacheDir := t.TempDir()
	everyPipeline(t, func(t *testing.T, name string) {
		for _, backend := range []string{"go", "pjrt"} {
			if backend == "pjrt" && name != "flux1-dev" && name != "sdxl" && !long() {
				continue
			}
			t.Run(backend, func(t *testing.T) {
				needBackend(t, backend)
				dir := carriedModel(t, name)
				g := readGolden(t, filepath.Dir(dir))
				if runs := recordedRuns(t, filepath.Dir(dir)); len(runs) > 0 {
					var r goldenRun
					r.decode(t, g.Runs[runs[0]])
					t.Run(runs[0], func(t *testing.T) {
						checkRun(t, filepath.Dir(dir), runs[0], &r, precast.Config{Backend: backend, Offload: "block", Variant: g.Variant, CacheDir: cacheDir})
					})
				}
				request := func() *precast.Request { return smallRequest(pipelineClass(t, dir)) }
				var want [][]byte
				var executed int64
				t.Run("none", func(t *testing.T) {
					p := openPipeline(t, dir, precast.Config{Backend: backend, Regions: "split", Variant: g.Variant, CacheDir: cacheDir})
					want = result(t, p, dir, request())
					s := p.Stats()
					executed = s.Counts["execute"]
					if s.Streamed.Units != 0 || s.Bytes["streamed"] != 0 {
						t.Errorf("without offload %d blocks were streamed", s.Streamed.Units)
					}
				})
				t.Run("block", func(t *testing.T) {
					p := openPipeline(t, dir, precast.Config{Backend: backend, Offload: "block", Variant: g.Variant, CacheDir: cacheDir})
					got := result(t, p, dir, request())
					if !slices.EqualFunc(got, want, bytes.Equal) {
						t.Error("the result differs from that without offload")
					}
					s := p.Stats()
					// Preparations are executed each time that their block comes, so there may be more.
					if n := s.Counts["execute"]; n < executed || n > executed+s.Streamed.Units {
						t.Errorf("%d executions, wanted those without offload, %d, and of preparations at most %d", n, executed, s.Streamed.Units)
					}
					if s.Counts["compile"] != 0 || s.Counts["trace"] != 0 {
						t.Errorf("the programs of --regions split are not taken: counts %v", s.Counts)
					}
					if s.Streamed.Units < 4 || s.Streamed.Peak != 2 {
						t.Errorf("%d blocks were streamed, at most %d on the device at once; wanted 4 or more, and 2", s.Streamed.Units, s.Streamed.Peak)
					}
					if s.Streamed.PeakBytes*2 > s.Bytes["streamed"] {
						t.Errorf("%d bytes were on the device at once, of %d streamed", s.Streamed.PeakBytes, s.Bytes["streamed"])
					}
				})
			})
		}
	})
}

// TestOffloadBlockCounts: a warm start compiles nothing, a second request streams as much as the first, and nothing stays on the device between them.
func TestOffloadBlockCounts(t *testing.T) {
	for _, backend := range []string{"go", "pjrt"} {
		t.Run(backend, func(t *testing.T) {
			needBackend(t, backend)
			dir, cacheDir := carriedModel(t, "flux1-dev"), t.TempDir()
			cfg := precast.Config{Backend: backend, Offload: "block", CacheDir: cacheDir}
			request := func(prompt string) *precast.Request {
				r := smallRequest("FluxPipeline")
				r.Prompt = []string{prompt}
				return r
			}
			artifact := filepath.Join(t.TempDir(), "block.precast")
			var picture []byte
			t.Run("cold", func(t *testing.T) {
				p := openPipeline(t, dir, cfg)
				out, err := p.Generate(t.Context(), request("a fox"))
				must(t, err)
				picture = out.Images[0].RGB
				_, err = p.Compile(t.Context(), precast.CompileOptions{Shapes: []precast.Sizes{{Height: 32, Width: 32, MaxSequenceLength: 16}}, Output: artifact})
				must(t, err)
			})
			t.Run("warm", func(t *testing.T) {
				p := openPipeline(t, dir, cfg)
				var units, streamed int64
				for i, prompt := range []string{"a fox", "a house"} {
					out, err := p.Generate(t.Context(), request(prompt))
					must(t, err)
					if same := bytes.Equal(out.Images[0].RGB, picture); same != (i == 0) {
						t.Errorf("picture %d is that of the first prompt: %v", i, same)
					}
					s := p.Stats()
					if s.Counts["compile"] != 0 || s.Counts["trace"] != 0 {
						t.Errorf("warm start: counts %v", s.Counts)
					}
					if i == 1 && (s.Streamed.Units != 2*units || s.Bytes["streamed"] != 2*streamed) {
						t.Errorf("two requests streamed %d blocks of %d bytes, the first %d of %d", s.Streamed.Units, s.Bytes["streamed"], units, streamed)
					}
					units, streamed = s.Streamed.Units, s.Bytes["streamed"]
					if n := live(backend)["buffer"]; n != 0 {
						t.Errorf("%d buffers are on the device after request %d", n, i)
					}
				}
			})
			t.Run("artifact", func(t *testing.T) {
				p := openPipeline(t, artifact, precast.Config{Backend: backend, Offload: "block", NoCache: true, CacheOnly: true})
				out, err := p.Generate(t.Context(), request("a fox"))
				must(t, err)
				if !bytes.Equal(out.Images[0].RGB, picture) {
					t.Error("the artifact makes another picture")
				}
				if n := p.Stats().Streamed.Units; n == 0 {
					t.Error("nothing was streamed")
				}
			})
		})
	}
}

func live(backend string) map[string]int64 {
	if backend == "go" {
		return gobackend.Live()
	}
	return pjrt.Live()
}

// TestOffloadBlockRefusals: what does not go together with --offload block is refused in words, and what is not streamed is told.
func TestOffloadBlockRefusals(t *testing.T) {
	dir := carriedModel(t, "flux1-schnell")
	for _, c := range []struct {
		cfg  precast.Config
		want string
	}{
		{precast.Config{Regions: "inline"}, "--regions inline does not make"},
		{precast.Config{Regions: "auto"}, "--regions auto does not make"},
		{precast.Config{Regions: "scan"}, "--regions scan does not make"},
		{precast.Config{Regions: "call"}, "--regions call does not make"},
		{precast.Config{DisabledPasses: []string{"outline-repeated-blocks"}}, "offload: found block, but the pass outline-repeated-blocks"},
	} {
		c.cfg.Backend, c.cfg.Offload, c.cfg.NoCache = "go", "block", true
		p, err := precast.Open(t.Context(), dir, c.cfg)
		if err == nil {
			p.Close()
		}
		if precast.ExitCode(err) != 1 || !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%+v: found %v, wanted %q", c.cfg, err, c.want)
		}
	}
	artifact := filepath.Join(t.TempDir(), "inline.precast")
	t.Run("compile", func(t *testing.T) {
		p := openPipeline(t, dir, precast.Config{Backend: "go", NoCache: true})
		_, err := p.Compile(t.Context(), precast.CompileOptions{Shapes: []precast.Sizes{{Height: 32, Width: 32, MaxSequenceLength: 16}}, Output: artifact})
		must(t, err)
	})
	if _, err := precast.Open(t.Context(), artifact, precast.Config{Backend: "go", Offload: "block"}); precast.ExitCode(err) != 1 ||
		!strings.Contains(fmt.Sprint(err), "was compiled with --regions inline") {
		t.Errorf("an artifact without blocks: found %v", err)
	}
	for _, c := range []struct {
		mode    string
		streams bool
		notes   []string
	}{
		{"eager", false, []string{"program=transformer", "program=text_encoder", "it runs eagerly"}},
		{"compiled,transformer=eager", true, []string{"program=transformer", "it runs eagerly"}},
	} {
		t.Run(c.mode, func(t *testing.T) {
			var log bytes.Buffer
			p := openPipeline(t, dir, precast.Config{Backend: "go", Offload: "block", Mode: c.mode, NoCache: true, Log: slog.New(slog.NewTextHandler(&log, nil))})
			r := smallRequest("FluxPipeline")
			r.NumInferenceSteps = 1
			_, err := p.Generate(t.Context(), r)
			must(t, err)
			if streams := p.Stats().Streamed.Units > 0; streams != c.streams {
				t.Errorf("weights were streamed: %v", streams)
			}
			for _, want := range append(c.notes, "as under --offload model") {
				if !strings.Contains(log.String(), want) {
					t.Errorf("the notes lack %q:\n%s", want, log.String())
				}
			}
		})
	}
	t.Run("no repeats", func(t *testing.T) {
		var log bytes.Buffer
		dir := carriedModel(t, "tp-qwen")
		p := openPipeline(t, dir, precast.Config{Backend: "go", Offload: "block", NoCache: true, Log: slog.New(slog.NewTextHandler(&log, nil))})
		result(t, p, dir, smallRequest("QwenImagePipeline"))
		if !strings.Contains(log.String(), "it has no repeated blocks") {
			t.Errorf("the notes lack what is not streamed:\n%s", log.String())
		}
	})
}

// TestOffloadBlockLoRA: LoRAs are folded into each block as it comes.
func TestOffloadBlockLoRA(t *testing.T) {
	for name, lora := range map[string]string{"sd15": "sd-kohya", "flux1-dev": "flux-kohya"} {
		t.Run(name, func(t *testing.T) {
			dir, cacheDir := carriedModel(t, name), t.TempDir()
			pictures := map[string][]byte{}
			for _, c := range []struct {
				name string
				cfg  precast.Config
			}{{"none", precast.Config{Regions: "split"}}, {"block", precast.Config{Offload: "block"}}, {"plain", precast.Config{Regions: "split"}}} {
				t.Run(c.name, func(t *testing.T) {
					c.cfg.Backend, c.cfg.CacheDir = "go", cacheDir
					if c.name != "plain" {
						c.cfg.LoRAs = []string{filepath.Join(loraDir, lora+".safetensors")}
					}
					p := openPipeline(t, dir, c.cfg)
					pictures[c.name] = result(t, p, dir, smallRequest(p.Class()))[0]
				})
			}
			if !bytes.Equal(pictures["none"], pictures["block"]) || bytes.Equal(pictures["plain"], pictures["block"]) {
				t.Error("the streamed LoRA makes another picture than the loaded one, or the one without it")
			}
		})
	}
}

// TestOffloadBlockFaults: a file that is cut short while it is streamed, by pages or within the last one, and a run that is cancelled end with an error, and
// leave nothing behind.
func TestOffloadBlockFaults(t *testing.T) {
	for _, backend := range []string{"go", "pjrt"} {
		t.Run(backend, func(t *testing.T) {
			needBackend(t, backend)
			cacheDir := t.TempDir()
			for name, left := range map[string]func(size int64) int64{
				"to a page": func(int64) int64 { return 4096 },
				"one byte":  func(size int64) int64 { return size - 1 },
			} {
				t.Run("cut "+name, func(t *testing.T) {
					dir := copied(t, "flux1-dev")
					files, err := filepath.Glob(filepath.Join(dir, "transformer", "*.safetensors"))
					must(t, err)
					p := openPipeline(t, dir, precast.Config{Backend: backend, Offload: "block", CacheDir: cacheDir})
					r := smallRequest("FluxPipeline")
					steps := 0
					r.Progress = func(i, n int) {
						steps++
						for _, f := range files {
							info, err := os.Stat(f)
							must(t, err)
							must(t, os.Truncate(f, left(info.Size())))
						}
					}
					_, err = p.Generate(t.Context(), r)
					if err == nil || steps != 1 {
						t.Fatalf("error %v after %d steps, wanted one after the first", err, steps)
					}
					if precast.ExitCode(err) != 1 || !slices.ContainsFunc(files, func(f string) bool { return strings.Contains(err.Error(), f) }) || !strings.Contains(err.Error(), "cut short") || !strings.Contains(err.Error(), `tensor "`) {
						t.Errorf("found %v, wanted the file that was cut short", err)
					}
				})
			}
			t.Run("cancel", func(t *testing.T) {
				p := openPipeline(t, carriedModel(t, "flux1-dev"), precast.Config{Backend: backend, Offload: "block", CacheDir: cacheDir})
				r := smallRequest("FluxPipeline")
				_, err := p.Generate(t.Context(), r)
				must(t, err)
				r.NumInferenceSteps = 1000
				for k := range 12 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(3+7*k)*time.Millisecond)
					start := time.Now()
					_, err := p.Generate(ctx, r)
					cancel()
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Fatalf("cancelled: %v", err)
					}
					if took := time.Since(start); took > 20*time.Second {
						t.Errorf("a cancelled run ended after %v", took)
					}
				}
				// The next run is as good as the first.
				r.NumInferenceSteps = 3
				_, err = p.Generate(t.Context(), r)
				must(t, err)
			})
		})
	}
}

// TestOffloadBlockGuidance: both calls of a guided step run while a block's weights are there, so that they stream once.
func TestOffloadBlockGuidance(t *testing.T) {
	number := func(v float64) *float64 { return &v }
	dir := carriedModel(t, "sd15")
	p := openPipeline(t, dir, precast.Config{Backend: "go", Offload: "block", NoCache: true})
	// perStep is what a further step costs.
	perStep := func(scale float64) (units, bytes, executions int64) {
		var s [3][3]int64
		for i := range s {
			r := smallRequest("StableDiffusionPipeline")
			r.NumInferenceSteps, r.GuidanceScale = 2+i, number(scale)
			_, err := p.Generate(t.Context(), r)
			must(t, err)
			c := p.Stats()
			s[i] = [3]int64{c.Streamed.Units, c.Bytes["streamed"], c.Counts["execute"]}
		}
		// The counts are of all requests so far.
		for k := range s[0] {
			s[0][k], s[1][k] = s[1][k]-s[0][k], s[2][k]-s[1][k]
		}
		return s[1][0] - s[0][0], s[1][1] - s[0][1], s[1][2] - s[0][2]
	}
	units, bytes, executions := perStep(1)
	guidedUnits, guidedBytes, guidedExecutions := perStep(5)
	if units == 0 || units != guidedUnits || bytes != guidedBytes {
		t.Errorf("a step streams %d blocks of %d bytes, a guided step %d of %d; wanted the same", units, bytes, guidedUnits, guidedBytes)
	}
	// The scheduler's step is one execution in both.
	if guidedExecutions-1 != 2*(executions-1) {
		t.Errorf("a step has %d executions, a guided step %d", executions, guidedExecutions)
	}
}
