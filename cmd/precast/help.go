package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// helpWidth is the width that help texts are wrapped to.
const helpWidth = 110

// valueNames says what stands for a flag's value in the help, by the flag's type; a name in backquotes in the usage text comes first.
var valueNames = map[string]string{
	"string": "NAME", "stringArray": "TEXT", "stringSlice": "A,B", "float64Slice": "X,Y", "int": "N", "int64": "N", "uint64": "N", "float64": "X",
	"duration": "TIME",
}

// flagHelp lists flags with their usage, wrapped.
func flagHelp(fs *pflag.FlagSet) string {
	var b strings.Builder
	const column = 34
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		left := "      --" + f.Name
		if f.Shorthand != "" {
			left = "  -" + f.Shorthand + ", --" + f.Name
		}
		name, usage := pflag.UnquoteUsage(f)
		if kind := f.Value.Type(); kind != "bool" {
			if !strings.Contains(f.Usage, "`") {
				name = valueNames[kind]
			}
			left += " " + name
		}
		switch f.DefValue {
		case "", "0", "false", "[]", "0s":
		default:
			if !strings.Contains(usage, "default") {
				usage += " (default " + f.DefValue + ")"
			}
		}
		if len(left) > column-2 {
			b.WriteString(left + "\n")
			left = ""
		}
		for _, line := range wrap(usage, helpWidth-column) {
			fmt.Fprintf(&b, "%-*s%s\n", column, left, line)
			left = ""
		}
	})
	return b.String()
}

// wrap cuts text into lines of at most width bytes, at spaces.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

// reflow wraps the paragraphs of a help text; lines that begin with a space stay as they are.
func reflow(text string) string {
	var out, words []string
	flush := func() {
		if len(words) > 0 {
			out = append(out, wrap(strings.Join(words, " "), helpWidth)...)
			words = nil
		}
	}
	for line := range strings.Lines(strings.Trim(text, "\n")) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == ' ' {
			flush()
			out = append(out, line)
			continue
		}
		words = append(words, line)
	}
	flush()
	return strings.Join(out, "\n")
}
