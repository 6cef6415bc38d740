package graph

import (
	"fmt"
	"slices"
)

// ModuleConstraints hold for a module as a whole, beside those of its nodes in the op table.
var ModuleConstraints = []Constraint{
	{"M1", "a module has an entry func, and no func, parameter, node or value is nil"},
	{"M2", "func names are not empty and unique"},
	{"M3", "parameter names are not empty and unique in their func"},
	{"M4", "a value's Def, Index and Param say where it is defined, and it is defined once"},
	{"M5", "an operand is defined before its use in the same func or region: regions capture nothing"},
	{"M6", "a func's results are values of that func"},
	{"M7", "result names are none, or one for each result, not empty and unique"},
	{"M8", "a value has an element type of the IR, static dimensions of at least 0, at most 2^48 elements, no axis names, and is no tuple"},
	{"M9", "no func calls itself, directly or through others"},
	{"M10", "weights are parameters of the entry or of private funcs, not of regions"},
	{"M11", "a region's parameter is neither donated nor sharded"},
	{"M12", "mesh axes have a size each, of at least 1, and unique names"},
	{"M13", "a sharding names axes of the module's mesh for each dimension, each axis once, and they divide the dimension"},
	{"M14", "only private funcs have a block class"},
	{"M15", "a node's operation is one of the op table"},
}

// VerifyError says what Verify found.
type VerifyError struct {
	// Func is the name of the func, empty for the module itself; Region names the regions inside it that lead to the fault.
	Func, Region string
	// Node is the node's line of the text form, empty where the fault is not in a node.
	Node string
	// Scope is the node's module path.
	Scope string
	// Number is the constraint: of ModuleConstraints, or of the node's op ("C7").
	Number string
	// Detail says what was found and wanted.
	Detail string
}

// Error reads "func @main: node `%2 = add ...`: add C1: found ..., wanted ...".
func (e *VerifyError) Error() string {
	s := ""
	if e.Func != "" {
		s = "func @" + e.Func + e.Region + ": "
	}
	if e.Node != "" {
		s += "node `" + e.Node + "`: "
	}
	return s + e.Detail
}

// Verify checks a module against the op table and ModuleConstraints and returns the first fault as a *VerifyError.
func Verify(m *Module) error {
	v := &verifier{m: m, funcs: map[string]*Func{}, calls: map[*Func][]*Func{}}
	if err := v.module(); err != nil {
		return err // not the typed nil
	}
	return nil
}

type verifier struct {
	m     *Module
	funcs map[string]*Func  // private funcs by name
	calls map[*Func][]*Func // call edges, without repeats
	in    []Shape           // buffer
	want  []Shape           // buffer
	axes  map[string]int    // sizes of mesh axes
}

// at is where the verifier is: a func of the module and the regions below it.
type at struct {
	top    *Func
	f      *Func
	region string
}

func (w at) fail(number, format string, args ...any) *VerifyError {
	return &VerifyError{Func: w.top.Name, Region: w.region, Number: number, Detail: number + ": " + fmt.Sprintf(format, args...)}
}

func (w at) failNode(n *Node, number, format string, args ...any) *VerifyError {
	e := w.fail(number, format, args...)
	e.Node, e.Scope = w.f.FormatNode(n), n.Scope
	return e
}

func (v *verifier) module() *VerifyError {
	m := v.m
	if m == nil || len(m.Funcs) == 0 || slices.Contains(m.Funcs, nil) {
		return &VerifyError{Number: "M1", Detail: "M1: found a module without an entry or with a nil func, wanted at least one func"}
	}
	seen := map[string]bool{}
	for i, f := range m.Funcs {
		if f.Name == "" || seen[f.Name] {
			return &VerifyError{Func: f.Name, Number: "M2", Detail: fmt.Sprintf("M2: found the name %q for func %d, wanted a unique one", f.Name, i)}
		}
		seen[f.Name] = true
		if i > 0 {
			v.funcs[f.Name] = f
		} else if f.BlockClass != "" {
			return at{top: f, f: f}.fail("M14", "found block class %q on the entry, wanted none", f.BlockClass)
		}
	}
	if err := v.mesh(); err != nil {
		return err
	}
	for _, f := range m.Funcs {
		if err := v.body(at{top: f, f: f}); err != nil {
			return err
		}
	}
	return v.recursion()
}

func (v *verifier) mesh() *VerifyError {
	mesh := v.m.Mesh
	if mesh == nil {
		return nil
	}
	fail := func(format string, args ...any) *VerifyError {
		return &VerifyError{Number: "M12", Detail: fmt.Sprintf("M12: mesh %q: "+format, append([]any{mesh.Name}, args...)...)}
	}
	if len(mesh.AxisNames) != len(mesh.AxisSizes) {
		return fail("found %d axis names and %d sizes, wanted equally many", len(mesh.AxisNames), len(mesh.AxisSizes))
	}
	v.axes = map[string]int{}
	for i, name := range mesh.AxisNames {
		if _, dup := v.axes[name]; dup || name == "" {
			return fail("found axis name %q, wanted unique names that are not empty", name)
		}
		if mesh.AxisSizes[i] < 1 {
			return fail("axis %q: found size %d, wanted at least 1", name, mesh.AxisSizes[i])
		}
		v.axes[name] = mesh.AxisSizes[i]
	}
	if _, ok := elements(mesh.AxisSizes); !ok {
		return fail("found sizes %v, wanted at most 2^48 devices", mesh.AxisSizes)
	}
	return nil
}

func (v *verifier) body(w at) *VerifyError {
	f := w.f
	size := len(f.Params)
	for _, n := range f.Nodes {
		if n != nil {
			size += len(n.Results)
		}
	}
	defined := make(map[*Value]struct{}, size)
	if err := v.params(w, defined); err != nil {
		return err
	}
	for i, n := range f.Nodes {
		if n == nil {
			return w.fail("M1", "found a nil node at %d", i)
		}
		if err := v.node(w, n, defined); err != nil {
			return err
		}
	}
	for i, r := range f.Results {
		if _, ok := defined[r]; !ok {
			return w.fail("M6", "result %d: found a value that this func does not define", i)
		}
	}
	if k := len(f.ResultNames); k != 0 && k != len(f.Results) {
		return w.fail("M7", "found %d result names for %d results, wanted one for each or none", k, len(f.Results))
	}
	for i, name := range f.ResultNames {
		if name == "" || slices.Contains(f.ResultNames[:i], name) {
			return w.fail("M7", "result %d: found the name %q, wanted a unique one", i, name)
		}
	}
	return nil
}

func (v *verifier) params(w at, defined map[*Value]struct{}) *VerifyError {
	f := w.f
	names := make(map[string]struct{}, len(f.Params))
	for i, p := range f.Params {
		if p == nil || p.Value == nil {
			return w.fail("M1", "parameter %d is nil or has no value", i)
		}
		if _, dup := names[p.Name]; dup || p.Name == "" {
			return w.fail("M3", "parameter %d: found the name %q, wanted a unique one", i, p.Name)
		}
		names[p.Name] = struct{}{}
		val := p.Value
		if _, dup := defined[val]; dup || val.Def != nil || val.Param != p || val.Index != i {
			return w.fail("M4", "parameter %d (%q): found a value that says it is defined elsewhere (index %d) or twice", i, p.Name, val.Index)
		}
		defined[val] = struct{}{}
		if problem := badShape(val.Shape); problem != "" {
			return w.fail("M8", "parameter %q: found %s %s", p.Name, ShapeString(val.Shape), problem)
		}
		if w.region != "" {
			if p.Kind == Weight {
				return w.fail("M10", "found the weight %q as a region's parameter, wanted it passed in as an operand", p.Name)
			}
			if p.Donated || p.Sharding != nil {
				return w.fail("M11", "found the region's parameter %q donated or sharded, wanted neither", p.Name)
			}
		}
		if p.Sharding != nil {
			if err := v.sharding(w, p); err != nil {
				return err
			}
		}
	}
	return nil
}

func (v *verifier) sharding(w at, p *Param) *VerifyError {
	dims := p.Value.Shape.Dimensions
	if len(p.Sharding.Axes) != len(dims) {
		return w.fail("M13", "parameter %q: found a sharding of %d dimensions, wanted %d as in %s", p.Name, len(p.Sharding.Axes), len(dims), ShapeString(p.Value.Shape))
	}
	used := map[string]bool{}
	for d, axes := range p.Sharding.Axes {
		parts := 1
		for _, a := range axes {
			n, ok := v.axes[a]
			if !ok || used[a] {
				return w.fail("M13", "parameter %q, dimension %d: found mesh axis %q, wanted one of the module's mesh, used once", p.Name, d, a)
			}
			used[a] = true
			parts *= n
		}
		if dims[d]%parts != 0 {
			return w.fail("M13", "parameter %q, dimension %d: found %d elements over %d parts, wanted a multiple", p.Name, d, dims[d], parts)
		}
	}
	return nil
}

// badShape says what is wrong with a shape, "" for nothing.
func badShape(s Shape) string {
	switch {
	case len(s.TupleShapes) > 0:
		return "is a tuple, wanted one array"
	case DTypeBits(s.DType) == 0:
		return "has an element type that the IR does not have"
	case len(s.AxisNames) > 0:
		return "has axis names, wanted none"
	}
	if _, ok := elements(s.Dimensions); !ok {
		return "has a dynamic or negative dimension or too many elements, wanted static dimensions of at least 0 and at most 2^48 elements"
	}
	return ""
}

func (v *verifier) node(w at, n *Node, defined map[*Value]struct{}) *VerifyError {
	in := v.in[:0]
	for i, x := range n.Operands {
		if _, ok := defined[x]; !ok {
			return w.failNode(n, "M5", "operand %d: found a value that is not defined before in this func or region, wanted no captures and definitions first", i)
		}
		in = append(in, x.Shape)
	}
	want := v.want[:0]
	for i, r := range n.Results {
		if r == nil {
			return w.failNode(n, "M1", "result %d is nil", i)
		}
		if _, dup := defined[r]; dup || r.Def != n || r.Index != i || r.Param != nil {
			return w.failNode(n, "M4", "result %d: found a value that says it is defined elsewhere (index %d) or twice", i, r.Index)
		}
		if problem := badShape(r.Shape); problem != "" {
			return w.failNode(n, "M8", "result %d: found %s %s", i, ShapeString(r.Shape), problem)
		}
		want = append(want, r.Shape)
	}
	v.in, v.want = in, want
	for _, r := range n.Results {
		defined[r] = struct{}{}
	}
	if _, ok := opTable[n.Op]; !ok {
		return w.failNode(n, "M15", "found operation %q, wanted one of the op table", string(n.Op))
	}
	for i, r := range n.Regions {
		if r == nil {
			return w.failNode(n, "M1", "region %d is nil", i)
		}
		inner := at{top: w.top, f: r, region: fmt.Sprintf("%s, region %d of %s", w.region, i, n.Op)}
		// A region's signature is read by Infer below: its parameters and results must be there.
		if r.BlockClass != "" {
			return inner.fail("M14", "found block class %q on a region, wanted none", r.BlockClass)
		}
		saved := [2][]Shape{v.in, v.want}
		v.in, v.want = nil, nil
		if err := v.body(inner); err != nil {
			return err
		}
		v.in, v.want = saved[0], saved[1]
	}
	var callee *Func
	if n.Op == OpCall {
		callee = v.funcs[n.Attrs.String("callee")]
		if callee != nil {
			if !slices.Contains(v.calls[w.top], callee) {
				v.calls[w.top] = append(v.calls[w.top], callee)
			}
			if !complete(callee) { // it may come later in the module and be unverified yet
				return at{top: callee, f: callee}.fail("M1", "a parameter or a result is nil or has no value")
			}
		}
	}
	out, err := Infer(n.Op, in, n.Attrs, n.Regions, callee, want...)
	if err == nil && len(out) != len(n.Results) {
		err = &ConstraintError{Op: n.Op, Number: "R1", Detail: fmt.Sprintf("found %d results, wanted %d", len(n.Results), len(out))}
	}
	if err != nil {
		e := w.failNode(n, "", "")
		e.Detail = err.Error()
		if c, ok := err.(*ConstraintError); ok {
			e.Number = c.Number
		}
		return e
	}
	return nil
}

// recursion looks for a cycle of calls.
func (v *verifier) recursion() *VerifyError {
	const inProgress, done = 1, 2
	state := map[*Func]int{}
	var visit func(f *Func) *VerifyError
	visit = func(f *Func) *VerifyError {
		state[f] = inProgress
		for _, callee := range v.calls[f] {
			switch state[callee] {
			case inProgress:
				return at{top: f, f: f}.fail("M9", "found a call of @%s, which leads back to @%s, wanted no recursion", callee.Name, callee.Name)
			case done:
				continue
			}
			if err := visit(callee); err != nil {
				return err
			}
		}
		state[f] = done
		return nil
	}
	for _, f := range v.m.Funcs {
		if state[f] == 0 {
			if err := visit(f); err != nil {
				return err
			}
		}
	}
	return nil
}
