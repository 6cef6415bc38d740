package pjrt

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// The optimized program comes as an HloModuleProto (xla/service/hlo.proto). It is printed in the manner of XLA's own HLO text, for
// people: every instruction with its shape, layout, operands and the attributes that matter when one reads a program; literals of more
// than a few elements, layouts' tiles beyond their sizes and profile data are left out. The text is not meant to be parsed back.

// hloText prints an HloModuleProto, or the one inside an HloModuleProtoWithConfig.
func hloText(code []byte, withConfig bool) (string, error) {
	module, err := parseMessage(code)
	if err != nil {
		return "", fmt.Errorf("HLO module: %w", err)
	}
	if withConfig {
		if module = module.message(1); module == nil { // hlo_module
			return "", errors.New("HLO module: found a configuration without a module")
		}
	}
	p := &hloPrinter{computations: map[int64]string{}, names: map[int64]string{}}
	return p.module(module), nil
}

type hloPrinter struct {
	b            strings.Builder
	computations map[int64]string // names by id
	names        map[int64]string // of the instructions of the computation that is printed, by id
}

// module prints an HloModuleProto: name 1, computations 3, entry_computation_id 6, input_output_alias 8.
func (p *hloPrinter) module(m message) string {
	entry := m.int(6)
	computations := m.messages(3)
	for _, c := range computations {
		p.computations[c.int(5)] = c.str(1)
	}
	fmt.Fprintf(&p.b, "HloModule %s", m.str(1))
	if alias := m.message(8); alias != nil {
		var parts []string
		for _, e := range alias.messages(1) {
			kind := "may-alias"
			if e.int(4) == 2 {
				kind = "must-alias"
			}
			parts = append(parts, fmt.Sprintf("{%s}: (%d, {%s}, %s)", join(e.ints(1)), e.int(2), join(e.ints(3)), kind))
		}
		if len(parts) > 0 {
			fmt.Fprintf(&p.b, ", input_output_alias={ %s }", strings.Join(parts, ", "))
		}
	}
	p.b.WriteString("\n")
	for _, c := range computations {
		p.b.WriteString("\n")
		p.computation(c, c.int(5) == entry)
	}
	return p.b.String()
}

// computation prints an HloComputationProto: name 1, instructions 2, program_shape 4, root_id 6.
func (p *hloPrinter) computation(c message, entry bool) {
	instructions := c.messages(2)
	clear(p.names)
	for _, n := range instructions {
		p.names[n.int(35)] = n.str(1)
	}
	if entry {
		p.b.WriteString("ENTRY ")
	}
	fmt.Fprintf(&p.b, "%%%s", c.str(1))
	if shape := c.message(4); shape != nil {
		names := shape[3] // parameter_names
		var params []string
		for i, s := range shape.messages(1) {
			name := fmt.Sprintf("p%d", i)
			if i < len(names) {
				name = string(names[i].bytes)
			}
			params = append(params, name+": "+hloShape(s, false))
		}
		result := "()"
		if r := shape.message(2); r != nil {
			result = hloShape(r, false)
		}
		fmt.Fprintf(&p.b, " (%s) -> %s", strings.Join(params, ", "), result)
	}
	p.b.WriteString(" {\n")
	root := c.int(6)
	for _, n := range instructions {
		p.b.WriteString("  ")
		if n.int(35) == root {
			p.b.WriteString("ROOT ")
		}
		p.instruction(n)
	}
	p.b.WriteString("}\n")
}

// instruction prints an HloInstructionProto: name 1, opcode 2, shape 3, operand_ids 36.
func (p *hloPrinter) instruction(n message) {
	shape := ""
	if s := n.message(3); s != nil {
		shape = hloShape(s, true) + " "
	}
	opcode := n.str(2)
	fmt.Fprintf(&p.b, "%%%s = %s%s(", n.str(1), shape, opcode)
	switch opcode {
	case "parameter":
		fmt.Fprintf(&p.b, "%d", n.int(9))
	case "constant":
		p.b.WriteString(hloLiteral(n.message(8)))
	default:
		for i, id := range n.ints(36) {
			if i > 0 {
				p.b.WriteString(", ")
			}
			p.b.WriteString("%" + p.operand(id))
		}
	}
	p.b.WriteString(")")
	p.attributes(n, opcode)
	p.b.WriteString("\n")
}

// operand is the name of an instruction of the computation at hand.
func (p *hloPrinter) operand(id int64) string {
	if name, ok := p.names[id]; ok {
		return name
	}
	return strconv.FormatInt(id, 10)
}

// hloTypes are the names of PrimitiveType (xla/xla_data.proto).
var hloTypes = map[int64]string{
	1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64", 10: "f16", 11: "f32", 12: "f64",
	14: "opaque", 15: "c64", 16: "bf16", 17: "token", 18: "c128", 19: "f8e5m2", 20: "f8e4m3fn", 21: "s4", 22: "u4", 23: "f8e4m3b11fnuz",
	24: "f8e5m2fnuz", 25: "f8e4m3fnuz", 26: "s2", 27: "u2", 28: "f8e4m3", 29: "f8e3m4", 30: "s1", 31: "u1", 32: "f4e2m1fn", 33: "f8e8m0fnu",
}

const (
	hloTuple  = 13
	hloBuffer = 34
)

// hloShape prints a ShapeProto: element_type 2, dimensions 3, tuple_shapes 4, layout 5.
func hloShape(s message, layout bool) string {
	kind := s.int(2)
	if kind == hloTuple || kind == hloBuffer {
		parts := make([]string, 0, len(s[4]))
		for _, t := range s.messages(4) {
			parts = append(parts, hloShape(t, layout))
		}
		if kind == hloBuffer {
			return "b(" + strings.Join(parts, ", ") + ")"
		}
		return "(" + strings.Join(parts, ", ") + ")"
	}
	name, ok := hloTypes[kind]
	if !ok {
		name = fmt.Sprintf("type%d", kind)
	}
	text := name + "[" + join(s.ints(3)) + "]"
	l := s.message(5)
	if !layout || l == nil || len(s.ints(3)) == 0 {
		return text
	}
	// LayoutProto: minor_to_major 1, tiles 6, memory_space 8.
	text += "{" + join(l.ints(1))
	if tiles := l.messages(6); len(tiles) > 0 {
		text += ":T"
		for _, t := range tiles {
			text += "(" + join(t.ints(1)) + ")"
		}
	}
	if space := l.int(8); space != 0 {
		if !strings.Contains(text, ":T") {
			text += ":"
		}
		text += fmt.Sprintf("S(%d)", space)
	}
	return text + "}"
}

func join(list []int64) string {
	var b strings.Builder
	for i, n := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatInt(n, 10))
	}
	return b.String()
}
