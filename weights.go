package precast

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gomlx/compute/shapes"

	"precast/backends"
	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/pipelines"
	"precast/passes"
)

// source is where configs and weights come from.
type source struct{ ck *checkpoint.Checkpoint }

// configDigest is the SHA-256 of a component's config file.
func (s source) configDigest(component string) (string, error) {
	c, err := s.ck.Component(component)
	if err != nil {
		return "", asUser(err)
	}
	data, err := c.ConfigBytes()
	if err != nil {
		return "", asUser(err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

// weightStore holds the weights that are on the device, one copy for all programs of a component.
type weightStore struct {
	e       *engine
	matched map[string]checkpoint.Tensor // by component and wanted key
	// device holds buffers by component, dtype and key; prepared weights by component, preparing program and key.
	device map[weightID]backends.Buffer
}

type weightID struct {
	component string
	source    string // a dtype for stored weights, a program's digest for prepared ones
	key       string
}

func newWeightStore(e *engine) *weightStore {
	return &weightStore{e: e, matched: map[string]checkpoint.Tensor{}, device: map[weightID]backends.Buffer{}}
}

// check matches a program's weights against the checkpoint without reading one. The error lists everything that does not fit.
func (w *weightStore) check(p *pipelines.Program, m *manifest) error {
	params := m.Main.Params
	if m.Prep != nil {
		params = append(slices.Clone(params), m.Prep.Params...)
	}
	return w.match(p, params)
}

// match does check's work on a list of parameters.
func (w *weightStore) match(p *pipelines.Program, params []slotFile) error {
	if p.Component == "" {
		return nil
	}
	comp, err := w.e.source.ck.Component(p.Component)
	if err != nil {
		return asUser(err)
	}
	var want []checkpoint.Want
	for _, q := range params {
		if !q.Weight || passes.IsPrepared(q.Name) {
			continue
		}
		if _, ok := w.matched[p.Component+"/"+q.Name]; ok {
			continue
		}
		shape, err := q.shape()
		if err != nil {
			return err
		}
		want = append(want, checkpoint.Want{Key: q.Name, Shape: shape.Dimensions, DType: shape.DType})
	}
	found, err := comp.Match(want, p.Aliases)
	if err != nil {
		return asUser(err)
	}
	for k, t := range found {
		w.matched[p.Component+"/"+k] = t
	}
	return nil
}

// bind brings a program's weights to the device, running its preparation, and fills in p.bound. Weights that only the preparation reads
// leave the device as soon as it has run.
func (w *weightStore) bind(ctx context.Context, p *pipelines.Program, made *program) error {
	if made.bound != nil {
		return nil
	}
	if err := w.check(p, made.manifest); err != nil {
		return err
	}
	start := time.Now()
	defer func() { w.e.stats.time(p.Name, "weights", start) }()
	bound := make([]backends.Buffer, len(made.manifest.Main.Params))
	direct := map[string]bool{}
	var plain []slotFile
	for _, q := range made.manifest.Main.Params {
		if q.Weight && !passes.IsPrepared(q.Name) {
			direct[q.Name] = true
			plain = append(plain, q)
		}
	}
	if err := w.load(ctx, p.Component, plain); err != nil {
		return err
	}
	prepared, err := w.prepare(ctx, p, made, direct)
	if err != nil {
		return err
	}
	for i, q := range made.manifest.Main.Params {
		if !q.Weight {
			continue
		}
		if passes.IsPrepared(q.Name) {
			bound[i] = prepared[q.Name]
		} else {
			bound[i] = w.device[weightID{p.Component, q.DType, q.Name}]
		}
		if bound[i] == nil {
			return &InternalError{Phase: "weights", Program: p.ID(), Err: fmt.Errorf("weight %q has no buffer", q.Name)}
		}
	}
	made.bound = bound
	return nil
}

// load brings stored weights to the device.
func (w *weightStore) load(ctx context.Context, component string, list []slotFile) error {
	var missing []slotFile
	convert := int64(0)
	for _, q := range list {
		if w.device[weightID{component, q.DType, q.Name}] != nil {
			continue
		}
		missing = append(missing, q)
		shape, err := q.shape()
		if err != nil {
			return err
		}
		if t := w.matched[component+"/"+q.Name]; !inPlace(t, shape) {
			convert += roundUp(graph.ByteSize(shape), backends.Alignment)
		}
	}
	a, err := newArena(convert)
	if err != nil {
		return asUser(fmt.Errorf("%s: no memory for %s of weights: %w", component, formatBytes(convert), err))
	}
	if a != nil {
		// The buffers keep the arena: it goes with the last of them, which for weights that only the preparation reads is soon.
		defer a.drop()
	}
	// The order of the file is the order of the disk.
	slices.SortStableFunc(missing, func(x, y slotFile) int {
		s, t := w.matched[component+"/"+x.Name], w.matched[component+"/"+y.Name]
		if s.File != t.File {
			return strings.Compare(s.File.Path(), t.File.Path())
		}
		return int(min(max(s.Offset-t.Offset, -1), 1))
	})
	for _, q := range missing {
		if err := ctx.Err(); err != nil {
			return err
		}
		shape, err := q.shape()
		if err != nil {
			return err
		}
		t := w.matched[component+"/"+q.Name]
		buf, err := w.upload(t, shape, a)
		if err != nil {
			return fmt.Errorf("%s: weight %s: %w", component, t, err)
		}
		w.device[weightID{component, q.DType, q.Name}] = buf
	}
	return nil
}

// inPlace reports whether the mapping itself can be the device's memory.
func inPlace(t checkpoint.Tensor, shape graph.Shape) bool {
	return t.DType == shape.DType && t.Aligned(backends.Alignment)
}

// upload makes a device buffer of one tensor: of the mapping where it is aligned and in the wanted dtype, else of one copy in the arena. The
// copy is ours and not the backend's because it uses all processors and large pages.
func (w *weightStore) upload(t checkpoint.Tensor, shape graph.Shape, a *arena) (backends.Buffer, error) {
	size := graph.ByteSize(shape)
	w.e.stats.bytes("weights", size)
	client := w.e.backend.client
	if inPlace(t, shape) {
		// The mapping outlives the buffer: the engine closes the checkpoint last.
		w.e.stats.bytes("mapped", size)
		return client.BufferFromHost(t.Bytes(), shape, backends.HostOptions{Semantics: backends.ZeroCopy})
	}
	if t.DType == shape.DType {
		w.e.stats.bytes("copied", size)
	} else {
		w.e.stats.bytes("converted", size)
	}
	dst := a.take(size)
	if err := t.Convert(dst, shape.DType); err != nil {
		return nil, err
	}
	t.Release()
	a.hold()
	buf, err := client.BufferFromHost(dst, shape, backends.HostOptions{Semantics: backends.ZeroCopy, Release: a.drop})
	if err != nil {
		a.drop()
	}
	return buf, err
}

// prepare runs a program's preparation and returns its results by name. Its parts run one after the other, and what a part read is freed
// before the next where nothing else needs it.
func (w *weightStore) prepare(ctx context.Context, p *pipelines.Program, made *program, direct map[string]bool) (map[string]backends.Buffer, error) {
	prep := made.manifest.Prep
	if prep == nil {
		return nil, nil
	}
	out := map[string]backends.Buffer{}
	results := map[int]string{}
	for i, slot := range prep.Results {
		results[slot] = prep.ResultNames[i]
	}
	slots := map[int]backends.Buffer{}
	uses := map[int]int{}
	for _, s := range prep.Steps {
		for _, a := range s.Args {
			uses[a]++
		}
	}
	for _, s := range prep.Steps {
		// Equal preparation of equal weights is shared by the programs of a component: another shape, another batch.
		digest := prep.Executables[s.Program].Key.Get("content")
		ids := make([]weightID, len(s.Results))
		have := true
		for i := range s.Results {
			ids[i] = weightID{p.Component, "prepared " + digest + " " + argNames(prep, s), fmt.Sprint(i)}
			have = have && w.device[ids[i]] != nil
		}
		if have {
			for i, r := range s.Results {
				slots[r] = w.device[ids[i]]
				if n, ok := results[r]; ok {
					out[n] = slots[r]
				}
			}
			for _, a := range s.Args {
				uses[a]--
			}
			continue
		}
		var args []backends.Buffer
		var stored []slotFile
		for _, a := range s.Args {
			if a < len(prep.Params) {
				stored = append(stored, prep.Params[a])
			}
		}
		if err := w.load(ctx, p.Component, stored); err != nil {
			return nil, err
		}
		for _, a := range s.Args {
			if a < len(prep.Params) {
				q := prep.Params[a]
				slots[a] = w.device[weightID{p.Component, q.DType, q.Name}]
			}
			args = append(args, slots[a])
		}
		res, err := made.prepare[s.Program].Execute(ctx, args, backends.ExecuteOptions{})
		w.e.stats.count(p.Name, "execute")
		if err != nil {
			return nil, &InternalError{Phase: "prepare weights", Program: p.ID(), Err: err}
		}
		for i, r := range s.Results {
			// Waiting bounds the memory: the next part starts when this one has let go of its inputs.
			if err := res[i].Await(ctx); err != nil {
				return nil, &InternalError{Phase: "prepare weights", Program: p.ID(), Err: err}
			}
			slots[r] = res[i]
			w.device[ids[i]] = res[i]
			if n, ok := results[r]; ok {
				out[n] = res[i]
			}
		}
		for _, a := range s.Args {
			uses[a]--
			if a < len(prep.Params) && uses[a] == 0 && !direct[prep.Params[a].Name] {
				q := prep.Params[a]
				id := weightID{p.Component, q.DType, q.Name}
				if buf := w.device[id]; buf != nil {
					if err := buf.Delete(); err != nil {
						return nil, err
					}
					delete(w.device, id)
					w.matched[p.Component+"/"+q.Name].Release()
				}
			}
		}
	}
	return out, nil
}

func argNames(f *planFile, s passes.Step) string {
	var names []string
	for _, a := range s.Args {
		if a < len(f.Params) {
			names = append(names, f.Params[a].Name)
		} else {
			names = append(names, fmt.Sprint(a))
		}
	}
	return strings.Join(names, " ")
}

// release frees a component's weights on the device.
func (w *weightStore) release(component string) error {
	var errs []error
	for id, buf := range w.device {
		if id.component == component {
			errs = append(errs, buf.Delete())
			delete(w.device, id)
		}
	}
	prefix := component + "/"
	for key, t := range w.matched {
		if strings.HasPrefix(key, prefix) {
			t.Release()
		}
	}
	return errors.Join(errs...)
}

// close frees everything.
func (w *weightStore) close() error {
	var errs []error
	components := map[string]bool{}
	for id := range w.device {
		components[id.component] = true
	}
	for c := range components {
		errs = append(errs, w.release(c))
	}
	return errors.Join(errs...)
}

// firstNonFinite looks for NaN or infinity in a component's weights, for the message about a result that holds some.
func (w *weightStore) firstNonFinite(component string) string {
	prefix := component + "/"
	var names []string
	for key := range w.matched {
		if strings.HasPrefix(key, prefix) {
			names = append(names, key)
		}
	}
	slices.Sort(names)
	for _, key := range names {
		t := w.matched[key]
		if i := checkpoint.NonFinite(t.Bytes(), t.DType); i >= 0 {
			return fmt.Sprintf("weight %q in %s holds NaN or infinity at element %d", t.Key, t.File.Path(), i)
		}
	}
	return ""
}

func (q slotFile) shape() (graph.Shape, error) {
	d, err := parseDType(q.DType)
	if err != nil {
		return graph.Shape{}, fmt.Errorf("parameter %q: %w", q.Name, err)
	}
	for _, n := range q.Dims {
		if n < 0 {
			return graph.Shape{}, fmt.Errorf("parameter %q: dimension %d is negative", q.Name, n)
		}
	}
	return shapes.Make(d, q.Dims...), nil
}

func roundUp(n, multiple int64) int64 { return (n + multiple - 1) / multiple * multiple }

// arena is one block of memory that copies of weights lie in. It is given back when the loader and every buffer on it have dropped it.
type arena struct {
	mem  []byte
	used int64

	mu   sync.Mutex
	refs int
	free func([]byte)
}

// newArena returns memory for n bytes, nil for none. The caller owns one reference.
func newArena(n int64) (*arena, error) {
	if n == 0 {
		return nil, nil
	}
	mem, free, err := allocate(n)
	if err != nil {
		return nil, err
	}
	return &arena{mem: mem, refs: 1, free: free}, nil
}

// take returns the next n bytes, aligned.
func (a *arena) take(n int64) []byte {
	b := a.mem[a.used : a.used+n : a.used+n]
	a.used += roundUp(n, backends.Alignment)
	return b
}

func (a *arena) hold() {
	a.mu.Lock()
	a.refs++
	a.mu.Unlock()
}

func (a *arena) drop() {
	a.mu.Lock()
	a.refs--
	last := a.refs == 0
	a.mu.Unlock()
	if last {
		a.free(a.mem)
		a.mem = nil
	}
}
