package precast

import (
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"
)

// TestCostOfFlux counts the transformer of FLUX.1-dev by hand from its config: products alone, the rest is below 1 %.
func TestCostOfFlux(t *testing.T) {
	data, err := os.ReadFile("graph/pipelines/configs/FLUX.1-dev/transformer/config.json")
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Double  int `json:"num_layers"`
		Single  int `json:"num_single_layers"`
		Heads   int `json:"num_attention_heads"`
		HeadDim int `json:"attention_head_dim"`
		In      int `json:"in_channels"`
		Joint   int `json:"joint_attention_dim"`
		Pooled  int `json:"pooled_projection_dim"`
	}
	if err := json.Unmarshal(data, &c); err != nil {
		t.Fatal(err)
	}
	const image, text = 4096, 512 // 1024 x 1024 in patches of 16; T5's tokens
	d, l := float64(c.Heads*c.HeadDim), float64(image+text)
	attention := 2 * 2 * l * l * d
	// A double block: q, k, v, out and a feed-forward of 4 d for every token, modulation of 6 d for each of the two streams.
	double := 2*l*d*d*(3+1+4+4) + attention + 2*2*d*6*d
	// A single one: q, k, v and the feed-forward's first half, out of both together, modulation of 3 d.
	single := 2*l*d*d*(3+4+5) + attention + 2*d*3*d
	wanted := float64(c.Double)*double + float64(c.Single)*single +
		2*image*float64(c.In)*d + 2*text*float64(c.Joint)*d + // embedders
		2*2*(256*d+d*d) + 2*(float64(c.Pooled)*d+d*d) + // time, guidance, pooled text
		2*d*2*d + 2*image*d*float64(c.In) // the last norm and projection
	for _, regions := range []string{"inline", "split"} {
		x, err := Inspect("", InspectOptions{
			Component: "transformer", Sizes: Sizes{Height: 1024, Width: 1024, MaxSequenceLength: text},
			Config: Config{ModelConfig: "FLUX.1-dev", Regions: regions}, Cost: &CostOptions{Depth: 2},
		})
		if err != nil {
			t.Fatal(err)
		}
		r := x.Cost
		if q := r.Total.Flops / wanted; math.Abs(q-1) > 0.01 {
			t.Errorf("%s: found %.4g flops, %.4g by hand", regions, r.Total.Flops, wanted)
		}
		if r.Parameters != 11_901_408_320 || r.WeightBytes != 4*r.Parameters {
			t.Errorf("%s: found %d parameters in %d bytes", regions, r.Parameters, r.WeightBytes)
		}
		if s := r.Scopes.Find("single_transformer_blocks.37"); s == nil || s.Flops < single || s.Flops > 1.01*single || s.Children != nil {
			t.Errorf("%s: the last block is %+v, by hand %.4g flops", regions, s, single)
		}
		// The feed-forward's values and the scores of a chunk of queries.
		if least := int64(4 * l * (4*d + 512*float64(c.Heads))); r.Peak.Bytes < least || r.Peak.Bytes > 3*least {
			t.Errorf("%s: %d bytes are alive, wanted %d to 3 times that", regions, r.Peak.Bytes, least)
		}
	}
}

func TestCostErrors(t *testing.T) {
	in := func(component, scope string) error {
		_, err := Inspect("tests/testdata/tiny/flux1-dev/model", InspectOptions{Component: component, Cost: &CostOptions{Scope: scope, Depth: -1}})
		return err
	}
	for _, c := range []struct{ component, scope, wanted string }{
		{"", "", "the cost is that of a graph, add --component NAME"},
		{"transformer", "transformer_block", `scope: "transformer_block" is no module of transformer[`},
		{"transformer", "transformer_blocks.99", "wanted one such as transformer_blocks.0, transformer_blocks.1"},
	} {
		if err := in(c.component, c.scope); err == nil || !strings.Contains(err.Error(), c.wanted) {
			t.Errorf("%q, %q: found %v, wanted %s", c.component, c.scope, err, c.wanted)
		}
	}
	if err := in("transformer", "transformer_blocks.1.attn"); err != nil {
		t.Error(err)
	}
}
