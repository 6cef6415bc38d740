package precast

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"precast/cache"
	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/cost"
	"precast/graph/pipelines"
	"precast/lower"
	"precast/passes"
)

// The kinds of things that Inspect knows.
const (
	KindCheckpoint  = "checkpoint"
	KindArtifact    = "artifact"
	KindGraph       = "graph"
	KindCacheEntry  = "cache entry"
	KindSafetensors = "safetensors"
	KindPicture     = "picture"
)

// InspectOptions say what of a thing is wanted.
type InspectOptions struct {
	// Component is a program ("unet", "vae.decoder") or the component that it belongs to: its graph is wanted. In an artifact that has it in
	// several sizes it is the start of the program's ID ("unet[2x8x12"). Empty asks for the thing itself.
	Component string
	// Phase is how far the graph of a checkpoint's program goes: "trace", a pass's name, "passes" (empty) or "stablehlo". An artifact
	// holds the graph after the passes alone.
	Phase string
	// Sizes of a checkpoint's programs; a zero field is the pipeline's default.
	Sizes Sizes
	// Config has the options that shape a checkpoint's programs: dtype, regions, scheduler, variant, passes left out.
	Config Config
	// Cost asks for what the graph costs, where there is one: Inspection.Cost.
	Cost *CostOptions
}

// CostOptions say which part of the tree of module paths is wanted.
type CostOptions struct {
	// Scope is the module at the top ("transformer_blocks.3"); empty is the whole program.
	Scope string
	// Depth is the number of levels below it; below 0 means all.
	Depth int
}

// CostReport is what running a graph costs, and CostScope a module's part of it.
type (
	CostReport = cost.Report
	CostScope  = cost.Scope
)

// Inspection is what Inspect found. One of the pointers is set, as Kind says, and Module where a graph was asked for.
type Inspection struct {
	Path string `json:"path"`
	// Kind is one of the constants Kind...
	Kind       string            `json:"kind"`
	Checkpoint *CheckpointInfo   `json:"checkpoint,omitempty"`
	Artifact   *ArtifactInfo     `json:"artifact,omitempty"`
	Entry      *cache.Entry      `json:"entry,omitempty"`
	Tensors    *TensorFileInfo   `json:"safetensors,omitempty"`
	Parameters *pipelines.Params `json:"parameters,omitempty"`
	// Graph counts what the module holds.
	Graph *graph.ModuleStats `json:"graph,omitempty"`
	// Cost is what one run of the module costs, its tree of scopes cut as CostOptions say.
	Cost *CostReport `json:"cost,omitempty"`

	// Module is the graph that was asked for, or that the file holds.
	Module *graph.Module `json:"-"`
	// Program names where the module comes from: "unet[...]", or the file.
	Program string `json:"program,omitempty"`
	// Phase is the phase that the module is at, empty for a file.
	Phase string `json:"phase,omitempty"`
	// Attention is how the pass chunk-attention was told to compute attention, with the bytes of scores that auto goes by; empty for a file, and where the
	// pass did not run.
	Attention string `json:"attention,omitempty"`
}

// CheckpointInfo describes a checkpoint folder.
type CheckpointInfo struct {
	Pipeline string `json:"pipeline"`
	// Supported says that precast has a recipe for the class; Problem why the pipeline can't be made all the same.
	Supported  bool            `json:"supported"`
	Problem    string          `json:"problem,omitempty"`
	Components []ComponentInfo `json:"components"`
	// Sizes are those that Programs, the compiled units, are listed for.
	Sizes    *Sizes        `json:"sizes,omitempty"`
	Programs []ProgramInfo `json:"programs,omitempty"`
	Notes    []string      `json:"notes,omitempty"`
}

// ComponentInfo describes one component of a checkpoint.
type ComponentInfo struct {
	Name    string `json:"name"`
	Class   string `json:"class"`
	Library string `json:"library"`
	// DTypes are those of the stored tensors; Parameters counts their elements, Bytes their bytes.
	DTypes     []string   `json:"dtypes,omitempty"`
	Tensors    int        `json:"tensors,omitempty"`
	Parameters int64      `json:"parameters,omitempty"`
	Bytes      int64      `json:"bytes,omitempty"`
	Files      []FileInfo `json:"files,omitempty"`
	// Problem says why the component's weights or config can't be read.
	Problem string `json:"problem,omitempty"`
}

// FileInfo is a file and its size.
type FileInfo struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
}

// ProgramInfo is a program of a checkpoint, or of an artifact.
type ProgramInfo struct {
	Name      string `json:"name"`
	Component string `json:"component,omitempty"`
	Spec      string `json:"spec"`
	// The rest is known of an artifact's programs alone.
	Weights     int              `json:"weights,omitempty"`
	Steps       int              `json:"steps,omitempty"`
	Executables []ExecutableInfo `json:"executables,omitempty"`
	Graph       string           `json:"graph,omitempty"`
}

// ExecutableInfo is a compiled program in an artifact.
type ExecutableInfo struct {
	Name   string `json:"name"`
	Member string `json:"member"`
	Bytes  int64  `json:"bytes"`
	// Prepare marks one that computes weights once, at load.
	Prepare bool `json:"prepare,omitempty"`
}

// ArtifactInfo describes an artifact.
type ArtifactInfo struct {
	Precast    string            `json:"precast"`
	Pipeline   string            `json:"pipeline"`
	Checkpoint string            `json:"checkpoint"`
	Headers    map[string]string `json:"headers"`
	DType      string            `json:"dtype"`
	Regions    string            `json:"regions"`
	Scheduler  string            `json:"scheduler,omitempty"`
	Variant    string            `json:"variant,omitempty"`
	Target     []cache.Field     `json:"target"`
	Shapes     []Sizes           `json:"shapes"`
	Programs   []ProgramInfo     `json:"programs"`
	Members    []cache.Member    `json:"members"`
}

// TensorFileInfo describes a safetensors file.
type TensorFileInfo struct {
	Bytes      int64             `json:"bytes"`
	Parameters int64             `json:"parameters"`
	Metadata   map[string]string `json:"metadata,omitempty"`
	Tensors    []TensorInfo      `json:"tensors"`
}

// TensorInfo describes a stored tensor.
type TensorInfo struct {
	Key    string `json:"key"`
	DType  string `json:"dtype"`
	Shape  []int  `json:"shape"`
	Offset int64  `json:"offset"`
	Bytes  int64  `json:"bytes"`
}

// Inspect looks at a file or folder: a checkpoint, an artifact, a graph dump, an entry of the cache, a safetensors file or a picture that
// precast made. What it is shows from its content.
func Inspect(path string, o InspectOptions) (*Inspection, error) {
	if err := checkPhase(o.Phase); err != nil {
		return nil, userErrorf("%s", strings.NewReplacer("compile-to", "phase", ", executable", "").Replace(err.Error()))
	}
	if o.Phase == "executable" {
		return nil, userErrorf("phase: executables are not text; run or compile with --dump-compilation-phases-to DIR to have the optimized HLO written")
	}
	x := &Inspection{Path: path, Kind: KindCheckpoint}
	var err error
	if o.Config.ModelConfig == "" {
		x.Kind, err = kindOf(path)
	} else if path == "" {
		x.Path = o.Config.ModelConfig
	}
	if err != nil {
		return nil, err
	}
	kind := x.Kind
	if kind != KindCheckpoint && kind != KindArtifact {
		if o.Component != "" {
			return nil, userErrorf("component: %s is a %s, which has no components; wanted a checkpoint folder or an artifact", path, kind)
		}
		if o.Phase != "" && (kind != KindGraph || o.Phase != "stablehlo") {
			return nil, userErrorf("phase: %s is a %s; --phase is for a checkpoint folder with --component", path, kind)
		}
	}
	switch kind {
	case KindCheckpoint:
		err = x.checkpoint(o)
	case KindArtifact:
		err = x.artifact(o)
	case KindGraph:
		err = x.graphFile()
	case KindCacheEntry:
		var e cache.Entry
		if e, err = cache.Describe(path); err == nil {
			x.Entry = &e
		}
	case KindSafetensors:
		err = x.tensorFile()
	case KindPicture:
		var f *os.File
		if f, err = os.Open(path); err == nil {
			x.Parameters, err = ReadPNGParams(f)
			f.Close()
			if err != nil {
				err = fmt.Errorf("%s: %w", path, err)
			}
		}
	}
	var internal *InternalError
	if err != nil && !errors.As(err, &internal) {
		return nil, asUser(err)
	}
	if err != nil {
		return nil, err
	}
	if x.Module != nil {
		s := graph.Stats(x.Module)
		x.Graph = &s
	}
	if o.Cost != nil {
		if err := x.cost(*o.Cost); err != nil {
			return nil, err
		}
	}
	return x, nil
}

// cost counts what the module costs.
func (x *Inspection) cost(o CostOptions) error {
	if x.Module == nil {
		return userErrorf("cost: %s is a whole %s; the cost is that of a graph, add --component NAME for a checkpoint's or an artifact's", x.Path, x.Kind)
	}
	x.Cost = cost.Analyze(x.Module, cost.Options{Order: cost.DepthFirst})
	top := x.Cost.Scopes.Find(o.Scope)
	if top == nil {
		near := o.Scope
		for x.Cost.Scopes.Find(near) == nil {
			near = near[:max(strings.LastIndexByte(near, '.'), 0)]
		}
		var names []string
		for _, c := range x.Cost.Scopes.Find(near).Children {
			names = append(names, c.Path)
		}
		if len(names) == 0 {
			return userErrorf("scope: %q is no module of %s; %q has none below it", o.Scope, x.Program, near)
		}
		return userErrorf("scope: %q is no module of %s; wanted one such as %s", o.Scope, x.Program, strings.Join(names, ", "))
	}
	if o.Depth >= 0 {
		top = top.Cut(o.Depth)
	}
	x.Cost.Scopes = top
	return nil
}

// kindOf tells what a path is by its content.
func kindOf(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", userErrorf("%w", err)
	}
	if info.IsDir() {
		if _, err := os.Stat(filepath.Join(path, "model_index.json")); err == nil {
			return KindCheckpoint, nil
		}
		if _, err := os.Stat(filepath.Join(filepath.Dir(filepath.Clean(path)), "model_index.json")); err == nil {
			return "", userErrorf("%s is one component of a checkpoint; inspect the folder above, with --component %s for its graph", path, filepath.Base(path))
		}
		return "", userErrorf("%s is a folder without a model_index.json; wanted a checkpoint folder in the layout of diffusers, or a file", path)
	}
	if !info.Mode().IsRegular() {
		return "", userErrorf("%s is a device or a pipe; wanted a file or a checkpoint folder", path)
	}
	if cache.IsBundle(path) {
		return KindArtifact, nil
	}
	if cache.IsEntry(path) {
		return KindCacheEntry, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return "", userErrorf("%w", err)
	}
	defer f.Close()
	start := make([]byte, 4096)
	n, err := io.ReadFull(f, start)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		if errors.Is(err, io.EOF) {
			return "", userErrorf("%s is an empty file", path)
		}
		return "", userErrorf("%s: %w", path, err)
	}
	start = start[:n]
	switch {
	case bytes.HasPrefix(start, pngSignature):
		return KindPicture, nil
	case isGraphText(start):
		return KindGraph, nil
	// A safetensors file has the header's length first, then the header: a JSON object.
	case strings.HasSuffix(strings.ToLower(path), ".safetensors"), n > 8 && start[8] == '{' && start[7] == 0 && start[6] == 0:
		return KindSafetensors, nil
	case bytes.HasPrefix(start, []byte("PK\x03\x04")):
		return "", userErrorf("%s is a zip file, but not an artifact of precast (a PyTorch file is a zip, too): wanted a checkpoint folder, an artifact, "+
			"a .graph dump, a cache entry, a safetensors file or a PNG made by precast", path)
	}
	return "", userErrorf("%s is none of what can be inspected: a checkpoint folder, an artifact, a .graph dump, a cache entry, a safetensors file or "+
		"a PNG made by precast", path)
}

// isGraphText reports whether text begins as a graph dump does: with the word module, after comments.
func isGraphText(text []byte) bool {
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || bytes.HasPrefix(line, []byte("//")) {
			continue
		}
		return bytes.HasPrefix(line, []byte("module @"))
	}
	return false
}

func (x *Inspection) checkpoint(o InspectOptions) error {
	if o.Component != "" {
		return x.checkpointGraph(o)
	}
	if o.Phase != "" {
		return userErrorf("phase: which program's? Add --component NAME; precast inspect %s lists them", x.Path)
	}
	if _, err := o.Config.check(); err != nil {
		return err
	}
	if o.Config.ModelConfig != "" {
		return x.modelConfig(o)
	}
	ck, err := checkpoint.OpenWith(x.Path, checkpoint.Options{Variant: o.Config.Variant})
	if err != nil {
		return err
	}
	defer ck.Close()
	info := &CheckpointInfo{Pipeline: ck.Class(), Supported: slices.Contains(pipelines.Classes(), ck.Class())}
	for _, name := range ck.Components() {
		info.Components = append(info.Components, describeComponent(ck, name))
	}
	if info.Supported {
		if err := info.programs(x.Path, o); err != nil {
			info.Problem = err.Error()
		}
	} else {
		info.Problem = fmt.Sprintf("precast has no recipe for this class; it has %s", strings.Join(pipelines.Classes(), ", "))
	}
	info.Notes = ck.Notes()
	x.Checkpoint = info
	return nil
}

func (info *CheckpointInfo) programs(path string, o InspectOptions) error {
	p, err := Open(context.Background(), path, o.Config)
	if err != nil {
		return err
	}
	defer p.Close()
	shapes, programs, err := p.programsFor(CompileOptions{Shapes: []Sizes{o.Sizes}})
	if err != nil {
		return err
	}
	info.Sizes = &shapes[0]
	for _, q := range programs {
		info.Programs = append(info.Programs, ProgramInfo{Name: q.Name, Component: q.Component, Spec: q.Spec})
	}
	return nil
}

func describeComponent(ck *checkpoint.Checkpoint, name string) ComponentInfo {
	info := ComponentInfo{Name: name}
	comp, err := ck.Component(name)
	if err != nil {
		info.Problem = err.Error()
		return info
	}
	info.Class, info.Library = comp.Class, comp.Library
	if _, err := comp.ConfigBytes(); err != nil {
		info.Problem = err.Error()
	}
	if !hasWeights(comp.Class) {
		return info
	}
	files, err := comp.Files()
	if err != nil {
		info.Problem = err.Error()
		return info
	}
	for _, f := range files {
		info.Files = append(info.Files, FileInfo{filepath.Base(f.Path()), f.Size()})
	}
	tensors, err := comp.Tensors()
	if err != nil {
		info.Problem = err.Error()
		return info
	}
	for _, t := range tensors {
		info.Tensors++
		info.Parameters += int64(t.Len())
		info.Bytes += t.Size
		if d := graph.DTypeName(t.DType); !slices.Contains(info.DTypes, d) {
			info.DTypes = append(info.DTypes, d)
		}
	}
	slices.Sort(info.DTypes)
	return info
}

// hasWeights tells a network from a scheduler, tokenizer or processor of images, which are config files alone.
func hasWeights(class string) bool {
	for _, part := range []string{"Tokenizer", "Scheduler", "Processor", "FeatureExtractor"} {
		if strings.Contains(class, part) {
			return false
		}
	}
	return true
}

// checkpointGraph makes the graph of a program from config files alone.
func (x *Inspection) checkpointGraph(o InspectOptions) error {
	p, err := Open(context.Background(), x.openPath(o), o.Config)
	if err != nil {
		return err
	}
	defer p.Close()
	_, programs, err := p.programsFor(CompileOptions{Shapes: []Sizes{o.Sizes}, Components: []string{o.Component}})
	if err != nil {
		return userErrorf("%s", strings.Replace(err.Error(), "components:", "component:", 1))
	}
	// What goes along with a component is not what was asked for.
	programs = slices.DeleteFunc(programs, func(q *pipelines.Program) bool { return q.Component == "" && q.Name != o.Component })
	q, err := oneProgram(programs, o.Component)
	if err != nil {
		return err
	}
	e := p.engine
	x.Program, x.Phase = q.ID(), o.Phase
	if x.Phase == "" {
		x.Phase = "passes"
	}
	if i := slices.Index(passes.Names(), o.Phase); i >= 0 || o.Phase == "trace" {
		e.cfg.DisabledPasses = append(slices.Clone(e.cfg.DisabledPasses), passes.Names()[i+1:]...)
	}
	if pipe := e.pipeline(q, nil); slices.Contains(pipe.Passes(), "chunk-attention") {
		x.Attention = pipe.Options.Attention.String()
	}
	x.Module, err = e.trace(q)
	return err
}

func oneProgram(programs []*pipelines.Program, name string) (*pipelines.Program, error) {
	for _, q := range programs {
		if q.Name == name {
			return q, nil
		}
	}
	if len(programs) == 1 {
		return programs[0], nil
	}
	var names []string
	for _, q := range programs {
		names = append(names, q.Name)
	}
	return nil, userErrorf("component: %s has several programs; name one of %s", name, strings.Join(names, ", "))
}

func (x *Inspection) artifact(o InspectOptions) error {
	a, err := openArtifact(x.Path)
	if err != nil {
		return err
	}
	defer a.close()
	if o.Component == "" {
		x.Artifact = describeArtifact(a)
		return nil
	}
	if o.Sizes != (Sizes{}) {
		return userErrorf("sizes: an artifact has the programs that it was compiled with; name one as precast inspect %s lists it: --component 'NAME[SIZES]'", x.Path)
	}
	if o.Phase != "" && o.Phase != "passes" && o.Phase != "stablehlo" {
		return userErrorf("phase: an artifact holds its graphs after the passes; %s can be had from the checkpoint folder, %s", o.Phase, a.file.Checkpoint)
	}
	var found []*manifest
	var names []string
	for _, m := range a.file.Programs {
		name, _ := splitID(m.ID)
		names = append(names, name)
		if name == o.Component || m.Component == o.Component || strings.Contains(o.Component, "[") && strings.HasPrefix(m.ID, o.Component) {
			found = append(found, m)
		}
	}
	slices.Sort(names)
	switch {
	case len(found) == 0:
		return userErrorf("component: %q is not in the artifact; it has %s", o.Component, strings.Join(slices.Compact(names), ", "))
	case len(found) > 1:
		var ids []string
		for _, m := range found {
			ids = append(ids, m.ID)
		}
		return userErrorf("component: several programs of the artifact are %q; name one of %s (its start will do)", o.Component, strings.Join(ids, ", "))
	}
	m := found[0]
	text, err := a.bundle.Read(m.Graph)
	if err != nil {
		return err
	}
	x.Program, x.Phase = m.ID, o.Phase
	if x.Phase == "" {
		x.Phase = "passes"
	}
	x.Module, err = parseModule(x.Path+":"+m.Graph, text)
	return err
}

// splitID is the inverse of Program.ID.
func splitID(id string) (name, spec string) {
	name, spec, _ = strings.Cut(id, "[")
	return name, strings.TrimSuffix(spec, "]")
}

func describeArtifact(a *artifact) *ArtifactInfo {
	f := &a.file
	info := &ArtifactInfo{
		Precast: a.bundle.Precast(), Pipeline: f.Pipeline, Checkpoint: f.Checkpoint, Headers: f.Headers, DType: f.DType, Regions: f.Regions,
		Scheduler: f.Scheduler, Variant: f.Variant, Target: f.Target, Shapes: f.Shapes, Members: a.bundle.Members(),
	}
	for _, m := range f.Programs {
		p := ProgramInfo{Component: m.Component, Steps: len(m.Main.Steps), Graph: m.Graph}
		p.Name, p.Spec = splitID(m.ID)
		for _, q := range m.Main.Params {
			if q.Weight {
				p.Weights++
			}
		}
		add := func(list []exeFile, prepare bool) {
			for _, x := range list {
				if x.Moves != nil {
					continue
				}
				p.Executables = append(p.Executables, ExecutableInfo{Name: x.Name, Member: exeMember(x.Key), Bytes: x.Bytes, Prepare: prepare})
			}
		}
		add(m.Main.Executables, false)
		if m.Prep != nil {
			add(m.Prep.Executables, true)
		}
		info.Programs = append(info.Programs, p)
	}
	return info
}

func (x *Inspection) graphFile() error {
	text, err := os.ReadFile(x.Path)
	if err != nil {
		return err
	}
	x.Program = filepath.Base(x.Path)
	x.Module, err = parseModule(x.Path, text)
	return err
}

func parseModule(name string, text []byte) (*graph.Module, error) {
	if strings.HasSuffix(name, ".mlir") {
		return nil, userErrorf("%s: StableHLO text is not read back; inspect the .graph files beside it", name)
	}
	m, err := graph.Parse(name, string(text))
	if err != nil {
		return nil, err
	}
	if err := graph.Verify(m); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return m, nil
}

func (x *Inspection) tensorFile() error {
	f, err := checkpoint.OpenFile(x.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	info := &TensorFileInfo{Bytes: f.Size(), Metadata: f.Metadata()}
	for _, key := range f.Keys() {
		t, _ := f.Tensor(key)
		shape := t.Shape
		if shape == nil {
			shape = []int{}
		}
		info.Parameters += int64(t.Len())
		info.Tensors = append(info.Tensors, TensorInfo{Key: key, DType: graph.DTypeName(t.DType), Shape: shape, Offset: t.Offset, Bytes: t.Size})
	}
	x.Tensors = info
	return nil
}

// GraphFormats are the forms that WriteGraph writes.
var GraphFormats = []string{"text", "stablehlo", "json", "dot", "html"}

// WriteGraph writes the module in one of GraphFormats: "text" is the graph's text form, which parses back, under a comment with its figures.
func (x *Inspection) WriteGraph(w io.Writer, format string) error {
	m := x.Module
	if m == nil {
		return userErrorf("format: %s is the form of a graph, and %s is a %s; add --component NAME for a checkpoint's or an artifact's", format, x.Path, x.Kind)
	}
	switch format {
	case "text":
		for line := range strings.Lines(x.head() + x.Graph.String()) {
			if _, err := fmt.Fprintf(w, "// %s\n", strings.TrimRight(line, "\n")); err != nil {
				return err
			}
		}
		return graph.Print(w, m)
	case "stablehlo":
		for i, program := range passes.Whole(m).Programs {
			text, err := lower.Text(program, lower.Options{Locations: true})
			if err != nil {
				return &InternalError{Phase: "lower", Program: x.Program, Err: err}
			}
			if i > 0 {
				text = append([]byte("\n"), text...)
			}
			if _, err := w.Write(text); err != nil {
				return err
			}
		}
		return nil
	case "json":
		return graph.WriteJSON(w, m)
	case "dot":
		return graph.WriteDOT(w, m)
	case "html":
		return x.writeHTML(w)
	}
	return userErrorf("format: found %q, wanted one of %s", format, strings.Join(GraphFormats, ", "))
}

func (x *Inspection) head() string {
	if x.Phase == "" {
		return x.Program + "\n"
	}
	return fmt.Sprintf("%s after phase %s\n", x.Program, x.Phase)
}

// WriteJSON writes everything but the module as an indented JSON object.
func (x *Inspection) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(x)
}
