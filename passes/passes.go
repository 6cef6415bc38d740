// Package passes rewrites graph modules: simplification, work moved to load time, repeated blocks made into functions.
//
// List is the one table of passes, in the order in which they run; Order states what that order must keep, as data, and is checked when the
// package is initialised. Each pass is a file with a folder of text cases beside it (testdata/<pass>/*.txtar: a module before and after).
package passes

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"precast/graph"
)

// Pass is one rewrite of a module.
type Pass struct {
	// Name is what the command line and the dumps call the pass.
	Name string
	// Doc says in a sentence what it does.
	Doc string
	// Run rewrites m in place. What it returns is a fault of the pass or of the module it was given, never of the user.
	Run func(m *graph.Module, o *Options) error
}

// Options are the facts that passes may look at.
type Options struct {
	// MaxConstant is the size in bytes up to which constant folding may make a constant that is not a splat.
	MaxConstant int
	// Outline turns the outlining of repeated blocks on ("inline" turns it off).
	Outline bool
	// Scan turns loops over runs of outlined functions on ("scan").
	Scan bool
	// MinBlock is the least number of nodes of a repeated block.
	MinBlock int
}

// DefaultOptions are what the driver uses.
func DefaultOptions() Options { return Options{MaxConstant: 4096, Outline: true, MinBlock: 40} }

// List is every pass in the order in which they run. A name occurs once; a pass that runs twice has two names.
var List = []Pass{
	{"canonicalize", "rewrites each operation to one simplest form: no-op reshapes, chained transposes, neutral elements, constants on the right", canonicalize},
	{"fold-constants", "computes small results of constants", foldConstants},
	{"cse", "keeps one of several equal computations", cse},
	{"dce", "removes what no result needs", dce},
	{"hoist-weights", "moves work that depends on weights alone into the function prepare, which runs once at load", hoistWeights},
	{"outline-repeated-blocks", "turns regions that are equal up to their weights into one private function each", outline},
	{"scan-repeated-calls", "turns a run of calls of one outlined function into a loop over their stacked weights", scan},
	{"late-dce", "removes what hoisting and outlining left unused", dce},
}

// Order lists pairs of passes: the first must run before the second, for the reason given.
var Order = []struct{ Before, After, Why string }{
	{"canonicalize", "fold-constants", "folding wants constants on the right and broadcasts of constants merged"},
	{"canonicalize", "cse", "equal computations must have equal forms"},
	{"fold-constants", "cse", "folding makes equal constants"},
	{"cse", "hoist-weights", "a weight that is transposed twice is prepared once"},
	{"dce", "hoist-weights", "nothing unused is prepared"},
	{"hoist-weights", "outline-repeated-blocks", "what only one of the blocks computes from weights would make it differ from the others"},
	{"outline-repeated-blocks", "scan-repeated-calls", "the calls are made there"},
	{"scan-repeated-calls", "late-dce", "what only the calls in a loop read is unused"},
	{"outline-repeated-blocks", "late-dce", "outlining leaves the instances' nodes behind"},
}

func init() {
	if err := checkOrder(List); err != nil {
		panic("BUG: " + err.Error())
	}
}

func checkOrder(list []Pass) error {
	at := map[string]int{}
	for i, p := range list {
		if _, twice := at[p.Name]; twice {
			return fmt.Errorf("passes: %s is listed twice", p.Name)
		}
		at[p.Name] = i
	}
	for _, o := range Order {
		i, ok := at[o.Before]
		j, ok2 := at[o.After]
		if !ok || !ok2 {
			return fmt.Errorf("passes: an order fact names %s and %s; one is not a pass", o.Before, o.After)
		}
		if i >= j {
			return fmt.Errorf("passes: %s must run before %s: %s", o.Before, o.After, o.Why)
		}
	}
	return nil
}

// Names lists the passes' names in order.
func Names() []string {
	names := make([]string, len(List))
	for i, p := range List {
		names[i] = p.Name
	}
	return names
}

// Pipeline is one way to run the list.
type Pipeline struct {
	Options Options
	// Disabled names passes that are left out.
	Disabled []string
	// Check verifies the module before the first and after each pass.
	Check bool
	// After, when set, is called after each pass that ran, with its position from 1; it must not change the module.
	After func(position int, pass string, m *graph.Module, took time.Duration) error
}

// Key describes the pipeline for a cache key: the passes that run, in order, and the options.
func (p *Pipeline) Key() string {
	var names []string
	for _, pass := range List {
		if !slices.Contains(p.Disabled, pass.Name) {
			names = append(names, pass.Name)
		}
	}
	return fmt.Sprintf("%s max-constant=%d outline=%v scan=%v min-block=%d", strings.Join(names, ","), p.Options.MaxConstant, p.Options.Outline, p.Options.Scan, p.Options.MinBlock)
}

// CheckDisabled refuses a name that is not a pass.
func CheckDisabled(names []string) error {
	for _, n := range names {
		if !slices.Contains(Names(), n) {
			return fmt.Errorf("pass %q is not known; the passes are %s", n, strings.Join(Names(), ", "))
		}
	}
	return nil
}

// Run runs the passes on m in place. An error is a bug of precast: it names the pass.
func (p *Pipeline) Run(m *graph.Module) error {
	if p.Check {
		if err := graph.Verify(m); err != nil {
			return fmt.Errorf("the module does not verify before the first pass: %w", err)
		}
	}
	position := 0
	for _, pass := range List {
		if slices.Contains(p.Disabled, pass.Name) {
			continue
		}
		position++
		start := time.Now()
		if err := pass.Run(m, &p.Options); err != nil {
			return fmt.Errorf("pass %s: %w", pass.Name, err)
		}
		took := time.Since(start)
		if p.Check {
			if err := graph.Verify(m); err != nil {
				return fmt.Errorf("the module does not verify after pass %s: %w", pass.Name, err)
			}
		}
		if p.After != nil {
			if err := p.After(position, pass.Name, m, took); err != nil {
				return err
			}
		}
	}
	return nil
}
