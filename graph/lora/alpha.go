package lora

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"precast/graph/checkpoint"
)

// metadataKey is where diffusers keeps the adapters' configs in a file's header (loaders/lora_base.py, LORA_ADAPTER_METADATA_KEY).
const metadataKey = "lora_adapter_metadata"

// adapter is what a config of PEFT says about the ranks and alphas of one component's layers.
type adapter struct {
	where         string
	rank          int
	alpha         float64
	ranks, alphas []pattern
	sqrt          bool // use_rslora: alpha / sqrt(rank)
}

// pattern is a value for the modules whose names end with what the expression matches.
type pattern struct {
	form  *regexp.Regexp
	value float64
}

// readAdapters finds the adapters' configs: in the file's header, by component, or in the adapter_config.json that PEFT writes beside a file whose
// keys begin with base_model.model.
func readAdapters(m *model, f *checkpoint.File, entries []*entry) (map[string]*adapter, error) {
	out := map[string]*adapter{}
	if text := f.Metadata()[metadataKey]; text != "" {
		cfg, err := checkpoint.ParseConfig(metadataKey, []byte(text))
		if err != nil {
			return nil, err
		}
		// The keys are COMPONENT.FIELD.
		fields := map[string][]string{}
		for _, key := range cfg.Keys() {
			if component, field, ok := strings.Cut(key, "."); ok {
				fields[component] = append(fields[component], field)
			}
		}
		for component, list := range fields {
			if out[component], err = parseAdapter(cfg, component+".", list); err != nil {
				return nil, err
			}
		}
		for _, e := range entries {
			if e.alpha != nil && len(out) > 0 {
				return nil, fmt.Errorf("found alphas both in the header (%s) and as tensors (%s), wanted one of them", metadataKey, e.alpha.Key)
			}
		}
		return out, nil
	}
	peft := false
	for _, e := range entries {
		peft = peft || strings.HasPrefix(e.name, "base_model.model.")
	}
	path := filepath.Join(filepath.Dir(f.Path()), "adapter_config.json")
	if _, err := os.Stat(path); !peft || errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	cfg, err := checkpoint.ReadConfig(path)
	if err != nil {
		return nil, err
	}
	a, err := parseAdapter(cfg, "", cfg.Keys())
	if err != nil {
		return nil, err
	}
	for component := range m.components {
		out[component] = a
	}
	return out, nil
}

// unknownSettings are fields of a LoraConfig that change what an adapter means when they are set.
var unknownSettings = []string{
	"alora_invocation_tokens", "arrow_config", "fan_in_fan_out", "kasa_config", "layer_replication", "mica", "modules_to_save", "monteclora_config", "target_parameters",
	"trainable_token_indices", "use_bdlora", "use_qalora", "velora_config",
}

// parseAdapter reads a LoraConfig (peft, tuners/lora/config.py) whose fields have the prefix.
func parseAdapter(cfg *checkpoint.Config, prefix string, fields []string) (*adapter, error) {
	a := &adapter{where: cfg.File()}
	if kind := cfg.String(prefix+"peft_type", "LORA"); kind != "LORA" {
		return nil, fmt.Errorf("%s: %speft_type: found %s, wanted LORA", cfg.File(), prefix, kind)
	}
	a.rank = cfg.PositiveInt(prefix+"r", 8)
	a.alpha = cfg.Float(prefix+"lora_alpha", 8)
	a.sqrt = cfg.Bool(prefix+"use_rslora", false)
	a.ranks = patterns(cfg, prefix+"rank_pattern")
	a.alphas = patterns(cfg, prefix+"alpha_pattern")
	for _, name := range unknownSettings {
		switch raw := string(cfg.Raw(prefix + name)); raw {
		case "", "null", "false", "[]", "{}":
		default:
			cfg.Problem(prefix+name, "found %.60s, which is not supported", raw)
		}
	}
	return a, cfg.Err()
}

// patterns reads rank_pattern or alpha_pattern: regular expressions that match a module's name whole or after a dot, the first that matches
// counts (peft, utils/other.py, get_pattern_key).
func patterns(cfg *checkpoint.Config, key string) []pattern {
	o := cfg.Object(key)
	if o == nil {
		return nil
	}
	var list []pattern
	for _, p := range o.Keys() {
		form, err := regexp.Compile(`^(?:.*\.)?(?:` + p + `)$`)
		if err != nil {
			o.Problem(p, "found an expression that can't be read: %v", err)
			continue
		}
		var v float64
		if raw := o.Raw(p); raw == nil || json.Unmarshal(raw, &v) != nil || math.IsInf(v, 0) {
			o.Problem(p, "found %s, wanted a number", raw)
			continue
		}
		list = append(list, pattern{form, v})
	}
	return list
}

// valueFor returns the value for a module, def where no pattern matches. Patterns may or may not have the level that transformers 5 dropped from CLIP.
func valueFor(list []pattern, module string, def float64) float64 {
	for _, p := range list {
		if p.form.MatchString(module) || p.form.MatchString(strings.TrimPrefix(module, "text_model.")) {
			return p.value
		}
	}
	return def
}

// factorOf is alpha / rank for a layer: by the adapter's config, else by the layer's own alpha, else 1, which is what the trainers mean where
// they write none.
func factorOf(e *entry, p place, a *adapter, rank int) (factor float64, problem string) {
	if a != nil {
		want := valueFor(a.ranks, p.module, float64(a.rank))
		if float64(rank) != want {
			return 0, fmt.Sprintf("the factors have rank %d, but %s gives %g", rank, a.where, want)
		}
		alpha := valueFor(a.alphas, p.module, a.alpha)
		if a.sqrt {
			return alpha / math.Sqrt(float64(rank)), ""
		}
		return alpha / float64(rank), ""
	}
	if e.alpha == nil {
		return 1, ""
	}
	if e.alpha.Len() != 1 {
		return 0, fmt.Sprintf("%s has shape %v, wanted one number", e.alpha.Key, e.alpha.Shape)
	}
	alpha, err := number(e.alpha)
	if err != nil {
		return 0, fmt.Sprintf("%s is stored as %s, wanted a number", e.alpha.Key, e.alpha.DType)
	}
	return alpha / float64(rank), ""
}

// number is a tensor's only element. Trainers that are given a whole number store an integer.
func number(t *checkpoint.Tensor) (float64, error) {
	if isFloat(t.DType) {
		v, err := t.Float64s()
		if err != nil {
			return 0, err
		}
		return v[0], nil
	}
	v, err := t.Int64s()
	if err != nil {
		return 0, err
	}
	return float64(v[0]), nil
}
