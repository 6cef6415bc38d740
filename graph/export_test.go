package graph

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func TestStats(t *testing.T) {
	s := Stats(sample(t))
	golden(t, "sample.stats", s.String())
	if s.Nodes != 10 || s.ExpandedNodes != 9 { // each of the two calls makes way for the one node of @block
		t.Errorf("found %d nodes, %d expanded", s.Nodes, s.ExpandedNodes)
	}
	if s.WeightBytes != 2*4*4*4 || s.InputBytes != 2*4*4+4 || s.Constants != 3 || s.ConstantBytes != 4+4+32 {
		t.Errorf("found %+v", s)
	}
}

func TestWriteDOT(t *testing.T) {
	var b bytes.Buffer
	if err := WriteDOT(&b, sample(t)); err != nil {
		t.Fatal(err)
	}
	golden(t, "sample.dot", b.String())
	if o, c := strings.Count(b.String(), "{"), strings.Count(b.String(), "}"); o != c {
		t.Errorf("found %d opening and %d closing braces", o, c)
	}
}

func TestWriteJSON(t *testing.T) {
	var b bytes.Buffer
	if err := WriteJSON(&b, sample(t)); err != nil {
		t.Fatal(err)
	}
	golden(t, "sample.json", b.String())
	var m struct {
		Funcs []struct {
			Nodes []struct {
				Op       string
				Operands []int
				Attrs    map[string]any
			}
		}
	}
	if err := json.Unmarshal(b.Bytes(), &m); err != nil {
		t.Fatal(err)
	}
	if n := m.Funcs[0].Nodes[1]; n.Op != "call" || n.Operands[0] != 4 || n.Attrs["callee"] != "block" {
		t.Errorf("found node %+v", n)
	}
}
