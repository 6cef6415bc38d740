package tokenizer

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"precast/graph/checkpoint"
)

// folder is a tokenizer's folder: its parsed configs and where the vocabulary is.
type folder struct {
	dir string
	// config is tokenizer_config.json, an empty object when the file is absent.
	config *checkpoint.Config
	// special is special_tokens_map.json, nil when absent.
	special *checkpoint.Config
	// whole is tokenizer.json, nil when absent.
	whole *checkpoint.Config
}

// readFolder reads the JSON files of a tokenizer's folder. Either tokenizer.json or all the named vocabulary files must be there.
func readFolder(dir string, vocabulary ...string) (*folder, error) {
	st, err := os.Stat(dir)
	if err != nil {
		return nil, checkpoint.FileError(dir, err)
	}
	if !st.IsDir() {
		return nil, fmt.Errorf("%s: found a file, wanted a tokenizer's folder", dir)
	}
	f := &folder{dir: dir}
	for name, into := range map[string]**checkpoint.Config{"tokenizer_config.json": &f.config, "special_tokens_map.json": &f.special, "tokenizer.json": &f.whole} {
		path := filepath.Join(dir, name)
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if *into, err = checkpoint.ReadConfig(path); err != nil {
			return nil, err
		}
	}
	if f.config == nil {
		if f.config, err = checkpoint.ParseConfig(filepath.Join(dir, "tokenizer_config.json"), []byte("{}")); err != nil {
			return nil, err
		}
	}
	if f.whole != nil {
		return f, nil
	}
	for _, name := range vocabulary {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return nil, fmt.Errorf("%w; wanted %s, or tokenizer.json", checkpoint.FileError(filepath.Join(dir, name), err), strings.Join(vocabulary, " and "))
		}
	}
	return f, nil
}

// modelObject returns the "model" object of tokenizer.json, which must be of that type.
func (f *folder) modelObject(kind string) (*checkpoint.Config, error) {
	m := f.whole.Object("model")
	if m == nil {
		if f.whole.Err() == nil {
			f.whole.Problem("model", "found nothing, wanted an object")
		}
		return nil, f.whole.Err()
	}
	// Files of older versions name no type.
	if t := m.String("type", kind); t != kind {
		m.Problem("type", "found %q, wanted %q", t, kind)
	}
	return m, f.whole.Err()
}

// bpe reads the vocabulary and the merges, of tokenizer.json or of vocab.json and merges.txt. where names the place of a merge.
func (f *folder) bpe() (vocab map[string]int32, merges [][2]string, where func(i int) string, err error) {
	if f.whole == nil {
		path := filepath.Join(f.dir, "vocab.json")
		data, err := checkpoint.ReadFile(path)
		if err != nil {
			return nil, nil, nil, err
		}
		if !json.Valid(data) {
			// ParseConfig says where the text breaks.
			_, err := checkpoint.ParseConfig(path, data)
			return nil, nil, nil, err
		}
		if vocab, err = readVocab(data, path); err != nil {
			return nil, nil, nil, err
		}
		return readMerges(vocab, filepath.Join(f.dir, "merges.txt"))
	}
	m, err := f.modelObject("BPE")
	if err != nil {
		return nil, nil, nil, err
	}
	if vocab, err = readVocab(m.Raw("vocab"), f.whole.File()+": model.vocab"); err != nil {
		return nil, nil, nil, err
	}
	// Newer files write a merge as a pair, older ones as a string with a space.
	for i, raw := range checkpoint.ListElements(m.Raw("merges")) {
		var parts []string
		if text, ok := checkpoint.Text(raw); ok {
			parts = strings.Split(text, " ")
		} else {
			for _, p := range checkpoint.ListElements(raw) {
				if text, ok := checkpoint.Text(p); ok {
					parts = append(parts, text)
				}
			}
		}
		if len(parts) != 2 {
			m.Problem(fmt.Sprintf("merges[%d]", i), "found %s, wanted two tokens", raw)
			return nil, nil, nil, f.whole.Err()
		}
		merges = append(merges, [2]string(parts))
	}
	if merges == nil {
		m.Problem("merges", "found no merges, wanted a list of pairs of tokens")
		return nil, nil, nil, f.whole.Err()
	}
	return vocab, merges, func(i int) string { return fmt.Sprintf("%s: model.merges[%d]", f.whole.File(), i) }, nil
}

// maxID bounds token ids; the largest published vocabularies have under 300 000 tokens.
const maxID = 1 << 24

// readVocab reads an object of tokens and ids; where names it for errors.
func readVocab(object json.RawMessage, where string) (map[string]int32, error) {
	// An entry takes some twenty bytes.
	vocab := make(map[string]int32, len(object)/20)
	for t, raw := range checkpoint.ObjectFields(object) {
		id, err := strconv.Atoi(string(raw))
		if err != nil || id < 0 || id >= maxID {
			return nil, fmt.Errorf("%s: %q: found %s, wanted a token id from 0 to %d", where, t, raw, maxID-1)
		}
		if _, twice := vocab[t]; twice {
			return nil, fmt.Errorf("%s: token %q is given twice", where, t)
		}
		vocab[t] = int32(id)
	}
	if len(vocab) == 0 {
		return nil, fmt.Errorf("%s: found no tokens, wanted an object of tokens and ids", where)
	}
	return vocab, nil
}

// readMerges reads merges.txt: a first line with the version, then a merge a line, its two tokens with a space between.
func readMerges(vocab map[string]int32, path string) (map[string]int32, [][2]string, func(i int) string, error) {
	data, err := checkpoint.ReadFile(path)
	if err != nil {
		return nil, nil, nil, err
	}
	if !utf8.Valid(data) {
		return nil, nil, nil, fmt.Errorf("%s: found bytes that are not UTF-8, wanted a list of merges", path)
	}
	var merges [][2]string
	var lines []int
	line := 0
	for text := range strings.Lines(string(data)) {
		line++
		text = strings.TrimRight(text, "\r\n")
		if text == "" || strings.HasPrefix(text, "#version") {
			continue
		}
		a, b, ok := strings.Cut(text, " ")
		if !ok || a == "" || b == "" || strings.Contains(b, " ") {
			return nil, nil, nil, fmt.Errorf("%s:%d: found %q, wanted two tokens with a space between", path, line, text)
		}
		merges = append(merges, [2]string{a, b})
		lines = append(lines, line)
	}
	if merges == nil {
		// transformers takes such a file, and makes other tokens of every text.
		return nil, nil, nil, fmt.Errorf("%s: found no merges, wanted a pair of tokens a line", path)
	}
	return vocab, merges, func(i int) string { return fmt.Sprintf("%s:%d", path, lines[i]) }, nil
}

// unigram reads the pieces and the table of replacements, of tokenizer.json or of spiece.model; where names the file.
func (f *folder) unigram() (pieces []piece, table []byte, where string, err error) {
	if f.whole == nil {
		where = filepath.Join(f.dir, "spiece.model")
		data, err := checkpoint.ReadFile(where)
		if err != nil {
			return nil, nil, where, err
		}
		if pieces, table, err = parseSentencePiece(data); err != nil {
			return nil, nil, where, fmt.Errorf("%s: %w", where, err)
		}
		return pieces, table, where, nil
	}
	where = f.whole.File()
	m, err := f.modelObject("Unigram")
	if err != nil {
		return nil, nil, where, err
	}
	for i, entry := range checkpoint.ListElements(m.Raw("vocab")) {
		p, ok := readPiece(entry)
		if !ok {
			m.Problem(fmt.Sprintf("vocab[%d]", i), "found %s, wanted a piece and its score", entry)
			return nil, nil, where, f.whole.Err()
		}
		pieces = append(pieces, p)
	}
	if pieces == nil {
		m.Problem("vocab", "found no pieces, wanted a list of pairs of a piece and its score")
		return nil, nil, where, f.whole.Err()
	}
	table, err = charsMapOf(f.whole)
	return pieces, table, where, err
}

// readPiece reads a pair of a piece and its score.
func readPiece(entry json.RawMessage) (p piece, ok bool) {
	n := 0
	for i, raw := range checkpoint.ListElements(entry) {
		n++
		switch i {
		case 0:
			p.text, ok = checkpoint.Text(raw)
		case 1:
			var err error
			p.score, err = strconv.ParseFloat(string(raw), 64)
			ok = ok && err == nil
		}
	}
	return p, ok && n == 2
}

// charsMapOf finds the table of replacements in tokenizer.json's normalizer, itself or one of a sequence; nil when there is none.
func charsMapOf(whole *checkpoint.Config) ([]byte, error) {
	type normalizer struct {
		Type  string  `json:"type"`
		Table *string `json:"precompiled_charsmap"`
	}
	var n struct {
		normalizer
		List []normalizer `json:"normalizers"`
	}
	raw := whole.Raw("normalizer")
	if raw == nil {
		return nil, nil
	}
	if err := json.Unmarshal(raw, &n); err != nil {
		whole.Problem("normalizer", "found an object of another form: %v", err)
		return nil, whole.Err()
	}
	for _, x := range append(n.List, n.normalizer) {
		if x.Type != "Precompiled" || x.Table == nil {
			continue
		}
		table, err := base64.StdEncoding.DecodeString(*x.Table)
		if err != nil {
			whole.Problem("normalizer.precompiled_charsmap", "found text that is not base64: %v", err)
			return nil, whole.Err()
		}
		return table, nil
	}
	return nil, nil
}

// finish fills in what the configs say about added tokens, padding and lengths, and returns the ids of the named special tokens
// ("eos_token"), for which defaults has the spelling. extra are further special tokens of the class.
//
// The rules are those of transformers 5: the tokens listed in tokenizer_config.json, or else in tokenizer.json and
// special_tokens_map.json; then the named ones that are in neither list.
func (f *folder) finish(b *base, defaults map[string]string, extra []string) (map[string]int32, error) {
	var tokens []addedToken
	find := func(content string) *addedToken {
		if i := slices.IndexFunc(tokens, func(t addedToken) bool { return t.content == content }); i >= 0 {
			return &tokens[i]
		}
		return nil
	}
	// add keeps the first entry of a spelling. A token without an id of its own gets the vocabulary's, or else the next free one.
	add := func(t addedToken, id int) {
		if find(t.content) != nil {
			return
		}
		if known, ok := b.model.id(t.content); ok {
			id = int(known)
		}
		if id < 0 {
			id = b.model.size()
			for _, o := range tokens {
				id = max(id, int(o.id)+1)
			}
		}
		t.id = int32(id)
		tokens = append(tokens, t)
	}
	listed := f.config.Object("added_tokens_decoder")
	if listed != nil {
		for _, key := range listed.Keys() {
			id, err := strconv.Atoi(key)
			if err != nil || id < 0 || id >= maxID {
				listed.Problem(key, "found this key, wanted a token id from 0 to %d", maxID-1)
				continue
			}
			if o := listed.Object(key); o != nil {
				add(readAdded(o), id)
			} else {
				listed.Problem(key, "found no object, wanted a token's description")
			}
		}
	} else if f.whole != nil {
		if err := f.addedOfWhole(add); err != nil {
			return nil, err
		}
	}
	fixed := len(tokens)
	named := map[string]int32{}
	b.named = map[string]string{}
	described := map[string]bool{}
	for _, key := range []string{"bos_token", "eos_token", "unk_token", "pad_token"} {
		t, isObject := f.named(key, defaults[key], listed == nil)
		if t.content == "" {
			continue
		}
		add(t, -1)
		o := find(t.content)
		// Two roles may share a spelling, one given as a description and one as a mere string: then the later way of matching holds.
		if slices.IndexFunc(tokens, func(x addedToken) bool { return x.content == t.content }) >= fixed && described[t.content] != isObject {
			t.id = o.id
			*o = t
		}
		described[t.content] = isObject
		named[key] = o.id
		b.named[key] = t.content
	}
	for _, content := range extra {
		add(addedToken{content: content}, -1)
	}
	b.pad = named["pad_token"]
	b.padLeft = f.config.OneOf("padding_side", "right", "right", "left") == "left"
	b.cutLeft = f.config.OneOf("truncation_side", "right", "right", "left") == "left"
	// Where a model has no limit the published files say 1e30.
	if n := f.config.Float("model_max_length", 0); n >= 1 && n < maxID {
		b.maxLength = int(n)
	}
	for _, c := range []*checkpoint.Config{f.config, f.special, f.whole} {
		if c != nil && c.Err() != nil {
			return nil, c.Err()
		}
	}
	b.added = newAddedTokens(tokens, b.model.normalize)
	return named, nil
}

// addedOfWhole adds the added_tokens of tokenizer.json.
func (f *folder) addedOfWhole(add func(addedToken, int)) error {
	var list []struct {
		ID             *int
		Content        string
		Normalized     bool
		Lstrip, Rstrip bool
		SingleWord     bool `json:"single_word"`
	}
	raw := f.whole.Raw("added_tokens")
	if raw == nil {
		return nil
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		f.whole.Problem("added_tokens", "found a list of another form: %v", err)
		return f.whole.Err()
	}
	for i, t := range list {
		if t.ID == nil || *t.ID < 0 || *t.ID >= maxID {
			f.whole.Problem(fmt.Sprintf("added_tokens[%d].id", i), "found no token id from 0 to %d", maxID-1)
			return f.whole.Err()
		}
		add(addedToken{t.Content, 0, t.Normalized, t.Lstrip, t.Rstrip, t.SingleWord}, *t.ID)
	}
	return nil
}

// named returns a special token that the configs give by its role: special_tokens_map.json, where it counts, before
// tokenizer_config.json, before the class's default. described is true where it is an object, not a mere string.
func (f *folder) named(key, def string, withMap bool) (t addedToken, described bool) {
	sources := []*checkpoint.Config{f.config}
	if withMap && f.special != nil {
		sources = []*checkpoint.Config{f.special, f.config}
	}
	for _, c := range sources {
		switch raw := c.Raw(key); {
		case raw == nil:
			continue
		case raw[0] == '{':
			return readAdded(c.Object(key)), true
		default:
			return addedToken{content: c.String(key, "")}, false
		}
	}
	return addedToken{content: def}, false
}

// readAdded reads a token's description. One that is special is matched in the text as it stands unless the file says otherwise.
func readAdded(o *checkpoint.Config) addedToken {
	if o == nil {
		return addedToken{}
	}
	t := addedToken{
		content:    o.String("content", ""),
		normalized: o.Bool("normalized", !o.Bool("special", false)),
		lstrip:     o.Bool("lstrip", false),
		rstrip:     o.Bool("rstrip", false),
		singleWord: o.Bool("single_word", false),
	}
	if t.content == "" {
		o.Problem("content", "found nothing, wanted the token's text")
	}
	return t
}
