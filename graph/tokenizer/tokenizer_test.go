package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"precast/graph/checkpoint"
)

// reference is the folder of the golden tests: the one that PRECAST_REFERENCE names, else the whole set beside the repository, else the part
// of it that the repository ships.
func reference(t testing.TB) string {
	t.Helper()
	for _, dir := range []string{
		os.Getenv("PRECAST_REFERENCE"),
		filepath.Join("..", "..", "..", "shared", "reference"),
		filepath.Join("..", "..", "tests", "testdata"),
	} {
		if _, err := os.Stat(filepath.Join(dir, "tiny")); dir != "" && err == nil {
			return dir
		}
	}
	t.Fatal("no reference set: tests/testdata is not there")
	return ""
}

// golden is one tokenizer's part of a tokenizers.json: what transformers made of each string.
type golden struct {
	Class string `json:"class"`
	PadID int32  `json:"pad_id"`
	EosID int32  `json:"eos_id"`

	Strings []struct {
		Text   string  `json:"text"`
		IDs    []int32 `json:"ids"`
		IDs77  []int32 `json:"ids_77"`
		Mask77 []int32 `json:"mask_77"`
		IDs24  []int32 `json:"ids_24"`
		Mask24 []int32 `json:"mask_24"`
	} `json:"strings"`

	Chats []struct {
		Variant, Prompt, Rendered string
		IDs                       []int32 `json:"ids"`
	}
}

// check compares a tokenizer with what transformers gave.
func check(t *testing.T, tok Tokenizer, g golden) {
	t.Helper()
	if len(g.Strings) < 60 {
		t.Fatalf("only %d strings", len(g.Strings))
	}
	encode := func(text string, o Options) Encoding {
		e, err := tok.Encode(text, o)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		return e
	}
	for _, s := range g.Strings {
		all := encode(s.Text, Options{AddSpecial: true})
		if !slices.Equal(all.IDs, s.IDs) {
			t.Errorf("%q:\n got %v\nwant %v", s.Text, all.IDs, s.IDs)
		}
		n, ids, mask := 77, s.IDs77, s.Mask77
		if ids == nil {
			n, ids, mask = 24, s.IDs24, s.Mask24
		}
		e := encode(s.Text, Options{MaxLength: n, Pad: true, Truncate: true, AddSpecial: true})
		if !slices.Equal(e.IDs, ids) || !slices.Equal(e.Mask, mask) {
			t.Errorf("%q at %d:\n got %v %v\nwant %v %v", s.Text, n, e.IDs, e.Mask, ids, mask)
		}
		if (e.Cut != "") != (len(s.IDs) > n) {
			t.Errorf("%q at %d: cut %q of %d ids", s.Text, n, e.Cut, len(s.IDs))
		}
	}
}

// fluxSystem is the system message of FLUX.2-dev (diffusers, pipelines/flux2/system_messages.py).
const fluxSystem = "You are an AI that reasons about image descriptions. You give structured responses focusing on object relationships, object\nattribution and actions without speculation."

// checkChats compares rendered chats and their ids.
func checkChats(t *testing.T, tok Tokenizer, g golden) {
	t.Helper()
	for _, c := range g.Chats {
		user := Message{Role: "user", Content: c.Prompt}
		messages, o := []Message{user}, ChatOptions{AddGenerationPrompt: true}
		switch c.Variant {
		case "thinking_on", "thinking_off":
			on := c.Variant == "thinking_on"
			o.EnableThinking = &on
		case "flux2_system":
			// The pipeline itself takes the picture token out of prompts (format_input in pipelines/flux2/pipeline_flux2.py).
			c.Prompt = strings.ReplaceAll(c.Prompt, "[IMG]", "")
			messages, o.AddGenerationPrompt = []Message{{Role: "system", Blocks: []string{fluxSystem}}, {Role: "user", Blocks: []string{c.Prompt}}}, false
		default:
			t.Fatalf("unknown variant %q", c.Variant)
		}
		got, err := tok.RenderChat(messages, o)
		if err != nil || got != c.Rendered {
			t.Errorf("%s: %q: got %q, %v\nwant %q", c.Variant, c.Prompt, got, err, c.Rendered)
		}
		if e, err := tok.Encode(got, Options{}); err != nil || !slices.Equal(e.IDs, c.IDs) {
			t.Errorf("%s: %q: got %v, %v\nwant %v", c.Variant, c.Prompt, e.IDs, err, c.IDs)
		}
	}
}

// Every tokenizer of the reference set gives the ids of transformers for every string, and its chats.
func TestReference(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(reference(t), "tiny", "*", "tokenizers.json"))
	if err != nil || len(files) == 0 {
		t.Fatal("no goldens", err)
	}
	checked := 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var all map[string]golden
		if err := json.Unmarshal(data, &all); err != nil {
			t.Fatal(err)
		}
		for name, g := range all {
			t.Run(filepath.Base(filepath.Dir(file))+"/"+name, func(t *testing.T) {
				// The class by which the checkpoint names it, such as PixtralProcessor.
				index, err := checkpoint.ReadConfig(filepath.Join(filepath.Dir(file), "model", "model_index.json"))
				if err != nil {
					t.Fatal(err)
				}
				names := index.Strings(name, nil)
				if len(names) != 2 {
					t.Fatalf("model_index.json: %s: %v", name, names)
				}
				tok, err := Open(filepath.Join(filepath.Dir(file), "model", name), names[1])
				if err != nil {
					t.Fatal(err)
				}
				check(t, tok, g)
				checkChats(t, tok, g)
			})
			checked++
		}
	}
	if checked < 5 {
		t.Errorf("only %d tokenizers checked", checked)
	}
}
