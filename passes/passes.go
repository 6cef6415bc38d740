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

	"github.com/gomlx/compute/dtypes"

	"precast/graph"
)

// Pass is one rewrite of a module.
type Pass struct {
	// Name is what the command line and the dumps call the pass.
	Name string
	// Doc says in a sentence what it does.
	Doc string
	// Default says on what targets the pass runs where neither Pipeline.Enabled nor Pipeline.Disabled names it.
	Default Rule
	// Run rewrites m in place. What it returns is a fault of the pass or of the module it was given, never of the user.
	Run func(m *graph.Module, o *Options) error
}

// Target is what a program is compiled for, as far as the defaults of passes look at it.
type Target struct {
	// Platform is the backend's: "cpu", "tpu".
	Platform string
	// DType is what the program's network computes in.
	DType graph.DType
	// FusedAttention says that the compiler computes attention without holding its scores.
	FusedAttention bool
}

// Rule says whether a pass pays on a target.
type Rule func(t Target) bool

// onRequest is the rule of a pass that runs where it is enabled by name only.
func onRequest(Target) bool { return false }

// always is the rule of a pass that pays everywhere.
func always(Target) bool { return true }

func onCPUInBFloat16(t Target) bool { return t.Platform == "cpu" && t.DType == dtypes.BFloat16 }

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
	// Attention says how attention is computed; the zero value leaves it whole.
	Attention Attention
}

// DefaultOptions are what the driver uses.
func DefaultOptions() Options { return Options{MaxConstant: 4096, Outline: true, MinBlock: 40} }

// List is every pass in the order in which they run. A name occurs once; a pass that runs twice has two names.
var List = []Pass{
	{"canonicalize", "rewrites each operation to one simplest form: no-op reshapes, chained transposes, neutral elements, constants on the right", always, canonicalize},
	{"fold-constants", "computes small results of constants", always, foldConstants},
	{"cse", "keeps one of several equal computations", always, cse},
	{"dce", "removes what no result needs", always, dce},
	{"merge-dots", "makes one product of several of one value with weights, over the weights concatenated", onRequest, mergeDots},
	{"cheap-norms", "writes a GroupNorm as one multiply-add a channel behind barriers, with its sums over the width before those over the height", onRequest, cheapNorms},
	{"hoist-weights", "moves work that depends on weights alone into the function prepare, which runs once at load", always, hoistWeights},
	{"double-rows", "computes a product of one row with a bfloat16 weight as that of two equal rows: XLA on the CPU widens the weight for a single one", onCPUInBFloat16, doubleRows},
	{"outline-repeated-blocks", "turns regions that are equal up to their weights into one private function each", always, outline},
	{"scan-repeated-calls", "turns a run of calls of one outlined function into a loop over their stacked weights", always, scan},
	{"chunk-attention", "cuts attention into chunks of queries, and of keys where that is not enough, so that all scores are never in memory together", always, chunkAttention},
	{"late-dce", "removes what hoisting and outlining left unused", always, dce},
}

// Order lists pairs of passes: the first must run before the second, for the reason given.
var Order = []struct{ Before, After, Why string }{
	{"canonicalize", "fold-constants", "folding wants constants on the right and broadcasts of constants merged"},
	{"canonicalize", "cse", "equal computations must have equal forms"},
	{"fold-constants", "cse", "folding makes equal constants"},
	{"cse", "merge-dots", "products of one value must have it as one operand"},
	{"dce", "merge-dots", "a product that nothing reads would be merged"},
	{"merge-dots", "hoist-weights", "the weights are concatenated at load"},
	{"merge-dots", "outline-repeated-blocks", "each block of a class is changed alike, and then outlined"},
	{"canonicalize", "cheap-norms", "it knows the form that a GroupNorm has then"},
	{"cse", "cheap-norms", "barriers keep equal norms from being one"},
	{"cheap-norms", "hoist-weights", "the weights of a norm are not prepared yet, and what it adds may be"},
	{"cheap-norms", "outline-repeated-blocks", "each block of a class is changed alike, and then outlined"},
	{"cse", "hoist-weights", "a weight that is transposed twice is prepared once"},
	{"dce", "hoist-weights", "nothing unused is prepared"},
	{"hoist-weights", "double-rows", "what is made of weights alone is a weight by then, and what is prepared is compiled to run once"},
	{"double-rows", "outline-repeated-blocks", "in a function a weight is a parameter like any other"},
	{"hoist-weights", "outline-repeated-blocks", "what only one of the blocks computes from weights would make it differ from the others"},
	{"outline-repeated-blocks", "scan-repeated-calls", "the calls are made there"},
	{"scan-repeated-calls", "late-dce", "what only the calls in a loop read is unused"},
	{"fold-constants", "chunk-attention", "a softmax has one form"},
	{"outline-repeated-blocks", "chunk-attention", "blocks are compared while they are small, and each class is rewritten once; the chunks of one attention repeat, too, and are no blocks"},
	{"chunk-attention", "late-dce", "the whole attention is unused"},
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
	// Target is what the defaults of the passes go by.
	Target Target
	// Enabled names passes that run whatever their default, Disabled those that are left out; of a pass that both name it is left out.
	Enabled, Disabled []string
	// Check verifies the module before the first and after each pass.
	Check bool
	// After, when set, is called after each pass that ran, with its position from 1; it must not change the module.
	After func(position int, pass string, m *graph.Module, took time.Duration) error
}

// runs reports whether a pass of the list is one of this pipeline.
func (p *Pipeline) runs(pass Pass) bool {
	return !slices.Contains(p.Disabled, pass.Name) && (slices.Contains(p.Enabled, pass.Name) || pass.Default(p.Target))
}

// Passes lists the names of the passes that run, in order.
func (p *Pipeline) Passes() []string {
	var names []string
	for _, pass := range List {
		if p.runs(pass) {
			names = append(names, pass.Name)
		}
	}
	return names
}

// Key describes the pipeline for a cache key: the passes that run, in order, and the options.
func (p *Pipeline) Key() string {
	return fmt.Sprintf("%s max-constant=%d outline=%v scan=%v min-block=%d attention=%s", strings.Join(p.Passes(), ","), p.Options.MaxConstant, p.Options.Outline, p.Options.Scan, p.Options.MinBlock,
		p.Options.Attention)
}

// CheckNames refuses a name that is not a pass, and one that both lists have.
func CheckNames(enabled, disabled []string) error {
	for _, n := range slices.Concat(enabled, disabled) {
		if !slices.Contains(Names(), n) {
			return fmt.Errorf("pass %q is not known; the passes are %s", n, strings.Join(Names(), ", "))
		}
	}
	for _, n := range enabled {
		if slices.Contains(disabled, n) {
			return fmt.Errorf("pass %q is both enabled and disabled; name it in one of the two", n)
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
		if !p.runs(pass) {
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
