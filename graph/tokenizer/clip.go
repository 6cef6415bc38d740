package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// clip is CLIP's tokenizer: NFC, runs of white space to one space, lower case; words split from punctuation and digits one by one;
// byte-level BPE whose last token of a word ends in "</w>".
//
// What it computes is what CLIPTokenizer of transformers 5 does (models/clip/tokenization_clip.py).
type clip struct{ *bpe }

const endOfWord = "</w>"

func openCLIP(dir string) (*base, error) {
	f, err := readFolder(dir, "vocab.json", "merges.txt")
	if err != nil {
		return nil, err
	}
	vocab, merges, where, err := f.bpe()
	if err != nil {
		return nil, err
	}
	m, err := newBPE(vocab, merges, endOfWord, where)
	if err != nil {
		return nil, err
	}
	defaults := map[string]string{"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
	b := &base{model: clip{m}}
	named, err := f.finish(b, defaults, nil)
	if err != nil {
		return nil, err
	}
	m.unk = named["unk_token"]
	b.prefix, b.suffix = []int32{named["bos_token"]}, []int32{named["eos_token"]}
	return b, nil
}

func (clip) normalize(text string) string {
	var s strings.Builder
	space := false
	for _, r := range norm.NFC.String(text) {
		if unicode.IsSpace(r) {
			if !space {
				s.WriteByte(' ')
			}
			space = true
			continue
		}
		space = false
		if r == 'İ' {
			// The only character whose lower case is two, wherever it stands.
			s.WriteString("i̇")
			continue
		}
		s.WriteRune(unicode.ToLower(r))
	}
	return s.String()
}

func (c clip) encode(text string) []int32 {
	var ids []int32
	for len(text) > 0 {
		if n := markerEnd(text); n >= 0 {
			for _, part := range []string{"<|", text[len("<|"):n], "|>"} {
				ids = c.word(ids, []byte(part))
			}
			text = text[n+len("|>"):]
			continue
		}
		n, word := nextWord(text)
		if word {
			ids = c.word(ids, []byte(text[:n]))
		}
		text = text[n:]
	}
	return ids
}

// markerEnd returns where the end "|>" of a marker that text begins with starts, -1 when it begins with none. A marker that is not
// an added token, such as one that lower case made, is three words: "<|", its name, "|>".
func markerEnd(text string) int {
	for _, m := range []string{"<|startoftext|>", "<|endoftext|>"} {
		if strings.HasPrefix(text, m) {
			return len(m) - len("|>")
		}
	}
	return -1
}

// nextWord returns the length of the word at the start of text, or of one character that is in no word. A word is an English
// contraction's ending, a run of letters, one digit, or a run of other characters that are no space.
func nextWord(text string) (n int, word bool) {
	for _, c := range []string{"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"} {
		if strings.HasPrefix(text, c) {
			return len(c), true
		}
	}
	r, n := utf8.DecodeRuneInString(text)
	switch {
	case unicode.IsSpace(r):
		return n, false
	case unicode.IsNumber(r):
		return n, true
	}
	letters := unicode.IsLetter(r)
	for n < len(text) {
		r, size := utf8.DecodeRuneInString(text[n:])
		if unicode.IsSpace(r) || unicode.IsNumber(r) || unicode.IsLetter(r) != letters {
			break
		}
		n += size
	}
	return n, true
}

func (clip) decode(tokens []string) string {
	var b []byte
	for _, t := range tokens {
		b = appendBytesOf(b, t)
	}
	return strings.TrimSpace(strings.ReplaceAll(lossyString(b), endOfWord, " "))
}
