package tokenizer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/rivo/uniseg"
)

// charsMap is SentencePiece's table of replacements of characters (nmt_nfkc and the like), as model files carry it: the length of
// a double-array trie in bytes, the trie, then the replacements as strings that end in a zero byte, to which the trie's leaves
// point. The layout of the trie's units is that of the Darts-clone library that SentencePiece uses.
type charsMap struct {
	trie  []uint32
	texts []byte
}

// newCharsMap checks the table so that lookups can't leave it.
func newCharsMap(data []byte) (*charsMap, error) {
	if len(data) < 4 {
		return nil, fmt.Errorf("found %d bytes, wanted a table of replacements with its length first", len(data))
	}
	n := int64(binary.LittleEndian.Uint32(data))
	data = data[4:]
	if n == 0 || n%4 != 0 || n > int64(len(data)) {
		return nil, fmt.Errorf("found a trie of %d bytes in a table of %d, wanted a multiple of 4 that fits", n, len(data))
	}
	m := &charsMap{trie: make([]uint32, n/4), texts: data[n:]}
	for i := range m.trie {
		m.trie[i] = binary.LittleEndian.Uint32(data[4*i:])
	}
	if !utf8.Valid(m.texts) {
		return nil, errors.New("found replacements that are not UTF-8")
	}
	return m, nil
}

func trieOffset(unit uint32) uint32 { return unit >> 10 << (unit & (1 << 9) >> 6) }

// lookup returns the replacement of the shortest prefix of text that has one.
func (m *charsMap) lookup(text string) (string, bool) {
	pos := trieOffset(m.trie[0])
	for i := 0; i < len(text) && text[i] != 0; i++ {
		pos ^= uint32(text[i])
		if int(pos) >= len(m.trie) {
			return "", false
		}
		unit := m.trie[pos]
		if unit&(1<<31|0xff) != uint32(text[i]) {
			return "", false
		}
		pos ^= trieOffset(unit)
		if unit>>8&1 == 0 {
			continue
		}
		if int(pos) >= len(m.trie) {
			return "", false
		}
		start := int(m.trie[pos] & (1<<31 - 1))
		if start >= len(m.texts) {
			return "", false
		}
		end := bytes.IndexByte(m.texts[start:], 0)
		if end < 0 {
			end = len(m.texts) - start
		}
		return string(m.texts[start : start+end]), true
	}
	return "", false
}

// normalize replaces characters by the table. A grapheme cluster of up to five bytes is looked up whole, and then replaced as a whole even
// where only its first character is in the table; of others each character is looked up. This is what the library behind
// transformers does (the spm_precompiled crate) and what published models were checked with.
func (m *charsMap) normalize(text string) string {
	var s strings.Builder
	state := -1
	for len(text) > 0 {
		var cluster string
		cluster, text, _, state = uniseg.FirstGraphemeClusterInString(text, state)
		if len(cluster) < 6 {
			if r, ok := m.lookup(cluster); ok {
				s.WriteString(r)
				continue
			}
		}
		for len(cluster) > 0 {
			_, n := utf8.DecodeRuneInString(cluster)
			if r, ok := m.lookup(cluster[:n]); ok {
				s.WriteString(r)
			} else {
				s.WriteString(cluster[:n])
			}
			cluster = cluster[n:]
		}
	}
	return s.String()
}
