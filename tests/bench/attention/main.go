// Command attention times attention as a program of its own through a plugin: in each form that is asked for, one after another in every
// round, so that what else the machine does falls on all of them alike. It prints the plugin's temporaries beside the times.
//
//	attention --shapes sd15,flux --forms whole,chunked:512,chunked:512x1024 --rounds 5
//
// apart:QUERIES has chunks one after another. auto:MEGABYTES has chunks of so much, whatever the plugin. A form with the prefix merged: writes the heads in front, as part of one batch, before the first product.
package main

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/backends"
	"precast/backends/pjrt"
	"precast/backends/plugin"
	"precast/graph"
	"precast/graph/nn"
	"precast/graph/trace"
	"precast/lower"
	"precast/passes"
)

// shape is an attention's sizes: pictures, heads, queries, keys, elements of a head.
type shape struct{ b, h, lq, lk, d int }

var known = map[string]shape{
	"sd15":       {2, 8, 4096, 4096, 40},   // the outer self-attention of Stable Diffusion 1.5's UNet at 512x512, a guidance pair
	"sd15-one":   {1, 8, 4096, 4096, 40},   // of one picture
	"sd15-inner": {1, 8, 1024, 1024, 80},   // a level further in
	"sd15-text":  {1, 8, 4096, 77, 40},     // the cross-attention to the prompt
	"flux-256":   {1, 12, 768, 768, 64},    // 12 heads, 256x256 and 512 tokens of text
	"flux-512":   {1, 12, 1536, 1536, 64},  // at 512x512
	"mid":        {1, 12, 1024, 1024, 64},  //
	"vae":        {1, 1, 4096, 4096, 512},  // the middle of SD's decoder at 512x512
	"flux-1024":  {1, 24, 4608, 4608, 128}, // FLUX.1-dev at 1024x1024
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "attention:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	name := flag.String("plugin", "", "PJRT plugin, as in precast plugin list (default: the CPU's)")
	names := flag.String("shapes", "mid,sd15", "sizes, with commas")
	forms := flag.String("forms", "whole,auto", "forms, with commas: what --attention takes, with merged: in front or not")
	rounds := flag.Int("rounds", 5, "executions of each form")
	bf16 := flag.Bool("bf16", false, "bfloat16 in place of float32")
	mask := flag.String("mask", "none", "none; keep: a mask of booleans; add: one that is added to the scores")
	topology := flag.String("topology", "", "compile for this topology of the plugin, such as v6e:2x2, and run nothing")
	flag.Parse()
	store, err := plugin.Open()
	if err != nil {
		return err
	}
	installed, err := store.Resolve(cmp.Or(*name, "cpu"))
	if err != nil {
		return err
	}
	lib, err := pjrt.Load(installed.Path)
	if err != nil {
		return err
	}
	b := bench{rounds: *rounds, mask: *mask, dtype: dtypes.Float32, target: passes.Target{Platform: "cpu"}}
	if *bf16 {
		b.dtype = dtypes.BFloat16
	}
	if *topology != "" {
		ahead, ok := backends.Plugin(lib).(backends.AheadOfTime)
		if !ok {
			return fmt.Errorf("topology: %s does not compile ahead of time", installed.Name)
		}
		b.lib = ahead
		if b.topology, err = ahead.NewTopology(*topology, nil); err != nil {
			return err
		}
		b.target.Platform = b.topology.Platform()
	} else {
		if b.client, err = lib.NewClient(backends.ClientOptions{}); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, b.client.Close()) }()
	}
	for _, n := range strings.Split(*names, ",") {
		s, ok := known[n]
		if !ok {
			return fmt.Errorf("shapes: %q is not known", n)
		}
		if err := b.compare(n, s, strings.Split(*forms, ",")); err != nil {
			return err
		}
	}
	return nil
}

type bench struct {
	rounds   int
	mask     string
	dtype    graph.DType
	target   passes.Target
	lib      backends.AheadOfTime
	client   backends.Client
	topology backends.Topology
}

// module writes the attention in a form.
func (b *bench) module(s shape, form string) (*graph.Module, error) {
	how, merged := strings.CutPrefix(form, "merged:")
	var budget int64
	if megabytes, ok := strings.CutPrefix(how, "auto:"); ok {
		n, err := strconv.ParseInt(megabytes, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%q: wanted auto:MEGABYTES", how)
		}
		how, budget = "auto", n<<20
	}
	apart := 0
	if queries, ok := strings.CutPrefix(how, "apart:"); ok {
		n, err := strconv.Atoi(queries)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q: wanted apart:QUERIES", how)
		}
		how, apart = "auto", n
	}
	attention, err := passes.ParseAttention(how, b.target)
	if err != nil {
		return nil, err
	}
	if budget > 0 {
		attention.Budget, attention.Chunk, attention.Fused = budget, budget, 0
	}
	if apart > 0 {
		attention.Fused, attention.Apart = 1<<40, apart
	}
	m, err := trace.Function("attention", func(g *ml.Graph, in []*ml.Node) []*ml.Node {
		var cfg nn.AttentionConfig
		switch b.mask { // of what the keys are, so that the compiler can't know it
		case "keep":
			cfg.Mask = ml.GreaterThan(ml.Reshape(ml.Slice(in[1], ml.AxisRange(), ml.AxisRange(), ml.AxisElem(0)), s.b, 1, 1, s.lk), ml.Scalar(g, b.dtype, -1.0))
		case "add":
			cfg.Mask = ml.Reshape(ml.Slice(in[1], ml.AxisRange(), ml.AxisRange(), ml.AxisElem(0)), s.b, 1, 1, s.lk)
		}
		q, k, v := nn.SplitHeads(in[0], s.h), nn.SplitHeads(in[1], s.h), nn.SplitHeads(in[2], s.h)
		if merged {
			if b.mask != "none" {
				panic("merged: has no mask")
			}
			front := func(x *ml.Node) *ml.Node {
				d := x.Shape().Dimensions
				return ml.Reshape(ml.TransposeAllAxes(x, 0, 2, 1, 3), d[0]*d[2], d[1], 1, d[3])
			}
			out := nn.Attention(front(q), front(k), front(v), cfg)
			out = ml.TransposeAllAxes(ml.Reshape(out, s.b, s.h, s.lq, s.d), 0, 2, 1, 3)
			return []*ml.Node{nn.MergeHeads(out)}
		}
		return []*ml.Node{nn.MergeHeads(nn.Attention(q, k, v, cfg))}
	}, shapes.Make(b.dtype, s.b, s.lq, s.h*s.d), shapes.Make(b.dtype, s.b, s.lk, s.h*s.d), shapes.Make(b.dtype, s.b, s.lk, s.h*s.d))
	if err != nil {
		return nil, err
	}
	o := passes.DefaultOptions()
	o.Outline, o.Attention = false, attention
	return m, (&passes.Pipeline{Options: o, Target: b.target, Check: true}).Run(m)
}

func (b *bench) compare(name string, s shape, forms []string) (err error) {
	ctx := context.Background()
	var exes []backends.Executable
	var args []backends.Buffer
	defer func() {
		for _, e := range exes {
			err = errors.Join(err, e.Close())
		}
		for _, a := range args {
			err = errors.Join(err, a.Delete())
		}
	}()
	scores := float64(s.b*s.h*s.lq*s.lk) * 4 / 1e6
	fmt.Printf("%s: %d x %d heads, %d queries, %d keys, %d elements: %.0f MB of scores\n", name, s.b, s.h, s.lq, s.lk, s.d, scores)
	for _, form := range forms {
		m, err := b.module(s, form)
		if err != nil {
			return fmt.Errorf("%s: %w", form, err)
		}
		program, err := lower.Lower(passes.Whole(m).Programs[0])
		if err != nil {
			return fmt.Errorf("%s: %w", form, err)
		}
		began := time.Now()
		var exe backends.Compiled
		if b.topology != nil {
			exe, err = b.lib.CompileFor(ctx, b.topology, program, backends.CompileOptions{})
		} else {
			var e backends.Executable
			if e, err = b.client.Compile(ctx, program, backends.CompileOptions{}); err == nil {
				exe, exes = e, append(exes, e)
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", form, err)
		}
		took := time.Since(began)
		memory, err := exe.MemoryStats()
		if err != nil {
			return fmt.Errorf("%s: %w", form, err)
		}
		fmt.Printf("  %-24s compiled in %6.0f ms, temporaries %8.1f MB\n", form, took.Seconds()*1000, float64(memory.Temporaries)/1e6)
	}
	if b.topology != nil {
		return nil
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, l := range []int{s.lq, s.lk, s.lk} {
		sh := shapes.Make(b.dtype, s.b, l, s.h*s.d)
		data := make([]byte, 0, sh.Size()*b.dtype.Size())
		for range sh.Size() {
			bits := math.Float32bits(float32(rng.NormFloat64()))
			if b.dtype == dtypes.Float32 {
				data = binary.LittleEndian.AppendUint32(data, bits)
			} else {
				data = binary.LittleEndian.AppendUint16(data, uint16(bits>>16))
			}
		}
		a, err := b.client.BufferFromHost(data, sh, backends.HostOptions{})
		if err != nil {
			return err
		}
		args = append(args, a)
	}
	times := make([][]float64, len(exes))
	for round := range b.rounds + 1 {
		for i, e := range exes {
			began := time.Now()
			out, err := e.Execute(ctx, args, backends.ExecuteOptions{})
			if err != nil {
				return err
			}
			if err := out[0].Await(ctx); err != nil {
				return err
			}
			if round > 0 { // the first one touches its memory for the first time
				times[i] = append(times[i], time.Since(began).Seconds()*1000)
			}
			if err := out[0].Delete(); err != nil {
				return err
			}
		}
	}
	for i, form := range forms {
		slices.Sort(times[i])
		fmt.Printf("  %-24s %8.1f ms median, %8.1f best\n", form, times[i][len(times[i])/2], times[i][0])
	}
	return nil
}
