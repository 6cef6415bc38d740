package tests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"

	"precast"
	"precast/graph"
	"precast/graph/checkpoint"
)

// Tests of reports in docs/bugs.md that no other test had.

// copied is a copy of a checkpoint of testdata.
func copied(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	must(t, os.CopyFS(dir, os.DirFS(carriedModel(t, name))))
	return dir
}

// encode opens a checkpoint and encodes a request's texts.
func encode(t *testing.T, dir string, r *precast.Request) (precast.Embeds, error) {
	t.Helper()
	p, err := precast.Open(t.Context(), dir, precast.Config{Backend: "go", NoCache: true})
	if err != nil {
		return nil, err
	}
	defer p.Close()
	return p.Encode(t.Context(), r)
}

// TestUMT5Embedding: Wan's text encoder reads its embedding under either name or both, whatever tie_word_embeddings says, and fails where it has neither
// name; it never computes with zeros.
func TestUMT5Embedding(t *testing.T) {
	const file = "text_encoder/model.safetensors"
	r := smallRequest("WanPipeline")
	want, err := encode(t, carriedModel(t, "tp-wan"), r)
	must(t, err)
	if largest := slices.Max(floats(want["prompt_embeds"])); largest == 0 {
		t.Fatal("the embeddings are zeros")
	}
	for _, names := range [][]string{{"shared.weight"}, {"encoder.embed_tokens.weight"}, {"shared.weight", "encoder.embed_tokens.weight"}, nil} {
		for _, tied := range []bool{true, false} {
			t.Run(fmt.Sprintf("%v, tied %v", names, tied), func(t *testing.T) {
				dir := copied(t, "tp-wan")
				editJSON(t, filepath.Join(dir, "text_encoder/config.json"), map[string]any{"tie_word_embeddings": tied})
				editTensors(t, filepath.Join(dir, file), func(items []checkpoint.Item) []checkpoint.Item {
					i := slices.IndexFunc(items, func(x checkpoint.Item) bool { return x.Key == "shared.weight" })
					shared := items[i]
					items = slices.Delete(items, i, i+1)
					for _, n := range names {
						x := shared
						x.Key = n
						items = append(items, x)
					}
					return items
				})
				got, err := encode(t, dir, r)
				if names == nil {
					if err == nil || !strings.Contains(err.Error(), `missing tensor "shared.weight"`) || !strings.Contains(err.Error(), "text_encoder") {
						t.Errorf("found %v, wanted the missing tensor", err)
					}
					return
				}
				must(t, err)
				for name := range want {
					if !bytes.Equal(got[name].Data, want[name].Data) {
						t.Errorf("%s differs", name)
					}
				}
			})
		}
	}
}

// TestDefaultsOfAnotherModel: without its sizes a config has those of its class, FLUX.2-dev's, which klein's weights do not have: the message has the
// field, what it means, what the file has, and a tensor that shows it.
func TestDefaultsOfAnotherModel(t *testing.T) {
	for key, want := range map[string]string{
		"num_layers":          "num_layers: found nothing, which means 8, but the weights have 2 (\"transformer_blocks.",
		"num_single_layers":   "num_single_layers: found nothing, which means 48, but the weights have 2 (\"single_transformer_blocks.",
		"num_attention_heads": "num_attention_heads: found nothing, which means 48, but the weights have 4 (x_embedder.weight F32[48,32])",
		"joint_attention_dim": "joint_attention_dim 15360",
		"attention_head_dim":  "axes_dims_rope: found [2 2 4 4], wanted 4 numbers with the sum attention_head_dim 128",
	} {
		dir := copied(t, "tp-flux2")
		removeKeys(t, filepath.Join(dir, "transformer/config.json"), key)
		d := &damagedCopy{dir: dir, cacheDir: t.TempDir(), decoder: true}
		d.refused(t, key, "transformer", want)
	}
}

// TestQuantizedWeights: packed weights of four bits have shapes of their own; that they are quantized is said, not that their shapes differ.
func TestQuantizedWeights(t *testing.T) {
	everyPipeline(t, func(t *testing.T, name string) {
		d := &damagedCopy{dir: copied(t, name), cacheDir: t.TempDir()}
		d.decoder = hasDecoder(t, d.dir)
		for component, files := range weightFiles(t, d.dir) {
			if component == "vae" {
				continue
			}
			config := filepath.Join(component, "config.json")
			var fields map[string]any
			must(t, json.Unmarshal(readFile(t, filepath.Join(d.dir, config)), &fields))
			fields["quantization_config"] = map[string]any{"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4"}
			text, err := json.Marshal(fields)
			must(t, err)
			putConfig := d.damage(t, config, text)
			file, key := readWeight(t, d.dir, component, files)
			items := tensors(t, filepath.Join(d.dir, file))
			for i := range items {
				if items[i].Key == key {
					items[i].DType, items[i].Shape = dtypes.Uint8, []int{len(items[i].Data), 1}
				}
			}
			path := filepath.Join(t.TempDir(), "packed.safetensors")
			must(t, checkpoint.WriteFile(path, items, map[string]string{"format": "pt"}))
			putFile := d.damage(t, file, readFile(t, path))
			d.refused(t, component, config, "quantization_config: found weights quantized by bitsandbytes")
			putFile()
			putConfig()
		}
	})
}

// programInputs are the dtypes of a program's arguments by name.
func programInputs(t *testing.T, p *precast.Pipeline, name string) map[string]graph.DType {
	t.Helper()
	s, err := p.SizesFor(smallRequest(p.Class()))
	must(t, err)
	q, err := p.Program(name, s)
	must(t, err)
	out := map[string]graph.DType{}
	for _, in := range q.Inputs() {
		out[in.Name] = in.Shape.DType
	}
	return out
}

// TestForceUpcast: in float16 SDXL's decoder computes in float32 where its config asks for that, and says so. What the switch turns off and on is the
// dtype of what the decoder is given.
func TestForceUpcast(t *testing.T) {
	for _, upcast := range []bool{true, false} {
		dir := copied(t, "sdxl")
		editJSON(t, filepath.Join(dir, "vae/config.json"), map[string]any{"force_upcast": upcast})
		p := openPipeline(t, dir, precast.Config{Backend: "go", NoCache: true, DType: "float16"})
		want := dtypes.Float16
		if upcast {
			want = dtypes.Float32
		}
		for name, got := range programInputs(t, p, "vae.decoder") {
			if got != want {
				t.Errorf("force_upcast %v: the decoder's %s is %s, wanted %s", upcast, name, got, want)
			}
		}
		if got := programInputs(t, p, "unet")["sample"]; got != dtypes.Float16 {
			t.Errorf("force_upcast %v: the UNet's sample is %s", upcast, got)
		}
		if said := strings.Contains(strings.Join(p.Notes(), "\n"), "the vae computes in float32"); said != upcast {
			t.Errorf("force_upcast %v: said so is %v: %v", upcast, said, p.Notes())
		}
	}
}

// TestPaddingTokens: in FLUX.1 and SD3 the text's padding takes part in attention, as in diffusers, so that its embedding changes the other tokens; Wan
// masks it and puts zeros behind the text.
func TestPaddingTokens(t *testing.T) {
	for _, tc := range []struct {
		name, component string
		attended        bool
	}{{"flux1-schnell", "text_encoder_2", true}, {"tp-sd3", "text_encoder_3", true}, {"tp-wan", "text_encoder", false}} {
		t.Run(tc.name, func(t *testing.T) {
			dir := copied(t, tc.name)
			r := smallRequest(pipelineClass(t, dir))
			r.Prompt, r.NegativePrompt = []string{"a red cat"}, []string{"x"}
			before, err := encode(t, dir, r)
			must(t, err)
			file, key := readWeight(t, dir, tc.component, weightFiles(t, dir)[tc.component])
			editTensors(t, filepath.Join(dir, file), func(items []checkpoint.Item) []checkpoint.Item {
				for _, x := range items {
					if x.Key == key {
						// Token 0 is the padding of T5.
						row := x.Data[:len(x.Data)/x.Shape[0]]
						for i := x.DType.Size() - 1; i < len(row); i += x.DType.Size() {
							row[i] ^= 0x80
						}
					}
				}
				return items
			})
			after, err := encode(t, dir, r)
			must(t, err)
			h := before["prompt_embeds"]
			length, width := h.Shape.Dimensions[1], h.Shape.Dimensions[2]
			x, y := floats(h), floats(after["prompt_embeds"])
			rows := func(v []float32, i int) []float32 { return v[i*width : (i+1)*width] }
			zero := make([]float32, width)
			// T5's first row: SD3 has CLIP's before it.
			first := length - r.MaxSequenceLength
			if same := slices.Equal(rows(x, first), rows(y, first)); same == tc.attended {
				t.Errorf("another padding: the first token's embedding is the same: %v", same)
			}
			if zeros := slices.Equal(rows(x, length-1), zero); zeros == tc.attended {
				t.Errorf("the last row is zeros: %v", zeros)
			}
			if slices.Equal(rows(x, first), zero) {
				t.Error("the first token's embedding is zeros")
			}
		})
	}
}

// TestGuidanceInput: a transformer is told the guidance where its config has guidance_embeds, and has no such argument where it has not. That the number
// is scaled once by 1000 is seen in the goldens of time_text_embed and of the runs.
func TestGuidanceInput(t *testing.T) {
	for _, name := range []string{"flux1-dev", "flux1-schnell", "flux2-dev", "tp-flux2"} {
		for _, told := range []bool{true, false} {
			dir := copied(t, name)
			editJSON(t, filepath.Join(dir, "transformer/config.json"), map[string]any{"guidance_embeds": told})
			p := openPipeline(t, dir, precast.Config{Backend: "go", NoCache: true})
			// Flux2KleinPipeline gives none, whatever the config says.
			want := told && p.Class() != "Flux2KleinPipeline"
			if _, has := programInputs(t, p, "transformer")["guidance"]; has != want {
				t.Errorf("%s: guidance_embeds %v: has the argument: %v", name, told, has)
			}
			must(t, p.Close())
		}
	}
}

// TestBugReports: every test that docs/bugs.md names exists, and every row has one.
func TestBugReports(t *testing.T) {
	functions := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	named := regexp.MustCompile("`([\\w./]*) (Test\\w+)((?:/[^`]+)?)`")
	rows := regexp.MustCompile(`^\| \d+ \| `)
	found := 0
	for line := range strings.Lines(string(readFile(t, filepath.Join("..", "docs", "bugs.md")))) {
		if !rows.MatchString(line) {
			continue
		}
		found++
		tests := named.FindAllStringSubmatch(line, -1)
		if len(tests) == 0 || !strings.Contains(line, "https://github.com/") {
			t.Errorf("a row without a test or a report: %s", line)
		}
		for _, m := range tests {
			var source []byte
			files, err := filepath.Glob(filepath.Join("..", m[1], "*_test.go"))
			must(t, err)
			for _, f := range files {
				source = append(source, readFile(t, f)...)
			}
			if !slices.ContainsFunc(functions.FindAllSubmatch(source, -1), func(f [][]byte) bool { return string(f[1]) == m[2] }) {
				t.Errorf("%s has no %s: %s", m[1], m[2], line)
			}
			// The name of a subtest stands in the source, or it is a script's.
			for part := range strings.SplitSeq(strings.TrimPrefix(m[3], "/"), "/") {
				script := filepath.Join("..", m[1], "testdata", "script", part+".txtar")
				if _, err := os.Stat(script); part != "" && err != nil && !bytes.Contains(source, []byte(`"`+part+`"`)) {
					t.Errorf("%s %s has no subtest %q", m[1], m[2], part)
				}
			}
		}
	}
	if found < 30 {
		t.Errorf("found %d rows", found)
	}
}
