package precast

import (
	"maps"
	"slices"
	"strings"

	"precast/graph/pipelines"
)

// checkRegions refuses regions that would cut nothing: where none of the programs' components has repeated blocks, or one that is named has none. Of the
// others it notes that each stays one program without functions. An artifact has been checked when it was compiled; auto asks for nothing.
func (p *Pipeline) checkRegions(programs []*pipelines.Program, named []string) error {
	repeats := p.repeats()
	p.noteOffload(programs, repeats)
	if p.cfg.Regions == "inline" || p.cfg.Regions == "auto" || p.cfg.splitByOffload || p.artifact != nil {
		return nil
	}
	// By component: whether any of its programs has repeated blocks.
	found := map[string]bool{}
	for _, q := range programs {
		if q.Component == "" || p.engineOf(q).eager(q) {
			continue // what runs eagerly has no regions
		}
		r, known := repeats[q.ID()]
		if !known {
			return nil // under --cache-only, where nothing is traced: what is missing is the error to come
		}
		found[q.Component] = found[q.Component] || r
	}
	for _, name := range named {
		chosen, any := false, false
		for _, q := range programs {
			if q.Name == name || q.Component == name {
				chosen, any = true, any || repeats[q.ID()]
			}
		}
		if chosen && !any {
			return userErrorf("regions: --regions %s is for repeated blocks, and %q, which --components names, has none (%s); leave it out, or take --regions inline",
				p.cfg.Regions, name, havingBlocks(found))
		}
	}
	if having := havingBlocks(found); having == noBlocks {
		return userErrorf("regions: --regions %s is for repeated blocks, and none of %s has any; take --regions inline",
			p.cfg.Regions, strings.Join(slices.Sorted(maps.Keys(found)), ", "))
	}
	for _, c := range slices.Sorted(maps.Keys(found)) {
		if !found[c] {
			p.cfg.Log.Info("component has no repeated blocks; it is compiled inline", "component", c, "regions", p.cfg.Regions)
		}
	}
	return nil
}

// repeats says of programs by ID whether they were found to have repeated blocks.
func (p *Pipeline) repeats() map[string]bool {
	all := map[string]bool{}
	for _, e := range p.engines() {
		e.mu.Lock()
		maps.Copy(all, e.repeats)
		e.mu.Unlock()
	}
	return all
}

// noteOffload says which programs --offload block does not stream.
func (p *Pipeline) noteOffload(programs []*pipelines.Program, repeats map[string]bool) {
	if p.cfg.Offload != offloadBlock {
		return
	}
	for _, q := range programs {
		found, known := repeats[q.ID()]
		why := ""
		switch {
		case q.Component == "":
		case p.engineOf(q).eager(q):
			why = "it runs eagerly"
		case known && !found:
			why = "it has no repeated blocks"
		}
		if why != "" {
			p.cfg.Log.Info("offload block: the weights are on the device together, as under --offload model", "program", q.Name, "reason", why)
		}
	}
}

const noBlocks = "no component here has any"

// havingBlocks says which components have repeated blocks.
func havingBlocks(found map[string]bool) string {
	var names []string
	for _, c := range slices.Sorted(maps.Keys(found)) {
		if found[c] {
			names = append(names, c)
		}
	}
	if len(names) == 0 {
		return noBlocks
	}
	return "repeated blocks are in " + strings.Join(names, ", ")
}
