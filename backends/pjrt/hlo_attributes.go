package pjrt

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// attributes prints what an instruction has beside its operands, in the order and with the names of XLA's text.
func (p *hloPrinter) attributes(n message, opcode string) {
	put := func(format string, args ...any) {
		p.b.WriteString(", ")
		fmt.Fprintf(&p.b, format, args...)
	}
	if len(n[14]) > 0 {
		put("dimensions={%s}", join(n.ints(14)))
	}
	if w := n.message(15); w != nil {
		put("window={%s}", hloWindow(w))
	}
	if d := n.message(16); d != nil {
		put("dim_labels=%s", hloConvolution(d))
	}
	if g := n.int(50); g > 1 {
		put("feature_group_count=%d", g)
	}
	if g := n.int(58); g > 1 {
		put("batch_group_count=%d", g)
	}
	if len(n[17]) > 0 {
		var parts []string
		for _, s := range n.messages(17) {
			part := fmt.Sprintf("[%d:%d]", s.int(1), s.int(2))
			if s.int(3) > 1 {
				part = fmt.Sprintf("[%d:%d:%d]", s.int(1), s.int(2), s.int(3))
			}
			parts = append(parts, part)
		}
		put("slice={%s}", strings.Join(parts, ", "))
	}
	if len(n[20]) > 0 {
		put("dynamic_slice_sizes={%s}", join(n.ints(20)))
	}
	if c := n.message(21); c != nil {
		var parts []string
		for _, d := range c.messages(1) {
			part := fmt.Sprintf("%d_%d", d.int(1), d.int(2))
			if d.int(3) != 0 {
				part += fmt.Sprintf("_%d", d.int(3))
			}
			parts = append(parts, part)
		}
		put("padding=%s", strings.Join(parts, "x"))
	}
	if opcode == "get-tuple-element" {
		put("index=%d", n.int(13))
	}
	if opcode == "compare" {
		put("direction=%s", n.str(63))
	}
	p.numbers(n, put)
	if opcode == "custom-call" {
		put("custom_call_target=%q", n.str(28))
	}
	if opcode == "fusion" {
		put("kind=%s", n.str(11))
	}
	p.called(n, opcode, put)
	p.collective(n, put)
	if n.int(60) != 0 {
		put("is_stable=true")
	}
	if n.int(67) != 0 {
		put("indices_are_sorted=true")
	}
	if n.int(69) != 0 {
		put("unique_indices=true")
	}
	if s := n.message(40); s != nil {
		put("sharding=%s", hloSharding(s))
	}
	if ids := n.ints(37); len(ids) > 0 {
		names := make([]string, len(ids))
		for i, id := range ids {
			names[i] = "%" + p.operand(id)
		}
		put("control-predecessors={%s}", strings.Join(names, ", "))
	}
	if f := n.message(68); f != nil && len(f[1]) > 0 {
		var parts []string
		for _, e := range f.messages(1) {
			parts = append(parts, fmt.Sprintf("%s=%q", e.str(1), e.str(2)))
		}
		put("frontend_attributes={%s}", strings.Join(parts, ","))
	}
	// OpMetadata: op_name 2.
	if name := n.message(7).str(2); name != "" {
		put("metadata={op_name=%q}", name)
	}
	if config := n.str(43); config != "" {
		if isPrintable(config) {
			put("backend_config=%s", config)
		} else {
			put("backend_config=%q", config)
		}
	}
}

// numbers prints the dimension numbers of dot, gather and scatter.
func (p *hloPrinter) numbers(n message, put func(string, ...any)) {
	lists := func(m message, names ...string) {
		for i, name := range names {
			if f := protowire.Number(i + 1); name != "" && len(m[f]) > 0 {
				put("%s={%s}", name, join(m.ints(f)))
			}
		}
	}
	if d := n.message(30); d != nil {
		lists(d, "lhs_contracting_dims", "rhs_contracting_dims", "lhs_batch_dims", "rhs_batch_dims")
	}
	if c := n.message(51); c != nil {
		var parts []string
		plain := true
		for _, v := range c.ints(1) {
			plain = plain && v == 0
			parts = append(parts, map[int64]string{0: "default", 1: "high", 2: "highest"}[v])
		}
		if !plain {
			put("operand_precision={%s}", strings.Join(parts, ","))
		}
	}
	if g := n.message(33); g != nil {
		lists(g, "offset_dims", "collapsed_slice_dims", "start_index_map", "", "operand_batching_dims", "start_indices_batching_dims")
		put("index_vector_dim=%d, slice_sizes={%s}", g.int(4), join(n.ints(34)))
	}
	if s := n.message(48); s != nil {
		lists(s, "update_window_dims", "inserted_window_dims", "scatter_dims_to_operand_dims", "", "input_batching_dims", "scatter_indices_batching_dims")
		put("index_vector_dim=%d", s.int(4))
	}
}

// called prints the computations that an instruction calls under the names of its opcode.
func (p *hloPrinter) called(n message, opcode string, put func(string, ...any)) {
	ids := n.ints(38)
	if len(ids) == 0 {
		return
	}
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = fmt.Sprintf("%%computation%d", id)
		if name, ok := p.computations[id]; ok {
			names[i] = "%" + name
		}
	}
	switch {
	case opcode == "while" && len(names) == 2:
		put("condition=%s, body=%s", names[1], names[0])
	case opcode == "conditional":
		put("branch_computations={%s}", strings.Join(names, ", "))
	case opcode == "fusion" || opcode == "custom-call" || strings.HasPrefix(opcode, "async"):
		put("calls=%s", strings.Join(names, ", "))
	default:
		put("to_apply=%s", strings.Join(names, ", "))
	}
}

// collective prints who takes part in a collective operation.
func (p *hloPrinter) collective(n message, put func(string, ...any)) {
	if c := n.int(26); c > 0 {
		put("channel_id=%d", c)
	}
	groups := n.messages(49)
	if list := n.message(87); list != nil && len(list[1]) > 0 {
		groups = list.messages(1)
	}
	if len(groups) > 0 {
		var parts []string
		for _, g := range groups {
			parts = append(parts, "{"+join(g.ints(1))+"}")
		}
		put("replica_groups={%s}", strings.Join(parts, ","))
	}
	if len(n[52]) > 0 {
		var parts []string
		for _, s := range n.messages(52) {
			parts = append(parts, fmt.Sprintf("{%d,%d}", s.int(1), s.int(2)))
		}
		put("source_target_pairs={%s}", strings.Join(parts, ","))
	}
	if n.int(71) != 0 {
		put("use_global_device_ids=true")
	}
}

// hloWindow prints a Window: of each dimension size 1, stride 2, padding_low 3, padding_high 4, window_dilation 5, base_dilation 6,
// window_reversal 7. What has its neutral value is left out, as in XLA's text.
func hloWindow(w message) string {
	dims := w.messages(1)
	var parts []string
	add := func(name string, neutral string, text func(message) string) {
		list := make([]string, len(dims))
		plain := true
		for i, d := range dims {
			list[i] = text(d)
			plain = plain && list[i] == neutral
		}
		if !plain {
			parts = append(parts, name+"="+strings.Join(list, "x"))
		}
	}
	number := func(f protowire.Number) func(message) string {
		return func(d message) string { return fmt.Sprint(d.int(f)) }
	}
	add("size", "", number(1))
	add("stride", "1", number(2))
	add("pad", "0_0", func(d message) string { return fmt.Sprintf("%d_%d", d.int(3), d.int(4)) })
	add("lhs_dilate", "1", number(6))
	add("rhs_dilate", "1", number(5))
	add("rhs_reversal", "0", number(7))
	return strings.Join(parts, " ")
}

// hloConvolution prints ConvolutionDimensionNumbers as labels: b and f of the input and the output, i and o of the kernel, digits for
// the spatial dimensions.
func hloConvolution(d message) string {
	labels := func(a, b protowire.Number, names string, spatial protowire.Number) string {
		s := d.ints(spatial)
		text := []byte(strings.Repeat("?", len(s)+2))
		set := func(at int64, c byte) {
			if at >= 0 && at < int64(len(text)) {
				text[at] = c
			}
		}
		set(d.int(a), names[0])
		set(d.int(b), names[1])
		for i, at := range s {
			set(at, byte('0'+i))
		}
		return string(text)
	}
	return labels(7, 8, "bf", 11) + "_" + labels(3, 4, "io", 6) + "->" + labels(9, 10, "bf", 12)
}

// hloSharding prints an OpSharding: type 1, tile_assignment_dimensions 3, tile_assignment_devices 4, tuple_shardings 5,
// replicate_on_last_tile_dim 6, iota_reshape_dims 9, iota_transpose_perm 10.
func hloSharding(s message) string {
	switch s.int(1) {
	case 0:
		return "{replicated}"
	case 1:
		return fmt.Sprintf("{maximal device=%s}", join(s.ints(4)))
	case 2:
		var parts []string
		for _, t := range s.messages(5) {
			parts = append(parts, hloSharding(t))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case 4:
		return "{manual}"
	}
	text := "{devices=[" + join(s.ints(3)) + "]"
	if iota := s.ints(9); len(iota) > 0 {
		text += "<=[" + join(iota) + "]"
		if perm := s.ints(10); len(iota) > 1 {
			text += "T(" + join(perm) + ")"
		}
	} else {
		text += join(s.ints(4))
	}
	if s.int(6) != 0 {
		text += " last_tile_dim_replicate"
	}
	return text + "}"
}

// maxLiteral is the number of elements up to which a literal is printed.
const maxLiteral = 16

// hloLiteral prints a LiteralProto: shape 1, and its elements in a field for each type.
func hloLiteral(l message) string {
	if l == nil {
		return "{...}"
	}
	var parts []string
	raw := func(f protowire.Number, width int, text func([]byte) string) {
		for _, v := range l[f] {
			for b := v.bytes; len(b) >= width && len(parts) <= maxLiteral; b = b[width:] {
				parts = append(parts, text(b))
			}
		}
	}
	f32 := func(bits uint32) string { return fmt.Sprintf("%g", math.Float32frombits(bits)) }
	switch l.message(1).int(2) {
	case 1: // preds
		for _, v := range l.ints(2) {
			parts = append(parts, fmt.Sprint(v != 0))
		}
	case 4: // s32s
		for _, v := range l.ints(4) {
			parts = append(parts, fmt.Sprint(int32(v)))
		}
	case 5:
		for _, v := range l.ints(5) {
			parts = append(parts, fmt.Sprint(v))
		}
	case 8:
		for _, v := range l.ints(6) {
			parts = append(parts, fmt.Sprint(uint32(v)))
		}
	case 9:
		for _, v := range l.ints(7) {
			parts = append(parts, fmt.Sprint(uint64(v)))
		}
	case 11: // f32s, packed
		raw(8, 4, func(b []byte) string { return f32(binary.LittleEndian.Uint32(b)) })
	case 12:
		raw(9, 8, func(b []byte) string { return fmt.Sprintf("%g", math.Float64frombits(binary.LittleEndian.Uint64(b))) })
	case 16: // bf16s
		raw(13, 2, func(b []byte) string { return f32(uint32(binary.LittleEndian.Uint16(b)) << 16) })
	default:
		return "{...}"
	}
	switch {
	case len(parts) > maxLiteral:
		return "{...}"
	case len(l.message(1).ints(3)) == 0 && len(parts) == 1:
		return parts[0]
	default:
		return "{" + strings.Join(parts, ", ") + "}"
	}
}

func isPrintable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == '�' })
}
