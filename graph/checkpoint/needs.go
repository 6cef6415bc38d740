package checkpoint

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Needs says which of a component's files are read, before they are there.
type Needs struct {
	// Files are the component's config, and the files of a tokenizer; names in its folder, sorted.
	Files []string
	// Weights is the weight file or index that is read, empty for what has none; Sharded says that it is an index, whose shards ReadShards lists.
	Weights string
	Sharded bool
	// Variant is that of Weights.
	Variant string
}

// Needs chooses from names, those of the files in the component's folder, what is read from there: its config, a tokenizer's files, and one set of
// safetensors weights, the one that Tensors would read; with configOnly the config alone, which a tokenizer may lack. An error says what is missing
// or there instead; it is about the folder as a whole, since no file has to be there yet.
func (ck *Checkpoint) Needs(component string, names []string, configOnly bool) (*Needs, error) {
	c := ck.components[component]
	if c == nil {
		return nil, fmt.Errorf("%s: %s: found no such component, wanted [library, class]; there are %s",
			ck.Path(indexName), component, strings.Join(ck.names, ", "))
	}
	n := &Needs{}
	if c.isTokenizer() && configOnly {
		if slices.Contains(names, c.configName()) {
			n.Files = []string{c.configName()}
		}
		return n, nil
	}
	if c.isTokenizer() {
		for _, name := range names {
			if slices.Contains([]string{".json", ".txt", ".model", ".jinja"}, path.Ext(name)) {
				n.Files = append(n.Files, name)
			}
		}
		if len(n.Files) == 0 {
			return nil, fmt.Errorf("%s: found no files of tokenizer %q (%s)", c.dir, c.Name, c.Class)
		}
		slices.Sort(n.Files)
		return n, nil
	}
	if !slices.Contains(names, c.configName()) {
		return nil, fmt.Errorf("%s: found no %s of component %q (%s)", c.dir, c.configName(), c.Name, c.Class)
	}
	n.Files = []string{c.configName()}
	if configOnly || c.configName() != "config.json" {
		return n, nil
	}
	sets, variants := pickWeights(names, c.variant)
	switch {
	case len(sets) > 0:
		n.Weights, n.Sharded, n.Variant = sets[0].file, sets[0].sharded, sets[0].variant
		return n, nil
	case len(variants) > 1:
		return nil, fmt.Errorf("%s: found weights of the variants %s and no plain ones; choose one of them", c.dir, strings.Join(variants, ", "))
	}
	return nil, c.noWeights(names)
}

// isTokenizer says that the component is a tokenizer or a processor that holds one.
func (c *Component) isTokenizer() bool {
	return strings.Contains(c.Class, "Tokenizer") || strings.HasSuffix(c.Class, "Processor") && !strings.HasSuffix(c.Class, "ImageProcessor")
}

// ClassOf is the class that model_index.json gives for the component, "" where it lists none. The component's folder need not be there.
func (ck *Checkpoint) ClassOf(component string) string {
	if c := ck.components[component]; c != nil {
		return c.Class
	}
	return ""
}

// ReadShards returns the file names that a *.safetensors.index.json names, sorted: safetensors files beside it.
func ReadShards(index string) ([]string, error) {
	_, weightMap, err := readIndex(index)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, name := range weightMap {
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
