package passes

import "precast/graph"

// The rule of --regions auto, on the module after the passes. ARCHITECTURE.md has the figures that it was made from.
const (
	// autoRepeats is how often some class must run.
	autoRepeats = 4
	// autoNodes is how many nodes the functions must leave out of what is compiled, all classes together.
	autoNodes = 2000
)

// AutoSplits reports whether a module's blocks should be programs of their own (see Split) rather than functions of one program: where some class
// runs at least autoRepeats times, and compiling each class once leaves out autoNodes nodes or more. Below that a program more costs what it saves.
func AutoSplits(m *graph.Module) bool {
	most, saved := 0, 0
	for name, n := range Repeats(m) {
		saved += (n - 1) * len(m.Func(name).Nodes)
		most = max(most, n)
	}
	return most >= autoRepeats && saved >= autoNodes
}
