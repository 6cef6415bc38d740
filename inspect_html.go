package precast

import (
	"bufio"
	_ "embed"
	"fmt"
	"html"
	"io"
	"regexp"
	"strings"

	"precast/graph"
)

//go:embed inspect.css
var inspectCSS string

//go:embed inspect.js
var inspectJS string

// writeHTML writes the module as one page that needs nothing else: its figures, then each func as a tree of module paths whose leaves are the
// lines of the text form. Values are links to their definitions.
func (x *Inspection) writeHTML(w io.Writer) error {
	b := bufio.NewWriter(w)
	m := x.Module
	title := html.EscapeString(m.Name)
	fmt.Fprintf(b, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n"+
		"<title>%s</title>\n<style>\n%s</style>\n</head>\n<body>\n<header>\n<h1>%s</h1>\n<p>%s</p>\n</header>\n", title, inspectCSS, title,
		html.EscapeString(strings.TrimSpace(x.head())))
	x.figures(b)
	fmt.Fprint(b, "<nav><input id=\"filter\" type=\"search\" placeholder=\"filter: an operation, a scope, a shape\" aria-label=\"filter\"> "+
		"<button id=\"open\">open all</button> <button id=\"close\">close all</button> <span id=\"found\"></span></nav>\n<main>\n")
	texts := funcTexts(m)
	for i, f := range m.Funcs {
		writeFunc(b, i, f, texts[i], x.Graph.Funcs[i].Calls, i == 0)
	}
	fmt.Fprintf(b, "</main>\n<script>\n%s</script>\n</body>\n</html>\n", inspectJS)
	return b.Flush()
}

// figures writes the module's counts.
func (x *Inspection) figures(w io.Writer) {
	s := x.Graph
	fmt.Fprint(w, "<section class=\"figures\">\n<table>\n")
	row := func(name, value string) {
		fmt.Fprintf(w, "<tr><th>%s</th><td>%s</td></tr>\n", name, html.EscapeString(value))
	}
	nodes := fmt.Sprint(s.Nodes)
	if s.ExpandedNodes != s.Nodes {
		nodes += fmt.Sprintf(" (%d with calls inlined)", s.ExpandedNodes)
	}
	row("nodes", nodes)
	row("functions", fmt.Sprint(len(s.Funcs)))
	row("inputs", fmt.Sprintf("%d, %s", s.Inputs, FormatBytes(s.InputBytes)))
	row("weights", fmt.Sprintf("%d, %s", s.Weights, FormatBytes(s.WeightBytes)))
	row("constants", fmt.Sprintf("%d, %s", s.Constants, FormatBytes(s.ConstantBytes)))
	fmt.Fprint(w, "</table>\n<table class=\"ops\">\n")
	most := 1
	if len(s.Ops) > 0 {
		most = s.Ops[0].Count
	}
	for _, o := range s.Ops {
		fmt.Fprintf(w, "<tr><th>%s</th><td>%d</td><td class=\"bar\"><i style=\"width:%.1f%%\"></i></td></tr>\n",
			html.EscapeString(string(o.Op)), o.Count, 100*float64(o.Count)/float64(most))
	}
	fmt.Fprint(w, "</table>\n</section>\n")
}

// funcText is the text form of one func, cut into its parts.
type funcText struct {
	params []string
	nodes  []string // one a node; a node with regions has several lines
	result string
}

// funcTexts prints the module once and cuts the text: a part of a func begins on a line with an indentation of two spaces, and what is deeper,
// or closes a region, belongs to the part before.
func funcTexts(m *graph.Module) []funcText {
	texts := make([]funcText, 0, len(m.Funcs))
	var at *string
	for line := range strings.Lines(m.String()) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "func "):
			texts = append(texts, funcText{})
			at = nil
		case len(texts) == 0 || line == "" || line == "}":
		case at != nil && (strings.HasPrefix(line, "   ") || strings.HasPrefix(line, "  }")):
			*at += "\n" + line[2:]
		default:
			f := &texts[len(texts)-1]
			list := &f.nodes
			switch {
			case strings.HasPrefix(line, "  return"):
				f.result = line[2:]
				at = nil
				continue
			case len(f.params) < len(m.Funcs[len(texts)-1].Params):
				list = &f.params
			}
			*list = append(*list, line[2:])
			at = &(*list)[len(*list)-1]
		}
	}
	return texts
}

// scopeTree is a module path with what lies in it, in the order of first appearance: lines and deeper paths.
type scopeTree struct {
	name  string
	items []scopeItem
	subs  map[string]*scopeTree
	count int // of nodes, those of deeper paths included
}

type scopeItem struct {
	line string
	sub  *scopeTree
}

func (t *scopeTree) add(path []string, line string) {
	t.count++
	if len(path) == 0 {
		t.items = append(t.items, scopeItem{line: line})
		return
	}
	sub := t.subs[path[0]]
	if sub == nil {
		sub = &scopeTree{name: path[0], subs: map[string]*scopeTree{}}
		t.subs[path[0]] = sub
		t.items = append(t.items, scopeItem{sub: sub})
	}
	sub.add(path[1:], line)
}

func writeFunc(w io.Writer, index int, f *graph.Func, text funcText, calls int, open bool) {
	attr := ""
	if open {
		attr = " open"
	}
	note := fmt.Sprintf("%d nodes, %d parameters", len(f.Nodes), len(f.Params))
	switch {
	case calls == 1:
		note += ", called once"
	case calls > 1:
		note += fmt.Sprintf(", called %d times", calls)
	}
	if f.BlockClass != "" {
		note += ", blocks " + f.BlockClass
	}
	fmt.Fprintf(w, "<details class=\"func\" id=\"func-%s\"%s><summary><b>@%s</b> <span>%s</span></summary>\n", html.EscapeString(f.Name), attr,
		html.EscapeString(f.Name), html.EscapeString(note))
	if len(text.params) > 0 {
		fmt.Fprintf(w, "<details><summary>parameters <span>%d</span></summary>\n", len(text.params))
		for _, p := range text.params {
			writeLine(w, index, p)
		}
		fmt.Fprint(w, "</details>\n")
	}
	root := &scopeTree{subs: map[string]*scopeTree{}}
	for i, n := range f.Nodes {
		var path []string
		if n.Scope != "" {
			path = strings.Split(n.Scope, ".")
		}
		line := text.nodes[i]
		// The path is in the tree already.
		if at := strings.LastIndex(line, " loc("); at >= 0 && n.Scope != "" {
			line = line[:at]
		}
		root.add(path, line)
	}
	writeScope(w, index, root)
	writeLine(w, index, text.result)
	fmt.Fprint(w, "</details>\n")
}

func writeScope(w io.Writer, index int, t *scopeTree) {
	for _, item := range t.items {
		if item.sub == nil {
			writeLine(w, index, item.line)
			continue
		}
		// A path with nothing but one deeper path is one entry: "mid_block.attentions.0".
		sub, name := item.sub, item.sub.name
		for len(sub.items) == 1 && sub.items[0].sub != nil {
			sub = sub.items[0].sub
			name += "." + sub.name
		}
		fmt.Fprintf(w, "<details><summary>%s <span>%d</span></summary>\n", html.EscapeString(name), sub.count)
		writeScope(w, index, sub)
		fmt.Fprint(w, "</details>\n")
	}
}

var (
	valuePattern  = regexp.MustCompile(`%\d+`)
	calleePattern = regexp.MustCompile(`callee = &#34;([^&]*)&#34;`)
)

// writeLine writes a line of the text form. Values of the func's own lines are links; regions number their own, so theirs are not.
func writeLine(w io.Writer, index int, text string) {
	first, rest, more := strings.Cut(text, "\n")
	left, right := "", html.EscapeString(first)
	if at := strings.Index(right, " = "); at >= 0 && strings.HasPrefix(right, "%") {
		left, right = right[:at], right[at:]
		left = valuePattern.ReplaceAllStringFunc(left, func(v string) string {
			return fmt.Sprintf("<u id=\"v%d-%s\">%s</u>", index, v[1:], v)
		})
		right = " = " + markOp(right[3:])
	} else {
		right = markOp(right)
	}
	right = valuePattern.ReplaceAllStringFunc(right, func(v string) string {
		return fmt.Sprintf("<a href=\"#v%d-%s\">%s</a>", index, v[1:], v)
	})
	right = calleePattern.ReplaceAllString(right, `callee = <a href="#func-$1">@$1</a>`)
	fmt.Fprintf(w, "<code>%s%s", left, right)
	if more {
		fmt.Fprintf(w, "\n%s", html.EscapeString(rest))
	}
	fmt.Fprint(w, "</code>\n")
}

// markOp marks the operation that a line begins with.
func markOp(s string) string {
	op, rest, _ := strings.Cut(s, " ")
	if op == s {
		return "<b>" + op + "</b>"
	}
	return "<b>" + op + "</b> " + rest
}
