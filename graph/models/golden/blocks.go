package golden

import (
	"slices"
	"strings"
)

// Blocks returns the modules of a component that have golden inputs and results, without the component's name, in order.
func (c *Case) Blocks(component string) []string {
	var modules []string
	for _, key := range c.goldens.Keys() {
		path, isBlock := strings.CutPrefix(key, "blocks/"+component+".")
		module, _, isResult := strings.Cut(path, "/out/")
		if isBlock && isResult {
			modules = append(modules, module)
		}
	}
	slices.Sort(modules)
	return slices.Compact(modules)
}

// BlockTensors returns the names of a module's golden inputs ("in") or results ("out"), without the path to them: "hidden_states", "1/0".
func (c *Case) BlockTensors(module, side string) []string {
	var names []string
	for _, key := range c.goldens.Keys() {
		if name, ok := strings.CutPrefix(key, "blocks/"+module+"/"+side+"/"); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
