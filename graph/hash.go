package graph

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"math"
)

// hashFormat is the version of the hashed form: change it with the form, or with the meaning of an op.
const hashFormat = "precast graph 1"

// Hash is the content hash of a module. It depends on all that changes what the module computes or how it is called: nodes and
// their order, attributes (an absent one counts as its default), shapes, parameter names (weights' keys) and kinds, donation,
// sharding, mesh, result names. It does not depend on names of the module, of private funcs, of regions and of their inputs, on
// scopes and block classes, on funcs that the entry does not reach, on the process or on map order. The module must be verified.
func Hash(m *Module) [32]byte {
	h := newHasher(m)
	h.str(hashFormat)
	if m.Mesh != nil {
		h.str(m.Mesh.Name)
		h.num(len(m.Mesh.AxisNames))
		for i, a := range m.Mesh.AxisNames {
			h.str(a)
			h.num(m.Mesh.AxisSizes[i])
		}
	}
	entry := h.sub(m.Entry(), true, false)
	h.raw(entry[:])
	return h.sum()
}

// HashFunc is the content hash of one func, as of a private one: names of its inputs do not count. With structureOnly names and
// kinds of all parameters do not count either, so that funcs which differ by their weights alone are equal. m resolves calls;
// it may be nil where f makes none.
func HashFunc(m *Module, f *Func, structureOnly bool) [32]byte {
	h := newHasher(m)
	h.str(hashFormat)
	sum := h.sub(f, false, structureOnly)
	h.raw(sum[:])
	return h.sum()
}

// hasher writes a self-delimiting encoding into SHA-256: each item has a fixed size or its length in front.
type hasher struct {
	m     *Module
	h     hash.Hash
	b     []byte
	ids   map[*Value]int
	funcs map[*Func][32]byte // callees that are done
	// structureOnly leaves out what tells parameters of equal shape apart.
	structureOnly bool
}

func newHasher(m *Module) *hasher {
	return &hasher{m: m, h: sha256.New(), funcs: map[*Func][32]byte{}}
}

func (h *hasher) num(i int) { h.b = binary.AppendVarint(h.b, int64(i)) }

func (h *hasher) flag(v bool) {
	if v {
		h.b = append(h.b, 1)
	} else {
		h.b = append(h.b, 0)
	}
}

func (h *hasher) str(s string) {
	h.num(len(s))
	h.b = append(h.b, s...)
}

func (h *hasher) raw(data []byte) {
	h.num(len(data))
	if len(data) > 1<<12 {
		h.flush()
		h.h.Write(data)
		return
	}
	h.b = append(h.b, data...)
}

func (h *hasher) flush() {
	h.h.Write(h.b)
	h.b = h.b[:0]
}

func (h *hasher) sum() (out [32]byte) {
	h.flush()
	h.h.Sum(out[:0])
	return out
}

// sub hashes a func by itself.
func (h *hasher) sub(f *Func, entry, structureOnly bool) [32]byte {
	s := &hasher{m: h.m, h: sha256.New(), funcs: h.funcs, structureOnly: structureOnly}
	s.body(f, entry, false)
	return s.sum()
}

func (h *hasher) shape(s Shape) {
	h.num(int(s.DType))
	h.num(len(s.Dimensions))
	for _, d := range s.Dimensions {
		h.num(d)
	}
}

func (h *hasher) value(v *Value) {
	id, ok := h.ids[v]
	if !ok {
		id = -1
	}
	h.num(id)
}

func (h *hasher) body(f *Func, entry, region bool) {
	outer := h.ids
	h.ids = valueNumbers(f)
	h.num(len(f.Params))
	for _, p := range f.Params {
		h.shape(p.Value.Shape)
		if region {
			continue
		}
		if !h.structureOnly {
			h.num(int(p.Kind))
			if entry || p.Kind == Weight {
				h.str(p.Name)
			}
		}
		h.flag(p.Donated)
		h.flag(p.Sharding != nil)
		if p.Sharding != nil {
			h.num(len(p.Sharding.Axes))
			for _, axes := range p.Sharding.Axes {
				h.num(len(axes))
				for _, a := range axes {
					h.str(a)
				}
			}
		}
	}
	h.num(len(f.Nodes))
	for _, n := range f.Nodes {
		h.node(n)
		if len(h.b) > 1<<15 {
			h.flush()
		}
	}
	h.num(len(f.Results))
	for _, r := range f.Results {
		h.value(r)
	}
	if entry {
		h.num(len(f.ResultNames))
		for _, name := range f.ResultNames {
			h.str(name)
		}
	}
	h.ids = outer
}

func (h *hasher) node(n *Node) {
	h.str(string(n.Op))
	h.num(len(n.Operands))
	for _, v := range n.Operands {
		h.value(v)
	}
	h.num(len(n.Results))
	for _, r := range n.Results {
		h.shape(r.Shape)
	}
	attrs := n.Attrs
	if info := opTable[n.Op]; info != nil && len(attrs) < len(info.Attrs) {
		attrs = n.FullAttrs()
	}
	h.num(len(attrs))
	for i := range attrs {
		if n.Op == OpCall && attrs[i].Name == "callee" {
			h.callee(attrs.String("callee"))
			continue
		}
		h.str(attrs[i].Name)
		h.attr(attrs[i].Value)
	}
	h.num(len(n.Regions))
	for _, r := range n.Regions {
		h.body(r, false, true)
	}
}

// callee hashes what is called, not its name.
func (h *hasher) callee(name string) {
	var f *Func
	if h.m != nil {
		f = h.m.callee(name)
	}
	if f == nil {
		h.str(name)
		return
	}
	sum, done := h.funcs[f]
	if !done {
		sum = h.sub(f, false, h.structureOnly)
		h.funcs[f] = sum
	}
	h.raw(sum[:])
}

func (h *hasher) attr(value any) {
	h.num(int(KindOf(value)))
	switch v := value.(type) {
	case bool:
		h.flag(v)
	case int:
		h.num(v)
	case float64:
		h.b = binary.LittleEndian.AppendUint64(h.b, math.Float64bits(v))
	case string:
		h.str(v)
	case DType:
		h.num(int(v))
	case []int:
		h.num(len(v))
		for _, x := range v {
			h.num(x)
		}
	case [][2]int:
		h.num(len(v))
		for _, x := range v {
			h.num(x[0])
			h.num(x[1])
		}
	case Literal:
		h.flag(v.Splat)
		h.raw(v.Data)
	}
}
