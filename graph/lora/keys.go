package lora

import (
	"fmt"
	"maps"
	"regexp"
	"slices"

	"github.com/gomlx/compute/dtypes"

	"precast/graph/checkpoint"
)

// entry is what a file has for one module, by the module's spelling in the file.
type entry struct {
	name                             string
	keys                             []string
	down, up, alpha, magnitude, bias *checkpoint.Tensor
	places                           []place
	rank                             int // of its spelling, see spelling
}

// partForms are the ends of keys, which say what a tensor is to its module; the module's name stands before.
var partForms = []struct {
	form *regexp.Regexp
	// part is empty where the form's first group says it.
	part string
}{
	// PEFT, and diffusers since it uses PEFT; a name of the adapter may stand in between.
	{regexp.MustCompile(`^(?P<name>.+)\.lora_(?P<part>A|B)(\.[\w-]+)?\.weight$`), ""},
	{regexp.MustCompile(`^(?P<name>.+)\.lora_B(\.[\w-]+)?\.bias$`), "bias"},
	{regexp.MustCompile(`^(?P<name>.+)\.lora_magnitude_vector(\.[\w-]+)?(\.weight)?$`), "magnitude"},
	// X-Labs' FLUX.1: double_blocks.0.processor.qkv_lora1.down.weight.
	{regexp.MustCompile(`^(?P<name>.+\.processor\.(qkv|proj)_lora\d?)\.(?P<part>down|up)\.weight$`), ""},
	// diffusers before: unet.MODULE.lora.down.weight, ATTENTION.processor.to_q_lora.down.weight, and of text encoders.
	{regexp.MustCompile(`^(?P<name>.+)[._]lora\.(?P<part>down|up)\.weight$`), ""},
	{regexp.MustCompile(`^(?P<name>.+)\.lora_linear_layer\.(?P<part>down|up)\.weight$`), ""},
	// kohya's sd-scripts.
	{regexp.MustCompile(`^(?P<name>.+)\.lora_(?P<part>down|up)\.weight$`), ""},
	{regexp.MustCompile(`^(?P<name>.+)\.alpha$`), "alpha"},
}

// refused are the ends of keys of other kinds of files, and the method's name.
var refused = []struct {
	form *regexp.Regexp
	what string
}{
	{regexp.MustCompile(`\.hada_(w1|w2|t1|t2)`), "LoHa (Hadamard product)"},
	{regexp.MustCompile(`\.lokr_(w1|w2|t2)`), "LoKr (Kronecker product)"},
	{regexp.MustCompile(`\.lora_mid\.weight$`), "LoCon with a Tucker core (lora_mid)"},
	{regexp.MustCompile(`\.dora_scale$`), "DoRA in kohya's spelling (dora_scale), whose scale diffusers leaves out; save it in the spelling of PEFT (lora_magnitude_vector)"},
	{regexp.MustCompile(`\.(oft_blocks|oft_diag|oft_r|oft_R|boft_\w+)(\.|$)`), "OFT"},
	{regexp.MustCompile(`\.(on_input|ia3_l)(\.|$)`), "(IA)^3"},
	{regexp.MustCompile(`\.lora_embedding_[AB](\.|$)`), "LoRA of an embedding"},
	{regexp.MustCompile(`\.(diff|diff_b|set_weight)$`), "a full difference of weights"},
	{regexp.MustCompile(`\.(a1|a2|b1|b2|c1)\.weight$`), "GLoRA"},
	{regexp.MustCompile(`\.(vera_lambda_[bd]|hra_u|poly_lora_[AB]|randlora_\w+|vblora_\w+)(\.|$)`), "another PEFT method"},
}

// parseKeys sorts a file's tensors by module. Keys that are no part of a LoRA are homeless.
func parseKeys(f *checkpoint.File) ([]*entry, faults) {
	byName := map[string]*entry{}
	var bad faults
	for _, key := range slices.Sorted(slices.Values(f.Keys())) {
		for _, r := range refused {
			if r.form.MatchString(key) && bad.method == "" {
				bad.method = fmt.Sprintf("found %s (key %q), wanted a plain LoRA or a DoRA of PEFT", r.what, key)
			}
		}
		t, _ := f.Tensor(key)
		name, part := splitKey(key)
		if part == "" {
			bad.homeless = append(bad.homeless, key)
			continue
		}
		e := byName[name]
		if e == nil {
			e = &entry{name: name}
			byName[name] = e
		}
		e.keys = append(e.keys, key)
		slot := map[string]**checkpoint.Tensor{"down": &e.down, "up": &e.up, "alpha": &e.alpha, "magnitude": &e.magnitude, "bias": &e.bias}[part]
		if *slot != nil {
			bad.shapes = append(bad.shapes, fmt.Sprintf("%s: found both %s and %s", name, (*slot).Key, key))
			continue
		}
		*slot = &t
	}
	var list []*entry
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		list = append(list, byName[name])
	}
	if len(list) == 0 {
		bad.homeless = nil // no LoRA at all, which says more
	}
	return list, bad
}

// splitKey splits a key into its module's name and what it is; part is empty for a key that is no part of a LoRA.
func splitKey(key string) (name, part string) {
	for _, f := range partForms {
		m := f.form.FindStringSubmatch(key)
		if m == nil {
			continue
		}
		name, part = m[f.form.SubexpIndex("name")], f.part
		if part == "" {
			part = map[string]string{"A": "down", "down": "down", "B": "up", "up": "up"}[m[f.form.SubexpIndex("part")]]
		}
		return name, part
	}
	return "", ""
}

func isFloat(d dtypes.DType) bool {
	switch d {
	case dtypes.Float64, dtypes.Float32, dtypes.Float16, dtypes.BFloat16:
		return true
	}
	return false
}
