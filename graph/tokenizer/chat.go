package tokenizer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/nikolalohinski/gonja/v2/builtins"
	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/loaders"
	"github.com/nikolalohinski/gonja/v2/parser"
	"github.com/nikolalohinski/gonja/v2/tokens"

	"precast/graph/checkpoint"
)

// Message is one message of a chat.
type Message struct {
	// Role is "system", "user" or "assistant".
	Role string
	// Content is the message's text.
	Content string
	// Blocks, where not nil, is the content as a list of text blocks instead of one string, as the pipelines of FLUX.2-dev give it:
	// templates may tell the two apart.
	Blocks []string
}

// ChatOptions are what apply_chat_template of transformers takes beside the messages.
type ChatOptions struct {
	// AddGenerationPrompt adds the beginning of the assistant's answer (add_generation_prompt).
	AddGenerationPrompt bool
	// EnableThinking is given to the template as enable_thinking; nil leaves it undefined.
	EnableThinking *bool
}

// chatTemplate is a checkpoint's chat template, a Jinja program. It is compiled when it is first used.
type chatTemplate struct {
	where, text string
	compile     func() (*exec.Template, error)
	// one execution at a time: gonja does not say that a template may run several
	mu sync.Mutex
}

// maxTemplate bounds a template's length in bytes; the longest published ones have some 20 000. Its nesting, and with it the depth of
// the parser's recursion, is bounded by that.
const maxTemplate = 1 << 16

// chatTemplate reads the template from where transformers 5 looks for it: chat_template.jinja, before the field chat_template of
// tokenizer_config.json. Processors of older versions have it in chat_template.json. It returns nil when there is none.
func (f *folder) chatTemplate() (*chatTemplate, error) {
	path := filepath.Join(f.dir, "chat_template.jinja")
	data, err := checkpoint.ReadFile(path)
	switch {
	case err == nil:
		return newChatTemplate(path, string(data))
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	c := f.config
	if !c.Has("chat_template") {
		path = filepath.Join(f.dir, "chat_template.json")
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if c, err = checkpoint.ReadConfig(path); err != nil {
			return nil, err
		}
		if !c.Has("chat_template") {
			return nil, fmt.Errorf("%s: chat_template: found nothing, wanted a template", path)
		}
	}
	raw := c.Raw("chat_template")
	text, ok := checkpoint.Text(raw)
	// A list has several templates with names.
	for _, entry := range checkpoint.ListElements(raw) {
		fields := map[string]string{}
		for key, value := range checkpoint.ObjectFields(entry) {
			fields[key], _ = checkpoint.Text(value)
		}
		if fields["name"] == "default" {
			text, ok = fields["template"], true
		}
	}
	if !ok {
		c.Problem("chat_template", `found neither a text nor a list with a template of the name "default"`)
		return nil, c.Err()
	}
	return newChatTemplate(c.File()+": chat_template", text)
}

func newChatTemplate(where, text string) (*chatTemplate, error) {
	if len(text) > maxTemplate || !utf8.ValidString(text) {
		return nil, fmt.Errorf("%s: found a chat template of %d bytes, wanted at most %d of UTF-8", where, len(text), maxTemplate)
	}
	if strings.TrimSpace(text) == "" {
		return nil, fmt.Errorf("%s: found an empty chat template, which would leave out every prompt", where)
	}
	c := &chatTemplate{where: where, text: text}
	c.compile = sync.OnceValues(c.parse)
	return c, nil
}

// The parts of Jinja that a template may use. The parts by which it could run without end, call itself, read files or make a huge text
// of a short one at once are left out: a template comes with a checkpoint, and such a program would take the process with it. The
// templates of Qwen2, Qwen2.5, Qwen3 and Mistral need none of them. What is left, loops within loops over the messages and sums of
// texts with themselves, is not bounded; neither is it in the sandbox of transformers.
var (
	chatStatements = []string{"if", "for", "set", "break", "continue"}
	chatFilters    = []string{"count", "d", "default", "first", "last", "length", "list", "lower", "string", "trim", "upper"}
	chatMethods    = []string{"endswith", "find", "lower", "lstrip", "rstrip", "split", "startswith", "strip", "upper"}
)

// environment is made once: its sets are read only.
var chatEnvironment = sync.OnceValue(func() *exec.Environment {
	statements := map[string]parser.ControlStructureParser{}
	for _, name := range chatStatements {
		statements[name], _ = builtins.ControlStructures.Get(name)
	}
	filters := map[string]exec.FilterFunction{
		"tojson": func(*exec.Evaluator, *exec.Value, *exec.VarArgs) *exec.Value {
			return exec.AsValue(errors.New("tools are not supported"))
		},
	}
	for _, name := range chatFilters {
		filters[name], _ = builtins.Filters.Get(name)
	}
	methods := map[string]exec.Method[string]{}
	for _, name := range chatMethods {
		methods[name], _ = builtins.Methods.Str.Get(name)
	}
	namespace, _ := builtins.GlobalFunctions.Get("namespace")
	return &exec.Environment{
		ControlStructures: exec.NewControlStructureSet(statements),
		Filters:           exec.NewFilterSet(filters),
		Tests:             builtins.Tests,
		Methods: exec.Methods{
			Bool: exec.NewMethodSet[bool](nil), Int: exec.NewMethodSet[int](nil), Float: exec.NewMethodSet[float64](nil),
			Str: exec.NewMethodSet(methods), List: exec.NewMethodSet[[]any](nil),
			Dict: builtins.Methods.Dict,
		},
		Context: exec.NewContext(map[string]any{
			"namespace": namespace,
			"raise_exception": func(_ *exec.Evaluator, args *exec.VarArgs) (any, error) {
				text := "the template refuses these messages"
				if len(args.Args) > 0 {
					text = args.Args[0].String()
				}
				return nil, errors.New(text)
			},
		}),
	}
})

func (c *chatTemplate) parse() (t *exec.Template, err error) {
	defer func() {
		if r := recover(); r != nil {
			t, err = nil, fmt.Errorf("%s: the chat template can't be read: %v", c.where, r)
		}
	}()
	cfg := config.New()
	cfg.TrimBlocks, cfg.LeftStripBlocks = true, true // as transformers sets up Jinja
	for s := tokens.Lex(c.text, cfg); !s.End(); s.Next() {
		if k := s.Current().Type; k == tokens.Multiply || k == tokens.Power {
			return nil, fmt.Errorf("%s:%d: found %q in the chat template, which is not supported", c.where, s.Current().Line, s.Current().Val)
		}
	}
	const name = "/chat_template"
	loader, err := loaders.NewMemoryLoader(map[string]string{name: c.text})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.where, err)
	}
	if t, err = exec.NewTemplate(name, cfg, loader, chatEnvironment()); err != nil {
		// gonja puts the whole template into the message.
		text := strings.TrimPrefix(err.Error(), fmt.Sprintf("failed to parse template '%s': ", c.text))
		return nil, fmt.Errorf("%s: the chat template can't be read: %s", c.where, text)
	}
	return t, nil
}

// RenderChat implements Tokenizer.
func (b *base) RenderChat(messages []Message, o ChatOptions) (text string, err error) {
	c := b.chat
	if c == nil {
		return "", errors.New("the tokenizer has no chat template: its folder has neither chat_template.jinja nor chat_template in tokenizer_config.json")
	}
	if len(messages) == 0 {
		return "", errors.New("found no messages, wanted one or more")
	}
	t, err := c.compile()
	if err != nil {
		return "", err
	}
	list := make([]any, len(messages))
	for i, m := range messages {
		content := any(m.Content)
		if m.Blocks != nil {
			blocks := make([]any, len(m.Blocks))
			for j, text := range m.Blocks {
				blocks[j] = map[string]any{"type": "text", "text": text}
			}
			content = blocks
		}
		list[i] = map[string]any{"role": m.Role, "content": content}
	}
	variables := map[string]any{"messages": list, "tools": nil, "documents": nil, "add_generation_prompt": o.AddGenerationPrompt}
	for role, token := range b.named {
		variables[role] = token
	}
	if o.EnableThinking != nil {
		variables["enable_thinking"] = *o.EnableThinking
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() {
		if r := recover(); r != nil {
			text, err = "", fmt.Errorf("%s: the chat template fails: %v", c.where, r)
		}
	}()
	if text, err = t.ExecuteToString(exec.NewContext(variables)); err != nil {
		return "", fmt.Errorf("%s: the chat template fails: %w", c.where, err)
	}
	return text, nil
}
