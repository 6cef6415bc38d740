// Package lower turns a graph.Module into what a backend compiles: StableHLO text with its signature (Lower), or calls on any
// gomlx compute.Builder (ToBuilder).
//
// The StableHLO text is written here directly rather than through go-xla's stablehlo builder: that builder has no private functions
// and calls, infers every shape a second time, and keeps a statement object for each operation, while the graph package has verified all
// of that already. The text is a plain walk over the nodes: linear in time, one buffer, and equal modules give equal bytes.
package lower

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"precast/graph"
)

// Program is a lowered module: the unit that a backend compiles and that a cache key is made of.
type Program struct {
	// Name is the module's name; it is also in Code.
	Name string
	// Code is StableHLO text (MLIR), deterministic: equal modules give equal bytes in any process.
	Code []byte
	// Params and Results are the entry function's signature, in the order of the executable's arguments and results.
	Params  []Param
	Results []Result
	// Module is what Code was lowered from, for backends that take the graph itself. It must not be changed any more.
	Module *graph.Module
}

// Param is one argument of a Program.
type Param struct {
	// Name is the parameter's name in the entry function; a weight's is its checkpoint key.
	Name  string
	Kind  graph.Kind
	Shape graph.Shape
	// Donated says that the buffer given for it is invalid after the execution.
	Donated bool
}

// Result is one result of a Program.
type Result struct {
	// Name is the result's name in the entry function ("sample"), or "result_N" where the module names none.
	Name  string
	Shape graph.Shape
}

// Signature is the program's signature as text, one line a parameter and a result, the same in any process:
//
//	param latents input f32[1,4,64,64] donated
//	param conv_in.weight weight f32[320,4,3,3]
//	result sample f32[1,4,64,64]
func (p *Program) Signature() string {
	var b strings.Builder
	for _, q := range p.Params {
		b.WriteString("param ")
		b.WriteString(q.Name)
		if q.Kind == graph.Weight {
			b.WriteString(" weight ")
		} else {
			b.WriteString(" input ")
		}
		b.WriteString(shapeText(q.Shape))
		if q.Donated {
			b.WriteString(" donated")
		}
		b.WriteByte('\n')
	}
	for _, r := range p.Results {
		b.WriteString("result ")
		b.WriteString(r.Name)
		b.WriteByte(' ')
		b.WriteString(shapeText(r.Shape))
		b.WriteByte('\n')
	}
	return b.String()
}

// Fingerprint is the hexadecimal SHA-256 of the program's code and signature.
func (p *Program) Fingerprint() string {
	h := sha256.New()
	h.Write(p.Code)
	h.Write([]byte{0})
	h.Write([]byte(p.Signature()))
	return hex.EncodeToString(h.Sum(nil))
}
