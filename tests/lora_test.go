package tests

import (
	"context"
	"encoding/binary"
	"encoding/json"
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

// loraRun is one run that diffusers made with LoRAs fused into the weights: testdata/lora/make_lora.py.
type loraRun struct {
	Model   string `json:"model"`
	Variant string `json:"variant"`
	Call    struct {
		Height            int      `json:"height"`
		Width             int      `json:"width"`
		Steps             int      `json:"num_inference_steps"`
		GuidanceScale     *float64 `json:"guidance_scale"`
		MaxSequenceLength int      `json:"max_sequence_length"`
		Prompt            string   `json:"prompt"`
		NegativePrompt    string   `json:"negative_prompt"`
	} `json:"call"`
	Seed  uint64 `json:"seed"`
	LoRAs []struct {
		File  string  `json:"file"`
		Scale float64 `json:"scale"`
	} `json:"loras"`
}

const loraDir = "testdata/lora"

func loraRuns(t *testing.T) map[string]*loraRun {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(loraDir, "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	runs := map[string]*loraRun{}
	if err := json.Unmarshal(data, &runs); err != nil {
		t.Fatal(err)
	}
	return runs
}

func (r *loraRun) model(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(reference(t), "tiny", r.Model, "model")
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("no reference: %v", err)
	}
	return dir
}

func (r *loraRun) request() *precast.Request {
	req := &precast.Request{
		Prompt: []string{r.Call.Prompt}, Height: r.Call.Height, Width: r.Call.Width, NumInferenceSteps: r.Call.Steps,
		GuidanceScale: r.Call.GuidanceScale, MaxSequenceLength: r.Call.MaxSequenceLength, Seed: r.Seed,
	}
	if r.Call.NegativePrompt != "" {
		req.NegativePrompt = []string{r.Call.NegativePrompt}
	}
	return req
}

// specs are the run's LoRAs as --lora takes them.
func (r *loraRun) specs() []string {
	var list []string
	for _, l := range r.LoRAs {
		list = append(list, fmt.Sprintf("%s:%g", filepath.Join(loraDir, l.File+".safetensors"), l.Scale))
	}
	return list
}

// latentsWith runs a request and returns what each step made.
func latentsWith(t *testing.T, p *precast.Pipeline, req *precast.Request) ([]precast.HostTensor, *precast.Result) {
	t.Helper()
	var seen []precast.HostTensor
	req.Observe = func(name string, h precast.HostTensor) {
		if name == "step_latents" {
			seen = append(seen, h)
		}
	}
	out, err := p.Generate(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	return seen, out
}

// compareLatents compares the latents of all steps with the golden that holds them.
func compareLatents(t *testing.T, file *checkpoint.File, golden string, list []precast.HostTensor) {
	t.Helper()
	g, ok := file.Tensor(golden)
	if !ok {
		t.Fatalf("there is no %s", golden)
	}
	want, err := g.Float32s()
	if err != nil {
		t.Fatal(err)
	}
	var got []float32
	for _, h := range list {
		got = append(got, floats(h)...)
	}
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, golden has %d", golden, len(got), len(want))
	}
	var worst, largest float64
	for i, w := range want {
		worst, largest = max(worst, math.Abs(float64(got[i]-w))), max(largest, math.Abs(float64(w)))
	}
	if !(worst <= runLimit*largest) {
		t.Errorf("%s differs by %g of %g", golden, worst, largest)
	}
	t.Logf("%s: %.1e of the largest value", golden, worst/largest)
}

// TestLoRAGoldens compares runs with LoRAs, in every spelling that files come in, with diffusers' fused pipelines; stacked weights have them, too.
func TestLoRAGoldens(t *testing.T) {
	file, err := checkpoint.OpenFile(filepath.Join(loraDir, "golden.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	runs, cacheDir := loraRuns(t), t.TempDir()
	for _, name := range slices.Sorted(maps.Keys(runs)) {
		r := runs[name]
		for _, v := range [][2]string{{"pjrt", "inline"}, {"go", "inline"}, {"go", "scan"}} {
			backend, regions := v[0], v[1]
			t.Run(name+"/"+backend+"/"+regions, func(t *testing.T) {
				needBackend(t, backend)
				p := openPipeline(t, r.model(t), precast.Config{Backend: backend, Regions: regions, CacheDir: cacheDir, Variant: r.Variant, LoRAs: r.specs()})
				seen, out := latentsWith(t, p, r.request())
				compareLatents(t, file, name+"/step_latents", seen)
				want, ok := file.Tensor(name + "/image_u8")
				if !ok {
					t.Fatal("there is no picture")
				}
				got := out.Images[0]
				if len(got.RGB) != int(want.Size) {
					t.Fatalf("the picture has %d bytes, golden has %d", len(got.RGB), want.Size)
				}
				for i, w := range want.Bytes() {
					if d := int(got.RGB[i]) - int(w); d < -1 || d > 1 {
						t.Fatalf("value %d of the picture is %d, golden is %d", i, got.RGB[i], w)
					}
				}
				var names []string
				for _, l := range r.LoRAs {
					names = append(names, fmt.Sprintf("%s.safetensors:%g", filepath.Base(l.File), l.Scale))
				}
				if noted, _ := out.Params[0].Extra["lora"].([]string); !slices.Equal(noted, names) {
					t.Errorf("the picture's parameters name the LoRAs %q, wanted %q", noted, names)
				}
				if folded := p.Stats().Bytes["folded"]; (folded > 0) != (len(r.LoRAs) > 0) {
					t.Errorf("%d bytes of weights were folded with %d LoRAs", folded, len(r.LoRAs))
				}
			})
		}
	}
}

// TestLoRACompilesNothing fills the cache without a LoRA and then runs with none, one, another scale, another LoRA and two: nothing is traced or compiled.
func TestLoRACompilesNothing(t *testing.T) {
	runs := loraRuns(t)
	for _, backend := range []string{"go", "pjrt"} {
		t.Run(backend, func(t *testing.T) {
			needBackend(t, backend)
			cacheDir := t.TempDir()
			results := map[string]string{}
			for i, name := range []string{"sd-none", "sd-none", "sd-kohya", "sd-old", "sd-two"} {
				r := runs[name]
				for _, scale := range []string{"as recorded", "other"} {
					specs := r.specs()
					if scale == "other" {
						if len(specs) == 0 {
							continue
						}
						specs[0] = specs[0][:strings.LastIndex(specs[0], ":")] + ":0.25"
					}
					t.Run(fmt.Sprintf("%d/%s/%s", i, name, scale), func(t *testing.T) {
						p := openPipeline(t, r.model(t), precast.Config{Backend: backend, CacheDir: cacheDir, LoRAs: specs})
						_, out := latentsWith(t, p, r.request())
						s := p.Stats()
						if i == 0 && s.Counts["compile"] == 0 {
							t.Fatal("the first run compiled nothing")
						}
						if i > 0 {
							for _, what := range []string{"trace", "passes", "lower", "compile", "cache_miss"} {
								if n := s.Counts[what]; n != 0 {
									t.Errorf("%s happened %d times", what, n)
								}
							}
						}
						key := name + "/" + scale
						if was, ok := results[string(out.Images[0].RGB)]; ok && was != key {
							t.Errorf("%s and %s gave one picture", key, was)
						}
						results[string(out.Images[0].RGB)] = key
					})
				}
			}
			t.Run("scale 0", func(t *testing.T) {
				r := runs["sd-kohya"]
				p := openPipeline(t, r.model(t), precast.Config{Backend: backend, CacheDir: cacheDir, LoRAs: []string{filepath.Join(loraDir, "sd-kohya.safetensors:0")}})
				_, out := latentsWith(t, p, r.request())
				if was := results[string(out.Images[0].RGB)]; was != "sd-none/as recorded" {
					t.Errorf("the picture is not that of the model alone")
				}
			})
		})
	}
}

// rewrite writes a LoRA file with other keys, and tensors as edit leaves them. An empty key leaves the tensor out.
func rewrite(t *testing.T, from, to string, edit func(key string, item *checkpoint.Item)) {
	t.Helper()
	f, err := checkpoint.OpenFile(from)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var items []checkpoint.Item
	for _, key := range f.Keys() {
		x, _ := f.Tensor(key)
		item := checkpoint.Item{Key: key, DType: x.DType, Shape: slices.Clone(x.Shape), Data: slices.Clone(x.Bytes())}
		edit(key, &item)
		if item.Key != "" {
			items = append(items, item)
		}
	}
	if err := checkpoint.WriteFile(to, items, f.Metadata()); err != nil {
		t.Fatal(err)
	}
}

// dottedKey turns kohya's underscores into the dots of the published FLUX.1 code.
var dottedKey = strings.NewReplacer("lora_unet_double_blocks_", "double_blocks.", "lora_unet_single_blocks_", "single_blocks.", "_img_attn_", ".img_attn.",
	"_txt_attn_", ".txt_attn.", "_img_mlp_", ".img_mlp.", "_txt_mlp_", ".txt_mlp.", "_img_mod_lin", ".img_mod.lin", "_linear1", ".linear1", "_linear2", ".linear2",
	"_modulation_lin", ".modulation.lin")

// TestLoRASpellings reads one LoRA under further spellings, whose pictures must be equal in every bit.
func TestLoRASpellings(t *testing.T) {
	runs, cacheDir := loraRuns(t), t.TempDir()
	picture := func(t *testing.T, r *loraRun, spec string) (pixels string) {
		model := r.model(t)
		t.Run(filepath.Base(spec), func(t *testing.T) {
			p := openPipeline(t, model, precast.Config{Backend: "go", CacheDir: cacheDir, Variant: r.Variant, LoRAs: []string{spec}})
			_, out := latentsWith(t, p, r.request())
			pixels = string(out.Images[0].RGB)
		})
		return pixels
	}
	peft := strings.NewReplacer("lora_down", "lora_A", "lora_up", "lora_B")
	for _, c := range []struct {
		name, run, file string
		key             func(key string) string
	}{
		{"ComfyUI", "flux-kohya", "flux-kohya", func(key string) string {
			if strings.HasPrefix(key, "lora_te1_") {
				return strings.Replace(key, "lora_te1_text_model_encoder_layers_", "text_encoders.clip_l.transformer.text_model_encoder_layers_", 1)
			}
			return "diffusion_model." + dottedKey.Replace(key)
		}},
		{"PEFT of the published code", "flux-kohya", "flux-kohya", func(key string) string {
			if strings.HasPrefix(key, "lora_te1_") {
				return key
			}
			return "base_model.model." + peft.Replace(dottedKey.Replace(key))
		}},
		{"PEFT's adapter name", "sd-diffusers", "sd-diffusers", func(key string) string {
			return strings.NewReplacer("lora_A.", "lora_A.default.", "lora_B.", "lora_B.default.").Replace(key)
		}},
		{"without the text model's level", "sd-linear-layer", "sd-linear-layer", func(key string) string {
			return strings.ReplaceAll(key, ".text_model.", ".")
		}},
		{"kohya's with diffusers' names", "sdxl-kohya", "sdxl-kohya", func(key string) string {
			return strings.NewReplacer("input_blocks_0_0.", "conv_in.", "out_2.", "conv_out.", "label_emb_0_2", "add_embedding_linear_2",
				"middle_block_1_", "mid_block_attentions_0_", "input_blocks_4_1_", "down_blocks_1_attentions_0_").Replace(key)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := runs[c.run]
			from, to := filepath.Join(loraDir, c.file+".safetensors"), filepath.Join(t.TempDir(), "x.safetensors")
			changed := 0
			rewrite(t, from, to, func(key string, item *checkpoint.Item) {
				if item.Key = c.key(key); item.Key != key {
					changed++
				}
			})
			if changed == 0 {
				t.Fatal("no key was changed")
			}
			if a, b := picture(t, r, from), picture(t, r, to); a != b || a == "" {
				t.Error("the pictures differ")
			}
		})
	}
}

func float32Bytes(v []float32) []byte {
	var out []byte
	for _, x := range v {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(x))
	}
	return out
}

// TestLoRAFinalLayer checks the layer whose halves the published code has in the other order, against the same update in diffusers' order.
func TestLoRAFinalLayer(t *testing.T) {
	r := loraRuns(t)["flux-none"]
	model, dir := r.model(t), t.TempDir()
	file := func(name, key string, swap bool) string {
		const hidden = 48
		down, up := make([]float32, 2*hidden), make([]float32, 2*hidden*2)
		for i := range down {
			down[i] = float32(math.Sin(float64(i)))
		}
		for i := range up {
			k := i
			if swap {
				k = (i + len(up)/2) % len(up)
			}
			up[i] = float32(math.Cos(float64(k))) / 4
		}
		path := filepath.Join(dir, name)
		a, b := key+".lora_A.weight", key+".lora_B.weight"
		err := checkpoint.WriteFile(path, []checkpoint.Item{
			{Key: a, DType: dtypes.Float32, Shape: []int{2, hidden}, Data: float32Bytes(down)},
			{Key: b, DType: dtypes.Float32, Shape: []int{2 * hidden, 2}, Data: float32Bytes(up)},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	var pictures []string
	for _, spec := range []string{
		file("a.safetensors", "transformer.norm_out.linear", false),
		file("b.safetensors", "diffusion_model.final_layer.adaLN_modulation.1", true),
		file("c.safetensors", "diffusion_model.final_layer.adaLN_modulation.1", false),
	} {
		t.Run(filepath.Base(spec), func(t *testing.T) {
			p := openPipeline(t, model, precast.Config{Backend: "go", NoCache: true, LoRAs: []string{spec}})
			_, out := latentsWith(t, p, r.request())
			pictures = append(pictures, string(out.Images[0].RGB))
		})
	}
	if pictures[0] != pictures[1] || pictures[0] == pictures[2] {
		t.Error("the halves are not where they belong")
	}
}
