package graph

import (
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/gomlx/compute/dtypes"
)

// The text form.
//
//	module @tiny mesh "devices" ["data" = 1, "model" = 2]   // comments run to the end of the line
//
//	func @main {
//	  %0 = input "x" : f32[2,3] donated sharding [["data"], []]
//	  %1 = weight "proj.weight" : f32[4,3]
//	  %2 = dot_general %0, %1 {lhs_contracting = [1], rhs_contracting = [1]} : f32[2,4] loc("proj")
//	  %3 = constant {value = splat<f32: 0.5>} : f32[2,4]
//	  %4 = call %2, %3 {callee = "scale"} : f32[2,4]
//	  return %4 "sample"
//	}
//
//	func @scale class "blocks" { ... }
//
// Values are numbered by Func: parameters first, then results in order; the names in a text that is parsed may be any
// %identifier. A region ("region { ... }", after the attributes) is written as a func without a name and numbers its own values.
// Floats are shortest decimals that parse back to the same bits; a NaN other than the canonical one is nan:0xBITS. Literals of
// more than maxReadable elements, and those that decimals cannot give back, are hexadecimal bytes: dense<0x0000803f>.

// maxReadable is the number of elements up to which a dense literal is written as numbers.
const maxReadable = 32

// Print writes the text form. The same module gives the same bytes in every process. A module that Verify would refuse is
// printed as well as it can be: an operand that its func does not define is %?.
func Print(w io.Writer, m *Module) error {
	p := &printer{w: w}
	p.module(m)
	p.flush()
	return p.err
}

// String is the text form.
func (m *Module) String() string {
	var b strings.Builder
	_ = Print(&b, m) // a Builder does not fail
	return b.String()
}

// FormatNode is the node's line of the text form, without its regions, with f's numbering. It walks f: it is for messages.
func (f *Func) FormatNode(n *Node) string {
	p := &printer{brief: true}
	p.number(f)
	p.node(n, 0)
	return strings.TrimSpace(string(p.b))
}

// valueNumbers numbers f's values densely: parameters, then results in order.
func valueNumbers(f *Func) map[*Value]int {
	n := len(f.Params)
	for _, node := range f.Nodes {
		n += len(node.Results)
	}
	ids := make(map[*Value]int, n)
	for _, p := range f.Params {
		ids[p.Value] = len(ids)
	}
	for _, node := range f.Nodes {
		for _, r := range node.Results {
			ids[r] = len(ids)
		}
	}
	return ids
}

type printer struct {
	w     io.Writer
	b     []byte
	err   error
	ids   map[*Value]int
	brief bool // regions and long literals are left out
}

func (p *printer) flush() {
	if p.w == nil {
		return
	}
	if p.err == nil {
		_, p.err = p.w.Write(p.b)
	}
	p.b = p.b[:0]
}

func (p *printer) s(s string) { p.b = append(p.b, s...) }
func (p *printer) i(i int)    { p.b = strconv.AppendInt(p.b, int64(i), 10) }
func (p *printer) q(s string) { p.b = strconv.AppendQuote(p.b, s) }

func (p *printer) name(s string) {
	p.s("@")
	if isIdent(s) {
		p.s(s)
	} else {
		p.q(s)
	}
}

// isIdent says whether s is written without quotes after @.
func isIdent(s string) bool {
	for i := range len(s) {
		if !identByte(s[i]) {
			return false
		}
	}
	return s != ""
}

func identByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '.' || c == '-' || c == '$'
}

func (p *printer) module(m *Module) {
	p.s("module ")
	p.name(m.Name)
	if m.Mesh != nil {
		p.s(" mesh ")
		p.q(m.Mesh.Name)
		p.s(" [")
		for i, a := range m.Mesh.AxisNames {
			if i > 0 {
				p.s(", ")
			}
			p.q(a)
			p.s(" = ")
			if i < len(m.Mesh.AxisSizes) {
				p.i(m.Mesh.AxisSizes[i])
			}
		}
		p.s("]")
	}
	p.s("\n")
	for _, f := range m.Funcs {
		p.s("\nfunc ")
		p.name(f.Name)
		p.body(f, 0)
		p.s("\n")
	}
}

func (p *printer) number(f *Func) { p.ids = valueNumbers(f) }

func (p *printer) indent(depth int) {
	for range depth {
		p.s("  ")
	}
}

// body writes a func from its class to the closing brace.
func (p *printer) body(f *Func, depth int) {
	outer := p.ids
	p.number(f)
	if f.BlockClass != "" {
		p.s(" class ")
		p.q(f.BlockClass)
	}
	p.s(" {\n")
	for _, param := range f.Params {
		p.indent(depth + 1)
		p.param(param)
		p.s("\n")
	}
	for _, n := range f.Nodes {
		p.node(n, depth+1)
		p.s("\n")
		if len(p.b) > 1<<16 {
			p.flush()
		}
	}
	p.indent(depth + 1)
	p.s("return")
	for i, r := range f.Results {
		if i > 0 {
			p.s(",")
		}
		p.s(" ")
		p.value(r)
		if len(f.ResultNames) == len(f.Results) {
			p.s(" ")
			p.q(f.ResultNames[i])
		}
	}
	p.s("\n")
	p.indent(depth)
	p.s("}")
	p.ids = outer
}

func (p *printer) param(param *Param) {
	p.value(param.Value)
	if param.Kind == Weight {
		p.s(" = weight ")
	} else {
		p.s(" = input ")
	}
	p.q(param.Name)
	p.s(" : ")
	if param.Value != nil {
		p.b = appendShape(p.b, param.Value.Shape)
	}
	if param.Donated {
		p.s(" donated")
	}
	if param.Sharding != nil {
		p.s(" sharding [")
		for i, axes := range param.Sharding.Axes {
			if i > 0 {
				p.s(", ")
			}
			p.s("[")
			for k, a := range axes {
				if k > 0 {
					p.s(", ")
				}
				p.q(a)
			}
			p.s("]")
		}
		p.s("]")
	}
}

func (p *printer) value(v *Value) {
	if id, ok := p.ids[v]; ok {
		p.s("%")
		p.i(id)
	} else {
		p.s("%?")
	}
}

func (p *printer) node(n *Node, depth int) {
	p.indent(depth)
	for i, r := range n.Results {
		if i > 0 {
			p.s(", ")
		}
		p.value(r)
	}
	if len(n.Results) > 0 {
		p.s(" = ")
	}
	p.s(string(n.Op))
	for i, v := range n.Operands {
		if i > 0 {
			p.s(",")
		}
		p.s(" ")
		p.value(v)
	}
	if len(n.Attrs) > 0 {
		p.s(" {")
		for i, a := range n.Attrs {
			if i > 0 {
				p.s(", ")
			}
			p.s(a.Name)
			p.s(" = ")
			p.attr(n, a.Value)
		}
		p.s("}")
	}
	for _, r := range n.Regions {
		p.s(" region")
		if p.brief || r == nil {
			p.s(" {...}")
			continue
		}
		if r.Name != "" {
			p.s(" ")
			p.name(r.Name)
		}
		p.body(r, depth)
	}
	for i, r := range n.Results {
		if i == 0 {
			p.s(" : ")
		} else {
			p.s(", ")
		}
		if r != nil {
			p.b = appendShape(p.b, r.Shape)
		}
	}
	if n.Scope != "" {
		p.s(" loc(")
		p.q(n.Scope)
		p.s(")")
	}
}

func (p *printer) attr(n *Node, value any) {
	switch v := value.(type) {
	case bool:
		p.b = strconv.AppendBool(p.b, v)
	case int:
		p.i(v)
	case float64:
		p.b = appendFloat(p.b, v)
	case string:
		p.q(v)
	case DType:
		p.s(DTypeName(v))
	case []int:
		p.ints(v)
	case [][2]int:
		if len(v) == 0 {
			p.s("[[]]")
			return
		}
		p.s("[")
		for i := range v {
			if i > 0 {
				p.s(", ")
			}
			p.ints(v[i][:])
		}
		p.s("]")
	case Literal:
		dtype := dtypes.InvalidDType
		if n.Op == OpConstant && len(n.Results) == 1 && n.Results[0] != nil {
			dtype = n.Results[0].Shape.DType
		}
		p.literal(v, dtype)
	default:
		p.s(fmt.Sprintf("<%T>", value))
	}
}

func (p *printer) ints(list []int) {
	p.s("[")
	for i, x := range list {
		if i > 0 {
			p.s(", ")
		}
		p.i(x)
	}
	p.s("]")
}

// appendFloat writes a float64 attribute so that it is told from an int.
func appendFloat(b []byte, f float64) []byte {
	start := len(b)
	b = appendFloatBits(b, math.Float64bits(f), dtypes.Float64)
	if strings.ContainsAny(string(b[start:]), ".en") { // "inf" and "nan" have an n
		return b
	}
	return append(b, ".0"...)
}

// canonicalNaN is the bit pattern that is written as nan.
func canonicalNaN(dtype DType) uint64 {
	switch dtype {
	case dtypes.Float16:
		return 0x7e00
	case dtypes.BFloat16:
		return 0x7fc0
	case dtypes.Float32:
		return 0x7fc00000
	}
	return 0x7ff8000000000000
}

func appendFloatBits(b []byte, bits uint64, dtype DType) []byte {
	var f float64
	precision := 32
	switch dtype {
	case dtypes.Float16:
		f = widenFloat(uint16(bits), 5, 10)
	case dtypes.BFloat16:
		f = widenFloat(uint16(bits), 8, 7)
	case dtypes.Float32:
		f = float64(math.Float32frombits(uint32(bits)))
	default:
		f, precision = math.Float64frombits(bits), 64
	}
	switch {
	case math.IsNaN(f):
		b = append(b, "nan"...)
		if bits != canonicalNaN(dtype) {
			b = append(b, ":0x"...)
			b = strconv.AppendUint(b, bits, 16)
		}
		return b
	case math.IsInf(f, 1):
		return append(b, "inf"...)
	case math.IsInf(f, -1):
		return append(b, "-inf"...)
	}
	return strconv.AppendFloat(b, f, 'g', -1, precision)
}

// literal writes numbers where dtype is one that has them, the list is short and the data is well formed; else bytes.
func (p *printer) literal(l Literal, dtype DType) {
	if l.Splat {
		p.s("splat<")
	} else {
		p.s("dense<")
	}
	size := DTypeBits(dtype) / 8
	readable := size > 0 && !dtype.IsComplex() && len(l.Data) > 0 && len(l.Data)%size == 0 && len(l.Data)/size <= maxReadable
	if dtype == dtypes.Bool {
		for _, b := range l.Data {
			readable = readable && b <= 1
		}
	}
	switch {
	case readable:
		p.s(DTypeName(dtype))
		p.s(":")
		for i := 0; i < len(l.Data); i += size {
			if i > 0 {
				p.s(",")
			}
			p.s(" ")
			u := readUint(l.Data[i : i+size])
			switch {
			case dtype.IsFloat():
				p.b = appendFloatBits(p.b, u, dtype)
			case dtype == dtypes.Bool:
				p.b = strconv.AppendBool(p.b, u == 1)
			case dtype.IsUnsigned():
				p.b = strconv.AppendUint(p.b, u, 10)
			default:
				shift := 64 - 8*size
				p.b = strconv.AppendInt(p.b, int64(u<<shift)>>shift, 10)
			}
		}
	case p.brief && len(l.Data) > 16:
		p.s("0x...")
	default:
		p.s("0x")
		p.b = hex.AppendEncode(p.b, l.Data)
	}
	p.s(">")
}
