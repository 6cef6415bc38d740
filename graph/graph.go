// Package graph is precast's intermediate representation: typed, static-shape, functional.
//
// A Module holds Funcs, the first of which is the entry. A Func is a list of Nodes in topological order over Values; every
// Value has one definition, a Param or a Node's result. Ops are named and constrained as in the StableHLO specification
// (https://github.com/openxla/stablehlo/blob/main/docs/spec.md); the op table in ops.go is the single place that says what
// each op takes, what it infers and what must hold.
//
// The text form (print.go) parses back to an equal module (parse.go) and is the unit of every pass test.
package graph

import (
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
)

// Shape is gomlx's shape: a dtype and static dimensions. Verify refuses dynamic dimensions and tuples.
type Shape = shapes.Shape

// DType is gomlx's element type.
type DType = dtypes.DType

// Kind says where a parameter's value comes from.
type Kind int

const (
	// Input is given at every execution.
	Input Kind = iota
	// Weight is bound once at load; its Param.Name is the checkpoint key.
	Weight
)

// Value is one static-single-assignment value: a parameter or a node's result.
type Value struct {
	Shape Shape
	// Def is the node that computes the value, nil for a parameter.
	Def *Node
	// Index is the position in Def.Results, or in Func.Params for a parameter.
	Index int
	// Param is set for a parameter's value.
	Param *Param
}

// Param is a parameter of a Func.
type Param struct {
	// Name is unique in its Func. For a weight it is the key in the checkpoint ("transformer_blocks.0.attn.to_q.weight").
	Name  string
	Kind  Kind
	Value *Value
	// Donated says that the execution may reuse the argument's memory for a result.
	Donated bool
	// Sharding is nil for a replicated parameter.
	Sharding *Sharding
}

// Sharding places one tensor on the module's mesh: for each tensor axis the mesh axes that split it, major to minor.
type Sharding struct {
	Axes [][]string
}

// Mesh is the logical device mesh of a module; empty for one device.
type Mesh struct {
	Name      string
	AxisNames []string
	AxisSizes []int
}

// Node is one operation.
type Node struct {
	Op       Op
	Operands []*Value
	Results  []*Value
	Attrs    Attrs
	// Regions are the closures of while, sort and if: Funcs whose Params are the region's arguments. A region refers only to its
	// own values (no captures).
	Regions []*Func
	// Scope is the module path that made the node ("transformer_blocks.3.attn"), empty at top level. It is debug information:
	// passes may use it as a hint, never for meaning, and Hash leaves it out.
	Scope string
}

// Func is a function: parameters, nodes in topological order, results.
type Func struct {
	Name    string
	Params  []*Param
	Nodes   []*Node
	Results []*Value
	// ResultNames names the results of the entry function ("sample"); empty or as long as Results.
	ResultNames []string
	// BlockClass is set on a private Func that stands for a class of repeated blocks; a readable label such as
	// "transformer_blocks", derived from the instances' scopes.
	BlockClass string
}

// Module is a compilation unit. Funcs[0] is the entry; the others are private and reached by call nodes.
type Module struct {
	Name  string
	Funcs []*Func
	Mesh  *Mesh
}

// Entry returns the function that execution starts with.
func (m *Module) Entry() *Func { return m.Funcs[0] }

// Func returns the function of that name, or nil.
func (m *Module) Func(name string) *Func {
	for _, f := range m.Funcs {
		if f.Name == name {
			return f
		}
	}
	return nil
}

// NewParam appends a parameter to f and returns its value.
func (f *Func) NewParam(name string, kind Kind, shape Shape) *Value {
	v := &Value{Shape: shape, Index: len(f.Params)}
	p := &Param{Name: name, Kind: kind, Value: v}
	v.Param = p
	f.Params = append(f.Params, p)
	return v
}

// Append adds a node with the given result shapes without checking it; Builder infers and checks.
func (f *Func) Append(op Op, operands []*Value, attrs Attrs, results ...Shape) *Node {
	n := &Node{Op: op, Operands: operands, Attrs: attrs}
	for i, s := range results {
		n.Results = append(n.Results, &Value{Shape: s, Def: n, Index: i})
	}
	f.Nodes = append(f.Nodes, n)
	return n
}
