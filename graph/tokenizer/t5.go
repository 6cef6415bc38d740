package tokenizer

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// t5 is the tokenizer of T5 and UMT5: characters are replaced by the model's table, the text is split at white space, each word
// gets "▁" in front, and a unigram language model (Kudo 2018) finds the most probable sequence of its pieces.
//
// What it computes is what T5Tokenizer of transformers 5 does (models/t5/tokenization_t5.py), also where the folder has only
// SentencePiece's file.
type t5 struct {
	pieces  []piece
	ids     map[string]int32
	unk     int32
	longest int // bytes of the longest piece
	// unknown is the score of a character that no piece covers.
	unknown float64
	chars   *charsMap // nil: no replacements
}

// piece is one entry of a unigram vocabulary.
type piece struct {
	text  string
	score float64 // log probability
}

const (
	metaspace = "▁"
	// unknownPenalty is how far below the least probable piece an unknown character lies; SentencePiece's kUnkPenalty.
	unknownPenalty = 10
)

func openT5(dir string) (*base, error) {
	f, err := readFolder(dir, "spiece.model")
	if err != nil {
		return nil, err
	}
	pieces, table, where, err := f.unigram()
	if err != nil {
		return nil, err
	}
	m := newUnigram(pieces)
	if table != nil {
		if m.chars, err = newCharsMap(table); err != nil {
			return nil, fmt.Errorf("%s: precompiled_charsmap: %w", where, err)
		}
	}
	const defaultExtra = 100
	extra := f.config.Int("extra_ids", defaultExtra)
	if extra < 0 || extra > 1<<16 {
		f.config.Problem("extra_ids", "found %d, wanted 0 to %d", extra, 1<<16)
		return nil, f.config.Err()
	}
	// A SentencePiece file lacks the sentinel tokens, which follow its pieces, the last first.
	var sentinels []string
	for i := extra - 1; i >= 0; i-- {
		s := fmt.Sprintf("<extra_id_%d>", i)
		sentinels = append(sentinels, s)
		if _, ok := m.ids[s]; !ok {
			m.add(piece{s, 0})
		}
	}
	b := &base{model: m}
	named, err := f.finish(b, map[string]string{"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}, sentinels)
	if err != nil {
		return nil, err
	}
	m.unk = named["unk_token"]
	b.suffix = []int32{named["eos_token"]}
	b.cleanUp = f.config.Bool("clean_up_tokenization_spaces", false)
	return b, f.config.Err()
}

func newUnigram(pieces []piece) *t5 {
	m := &t5{ids: make(map[string]int32, len(pieces)), unknown: math.Inf(1)}
	for _, p := range pieces {
		m.add(p)
	}
	return m
}

// add appends a piece, whose id is its place. Of two with one spelling the later counts.
func (m *t5) add(p piece) {
	m.ids[p.text] = int32(len(m.pieces))
	m.pieces = append(m.pieces, p)
	m.longest = max(m.longest, len(p.text))
	m.unknown = min(m.unknown, p.score-unknownPenalty)
}

func (m *t5) normalize(text string) string {
	if m.chars == nil {
		return text
	}
	return m.chars.normalize(text)
}

func (m *t5) encode(text string) []int32 {
	var ids []int32
	for _, word := range strings.Fields(text) {
		if !strings.HasPrefix(word, metaspace) {
			word = metaspace + word
		}
		// A mark inside the text begins a word of its own.
		for len(word) > 0 {
			n := len(word)
			if i := strings.Index(word[len(metaspace):], metaspace); i >= 0 {
				n = len(metaspace) + i
			}
			ids = append(ids, m.best(word[:n])...)
			word = word[n:]
		}
	}
	return ids
}

// best is the Viterbi search: for each place in the word the best way to reach it from the left. Of equal ways the first found
// stays, which is the one with the shorter last piece. Neighbouring unknown characters become one unknown token.
func (m *t5) best(word string) []int32 {
	type way struct {
		score float64
		from  int
		id    int32
	}
	const none = -1
	ways := make([]way, len(word)+1)
	for i := range ways {
		ways[i].from = none
	}
	reach := func(from, to int, id int32, score float64) {
		if score += ways[from].score; ways[to].from == none || score > ways[to].score {
			ways[to] = way{score, from, id}
		}
	}
	for at := 0; at < len(word); {
		_, first := utf8.DecodeRuneInString(word[at:])
		single := false
		for end := at; end < len(word); {
			_, n := utf8.DecodeRuneInString(word[end:])
			end += n
			if end-at > m.longest {
				break
			}
			if id, ok := m.ids[word[at:end]]; ok {
				reach(at, end, id, m.pieces[id].score)
				single = single || end-at == first
			}
		}
		if !single {
			reach(at, at+first, m.unk, m.unknown)
		}
		at += first
	}
	var ids []int32
	for at := len(word); at > 0; at = ways[at].from {
		id := ways[at].id
		if id == m.unk && len(ids) > 0 && ids[len(ids)-1] == m.unk {
			continue
		}
		ids = append(ids, id)
	}
	slices.Reverse(ids)
	return ids
}

func (m *t5) decode(tokens []string) string {
	var s strings.Builder
	for i, t := range tokens {
		with := " "
		if i == 0 {
			with = ""
		}
		s.WriteString(strings.ReplaceAll(t, metaspace, with))
	}
	return s.String()
}

func (m *t5) token(id int32) (string, bool) {
	if id < 0 || int(id) >= len(m.pieces) {
		return "", false
	}
	return m.pieces[id].text, true
}

func (m *t5) id(token string) (int32, bool) {
	id, ok := m.ids[token]
	return id, ok
}

func (m *t5) size() int { return len(m.pieces) }
