package tests

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gomlx/compute/dtypes"

	"precast/graph/checkpoint"
)

// testNotFinite looks for NaN in weights and results: an error that names the stage, not a black picture.
func testNotFinite(t *testing.T, c *commandLine) {
	poison := func(file, key string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			editTensors(t, filepath.Join(dir, file), func(items []checkpoint.Item) []checkpoint.Item {
				for i := range items {
					if items[i].Key == key {
						binary.LittleEndian.PutUint32(items[i].Data[8:], math.Float32bits(float32(math.NaN())))
						return items
					}
				}
				t.Fatalf("%s has no %s", file, key)
				return nil
			})
		}
	}
	for _, row := range []struct {
		name, model string
		damage      func(*testing.T, string)
		args        []string
		want        []string
	}{
		{"text encoder", "sd15", poison(textFile, "text_model.final_layer_norm.bias"), nil, []string{"text_encoder", "last_hidden_state", "NaN", `weight "text_model.final_layer_norm.bias"`, textFile, "element 2"}},
		{"unet", "sd15", poison(unetFile, "conv_in.bias"), nil, []string{"unet", "latents after step 1 of 1", `weight "conv_in.bias"`, unetFile}},
		{"vae", "sd15", poison(vaeFile, "decoder.conv_in.bias"), nil, []string{"vae", "decoded picture", `weight "decoder.conv_in.bias"`, vaeFile}},
		{"t5", "flux1-schnell", poison("text_encoder_2/model.safetensors", "encoder.final_layer_norm.weight"), nil, []string{"text_encoder_2", "NaN", "encoder.final_layer_norm.weight"}},
		{"transformer", "flux1-schnell", poison("transformer/diffusion_pytorch_model.safetensors", "proj_out.bias"), nil, []string{"transformer", "latents after step 1 of 1", "proj_out.bias"}},
		{"split", "flux1-schnell", poison("transformer/diffusion_pytorch_model.safetensors", "proj_out.bias"), []string{"--regions", "split"}, []string{"transformer", "latents after step 1 of 1", "proj_out.bias"}},
		{"overflow", "sd15", nil, []string{"--guidance-scale", "1e300"}, []string{"unet", "latents after step"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			dir, out := c.copyModel(t, row.model), t.TempDir()
			if row.damage != nil {
				row.damage(t, dir)
			}
			got := c.run(t, invocation{args: runArgs(dir, filepath.Join(out, "picture.png"), row.args...), dir: out})
			if got.code != 1 {
				t.Errorf("exit code %d, wanted 1\n%s", got.code, got.stderr)
			}
			for _, w := range row.want {
				if !strings.Contains(got.stderr, w) {
					t.Errorf("the message lacks %q:\n%s", w, got.stderr)
				}
			}
			if left := listing(t, out); len(left) > 0 {
				t.Errorf("files were written: %v", left)
			}
		})
	}
}

// testBadCache gives cache folders that can't be used: that costs the cache, not the run.
func testBadCache(t *testing.T, c *commandLine) {
	for _, row := range []struct {
		name  string
		cache func(t *testing.T) string
	}{
		{"a file", func(t *testing.T) string {
			p := filepath.Join(t.TempDir(), "f")
			writeFile(t, p, []byte("x"))
			return p
		}},
		{"below a file", func(t *testing.T) string {
			p := filepath.Join(t.TempDir(), "f")
			writeFile(t, p, []byte("x"))
			return filepath.Join(p, "cache")
		}},
		{"on a file system that takes no files", func(*testing.T) string { return "/proc/precast" }},
		{"read-only", func(t *testing.T) string {
			if os.Getuid() == 0 {
				t.Skip("root may write everywhere")
			}
			p := t.TempDir()
			must(t, os.Chmod(p, 0o555))
			return p
		}},
		{"a link to itself", func(t *testing.T) string {
			p := filepath.Join(t.TempDir(), "loop")
			must(t, os.Symlink("loop", p))
			return p
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			out := t.TempDir()
			got := c.run(t, invocation{args: runArgs(model(t, "sd15"), filepath.Join(out, "picture.png"), "--cache-dir", row.cache(t)), dir: out})
			if got.code != 0 || !strings.Contains(got.stderr, "warning") || !strings.Contains(got.stderr, "cache") {
				t.Errorf("exit code %d, wanted 0 and a warning about the cache:\n%s", got.code, got.stderr)
			}
			if n := strings.Count(got.stderr, "warning"); n > 2 {
				t.Errorf("%d warnings about one cache:\n%s", n, got.stderr)
			}
			if left := listing(t, out); len(left) != 1 {
				t.Errorf("found %v, wanted one picture", left)
			}
		})
	}
	t.Run("full disk", func(t *testing.T) {
		if runtime.GOOS != "linux" {
			t.Skip("limits of processes are set on Linux alone")
		}
		t.Parallel()
		// Executables have more than 4 kB, the picture less: the cache is lost, the picture is made.
		out, cacheDir := t.TempDir(), t.TempDir()
		got := c.run(t, invocation{args: runArgs(model(t, "sd15"), filepath.Join(out, "picture.png"), "--cache-dir", cacheDir), dir: out, fileBlocks: 8})
		if got.code != 0 || !strings.Contains(got.stderr, "warning") || !strings.Contains(got.stderr, "file too large") {
			t.Errorf("exit code %d, wanted 0 and a warning about the cache:\n%s", got.code, got.stderr)
		}
		for _, f := range listing(t, cacheDir) {
			if strings.Contains(f, "tmp") {
				t.Errorf("a temporary file stayed in the cache: %s", f)
			}
		}
		if got := c.run(t, invocation{args: runArgs(model(t, "sd15"), filepath.Join(out, "after.png"), "--cache-dir", cacheDir), dir: out}); got.code != 0 || strings.Contains(got.stderr, "warning") {
			t.Errorf("the next run: exit code %d\n%s", got.code, got.stderr)
		}
		// No room for the picture either.
		out = t.TempDir()
		got = c.run(t, invocation{args: runArgs(model(t, "sd15"), filepath.Join(out, "picture.png"), "--no-cache"), dir: out, fileBlocks: 1})
		if got.code != 1 || !strings.Contains(got.stderr, "picture.png") || !strings.Contains(got.stderr, "file too large") {
			t.Errorf("exit code %d, wanted 1 and the output named:\n%s", got.code, got.stderr)
		}
		if left := listing(t, out); len(left) > 0 {
			t.Errorf("files were written: %v", left)
		}
		// Nor for an artifact.
		got = c.run(t, invocation{args: []string{"compile", model(t, "sd15"), "--backend", "go", "--shape", "16x16", "--no-cache", "-o", filepath.Join(out, "x.precast")}, dir: out, fileBlocks: 8})
		if got.code != 1 || !strings.Contains(got.stderr, "x.precast") || !strings.Contains(got.stderr, "file too large") {
			t.Errorf("exit code %d, wanted 1 and the artifact named:\n%s", got.code, got.stderr)
		}
		if left := listing(t, out); len(left) > 0 {
			t.Errorf("files were written: %v", left)
		}
	})
	t.Run("cache only", func(t *testing.T) {
		t.Parallel()
		out, cacheDir := t.TempDir(), t.TempDir()
		with := func(name string, more ...string) outcome {
			args := runArgs(model(t, "sd15"), filepath.Join(out, name), append([]string{"--cache-dir", cacheDir}, more...)...)
			return c.run(t, invocation{args: args, dir: out})
		}
		if got := with("a.png"); got.code != 0 {
			t.Fatalf("exit code %d\n%s", got.code, got.stderr)
		}
		before := listing(t, cacheDir)
		if got := with("b.png", "--cache-only", "--seed", "7", "--num-inference-steps", "3", "--guidance-scale", "3"); got.code != 0 {
			t.Errorf("another seed and number of steps: exit code %d\n%s", got.code, got.stderr)
		}
		got := with("c.png", "--cache-only", "--height", "24")
		if got.code != 3 || !strings.Contains(got.stderr, "the nearest entry differs in spec (wanted 1x3x2") {
			t.Errorf("another height: exit code %d, wanted 3 and what differs:\n%s", got.code, got.stderr)
		}
		if after := listing(t, cacheDir); !slices.Equal(before, after) {
			t.Errorf("the cache was changed: %v", after)
		}
	})
	t.Run("every entry damaged", func(t *testing.T) {
		t.Parallel()
		dir, out, plain := t.TempDir(), t.TempDir(), model(t, "sd15")
		for i, damage := range []func([]byte) []byte{
			nil,
			func(b []byte) []byte { b[len(b)/2] ^= 1; return b },
			func(b []byte) []byte { return b[:len(b)/2] },
			func([]byte) []byte { return nil },
			func([]byte) []byte { return []byte("PK\x03\x04 not an entry") },
		} {
			if damage != nil {
				must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
					if err == nil && !d.IsDir() {
						if data := readFile(t, path); len(data) > 100 {
							writeFile(t, path, damage(data))
						}
					}
					return err
				}))
			}
			path := filepath.Join(out, fmt.Sprintf("%d.png", i))
			got := c.run(t, invocation{args: runArgs(plain, path, "--cache-dir", dir), dir: out})
			if got.code != 0 {
				t.Fatalf("damage %d: exit code %d:\n%s", i, got.code, got.stderr)
			}
			if warned := strings.Contains(got.stderr, "warning"); warned != (damage != nil) {
				t.Errorf("damage %d: warned %v:\n%s", i, warned, got.stderr)
			}
			if !bytes.Equal(pixels(t, path), pixels(t, filepath.Join(out, "0.png"))) {
				t.Errorf("damage %d: another picture", i)
			}
		}
	})
}

// testBadArtifact damages an artifact and the checkpoint behind it.
func testBadArtifact(t *testing.T, c *commandLine) {
	home := t.TempDir()
	checkpointDir := filepath.Join(home, "model")
	must(t, os.CopyFS(checkpointDir, os.DirFS(model(t, "sd15"))))
	whole := filepath.Join(home, "sd15.precast")
	got := c.run(t, invocation{args: []string{"compile", checkpointDir, "--backend", "go", "--shape", "16x16", "-o", whole}, dir: home})
	if got.code != 0 {
		t.Fatalf("compile: exit code %d\n%s", got.code, got.stderr)
	}
	data := readFile(t, whole)
	want := filepath.Join(home, "want.png")
	artifactArgs := func(path, output string, more ...string) []string {
		return append([]string{"run", path, "--backend", "go", "--height", "16", "--width", "16", "--num-inference-steps", "1", "--prompt", "a cat", "-o", output, "--no-cache"}, more...)
	}
	if got := c.run(t, invocation{args: artifactArgs(whole, want, "--cache-only"), dir: home}); got.code != 0 {
		t.Fatalf("run of the artifact: exit code %d\n%s", got.code, got.stderr)
	}
	// rewrite makes a zip with other members; edit returns nil to leave one out.
	rewrite := func(t *testing.T, edit func(name string, data []byte) []byte) []byte {
		t.Helper()
		in, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
		must(t, err)
		var b bytes.Buffer
		out := zip.NewWriter(&b)
		for _, m := range in.File {
			r, err := m.Open()
			must(t, err)
			var member bytes.Buffer
			_, err = member.ReadFrom(r)
			must(t, err)
			must(t, r.Close())
			changed := edit(m.Name, member.Bytes())
			if changed == nil {
				continue
			}
			w, err := out.CreateHeader(&zip.FileHeader{Name: m.Name, Method: m.Method})
			must(t, err)
			_, err = w.Write(changed)
			must(t, err)
		}
		must(t, out.Close())
		return b.Bytes()
	}
	manifest := func(edit func(m map[string]json.RawMessage)) func(*testing.T) []byte {
		return func(t *testing.T) []byte {
			return rewrite(t, func(name string, data []byte) []byte {
				if name != "manifest.json" {
					return data
				}
				var m map[string]json.RawMessage
				must(t, json.Unmarshal(data, &m))
				edit(m)
				out, err := json.Marshal(m)
				must(t, err)
				return out
			})
		}
	}
	type row struct {
		name string
		data func(t *testing.T) []byte
		want []string
		args []string
		// recovers says that the run goes on, by compiling anew.
		recovers bool
		code     int
	}
	rows := []row{
		{name: "empty", data: func(*testing.T) []byte { return nil }, want: []string{"wanted an artifact"}},
		{name: "text", data: func(*testing.T) []byte { return []byte("hello") }, want: []string{"wanted an artifact"}},
		{name: "truncated", data: func(*testing.T) []byte { return data[:len(data)-200] }, want: []string{"broken.precast"}},
		{name: "half", data: func(*testing.T) []byte { return data[:len(data)/2] }, want: []string{"broken.precast"}},
		{name: "another zip", data: func(t *testing.T) []byte {
			var b bytes.Buffer
			w := zip.NewWriter(&b)
			_, err := w.Create("hello.txt")
			must(t, err)
			must(t, w.Close())
			return b.Bytes()
		}, want: []string{"broken.precast", "manifest.json"}},
		{name: "manifest empty", data: func(t *testing.T) []byte {
			return rewrite(t, func(name string, data []byte) []byte {
				if name == "manifest.json" {
					return []byte{}
				}
				return data
			})
		}, want: []string{"broken.precast", "manifest.json"}},
		{name: "manifest of another format", data: manifest(func(m map[string]json.RawMessage) { m["format"] = json.RawMessage(`99`) }), want: []string{"broken.precast", "99"}},
		{name: "manifest edited", data: func(t *testing.T) []byte {
			return rewrite(t, func(name string, data []byte) []byte {
				if name == "manifest.json" {
					return bytes.Replace(data, []byte(`"dtype": "f32"`), []byte(`"dtype": "f99"`), 1)
				}
				return data
			})
		}, want: []string{"broken.precast"}},
		{name: "a safetensors file", data: func(t *testing.T) []byte { return readFile(t, filepath.Join(checkpointDir, unetFile)) }, want: []string{"broken.precast", "wanted an artifact"}},
		{name: "other dtype asked", data: func(*testing.T) []byte { return data }, args: []string{"--dtype", "bf16"}, want: []string{"dtype", "compiled for", "bf16"}},
		{name: "other size with --cache-only", data: func(*testing.T) []byte { return data }, args: []string{"--height", "32", "--cache-only"}, want: []string{"--cache-only forbids"}, code: 3},
		{name: "checkpoint elsewhere", data: func(*testing.T) []byte { return data }, args: []string{"--checkpoint", filepath.Join(home, "gone")}, want: []string{"gone", "no such file", "--checkpoint"}},
		{name: "checkpoint of another config", data: func(*testing.T) []byte { return data }, args: []string{"--checkpoint", changedConfig(t, c)}, want: []string{"config", `"unet"`, "compile anew"}},
		{name: "checkpoint of another pipeline", data: func(*testing.T) []byte { return data }, args: []string{"--checkpoint", model(t, "flux1-schnell")}, want: []string{"FluxPipeline", "StableDiffusionPipeline"}},
		{name: "checkpoint moved", data: func(*testing.T) []byte { return data }, args: []string{"--checkpoint", model(t, "sd15"), "--cache-only"}, recovers: true},
	}
	in, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	must(t, err)
	flipped := 0
	for _, m := range in.File {
		if m.UncompressedSize64 == 0 {
			continue
		}
		executable := strings.HasPrefix(m.Name, "exe/")
		if executable && flipped > 3 {
			continue // as the ones before
		}
		flipped++
		// A bit of an executable costs a compile; of the graph nothing, as long as nobody needs it; of the manifest the artifact.
		flip := func(t *testing.T) []byte {
			return rewrite(t, func(name string, data []byte) []byte {
				if name == m.Name {
					data = bytes.Clone(data)
					data[len(data)/2] ^= 4
				}
				return data
			})
		}
		gone := func(t *testing.T) []byte {
			return rewrite(t, func(name string, data []byte) []byte {
				if name == m.Name {
					return nil
				}
				return data
			})
		}
		switch {
		case m.Name == "manifest.json":
			rows = append(rows, row{name: "flipped bit in " + m.Name, data: flip, want: []string{"broken.precast"}}, row{name: "missing " + m.Name, data: gone, want: []string{"broken.precast", m.Name}})
		case executable:
			rows = append(rows, row{name: "flipped bit in " + m.Name, data: flip, recovers: true, want: []string{"warning", m.Name}},
				row{name: "flipped bit with --cache-only in " + m.Name, data: flip, args: []string{"--cache-only"}, want: []string{"--cache-only forbids"}, code: 3},
				row{name: "missing " + m.Name, data: gone, want: []string{"broken.precast", m.Name, "is missing"}})
		}
	}
	// A raw flip in the middle of the file, below the zip's own checksum.
	rows = append(rows, row{name: "flipped bit in the middle", recovers: true, data: func(*testing.T) []byte {
		b := bytes.Clone(data)
		b[len(b)/3] ^= 1
		return b
	}})
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			work, out := t.TempDir(), t.TempDir()
			path := filepath.Join(work, "broken.precast")
			writeFile(t, path, r.data(t))
			picture := filepath.Join(out, "picture.png")
			got := c.run(t, invocation{args: artifactArgs(path, picture, r.args...), dir: out})
			for _, w := range r.want {
				if !strings.Contains(got.stderr, w) {
					t.Errorf("the message lacks %q:\n%s", w, got.stderr)
				}
			}
			if r.recovers {
				if got.code != 0 {
					t.Fatalf("exit code %d\n%s", got.code, got.stderr)
				}
				if !bytes.Equal(pixels(t, picture), pixels(t, want)) {
					t.Error("another picture")
				}
				return
			}
			if code := max(1, r.code); got.code != code {
				t.Errorf("exit code %d, wanted %d\n%s", got.code, code, got.stderr)
			}
			if left := listing(t, out); len(left) > 0 {
				t.Errorf("files were written: %v", left)
			}
		})
	}
	t.Run("manifest edited anywhere", func(t *testing.T) {
		t.Parallel()
		text := readMember(t, data, "manifest.json")
		content := bytes.Index(text, []byte(`"content"`))
		if content < 0 {
			t.Fatal("the manifest has no content")
		}
		values := regexp.MustCompile(`-?\b\d+\b|: (true|false)|"[^"\n]*"`).FindAllIndex(text[content:], -1)
		edits := 12
		if long() {
			edits = 400
		}
		others := []string{"0", "-1", "999999999", "1.5", "null", `""`, `"x"`, "[]", "{}", "7"}
		for i := range min(edits, len(values)) {
			v := values[i*len(values)/edits]
			from, to := content+v[0], content+v[1]
			edited := slices.Concat(text[:from], []byte(others[i%len(others)]), text[to:])
			if text[from] == ':' {
				edited = slices.Concat(text[:from], []byte(": "+others[i%len(others)]), text[to:])
			}
			work, out := t.TempDir(), t.TempDir()
			path := filepath.Join(work, "broken.precast")
			writeFile(t, path, rewrite(t, func(name string, data []byte) []byte {
				if name == "manifest.json" {
					return edited
				}
				return data
			}))
			got := c.run(t, invocation{args: artifactArgs(path, filepath.Join(out, "picture.png")), dir: out})
			if wrote := len(listing(t, out)) > 0; wrote != (got.code == 0) || got.code > 1 || got.code == 1 && !strings.Contains(got.stderr, "precast: error: ") {
				t.Errorf("%q for %q at byte %d: exit code %d, picture %v\n%.1000s", others[i%len(others)], text[from:to], from, got.code, wrote, got.stderr)
			}
		}
	})
	t.Run("output of compile can't be written", func(t *testing.T) {
		t.Parallel()
		out, cacheDir := t.TempDir(), t.TempDir()
		got := c.run(t, invocation{args: []string{"compile", checkpointDir, "--backend", "go", "--shape", "16x16", "--cache-dir", cacheDir, "-o", filepath.Join(out, "gone", "x.precast")}, dir: out})
		if got.code != 1 || !strings.Contains(got.stderr, "gone/x.precast") {
			t.Errorf("exit code %d:\n%s", got.code, got.stderr)
		}
		if left := append(listing(t, out), listing(t, cacheDir)...); len(left) > 0 {
			t.Errorf("files were written: %v", left)
		}
	})
	t.Run("compile of bad weights", func(t *testing.T) {
		t.Parallel()
		dir, out, cacheDir := c.copyModel(t, "sd15"), t.TempDir(), t.TempDir()
		file(unetFile, func(b []byte) []byte { return b[:len(b)-4] })(t, dir)
		got := c.run(t, invocation{args: []string{"compile", dir, "--backend", "go", "--shape", "16x16", "--cache-dir", cacheDir, "-o", filepath.Join(out, "x.precast")}, dir: out})
		if got.code != 1 || !strings.Contains(got.stderr, unetFile) {
			t.Errorf("exit code %d:\n%s", got.code, got.stderr)
		}
		if left := append(listing(t, out), listing(t, cacheDir)...); len(left) > 0 {
			t.Errorf("files were written: %v", left)
		}
	})
	t.Run("bad shapes of compile", func(t *testing.T) {
		t.Parallel()
		out := t.TempDir()
		for shape, want := range map[string]string{"20x16": "nearest is 24", "0x16": "HEIGHTxWIDTH", "16": "HEIGHTxWIDTH", "16x-8": "HEIGHTxWIDTH", "99999x16": "16384", "16xwide": "HEIGHTxWIDTH"} {
			got := c.run(t, invocation{args: []string{"compile", checkpointDir, "--backend", "go", "--shape", shape, "-o", filepath.Join(out, "x.precast")}, dir: out})
			if got.code != 1 || !strings.Contains(got.stderr, want) {
				t.Errorf("%s: exit code %d, wanted 1 and %q:\n%s", shape, got.code, want, got.stderr)
			}
		}
		if left := listing(t, out); len(left) > 0 {
			t.Errorf("files were written: %v", left)
		}
	})
}

// readMember reads one file of a zip.
func readMember(t *testing.T, data []byte, name string) []byte {
	t.Helper()
	z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	must(t, err)
	text, err := fs.ReadFile(z, name)
	must(t, err)
	return text
}

// changedConfig is a checkpoint whose UNet has another config and fits its weights.
func changedConfig(t *testing.T, c *commandLine) string {
	dir := c.copyModel(t, "sd15")
	fields("unet/config.json", map[string]any{"norm_eps": 1e-4})(t, dir)
	return dir
}

// testInputThatLoads changes a checkpoint in ways that mean the same: the picture stays, and a note says what was read otherwise.
func testInputThatLoads(t *testing.T, c *commandLine) {
	tensor := func(files string, edit func(x *checkpoint.Item)) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			paths, err := filepath.Glob(filepath.Join(dir, files))
			must(t, err)
			if len(paths) == 0 {
				t.Fatalf("no %s", files)
			}
			for _, p := range paths {
				editTensors(t, p, func(items []checkpoint.Item) []checkpoint.Item {
					for i := range items {
						edit(&items[i])
					}
					return items
				})
			}
		}
	}
	// narrow rounds the weights to dtype and stores them so, or in full.
	narrow := func(dtype dtypes.DType, store bool) func(*testing.T, string) {
		return tensor("*/*.safetensors", func(x *checkpoint.Item) {
			if x.DType != dtypes.Float32 {
				return
			}
			small := make([]byte, len(x.Data)/2)
			must(t, checkpoint.ConvertBytes(small, dtype, x.Data, dtypes.Float32))
			if store {
				x.DType, x.Data = dtype, small
			} else {
				must(t, checkpoint.ConvertBytes(x.Data, dtypes.Float32, small, dtype))
			}
		})
	}
	all := func(list ...func(*testing.T, string)) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			for _, f := range list {
				f(t, dir)
			}
		}
	}
	nullFields := func(t *testing.T, dir string) {
		editJSON(t, filepath.Join(dir, "unet/config.json"), map[string]any{"norm_eps": nil, "flip_sin_to_cos": nil, "freq_shift": nil, "layers_per_block": nil, "act_fn": nil, "mid_block_scale_factor": nil, "sample_size": nil})
		editJSON(t, filepath.Join(dir, "vae/config.json"), map[string]any{"scaling_factor": nil, "out_channels": nil, "force_upcast": nil, "use_quant_conv": nil})
		editJSON(t, filepath.Join(dir, "text_encoder/config.json"), map[string]any{"max_position_embeddings": nil, "hidden_act": nil, "layer_norm_eps": nil})
		editJSON(t, filepath.Join(dir, "scheduler/scheduler_config.json"), map[string]any{"num_train_timesteps": nil, "prediction_type": nil})
	}
	odd := func(t *testing.T, dir string) {
		for _, f := range []string{unetFile, vaeFile, textFile} {
			editHeader(t, filepath.Join(dir, f), func(h string) string {
				h = strings.TrimRight(h, " ")
				return h + strings.Repeat(" ", (8-len(h)%8)%8+1)
			})
		}
	}
	oldNames := strings.NewReplacer(".to_q.", ".query.", ".to_k.", ".key.", ".to_v.", ".value.", ".to_out.0.", ".proj_attn.")
	single := func(t *testing.T, dir string) {
		for component, name := range map[string]string{"transformer": "diffusion_pytorch_model", "vae": "diffusion_pytorch_model", "text_encoder": "model", "text_encoder_2": "model"} {
			folder := filepath.Join(dir, component)
			shards, err := filepath.Glob(filepath.Join(folder, "*.safetensors"))
			must(t, err)
			var items []checkpoint.Item
			for _, s := range shards {
				items = append(items, tensors(t, s)...)
				must(t, os.Remove(s))
			}
			must(t, os.Remove(filepath.Join(folder, name+".safetensors.index.json")))
			must(t, checkpoint.WriteFile(filepath.Join(folder, name+".safetensors"), items, nil))
		}
	}
	variant := func(t *testing.T, dir string) {
		for _, f := range []string{unetFile, vaeFile, textFile} {
			must(t, os.Rename(filepath.Join(dir, f), filepath.Join(dir, strings.TrimSuffix(f, ".safetensors")+".fp16.safetensors")))
		}
	}
	extra := func(t *testing.T, dir string) {
		editTensors(t, filepath.Join(dir, unetFile), func(items []checkpoint.Item) []checkpoint.Item {
			return append(items, checkpoint.Item{Key: "never.used", DType: dtypes.Float32, Shape: []int{2}, Data: make([]byte, 8)})
		})
		editTensors(t, filepath.Join(dir, textFile), func(items []checkpoint.Item) []checkpoint.Item {
			return append(items, checkpoint.Item{Key: "text_model.embeddings.position_ids", DType: dtypes.Int64, Shape: []int{1, 2}, Data: make([]byte, 16)})
		})
	}
	safety := func(t *testing.T, dir string) {
		editJSON(t, filepath.Join(dir, "model_index.json"), map[string]any{"safety_checker": []any{"stable_diffusion", "StableDiffusionSafetyChecker"}, "feature_extractor": []any{"transformers", "CLIPFeatureExtractor"}})
	}
	noMetadata := func(t *testing.T, dir string) {
		paths, _ := filepath.Glob(filepath.Join(dir, "*/*.safetensors"))
		for _, p := range paths {
			items := tensors(t, p)
			must(t, checkpoint.WriteFile(p, items, nil))
		}
		indexes, _ := filepath.Glob(filepath.Join(dir, "*/*.index.json"))
		if len(indexes) == 0 {
			t.Fatal("no index")
		}
		for _, p := range indexes {
			removeKeys(t, p, "metadata")
		}
	}
	embedding := func(name string) func(*testing.T, string) {
		return tensor("text_encoder_2/*.safetensors", func(x *checkpoint.Item) {
			if x.Key == "shared.weight" || x.Key == "encoder.embed_tokens.weight" {
				x.Key = name
			}
		})
	}
	level := func(with bool) func(*testing.T, string) {
		return tensor(textFile, func(x *checkpoint.Item) {
			x.Key = strings.TrimPrefix(x.Key, "text_model.")
			if with {
				x.Key = "text_model." + x.Key
			}
		})
	}
	for _, row := range []struct {
		name, model string
		// plain is done to both folders, change to one.
		plain, change func(*testing.T, string)
		// args are given to both runs, changedArgs to the changed one.
		args, changedArgs []string
		// longer is added to the last argument of the changed run.
		longer string
		// note is what the changed run says.
		note  []string
		limit int
	}{
		{name: "config fields null", model: "sd15", change: nullFields},
		{name: "no metadata", model: "flux1-dev", change: noMetadata},
		{name: "data at odd offsets", model: "sd15", change: odd},
		{name: "old names in the VAE", model: "sd15", note: []string{"vae", "under another spelling", "query"}, change: tensor(vaeFile, func(x *checkpoint.Item) { x.Key = oldNames.Replace(x.Key) })},
		{name: "old names and 1x1 kernels in the VAE", model: "sd15", change: tensor(vaeFile, func(x *checkpoint.Item) {
			if k := oldNames.Replace(x.Key); k != x.Key {
				if x.Key = k; strings.HasSuffix(k, ".weight") {
					x.Shape = append(slices.Clone(x.Shape), 1, 1)
				}
			}
		})},
		{name: "CLIP with its level", model: "sd15", change: level(true)},
		{name: "CLIP without its level", model: "sd15", change: level(false), note: []string{"text_encoder", "under another spelling"}},
		{name: "T5 with embed_tokens", model: "flux1-schnell", change: embedding("encoder.embed_tokens.weight")},
		{name: "T5 with shared", model: "flux1-schnell", change: embedding("shared.weight")},
		{name: "safety checker null", model: "sd15", change: fields("model_index.json", map[string]any{"safety_checker": nil, "feature_extractor": nil, "image_encoder": nil})},
		{name: "safety checker absent", model: "sd15", change: func(t *testing.T, dir string) {
			removeKeys(t, filepath.Join(dir, "model_index.json"), "safety_checker", "feature_extractor", "image_encoder", "requires_safety_checker")
		}},
		{name: "safety checker present", model: "sd15", change: safety, note: []string{"safety_checker is not run"}},
		{name: "extra keys", model: "sd15", change: extra},
		{name: "fp16 files alone", model: "sd15", change: variant, note: []string{`only weights of variant "fp16"`}},
		{name: "fp16 files asked for", model: "sd15", change: variant, changedArgs: []string{"--variant", "fp16"}},
		{name: "one file for several shards", model: "flux1-dev", change: single},
		{name: "weights in bfloat16", model: "sd15", plain: narrow(dtypes.BFloat16, false), change: narrow(dtypes.BFloat16, true)},
		{name: "weights in float16", model: "flux1-schnell", plain: narrow(dtypes.Float16, false), change: narrow(dtypes.Float16, true)},
		{name: "byte order mark", model: "sd15", change: all(file("unet/config.json", func(b []byte) []byte { return append([]byte("\xef\xbb\xbf"), b...) }))},
		{name: "folder through a link", model: "sd15", change: func(t *testing.T, dir string) {
			must(t, os.Rename(dir, dir+"-real"))
			must(t, os.Symlink(dir+"-real", dir))
		}},
		{name: "prompt too long", model: "sd15", args: []string{"--prompt", strings.Repeat("a red circle ", 60)}, longer: "and a square", note: []string{"warning", "77 tokens", "and a square"}},
		{name: "FLUX prompt too long", model: "flux1-dev", args: []string{"--prompt", strings.Repeat("a red circle ", 60)}, longer: "and a square", note: []string{"warning", "max_sequence_length", "and a square"}},
		{name: "empty prompt", model: "sd15", args: []string{"--prompt", ""}},
		{name: "FLUX empty prompt", model: "flux1-dev", args: []string{"--prompt", ""}},
		{name: "regions split", model: "flux1-dev", changedArgs: []string{"--regions", "split"}},
		{name: "offload", model: "sd15", changedArgs: []string{"--offload", "model"}},
		{name: "underscores in flags", model: "sd15", changedArgs: []string{"--num_inference_steps", "1", "--guidance_scale", "7.5"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			out := t.TempDir()
			plain, changed := c.copyModel(t, row.model), c.copyModel(t, row.model)
			if row.plain != nil {
				row.plain(t, plain)
			}
			if row.change != nil {
				row.change(t, changed)
			}
			a, b := filepath.Join(out, "a.png"), filepath.Join(out, "b.png")
			if got := c.run(t, invocation{args: runArgs(plain, a, row.args...), dir: out}); got.code != 0 {
				t.Fatalf("the plain run: exit code %d\n%s", got.code, got.stderr)
			}
			args := append(slices.Clone(row.args), row.changedArgs...)
			if row.longer != "" {
				args[len(args)-1] += row.longer
			}
			got := c.run(t, invocation{args: runArgs(changed, b, args...), dir: out})
			if got.code != 0 {
				t.Fatalf("exit code %d\n%s", got.code, got.stderr)
			}
			for _, w := range row.note {
				if !strings.Contains(got.stderr, w) {
					t.Errorf("no note about %q:\n%s", w, got.stderr)
				}
			}
			if d := largestDifference(pixels(t, a), pixels(t, b)); d > row.limit {
				t.Errorf("the pictures differ by %d of 255, wanted at most %d", d, row.limit)
			}
		})
	}
	t.Run("long prompt is cut as its beginning", func(t *testing.T) {
		// CLIP takes 75 tokens and two marks: "a" is one token each time.
		t.Parallel()
		out := t.TempDir()
		for i, n := range []int{75, 80} {
			got := c.run(t, invocation{args: runArgs(model(t, "sd15"), filepath.Join(out, fmt.Sprintf("%d.png", i)), "--prompt", strings.TrimSpace(strings.Repeat("a ", n))), dir: out})
			if got.code != 0 {
				t.Fatalf("exit code %d\n%s", got.code, got.stderr)
			}
			if cut := strings.Contains(got.stderr, `not used: "a a a a a"`); cut != (n > 75) {
				t.Errorf("%d words: warning about what was cut: %v\n%s", n, cut, got.stderr)
			}
		}
		if !bytes.Equal(pixels(t, filepath.Join(out, "0.png")), pixels(t, filepath.Join(out, "1.png"))) {
			t.Error("the tokens past the limit changed the picture")
		}
	})
}

// statsFile is what --stats writes.
type statsFile struct {
	Counts map[string]int `json:"counts"`
}

func readStats(t *testing.T, path string) statsFile {
	t.Helper()
	var s statsFile
	must(t, json.Unmarshal(readFile(t, path), &s))
	return s
}

// testConcurrent starts several processes on one empty cache: each succeeds, and each program is compiled once over all.
func testConcurrent(t *testing.T, c *commandLine) {
	for _, name := range []string{"sd15", "flux1-schnell"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, cacheDir := t.TempDir(), t.TempDir()
			args := func(i string, dir string) []string {
				return runArgs(model(t, name), filepath.Join(out, i+".png"), "--cache-dir", dir, "--stats", filepath.Join(out, i+".json"))
			}
			const processes = 4
			var all sync.WaitGroup
			outcomes := make([]outcome, processes)
			for i := range processes {
				all.Go(func() { outcomes[i] = c.run(t, invocation{args: args(fmt.Sprint(i), cacheDir), dir: out}) })
			}
			all.Wait()
			alone := c.run(t, invocation{args: args("alone", t.TempDir()), dir: out})
			if alone.code != 0 {
				t.Fatalf("exit code %d\n%s", alone.code, alone.stderr)
			}
			want := readStats(t, filepath.Join(out, "alone.json")).Counts
			sum := map[string]int{}
			for i, o := range outcomes {
				if o.code != 0 || strings.Contains(o.stderr, "cache") {
					t.Fatalf("process %d: exit code %d\n%s", i, o.code, o.stderr)
				}
				for k, n := range readStats(t, filepath.Join(out, fmt.Sprintf("%d.json", i))).Counts {
					sum[k] += n
				}
				if !bytes.Equal(pixels(t, filepath.Join(out, fmt.Sprintf("%d.png", i))), pixels(t, filepath.Join(out, "alone.png"))) {
					t.Errorf("process %d made another picture", i)
				}
			}
			for _, k := range []string{"lower", "compile", "cache_miss"} {
				if sum[k] != want[k] || want[k] == 0 {
					t.Errorf("%s: %d over %d processes, wanted %d as of one alone", k, sum[k], processes, want[k])
				}
			}
			if got, want := sum["cache_hit"], (processes-1)*want["cache_miss"]; got != want {
				t.Errorf("cache_hit: %d, wanted %d", got, want)
			}
		})
	}
}

// waitFor waits until the run has said something.
func waitFor(b *lockedBuffer, text string) {
	for end := time.Now().Add(runTime / 2); !strings.Contains(b.String(), text) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// testInterrupted ends runs by signals: exit code 1, no picture, no temporary file, and a cache that the next run can use.
func testInterrupted(t *testing.T, c *commandLine) {
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		for _, at := range []struct {
			name string
			// wait returns when the signal is to be sent.
			wait func(stderr *lockedBuffer)
		}{
			{"while compiling", func(b *lockedBuffer) { waitFor(b, "pass (program unet") }},
			{"in the step loop", func(b *lockedBuffer) { waitFor(b, "step 2/") }},
		} {
			t.Run(signal.String()+" "+at.name, func(t *testing.T) {
				t.Parallel()
				out, cacheDir := t.TempDir(), t.TempDir()
				args := runArgs(model(t, "sd15"), filepath.Join(out, "picture.png"), "--cache-dir", cacheDir, "--verbose", "--num-inference-steps", "900", "--stats", filepath.Join(out, "stats.json"))
				if signal == syscall.SIGKILL {
					c.kill(t, args, out, at.wait)
				} else {
					got := c.run(t, invocation{args: args, dir: out, interrupt: func(p *os.Process, stderr *lockedBuffer) {
						at.wait(stderr)
						must(t, p.Signal(signal))
					}})
					if got.code != 1 || !strings.Contains(got.stderr, "interrupted; no output was written") {
						t.Errorf("exit code %d, wanted 1 and a word about it:\n%.500s", got.code, got.stderr)
					}
					if left := listing(t, out); len(left) > 0 {
						t.Errorf("files were written: %v", left)
					}
				}
				got := c.run(t, invocation{args: runArgs(model(t, "sd15"), filepath.Join(out, "after.png"), "--cache-dir", cacheDir), dir: out})
				if got.code != 0 || strings.Contains(got.stderr, "warning") {
					t.Errorf("the next run: exit code %d\n%s", got.code, got.stderr)
				}
			})
		}
	}
}
