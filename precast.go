// Package precast compiles diffusion pipelines ahead of time and runs them.
//
// It reads a diffusers checkpoint folder, traces each network to a static-shape graph, runs passes over it, lowers it to StableHLO, compiles that
// with XLA through a PJRT plugin (or runs it on a pure-Go backend), keeps the executables in a cache, and makes pictures:
//
//	p, err := precast.Open(ctx, "path/to/FLUX.1-schnell", precast.Config{})
//	defer p.Close()
//	out, err := p.Generate(ctx, &precast.Request{Prompt: []string{"a red circle"}, Height: 512, Width: 512})
//
// Open also takes an artifact that Save wrote: then nothing is traced or compiled.
package precast

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"precast/cache"
	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/lora"
	"precast/graph/pipelines"
)

// The arguments of a pipeline's call and what comes out, see package pipelines.
type (
	Request    = pipelines.Request
	HostTensor = pipelines.HostTensor
	Image      = pipelines.Image
	Params     = pipelines.Params
	Sizes      = pipelines.Sizes
	Result     = pipelines.Output
)

// Pipeline is an open checkpoint or artifact, ready to generate. Its methods may be called from one goroutine at a time.
type Pipeline struct {
	cfg      Config
	ck       *checkpoint.Checkpoint
	loras    *lora.Set
	artifact *artifact
	pipe     pipelines.Pipeline
	options  pipelines.Options
	engine   *engine
	// text runs the text encoders, where they have a device of their own; else nil.
	text   *engine
	stats  *Stats
	closed sync.Once
}

// Open opens a checkpoint folder, an artifact, or a model by its hub name (see Locate). Configs are read and checked; weights are mapped, not
// read; nothing is compiled.
func Open(ctx context.Context, path string, cfg Config) (_ *Pipeline, err error) {
	start, given := time.Now(), cfg
	options, err := cfg.check()
	if err != nil {
		return nil, err
	}
	p := &Pipeline{cfg: cfg, stats: newStats()}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	if cfg.ModelConfig != "" {
		if p.ck, err = openModelConfig(path, &p.cfg); err != nil {
			return nil, err
		}
		if err = p.setUp(options, start); err != nil {
			return nil, err
		}
		return p, nil
	}
	dir := path
	if info, serr := os.Stat(path); serr == nil && !info.IsDir() {
		if p.artifact, err = openArtifact(path); err != nil {
			return nil, err
		}
		if options, err = p.artifact.apply(&p.cfg, given, options); err != nil {
			return nil, err
		}
		dir = p.artifact.checkpointDir(&p.cfg)
	}
	switch {
	case p.artifact == nil:
		if dir, err = Locate(ctx, path, p.cfg); err != nil {
			return nil, err
		}
	case cfg.Checkpoint != "":
		if dir, err = Locate(ctx, cfg.Checkpoint, p.cfg); err != nil {
			return nil, userErrorf("the artifact %s reads its weights from %s: %w; --checkpoint DIR names another place", path, cfg.Checkpoint, err)
		}
	case cfg.Revision != "":
		return nil, userErrorf("revision: found %q, but the artifact %s reads its weights from %s; name the model with --checkpoint ORG/NAME", cfg.Revision, path, dir)
	}
	open := func() (*checkpoint.Checkpoint, error) {
		return checkpoint.OpenWith(dir, checkpoint.Options{Variant: p.cfg.Variant})
	}
	if cfg.ConfigOnly {
		open = func() (*checkpoint.Checkpoint, error) { return checkpoint.OpenIndex(dir, p.cfg.Variant) }
	}
	if p.ck, err = open(); err != nil {
		if p.artifact != nil {
			err = fmt.Errorf("the artifact %s reads its weights from %s: %w; --checkpoint DIR names another place", path, dir, err)
		}
		return nil, asUser(err)
	}
	if p.artifact != nil && p.ck.Class() != p.artifact.file.Pipeline {
		return nil, userErrorf("%s: the artifact was compiled for a %s, but %s holds a %s; name the right folder with --checkpoint", path, p.artifact.file.Pipeline, dir, p.ck.Class())
	}
	if err = p.setUp(options, start); err != nil {
		return nil, err
	}
	return p, nil
}

// setUp makes the pipeline of the open checkpoint.
func (p *Pipeline) setUp(options pipelines.Options, start time.Time) error {
	networks := p.ck.Networks()
	for component := range options.DTypes {
		if !slices.Contains(networks, component) {
			return userErrorf("dtype: %q is none of this checkpoint's components that compute; it has %s", component, strings.Join(networks, ", "))
		}
	}
	for _, d := range []struct{ argument, path string }{{"dump-compilation-phases-to", p.cfg.DumpDir}, {"dump-values-to", p.cfg.DumpValuesTo}, {"cache-dir", p.cfg.CacheDir}} {
		if err := CheckApart("precast", p.ck.Dir(), d.path); err != nil {
			return userErrorf("%s: %w", d.argument, err)
		}
	}
	for component := range p.cfg.modes.own {
		if !slices.Contains(networks, component) {
			return userErrorf("mode: %q is none of this checkpoint's components that compute; it has %s", component, strings.Join(networks, ", "))
		}
	}
	var err error
	if p.pipe, err = pipelines.New(p.ck, options); err != nil {
		return asUser(err)
	}
	if p.loras, err = openLoRAs(p.ck, p.cfg.LoRAs); err != nil {
		return err
	}
	p.options = options
	p.engine = p.newEngine(&p.cfg, p.artifact)
	p.stats.time("", "open", start)
	return nil
}

func (p *Pipeline) newEngine(cfg *Config, a *artifact) *engine {
	e := &engine{
		cfg: cfg, dtype: p.options.DType, dtypeFor: p.options.DTypeFor, source: source{ck: p.ck, loras: p.loras}, stats: p.stats, class: p.pipe.Class(), artifact: a,
		programs: map[string]*program{}, traced: map[string]*graph.Module{}, repeats: map[string]bool{}, activations: map[string]int64{}, used: map[string]int64{}, live: map[*tensor]bool{},
	}
	e.weights = newWeightStore(e)
	e.begin()
	return e
}

// connect opens the backend and the cache, once; and those of the text encoders, where they have a device of their own.
func (p *Pipeline) connect() error {
	e := p.engine
	if e.backend != nil {
		return nil
	}
	start := time.Now()
	b, err := openBackend(&p.cfg)
	if err != nil {
		return err
	}
	e.backend = b
	if !p.cfg.NoCache {
		e.store = cache.Open(p.cfg.CacheDir, cache.Options{Warn: func(format string, args ...any) { p.cfg.Log.Warn(fmt.Sprintf(format, args...)) }})
	}
	if p.cfg.TextEncoderDevice != "" {
		own := p.cfg
		own.Backend, own.Plugin = "auto", ""
		b, err := openBackend(&own)
		if err != nil {
			return err
		}
		if len(cache.Key{Fields: b.identity}.Diff(cache.Key{Fields: e.backend.identity})) == 0 {
			// It is the device that everything runs on.
			if err := b.client.Close(); err != nil {
				return err
			}
		} else {
			p.text = p.newEngine(&p.cfg, p.artifact)
			p.text.backend, p.text.store = b, e.store
		}
	}
	p.stats.time("", "client", start)
	return nil
}

// Notes lists what was read otherwise than it stands in the checkpoint or in a LoRA.
func (p *Pipeline) Notes() []string { return append(p.ck.Notes(), p.loras.Notes()...) }

// Class is the pipeline's class in diffusers.
func (p *Pipeline) Class() string { return p.pipe.Class() }

// Stats returns the counts so far.
func (p *Pipeline) Stats() *Stats {
	p.stats.mu.Lock()
	defer p.stats.mu.Unlock()
	p.stats.PeakRSS = peakRSS()
	return p.stats
}

// Check fills in the request's defaults and refuses what can't be done, before any work: arguments, sizes, pictures that do not fit in memory,
// tokenizers that are missing. What networks take is known from their graphs: a run checks that, before it reads weights or compiles. It does not change the request.
func (p *Pipeline) Check(req *Request) error {
	q := *req
	q.Warn = func(string, ...any) {}
	return p.check(&q, allStages)
}

// SizesFor are the sizes of what a request makes, its defaults filled in; an error is what Check would say. The request is not changed.
func (p *Pipeline) SizesFor(req *Request) (Sizes, error) {
	q := *req
	q.Warn = func(string, ...any) {}
	if err := p.complete(&q); err != nil {
		return Sizes{}, err
	}
	return p.pipe.Sizes(&q), nil
}

var allStages = []Stage{StageEncode, StageDenoise, StageDecode}

// check is Check on a request of its own, whose defaults it fills in, for some stages of a run.
func (p *Pipeline) check(req *Request, stages []Stage) error {
	if err := p.complete(req); err != nil {
		return err
	}
	if err := p.checkPictures(req, stages); err != nil {
		return err
	}
	if req.PromptEmbeds != nil || !slices.Contains(stages, StageEncode) {
		return nil
	}
	return asUser(p.pipe.Prepare(req))
}

// weightBytes is how much memory the weights take that have to be brought to the device and are there together: those of all components, or
// of the largest where they take turns, and of this the largest blocks where these do.
func (p *Pipeline) weightBytes() int64 {
	var all, largest int64
	for _, e := range p.engines() {
		for _, n := range e.weights.toLoad() {
			all, largest = all+n, max(largest, n)
		}
	}
	if p.cfg.Offload != offloadNone {
		return largest
	}
	return all
}

// complete fills in defaults and checks arguments and sizes. An artifact's first size is its default.
func (p *Pipeline) complete(req *Request) error {
	if req.NumImagesPerPrompt == 0 {
		req.NumImagesPerPrompt = 1
	}
	if req.Warn == nil {
		req.Warn = func(format string, args ...any) { p.cfg.Log.Warn(fmt.Sprintf(format, args...)) }
	}
	if p.artifact != nil {
		p.artifact.defaults(req)
	}
	if err := p.pipe.Defaults(req); err != nil {
		return asUser(err)
	}
	_, err := p.pipe.Programs(req)
	return asUser(err)
}

// checkWeightFiles reads the weight headers of every component that the programs read, so that a broken file is found before any work.
func (p *Pipeline) checkWeightFiles(programs []*pipelines.Program) error {
	var names []string
	for _, q := range programs {
		if q.Component != "" && !slices.Contains(names, q.Component) {
			names = append(names, q.Component)
		}
	}
	return asUser(p.ck.Check(names...))
}

// Generate makes pictures. It traces and compiles what is neither in memory, nor in the artifact, nor in the cache.
func (p *Pipeline) Generate(ctx context.Context, req *Request) (*Result, error) {
	var out *Result
	err := p.stages(ctx, req, allStages, func(r *Request, ex pipelines.Executor) (err error) {
		out, err = pipelines.Generate(ctx, ex, p.pipe, r)
		return err
	})
	if err == nil {
		p.note(out.Params)
	}
	return out, err
}

// Close frees everything: programs, weights, client, mappings.
func (p *Pipeline) Close() error {
	var errs []error
	p.closed.Do(func() {
		if p.engine != nil {
			stays := false
			for _, e := range p.engines() {
				if err := e.close(); err != nil {
					errs, stays = append(errs, err), true
				}
			}
			if stays {
				// The device may still read weights in place: their mapping has to stay.
				return
			}
		}
		errs = append(errs, p.loras.Close())
		if p.ck != nil {
			errs = append(errs, p.ck.Close())
		}
		if p.artifact != nil {
			errs = append(errs, p.artifact.close())
		}
	})
	return errors.Join(errs...)
}
