package precast

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"precast/backends"
	"precast/graph/pipelines"
)

// defaultMaxPrograms is Config.MaxPrograms where it is 0: those of some six sizes of a pipeline.
const defaultMaxPrograms = 32

// makeRoom forgets programs that are longest not used, so that no more than Config.MaxPrograms are kept beside one another; those of the request are
// never forgotten. What it forgets is in the cache, where there is one. Nothing of the engine may be running.
func (e *engine) makeRoom(request []*pipelines.Program) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.requests++
	more := 0
	for _, q := range request {
		if e.programs[q.ID()] == nil {
			more++
		}
		e.used[q.ID()] = e.requests
	}
	limit := e.cfg.MaxPrograms
	if limit == 0 {
		limit = defaultMaxPrograms
	}
	var old []string
	for id := range e.programs {
		if e.used[id] != e.requests {
			old = append(old, id)
		}
	}
	slices.SortFunc(old, func(a, b string) int { return cmp.Or(cmp.Compare(e.used[a], e.used[b]), cmp.Compare(a, b)) })
	var gone []*program
	for _, id := range old[:min(len(old), max(0, len(e.programs)+more-limit))] {
		gone = append(gone, e.programs[id])
		delete(e.programs, id)
		delete(e.used, id)
		delete(e.repeats, id)
		delete(e.activations, id)
	}
	if len(gone) == 0 {
		return nil
	}
	left := map[backends.Buffer]bool{}
	for _, q := range e.programs {
		for _, b := range q.bound {
			left[b] = true
		}
	}
	var errs []error
	for _, q := range gone {
		e.stats.count(q.manifest.name(), "forgotten")
		errs = append(errs, e.weights.forget(q, left), q.close())
	}
	return errors.Join(errs...)
}

// closeOperations closes the operations that no program runs: those of programs that makeRoom forgot. The request's programs are ready, so that what they
// share with those is theirs now. Nothing of the engine may be running.
func (e *engine) closeOperations() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	held := map[backends.Executable]bool{}
	for _, q := range e.programs {
		if q.shared {
			for _, x := range q.exes {
				held[x] = true
			}
		}
	}
	return e.operations.keep(held)
}

// forget frees the weights that a program reads and none that is left.
func (w *weightStore) forget(q *program, left map[backends.Buffer]bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	own := map[backends.Buffer]bool{}
	for _, b := range q.bound {
		if b != nil && !left[b] {
			own[b] = true
		}
	}
	q.bound = nil
	var errs []error
	// What is being written to the cache is read from the buffers.
	w.kept.writing.Wait()
	for id, b := range w.device {
		if own[b] {
			errs = append(errs, b.Delete())
			delete(w.device, id)
		}
	}
	return errors.Join(errs...)
}

// name is the program's without its sizes.
func (m *manifest) name() string {
	name, _, _ := strings.Cut(m.ID, "[")
	return name
}
