package precast

import (
	"context"
	"runtime"
	"slices"
	"strings"

	"github.com/gomlx/compute/dtypes"
	"golang.org/x/sync/errgroup"

	"precast/graph"
	"precast/graph/pipelines"
	"precast/graph/pipelines/configs"
	"precast/passes"
)

// ModelInfo describes a pipeline class, or one published model of it.
type ModelInfo struct {
	// Class is the pipeline's class in diffusers, Makes what it makes of what.
	Class string   `json:"class"`
	Makes []string `json:"makes"`
	// Configs are the published models of the class that Config.ModelConfig knows; Example is the one that Components describes.
	Configs    []string         `json:"configs"`
	Example    string           `json:"example"`
	Components []ModelComponent `json:"components"`
	// DTypes are those that networks can be computed in.
	DTypes []string `json:"dtypes"`
	// Verified says which runs of the reference were compared with diffusers.
	Verified []pipelines.Verified `json:"verified"`
}

// ModelComponent is a network of a pipeline.
type ModelComponent struct {
	Name       string `json:"name"`
	Class      string `json:"class"`
	Parameters int64  `json:"parameters"`
	// Repeated are the classes of repeated blocks that are found in its graph.
	Repeated []Block `json:"repeated_blocks,omitempty"`
	// Float32 are the modules whose weights stay float32 where the rest is computed in bfloat16, by the last parts of their names.
	Float32 []string `json:"kept_in_float32,omitempty"`
}

// Models describes the supported pipelines: all where name is empty, else the published model (as in ModelConfigs) or class of that name. What it
// says of components is read from graphs that it traces, at a small size.
func Models(ctx context.Context, name string) ([]ModelInfo, error) {
	byClass := map[string][]string{}
	for _, n := range configs.Names() {
		p, err := Open(ctx, "", Config{ModelConfig: n})
		if err != nil {
			return nil, err
		}
		byClass[p.Class()] = append(byClass[p.Class()], n)
		if err := p.Close(); err != nil {
			return nil, err
		}
	}
	var list []ModelInfo
	for _, class := range pipelines.Classes() {
		m := ModelInfo{Class: class, Makes: pipelines.Makes(class), Configs: byClass[class], DTypes: []string{"float32", "bfloat16", "float16"}}
		for _, v := range pipelines.VerifiedRuns() {
			if v.Class == class {
				m.Verified = append(m.Verified, v)
			}
		}
		for _, n := range m.Configs {
			if m.Example == "" || strings.EqualFold(n, name) {
				m.Example = n
			}
		}
		if name == "" || strings.EqualFold(class, name) || strings.EqualFold(m.Example, name) {
			list = append(list, m)
		}
	}
	if len(list) == 0 {
		return nil, userErrorf("models: %q is neither a pipeline class nor a published model; the classes are %s; the models are %s", name, strings.Join(pipelines.Classes(), ", "), strings.Join(configs.Names(), ", "))
	}
	var group errgroup.Group
	group.SetLimit(runtime.NumCPU())
	for i := range list {
		if list[i].Example == "" {
			continue
		}
		group.Go(func() error {
			return guarded(list[i].Example, func() (err error) {
				list[i].Components, err = modelComponents(ctx, list[i].Example)
				return err
			})
		})
	}
	return list, group.Wait()
}

// modelComponents traces the networks of a published model in bfloat16.
func modelComponents(ctx context.Context, name string) ([]ModelComponent, error) {
	p, err := Open(ctx, "", Config{ModelConfig: name, DType: "bfloat16", Regions: "split"})
	if err != nil {
		return nil, err
	}
	defer p.Close()
	req := Request{Prompt: []string{""}, Height: 256, Width: 256, NumImagesPerPrompt: 1}
	if slices.Contains(pipelines.Makes(p.Class()), "text to video") {
		req.NumFrames = 5
	}
	if err := p.complete(&req); err != nil {
		return nil, err
	}
	programs, err := p.pipe.Programs(&req)
	if err != nil {
		return nil, asUser(err)
	}
	var out []ModelComponent
	for _, q := range programs {
		if q.Component == "" {
			continue
		}
		i := slices.IndexFunc(out, func(c ModelComponent) bool { return c.Name == q.Component })
		if i < 0 {
			i = len(out)
			out = append(out, ModelComponent{Name: q.Component})
			if comp, err := p.ck.Component(q.Component); err == nil {
				out[i].Class = comp.Class
			}
		} else if q.Stage != StageDecode {
			continue
		}
		m, err := p.engine.trace(q)
		if err != nil {
			return nil, err
		}
		counts := parameters{}
		counts.add(q, m)
		for _, r := range counts.report() {
			out[i].Parameters = max(out[i].Parameters, r.Parameters)
		}
		var r ProgramReport
		describeModule(&r, m)
		if len(out[i].Repeated) == 0 {
			out[i].Repeated = r.Blocks
			out[i].Float32 = float32Modules(m)
		}
	}
	return out, nil
}

// float32Modules lists the modules that have float32 weights, each once by its name without the numbers of repeated blocks.
func float32Modules(m *graph.Module) []string {
	var names []string
	for _, q := range moduleWeights(m) {
		if q.DType != graph.DTypeName(dtypes.Float32) {
			continue
		}
		if passes.IsPrepared(q.Name) {
			continue
		}
		parts := strings.Split(q.Name, ".")
		if last := parts[len(parts)-1]; len(parts) > 1 && (last == "weight" || last == "bias") {
			parts = parts[:len(parts)-1]
		}
		parts = slices.DeleteFunc(parts, func(s string) bool { return strings.Trim(s, "0123456789") == "" })
		names = append(names, strings.Join(parts, "."))
	}
	slices.Sort(names)
	return slices.Compact(names)
}
