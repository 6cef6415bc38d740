package tokenizer

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"precast/graph/checkpoint"
)

// maxFile bounds the files that are read whole; the largest known tokenizer.json is under 40 MB.
const maxFile = 256 << 20

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
		return nil, pathError(dir, err)
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
			return nil, fmt.Errorf("%w; wanted %s, or tokenizer.json", pathError(filepath.Join(dir, name), err), strings.Join(vocabulary, " and "))
		}
	}
	return f, nil
}

func pathError(path string, err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	return fmt.Errorf("%s: %w", path, err)
}

func readFile(path string) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, pathError(path, err)
	}
	if !st.Mode().IsRegular() || st.Size() > maxFile {
		return nil, fmt.Errorf("%s: found %s of %d bytes, wanted a file of at most %d", path, st.Mode().Type(), st.Size(), maxFile)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, pathError(path, err)
	}
	return data, nil
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
		vocabFile, err := checkpoint.ReadConfig(filepath.Join(f.dir, "vocab.json"))
		if err != nil {
			return nil, nil, nil, err
		}
		if vocab, err = readVocab(vocabFile, vocabFile); err != nil {
			return nil, nil, nil, err
		}
		return readMerges(vocab, filepath.Join(f.dir, "merges.txt"))
	}
	m, err := f.modelObject("BPE")
	if err != nil {
		return nil, nil, nil, err
	}
	v := m.Object("vocab")
	if v == nil {
		m.Problem("vocab", "found no object of tokens and ids")
		return nil, nil, nil, f.whole.Err()
	}
	if vocab, err = readVocab(v, f.whole); err != nil {
		return nil, nil, nil, err
	}
	// Newer files write a merge as a pair, older ones as a string with a space.
	raw := m.Raw("merges")
	var asPairs [][]string
	var asText []string
	switch {
	case json.Unmarshal(raw, &asPairs) == nil:
		for i, p := range asPairs {
			if len(p) != 2 {
				m.Problem(fmt.Sprintf("merges[%d]", i), "found %q, wanted two tokens", p)
				return nil, nil, nil, f.whole.Err()
			}
			merges = append(merges, [2]string(p))
		}
	case json.Unmarshal(raw, &asText) == nil:
		for i, s := range asText {
			a, b, ok := strings.Cut(s, " ")
			if !ok || strings.Contains(b, " ") {
				m.Problem(fmt.Sprintf("merges[%d]", i), "found %q, wanted two tokens with a space between", s)
				return nil, nil, nil, f.whole.Err()
			}
			merges = append(merges, [2]string{a, b})
		}
	default:
		m.Problem("merges", "found no list of pairs of tokens")
		return nil, nil, nil, f.whole.Err()
	}
	return vocab, merges, func(i int) string { return fmt.Sprintf("%s: model.merges[%d]", f.whole.File(), i) }, nil
}

// maxID bounds token ids; the largest published vocabularies have under 300 000 tokens.
const maxID = 1 << 24

// readVocab reads an object of tokens and ids; problems go to the file's config.
func readVocab(object, file *checkpoint.Config) (map[string]int32, error) {
	keys := object.Keys()
	vocab := make(map[string]int32, len(keys))
	for _, t := range keys {
		id, err := strconv.Atoi(string(object.Raw(t)))
		if err != nil || id < 0 || id >= maxID {
			object.Problem(t, "found %s, wanted a token id from 0 to %d", object.Raw(t), maxID-1)
			return nil, file.Err()
		}
		vocab[t] = int32(id)
	}
	if len(vocab) == 0 {
		return nil, fmt.Errorf("%s: found no tokens, wanted an object of tokens and ids", object.File())
	}
	return vocab, nil
}

// readMerges reads merges.txt: a first line with the version, then a merge a line, its two tokens with a space between.
func readMerges(vocab map[string]int32, path string) (map[string]int32, [][2]string, func(i int) string, error) {
	data, err := readFile(path)
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
	return vocab, merges, func(i int) string { return fmt.Sprintf("%s:%d", path, lines[i]) }, nil
}

// unigram reads the pieces and the table of replacements, of tokenizer.json or of spiece.model; where names the file.
func (f *folder) unigram() (pieces []piece, table []byte, where string, err error) {
	if f.whole == nil {
		where = filepath.Join(f.dir, "spiece.model")
		data, err := readFile(where)
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
	var list [][2]any
	raw := m.Raw("vocab")
	if raw == nil || json.Unmarshal(raw, &list) != nil || len(list) == 0 {
		m.Problem("vocab", "found no list of pairs of a piece and its score")
		return nil, nil, where, f.whole.Err()
	}
	pieces = make([]piece, len(list))
	for i, entry := range list {
		text, isText := entry[0].(string)
		score, isNumber := entry[1].(float64)
		if !isText || !isNumber || math.IsInf(score, 0) {
			m.Problem(fmt.Sprintf("vocab[%d]", i), "found %v, wanted a piece and its score", entry)
			return nil, nil, where, f.whole.Err()
		}
		pieces[i] = piece{text, score}
	}
	table, err = charsMapOf(f.whole)
	return pieces, table, where, err
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
	// add keeps the first entry of a spelling.
	add := func(t addedToken, id int) {
		if slices.ContainsFunc(tokens, func(o addedToken) bool { return o.content == t.content }) {
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
	named := map[string]int32{}
	for _, key := range []string{"bos_token", "eos_token", "unk_token", "pad_token"} {
		t, ok := f.named(key, listed == nil)
		if !ok {
			t = addedToken{content: defaults[key]}
		}
		if t.content == "" {
			continue
		}
		add(t, -1)
		for _, o := range tokens {
			if o.content == t.content {
				named[key] = o.id
			}
		}
	}
	for _, content := range extra {
		add(addedToken{content: content}, -1)
	}
	b.pad = named["pad_token"]
	b.padLeft = f.config.OneOf("padding_side", "right", "right", "left") == "left"
	b.cleanUp = f.config.Bool("clean_up_tokenization_spaces", false)
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
// tokenizer_config.json. ok is false when neither has it.
func (f *folder) named(key string, withMap bool) (t addedToken, ok bool) {
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
			return addedToken{content: c.String(key, "")}, true
		}
	}
	return addedToken{}, false
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
