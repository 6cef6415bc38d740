package passes

import "precast/graph"

// usersOf lists the nodes that read each value, in order; a node that reads a value twice is listed once.
func usersOf(f *graph.Func) map[*graph.Value][]*graph.Node {
	users := make(map[*graph.Value][]*graph.Node, len(f.Nodes))
	for _, n := range f.Nodes {
		for _, o := range n.Operands {
			if list := users[o]; len(list) == 0 || list[len(list)-1] != n {
				users[o] = append(list, n)
			}
		}
	}
	return users
}
