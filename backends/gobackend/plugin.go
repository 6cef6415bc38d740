// Package gobackend runs precast's programs in pure Go: the interfaces of package backends over gomlx's Go backend
// (github.com/gomlx/compute/gobackend). It is the default on a machine without a PJRT plugin, and the oracle of the tests.
//
// A program is executed from its graph (lower.Program.Module, through lower.ToBuilder), not from its StableHLO text. Values are
// computed in the dtypes that the graph says. There is one device. A serialized executable is the graph's text with a checksum; it loads on any
// machine and is built anew in milliseconds.
//
// Executions are asynchronous: Execute returns at once, each execution runs in a goroutine of its own once its arguments are
// computed. Matrix products use all of GOMAXPROCS; built with GOEXPERIMENT=simd on amd64 they use AVX2 or AVX-512.
package gobackend

import (
	"runtime"

	gomlx "github.com/gomlx/compute/gobackend"

	"precast/backends"
)

// Name is the backend's name in backends.Open.
const Name = "go"

func init() {
	backends.Register(Name, func(argument string) (backends.Plugin, error) {
		if argument != "" {
			return nil, backends.Errorf(backends.InvalidArgument, "open backend go", "found argument %q, wanted none", argument)
		}
		return Plugin(), nil
	})
}

// Plugin returns the Go backend.
func Plugin() backends.Plugin { return plugin{} }

type plugin struct{}

// options of gomlx's backend. Operations run one after another in the order of the graph: its parallel mode starts operations as they
// become ready and can run out of workers, for good, when functions call functions; matrix products are parallel inside in both.
const options = "ops_sequential,creation_order"

func (plugin) Name() string                   { return Name }
func (plugin) APIVersion() (major, minor int) { return 0, 0 }

func (plugin) Attributes() map[string]any {
	return map[string]any{"go_version": runtime.Version()}
}

func (plugin) NewClient(opts backends.ClientOptions) (backends.Client, error) {
	const op = "create a client of the Go backend"
	if opts.DeviceCount > 1 {
		return nil, backends.Errorf(backends.InvalidArgument, op, "found device count %d, wanted 1: the Go backend has one device", opts.DeviceCount)
	}
	for name := range opts.Extra {
		return nil, backends.Errorf(backends.InvalidArgument, op, "option %q is not known: the Go backend has no options", name)
	}
	b, err := gomlx.New(options)
	if err != nil {
		return nil, backends.Errorf(backends.Internal, op, "%v", err)
	}
	c := &client{backend: b}
	c.device = &device{c: c}
	liveClients.Add(1)
	return c, nil
}
