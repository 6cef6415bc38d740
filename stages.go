package precast

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"precast/graph"
	"precast/graph/pipelines"
)

// The stages of a run.
const (
	StageEncode  = pipelines.StageEncode
	StageDenoise = pipelines.StageDenoise
	StageDecode  = pipelines.StageDecode
)

// Stage is a part of a run that can be had alone.
type Stage = pipelines.Stage

// Embeds are the embeddings of prompts: what Encode makes and Request.PromptEmbeds takes.
type Embeds = pipelines.Embeds

// Encode turns the request's texts into embeddings with the text encoders alone: nothing else is compiled, loaded or read.
func (p *Pipeline) Encode(ctx context.Context, req *Request) (Embeds, error) {
	var out Embeds
	err := p.stages(ctx, req, []Stage{StageEncode}, func(r *Request, ex pipelines.Executor) (err error) {
		out, err = p.pipe.Encode(ctx, ex, r)
		return err
	})
	return out, err
}

// Denoise makes latents, what diffusers returns for output_type="latent", from texts or, where the request has PromptEmbeds, without the text
// encoders. Nothing is decoded. The parameters are those that the picture's file would have.
func (p *Pipeline) Denoise(ctx context.Context, req *Request) (*HostTensor, []Params, error) {
	var out *HostTensor
	var params []Params
	err := p.stages(ctx, req, []Stage{StageEncode, StageDenoise}, func(r *Request, ex pipelines.Executor) error {
		e, err := pipelines.EncodeOnce(ctx, ex, p.pipe, r)
		if err != nil {
			return err
		}
		t, err := p.pipe.Denoise(ctx, ex, r, e)
		if err != nil {
			return err
		}
		defer t.Free()
		data, err := t.Read(ctx)
		out, params = &HostTensor{Shape: t.Shape(), Data: data}, pipelines.Describe(p.pipe, r)
		p.note(params)
		return err
	})
	return out, params, err
}

// Decode makes the pictures of latents that Denoise (or diffusers with output_type="latent") made. Sizes come from the request.
func (p *Pipeline) Decode(ctx context.Context, req *Request, latents *HostTensor) (*Result, error) {
	own := *req
	req = &own
	if d := latents.Shape.Dimensions; len(req.Prompt) == 0 && req.PromptEmbeds == nil && len(d) > 0 {
		req.Prompt, req.NumImagesPerPrompt = make([]string, min(d[0], 1024)), 1
	}
	var out *Result
	err := p.stages(ctx, req, []Stage{StageDecode}, func(r *Request, ex pipelines.Executor) error {
		s := p.pipe.Sizes(r)
		want, err := p.latents(r)
		if err != nil {
			return err
		}
		if !latents.Shape.Equal(want) {
			return userErrorf("latents: found %s, wanted %s for %s; give the size that they were made for", latents.Shape, want, s)
		}
		t, err := ex.Put(latents.Shape, latents.Data)
		if err != nil {
			return err
		}
		images, err := p.pipe.Decode(ctx, ex, r, t)
		if err != nil {
			return err
		}
		out = pipelines.NewOutput(p.pipe, r, images)
		return nil
	})
	return out, err
}

// latents is the shape of a run's final latents: that of the scheduler's sample.
func (p *Pipeline) latents(r *Request) (graph.Shape, error) {
	programs, err := p.pipe.Programs(r)
	if err != nil {
		return graph.Shape{}, asUser(err)
	}
	for _, q := range programs {
		for _, in := range q.Inputs {
			if q.Name == "step" && in.Name == "sample" {
				return in.Shape, nil
			}
		}
	}
	return graph.Shape{}, &InternalError{Phase: "decode", Program: p.Class(), Err: errors.New("no step program says what the latents are")}
}

// stages makes ready what the given stages need of a request and runs work on the request with its defaults filled in.
func (p *Pipeline) stages(ctx context.Context, req *Request, stages []Stage, work func(*Request, pipelines.Executor) error) error {
	own := *req
	req = &own
	if err := p.check(req, stages); err != nil {
		return err
	}
	programs, err := p.programs(req, stages)
	if err != nil {
		return err
	}
	if err := p.checkWeightFiles(programs); err != nil {
		return err
	}
	if err := p.connect(); err != nil {
		return err
	}
	// Everything is made ready before anything runs: a weight that is missing costs no compile, a program that can't be compiled no denoising.
	for _, e := range p.engines() {
		e.willRun = true
		if err := e.checkWeights(p.on(e, programs)); err != nil {
			return err
		}
	}
	if err := p.checkRegions(programs, p.cfg.Components); err != nil {
		return err
	}
	if err := p.checkMemory(req, programs); err != nil {
		return err
	}
	for _, e := range p.engines() {
		if err := e.makeRoom(p.on(e, programs)); err != nil {
			return &InternalError{Phase: "making room", Program: p.Class(), Err: err}
		}
		if err := e.getAll(ctx, p.on(e, programs)); err != nil {
			return err
		}
		if err := e.closeOperations(); err != nil {
			return &InternalError{Phase: "making room", Program: p.Class(), Err: err}
		}
	}
	if err := p.checkScope(programs); err != nil {
		return err
	}
	for _, e := range p.engines() {
		e.begin()
	}
	start := time.Now()
	err = work(req, p.executor())
	p.stats.time("", "generate", start)
	var numbers *pipelines.NotFiniteError
	if errors.As(err, &numbers) {
		for _, e := range p.engines() {
			if what := e.weights.firstNonFinite(numbers.Component); what != "" {
				return userErrorf("%w (%s)", err, what)
			}
		}
		return asUser(err)
	}
	if err != nil && ctx.Err() != nil {
		return asUser(err)
	}
	return err
}

// programs lists what the stages of a request run, in order of use. Texts that are encoded already need no text encoder.
func (p *Pipeline) programs(req *Request, stages []Stage) ([]*pipelines.Program, error) {
	programs, err := p.pipe.Programs(req)
	if err != nil {
		return nil, asUser(err)
	}
	return slices.DeleteFunc(programs, func(q *pipelines.Program) bool {
		return !slices.Contains(stages, q.Stage) || q.Stage == StageEncode && req.PromptEmbeds != nil
	}), nil
}

// StagesFor finds the stages whose components a list names ("transformer", "vae.decoder"): each stage whole, and no gap between them.
func (p *Pipeline) StagesFor(components []string) ([]Stage, error) {
	programs, err := p.programsAt(Sizes{})
	if err != nil {
		return nil, err
	}
	chosen := map[Stage]bool{}
	for _, c := range components {
		found := false
		for _, q := range slices.Backward(programs) {
			if q.Component != "" && (q.Name == c || q.Component == c) {
				chosen[q.Stage], found = true, true
				break
			}
		}
		if !found {
			return nil, userErrorf("components: %q is none of this pipeline's; it has %s", c, strings.Join(componentNames(programs), ", "))
		}
	}
	var stages []Stage
	for _, s := range allStages {
		if !chosen[s] {
			continue
		}
		// A component is there when one of its programs is named: the VAE's decoder brings along what unpacks for it.
		var all, missing []string
		for _, q := range programs {
			if q.Stage == s && q.Component != "" && q.Name != "vae.encoder" && !slices.Contains(all, q.Component) {
				all = append(all, q.Component)
			}
		}
		for _, c := range all {
			if !slices.ContainsFunc(programs, func(q *pipelines.Program) bool {
				return q.Stage == s && q.Component == c && (slices.Contains(components, q.Name) || slices.Contains(components, c))
			}) {
				missing = append(missing, c)
			}
		}
		if len(missing) > 0 {
			return nil, userErrorf("components: the %s stage of %s runs %s together; name %s too, or run one network alone with --inputs", s, p.Class(), strings.Join(all, ", "), strings.Join(missing, ", "))
		}
		stages = append(stages, s)
	}
	if len(stages) == 2 && stages[1]-stages[0] == 2 {
		return nil, userErrorf("components: text encoders and the decoder were named, but not the denoiser between them; name it too")
	}
	return stages, nil
}

// programsAt lists all programs at sizes, whose zero fields take the pipeline's defaults.
func (p *Pipeline) programsAt(s Sizes) ([]*pipelines.Program, error) {
	req := Request{
		Prompt: []string{""}, NumImagesPerPrompt: s.Batch, Height: s.Height, Width: s.Width, NumFrames: s.Frames, MaxSequenceLength: s.MaxSequenceLength,
		VAETiling: s.VAETiling, GuidanceBatch: s.GuidanceBatch,
	}
	if err := p.complete(&req); err != nil {
		return nil, err
	}
	programs, err := p.pipe.Programs(&req)
	return programs, asUser(err)
}

// componentNames lists the names that --components takes.
func componentNames(programs []*pipelines.Program) []string {
	var names []string
	for _, q := range programs {
		if q.Component != "" {
			names = append(names, q.Component, q.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// RunComponent runs one network alone on tensors by the names of its inputs: for comparisons with another implementation. Float tensors are
// converted to the network's dtypes; results are given as they are.
func (p *Pipeline) RunComponent(ctx context.Context, name string, s Sizes, inputs map[string]HostTensor) (map[string]HostTensor, error) {
	programs, err := p.programsAt(s)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(programs, func(q *pipelines.Program) bool { return q.Name == name })
	if i < 0 {
		i = slices.IndexFunc(programs, func(q *pipelines.Program) bool { return q.Component == name })
	}
	if i < 0 {
		return nil, userErrorf("components: %q is none of this pipeline's; it has %s", name, strings.Join(componentNames(programs), ", "))
	}
	q := &Program{p: p, prog: programs[i]}
	converted := map[string]HostTensor{}
	var problems []error
	for _, want := range q.Inputs() {
		got, ok := inputs[want.Name]
		if !ok {
			problems = append(problems, fmt.Errorf("inputs: %s wants %q, %s, which is not given", name, want.Name, want.Shape))
			continue
		}
		c, err := convertTensor(got, want.Shape)
		if err != nil {
			hint := ""
			if !slices.Equal(got.Shape.Dimensions, want.Shape.Dimensions) {
				hint = "; give the size that it was made for"
			}
			problems = append(problems, fmt.Errorf("inputs: %s: %q: %w%s", name, want.Name, err, hint))
			continue
		}
		converted[want.Name] = c
	}
	for _, have := range slices.Sorted(maps.Keys(inputs)) {
		if !slices.ContainsFunc(q.Inputs(), func(in ProgramInput) bool { return in.Name == have }) {
			problems = append(problems, fmt.Errorf("inputs: %s takes no %q", name, have))
		}
	}
	if len(problems) > 0 {
		return nil, asUser(errors.Join(problems...))
	}
	alone := []*pipelines.Program{q.prog}
	if err := p.checkWeightFiles(alone); err != nil {
		return nil, err
	}
	if err := p.connect(); err != nil {
		return nil, err
	}
	if err := p.engineOf(q.prog).checkWeights(alone); err != nil {
		return nil, err
	}
	if err := p.checkRegions(alone, []string{name}); err != nil {
		return nil, err
	}
	return q.Run(ctx, converted)
}
