package tests

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// absurd are JSON texts that a config field may hold instead of what it should. NaN is not JSON, but Python writes it.
var absurd = []string{
	"-1", "0", "1", "1.5", "1000000000", "1e300", "-9223372036854775808", `"x"`, `""`, "null", "true", "[]", "{}", "[-1]", "[0]", "[1000000000, 1]", `["x", null]`, "NaN", "Infinity",
}

// testBadFields replaces each field of each config by absurd values, one at a time: that is an error which names the component, or a picture.
// Never a crash, a hang, or a lot of memory; the runner sees to that. By default each field gets one of the values; PRECAST_TEST_LONG=1 tries all.
func testBadFields(t *testing.T, c *commandLine) {
	all := long()
	n := 0
	for _, name := range []string{"sd15", "flux1-dev"} {
		dir := model(t, name)
		for _, f := range configFiles(t, dir) {
			if name == "flux1-dev" && (strings.HasPrefix(f, "text_encoder/") || strings.HasPrefix(f, "tokenizer/")) {
				continue // as in sd15
			}
			var fields map[string]json.RawMessage
			must(t, json.Unmarshal(readFile(t, filepath.Join(dir, f)), &fields))
			keys := make([]string, 0, len(fields))
			for k := range fields {
				keys = append(keys, k)
			}
			slices.Sort(keys)
			for _, key := range keys {
				n++
				values := absurd
				if !all {
					// Fields take turns, so that all values come up.
					values = []string{absurd[n%len(absurd)]}
				}
				t.Run(fmt.Sprintf("%s/%s/%s", name, f, key), func(t *testing.T) {
					t.Parallel()
					copied := c.copyModel(t, name)
					for _, v := range values {
						checkField(t, c, name, copied, f, key, v)
					}
				})
			}
		}
	}
}

// configFiles are the JSON files of a checkpoint whose fields are settings.
func configFiles(t *testing.T, dir string) []string {
	t.Helper()
	files := []string{"model_index.json"}
	for _, pattern := range []string{"*/config.json", "*/scheduler_config.json", "*/tokenizer_config.json", "*/special_tokens_map.json"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		must(t, err)
		for _, f := range found {
			rel, err := filepath.Rel(dir, f)
			must(t, err)
			files = append(files, rel)
		}
	}
	return files
}

// checkField runs with one field replaced and puts the file back.
func checkField(t *testing.T, c *commandLine, name, dir, file, key, value string) {
	t.Helper()
	path := filepath.Join(dir, file)
	was := readFile(t, path)
	defer writeFile(t, path, was)
	editJSON(t, path, map[string]any{key: json.RawMessage(value)})
	out := t.TempDir()
	got := c.run(t, invocation{args: runArgs(dir, filepath.Join(out, "picture.png"), "--height", "32", "--width", "32"), dir: out})
	wrote := len(listing(t, out)) > 0
	switch {
	case got.code == 0 && !wrote:
		t.Errorf("%s: %s = %s: success, and no picture", file, key, value)
	case got.code != 0 && wrote:
		t.Errorf("%s: %s = %s: exit code %d, and a picture", file, key, value, got.code)
	case got.code == 1 && !strings.Contains(got.stderr, filepath.Dir(file)) && !strings.Contains(got.stderr, key):
		t.Errorf("%s: %s = %s: the message names neither the component nor the field:\n%.1000s", file, key, value, got.stderr)
	case got.code > 1:
		t.Errorf("%s: %s = %s: exit code %d:\n%.1000s", file, key, value, got.code, got.stderr)
	case got.code == 1 && strings.Contains(got.stderr, "step 1/1"):
		t.Errorf("%s: %s = %s: found after the work only:\n%.1000s", file, key, value, got.stderr)
	}
	if t.Failed() && !long() {
		t.Logf("%s %s: %s = %s: exit code %d, %v, %d MB", name, file, key, value, got.code, got.took, got.memory>>20)
	}
}
