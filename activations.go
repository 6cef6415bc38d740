package precast

import (
	"cmp"
	"os"
	"slices"
	"strings"

	"precast/graph"
	"precast/graph/cost"
	"precast/graph/pipelines"
	"precast/passes"
)

// memoryOrder is the order in which what a module is compiled for runs it, which decides what is alive at one time: see compileOptions.
func (e *engine) memoryOrder(m *graph.Module) cost.Order {
	if e.backend.name == "go" {
		return cost.GraphOrder
	}
	if e.backend.client.Platform() != "cpu" {
		return cost.DepthFirst
	}
	if _, given, ok := strings.Cut(os.Getenv("XLA_FLAGS"), schedulerFlag+"="); ok {
		if strings.HasPrefix(given, "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED") {
			return cost.DepthFirst
		}
		return cost.BreadthFirst
	}
	if slices.ContainsFunc(m.Entry().Params, func(q *graph.Param) bool { return q.Kind == graph.Weight && q.Value.Shape.DType.Size() == 2 }) {
		return cost.DepthFirst
	}
	return cost.BreadthFirst
}

// planActivations is the most that the plan's programs take beside weights and inputs, in bytes: the temporaries and results of the one that runs, with
// the results of earlier steps that later ones read.
func (e *engine) planActivations(plan *passes.Plan) int64 {
	type need struct{ temporaries, results int64 }
	needs := make([]need, len(plan.Programs))
	for i, m := range plan.Programs {
		r := cost.Analyze(m, cost.Options{Order: e.memoryOrder(m)})
		needs[i] = need{r.Temporaries, r.OutputBytes}
	}
	last := map[int]int{}
	for i, s := range plan.Steps {
		for _, a := range s.Args {
			last[a] = i
		}
	}
	for _, r := range plan.Results {
		last[r] = len(plan.Steps)
	}
	sizes := map[int]int64{} // of the slots that are alive
	var live, most int64
	for i, s := range plan.Steps {
		n := needs[s.Program]
		most = max(most, live+n.temporaries+n.results)
		for k, v := range plan.Programs[s.Program].Entry().Results {
			sizes[s.Results[k]] = graph.ByteSize(v.Shape)
			live += sizes[s.Results[k]]
		}
		for _, list := range [][]int{s.Args, s.Results} {
			for _, slot := range list {
				if at, read := last[slot]; !read || at <= i {
					live -= sizes[slot]
					delete(sizes, slot)
				}
			}
		}
	}
	return most
}

// manifestActivations are a manifest's; those of an artifact from before they were counted are found from the graph inside. e.mu is held.
func (e *engine) manifestActivations(p *pipelines.Program, m *manifest) (int64, error) {
	if m.Activations != 0 || m.Graph == "" || e.artifact == nil {
		return m.Activations, nil
	}
	text, err := e.artifact.bundle.Read(m.Graph)
	if err != nil {
		return 0, asUser(err)
	}
	module, err := e.artifact.graph(m, text)
	if err != nil {
		return 0, err
	}
	plan, err := e.plan(p, module)
	if err != nil {
		return 0, err
	}
	m.Activations = e.planActivations(plan)
	return m.Activations, nil
}

// knownActivations are what checkWeights found out, 0 where it did not.
func (e *engine) knownActivations(p *pipelines.Program) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.activations[p.ID()]
}

// checkPictures refuses, before any work, a request whose pictures alone take more memory than there is: 3 bytes a pixel of each frame, all of which are
// returned together.
func (p *Pipeline) checkPictures(req *Request, stages []Stage) error {
	if !slices.Contains(stages, StageDecode) {
		return nil
	}
	s := p.pipe.Sizes(req)
	need := 3 * int64(s.Batch) * int64(max(1, s.Frames)) * int64(s.Height) * int64(s.Width)
	if have := availableMemory(); have > 0 && need > have {
		return userErrorf("%s needs about %s for the pictures alone, and %s of memory is available; take a smaller size or batch", s, FormatBytes(need), FormatBytes(have))
	}
	return nil
}

// checkMemory refuses a request whose activations, with the weights that are yet to be read, take more memory than there is. checkWeights has been asked
// of the programs: nothing is read or compiled yet.
func (p *Pipeline) checkMemory(req *Request, programs []*pipelines.Program) error {
	have := availableMemory()
	if have <= 0 {
		return nil
	}
	var most int64
	var at *pipelines.Program
	for _, q := range programs {
		if n := p.engineOf(q).knownActivations(q); n > most {
			most, at = n, q
		}
	}
	weights := p.weightBytes()
	if at == nil || most+weights <= have {
		if weights > have {
			return userErrorf("%s needs about %s for weights in %s, and %s of memory is available; take %s",
				p.Class(), FormatBytes(weights), graph.DTypeName(p.engine.dtype), FormatBytes(have), strings.Join(p.lessMemory(nil, req), ", or "))
		}
		return nil
	}
	return userErrorf("%s needs about %s for activations of %s and %s for weights in %s, and %s of memory is available; take a smaller size or batch, or %s",
		p.pipe.Sizes(req), FormatBytes(most), cmp.Or(at.Component, at.Name), FormatBytes(weights), graph.DTypeName(p.engine.dtypeFor(at.Component)), FormatBytes(have),
		strings.Join(p.lessMemory(at, req), ", or "))
}

// lessMemory is what else a user can do about memory; at is the program with most activations.
func (p *Pipeline) lessMemory(at *pipelines.Program, req *Request) []string {
	var list []string
	if at != nil && at.Component == "vae" && !req.VAETiling {
		list = append(list, "--vae-tiling")
	}
	if at != nil && at.Stage == StageDenoise && p.pipe.Sizes(req).GuidanceBatch != "" {
		list = append(list, "--guidance-batch two")
	}
	if p.engine.dtype.Size() > 2 {
		list = append(list, "--dtype bfloat16")
	}
	switch p.cfg.Offload {
	case offloadNone:
		list = append(list, "--offload model", "--offload block")
	case offloadModel:
		list = append(list, "--offload block")
	}
	if len(list) == 0 {
		list = append(list, "a machine with more memory")
	}
	return list
}
