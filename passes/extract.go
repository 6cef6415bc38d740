package passes

import (
	"fmt"
	"slices"
	"strings"

	"precast/graph"
)

// extract makes a function of each class and replaces its instances by calls.
func (ol *outliner) extract(classes []*class) {
	classes = ol.acyclic(classes)
	if len(classes) == 0 {
		return
	}
	replaced := map[*graph.Value]*graph.Value{}
	callOf := map[*graph.Node]*graph.Node{}
	last := map[*graph.Node]*graph.Node{} // by call: the last of the region's nodes
	for _, c := range classes {
		labels, names := labelsOf(c), []string(nil)
		out := ol.leaving(c)
		if len(out) == 0 {
			continue // nobody reads it
		}
		names = parameterNames(c, labels)
		fn := ol.function(c, labels, names, out)
		ol.m.Funcs = append(ol.m.Funcs, fn)
		for i, r := range c.regions {
			call := &graph.Node{Op: graph.OpCall, Attrs: graph.Attrs(nil).With("callee", fn.Name), Scope: labels[i], Operands: r.externals}
			for k, l := range out {
				old := r.nodes[l.node].Results[l.result]
				v := &graph.Value{Shape: old.Shape, Def: call, Index: k}
				call.Results = append(call.Results, v)
				replaced[old] = v
			}
			for _, n := range r.nodes {
				callOf[n] = call
				if last[call] == nil || ol.at[n] > ol.at[last[call]] {
					last[call] = n
				}
			}
		}
	}
	// A call stands where the last of its nodes stood; what that leaves out of order, TopoSort mends.
	var nodes []*graph.Node
	for _, n := range ol.f.Nodes {
		switch call := callOf[n]; {
		case call == nil:
			nodes = append(nodes, n)
		case last[call] == n:
			nodes = append(nodes, call)
		}
	}
	ol.f.Nodes = nodes
	graph.ReplaceUses(ol.f, replaced)
	if err := ol.f.TopoSort(); err != nil {
		panic("BUG: outline-repeated-blocks: " + err.Error())
	}
}

// place is a result of a region's node, by their indices.
type place struct{ node, result int }

// leaving lists the results that the class's function returns: those that are read outside of some instance.
func (ol *outliner) leaving(c *class) []place {
	leaves := map[place]bool{}
	for _, r := range c.regions {
		in := make(map[*graph.Node]bool, len(r.nodes))
		for _, n := range r.nodes {
			in[n] = true
		}
		for i, n := range r.nodes {
			for j, v := range n.Results {
				if ol.readOutside(v, in) {
					leaves[place{i, j}] = true
				}
			}
		}
	}
	var out []place
	for i, n := range c.regions[0].nodes {
		for j := range n.Results {
			if leaves[place{i, j}] {
				out = append(out, place{i, j})
			}
		}
	}
	return out
}

// function makes the class's function from its first region.
func (ol *outliner) function(c *class, labels, names []string, out []place) *graph.Func {
	first := c.regions[0]
	fn := &graph.Func{Name: ol.funcName(labels), BlockClass: blockClass(labels)}
	values := map[*graph.Value]*graph.Value{}
	for i, v := range first.externals {
		kind := graph.Weight
		if !weightEverywhere(c, i) {
			kind = graph.Input
		}
		values[v] = fn.NewParam(names[i], kind, v.Shape)
		values[v].Param.Sharding = sharding(v.Param)
	}
	for _, n := range first.nodes {
		for _, o := range n.Operands {
			if values[o] == nil {
				appendCopy(fn, o.Def, values).Scope = ""
			}
		}
		appendCopy(fn, n, values).Scope = relativeScope(n.Scope, labels[0])
	}
	for _, l := range out {
		fn.Results = append(fn.Results, values[first.nodes[l.node].Results[l.result]])
	}
	return fn
}

// weightEverywhere reports whether external i is a weight of the entry for each instance.
func weightEverywhere(c *class, i int) bool {
	return !slices.ContainsFunc(c.regions, func(r *matched) bool {
		p := r.externals[i].Param
		return p == nil || p.Kind != graph.Weight
	})
}

// labelsOf names the instances: by the module path that proposed them, else by what the keys of their weights have in common.
func labelsOf(c *class) []string {
	labels := make([]string, len(c.regions))
	for k, r := range c.regions {
		if labels[k] = r.label; labels[k] != "" {
			continue
		}
		var common []string
		found := false
		for i, v := range r.externals {
			if !weightEverywhere(c, i) || sharedKey(c, i) {
				continue
			}
			words := strings.Split(strings.TrimPrefix(v.Param.Name, PreparedPrefix), ".")
			words = words[:len(words)-1]
			if !found {
				common, found = words, true
				continue
			}
			n := 0
			for n < min(len(common), len(words)) && common[n] == words[n] {
				n++
			}
			common = common[:n]
		}
		labels[k] = strings.Join(common, ".")
	}
	return labels
}

// sharedKey reports whether external i is the same weight for each instance.
func sharedKey(c *class, i int) bool {
	return !slices.ContainsFunc(c.regions, func(r *matched) bool { return r.externals[i] != c.regions[0].externals[i] })
}

// parameterNames names the function's parameters. A weight has its key within the block ("attn.to_q.weight") where that is the same in
// every instance; other names count, so that no name depends on which instance came first.
func parameterNames(c *class, labels []string) []string {
	names := make([]string, len(c.regions[0].externals))
	used := map[string]bool{}
	for i := range names {
		name := fmt.Sprintf("arg%d", i)
		if weightEverywhere(c, i) {
			name = relativeName(c.regions[0].externals[i].Param.Name, labels[0])
			for k, r := range c.regions {
				if relativeName(r.externals[i].Param.Name, labels[k]) != name {
					name = fmt.Sprintf("weight%d", i)
					break
				}
			}
		}
		for base, k := name, 2; used[name]; k++ {
			name = fmt.Sprintf("%s#%d", base, k)
		}
		used[name] = true
		names[i] = name
	}
	return names
}

// blockClass is the readable name of a class: the end of its instances' paths that is common to all, without numbers, or "block".
func blockClass(labels []string) string {
	var common []string
	for k, label := range labels {
		var words []string
		for p := range strings.SplitSeq(label, ".") {
			if p != "" && !isNumber(p) {
				words = append(words, p)
			}
		}
		if k == 0 {
			common = words
			continue
		}
		n := 0
		for n < min(len(common), len(words)) && common[len(common)-1-n] == words[len(words)-1-n] {
			n++
		}
		common = common[len(common)-n:]
	}
	if len(common) == 0 {
		return "block"
	}
	return strings.Join(common, ".")
}

func (ol *outliner) funcName(labels []string) string {
	base := strings.Map(func(r rune) rune {
		if r == '.' || r == '-' {
			return '_'
		}
		return r
	}, blockClass(labels))
	name := base
	for k := 2; ol.m.Func(name) != nil; k++ {
		name = fmt.Sprintf("%s_%d", base, k)
	}
	return name
}

func isNumber(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// relativeName is a weight's key within the block.
func relativeName(key, scope string) string {
	rest, prepared := strings.CutPrefix(key, PreparedPrefix)
	if scope != "" {
		rest = strings.TrimPrefix(rest, scope+".")
	}
	if prepared {
		return PreparedPrefix + rest
	}
	return rest
}

// relativeScope is a module path within the block; empty for a node that an instance took over from elsewhere.
func relativeScope(s, scope string) string {
	if rest, ok := strings.CutPrefix(s, scope+"."); ok && scope != "" {
		return rest
	}
	return ""
}
