package scheduler

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"precast/graph/checkpoint"
)

// Parse makes a scheduler from the text of --scheduler, "CLASS" or "CLASS,key=value,...", and the config of the scheduler
// that it replaces. As with diffusers' from_config, the fields of base that the class has too carry over, and the others
// are ignored; each key=value then replaces one field. A value is JSON (true, 0.5, null, [1,2]) or else a bare string. base may be nil.
//
// The error lists the known classes where CLASS is not one of them, and the class's keys where a key is not one of them.
func Parse(text string, base *checkpoint.Config) (*Scheduler, error) {
	parts := splitList(text)
	name := strings.TrimSpace(parts[0])
	if name == "" || strings.Contains(name, "=") {
		return nil, fmt.Errorf("scheduler: found %q, wanted CLASS[,key=value...] with CLASS one of %s", text, strings.Join(Known(), ", "))
	}
	c, err := lookup(name)
	if err != nil {
		return nil, fmt.Errorf("scheduler: %w", err)
	}
	keys, err := c.keys()
	if err != nil {
		return nil, err
	}
	file := "--scheduler " + text
	if base != nil {
		file = base.File() + " with " + file
	}
	cfg, err := checkpoint.ParseConfig(file, []byte("{}"))
	if err != nil {
		return nil, err
	}
	if base != nil {
		for _, k := range keys {
			if raw := base.Raw(k); raw != nil {
				if err := cfg.Set(k, raw); err != nil {
					return nil, err
				}
			}
		}
	}
	given := map[string]bool{}
	for _, part := range parts[1:] {
		key, value, ok := strings.Cut(part, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		switch {
		case !ok || key == "":
			return nil, fmt.Errorf("scheduler: found %q in %q, wanted key=value", part, text)
		case given[key]:
			return nil, fmt.Errorf("scheduler: %s is given twice in %q", key, text)
		case !slices.Contains(keys, key):
			return nil, fmt.Errorf("scheduler: %s has no field %q; it has %s", name, key, strings.Join(keys, ", "))
		}
		given[key] = true
		raw := json.RawMessage(value)
		if !json.Valid(raw) {
			if raw, err = json.Marshal(value); err != nil {
				return nil, fmt.Errorf("scheduler: %s: %w", key, err)
			}
		}
		if err := cfg.Set(key, raw); err != nil {
			return nil, err
		}
	}
	return New(name, cfg)
}

// keys are the config fields of the class, sorted: those that reading an empty config asks for.
func (c *class) keys() ([]string, error) {
	cfg, err := checkpoint.ParseConfig(c.name, []byte("{}"))
	if err != nil {
		return nil, err
	}
	f := &fields{cfg: cfg}
	c.read(f)
	slices.Sort(f.keys)
	return slices.Compact(f.keys), nil
}

// splitList splits at the commas outside of brackets and quotes.
func splitList(text string) []string {
	var parts []string
	depth, quoted, start := 0, false, 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			depth--
		case c == ',' && depth <= 0:
			parts = append(parts, text[start:i])
			start = i + 1
		}
	}
	return append(parts, text[start:])
}
