package tokenizer

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/text/unicode/norm"
)

// byteLevel is byte-level BPE as Qwen and Mistral have it: Unicode normalization, a split by regular expressions, then merges of the
// bytes of each part.
type byteLevel struct {
	*bpe
	normalizers []norm.Form
	splits      []split
	// whole takes a part that is a token as it is, without looking for merges ("ignore_merges").
	whole bool
}

// split is one step of a pre-tokenizer.
type split struct {
	pattern *pattern // nil: the step does not split
	// prefixSpace puts a space in front of each part that begins with none.
	prefixSpace bool
}

func (m *byteLevel) normalize(text string) string {
	for _, form := range m.normalizers {
		text = form.String(text)
	}
	return text
}

func (m *byteLevel) encode(text string) []int32 {
	var ids []int32
	m.split(m.splits, text, func(part string) {
		if m.whole {
			var spelling strings.Builder
			for i := range len(part) {
				spelling.WriteRune(byteRune[part[i]])
			}
			if id, ok := m.vocab[spelling.String()]; ok {
				ids = append(ids, id)
				return
			}
		}
		ids = m.word(ids, []byte(part))
	})
	return ids
}

func (m *byteLevel) split(steps []split, text string, emit func(part string)) {
	if len(steps) == 0 {
		emit(text)
		return
	}
	s := steps[0]
	next := func(part string) { m.split(steps[1:], part, emit) }
	if s.prefixSpace && !strings.HasPrefix(text, " ") {
		text = " " + text
	}
	if s.pattern == nil {
		next(text)
		return
	}
	s.pattern.split(text, next)
}

func (*byteLevel) decode(tokens []string) string {
	var b []byte
	for _, t := range tokens {
		b = appendBytesOf(b, t)
	}
	return lossyString(b)
}

// qwenPattern is how Qwen2Tokenizer splits text (transformers, models/qwen2/tokenization_qwen2.py); the published tokenizer.json of
// Qwen2, Qwen2.5 and Qwen3 have the same.
const qwenPattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

// openQwen2 opens the tokenizer of Qwen2, Qwen2.5-VL and Qwen3. As in transformers 5, its class says how text is normalized and
// split; tokenizer.json, where there is one, gives vocabulary, merges, added tokens and the tokens around a text.
func openQwen2(dir string) (*base, error) {
	f, err := readFolder(dir, "vocab.json", "merges.txt")
	if err != nil {
		return nil, err
	}
	p, err := compilePattern(qwenPattern)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	m := &byteLevel{normalizers: []norm.Form{norm.NFC}, splits: []split{{pattern: p}}}
	if f.config.Bool("add_prefix_space", false) {
		m.splits = append(m.splits, split{prefixSpace: true})
	}
	return f.byteLevel(m, map[string]string{"eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>"})
}

// openWhole opens a tokenizer of which tokenizer.json says everything, as Mistral's does behind PixtralProcessor.
func openWhole(dir string) (*base, error) {
	f, err := readFolder(dir)
	if err != nil {
		return nil, err
	}
	if f.whole == nil {
		return nil, fmt.Errorf("%s: no such file; this class has its vocabulary there, and tekken.json or tokenizer.model are not read", filepath.Join(dir, "tokenizer.json"))
	}
	if _, err := f.modelObject("BPE"); err != nil {
		return nil, err
	}
	m := &byteLevel{}
	if m.normalizers, err = f.normalizers(); err != nil {
		return nil, err
	}
	if m.splits, err = f.splits(); err != nil {
		return nil, err
	}
	return f.byteLevel(m, nil)
}

// byteLevel reads what Qwen's and Mistral's folders have in common.
func (f *folder) byteLevel(m *byteLevel, defaults map[string]string) (*base, error) {
	vocab, merges, where, err := f.bpe()
	if err != nil {
		return nil, err
	}
	if m.bpe, err = newBPE(vocab, merges, "", where); err != nil {
		return nil, err
	}
	m.unk = noUnknown
	if f.whole != nil {
		if err := f.bpeFlags(m); err != nil {
			return nil, err
		}
	}
	b := &base{model: m}
	named, err := f.finish(b, defaults, nil)
	if err != nil {
		return nil, err
	}
	if _, ok := named["pad_token"]; !ok {
		b.pad = noPad
	}
	if f.config.Bool("split_special_tokens", false) {
		f.config.Problem("split_special_tokens", "found true, wanted false: special tokens that are split like other text are not supported")
	}
	if err := f.around(b, named); err != nil {
		return nil, err
	}
	if b.chat, err = f.chatTemplate(); err != nil {
		return nil, err
	}
	return b, f.config.Err()
}

// bpeFlags reads the fields of tokenizer.json's model beside vocabulary and merges.
func (f *folder) bpeFlags(m *byteLevel) error {
	o := f.whole.Object("model")
	m.whole = o.Bool("ignore_merges", false)
	for _, key := range []string{"continuing_subword_prefix", "end_of_word_suffix"} {
		if s := o.String(key, ""); s != "" {
			o.Problem(key, "found %q, wanted none: byte-level BPE with it is not supported", s)
		}
	}
	if o.Bool("byte_fallback", false) {
		o.Problem("byte_fallback", "found true, wanted false: only byte-level BPE is supported")
	}
	if p := o.Float("dropout", 0); p != 0 {
		o.Problem("dropout", "found %v, wanted none: a random choice of merges is not supported", p)
	}
	m.fuseUnk = o.Bool("fuse_unk", false)
	if unk := o.String("unk_token", ""); unk != "" {
		id, ok := m.vocab[unk]
		if !ok {
			o.Problem("unk_token", "found %q, which is not in the vocabulary", unk)
		}
		m.unk = id
	}
	return f.whole.Err()
}

// part is a normalizer, pre-tokenizer or post-processor of tokenizer.json.
type part struct {
	Type           string                    `json:"type"`
	Normalizers    []json.RawMessage         `json:"normalizers"`
	Pretokenizers  []json.RawMessage         `json:"pretokenizers"`
	Processors     []json.RawMessage         `json:"processors"`
	Pattern        map[string]string         `json:"pattern"`
	Behavior       string                    `json:"behavior"`
	Invert         bool                      `json:"invert"`
	AddPrefixSpace *bool                     `json:"add_prefix_space"`
	UseRegex       *bool                     `json:"use_regex"`
	Single         []map[string]templateItem `json:"single"`
	SpecialTokens  map[string]special        `json:"special_tokens"`
}

type templateItem struct {
	ID string `json:"id"`
}

type special struct {
	IDs []int32 `json:"ids"`
}

// parts reads a field of tokenizer.json that is null, one part or a "Sequence" of them, and calls each with the part and its place.
func (f *folder) parts(key string, each func(p part, where string)) error {
	raw := f.whole.Raw(key)
	if raw == nil {
		return f.whole.Err()
	}
	const deepest = 8
	var walk func(raw json.RawMessage, where string, depth int)
	walk = func(raw json.RawMessage, where string, depth int) {
		var p part
		if err := json.Unmarshal(raw, &p); err != nil {
			f.whole.Problem(where, "found an object of another form: %v", err)
			return
		}
		if p.Type != "Sequence" {
			each(p, where)
			return
		}
		if depth == deepest {
			f.whole.Problem(where, "found sequences more than %d deep", deepest)
			return
		}
		name, list := "normalizers", p.Normalizers
		switch key {
		case "pre_tokenizer":
			name, list = "pretokenizers", p.Pretokenizers
		case "post_processor":
			name, list = "processors", p.Processors
		}
		for i, raw := range list {
			walk(raw, fmt.Sprintf("%s.%s[%d]", where, name, i), depth+1)
		}
	}
	walk(raw, key, 0)
	return f.whole.Err()
}

func (f *folder) normalizers() (forms []norm.Form, err error) {
	known := map[string]norm.Form{"NFC": norm.NFC, "NFD": norm.NFD, "NFKC": norm.NFKC, "NFKD": norm.NFKD}
	err = f.parts("normalizer", func(p part, where string) {
		form, ok := known[p.Type]
		if !ok {
			f.whole.Problem(where+".type", "found %q, wanted one of NFC, NFD, NFKC, NFKD, Sequence", p.Type)
		}
		forms = append(forms, form)
	})
	return forms, err
}

func (f *folder) splits() (splits []split, err error) {
	bytes := false
	err = f.parts("pre_tokenizer", func(p part, where string) {
		var s split
		text := ""
		switch p.Type {
		case "ByteLevel":
			bytes = true
			s.prefixSpace = p.AddPrefixSpace == nil || *p.AddPrefixSpace
			if p.UseRegex == nil || *p.UseRegex {
				text = gpt2Pattern
			}
		case "Split":
			if p.Behavior != "Isolated" || p.Invert {
				f.whole.Problem(where+".behavior", `found %q, invert %v; wanted "Isolated" without invert`, p.Behavior, p.Invert)
				return
			}
			var ok bool
			if text, ok = p.Pattern["Regex"]; !ok {
				f.whole.Problem(where+".pattern", "found %v, wanted a Regex", p.Pattern)
				return
			}
		default:
			f.whole.Problem(where+".type", "found %q, wanted one of ByteLevel, Split, Sequence", p.Type)
			return
		}
		if text != "" {
			if s.pattern, err = compilePattern(text); err != nil {
				f.whole.Problem(where+".pattern", "%v", err)
				return
			}
		}
		splits = append(splits, s)
	})
	if err == nil && !bytes {
		f.whole.Problem("pre_tokenizer", "found no ByteLevel in it, wanted byte-level BPE")
	}
	return splits, f.whole.Err()
}

// around sets the special tokens around a text: those of tokenizer.json's post-processor, or without that file the named ones where
// the config says so. transformers reads add_bos_token and add_eos_token only then (tokenization_utils_base.py, _from_pretrained).
func (f *folder) around(b *base, named map[string]int32) error {
	if f.whole != nil {
		return f.parts("post_processor", func(p part, where string) {
			switch p.Type {
			case "ByteLevel":
			case "TemplateProcessing":
				f.template(b, p, where)
			default:
				f.whole.Problem(where+".type", "found %q, wanted one of ByteLevel, TemplateProcessing, Sequence", p.Type)
			}
		})
	}
	if id, ok := named["bos_token"]; ok && f.config.Bool("add_bos_token", false) {
		b.prefix = []int32{id}
	}
	if id, ok := named["eos_token"]; ok && f.config.Bool("add_eos_token", false) {
		b.suffix = []int32{id}
	}
	return nil
}

// template reads a TemplateProcessing post-processor's form for one text.
func (f *folder) template(b *base, p part, where string) {
	seen := false
	for i, item := range p.Single {
		if _, ok := item["Sequence"]; ok {
			seen = true
			continue
		}
		t := item["SpecialToken"]
		ids := p.SpecialTokens[t.ID].IDs
		if len(ids) == 0 || slices.ContainsFunc(ids, func(id int32) bool { return id < 0 || id >= maxID }) {
			f.whole.Problem(fmt.Sprintf("%s.single[%d]", where, i), "found %q with the ids %v in special_tokens, wanted one or more from 0 to %d", t.ID, ids, maxID-1)
			return
		}
		if seen {
			b.suffix = append(b.suffix, ids...)
		} else {
			b.prefix = append(b.prefix, ids...)
		}
	}
	if !seen {
		f.whole.Problem(where+".single", "found no Sequence, wanted the place of the text")
	}
}
