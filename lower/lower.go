package lower

import (
	"fmt"
	"slices"
	"strconv"

	"precast/graph"
)

// Lower writes the module as StableHLO. The module must be valid (graph.Verify); an op or element type that has no StableHLO form is
// an error that names the function and the op.
func Lower(m *graph.Module) (*Program, error) {
	code, err := Text(m, Options{})
	if err != nil {
		return nil, err
	}
	p := &Program{Name: m.Name, Code: code, Module: m}
	p.Params, p.Results = SignatureOf(m)
	return p, nil
}

// Options change how Text writes a module.
type Options struct {
	// Locations gives each operation its scope as a location, loc("transformer_blocks.3.attn"), for dumps. Programs have none, so that
	// their bytes don't depend on debug information.
	Locations bool
}

// Text writes the module as StableHLO text (MLIR): a public function main, the module's entry, and its private functions.
//
//   - A donated parameter gets the attribute tf.aliasing_output with the first result of its type that no earlier parameter took, or
//     jax.buffer_donor where there is none.
//   - A mesh becomes an sdy.mesh and a parameter's sharding sdy.sharding.
//   - erf is chlo.erf, which XLA's import keeps whole, and arg_min_max a reduce of values and positions.
//
// Parameter and result names are not in the text.
func Text(m *graph.Module, opts Options) ([]byte, error) {
	if len(m.Funcs) == 0 {
		return nil, fmt.Errorf("lower %s: the module has no function", m.Name)
	}
	nodes := 0
	for _, f := range m.Funcs {
		nodes += len(f.Nodes)
	}
	w := &writer{opts: opts, m: m, buf: make([]byte, 0, 4096+160*nodes)}
	w.symbols = symbolsOf(m)
	w.module()
	if w.err != nil {
		return nil, fmt.Errorf("lower %s: %w", m.Name, w.err)
	}
	return w.buf, nil
}

// symbolsOf names the functions: the entry is main, the others keep their names, with underscores where main is taken.
func symbolsOf(m *graph.Module) map[string]string {
	symbols := make(map[string]string, len(m.Funcs))
	for _, f := range m.Funcs[1:] {
		name := f.Name
		if name == "main" {
			for name = "main_"; m.Func(name) != nil; {
				name += "_"
			}
		}
		symbols[f.Name] = symbol(name)
	}
	return symbols
}

// symbol is a function or module name as MLIR wants it after the @, quoted unless it is an identifier.
func symbol(name string) string {
	plain := name != ""
	for i, r := range name {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r == '_':
		case i > 0 && (r >= '0' && r <= '9' || r == '$' || r == '.'):
		default:
			plain = false
		}
	}
	if plain {
		return name
	}
	return quote(name)
}

// quote writes an MLIR string: all but printable ASCII is escaped in hexadecimal.
func quote(s string) string {
	b := []byte{'"'}
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\' || c < 0x20 || c > 0x7e:
			b = append(b, '\\', "0123456789ABCDEF"[c>>4], "0123456789ABCDEF"[c&15])
		default:
			b = append(b, c)
		}
	}
	return string(append(b, '"'))
}

// name is a value's SSA name: %argN, %N, or %N#i for a node of several results.
type name struct {
	num    int32
	result int16 // -1 where the node has one result
	arg    bool
}

// writer holds the text being written.
type writer struct {
	opts    Options
	m       *graph.Module
	symbols map[string]string
	buf     []byte
	err     error

	fn     *graph.Func
	names  map[*graph.Value]name
	next   int32
	indent int
}

// fail keeps the first error.
func (w *writer) fail(n *graph.Node, format string, args ...any) {
	if w.err != nil {
		return
	}
	where := "func " + w.fn.Name
	if n != nil {
		where += ", " + string(n.Op)
		if n.Scope != "" {
			where += " in " + n.Scope
		}
	}
	w.err = fmt.Errorf("%s: %s", where, fmt.Sprintf(format, args...))
}

func (w *writer) str(s string) { w.buf = append(w.buf, s...) }
func (w *writer) int(n int)    { w.buf = strconv.AppendInt(w.buf, int64(n), 10) }
func (w *writer) char(c byte)  { w.buf = append(w.buf, c) }
func (w *writer) strs(s ...any) { // strings, ints, values, shapes and []int in one call
	for _, x := range s {
		switch x := x.(type) {
		case string:
			w.str(x)
		case int:
			w.int(x)
		case *graph.Value:
			w.value(x)
		case graph.Shape:
			w.shape(x)
		case []int:
			w.ints(x)
		}
	}
}

func (w *writer) newline() {
	w.char('\n')
	for range w.indent {
		w.str("  ")
	}
}

// ints writes "1, 2, 3".
func (w *writer) ints(xs []int) {
	for i, x := range xs {
		if i > 0 {
			w.str(", ")
		}
		w.int(x)
	}
}

// array writes "array<i64: 1, 2>".
func (w *writer) array(xs []int) {
	if len(xs) == 0 {
		w.str("array<i64>")
		return
	}
	w.str("array<i64: ")
	w.ints(xs)
	w.char('>')
}

// shape writes "tensor<2x3xf32>".
func (w *writer) shape(s graph.Shape) {
	t, err := elementType(s.DType)
	if err != nil {
		w.fail(nil, "%v", err)
	}
	w.str("tensor<")
	for _, d := range s.Dimensions {
		w.int(d)
		w.char('x')
	}
	w.str(t)
	w.char('>')
}

func (w *writer) types(vs []*graph.Value) {
	for i, v := range vs {
		if i > 0 {
			w.str(", ")
		}
		w.shape(v.Shape)
	}
}

// signature writes " : (operand types) -> result types".
func (w *writer) signature(operands, results []*graph.Value) {
	w.str(" : (")
	w.types(operands)
	w.str(") -> ")
	if len(results) == 1 {
		w.shape(results[0].Shape)
		return
	}
	w.char('(')
	w.types(results)
	w.char(')')
}

func (w *writer) value(v *graph.Value) {
	n, ok := w.names[v]
	if !ok {
		w.fail(nil, "a value is used before it is defined")
		return
	}
	w.char('%')
	if n.arg {
		w.str("arg")
	}
	w.int(int(n.num))
	if n.result >= 0 {
		w.char('#')
		w.int(int(n.result))
	}
}

func (w *writer) values(vs []*graph.Value) {
	for i, v := range vs {
		if i > 0 {
			w.str(", ")
		}
		w.value(v)
	}
}

// temp names an intermediate value that the graph doesn't have and returns its name.
func (w *writer) temp() string {
	w.next++
	return "%" + strconv.Itoa(int(w.next-1))
}

func (w *writer) module() {
	partitions := 1
	if w.m.Mesh != nil {
		partitions = product(w.m.Mesh.AxisSizes)
	}
	w.str("module")
	if w.m.Name != "" {
		w.str(" @" + symbol(w.m.Name))
	}
	w.strs(" attributes {mhlo.num_partitions = ", partitions, " : i32, mhlo.num_replicas = 1 : i32} {")
	w.indent = 1
	w.mesh()
	for i, f := range w.m.Funcs {
		w.newline()
		w.function(f, i == 0)
	}
	w.indent = 0
	w.str("\n}\n")
}

func (w *writer) function(f *graph.Func, entry bool) {
	w.fn, w.next = f, 0
	w.names = make(map[*graph.Value]name, len(f.Params)+len(f.Nodes))
	for i, p := range f.Params {
		w.names[p.Value] = name{num: int32(i), result: -1, arg: true}
	}
	if entry {
		w.str("func.func public @main(")
	} else {
		w.str("func.func private @" + w.symbols[f.Name] + "(")
	}
	aliases := make([]int, len(f.Params))
	if entry {
		aliases = aliasesOf(f)
	}
	for i, p := range f.Params {
		if i > 0 {
			w.str(", ")
		}
		w.strs(p.Value, ": ", p.Value.Shape)
		w.paramAttrs(p, aliases[i], entry)
	}
	w.str(") -> (")
	w.types(f.Results)
	w.str(") {")
	w.indent++
	w.nodes(f)
	w.newline()
	w.str("return")
	if len(f.Results) > 0 {
		w.char(' ')
		w.values(f.Results)
		w.str(" : ")
		w.types(f.Results)
	}
	w.indent--
	w.newline()
	w.char('}')
}

// aliasesOf pairs donated parameters with results of their type: the result's position, or -1.
func aliasesOf(f *graph.Func) []int {
	taken := make([]bool, len(f.Results))
	aliases := make([]int, len(f.Params))
	for i, p := range f.Params {
		aliases[i] = -1
		if !p.Donated {
			continue
		}
		for j, r := range f.Results {
			if !taken[j] && r.Shape.DType == p.Value.Shape.DType && slices.Equal(r.Shape.Dimensions, p.Value.Shape.Dimensions) {
				taken[j] = true
				aliases[i] = j
				break
			}
		}
	}
	return aliases
}

func (w *writer) paramAttrs(p *graph.Param, alias int, entry bool) {
	start := len(w.buf)
	sep := func() {
		if len(w.buf) == start {
			w.str(" {")
		} else {
			w.str(", ")
		}
	}
	if entry && p.Donated {
		sep()
		if alias >= 0 {
			w.strs("tf.aliasing_output = ", alias, " : i32")
		} else {
			w.str("jax.buffer_donor = true")
		}
	}
	if p.Sharding != nil && w.m.Mesh != nil {
		sep()
		w.str("sdy.sharding = ")
		w.sharding(p.Sharding)
	}
	if len(w.buf) > start {
		w.char('}')
	}
}

// nodes writes the body of a function or region.
func (w *writer) nodes(f *graph.Func) {
	for _, n := range f.Nodes {
		w.node(n)
		if w.err != nil {
			return
		}
	}
}

// region writes a region as a block with arguments; its names go on from the function's, which they may not shadow.
func (w *writer) region(f *graph.Func) {
	w.str("{")
	w.indent++
	w.newline()
	w.str("^bb0(")
	for i, p := range f.Params {
		if i > 0 {
			w.str(", ")
		}
		w.names[p.Value] = name{num: w.next, result: -1}
		w.next++
		w.strs(p.Value, ": ", p.Value.Shape)
	}
	w.str("):")
	w.regionBody(f)
}

// branch writes a region of an if, which has no arguments: the operands take the place of its parameters.
func (w *writer) branch(f *graph.Func, operands []*graph.Value) {
	w.str("{")
	w.indent++
	for i, p := range f.Params {
		w.names[p.Value] = w.names[operands[i]]
	}
	w.regionBody(f)
}

func (w *writer) regionBody(f *graph.Func) {
	w.nodes(f)
	w.newline()
	w.str("stablehlo.return")
	if len(f.Results) > 0 {
		w.char(' ')
		w.values(f.Results)
		w.str(" : ")
		w.types(f.Results)
	}
	w.indent--
	w.newline()
	w.char('}')
}
