package graph

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// WriteDOT writes a module for Graphviz (https://graphviz.org/doc/info/lang.html): one cluster a func and, inside, one a module
// path (scope), nested as the paths are. Nodes are labelled with op and result types, edges run from definitions to uses. The
// same module gives the same bytes.
func WriteDOT(w io.Writer, m *Module) error {
	d := &dotWriter{w: bufio.NewWriter(w), dirs: map[string]*dotDir{}}
	fmt.Fprintf(d.w, "digraph %s {\n  node [shape=box, fontname=monospace];\n", strconv.Quote(m.Name))
	for i, f := range m.Funcs {
		d.fun(fmt.Sprintf("f%d", i), f, "@"+f.Name)
	}
	fmt.Fprintln(d.w, "}")
	return d.w.Flush()
}

// dotDir is one level of the module path with what lies in it.
type dotDir struct {
	name  string
	subs  []*dotDir
	lines []string
}

type dotWriter struct {
	w        *bufio.Writer
	clusters int
	dirs     map[string]*dotDir // by path, in the func at hand
}

func (d *dotWriter) fun(prefix string, f *Func, label string) {
	outer := d.dirs
	root := &dotDir{name: label}
	d.dirs = map[string]*dotDir{"": root}
	ids := valueNumbers(f)
	name := func(v *Value) string {
		if v.Def == nil {
			return fmt.Sprintf("%s_v%d", prefix, ids[v])
		}
		return fmt.Sprintf("%s_v%d", prefix, ids[v.Def.Results[0]])
	}
	var edges []string
	for _, p := range f.Params {
		kind, shape := "input", "ellipse"
		if p.Kind == Weight {
			kind, shape = "weight", "cylinder"
		}
		text := strconv.Quote(fmt.Sprintf("%s %s\n%s", kind, p.Name, ShapeString(p.Value.Shape)))
		root.lines = append(root.lines, fmt.Sprintf("%s [shape=%s, label=%s];", name(p.Value), shape, text))
	}
	type region struct {
		prefix, label string
		f             *Func
	}
	var regions []region
	for i, n := range f.Nodes {
		id := fmt.Sprintf("%s_n%d", prefix, i)
		if len(n.Results) > 0 {
			id = name(n.Results[0])
		}
		types := strings.Trim(shapeList(shapesOf(n.Results)), "()")
		text := string(n.Op)
		if n.Op == OpCall {
			text += " @" + n.Attrs.String("callee")
		}
		dir := d.dir(n.Scope)
		dir.lines = append(dir.lines, fmt.Sprintf("%s [label=%s];", id, strconv.Quote(text+"\n"+types)))
		for _, v := range n.Operands {
			edges = append(edges, fmt.Sprintf("%s -> %s;", name(v), id))
		}
		for k, r := range n.Regions {
			regions = append(regions, region{fmt.Sprintf("%s_n%dr%d", prefix, i, k), fmt.Sprintf("region %d of %s", k, n.Op), r})
			edges = append(edges, fmt.Sprintf("%s -> %s_n%dr%d_result [style=dashed, dir=none];", id, prefix, i, k))
		}
	}
	label = "result"
	for i, r := range f.Results {
		edges = append(edges, fmt.Sprintf("%s -> %s_result;", name(r), prefix))
		if i < len(f.ResultNames) {
			label += "\n" + f.ResultNames[i]
		}
	}
	root.lines = append(root.lines, fmt.Sprintf("%s_result [shape=ellipse, label=%s];", prefix, strconv.Quote(label)))
	d.write(root, "  ")
	for _, e := range edges {
		fmt.Fprintf(d.w, "  %s\n", e)
	}
	for _, r := range regions {
		d.fun(r.prefix, r.f, r.label)
	}
	d.dirs = outer
}

// dir returns the level of a scope and makes those above it.
func (d *dotWriter) dir(scope string) *dotDir {
	if dir, ok := d.dirs[scope]; ok {
		return dir
	}
	parent, name := "", scope
	if i := strings.LastIndexByte(scope, '.'); i >= 0 {
		parent, name = scope[:i], scope[i+1:]
	}
	up := d.dir(parent)
	dir := &dotDir{name: name}
	up.subs = append(up.subs, dir)
	d.dirs[scope] = dir
	return dir
}

func (d *dotWriter) write(dir *dotDir, indent string) {
	fmt.Fprintf(d.w, "%ssubgraph cluster_%d {\n%s  label=%s;\n", indent, d.clusters, indent, strconv.Quote(dir.name))
	d.clusters++
	for _, l := range dir.lines {
		fmt.Fprintf(d.w, "%s  %s\n", indent, l)
	}
	for _, s := range dir.subs {
		d.write(s, indent+"  ")
	}
	fmt.Fprintf(d.w, "%s}\n", indent)
}

// The JSON form is for tools that read, not for parsing back: literals of many elements are given by their size alone.
type (
	jsonModule struct {
		Name  string     `json:"name"`
		Mesh  *jsonMesh  `json:"mesh,omitempty"`
		Funcs []jsonFunc `json:"funcs"`
	}
	jsonMesh struct {
		Name string     `json:"name"`
		Axes []jsonAxis `json:"axes"`
	}
	jsonAxis struct {
		Name string `json:"name"`
		Size int    `json:"size"`
	}
	jsonFunc struct {
		Name       string       `json:"name,omitempty"`
		BlockClass string       `json:"block_class,omitempty"`
		Params     []jsonParam  `json:"params"`
		Nodes      []jsonNode   `json:"nodes"`
		Results    []jsonResult `json:"results"`
	}
	jsonParam struct {
		ID       int        `json:"id"`
		Name     string     `json:"name"`
		Kind     string     `json:"kind"`
		Type     string     `json:"type"`
		Donated  bool       `json:"donated,omitempty"`
		Sharding [][]string `json:"sharding,omitempty"`
	}
	jsonNode struct {
		Op       Op             `json:"op"`
		Operands []int          `json:"operands"`
		Results  []jsonResult   `json:"results"`
		Attrs    map[string]any `json:"attrs,omitempty"`
		Regions  []jsonFunc     `json:"regions,omitempty"`
		Scope    string         `json:"scope,omitempty"`
	}
	jsonResult struct {
		ID   int    `json:"id"`
		Name string `json:"name,omitempty"`
		Type string `json:"type"`
	}
)

// WriteJSON writes a verified module as one JSON object: funcs with parameters, nodes and results; values by their number in the
// func (as in the text form), types as in the text form ("f32[2,3]"). Attributes are JSON values, element types and literals
// strings of the text form; a literal of more than 32 elements is {"bytes": N, "splat": false}. It is one line. The same module gives the same
// bytes.
func WriteJSON(w io.Writer, m *Module) error {
	out := jsonModule{Name: m.Name}
	if m.Mesh != nil {
		out.Mesh = &jsonMesh{Name: m.Mesh.Name, Axes: []jsonAxis{}}
		for i, a := range m.Mesh.AxisNames {
			out.Mesh.Axes = append(out.Mesh.Axes, jsonAxis{a, m.Mesh.AxisSizes[i]})
		}
	}
	for _, f := range m.Funcs {
		out.Funcs = append(out.Funcs, toJSON(f))
	}
	b := bufio.NewWriter(w)
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(out); err != nil {
		return err
	}
	return b.Flush()
}

func toJSON(f *Func) jsonFunc {
	ids := valueNumbers(f)
	out := jsonFunc{
		Name: f.Name, BlockClass: f.BlockClass,
		Params: make([]jsonParam, 0, len(f.Params)), Nodes: make([]jsonNode, 0, len(f.Nodes)), Results: make([]jsonResult, 0, len(f.Results)),
	}
	for _, p := range f.Params {
		j := jsonParam{ID: ids[p.Value], Name: p.Name, Kind: "input", Type: ShapeString(p.Value.Shape), Donated: p.Donated}
		if p.Kind == Weight {
			j.Kind = "weight"
		}
		if p.Sharding != nil {
			j.Sharding = make([][]string, len(p.Sharding.Axes))
			for i, axes := range p.Sharding.Axes {
				j.Sharding[i] = append([]string{}, axes...)
			}
		}
		out.Params = append(out.Params, j)
	}
	for _, n := range f.Nodes {
		j := jsonNode{Op: n.Op, Operands: make([]int, 0, len(n.Operands)), Results: make([]jsonResult, 0, len(n.Results)), Scope: n.Scope}
		for _, v := range n.Operands {
			j.Operands = append(j.Operands, ids[v])
		}
		for _, r := range n.Results {
			j.Results = append(j.Results, jsonResult{ID: ids[r], Type: ShapeString(r.Shape)})
		}
		if len(n.Attrs) > 0 {
			j.Attrs = make(map[string]any, len(n.Attrs)) // the encoder sorts the keys
		}
		for _, a := range n.Attrs {
			j.Attrs[a.Name] = attrJSON(n, a.Value)
		}
		for _, r := range n.Regions {
			j.Regions = append(j.Regions, toJSON(r))
		}
		out.Nodes = append(out.Nodes, j)
	}
	for i, r := range f.Results {
		j := jsonResult{ID: ids[r], Type: ShapeString(r.Shape)}
		if i < len(f.ResultNames) {
			j.Name = f.ResultNames[i]
		}
		out.Results = append(out.Results, j)
	}
	return out
}

func attrJSON(n *Node, value any) any {
	switch v := value.(type) {
	case bool, int, string:
		return v
	case []int:
		return append([]int{}, v...)
	case [][2]int:
		return append([][2]int{}, v...)
	case float64:
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			return v
		}
	case Literal:
		if len(n.Results) != 1 || len(v.Data)*8 > maxReadable*DTypeBits(n.Results[0].Shape.DType) {
			return map[string]any{"bytes": len(v.Data), "splat": v.Splat}
		}
	}
	// Element types, short literals, and the floats that JSON has no number for.
	p := &printer{}
	p.attr(n, value)
	return string(p.b)
}
