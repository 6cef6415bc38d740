package precast

import (
	"context"
	"slices"
	"strings"
	"time"

	"precast/cache"
	"precast/graph"
	"precast/graph/pipelines"
	"precast/passes"
)

// CompileOptions say what Compile makes.
type CompileOptions struct {
	// Shapes are the sizes to compile for; empty means one, the pipeline's default. Zero fields of an entry take the default.
	Shapes []Sizes
	// NumInferenceSteps, GuidanceScale and the like choose variants of the step program where the pipeline has several.
	Request Request
	// ImageToImage adds what a request with an image needs: the autoencoder's encoder.
	ImageToImage bool
	// Components restricts the work to programs of these components ("transformer", "vae.decoder"); empty means all.
	Components []string
	// Output is the artifact to write; empty writes none: the cache is filled.
	Output string
	// CompileTo stops after a phase: "trace", a pass's name, "passes" or "stablehlo". Empty compiles.
	CompileTo string
	// Progress is told about each program before it is made.
	Progress func(i, n int, program string)
}

// CompileReport says what Compile did, a line a program.
type CompileReport struct {
	Programs []ProgramReport `json:"programs"`
	// Components counts the weights by component, where no executables were made.
	Components []ComponentReport `json:"components,omitempty"`
	Artifact   string            `json:"artifact,omitempty"`
	Bytes      int64             `json:"bytes"`
}

// ProgramReport describes one program.
type ProgramReport struct {
	Name        string  `json:"name"`
	Spec        string  `json:"spec"`
	Executables int     `json:"executables"`
	Steps       int     `json:"steps"`
	Weights     int     `json:"weights"`
	Prepared    int     `json:"prepared"`
	Bytes       int64   `json:"bytes"`
	Seconds     float64 `json:"seconds"`
	Cached      bool    `json:"cached"`
	Nodes       int     `json:"nodes,omitempty"`
	Blocks      []Block `json:"blocks,omitempty"`
}

// Block is a class of repeated blocks that outlining found.
type Block struct {
	Function  string `json:"function"`
	Class     string `json:"class"`
	Instances int    `json:"instances"`
	Nodes     int    `json:"nodes"`
}

// checkPhase refuses a phase that is not one.
func checkPhase(phase string) error {
	known := append(append([]string{"trace"}, passes.Names()...), "passes", "stablehlo", "executable")
	if phase == "" || slices.Contains(known, phase) {
		return nil
	}
	return userErrorf("compile-to: found %q, wanted one of %s", phase, strings.Join(known, ", "))
}

// Compile makes the programs of every shape ready and, where Output is set, writes them as an artifact.
func (p *Pipeline) Compile(ctx context.Context, o CompileOptions) (*CompileReport, error) {
	if err := checkPhase(o.CompileTo); err != nil {
		return nil, err
	}
	partial := o.CompileTo != "" && o.CompileTo != "executable"
	if partial && o.Output != "" {
		return nil, userErrorf("compile-to %s makes no executables, so there is no artifact to write; leave -o out, or --compile-to", o.CompileTo)
	}
	if o.Output != "" && len(p.cfg.LoRAs) > 0 {
		return nil, userErrorf("lora: an artifact holds programs, which are the same with every LoRA, and no weights; leave it out here, and give it to the run of the artifact")
	}
	if o.Output != "" && p.cfg.modes.some(modeEager) {
		return nil, userErrorf("mode: an artifact holds compiled programs, and --mode %s wants single operations; leave -o out to fill the cache with them", p.cfg.Mode)
	}
	var out *cache.BundleWriter
	if o.Output != "" {
		var err error
		if out, err = cache.Create(o.Output, Version); err != nil {
			return nil, userErrorf("output %q can't be written: %w", o.Output, withoutPath(err))
		}
		defer out.Abort()
	}
	shapes, programs, err := p.programsFor(o)
	if err != nil {
		return nil, err
	}
	report := &CompileReport{Artifact: o.Output}
	if partial {
		counts := parameters{}
		for i, q := range programs {
			if o.Progress != nil {
				o.Progress(i, len(programs), q.ID())
			}
			r, err := p.compileTo(q, o.CompileTo, counts)
			if err != nil {
				return nil, err
			}
			report.Programs = append(report.Programs, *r)
		}
		if i := slices.Index(passes.Names(), "outline-repeated-blocks"); o.CompileTo == "passes" || o.CompileTo == "stablehlo" || slices.Contains(passes.Names()[i:], o.CompileTo) {
			if err := p.checkRegions(programs, p.named(o)); err != nil {
				return nil, err
			}
		}
		report.Components = counts.report()
		return report, nil
	}
	if err := p.checkWeightFiles(programs); err != nil {
		return nil, err
	}
	if err := p.connect(); err != nil {
		return nil, err
	}
	if p.text != nil && o.Output != "" {
		return nil, userErrorf("text-encoder-device: an artifact holds programs for one device, and text encoders would be for another (%s); leave -o out to fill the cache, or leave them out with --components", p.text.backend.name)
	}
	for _, e := range p.engines() {
		if err := e.checkWeights(p.on(e, programs)); err != nil {
			return nil, err
		}
	}
	if err := p.checkRegions(programs, p.named(o)); err != nil {
		return nil, err
	}
	for i, q := range programs {
		if o.Progress != nil {
			o.Progress(i, len(programs), q.ID())
		}
		start := time.Now()
		compiled := p.stats.Counts["compile"]
		made, err := p.engineOf(q).get(ctx, q)
		if err != nil {
			return nil, err
		}
		r := ProgramReport{Name: q.Name, Spec: q.Spec, Steps: len(made.manifest.Main.Steps), Cached: p.stats.Counts["compile"] == compiled}
		for _, s := range made.manifest.Main.Params {
			if s.Weight {
				r.Weights++
			}
		}
		for _, f := range []*planFile{&made.manifest.Main, made.manifest.Prep} {
			if f != nil {
				for _, x := range f.Executables {
					if x.Moves == nil {
						r.Executables++
					}
					r.Bytes += x.Bytes
				}
			}
		}
		if made.manifest.Prep != nil {
			r.Prepared = len(made.manifest.Prep.Results)
		}
		if made.module != nil {
			describeModule(&r, made.module)
		}
		r.Seconds = time.Since(start).Seconds()
		report.Bytes += r.Bytes
		report.Programs = append(report.Programs, r)
	}
	if o.Output != "" {
		if err := p.save(out, shapes, programs); err != nil {
			return nil, err
		}
	}
	return report, nil
}

// programsFor lists the programs of all shapes, each once, in order of use.
func (p *Pipeline) programsFor(o CompileOptions) ([]Sizes, []*pipelines.Program, error) {
	list := o.Shapes
	if len(list) == 0 {
		list = []Sizes{{}}
	}
	var shapes []Sizes
	var programs []*pipelines.Program
	for _, s := range list {
		if s.Batch < 0 {
			return nil, nil, userErrorf("batch: found %d, wanted 1 or more", s.Batch)
		}
		req := o.Request
		req.Height, req.Width, req.NumFrames, req.MaxSequenceLength = s.Height, s.Width, s.Frames, s.MaxSequenceLength
		req.Prompt, req.NumImagesPerPrompt = []string{""}, s.Batch
		if len(req.NegativePrompt) > 1 {
			req.NegativePrompt = req.NegativePrompt[:1]
		}
		if o.ImageToImage {
			size, err := p.SizesFor(&req)
			if err != nil {
				return nil, nil, err
			}
			req.Image = &Image{Height: size.Height, Width: size.Width, RGB: make([]byte, 3*size.Height*size.Width)}
			req.Height, req.Width = size.Height, size.Width
		}
		if err := p.complete(&req); err != nil {
			return nil, nil, err
		}
		sizes := p.pipe.Sizes(&req)
		shapes = append(shapes, sizes)
		ps, err := p.pipe.Programs(&req)
		if err != nil {
			return nil, nil, asUser(err)
		}
		for _, q := range ps {
			if !slices.ContainsFunc(programs, func(have *pipelines.Program) bool { return have.ID() == q.ID() }) {
				programs = append(programs, q)
			}
		}
	}
	if len(o.Components) == 0 {
		return shapes, programs, nil
	}
	var names []string
	for _, q := range programs {
		names = append(names, q.Name)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	for _, c := range o.Components {
		if !slices.ContainsFunc(programs, func(q *pipelines.Program) bool { return q.Name == c || q.Component == c }) {
			return nil, nil, userErrorf("components: %q is none of this pipeline's; it has %s", c, strings.Join(names, ", "))
		}
	}
	named := func(q *pipelines.Program) bool {
		return slices.Contains(o.Components, q.Name) || slices.Contains(o.Components, q.Component)
	}
	// What has no weights, such as the scheduler's step, goes with the components of its stage: without it these could not be run alone.
	stages := map[Stage]bool{}
	for _, q := range programs {
		if q.Component != "" && named(q) {
			stages[q.Stage] = true
		}
	}
	return shapes, slices.DeleteFunc(programs, func(q *pipelines.Program) bool {
		return !named(q) && (q.Component != "" || !stages[q.Stage])
	}), nil
}

// named lists the components that the caller named.
func (p *Pipeline) named(o CompileOptions) []string {
	return append(slices.Clone(p.cfg.Components), o.Components...)
}

// compileTo traces a program and goes as far as the phase, without weights or a backend. It counts the weights.
func (p *Pipeline) compileTo(q *pipelines.Program, phase string, counts parameters) (*ProgramReport, error) {
	start := time.Now()
	e := p.engine
	// The passes behind the phase are left out.
	cfg := p.cfg
	if i := slices.Index(passes.Names(), phase); i >= 0 || phase == "trace" {
		cfg.DisabledPasses = append(slices.Clone(cfg.DisabledPasses), passes.Names()[i+1:]...)
	}
	was := e.cfg
	e.cfg = &cfg
	defer func() { e.cfg = was }()
	m, err := e.trace(q)
	if err != nil {
		return nil, err
	}
	e.repeats[q.ID()] = passes.HasRepeats(m)
	r := &ProgramReport{Name: q.Name, Spec: q.Spec}
	if phase == "stablehlo" {
		main, prep, err := e.cut(q, m)
		if err != nil {
			return nil, err
		}
		r.Executables, r.Steps = len(main.programs), len(main.plan.Steps)
		for _, part := range []*lowered{main, prep} {
			if part != nil {
				for _, prog := range part.programs {
					r.Bytes += int64(len(prog.Code))
				}
			}
		}
		d, err := e.dumper(q)
		if err != nil {
			return nil, err
		}
		if err := d.stablehlo(main, prep); err != nil {
			return nil, err
		}
	}
	describeModule(r, m)
	counts.add(q, m)
	r.Seconds = time.Since(start).Seconds()
	return r, nil
}

func describeModule(r *ProgramReport, m *graph.Module) {
	calls := passes.Repeats(m)
	for _, f := range m.Funcs {
		r.Nodes += len(f.Nodes)
	}
	r.Weights = 0
	for _, q := range m.Entry().Params {
		if q.Kind == graph.Weight {
			r.Weights++
		}
	}
	for _, f := range m.Funcs {
		if f.BlockClass != "" {
			r.Blocks = append(r.Blocks, Block{Function: f.Name, Class: f.BlockClass, Instances: calls[f.Name], Nodes: len(f.Nodes)})
		}
	}
}
