package graph

import "fmt"

// Builder appends nodes to a Func: it infers the results, checks every constraint of the op table and sets the scope.
type Builder struct {
	// Func receives the nodes.
	Func *Func
	// Module resolves the callee of a call; nil where no call is made.
	Module *Module
	// Scope is the module path that new nodes get.
	Scope string
}

// NewModule returns a module of that name with an empty entry function "main".
func NewModule(name string) *Module {
	return &Module{Name: name, Funcs: []*Func{{Name: "main"}}}
}

// NewBuilder returns a Builder over f, a Func of m or a region in one; m may be nil where no call is made.
func NewBuilder(m *Module, f *Func) *Builder { return &Builder{Func: f, Module: m} }

// Op appends a node, with the defaults of absent attributes filled in. want is the wanted result of an op whose result is not
// derivable; see Infer. Nothing is appended when there is an error.
func (b *Builder) Op(op Op, operands []*Value, attrs Attrs, want ...Shape) (*Node, error) {
	return b.OpWithRegions(op, operands, attrs, nil, want...)
}

// OpWithRegions is Op for sort (comparator), while (cond, body) and if (true, false).
func (b *Builder) OpWithRegions(op Op, operands []*Value, attrs Attrs, regions []*Func, want ...Shape) (*Node, error) {
	shapes := make([]Shape, len(operands))
	for i, v := range operands {
		if v == nil {
			return nil, fmt.Errorf("%s: operand %d is nil, wanted a value", op, i)
		}
		shapes[i] = v.Shape
	}
	out, err := Infer(op, shapes, attrs, regions, b.callee(op, attrs), want...)
	if err != nil {
		if b.Scope != "" {
			err = fmt.Errorf("%s: %w", b.Scope, err)
		}
		return nil, err
	}
	n := b.Func.Append(op, operands, Resolve(op, attrs, shapes), out...)
	n.Regions = regions
	n.Scope = b.Scope
	return n, nil
}

func (b *Builder) callee(op Op, attrs Attrs) *Func {
	if op != OpCall || b.Module == nil {
		return nil
	}
	return b.Module.callee(attrs.String("callee"))
}

// callee returns the private function of that name, nil for the entry and for none.
func (m *Module) callee(name string) *Func {
	for i, f := range m.Funcs {
		if i > 0 && f.Name == name {
			return f
		}
	}
	return nil
}

// Call appends a call of f, which must be a private function of the Builder's module.
func (b *Builder) Call(f *Func, operands ...*Value) (*Node, error) {
	return b.Op(OpCall, operands, Attrs{{"callee", f.Name}})
}

// Apply appends an op that has one result and no attributes (elementwise ops, select, clamp, reshape and convert with want) and
// returns the result.
func (b *Builder) Apply(op Op, operands []*Value, want ...Shape) (*Value, error) {
	n, err := b.Op(op, operands, nil, want...)
	if err != nil {
		return nil, err
	}
	if len(n.Results) != 1 {
		return nil, fmt.Errorf("%s: found %d results, wanted 1: use Op", op, len(n.Results))
	}
	return n.Results[0], nil
}

// Constant appends a constant of that shape.
func (b *Builder) Constant(shape Shape, value Literal) (*Value, error) {
	n, err := b.Op(OpConstant, nil, Attrs{{"value", value}}, shape)
	if err != nil {
		return nil, err
	}
	return n.Results[0], nil
}

// Splat appends a constant whose every element is value, rounded to the shape's element type; see NewLiteral.
func (b *Builder) Splat(shape Shape, value float64) (*Value, error) {
	l, err := NewSplat(shape.DType, value)
	if err != nil {
		return nil, err
	}
	return b.Constant(shape, l)
}
