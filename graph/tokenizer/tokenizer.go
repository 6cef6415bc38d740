// Package tokenizer turns prompts into token ids as transformers does, from the files of a checkpoint's own tokenizer folder.
//
// Three kinds are read: CLIP's byte-level BPE with end-of-word marks (clip.go), T5's unigram model (t5.go), and the byte-level BPE with
// chat templates of Qwen and Mistral (bytelevel.go, chat.go). They are written here because no maintained library in Go gives the ids
// of transformers for them: those in pure Go read SentencePiece's BPE models alone, or leave the process on bad input, and the others
// bind to Rust or C++. The parts with published specifications come from libraries: NFC from x/text, grapheme clusters from uniseg,
// the SentencePiece file's encoding from protowire, chat templates' language from gonja.
//
// A further kind is one more file with a type that implements model and one more line in the table classes.
package tokenizer

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// Tokenizer turns text into token ids and back. It is safe for concurrent use.
type Tokenizer interface {
	// Encode returns the ids of text. Text that is not UTF-8 is an error.
	Encode(text string, o Options) (Encoding, error)
	// Decode returns the text of ids, special tokens included. Ids without a token are left out.
	Decode(ids []int32) string
	// VocabSize is one more than the largest id.
	VocabSize() int
	// MaxLength is the folder's model_max_length, 0 when it gives none.
	MaxLength() int
	// TokenID returns the id of a token as it is spelt in the vocabulary ("</s>"); ok is false when there is none.
	TokenID(token string) (id int32, ok bool)
	// RenderChat returns the text that the checkpoint's own chat template makes of messages. It is encoded without AddSpecial: the
	// template has the special tokens already.
	RenderChat(messages []Message, o ChatOptions) (string, error)
}

// Options say how the ids of a text are brought to a length.
type Options struct {
	// MaxLength is the number of ids that Pad and Truncate aim at, special tokens included.
	MaxLength int
	// Pad adds padding ids up to MaxLength, on the side that the folder says (padding_side).
	Pad bool
	// Truncate cuts the text's ids, at the side that the folder says (truncation_side), so that they and the special tokens fit MaxLength.
	Truncate bool
	// AddSpecial puts the tokens of beginning and end around the text's ids.
	AddSpecial bool
}

// Encoding is a text's token ids.
type Encoding struct {
	IDs []int32
	// Mask is 1 for an id of the text or a special token, 0 for padding.
	Mask []int32
	// Cut is the text of the ids that Truncate left out, empty when it left out none.
	Cut string
}

// model is what a kind of tokenizer implements; base does the rest.
type model interface {
	// encode returns the ids of a stretch of text without added tokens in it.
	encode(text string) []int32
	// normalize is applied to text before added tokens that ask for it are looked for, and before encode.
	normalize(text string) string
	// decode joins the spellings of tokens to text.
	decode(tokens []string) string
	// token returns a token's spelling.
	token(id int32) (string, bool)
	// id returns a token's id.
	id(token string) (int32, bool)
	// size is one more than the model's largest id.
	size() int
}

// base is the part that all kinds share: added tokens, special tokens around the text, truncation and padding.
type base struct {
	model          model
	added          *addedTokens
	prefix, suffix []int32 // the special tokens around a text
	pad            int32   // noPad: there is none
	padLeft        bool
	cutLeft        bool
	maxLength      int
	named          map[string]string // special tokens by role ("eos_token")
	chat           *chatTemplate     // nil: the class has none
	cleanUp        bool              // decoded text loses spaces before punctuation
}

const noPad = -1

// classes are the tokenizer classes that are read, by their names in model_index.json.
var classes = map[string]func(dir string) (*base, error){
	"CLIPTokenizer":           openCLIP,
	"CLIPTokenizerFast":       openCLIP,
	"T5Tokenizer":             openT5,
	"T5TokenizerFast":         openT5,
	"Qwen2Tokenizer":          openQwen2,
	"Qwen2TokenizerFast":      openQwen2,
	"PixtralProcessor":        openWhole,
	"PreTrainedTokenizerFast": openWhole,
	"TokenizersBackend":       openWhole,
}

// Classes returns the names of the classes that Open reads, sorted.
func Classes() []string { return slices.Sorted(maps.Keys(classes)) }

// Open reads the tokenizer of that class from the folder dir. Errors name the file, and the field or line in it.
func Open(dir, class string) (Tokenizer, error) {
	open, ok := classes[class]
	if !ok {
		return nil, fmt.Errorf("%s: tokenizer class %q is not supported; known are %s", dir, class, strings.Join(Classes(), ", "))
	}
	b, err := open(dir)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Encode implements Tokenizer.
func (b *base) Encode(text string, o Options) (Encoding, error) {
	if i := invalidUTF8(text); i >= 0 {
		return Encoding{}, fmt.Errorf("the text is not UTF-8: found byte %#02x at position %d, wanted UTF-8", text[i], i)
	}
	var prefix, suffix []int32
	if o.AddSpecial {
		prefix, suffix = b.prefix, b.suffix
	}
	ids := b.encodeText(text)
	var e Encoding
	if room := o.MaxLength - len(prefix) - len(suffix); o.Truncate && len(ids) > room {
		if room < 0 {
			return Encoding{}, fmt.Errorf("a length of %d has no room for the %d special tokens around a text; wanted %d or more",
				o.MaxLength, len(prefix)+len(suffix), len(prefix)+len(suffix))
		}
		if over := len(ids) - room; b.cutLeft {
			e.Cut, ids = b.Decode(ids[:over]), ids[over:]
		} else {
			e.Cut, ids = b.Decode(ids[room:]), ids[:room]
		}
	}
	e.IDs = slices.Concat(prefix, ids, suffix)
	e.Mask = make([]int32, len(e.IDs))
	for i := range e.Mask {
		e.Mask[i] = 1
	}
	if n := o.MaxLength - len(e.IDs); o.Pad && n > 0 {
		if b.pad == noPad {
			return Encoding{}, errors.New("the tokenizer has no pad_token, so a text can't be brought to a length; name one in tokenizer_config.json")
		}
		padding := slices.Repeat([]int32{b.pad}, n)
		zeros := make([]int32, n)
		if b.padLeft {
			e.IDs, e.Mask = append(padding, e.IDs...), append(zeros, e.Mask...)
		} else {
			e.IDs, e.Mask = append(e.IDs, padding...), append(e.Mask, zeros...)
		}
	}
	return e, nil
}

// encodeText splits text at added tokens and encodes what is between them. Tokens that are matched in the text as it stands come
// first; the rest is normalized, and the other added tokens are looked for in that.
func (b *base) encodeText(text string) []int32 {
	var ids []int32
	b.added.raw.split(text, func(part string, id int32) {
		if id >= 0 {
			ids = append(ids, id)
			return
		}
		b.added.normalized.split(b.model.normalize(part), func(part string, id int32) {
			if id >= 0 {
				ids = append(ids, id)
				return
			}
			ids = append(ids, b.model.encode(part)...)
		})
	})
	return ids
}

// Decode implements Tokenizer.
func (b *base) Decode(ids []int32) string {
	tokens := make([]string, 0, len(ids))
	for _, id := range ids {
		if t, ok := b.added.byID[id]; ok {
			tokens = append(tokens, t)
		} else if t, ok := b.model.token(id); ok {
			tokens = append(tokens, t)
		}
	}
	text := b.model.decode(tokens)
	if b.cleanUp {
		for _, c := range cleanUps {
			text = strings.ReplaceAll(text, " "+c, c)
		}
	}
	return text
}

// cleanUps are what stands without a space before it in English text; transformers' clean_up_tokenization, in its order.
var cleanUps = []string{".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re"}

// VocabSize implements Tokenizer.
func (b *base) VocabSize() int {
	n := b.model.size()
	for id := range b.added.byID {
		n = max(n, int(id)+1)
	}
	return n
}

// MaxLength implements Tokenizer.
func (b *base) MaxLength() int { return b.maxLength }

// TokenID implements Tokenizer.
func (b *base) TokenID(token string) (int32, bool) {
	if id, ok := b.added.byText[token]; ok {
		return id, true
	}
	return b.model.id(token)
}

// invalidUTF8 returns the place of the first byte that is not part of a valid character, -1 when there is none.
func invalidUTF8(s string) int {
	if utf8.ValidString(s) {
		return -1
	}
	for i, r := range s {
		if r == utf8.RuneError {
			if _, n := utf8.DecodeRuneInString(s[i:]); n == 1 {
				return i
			}
		}
	}
	return -1
}
