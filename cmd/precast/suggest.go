package main

import (
	"slices"
	"strings"
)

// verbOf splits a command's arguments into its verb and the rest.
func verbOf(command string, verbs, args []string) (string, []string, error) {
	if len(args) == 0 {
		return "", nil, userError("precast %s: wanted one of %s", command, strings.Join(verbs, ", "))
	}
	if !slices.Contains(verbs, args[0]) {
		return "", nil, userError("precast %s: %q is not known; wanted one of %s", command, args[0], strings.Join(verbs, ", "))
	}
	return args[0], args[1:], nil
}

// contains reports whether word is one of those in list, which spaces separate.
func contains(list, word string) bool { return slices.Contains(strings.Fields(list), word) }

// nearest returns the name that is most like the given one, "" when none is like it: at most a third of it may differ, or it must be the start
// of the name.
func nearest(name string, names []string) string {
	best, least := "", len(name)/3+1
	for _, n := range names {
		if d := distance(name, n); d < least || d == least && best == "" {
			best, least = n, d
		}
	}
	if best == "" && len(name) >= 3 {
		for _, n := range names {
			if strings.HasPrefix(n, name) || strings.HasSuffix(n, "-"+name) {
				return n
			}
		}
	}
	return best
}

// distance is the number of bytes to insert, remove, replace or swap with the next to make b of a (optimal string alignment).
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			replace := 1
			if a[i-1] == b[j-1] {
				replace = 0
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+replace)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(a)][len(b)]
}
