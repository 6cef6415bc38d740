package precast

import (
	"maps"
	"slices"
	"strings"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/pipelines"
	"precast/graph/pipelines/configs"
	"precast/passes"
)

// ModelConfigs returns the names that Config.ModelConfig takes.
func ModelConfigs() []string { return configs.Names() }

func openModelConfig(path string, cfg *Config) (*checkpoint.Checkpoint, error) {
	if path != "" {
		return nil, userErrorf("model-config: give either a folder or --model-config; found %q and %q", path, cfg.ModelConfig)
	}
	if cfg.Variant != "" {
		return nil, userErrorf("variant: found %q, but --model-config has no weights to choose from", cfg.Variant)
	}
	files, err := configs.Open(cfg.ModelConfig)
	if err != nil {
		return nil, userErrorf("model-config: %w", err)
	}
	ck, err := checkpoint.OpenConfigs(files, cfg.ModelConfig)
	return ck, asUser(err)
}

// ComponentReport counts what the programs of a component read of its weights.
type ComponentReport struct {
	Name string `json:"name"`
	// Weights are the tensors, Parameters their elements. A tensor that several programs read counts once; one that none reads, such as
	// the layers of a text encoder behind the last one that the pipeline uses, does not count.
	Weights    int   `json:"weights"`
	Parameters int64 `json:"parameters"`
}

// parameters counts weights by component.
type parameters map[string]map[string]int64

// add counts the weights of a module of q.
func (c parameters) add(q *pipelines.Program, m *graph.Module) {
	for _, f := range m.Funcs {
		for _, p := range f.Params {
			if p.Kind != graph.Weight || strings.HasPrefix(p.Name, passes.PreparedPrefix) {
				continue
			}
			if c[q.Component] == nil {
				c[q.Component] = map[string]int64{}
			}
			c[q.Component][p.Name] = int64(p.Value.Shape.Size())
		}
	}
}

func (c parameters) report() []ComponentReport {
	var out []ComponentReport
	for _, name := range slices.Sorted(maps.Keys(c)) {
		r := ComponentReport{Name: name, Weights: len(c[name])}
		for _, n := range c[name] {
			r.Parameters += n
		}
		out = append(out, r)
	}
	return out
}
