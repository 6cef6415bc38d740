package precast

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"precast/backends"
	"precast/backends/gobackend"
	"precast/backends/pjrt"
	"precast/backends/plugin"
	"precast/cache"
	"precast/graph"
	"precast/graph/cost"
	"precast/graph/pipelines"
	"precast/graph/trace"
	"precast/lower"
	"precast/passes"
)

// backend is a client and what identifies it in keys.
type backend struct {
	client backends.Client
	name   string // the plugin's name, or "go"
	// identity are the fields that an executable depends on: every one of them must be equal where it is loaded.
	identity []cache.Field
	// fusedAttention is passes.Target's.
	fusedAttention bool
}

// openBackend opens what the configuration asks for.
func openBackend(c *Config) (*backend, error) {
	if c.Threads > 0 {
		if err := pjrt.Threads(c.Threads); err != nil {
			return nil, err
		}
	}
	// PRECAST_PLUGIN=go asks for the Go backend where no flag says otherwise.
	goByEnv := c.Backend == "auto" && c.Plugin == "" && os.Getenv(plugin.PluginVariable) == "go"
	if c.Backend != "go" && !goByEnv {
		installed, err := findPlugin(c.Plugin)
		var missing *plugin.NotInstalledError
		switch {
		case err == nil:
			return openPlugin(installed)
		case c.Backend == "pjrt" || c.Plugin != "" || os.Getenv(plugin.PluginVariable) != "" || !errors.As(err, &missing):
			return nil, asUser(err)
		}
		c.Log.Warn("no PJRT plugin is installed: running on the slow pure-Go backend; `precast plugin install cpu` gets one")
	}
	client, err := gobackend.Plugin().NewClient(backends.ClientOptions{})
	if err != nil {
		return nil, err
	}
	return newBackend(client, "go", ""), nil
}

func findPlugin(name string) (*plugin.Installed, error) {
	if name == "" {
		return plugin.Default()
	}
	store, err := plugin.Open()
	if err != nil {
		return nil, err
	}
	return store.Resolve(name)
}

func openPlugin(p *plugin.Installed) (*backend, error) {
	lib, err := pjrt.Load(p.Path)
	if err != nil {
		return nil, asUser(err)
	}
	client, err := lib.NewClient(backends.ClientOptions{})
	if err != nil {
		return nil, asUser(err)
	}
	b := newBackend(client, p.Name, p.SHA256)
	// XLA's CPU compiler has made one kernel of attention since some version between those of PJRT 0.106 and 0.115, the plugins that were tried.
	_, minor := lib.APIVersion()
	b.fusedAttention = client.Platform() == "cpu" && minor >= 115
	return b, nil
}

func newBackend(client backends.Client, name, hash string) *backend {
	b := &backend{client: client, name: name}
	topology := ""
	if t := client.Topology(); t != nil {
		topology = t.Fingerprint()
	}
	b.identity = cache.NewKey(
		"plugin", name,
		"platform", client.Platform(),
		"platform_version", client.PlatformVersion(),
		"plugin_sha256", hash,
		"topology", topology,
		"cpu_features", cpuFeatures(),
		"xla_flags", xlaFlags(os.Getenv("XLA_FLAGS")),
		"threads", fmt.Sprint(backendThreads()),
	).Fields
	return b
}

// xlaFlags are the flags that change what is compiled: all but those that ask for dumps.
func xlaFlags(flags string) string {
	var kept []string
	for _, f := range strings.Fields(flags) {
		if !strings.HasPrefix(f, "--xla_dump") {
			kept = append(kept, f)
		}
	}
	return strings.Join(kept, " ")
}

// engine makes, keeps and runs the programs of one checkpoint: it is the pipelines.Executor.
type engine struct {
	cfg   *Config
	dtype graph.DType
	// dtypeFor is what a component computes in.
	dtypeFor func(component string) graph.DType
	backend  *backend
	store    *cache.Store // nil without a cache
	source   source
	stats    *Stats
	class    string // the pipeline's
	// artifact holds programs by ID, nil where a checkpoint folder was opened.
	artifact *artifact

	// willRun says that programs are made to be run in this process, not to be kept.
	willRun bool

	mu       sync.Mutex
	programs map[string]*program
	// used is the last request that a program, by its ID, was for; requests counts them.
	used     map[string]int64
	requests int64
	// traced holds modules by program ID, between the check of the weights that they read and their compile.
	traced map[string]*graph.Module
	// repeats says of programs by ID whether they have repeated blocks; checkWeights finds out.
	repeats map[string]bool
	// activations are the bytes that programs by ID take beside their weights, see planActivations; checkWeights finds out.
	activations map[string]int64
	weights     *weightStore
	live        map[*tensor]bool

	// operations are the executables that eager programs share.
	operations operations
	// step counts the steps of the denoising loop, calls a program's executions within one, for what looks at values: see probe.
	step      int
	calls     map[string]int
	denoising map[string]bool
}

// close frees everything on the device, then the client. After an error the device may still read mapped weights.
func (e *engine) close() error {
	var errs []error
	for t := range e.live {
		errs = append(errs, t.buf.Delete())
	}
	errs = append(errs, e.weights.close())
	for _, q := range e.programs {
		errs = append(errs, q.close())
	}
	errs = append(errs, e.operations.close())
	if e.backend != nil {
		errs = append(errs, e.backend.client.Close())
	}
	return errors.Join(errs...)
}

// program is a program that is ready to be bound to weights and run.
type program struct {
	manifest *manifest
	exes     []backends.Executable
	prepare  []backends.Executable // nil where the program only moves weights
	// module is set when this process traced the program: dumps, artifacts and reports use it.
	module *graph.Module
	// bound is set once the weights are there: one buffer for each parameter slot that is a weight.
	bound []backends.Buffer
	// stream is set with bound where the weights come step by step: then bound has none of them.
	stream *stream
	// lastUse is the last step that reads a slot.
	lastUse map[int]int
	// shared says that the executables are the engine's operations.
	shared bool
	// weightValues are what check-finite found of weights, by slot.
	weightValues map[int]summary
}

// manifest says how to run a program: what a warm start reads instead of tracing.
type manifest struct {
	ID        string `json:"id"`
	Component string `json:"component,omitempty"`
	// Config is the digest of the component's config file that the program was made from.
	Config string `json:"config,omitempty"`
	// Repeats says that the program was found to have repeated blocks, under regions that ask for them.
	Repeats bool `json:"repeats,omitempty"`
	// Activations are the bytes that the program takes beside its weights and inputs, see planActivations; 0 where it was made before this was counted.
	Activations int64     `json:"activations,omitempty"`
	Main        planFile  `json:"main"`
	Prep        *planFile `json:"prepare,omitempty"`
	// Graph is the module after the passes, in the artifact: what a recompile starts from.
	Graph string `json:"graph,omitempty"`
}

// planFile is a passes.Plan whose programs are cache keys.
type planFile struct {
	Params      []slotFile    `json:"params"`
	Steps       []passes.Step `json:"steps"`
	Results     []int         `json:"results"`
	ResultNames []string      `json:"result_names"`
	// ResultDigests are those of a preparation, see passes.Plan.
	ResultDigests []string  `json:"result_digests,omitempty"`
	Executables   []exeFile `json:"executables"`
}

type slotFile struct {
	Name    string `json:"name"`
	Weight  bool   `json:"weight,omitempty"`
	DType   string `json:"dtype"`
	Dims    []int  `json:"dims"`
	Donated bool   `json:"donated,omitempty"`
}

// exeFile is one executable: the key of its content and its place in an artifact.
type exeFile struct {
	Name    string    `json:"name"`
	Key     cache.Key `json:"key"`
	Donated []int     `json:"donated,omitempty"`
	Bytes   int64     `json:"bytes"`
	// Moves, where there are any, say that the program only reorders weights: the loader does it, and there is no executable.
	Moves []move `json:"moves,omitempty"`
	// NonFinite says that the operation's own constants hold NaN or infinity, of one that is dispatched alone.
	NonFinite bool `json:"non_finite,omitempty"`
}

// specKey identifies a program before it is traced.
func (e *engine) specKey(p *pipelines.Program) (cache.Key, error) {
	// A program without weights may hold numbers of the autoencoder's config: unpacking scales latents.
	component, config := p.Component, ""
	if component == "" && e.source.ck.Has("vae") {
		component = "vae"
	}
	if component != "" {
		var err error
		if config, err = e.source.configDigest(component); err != nil {
			return cache.Key{}, err
		}
	}
	pipe := e.pipeline(p, nil)
	regions, mode := e.cfg.Regions, modeCompiled
	if e.eager(p) {
		regions, mode = "", modeEager
	}
	k := cache.NewKey(
		"precast", Version, "build", buildID(),
		"pipeline", e.class, "program", p.Name, "class", p.Class, "spec", p.Spec, "config", config,
		"dtype", graph.DTypeName(e.dtype), "regions", regions, "mode", mode, "passes", pipe.Key(), "donate", strings.Join(p.Donate, ","),
	)
	k.Fields = append(k.Fields, e.backend.identity...)
	return k, nil
}

// contentKey identifies an executable by its program's text and what compiled it.
func (e *engine) contentKey(p *lower.Program, light bool) cache.Key {
	k := cache.NewKey("program", p.Name, "content", p.Fingerprint())
	for _, name := range slices.Sorted(maps.Keys(e.compileOptions(p, light).Overrides)) {
		k.Fields = append(k.Fields, cache.NewKey("override", name).Fields...)
	}
	k.Fields = append(k.Fields, e.backend.identity...)
	return k
}

// compileOptions are the options that a program is compiled with; on the CPU there are two.
//
// XLA widens half-precision weights to float32 before a product; its scheduler, which looks for operations that can run beside one another, would widen
// all of a model's weights first, and their copies would take more memory than the weights. Without it they are widened as they are needed.
//
// A program that is a light part of its plan (lightParts) is compiled without LLVM's optimizations, which take a third of its compile and gain
// nothing that could be measured of a step. Products and convolutions are library calls and stay as they are.
func (e *engine) compileOptions(p *lower.Program, light bool) backends.CompileOptions {
	if e.backend.name == "go" || e.backend.client.Platform() != "cpu" {
		return backends.CompileOptions{}
	}
	const level = "xla_backend_optimization_level"
	given, o := os.Getenv("XLA_FLAGS"), map[string]any{}
	half := slices.ContainsFunc(p.Params, func(q lower.Param) bool { return q.Kind == graph.Weight && q.Shape.DType.Size() == 2 })
	if half && !strings.Contains(given, schedulerFlag) {
		o[schedulerFlag] = "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"
	}
	if light && !strings.Contains(given, level) {
		o[level] = 0
	}
	return backends.CompileOptions{Overrides: o}
}

// schedulerFlag is XLA's flag for the order in which it runs operations on the CPU.
const schedulerFlag = "xla_cpu_scheduler_type"

// lightShare is the part of a plan's memory traffic up to which its light programs come, all together.
const lightShare = 0.03

// lightParts says of a plan's programs which are light: those that run once, the smallest first, as long as all that their operations read and write,
// and their evaluations of exp and the like, are at most lightShare of the plan's. What stands before the first block, between two classes and
// behind the last is; a block never, and of the many parts of a UNet few.
func lightParts(p *passes.Plan) []bool {
	light := make([]bool, len(p.Programs))
	if len(p.Programs) < 2 {
		return light
	}
	runs := make([]float64, len(p.Programs))
	for _, s := range p.Steps {
		runs[s.Program]++
	}
	bytes, transcendentals := make([]float64, len(p.Programs)), make([]float64, len(p.Programs))
	var allBytes, allTranscendentals float64
	var once []int
	for i, m := range p.Programs {
		c := cost.Analyze(m, cost.Options{}).Total
		bytes[i], transcendentals[i] = c.BytesRead+c.BytesWritten, c.Transcendentals
		allBytes, allTranscendentals = allBytes+runs[i]*bytes[i], allTranscendentals+runs[i]*transcendentals[i]
		if runs[i] == 1 {
			once = append(once, i)
		}
	}
	slices.SortStableFunc(once, func(a, b int) int { return cmp.Compare(bytes[a], bytes[b]) })
	var sumBytes, sumTranscendentals float64
	for _, i := range once {
		b, t := sumBytes+bytes[i], sumTranscendentals+transcendentals[i]
		if b > lightShare*allBytes || t > lightShare*allTranscendentals {
			continue
		}
		light[i], sumBytes, sumTranscendentals = true, b, t
	}
	return light
}

func (e *engine) pipeline(p *pipelines.Program, after func(int, string, *graph.Module, time.Duration) error) *passes.Pipeline {
	o := passes.DefaultOptions()
	o.Outline, o.Scan = e.cfg.Regions != "inline", e.cfg.Regions == "scan"
	target := e.target(p)
	attention, err := passes.ParseAttention(e.cfg.Attention, target)
	if err != nil {
		panic("BUG: " + err.Error()) // Config.check reads it before
	}
	o.Attention = attention
	return &passes.Pipeline{Options: o, Target: target, Enabled: e.cfg.EnabledPasses, Disabled: e.disabledPasses(p), Check: e.cfg.CheckPasses, After: after}
}

// target is what the defaults of passes go by. Where no backend is open, as for a graph that is only looked at, it is the CPU.
func (e *engine) target(p *pipelines.Program) passes.Target {
	t := passes.Target{Platform: "cpu", DType: e.dtype}
	if e.backend != nil && e.backend.name != "go" {
		t.Platform, t.FusedAttention = e.backend.client.Platform(), e.backend.fusedAttention
	}
	if p.Component != "" {
		t.DType = e.dtypeFor(p.Component)
	}
	return t
}

// get returns a program, made ready by the cheapest way there is: in memory, the artifact, the cache, a compile.
func (e *engine) get(ctx context.Context, p *pipelines.Program) (*program, error) {
	id := p.ID()
	e.mu.Lock()
	have, module := e.programs[id], e.traced[id]
	delete(e.traced, id)
	e.mu.Unlock()
	if have != nil {
		return have, nil
	}
	made, err := e.make(ctx, p, module)
	if err != nil {
		return nil, err
	}
	made.lastUse = map[int]int{}
	for i, s := range made.manifest.Main.Steps {
		for _, a := range s.Args {
			made.lastUse[a] = i
		}
	}
	for _, r := range made.manifest.Main.Results {
		made.lastUse[r] = len(made.manifest.Main.Steps)
	}
	e.mu.Lock()
	e.programs[id] = made
	e.mu.Unlock()
	return made, nil
}

// getAll makes several programs ready, more than one at a time: loading and compiling have long stretches that use one processor. The error is
// that of the first program in the list that has one; after one, no other compile is begun.
func (e *engine) getAll(ctx context.Context, programs []*pipelines.Program) error {
	var group errgroup.Group
	group.SetLimit(min(4, runtime.NumCPU()))
	if e.cfg.DumpDir != "" {
		// Two sizes of one program find their folders one after the other.
		group.SetLimit(1)
	}
	compiles := e.stats.counted("compile")
	errs := make([]error, len(programs))
	var failed atomic.Bool
	for i, p := range programs {
		group.Go(func() error {
			if failed.Load() && !e.cfg.CacheOnly {
				return nil
			}
			errs[i] = guarded(p.ID(), func() error {
				_, err := e.get(ctx, p)
				return err
			})
			if errs[i] != nil {
				failed.Store(true)
			}
			return nil
		})
	}
	_ = group.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	if e.stats.counted("compile") > compiles && e.willRun {
		// The weights come next, and what tracing and compiling took is not needed again.
		debug.FreeOSMemory()
		pjrt.Trim()
	}
	return nil
}

// checkWeights matches what the programs read with the checkpoint, before any of them is compiled; the error lists everything that does
// not fit. What a program reads is known from its manifest, else it is traced here and kept for its compile.
func (e *engine) checkWeights(programs []*pipelines.Program) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var faults []error
	for _, p := range programs {
		if p.Component == "" {
			continue
		}
		m, err := e.foundManifest(p)
		if err != nil {
			return err
		}
		if m != nil {
			e.repeats[p.ID()] = m.Repeats
			if e.activations[p.ID()], err = e.manifestActivations(p, m); err != nil {
				return err
			}
			if err = e.weights.check(p, m); err == nil {
				err = e.weights.need(p, m)
			}
		} else if !e.cfg.CacheOnly {
			module, terr := e.trace(p)
			if terr != nil {
				return terr
			}
			e.traced[p.ID()] = module
			e.repeats[p.ID()] = passes.HasRepeats(module)
			plan, perr := e.plan(p, module)
			if perr != nil {
				return perr
			}
			e.activations[p.ID()] = e.planActivations(plan)
			if err = e.weights.match(p, moduleWeights(module)); err == nil && e.cfg.Offload == offloadBlock && !e.eager(p) {
				var m *manifest
				if m, err = outlineOf(p, module); err == nil {
					err = e.weights.need(p, m)
				}
			}
		}
		var user *UserError
		if err != nil && !errors.As(err, &user) {
			return err
		}
		faults = append(faults, err)
	}
	return asUser(errors.Join(faults...))
}

// outlineOf is what a split module's manifest will say of its weights.
func outlineOf(p *pipelines.Program, module *graph.Module) (*manifest, error) {
	plan, err := passes.Split(module)
	if err != nil {
		return nil, &InternalError{Phase: "passes", Program: p.ID(), Err: err}
	}
	m := &manifest{Main: *newPlanFile(plan)}
	if prep := passes.Prepare(module); prep != nil {
		m.Prep = newPlanFile(prep)
		for _, q := range prep.Programs {
			m.Prep.Executables = append(m.Prep.Executables, exeFile{Name: q.Name, Moves: movesOf(q)})
		}
	}
	return m, nil
}

// foundManifest is the manifest of a program that is ready, in the artifact or in the cache, nil where there is none.
func (e *engine) foundManifest(p *pipelines.Program) (*manifest, error) {
	if made := e.programs[p.ID()]; made != nil {
		return made.manifest, nil
	}
	if e.artifact != nil {
		if m, err := e.artifactManifest(p); m != nil || err != nil {
			return m, err
		}
	}
	key, err := e.specKey(p)
	if err != nil {
		return nil, err
	}
	return e.cachedManifest(p, key), nil
}

// moduleWeights lists the checkpoint's tensors that a module reads, itself or in its preparation.
func moduleWeights(m *graph.Module) []slotFile {
	params := m.Entry().Params
	if prep := m.Func(passes.PrepareFunc); prep != nil {
		params = append(slices.Clone(params), prep.Params...)
	}
	var list []slotFile
	for _, q := range params {
		if q.Kind == graph.Weight {
			list = append(list, slotFile{Name: q.Name, Weight: true, DType: graph.DTypeName(q.Value.Shape.DType), Dims: q.Value.Shape.Dimensions})
		}
	}
	return list
}

// guarded turns a panic into an error: on a goroutine of its own nothing else would catch it.
func guarded(program string, work func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &InternalError{Phase: "making ready", Program: program, Err: fmt.Errorf("panic: %v\n%s", r, debug.Stack())}
		}
	}()
	return work()
}

// make makes a program; module is what the check of the weights traced, nil where it did not have to.
func (e *engine) make(ctx context.Context, p *pipelines.Program, module *graph.Module) (*program, error) {
	if e.artifact != nil {
		made, err := e.fromArtifact(ctx, p)
		if made != nil || err != nil {
			return made, err
		}
	}
	key, err := e.specKey(p)
	if err != nil {
		return nil, err
	}
	return e.makeOnce(ctx, p, key, "", func() (*graph.Module, error) {
		if module != nil {
			return module, nil
		}
		return e.trace(p)
	})
}

// makeOnce takes a program from the cache, or compiles what module returns where it is not there: one process does, the others wait and find it.
// reason says why something nearer can't be used, for the error under --cache-only.
func (e *engine) makeOnce(ctx context.Context, p *pipelines.Program, key cache.Key, reason string, module func() (*graph.Module, error)) (*program, error) {
	// Phases are dumped as they happen, so they have to happen; executables still come from the cache.
	look := e.cfg.DumpDir == "" || e.cfg.CacheOnly
	if look {
		if made := e.fromCache(ctx, p, key); made != nil {
			return made, nil
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, asUser(err)
	}
	if e.cfg.CacheOnly {
		needed := &CompileNeededError{Program: p.ID(), Key: key.Digest(), Reason: reason}
		if e.store != nil {
			if near, ok := e.store.Nearest(cache.Manifest, key); ok && reason == "" {
				needed.Differs = differs(key, near)
			}
		}
		return nil, needed
	}
	if e.store != nil {
		unlock, err := e.store.Lock(ctx, key)
		if err != nil {
			return nil, asUser(err)
		}
		defer unlock()
		if look {
			if made := e.fromCache(ctx, p, key); made != nil {
				return made, nil
			}
		}
	}
	e.stats.count(p.Name, "cache_miss")
	m, err := module()
	if err != nil {
		return nil, err
	}
	return e.compile(ctx, p, m, key)
}

// fromCache loads a program whose every part is in the cache, nil where one is missing.
func (e *engine) fromCache(ctx context.Context, p *pipelines.Program, key cache.Key) *program {
	m := e.cachedManifest(p, key)
	if m == nil {
		return nil
	}
	made, err := e.loadAll(ctx, p, m, func(x exeFile) ([]byte, bool) { return e.store.Get(cache.Executable, x.Key) })
	if err != nil {
		if ctx.Err() == nil {
			e.cfg.Log.Warn("cached program can't be used; it is compiled anew", "program", p.ID(), "reason", err.Error())
		}
		return nil
	}
	e.stats.count(p.Name, "cache_hit")
	return made
}

// cachedManifest reads a program's manifest from the cache, nil where it has none that can be used.
func (e *engine) cachedManifest(p *pipelines.Program, key cache.Key) *manifest {
	if e.store == nil {
		return nil
	}
	start := time.Now()
	data, ok := e.store.Get(cache.Manifest, key)
	e.stats.time(p.Name, "cache", start)
	if !ok {
		return nil
	}
	m := &manifest{}
	err := json.Unmarshal(data, m)
	if err == nil {
		err = m.check()
	}
	if err != nil || m.ID != p.ID() {
		e.cfg.Log.Warn("cache entry has another content than its key says; it is made anew", "program", p.ID())
		e.store.Delete(cache.Manifest, key)
		return nil
	}
	return m
}

var errMissing = errors.New("an executable is missing")

// loadAll loads a manifest's executables from where read finds them. Where the program will run, its weights are brought to the device
// beside that: both take about as long at the start of a process, and neither needs the other.
func (e *engine) loadAll(ctx context.Context, p *pipelines.Program, m *manifest, read func(exeFile) ([]byte, bool)) (*program, error) {
	name := p.Name
	made := &program{manifest: m, shared: e.eager(p), weightValues: map[int]summary{}}
	if e.willRun && e.cfg.Offload == offloadNone {
		var beside sync.WaitGroup
		beside.Go(func() {
			// What is wrong is left for bind to report.
			_ = guarded(p.ID(), func() error { return e.weights.preload(ctx, p, m) })
		})
		defer beside.Wait()
	}
	load := func(list []exeFile) ([]backends.Executable, error) {
		out := make([]backends.Executable, len(list))
		// Loading has long stretches that use one processor.
		var group errgroup.Group
		group.SetLimit(runtime.NumCPU())
		for i, x := range list {
			if x.Moves != nil {
				continue
			}
			loadOne := func() (backends.Executable, int64, bool, error) {
				start := time.Now()
				data, ok := read(x)
				e.stats.time(name, "cache", start)
				if !ok {
					return nil, 0, false, fmt.Errorf("%w: %s", errMissing, x.Name)
				}
				start = time.Now()
				exe, err := e.backend.client.LoadExecutable(ctx, data, backends.CompileOptions{})
				e.stats.time(name, "load", start)
				if err == nil {
					e.stats.bytes("executables", int64(len(data)))
				}
				return exe, int64(len(data)), true, err
			}
			group.Go(func() error {
				return guarded(p.ID(), func() (err error) {
					if made.shared {
						var op *operation
						if op, err = e.operation(p, x.Key, loadOne); err == nil {
							out[i] = op.exe
						}
						return err
					}
					out[i], _, _, err = loadOne()
					return err
				})
			})
		}
		return out, group.Wait()
	}
	var err error
	if made.exes, err = load(m.Main.Executables); err == nil {
		err = m.Main.checkResults(made.exes)
	}
	if err == nil && m.Prep != nil {
		if made.prepare, err = load(m.Prep.Executables); err == nil {
			err = m.Prep.checkResults(made.prepare)
		}
	}
	if err != nil {
		made.close()
		return nil, err
	}
	return made, nil
}

func (p *program) close() error {
	var errs []error
	if p.shared {
		p.exes = nil // the engine closes them
	}
	for _, x := range append(slices.Clone(p.exes), p.prepare...) {
		if x != nil {
			errs = append(errs, x.Close())
		}
	}
	p.exes, p.prepare = nil, nil
	return errors.Join(errs...)
}

// trace records the program's network and runs the passes.
func (e *engine) trace(p *pipelines.Program) (*graph.Module, error) {
	d, err := e.dumper(p)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	m, err := trace.Trace(p.Network)
	e.stats.time(p.Name, "trace", start)
	e.stats.count(p.Name, "trace")
	if err != nil {
		return nil, &InternalError{Phase: "trace", Program: p.ID(), Err: err}
	}
	for _, name := range p.Donate {
		i := slices.IndexFunc(m.Entry().Params, func(q *graph.Param) bool { return q.Name == name })
		if i < 0 {
			return nil, &InternalError{Phase: "trace", Program: p.ID(), Err: fmt.Errorf("donated input %q is not a parameter", name)}
		}
		m.Entry().Params[i].Donated = true
	}
	if err := d.graph(0, "trace", m); err != nil {
		return nil, err
	}
	start = time.Now()
	pipe := e.pipeline(p, func(i int, name string, m *graph.Module, took time.Duration) error {
		e.cfg.Log.Debug("pass", "program", p.Name, "pass", name, "seconds", took.Seconds(), "nodes", len(m.Entry().Nodes))
		return d.graph(i, name, m)
	})
	err = pipe.Run(m)
	e.stats.time(p.Name, "passes", start)
	e.stats.count(p.Name, "passes")
	if err != nil {
		return nil, &InternalError{Phase: "passes", Program: p.ID(), Dump: dumpForBug(m), Err: err}
	}
	return m, nil
}

// lowered is a module cut into programs and lowered.
type lowered struct {
	plan     *passes.Plan
	programs []*lower.Program
	// light says of programs whether they are light, see compileOptions; nil where none is.
	light []bool
}

// splits reports whether the regions ask for the blocks of a module as programs of their own.
func (e *engine) splits(m *graph.Module) bool {
	return e.cfg.Regions == "split" || e.cfg.Regions == "auto" && passes.AutoSplits(m)
}

// plan makes the plan that the mode and the regions ask for.
func (e *engine) plan(p *pipelines.Program, m *graph.Module) (*passes.Plan, error) {
	switch {
	case e.eager(p):
		return passes.Eager(m), nil
	case !e.splits(m):
		return passes.Whole(m), nil
	}
	plan, err := passes.Split(m)
	if err != nil {
		return nil, &InternalError{Phase: "passes", Program: p.ID(), Dump: dumpForBug(m), Err: err}
	}
	return plan, nil
}

// cut makes the plan that the regions ask for and lowers it.
func (e *engine) cut(p *pipelines.Program, m *graph.Module) (main, prep *lowered, err error) {
	start := time.Now()
	defer func() {
		e.stats.time(p.Name, "lower", start)
		e.stats.count(p.Name, "lower")
	}()
	main = &lowered{}
	if main.plan, err = e.plan(p, m); err != nil {
		return nil, nil, err
	}
	if split := e.splits(m); !e.eager(p) {
		if e.cfg.Regions == "auto" {
			e.cfg.Log.Debug("regions auto", "program", p.ID(), "split", split)
		}
		if split {
			main.light = lightParts(main.plan)
		}
	}
	parts := []*lowered{main}
	if plan := passes.Prepare(m); plan != nil {
		prep = &lowered{plan: plan}
		parts = append(parts, prep)
	}
	for _, part := range parts {
		for _, module := range part.plan.Programs {
			low, err := lower.Lower(module)
			if err != nil {
				return nil, nil, &InternalError{Phase: "lower", Program: p.ID(), Dump: dumpForBug(m), Err: err}
			}
			part.programs = append(part.programs, low)
		}
	}
	return main, prep, nil
}

// compile lowers a module and compiles its programs; what the cache already has of them is loaded instead. The results go into the cache under
// key.
func (e *engine) compile(ctx context.Context, p *pipelines.Program, m *graph.Module, key cache.Key) (*program, error) {
	main, prep, err := e.cut(p, m)
	if err != nil {
		return nil, err
	}
	d, err := e.dumper(p)
	if err != nil {
		return nil, err
	}
	if err := d.stablehlo(main, prep); err != nil {
		return nil, err
	}
	made := &program{
		module: m, manifest: &manifest{ID: p.ID(), Component: p.Component, Repeats: passes.HasRepeats(m)},
		shared: e.eager(p), weightValues: map[int]summary{},
	}
	made.manifest.Activations = e.knownActivations(p)
	if made.manifest.Activations == 0 {
		made.manifest.Activations = e.planActivations(main.plan)
	}
	if p.Component != "" {
		if made.manifest.Config, err = e.source.configDigest(p.Component); err != nil {
			return nil, err
		}
	}
	parts := []*lowered{main}
	if prep != nil {
		parts = append(parts, prep)
	}
	files, exes, all, err := e.compileParts(ctx, p, parts, prep)
	made.exes, made.manifest.Main = exes[0], *files[0]
	if prep != nil {
		made.prepare, made.manifest.Prep = exes[1], files[1]
	}
	if err != nil {
		made.close()
		return nil, err
	}
	if err := d.optimized(made); err != nil {
		made.close()
		return nil, err
	}
	if e.store != nil && all {
		data, err := json.Marshal(made.manifest)
		if err != nil {
			return nil, err
		}
		e.put(cache.Manifest, key, data)
	}
	return made, nil
}

// compileParts compiles the programs of the parts, each of which is a plan: several at a time, since a compile has long stretches that use one
// processor, those with the longest text first. prep is the part that only the loader runs, nil where there is none. The error is that of the first
// program in order that has one; what was compiled is returned with it. stored says that the cache has all of them now.
func (e *engine) compileParts(ctx context.Context, p *pipelines.Program, parts []*lowered, prep *lowered) (files []*planFile, exes [][]backends.Executable, stored bool, err error) {
	type job struct {
		prog  *lower.Program
		light bool
		file  *exeFile
		exe   *backends.Executable
		err   *error
	}
	var jobs []job
	var errs []*error
	for _, low := range parts {
		file := newPlanFile(low.plan)
		file.Executables = make([]exeFile, len(low.programs))
		list := make([]backends.Executable, len(low.programs))
		files, exes = append(files, file), append(exes, list)
		for i, prog := range low.programs {
			x := &file.Executables[i]
			x.Name = prog.Name
			if low == prep {
				if x.Moves = movesOf(prog.Module); x.Moves != nil {
					continue
				}
			}
			for k, q := range prog.Params {
				if q.Donated {
					x.Donated = append(x.Donated, k)
				}
			}
			j := job{prog: prog, light: low.light != nil && low.light[i], file: x, exe: &list[i], err: new(error)}
			x.Key = e.contentKey(prog, j.light)
			jobs, errs = append(jobs, j), append(errs, j.err)
		}
	}
	var group errgroup.Group
	group.SetLimit(runtime.NumCPU())
	if e.eager(p) {
		// Operations that several programs share are compiled by the first that comes; one after the other, their order is that of the graph.
		group.SetLimit(1)
	} else {
		slices.SortStableFunc(jobs, func(a, b job) int { return len(b.prog.Code) - len(a.prog.Code) })
	}
	var failed, missing atomic.Bool
	for _, j := range jobs {
		group.Go(func() error {
			if failed.Load() {
				return nil
			}
			*j.err = guarded(j.prog.Name, func() (err error) {
				compile := func() (backends.Executable, int64, bool, error) { return e.compileOne(ctx, p, j.prog, j.light) }
				var kept bool
				if e.eager(p) {
					j.file.NonFinite = constantsNotFinite(j.prog.Module)
					var op *operation
					if op, err = e.operation(p, j.file.Key, compile); err == nil {
						*j.exe, j.file.Bytes, kept = op.exe, op.bytes, op.stored
					}
				} else {
					*j.exe, j.file.Bytes, kept, err = compile()
				}
				if !kept {
					missing.Store(true)
				}
				return err
			})
			if *j.err != nil {
				failed.Store(true)
			}
			return nil
		})
	}
	_ = group.Wait()
	for _, e := range errs {
		if *e != nil {
			return files, exes, false, *e
		}
	}
	return files, exes, !missing.Load(), nil
}

// compileOne compiles a program or loads it from the cache. stored says that the cache has it now.
func (e *engine) compileOne(ctx context.Context, p *pipelines.Program, prog *lower.Program, light bool) (exe backends.Executable, size int64, stored bool, err error) {
	key := e.contentKey(prog, light)
	if e.store != nil {
		if data, ok := e.store.Get(cache.Executable, key); ok {
			start := time.Now()
			exe, err := e.backend.client.LoadExecutable(ctx, data, backends.CompileOptions{})
			e.stats.time(p.Name, "load", start)
			if err == nil {
				e.stats.bytes("executables", int64(len(data)))
				return exe, int64(len(data)), true, nil
			}
			e.cfg.Log.Warn("cached executable can't be loaded; it is compiled anew", "program", prog.Name, "reason", err.Error())
			e.store.Delete(cache.Executable, key)
		}
	}
	if e.cfg.CacheOnly {
		return nil, 0, false, &CompileNeededError{Program: prog.Name, Key: key.Digest()}
	}
	start := time.Now()
	exe, err = e.backend.client.Compile(ctx, prog, e.compileOptions(prog, light))
	e.stats.time(p.Name, "compile", start)
	e.stats.count(p.Name, "compile")
	e.cfg.Log.Debug("compiled", "program", prog.Name, "seconds", time.Since(start).Seconds(), "nodes", len(prog.Module.Entry().Nodes), "stablehlo_bytes", len(prog.Code))
	if err != nil {
		err = deviceError("compile", prog.Name, err)
		var bug *InternalError
		if errors.As(err, &bug) {
			bug.Dump = dumpForBug(prog.Module)
		}
		return nil, 0, false, err
	}
	if e.store == nil {
		return exe, 0, false, nil
	}
	start = time.Now()
	data, err := exe.Serialize()
	e.stats.time(p.Name, "serialize", start)
	if err != nil {
		if backends.CodeOf(err) == backends.Unimplemented {
			e.cfg.Log.Warn("the backend can't serialize executables: each start compiles anew", "backend", e.backend.name)
			return exe, 0, false, nil
		}
		exe.Close()
		return nil, 0, false, &InternalError{Phase: "serialize", Program: prog.Name, Err: err}
	}
	e.stats.bytes("executables", int64(len(data)))
	return exe, int64(len(data)), e.put(cache.Executable, key, data), nil
}

// put stores an entry; a cache that can't take it costs a warning, which the store gives, and no more.
func (e *engine) put(kind cache.Kind, key cache.Key, data []byte) bool {
	if e.store == nil {
		return false
	}
	if err := e.store.Put(kind, key, data); err != nil {
		return false
	}
	e.stats.bytes("cache_written", int64(len(data)))
	return true
}

func newPlanFile(p *passes.Plan) *planFile {
	f := &planFile{Steps: p.Steps, Results: p.Results, ResultNames: p.ResultNames, ResultDigests: p.ResultDigests}
	for _, s := range p.Params {
		f.Params = append(f.Params, slotFile{Name: s.Name, Weight: s.Kind == graph.Weight, DType: graph.DTypeName(s.Shape.DType), Dims: s.Shape.Dimensions, Donated: s.Donated})
	}
	return f
}

// HasPlugin returns nil where the default PJRT plugin is installed, else the error that says how to install it.
func HasPlugin() error {
	_, err := plugin.Default()
	return err
}
