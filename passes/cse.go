package passes

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math"

	"precast/graph"
)

// cse replaces a node by an earlier equal one: same op, operands, attributes and result shapes. Nodes with regions and
// rng_bit_generator are left alone. One walk suffices: operands are replaced before their users are looked at.
func cse(m *graph.Module, _ *Options) error {
	for _, f := range m.Funcs {
		seen := make(map[uint64][]*graph.Node, len(f.Nodes))
		ids := valueIDs(f)
		replaced := map[*graph.Value]*graph.Value{}
		kept := f.Nodes[:0]
		for _, n := range f.Nodes {
			for i, o := range n.Operands {
				if r := replaced[o]; r != nil {
					n.Operands[i] = r
				}
			}
			if len(n.Regions) > 0 || n.Op == graph.OpRngBits {
				kept = append(kept, n)
				continue
			}
			key := nodeKey(n, ids)
			if same := findEqual(seen[key], n); same != nil {
				for i, r := range n.Results {
					replaced[r] = same.Results[i]
				}
				continue
			}
			seen[key] = append(seen[key], n)
			kept = append(kept, n)
		}
		clear(f.Nodes[len(kept):])
		f.Nodes = kept
		for i, r := range f.Results {
			if by := replaced[r]; by != nil {
				f.Results[i] = by
			}
		}
	}
	return nil
}

func findEqual(list []*graph.Node, n *graph.Node) *graph.Node {
	for _, c := range list {
		if sameNode(c, n) && sameOperands(c, n) {
			return c
		}
	}
	return nil
}

func sameOperands(a, b *graph.Node) bool {
	for i, o := range a.Operands {
		if b.Operands[i] != o {
			return false
		}
	}
	return true
}

// sameNode reports whether two nodes are equal but for which values they read: op, attributes, number of operands, result shapes.
func sameNode(a, b *graph.Node) bool {
	if a.Op != b.Op || len(a.Operands) != len(b.Operands) || len(a.Results) != len(b.Results) || len(a.Regions) != 0 || len(b.Regions) != 0 {
		return false
	}
	for i, r := range a.Results {
		if !r.Shape.Equal(b.Results[i].Shape) {
			return false
		}
	}
	return sameAttrs(a.Attrs, b.Attrs)
}

func sameAttrs(a, b graph.Attrs) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Name != b[i].Name || !sameAttr(a[i].Value, b[i].Value) {
			return false
		}
	}
	return true
}

func sameAttr(a, b any) bool {
	switch x := a.(type) {
	case []int:
		y, ok := b.([]int)
		return ok && slicesEqual(x, y)
	case [][2]int:
		y, ok := b.([][2]int)
		return ok && slicesEqual(x, y)
	case graph.Literal:
		y, ok := b.(graph.Literal)
		return ok && x.Splat == y.Splat && bytes.Equal(x.Data, y.Data)
	case float64:
		y, ok := b.(float64)
		return ok && math.Float64bits(x) == math.Float64bits(y)
	}
	return a == b
}

func slicesEqual[T comparable](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

var hashSeed = maphash.MakeSeed()

func valueIDs(f *graph.Func) map[*graph.Value]uint64 {
	ids := make(map[*graph.Value]uint64, len(f.Nodes)+len(f.Params))
	for _, p := range f.Params {
		ids[p.Value] = uint64(len(ids))
	}
	for _, n := range f.Nodes {
		for _, r := range n.Results {
			ids[r] = uint64(len(ids))
		}
	}
	return ids
}

func nodeKey(n *graph.Node, ids map[*graph.Value]uint64) uint64 {
	var h maphash.Hash
	h.SetSeed(hashSeed)
	hashNode(&h, n)
	var b [8]byte
	for _, o := range n.Operands {
		binary.LittleEndian.PutUint64(b[:], ids[o])
		h.Write(b[:])
	}
	return h.Sum64()
}

// hashNode writes what sameNode compares.
func hashNode(h *maphash.Hash, n *graph.Node) {
	num := func(v int) {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], uint64(v))
		h.Write(b[:])
	}
	h.WriteString(string(n.Op))
	num(len(n.Operands))
	for _, r := range n.Results {
		num(int(r.Shape.DType))
		for _, d := range r.Shape.Dimensions {
			num(d)
		}
		num(-1)
	}
	for _, a := range n.Attrs {
		h.WriteString(a.Name)
		switch v := a.Value.(type) {
		case bool:
			if v {
				num(1)
			} else {
				num(0)
			}
		case int:
			num(v)
		case float64:
			num(int(math.Float64bits(v)))
		case string:
			h.WriteString(v)
		case graph.DType:
			num(int(v))
		case []int:
			for _, x := range v {
				num(x)
			}
		case [][2]int:
			for _, x := range v {
				num(x[0])
				num(x[1])
			}
		case graph.Literal:
			h.Write(v.Data)
		default:
			panic(fmt.Sprintf("BUG: attribute %s of %s has a value of type %T", a.Name, n.Op, a.Value))
		}
		num(-2)
	}
}
