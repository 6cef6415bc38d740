package graph

import (
	"bytes"
	"fmt"
	"math"
	"slices"
)

// Equal says whether two modules are the same in everything the text form holds, scopes and names included. Values are
// compared by their place, not by identity.
func Equal(a, b *Module) bool { return Diff(a, b) == "" }

// Diff describes the first difference between two modules ("" when there is none): where it is, what a has, what b has. Modules
// that Verify would refuse may be compared, too.
func Diff(a, b *Module) string {
	switch {
	case a == nil || b == nil:
		if a == b {
			return ""
		}
		return "one module is nil"
	case a.Name != b.Name:
		return fmt.Sprintf("module: name %q against %q", a.Name, b.Name)
	case len(a.Funcs) != len(b.Funcs):
		return fmt.Sprintf("module: %d funcs against %d", len(a.Funcs), len(b.Funcs))
	case (a.Mesh == nil) != (b.Mesh == nil):
		return "module: one has a mesh, the other has none"
	case a.Mesh != nil && (a.Mesh.Name != b.Mesh.Name || !slices.Equal(a.Mesh.AxisNames, b.Mesh.AxisNames) || !slices.Equal(a.Mesh.AxisSizes, b.Mesh.AxisSizes)):
		return fmt.Sprintf("module: mesh %v against %v", *a.Mesh, *b.Mesh)
	}
	for i := range a.Funcs {
		if d := DiffFunc(a.Funcs[i], b.Funcs[i]); d != "" {
			return d
		}
	}
	return ""
}

// DiffFunc is Diff for two funcs (or regions).
func DiffFunc(a, b *Func) string {
	if a == nil || b == nil {
		if a == b {
			return ""
		}
		return "one func is nil"
	}
	where := "func @" + a.Name
	switch {
	case a.Name != b.Name:
		return fmt.Sprintf("%s: name against %q", where, b.Name)
	case a.BlockClass != b.BlockClass:
		return fmt.Sprintf("%s: block class %q against %q", where, a.BlockClass, b.BlockClass)
	case len(a.Params) != len(b.Params):
		return fmt.Sprintf("%s: %d parameters against %d", where, len(a.Params), len(b.Params))
	case len(a.ResultNames) != len(b.ResultNames) || !slices.Equal(a.ResultNames, b.ResultNames):
		return fmt.Sprintf("%s: result names %q against %q", where, a.ResultNames, b.ResultNames)
	}
	ids := [2]map[*Value]int{valueNumbers(a), valueNumbers(b)}
	same := func(x, y *Value) bool {
		i, iok := ids[0][x]
		j, jok := ids[1][y]
		return i == j && iok == jok
	}
	for i, p := range a.Params {
		if q := b.Params[i]; !sameParam(p, q) {
			return fmt.Sprintf("%s: parameter %d: `%s` against `%s`", where, i, formatParam(p), formatParam(q))
		}
	}
	for i, n := range a.Nodes {
		if i >= len(b.Nodes) {
			return fmt.Sprintf("%s: node %d: `%s` against none", where, i, a.FormatNode(n))
		}
		o := b.Nodes[i]
		if n.Op != o.Op || n.Scope != o.Scope || len(n.Regions) != len(o.Regions) || !sameAttrs(n.Attrs, o.Attrs) ||
			!slices.EqualFunc(n.Operands, o.Operands, same) || !slices.EqualFunc(n.Results, o.Results, func(x, y *Value) bool {
			return sameShape(x.Shape, y.Shape) && x.Index == y.Index
		}) {
			return fmt.Sprintf("%s: node %d: `%s` against `%s`", where, i, a.FormatNode(n), b.FormatNode(o))
		}
		for k := range n.Regions {
			if d := DiffFunc(n.Regions[k], o.Regions[k]); d != "" {
				return fmt.Sprintf("%s: node %d, region %d: %s", where, i, k, d)
			}
		}
	}
	if len(b.Nodes) > len(a.Nodes) {
		n := len(a.Nodes)
		return fmt.Sprintf("%s: node %d: none against `%s`", where, n, b.FormatNode(b.Nodes[n]))
	}
	if !slices.EqualFunc(a.Results, b.Results, same) {
		return fmt.Sprintf("%s: results differ", where)
	}
	return ""
}

func formatParam(p *Param) string {
	pr := &printer{}
	pr.param(p)
	return string(pr.b[len("%? = "):])
}

func sameParam(p, q *Param) bool {
	return p.Name == q.Name && p.Kind == q.Kind && p.Donated == q.Donated && sameShape(p.Value.Shape, q.Value.Shape) &&
		sameSharding(p.Sharding, q.Sharding)
}

func sameSharding(s, t *Sharding) bool {
	if s == nil || t == nil {
		return s == t
	}
	return slices.EqualFunc(s.Axes, t.Axes, slices.Equal[[]string])
}

// sameAttrs compares attributes; floats by their bits, nil lists as empty ones.
func sameAttrs(a, b Attrs) bool {
	return slices.EqualFunc(a, b, func(x, y Attr) bool { return x.Name == y.Name && EqualAttr(x.Value, y.Value) })
}

// EqualAttr says whether two attribute values are the same: floats by their bits, lists and literals by their elements.
func EqualAttr(x, y any) bool {
	switch v := x.(type) {
	case bool:
		w, ok := y.(bool)
		return ok && v == w
	case int:
		w, ok := y.(int)
		return ok && v == w
	case float64:
		w, ok := y.(float64)
		return ok && math.Float64bits(v) == math.Float64bits(w)
	case string:
		w, ok := y.(string)
		return ok && v == w
	case DType:
		w, ok := y.(DType)
		return ok && v == w
	case []int:
		w, ok := y.([]int)
		return ok && slices.Equal(v, w)
	case [][2]int:
		w, ok := y.([][2]int)
		return ok && slices.Equal(v, w)
	case Literal:
		w, ok := y.(Literal)
		return ok && v.Splat == w.Splat && bytes.Equal(v.Data, w.Data)
	}
	return false
}
