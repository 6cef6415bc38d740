package precast

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"precast/backends"
	"precast/cache"
	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/pipelines"
)

// keptWeights is what --weights-cache keeps of a store's weights on the disk. The store's lock guards it.
type keptWeights struct {
	// sets are what the cache holds for programs, by program ID.
	sets map[string]*keptSet
	// wanted are the weights of sets that are to be written, memory is where those are that have been loaded.
	wanted map[weightID]bool
	memory map[weightID]keptMemory

	writing sync.WaitGroup
	stop    atomic.Bool
	// ctx is that of the latest load.
	ctx context.Context
}

// keptSet is one entry of the cache: all weights of a program that take work to load. Programs with equal lists share it.
type keptSet struct {
	key   cache.Key
	items []keptItem
	size  int64
}

// keptItem is a weight's place in the entry.
type keptItem struct {
	id     weightID
	shape  graph.Shape
	offset int64
}

// keptMemory is host memory that a weight lies in. It holds its arena.
type keptMemory struct {
	mem []byte
	a   *arena
}

func newKeptWeights() keptWeights {
	return keptWeights{sets: map[string]*keptSet{}, wanted: map[weightID]bool{}, memory: map[weightID]keptMemory{}}
}

// remember keeps a weight's host memory where the weight is to be written.
func (k *keptWeights) remember(id weightID, mem []byte, a *arena) {
	if a == nil || !k.wanted[id] {
		return
	}
	a.hold()
	k.memory[id] = keptMemory{mem, a}
}

// forget gives up the host memory of a component's weights that were to be written.
func (k *keptWeights) forget(component string) {
	for id, m := range k.memory {
		if id.component == component {
			m.a.drop()
			delete(k.memory, id)
		}
	}
	maps.DeleteFunc(k.wanted, func(id weightID, _ bool) bool { return id.component == component })
}

// end waits for what is being written. A run that was interrupted leaves it undone.
func (k *keptWeights) end() {
	if k.ctx != nil && k.ctx.Err() != nil {
		k.stop.Store(true)
	}
	k.writing.Wait()
}

// keptSet is the entry that a program's weights have in the cache, nil where there is none: the cache of weights is off, or all of them are used as they
// lie in the checkpoint.
func (w *weightStore) keptSet(p *pipelines.Program, m *manifest) (*keptSet, error) {
	if w.e.cfg.WeightsCache != "on" || w.e.store == nil || p.Component == "" {
		return nil, nil
	}
	if set, ok := w.kept.sets[p.ID()]; ok {
		return set, nil
	}
	set := &keptSet{}
	place := func(id weightID, shape graph.Shape) {
		if !slices.ContainsFunc(set.items, func(x keptItem) bool { return x.id == id }) && graph.ByteSize(shape) > 0 {
			set.items = append(set.items, keptItem{id, shape, set.size})
			set.size += roundUp(graph.ByteSize(shape), backends.Alignment)
		}
	}
	var sources []checkpoint.Tensor
	direct := m.direct()
	source := func(q slotFile) checkpoint.Tensor { return w.tensor(p.Component, q.Name) }
	slices.SortStableFunc(direct, func(x, y slotFile) int { return fileOrder(source(x), source(y)) })
	for _, q := range direct {
		shape, err := q.shape()
		if err != nil {
			return nil, err
		}
		if t := source(q); !w.inPlace(p.Component, t, shape) {
			place(weightID{p.Component, q.DType, q.Name}, shape)
			sources = append(sources, t)
		}
	}
	executed := false
	if m.Prep != nil {
		params := map[string]slotFile{}
		for _, q := range m.Main.Params {
			params[q.Name] = q
		}
		for i, digest := range m.Prep.ResultDigests {
			q, ok := params[m.Prep.ResultNames[i]]
			if !ok {
				return nil, &InternalError{Phase: "weights", Program: p.ID(), Err: fmt.Errorf("the prepared weight %q is no parameter", m.Prep.ResultNames[i])}
			}
			shape, err := q.shape()
			if err != nil {
				return nil, err
			}
			place(weightID{p.Component, "prepared", digest}, shape)
		}
		for _, q := range m.Prep.Params {
			sources = append(sources, source(q))
		}
		for _, s := range m.Prep.Steps {
			executed = executed || m.Prep.Executables[s.Program].Moves == nil
		}
	}
	if set.size == 0 {
		w.kept.sets[p.ID()] = nil
		return nil, nil
	}
	files := map[string]bool{}
	touched := false
	for _, t := range sources {
		files[t.File.Identity()] = true
		touched = touched || w.e.source.loras.Touches(p.Component, t.Key)
	}
	var layout, loras strings.Builder
	for _, x := range set.items {
		fmt.Fprintf(&layout, "%s %q %s %d\n", x.id.source, x.id.key, x.shape, x.offset)
	}
	if touched {
		loras.WriteString(digestOf(w.e.source.loras.Identity()))
	}
	set.key = cache.NewKey(
		"precast", Version, "build", buildID(), "program", p.Component, "checkpoint", w.e.source.ck.Dir(),
		"files", digestOf(strings.Join(slices.Sorted(maps.Keys(files)), "\n")), "loras", loras.String(), "weights", digestOf(layout.String()),
		"byte_order", "little",
	)
	if executed {
		// What a program computes depends on what it runs on; what the loader does, does not.
		set.key.Fields = append(set.key.Fields, w.e.backend.identity...)
	}
	w.kept.sets[p.ID()] = set
	return set, nil
}

func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// fromCache maps a program's weights from the cache, those that are not on the device yet. What is not there is loaded as if there was no cache, and the set
// that is returned is to be given to toCache afterwards. It is nil where there is nothing to do.
func (w *weightStore) fromCache(p *pipelines.Program, m *manifest) (*keptSet, error) {
	set, err := w.keptSet(p, m)
	if set == nil || err != nil {
		return nil, err
	}
	missing := func(x keptItem) bool { return w.device[x.id] == nil }
	if !slices.ContainsFunc(set.items, missing) {
		if w.kept.wanted[set.items[0].id] {
			return set, nil // preload has loaded them, and they are to be written
		}
		return nil, nil
	}
	start := time.Now()
	data, release, ok := w.e.store.Map(cache.Weights, set.key, set.size)
	if ok {
		if err := populate(data); err != nil {
			w.e.cfg.Log.Warn("weights in the cache can't be read; they are loaded from the checkpoint and made anew", "component", p.Component, "reason", err.Error())
			release()
			w.e.store.Delete(cache.Weights, set.key)
			ok = false
		}
	}
	if !ok {
		for _, x := range set.items {
			w.kept.wanted[x.id] = true
		}
		return set, nil
	}
	defer w.e.stats.time(p.Name, "map", start)
	a := &arena{mem: data, refs: 1, free: func([]byte) { release() }}
	defer a.drop()
	for _, x := range set.items {
		if !missing(x) {
			continue
		}
		n := graph.ByteSize(x.shape)
		if err := w.place(x.id, data[x.offset:x.offset+n:x.offset+n], x.shape, a); err != nil {
			return nil, err
		}
		w.e.stats.bytes("weights", n)
		w.e.stats.bytes("cached", n)
	}
	return nil, nil
}

// toCache writes a program's weights to the cache, beside what comes next: each from the memory that the device uses too, or from the device, one at a time.
// What goes wrong costs a warning, and the next start its time.
func (w *weightStore) toCache(ctx context.Context, p *pipelines.Program, set *keptSet) {
	if set == nil {
		return
	}
	w.kept.ctx = ctx
	out, err := w.e.store.Create(cache.Weights, set.key, set.size)
	if err != nil || out == nil {
		w.kept.forget(p.Component)
		return
	}
	w.e.cfg.Log.Info("weights are written to the cache for later starts", "component", p.Component, "size", FormatBytes(set.size))
	type item struct {
		keptItem
		keptMemory
		buf backends.Buffer
	}
	var items []item
	for _, x := range set.items {
		items = append(items, item{x, w.kept.memory[x.id], w.device[x.id]})
		delete(w.kept.memory, x.id)
	}
	w.kept.forget(p.Component)
	stats, stop, name := w.e.stats, &w.kept.stop, p.Name
	w.kept.writing.Go(func() {
		start := time.Now()
		defer stats.time(name, "weights_cache", start)
		var scratch []byte
		var at int64
		err := guarded(p.ID(), func() error {
			for i := range items {
				x := &items[i]
				if stop.Load() {
					return context.Canceled
				}
				if err := out.Skip(x.offset - at); err != nil {
					return err
				}
				data := x.mem
				if data == nil {
					n := int(graph.ByteSize(x.shape))
					scratch = slices.Grow(scratch[:0], n)[:n]
					// The store waits for this before it deletes a buffer.
					if err := x.buf.ToHost(context.Background(), scratch); err != nil {
						return err
					}
					data = scratch
				}
				if _, err := out.Write(data); err != nil {
					return err
				}
				at = x.offset + int64(len(data))
				if x.a != nil {
					x.a.drop()
					x.a = nil
				}
			}
			return out.Skip(set.size - at)
		})
		for _, x := range items {
			if x.a != nil {
				x.a.drop()
			}
		}
		switch {
		case stop.Load():
			out.Abort()
		case err != nil:
			out.Fail(err)
		default:
			if out.Commit() == nil {
				stats.bytes("weights_cache_written", set.size)
			}
		}
	})
}
