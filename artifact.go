package precast

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"precast/backends"
	"precast/cache"
	"precast/graph"
	"precast/graph/pipelines"
	"precast/passes"
)

// artifactFile is the content of an artifact's manifest.
type artifactFile struct {
	// Pipeline is the class, Checkpoint the folder that the weights were read from.
	Pipeline   string `json:"pipeline"`
	Checkpoint string `json:"checkpoint"`
	// Headers are digests of the weight files' headers by component: another folder with equal digests serves as well.
	Headers map[string]string `json:"headers"`
	// DType, Regions, Mode and Scheduler are the options that shaped the programs.
	DType     string `json:"dtype"`
	Regions   string `json:"regions"`
	Mode      string `json:"mode"`
	Scheduler string `json:"scheduler,omitempty"`
	Variant   string `json:"variant,omitempty"`
	// Target is what the executables run on: the fields that must be equal.
	Target []cache.Field `json:"target"`
	Shapes []Sizes       `json:"shapes"`
	// Digest is the SHA-256 of this content's JSON with no digest in it: a manifest that was edited is not worked by.
	Digest string `json:"digest"`
	// Programs are the compiled programs; their executables are the members exe/DIGEST, their graphs the members that Graph names.
	Programs []*manifest `json:"programs"`
}

// digest computes what Digest should be.
func (f artifactFile) digest() (string, error) {
	f.Digest = ""
	data, err := json.Marshal(f)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

// artifact is an open artifact.
type artifact struct {
	path   string
	bundle *cache.Bundle
	file   artifactFile
}

func openArtifact(path string) (*artifact, error) {
	b, err := cache.OpenBundle(path)
	if err != nil {
		return nil, userErrorf("%w; wanted an artifact made by `precast compile`, or a checkpoint folder", err)
	}
	a := &artifact{path: path, bundle: b}
	if err := json.Unmarshal(b.Content(), &a.file); err != nil {
		b.Close()
		return nil, userErrorf("%s: its manifest is broken: %w; compile it anew", path, err)
	}
	if sum, err := a.file.digest(); err != nil || sum != a.file.Digest {
		b.Close()
		return nil, userErrorf("%s: its manifest was changed: the content has SHA-256 %s, wanted %s; compile it anew", path, sum, orNone(a.file.Digest))
	}
	for _, m := range a.file.Programs {
		if err := m.check(); err != nil {
			b.Close()
			return nil, userErrorf("%s: program %q of its manifest is broken: %w; compile it anew", path, m.ID, err)
		}
	}
	return a, nil
}

func (a *artifact) close() error { return a.bundle.Close() }

// apply takes the options that the artifact fixes and refuses others: given is the configuration before its defaults, want the options in it.
func (a *artifact) apply(c *Config, given Config, want pipelines.Options) (pipelines.Options, error) {
	options, err := parseDTypeFlag(a.file.DType)
	if err != nil {
		return want, userErrorf("%s: %w", a.path, err)
	}
	if given.DType != "" && (want.DType != options.DType || !maps.Equal(want.DTypes, options.DTypes)) {
		return want, userErrorf("dtype: the artifact %s was compiled for %s, not %s; compile another, or run the checkpoint folder", a.path, a.file.DType, given.DType)
	}
	if given.Regions != "" && given.Regions != a.file.Regions {
		return want, userErrorf("regions: the artifact %s was compiled with --regions %s, not %s", a.path, a.file.Regions, given.Regions)
	}
	if c.modes.some(modeEager) {
		return want, userErrorf("mode: the artifact %s holds compiled programs, and --mode %s wants single operations; run the checkpoint folder %s", a.path, given.Mode, a.checkpointDir(c))
	}
	if c.Offload == offloadBlock && a.file.Regions != "split" {
		return want, userErrorf("offload: block needs programs that are blocks, and the artifact %s was compiled with --regions %s; compile it with --offload block or --regions split, or take --offload model", a.path, a.file.Regions)
	}
	c.Regions = a.file.Regions
	if c.Scheduler == "" {
		c.Scheduler = a.file.Scheduler
	}
	if c.Variant == "" {
		c.Variant = a.file.Variant
	}
	options.Scheduler = c.Scheduler
	return options, nil
}

// dtypeFlag writes options as parseDTypeFlag reads them.
func dtypeFlag(o pipelines.Options) string {
	text := graph.DTypeName(o.DType)
	for _, component := range slices.Sorted(maps.Keys(o.DTypes)) {
		text += "," + component + "=" + graph.DTypeName(o.DTypes[component])
	}
	return text
}

// defaults gives a request without sizes those of the artifact: its first, or the text length that goes with the size asked for.
func (a *artifact) defaults(r *Request) {
	if len(a.file.Shapes) == 0 {
		return
	}
	if r.Height == 0 && r.Width == 0 {
		r.Height, r.Width = a.file.Shapes[0].Height, a.file.Shapes[0].Width
	}
	for _, s := range a.file.Shapes {
		if s.Height != r.Height || s.Width != r.Width {
			continue
		}
		if r.MaxSequenceLength == 0 {
			r.MaxSequenceLength = s.MaxSequenceLength
		}
		if r.NumFrames == 0 {
			r.NumFrames = s.Frames
		}
		r.VAETiling = r.VAETiling || s.VAETiling
		if r.GuidanceBatch == "" || r.GuidanceBatch == "auto" {
			r.GuidanceBatch = s.GuidanceBatch
		}
	}
}

// sizes lists the artifact's sizes for people.
func (a *artifact) sizes() string {
	var list []string
	for _, s := range a.file.Shapes {
		list = append(list, s.String())
	}
	return strings.Join(list, "; ")
}

func (a *artifact) checkpointDir(c *Config) string {
	if c.Checkpoint != "" {
		return c.Checkpoint
	}
	if filepath.IsAbs(a.file.Checkpoint) {
		return a.file.Checkpoint
	}
	return filepath.Join(filepath.Dir(a.path), a.file.Checkpoint)
}

// find returns the program's manifest, nil where the artifact has none for these sizes.
func (a *artifact) find(id string) *manifest {
	i := slices.IndexFunc(a.file.Programs, func(m *manifest) bool { return m.ID == id })
	if i < 0 {
		return nil
	}
	return a.file.Programs[i]
}

// artifactManifest is the artifact's manifest of the program, nil where it has none for these sizes. The program must have been made from the
// config that the checkpoint has.
func (e *engine) artifactManifest(p *pipelines.Program) (*manifest, error) {
	m := e.artifact.find(p.ID())
	if m == nil || p.Component == "" {
		return m, nil
	}
	digest, err := e.source.configDigest(p.Component)
	if err != nil {
		return nil, err
	}
	if digest != m.Config {
		return nil, userErrorf("%s: the config of component %q in %s is not the one that the artifact was compiled from; give the right folder with --checkpoint, or compile anew", e.artifact.path, p.Component, e.source.ck.Dir())
	}
	return m, nil
}

// fromArtifact makes a program ready from the artifact: its executables where they fit this machine, else from its graph. Nil, nil where
// the artifact has no such program.
func (e *engine) fromArtifact(ctx context.Context, p *pipelines.Program) (*program, error) {
	m, err := e.artifactManifest(p)
	if err != nil {
		return nil, err
	}
	if m == nil {
		e.cfg.Log.Warn("the artifact has no such program; it is made from the checkpoint", "program", p.ID(), "artifact has", e.artifact.sizes())
		return nil, nil
	}
	want := cache.Key{Fields: e.backend.identity}
	reason := ""
	if diff := want.Diff(cache.Key{Fields: e.artifact.file.Target}); len(diff) > 0 {
		var parts []string
		for _, d := range diff {
			parts = append(parts, fmt.Sprintf("%s is %s here, %s in the artifact", d.Name, orNone(d.Want), orNone(d.Found)))
		}
		reason = "the artifact's executables don't fit: " + strings.Join(parts, "; ")
	} else {
		made, err := e.loadAll(ctx, p, m, func(x exeFile) ([]byte, bool) {
			data, err := e.artifact.bundle.Read(exeMember(x.Key))
			if err != nil {
				e.cfg.Log.Warn("an executable of the artifact can't be used", "program", p.ID(), "reason", err.Error())
				return nil, false
			}
			return data, true
		})
		if err == nil {
			e.stats.count(p.Name, "cache_hit")
			return made, nil
		}
		reason = "the artifact's executables can't be loaded: " + err.Error()
	}
	text, err := e.artifact.bundle.Read(m.Graph)
	if err != nil {
		return nil, asUser(err)
	}
	sum := sha256.Sum256(text)
	key := cache.NewKey("precast", Version, "program", p.Name, "spec", p.Spec, "artifact_graph", hex.EncodeToString(sum[:]), "regions", e.cfg.Regions)
	key.Fields = append(key.Fields, e.backend.identity...)
	return e.makeOnce(ctx, p, key, reason, func() (*graph.Module, error) {
		e.cfg.Log.Warn(reason+"; compiling from the graph inside", "program", p.ID())
		return e.artifact.graph(m, text)
	})
}

// graph parses the graph of a program of the artifact.
func (a *artifact) graph(m *manifest, text []byte) (*graph.Module, error) {
	module, err := graph.Parse(a.path+":"+m.Graph, string(text))
	if err == nil {
		err = graph.Verify(module)
	}
	if err != nil {
		return nil, userErrorf("%s: the graph of %s is broken: %w; compile the artifact anew", a.path, m.ID, err)
	}
	return module, nil
}

func exeMember(k cache.Key) string { return "exe/" + k.Digest() + ".bin" }

// check refuses a manifest that would index past its own lists.
func (m *manifest) check() error {
	if err := m.Main.check(); err != nil {
		return err
	}
	if m.Prep == nil {
		return nil
	}
	if err := m.Prep.check(); err != nil {
		return err
	}
	if len(m.Prep.ResultDigests) != len(m.Prep.Results) || len(m.Prep.ResultNames) != len(m.Prep.Results) {
		return fmt.Errorf("the preparation has %d results, %d names and %d digests", len(m.Prep.Results), len(m.Prep.ResultNames), len(m.Prep.ResultDigests))
	}
	for _, q := range m.Prep.Params {
		if !q.Weight || passes.IsPrepared(q.Name) {
			return fmt.Errorf("the preparation reads %q, which is not a stored weight", q.Name)
		}
	}
	for i, s := range m.Prep.Steps {
		for _, r := range s.Results {
			if !slices.Contains(m.Prep.Results, r) {
				return fmt.Errorf("step %d of the preparation makes slot %d, which is no result", i, r)
			}
		}
		args := make([]slotFile, len(s.Args))
		for k, a := range s.Args {
			if a >= len(m.Prep.Params) {
				return fmt.Errorf("step %d of the preparation reads slot %d, which is not a weight", i, a)
			}
			args[k] = m.Prep.Params[a]
		}
		moves := m.Prep.Executables[s.Program].Moves
		if moves != nil && len(moves) != len(s.Results) {
			return fmt.Errorf("step %d of the preparation has %d moves for %d results", i, len(moves), len(s.Results))
		}
		for k := range moves {
			if err := moves[k].check(args); err != nil {
				return fmt.Errorf("step %d of the preparation, result %d: %w", i, k, err)
			}
		}
	}
	for _, x := range m.Main.Executables {
		if x.Moves != nil {
			return fmt.Errorf("program %q moves weights outside the preparation", x.Name)
		}
	}
	return nil
}

// checkResults compares the steps with what their executables return.
func (f *planFile) checkResults(exes []backends.Executable) error {
	for i, s := range f.Steps {
		if x := exes[s.Program]; x != nil && x.NumOutputs() != len(s.Results) {
			return fmt.Errorf("step %d wants %d results, its executable gives %d", i, len(s.Results), x.NumOutputs())
		}
	}
	return nil
}

func (f *planFile) check() error {
	known := map[int]bool{}
	names := map[string]bool{}
	for i, p := range f.Params {
		known[i] = true
		if names[p.Name] {
			return fmt.Errorf("two parameters are called %q", p.Name)
		}
		names[p.Name] = true
		if _, err := p.shape(); err != nil {
			return err
		}
	}
	for i, s := range f.Steps {
		if s.Program < 0 || s.Program >= len(f.Executables) {
			return fmt.Errorf("step %d runs program %d of %d", i, s.Program, len(f.Executables))
		}
		for _, a := range s.Args {
			if !known[a] {
				return fmt.Errorf("step %d reads slot %d, which nothing has set", i, a)
			}
		}
		for _, k := range f.Executables[s.Program].Donated {
			if k < 0 || k >= len(s.Args) || s.Args[k] >= len(f.Params) {
				return fmt.Errorf("step %d donates argument %d of %d, or one that is no parameter", i, k, len(s.Args))
			}
		}
		for _, r := range s.Results {
			if known[r] {
				return fmt.Errorf("step %d sets slot %d again", i, r)
			}
			known[r] = true
		}
	}
	for _, r := range f.Results {
		if !known[r] {
			return fmt.Errorf("a result is slot %d, which nothing has set", r)
		}
	}
	if len(f.ResultNames) > len(f.Results) {
		return fmt.Errorf("%d names for %d results", len(f.ResultNames), len(f.Results))
	}
	return nil
}

// save writes the programs that are ready as an artifact.
func (p *Pipeline) save(w *cache.BundleWriter, shapes []Sizes, programs []*pipelines.Program) error {
	e := p.engine
	dir, err := filepath.Abs(p.ck.Dir())
	if err != nil {
		return asUser(err)
	}
	file := artifactFile{
		Pipeline: p.Class(), Checkpoint: dir, Headers: map[string]string{}, DType: dtypeFlag(p.options), Regions: p.cfg.Regions, Mode: modeCompiled,
		Scheduler: p.cfg.Scheduler, Variant: p.cfg.Variant, Target: e.backend.identity, Shapes: shapes,
	}
	added := map[string]bool{}
	for i, q := range programs {
		made := e.programs[q.ID()]
		m := *made.manifest
		m.Graph = fmt.Sprintf("graph/%02d.%s.graph", i, q.Name)
		module := made.module
		if module == nil {
			// The executables came from the cache: the graph is made again for the artifact.
			if module, err = e.trace(q); err != nil {
				return err
			}
		}
		if err := w.Add(m.Graph, []byte(module.String())); err != nil {
			return asUser(err)
		}
		if q.Component != "" && file.Headers[q.Component] == "" {
			comp, err := p.ck.Component(q.Component)
			if err != nil {
				return asUser(err)
			}
			sum, err := comp.HeaderDigest()
			if err != nil {
				return asUser(err)
			}
			file.Headers[q.Component] = hex.EncodeToString(sum[:])
		}
		add := func(list []exeFile, exes int, get func(i int) ([]byte, error)) error {
			for i := range exes {
				name := exeMember(list[i].Key)
				if list[i].Moves != nil || added[name] {
					continue
				}
				added[name] = true
				data, err := get(i)
				if err != nil {
					return &InternalError{Phase: "serialize", Program: list[i].Name, Err: err}
				}
				if err := w.Add(name, data); err != nil {
					return asUser(err)
				}
			}
			return nil
		}
		if err := add(m.Main.Executables, len(made.exes), func(i int) ([]byte, error) { return e.serialized(made.exes[i].Serialize, m.Main.Executables[i].Key) }); err != nil {
			return err
		}
		if m.Prep != nil {
			if err := add(m.Prep.Executables, len(made.prepare), func(i int) ([]byte, error) {
				return e.serialized(made.prepare[i].Serialize, m.Prep.Executables[i].Key)
			}); err != nil {
				return err
			}
		}
		file.Programs = append(file.Programs, &m)
	}
	if file.Digest, err = file.digest(); err != nil {
		return err
	}
	return asUser(w.Commit(file))
}

// serialized returns an executable's bytes: from the cache where they are, since not every plugin serializes what it has loaded.
func (e *engine) serialized(serialize func() ([]byte, error), key cache.Key) ([]byte, error) {
	if e.store != nil {
		if data, ok := e.store.Get(cache.Executable, key); ok {
			return data, nil
		}
	}
	return serialize()
}
