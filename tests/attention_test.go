package tests

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast"
	"precast/backends"
	"precast/graph/nn"
	"precast/graph/trace"
	"precast/lower"
	"precast/passes"
)

// TestGoldensChunked: with attention in chunks of a few queries and keys the pictures are those of diffusers all the same, whole and by regions, with masks
// (Z-Image, Qwen-Image), causal text encoders, heads that share keys, and an autoencoder that attends.
func TestGoldensChunked(t *testing.T) {
	for _, c := range []struct{ name, regions, attention string }{
		{"sd15", "inline", "chunked:5x3"},
		{"flux1-dev", "scan", "chunked:3"},
		{"flux1-dev", "split", "chunked:7x4"},
		{"z-image", "call", "chunked:4x5"},
		{"tp-qwen", "inline", "chunked:6x4"},
	} {
		dir := filepath.Join("testdata", "tiny", c.name)
		run := recordedRuns(t, dir)[0]
		t.Run(c.name+"/"+c.regions+"/"+c.attention, func(t *testing.T) {
			g := readGolden(t, dir)
			var r goldenRun
			r.decode(t, g.Runs[run])
			checkRun(t, dir, run, &r, precast.Config{Backend: "go", Regions: c.regions, Variant: g.Variant, CacheDir: t.TempDir(), CheckPasses: true, Attention: c.attention})
		})
	}
}

// TestAttentionOption: the option reaches the graphs of each component that attends, and no other setting leaves scores whole.
func TestAttentionOption(t *testing.T) {
	for _, component := range []string{"unet", "vae.decoder", "text_encoder"} {
		loops := func(cfg precast.Config) int {
			x, err := precast.Inspect("testdata/tiny/sd15/model", precast.InspectOptions{Component: component, Config: cfg, Sizes: precast.Sizes{Height: 64, Width: 64}})
			if err != nil {
				t.Fatal(err)
			}
			return strings.Count(x.Module.String(), " = while ")
		}
		if n := loops(precast.Config{Attention: "chunked:2"}); n == 0 {
			t.Errorf("%s: chunked:2 leaves no loop", component)
		}
		for _, cfg := range []precast.Config{{}, {Attention: "whole"}, {Attention: "chunked:2", DisabledPasses: []string{"chunk-attention"}}} {
			if n := loops(cfg); n != 0 {
				t.Errorf("%s: attention %q without %q: found %d loops, wanted none", component, cfg.Attention, cfg.DisabledPasses, n)
			}
		}
	}
	for _, c := range []struct{ attention, phase, want string }{
		{"", "", "auto(16777216/4194304)"}, {"whole", "", "whole"}, {"chunked:5x3", "", "chunked:5x3"}, {"chunked:5", "chunk-attention", "chunked:5"}, {"chunked:5", "trace", ""},
	} {
		x, err := precast.Inspect("testdata/tiny/sd15/model", precast.InspectOptions{Component: "unet", Phase: c.phase, Config: precast.Config{Attention: c.attention}})
		if err != nil {
			t.Fatal(err)
		}
		if x.Attention != c.want {
			t.Errorf("attention %q after phase %q: found %q, wanted %q", c.attention, c.phase, x.Attention, c.want)
		}
	}
	if _, err := precast.Inspect("testdata/tiny/sd15/model", precast.InspectOptions{Component: "unet", Config: precast.Config{Attention: "chunked:x"}}); err == nil || !strings.Contains(err.Error(), "chunked:QUERIES") {
		t.Errorf("chunked:x: found %v, wanted an error", err)
	}
}

// TestChunkedTemporaries: by the compiler's own statistics attention in chunks takes less memory than whole, and in smaller chunks less still. The scores of the
// whole are 16 MiB.
func TestChunkedTemporaries(t *testing.T) {
	client := costClient(t)
	temporaries := func(form string) int64 {
		target := passes.Target{Platform: "cpu", DType: dtypes.Float32}
		how, err := passes.ParseAttention(form, target)
		must(t, err)
		x := shapes.Make(dtypes.Float32, 1, 1024, 4, 32)
		m, err := trace.Function("attention", func(g *ml.Graph, in []*ml.Node) []*ml.Node {
			return []*ml.Node{nn.Attention(in[0], in[1], in[2], nn.AttentionConfig{})}
		}, x, x, x)
		must(t, err)
		o := passes.DefaultOptions()
		o.Attention = how
		must(t, (&passes.Pipeline{Options: o, Target: target, Check: true}).Run(m))
		program, err := lower.Lower(passes.Whole(m).Programs[0])
		must(t, err)
		exe, err := client.Compile(context.Background(), program, backends.CompileOptions{})
		must(t, err)
		defer exe.Close()
		memory, err := exe.MemoryStats()
		must(t, err)
		t.Logf("%s: %d bytes of temporaries", form, memory.Temporaries)
		return memory.Temporaries
	}
	whole, queries, both := temporaries("whole"), temporaries("chunked:256"), temporaries("chunked:128x128")
	if whole < 16<<20 {
		t.Errorf("whole: found %d bytes of temporaries, wanted at least the scores' %d", whole, 16<<20)
	}
	if queries > whole/2 || both > queries/2 {
		t.Errorf("found temporaries of %d bytes whole, %d in chunks of 256 queries, %d in chunks of 128 queries and keys, wanted at most half from one to the next", whole, queries, both)
	}
}
