package passes_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"precast/graph"
	"precast/graph/cost"
	"precast/passes"
)

// writer appends nodes to a function; a node that does not fit is a fault of the test.
type writer struct {
	t testing.TB
	b *graph.Builder
}

func (w writer) op(op graph.Op, operands []*graph.Value, attrs graph.Attrs, want ...graph.Shape) *graph.Value {
	w.t.Helper()
	n, err := w.b.Op(op, operands, attrs, want...)
	if err != nil {
		w.t.Fatal(err)
	}
	return n.Results[0]
}

func (w writer) splat(shape graph.Shape, x float64) *graph.Value {
	v, err := w.b.Splat(shape, x)
	if err != nil {
		w.t.Fatal(err)
	}
	return v
}

func (w writer) over(v *graph.Value, axes []int, dims []int) *graph.Value {
	return w.op(graph.OpBroadcast, []*graph.Value{v}, graph.Attrs(nil).With("broadcast_dimensions", axes), shapes.Make(v.Shape.DType, dims...))
}

func (w writer) to(v *graph.Value, d graph.DType) *graph.Value {
	if v.Shape.DType == d {
		return v
	}
	return w.op(graph.OpConvert, []*graph.Value{v}, nil, shapes.Make(d, v.Shape.Dimensions...))
}

func (w writer) reduce(v *graph.Value, combiner string, axis int) *graph.Value {
	return w.op(graph.OpReduce, []*graph.Value{v}, graph.Attrs(nil).With("combiner", combiner).With("dimensions", []int{axis}))
}

func (w writer) dot(l, r *graph.Value, lb, lc, rb, rc []int) *graph.Value {
	return w.op(graph.OpDot, []*graph.Value{l, r}, graph.Attrs(nil).With("lhs_batching", lb).With("lhs_contracting", lc).With("rhs_batching", rb).With("rhs_contracting", rc))
}

// form is one way to write attention down.
type form struct {
	layout    string // blhd: batches at axes 0 and 2; bhld: at 0 and 1; merged: one batch, masks over both; keysfirst: scores are [B, H, Lk, Lq]; grouped: two queries' heads a head of keys
	dtype     graph.DType
	mask      string // none, add (with -inf), addrow, keep (booleans, zeros where nothing is seen), causal
	normalise string // before, keepdims, after
	scale     string // query, scores, none
	b, h      int
	lq, lk    int
}

const headSize, valueSize = 3, 2

// attentionModule writes an attention and something that reads it.
func attentionModule(t testing.TB, f form) *graph.Module {
	m := graph.NewModule("attention")
	w := writer{t, graph.NewBuilder(m, m.Entry())}
	w.b.Scope = "attn"
	e := m.Entry()
	shape := func(l, h, d int) graph.Shape {
		switch f.layout {
		case "bhld", "keysfirst":
			return shapes.Make(f.dtype, f.b, h, l, d)
		case "merged":
			return shapes.Make(f.dtype, f.b*h, l, d)
		}
		return shapes.Make(f.dtype, f.b, l, h, d)
	}
	heads := f.h
	if f.layout == "grouped" {
		heads = 2 * f.h
	}
	q, k, v := e.NewParam("q", graph.Input, shape(f.lq, heads, headSize)), e.NewParam("k", graph.Input, shape(f.lk, f.h, headSize)), e.NewParam("v", graph.Input, shape(f.lk, f.h, valueSize))
	if f.scale == "query" {
		q = w.op(graph.OpMul, []*graph.Value{q, w.splat(q.Shape, 0.5)}, nil)
	}
	var s *graph.Value
	switch f.layout {
	case "blhd":
		s = w.dot(q, k, []int{0, 2}, []int{3}, []int{0, 2}, []int{3})
	case "bhld":
		s = w.dot(q, k, []int{0, 1}, []int{3}, []int{0, 1}, []int{3})
	case "keysfirst":
		s = w.dot(k, q, []int{0, 1}, []int{3}, []int{0, 1}, []int{3})
	case "merged":
		s = w.dot(q, k, []int{0}, []int{2}, []int{0}, []int{2})
		s = w.op(graph.OpReshape, []*graph.Value{s}, nil, shapes.Make(f.dtype, f.b, f.h, f.lq, f.lk))
	case "grouped":
		q = w.op(graph.OpReshape, []*graph.Value{q}, nil, shapes.Make(f.dtype, f.b, f.lq, f.h, 2, headSize))
		s = w.dot(q, k, []int{0, 2}, []int{4}, []int{0, 2}, []int{3}) // [B, H, Lq, 2, Lk]
	}
	s = w.to(s, dtypes.Float32)
	dims, rank := s.Shape.Dimensions, s.Shape.Rank()
	key, query := rank-1, 2
	if f.layout == "keysfirst" {
		key, query = 2, 3
	}
	if f.scale == "scores" {
		s = w.op(graph.OpMul, []*graph.Value{s, w.splat(s.Shape, 0.5)}, nil)
	}
	// A mask's axes within the scores: all of the batch's, and queries and keys in their order.
	maskDims, maskAxes := []int{f.b, f.lq, f.lk}, []int{0, query, key}
	if f.layout == "keysfirst" {
		maskDims, maskAxes = []int{f.b, f.lk, f.lq}, []int{0, 2, 3}
	}
	var keep *graph.Value
	switch f.mask {
	case "add":
		mask := e.NewParam("mask", graph.Input, shapes.Make(dtypes.Float32, maskDims...))
		s = w.op(graph.OpAdd, []*graph.Value{s, w.over(mask, maskAxes, dims)}, nil)
	case "addrow":
		mask := e.NewParam("mask", graph.Input, shapes.Make(dtypes.Float32, f.b, f.lk))
		s = w.op(graph.OpAdd, []*graph.Value{s, w.over(mask, []int{0, key}, dims)}, nil)
	case "keep":
		keep = w.over(e.NewParam("mask", graph.Input, shapes.Make(dtypes.Bool, maskDims...)), maskAxes, dims)
	case "causal":
		index := shapes.Make(dtypes.Int32, dims...)
		past := w.op(graph.OpIota, nil, graph.Attrs(nil).With("iota_dimension", key), index)
		now := w.op(graph.OpIota, nil, graph.Attrs(nil).With("iota_dimension", query), index)
		keep = w.op(graph.OpCompare, []*graph.Value{past, now}, graph.Attrs(nil).With("direction", "LE"))
	}
	if keep != nil {
		s = w.op(graph.OpSelect, []*graph.Value{keep, s, w.splat(s.Shape, -math.MaxFloat32)}, nil)
	}
	rows := []int{}
	for i := range rank {
		if i != key {
			rows = append(rows, i)
		}
	}
	p := w.op(graph.OpExp, []*graph.Value{w.op(graph.OpSub, []*graph.Value{s, w.over(w.reduce(s, "maximum", key), rows, dims)}, nil)}, nil)
	if keep != nil {
		p = w.op(graph.OpMul, []*graph.Value{p, w.to(keep, dtypes.Float32)}, nil)
	}
	sum := w.reduce(p, "add", key)
	if keep != nil {
		sum = w.op(graph.OpMax, []*graph.Value{sum, w.splat(sum.Shape, 1)}, nil)
	}
	switch f.normalise {
	case "before":
		p = w.op(graph.OpDiv, []*graph.Value{p, w.over(sum, rows, dims)}, nil)
	case "keepdims":
		one := slices.Clone(dims)
		one[key] = 1
		every := make([]int, rank)
		for i := range every {
			every[i] = i
		}
		p = w.op(graph.OpDiv, []*graph.Value{p, w.over(w.op(graph.OpReshape, []*graph.Value{sum}, nil, shapes.Make(dtypes.Float32, one...)), every, dims)}, nil)
	}
	p = w.to(p, f.dtype)
	var out *graph.Value
	switch f.layout {
	case "blhd", "grouped":
		out = w.dot(p, v, []int{0, 1}, []int{key}, []int{0, 2}, []int{1})
	case "bhld", "keysfirst":
		out = w.dot(p, v, []int{0, 1}, []int{key}, []int{0, 1}, []int{2})
	case "merged":
		p = w.op(graph.OpReshape, []*graph.Value{p}, nil, shapes.Make(f.dtype, f.b*f.h, f.lq, f.lk))
		out = w.dot(p, v, []int{0}, []int{2}, []int{0}, []int{1})
		out = w.op(graph.OpReshape, []*graph.Value{out}, nil, shapes.Make(f.dtype, f.b, f.h, f.lq, valueSize))
	}
	if f.normalise == "after" {
		all := make([]int, sum.Shape.Rank())
		for i := range all {
			all[i] = i
		}
		out = w.op(graph.OpDiv, []*graph.Value{w.to(out, dtypes.Float32), w.over(sum, all, out.Shape.Dimensions)}, nil)
		out = w.to(out, f.dtype)
	}
	e.Results = []*graph.Value{w.op(graph.OpNeg, []*graph.Value{out}, nil)}
	if err := graph.Verify(m); err != nil {
		t.Fatalf("%v\n%s", err, m)
	}
	return m
}

func randomForm(rng *rand.Rand) form {
	pick := func(list ...string) string { return list[rng.IntN(len(list))] }
	f := form{
		layout: pick("blhd", "bhld", "merged", "keysfirst", "grouped"), dtype: dtypes.Float32, mask: pick("none", "add", "addrow", "keep", "causal"),
		normalise: pick("before", "keepdims", "after"), scale: pick("query", "scores", "none"),
		b: 1 + rng.IntN(2), h: 1 + rng.IntN(3), lq: 2 + rng.IntN(30), lk: 2 + rng.IntN(30),
	}
	if rng.IntN(3) == 0 {
		f.dtype = dtypes.BFloat16
	}
	return f
}

// maskedArguments are arguments whose masks leave out much, here and there all that a query would see.
func maskedArguments(m *graph.Module, f form, seed uint64) map[string]array {
	given := arguments(m, seed)
	mask, ok := given["mask"]
	if !ok {
		return given
	}
	rng := rand.New(rand.NewPCG(seed, 3))
	floats, err := graph.Literal{Data: mask.data}.Floats(mask.shape.DType)
	if err != nil {
		panic(err)
	}
	row := func(i int) int { return i / f.lk }
	if f.layout == "keysfirst" && f.mask != "addrow" {
		row = func(i int) int { return i%f.lq + i/(f.lq*f.lk)*f.lq }
	}
	for i := range floats {
		none := row(i)%5 == 1 && f.mask != "addrow"
		switch {
		case f.mask == "keep":
			floats[i] = float64(rng.IntN(2))
			if none {
				floats[i] = 0
			}
		case none || rng.IntN(3) == 0:
			floats[i] = math.Inf(-1)
		}
	}
	lit, err := graph.NewLiteral(mask.shape.DType, floats...)
	if err != nil {
		panic(err)
	}
	given["mask"] = array{mask.shape, lit.Data}
	return given
}

func chunked(t testing.TB, m *graph.Module, a passes.Attention) *graph.Module {
	t.Helper()
	o := passes.DefaultOptions()
	o.Attention = a
	out := graph.Clone(m)
	if err := passByName(t, "chunk-attention").Run(out, &o); err != nil {
		t.Fatal(err)
	}
	if err := graph.Verify(out); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	once := out.String()
	if err := passByName(t, "chunk-attention").Run(out, &o); err != nil {
		t.Fatal(err)
	}
	if out.String() != once {
		t.Fatalf("a second run changes the module\n%s\n%s", once, out)
	}
	return out
}

// largest is the number of elements of the largest float that any node of m computes, regions included; rows of a mask that are handed on are not computed.
func largest(m *graph.Module) int {
	most := 0
	for _, f := range m.Funcs {
		f.WalkNodes(func(n *graph.Node) {
			for _, v := range n.Results {
				if v.Shape.DType.IsFloat() && n.Op != graph.OpSlice && n.Op != graph.OpDynSlice && n.Op != graph.OpWhile {
					most = max(most, v.Shape.Size())
				}
			}
		})
	}
	return most
}

// checkAttention compares chunks of random sizes with the whole.
func checkAttention(t testing.TB, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 5))
	f := randomForm(rng)
	m := attentionModule(t, f)
	given := maskedArguments(m, f, seed)
	want, err := evaluate(m, given, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []passes.Attention{{Queries: 1 + rng.IntN(f.lq)}, {Queries: 1 + rng.IntN(f.lq), Keys: 1 + rng.IntN(f.lk)}} {
		if f.layout == "grouped" {
			a.Queries = max(a.Queries, 2) // no fewer than the heads of a group
		}
		cut := a.Queries < f.lq || a.Keys > 0 && a.Keys < f.lk
		name := fmt.Sprintf("seed %d: %+v, %s", seed, f, a)
		got := chunked(t, m, a)
		if changed := got.String() != m.String(); changed != cut {
			t.Fatalf("%s: changed %v, wanted %v\n%s", name, changed, cut, m)
		}
		// A chunk has at most so many scores; beside them there are the inputs and the result.
		rows := f.b * f.h
		if f.layout == "grouped" {
			rows *= 2
		}
		keys := f.lk
		if a.Keys > 0 {
			keys = min(keys, a.Keys)
		}
		if limit := max(rows*min(a.Queries, f.lq)*keys, rows*f.lq*headSize, f.b*f.h*f.lk*headSize); largest(got) > limit {
			t.Errorf("%s: a float of %d elements is left, wanted %d at most\n%s", name, largest(got), limit, got)
		}
		values, err := evaluate(got, given, false)
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, got)
		}
		// Rows are what they were, up to the order in which a dot of another size sums; over chunks of keys exponents have another base.
		tolerance := 2e-6
		if f.dtype == dtypes.BFloat16 && a.Keys > 0 {
			tolerance = 1.0 / 128
		}
		if d := difference(values, want, tolerance); d != "" {
			t.Errorf("%s: %s\n%s", name, d, got)
		}
	}
}

// TestChunkedAttention compares random attention of all forms, with masks, infinities and rows that see nothing, in chunks and whole.
func TestChunkedAttention(t *testing.T) {
	for seed := range uint64(300) {
		checkAttention(t, seed)
	}
}

func FuzzAttention(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) { checkAttention(t, seed) })
}

// TestAttentionBudget: the memory model leaves alone what fits, cuts queries where it does not, and keys where few queries do not fit; the
// temporaries that graph/cost finds shrink with it.
func TestAttentionBudget(t *testing.T) {
	f := form{layout: "blhd", dtype: dtypes.Float32, mask: "none", normalise: "after", scale: "query", b: 1, h: 2, lq: 4096, lk: 4096}
	m := attentionModule(t, f)
	scores := int64(f.h * f.lq * f.lk * 4)
	whole := cost.Analyze(m, cost.Options{}).Temporaries
	for _, c := range []struct {
		budget int64
		loops  int
		most   int64 // of temporaries
	}{
		{scores, 0, whole},
		{scores / 2, 1, scores + scores/64},
		{scores / 8, 1, scores / 3}, // a loop over queries
		{scores / 256, 2, scores / 40},
	} {
		got := chunked(t, m, passes.Attention{Budget: c.budget, Chunk: c.budget})
		loops := strings.Count(got.String(), "while")
		temporaries := cost.Analyze(got, cost.Options{}).Temporaries
		t.Logf("budget %d: %d loops, temporaries %d of %d", c.budget, loops, temporaries, whole)
		if loops != c.loops || temporaries > c.most {
			t.Errorf("budget %d: found %d loops and %d bytes of temporaries, wanted %d and at most %d\n%s", c.budget, loops, temporaries, c.loops, c.most, got)
		}
		flops, before := cost.Analyze(got, cost.Options{}).Total.Flops, cost.Analyze(m, cost.Options{}).Total.Flops
		if flops > 1.1*before || flops < 0.9*before {
			t.Errorf("budget %d: found %g operations, wanted about the %g of the whole", c.budget, flops, before)
		}
	}
}

// TestFusedAttention: where the compiler makes a kernel of attention, only what it would not make one of, or what is larger than is good for it, is cut, unless sizes are given.
func TestFusedAttention(t *testing.T) {
	f := form{layout: "blhd", dtype: dtypes.Float32, mask: "none", normalise: "after", scale: "query", b: 1, h: 2, lq: 512, lk: 512}
	for _, c := range []struct {
		layout, mask string
		a            passes.Attention
		cut          bool
	}{
		{"blhd", "none", passes.Attention{Budget: 1 << 20, Chunk: 1 << 20, Fused: 2 << 20}, false},
		{"blhd", "none", passes.Attention{Budget: 1 << 20, Chunk: 1 << 20}, true},
		{"blhd", "none", passes.Attention{Queries: 64, Fused: 2 << 20}, true},
		{"blhd", "none", passes.Attention{Budget: 1 << 20, Chunk: 1 << 20, Fused: 2<<20 - 1}, true},
		{"blhd", "addrow", passes.Attention{Budget: 1 << 20, Chunk: 1 << 20, Fused: 2 << 20}, false},
		{"blhd", "keep", passes.Attention{Budget: 1 << 20, Chunk: 1 << 20, Fused: 2 << 20}, true},
		{"grouped", "none", passes.Attention{Budget: 1 << 20, Chunk: 1 << 20, Fused: 2 << 20}, true},
	} {
		f.layout, f.mask = c.layout, c.mask
		m := attentionModule(t, f)
		if cut := chunked(t, m, c.a).String() != m.String(); cut != c.cut {
			t.Errorf("%s, mask %s, %+v: cut %v, wanted %v", c.layout, c.mask, c.a, cut, c.cut)
		}
	}
}

// TestAttentionLeftWhole: what only looks like attention, and attention whose scores are wanted, is not touched.
func TestAttentionLeftWhole(t *testing.T) {
	w := func() (writer, *graph.Module) {
		m := graph.NewModule("m")
		return writer{t, graph.NewBuilder(m, m.Entry())}, m
	}
	check := func(name string, m *graph.Module) {
		t.Helper()
		if got := chunked(t, m, passes.Attention{Queries: 2, Keys: 2}); got.String() != m.String() {
			t.Errorf("%s is changed:\n%s", name, got)
		}
	}
	b, m := w()
	x := m.Entry().NewParam("x", graph.Input, shapes.Make(dtypes.Float32, 8, 3))
	up, down := m.Entry().NewParam("up", graph.Weight, shapes.Make(dtypes.Float32, 3, 6)), m.Entry().NewParam("down", graph.Weight, shapes.Make(dtypes.Float32, 6, 3))
	h := b.op(graph.OpExp, []*graph.Value{b.dot(x, up, nil, []int{1}, nil, []int{0})}, nil)
	m.Entry().Results = []*graph.Value{b.dot(h, down, nil, []int{1}, nil, []int{0})}
	check("an MLP", m)

	f := form{layout: "bhld", dtype: dtypes.Float32, mask: "none", normalise: "before", scale: "none", b: 1, h: 2, lq: 8, lk: 8}
	m = attentionModule(t, f)
	for _, n := range m.Entry().Nodes {
		if n.Op == graph.OpExp {
			m.Entry().Results = append(m.Entry().Results, n.Results[0])
		}
	}
	check("attention whose exponentials are a result", m)

	// A softmax over the queries mixes rows.
	b, m = w()
	q := m.Entry().NewParam("q", graph.Input, shapes.Make(dtypes.Float32, 8, 3))
	s := b.dot(q, q, nil, []int{1}, nil, []int{1})
	p := b.op(graph.OpExp, []*graph.Value{b.op(graph.OpSub, []*graph.Value{s, b.over(b.reduce(s, "maximum", 0), []int{1}, []int{8, 8})}, nil)}, nil)
	m.Entry().Results = []*graph.Value{b.dot(p, q, nil, []int{1}, nil, []int{0})}
	check("a softmax over the queries", m)

	// Keys that can't be run through: something other than a softmax of the scores. The queries can be cut all the same.
	b, m = w()
	q = m.Entry().NewParam("q", graph.Input, shapes.Make(dtypes.Float32, 8, 3))
	s = b.dot(q, q, nil, []int{1}, nil, []int{1})
	e := b.op(graph.OpExp, []*graph.Value{s}, nil)
	e = b.op(graph.OpDiv, []*graph.Value{e, b.over(b.reduce(e, "maximum", 1), []int{0}, []int{8, 8})}, nil)
	m.Entry().Results = []*graph.Value{b.dot(e, q, nil, []int{1}, nil, []int{0})}
	got := chunked(t, m, passes.Attention{Queries: 4, Keys: 2})
	given := arguments(m, 1)
	want, err := evaluate(m, given, false)
	if err != nil {
		t.Fatal(err)
	}
	values, err := evaluate(got, given, false)
	if err != nil {
		t.Fatal(err)
	}
	if d := difference(values, want, 1e-6); d != "" || strings.Count(got.String(), "while") != 1 || got.String() == m.String() {
		t.Errorf("another function of the scores: %s, wanted one loop, over queries\n%s", d, got)
	}
}

// TestParseAttention has each form, and what is refused.
func TestParseAttention(t *testing.T) {
	cpu, tpu := passes.Target{Platform: "cpu", FusedAttention: true}, passes.Target{Platform: "tpu"}
	if got, err := passes.ParseAttention("auto", tpu); err != nil || got != passes.AttentionFor(tpu) {
		t.Errorf("auto for a TPU: found %+v, %v", got, err)
	}
	auto := passes.AttentionFor(cpu)
	if auto.Fused == 0 {
		t.Error("auto: the target makes kernels of attention, and the pass doesn't know")
	}
	for text, want := range map[string]passes.Attention{
		"": auto, "auto": auto, "whole": {}, "chunked:512": {Queries: 512}, "chunked:256x1024": {Queries: 256, Keys: 1024},
	} {
		got, err := passes.ParseAttention(text, cpu)
		if err != nil || got != want {
			t.Errorf("%q: found %+v, %v, wanted %+v", text, got, err, want)
		}
		if again, err := passes.ParseAttention(got.String(), cpu); got.Budget == 0 && (err != nil || again != got) {
			t.Errorf("%q: printed as %q, which gives %+v, %v", text, got, again, err)
		}
	}
	for _, text := range []string{"chunked", "chunked:", "chunked:0", "chunked:-1", "chunked:4x", "chunked:4x0", "chunked:ax4", "chunked:4x4x4", "wholly", "512", "auto(7)"} {
		if got, err := passes.ParseAttention(text, cpu); err == nil || !strings.Contains(err.Error(), "attention: found") {
			t.Errorf("%q: found %+v, %v, wanted an error", text, got, err)
		}
	}
}
