package checkpoint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/google/go-cmp/cmp"
)

// folder is a checkpoint under construction in a temporary directory.
type folder struct {
	t   *testing.T
	dir string
}

const fluxIndex = `{"_class_name": "FluxPipeline", "_diffusers_version": "0.42.1", "boundary_ratio": 0.875, "image_encoder": [null, null],
	"feature_extractor": null, "requires_safety_checker": false, "shapes": [1, 2], "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
	"vae": ["diffusers", "AutoencoderKL"], "text_encoder": ["transformers", "CLIPTextModel"]}`

func newFolder(t *testing.T) folder {
	f := folder{t, t.TempDir()}
	f.put("model_index.json", fluxIndex)
	f.put("scheduler/scheduler_config.json", `{"shift": 3.0}`)
	f.put("vae/config.json", `{"_class_name": "AutoencoderKL", "layers": 2}`)
	f.put("text_encoder/config.json", `{"architectures": ["CLIPTextModel"]}`)
	return f
}

func (f folder) put(name, text string) { put(f.t, f.dir, name, []byte(text)) }

func (f folder) remove(name string) {
	if err := os.RemoveAll(filepath.Join(f.dir, name)); err != nil {
		f.t.Fatal(err)
	}
}

// tensors writes F32 tensors, given as "key:2x3", each element being its index.
func (f folder) tensors(name string, specs ...string) {
	f.t.Helper()
	var items []Item
	for _, s := range specs {
		key, dims, _ := strings.Cut(s, ":")
		it := Item{Key: key, DType: dtypes.Float32}
		n := 1
		for d := range strings.SplitSeq(dims, "x") {
			var v int
			if _, err := fmt.Sscan(d, &v); err == nil {
				it.Shape = append(it.Shape, v)
				n *= v
			}
		}
		for i := range n {
			it.Data = append(it.Data, float32Bytes(float32(i))...)
		}
		items = append(items, it)
	}
	path := filepath.Join(f.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := WriteFile(path, items, nil); err != nil {
		f.t.Fatal(err)
	}
}

func (f folder) open(o Options) *Checkpoint {
	f.t.Helper()
	ck, err := OpenWith(f.dir, o)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		if err := ck.Close(); err != nil {
			f.t.Error(err)
		}
	})
	return ck
}

func keysOf(t *testing.T, ck *Checkpoint, name string) []string {
	t.Helper()
	c, err := ck.Component(name)
	if err != nil {
		t.Fatal(err)
	}
	tensors, err := c.Tensors()
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for k := range tensors {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func wantError(t *testing.T, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %q", want)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("got %v\nwant %s", err, w)
		}
	}
}

func TestOpen(t *testing.T) {
	f := newFolder(t)
	f.tensors("vae/diffusion_pytorch_model.safetensors", "a:2x3", "b:4")
	ck := f.open(Options{})
	if ck.Class() != "FluxPipeline" || !ck.Has("vae") || ck.Has("image_encoder") || ck.Has("feature_extractor") || ck.Has("shapes") {
		t.Errorf("class %q, components %v", ck.Class(), ck.Components())
	}
	if diff := cmp.Diff([]string{"scheduler", "text_encoder", "vae"}, ck.Components()); diff != "" {
		t.Error(diff)
	}
	if got := ck.Index().Float("boundary_ratio", 0); got != 0.875 {
		t.Errorf("boundary_ratio = %v", got)
	}
	c, err := ck.Component("vae")
	if err != nil {
		t.Fatal(err)
	}
	if c.Library != "diffusers" || c.Class != "AutoencoderKL" {
		t.Errorf("vae is %s.%s", c.Library, c.Class)
	}
	cfg, err := c.Config()
	if err != nil || cfg.Int("layers", 0) != 2 {
		t.Errorf("layers = %v, %v", cfg, err)
	}
	s, err := ck.Component("scheduler")
	if err != nil {
		t.Fatal(err)
	}
	if cfg, err := s.Config(); err != nil || cfg.Float("shift", 0) != 3 {
		t.Errorf("shift: %v, %v", cfg, err)
	}
	if diff := cmp.Diff([]string{"a", "b"}, keysOf(t, ck, "vae")); diff != "" {
		t.Error(diff)
	}
	d, err := c.HeaderDigest()
	if err != nil || d == [32]byte{} {
		t.Errorf("HeaderDigest() = %x, %v", d, err)
	}
	if err := ck.Check("vae"); err != nil {
		t.Error(err)
	}
	wantError(t, ck.Check("vae", "text_encoder", "unet"), "found no weights of component \"text_encoder\" (CLIPTextModel), wanted model.safetensors", "unet: found no such component")
	if n := ck.Notes(); n != nil {
		t.Errorf("notes %v, want none", n)
	}
}

func TestOpenErrors(t *testing.T) {
	for _, tt := range []struct {
		name  string
		dir   string // inside the folder
		setup func(f folder)
		want  string
	}{
		{"missing folder", "gone", func(folder) {}, "gone: no such file or directory"},
		{"single file", "x.safetensors", func(f folder) { f.tensors("x.safetensors", "a:1") }, "single-file checkpoints are not read"},
		{"the index itself", "model_index.json", func(folder) {}, "give the folder that holds it"},
		{"component folder", "vae", func(folder) {}, "this is the folder of one component (AutoencoderKL); give the checkpoint folder above it"},
		{"text encoder folder", "text_encoder", func(folder) {}, "one component (CLIPTextModel)"},
		{"scheduler folder", "scheduler", func(folder) {}, "one component;"},
		{"folder above", "", func(f folder) {
			f.remove("model_index.json")
			f.put("sub/model_index.json", "{}")
		}, "there is one in "},
		{"folder of a single file", "", func(f folder) {
			f.remove("model_index.json")
			f.tensors("v1-5.safetensors", "a:1")
		}, "v1-5.safetensors; single-file checkpoints are not read"},
		{"no index", "", func(f folder) { f.remove("model_index.json") }, "found no model_index.json, wanted a checkpoint folder"},
		{"empty index", "", func(f folder) { f.put("model_index.json", "") }, "model_index.json: found an empty file"},
		{"broken index", "", func(f folder) { f.put("model_index.json", "{\n \"a\": }") }, "model_index.json:2:7: broken JSON"},
		{"index a list", "", func(f folder) { f.put("model_index.json", "[]") }, "model_index.json: found a list [], wanted a JSON object"},
		{"no class", "", func(f folder) { f.put("model_index.json", "{}") }, "model_index.json: _class_name: found nothing, wanted the pipeline's class"},
		{"class a number", "", func(f folder) { f.put("model_index.json", `{"_class_name": 3}`) }, "model_index.json: _class_name: found 3, wanted a string"},
		{"component outside", "", func(f folder) {
			f.put("model_index.json", `{"_class_name": "P", "../../vae": ["diffusers", "AutoencoderKL"]}`)
		}, "../../vae: found a component with this name"},
		{"half a component", "", func(f folder) { f.put("model_index.json", `{"_class_name": "P", "vae": ["diffusers", null]}`) }, "vae: found a list"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFolder(t)
			tt.setup(f)
			_, err := Open(filepath.Join(f.dir, tt.dir))
			wantError(t, err, f.dir, tt.want)
		})
	}
	t.Run("symlink loop", func(t *testing.T) {
		loop := filepath.Join(t.TempDir(), "loop")
		if err := os.Symlink(loop, loop); err != nil {
			t.Skip(err)
		}
		_, err := Open(loop)
		wantError(t, err, "loop: too many levels of symbolic links")
	})
}

func TestComponentErrors(t *testing.T) {
	const one, two = "vae/diffusion_pytorch_model-00001-of-00002.safetensors", "vae/diffusion_pytorch_model-00002-of-00002.safetensors"
	const index = "vae/diffusion_pytorch_model.safetensors.index.json"
	weightMap := func(pairs ...string) string {
		m := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		b, err := json.Marshal(map[string]any{"weight_map": m})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	base := filepath.Base
	for _, tt := range []struct {
		name  string
		setup func(f folder)
		want  []string
	}{
		{"no folder", func(f folder) { f.remove("vae") }, []string{"vae: no such file or directory; model_index.json lists component \"vae\" (AutoencoderKL)"}},
		{"folder a file", func(f folder) {
			f.remove("vae")
			f.put("vae", "")
		}, []string{"vae: found a file, wanted the folder of component"}},
		{"folder a loop", func(f folder) {
			f.remove("vae")
			if err := os.Symlink("vae", filepath.Join(f.dir, "vae")); err != nil {
				t.Skip(err)
			}
		}, []string{"vae: too many levels of symbolic links"}},
		{"no config", func(f folder) { f.remove("vae/config.json") }, []string{"vae/config.json: no such file or directory; wanted the config of component \"vae\""}},
		{"broken config", func(f folder) { f.put("vae/config.json", "{") }, []string{"vae/config.json:1:2: broken JSON"}},
		{"quantized", func(f folder) {
			f.put("vae/config.json", `{"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true}}`)
		}, []string{"vae/config.json: quantization_config: found weights quantized by bitsandbytes"}},
		{"no weights", func(folder) {}, []string{"found no weights of component \"vae\" (AutoencoderKL), wanted diffusion_pytorch_model.safetensors"}},
		{"bin", func(f folder) { f.put("vae/diffusion_pytorch_model.bin", "PK") }, []string{"only safetensors is read; found ", "vae/diffusion_pytorch_model.bin,"}},
		{"bin index", func(f folder) { f.put("vae/diffusion_pytorch_model.bin.index.json", "{}") }, []string{"only safetensors is read; found ", "vae/diffusion_pytorch_model.bin.index.json,"}},
		{"other name", func(f folder) { f.tensors("vae/my.safetensors", "a:1") }, []string{"found my.safetensors, wanted diffusion_pytorch_model.safetensors"}},
		{"two variants", func(f folder) {
			f.tensors("vae/diffusion_pytorch_model.fp16.safetensors", "a:1")
			f.tensors("vae/diffusion_pytorch_model.bf16.safetensors", "a:1")
		}, []string{"variants bf16, fp16 and no plain ones"}},
		{"broken weights", func(f folder) { f.put("vae/diffusion_pytorch_model.safetensors", "") }, []string{"vae/diffusion_pytorch_model.safetensors: found an empty file"}},
		{"shards without index", func(f folder) { f.tensors(one, "a:1") }, []string{"found the shard " + base(one) + " but no index"}},
		{"index without a map", func(f folder) { f.put(index, "{}") }, []string{index + ": weight_map: found nothing"}},
		{"index map a list", func(f folder) { f.put(index, `{"weight_map": []}`) }, []string{index + ": weight_map: found a list []"}},
		{"index empty", func(f folder) { f.put(index, `{"weight_map": {}}`) }, []string{index + ": weight_map.: found an empty object"}},
		{"index value a number", func(f folder) { f.put(index, `{"weight_map": {"a": 3}}`) }, []string{index + ": weight_map.a: found 3, wanted a string"}},
		{"path upwards", func(f folder) { f.put(index, weightMap("a", "../../etc/passwd")) }, []string{index + `: weight_map.a: found "../../etc/passwd", wanted the name of a file`}},
		{"absolute path", func(f folder) { f.put(index, weightMap("a", "/etc/passwd")) }, []string{`weight_map.a: found "/etc/passwd"`}},
		{"subfolder", func(f folder) { f.put(index, weightMap("a", "sub/x.safetensors")) }, []string{`weight_map.a: found "sub/x.safetensors"`}},
		{"backslash", func(f folder) { f.put(index, weightMap("a", `..\x.safetensors`)) }, []string{`weight_map.a: found "..\\x.safetensors"`}},
		{"dots", func(f folder) { f.put(index, weightMap("a", "..")) }, []string{`weight_map.a: found ".."`}},
		{"no name", func(f folder) { f.put(index, weightMap("a", "")) }, []string{"weight_map.a: found no file name"}},
		{"not safetensors", func(f folder) { f.put(index, weightMap("a", "config.json")) }, []string{`weight_map.a: found "config.json", wanted a safetensors file`}},
		{"missing shards", func(f folder) {
			f.tensors(one, "a:1")
			f.put(index, weightMap("a", base(one), "b", base(two), "c", "x.safetensors"))
		}, []string{two + ": no such file or directory (named by ", "vae/x.safetensors: no such file"}},
		{"truncated shard", func(f folder) {
			f.tensors(one, "a:1")
			f.tensors(two, "b:100")
			if err := os.Truncate(filepath.Join(f.dir, two), 300); err != nil {
				t.Fatal(err)
			}
			f.put(index, weightMap("a", base(one), "b", base(two)))
		}, []string{two + ": the file is truncated: expected ", "found 300 "}},
		{"link outside", func(f folder) {
			other := newFolder(t)
			other.tensors("x.safetensors", "a:1")
			if err := os.Symlink(filepath.Join(other.dir, "x.safetensors"), filepath.Join(f.dir, one)); err != nil {
				t.Skip(err)
			}
			f.put(index, weightMap("a", base(one)))
		}, []string{one + ": found a symbolic link to ", "wanted a file inside the checkpoint"}},
		{"key not in its shard", func(f folder) {
			f.tensors(one, "a:1")
			f.put(index, weightMap("a", base(one), "b", base(one), "c", base(one)))
		}, []string{index + ": weight_map.b: " + base(one) + " has no such tensor", "weight_map.c: "}},
		{"key in another shard", func(f folder) {
			f.tensors(one, "a:1")
			f.tensors(two, "b:1", "c:1")
			f.put(index, weightMap("a", base(one), "b", base(one), "c", base(two)))
		}, []string{"weight_map.b: found " + base(one) + ", but the tensor is in " + base(two)}},
		{"key in two shards", func(f folder) {
			f.tensors(one, "a:1")
			f.tensors(two, "a:1", "c:1")
			f.put(index, weightMap("a", base(one), "c", base(two)))
		}, []string{two + `: tensor "a" is also in `}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFolder(t)
			tt.setup(f)
			wantError(t, f.open(Options{}).Check("vae"), append(tt.want, f.dir)...)
		})
	}
}

func TestSharded(t *testing.T) {
	f := newFolder(t)
	f.tensors("vae/diffusion_pytorch_model-00001-of-00002.safetensors", "a:2", "extra:1")
	f.tensors("vae/diffusion_pytorch_model-00002-of-00002.safetensors", "b:3")
	// No metadata in the index.
	f.put("vae/diffusion_pytorch_model.safetensors.index.json", `{"weight_map": {"a": "diffusion_pytorch_model-00001-of-00002.safetensors",
		"b": "diffusion_pytorch_model-00002-of-00002.safetensors"}}`)
	// As in the hub's cache: the shard is a link into the blobs beside the snapshots.
	ck := f.open(Options{})
	if diff := cmp.Diff([]string{"a", "b", "extra"}, keysOf(t, ck, "vae")); diff != "" {
		t.Error(diff)
	}
	if n := ck.Notes(); len(n) != 1 || !strings.Contains(n[0], "1 tensors that the index does not list") {
		t.Errorf("notes %q", n)
	}
}

func TestHubCacheLinks(t *testing.T) {
	f := newFolder(t)
	const shard = "diffusion_pytorch_model-00001-of-00001.safetensors"
	f.tensors("vae/"+shard, "a:2")
	f.put("vae/diffusion_pytorch_model.safetensors.index.json", fmt.Sprintf(`{"weight_map": {"a": %q}}`, shard))
	hub := t.TempDir()
	snapshot, blobs := filepath.Join(hub, "snapshots", "abc"), filepath.Join(hub, "blobs")
	for _, d := range []string{filepath.Dir(snapshot), blobs} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.CopyFS(snapshot, os.DirFS(f.dir)); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"model_index.json", "vae/" + shard, "vae/config.json"} {
		blob := filepath.Join(blobs, fmt.Sprint(i))
		if err := os.Rename(filepath.Join(snapshot, name), blob); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(blob, filepath.Join(snapshot, name)); err != nil {
			t.Skip(err)
		}
	}
	ck := folder{t, snapshot}.open(Options{})
	if diff := cmp.Diff([]string{"a"}, keysOf(t, ck, "vae")); diff != "" {
		t.Error(diff)
	}
}

func TestVariants(t *testing.T) {
	const plain, fp16 = "vae/diffusion_pytorch_model.safetensors", "vae/diffusion_pytorch_model.fp16.safetensors"
	for _, tt := range []struct {
		name    string
		files   []string
		variant string
		keys    []string
		note    string
	}{
		{"plain of both", []string{plain, fp16}, "", []string{plain}, ""},
		{"variant of both", []string{plain, fp16}, "fp16", []string{fp16}, ""},
		{"only a variant", []string{fp16}, "", []string{fp16}, `found only weights of variant "fp16"`},
		{"not this component", []string{plain, "text_encoder/model.fp16.safetensors"}, "fp16", []string{plain}, `found no weights of variant "fp16", so diffusion_pytorch_model.safetensors is read`},
		{"file and index", []string{plain, "vae/diffusion_pytorch_model-00001-of-00001.safetensors", "vae/diffusion_pytorch_model.safetensors.index.json"}, "", []string{"vae/diffusion_pytorch_model-00001-of-00001.safetensors"}, "the first is read"},
		{"sharded variant", []string{plain, "vae/diffusion_pytorch_model.fp16-00001-of-00001.safetensors", "vae/diffusion_pytorch_model.safetensors.index.fp16.json"}, "fp16", []string{"vae/diffusion_pytorch_model.fp16-00001-of-00001.safetensors"}, ""},
		{"old sharded variant", []string{"vae/diffusion_pytorch_model-00001-of-00001.fp16.safetensors", "vae/diffusion_pytorch_model.fp16.safetensors.index.json"}, "fp16", []string{"vae/diffusion_pytorch_model-00001-of-00001.fp16.safetensors"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFolder(t)
			var shard string
			for _, name := range tt.files {
				if strings.HasSuffix(name, ".json") {
					f.put(name, fmt.Sprintf(`{"metadata": null, "weight_map": {%q: %q}}`, shard, filepath.Base(shard)))
					continue
				}
				f.tensors(name, name+":1")
				shard = name
			}
			ck := f.open(Options{Variant: tt.variant})
			if diff := cmp.Diff(tt.keys, keysOf(t, ck, "vae")); diff != "" {
				t.Error(diff)
			}
			if n := strings.Join(ck.Notes(), "\n"); tt.note == "" && n != "" || !strings.Contains(n, tt.note) {
				t.Errorf("notes %q, want %q", n, tt.note)
			}
		})
	}
	f := newFolder(t)
	f.tensors(fp16, "a:1")
	_, err := OpenWith(f.dir, Options{Variant: "bf16"})
	wantError(t, err, `found no weights of variant "bf16"; there are fp16`)
	f.remove(fp16)
	_, err = OpenWith(f.dir, Options{Variant: "bf16"})
	wantError(t, err, "its components have no variants")
}

func TestMatch(t *testing.T) {
	f := newFolder(t)
	f.tensors("vae/diffusion_pytorch_model.safetensors", "encoder.layers.0.w:2x3", "shared.weight:5x2", "mid.attentions.0.query.weight:4x4x1x1",
		"mid.attentions.0.proj_attn.bias:4", "conv.weight:3x3x1x1", "left.bias:2", "text.embeddings.position_ids:1x77")
	ck := f.open(Options{})
	c, err := ck.Component("vae")
	if err != nil {
		t.Fatal(err)
	}
	aliases := []Alias{
		{`^text_model\.`, ""},
		{`^encoder\.embed_tokens\.weight$`, "shared.weight"},
		{`^(.*attentions\.\d+)\.to_q\.`, "$1.query."},
		{`^(.*attentions\.\d+)\.to_out\.0\.`, "$1.proj_attn."},
		{`^old\.weight$`, "conv.weight"},
	}
	f32 := dtypes.Float32
	got, err := c.Match([]Want{
		{"text_model.encoder.layers.0.w", []int{2, 3}, f32},
		{"encoder.embed_tokens.weight", []int{5, 2}, dtypes.BFloat16},
		{"mid.attentions.0.to_q.weight", []int{4, 4}, f32},
		{"mid.attentions.0.to_out.0.bias", []int{4}, f32},
		{"conv.weight", []int{3, 3, 1, 1}, f32},
	}, aliases)
	if err != nil {
		t.Fatal(err)
	}
	if q := got["mid.attentions.0.to_q.weight"]; q.Key != "mid.attentions.0.query.weight" || !slices.Equal(q.Shape, []int{4, 4}) {
		t.Errorf("to_q is bound to %v", q)
	}
	if len(got) != 5 {
		t.Errorf("%d tensors bound, want 5", len(got))
	}
	if n := ck.Notes(); len(n) != 1 || !strings.Contains(n[0], `4 tensors are read under another spelling, such as "encoder.layers.0.w" for "text_model.encoder.layers.0.w"`) {
		t.Errorf("notes %q", n)
	}
	unused, err := c.Unused()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"left.bias"}, unused); diff != "" {
		t.Error(diff)
	}

	_, err = c.Match([]Want{
		{"a.weight", []int{7, 8}, f32},
		{"b.bias", nil, f32},
		{"conv.weight", []int{3, 3}, f32},
		{"encoder.layers.0.w", []int{3, 2}, f32},
		{"old.weight", []int{3, 4}, f32},
		{"left.bias", []int{2}, dtypes.Int32},
	}, aliases)
	wantError(t, err, `the weights of component "vae" (AutoencoderKL) do not fit its config (6 faults):`,
		`missing tensor "a.weight", wanted shape [7,8]`,
		`missing tensor "b.bias", wanted shape []`,
		`tensor "conv.weight" has shape [3,3,1,1] in `+filepath.Join(f.dir, "vae/diffusion_pytorch_model.safetensors")+`, but the config gives [3,3]`,
		`tensor "encoder.layers.0.w" has shape [2,3] in `,
		`tensor "conv.weight" has shape [3,3,1,1] in `,
		`tensor "left.bias" is stored as F32 in `,
	)
}

func TestMatchHints(t *testing.T) {
	f := newFolder(t)
	f.tensors("vae/diffusion_pytorch_model.safetensors", "model.diffusion_model.input_blocks.0.0.weight:2")
	if err := WriteFile(filepath.Join(f.dir, "text_encoder/model.safetensors"), []Item{{"w", dtypes.Uint8, []int{6, 1}, make([]byte, 6)}}, nil); err != nil {
		t.Fatal(err)
	}
	ck := f.open(Options{})
	for name, want := range map[string]string{
		"vae":          `the file has keys like "model.diffusion_model.input_blocks.0.0.weight": this is not a component in the layout of diffusers`,
		"text_encoder": "is stored as U8 in ",
	} {
		c, err := ck.Component(name)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Match([]Want{{"w", []int{6, 1}, dtypes.Float32}}, nil)
		wantError(t, err, want)
	}
}

func TestNonFinite(t *testing.T) {
	data := float32Bytes(1, 2, float32(math.Inf(1)), 4)
	if got := NonFinite(data, dtypes.Float32); got != 2 {
		t.Errorf("got %d, want 2", got)
	}
	if got := NonFinite(data[:8], dtypes.Float32); got != -1 {
		t.Errorf("got %d, want -1", got)
	}
	if got := NonFinite([]byte{0, 0, 0xc0, 0x7f}, dtypes.BFloat16); got != 1 {
		t.Errorf("bfloat16: got %d, want 1", got)
	}
	if got := NonFinite([]byte{0xff, 0xff}, dtypes.Uint8); got != -1 {
		t.Errorf("integers: got %d, want -1", got)
	}
}

// reference is the folder of the golden tests: the one that PRECAST_REFERENCE names, else the whole set beside the repository, else the part
// of it that the repository ships.
func reference(t *testing.T) string {
	t.Helper()
	for _, dir := range []string{
		os.Getenv("PRECAST_REFERENCE"),
		filepath.Join("..", "..", "..", "shared", "reference"),
		filepath.Join("..", "..", "tests", "testdata"),
	} {
		if _, err := os.Stat(filepath.Join(dir, "tiny")); dir != "" && err == nil {
			return dir
		}
	}
	t.Fatal("no reference set: tests/testdata is not there")
	return ""
}

// Every checkpoint that diffusers wrote opens, sharded and with variants, without a note that nothing asked for.
func TestReferenceCheckpoints(t *testing.T) {
	dirs, err := filepath.Glob(filepath.Join(reference(t), "tiny", "*", "model"))
	if err != nil || len(dirs) == 0 {
		t.Fatal("no checkpoints", err)
	}
	for _, dir := range dirs {
		var golden struct{ Variant string }
		if data, err := os.ReadFile(filepath.Join(dir, "..", "golden.json")); err == nil {
			// JSON of Python's, with infinities: what comes before them is enough.
			_ = json.Unmarshal(bytes.ReplaceAll(data, []byte("-Infinity"), []byte("0")), &golden)
		}
		ck, err := OpenWith(dir, Options{Variant: golden.Variant})
		if err != nil {
			t.Error(err)
			continue
		}
		for _, name := range ck.Components() {
			if files, _ := filepath.Glob(filepath.Join(dir, name, "*.safetensors")); name == "vae" && len(files) == 0 {
				continue // left out of the repository: tests/testdata/README.md
			}
			c, err := ck.Component(name)
			if err != nil {
				t.Error(err)
				continue
			}
			switch {
			case strings.Contains(c.Class, "Tokenizer"), strings.Contains(c.Class, "Processor"):
				continue
			case strings.HasSuffix(c.Class, "Scheduler"):
				_, err = c.Config()
			default:
				err = ck.Check(name)
			}
			if err != nil {
				t.Error(err)
			}
		}
		if n := ck.Notes(); len(n) > 0 {
			t.Errorf("%s: notes %q", dir, n)
		}
		if err := ck.Close(); err != nil {
			t.Error(err)
		}
	}
}
