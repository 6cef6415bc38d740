package pipelines

import (
	"html"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// cleanPrompt is prompt_clean of diffusers' pipelines/wan/pipeline_wan.py without ftfy, which is optional there: character references
// are read as HTML twice over, and each run of white space becomes one space.
func cleanPrompt(text string) string {
	text = strings.TrimFunc(unescape(unescape(text)), isPythonSpace)
	// As the regex module's \s: Unicode's property White_Space.
	return strings.Join(strings.FieldsFunc(text, unicode.IsSpace), " ")
}

// cleanPrompts cleans each text of a list.
func cleanPrompts(texts []string) []string {
	out := make([]string, len(texts))
	for i, t := range texts {
		out[i] = cleanPrompt(t)
	}
	return out
}

// isPythonSpace is Python's str.isspace: Unicode's white space and the four separators of ASCII.
func isPythonSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

// charRef is a character reference, with or without its semicolon.
var charRef = regexp.MustCompile(`&(?:#[0-9]+;?|#[xX][0-9a-fA-F]+;?|[^\t\n\f <&#;]{1,32};?)`)

// unescape is Python's html.unescape, HTML 5's rules: Go's html.UnescapeString but for numbers of characters that HTML does not allow, which vanish.
func unescape(text string) string {
	return charRef.ReplaceAllStringFunc(text, func(ref string) string {
		if ref[1] != '#' {
			return html.UnescapeString(ref)
		}
		digits, base := strings.TrimSuffix(ref[2:], ";"), 10
		if digits[0] == 'x' || digits[0] == 'X' {
			digits, base = digits[1:], 16
		}
		n, err := strconv.ParseInt(digits, base, 32)
		switch {
		case err != nil || n > unicode.MaxRune || n >= 0xd800 && n <= 0xdfff || n == 0:
			return string(unicode.ReplacementChar)
		case n >= 0x80 && n <= 0x9f: // taken as windows-1252
			return html.UnescapeString("&#" + strconv.FormatInt(n, 10) + ";")
		case n < 0x20 && n != '\t' && n != '\n' && n != '\f' && n != '\r', n == 0x7f, n >= 0xfdd0 && n <= 0xfdef, n&0xfffe == 0xfffe:
			return ""
		}
		return string(rune(n))
	})
}
