package tokenizer

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// gpt2Pattern splits text as GPT-2's tokenizer does; a ByteLevel pre-tokenizer with use_regex has it built in.
// Source: encoder.py in the code of GPT-2 (Radford et al. 2019).
const gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// maxPattern bounds a pattern's length in bytes; published ones have some 200.
const maxPattern = 1 << 14

// pattern is a regular expression of a tokenizer.json, in the syntax of the library behind transformers (Oniguruma), as one of Go's
// regexp package, whose time is linear in the text. Go's has no lookahead. What published files use of it is a test at the end of
// an alternative, such as \s+(?!\S): there it is the same as matching one more character, of the complement, that is not part of the
// result. A group marks where the result of such an alternative ends.
//
// Classes of characters are those of Go's Unicode tables (15.0 in Go 1.26), which may lack letters that a newer Oniguruma knows.
type pattern struct{ re *regexp.Regexp }

// compilePattern refuses what it can't say in Go's syntax with the same meaning.
func compilePattern(text string) (*pattern, error) {
	if len(text) > maxPattern {
		return nil, fmt.Errorf("found a pattern of %d bytes, wanted at most %d", len(text), maxPattern)
	}
	if !utf8.ValidString(text) {
		return nil, fmt.Errorf("found a pattern that is not UTF-8")
	}
	t := patternTranslator{rest: text}
	if err := t.translate(); err != nil {
		return nil, fmt.Errorf("pattern %q: at byte %d: %w", text, len(text)-len(t.rest), err)
	}
	re, err := regexp.Compile(t.out.String())
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", text, err)
	}
	return &pattern{re}, nil
}

// split calls emit for each match and each part between matches, in order. It emits no empty part.
func (p *pattern) split(text string, emit func(part string)) {
	gap := 0 // what lies before has been emitted
	for at := 0; at < len(text); {
		loc := p.re.FindStringSubmatchIndex(text[at:])
		if loc == nil {
			break
		}
		start, stop := at+loc[0], at+loc[1]
		for g := 2; g < len(loc); g += 2 {
			if loc[g] >= 0 {
				stop = at + loc[g+1]
			}
		}
		if stop == start {
			_, n := utf8.DecodeRuneInString(text[start:])
			at = start + max(n, 1)
			continue
		}
		if gap < start {
			emit(text[gap:start])
		}
		emit(text[start:stop])
		gap, at = stop, stop
	}
	if gap < len(text) {
		emit(text[gap:])
	}
}

// patternTranslator writes the pattern rest in Go's syntax to out.
type patternTranslator struct {
	rest string
	out  strings.Builder
}

// translate handles the alternatives of the outermost level.
func (t *patternTranslator) translate() error {
	for {
		before := t.out.String()
		t.out.Reset()
		if err := t.sequence(0); err != nil {
			return err
		}
		item := t.out.String()
		t.out.Reset()
		t.out.WriteString(before)
		switch {
		case strings.HasPrefix(t.rest, "(?!"), strings.HasPrefix(t.rest, "(?="):
			negative := t.rest[2] == '!'
			next, err := t.lookahead()
			if err != nil {
				return err
			}
			if negative {
				if next, err = complement(next); err != nil {
					return err
				}
				next = "(?:" + next + `|\z)`
			}
			fmt.Fprintf(&t.out, "(%s)%s", item, next)
		default:
			fmt.Fprintf(&t.out, "(?:%s)", item)
		}
		if t.rest == "" {
			return nil
		}
		if t.rest[0] != '|' {
			return fmt.Errorf("found %q after a lookahead, wanted the end of the alternative", t.rest[:1])
		}
		t.take(1)
		t.out.WriteByte('|')
	}
}

func (t *patternTranslator) take(n int) string {
	s := t.rest[:n]
	t.rest = t.rest[n:]
	return s
}

// lookahead reads (?!X) or (?=X) and returns X in Go's syntax, as a group.
func (t *patternTranslator) lookahead() (string, error) {
	inner := patternTranslator{rest: t.rest[len("(?!"):]}
	err := inner.sequence(1)
	t.rest = inner.rest
	if err != nil {
		return "", err
	}
	if !strings.HasPrefix(t.rest, ")") {
		return "", fmt.Errorf("found a lookahead that does not end")
	}
	t.take(1)
	return "(?:" + inner.out.String() + ")", nil
}

// complement returns the class of the characters that x, which must match just one character, does not match.
func complement(x string) (string, error) {
	re, err := syntax.Parse(x, syntax.Perl)
	if err != nil {
		return "", err
	}
	var ranges []rune
	switch {
	case re.Op == syntax.OpCharClass:
		ranges = re.Rune
	case re.Op == syntax.OpLiteral && len(re.Rune) == 1 && re.Flags&syntax.FoldCase == 0:
		ranges = []rune{re.Rune[0], re.Rune[0]}
	default:
		return "", fmt.Errorf("found a negative lookahead of more than one character; only one class of characters is supported there")
	}
	return class(invert(ranges)), nil
}

// invert returns the ranges between sorted ranges of characters.
func invert(ranges []rune) []rune {
	var out []rune
	next := rune(0)
	for i := 0; i < len(ranges); i += 2 {
		if ranges[i] > next {
			out = append(out, next, ranges[i]-1)
		}
		next = ranges[i+1] + 1
	}
	if next <= unicode.MaxRune {
		out = append(out, next, unicode.MaxRune)
	}
	return out
}

func class(ranges []rune) string { return "[" + members(ranges) + "]" }

func members(ranges []rune) string {
	var s strings.Builder
	for i := 0; i < len(ranges); i += 2 {
		fmt.Fprintf(&s, `\x{%x}-\x{%x}`, ranges[i], ranges[i+1])
	}
	return s.String()
}

// Classes that Go takes for ASCII alone, as Unicode has them.
var (
	spaces = []rune{'\t', '\r', ' ', ' ', 0x85, 0x85, 0xa0, 0xa0, 0x1680, 0x1680, 0x2000, 0x200a, 0x2028, 0x2029, 0x202f, 0x202f, 0x205f, 0x205f, 0x3000, 0x3000}

	perlClasses = map[byte]string{
		's': members(spaces),
		'S': members(invert(spaces)),
		'd': `\p{Nd}`,
		'D': `\P{Nd}`,
		'w': `\p{L}\p{M}\p{Nd}\p{Pc}`,
	}
)

// sequence translates up to the end of the text, to a "|" or a lookahead of the outermost level, or to the ")" that closes an inner one.
func (t *patternTranslator) sequence(depth int) error {
	if depth > 100 {
		return fmt.Errorf("found groups more than 100 deep")
	}
	for t.rest != "" {
		switch c := t.rest[0]; {
		case c == '|' && depth == 0:
			return nil
		case c == ')':
			if depth == 0 {
				return fmt.Errorf("found a %q that closes nothing", c)
			}
			return nil
		case c == '(':
			if strings.HasPrefix(t.rest, "(?!") || strings.HasPrefix(t.rest, "(?=") {
				if depth > 0 {
					return fmt.Errorf("found a lookahead inside a group; it is supported at the end of an alternative only")
				}
				return nil
			}
			if err := t.group(depth); err != nil {
				return err
			}
		case c == '[':
			if err := t.class(); err != nil {
				return err
			}
		case c == '\\':
			s, inClass, err := t.escape()
			if err != nil {
				return err
			}
			if inClass {
				s = "[" + s + "]"
			}
			t.out.WriteString(s)
		case c == '^' || c == '$':
			return fmt.Errorf("found %q, which is not supported: a match may not depend on where the text begins or ends", c)
		default:
			t.out.WriteByte(c)
			t.take(1)
		}
	}
	if depth > 0 {
		return fmt.Errorf("found a group that does not end")
	}
	return nil
}

// group translates a group; those that capture become ones that do not.
func (t *patternTranslator) group(depth int) error {
	open := "(?:"
	switch {
	case strings.HasPrefix(t.rest, "(?:"), strings.HasPrefix(t.rest, "(?i:"):
		open = t.rest[:strings.IndexByte(t.rest, ':')+1]
		t.take(len(open))
	case strings.HasPrefix(t.rest, "(?"):
		return fmt.Errorf("found a group %q, which is not supported; known are ( (?: (?i: and, at the end of an alternative, (?! (?=", t.rest[:min(len(t.rest), 4)])
	default:
		t.take(1)
	}
	t.out.WriteString(open)
	if err := t.sequence(depth + 1); err != nil {
		return err
	}
	t.out.WriteString(t.take(1))
	return nil
}

// class translates a class in brackets. Oniguruma's classes within classes and intersections are refused.
func (t *patternTranslator) class() error {
	t.out.WriteString(t.take(1))
	if strings.HasPrefix(t.rest, "^") {
		t.out.WriteString(t.take(1))
	}
	for first := true; t.rest != ""; first = false {
		switch c := t.rest[0]; {
		case c == ']' && !first:
			t.out.WriteString(t.take(1))
			return nil
		case c == ']' || c == '[' || strings.HasPrefix(t.rest, "&&"):
			return fmt.Errorf("found %q inside a class, which is not supported", c)
		case c == '\\':
			s, _, err := t.escape()
			if err != nil {
				return err
			}
			t.out.WriteString(s)
		default:
			t.out.WriteByte(c)
			t.take(1)
		}
	}
	return fmt.Errorf("found a class that does not end")
}

// escape translates an escape. members is true where the result stands only inside a class.
func (t *patternTranslator) escape() (s string, members bool, err error) {
	if len(t.rest) < 2 {
		return "", false, fmt.Errorf("found a \\ at the end")
	}
	c := t.rest[1]
	if m, ok := perlClasses[c]; ok {
		t.take(2)
		return m, true, nil
	}
	switch {
	case (c == 'p' || c == 'P' || c == 'x') && len(t.rest) > 2 && t.rest[2] == '{':
		end := strings.IndexByte(t.rest, '}')
		if end < 0 {
			return "", false, fmt.Errorf("found %q without an end", t.rest[:3])
		}
		return t.take(end + 1), false, nil
	case slices.Contains([]byte("rntfv"), c), c < utf8.RuneSelf && unicode.In(rune(c), unicode.P, unicode.S):
		return t.take(2), false, nil
	}
	return "", false, fmt.Errorf("found \\%c, which is not supported", c)
}
