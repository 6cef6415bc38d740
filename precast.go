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
	"io/fs"
	"os"
	"slices"
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
	engine   *engine
	stats    *Stats
	closed   sync.Once
}

// Open opens a checkpoint folder or an artifact. Configs are read and checked; weights are mapped, not read; nothing is compiled.
func Open(ctx context.Context, path string, cfg Config) (_ *Pipeline, err error) {
	start, given := time.Now(), cfg
	dtype, err := cfg.check()
	if err != nil {
		return nil, err
	}
	p := &Pipeline{cfg: cfg, stats: newStats()}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	dir := path
	if info, serr := os.Stat(path); serr == nil && !info.IsDir() {
		if p.artifact, err = openArtifact(path); err != nil {
			return nil, err
		}
		if dtype, err = p.artifact.apply(&p.cfg, given, dtype); err != nil {
			return nil, err
		}
		dir = p.artifact.checkpointDir(&p.cfg)
	}
	if _, serr := os.Stat(dir); p.artifact == nil && errors.Is(serr, fs.ErrNotExist) {
		return nil, userErrorf("%s: no such file or folder. Nothing is downloaded: fetch the model first (hf download ID --local-dir DIR) and give the folder", path)
	}
	if p.ck, err = checkpoint.OpenWith(dir, checkpoint.Options{Variant: p.cfg.Variant}); err != nil {
		if p.artifact != nil {
			err = fmt.Errorf("the artifact %s reads its weights from %s: %w; --checkpoint DIR names another place", path, dir, err)
		}
		return nil, asUser(err)
	}
	if p.artifact != nil && p.ck.Class() != p.artifact.file.Pipeline {
		return nil, userErrorf("%s: the artifact was compiled for a %s, but %s holds a %s; name the right folder with --checkpoint", path, p.artifact.file.Pipeline, dir, p.ck.Class())
	}
	if p.pipe, err = pipelines.New(p.ck, pipelines.Options{DType: dtype, Scheduler: p.cfg.Scheduler}); err != nil {
		return nil, asUser(err)
	}
	if p.loras, err = openLoRAs(p.ck, p.cfg.LoRAs); err != nil {
		return nil, err
	}
	p.engine = &engine{
		cfg: &p.cfg, dtype: dtype, source: source{ck: p.ck, loras: p.loras}, stats: p.stats, class: p.pipe.Class(), artifact: p.artifact,
		programs: map[string]*program{}, traced: map[string]*graph.Module{}, live: map[*tensor]bool{},
	}
	p.engine.weights = newWeightStore(p.engine)
	p.stats.time("", "open", start)
	return p, nil
}

// connect opens the backend and the cache, once.
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

// Check fills in the request's defaults and refuses what can't be done, before any work: arguments, sizes, memory, tokenizers that are
// missing.
// It does not change the request.
func (p *Pipeline) Check(req *Request) error {
	q := *req
	q.Warn = func(string, ...any) {}
	return p.check(&q)
}

// check is Check on a request of its own, whose defaults it fills in.
func (p *Pipeline) check(req *Request) error {
	if err := p.complete(req); err != nil {
		return err
	}
	s := p.pipe.Sizes(req)
	activations, weights := p.pipe.ActivationBytes(s), p.weightBytes(req)
	if have := availableMemory(); have > 0 && activations+weights > have {
		return userErrorf("%s needs about %s for activations and %s for weights in %s, and %s of memory is available; take a smaller size or batch, --dtype bfloat16, or --offload model",
			s, FormatBytes(activations), FormatBytes(weights), graph.DTypeName(p.engine.dtype), FormatBytes(have))
	}
	return asUser(p.pipe.Prepare(req))
}

// weightBytes is how much memory the weights take that are on the device together: those of all components, or of the largest where they
// take turns. Weight files that can't be read count nothing here; reading them says why.
func (p *Pipeline) weightBytes(req *Request) int64 {
	programs, err := p.pipe.Programs(p.pipe.Sizes(req), req)
	if err != nil {
		return 0
	}
	bytes := map[string]int64{}
	for _, q := range programs {
		if _, known := bytes[q.Component]; known || q.Component == "" {
			continue
		}
		bytes[q.Component] = 0
		comp, err := p.ck.Component(q.Component)
		if err != nil {
			continue
		}
		tensors, err := comp.Tensors()
		if err != nil {
			continue
		}
		for _, t := range tensors {
			bytes[q.Component] += int64(t.Len()) * int64(p.engine.dtype.Size())
		}
	}
	var all, largest int64
	for _, n := range bytes {
		all, largest = all+n, max(largest, n)
	}
	if p.cfg.Offload == "model" {
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
	s := p.pipe.Sizes(req)
	if err := p.pipe.CheckSizes(s); err != nil {
		return asUser(err)
	}
	_, err := p.pipe.Programs(s, req)
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
	own := *req
	req = &own
	if err := p.check(req); err != nil {
		return nil, err
	}
	programs, err := p.pipe.Programs(p.pipe.Sizes(req), req)
	if err != nil {
		return nil, asUser(err)
	}
	if err := p.checkWeightFiles(programs); err != nil {
		return nil, err
	}
	if err := p.connect(); err != nil {
		return nil, err
	}
	p.engine.willRun = true
	// Everything is made ready before anything runs: a weight that is missing costs no compile, a program that can't be compiled no denoising.
	if err := p.engine.checkWeights(programs); err != nil {
		return nil, err
	}
	if err := p.engine.getAll(ctx, programs); err != nil {
		return nil, err
	}
	start := time.Now()
	out, err := pipelines.Generate(ctx, p.engine, p.pipe, req)
	p.stats.time("", "generate", start)
	var numbers *pipelines.NotFiniteError
	if errors.As(err, &numbers) {
		if what := p.engine.weights.firstNonFinite(numbers.Component); what != "" {
			return nil, userErrorf("%w (%s)", err, what)
		}
		return nil, asUser(err)
	}
	if err != nil && ctx.Err() != nil {
		return nil, asUser(err)
	}
	return out, err
}

// Close frees everything: programs, weights, client, mappings.
func (p *Pipeline) Close() error {
	var errs []error
	p.closed.Do(func() {
		if e := p.engine; e != nil {
			for t := range e.live {
				errs = append(errs, t.buf.Delete())
			}
			errs = append(errs, e.weights.close())
			for _, q := range e.programs {
				errs = append(errs, q.close())
			}
			if e.backend != nil {
				if err := e.backend.client.Close(); err != nil {
					// The device may still read weights in place: their mapping has to stay.
					errs = append(errs, err)
					return
				}
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
