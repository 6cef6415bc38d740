//go:build linux

// Command kernels times single operations through a PJRT plugin: the floor under a network's step, and the place to try a compiler's flags (XLA_FLAGS).
//
//	kernels [--plugin NAME] [--threads 2] [--runs 10] dot:1024x1536x6144:bf16 conv:1x64x320x320:f32:nhwc rows:2x768x4608:bf16
//
// "dot:MxKxN:DTYPE" is [M, K] . [N, K] with a result of that dtype. "rows" is the sum of eight such products with matrices of their own, which do not
// all stay in the cache, of the first row alone: M rows are the same row. "conv:BxHxIxO:DTYPE:LAYOUT" is a 3x3 convolution of B images H by H, I to O
// channels. dtypes are f32, bf16 and f16, layouts nhwc and nchw.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"precast/backends"
	"precast/backends/pjrt"
	"precast/backends/plugin"
	"precast/graph"
	"precast/lower"
	"precast/tests/bench/measure"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		os.Exit(1)
	}
}

func run() error {
	name := flag.String("plugin", "cpu", "PJRT plugin, by name or path")
	threads := flag.Int("threads", 2, "threads of the backend")
	runs := flag.Int("runs", 10, "runs to time after two others")
	flag.Parse()
	if flag.NArg() == 0 || *runs < 1 {
		return fmt.Errorf("found %d kernels and %d runs, wanted 1 or more of both", flag.NArg(), *runs)
	}
	if err := pjrt.Threads(*threads); err != nil {
		return err
	}
	store, err := plugin.Open()
	if err != nil {
		return err
	}
	installed, err := store.Resolve(*name)
	if err != nil {
		return err
	}
	lib, err := pjrt.Load(installed.Path)
	if err != nil {
		return err
	}
	client, err := lib.NewClient(backends.ClientOptions{})
	if err != nil {
		return err
	}
	defer client.Close()
	for _, spec := range flag.Args() {
		m, err := kernel(spec)
		if err != nil {
			return fmt.Errorf("%s: %w", spec, err)
		}
		if err := timeKernel(client, spec, m, *runs); err != nil {
			return fmt.Errorf("%s: %w", spec, err)
		}
	}
	return nil
}

// kernel builds the module that spec asks for.
func kernel(spec string) (*graph.Module, error) {
	parts := strings.Split(spec, ":")
	if len(parts) < 3 {
		return nil, fmt.Errorf("found %d parts, wanted KIND:SIZES:DTYPE", len(parts))
	}
	dtype, ok := map[string]graph.DType{"f32": dtypes.Float32, "bf16": dtypes.BFloat16, "f16": dtypes.Float16}[parts[2]]
	if !ok {
		return nil, fmt.Errorf("dtype: found %q, wanted f32, bf16 or f16", parts[2])
	}
	m := graph.NewModule("kernel")
	f := m.Entry()
	b := graph.NewBuilder(m, f)
	input := func(dims ...int) *graph.Value {
		return f.NewParam(fmt.Sprintf("x%d", len(f.Params)), graph.Input, shapes.Make(dtype, dims...))
	}
	var out *graph.Value
	var err error
	switch kind := parts[0]; {
	case kind == "dot" || kind == "rows":
		var rows, k, n int
		if _, err := fmt.Sscanf(parts[1], "%dx%dx%d", &rows, &k, &n); err != nil || rows < 1 || k < 1 || n < 1 {
			return nil, fmt.Errorf("sizes: found %q, wanted MxKxN", parts[1])
		}
		nt := graph.Attrs{{Name: "lhs_contracting", Value: []int{1}}, {Name: "rhs_contracting", Value: []int{1}}}
		if kind == "dot" {
			out, err = node(b, graph.OpDot, nt, []*graph.Value{input(rows, k), input(n, k)}, shapes.Make(dtype, rows, n))
			break
		}
		x := input(1, k)
		if rows > 1 {
			x, err = node(b, graph.OpBroadcast, graph.Attrs{{Name: "broadcast_dimensions", Value: []int{0, 1}}}, []*graph.Value{x}, shapes.Make(dtype, rows, k))
		}
		for i := 0; i < 8 && err == nil; i++ {
			var y *graph.Value
			if y, err = node(b, graph.OpDot, nt, []*graph.Value{x, input(n, k)}, shapes.Make(dtype, rows, n)); err != nil {
				break
			}
			y, err = node(b, graph.OpSlice, graph.Attrs{{Name: "limit_indices", Value: []int{1, n}}, {Name: "start_indices", Value: []int{0, 0}}}, []*graph.Value{y})
			if out != nil && err == nil {
				y, err = node(b, graph.OpAdd, nil, []*graph.Value{out, y})
			}
			out = y
		}
	case kind == "conv" && len(parts) == 4:
		out, err = conv(b, input, parts[1], parts[3])
	default:
		return nil, fmt.Errorf("found %q with %d parts, wanted dot, rows or conv with its layout", kind, len(parts))
	}
	if err != nil {
		return nil, err
	}
	f.Results = []*graph.Value{out}
	return m, graph.Verify(m)
}

func node(b *graph.Builder, op graph.Op, attrs graph.Attrs, operands []*graph.Value, want ...graph.Shape) (*graph.Value, error) {
	n, err := b.Op(op, operands, attrs, want...)
	if err != nil {
		return nil, err
	}
	return n.Results[0], nil
}

// conv adds a 3x3 convolution that keeps the height and width.
func conv(b *graph.Builder, input func(dims ...int) *graph.Value, sizes, layout string) (*graph.Value, error) {
	var batch, side, in, out int
	if _, err := fmt.Sscanf(sizes, "%dx%dx%dx%d", &batch, &side, &in, &out); err != nil {
		return nil, fmt.Errorf("sizes: found %q, wanted BxHxIxO", sizes)
	}
	attrs := graph.Attrs{}.With("padding", [][2]int{{1, 1}, {1, 1}})
	set := func(name string, batch, feature int, spatial ...int) {
		attrs = attrs.With(name+"_batch_dimension", batch).With(name+"_feature_dimension", feature).With(name+"_spatial_dimensions", spatial)
	}
	kernel := func(in, out int, spatial ...int) {
		attrs = attrs.With("kernel_input_feature_dimension", in).With("kernel_output_feature_dimension", out).With("kernel_spatial_dimensions", spatial)
	}
	var operands []*graph.Value
	switch layout {
	case "nhwc":
		set("input", 0, 3, 1, 2)
		set("output", 0, 3, 1, 2)
		kernel(2, 3, 0, 1)
		operands = []*graph.Value{input(batch, side, side, in), input(3, 3, in, out)}
	case "nchw":
		set("input", 0, 1, 2, 3)
		set("output", 0, 1, 2, 3)
		kernel(1, 0, 2, 3)
		operands = []*graph.Value{input(batch, in, side, side), input(out, in, 3, 3)}
	default:
		return nil, fmt.Errorf("layout: found %q, wanted nhwc or nchw", layout)
	}
	return node(b, graph.OpConv, attrs, operands)
}

// timeKernel prints the wall times of a run and the processor time of the process meanwhile.
func timeKernel(client backends.Client, spec string, m *graph.Module, runs int) error {
	ctx := context.Background()
	p, err := lower.Lower(m)
	if err != nil {
		return err
	}
	exe, err := client.Compile(ctx, p, backends.CompileOptions{})
	if err != nil {
		return err
	}
	defer exe.Close()
	var args []backends.Buffer
	defer func() {
		for _, a := range args {
			a.Delete()
		}
	}()
	for _, q := range p.Params {
		data := make([]byte, graph.ByteSize(q.Shape))
		for i := range data {
			// Bytes from 0x20 to 0x3f: numbers below 1 in every dtype, and none that is denormal.
			data[i] = byte(0x20 + i*7%32)
		}
		a, err := client.BufferFromHost(data, q.Shape, backends.HostOptions{})
		if err != nil {
			return err
		}
		args = append(args, a)
	}
	ms := func(d time.Duration) float64 { return d.Seconds() * 1000 }
	var wall, used []float64 // milliseconds
	for i := range runs + 2 {
		begin, before := time.Now(), measure.CPUTime()
		out, err := exe.Execute(ctx, args, backends.ExecuteOptions{})
		if err != nil {
			return err
		}
		err = out[0].Await(ctx)
		if i >= 2 {
			wall, used = append(wall, ms(time.Since(begin))), append(used, ms(measure.CPUTime()-before))
		}
		out[0].Delete()
		if err != nil {
			return err
		}
	}
	fmt.Printf("%-36s best %8.2f ms, median %8.2f ms, processor %8.2f ms\n", spec, slices.Min(wall), measure.Median(wall), measure.Median(used))
	return nil
}
