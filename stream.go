package precast

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"precast/backends"
	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/pipelines"
	"precast/passes"
)

// lookAhead is how many steps' weights are brought to the device ahead of the step that runs.
const lookAhead = 1

// streams reports whether a program's weights come to the device block by block (--offload block): where it is cut into more than one program.
func (e *engine) streams(p *pipelines.Program, m *manifest) bool {
	return e.cfg.Offload == offloadBlock && p.Component != "" && !e.eager(p) && len(m.Main.Steps) > 1
}

// stream is a program's weights in the order of the steps that read them.
type stream struct {
	units []streamUnit
	// arena is the most that a unit needs of it.
	arena int64
}

// streamUnit is what one step of a plan reads of the weights: it comes to the device before the step and leaves it behind it. A weight that several
// steps read comes as often.
type streamUnit struct {
	step   int
	scope  string
	stored []storedWeight
	moved  []movedWeight
	steps  []prepareStep
	// bytes is what all of it takes on the device, arena what of it is written to memory of ours.
	bytes, arena int64
}

// storedWeight is a tensor of the checkpoint that the program reads as it is, in the dtype of shape. slot is the program's parameter.
type storedWeight struct {
	slot   int
	tensor checkpoint.Tensor
	shape  graph.Shape
}

// movedWeight is a prepared weight that is made of tensors by moving their elements.
type movedWeight struct {
	slot    int
	move    *move
	tensors []checkpoint.Tensor
}

// prepareStep is a step of the preparation that executes. Of its results the unit's step reads those in slots, by their position.
type prepareStep struct {
	exe   backends.Executable
	args  []storedWeight
	slots map[int]int
}

// layout finds which weights each step of the plan reads: positions among its parameters, by step.
func (f *planFile) layout() [][]int {
	reads := make([][]int, len(f.Steps))
	for i, s := range f.Steps {
		for _, a := range s.Args {
			if a < len(f.Params) && f.Params[a].Weight && !slices.Contains(reads[i], a) {
				reads[i] = append(reads[i], a)
			}
		}
	}
	return reads
}

// streamBytes is the most memory that a streamed program's weights take at once: those of its largest step, with what preparing them reads, for the
// step that runs and for each that is ahead.
func (m *manifest) streamBytes() (int64, error) {
	var largest int64
	for _, reads := range m.Main.layout() {
		var sum int64
		prepares := map[int]bool{}
		for _, a := range reads {
			shape, err := m.Main.Params[a].shape()
			if err != nil {
				return 0, err
			}
			sum += roundUp(graph.ByteSize(shape), backends.Alignment)
			// Of what is moved nothing but the result is in memory.
			if k, _, ok := m.maker(m.Main.Params[a].Name); ok && m.Prep.Executables[m.Prep.Steps[k].Program].Moves == nil {
				prepares[k] = true
			}
		}
		for k := range prepares {
			for _, a := range m.Prep.Steps[k].Args {
				shape, err := m.Prep.Params[a].shape()
				if err != nil {
					return 0, err
				}
				sum += roundUp(graph.ByteSize(shape), backends.Alignment)
			}
		}
		largest = max(largest, sum)
	}
	return (1 + lookAhead) * largest, nil
}

// need notes how much memory a program's weights take at once, for the check before any work.
func (w *weightStore) need(p *pipelines.Program, m *manifest) error {
	if w.e.cfg.Offload != offloadBlock {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.bytes[p.Component]
	if w.e.streams(p, m) {
		var err error
		if n, err = m.streamBytes(); err != nil {
			return err
		}
	}
	w.needs[p.Component] = max(w.needs[p.Component], n)
	return nil
}

// maker finds the step of the preparation that makes a prepared weight, and the weight's position among the step's results.
func (m *manifest) maker(name string) (step, position int, ok bool) {
	if m.Prep == nil || !passes.IsPrepared(name) {
		return 0, 0, false
	}
	i := slices.Index(m.Prep.ResultNames, name)
	if i < 0 {
		return 0, 0, false
	}
	for k, s := range m.Prep.Steps {
		if j := slices.Index(s.Results, m.Prep.Results[i]); j >= 0 {
			return k, j, true
		}
	}
	return 0, 0, false
}

// stream works out where the weights of each of a program's steps come from. The store's mutex must be held, the weights be matched.
func (w *weightStore) stream(p *pipelines.Program, made *program) (*stream, error) {
	m := made.manifest
	out := &stream{}
	stored := func(slot int, q slotFile) (storedWeight, error) {
		shape, err := q.shape()
		return storedWeight{slot, w.tensor(p.Component, q.Name), shape}, err
	}
	for i, reads := range m.Main.layout() {
		if len(reads) == 0 {
			continue
		}
		u := streamUnit{step: i, scope: m.Main.Steps[i].Scope}
		prepares := map[int]int{} // positions in u.steps, by step of the preparation
		for _, slot := range reads {
			q := m.Main.Params[slot]
			shape, err := q.shape()
			if err != nil {
				return nil, err
			}
			size := graph.ByteSize(shape)
			u.bytes += size
			if !passes.IsPrepared(q.Name) {
				x, err := stored(slot, q)
				if err != nil {
					return nil, err
				}
				if !w.inPlace(p.Component, x.tensor, shape) {
					u.arena += roundUp(size, backends.Alignment)
				}
				u.stored = append(u.stored, x)
				continue
			}
			k, position, ok := m.maker(q.Name)
			if !ok {
				return nil, &InternalError{Phase: "weights", Program: p.ID(), Err: fmt.Errorf("nothing prepares weight %q", q.Name)}
			}
			s := m.Prep.Steps[k]
			if moves := m.Prep.Executables[s.Program].Moves; moves != nil {
				x := movedWeight{slot: slot, move: &moves[position]}
				for _, a := range x.move.args() {
					x.tensors = append(x.tensors, w.tensor(p.Component, m.Prep.Params[s.Args[a]].Name))
				}
				u.moved = append(u.moved, x)
				u.arena += roundUp(size, backends.Alignment)
				continue
			}
			at, have := prepares[k]
			if !have {
				at = len(u.steps)
				prepares[k] = at
				x := prepareStep{exe: made.prepare[s.Program], slots: map[int]int{}}
				for _, a := range s.Args {
					arg, err := stored(-1, m.Prep.Params[a])
					if err != nil {
						return nil, err
					}
					x.args = append(x.args, arg)
				}
				u.steps = append(u.steps, x)
			}
			u.steps[at].slots[position] = slot
		}
		slices.SortStableFunc(u.stored, func(x, y storedWeight) int { return fileOrder(x.tensor, y.tensor) })
		out.arena = max(out.arena, u.arena)
		out.units = append(out.units, u)
	}
	return out, nil
}

// streamPool is the memory that streamed weights are written to, one part for each unit that can be on the device. It is used again for every unit
// and every run, so that a run allocates nothing for each step.
type streamPool struct {
	capacity int64
	slots    []*streamSlot
	// free has the slots that no unit is in.
	free chan *streamSlot
}

type streamSlot struct {
	mem     []byte
	release func([]byte)
	// scratch is where a tensor lies between its conversion and its permutation.
	scratch []byte
	// mapped are tensors of the last unit that the device read in place: their pages can go.
	mapped []checkpoint.Tensor
}

func newStreamPool(capacity int64) (*streamPool, error) {
	pool := &streamPool{capacity: capacity, free: make(chan *streamSlot, 1+lookAhead)}
	for range 1 + lookAhead {
		s := &streamSlot{release: func([]byte) {}}
		if capacity > 0 {
			var err error
			if s.mem, s.release, err = allocate(capacity); err != nil {
				pool.drop()
				return nil, err
			}
		}
		pool.slots = append(pool.slots, s)
		pool.free <- s
	}
	return pool, nil
}

// take waits for a free slot.
func (p *streamPool) take(ctx context.Context) (*streamSlot, error) {
	select {
	case s := <-p.free:
		s.leave()
		return s, ctx.Err()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// leave lets the pages of the file go that the slot's last unit was read from in place.
func (s *streamSlot) leave() {
	for _, t := range s.mapped {
		t.Release()
	}
	s.mapped = s.mapped[:0]
}

// collect waits until nothing is on the device any more.
func (p *streamPool) collect() {
	for range p.slots {
		s := <-p.free
		s.leave()
		defer func() { p.free <- s }()
	}
}

// drop gives the memory back; nothing may be on the device.
func (p *streamPool) drop() {
	for _, s := range p.slots {
		s.release(s.mem)
		s.mem, s.scratch = nil, nil
	}
	p.slots = nil
}

// streaming is a stream under way: a goroutine brings units to the device, in their order, as far ahead as the pool has slots.
type streaming struct {
	w     *weightStore
	p     *pipelines.Program
	units []streamUnit
	pool  *streamPool
	stop  context.CancelFunc
	// ready has the units that are on the device and whose step has not been begun; it is closed when the goroutine ends.
	ready chan streamed
	// next is the position of the unit that comes next, now the unit whose step runs.
	next int
	now  streamed
}

// streamed is a unit on the device: its weights by slot.
type streamed struct {
	weights map[int]backends.Buffer
	// arena holds the unit's slot of the pool; the buffers hold it too.
	arena *arena
	err   error
}

// free takes the unit off the device.
func (s *streamed) free() error {
	var errs []error
	for _, b := range s.weights {
		errs = append(errs, b.Delete())
	}
	if s.arena != nil {
		s.arena.drop()
	}
	*s = streamed{}
	return errors.Join(errs...)
}

// start begins to bring a program's weights to the device. The caller ends it.
func (w *weightStore) start(ctx context.Context, p *pipelines.Program, st *stream) (*streaming, error) {
	pool, err := w.takePool(st.arena)
	if err != nil {
		return nil, noMemory(p.Component, (1+lookAhead)*st.arena, err)
	}
	ctx, stop := context.WithCancel(ctx)
	s := &streaming{w: w, p: p, units: st.units, pool: pool, stop: stop, ready: make(chan streamed, lookAhead)}
	go s.load(ctx)
	return s, nil
}

// load is the goroutine.
func (s *streaming) load(ctx context.Context) {
	defer close(s.ready)
	for i := range s.units {
		slot, err := s.pool.take(ctx)
		if slot == nil {
			return
		}
		u := &s.units[i]
		// What is on the device is counted from here to where the device has let go of it.
		s.w.e.stats.streamed(1, u.bytes)
		one := streamed{arena: &arena{mem: slot.mem, refs: 1, free: func([]byte) {
			s.w.e.stats.streamed(-1, -u.bytes)
			s.pool.free <- slot
		}}}
		if err == nil {
			start := time.Now()
			err = guarded(s.p.ID(), func() (err error) {
				one.weights, err = s.w.loadUnit(ctx, s.p, u, one.arena, slot)
				return err
			})
			s.w.e.stats.time(s.p.Name, "stream_load", start)
		}
		if err != nil {
			_ = one.free()
			one = streamed{err: err}
		}
		select {
		case s.ready <- one:
		case <-ctx.Done():
			_ = one.free()
			return
		}
		if err != nil {
			return
		}
	}
}

// weights waits for the weights of a step and returns them by slot; nil where it reads none.
func (s *streaming) weights(ctx context.Context, step int) (map[int]backends.Buffer, error) {
	if s.next == len(s.units) || s.units[s.next].step != step {
		return nil, nil
	}
	start := time.Now()
	defer func() { s.w.e.stats.time(s.p.Name, "stream_wait", start) }()
	select {
	case one, ok := <-s.ready:
		switch {
		case !ok && ctx.Err() != nil:
			return nil, ctx.Err()
		case !ok:
			return nil, &InternalError{Phase: "weights", Program: s.p.ID(), Err: errors.New("the weights ended before the steps")}
		case one.err != nil:
			return nil, one.err
		}
		s.now = one
		s.next++
		return one.weights, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// done waits for the results of the step whose weights are on the device, and takes these off it.
func (s *streaming) done(ctx context.Context, results []backends.Buffer) error {
	if s.now.arena == nil {
		return nil
	}
	start := time.Now()
	for _, b := range results {
		if err := b.Await(ctx); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return deviceError("execute", s.p.ID(), fmt.Errorf("%s: %w", s.units[s.next-1].scope, err))
		}
	}
	s.w.e.stats.time(s.p.Name, "stream_compute", start)
	return s.now.free()
}

// end stops the goroutine and waits until no weight is on the device.
func (s *streaming) end() {
	s.stop()
	_ = s.now.free()
	for one := range s.ready {
		_ = one.free()
	}
	s.pool.collect()
	s.w.givePool(s.pool)
}

// takePool returns memory for units of n bytes: what an earlier run has left, where it is enough.
func (w *weightStore) takePool(n int64) (*streamPool, error) {
	w.mu.Lock()
	pool := w.idle
	w.idle = nil
	w.mu.Unlock()
	if pool != nil {
		if pool.capacity >= n {
			return pool, nil
		}
		pool.drop()
	}
	return newStreamPool(n)
}

// givePool keeps memory for the next run.
func (w *weightStore) givePool(pool *streamPool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dropIdle()
	w.idle = pool
}

// loadUnit brings a unit's weights to the device and returns their buffers by slot. What is converted, folded or moved lies in the arena.
func (w *weightStore) loadUnit(ctx context.Context, p *pipelines.Program, u *streamUnit, a *arena, slot *streamSlot) (_ map[int]backends.Buffer, err error) {
	out := map[int]backends.Buffer{}
	defer func() {
		if err != nil {
			for _, b := range out {
				_ = b.Delete()
			}
		}
	}()
	files := map[*checkpoint.File]bool{}
	one := func(x storedWeight, a *arena) (backends.Buffer, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		files[x.tensor.File] = true
		if w.inPlace(p.Component, x.tensor, x.shape) {
			slot.mapped = append(slot.mapped, x.tensor)
		}
		b, _, err := w.upload(p.Component, x.tensor, x.shape, a)
		return b, err
	}
	for _, x := range u.stored {
		if out[x.slot], err = one(x, a); err != nil {
			delete(out, x.slot)
			return out, err
		}
	}
	for _, x := range u.moved {
		if err := ctx.Err(); err != nil {
			return out, err
		}
		for _, t := range x.tensors {
			files[t.File] = true
		}
		mem, err := w.moved(p.Component, x.tensors, x.move, a, slot.space)
		if err != nil {
			return out, err
		}
		b, err := w.buffer(p.Component, mem, x.move.result(), a)
		if err != nil {
			return out, err
		}
		out[x.slot] = b
	}
	for _, x := range u.steps {
		if err := w.prepareUnit(ctx, p, x, out, one); err != nil {
			return out, err
		}
	}
	// A file that was cut short within its last page reads as zeros, without a fault.
	for f := range files {
		if err := f.Intact(); err != nil {
			return out, asUser(fmt.Errorf("weights of %s: %w", u.scope, err))
		}
	}
	w.e.stats.bytes("streamed", u.bytes)
	return out, nil
}

// space returns n bytes that the slot keeps for the next who asks.
func (s *streamSlot) space(n int) []byte {
	if len(s.scratch) < n {
		s.scratch = checkpoint.AlignedBytes(n)
	}
	return s.scratch[:n]
}

// prepareUnit runs a step of the preparation and adds what of its results is wanted to out. What it reads is on the device meanwhile only.
func (w *weightStore) prepareUnit(ctx context.Context, p *pipelines.Program, x prepareStep, out map[int]backends.Buffer, one func(storedWeight, *arena) (backends.Buffer, error)) (err error) {
	var size int64
	for _, q := range x.args {
		if !w.inPlace(p.Component, q.tensor, q.shape) {
			size += roundUp(graph.ByteSize(q.shape), backends.Alignment)
		}
	}
	a, err := newArena(p.Component, size)
	if err != nil {
		return err
	}
	defer a.drop()
	args := make([]backends.Buffer, 0, len(x.args))
	defer func() {
		for _, b := range args {
			err = errors.Join(err, b.Delete())
		}
	}()
	for _, q := range x.args {
		b, err := one(q, a)
		if err != nil {
			return err
		}
		args = append(args, b)
	}
	results, err := x.exe.Execute(ctx, args, backends.ExecuteOptions{})
	w.e.stats.count(p.Name, "execute")
	if err != nil {
		return deviceError("prepare weights", p.ID(), err)
	}
	for i, b := range results {
		if err == nil {
			if err = b.Await(ctx); err != nil && ctx.Err() == nil {
				err = deviceError("prepare weights", p.ID(), err)
			}
		}
		if slot, wanted := x.slots[i]; wanted && err == nil {
			out[slot] = b
		} else {
			_ = b.Delete()
		}
	}
	return err
}

// StreamedWeights says how the weights of blocks came to the device, under --offload block.
type StreamedWeights struct {
	// Peak and PeakBytes are how many steps' weights were on the device at once at most, and how many bytes.
	Peak      int64 `json:"peak"`
	PeakBytes int64 `json:"peak_bytes"`
	// Units counts the steps whose weights came, each time that they did.
	Units int64 `json:"units"`

	now, nowBytes int64
}

// streamed counts weights that come to the device (units 1), or have left it (units -1).
func (s *Stats) streamed(units, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &s.Streamed
	c.now, c.nowBytes = c.now+units, c.nowBytes+bytes
	c.Peak, c.PeakBytes = max(c.Peak, c.now), max(c.PeakBytes, c.nowBytes)
	c.Units += max(units, 0)
}
