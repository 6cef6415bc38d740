package lora

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"

	"precast/graph/checkpoint"
)

const (
	fluxModel = "../../tests/testdata/tiny/flux1-dev/model"
	sdModel   = "../../tests/testdata/tiny/sd15/model"
)

func open(t *testing.T, dir string) *checkpoint.Checkpoint {
	t.Helper()
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ck.Close() })
	return ck
}

// item is a tensor of small numbers, of the index alone.
func item(key string, shape ...int) checkpoint.Item {
	n := 1
	for _, d := range shape {
		n *= d
	}
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(math.Sin(float64(i+len(key)))) / 8
	}
	return floatItem(key, v, shape...)
}

func floatItem(key string, v []float32, shape ...int) checkpoint.Item {
	var data []byte
	for _, x := range v {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(x))
	}
	return checkpoint.Item{Key: key, DType: dtypes.Float32, Shape: shape, Data: data}
}

func write(t *testing.T, metadata map[string]string, items ...checkpoint.Item) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.safetensors")
	if err := checkpoint.WriteFile(path, items, metadata); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestParseSpec(t *testing.T) {
	dir := t.TempDir()
	odd := filepath.Join(dir, "a:1")
	if err := os.WriteFile(odd, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text string
		want Spec
		err  string
	}{
		{"x.safetensors", Spec{"x.safetensors", 1}, ""},
		{"x.safetensors:0.8", Spec{"x.safetensors", 0.8}, ""},
		{"x.safetensors:-1e-2", Spec{"x.safetensors", -0.01}, ""},
		{`C:\x.safetensors`, Spec{`C:\x.safetensors`, 1}, ""},
		{`C:\x.safetensors:2`, Spec{`C:\x.safetensors`, 2}, ""},
		{odd, Spec{odd, 1}, ""},
		{odd + ":0.5", Spec{odd, 0.5}, ""},
		{"x.safetensors:strong", Spec{}, `found the scale "strong", wanted a number`},
		{"x.safetensors:", Spec{}, `found the scale "", wanted a number`},
		{"x.safetensors:nan", Spec{}, "wanted a finite number"},
		{"x.safetensors:-inf", Spec{}, "wanted a finite number"},
		{":0.5", Spec{}, "found no file"},
		{"", Spec{}, "found no file"},
	} {
		got, err := ParseSpec(c.text)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%q: error %v, want %q", c.text, err, c.err)
			}
		} else if err != nil || got != c.want {
			t.Errorf("%q: %v, %v", c.text, got, err)
		}
	}
}

// TestErrors has a file for each thing that can be wrong with one.
func TestErrors(t *testing.T) {
	const q = "transformer.transformer_blocks.0.attn.to_q" // [48, 48]
	good := []checkpoint.Item{item(q+".lora_A.weight", 2, 48), item(q+".lora_B.weight", 48, 2)}
	with := func(more ...checkpoint.Item) []checkpoint.Item {
		return append(append([]checkpoint.Item{}, good...), more...)
	}
	one := func(key string) []checkpoint.Item { return with(item(key, 2, 2)) }
	nan := floatItem(q+".lora_B.weight", make([]float32, 96), 48, 2)
	binary.LittleEndian.PutUint32(nan.Data[4*7:], math.Float32bits(float32(math.NaN())))
	integer := checkpoint.Item{Key: q + ".lora_A.weight", DType: dtypes.Int8, Shape: []int{2, 48}, Data: make([]byte, 96)}
	for _, c := range []struct {
		name     string
		metadata map[string]string
		items    []checkpoint.Item
		want     []string
	}{
		{
			"homeless", nil, with(item("transformer.transformer_blocks.9.attn.to_q.lora_A.weight", 2, 48), item("transformer.transformer_blocks.9.attn.to_q.lora_B.weight", 48, 2),
				item("unet.conv_in.lora_A.weight", 2, 48), item("something.weight", 3)),
			[]string{
				"keys that name no layer of this checkpoint (4)", "transformer.transformer_blocks.9.attn.to_q.lora_A.weight",
				"transformer.transformer_blocks.9.attn.to_q.lora_B.weight", "unet.conv_in.lora_A.weight", "something.weight",
			},
		},
		{
			"norm", nil, with(item("transformer.transformer_blocks.0.attn.norm_q.lora_A.weight", 2, 16), item("transformer.transformer_blocks.0.attn.norm_q.lora_B.weight", 1, 2)),
			[]string{"no layer", "norm_q.lora_A.weight", "norm_q.lora_B.weight"},
		},
		{"kohya's T5 by the wrong number", nil, with(item("lora_te2_encoder_block_0_layer_0_SelfAttention_q.lora_down.weight", 2, 2)), []string{"no layer", "lora_te2_"}},
		{"a checkpoint", nil, []checkpoint.Item{item("transformer_blocks.0.attn.to_q.weight", 48, 48)}, []string{"this is no LoRA", "MODULE.lora_A.weight"}},
		{"empty", nil, nil, []string{"this is no LoRA"}},
		{"rank", nil, []checkpoint.Item{good[0], item(q+".lora_B.weight", 48, 3)}, []string{q, "ranks of the factors differ", "[2 48]", "[48 3]"}},
		{"rank 0", nil, []checkpoint.Item{item(q+".lora_A.weight", 0, 48), item(q+".lora_B.weight", 48, 0)}, []string{q, "ranks"}},
		{"rows", nil, []checkpoint.Item{good[0], item(q+".lora_B.weight", 47, 2)}, []string{q, "47 rows", "[48 48]"}},
		{"columns", nil, []checkpoint.Item{item(q+".lora_A.weight", 2, 64), good[1]}, []string{q, "[2 64]", "[48 48]"}},
		{
			"a control LoRA's wider input", nil, with(item("transformer.x_embedder.lora_A.weight", 2, 64), item("transformer.x_embedder.lora_B.weight", 48, 2)),
			[]string{"transformer.x_embedder", "[2 64]", "[48 32]"},
		},
		{"vector", nil, []checkpoint.Item{item(q+".lora_A.weight", 96), good[1]}, []string{q, "wanted [rank, in]"}},
		{"fused rows", nil, []checkpoint.Item{
			item("lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight", 2, 48), item("lora_unet_double_blocks_0_img_attn_qkv.lora_up.weight", 96, 2),
		}, []string{"96 rows", "attn.to_q, transformer.transformer_blocks.0.attn.to_k", "144 together"}},
		{"half", nil, good[:1], []string{q, "wanted both factors"}},
		{"alpha alone", nil, with(item("transformer.x_embedder.alpha", 1)), []string{"transformer.x_embedder", "no factors"}},
		{"alpha that is no number", nil, with(checkpoint.Item{Key: q + ".alpha", DType: dtypes.Complex64, Data: make([]byte, 8)}), []string{q + ".alpha is stored as Complex64, wanted a number"}},
		{"alpha of two", nil, with(item(q+".alpha", 2)), []string{q + ".alpha has shape [2], wanted one number"}},
		{
			"twice", nil, with(item("base_model.model.transformer_blocks.0.attn.to_q.lora_A.weight", 2, 48), item("base_model.model.transformer_blocks.0.attn.to_q.lora_B.weight", 48, 2)),
			[]string{"found it as base_model.model.transformer_blocks.0.attn.to_q and as " + q},
		},
		{"two ends", nil, with(item(q+".lora_down.weight", 2, 48)), []string{"found both " + q + ".lora_A.weight and " + q + ".lora_down.weight"}},
		{"NaN", nil, []checkpoint.Item{good[0], nan}, []string{q + ".lora_B.weight holds NaN or infinity at element 7"}},
		{"integers", nil, []checkpoint.Item{integer, good[1]}, []string{q, "wanted a floating-point type"}},
		{"bias without a bias", nil, with(item("text_encoder_2.encoder.block.0.layer.0.SelfAttention.q.lora_B.bias", 48)), []string{"SelfAttention.q", "no factors"}},
		{"magnitude", nil, with(item(q+".lora_magnitude_vector", 47)), []string{q, "magnitude has shape [47]"}},
		{"LoHa", nil, one("lora_unet_double_blocks_0_img_attn_proj.hada_w1_a"), []string{"found LoHa"}},
		{"LoKr", nil, one("transformer.x_embedder.lokr_w1"), []string{"found LoKr"}},
		{"LoCon", nil, one("lora_unet_conv_in.lora_mid.weight"), []string{"found LoCon with a Tucker core"}},
		{"DoRA of kohya", nil, one("lora_unet_double_blocks_0_img_attn_proj.dora_scale"), []string{"found DoRA in kohya's spelling"}},
		{"OFT", nil, one("lora_unet_conv_in.oft_blocks"), []string{"found OFT"}},
		{"IA3", nil, one("lora_unet_conv_in.on_input"), []string{"found (IA)^3"}},
		{"embedding", nil, one("text_encoder.text_model.embeddings.token_embedding.lora_embedding_A"), []string{"found LoRA of an embedding"}},
		{"difference", nil, one("lora_unet_conv_in.diff_b"), []string{"found a full difference"}},
		{"metadata that is no JSON", map[string]string{metadataKey: "{"}, good, []string{metadataKey}},
		{"metadata's rank", map[string]string{metadataKey: `{"transformer.r": 4, "transformer.lora_alpha": 4}`}, good, []string{q, "rank 2, but " + metadataKey + " gives 4"}},
		{"metadata's pattern", map[string]string{metadataKey: `{"transformer.r": 2, "transformer.rank_pattern": {"(": 4}}`}, good, []string{"transformer.rank_pattern", "can't be read"}},
		{"metadata's value", map[string]string{metadataKey: `{"transformer.r": 2, "transformer.alpha_pattern": {"to_q": "a lot"}}`}, good, []string{"alpha_pattern", "wanted a number"}},
		{"metadata's setting", map[string]string{metadataKey: `{"transformer.r": 2, "transformer.layer_replication": [[0, 4]]}`}, good, []string{"transformer.layer_replication", "not supported"}},
		{"another method", map[string]string{metadataKey: `{"transformer.peft_type": "LOHA"}`}, good, []string{"transformer.peft_type: found LOHA, wanted LORA"}},
		{"two alphas", map[string]string{metadataKey: `{"transformer.r": 2}`}, with(floatItem(q+".alpha", []float32{1})), []string{"found alphas both in the header", q + ".alpha"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := write(t, c.metadata, c.items...)
			s, err := Open(open(t, fluxModel), []Spec{{path, 1}})
			if err == nil {
				s.Close()
				t.Fatal("no error")
			}
			for _, want := range append(c.want, path) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error has no %q: %v", want, err)
				}
			}
		})
	}
	t.Run("no file", func(t *testing.T) {
		if _, err := Open(open(t, fluxModel), []Spec{{"nowhere.safetensors", 1}}); err == nil || !strings.Contains(err.Error(), "nowhere.safetensors") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("zip", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "x.safetensors")
		if err := os.WriteFile(path, append([]byte("PK\x03\x04\x14\x00\x08\x08"), make([]byte, 100)...), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(open(t, fluxModel), []Spec{{path, 1}}); err == nil || !strings.Contains(err.Error(), "PyTorch zip file") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("all files", func(t *testing.T) {
		_, err := Open(open(t, fluxModel), []Spec{{"a.safetensors", 1}, {"b.safetensors", 1}})
		if err == nil || !strings.Contains(err.Error(), "a.safetensors") || !strings.Contains(err.Error(), "b.safetensors") {
			t.Errorf("error %v", err)
		}
	})
}

// otherClass is a checkpoint whose model_index.json names another pipeline.
func otherClass(t *testing.T, model, class string) string {
	t.Helper()
	dir := t.TempDir()
	entries, err := os.ReadDir(model)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		from, err := filepath.Abs(filepath.Join(model, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if e.IsDir() {
			err = os.Symlink(from, filepath.Join(dir, e.Name()))
		} else {
			var data []byte
			if data, err = os.ReadFile(from); err == nil {
				text := strings.ReplaceAll(string(data), `"FluxPipeline"`, `"`+class+`"`)
				err = os.WriteFile(filepath.Join(dir, e.Name()), []byte(text), 0o644)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestOtherPipelines reads the spelling of diffusers for every pipeline and refuses the others by name.
func TestOtherPipelines(t *testing.T) {
	ck := open(t, otherClass(t, fluxModel, "WanPipeline"))
	const q = "transformer_blocks.0.attn.to_q"
	for _, prefix := range []string{"transformer.", "base_model.model.", ""} {
		s, err := Open(ck, []Spec{{write(t, nil, item(prefix+q+".lora_A.weight", 2, 48), item(prefix+q+".lora_B.weight", 48, 2)), 1}})
		if err != nil {
			t.Fatalf("%q: %v", prefix, err)
		}
		if !s.Touches("transformer", q+".weight") {
			t.Errorf("%q: the layer is not touched", prefix)
		}
		s.Close()
	}
	for _, key := range []string{"lora_unet_blocks_0_self_attn_q.lora_down.weight", "diffusion_model.blocks.0.self_attn.q.lora_A.weight", "lora_transformer_transformer_blocks_0_attn_to_q.lora_down.weight"} {
		_, err := Open(ck, []Spec{{write(t, nil, item(key, 2, 48)), 1}})
		if err == nil || !strings.Contains(err.Error(), "WanPipeline takes the spelling of diffusers: transformer.MODULE.lora_A.weight") || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: error %v", key, err)
		}
	}
}

// TestTwoSpellings has one layer in two spellings: that of diffusers counts, as in diffusers.
func TestTwoSpellings(t *testing.T) {
	ck := open(t, fluxModel)
	const flat = "lora_unet_double_blocks_0_img_attn_proj"
	path := write(t, nil, item("transformer.transformer_blocks.0.attn.to_out.0.lora_A.weight", 2, 48), item("transformer.transformer_blocks.0.attn.to_out.0.lora_B.weight", 48, 2),
		item(flat+".lora_down.weight", 3, 48), item(flat+".lora_up.weight", 48, 3))
	s, err := Open(ck, []Spec{{path, 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	list := s.updates["transformer"]["transformer_blocks.0.attn.to_out.0.weight"]
	if len(list) != 1 || list[0].rank != 2 {
		t.Errorf("%d updates", len(list))
	}
	if notes := s.Notes(); len(notes) != 1 || !strings.Contains(notes[0], flat) {
		t.Errorf("notes %q", notes)
	}
}

// TestNames finds layers by names that no golden has.
func TestNames(t *testing.T) {
	for _, c := range []struct{ model, name, want string }{
		{fluxModel, "lora_te3_encoder_block_0_layer_0_SelfAttention_q", "text_encoder_2.encoder.block.0.layer.0.SelfAttention.q"},
		{fluxModel, "text_encoders.t5xxl.transformer.encoder.block.1.layer.1.DenseReluDense.wo", "text_encoder_2.encoder.block.1.layer.1.DenseReluDense.wo"},
		{fluxModel, "text_encoders.clip_l.transformer.text_model.encoder.layers.0.mlp.fc2", "text_encoder.text_model.encoder.layers.0.mlp.fc2"},
		{fluxModel, "base_model.model.encoder.layers.0.mlp.fc2", "text_encoder.text_model.encoder.layers.0.mlp.fc2"},
		{fluxModel, "lora_unet_time_in_in_layer", "transformer.time_text_embed.timestep_embedder.linear_1"},
		{fluxModel, "lora_unet_guidance_in_out_layer", "transformer.time_text_embed.guidance_embedder.linear_2"},
		{fluxModel, "diffusion_model.img_in", "transformer.x_embedder"},
		{fluxModel, "diffusion_model.txt_in", "transformer.context_embedder"},
		{fluxModel, "diffusion_model.final_layer.linear", "transformer.proj_out"},
		{fluxModel, "single_blocks.2.linear1", "transformer.single_transformer_blocks.2.attn.to_q, transformer.single_transformer_blocks.2.attn.to_k, transformer.single_transformer_blocks.2.attn.to_v, transformer.single_transformer_blocks.2.proj_mlp"},
		{fluxModel, "lora_unet_double_blocks_99_img_mlp_0", ""},
		{fluxModel, "lora_unet_double_blocks_99999999999999999999_img_mlp_0", ""},
		{fluxModel, "vae.decoder.conv_in", ""},
		{fluxModel, "text_encoder", ""},
		{sdModel, "lora_unet_input_blocks_1_1_transformer_blocks_0_attn1_to_q", "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"},
		{sdModel, "lora_unet_middle_block_2_in_layers_2", "unet.mid_block.resnets.1.conv1"},
		{sdModel, "lora_unet_input_blocks_0_0", "unet.conv_in"},
		{sdModel, "lora_unet_input_blocks_0_1_x", ""},
		{sdModel, "lora_unet_input_blocks_999_1_proj_in", ""},
		{sdModel, "lora_te1_text_model_encoder_layers_0_self_attn_q_proj", "text_encoder.text_model.encoder.layers.0.self_attn.q_proj"},
		{sdModel, "lora_te2_text_model_encoder_layers_0_self_attn_q_proj", ""},
		{sdModel, "down_blocks.0.attentions.0.transformer_blocks.0.attn1.processor.to_out", "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_out.0"},
		{sdModel, "lora_prior_x", ""},
	} {
		m, err := newModel(open(t, c.model))
		if err != nil {
			t.Fatal(err)
		}
		if places, _, _ := m.resolve(c.name); modulesOf(places) != c.want {
			t.Errorf("%s is %q, want %q", c.name, modulesOf(places), c.want)
		}
	}
}

// FuzzOpen reads files with any key, adapter and shape: no panic, and what is taken can be added.
func FuzzOpen(f *testing.F) {
	for _, key := range []string{
		"transformer.transformer_blocks.0.attn.to_q", "lora_unet_double_blocks_0_img_attn_qkv", "base_model.model.x_embedder", "double_blocks.0.processor.qkv_lora1",
		"text_encoder.text_model.encoder.layers.0.self_attn.to_q", "lora_te1_text_model_encoder_layers_0_mlp_fc1", "lora_transformer_x_embedder",
	} {
		f.Add(key, ".lora_A.weight", ".lora_B.weight", `{"transformer.r": 2, "transformer.rank_pattern": {"to_q": 2}}`, 2, 48, 48)
		f.Add(key, ".lora_down.weight", ".lora_up.weight", "", 1, 32, 144)
	}
	ck, err := checkpoint.Open(fluxModel)
	if err != nil {
		f.Fatal(err)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, key, down, up, metadata string, rank, in, out int) {
		if rank < 0 || in < 0 || out < 0 || rank > 64 || in > 512 || out > 512 || key+down == key+up {
			return
		}
		path := filepath.Join(dir, "x.safetensors")
		m := map[string]string{metadataKey: metadata}
		if err := checkpoint.WriteFile(path, []checkpoint.Item{item(key+down, rank, in), item(key+up, out, rank), item(key + ".alpha")}, m); err != nil {
			return
		}
		s, err := Open(ck, []Spec{{path, 0.5}})
		if err != nil {
			return
		}
		defer s.Close()
		for component, list := range s.updates {
			comp, err := ck.Component(component)
			if err != nil {
				t.Fatal(err)
			}
			tensors, err := comp.Tensors()
			if err != nil {
				t.Fatal(err)
			}
			for key := range list {
				w := tensors[key]
				if err := s.Fold(make([]byte, 2*w.Len()), dtypes.BFloat16, component, w); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// TestFactors checks alpha / rank from each place that it can come from.
func TestFactors(t *testing.T) {
	ck := open(t, fluxModel)
	const module = "single_transformer_blocks.1.attn.to_q"
	factor := func(metadata, config string, alpha *checkpoint.Item, prefix string) float64 {
		t.Helper()
		items := []checkpoint.Item{item(prefix+module+".lora_A.weight", 4, 48), item(prefix+module+".lora_B.weight", 48, 4)}
		if alpha != nil {
			alpha.Key = prefix + module + ".alpha"
			items = append(items, *alpha)
		}
		var m map[string]string
		if metadata != "" {
			m = map[string]string{metadataKey: metadata}
		}
		path := write(t, m, items...)
		if config != "" {
			if err := os.WriteFile(filepath.Join(filepath.Dir(path), "adapter_config.json"), []byte(config), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		s, err := Open(ck, []Spec{{path, 0.5}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		return s.updates["transformer"][module+".weight"][0].factor
	}
	alpha := floatItem("", []float32{6})
	whole := checkpoint.Item{DType: dtypes.Int64, Data: binary.LittleEndian.AppendUint64(nil, 16)}
	for _, c := range []struct {
		name             string
		metadata, config string
		alpha            *checkpoint.Item
		prefix           string
		want             float64
	}{
		{"none", "", "", nil, "transformer.", 0.5},
		{"tensor", "", "", &alpha, "transformer.", 0.5 * 6 / 4},
		{"integer", "", "", &whole, "transformer.", 0.5 * 16 / 4},
		{"header", `{"transformer.r": 4, "transformer.lora_alpha": 8}`, "", nil, "transformer.", 0.5 * 8 / 4},
		{"header of another component", `{"text_encoder.r": 3}`, "", nil, "transformer.", 0.5},
		{
			"header's patterns", `{"transformer.r": 2, "transformer.lora_alpha": 8, "transformer.rank_pattern": {"to_q": 4}, "transformer.alpha_pattern": {"o_q": 1, "attn\\.to_[qk]": 2, "to_q": 3}}`,
			"", nil, "transformer.", 0.5 * 2 / 4,
		},
		{"a whole name", `{"transformer.r": 2, "transformer.lora_alpha": 8, "transformer.rank_pattern": {"^single_transformer_blocks.1.attn.to_q": 4}}`, "", nil, "transformer.", 0.5 * 8 / 4},
		{"rank-stabilised", `{"transformer.r": 4, "transformer.lora_alpha": 8, "transformer.use_rslora": true}`, "", nil, "transformer.", 0.5 * 8 / 2},
		{"PEFT's file", "", `{"peft_type": "LORA", "r": 4, "lora_alpha": 12}`, nil, "base_model.model.", 0.5 * 12 / 4},
		{"PEFT's file is not for others", "", `{"peft_type": "LORA", "r": 4, "lora_alpha": 12}`, nil, "transformer.", 0.5},
	} {
		if got := factor(c.metadata, c.config, c.alpha, c.prefix); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%s: factor %g, want %g", c.name, got, c.want)
		}
	}
}

// TestFold compares Fold with its formula in float64, for every pair of types and each kind of update, with shapes that fill no block.
func TestFold(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	random := func(n int) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(r.NormFloat64())
		}
		return v
	}
	const rows, in, kernel = 70, 53, 9
	cols := in * kernel
	base, down1, up1 := random(rows*cols), random(5*cols), random(2*rows*5)
	down2, up2, magnitude := random(3*cols), random(rows*3), random(rows)
	for i := range magnitude {
		magnitude[i] = 1 + magnitude[i]*magnitude[i]
	}
	sum := make([]float64, len(base))
	for _, from := range []dtypes.DType{dtypes.Float32, dtypes.BFloat16, dtypes.Float16} {
		stored := make([]byte, len(base)*from.Size())
		if err := checkpoint.ConvertBytes(stored, from, bytesOf(base), dtypes.Float32); err != nil {
			t.Fatal(err)
		}
		path := write(t, nil, checkpoint.Item{Key: "w", DType: from, Shape: []int{rows, in, 3, 3}, Data: stored},
			floatItem("down1", down1, 5, in, 3, 3), floatItem("up1", up1, 2*rows, 5, 1, 1), floatItem("down2", down2, 3, in, 3, 3), floatItem("up2", up2, rows, 3, 1, 1),
			floatItem("magnitude", magnitude, 1, rows, 1, 1), item("b", rows), floatItem("db", magnitude, rows))
		f, err := checkpoint.OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		get := func(key string) checkpoint.Tensor {
			x, ok := f.Tensor(key)
			if !ok {
				t.Fatal(key)
			}
			return x
		}
		m, db := get("magnitude"), get("db")
		s := &Set{updates: map[string]map[string][]*update{"unet": {
			"w": {
				{down: get("down1"), up: get("up1"), rank: 5, first: rows, swap: true, factor: 0.25},
				{down: get("down2"), up: get("up2"), rank: 3, factor: -1.5, magnitude: &m},
			},
			"b": {{bias: &db, factor: 2}},
		}}}
		w := get("w")
		values, err := w.Float64s()
		if err != nil {
			t.Fatal(err)
		}
		for i := range rows {
			var square float64
			for j := range cols {
				v := values[i*cols+j]
				for k := range 5 {
					v += 0.25 * float64(up1[(rows+(i+rows/2)%rows)*5+k]) * float64(down1[k*cols+j])
				}
				for k := range 3 {
					v -= 1.5 * float64(up2[i*3+k]) * float64(down2[k*cols+j])
				}
				sum[i*cols+j] = v
				square += v * v
			}
			for j := range cols {
				sum[i*cols+j] *= float64(magnitude[i]) / math.Sqrt(square)
			}
		}
		for to, limit := range map[dtypes.DType]float64{dtypes.Float32: 2e-6, dtypes.BFloat16: 1.0 / 256, dtypes.Float16: 1.0 / 2048} {
			t.Run(fmt.Sprintf("%s to %s", from, to), func(t *testing.T) {
				got, wide := make([]byte, len(base)*to.Size()), make([]float32, len(base))
				if err := s.Fold(got, to, "unet", w); err != nil {
					t.Fatal(err)
				}
				if err := checkpoint.ConvertBytes(bytesOf(wide), dtypes.Float32, got, to); err != nil {
					t.Fatal(err)
				}
				for i, v := range sum {
					// Half a unit of the last place, and what float32 sums lose.
					if d := math.Abs(float64(wide[i]) - v); d > limit*math.Abs(v)+1e-6 {
						t.Fatalf("element %d is %g, want %g", i, wide[i], v)
					}
				}
			})
		}
		got := make([]float32, rows)
		if err := s.Fold(bytesOf(got), dtypes.Float32, "unet", get("b")); err != nil {
			t.Fatal(err)
		}
		was, err := get("b").Float32s()
		if err != nil {
			t.Fatal(err)
		}
		for i := range got {
			if math.Abs(float64(got[i]-(was[i]+2*magnitude[i]))) > 1e-5 {
				t.Fatalf("bias %d is %g", i, got[i])
			}
		}
	}
}

// TestFoldOverflow makes a weight that float16 can't hold.
func TestFoldOverflow(t *testing.T) {
	ck := open(t, sdModel)
	const key = "unet.mid_block.attentions.0.transformer_blocks.0.attn1.to_q"
	comp, err := ck.Component("unet")
	if err != nil {
		t.Fatal(err)
	}
	tensors, err := comp.Tensors()
	if err != nil {
		t.Fatal(err)
	}
	w := tensors["mid_block.attentions.0.transformer_blocks.0.attn1.to_q.weight"]
	path := write(t, nil, item(key+".lora_A.weight", 2, w.Shape[1]), item(key+".lora_B.weight", w.Shape[0], 2))
	s, err := Open(ck, []Spec{{path, 1e9}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Fold(make([]byte, 4*w.Len()), dtypes.Float32, "unet", w); err != nil {
		t.Errorf("float32: %v", err)
	}
	err = s.Fold(make([]byte, 2*w.Len()), dtypes.Float16, "unet", w)
	if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), "infinite in Float16") {
		t.Errorf("float16: %v", err)
	}
}

// TestAdd4 compares the vector form with the plain one, for every remainder.
func TestAdd4(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for n := range 40 {
		rows := make([][]float32, 6)
		for i := range rows {
			rows[i] = make([]float32, n)
			for j := range rows[i] {
				rows[i][j] = float32(r.NormFloat64())
			}
		}
		copy(rows[5], rows[4])
		add4(rows[4], rows[0], rows[1], rows[2], rows[3], 1.5, -2, 0.25, 3)
		add4Scalar(rows[5], rows[0], rows[1], rows[2], rows[3], 1.5, -2, 0.25, 3)
		for j := range n {
			if math.Abs(float64(rows[4][j]-rows[5][j])) > 1e-5 {
				t.Fatalf("%d elements: element %d is %g, want %g", n, j, rows[4][j], rows[5][j])
			}
		}
	}
}

// BenchmarkFold is a layer of FLUX.1-dev's feed-forward with a LoRA of rank 16.
func BenchmarkFold(b *testing.B) {
	const rows, cols, rank = 12288, 3072, 16
	path := filepath.Join(b.TempDir(), "x.safetensors")
	err := checkpoint.WriteFile(path, []checkpoint.Item{
		{Key: "w", DType: dtypes.BFloat16, Shape: []int{rows, cols}, Data: make([]byte, 2*rows*cols)},
		{Key: "down", DType: dtypes.BFloat16, Shape: []int{rank, cols}, Data: make([]byte, 2*rank*cols)},
		{Key: "up", DType: dtypes.BFloat16, Shape: []int{rows, rank}, Data: make([]byte, 2*rank*rows)},
	}, nil)
	if err != nil {
		b.Fatal(err)
	}
	f, err := checkpoint.OpenFile(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	w, _ := f.Tensor("w")
	down, _ := f.Tensor("down")
	up, _ := f.Tensor("up")
	s := &Set{updates: map[string]map[string][]*update{"transformer": {"w": {{down: down, up: up, rank: rank, factor: 1}}}}}
	dst := make([]byte, 2*rows*cols)
	b.SetBytes(2 * rows * cols)
	for b.Loop() {
		if err := s.Fold(dst, dtypes.BFloat16, "transformer", w); err != nil {
			b.Fatal(err)
		}
	}
}
