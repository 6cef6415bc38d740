package precast

import (
	"context"
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
	files, name, err := configs.Open(cfg.ModelConfig)
	if err != nil {
		return nil, userErrorf("model-config: %w", err)
	}
	ck, err := checkpoint.OpenConfigs(files, name)
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

// add counts the weights of a module of q: those of its main function and of the one that prepares weights. A function outlined of
// repeated blocks has names of its own for what its callers give it.
func (c parameters) add(q *pipelines.Program, m *graph.Module) {
	for _, f := range []*graph.Func{m.Entry(), m.Func(passes.PrepareFunc)} {
		if f == nil {
			continue
		}
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

// openPath is the argument that Open takes for what is inspected.
func (x *Inspection) openPath(o InspectOptions) string {
	if x.Path == o.Config.ModelConfig {
		return ""
	}
	return x.Path
}

// modelConfig describes the configs of a published checkpoint; what its weights would be is counted in the traced graphs.
func (x *Inspection) modelConfig(o InspectOptions) error {
	p, err := Open(context.Background(), x.openPath(o), o.Config)
	if err != nil {
		return err
	}
	defer p.Close()
	x.Path = p.ck.Dir()
	shapes, programs, err := p.programsFor(CompileOptions{Shapes: []Sizes{o.Sizes}})
	if err != nil {
		return err
	}
	counts := parameters{}
	info := &CheckpointInfo{Pipeline: p.Class(), Supported: true, Sizes: &shapes[0]}
	for _, q := range programs {
		if _, err := p.compileTo(q, "trace", counts); err != nil {
			return err
		}
		info.Programs = append(info.Programs, ProgramInfo{Name: q.Name, Component: q.Component, Spec: q.Spec})
	}
	counted := map[string]ComponentReport{}
	for _, r := range counts.report() {
		counted[r.Name] = r
	}
	for _, name := range p.ck.Components() {
		c := ComponentInfo{Name: name, Tensors: counted[name].Weights, Parameters: counted[name].Parameters}
		if comp, err := p.ck.Component(name); err == nil {
			c.Class, c.Library = comp.Class, comp.Library
			info.Components = append(info.Components, c)
		}
	}
	info.Notes = append(p.Notes(), "these are configs without weights: tensors and parameters are counted in the graphs, so what no program reads is left out")
	x.Checkpoint = info
	return nil
}
