package tests

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"

	"precast/graph/checkpoint"
)

// TestInput runs the command line on checkpoints and arguments that are damaged, odd or rare: bad input gives a clear error and leaves nothing
// behind, odd input that diffusers reads gives the same picture.
func TestInput(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the program a few hundred times")
	}
	c := newCommandLine(t)
	for name, group := range map[string]func(*testing.T, *commandLine){
		"bad":         testBadInput,
		"json":        testBadJSON,
		"artifact":    testBadArtifact,
		"numbers":     testNotFinite,
		"cache":       testBadCache,
		"loads":       testInputThatLoads,
		"concurrent":  testConcurrent,
		"interrupted": testInterrupted,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			group(t, c)
		})
	}
}

// badRow is one fault and what the message about it must say.
type badRow struct {
	name  string
	model string // "sd15" where empty
	// damage changes the copy of the checkpoint in dir.
	damage func(t *testing.T, dir string)
	// args are added to the run; DIR in one stands for the checkpoint's copy, TMP for a folder beside it.
	args []string
	// output replaces the output's path.
	output string
	// want are the parts of the message: the file, the field, what was found and what was wanted.
	want []string
	// code is the exit code, 1 where zero.
	code int
}

// check runs the row and asserts that it fails with its message, before any work, and that nothing is written.
func (row badRow) check(t *testing.T, c *commandLine) {
	t.Helper()
	if row.model == "" {
		row.model = "sd15"
	}
	dir := c.copyModel(t, row.model)
	if row.damage != nil {
		row.damage(t, dir)
	}
	out, cacheDir, tmp := t.TempDir(), t.TempDir(), filepath.Dir(dir)
	output := filepath.Join(out, "picture.png")
	expand := strings.NewReplacer("DIR", dir, "TMP", tmp, "OUT", out)
	if row.output != "" {
		output = expand.Replace(row.output)
	}
	args := runArgs(dir, output, "--cache-dir", cacheDir)
	for _, a := range row.args {
		args = append(args, expand.Replace(a))
	}
	before := listing(t, tmp)
	got := c.run(t, invocation{args: args, dir: out})
	if want := max(row.code, 1); got.code != want {
		t.Errorf("exit code %d, wanted %d\n%s", got.code, want, got.stderr)
	}
	for _, w := range row.want {
		if w = expand.Replace(w); !strings.Contains(got.stderr, w) {
			t.Errorf("the message lacks %q:\n%.2000s", w, got.stderr)
		}
	}
	for line := range strings.Lines(got.stderr) {
		if !strings.HasPrefix(line, "precast: ") {
			t.Errorf("a line without the program's name: %q", line)
		}
	}
	if strings.Contains(got.stderr, "step 1/1") || got.stdout != "" {
		t.Errorf("work was done before the error:\n%s%s", got.stdout, got.stderr)
	}
	if left := listing(t, out); len(left) > 0 {
		t.Errorf("files were written: %v", left)
	}
	if left := listing(t, cacheDir); len(left) > 0 {
		t.Errorf("the cache was written before the error: %v", left)
	}
	if after := listing(t, tmp); !slices.Equal(before, after) {
		t.Errorf("the checkpoint's folder was changed: %v", after)
	}
}

const (
	unetFile  = "unet/diffusion_pytorch_model.safetensors"
	vaeFile   = "vae/diffusion_pytorch_model.safetensors"
	textFile  = "text_encoder/model.safetensors"
	fluxIndex = "transformer/diffusion_pytorch_model.safetensors.index.json"
)

// headerEntry is a tensor in a safetensors header.
type headerEntry struct {
	DType   string   `json:"dtype"`
	Shape   []int    `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// header changes the entries of a safetensors header; names are the keys in the order of the data.
func header(file string, edit func(h map[string]headerEntry, names []string)) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		editHeader(t, filepath.Join(dir, file), func(text string) string {
			var raw map[string]json.RawMessage
			must(t, json.Unmarshal([]byte(text), &raw))
			delete(raw, "__metadata__")
			entries := map[string]headerEntry{}
			var names []string
			for key, r := range raw {
				var e headerEntry
				must(t, json.Unmarshal(r, &e))
				entries[key], names = e, append(names, key)
			}
			slices.SortFunc(names, func(a, b string) int { return int(entries[a].Offsets[0] - entries[b].Offsets[0]) })
			edit(entries, names)
			out, err := json.Marshal(entries)
			must(t, err)
			return string(out)
		})
	}
}

// file changes the bytes of a file.
func file(name string, edit func(data []byte) []byte) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		editFile(t, filepath.Join(dir, name), edit)
	}
}

func content(name, text string) func(*testing.T, string) {
	return func(t *testing.T, dir string) { t.Helper(); writeFile(t, filepath.Join(dir, name), []byte(text)) }
}

func remove(names ...string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		for _, n := range names {
			must(t, os.RemoveAll(filepath.Join(dir, n)))
		}
	}
}

func fields(name string, set map[string]any) func(*testing.T, string) {
	return func(t *testing.T, dir string) { t.Helper(); editJSON(t, filepath.Join(dir, name), set) }
}

// weightMap changes the weight_map of an index.
func weightMap(name string, edit func(m map[string]string)) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		path := filepath.Join(dir, name)
		var index struct {
			Map map[string]string `json:"weight_map"`
		}
		must(t, json.Unmarshal(readFile(t, path), &index))
		edit(index.Map)
		editJSON(t, path, map[string]any{"weight_map": index.Map})
	}
}

// writeTensor writes a file TMP/x.safetensors with one tensor.
func writeTensor(name string, value float32, dims ...int) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		n := 1
		for _, d := range dims {
			n *= d
		}
		data := make([]byte, 0, 4*n)
		for range n {
			data, _ = binary.Append(data, binary.LittleEndian, value)
		}
		must(t, checkpoint.WriteFile(filepath.Join(filepath.Dir(dir), "x.safetensors"), []checkpoint.Item{{Key: name, DType: dtypes.Float32, Shape: dims, Data: data}}, nil))
	}
}

var nan = func() float32 { var zero float32; return zero / zero }()

// weightFaults are faults of safetensors files and their indexes.
var weightFaults = []badRow{
	{name: "missing", damage: remove(unetFile), want: []string{"DIR/unet", "found no weights", "diffusion_pytorch_model.safetensors"}},
	{name: "empty", damage: content(unetFile, ""), want: []string{unetFile, "found an empty file, wanted a safetensors file"}},
	{name: "seven bytes", damage: content(unetFile, "\x10\x00\x00\x00\x00\x00\x00"), want: []string{unetFile, "found 7 bytes", "truncated"}},
	{name: "truncated data", damage: file(unetFile, func(b []byte) []byte { return b[:len(b)-1024] }), want: []string{unetFile, "truncated: expected", "1024 missing"}},
	{name: "truncated header", damage: file(unetFile, func(b []byte) []byte { return b[:100] }), want: []string{unetFile, "truncated (expected at least"}},
	{name: "trailing bytes", damage: file(vaeFile, func(b []byte) []byte { return append(b, 1, 2, 3) }), want: []string{vaeFile, "3 trailing bytes"}},
	{
		name: "overlapping tensors", want: []string{unetFile, "overlap"},
		damage: header(unetFile, func(h map[string]headerEntry, names []string) {
			e := h[names[1]]
			e.Offsets[0], e.Offsets[1] = e.Offsets[0]-4, e.Offsets[1]-4
			h[names[1]] = e
		}),
	},
	{
		name: "gap between tensors", want: []string{unetFile, "belong to no tensor"},
		damage: header(unetFile, func(h map[string]headerEntry, names []string) { delete(h, names[1]) }),
	},
	{
		name: "negative offset", want: []string{textFile, "data_offsets", "wanted two integers of 0 or more"},
		damage: header(textFile, func(h map[string]headerEntry, names []string) {
			e := h[names[0]]
			e.Offsets[0] = -4
			h[names[0]] = e
		}),
	},
	{
		name: "size that overflows", want: []string{textFile, "more bytes than fit a file"},
		damage: header(textFile, func(h map[string]headerEntry, names []string) {
			e := h[names[0]]
			e.Shape = []int{1 << 40, 1 << 40}
			h[names[0]] = e
		}),
	},
	{
		name: "shape and offsets disagree", want: []string{textFile, "data_offsets", "needs"},
		damage: header(textFile, func(h map[string]headerEntry, names []string) {
			e := h[names[0]]
			e.Shape = append([]int{3}, e.Shape...)
			h[names[0]] = e
		}),
	},
	{
		name: "duplicate key", want: []string{textFile, "given twice"},
		damage: func(t *testing.T, dir string) {
			editHeader(t, filepath.Join(dir, textFile), func(h string) string {
				entry := regexp.MustCompile(`"[^"]+":\s*\{\s*"dtype"[^}]*\}`).FindString(h)
				return strings.TrimRight(strings.TrimSpace(h), "}") + "}," + entry + "}"
			})
		},
	},
	{
		name: "header too large for the format", want: []string{unetFile, "header length is", "100000000"},
		damage: file(unetFile, func(b []byte) []byte { return append(binary.LittleEndian.AppendUint64(nil, 1<<62), b[8:]...) }),
	},
	{
		name: "header too large for the file", want: []string{unetFile, "the header is 90000000 bytes long"},
		damage: file(unetFile, func(b []byte) []byte { return append(binary.LittleEndian.AppendUint64(nil, 90_000_000), b[8:]...) }),
	},
	{
		name: "unknown dtype", want: []string{unetFile, `dtype: found "F13"`, "F32"},
		damage: header(unetFile, func(h map[string]headerEntry, names []string) {
			e := h[names[2]]
			e.DType = "F13"
			h[names[2]] = e
		}),
	},
	{name: "header is a list", damage: func(t *testing.T, dir string) {
		editHeader(t, filepath.Join(dir, unetFile), func(string) string { return "[]" })
	}, want: []string{unetFile, "wanted a JSON object"}},
	{name: "header is broken JSON", damage: func(t *testing.T, dir string) {
		editHeader(t, filepath.Join(dir, unetFile), func(h string) string { return h[:len(h)/2] })
	}, want: []string{unetFile, "header"}},
	{name: "header is not UTF-8", damage: func(t *testing.T, dir string) {
		editHeader(t, filepath.Join(dir, unetFile), func(h string) string { return strings.Replace(h, "down_blocks", "down\xff\xfelocks", 1) })
	}, want: []string{unetFile, "not UTF-8"}},
	{name: "zip as safetensors", damage: content(unetFile, "PK\x03\x04\x14\x00\x00\x00\x08\x00 archive/data.pkl"), want: []string{unetFile, "not a safetensors file", "PyTorch zip file"}},
	{name: "pickle as safetensors", damage: content(vaeFile, "\x80\x02}q\x00(X\x06\x00\x00\x00conv_inq"), want: []string{vaeFile, "not a safetensors file", "pickle"}},
	{name: "Git LFS pointer", damage: content(unetFile, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n"), want: []string{unetFile, "git lfs pull"}},
	{
		name: "only .bin", want: []string{"DIR/unet", "only safetensors is read", "diffusion_pytorch_model.bin"},
		damage: func(t *testing.T, dir string) {
			must(t, os.Rename(filepath.Join(dir, unetFile), filepath.Join(dir, "unet/diffusion_pytorch_model.bin")))
		},
	},
	{
		name: "only a .bin index", model: "flux1-dev", want: []string{"DIR/transformer", "only safetensors is read", "diffusion_pytorch_model.bin.index.json"},
		damage: func(t *testing.T, dir string) {
			remove("transformer")(t, dir)
			must(t, os.MkdirAll(filepath.Join(dir, "transformer"), 0o755))
			must(t, os.WriteFile(filepath.Join(dir, "transformer/config.json"), readFile(t, filepath.Join(model(t, "flux1-dev"), "transformer/config.json")), 0o644))
			writeFile(t, filepath.Join(dir, "transformer/diffusion_pytorch_model.bin.index.json"), []byte("{}"))
		},
	},
	{
		name: "weights are a folder", want: []string{unetFile, "directory"},
		damage: func(t *testing.T, dir string) {
			remove(unetFile)(t, dir)
			must(t, os.Mkdir(filepath.Join(dir, unetFile), 0o755))
		},
	},
	{
		name: "keys missing", want: []string{"unet", "2 faults", `missing tensor "conv_in.bias", wanted shape [16]`, `missing tensor "conv_out.weight", wanted shape [4,16,3,3]`},
		damage: func(t *testing.T, dir string) {
			editTensors(t, filepath.Join(dir, unetFile), func(items []checkpoint.Item) []checkpoint.Item {
				return slices.DeleteFunc(items, func(x checkpoint.Item) bool { return x.Key == "conv_in.bias" || x.Key == "conv_out.weight" })
			})
		},
	},
	{
		name: "keys of another shape", want: []string{"vae", `tensor "decoder.conv_in.bias" has shape [4,4]`, vaeFile, "but the config gives [16]", `tensor "post_quant_conv.bias" has shape [2,2]`},
		damage: func(t *testing.T, dir string) {
			editTensors(t, filepath.Join(dir, vaeFile), func(items []checkpoint.Item) []checkpoint.Item {
				for i := range items {
					switch items[i].Key {
					case "decoder.conv_in.bias":
						items[i].Shape = []int{4, 4}
					case "post_quant_conv.bias":
						items[i].Shape = []int{2, 2}
					}
				}
				return items
			})
		},
	},
	{
		name: "keys missing in two components", want: []string{`missing tensor "decoder.conv_in.bias"`, `missing tensor "conv_in.bias"`},
		damage: func(t *testing.T, dir string) {
			for _, f := range []string{unetFile, vaeFile} {
				editTensors(t, filepath.Join(dir, f), func(items []checkpoint.Item) []checkpoint.Item {
					return slices.DeleteFunc(items, func(x checkpoint.Item) bool { return x.Key == "conv_in.bias" || x.Key == "decoder.conv_in.bias" })
				})
			}
		},
	},
	{
		name: "quantized weights", want: []string{"conv_in.bias", "U8", "quantized"},
		damage: func(t *testing.T, dir string) {
			editTensors(t, filepath.Join(dir, unetFile), func(items []checkpoint.Item) []checkpoint.Item {
				for i := range items {
					if items[i].Key == "conv_in.bias" {
						items[i].DType, items[i].Data = dtypes.Uint8, items[i].Data[:16]
					}
				}
				return items
			})
		},
	},
	{name: "quantization_config", damage: fields("unet/config.json", map[string]any{"quantization_config": map[string]any{"quant_method": "bitsandbytes"}}), want: []string{"unet/config.json", "quantization_config", "bitsandbytes", "not read"}},
	{
		name: "more layers in the config than in the file", model: "flux1-schnell", damage: fields("transformer/config.json", map[string]any{"num_layers": 4}),
		want: []string{"transformer", `missing tensor "transformer_blocks.3.`, "wanted shape ["},
	},
	{name: "more layers in CLIP", damage: fields("text_encoder/config.json", map[string]any{"num_hidden_layers": 5}), want: []string{"text_encoder", `layers.4.`, "wanted shape ["}},
	{
		name: "index names a file outside the folder", model: "flux1-dev", want: []string{fluxIndex, "weight_map", `"../../x.safetensors"`, "without a path"},
		damage: weightMap(fluxIndex, func(m map[string]string) { m["x_embedder.weight"] = "../../x.safetensors" }),
	},
	{
		name: "index names an absolute path", model: "flux1-dev", want: []string{fluxIndex, "/etc/passwd", "without a path"},
		damage: weightMap(fluxIndex, func(m map[string]string) { m["x_embedder.weight"] = "/etc/passwd" }),
	},
	{
		name: "index names a missing file", model: "flux1-dev", want: []string{"transformer/gone.safetensors: no such file", fluxIndex},
		damage: weightMap(fluxIndex, func(m map[string]string) { m["x_embedder.weight"] = "gone.safetensors" }),
	},
	{
		name: "index names the wrong shard", model: "flux1-dev", want: []string{fluxIndex, "x_embedder.bias"},
		damage: weightMap(fluxIndex, func(m map[string]string) {
			for _, f := range m {
				if f != m["x_embedder.bias"] {
					m["x_embedder.bias"] = f
					return
				}
			}
		}),
	},
	{
		name: "index names a key that no shard has", model: "flux1-dev", want: []string{fluxIndex, "weight_map.nonsense", "no such tensor"},
		damage: weightMap(fluxIndex, func(m map[string]string) { m["nonsense"] = m["x_embedder.bias"] }),
	},
	{name: "shard truncated", model: "flux1-dev", want: []string{"transformer/diffusion_pytorch_model-00002-of-00010.safetensors", "truncated"}, damage: file("transformer/diffusion_pytorch_model-00002-of-00010.safetensors", func(b []byte) []byte { return b[:len(b)-8] })},
	{name: "shards without an index", model: "flux1-dev", want: []string{"DIR/transformer", "no index", "diffusion_pytorch_model.safetensors.index.json"}, damage: remove(fluxIndex)},
	{
		name: "shard is a symbolic link out of the folder", model: "flux1-dev", want: []string{"transformer/diffusion_pytorch_model-00002-of-00010.safetensors", "symbolic link", "inside the checkpoint"},
		damage: func(t *testing.T, dir string) {
			shard := filepath.Join(dir, "transformer/diffusion_pytorch_model-00002-of-00010.safetensors")
			must(t, os.Rename(shard, filepath.Join(filepath.Dir(dir), "moved.safetensors")))
			must(t, os.Symlink(filepath.Join(filepath.Dir(dir), "moved.safetensors"), shard))
		},
	},
	{
		name: "symbolic links in a circle", want: []string{unetFile, "too many"},
		damage: func(t *testing.T, dir string) {
			remove(unetFile)(t, dir)
			must(t, os.Symlink("b", filepath.Join(dir, unetFile)))
			must(t, os.Symlink(filepath.Base(unetFile), filepath.Join(dir, "unet/b")))
		},
	},
	{
		name: "component folder is a link to itself", want: []string{"unet", "too many"},
		damage: func(t *testing.T, dir string) {
			remove("unet")(t, dir)
			must(t, os.Symlink("unet", filepath.Join(dir, "unet")))
		},
	},
	{name: "variant that is not there", args: []string{"--variant", "fp16"}, want: []string{"variant", "fp16"}},
}

// folderFaults are faults of model_index.json, components and tokenizers.
var folderFaults = []badRow{
	{name: "no folder", damage: func(t *testing.T, dir string) { must(t, os.RemoveAll(dir)) }, want: []string{"DIR", "no such file"}},
	{name: "empty folder", damage: remove("model_index.json", "unet", "vae", "text_encoder", "tokenizer", "scheduler"), want: []string{"DIR", "found no model_index.json"}},
	{name: "no model_index.json", damage: remove("model_index.json"), want: []string{"DIR", "model_index.json"}},
	{name: "model_index.json is a folder", damage: func(t *testing.T, dir string) {
		remove("model_index.json")(t, dir)
		must(t, os.Mkdir(filepath.Join(dir, "model_index.json"), 0o755))
	}, want: []string{"model_index.json", "directory"}},
	{name: "unknown pipeline", damage: fields("model_index.json", map[string]any{"_class_name": "DanceDiffusionPipeline"}), want: []string{"model_index.json", `"DanceDiffusionPipeline"`, "FluxPipeline", "StableDiffusionPipeline"}},
	{name: "no pipeline class", damage: fields("model_index.json", map[string]any{"_class_name": nil}), want: []string{"model_index.json", "_class_name"}},
	{name: "unknown component class", damage: fields("model_index.json", map[string]any{"unet": []any{"diffusers", "UNet3DConditionModel"}}), want: []string{"model_index.json", "UNet3DConditionModel", "UNet2DConditionModel"}},
	{name: "unknown text encoder class", damage: fields("model_index.json", map[string]any{"text_encoder": []any{"transformers", "LlamaModel"}}), want: []string{"model_index.json", "LlamaModel", "CLIPTextModel"}},
	{name: "unknown tokenizer class", damage: fields("model_index.json", map[string]any{"tokenizer": []any{"transformers", "BertTokenizer"}}), want: []string{"BertTokenizer", "CLIPTokenizer"}},
	{name: "unknown scheduler class", damage: fields("model_index.json", map[string]any{"scheduler": []any{"diffusers", "VQDiffusionScheduler"}}), want: []string{"model_index.json", "VQDiffusionScheduler", "PNDMScheduler", "EulerDiscreteScheduler", "--scheduler"}},
	{name: "component is null", damage: fields("model_index.json", map[string]any{"unet": []any{nil, nil}}), want: []string{"model_index.json", "unet"}},
	{name: "component is absent", damage: func(t *testing.T, dir string) {
		removeKeys(t, filepath.Join(dir, "model_index.json"), "vae")
	}, want: []string{"model_index.json", "vae", "text_encoder"}},
	{name: "component is a number", damage: fields("model_index.json", map[string]any{"vae": 7}), want: []string{"model_index.json", "vae"}},
	{name: "component class is a number", damage: fields("model_index.json", map[string]any{"vae": []any{"diffusers", 7}}), want: []string{"model_index.json", "vae", "wanted [library, class]"}},
	{name: "component named by a path", damage: fields("model_index.json", map[string]any{"../unet": []any{"diffusers", "UNet2DConditionModel"}}), want: []string{"model_index.json", "../unet"}},
	{name: "component folder gone", damage: remove("vae"), want: []string{"DIR/vae", "no such file", "AutoencoderKL"}},
	{name: "component is a file", damage: func(t *testing.T, dir string) { remove("vae")(t, dir); content("vae", "x")(t, dir) }, want: []string{"DIR/vae", "wanted the folder"}},
	{name: "config gone", damage: remove("unet/config.json"), want: []string{"unet/config.json", "no such file"}},
	{name: "scheduler config gone", damage: remove("scheduler/scheduler_config.json"), want: []string{"scheduler/scheduler_config.json", "no such file"}},
	{name: "tokenizer gone", damage: remove("tokenizer"), want: []string{"DIR/tokenizer", "no such file"}},
	{name: "vocabulary gone", damage: remove("tokenizer/vocab.json", "tokenizer/tokenizer.json"), want: []string{"tokenizer/vocab.json", "no such file"}},
	{name: "merges gone", damage: remove("tokenizer/merges.txt", "tokenizer/tokenizer.json"), want: []string{"tokenizer/merges.txt", "no such file"}},
	{name: "merges broken", damage: content("tokenizer/merges.txt", "#version: 0.2\na b c\n"), want: []string{"tokenizer/merges.txt", "found"}},
	{name: "T5 vocabulary gone", model: "flux1-dev", damage: remove("tokenizer_2/spiece.model", "tokenizer_2/tokenizer.json"), want: []string{"tokenizer_2/spiece.model", "no such file"}},
	{name: "T5 vocabulary broken", model: "flux1-dev", damage: func(t *testing.T, dir string) {
		remove("tokenizer_2/tokenizer.json")(t, dir)
		content("tokenizer_2/spiece.model", "not a model")(t, dir)
	}, want: []string{"tokenizer_2/spiece.model"}},
	{name: "symbolic links in a circle", damage: func(t *testing.T, dir string) {
		remove("unet/config.json")(t, dir)
		must(t, os.Symlink("config.json", filepath.Join(dir, "unet/config.json")))
	}, want: []string{"unet/config.json", "too many"}},
	{name: "components that do not fit together", damage: fields("unet/config.json", map[string]any{"cross_attention_dim": 48}), want: []string{"cross_attention_dim 48", "hidden_size 32"}},
	{name: "several bad fields", damage: fields("unet/config.json", map[string]any{"in_channels": -3, "norm_eps": "small"}), want: []string{"unet/config.json: in_channels: found -3", `unet/config.json: norm_eps: found the string "small"`}},
	{name: "bad fields in two files", damage: func(t *testing.T, dir string) {
		fields("unet/config.json", map[string]any{"in_channels": -3})(t, dir)
		fields("vae/config.json", map[string]any{"latent_channels": 0})(t, dir)
	}, want: []string{"unet/config.json: in_channels: found -3", "vae/config.json: latent_channels: found 0"}},
}

// argumentFaults are faults of the arguments, on a sound checkpoint.
var argumentFaults = []badRow{
	{name: "no steps", args: []string{"--num-inference-steps", "0"}, want: []string{"num-inference-steps: found 0, wanted 1 or more"}},
	{name: "negative steps", args: []string{"--num-inference-steps=-1"}, want: []string{"num-inference-steps: found -1, wanted 1 or more"}},
	{name: "too many steps", args: []string{"--num-inference-steps", "1000000000"}, want: []string{"steps", "found 1000000000", "wanted at most"}},
	{name: "steps are text", args: []string{"--num-inference-steps", "many"}, want: []string{"num-inference-steps", `"many"`}},
	{name: "guidance NaN", args: []string{"--guidance-scale", "NaN"}, want: []string{"guidance_scale: found NaN, wanted a finite number"}},
	{name: "guidance infinite", args: []string{"--guidance-scale=-Inf"}, want: []string{"guidance_scale: found -Inf"}},
	{name: "true CFG infinite", model: "flux1-dev", args: []string{"--true-cfg-scale", "Inf", "--negative-prompt", "x"}, want: []string{"true_cfg_scale: found +Inf"}},
	{name: "rescale NaN", args: []string{"--guidance-rescale", "NaN"}, want: []string{"guidance_rescale: found NaN"}},
	{name: "eta", args: []string{"--eta", "1.5"}, want: []string{"eta: found 1.5, wanted 0 to 1"}},
	{name: "clip skip", args: []string{"--clip-skip", "3"}, want: []string{"clip_skip: found 3", "3 layers"}},
	{name: "negative clip skip", args: []string{"--clip-skip=-1"}, want: []string{"clip_skip: found -1"}},
	{name: "prompt is not UTF-8", args: []string{"--prompt", "a \xff\xfe cat"}, want: []string{"prompt", "not valid UTF-8"}},
	{name: "negative prompt is not UTF-8", args: []string{"--negative-prompt", "\xc3("}, want: []string{"negative_prompt", "not valid UTF-8"}},
	{name: "negative prompts do not match", args: []string{"--negative-prompt", "a", "--negative-prompt", "b"}, want: []string{"negative_prompt: 2 texts for 1 prompts"}},
	{name: "prompt 2 without encoder 2", args: []string{"--prompt-2", "a"}, want: []string{"prompt_2: StableDiffusionPipeline has no such argument"}},
	{name: "sequence too long", model: "flux1-dev", args: []string{"--max-sequence-length", "513"}, want: []string{"max_sequence_length: found 513, wanted 1 to 512"}},
	{name: "no pictures", args: []string{"--num-images-per-prompt", "0"}, want: []string{"num-images-per-prompt: found 0"}},
	{name: "too many pictures", args: []string{"--num-images-per-prompt", "2000000000"}, want: []string{"found 2000000000"}},
	{name: "seed", args: []string{"--seed=-1"}, want: []string{"seed"}},

	{name: "height not a multiple", args: []string{"--height", "20"}, want: []string{"height: found 20, wanted a multiple of 8", "nearest is 24"}},
	{name: "FLUX height not a multiple", model: "flux1-dev", args: []string{"--height", "40"}, want: []string{"height: found 40, wanted a multiple of 16", "nearest is 48"}},
	{name: "width zero", args: []string{"--width", "0"}, want: []string{"width: found 0"}},
	{name: "width negative", args: []string{"--width=-64"}, want: []string{"width: found -64"}},
	{name: "width too large", args: []string{"--width", "16392"}, want: []string{"width: found 16392", "to 16384; the nearest is 16384"}},
	{name: "width absurd", args: []string{"--width", "9000000000000000000"}, want: []string{"width: found 9000000000000000000"}},
	{name: "height that the UNet halves away", damage: fields("unet/config.json", map[string]any{"downsample_padding": 0}), want: []string{"height: found 16, wanted a multiple of 8 from 32", "nearest is 32"}},
	{name: "schedule of NaN", damage: fields("scheduler/scheduler_config.json", map[string]any{"beta_start": 0}), want: []string{"scheduler/scheduler_config.json", "PNDMScheduler cannot run 1 steps", "NaN"}},
	{name: "activations past memory", args: []string{"--height", "16384", "--width", "16384", "--num-images-per-prompt", "64"}, want: []string{"batch 64, 16384x16384", "needs about", "GiB", "of memory is available"}},
	{name: "FLUX activations past memory", model: "flux1-dev", args: []string{"--height", "16384", "--width", "16384", "--num-images-per-prompt", "64"}, want: []string{"16384x16384", "needs about", "of memory is available"}},

	{name: "latents of another shape", damage: writeTensor("latents", 0, 1, 4, 3, 2), args: []string{"--latents", "TMP/x.safetensors"}, want: []string{"latents", "[1, 4, 3, 2]", "[1 4 2 2]"}},
	{name: "FLUX latents unpacked", model: "flux1-dev", damage: writeTensor("latents", 0, 1, 8, 2, 2), args: []string{"--latents", "TMP/x.safetensors"}, want: []string{"latents", "[1, 8, 2, 2]", "[1 1 32]"}},
	{name: "latents file gone", args: []string{"--latents", "TMP/gone.safetensors"}, want: []string{"latents", "gone.safetensors", "no such file"}},
	{name: "latents of another name", damage: writeTensor("latents", 0, 1, 4, 2, 2), args: []string{"--latents", "TMP/x.safetensors:noise"}, want: []string{"x.safetensors", `no tensor "noise"`, "latents"}},
	{name: "latents NaN", damage: writeTensor("latents", nan, 1, 4, 2, 2), args: []string{"--latents", "TMP/x.safetensors"}, want: []string{"latents", "x.safetensors", "NaN"}},
	{name: "latents a picture", damage: func(t *testing.T, dir string) { content("../x.png", "\x89PNG\r\n\x1a\n")(t, dir) }, args: []string{"--latents", "TMP/x.png"}, want: []string{"latents", "x.png"}},
	{name: "latents unnamed of several", args: []string{"--latents", "DIR/" + unetFile}, want: []string{"holds", "tensors; name one"}},
	{name: "step noise too short", damage: writeTensor("noise", 0, 2, 1, 4, 2, 2), args: []string{"--scheduler", "EulerAncestralDiscreteScheduler", "--num-inference-steps", "4", "--step-noise", "TMP/x.safetensors"}, want: []string{"step_noise: holds noise for 2 steps", "4"}},
	{name: "step noise of another shape", damage: writeTensor("noise", 0, 4, 4, 2, 2), args: []string{"--scheduler", "EulerAncestralDiscreteScheduler", "--num-inference-steps", "4", "--step-noise", "TMP/x.safetensors"}, want: []string{"step_noise", "[4, 4, 2, 2]", "[1 4 2 2]"}},
	{name: "step noise file gone", args: []string{"--step-noise", "TMP/gone.safetensors"}, want: []string{"step-noise", "gone.safetensors"}},

	{name: "scheduler unknown", args: []string{"--scheduler", "NoSuchScheduler"}, want: []string{`"NoSuchScheduler"`, "DDIMScheduler", "PNDMScheduler"}},
	{name: "scheduler key unknown", args: []string{"--scheduler", "DDIMScheduler,nonsense=1"}, want: []string{"DDIMScheduler", `"nonsense"`, "beta_start"}},
	{name: "scheduler key twice", args: []string{"--scheduler", "DDIMScheduler,beta_end=0.1,beta_end=0.2"}, want: []string{"beta_end is given twice"}},
	{name: "scheduler value of another type", args: []string{"--scheduler", "DDIMScheduler,beta_end=large"}, want: []string{"beta_end", "large"}},
	{name: "scheduler empty", args: []string{"--scheduler", ",beta_end=1"}, want: []string{"CLASS[,key=value...]"}},
	{name: "sigmas for a scheduler without", args: []string{"--sigmas", "1,0.5"}, want: []string{"PNDMScheduler", "sigmas"}},
	{name: "sigmas NaN", model: "flux1-dev", args: []string{"--sigmas", "NaN,0.5"}, want: []string{"sigmas", "NaN"}},
	{name: "sigmas negative", model: "flux1-dev", args: []string{"--sigmas=-1,0.5"}, want: []string{"sigmas", "-1"}},
	{name: "timesteps out of range", args: []string{"--scheduler", "DDIMScheduler", "--timesteps", "5000,10"}, want: []string{"timesteps"}},
	{name: "timesteps for FLUX", model: "flux1-dev", args: []string{"--timesteps", "5,1"}, want: []string{"timesteps"}},
	{name: "steps that the scheduler refuses", args: []string{"--scheduler", "LCMScheduler", "--num-inference-steps", "999"}, want: []string{"LCMScheduler", "999", "steps"}},

	{name: "output folder gone", output: "OUT/gone/picture.png", want: []string{`output "OUT/gone/picture.png"`, "no such file"}},
	{name: "output below a file", output: "/proc/version/picture.png", want: []string{"output", "/proc/version/picture.png", "not a directory"}},
	{name: "output in the checkpoint", output: "DIR/picture.png", want: []string{"output", "DIR/picture.png", "lies in the checkpoint folder"}},
	{name: "stats over a config", args: []string{"--stats", "DIR/unet/config.json"}, want: []string{"unet/config.json", "lies in the checkpoint folder"}},
	{name: "output is no picture", output: "OUT/picture.jpg", want: []string{"picture.jpg", "only .png"}},
	{name: "output on a file system that takes no files", output: "/proc/picture.png", want: []string{`output "/proc/picture.png"`}},
	{name: "stats can't be written", args: []string{"--stats", "OUT/gone/stats.json"}, want: []string{"gone/stats.json", "no such file"}},
	{name: "dump folder is a file", args: []string{"--dump-compilation-phases-to", "DIR/model_index.json"}, want: []string{"model_index.json", "lies in the folder", "that precast reads"}},
	{name: "dump folder is a device", args: []string{"--dump-compilation-phases-to", "/dev/null"}, want: []string{"/dev/null", "not a directory"}},

	{name: "plugin is a text file", args: []string{"--backend", "pjrt", "--plugin", "DIR/model_index.json"}, want: []string{"model_index.json"}},
	{name: "plugin is gone", args: []string{"--backend", "pjrt", "--plugin", "TMP/gone.so"}, want: []string{"gone.so", "no such file"}},
	{name: "plugin is a folder", args: []string{"--backend", "pjrt", "--plugin", "TMP"}, want: []string{"TMP"}},
	{name: "plugin unknown", args: []string{"--backend", "pjrt", "--plugin", "abacus"}, want: []string{"abacus", "cpu"}},

	{name: "nothing cached", args: []string{"--cache-only"}, code: 3, want: []string{"--cache-only forbids", "key", "is missing"}},
	{name: "dtype unknown", args: []string{"--dtype", "float8"}, want: []string{`dtype: found "float8", wanted float32, bfloat16 or float16`}},
	{name: "regions unknown", args: []string{"--regions", "some"}, want: []string{`regions: found "some", wanted inline or call or scan or split or auto`}},
	{name: "loops without their pass", args: []string{"--regions", "scan", "--disable-pass", "scan-repeated-calls"}, want: []string{"regions: found scan", "scan-repeated-calls", "inline"}},
	{name: "regions without their pass", args: []string{"--regions", "auto", "--disable-pass", "outline-repeated-blocks"}, want: []string{"regions: found auto", "outline-repeated-blocks", "inline"}},
	{name: "backend unknown", args: []string{"--backend", "gpu"}, want: []string{`backend: found "gpu"`, "pjrt", "go"}},
	{name: "threads negative", args: []string{"--threads=-2"}, want: []string{"threads: found -2"}},
	{name: "pass unknown", args: []string{"--disable-pass", "magic"}, want: []string{`"magic"`, "canonicalize"}},
	{name: "attention in chunks of nothing", args: []string{"--attention", "chunked:0"}, want: []string{`attention: found "chunked:0"`, "chunked:QUERIES[xKEYS]"}},
	{name: "enabled pass unknown", args: []string{"--enable-pass", "magic"}, want: []string{`"magic"`, "canonicalize"}},
	{name: "pass in both lists", args: []string{"--enable-pass", "dce,cse", "--disable-pass", "cse"}, want: []string{`"cse" is both enabled and disabled`}},
	{name: "flag unknown", args: []string{"--cfg", "3"}, want: []string{"--cfg", "precast help run"}},
	{name: "argument too many", args: []string{"second"}, want: []string{`"second" is one too many`}},
}

func testBadInput(t *testing.T, c *commandLine) {
	for group, rows := range map[string][]badRow{"weights": weightFaults, "folder": folderFaults, "arguments": argumentFaults} {
		for _, row := range rows {
			t.Run(group+"/"+row.name, func(t *testing.T) {
				t.Parallel()
				row.check(t, c)
			})
		}
	}
	t.Run("plugin is another library", func(t *testing.T) {
		t.Parallel()
		libs, _ := filepath.Glob("/lib/*/libc.so.6")
		if len(libs) == 0 {
			t.Skip("no libc.so.6 here")
		}
		badRow{args: []string{"--backend", "pjrt", "--plugin", libs[0]}, want: []string{libs[0], "GetPjrtApi"}}.check(t, c)
	})
}

// testBadJSON breaks every JSON file of a checkpoint in every way.
func testBadJSON(t *testing.T, c *commandLine) {
	for _, name := range []string{"sd15", "flux1-dev"} {
		dir := model(t, name)
		var files []string
		must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err == nil && filepath.Ext(path) == ".json" {
				rel, _ := filepath.Rel(dir, path)
				files = append(files, rel)
			}
			return err
		}))
		if len(files) < 6 {
			t.Fatalf("found only %v", files)
		}
		for _, f := range files {
			if name == "flux1-dev" && (strings.HasPrefix(f, "text_encoder/") && !strings.Contains(f, "index") || strings.HasPrefix(f, "tokenizer/")) {
				continue // as in sd15
			}
			for what, damage := range map[string]func([]byte) []byte{
				"empty":     func([]byte) []byte { return nil },
				"blank":     func([]byte) []byte { return []byte(" \n") },
				"truncated": func(b []byte) []byte { return b[:len(b)/2] },
				"list":      func([]byte) []byte { return []byte(`[1, 2]`) },
				"text":      func([]byte) []byte { return []byte(`"text"`) },
				"null":      func([]byte) []byte { return []byte(`null`) },
				"trailing":  func(b []byte) []byte { return append(b, " x"...) },
				"binary":    func([]byte) []byte { return []byte("\x00\x01\xff\xfe{}") },
				"twice": func(b []byte) []byte {
					return []byte(regexp.MustCompile(`^\s*\{`).ReplaceAllString(string(b), `{"same": 1, "same": 2, `))
				},
				"deep": func([]byte) []byte { return []byte(`{"a":` + strings.Repeat("[", 200_000)) },
			} {
				t.Run(fmt.Sprintf("%s/%s/%s", name, f, what), func(t *testing.T) {
					t.Parallel()
					badRow{model: name, damage: file(f, damage), want: []string{f}}.check(t, c)
				})
			}
		}
	}
}
