package graph

import "slices"

// Attrs are a node's static attributes, kept sorted by name so that printing and hashing need no map order.
// A value is one of: bool, int, float64, string, DType, []int, [][2]int, Literal.
type Attrs []Attr

// Attr is one named attribute.
type Attr struct {
	Name  string
	Value any
}

// Literal is a constant's data: little-endian elements in row-major order. A splat holds one element for the whole shape.
type Literal struct {
	Data  []byte
	Splat bool
}

// With returns attrs with name set to value; the receiver is not changed.
func (a Attrs) With(name string, value any) Attrs {
	out := slices.Clone(a)
	i, found := slices.BinarySearchFunc(out, name, func(x Attr, n string) int {
		switch {
		case x.Name < n:
			return -1
		case x.Name > n:
			return 1
		}
		return 0
	})
	if found {
		out[i].Value = value
		return out
	}
	return slices.Insert(out, i, Attr{name, value})
}

// Get returns the attribute's value, nil when absent.
func (a Attrs) Get(name string) any {
	for _, x := range a {
		if x.Name == name {
			return x.Value
		}
	}
	return nil
}

// Int returns an int attribute, 0 when absent.
func (a Attrs) Int(name string) int { v, _ := a.Get(name).(int); return v }

// Ints returns an []int attribute, nil when absent.
func (a Attrs) Ints(name string) []int { v, _ := a.Get(name).([]int); return v }

// Pairs returns a [][2]int attribute, nil when absent.
func (a Attrs) Pairs(name string) [][2]int { v, _ := a.Get(name).([][2]int); return v }

// String returns a string attribute, "" when absent.
func (a Attrs) String(name string) string { v, _ := a.Get(name).(string); return v }

// Bool returns a bool attribute, false when absent.
func (a Attrs) Bool(name string) bool { v, _ := a.Get(name).(bool); return v }

// Float returns a float64 attribute, 0 when absent.
func (a Attrs) Float(name string) float64 { v, _ := a.Get(name).(float64); return v }
