package lower

import "precast/graph"

// mesh writes the module's mesh: sdy.mesh @mesh = <["x"=2, "y"=2]>.
func (w *writer) mesh() {
	m := w.m.Mesh
	if m == nil {
		return
	}
	w.newline()
	w.str("sdy.mesh @" + w.meshName() + " = <[")
	for i, axis := range m.AxisNames {
		if i > 0 {
			w.str(", ")
		}
		w.strs(quote(axis), "=", m.AxisSizes[i])
	}
	w.str("]>")
}

func (w *writer) meshName() string {
	if w.m.Mesh.Name == "" {
		return "mesh"
	}
	return symbol(w.m.Mesh.Name)
}

// sharding writes #sdy.sharding<@mesh, [{"x"}, {}]>: one list of mesh axes for each axis of the tensor.
func (w *writer) sharding(s *graph.Sharding) {
	w.str("#sdy.sharding<@" + w.meshName() + ", [")
	for i, axes := range s.Axes {
		if i > 0 {
			w.str(", ")
		}
		w.char('{')
		for j, a := range axes {
			if j > 0 {
				w.str(", ")
			}
			w.str(quote(a))
		}
		w.char('}')
	}
	w.str("]>")
}
