package tokenizer

import (
	"cmp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is a token that is found in the text before the model sees it, such as "</s>".
type addedToken struct {
	content string
	id      int32
	// normalized tokens are looked for in the normalized text, in their own normalized spelling; others in the text as it stands.
	normalized bool
	// lstrip and rstrip take the spaces on that side into the token.
	lstrip, rstrip bool
	// singleWord tokens match only between characters that are no part of a word.
	singleWord bool
}

// addedTokens are a tokenizer's added tokens, ready for matching.
type addedTokens struct {
	raw, normalized splitter
	byID            map[int32]string // in the spelling that is looked for
	byText          map[string]int32
}

// newAddedTokens sorts tokens into those matched before and after normalize.
func newAddedTokens(tokens []addedToken, normalize func(string) string) *addedTokens {
	a := &addedTokens{byID: map[int32]string{}, byText: map[string]int32{}}
	for _, t := range tokens {
		if t.content == "" {
			continue
		}
		a.byText[t.content] = t.id
		if t.normalized {
			t.content = normalize(t.content)
			a.normalized.add(t)
		} else {
			a.raw.add(t)
		}
		a.byID[t.id] = t.content
	}
	return a
}

// splitter finds added tokens in a text: at each place the longest that matches, left to right.
type splitter struct {
	// byFirst are the tokens by their first byte, the longest first.
	byFirst [256][]addedToken
}

func (s *splitter) add(t addedToken) {
	if t.content == "" {
		return
	}
	list := append(s.byFirst[t.content[0]], t)
	slices.SortStableFunc(list, func(a, b addedToken) int { return cmp.Compare(len(b.content), len(a.content)) })
	s.byFirst[t.content[0]] = list
}

// split calls emit for each part of text in order: a part between tokens with an id of -1, a token with its id.
func (s *splitter) split(text string, emit func(part string, id int32)) {
	done := 0 // what lies before has been emitted
	for i := 0; i < len(text); {
		t := s.match(text[i:])
		if t == nil {
			i++
			continue
		}
		start, stop := i, i+len(t.content)
		// The match is used up even where the token is then refused, as in transformers.
		i = stop
		if t.singleWord && (wordBefore(text[:start]) || wordAfter(text[stop:])) {
			continue
		}
		if t.lstrip {
			start = max(done, len(strings.TrimRightFunc(text[:start], unicode.IsSpace)))
		}
		if t.rstrip {
			stop = len(text) - len(strings.TrimLeftFunc(text[stop:], unicode.IsSpace))
		}
		if start < done {
			continue
		}
		if done < start {
			emit(text[done:start], -1)
		}
		emit(text[start:stop], t.id)
		done = stop
		i = max(i, stop)
	}
	if done < len(text) {
		emit(text[done:], -1)
	}
}

func (s *splitter) match(text string) *addedToken {
	list := s.byFirst[text[0]]
	for i := range list {
		if strings.HasPrefix(text, list[i].content) {
			return &list[i]
		}
	}
	return nil
}

func wordBefore(s string) bool {
	r, n := utf8.DecodeLastRuneInString(s)
	return n > 0 && isWord(r)
}

func wordAfter(s string) bool {
	r, n := utf8.DecodeRuneInString(s)
	return n > 0 && isWord(r)
}

// isWord is \w of Unicode regular expressions.
func isWord(r rune) bool {
	return r == '_' || unicode.IsLetter(r) || unicode.Is(unicode.M, r) || unicode.Is(unicode.Nd, r) || unicode.Is(unicode.Nl, r) || unicode.Is(unicode.Pc, r)
}
