package backendtest

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/gomlx/compute/dtypes"

	"precast/graph"
)

// RandomProgram is a module of operations on random shapes, attributes, element types and values, with the arguments to run it on.
// Each operation's results are results of the module, named "op N".
type RandomProgram struct {
	Module *graph.Module
	Args   []Tensor
	// Tolerances are Compare's, one a result.
	Tolerances []float64
}

// NewRandomProgram makes count nodes of each op given. The same seed gives the same program. rng_bit_generator and call, whose values and
// callees are a backend's and a module's own, can't be asked for.
func NewRandomProgram(seed uint64, count int, ops ...graph.Op) (RandomProgram, error) {
	m := graph.NewModule("random")
	g := &generator{r: rand.New(rand.NewPCG(seed, 1)), m: m, b: graph.NewBuilder(m, m.Entry())}
	for _, op := range ops {
		make, ok := generators[op]
		if !ok {
			return RandomProgram{}, fmt.Errorf("random program: there is no generator for %s", op)
		}
		for range count {
			make(g, op)
		}
	}
	if g.err != nil {
		return RandomProgram{}, fmt.Errorf("random program of seed %d: %w", seed, g.err)
	}
	return RandomProgram{Module: m, Args: g.args, Tolerances: g.tolerances}, graph.Verify(m)
}

// RandomOps are the ops that NewRandomProgram makes.
func RandomOps() []graph.Op {
	ops := make([]graph.Op, 0, len(generators))
	for op := range generators {
		ops = append(ops, op)
	}
	slices.Sort(ops)
	return ops
}

type generator struct {
	r          *rand.Rand
	m          *graph.Module
	b          *graph.Builder
	args       []Tensor
	tolerances []float64
	err        error
}

var (
	floatTypes = []graph.DType{dtypes.Float32, dtypes.Float32, dtypes.Float32, dtypes.BFloat16, dtypes.Float16, dtypes.Float64}
	intTypes   = []graph.DType{dtypes.Int8, dtypes.Int16, dtypes.Int32, dtypes.Int64, dtypes.Uint8, dtypes.Uint16, dtypes.Uint32, dtypes.Uint64}
	signedInts = intTypes[:4]
	numbers    = slices.Concat(floatTypes, intTypes)
	anyTypes   = append(slices.Clone(numbers), dtypes.Bool)
	logicTypes = append(slices.Clone(intTypes), dtypes.Bool)
)

func pick[T any](g *generator, list []T) T { return list[g.r.IntN(len(list))] }

// dims are least to most random dimensions of 1 to 6.
func (g *generator) dims(least, most int) []int {
	d := make([]int, least+g.r.IntN(most-least+1))
	for i := range d {
		d[i] = 1 + g.r.IntN(6)
	}
	return d
}

func (g *generator) upTo(n int) int { return g.r.IntN(n + 1) }

func shaped(d graph.DType, dims ...int) graph.Shape {
	return graph.Shape{DType: d, Dimensions: slices.Clone(dims)}
}

// input is a new argument with values of about unit size, for integers small ones of either sign.
func (g *generator) input(d graph.DType, dims ...int) *graph.Value {
	return g.inputWith(d, dims, func() float64 {
		switch {
		case d == dtypes.Bool:
			return float64(g.r.IntN(2))
		case d.IsFloat():
			return float64(g.r.IntN(513)-256) / 64
		case d.IsUnsigned():
			return float64(g.r.IntN(100))
		}
		return float64(g.r.IntN(199) - 99)
	})
}

func (g *generator) inputWith(d graph.DType, dims []int, value func() float64) *graph.Value {
	v := make([]float64, product(dims))
	for i := range v {
		v[i] = value()
	}
	s := shaped(d, dims...)
	g.args = append(g.args, T(graph.ShapeString(s), v...))
	return g.m.Entry().NewParam(fmt.Sprintf("x%d", len(g.args)), graph.Input, s)
}

var tolerances = map[graph.DType]float64{dtypes.Float64: 1e-9, dtypes.Float32: 3e-5, dtypes.Float16: 5e-3, dtypes.BFloat16: 3e-2}

// emit appends a node whose results are compared.
func (g *generator) emit(op graph.Op, in []*graph.Value, attrs map[string]any, want ...graph.Shape) *graph.Node {
	return g.emitRegions(op, in, attrs, nil, want...)
}

func (g *generator) emitRegions(op graph.Op, in []*graph.Value, attrs map[string]any, regions []*graph.Func, want ...graph.Shape) *graph.Node {
	var a graph.Attrs
	for name, v := range attrs {
		a = a.With(name, v)
	}
	n, err := g.b.OpWithRegions(op, in, a, regions, want...)
	if err != nil {
		if g.err == nil {
			g.err = err
		}
		return &graph.Node{}
	}
	f := g.m.Entry()
	for _, r := range n.Results {
		f.ResultNames = append(f.ResultNames, fmt.Sprintf("%s %d", op, len(f.Results)))
		f.Results = append(f.Results, r)
		g.tolerances = append(g.tolerances, tolerances[r.Shape.DType])
	}
	return n
}

type maker = func(g *generator, op graph.Op)

func makeUnary(types []graph.DType) maker {
	return func(g *generator, op graph.Op) {
		g.emit(op, []*graph.Value{g.input(pick(g, types), g.dims(0, 3)...)}, nil)
	}
}

func makeBinary(types []graph.DType) maker {
	return func(g *generator, op graph.Op) {
		d, dims := pick(g, types), g.dims(0, 3)
		g.emit(op, []*graph.Value{g.input(d, dims...), g.input(d, dims...)}, nil)
	}
}

var reducerTypes = map[string][]graph.DType{
	"add": numbers, "multiply": floatTypes, "maximum": anyTypes, "minimum": anyTypes, "and": logicTypes, "or": logicTypes, "xor": logicTypes,
}

func (g *generator) reducer() (string, graph.DType) {
	c := pick(g, []string{"add", "add", "multiply", "maximum", "minimum", "and", "or", "xor"})
	return c, pick(g, reducerTypes[c])
}

// comparator is a region that compares its first two parameters.
func comparator(direction string, types ...graph.DType) *graph.Func {
	f := &graph.Func{}
	for i, t := range types {
		f.NewParam(fmt.Sprintf("a%d", i), graph.Input, shaped(t))
		f.NewParam(fmt.Sprintf("b%d", i), graph.Input, shaped(t))
	}
	n := f.Append(graph.OpCompare, []*graph.Value{f.Params[0].Value, f.Params[1].Value},
		graph.Attrs{{Name: "direction", Value: direction}, {Name: "total", Value: false}}, shaped(dtypes.Bool))
	f.Results = n.Results
	return f
}

// region applies op to the last parameter of a function of the given shapes and passes the others.
func region(op graph.Op, shapes ...graph.Shape) *graph.Func {
	f := &graph.Func{}
	for i, s := range shapes {
		v := f.NewParam(fmt.Sprintf("p%d", i), graph.Input, s)
		f.Results = append(f.Results, v)
	}
	last := len(shapes) - 1
	f.Results[last] = f.Append(op, slices.Clone(f.Results[last:]), nil, shapes[last]).Results[0]
	return f
}

// generators make one node of each op; ops that need an operand of limited range give it one.
var generators map[graph.Op]maker

func init() {
	generators = map[graph.Op]maker{
		graph.OpAbs: makeUnary(slices.Concat(floatTypes, signedInts)), graph.OpNeg: makeUnary(numbers), graph.OpSign: makeUnary(slices.Concat(floatTypes, signedInts)),
		graph.OpNot: makeUnary(logicTypes), graph.OpPopcnt: makeUnary(intTypes), graph.OpClz: makeUnary(intTypes),
		graph.OpAdd: makeBinary(anyTypes), graph.OpSub: makeBinary(numbers), graph.OpMul: makeBinary(anyTypes), graph.OpDiv: makeBinary(numbers),
		graph.OpRem: makeBinary(numbers), graph.OpMax: makeBinary(anyTypes), graph.OpMin: makeBinary(anyTypes), graph.OpAtan2: makeBinary(floatTypes),
		graph.OpAnd: makeBinary(logicTypes), graph.OpOr: makeBinary(logicTypes), graph.OpXor: makeBinary(logicTypes),
		graph.OpShl: makeBinary(intTypes), graph.OpShrArith: makeBinary(intTypes), graph.OpShrLogic: makeBinary(intTypes),
	}
	for _, op := range []graph.Op{
		graph.OpCeil, graph.OpCos, graph.OpErf, graph.OpExp, graph.OpExpm1, graph.OpFloor, graph.OpIsFinite, graph.OpLog, graph.OpLog1p,
		graph.OpLogistic, graph.OpRound, graph.OpRsqrt, graph.OpSin, graph.OpSqrt, graph.OpTanh,
	} {
		generators[op] = makeUnary(floatTypes)
	}
	generators[graph.OpPow] = func(g *generator, op graph.Op) {
		d, dims := pick(g, floatTypes), g.dims(0, 2)
		if g.r.IntN(2) == 0 {
			d = pick(g, intTypes)
		}
		small := func() float64 { return float64(g.r.IntN(4)) } // an exponent that keeps within every type
		g.emit(op, []*graph.Value{g.inputWith(d, dims, func() float64 { return float64(1 + g.r.IntN(4)) }), g.inputWith(d, dims, small)}, nil)
	}
	generators[graph.OpConstant] = func(g *generator, op graph.Op) {
		d, dims := pick(g, anyTypes), g.dims(0, 3)
		g.input(d, dims...) // for its values; the argument stays unused
		x := g.args[len(g.args)-1]
		g.emit(op, nil, map[string]any{"value": graph.Literal{Data: x.Data}}, x.Shape)
	}
	generators[graph.OpIota] = func(g *generator, op graph.Op) {
		dims := g.dims(1, 3)
		g.emit(op, nil, map[string]any{"iota_dimension": g.r.IntN(len(dims))}, shaped(pick(g, numbers), dims...))
	}
	generators[graph.OpConvert] = func(g *generator, op graph.Op) {
		from, to, dims := pick(g, anyTypes), pick(g, anyTypes), g.dims(0, 2)
		x := g.input(from, dims...)
		if from.IsFloat() && to.IsInt() {
			x = g.inputWith(from, dims, func() float64 { return float64(g.r.IntN(2001)-1000) / 8 }) // out of some types' range
		}
		g.emit(op, []*graph.Value{x}, nil, shaped(to, dims...))
	}
	generators[graph.OpBitcast] = func(g *generator, op graph.Op) {
		sizes := map[int][]graph.DType{
			1: {dtypes.Int8, dtypes.Uint8}, 2: {dtypes.Int16, dtypes.Uint16}, 4: {dtypes.Int32, dtypes.Uint32}, 8: {dtypes.Int64, dtypes.Uint64},
		}
		from, dims := pick(g, numbers), g.dims(0, 2)
		size := from.Size()
		if size > 1 && g.r.IntN(3) == 0 { // to smaller elements, and a last dimension
			to := pick(g, sizes[size/2])
			g.emit(op, []*graph.Value{g.input(from, dims...)}, nil, shaped(to, append(slices.Clone(dims), 2)...))
			return
		}
		g.emit(op, []*graph.Value{g.input(from, dims...)}, nil, shaped(pick(g, sizes[size]), dims...))
	}
	generators[graph.OpCompare] = func(g *generator, op graph.Op) {
		d, dims := pick(g, anyTypes), g.dims(0, 2)
		g.emit(op, []*graph.Value{g.input(d, dims...), g.input(d, dims...)}, map[string]any{
			"direction": pick(g, []string{"EQ", "NE", "LT", "LE", "GT", "GE"}), "total": d.IsFloat() && g.r.IntN(2) == 0,
		})
	}
	generators[graph.OpSelect] = func(g *generator, op graph.Op) {
		d, dims := pick(g, anyTypes), g.dims(0, 3)
		p := g.input(dtypes.Bool, dims...)
		if g.r.IntN(3) == 0 {
			p = g.input(dtypes.Bool)
		}
		g.emit(op, []*graph.Value{p, g.input(d, dims...), g.input(d, dims...)}, nil)
	}
	generators[graph.OpClamp] = func(g *generator, op graph.Op) {
		d, dims := pick(g, numbers), g.dims(0, 2)
		lo, hi := g.input(d, dims...), g.input(d, dims...)
		if g.r.IntN(2) == 0 {
			lo = g.input(d)
		}
		if g.r.IntN(2) == 0 {
			hi = g.input(d)
		}
		g.emit(op, []*graph.Value{lo, g.input(d, dims...), hi}, nil)
	}
	generators[graph.OpBroadcast] = func(g *generator, op graph.Op) {
		out := g.dims(1, 4)
		perm := g.r.Perm(len(out))[:g.upTo(len(out))]
		dims := make([]int, len(perm))
		for i, p := range perm {
			if dims[i] = out[p]; g.r.IntN(4) == 0 {
				dims[i] = 1
			}
		}
		d := pick(g, anyTypes)
		g.emit(op, []*graph.Value{g.input(d, dims...)}, map[string]any{"broadcast_dimensions": perm}, shaped(d, out...))
	}
	generators[graph.OpReshape] = func(g *generator, op graph.Op) {
		dims := g.dims(1, 4)
		out := slices.Clone(dims)
		g.r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
		if g.r.IntN(2) == 0 {
			out = []int{product(dims)}
		}
		d := pick(g, anyTypes)
		g.emit(op, []*graph.Value{g.input(d, dims...)}, nil, shaped(d, out...))
	}
	generators[graph.OpTranspose] = func(g *generator, op graph.Op) {
		dims := g.dims(0, 4)
		g.emit(op, []*graph.Value{g.input(pick(g, anyTypes), dims...)}, map[string]any{"permutation": g.r.Perm(len(dims))})
	}
	generators[graph.OpSlice] = func(g *generator, op graph.Op) {
		dims := g.dims(1, 3)
		start, limit, strides := make([]int, len(dims)), make([]int, len(dims)), make([]int, len(dims))
		for i, d := range dims {
			start[i] = g.r.IntN(d)
			limit[i] = start[i] + 1 + g.r.IntN(d-start[i])
			strides[i] = 1 + g.r.IntN(3)
		}
		g.emit(op, []*graph.Value{g.input(pick(g, anyTypes), dims...)}, map[string]any{"start_indices": start, "limit_indices": limit, "strides": strides})
	}
	generators[graph.OpConcat] = func(g *generator, op graph.Op) {
		dims, d := g.dims(1, 3), pick(g, anyTypes)
		axis := g.r.IntN(len(dims))
		var in []*graph.Value
		for range 1 + g.r.IntN(4) {
			dims[axis] = 1 + g.r.IntN(4)
			in = append(in, g.input(d, dims...))
		}
		g.emit(op, in, map[string]any{"dimension": axis})
	}
	generators[graph.OpPad] = func(g *generator, op graph.Op) {
		dims, d := g.dims(1, 3), pick(g, anyTypes)
		low, high, interior := make([]int, len(dims)), make([]int, len(dims)), make([]int, len(dims))
		for i := range dims {
			low[i], high[i], interior[i] = g.r.IntN(4)-1, g.r.IntN(4), g.r.IntN(3)
		}
		g.emit(op, []*graph.Value{g.input(d, dims...), g.input(d)}, map[string]any{
			"edge_padding_low": low, "edge_padding_high": high, "interior_padding": interior,
		})
	}
	generators[graph.OpReverse] = func(g *generator, op graph.Op) {
		dims := g.dims(0, 3)
		g.emit(op, []*graph.Value{g.input(pick(g, anyTypes), dims...)}, map[string]any{"dimensions": g.r.Perm(len(dims))[:g.upTo(len(dims))]})
	}
	generators[graph.OpGather] = makeGather
	generators[graph.OpScatter] = makeScatter
	generators[graph.OpDynSlice] = func(g *generator, op graph.Op) {
		dims := g.dims(1, 3)
		in := []*graph.Value{g.input(pick(g, anyTypes), dims...)}
		sizes, t := make([]int, len(dims)), pick(g, intTypes)
		for i, d := range dims {
			sizes[i] = 1 + g.r.IntN(d)
			in = append(in, g.inputWith(t, nil, func() float64 { return g.index(t, d) }))
		}
		g.emit(op, in, map[string]any{"slice_sizes": sizes})
	}
	generators[graph.OpDynUpdSlice] = func(g *generator, op graph.Op) {
		dims, d, t := g.dims(1, 3), pick(g, anyTypes), pick(g, intTypes)
		sizes := make([]int, len(dims))
		for i, n := range dims {
			sizes[i] = 1 + g.r.IntN(n)
		}
		in := []*graph.Value{g.input(d, dims...), g.input(d, sizes...)}
		for _, n := range dims {
			in = append(in, g.inputWith(t, nil, func() float64 { return g.index(t, n) }))
		}
		g.emit(op, in, nil)
	}
	generators[graph.OpReduce] = func(g *generator, op graph.Op) {
		dims := g.dims(0, 4)
		c, d := g.reducer()
		g.emit(op, []*graph.Value{g.input(d, dims...)}, map[string]any{"combiner": c, "dimensions": g.r.Perm(len(dims))[:g.upTo(len(dims))]})
		g.loosen(c, d)
	}
	generators[graph.OpArgMinMax] = func(g *generator, op graph.Op) {
		dims := g.dims(1, 3)
		axis := g.r.IntN(len(dims))
		g.emit(op, []*graph.Value{g.input(pick(g, anyTypes), dims...)}, map[string]any{"dimension": axis, "min": g.r.IntN(2) == 0},
			shaped(pick(g, intTypes), slices.Delete(slices.Clone(dims), axis, axis+1)...))
	}
	generators[graph.OpReduceWindow] = func(g *generator, op graph.Op) {
		dims := g.dims(1, 3)
		c, d := g.reducer()
		a := map[string]any{"combiner": c}
		window, strides, base, dilation, padding := make([]int, len(dims)), make([]int, len(dims)), make([]int, len(dims)), make([]int, len(dims)), make([][2]int, len(dims))
		for i, n := range dims {
			window[i], strides[i], base[i], dilation[i] = 1+g.r.IntN(min(n, 3)), 1+g.r.IntN(3), 1+g.r.IntN(2), 1+g.r.IntN(2)
			padding[i] = [2]int{dilation[i] * (window[i] - 1), g.r.IntN(3)} // at least one window
		}
		a["window_dimensions"], a["window_strides"], a["base_dilations"], a["window_dilations"], a["padding"] = window, strides, base, dilation, padding
		g.emit(op, []*graph.Value{g.input(d, dims...)}, a)
		g.loosen(c, d)
	}
	generators[graph.OpDot] = makeDot
	generators[graph.OpConv] = makeConv
	generators[graph.OpBarrier] = func(g *generator, op graph.Op) {
		var in []*graph.Value
		for range 1 + g.r.IntN(3) {
			in = append(in, g.input(pick(g, anyTypes), g.dims(0, 2)...))
		}
		g.emit(op, in, nil)
	}
	generators[graph.OpSort] = func(g *generator, op graph.Op) {
		dims, d, e := g.dims(1, 3), pick(g, numbers), pick(g, anyTypes)
		in := []*graph.Value{g.input(d, dims...)}
		types := []graph.DType{d}
		if g.r.IntN(2) == 0 {
			in, types = append(in, g.input(e, dims...)), append(types, e)
		}
		g.emitRegions(op, in, map[string]any{"dimension": g.r.IntN(len(dims)), "is_stable": true},
			[]*graph.Func{comparator(pick(g, []string{"LT", "GT"}), types...)})
	}
	generators[graph.OpWhile] = func(g *generator, op graph.Op) {
		counter, x := shaped(dtypes.Int32), shaped(pick(g, floatTypes), g.dims(0, 2)...)
		cond := region(graph.OpNeg, counter, x)
		zero, _ := graph.NewSplat(dtypes.Int32, 0)
		c := cond.Append(graph.OpConstant, nil, graph.Attrs{{Name: "value", Value: zero}}, counter).Results[0]
		cond.Results = cond.Append(graph.OpCompare, []*graph.Value{cond.Params[0].Value, c},
			graph.Attrs{{Name: "direction", Value: "GT"}, {Name: "total", Value: false}}, shaped(dtypes.Bool)).Results
		body := region(graph.OpTanh, counter, x)
		less, _ := graph.NewSplat(dtypes.Int32, 1)
		c = body.Append(graph.OpConstant, nil, graph.Attrs{{Name: "value", Value: less}}, counter).Results[0]
		body.Results[0] = body.Append(graph.OpSub, []*graph.Value{body.Params[0].Value, c}, nil, counter).Results[0]
		n := g.inputWith(dtypes.Int32, nil, func() float64 { return float64(g.r.IntN(5)) })
		g.emitRegions(op, []*graph.Value{n, g.input(x.DType, x.Dimensions...)}, nil, []*graph.Func{cond, body})
	}
	generators[graph.OpIf] = func(g *generator, op graph.Op) {
		s, x := shaped(pick(g, anyTypes), g.dims(0, 2)...), shaped(pick(g, floatTypes), g.dims(0, 2)...)
		g.emitRegions(op, []*graph.Value{g.input(dtypes.Bool), g.input(s.DType, s.Dimensions...), g.input(x.DType, x.Dimensions...)}, nil,
			[]*graph.Func{region(graph.OpTanh, s, x), region(graph.OpNeg, s, x)})
	}
}

// index is an index into n elements, sometimes out of range.
func (g *generator) index(t graph.DType, n int) float64 {
	if t.IsUnsigned() {
		return float64(g.r.IntN(n + 2))
	}
	return float64(g.r.IntN(n+4) - 2)
}

// loosen allows a product of many factors its magnitude, and a half-precision reduction rounding at every step.
func (g *generator) loosen(combiner string, d graph.DType) {
	if len(g.tolerances) == 0 {
		return
	}
	t := &g.tolerances[len(g.tolerances)-1]
	if combiner == "multiply" {
		*t *= 10
	}
	if combiner == "add" && d.IsHalfPrecision() {
		*t *= 4
	}
}

func makeGather(g *generator, op graph.Op) {
	dims := g.dims(1, 3)
	axes := g.r.Perm(len(dims))[:1+g.r.IntN(len(dims))] // indexed
	sizes := slices.Clone(dims)
	var collapsed []int
	for i := range dims {
		if slices.Contains(axes, i) {
			sizes[i] = 1 + g.r.IntN(dims[i])
			if g.r.IntN(2) == 0 {
				sizes[i] = 1
				collapsed = append(collapsed, i)
			}
		}
	}
	batch := g.dims(0, 2)
	vector := g.upTo(len(batch))
	ishape := slices.Insert(slices.Clone(batch), vector, len(axes))
	if len(axes) == 1 && g.r.IntN(2) == 0 { // the index vector is implicit
		ishape, vector = batch, len(batch)
	}
	windows := len(dims) - len(collapsed)
	offsets := g.r.Perm(len(batch) + windows)[:windows]
	slices.Sort(offsets)
	t := pick(g, intTypes)
	n := slices.Min(dims)
	g.emit(op, []*graph.Value{g.input(pick(g, anyTypes), dims...), g.inputWith(t, ishape, func() float64 { return g.index(t, n) })}, map[string]any{
		"offset_dims": offsets, "collapsed_slice_dims": nonNil(collapsed), "start_index_map": axes, "index_vector_dim": vector, "slice_sizes": sizes,
	})
}

func nonNil(xs []int) []int {
	if xs == nil {
		return []int{}
	}
	return xs
}

func makeScatter(g *generator, op graph.Op) {
	dims := g.dims(1, 3)
	axes := g.r.Perm(len(dims))[:1+g.r.IntN(len(dims))]
	var inserted, window []int
	for i, d := range dims {
		switch {
		case slices.Contains(axes, i) && g.r.IntN(2) == 0:
			inserted = append(inserted, i)
		case slices.Contains(axes, i):
			window = append(window, 1+g.r.IntN(d))
		default:
			window = append(window, d)
		}
	}
	batch := g.dims(0, 2)
	vector := g.upTo(len(batch))
	ishape := slices.Insert(slices.Clone(batch), vector, len(axes))
	if len(axes) == 1 && g.r.IntN(2) == 0 {
		ishape, vector = batch, len(batch)
	}
	at := g.r.Perm(len(batch) + len(window))[:len(window)]
	slices.Sort(at)
	updates := make([]int, 0, len(batch)+len(window))
	for i := range len(batch) + len(window) {
		if k := slices.Index(at, i); k >= 0 {
			updates = append(updates, window[k])
		} else {
			updates = append(updates, batch[len(updates)-countBelow(at, i)])
		}
	}
	d, t := pick(g, numbers), pick(g, intTypes)
	n := slices.Min(dims)
	g.emit(op, []*graph.Value{
		g.input(d, dims...), g.inputWith(t, ishape, func() float64 { return g.index(t, n) }), g.input(d, updates...),
	}, map[string]any{
		"update_window_dims": nonNil(at), "inserted_window_dims": nonNil(inserted), "scatter_dims_to_operand_dims": axes, "index_vector_dim": vector,
		"combiner": pick(g, []string{"add", "max", "min"}),
	})
	g.loosen("add", d)
}

func countBelow(xs []int, n int) (c int) {
	for _, x := range xs {
		if x < n {
			c++
		}
	}
	return c
}

func makeDot(g *generator, op graph.Op) {
	d := pick(g, slices.Concat(floatTypes, []graph.DType{dtypes.Int32, dtypes.Int64}))
	batch, contract := g.dims(0, 2), g.dims(0, 2)
	// side places the batching, contracting and free dimensions of one operand at random.
	side := func() (dims, batching, contracting []int) {
		free := g.dims(0, 2)
		all := slices.Concat(batch, contract, free)
		perm := g.r.Perm(len(all))
		dims = make([]int, len(all))
		for i, p := range perm {
			dims[p] = all[i]
		}
		return dims, perm[:len(batch)], perm[len(batch) : len(batch)+len(contract)]
	}
	l, lb, lc := side()
	r, rb, rc := side()
	g.emit(op, []*graph.Value{g.input(d, l...), g.input(d, r...)}, map[string]any{
		"lhs_batching": slices.Clone(lb), "lhs_contracting": slices.Clone(lc), "rhs_batching": slices.Clone(rb), "rhs_contracting": slices.Clone(rc), "precision": "HIGHEST",
	})
	g.loosen("add", d)
}

func makeConv(g *generator, op graph.Op) {
	n := 1 + g.r.IntN(3)
	groups, batchGroups := 1, 1
	switch g.r.IntN(4) {
	case 0:
		groups = 2
	case 1:
		batchGroups = 2
	}
	batch, inputs, outputs := batchGroups*(1+g.r.IntN(2)), 1+g.r.IntN(4), groups*batchGroups*(1+g.r.IntN(3))
	strides, ldil, rdil, padding := make([]int, n), make([]int, n), make([]int, n), make([][2]int, n)
	lhs, rhs := []int{batch, inputs * groups}, []int{outputs, inputs}
	for i := range n {
		k := 1 + g.r.IntN(3)
		lhs, rhs = append(lhs, k+2+g.r.IntN(7-2*n)), append(rhs, k)
		strides[i], ldil[i], rdil[i] = 1+g.r.IntN(2), 1+g.r.IntN(2), 1+g.r.IntN(2)
		padding[i] = [2]int{g.r.IntN(3), g.r.IntN(3)}
	}
	// place permutes dimensions: the position of each.
	place := func(dims []int) (at, placed []int) {
		at, placed = g.r.Perm(len(dims)), make([]int, len(dims))
		for i, p := range at {
			placed[p] = dims[i]
		}
		return at, placed
	}
	la, l := place(lhs)
	ra, r := place(rhs)
	oa := g.r.Perm(n + 2)
	d := pick(g, []graph.DType{dtypes.Float32, dtypes.Float32, dtypes.Float64, dtypes.BFloat16})
	g.emit(op, []*graph.Value{g.input(d, l...), g.input(d, r...)}, map[string]any{
		"input_batch_dimension": la[0], "input_feature_dimension": la[1], "input_spatial_dimensions": slices.Clone(la[2:]),
		"kernel_output_feature_dimension": ra[0], "kernel_input_feature_dimension": ra[1], "kernel_spatial_dimensions": slices.Clone(ra[2:]),
		"output_batch_dimension": oa[0], "output_feature_dimension": oa[1], "output_spatial_dimensions": slices.Clone(oa[2:]),
		"window_strides": strides, "lhs_dilation": ldil, "rhs_dilation": rdil, "padding": padding,
		"feature_group_count": groups, "batch_group_count": batchGroups, "precision": "HIGHEST",
	})
	g.loosen("add", d)
}
