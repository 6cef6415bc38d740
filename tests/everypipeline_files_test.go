package tests

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"

	"precast"
	"precast/graph/checkpoint"
)

// damagedCopy is a copy of a checkpoint of testdata that is damaged in one file at a time.
type damagedCopy struct {
	dir, cacheDir string
	decoder       bool
}

// damage replaces a file, or removes it where data is nil, and returns what puts it back.
func (d *damagedCopy) damage(t *testing.T, file string, data []byte) (restore func()) {
	t.Helper()
	path := filepath.Join(d.dir, file)
	was := readFile(t, path)
	if data == nil {
		must(t, os.Remove(path))
	} else {
		writeFile(t, path, data)
	}
	return func() { writeFile(t, path, was) }
}

// run makes the smallest picture and returns what was made of programs until then.
func (d *damagedCopy) run(t *testing.T) (pictures [][]byte, made int64, err error) {
	t.Helper()
	p, err := precast.Open(t.Context(), d.dir, precast.Config{Backend: "go", CacheDir: d.cacheDir, Threads: 1})
	if err != nil {
		return nil, 0, err
	}
	defer p.Close()
	r := smallRequest(p.Class())
	r.NumInferenceSteps = 2
	if d.decoder {
		var out *precast.Result
		if out, err = p.Generate(t.Context(), r); err == nil {
			for _, i := range out.Images {
				pictures = append(pictures, i.RGB)
			}
		}
	} else {
		var latents *precast.HostTensor
		if latents, _, err = p.Denoise(t.Context(), r); err == nil {
			pictures = [][]byte{latents.Data}
		}
	}
	c := p.Stats().Counts
	return pictures, c["trace"] + c["execute"], err
}

// refused asserts an error that holds the words, before any program is traced or run.
func (d *damagedCopy) refused(t *testing.T, what string, words ...string) {
	t.Helper()
	_, made, err := d.run(t)
	d.judge(t, what, err, words...)
	if err != nil && made != 0 {
		t.Errorf("%s: found after work was done: %v", what, err)
	}
}

func (d *damagedCopy) judge(t *testing.T, what string, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: a picture, wanted an error", what)
		return
	}
	if internal, ok := errors.AsType[*precast.InternalError](err); ok {
		t.Errorf("%s: the message says that it is our fault: %v", what, internal)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: the message lacks %q:\n%.1500s", what, w, err)
		}
	}
}

// weightFiles are the safetensors files of each component, by its name.
func weightFiles(t *testing.T, dir string) map[string][]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*", "*.safetensors"))
	must(t, err)
	out := map[string][]string{}
	for _, f := range files {
		component := filepath.Base(filepath.Dir(f))
		out[component] = append(out[component], filepath.Join(component, filepath.Base(f)))
	}
	return out
}

// TestEveryPipelineBadWeights damages the weight files of each component of each pipeline: a tensor that is missing, has another shape or is not
// finite, a file that is cut or gone (bugs.md, rows 1, 3, 12, 17 and 22).
func TestEveryPipelineBadWeights(t *testing.T) {
	everyPipeline(t, func(t *testing.T, name string) {
		d := &damagedCopy{dir: filepath.Join(t.TempDir(), "model"), cacheDir: t.TempDir()}
		must(t, os.CopyFS(d.dir, os.DirFS(carriedModel(t, name))))
		d.decoder = hasDecoder(t, d.dir)
		if _, _, err := d.run(t); err != nil {
			t.Fatal(err)
		}
		components := weightFiles(t, d.dir)
		if len(components) < 2 {
			t.Fatalf("found only %v", components)
		}
		for component, files := range components {
			file, read := readWeight(t, d.dir, component, files)
			base := filepath.Base(file)
			was := readFile(t, filepath.Join(d.dir, file))
			// edit runs with another tensor in the file; f gets one that is read.
			edit := func(what string, f func(x *checkpoint.Item), words ...string) {
				t.Helper()
				items := tensors(t, filepath.Join(d.dir, file))
				i := slices.IndexFunc(items, func(x checkpoint.Item) bool { return x.Key == read })
				// Where a class had other names, the message has the present one.
				words = append(words, strings.TrimPrefix(read, "language_model."))
				f(&items[i])
				path := filepath.Join(t.TempDir(), base)
				must(t, checkpoint.WriteFile(path, slices.DeleteFunc(items, func(x checkpoint.Item) bool { return x.Key == "" }), map[string]string{"format": "pt"}))
				defer d.damage(t, file, readFile(t, path))()
				if what == "NaN" {
					_, _, err := d.run(t)
					d.judge(t, component+": "+what, err, words...)
					return
				}
				d.refused(t, component+": "+what, words...)
			}
			edit("a missing tensor", func(x *checkpoint.Item) { x.Key = "" }, component)
			edit("a tensor of another shape", func(x *checkpoint.Item) {
				x.Shape = append([]int{1}, x.Shape...)
				x.Shape[0], x.Shape[1] = x.Shape[1], x.Shape[0]
			}, component, base, "the config gives")
			edit("NaN", func(x *checkpoint.Item) {
				// A NaN in every width; of an embedding only some rows are read.
				for i := range x.Data {
					x.Data[i] = 0x7f
				}
				if x.DType == dtypes.Float32 || x.DType == dtypes.BFloat16 {
					for i := x.DType.Size() - 2; i < len(x.Data); i += x.DType.Size() {
						x.Data[i] = 0xff
					}
				}
			}, component, base, "NaN")
			for what, data := range map[string][]byte{"cut": was[:len(was)-1000], "empty": {}, "a header alone": was[:9]} {
				restore := d.damage(t, file, data)
				d.refused(t, component+": "+what, file)
				restore()
			}
			restore := d.damage(t, file, nil)
			if len(files) == 1 {
				d.refused(t, component+": gone", component, "found no weights")
			} else {
				d.refused(t, component+": gone", base)
			}
			restore()
		}
	})
}

// readWeight finds a tensor that every run reads and its file: not one of parts that pipelines leave out, such as encoders of pictures and last layers of
// text encoders.
func readWeight(t *testing.T, dir, component string, files []string) (file, key string) {
	t.Helper()
	read := func(key string) bool {
		switch {
		case component == "vae":
			return strings.HasPrefix(key, "decoder.")
		case strings.HasPrefix(component, "text_encoder"):
			return strings.Contains(key, "token_embedding") || strings.HasPrefix(key, "shared.") || strings.Contains(key, "embed_tokens") && !strings.Contains(key, "vis")
		}
		return strings.Contains(key, "s.0.") && strings.HasSuffix(key, "to_q.weight")
	}
	for _, f := range files {
		for _, x := range tensors(t, filepath.Join(dir, f)) {
			if read(x.Key) {
				return f, x.Key
			}
		}
	}
	t.Fatalf("%s: %v have no tensor that is known to be read", component, files)
	return "", ""
}

// TestEveryPipelineBadParts takes away or empties what is beside the weights: entries of model_index.json, configs, each file of each tokenizer. A
// part that a pipeline can do without makes no difference; another is named (bugs.md, row 20).
func TestEveryPipelineBadParts(t *testing.T) {
	everyPipeline(t, func(t *testing.T, name string) {
		d := &damagedCopy{dir: filepath.Join(t.TempDir(), "model"), cacheDir: t.TempDir()}
		must(t, os.CopyFS(d.dir, os.DirFS(carriedModel(t, name))))
		d.decoder = hasDecoder(t, d.dir)
		class := pipelineClass(t, d.dir)
		want, _, err := d.run(t)
		must(t, err)
		// either runs a damage that may be an error or no damage.
		either := func(what string, words ...string) {
			t.Helper()
			got, made, err := d.run(t)
			if err != nil {
				d.judge(t, what, err, words...)
				if made != 0 {
					t.Errorf("%s: found after work was done: %v", what, err)
				}
			} else if !slices.EqualFunc(got, want, slices.Equal[[]byte]) {
				t.Errorf("%s: another picture", what)
			}
		}
		var index map[string]json.RawMessage
		must(t, json.Unmarshal(readFile(t, filepath.Join(d.dir, "model_index.json")), &index))
		for key, value := range index {
			var pair []any
			if json.Unmarshal(value, &pair) != nil || len(pair) != 2 || pair[0] == nil {
				continue
			}
			// What only some checkpoints have.
			optional := class == "StableDiffusion3Pipeline" && (key == "text_encoder_3" || key == "tokenizer_3") || class == "WanPipeline" && key == "transformer_2"
			for what, v := range map[string]string{"null": "null", "[null, null]": "[null, null]", "another class": `["diffusers", "AutoencoderTiny"]`, "gone": ""} {
				restore := d.damage(t, "model_index.json", editedIndex(t, index, key, v))
				switch {
				case optional && what != "another class":
					if _, _, err := d.run(t); err != nil {
						d.judge(t, key+": "+what, err, key)
					}
				default:
					d.refused(t, key+": "+what, key)
				}
				restore()
			}
		}
		must(t, fs.WalkDir(os.DirFS(d.dir), ".", func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || strings.HasSuffix(path, ".safetensors") || path == "model_index.json" {
				return err
			}
			folder := filepath.Dir(path)
			// Without the settings of a tokenizer, those of its class hold; and any text is a template.
			settings := filepath.Base(path) == "tokenizer_config.json"
			for what, data := range map[string][]byte{"gone": nil, "empty": {}, "binary": []byte("\x00\xff\xfe\x01"), "{}": []byte("{}")} {
				if what == "{}" && filepath.Base(path) == "config.json" {
					continue // the defaults of the class are another model
				}
				words := path
				if what == "gone" {
					words = folder
				}
				restore := d.damage(t, path, data)
				if what == "{}" || settings && what == "gone" {
					if _, _, err := d.run(t); err != nil {
						d.judge(t, path+": "+what, err, folder)
					}
				} else {
					either(path+": "+what, words)
				}
				restore()
			}
			return nil
		}))
	})
}

// editedIndex is an index with one entry replaced, or left out where value is empty.
func editedIndex(t *testing.T, index map[string]json.RawMessage, key, value string) []byte {
	t.Helper()
	changed := map[string]json.RawMessage{}
	for k, v := range index {
		switch {
		case k != key:
			changed[k] = v
		case value != "":
			changed[k] = json.RawMessage(value)
		}
	}
	data, err := json.Marshal(changed)
	must(t, err)
	return data
}
