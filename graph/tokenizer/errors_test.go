package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

func TestOpenErrors(t *testing.T) {
	clip, t5 := []string{"clip/vocab.json", "clip/merges.txt"}, []string{"t5/spiece.model"}
	text := func(name, content string) func(dir string) {
		return func(dir string) { write(t, dir, name, []byte(content)) }
	}
	field := func(num protowire.Number, b []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), b)
	}
	pieceOf := func(s string, score uint32) []byte {
		return field(1, protowire.AppendFixed32(protowire.AppendTag(field(1, []byte(s)), 2, protowire.Fixed32Type), score))
	}
	unigram := func(rest string) string {
		return `{"model": {"type": "Unigram", "vocab": [["<pad>", 0], ["</s>", 0], ["<unk>", 0], ["a", -1.5]]}` + rest + "}"
	}
	for _, tt := range []struct {
		name  string
		class string
		files []string
		setup func(dir string)
		want  string
	}{
		{"unknown class", "BertTokenizer", clip, nil, `tokenizer class "BertTokenizer" is not supported; known are CLIPTokenizer, CLIPTokenizerFast, PixtralProcessor, `},
		{"no files", "CLIPTokenizer", nil, nil, "vocab.json: no such file or directory; wanted vocab.json and merges.txt, or tokenizer.json"},
		{"no merges", "CLIPTokenizer", clip[:1], nil, "merges.txt: no such file or directory"},
		{"no model", "T5Tokenizer", nil, nil, "spiece.model: no such file or directory; wanted spiece.model, or tokenizer.json"},
		{"empty vocab", "CLIPTokenizer", clip, text("vocab.json", ""), "vocab.json: found an empty file"},
		{"broken vocab", "CLIPTokenizer", clip, text("vocab.json", "{\n\"a\": 1"), "vocab.json:2:7: broken JSON"},
		{"vocab a list", "CLIPTokenizer", clip, text("vocab.json", "[1]"), "vocab.json: found no tokens, wanted an object of tokens and ids"},
		{"id a string", "CLIPTokenizer", clip, text("vocab.json", `{"a": "0"}`), `vocab.json: "a": found "0", wanted a token id`},
		{"id negative", "CLIPTokenizer", clip, text("vocab.json", `{"a": -1}`), `vocab.json: "a": found -1, wanted a token id`},
		{"id absurd", "CLIPTokenizer", clip, text("vocab.json", `{"a": 99999999999}`), `vocab.json: "a": found 99999999999, wanted a token id from 0 to`},
		{"token twice", "CLIPTokenizer", clip, text("vocab.json", `{"a": 1, "a": 2}`), `vocab.json: token "a" is given twice`},
		{"merge of one", "CLIPTokenizer", clip, text("merges.txt", "#version: 0.2\ni n\nabc\n"), `merges.txt:3: found "abc", wanted two tokens`},
		{"merge of three", "CLIPTokenizer", clip, text("merges.txt", "i n g\n"), `merges.txt:1: found "i n g"`},
		{"merge of unknown", "CLIPTokenizer", clip, text("merges.txt", "#version: 0.2\n\ni nnn\n"), `merges.txt:3: merge of "i" and "nnn": token "nnn" is not in the vocabulary`},
		{"empty merges", "CLIPTokenizer", clip, text("merges.txt", ""), "merges.txt: found no merges"},
		{"merges without a merge", "CLIPTokenizer", clip, text("merges.txt", "#version: 0.2\n\n"), "merges.txt: found no merges"},
		{"merges not text", "CLIPTokenizer", clip, text("merges.txt", "\xff \xfe\n"), "merges.txt: found bytes that are not UTF-8"},
		{"merges a folder", "CLIPTokenizer", clip, func(dir string) {
			if err := os.Remove(filepath.Join(dir, "merges.txt")); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(filepath.Join(dir, "merges.txt"), 0o755); err != nil {
				t.Fatal(err)
			}
		}, "merges.txt: found a directory, wanted a file"},
		{"config broken", "CLIPTokenizer", clip, text("tokenizer_config.json", "{"), "tokenizer_config.json:1:2: broken JSON"},
		{"config a list", "CLIPTokenizer", clip, text("tokenizer_config.json", "[]"), "tokenizer_config.json: found a list [], wanted a JSON object"},
		{"padding side", "CLIPTokenizer", clip, text("tokenizer_config.json", `{"padding_side": "top"}`), `tokenizer_config.json: padding_side: found "top", wanted one of right, left`},
		{"pad token a number", "CLIPTokenizer", clip, text("tokenizer_config.json", `{"pad_token": 3}`), "tokenizer_config.json: pad_token: found 3, wanted a string"},
		{"token without content", "CLIPTokenizer", clip, text("tokenizer_config.json", `{"pad_token": {"lstrip": 1}}`), "pad_token.lstrip: found 1, wanted true or false\n"},
		{"added id", "CLIPTokenizer", clip, text("tokenizer_config.json", `{"added_tokens_decoder": {"x": {}}}`), "tokenizer_config.json: added_tokens_decoder.x: found this key, wanted a token id"},
		{"added token", "CLIPTokenizer", clip, text("tokenizer_config.json", `{"added_tokens_decoder": {"1": "x"}}`), "added_tokens_decoder.1: found the string \"x\", wanted an object"},
		{"special map", "CLIPTokenizer", clip, text("special_tokens_map.json", `{"bos_token": []}`), "special_tokens_map.json: bos_token: found a list []"},
		{"json without a model", "CLIPTokenizer", nil, text("tokenizer.json", `{}`), "tokenizer.json: model: found nothing, wanted an object"},
		{"json of another model", "CLIPTokenizer", nil, text("tokenizer.json", `{"model": {"type": "WordPiece"}}`), `tokenizer.json: model.type: found "WordPiece", wanted "BPE"`},
		{"json vocab", "CLIPTokenizer", nil, text("tokenizer.json", `{"model": {"vocab": [], "merges": []}}`), "tokenizer.json: model.vocab: found no tokens"},
		{"json no merges", "CLIPTokenizer", nil, text("tokenizer.json", `{"model": {"vocab": {"a": 0}}}`), "tokenizer.json: model.merges: found no merges"},
		{"json merge", "CLIPTokenizer", nil, text("tokenizer.json", `{"model": {"vocab": {"a": 0}, "merges": [["a"]]}}`), `tokenizer.json: model.merges[0]: found ["a"], wanted two tokens`},
		{"json merge of unknown", "CLIPTokenizer", nil, text("tokenizer.json", `{"model": {"vocab": {"a": 0}, "merges": ["a b"]}}`), `tokenizer.json: model.merges[0]: merge of "a" and "b": token "b" is not`},
		{"json added tokens", "CLIPTokenizer", clip, text("tokenizer.json", `{"added_tokens": [{"content": "x"}], "model": {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}}`), "tokenizer.json: added_tokens[0].id: found no token id"},
		{"json added object", "CLIPTokenizer", clip, text("tokenizer.json", `{"added_tokens": {}, "model": {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}}`), "tokenizer.json: added_tokens: found a list of another form"},
		{"not a protobuf", "T5Tokenizer", t5, text("spiece.model", "\xff\xff\xff"), "spiece.model: not a protobuf message"},
		{"empty model", "T5Tokenizer", t5, text("spiece.model", ""), "spiece.model: found no pieces"},
		{"cut model", "T5Tokenizer", t5, func(dir string) {
			if err := os.Truncate(filepath.Join(dir, "spiece.model"), 1000); err != nil {
				t.Fatal(err)
			}
		}, "spiece.model: not a protobuf message"},
		{"model of another kind", "T5Tokenizer", t5, text("spiece.model", string(field(2, protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), 2)))), "spiece.model: model_type: found 2, wanted 1 (a unigram model)"},
		{"piece not text", "T5Tokenizer", t5, text("spiece.model", string(pieceOf("\xff", 0))), `spiece.model: piece 0: found the text "\xff", wanted UTF-8`},
		{"score not finite", "T5Tokenizer", t5, text("spiece.model", string(pieceOf("a", 0x7fc00000))), "spiece.model: piece 0: found the score NaN"},
		{"table cut", "T5Tokenizer", t5, text("spiece.model", string(append(pieceOf("a", 0), field(3, field(2, []byte{0, 1, 0, 0, 9}))...))), "spiece.model: precompiled_charsmap: found a trie of 256 bytes in a table of 1"},
		{"table short", "T5Tokenizer", t5, text("spiece.model", string(append(pieceOf("a", 0), field(3, field(2, []byte{1}))...))), "spiece.model: precompiled_charsmap: found 1 bytes"},
		{"json pieces", "T5Tokenizer", nil, text("tokenizer.json", `{"model": {"vocab": {}}}`), "tokenizer.json: model.vocab: found no pieces"},
		{"json piece", "T5Tokenizer", nil, text("tokenizer.json", `{"model": {"vocab": [["a", 0], ["b"]]}}`), `tokenizer.json: model.vocab[1]: found ["b"], wanted a piece and its score`},
		{"json score", "T5Tokenizer", nil, text("tokenizer.json", `{"model": {"vocab": [["a", "0"]]}}`), "tokenizer.json: model.vocab[0]: found"},
		{"json table", "T5Tokenizer", nil, text("tokenizer.json", unigram(`, "normalizer": {"type": "Precompiled", "precompiled_charsmap": "?"}`)), "tokenizer.json: normalizer.precompiled_charsmap: found text that is not base64"},
		{"json normalizer", "T5Tokenizer", nil, text("tokenizer.json", unigram(`, "normalizer": [3]`)), "tokenizer.json: normalizer: found an object of another form"},
		{"extra ids", "T5Tokenizer", t5, text("tokenizer_config.json", `{"extra_ids": -1}`), "tokenizer_config.json: extra_ids: found -1, wanted 0 to"},
		{"extra ids a string", "T5Tokenizer", t5, text("tokenizer_config.json", `{"extra_ids": "x"}`), `tokenizer_config.json: extra_ids: found the string "x", wanted an integer`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := assemble(t, tt.files, nil)
			if tt.setup != nil {
				tt.setup(dir)
			}
			_, err := Open(dir, tt.class)
			if err == nil || !strings.HasPrefix(err.Error(), dir) || !strings.Contains(err.Error()+"\n", tt.want) {
				t.Errorf("got %v\nwant %s ... %s", err, dir, tt.want)
			}
		})
	}
	dir := t.TempDir()
	if _, err := Open(filepath.Join(dir, "gone"), "T5Tokenizer"); err == nil || !strings.Contains(err.Error(), "gone: no such file or directory") {
		t.Errorf("missing folder: %v", err)
	}
	write(t, dir, "file", nil)
	if _, err := Open(filepath.Join(dir, "file"), "T5Tokenizer"); err == nil || !strings.Contains(err.Error(), "found a file, wanted a tokenizer's folder") {
		t.Errorf("a file: %v", err)
	}
	loop := filepath.Join(dir, "loop")
	if err := os.Symlink(loop, loop); err == nil {
		if _, err := Open(loop, "T5Tokenizer"); err == nil || !strings.Contains(err.Error(), "too many levels of symbolic links") {
			t.Errorf("a loop: %v", err)
		}
	}
}

func TestEncodeErrors(t *testing.T) {
	tok := open(t, "clip")
	if _, err := tok.Encode("caf\xe9 x", Options{}); err == nil || err.Error() != "the text is not UTF-8: found byte 0xe9 at position 3, wanted UTF-8" {
		t.Errorf("got %v", err)
	}
	// U+FFFD itself is a character like any other.
	if _, err := tok.Encode("\ufffd", Options{}); err != nil {
		t.Error(err)
	}
	if _, err := tok.Encode("a cat", Options{MaxLength: 1, Truncate: true, AddSpecial: true}); err == nil || !strings.Contains(err.Error(), "a length of 1 has no room for the 2 special tokens") {
		t.Errorf("got %v", err)
	}
}

// open opens a folder of the golden file.
func open(t testing.TB, name string) Tokenizer {
	t.Helper()
	f := readGolden(t).Folders[name]
	tok, err := Open(assemble(t, f.Files, f.Configs), f.Class)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestTruncation(t *testing.T) {
	for _, tt := range []struct {
		folder string
		n      int
		cut    string
	}{
		{"clip", 6, "on a horse"},
		{"clip", 100, ""},
		{"clip", 2, "a photo of a cat on a horse"},
		{"t5", 6, "cat on a horse"},
		{"t5", 100, ""},
	} {
		tok := open(t, tt.folder)
		e, err := tok.Encode("a photo of a cat on a horse", Options{MaxLength: tt.n, Truncate: true, AddSpecial: true})
		if err != nil {
			t.Fatal(err)
		}
		if tt.cut != "" && !strings.HasSuffix(strings.TrimSpace(e.Cut), tt.cut) || tt.cut == "" && e.Cut != "" {
			t.Errorf("%s at %d: cut %q, want %q", tt.folder, tt.n, e.Cut, tt.cut)
		}
		all, err := tok.Encode("a photo of a cat on a horse", Options{AddSpecial: true})
		if err != nil {
			t.Fatal(err)
		}
		if want := min(tt.n, len(all.IDs)); len(e.IDs) != want || len(e.Mask) != want {
			t.Errorf("%s at %d: %d ids, want %d", tt.folder, tt.n, len(e.IDs), want)
		}
		if last := e.IDs[len(e.IDs)-1]; last != all.IDs[len(all.IDs)-1] {
			t.Errorf("%s at %d: the last id is %d, not the end token", tt.folder, tt.n, last)
		}
	}
}

func TestLookups(t *testing.T) {
	clip, t5 := open(t, "clip"), open(t, "t5")
	if clip.MaxLength() != 77 || t5.MaxLength() != 512 || clip.VocabSize() != 959 || t5.VocabSize() != 700 {
		t.Errorf("lengths %d, %d; sizes %d, %d", clip.MaxLength(), t5.MaxLength(), clip.VocabSize(), t5.VocabSize())
	}
	for tok, want := range map[string]int32{"</s>": 1, "<pad>": 0, "<extra_id_0>": 699, "▁a": 5} {
		if id, ok := t5.TokenID(tok); !ok || id != want {
			t.Errorf("%s: got %d, %v, want %d", tok, id, ok, want)
		}
	}
	if _, ok := clip.TokenID("</s>"); ok {
		t.Error("CLIP has no </s>")
	}
	if got := t5.Decode([]int32{-1, 5, 1 << 30}); got != "a" {
		t.Errorf("ids without a token: %q", got)
	}
}

func TestPadLeft(t *testing.T) {
	f := readGolden(t).Folders["t5-spiece"]
	tok, err := Open(assemble(t, f.Files, map[string]json.RawMessage{"tokenizer_config.json": json.RawMessage(`{"padding_side": "left"}`)}), f.Class)
	if err != nil {
		t.Fatal(err)
	}
	e, err := tok.Encode("a", Options{MaxLength: 4, Pad: true, AddSpecial: true})
	if err != nil || !slices.Equal(e.IDs, []int32{0, 0, 5, 1}) || !slices.Equal(e.Mask, []int32{0, 0, 1, 1}) {
		t.Errorf("got %v, %v", e, err)
	}
}

func fuzz(f *testing.F, folder string) {
	tok := open(f, folder)
	size := int32(tok.VocabSize())
	g := readGolden(f)
	for _, s := range g.Texts[:40] {
		f.Add(s, 12)
	}
	f.Add("\xff", 3)
	f.Fuzz(func(t *testing.T, text string, n int) {
		e, err := tok.Encode(text, Options{MaxLength: n, Pad: n < 1000, Truncate: true, AddSpecial: true})
		if err != nil {
			return
		}
		if len(e.IDs) != len(e.Mask) || len(e.IDs) > max(n, 0) {
			t.Fatalf("%d ids and %d of the mask at a length of %d", len(e.IDs), len(e.Mask), n)
		}
		for _, id := range e.IDs {
			if id < 0 || id >= size {
				t.Fatalf("id %d of %d", id, size)
			}
		}
		tok.Decode(e.IDs)
	})
}

func FuzzCLIP(f *testing.F) { fuzz(f, "clip-strip") }

func FuzzT5(f *testing.F) { fuzz(f, "t5-spiece") }

// Whatever a SentencePiece file holds, reading it and normalizing with its table ends without a panic.
func FuzzSentencePiece(f *testing.F) {
	data, err := os.ReadFile(filepath.Join("testdata", "base", "t5", "spiece.model"))
	if err != nil {
		f.Fatal(err)
	}
	_, table, err := parseSentencePiece(data)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data[:2000], table[:400], "ﬁ①é")
	f.Add(data[len(data)-2000:], table[len(table)-400:], "a")
	f.Fuzz(func(t *testing.T, model, table []byte, text string) {
		if pieces, _, err := parseSentencePiece(model); err == nil {
			newUnigram(pieces).encode(text)
		}
		if m, err := newCharsMap(table); err == nil {
			m.normalize(text)
		}
	})
}
