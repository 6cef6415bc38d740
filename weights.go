package precast

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gomlx/compute/shapes"

	"precast/backends"
	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/lora"
	"precast/graph/pipelines"
	"precast/passes"
)

// source is where configs and weights come from.
type source struct {
	ck *checkpoint.Checkpoint
	// loras change weights on their way to the device; nil where none is given.
	loras *lora.Set
}

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
	e *engine

	// mu guards what follows: programs are made ready several at a time.
	mu      sync.Mutex
	matched map[string]checkpoint.Tensor // by component and wanted key
	// bytes is what the matched weights of a component take on the device.
	bytes map[string]int64
	// device holds buffers by component, dtype and key; prepared weights by component and the digest of how they are made.
	device map[weightID]backends.Buffer
	// needs is the most memory that a component's weights take at once, where some of its programs are streamed.
	needs map[string]int64
	// idle is the memory of streamed weights between two runs.
	idle *streamPool
	kept keptWeights
}

// matchedKey is a weight's key in matched.
func matchedKey(component, name string) string { return component + "/" + name }

// tensor is where a matched weight lies.
func (w *weightStore) tensor(component, name string) checkpoint.Tensor {
	return w.matched[matchedKey(component, name)]
}

// fileOrder compares tensors by their places in the files: the order of the file is the order of the disk.
func fileOrder(a, b checkpoint.Tensor) int {
	return cmp.Or(strings.Compare(a.File.Path(), b.File.Path()), cmp.Compare(a.Offset, b.Offset))
}

type weightID struct {
	component string
	source    string // a dtype for stored weights, "prepared" for those whose key is a digest
	key       string
}

func newWeightStore(e *engine) *weightStore {
	return &weightStore{e: e, matched: map[string]checkpoint.Tensor{}, bytes: map[string]int64{}, device: map[weightID]backends.Buffer{}, needs: map[string]int64{}, kept: newKeptWeights()}
}

// check matches a program's weights against the checkpoint without reading one. The error lists everything that does not fit.
func (w *weightStore) check(p *pipelines.Program, m *manifest) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.checkLocked(p, m)
}

func (w *weightStore) checkLocked(p *pipelines.Program, m *manifest) error {
	params := m.Main.Params
	if m.Prep != nil {
		params = append(slices.Clone(params), m.Prep.Params...)
	}
	return w.matchLocked(p, params)
}

// toLoad is the most that the matched weights take at once by component, without those of components of which any is on the device already.
func (w *weightStore) toLoad() map[string]int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	left := maps.Clone(w.bytes)
	maps.Copy(left, w.needs)
	for id := range w.device {
		delete(left, id.component)
	}
	return left
}

// match does check's work on a list of parameters.
func (w *weightStore) match(p *pipelines.Program, params []slotFile) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.matchLocked(p, params)
}

func (w *weightStore) matchLocked(p *pipelines.Program, params []slotFile) error {
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
		if _, ok := w.matched[matchedKey(p.Component, q.Name)]; ok {
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
	for _, x := range want {
		id := matchedKey(p.Component, x.Key)
		if _, twice := w.matched[id]; twice {
			continue
		}
		w.matched[id] = found[x.Key]
		w.bytes[p.Component] += int64(found[x.Key].Len()) * int64(x.DType.Size())
	}
	return nil
}

// bind brings a program's weights to the device, running its preparation, and fills in p.bound. Weights that only the preparation reads
// leave the device as soon as it has run.
func (w *weightStore) bind(ctx context.Context, p *pipelines.Program, made *program) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if made.bound != nil {
		return nil
	}
	if err := w.checkLocked(p, made.manifest); err != nil {
		return err
	}
	start := time.Now()
	defer func() { w.e.stats.time(p.Name, "weights", start) }()
	bound := make([]backends.Buffer, len(made.manifest.Main.Params))
	if w.e.streams(p, made.manifest) {
		var err error
		if made.stream, err = w.stream(p, made); err != nil {
			return err
		}
		made.bound = bound
		return nil
	}
	set, err := w.fromCache(p, made.manifest)
	if err != nil {
		return err
	}
	if err := w.load(ctx, p.Component, made.manifest.direct()); err != nil {
		return err
	}
	prepared, err := w.prepare(ctx, p, made)
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
	w.toCache(ctx, p, set)
	return nil
}

// direct lists the stored weights that the program itself reads.
func (m *manifest) direct() []slotFile {
	var list []slotFile
	for _, q := range m.Main.Params {
		if q.Weight && !passes.IsPrepared(q.Name) {
			list = append(list, q)
		}
	}
	return list
}

// preload brings to the device what needs none of the program's executables: weights from the cache, those that the program reads as they are stored,
// and those that are only moved.
func (w *weightStore) preload(ctx context.Context, p *pipelines.Program, m *manifest) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.checkLocked(p, m); err != nil {
		return err
	}
	defer w.e.stats.time(p.Name, "preload", time.Now())
	if _, err := w.fromCache(p, m); err != nil {
		return err
	}
	if err := w.load(ctx, p.Component, m.direct()); err != nil {
		return err
	}
	if m.Prep == nil {
		return nil
	}
	ids := m.Prep.ids(p.Component)
	for _, s := range m.Prep.Steps {
		if moves := m.Prep.Executables[s.Program].Moves; moves != nil {
			if err := w.move(ctx, p.Component, moves, m.Prep.args(s), s, ids); err != nil {
				return err
			}
		}
	}
	return nil
}

// ids are the weights that a preparation makes, by slot.
func (prep *planFile) ids(component string) map[int]weightID {
	ids := map[int]weightID{}
	for i, slot := range prep.Results {
		ids[slot] = weightID{component, "prepared", prep.ResultDigests[i]}
	}
	return ids
}

// args are the parameters that a step of a preparation reads.
func (prep *planFile) args(s passes.Step) []slotFile {
	args := make([]slotFile, len(s.Args))
	for i, a := range s.Args {
		args[i] = prep.Params[a]
	}
	return args
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
		if t := w.tensor(component, q.Name); !w.inPlace(component, t, shape) {
			convert += roundUp(graph.ByteSize(shape), backends.Alignment)
		}
	}
	a, err := newArena(component, convert)
	if err != nil {
		return err
	}
	// The buffers keep the arena: it goes with the last of them, which for weights that only the preparation reads is soon.
	defer a.drop()
	slices.SortStableFunc(missing, func(x, y slotFile) int { return fileOrder(w.tensor(component, x.Name), w.tensor(component, y.Name)) })
	for _, q := range missing {
		if err := ctx.Err(); err != nil {
			return err
		}
		shape, err := q.shape()
		if err != nil {
			return err
		}
		t := w.tensor(component, q.Name)
		buf, copied, err := w.upload(component, t, shape, a)
		if err != nil {
			return err
		}
		id := weightID{component, q.DType, q.Name}
		w.device[id] = buf
		if copied != nil {
			w.kept.remember(id, copied, a)
		}
	}
	return nil
}

// inPlace reports whether the mapping itself can be the device's memory.
func (w *weightStore) inPlace(component string, t checkpoint.Tensor, shape graph.Shape) bool {
	return t.DType == shape.DType && t.Aligned(backends.Alignment) && !w.e.source.loras.Touches(component, t.Key)
}

// upload makes a device buffer of one tensor: of the mapping where it is aligned, in the wanted dtype and as it is stored, else of one copy in the
// arena, which is returned too, with what LoRAs add. The copy is ours and not the backend's because it uses all processors and large pages.
func (w *weightStore) upload(component string, t checkpoint.Tensor, shape graph.Shape, a *arena) (_ backends.Buffer, copied []byte, _ error) {
	size := graph.ByteSize(shape)
	w.e.stats.bytes("weights", size)
	if w.inPlace(component, t, shape) {
		// The mapping outlives the buffer: the engine closes the checkpoint last.
		w.e.stats.bytes("mapped", size)
		if err := populate(t.Bytes()); err != nil {
			return nil, nil, asUser(fmt.Errorf("%s: tensor %q: %w", t.File.Path(), t.Key, err))
		}
		buf, err := w.buffer(component, t.Bytes(), shape, nil)
		return buf, nil, err
	}
	dst := a.take(size)
	if err := w.read(component, t, dst, shape.DType); err != nil {
		return nil, nil, err
	}
	buf, err := w.buffer(component, dst, shape, a)
	return buf, dst, err
}

// place makes a weight's device buffer of memory in an arena.
func (w *weightStore) place(id weightID, mem []byte, shape graph.Shape, a *arena) error {
	buf, err := w.buffer(id.component, mem, shape, a)
	if err != nil {
		return err
	}
	w.device[id] = buf
	w.kept.remember(id, mem, a)
	return nil
}

// read writes a tensor's elements to dst in the dtype, with what LoRAs add. The file's pages leave memory behind it.
func (w *weightStore) read(component string, t checkpoint.Tensor, dst []byte, dtype graph.DType) error {
	defer t.Release()
	size := int64(len(dst))
	switch {
	case w.e.source.loras.Touches(component, t.Key):
		w.e.stats.bytes("folded", size)
		return asUser(w.e.source.loras.Fold(dst, dtype, component, t))
	case t.DType == dtype:
		w.e.stats.bytes("copied", size)
	default:
		w.e.stats.bytes("converted", size)
	}
	return asUser(t.Convert(dst, dtype))
}

// buffer makes a device buffer of host memory that stays: of a file's mapping, or of an arena, which the buffer keeps until it is gone.
func (w *weightStore) buffer(component string, mem []byte, shape graph.Shape, a *arena) (backends.Buffer, error) {
	o := backends.HostOptions{Semantics: backends.ZeroCopy}
	if a != nil {
		a.hold()
		o.Release = a.drop
	}
	buf, err := w.e.backend.client.BufferFromHost(mem, shape, o)
	if err != nil {
		if a != nil {
			a.drop()
		}
		return nil, deviceError("weights", component, err)
	}
	return buf, nil
}

// inFlight is how many steps of a preparation may run at once: enough to keep the processors busy, few enough that their inputs and results
// are little memory beside the weights.
const inFlight = 3

// prepare runs a program's preparation and returns its results by name. What another program of the component has prepared already is used
// again, and what a step read is freed behind it where nothing else needs it.
func (w *weightStore) prepare(ctx context.Context, p *pipelines.Program, made *program) (map[string]backends.Buffer, error) {
	prep := made.manifest.Prep
	if prep == nil {
		return nil, nil
	}
	keep := map[string]bool{}
	for _, q := range made.manifest.direct() {
		keep[q.Name] = true
	}
	ids := prep.ids(p.Component)
	// How many steps that execute still read a stored weight: moves read the file.
	uses := map[string]int{}
	for _, s := range prep.Steps {
		for _, a := range s.Args {
			if prep.Executables[s.Program].Moves == nil {
				uses[prep.Params[a].Name]++
			}
		}
	}
	// done frees what a step read and nothing needs any more.
	done := func(args []slotFile) error {
		for _, q := range args {
			uses[q.Name]--
			id := weightID{p.Component, q.DType, q.Name}
			if buf := w.device[id]; buf != nil && uses[q.Name] == 0 && !keep[q.Name] {
				if err := buf.Delete(); err != nil {
					return err
				}
				delete(w.device, id)
				w.tensor(p.Component, q.Name).Release()
			}
		}
		return nil
	}
	var running [][]weightID
	await := func(least int) error {
		for len(running) > least {
			for _, id := range running[0] {
				if err := w.device[id].Await(ctx); err != nil {
					// What failed must not be taken for prepared by the next that asks.
					for _, list := range running {
						for _, id := range list {
							_ = w.device[id].Delete()
							delete(w.device, id)
						}
					}
					running = nil
					return deviceError("prepare weights", p.ID(), err)
				}
			}
			running = running[1:]
		}
		return nil
	}
	for _, s := range prep.Steps {
		args := prep.args(s)
		moves := prep.Executables[s.Program].Moves
		missing := slices.ContainsFunc(s.Results, func(r int) bool { return w.device[ids[r]] == nil })
		switch {
		case moves != nil:
			if err := w.move(ctx, p.Component, moves, args, s, ids); err != nil {
				return nil, err
			}
			continue
		case missing:
			if err := w.load(ctx, p.Component, args); err != nil {
				return nil, err
			}
			if err := await(inFlight - 1); err != nil {
				return nil, err
			}
			made, err := w.execute(ctx, p, made.prepare[s.Program], args, s, ids)
			if err != nil {
				return nil, err
			}
			running = append(running, made)
		}
		if err := done(args); err != nil {
			return nil, err
		}
	}
	if err := await(0); err != nil {
		return nil, err
	}
	out := map[string]backends.Buffer{}
	for i, slot := range prep.Results {
		out[prep.ResultNames[i]] = w.device[ids[slot]]
	}
	return out, nil
}

// execute starts one step of a preparation and returns the weights that it makes and that were not there before.
func (w *weightStore) execute(ctx context.Context, p *pipelines.Program, exe backends.Executable, stored []slotFile, s passes.Step, ids map[int]weightID) ([]weightID, error) {
	args := make([]backends.Buffer, len(stored))
	for i, q := range stored {
		args[i] = w.device[weightID{p.Component, q.DType, q.Name}]
	}
	res, err := exe.Execute(ctx, args, backends.ExecuteOptions{})
	w.e.stats.count(p.Name, "execute")
	if err != nil {
		return nil, deviceError("prepare weights", p.ID(), err)
	}
	var made []weightID
	for i, r := range s.Results {
		if w.device[ids[r]] != nil {
			_ = res[i].Delete()
			continue
		}
		w.device[ids[r]] = res[i]
		made = append(made, ids[r])
	}
	return made, nil
}

// move makes prepared weights that are stored ones in another order, or stacked, in one pass from the file to the memory that the device uses.
func (w *weightStore) move(ctx context.Context, component string, moves []move, stored []slotFile, s passes.Step, ids map[int]weightID) error {
	var size int64
	for i, r := range s.Results {
		if w.device[ids[r]] == nil {
			size += roundUp(graph.ByteSize(moves[i].result()), backends.Alignment)
		}
	}
	a, err := newArena(component, size)
	if err != nil {
		return err
	}
	defer a.drop()
	for i, r := range s.Results {
		if err := ctx.Err(); err != nil {
			return err
		}
		if w.device[ids[r]] != nil {
			continue
		}
		mv := &moves[i]
		var tensors []checkpoint.Tensor
		for _, arg := range mv.args() {
			tensors = append(tensors, w.tensor(component, stored[arg].Name))
		}
		mem, err := w.moved(component, tensors, mv, a, func(n int) []byte { return make([]byte, n) })
		if err != nil {
			return err
		}
		if err := w.place(ids[r], mem, mv.result(), a); err != nil {
			return err
		}
	}
	return nil
}

// moved makes a moved weight of its tensors, one behind another, and returns its memory in the arena. space gives it memory to work in.
func (w *weightStore) moved(component string, tensors []checkpoint.Tensor, mv *move, a *arena, space func(int) []byte) ([]byte, error) {
	shape := mv.result()
	mem := a.take(graph.ByteSize(shape))
	rest := mem
	for _, t := range tensors {
		size := t.Len() * shape.DType.Size()
		if err := w.permute(component, t, rest[:size:size], shape.DType, mv, space); err != nil {
			return nil, err
		}
		rest = rest[size:]
	}
	w.e.stats.bytes("weights", int64(len(mem)))
	return mem, nil
}

// permute is read with the elements in the order of the move. space gives it memory to work in.
func (w *weightStore) permute(component string, t checkpoint.Tensor, dst []byte, dtype graph.DType, mv *move, space func(int) []byte) error {
	if mv.straight() {
		return w.read(component, t, dst, dtype) // in the order in which it is stored
	}
	if t.DType == dtype && !w.e.source.loras.Touches(component, t.Key) {
		// The bytes are read once.
		defer t.Release()
		w.e.stats.bytes("copied", int64(len(dst)))
		if err := t.Permute(dst, mv.Dims, mv.Permutation); err != nil {
			return asUser(fmt.Errorf("%s: weight %s: %w", component, t, err))
		}
		return nil
	}
	straight := space(len(dst))
	if err := w.read(component, t, straight, dtype); err != nil {
		return err
	}
	return asUser(checkpoint.PermuteBytes(dst, straight, dtype.Size(), mv.Dims, mv.Permutation))
}

// release frees a component's weights on the device.
func (w *weightStore) release(component string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	// What is being written to the cache is read from the buffers.
	w.kept.writing.Wait()
	w.kept.forget(component)
	var errs []error
	w.dropIdle()
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
	w.kept.end()
	components := map[string]bool{}
	w.dropIdle()
	for id := range w.device {
		components[id.component] = true
	}
	for c := range components {
		errs = append(errs, w.release(c))
	}
	return errors.Join(errs...)
}

// dropIdle gives back the memory of streamed weights.
func (w *weightStore) dropIdle() {
	if w.idle != nil {
		w.idle.drop()
		w.idle = nil
	}
}

// firstNonFinite looks for NaN or infinity in a component's weights, for the message about a result that holds some.
func (w *weightStore) firstNonFinite(component string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
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

// newArena returns memory for n bytes of a component's weights. The caller owns one reference.
func newArena(component string, n int64) (*arena, error) {
	if n == 0 {
		return &arena{refs: 1, free: func([]byte) {}}, nil
	}
	mem, free, err := allocate(n)
	if err != nil {
		return nil, noMemory(component, n, err)
	}
	return &arena{mem: mem, refs: 1, free: free}, nil
}

func noMemory(component string, n int64, err error) error {
	return asUser(fmt.Errorf("%s: no memory for %s of weights: %w", component, FormatBytes(n), err))
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
