package precast

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/gomlx/compute/dtypes"

	"precast/backends"
	"precast/cache"
	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/pipelines"
	"precast/passes"
)

// The modes that a component can run in.
const (
	modeCompiled = "compiled"
	modeEager    = "eager"
)

// modes says which components run eagerly.
type modes struct {
	all string            // of what own does not name, programs without a component among them
	own map[string]string // by component
}

// parseModeFlag reads MODE[,COMPONENT=MODE...].
func parseModeFlag(text string) (modes, error) {
	m := modes{all: modeCompiled, own: map[string]string{}}
	if text == "" {
		return m, nil
	}
	for i, part := range strings.Split(text, ",") {
		component, name, own := strings.Cut(part, "=")
		if !own {
			component, name = "", part
		}
		name = strings.TrimSpace(name)
		if name != modeCompiled && name != modeEager {
			return m, userErrorf("mode: found %q, wanted compiled or eager", name)
		}
		switch component = strings.TrimSpace(component); {
		case own && component != "":
			m.own[component] = name
		case !own && i == 0:
			m.all = name
		default:
			return m, userErrorf("mode: found %q in %q, wanted MODE[,COMPONENT=MODE...], such as compiled,unet=eager", part, text)
		}
	}
	return m, nil
}

// of is the mode of a component's programs; empty names those that have none.
func (m modes) of(component string) string {
	return cmp.Or(m.own[component], m.all, modeCompiled)
}

// some reports whether anything runs in the mode.
func (m modes) some(mode string) bool {
	if cmp.Or(m.all, modeCompiled) == mode {
		return true
	}
	for _, have := range m.own {
		if have == mode {
			return true
		}
	}
	return false
}

// checkEager refuses what does not go together.
func (c *Config) checkEager() (err error) {
	if c.modes, err = parseModeFlag(c.Mode); err != nil {
		return err
	}
	switch eager := c.modes.some(modeEager); {
	case c.Regions != "inline" && !c.modes.some(modeCompiled):
		return userErrorf("regions: found %s, but --mode %s dispatches every operation alone and compiles no regions; leave --regions out, or compile a component, as in --mode eager,vae=compiled", c.Regions, c.Mode)
	case c.CheckFinite && !eager:
		return userErrorf("check-finite: it reads the result of each operation, which a compiled program does not have; add --mode eager, or --mode compiled,COMPONENT=eager")
	case c.DumpValues != "" && !eager:
		return userErrorf("dump-values: it writes the result of each operation, which a compiled program does not have; add --mode eager, or --mode compiled,COMPONENT=eager")
	case c.DumpValues != "" && c.DumpValuesTo == "":
		return userErrorf("dump-values-to: none given; name the folder that the values of %q are written to", c.DumpValues)
	case c.DumpValuesTo != "" && c.DumpValues == "":
		return userErrorf("dump-values: none given; name the module whose values are written to %q, such as transformer_blocks.0, or a component with : behind it", c.DumpValuesTo)
	}
	return nil
}

// eager reports whether a program's operations are dispatched one by one.
func (e *engine) eager(p *pipelines.Program) bool { return e.cfg.modes.of(p.Component) == modeEager }

// disabledPasses are the passes that a program is made without. What runs eagerly is the graph as the network's code wrote it, less what no result
// needs: other passes would merge equal operations of two modules, or move them out of their module to load time, and the scopes that an
// error or a dump names would not be those that the values have in diffusers.
func (e *engine) disabledPasses(p *pipelines.Program) []string {
	if !e.eager(p) {
		return e.cfg.DisabledPasses
	}
	var names []string
	for _, name := range passes.Names() {
		if name != "dce" || slices.Contains(e.cfg.DisabledPasses, name) {
			names = append(names, name)
		}
	}
	return names
}

// operations holds the executables of single operations, which all eager programs of an engine share.
type operations struct {
	mu   sync.Mutex
	have map[string]*operation // by the digest of the content key
}

type operation struct {
	mu     sync.Mutex // held while it is made
	exe    backends.Executable
	bytes  int64
	stored bool
}

// get returns the executable of a key, made once.
func (o *operations) get(key cache.Key, make func() (exe backends.Executable, bytes int64, stored bool, err error)) (op *operation, isNew bool, err error) {
	id := key.Digest()
	o.mu.Lock()
	if o.have == nil {
		o.have = map[string]*operation{}
	}
	op = o.have[id]
	if op == nil {
		op = &operation{}
		o.have[id] = op
	}
	o.mu.Unlock()
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.exe != nil {
		return op, false, nil
	}
	op.exe, op.bytes, op.stored, err = make()
	return op, err == nil, err
}

// keep closes the executables that are not held, and forgets what could not be made. Nothing may be made or run meanwhile.
func (o *operations) keep(held map[backends.Executable]bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var errs []error
	for id, op := range o.have {
		if op.exe != nil && held[op.exe] {
			continue
		}
		if op.exe != nil {
			errs = append(errs, op.exe.Close())
		}
		delete(o.have, id)
	}
	return errors.Join(errs...)
}

func (o *operations) close() error { return o.keep(nil) }

// operation returns an eager program's executable: from memory, else made.
func (e *engine) operation(p *pipelines.Program, key cache.Key, make func() (backends.Executable, int64, bool, error)) (*operation, error) {
	op, isNew, err := e.operations.get(key, make)
	if isNew {
		e.stats.count(p.Name, "operations")
	}
	return op, err
}

// OperationNotFiniteError says which operation was the first to make a NaN or an infinity, under Config.CheckFinite. The command line exits with 1.
type OperationNotFiniteError struct {
	// Program is the program's ID, Op the operation, Scope its module path in diffusers.
	Program, Op, Scope string
	// Step is the operation's position of Steps in the program.
	Step, Steps int
	// What is "NaN" or "infinity", Element the first element that is one, Shape its tensor's.
	What    string
	Element int
	Shape   string
	// Operand is set where the operation was given the value: "weight KEY" or "input NAME".
	Operand string
	// Largest is the largest magnitude among the operands, which are finite where Operand is empty and What is infinity.
	Largest float64
	// Call says which execution it was ("step 3, call 0").
	Call string
}

func (e *OperationNotFiniteError) Error() string {
	scope := e.Scope
	if scope == "" {
		scope = "the top level"
	}
	where := fmt.Sprintf("%s in %s of %s (operation %d of %d, %s)", e.Op, scope, e.Program, e.Step, e.Steps, e.Call)
	if e.Operand != "" {
		return fmt.Sprintf("check-finite: %s holds %s at element %d of %s; the first operation that reads it is %s", e.Operand, e.What, e.Element, e.Shape, where)
	}
	return fmt.Sprintf("check-finite: the first operation that makes %s is %s: element %d of its result %s; the largest magnitude among its operands is %.6g",
		e.What, where, e.Element, e.Shape, e.Largest)
}

// summary is what check-finite keeps of a value.
type summary struct {
	nan, inf int // the first element that is one, -1 where there is none
	largest  float64
}

func summarize(data []byte, dtype graph.DType) (summary, error) {
	s := summary{-1, -1, 0}
	if !dtype.IsFloat() {
		return s, nil // integers and booleans are finite
	}
	wide := data
	if dtype != dtypes.Float64 {
		wide = make([]byte, len(data)/dtype.Size()*8)
		if err := checkpoint.ConvertBytes(wide, dtypes.Float64, data, dtype); err != nil {
			return s, err
		}
	}
	for i := range len(wide) / 8 {
		switch x := math.Float64frombits(binary.LittleEndian.Uint64(wide[8*i:])); {
		case x != x:
			if s.nan < 0 {
				s.nan = i
			}
		case x-x != 0:
			if s.inf < 0 {
				s.inf = i
			}
		default:
			s.largest = max(s.largest, math.Abs(x))
		}
	}
	return s, nil
}

// constantsNotFinite reports whether an operation's own constants hold NaN or infinity, such as the bound of a maximum.
func constantsNotFinite(m *graph.Module) bool {
	found := false
	for _, f := range m.Funcs {
		f.WalkNodes(func(n *graph.Node) {
			if lit, ok := n.Attrs.Get("value").(graph.Literal); ok && n.Op == graph.OpConstant {
				found = found || checkpoint.NonFinite(lit.Data, n.Results[0].Shape.DType) >= 0
			}
		})
	}
	return found
}

// probe looks at the values of one execution of an eager program while they are there.
type probe struct {
	e     *engine
	p     *pipelines.Program
	made  *program
	call  string // for messages
	file  string // without its ending
	check bool
	dump  bool
	// values are summaries by slot; those of weights are kept with the program.
	values map[int]summary
	items  []checkpoint.Item
	counts map[string]int // nodes so far, by scope
}

// probe returns what looks at an execution, nil where nothing does.
func (e *engine) probe(p *pipelines.Program, made *program) *probe {
	if !e.cfg.CheckFinite && e.cfg.DumpValues == "" {
		return nil
	}
	q := &probe{e: e, p: p, made: made, check: e.cfg.CheckFinite, values: map[int]summary{}, counts: map[string]int{}}
	e.mu.Lock()
	call := e.calls[p.Name]
	e.calls[p.Name]++
	if p.Stage == pipelines.StageDenoise {
		e.denoising[p.Name] = true
		q.call = fmt.Sprintf("step %d, call %d", e.step, call)
		q.file = fmt.Sprintf("%s.step%03d.%d", p.Name, e.step, call)
	} else {
		q.call = fmt.Sprintf("call %d", call)
		q.file = fmt.Sprintf("%s.%03d", p.Name, call)
	}
	if p.Name == "step" {
		// The scheduler's step ends one turn of the loop: what the denoiser does next belongs to the next.
		e.step++
		for name := range e.denoising {
			delete(e.calls, name)
		}
	}
	e.mu.Unlock()
	if !e.eager(p) {
		return nil
	}
	q.dump = e.cfg.DumpValues != "" && slices.ContainsFunc(made.manifest.Main.Steps, func(s passes.Step) bool { return inScope(e.cfg.DumpValues, p, s.Scope) })
	return q
}

// begin forgets the calls of the run before.
func (e *engine) begin() {
	e.step, e.calls, e.denoising = 0, map[string]int{}, map[string]bool{}
}

// inScope reports whether --dump-values chooses a node: [COMPONENT:]SCOPE, where either may be empty.
func inScope(choice string, p *pipelines.Program, scope string) bool {
	component, path, named := strings.Cut(choice, ":")
	if !named {
		component, path = "", choice
	}
	if component != "" && component != p.Component && component != p.Name {
		return false
	}
	return path == "" || scope == path || strings.HasPrefix(scope, path+".")
}

// checkScope refuses a scope that no eager program has: before anything runs, as a wrong name would cost a run and write nothing.
func (p *Pipeline) checkScope(programs []*pipelines.Program) error {
	if p.cfg.DumpValues == "" {
		return nil
	}
	if info, err := os.Stat(p.cfg.DumpValuesTo); err == nil && !info.IsDir() {
		return userErrorf("dump-values-to: %q is a file, wanted a folder", p.cfg.DumpValuesTo)
	}
	known := map[string]bool{}
	for _, q := range programs {
		e := p.engineOf(q)
		if !e.eager(q) {
			continue
		}
		for _, s := range e.programs[q.ID()].manifest.Main.Steps {
			if inScope(p.cfg.DumpValues, q, s.Scope) {
				return asUser(os.MkdirAll(p.cfg.DumpValuesTo, 0o755))
			}
			top := strings.SplitN(s.Scope, ".", 3)
			known[q.Name+":"+strings.Join(top[:min(2, len(top))], ".")] = true
		}
	}
	var names []string
	for name := range known {
		names = append(names, name)
	}
	slices.Sort(names)
	more := ""
	if len(names) > 12 {
		names, more = names[:12], " ..."
	}
	return userErrorf("dump-values: nothing that runs eagerly here has the module path %q; there are %s%s", p.cfg.DumpValues, strings.Join(names, ", "), more)
}

// before looks at what an operation reads from outside the program.
func (q *probe) before(ctx context.Context, i int, s passes.Step, args []backends.Buffer) error {
	if q == nil || !q.check {
		return nil
	}
	params := q.made.manifest.Main.Params
	for k, a := range s.Args {
		if a >= len(params) {
			continue
		}
		if _, seen := q.values[a]; seen {
			continue
		}
		weight := params[a].Weight
		if v, seen := q.made.weightValues[a]; seen && weight {
			q.values[a] = v
			continue
		}
		v, _, err := q.read(ctx, args[k])
		if err != nil {
			return err
		}
		q.values[a] = v
		fault := q.fault(i, s)
		fault.Shape = args[k].Shape().String()
		switch {
		case v.nan >= 0:
			fault.What, fault.Element = "NaN", v.nan
		case v.inf >= 0 && weight:
			fault.What, fault.Element = "infinity", v.inf
		default:
			if weight {
				q.made.weightValues[a] = v
			}
			continue
		}
		// An infinite input is a mask; a weight has no reason to be infinite.
		fault.Operand = "input " + params[a].Name
		if weight {
			fault.Operand = "weight " + params[a].Name
		}
		return fault
	}
	return nil
}

func (q *probe) fault(i int, s passes.Step) *OperationNotFiniteError {
	main := &q.made.manifest.Main
	return &OperationNotFiniteError{Program: q.p.ID(), Op: main.Executables[s.Program].Name, Scope: s.Scope, Step: i + 1, Steps: len(main.Steps), Call: q.call}
}

func (q *probe) read(ctx context.Context, b backends.Buffer) (summary, []byte, error) {
	data := make([]byte, graph.ByteSize(b.Shape()))
	if err := b.ToHost(ctx, data); err != nil {
		return summary{}, nil, deviceError("execute", q.p.ID(), err)
	}
	if !q.check {
		return summary{}, data, nil
	}
	v, err := summarize(data, b.Shape().DType)
	return v, data, err
}

// after looks at an operation's results. The first that has a NaN where no operand has one, or an infinity where all operands are finite, ends the
// run: infinities are legal where they are given, as in a mask, and NaN never is.
func (q *probe) after(ctx context.Context, i int, s passes.Step, results []backends.Buffer) error {
	if q == nil {
		return nil
	}
	dump := q.dump && inScope(q.e.cfg.DumpValues, q.p, s.Scope)
	if !q.check && !dump {
		return nil
	}
	exe := &q.made.manifest.Main.Executables[s.Program]
	ordinal := q.counts[s.Scope]
	if dump {
		q.counts[s.Scope]++
	}
	given := exe.NonFinite
	largest := 0.0
	for _, a := range s.Args {
		v := q.values[a]
		given = given || q.check && v.inf >= 0
		largest = max(largest, v.largest)
	}
	var fault *OperationNotFiniteError
	for k, b := range results {
		v, data, err := q.read(ctx, b)
		if err != nil {
			return err
		}
		if dump {
			name := fmt.Sprintf("%03d.%s", ordinal, exe.Name)
			if s.Scope != "" {
				name = s.Scope + "/" + name
			}
			if len(results) > 1 {
				name += fmt.Sprintf(".%d", k)
			}
			q.items = append(q.items, checkpoint.Item{Key: name, DType: b.Shape().DType, Shape: b.Shape().Dimensions, Data: data})
		}
		if !q.check {
			continue
		}
		q.values[s.Results[k]] = v
		if fault == nil && (v.nan >= 0 || v.inf >= 0 && !given) {
			fault = q.fault(i, s)
			fault.What, fault.Element, fault.Shape, fault.Largest = "NaN", v.nan, b.Shape().String(), largest
			if v.nan < 0 {
				fault.What, fault.Element = "infinity", v.inf
			}
		}
	}
	if fault != nil {
		return fault
	}
	return nil
}

// done writes what was kept, also where the run ends early: what led to an error is what one wants to see.
func (q *probe) done() error {
	if q == nil || len(q.items) == 0 {
		return nil
	}
	meta := map[string]string{"program": q.p.ID(), "scope": q.e.cfg.DumpValues, "call": q.call}
	if err := checkpoint.WriteFile(filepath.Join(q.e.cfg.DumpValuesTo, q.file+".safetensors"), q.items, meta); err != nil {
		return userErrorf("dump-values-to: %w", err)
	}
	return nil
}
