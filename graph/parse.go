package graph

import (
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gomlx/compute/dtypes"
)

// ParseError says where a text is not the text form of a module.
type ParseError struct {
	File      string
	Line, Col int // from 1; Col counts bytes
	Detail    string
}

// Error reads "file:line:col: detail".
func (e *ParseError) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Col, e.Detail)
}

// maxDepth bounds the nesting of regions.
const maxDepth = 64

// Parse reads the text form (see print.go). filename is for messages. The error is a *ParseError. Parse checks syntax, that
// operations exist and that values are defined before their use; Verify checks the rest.
func Parse(filename, text string) (m *Module, err error) {
	p := &parser{file: filename, text: text, intern: map[string]string{}}
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(*ParseError)
			if !ok {
				panic(r)
			}
			m, err = nil, e
		}
	}()
	return p.module(), nil
}

// parser reads text from pos. Errors are panics with a *ParseError, which Parse recovers.
type parser struct {
	file, text string
	pos        int
	depth      int
	values     map[string]*Value
	// intern keeps one copy of each string, cut off from text so that a module does not hold its source.
	intern map[string]string
}

func (p *parser) failAt(pos int, format string, args ...any) {
	line := 1 + strings.Count(p.text[:pos], "\n")
	col := pos - strings.LastIndexByte(p.text[:pos], '\n')
	panic(&ParseError{p.file, line, col, fmt.Sprintf(format, args...)})
}

// found describes what is at pos, for messages.
func (p *parser) found(pos int) string {
	if pos >= len(p.text) {
		return "the end of the text"
	}
	end := pos + 1
	for end < len(p.text) && end < pos+20 && p.text[end] > ' ' {
		end++
	}
	return strconv.Quote(p.text[pos:end])
}

func (p *parser) space() {
	for p.pos < len(p.text) {
		switch c := p.text[p.pos]; {
		case c == ' ' || c == '\n' || c == '\t' || c == '\r':
			p.pos++
		case c == '/' && strings.HasPrefix(p.text[p.pos:], "//"):
			if n := strings.IndexByte(p.text[p.pos:], '\n'); n >= 0 {
				p.pos += n
			} else {
				p.pos = len(p.text)
			}
		default:
			return
		}
	}
}

// peek says whether the next token starts with c; accept takes it.
func (p *parser) peek(c byte) bool {
	p.space()
	return p.pos < len(p.text) && p.text[p.pos] == c
}

func (p *parser) accept(c byte) bool {
	if p.peek(c) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) expect(c byte) {
	if !p.accept(c) {
		p.failAt(p.pos, "found %s, wanted %q", p.found(p.pos), c)
	}
}

// word reads an identifier, "" when there is none.
func (p *parser) word() string {
	p.space()
	start := p.pos
	for p.pos < len(p.text) && identByte(p.text[p.pos]) {
		p.pos++
	}
	return p.text[start:p.pos]
}

// acceptWord takes the word if it is next.
func (p *parser) acceptWord(w string) bool {
	p.space()
	start := p.pos
	if p.word() == w {
		return true
	}
	p.pos = start
	return false
}

func (p *parser) expectWord(w string) {
	p.space()
	if start := p.pos; !p.acceptWord(w) {
		p.failAt(start, "found %s, wanted %q", p.found(start), w)
	}
}

func (p *parser) keep(s string) string {
	if k, ok := p.intern[s]; ok {
		return k
	}
	k := strings.Clone(s)
	p.intern[k] = k
	return k
}

// quoted reads a string in double quotes, with Go's escapes.
func (p *parser) quoted() string {
	p.space()
	start := p.pos
	if !p.accept('"') {
		p.failAt(start, "found %s, wanted a string in double quotes", p.found(start))
	}
	plain := true
	for p.pos < len(p.text) && p.text[p.pos] != '"' && p.text[p.pos] != '\n' {
		if c := p.text[p.pos]; c == '\\' {
			plain = false
			p.pos++
		} else if c >= 0x80 {
			plain = false
		}
		p.pos++
	}
	if p.pos >= len(p.text) || p.text[p.pos] != '"' {
		p.failAt(start, "found a string without its closing quote, wanted it on the same line")
	}
	p.pos++
	raw := p.text[start:p.pos]
	if plain {
		return p.keep(raw[1 : len(raw)-1])
	}
	s, err := strconv.Unquote(raw)
	if err != nil || !utf8.ValidString(raw) {
		p.failAt(start, "found a string with a bad escape or bytes that are not UTF-8: %s", p.found(start))
	}
	return p.keep(s)
}

// symbol reads @name or @"name".
func (p *parser) symbol() string {
	p.expect('@')
	if p.pos < len(p.text) && p.text[p.pos] == '"' {
		return p.quoted()
	}
	start := p.pos
	w := ""
	if p.pos < len(p.text) && identByte(p.text[p.pos]) {
		w = p.word()
	}
	if w == "" {
		p.failAt(start, "found %s, wanted a name", p.found(start))
	}
	return p.keep(w)
}

func (p *parser) int() int {
	p.space()
	start := p.pos
	if p.pos < len(p.text) && p.text[p.pos] == '-' {
		p.pos++
	}
	for p.pos < len(p.text) && p.text[p.pos] >= '0' && p.text[p.pos] <= '9' {
		p.pos++
	}
	n, err := strconv.Atoi(p.text[start:p.pos])
	if err != nil {
		p.failAt(start, "found %s, wanted a whole number of 64 bits", p.found(start))
	}
	return n
}

func (p *parser) module() *Module {
	m := &Module{}
	p.expectWord("module")
	m.Name = p.symbol()
	if p.acceptWord("mesh") {
		m.Mesh = &Mesh{Name: p.quoted()}
		p.expect('[')
		for !p.accept(']') {
			if len(m.Mesh.AxisNames) > 0 {
				p.expect(',')
			}
			m.Mesh.AxisNames = append(m.Mesh.AxisNames, p.quoted())
			p.expect('=')
			m.Mesh.AxisSizes = append(m.Mesh.AxisSizes, p.int())
		}
	}
	for p.space(); p.pos < len(p.text); p.space() {
		p.expectWord("func")
		f := &Func{Name: p.symbol()}
		p.body(f)
		m.Funcs = append(m.Funcs, f)
	}
	if len(m.Funcs) == 0 {
		p.failAt(p.pos, "found no func, wanted at least the entry")
	}
	return m
}

// body reads a func from its class to the closing brace.
func (p *parser) body(f *Func) {
	outer := p.values
	p.values = map[string]*Value{}
	if p.acceptWord("class") {
		f.BlockClass = p.quoted()
	}
	p.expect('{')
	for {
		p.space()
		start := p.pos
		names, positions := p.resultNames()
		at := p.pos
		op := p.word()
		switch {
		case len(names) == 0 && op == "return":
			p.results(f)
			p.expect('}')
			p.values = outer
			return
		case len(names) == 1 && (op == "input" || op == "weight"):
			if len(f.Nodes) > 0 {
				p.failAt(start, "found a parameter after a node, wanted parameters first")
			}
			p.param(f, names[0], positions[0], op == "weight")
		default:
			info, ok := opTable[Op(op)]
			if !ok {
				p.failAt(at, "found %s, wanted an operation or return", p.found(at))
			}
			p.node(f, info.Op, names, positions)
		}
	}
}

// resultNames reads "%a, %b =", nothing when there is no %.
func (p *parser) resultNames() (names []string, positions []int) {
	for p.peek('%') {
		positions = append(positions, p.pos)
		names = append(names, p.valueName())
		if !p.accept(',') {
			break
		}
		if !p.peek('%') {
			p.failAt(p.pos, "found %s, wanted another result", p.found(p.pos))
		}
	}
	if len(names) > 0 {
		p.expect('=')
		p.space()
	}
	return names, positions
}

func (p *parser) valueName() string {
	p.expect('%')
	start := p.pos
	for p.pos < len(p.text) && identByte(p.text[p.pos]) {
		p.pos++
	}
	if p.pos == start {
		p.failAt(start, "found %s, wanted a value's name", p.found(start))
	}
	return p.text[start:p.pos]
}

func (p *parser) define(name string, pos int, v *Value) {
	if _, dup := p.values[name]; dup {
		p.failAt(pos, "found a second definition of %%%s, wanted one", name)
	}
	p.values[name] = v
}

func (p *parser) use() *Value {
	p.space()
	start := p.pos
	name := p.valueName()
	v := p.values[name]
	if v == nil {
		p.failAt(start, "found %%%s, which is not defined before in this func or region", name)
	}
	return v
}

func (p *parser) results(f *Func) {
	for p.peek('%') {
		f.Results = append(f.Results, p.use())
		if p.peek('"') {
			f.ResultNames = append(f.ResultNames, p.quoted())
		}
		if len(f.ResultNames) != 0 && len(f.ResultNames) != len(f.Results) {
			p.failAt(p.pos, "found names for some results, wanted one for each or none")
		}
		if !p.accept(',') {
			break
		}
	}
}

func (p *parser) shape() Shape {
	p.space()
	start := p.pos
	dtype, ok := ParseDType(p.word())
	if !ok {
		p.failAt(start, "found %s, wanted an element type such as f32", p.found(start))
	}
	s := Shape{DType: dtype}
	p.expect('[')
	n := strings.IndexByte(p.text[p.pos:], ']')
	if n > 0 {
		s.Dimensions = make([]int, 0, strings.Count(p.text[p.pos:p.pos+n], ",")+1)
	}
	for !p.accept(']') {
		if len(s.Dimensions) > 0 {
			p.expect(',')
		}
		p.space()
		at := p.pos
		d := p.int()
		if d < 0 {
			p.failAt(at, "found dimension %d, wanted at least 0", d)
		}
		s.Dimensions = append(s.Dimensions, d)
	}
	return s
}

func (p *parser) param(f *Func, name string, pos int, weight bool) {
	kind := Input
	if weight {
		kind = Weight
	}
	label := p.quoted()
	p.expect(':')
	v := f.NewParam(label, kind, p.shape())
	p.define(name, pos, v)
	v.Param.Donated = p.acceptWord("donated")
	if p.acceptWord("sharding") {
		v.Param.Sharding = &Sharding{}
		p.expect('[')
		for n := 0; !p.accept(']'); n++ {
			if n > 0 {
				p.expect(',')
			}
			var axes []string
			p.expect('[')
			for !p.accept(']') {
				if len(axes) > 0 {
					p.expect(',')
				}
				axes = append(axes, p.quoted())
			}
			v.Param.Sharding.Axes = append(v.Param.Sharding.Axes, axes)
		}
	}
}

func (p *parser) node(f *Func, op Op, names []string, positions []int) {
	n := &Node{Op: op}
	var buf [4]*Value
	operands := buf[:0]
	for p.peek('%') {
		operands = append(operands, p.use())
		if !p.accept(',') {
			break
		}
		if !p.peek('%') {
			p.failAt(p.pos, "found %s, wanted another operand", p.found(p.pos))
		}
	}
	n.Operands = slices.Clone(operands)
	if len(operands) == 0 {
		n.Operands = nil
	}
	if p.accept('{') {
		p.attrs(n)
	}
	for p.acceptWord("region") {
		r := &Func{}
		if p.peek('@') {
			r.Name = p.symbol()
		}
		if p.depth++; p.depth > maxDepth {
			p.failAt(p.pos, "found regions nested more than %d deep", maxDepth)
		}
		p.body(r)
		p.depth--
		n.Regions = append(n.Regions, r)
	}
	if len(names) > 0 {
		p.expect(':')
		n.Results = make([]*Value, len(names))
		values := make([]Value, len(names))
		for i := range names {
			if i > 0 {
				p.expect(',')
			}
			values[i] = Value{Shape: p.shape(), Def: n, Index: i}
			n.Results[i] = &values[i]
		}
		if p.peek(',') {
			p.failAt(p.pos, "found more result types than results, wanted %d", len(names))
		}
	}
	if p.acceptWord("loc") {
		p.expect('(')
		n.Scope = p.quoted()
		p.expect(')')
	}
	for i, v := range n.Results {
		p.define(names[i], positions[i], v)
	}
	f.Nodes = append(f.Nodes, n)
}

func (p *parser) attrs(n *Node) {
	sorted := true
	for !p.accept('}') {
		if len(n.Attrs) > 0 {
			p.expect(',')
		}
		p.space()
		start := p.pos
		name := p.keep(p.word())
		if name == "" {
			p.failAt(start, "found %s, wanted an attribute's name", p.found(start))
		}
		for i := range n.Attrs {
			if n.Attrs[i].Name == name {
				p.failAt(start, "found attribute %s twice, wanted it once", name)
			}
			sorted = sorted && n.Attrs[i].Name < name
		}
		p.expect('=')
		n.Attrs = append(n.Attrs, Attr{name, p.attr()})
	}
	if !sorted {
		slices.SortFunc(n.Attrs, func(a, b Attr) int { return strings.Compare(a.Name, b.Name) })
	}
}

func (p *parser) attr() any {
	p.space()
	start := p.pos
	if p.pos < len(p.text) {
		switch p.text[p.pos] {
		case '"':
			return p.quoted()
		case '[':
			return p.list()
		}
	}
	w := p.number()
	switch w {
	case "":
		p.failAt(start, "found %s, wanted an attribute's value", p.found(start))
	case "true", "false":
		return w == "true"
	case "dense", "splat":
		return p.literal(w == "splat")
	}
	if d, ok := ParseDType(w); ok {
		return d
	}
	if strings.Trim(w, "-0123456789") == "" {
		n, err := strconv.Atoi(w)
		if err != nil {
			p.failAt(start, "found %s, wanted a whole number of 64 bits", p.found(start))
		}
		return n
	}
	bits := p.float(start, w, dtypes.Float64)
	return math.Float64frombits(bits)
}

// number reads a word that may hold what numbers do: signs, the colon of nan:0x1.
func (p *parser) number() string {
	p.space()
	start := p.pos
	for p.pos < len(p.text) && (identByte(p.text[p.pos]) || p.text[p.pos] == '+' || p.text[p.pos] == ':' && strings.HasSuffix(p.text[start:p.pos], "nan")) {
		p.pos++
	}
	return p.text[start:p.pos]
}

// list reads [1, 2] or [[1, 2], [3, 4]]; [] is an empty []int and [[]] an empty [][2]int.
func (p *parser) list() any {
	p.expect('[')
	if !p.peek('[') {
		return p.intsRest()
	}
	pairs := [][2]int{}
	for !p.accept(']') {
		if len(pairs) > 0 {
			p.expect(',')
		}
		p.space()
		start := p.pos
		p.expect('[')
		ints := p.intsRest()
		if len(ints) == 0 && len(pairs) == 0 {
			p.expect(']')
			return pairs
		}
		if len(ints) != 2 {
			p.failAt(start, "found %d numbers, wanted a pair", len(ints))
		}
		pairs = append(pairs, [2]int{ints[0], ints[1]})
	}
	return pairs
}

func (p *parser) intsRest() []int {
	var buf [8]int
	ints := buf[:0]
	for !p.accept(']') {
		if len(ints) > 0 {
			p.expect(',')
		}
		ints = append(ints, p.int())
	}
	return append(make([]int, 0, len(ints)), ints...)
}

// literal reads <f32: 1, 2> or <0x0000803f>.
func (p *parser) literal(splat bool) Literal {
	l := Literal{Splat: splat}
	p.expect('<')
	p.space()
	start := p.pos
	w := p.word()
	if digits, ok := strings.CutPrefix(w, "0x"); ok {
		data, err := hex.DecodeString(digits)
		if err != nil {
			p.failAt(start, "found hexadecimal bytes that do not decode, wanted two digits a byte: %v", err)
		}
		l.Data = data
		p.expect('>')
		return l
	}
	dtype, ok := ParseDType(w)
	size := DTypeBits(dtype) / 8
	if !ok || size == 0 || dtype.IsComplex() {
		p.failAt(start, "found %s, wanted 0x and bytes or an element type that has numbers", p.found(start))
	}
	p.expect(':')
	for {
		p.space()
		at := p.pos
		l.Data = appendUint(l.Data, size, p.element(at, p.number(), dtype))
		if !p.accept(',') {
			break
		}
	}
	p.expect('>')
	return l
}

// element is the bit pattern of one number of a literal.
func (p *parser) element(at int, w string, dtype DType) (bits uint64) {
	size := DTypeBits(dtype)
	var err error
	switch {
	case dtype == dtypes.Bool && w == "true":
		return 1
	case dtype == dtypes.Bool && w == "false":
		return 0
	case dtype == dtypes.Bool:
		p.failAt(at, "found %s, wanted true or false", p.found(at))
	case dtype.IsFloat():
		return p.float(at, w, dtype)
	case dtype.IsUnsigned():
		bits, err = strconv.ParseUint(w, 10, size)
	default:
		var n int64
		n, err = strconv.ParseInt(w, 10, size)
		bits = uint64(n)
	}
	if err != nil {
		p.failAt(at, "found %s, wanted a number of type %s", p.found(at), DTypeName(dtype))
	}
	return bits
}

// float is the bit pattern of a number of a float type.
func (p *parser) float(at int, w string, dtype DType) uint64 {
	switch w {
	case "nan":
		return canonicalNaN(dtype)
	case "inf", "-inf":
		return floatBits(math.Inf(1-2*strings.Count(w, "-")), dtype)
	}
	if digits, ok := strings.CutPrefix(w, "nan:0x"); ok {
		bits, err := strconv.ParseUint(digits, 16, DTypeBits(dtype))
		if err != nil || !isNaNBits(bits, dtype) {
			p.failAt(at, "found %s, wanted the bits of a NaN of type %s", p.found(at), DTypeName(dtype))
		}
		return bits
	}
	if strings.Trim(w, "+-.0123456789eE") != "" {
		p.failAt(at, "found %s, wanted a number", p.found(at))
	}
	precision := 64
	if dtype == dtypes.Float32 {
		precision = 32 // straight to float32: through float64 it would round twice
	}
	f, err := strconv.ParseFloat(w, precision)
	bits := floatBits(f, dtype)
	if err != nil || bits&^signBit(dtype) == floatBits(math.Inf(1), dtype) {
		p.failAt(at, "found %s, wanted a finite number of type %s", p.found(at), DTypeName(dtype))
	}
	return bits
}

func signBit(dtype DType) uint64 { return 1 << (DTypeBits(dtype) - 1) }

func isNaNBits(bits uint64, dtype DType) bool {
	return bits&^signBit(dtype) > floatBits(math.Inf(1), dtype)
}

func floatBits(f float64, dtype DType) uint64 {
	switch dtype {
	case dtypes.Float16:
		return uint64(narrowFloat(f, 5, 10))
	case dtypes.BFloat16:
		return uint64(narrowFloat(f, 8, 7))
	case dtypes.Float32:
		return uint64(math.Float32bits(float32(f)))
	}
	return math.Float64bits(f)
}
