package passes_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gomlx/compute/dtypes"

	"precast/graph/checkpoint"
	"precast/graph"
	"precast/graph/models/autoencoderkl"
	"precast/graph/models/clip"
	"precast/graph/models/flux"
	"precast/graph/models/t5"
	"precast/graph/models/unet2d"
	"precast/graph/trace"
	"precast/passes"
)

// models are the networks of tiny checkpoints, made from their config.json alone (testdata/configs).
var models = []struct {
	name string
	// classes holds regular expressions of module paths: in each outlined region lies one instance of a class.
	network func(c *checkpoint.Config) (trace.Network, error)
}{
	{"flux1-dev-transformer", fluxNetwork(5, 6)},
	{"flux1-schnell-transformer", fluxNetwork(5, 6)},
	{"flux1-dev-text_encoder", func(c *checkpoint.Config) (trace.Network, error) {
		cfg, err := clip.ParseConfig(c)
		return clip.NewText(cfg, clip.Options{Batch: 1, Length: 7, Outputs: []string{"pooler_output"}}, dtypes.Float32), err
	}},
	{"flux1-dev-text_encoder_2", func(c *checkpoint.Config) (trace.Network, error) {
		cfg, err := t5.ParseConfig(c)
		return t5.New(cfg, t5.Options{Batch: 1, Length: 6}, dtypes.Float32), err
	}},
	{"sd15-text_encoder", func(c *checkpoint.Config) (trace.Network, error) {
		cfg, err := clip.ParseConfig(c)
		return clip.NewText(cfg, clip.Options{Batch: 1, Length: 7, Outputs: []string{"last_hidden_state"}}, dtypes.Float32), err
	}},
	{"sd15-unet", func(c *checkpoint.Config) (trace.Network, error) {
		cfg, err := unet2d.ParseConfig(c)
		return unet2d.New(cfg, unet2d.Sizes{Batch: 1, Height: 8, Width: 8, SequenceLength: 7, DType: dtypes.Float32}), err
	}},
	{"sd15-vae", func(c *checkpoint.Config) (trace.Network, error) {
		cfg, err := autoencoderkl.ParseConfig(c)
		return autoencoderkl.NewDecoder(cfg, autoencoderkl.Sizes{Batch: 1, Height: 4, Width: 4, DType: dtypes.Float32}), err
	}},
}

func fluxNetwork(text, image int) func(c *checkpoint.Config) (trace.Network, error) {
	return func(c *checkpoint.Config) (trace.Network, error) {
		cfg, err := flux.ParseConfig(c)
		return flux.New(cfg, flux.Options{Batch: 1, TextLength: text, ImageLength: image}, dtypes.Float32), err
	}
}

func network(t testing.TB, name string, build func(c *checkpoint.Config) (trace.Network, error)) trace.Network {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "configs", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := checkpoint.ParseConfig(name+".json", data)
	if err != nil {
		t.Fatal(err)
	}
	n, err := build(c)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// traced is a fresh module of a model.
func traced(t testing.TB, name string) *graph.Module {
	t.Helper()
	for _, m := range models {
		if m.name == name {
			module, err := trace.Trace(network(t, name, m.network))
			if err != nil {
				t.Fatal(err)
			}
			return module
		}
	}
	t.Fatalf("%q is not a model of the table", name)
	return nil
}

func pipeline(disabled ...string) *passes.Pipeline {
	return &passes.Pipeline{Options: passes.DefaultOptions(), Disabled: disabled, Check: true}
}

func TestScratch(t *testing.T) {
	for _, mm := range models {
		for _, strip := range []bool{false, true} {
			m := traced(t, mm.name)
			if strip {
				for _, n := range m.Entry().Nodes {
					n.Scope = ""
				}
			}
			fmt.Println("==", mm.name, strip, len(m.Entry().Nodes))
			if err := pipeline().Run(m); err != nil {
				t.Fatal(err)
			}
			report(m)
		}
	}
	for _, strip := range []bool{false, true} {
		start := time.Now()
		m, err := trace.Trace(network(t, "flux1-dev-real-transformer", fluxNetwork(512, 4096)))
		if err != nil {
			t.Fatal(err)
		}
		if strip {
			for _, n := range m.Entry().Nodes {
				n.Scope = ""
			}
		}
		fmt.Println("real trace", time.Since(start), len(m.Entry().Nodes))
		p := pipeline()
		p.Check = false
		var total time.Duration
		p.After = func(_ int, name string, m *graph.Module, took time.Duration) error {
			fmt.Println("  ", name, took, len(m.Entry().Nodes))
			total += took
			return nil
		}
		if err := p.Run(m); err != nil {
			t.Fatal(err)
		}
		fmt.Println("total", total)
		report(m)
	}
}

func report(m *graph.Module) {
	calls := map[string][]string{}
	for _, n := range m.Entry().Nodes {
		if n.Op == graph.OpCall {
			c := n.Attrs.String("callee")
			calls[c] = append(calls[c], n.Scope)
		}
	}
	for _, f := range m.Funcs[1:] {
		s := calls[f.Name]
		if len(s) > 8 {
			s = append(slices.Clone(s[:8]), "...")
		}
		fmt.Println("  ", f.Name, f.BlockClass, "nodes", len(f.Nodes), "params", len(f.Params), "results", len(f.Results), "calls", len(calls[f.Name]), strings.Join(s, " "))
	}
	fmt.Println("   entry", len(m.Entry().Nodes))
}
