package backends

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

var (
	registryMu sync.Mutex
	registry   = map[string]func(argument string) (Plugin, error){}
)

// Register makes an implementation known under a name ("go", "pjrt"). open gets what follows the colon in Open. A second
// registration of a name panics: it is a fault of the program.
func Register(name string, open func(argument string) (Plugin, error)) {
	registryMu.Lock()
	defer registryMu.Unlock()
	if _, dup := registry[name]; dup {
		panic("BUG: backend " + name + " registered twice")
	}
	registry[name] = open
}

// Names returns the registered names, sorted.
func Names() []string {
	registryMu.Lock()
	defer registryMu.Unlock()
	names := make([]string, 0, len(registry))
	for n := range registry {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Open opens a backend by "name" or "name:argument": "go", "pjrt:PATH" with the path of a plugin's shared library.
func Open(spec string) (Plugin, error) {
	name, argument, _ := strings.Cut(spec, ":")
	registryMu.Lock()
	open, ok := registry[name]
	registryMu.Unlock()
	if !ok {
		return nil, fmt.Errorf("backend %q is not known; known are %s", name, strings.Join(Names(), ", "))
	}
	return open(argument)
}
