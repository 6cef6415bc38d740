package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// small is a tokenizer.json of three tokens and one merge; fields replace or add to its own.
func small(t testing.TB, model string, fields ...string) string {
	t.Helper()
	all := map[string]json.RawMessage{
		"model":         json.RawMessage(`{"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]` + model + `}`),
		"pre_tokenizer": json.RawMessage(`{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}`),
	}
	for i := 0; i < len(fields); i += 2 {
		all[fields[i]] = json.RawMessage(fields[i+1])
	}
	data, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func splitOf(pattern string) string {
	data, _ := json.Marshal(pattern)
	return `{"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": ` + string(data) + `}, "behavior": "Isolated", "invert": false}, {"type": "ByteLevel"}]}`
}

func TestByteLevelErrors(t *testing.T) {
	const file, conf, chat = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
	const whole, qwen = "PixtralProcessor", "Qwen2TokenizerFast"
	deep := `{"type": "NFC"}`
	for range 12 {
		deep = `{"type": "Sequence", "normalizers": [` + deep + `]}`
	}
	for _, tt := range []struct {
		name, class, file, text, want string
	}{
		{"no file", whole, conf, "{}", "tokenizer.json: no such file; this class has its vocabulary there"},
		{"no vocabulary", qwen, conf, "{}", "vocab.json: no such file or directory; wanted vocab.json and merges.txt, or tokenizer.json"},
		{"other model", whole, file, `{"model": {"type": "WordPiece"}}`, `tokenizer.json: model.type: found "WordPiece", wanted "BPE"`},
		{"no model", qwen, file, `{}`, "tokenizer.json: model: found nothing, wanted an object"},
		{"id absurd", whole, file, `{"model": {"vocab": {"a": 16777216}}, "pre_tokenizer": {"type": "ByteLevel"}}`, `tokenizer.json: model.vocab: "a": found 16777216, wanted a token id from 0 to`},
		{"merge of unknown", whole, file, `{"model": {"vocab": {"a": 0}, "merges": [["a", "a"]]}, "pre_tokenizer": {"type": "ByteLevel"}}`, `tokenizer.json: model.merges[0]: merge of "a" and "a": token "aa" is not in the vocabulary`},
		{"suffix", whole, file, small(t, `, "end_of_word_suffix": "</w>"`), `model.end_of_word_suffix: found "</w>", wanted none`},
		{"prefix", whole, file, small(t, `, "continuing_subword_prefix": "##"`), `model.continuing_subword_prefix: found "##", wanted none`},
		{"fallback", whole, file, small(t, `, "byte_fallback": true`), "model.byte_fallback: found true, wanted false"},
		{"dropout", qwen, file, small(t, `, "dropout": 0.1`), "model.dropout: found 0.1, wanted none"},
		{"unknown token", whole, file, small(t, `, "unk_token": "c"`), `model.unk_token: found "c", which is not in the vocabulary`},
		{"flag", whole, file, small(t, `, "fuse_unk": 3`), "model.fuse_unk: found 3, wanted true or false"},
		{"normalizer", whole, file, small(t, "", "normalizer", `{"type": "Lowercase"}`), `tokenizer.json: normalizer.type: found "Lowercase", wanted one of NFC, NFD, NFKC, NFKD, Sequence`},
		{"normalizer a list", whole, file, small(t, "", "normalizer", `[3]`), "tokenizer.json: normalizer: found an object of another form"},
		{"normalizer in a sequence", whole, file, small(t, "", "normalizer", `{"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Replace"}]}`), `normalizer.normalizers[1].type: found "Replace"`},
		{"normalizer deep", whole, file, small(t, "", "normalizer", deep), "found sequences more than 8 deep"},
		{"no pre-tokenizer", whole, file, small(t, "", "pre_tokenizer", "null"), "tokenizer.json: pre_tokenizer: found no ByteLevel in it, wanted byte-level BPE"},
		{"pre-tokenizer", whole, file, small(t, "", "pre_tokenizer", `{"type": "Metaspace"}`), `pre_tokenizer.type: found "Metaspace", wanted one of ByteLevel, Split, Sequence`},
		{"split's behavior", whole, file, small(t, "", "pre_tokenizer", `{"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Removed"}`), `pre_tokenizer.behavior: found "Removed", invert false; wanted "Isolated"`},
		{"split's pattern", whole, file, small(t, "", "pre_tokenizer", `{"type": "Split", "pattern": {"String": "a"}, "behavior": "Isolated"}`), "pre_tokenizer.pattern: found map[String:a], wanted a Regex"},
		{"pattern", whole, file, small(t, "", "pre_tokenizer", splitOf(`a(`)), `pre_tokenizer.pretokenizers[0].pattern: pattern "a(": at byte 2: found a group that does not end`},
		{"post-processor", whole, file, small(t, "", "post_processor", `{"type": "BertProcessing"}`), `post_processor.type: found "BertProcessing", wanted one of ByteLevel, TemplateProcessing, Sequence`},
		{"template's token", whole, file, small(t, "", "post_processor", `{"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]}`), `post_processor.single[0]: found "<s>" with the ids []`},
		{"template's id", whole, file, small(t, "", "post_processor", `{"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "s"}}], "special_tokens": {"s": {"ids": [-1]}}}`), `post_processor.single[0]: found "s" with the ids [-1]`},
		{"template without text", whole, file, small(t, "", "post_processor", `{"type": "TemplateProcessing", "single": []}`), "post_processor.single: found no Sequence"},
		{"added id", whole, file, small(t, "", "added_tokens", `[{"id": 99999999, "content": "x"}]`), "tokenizer.json: added_tokens[0].id: found no token id from 0 to"},
		{"truncation side", qwen, conf, `{"truncation_side": "up"}`, `tokenizer_config.json: truncation_side: found "up", wanted one of right, left`},
		{"split special", qwen, conf, `{"split_special_tokens": true}`, "tokenizer_config.json: split_special_tokens: found true, wanted false"},
		{"chat a number", qwen, conf, `{"chat_template": 3}`, "tokenizer_config.json: chat_template: found neither a text nor a list"},
		{"chat without default", qwen, conf, `{"chat_template": [{"name": "tools", "template": ""}]}`, "tokenizer_config.json: chat_template: found neither a text nor a list"},
		{"chat long", qwen, chat, strings.Repeat("a", maxTemplate+1), "chat_template.jinja: found a chat template of 65537 bytes, wanted at most 65536"},
		{"chat empty", qwen, chat, " \n", "chat_template.jinja: found an empty chat template"},
		{"chat not text", qwen, chat, "\xff", "chat_template.jinja: found a chat template of 1 bytes"},
		{"processor's chat", qwen, "chat_template.json", "{}", "chat_template.json: chat_template: found nothing, wanted a template"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var files []string
			if tt.class == qwen && tt.file != file && tt.name != "no vocabulary" {
				files = []string{"qwen/vocab.json", "qwen/merges.txt"}
			}
			dir := assemble(t, files, nil)
			write(t, dir, tt.file, []byte(tt.text))
			_, err := Open(dir, tt.class)
			if err == nil || !strings.HasPrefix(err.Error(), dir) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v\nwant %s ... %s", err, dir, tt.want)
			}
		})
	}
}

func TestPatterns(t *testing.T) {
	for pattern, want := range map[string]string{
		`a|b)`:                            "at byte 3: found a ')' that closes nothing",
		`[a`:                              "found a class that does not end",
		`[a[b]]`:                          "found '[' inside a class",
		`[a&&b]`:                          "found '&' inside a class",
		`a\`:                              `found a \ at the end`,
		`\p{L`:                            `found "\\p{" without an end`,
		`\p{Klingon}`:                     "invalid character class range",
		`\bword`:                          `found \b, which is not supported`,
		`(a)\1`:                           `found \1, which is not supported`,
		`^a`:                              "found '^', which is not supported",
		`a$`:                              "found '$', which is not supported",
		`(?<=a)b`:                         `found a group "(?<=", which is not supported`,
		`(?>a)`:                           `found a group "(?>a", which is not supported`,
		`(?:a(?!b))`:                      "found a lookahead inside a group",
		`a(?!b)c`:                         `found "c" after a lookahead, wanted the end of the alternative`,
		`a(?!bc)`:                         "found a negative lookahead of more than one character",
		`a(?!b`:                           "found a group that does not end",
		`a*+`:                             "invalid nested repetition operator",
		`((a{1000}){1000}){1000}`:         "invalid repeat count",
		`\p{`:                             `found "\\p{" without an end`,
		`a{1001}`:                         "invalid repeat count",
		strings.Repeat("(", 200) + "a":    "found groups more than 100 deep",
		strings.Repeat("a", maxPattern+1): "found a pattern of 16385 bytes, wanted at most 16384",
		"\xff":                            "found a pattern that is not UTF-8",
		`[z-a]`:                           "invalid character class range",
		`*`:                               "missing argument to repetition operator",
	} {
		if _, err := compilePattern(pattern); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: got %v, want %s", pattern, err, want)
		}
	}
	for _, tt := range []struct {
		pattern, text string
		want          []string
	}{
		{`\s+(?!\S)|\s+`, "a   b  ", []string{"a", "  ", " ", "b", "  "}},
		{`\s+(?!\S)|\s+`, "\u00a0\u3000x", []string{"\u00a0", "\u3000", "x"}},
		{`a+(?=b)|a`, "aaab aa", []string{"aaa", "b ", "a", "a"}},
		{`[a-c]+(?![^c])`, "abcab cc", []string{"ab", "cab ", "cc"}},
		{`x*`, "axxb", []string{"a", "xx", "b"}},
		{`(?i:'s)`, "'S'\u017f", []string{"'S", "'\u017f"}},
		{`(a|b)(c)`, "acbcc", []string{"ac", "bc", "c"}},
		{`[\S]`, "a \u00e9", []string{"a", " ", "\u00e9"}},
		{`\w+\d`, "a_\u0661-b2", []string{"a_\u0661", "-", "b2"}},
		{`\x{61}+|\.`, "aa.b", []string{"aa", ".", "b"}},
	} {
		p, err := compilePattern(tt.pattern)
		if err != nil {
			t.Errorf("%q: %v", tt.pattern, err)
			continue
		}
		var got []string
		p.split(tt.text, func(part string) { got = append(got, part) })
		if !slices.Equal(got, tt.want) {
			t.Errorf("%q on %q: got %q, want %q", tt.pattern, tt.text, got, tt.want)
		}
	}
}

func TestLossyString(t *testing.T) {
	// What Rust's from_utf8_lossy and Python's errors="replace" give.
	for in, want := range map[string]string{
		"a\xf0\x9f\x90": "a\ufffd", "\xf0\x9f\x90\x88": "🐈", "\xff\xfe": "\ufffd\ufffd", "\xe2\x41": "\ufffdA", "\xf0\x9f\xff": "\ufffd\ufffd", "\x80\x80": "\ufffd\ufffd",
		"\xed\xa0\x80": "\ufffd\ufffd\ufffd", "\xc0\xaf": "\ufffd\ufffd", "\xe4\xb8": "\ufffd", "\xf4\x90": "\ufffd\ufffd",
	} {
		if got := lossyString([]byte(in)); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestNoPad(t *testing.T) {
	dir := assemble(t, nil, map[string]json.RawMessage{"tokenizer.json": json.RawMessage(small(t, ""))})
	tok, err := Open(dir, "PixtralProcessor")
	if err != nil {
		t.Fatal(err)
	}
	if e, err := tok.Encode("aab?", Options{}); err != nil || !slices.Equal(e.IDs, []int32{0, 2}) {
		t.Errorf("got %v, %v", e, err)
	}
	if _, err := tok.Encode("a", Options{MaxLength: 3, Pad: true}); err == nil || !strings.Contains(err.Error(), "the tokenizer has no pad_token") {
		t.Errorf("got %v", err)
	}
}

func TestRenderChatErrors(t *testing.T) {
	one := []Message{{Role: "user", Content: "x"}}
	for _, tt := range []struct{ name, template, want string }{
		{"none", "", "the tokenizer has no chat template"},
		{"broken", "{% if %}", "the chat template can't be read"},
		{"unknown filter", "{{ messages | sort }}", "chat_template.jinja: the chat template fails"},
		{"unknown statement", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "the chat template can't be read"},
		{"file", `{% include "/etc/hostname" %}`, "the chat template can't be read"},
		{"long text", `{{ "a" * 10000000000 }}`, `chat_template.jinja:1: found "*" in the chat template, which is not supported`},
		{"range", "{% for i in range(1000000000) %}{% endfor %}", "the chat template fails"},
		{"zero", "{{ 1 % 0 }}", "the chat template fails"},
		{"refusal", "{{ raise_exception('only pictures') }}", "only pictures"},
		{"undefined", "{{ messages[3].content.x }}", "the chat template fails"},
		{"nested", "{{ " + strings.Repeat("(", 30000) + "1", "the chat template can't be read"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := assemble(t, []string{"qwen/vocab.json", "qwen/merges.txt"}, nil)
			if tt.template != "" {
				write(t, dir, "chat_template.jinja", []byte(tt.template))
			}
			tok, err := Open(dir, "Qwen2Tokenizer")
			if err != nil {
				t.Fatal(err)
			}
			if text, err := tok.RenderChat(one, ChatOptions{}); err == nil || !strings.Contains(err.Error(), tt.want) || len(err.Error()) > 1000 {
				t.Errorf("got %q, %v; want %s", text, err, tt.want)
			}
		})
	}
	tok := open(t, "qwen")
	if _, err := tok.RenderChat(nil, ChatOptions{}); err == nil || !strings.Contains(err.Error(), "found no messages") {
		t.Errorf("no messages: %v", err)
	}
	if _, err := open(t, "clip").RenderChat(one, ChatOptions{}); err == nil || !strings.Contains(err.Error(), "the tokenizer has no chat template") {
		t.Errorf("CLIP: %v", err)
	}
}

// The forms in which folders give a template, and what a prompt may hold without being taken for a part of it.
func TestRenderChat(t *testing.T) {
	const prompt = "{{ x }} {% if %} <b> & 'q' \"d\" \\n\n 猫🐈 "
	const want = "[user]" + prompt + "</s>"
	const template = "{% for m in messages %}\n{{ '[' + m.role + ']' + m['content'] + eos_token }}\n{%- endfor %}"
	text, _ := json.Marshal(template)
	for name, files := range map[string]map[string]json.RawMessage{
		"file":      {"chat_template.jinja": json.RawMessage(template), "tokenizer_config.json": json.RawMessage(`{"chat_template": "x", "eos_token": "</s>"}`)},
		"config":    {"tokenizer_config.json": json.RawMessage(`{"chat_template": ` + string(text) + `, "eos_token": "</s>"}`)},
		"list":      {"tokenizer_config.json": json.RawMessage(`{"chat_template": [{"name": "tool_use", "template": "x"}, {"name": "default", "template": ` + string(text) + `}], "eos_token": {"content": "</s>"}}`)},
		"processor": {"chat_template.json": json.RawMessage(`{"chat_template": ` + string(text) + `}`), "tokenizer_config.json": json.RawMessage(`{"eos_token": "</s>"}`)},
	} {
		tok, err := Open(assemble(t, []string{"qwen/vocab.json", "qwen/merges.txt"}, files), "Qwen2Tokenizer")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tok.RenderChat([]Message{{Role: "user", Content: prompt}}, ChatOptions{}); err != nil || got != want {
			t.Errorf("%s: got %q, %v; want %q", name, got, err, want)
		}
	}
}

// What takes long must not grow faster than the text: a prompt may be anything.
func TestLinear(t *testing.T) {
	const size = 1 << 19
	for _, folder := range []string{"qwen", "mistral", "gpt2-nfkc"} {
		tok := open(t, folder)
		for _, unit := range []string{"a", "A", " ", "\n ", "'s", "ʰ", "\u0301", "Aa ", "!\n", "<|im_start|", "🐈"} {
			start := time.Now()
			if _, err := tok.Encode(strings.Repeat(unit, size/len(unit)), Options{}); err != nil {
				t.Fatal(err)
			}
			// It takes a tenth of a second; were it quadratic, it would be hours.
			if d := time.Since(start); d > 20*time.Second {
				t.Errorf("%s: %q %d times: %v", folder, unit, size/len(unit), d)
			}
		}
	}
}

// A tokenizer.json of Qwen's size, 151 643 tokens and as many merges in 11 MB, is open well within a second.
func TestOpenLarge(t *testing.T) {
	const size = 151643
	var tokens []string
	known := map[string]bool{}
	for b := range 256 {
		tokens = append(tokens, string(byteRune[b]))
		known[tokens[b]] = true
	}
	var vocab, merges bytes.Buffer
	for i := 0; len(tokens) < size; i++ {
		// Every token is one of the first ones and a byte.
		a, b := tokens[i/256], tokens[i%256]
		if known[a+b] {
			continue
		}
		known[a+b] = true
		tokens = append(tokens, a+b)
		pair, _ := json.Marshal([]string{a, b})
		fmt.Fprintf(&merges, ",\n      %s", pair)
	}
	for i, s := range tokens {
		text, _ := json.Marshal(s)
		fmt.Fprintf(&vocab, ",\n      %s: %d", text, i)
	}
	var j map[string]json.RawMessage
	data, err := os.ReadFile(filepath.Join("testdata", "base", "qwen", "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &j); err != nil {
		t.Fatal(err)
	}
	j["model"] = json.RawMessage(fmt.Sprintf(`{"type": "BPE", "vocab": {%s}, "merges": [%s]}`, vocab.Bytes()[1:], merges.Bytes()[1:]))
	j["added_tokens"] = json.RawMessage(fmt.Sprintf(`[{"id": %d, "content": "<|endoftext|>", "special": true}]`, size))
	if data, err = json.MarshalIndent(j, "", "  "); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write(t, dir, "tokenizer.json", data)
	best := time.Hour
	for range 3 {
		start := time.Now()
		tok, err := Open(dir, "Qwen2Tokenizer")
		if err != nil {
			t.Fatal(err)
		}
		best = min(best, time.Since(start))
		if n := tok.VocabSize(); n != size+1 {
			t.Fatalf("%d tokens", n)
		}
	}
	t.Logf("%.1f MB open in %v", float64(len(data))/1e6, best)
	if best > time.Second {
		t.Errorf("%.1f MB took %v", float64(len(data))/1e6, best)
	}
}

func FuzzQwen(f *testing.F) { fuzz(f, "qwen") }

func FuzzMistral(f *testing.F) { fuzz(f, "mistral-bos-eos") }

// Whatever a tokenizer.json holds, opening and encoding end without a panic.
func FuzzTokenizerJSON(f *testing.F) {
	f.Add(small(f, ""), "aab")
	f.Add(small(f, "", "pre_tokenizer", splitOf(qwenPattern)), "a b")
	f.Add(small(f, `, "ignore_merges": true`, "normalizer", `{"type": "NFKC"}`, "post_processor", `{"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}]}`), "ﬁ")
	f.Fuzz(func(t *testing.T, file, text string) {
		dir := t.TempDir()
		write(t, dir, "tokenizer.json", []byte(file))
		tok, err := Open(dir, "PixtralProcessor")
		if err != nil {
			return
		}
		if e, err := tok.Encode(text, Options{AddSpecial: true}); err == nil {
			tok.Decode(e.IDs)
		}
	})
}

// Whatever a chat template holds, rendering ends soon and without a panic.
func FuzzChatTemplate(f *testing.F) {
	for _, text := range []string{
		"{{ messages[0].content }}",
		"{% for m in messages[::-1] %}{{ m.role }}{{ loop.index0 }}{% endfor %}",
		"{% if a is defined and not b %}{% set ns = namespace(x=1) %}{% set ns.x = ns.x + 1 %}{{ ns.x }}{% elif true %}{% else %}{% endif %}",
		"{{- bos_token }}{{ 'a' + 'b' ~ 1 }}{{ messages|length - 1 }}{{ x | default('y') | trim | upper }} {# note #}",
		"{{ messages[0]['content'].split('</think>')[-1].lstrip('\n').startswith('a') }}{{ raise_exception('no') }}",
	} {
		f.Add(text, "a <b>")
	}
	for _, name := range []string{"qwen", "mistral"} {
		f.Add(open(f, name).(*base).chat.text, "a cat")
	}
	f.Fuzz(func(t *testing.T, template, text string) {
		c, err := newChatTemplate("chat_template.jinja", template)
		if err != nil {
			return
		}
		b := &base{chat: c, named: map[string]string{"bos_token": "<s>", "eos_token": "</s>"}}
		start := time.Now()
		_, _ = b.RenderChat([]Message{{Role: "system", Blocks: []string{text}}, {Role: "user", Content: text}}, ChatOptions{AddGenerationPrompt: true})
		if d := time.Since(start); d > 10*time.Second {
			t.Errorf("%v", d)
		}
	})
}
