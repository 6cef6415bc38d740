package passes

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math"
	"slices"

	"precast/graph"
)

// cse replaces a node by an earlier equal one: same op, operands (in either order where the op commutes), attributes and result shapes.
// Nodes with regions, rng_bit_generator and optimization_barrier, which keeps computations apart on purpose, are left alone, and so are nodes
// inside regions. One walk suffices: operands are replaced before their users are looked at.
func cse(m *graph.Module, _ *Options) error {
	for _, f := range m.Funcs {
		seen := make(map[uint64][]*graph.Node, len(f.Nodes))
		ids := valueIDs(f)
		replaced := map[*graph.Value]*graph.Value{}
		kept := make([]*graph.Node, 0, len(f.Nodes))
		for _, n := range f.Nodes {
			relink(n, replaced)
			if len(n.Regions) > 0 || n.Op == graph.OpRngBits || n.Op == graph.OpBarrier {
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
		f.Nodes = kept
		graph.ReplaceUses(f, replaced)
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
	return slices.Equal(a.Operands, b.Operands) ||
		commutes(a) && a.Operands[0] == b.Operands[1] && a.Operands[1] == b.Operands[0]
}

func commutes(n *graph.Node) bool {
	info, ok := graph.OpInfo(n.Op)
	return ok && info.Commutative && len(n.Operands) == 2
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
	return sameAttrs(a.FullAttrs(), b.FullAttrs())
}

// sameAttrs compares attributes; an absent one is its default.
func sameAttrs(a, b graph.Attrs) bool {
	return slices.EqualFunc(a, b, func(x, y graph.Attr) bool { return x.Name == y.Name && graph.EqualAttr(x.Value, y.Value) })
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
	operands := make([]uint64, len(n.Operands))
	for i, o := range n.Operands {
		operands[i] = ids[o]
	}
	if commutes(n) {
		slices.Sort(operands)
	}
	for _, id := range operands {
		binary.LittleEndian.PutUint64(b[:], id)
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
	for _, a := range n.FullAttrs() {
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
