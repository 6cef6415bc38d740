package graph

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gomlx/compute/dtypes"
)

// Info is what the op table says about one operation.
type Info struct {
	Op Op
	// Operands in order. Where Variadic is set the last entry stands for any number of operands from MinOperands on.
	Operands []OperandInfo
	Variadic bool
	// MinOperands is the least number of operands; len(Operands) when the op is not variadic.
	MinOperands int
	// Attrs are the attributes that the op takes, sorted by name.
	Attrs []AttrInfo
	// Regions is the number of regions.
	Regions int
	// Constraints are the numbered rules. Where StableHLO has the op the numbers are those of its specification; rules of ours
	// continue after the last number that the specification uses.
	Constraints []Constraint

	// NeedsResult says that the result is not derivable from operands and attributes: Infer wants it and checks it.
	NeedsResult bool
	// Elementwise: each result element depends on the operand elements at its own index alone (scalar bounds and predicates aside).
	Elementwise bool
	// Commutative: the two operands may be swapped.
	Commutative bool
	// SideEffectFree: a node whose results are unused can go, and one with equal operands and attributes computes equal values.
	SideEffectFree bool

	// resultDims and resultType number the constraints that a result breaks when it differs from the inferred one in dimensions
	// or in element type.
	resultDims, resultType string
	infer                  func(s *site) ([]Shape, error)
}

// OperandInfo describes one operand. Its element type is constraint I1 for the first operand, I2 for the second ...; variadic
// operands share the number of the last.
type OperandInfo struct {
	Name string
	Type TypeClass
	// Scalar wants rank 0.
	Scalar bool
}

// TypeClass is a set of element types.
type TypeClass uint8

// The classes of element types, to be combined with |.
const (
	BoolType TypeClass = 1 << iota
	SignedIntType
	UnsignedIntType
	FloatType
	ComplexType

	IntType = SignedIntType | UnsignedIntType
	AnyType = BoolType | IntType | FloatType | ComplexType
)

// ClassOf is the class of an element type, 0 for one that the IR does not have.
func ClassOf(d DType) TypeClass {
	switch {
	case DTypeBits(d) == 0:
		return 0
	case d == dtypes.Bool:
		return BoolType
	case d.IsComplex():
		return ComplexType
	case d.IsFloat():
		return FloatType
	case d.IsUnsigned():
		return UnsignedIntType
	}
	return SignedIntType
}

// Has says whether d is in the class.
func (c TypeClass) Has(d DType) bool { return c&ClassOf(d) != 0 }

// String lists the classes ("signed integer or float").
func (c TypeClass) String() string {
	if c == AnyType {
		return "any type"
	}
	var parts []string
	for i, name := range [...]string{"bool", "signed integer", "unsigned integer", "float", "complex"} {
		if c&(1<<i) != 0 {
			parts = append(parts, name)
		}
	}
	return strings.Join(parts, " or ")
}

// AttrKind is the Go type of an attribute's value.
type AttrKind uint8

// The kinds of attribute values.
const (
	AttrBool    AttrKind = iota + 1 // bool
	AttrInt                         // int
	AttrFloat                       // float64
	AttrString                      // string
	AttrDType                       // DType
	AttrInts                        // []int
	AttrPairs                       // [][2]int
	AttrLiteral                     // Literal
)

// String names the Go type.
func (k AttrKind) String() string {
	return [...]string{"invalid", "bool", "int", "float64", "string", "DType", "[]int", "[][2]int", "Literal"}[min(k, AttrLiteral)]
}

// KindOf is the kind of an attribute's value, 0 for a Go type that no attribute may have.
func KindOf(value any) AttrKind {
	switch value.(type) {
	case bool:
		return AttrBool
	case int:
		return AttrInt
	case float64:
		return AttrFloat
	case string:
		return AttrString
	case DType:
		return AttrDType
	case []int:
		return AttrInts
	case [][2]int:
		return AttrPairs
	case Literal:
		return AttrLiteral
	}
	return 0
}

// AttrInfo describes one attribute.
type AttrInfo struct {
	Name string
	Kind AttrKind
	// Required attributes have no default.
	Required bool
	// Default is the value of an absent attribute, nil where it depends on the operands: then Fill says how.
	Default any
	// Fill is the one element that an absent list attribute is filled with, one a (spatial) dimension: 1 for strides and
	// dilations, 0 for padding. It counts only where Default is nil and Required is false.
	Fill int
	// OneOf lists the legal values of a string.
	OneOf []string

	spatial bool // filled for rank - 2 dimensions, not rank
}

// Constraint is one numbered rule of an op ("C7").
type Constraint struct {
	Number string
	Text   string
}

// ConstraintError says which numbered constraint was broken, how.
type ConstraintError struct {
	Op     Op
	Number string
	Detail string
}

// Error reads "dot_general C7: found ..., wanted ...".
func (e *ConstraintError) Error() string { return string(e.Op) + " " + e.Number + ": " + e.Detail }

// GeneralConstraints hold for every op, beside those of its own in Info.Constraints. I1, I2 ... (element type and rank of an
// operand) are numbered by operand.
var GeneralConstraints = []Constraint{
	{"A1", "the number of operands is that of the op table"},
	{"A2", "every attribute is one the op takes, and every required one is there"},
	{"A3", "an attribute's value has the Go type of the op table"},
	{"A4", "a string attribute has one of its legal values"},
	{"A5", "attributes are sorted by name, each name once"},
	{"A6", "the number of regions is that of the op table, and neither they nor a callee have nil parameters or results"},
	{"R1", "the number of results is that which the op gives"},
	{"R2", "an op whose result is not derivable is given the wanted result"},
	{"R3", "a result has no negative dimension and at most 2^48 elements"},
}

var opTable = func() map[Op]*Info {
	m := map[Op]*Info{}
	for i := range opList {
		o := &opList[i]
		if !o.Variadic {
			o.MinOperands = len(o.Operands)
		}
		slices.SortFunc(o.Attrs, func(a, b AttrInfo) int { return strings.Compare(a.Name, b.Name) })
		m[o.Op] = o
	}
	return m
}()

// OpInfo returns the op's entry in the table. The result must not be changed.
func OpInfo(op Op) (*Info, bool) {
	o, ok := opTable[op]
	return o, ok
}

// Ops lists the operations, sorted.
func Ops() []Op {
	ops := make([]Op, 0, len(opList))
	for i := range opList {
		ops = append(ops, opList[i].Op)
	}
	slices.Sort(ops)
	return ops
}

// Constraint returns the op's constraint of that number, among its own and the general ones.
func (o *Info) Constraint(number string) (Constraint, bool) {
	for _, list := range [][]Constraint{o.Constraints, GeneralConstraints} {
		for _, c := range list {
			if c.Number == number {
				return c, true
			}
		}
	}
	for i, in := range o.Operands {
		if number == fmt.Sprintf("I%d", i+1) {
			text := in.Name + " is of " + in.Type.String()
			if in.Scalar {
				text += ", rank 0"
			}
			return Constraint{number, text}, true
		}
	}
	return Constraint{}, false
}

func (o *Info) attr(name string) *AttrInfo {
	i, ok := slices.BinarySearchFunc(o.Attrs, name, func(a AttrInfo, n string) int { return cmp.Compare(a.Name, n) })
	if !ok {
		return nil
	}
	return &o.Attrs[i]
}

// operand describes operand i.
func (o *Info) operand(i int) (OperandInfo, int) {
	i = min(i, len(o.Operands)-1)
	return o.Operands[i], i
}

// Resolve returns attrs with every absent optional attribute at its default, so that a reader (lowering, a backend, a pass)
// needs to know none of them. An attribute list that is complete is returned as it is; an unknown op's too.
func Resolve(op Op, attrs Attrs, operands []Shape) Attrs {
	o, ok := opTable[op]
	if !ok {
		return attrs
	}
	out := attrs
	for i := range o.Attrs {
		a := &o.Attrs[i]
		if a.Required || out.Get(a.Name) != nil {
			continue
		}
		if a.Default != nil {
			out = out.With(a.Name, a.Default)
			continue
		}
		n := 0
		if len(operands) > 0 {
			n = operands[0].Rank()
		}
		if a.spatial {
			n = max(n-2, 0)
		}
		switch a.Kind {
		case AttrInts:
			list := make([]int, n)
			for i := range list {
				list[i] = a.Fill
			}
			out = out.With(a.Name, list)
		case AttrPairs:
			list := make([][2]int, n)
			for i := range list {
				list[i] = [2]int{a.Fill, a.Fill}
			}
			out = out.With(a.Name, list)
		}
	}
	return out
}

// FullAttrs is Resolve for a node.
func (n *Node) FullAttrs() Attrs { return Resolve(n.Op, n.Attrs, shapesOf(n.Operands)) }

func shapesOf(values []*Value) []Shape {
	out := make([]Shape, len(values))
	for i, v := range values {
		out[i] = v.Shape
	}
	return out
}
