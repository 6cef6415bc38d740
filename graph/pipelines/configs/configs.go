// Package configs holds the configs of published checkpoints, without weights: enough to trace, check and lower their networks. Where
// each value comes from is in the README beside it.
package configs

import (
	"embed"
	"fmt"
	"io/fs"
	"strings"
)

//go:embed */model_index.json */*/*.json
var files embed.FS

// Names returns the names of the checkpoints, sorted: those of their repositories on the hub, without the owner.
func Names() []string {
	entries, err := fs.ReadDir(files, ".")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

// Open returns a checkpoint's files by the name that Names gives it, in any case: model_index.json and the config of each network and of
// the scheduler. It returns the name as Names spells it, too.
func Open(name string) (fs.FS, string, error) {
	for _, n := range Names() {
		if strings.EqualFold(n, name) {
			sub, err := fs.Sub(files, n)
			return sub, n, err
		}
	}
	return nil, "", fmt.Errorf("found %q, wanted one of %s", name, strings.Join(Names(), ", "))
}
