package tokenizer

import (
	"container/heap"
	"fmt"
)

// bpe is a byte-pair encoding model: a vocabulary and an ordered list of merges of two tokens to one.
type bpe struct {
	vocab  map[string]int32
	tokens map[int32]string
	merges map[[2]int32]merge
	// suffix marks the last token of a word ("</w>" in CLIP).
	suffix string
	// unk stands for a byte without a token; noUnknown: such bytes are left out.
	unk int32
	// fuseUnk makes one unknown token of neighbouring ones.
	fuseUnk bool
}

const noUnknown = -1

// merge is what a pair of tokens becomes, and how early in the list the pair stands.
type merge struct {
	rank int
	id   int32
}

// newBPE checks that every merge joins two known tokens to a known one. where names the merges' file for errors, line the place of
// a merge in it.
func newBPE(vocab map[string]int32, merges [][2]string, suffix string, where func(i int) string) (*bpe, error) {
	m := &bpe{vocab: vocab, tokens: make(map[int32]string, len(vocab)), merges: make(map[[2]int32]merge, len(merges)), suffix: suffix}
	for t, id := range vocab {
		m.tokens[id] = t
	}
	for i, pair := range merges {
		var ids [3]int32
		for j, t := range []string{pair[0], pair[1], pair[0] + pair[1]} {
			id, ok := vocab[t]
			if !ok {
				return nil, fmt.Errorf("%s: merge of %q and %q: token %q is not in the vocabulary", where(i), pair[0], pair[1], t)
			}
			ids[j] = id
		}
		m.merges[[2]int32{ids[0], ids[1]}] = merge{i, ids[2]}
	}
	return m, nil
}

// symbol is a token in the making: a link of the list of a word's tokens.
type symbol struct {
	id         int32
	prev, next int
}

// candidate is a merge that could be made: of the symbol at pos, when its id is still left, and the one after it, still right.
type candidate struct {
	merge
	pos         int
	left, right int32
}

// queue orders candidates by rank, then by place.
type queue []candidate

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].rank < q[j].rank || q[i].rank == q[j].rank && q[i].pos < q[j].pos
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(candidate)) }
func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

// word appends the ids of one word's bytes.
func (m *bpe) word(ids []int32, word []byte) []int32 {
	symbols := make([]symbol, 0, len(word))
	for i, b := range word {
		spelling := string(byteRune[b])
		if i == len(word)-1 {
			spelling += m.suffix
		}
		id, ok := m.vocab[spelling]
		if !ok {
			id = m.unk
			if n := len(symbols); id == noUnknown || m.fuseUnk && n > 0 && symbols[n-1].id == id {
				continue
			}
		}
		symbols = append(symbols, symbol{id, len(symbols) - 1, len(symbols) + 1})
	}
	var q queue
	push := func(pos int) {
		if pos < 0 || symbols[pos].next >= len(symbols) {
			return
		}
		left, right := symbols[pos].id, symbols[symbols[pos].next].id
		if mg, ok := m.merges[[2]int32{left, right}]; ok {
			heap.Push(&q, candidate{mg, pos, left, right})
		}
	}
	for i := range symbols {
		push(i)
	}
	const gone = -1
	for len(q) > 0 {
		c := heap.Pop(&q).(candidate)
		s := &symbols[c.pos]
		// An earlier merge may have changed either side.
		if s.id != c.left || s.next >= len(symbols) || symbols[s.next].id != c.right {
			continue
		}
		symbols[s.next].id = gone
		s.id, s.next = c.id, symbols[s.next].next
		if s.next < len(symbols) {
			symbols[s.next].prev = c.pos
		}
		push(s.prev)
		push(c.pos)
	}
	for i := 0; i < len(symbols); i = symbols[i].next {
		ids = append(ids, symbols[i].id)
	}
	return ids
}

func (m *bpe) token(id int32) (string, bool) {
	t, ok := m.tokens[id]
	return t, ok
}

func (m *bpe) id(token string) (int32, bool) {
	id, ok := m.vocab[token]
	return id, ok
}

func (m *bpe) size() int {
	n := 0
	for id := range m.tokens {
		n = max(n, int(id)+1)
	}
	return n
}
