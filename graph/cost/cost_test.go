package cost

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"precast/backends/backendtest"
	"precast/graph"
)

// TestEveryOpHasARule: the table has the ops of the op table and no others, and what computes elements counts something.
func TestEveryOpHasARule(t *testing.T) {
	for op := range rules {
		if _, ok := graph.OpInfo(op); !ok {
			t.Errorf("%s is no op", op)
		}
	}
	zero := []graph.Op{
		graph.OpConstant, graph.OpIota, graph.OpBitcast, graph.OpBroadcast, graph.OpReshape, graph.OpTranspose, graph.OpSlice, graph.OpConcat, graph.OpPad,
		graph.OpReverse, graph.OpGather, graph.OpDynSlice, graph.OpDynUpdSlice, graph.OpBarrier,
		graph.OpSort, graph.OpWhile, graph.OpIf, graph.OpCall, // what they call is counted
	}
	for _, op := range graph.Ops() {
		r, ok := rules[op]
		if !ok {
			t.Errorf("%s has no rule", op)
			continue
		}
		if none := r.flops == nil && r.transcendentals == nil; none != slices.Contains(zero, op) {
			t.Errorf("%s: counts nothing: %v", op, none)
		}
		if info, _ := graph.OpInfo(op); info.Elementwise != (r.kind == elementwise) {
			t.Errorf("%s: the op table says elementwise %v", op, info.Elementwise)
		}
	}
}

const image = `input_batch_dimension = 0, input_feature_dimension = 1, input_spatial_dimensions = [2, 3], kernel_output_feature_dimension = 0,
	kernel_input_feature_dimension = 1, kernel_spatial_dimensions = [2, 3], output_batch_dimension = 0, output_feature_dimension = 1, output_spatial_dimensions = [2, 3]`

const less = `{
	%0 = input "i" : i32[]
	%1 = input "x" : f32[8]
	%2 = constant {value = splat<i32: 7>} : i32[]
	%3 = compare %0, %2 {direction = "LT"} : bool[]
	return %3
}`

func TestFlops(t *testing.T) {
	for _, c := range []struct {
		name, text            string
		flops, transcendental float64
		read, written         float64
	}{
		{"2 m n k", `%0 = input "x" : f32[3,5]
			%1 = weight "w" : f32[7,5]
			%2 = dot_general %0, %1 {lhs_contracting = [1], rhs_contracting = [1]} : f32[3,7]
			return %2`, 2 * 3 * 7 * 5, 0, 4 * (15 + 35), 4 * 21},
		{"a batch of products", `%0 = input "x" : bf16[6,3,5]
			%1 = input "y" : bf16[6,5,4]
			%2 = dot_general %0, %1 {lhs_batching = [0], rhs_batching = [0], lhs_contracting = [2], rhs_contracting = [1]} : bf16[6,3,4]
			return %2`, 2 * 6 * 3 * 5 * 4, 0, 2 * (90 + 120), 2 * 72},
		{"a convolution without padding", `%0 = input "x" : f32[2,3,8,8]
			%1 = weight "w" : f32[5,3,3,3]
			%2 = convolution %0, %1 {` + image + `} : f32[2,5,6,6]
			return %2`, 2 * 2 * 5 * 6 * 6 * 3 * 3 * 3, 0, 4 * (384 + 135), 4 * 360},
		// Of 8 positions with 3 taps each the first and the last miss one.
		{"padding is not counted", `%0 = input "x" : f32[1,3,8,8]
			%1 = weight "w" : f32[5,3,3,3]
			%2 = convolution %0, %1 {` + image + `, padding = [[1, 1], [1, 1]]} : f32[1,5,8,8]
			return %2`, 2 * 5 * 3 * 22 * 22, 0, 4 * (192 + 135), 4 * 320},
		{"groups", `%0 = input "x" : f32[1,4,8,8]
			%1 = weight "w" : f32[6,2,3,3]
			%2 = convolution %0, %1 {` + image + `, feature_group_count = 2} : f32[1,6,6,6]
			return %2`, 2 * 6 * 36 * 2 * 9, 0, 4 * (256 + 108), 4 * 216},
		{"strides", `%0 = input "x" : f32[1,1,8,8]
			%1 = weight "w" : f32[1,1,3,3]
			%2 = convolution %0, %1 {` + image + `, padding = [[1, 1], [1, 1]], window_strides = [2, 2]} : f32[1,1,4,4]
			return %2`, 2 * 11 * 11, 0, 4 * (64 + 9), 4 * 16},
		// A transposed convolution: the input becomes x0x0x0x, 7 wide; of the 5 windows those at even positions meet 2 elements, the others 1.
		{"a dilated input", `%0 = input "x" : f32[1,1,4,4]
			%1 = weight "w" : f32[1,1,3,3]
			%2 = convolution %0, %1 {` + image + `, lhs_dilation = [2, 2]} : f32[1,1,5,5]
			return %2`, 2 * 8 * 8, 0, 4 * (16 + 9), 4 * 25},
		{"a reduction", `%0 = input "x" : f32[4,6]
			%1 = reduce %0 {dimensions = [1], combiner = "add"} : f32[4]
			return %1`, 4 * 5, 0, 4 * 24, 4 * 4},
		{"elementwise", `%0 = input "x" : f32[4,6]
			%1 = exponential %0 : f32[4,6]
			%2 = add %1, %0 : f32[4,6]
			%3 = logistic %2 : f32[4,6]
			return %3`, 24 + 3*24, 48, 4 * 24 * 4, 4 * 24 * 3},
		{"moving is no operation", `%0 = input "x" : f32[4,6]
			%1 = transpose %0 {permutation = [1, 0]} : f32[6,4]
			%2 = reshape %1 : f32[24]
			%3 = slice %2 {start_indices = [0], limit_indices = [5]} : f32[5]
			return %3`, 0, 0, 4 * (24 + 5), 4 * (24 + 5)},
		{"a table", `%0 = weight "t" : f32[1000,8]
			%1 = input "ids" : i32[3,1]
			%2 = gather %0, %1 {offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1, slice_sizes = [1, 8]} : f32[3,8]
			return %2`, 0, 0, 4 * (24 + 3), 4 * 24},
		{"a call twice", `module @m
			func @main {
				%0 = input "x" : f32[8]
				%1 = call %0 {callee = "f"} : f32[8]
				%2 = call %1 {callee = "f"} : f32[8]
				return %2
			}
			func @f {
				%0 = input "x" : f32[8]
				%1 = negate %0 : f32[8]
				return %1
			}`, 16, 0, 64, 64},
		// 5 turns from 2 to 7: each has 8 sums, the counter's and a comparison, which comes once more.
		{"a loop of 5 turns", `%0 = input "x" : f32[8]
			%1 = constant {value = splat<i32: 2>} : i32[]
			%2, %3 = while %1, %0 region ` + less + ` region {
				%0 = input "i" : i32[]
				%1 = input "x" : f32[8]
				%2 = constant {value = splat<i32: 1>} : i32[]
				%3 = add %0, %2 : i32[]
				%4 = add %1, %1 : f32[8]
				return %3, %4
			} : i32[], f32[8]
			return %3`, 5*(8+1) + 6, 0, 5*(8+64) + 6*8, 5*(4+32) + 6},
		{"the dearer branch", `%0 = input "p" : bool[]
			%1 = input "x" : f32[8]
			%2 = if %0, %1 region {
				%0 = input "x" : f32[8]
				return %0
			} region {
				%0 = input "x" : f32[8]
				%1 = negate %0 : f32[8]
				return %1
			} : f32[8]
			return %2`, 8, 0, 32, 32},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := Analyze(backendtest.Parse(t, c.text), Options{})
			if got := r.Total; got != (Cost{c.flops, c.transcendental, c.read, c.written}) {
				t.Errorf("found %+v, wanted %v, %v, %v, %v", got, c.flops, c.transcendental, c.read, c.written)
			}
			if r.UnknownLoops != 0 {
				t.Errorf("%d loops are not known", r.UnknownLoops)
			}
		})
	}
}

// TestAttention counts softmax(q k^T) v of [b, l, h, d] by a closed form.
func TestAttention(t *testing.T) {
	const b, l, h, d = 2, 16, 4, 8
	m := backendtest.Parse(t, fmt.Sprintf(`
		%%0 = input "q" : f32[%[1]d,%[3]d,%[2]d,%[4]d]
		%%1 = input "k" : f32[%[1]d,%[3]d,%[2]d,%[4]d]
		%%2 = input "v" : f32[%[1]d,%[3]d,%[2]d,%[4]d]
		%%3 = dot_general %%0, %%1 {lhs_batching = [0, 1], rhs_batching = [0, 1], lhs_contracting = [3], rhs_contracting = [3]} : f32[%[1]d,%[3]d,%[2]d,%[2]d]
		%%4 = reduce %%3 {dimensions = [3], combiner = "maximum"} : f32[%[1]d,%[3]d,%[2]d]
		%%5 = broadcast_in_dim %%4 {broadcast_dimensions = [0, 1, 2]} : f32[%[1]d,%[3]d,%[2]d,%[2]d]
		%%6 = subtract %%3, %%5 : f32[%[1]d,%[3]d,%[2]d,%[2]d]
		%%7 = exponential %%6 : f32[%[1]d,%[3]d,%[2]d,%[2]d]
		%%8 = reduce %%7 {dimensions = [3], combiner = "add"} : f32[%[1]d,%[3]d,%[2]d]
		%%9 = broadcast_in_dim %%8 {broadcast_dimensions = [0, 1, 2]} : f32[%[1]d,%[3]d,%[2]d,%[2]d]
		%%10 = divide %%7, %%9 : f32[%[1]d,%[3]d,%[2]d,%[2]d]
		%%11 = dot_general %%10, %%2 {lhs_batching = [0, 1], rhs_batching = [0, 1], lhs_contracting = [3], rhs_contracting = [2]} : f32[%[1]d,%[3]d,%[2]d,%[4]d]
		return %%11`, b, l, h, d))
	r := Analyze(m, Options{})
	scores := float64(b * h * l * l)
	if want := 4*scores*d + 2*scores + 2*(scores-scores/l); r.Total.Flops != want || r.Total.Transcendentals != scores {
		t.Errorf("found %v and %v, wanted %v and %v", r.Total.Flops, r.Total.Transcendentals, want, scores)
	}
	// The scores and their exponentials, since a dot of two batch dimensions isn't written over, and the maxima.
	rows := int64(scores / l)
	if want := 4 * (2*int64(scores) + rows); r.Temporaries != want || r.OutputBytes != 4*b*h*l*d {
		t.Errorf("found %d of temporaries and %d of results, wanted %d and %d", r.Temporaries, r.OutputBytes, want, 4*b*h*l*d)
	}
}

// loopOf is a while from start, to which body adds step, while the counter stands in the given order to limit.
func loopOf(start, step, limit int, direction string) string {
	return fmt.Sprintf(`%%0 = constant {value = splat<i32: %d>} : i32[]
		%%1 = while %%0 region {
			%%0 = input "i" : i32[]
			%%1 = constant {value = splat<i32: %d>} : i32[]
			%%2 = compare %%0, %%1 {direction = %q} : bool[]
			return %%2
		} region {
			%%0 = input "i" : i32[]
			%%1 = constant {value = splat<i32: %d>} : i32[]
			%%2 = add %%1, %%0 : i32[]
			return %%2
		} : i32[]
		return %%1`, start, limit, direction, step)
}

func TestTripCount(t *testing.T) {
	for _, c := range []struct {
		text  string
		turns int64
		known bool
	}{
		{loopOf(0, 1, 19, "LT"), 19, true},
		{loopOf(0, 1, 19, "LE"), 20, true},
		{loopOf(-3, 4, 6, "LT"), 3, true},
		{loopOf(1, 4, 5, "LE"), 2, true},
		{loopOf(5, 1, 5, "LT"), 0, true},
		{loopOf(6, 1, 5, "LE"), 0, true},
		{loopOf(0, 1, 5, "NE"), 0, false},
		{loopOf(0, -1, 5, "LT"), 0, false},
		{loopOf(0, 0, 5, "LT"), 0, false},
		// The bound comes from before the loop, and the start is an input.
		{`%0 = constant {value = splat<i64: 0>} : i64[]
			%1 = constant {value = splat<i64: 38>} : i64[]
			%2, %3 = while %0, %1 region {
				%0 = input "i" : i64[]
				%1 = input "n" : i64[]
				%2 = compare %0, %1 {direction = "LT"} : bool[]
				return %2
			} region {
				%0 = input "i" : i64[]
				%1 = input "n" : i64[]
				%2 = constant {value = splat<i64: 1>} : i64[]
				%3 = add %0, %2 : i64[]
				return %3, %1
			} : i64[], i64[]
			return %2`, 38, true},
		{`%0 = input "start" : i32[]
			%1 = while %0 region {
				%0 = input "i" : i32[]
				%1 = constant {value = splat<i32: 5>} : i32[]
				%2 = compare %0, %1 {direction = "LT"} : bool[]
				return %2
			} region {
				%0 = input "i" : i32[]
				%1 = constant {value = splat<i32: 1>} : i32[]
				%2 = add %0, %1 : i32[]
				return %2
			} : i32[]
			return %1`, 0, false},
	} {
		m := backendtest.Parse(t, c.text)
		i := slices.IndexFunc(m.Entry().Nodes, func(n *graph.Node) bool { return n.Op == graph.OpWhile })
		turns, known := TripCount(m.Entry().Nodes[i])
		if turns != c.turns || known != c.known {
			t.Errorf("found %d, %v, wanted %d, %v, of\n%s", turns, known, c.turns, c.known, c.text)
		}
		if r := Analyze(m, Options{}); (r.UnknownLoops == 0) != c.known {
			t.Errorf("%d loops are not known of\n%s", r.UnknownLoops, c.text)
		}
	}
}

func TestLiveness(t *testing.T) {
	const product = ` {lhs_contracting = [1], rhs_contracting = [0]} : f32[16,16]`
	for _, c := range []struct {
		name, text                    string
		live                          []int64
		peak, temporary, out, aliased int64
	}{
		{"a chain is one loop", `%0 = input "x" : f32[1024]
			%1 = negate %0 : f32[1024]
			%2 = sine %1 : f32[1024]
			%3 = tanh %2 : f32[1024]
			return %3`, []int64{0, 0, 4096}, 4096, 0, 4096, 0},
		{"products", `%0 = input "x" : f32[16,16]
			%1 = dot_general %0, %0` + product + `
			%2 = dot_general %1, %0` + product + `
			%3 = dot_general %2, %1` + product + `
			return %3`, []int64{1024, 2048, 3072}, 3072, 2048, 1024, 0},
		{"in place", `%0 = input "x" : f32[16,16]
			%1 = dot_general %0, %0` + product + `
			%2 = exponential %1 : f32[16,16]
			%3 = dot_general %2, %0` + product + `
			return %3`, []int64{1024, 1024, 2048}, 2048, 1024, 1024, 0},
		{"not in place where it is read later", `%0 = input "x" : f32[16,16]
			%1 = dot_general %0, %0` + product + `
			%2 = exponential %1 : f32[16,16]
			%3 = dot_general %2, %1` + product + `
			return %3`, []int64{1024, 2048, 3072}, 3072, 2048, 1024, 0},
		{"a broadcast takes memory where a product reads it", `%0 = input "x" : f32[16]
			%1 = broadcast_in_dim %0 {broadcast_dimensions = [1]} : f32[16,16]
			%2 = dot_general %1, %1` + product + `
			return %2`, []int64{1024, 2048}, 2048, 1024, 1024, 0},
		{"and none where a loop does", `%0 = input "x" : f32[16]
			%1 = broadcast_in_dim %0 {broadcast_dimensions = [1]} : f32[16,16]
			%2 = add %1, %1 : f32[16,16]
			return %2`, []int64{0, 1024}, 1024, 0, 1024, 0},
		{"a reshape is its operand", `%0 = input "x" : f32[16,16]
			%1 = dot_general %0, %0` + product + `
			%2 = reshape %1 : f32[4,64]
			%3 = reshape %2 : f32[16,16]
			%4 = dot_general %3, %0` + product + `
			return %4`, []int64{1024, 1024, 1024, 2048}, 2048, 1024, 1024, 0},
		{"nor through a reshape", `%0 = input "x" : f32[16,16]
			%1 = dot_general %0, %0` + product + `
			%2 = reshape %1 : f32[256]
			%3 = exponential %2 : f32[256]
			%4 = reshape %3 : f32[16,16]
			%5 = dot_general %4, %0` + product + `
			return %5`, []int64{1024, 1024, 2048, 1024, 2048}, 2048, 2048, 1024, 0},
		{"cheap and read twice", `%0 = input "x" : f32[16,16]
			%1 = dot_general %0, %0` + product + `
			%2 = multiply %1, %0 : f32[16,16]
			%3 = exponential %2 : f32[16,16]
			%4 = sine %2 : f32[16,16]
			%5 = dot_general %3, %4` + product + `
			return %5`, []int64{1024, 1024, 2048, 2048, 3072}, 3072, 2048, 1024, 0},
		{"of two that would stay", `%0 = input "x" : f32[16,16]
			%1 = dot_general %0, %0` + product + `
			%2 = dot_general %0, %0` + product + `
			%3 = multiply %1, %2 : f32[16,16]
			%4 = exponential %3 : f32[16,16]
			%5 = sine %3 : f32[16,16]
			%6 = dot_general %4, %5` + product + `
			return %6`, []int64{1024, 2048, 2048, 2048, 2048, 3072}, 3072, 2048, 1024, 0},
		{"a donated input is a result's memory", `%0 = input "x" : f32[16,16] donated
			%1 = negate %0 : f32[16,16]
			return %1`, []int64{0}, 0, 0, 1024, 1024},
		{"but not while it is read", `%0 = input "x" : f32[16,16] donated
			%1 = dot_general %0, %0` + product + `
			%2 = dot_general %1, %0` + product + `
			return %1, %2`, []int64{1024, 1024}, 1024, 0, 2048, 1024},
		{"what is called", `module @m
			func @main {
				%0 = input "x" : f32[16,16]
				%1 = dot_general %0, %0` + product + `
				%2 = call %1 {callee = "f"} : f32[16,16]
				return %2
			}
			func @f {
				%0 = input "x" : f32[16,16]
				%1 = dot_general %0, %0` + product + `
				%2 = dot_general %1, %1` + product + `
				return %2
			}`, []int64{1024, 3072}, 3072, 2048, 1024, 0},
		{"nothing", `%0 = input "x" : f32[16] return %0`, nil, 0, 0, 64, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := Analyze(backendtest.Parse(t, c.text), Options{})
			var live []int64
			for _, n := range r.Nodes {
				live = append(live, n.Live)
			}
			if !slices.Equal(live, c.live) || r.Peak.Bytes != c.peak || r.Temporaries != c.temporary || r.OutputBytes != c.out || r.AliasedBytes != c.aliased {
				t.Errorf("found %v, peak %d, temporaries %d, results %d, aliased %d; wanted %+v", live, r.Peak.Bytes, r.Temporaries, r.OutputBytes, r.AliasedBytes, c)
			}
			checkReport(t, r)
		})
	}
}

// checkReport holds what is true of every report.
func checkReport(t *testing.T, r *Report) {
	t.Helper()
	alive := int64(0)
	for i, v := range r.Peak.Tensors {
		alive += v.Bytes
		if i > 0 && v.Bytes > r.Peak.Tensors[i-1].Bytes {
			t.Error("the tensors at the peak are not sorted")
		}
	}
	if alive != r.Peak.Bytes {
		t.Errorf("the tensors at the peak have %d bytes, the peak %d", alive, r.Peak.Bytes)
	}
	if r.Temporaries > r.Peak.Bytes || r.AliasedBytes > r.OutputBytes || r.Peak.Bytes < 0 || r.Temporaries < 0 {
		t.Errorf("temporaries %d, peak %d, aliased %d, results %d", r.Temporaries, r.Peak.Bytes, r.AliasedBytes, r.OutputBytes)
	}
	var sum Cost
	most := int64(0)
	for _, n := range r.Nodes {
		sum.add(n.Cost, 1)
		most = max(most, n.Live)
	}
	if most != r.Peak.Bytes {
		t.Errorf("the most alive at a node is %d, the peak %d", most, r.Peak.Bytes)
	}
	s := r.Scopes
	for _, c := range []struct {
		name        string
		got, wanted float64
	}{
		{"flops", s.Flops, r.Total.Flops},
		{"transcendentals", s.Transcendentals, r.Total.Transcendentals},
		{"read", s.BytesRead, r.Total.BytesRead},
		{"written", s.BytesWritten, r.Total.BytesWritten},
		{"flops of nodes", sum.Flops, r.Total.Flops},
		{"weights", float64(s.WeightBytes), float64(r.WeightBytes)},
		{"parameters", float64(s.Parameters), float64(r.Parameters)},
		{"alive", float64(s.Live), float64(r.Peak.Bytes)},
	} {
		if math.Abs(c.got-c.wanted) > 1e-9*math.Abs(c.wanted) {
			t.Errorf("%s: found %v in the tree, %v in all", c.name, c.got, c.wanted)
		}
	}
	for s := range s.All {
		below := 0.0
		for _, c := range s.Children {
			below += c.Flops
			if c.Live > s.Live || c.WeightBytes > s.WeightBytes {
				t.Errorf("%s has more alive or more weights than %q", c.Path, s.Path)
			}
		}
		if below > s.Flops*(1+1e-9) {
			t.Errorf("what is below %q has %v flops, it %v", s.Path, below, s.Flops)
		}
	}
}

// TestScopes: a function's module paths are those of its callers, weights belong to whoever reads them first, and a prepared one's parameters count.
func TestScopes(t *testing.T) {
	m := backendtest.Parse(t, `module @m
		func @main {
			%0 = input "x" : f32[2,4]
			%1 = weight "blocks.0.fc.weight" : f32[4,4]
			%2 = weight "prepared:blocks.1.fc.weight" : f32[4,4]
			%3 = call %0, %1 {callee = "block"} : f32[2,4] loc("blocks.0")
			%4 = call %3, %2 {callee = "block"} : f32[2,4] loc("blocks.1")
			%5 = negate %4 : f32[2,4] loc("out")
			return %5
		}
		func @block class "blocks" {
			%0 = input "x" : f32[2,4]
			%1 = weight "fc.weight" : f32[4,4]
			%2 = dot_general %0, %1 {lhs_contracting = [1], rhs_contracting = [0]} : f32[2,4] loc("fc")
			%3 = tanh %2 : f32[2,4]
			return %3
		}
		func @prepare {
			%0 = weight "blocks.1.fc.bias" : f32[4]
			%1 = broadcast_in_dim %0 {broadcast_dimensions = [1]} : f32[4,4] loc("blocks.1.fc")
			return %1 "prepared:blocks.1.fc.weight"
		}`)
	r := Analyze(m, Options{})
	checkReport(t, r)
	if r.Weights != 2 || r.WeightBytes != 128 || r.Parameters != 16+4 || r.Prepare.BytesWritten != 64 || r.Prepare.BytesRead != 16 {
		t.Errorf("found %d weights, %d bytes, %d parameters, prepared by %+v", r.Weights, r.WeightBytes, r.Parameters, r.Prepare)
	}
	for _, c := range []struct {
		path          string
		flops, exp    float64
		nodes         int
		weights, made int64
		parameters    int64
	}{
		{"", 2*64 + 8, 16, 5, 128, 5 * 32, 20},
		{"blocks", 128, 16, 4, 128, 4 * 32, 20},
		{"blocks.0", 64, 8, 2, 64, 2 * 32, 16},
		{"blocks.0.fc", 64, 0, 1, 64, 32, 16},
		{"blocks.1.fc", 64, 0, 1, 64, 32, 4},
		{"out", 8, 0, 1, 0, 32, 0},
	} {
		s := r.Scopes.Find(c.path)
		if s == nil {
			t.Fatalf("%s is not in the tree", c.path)
		}
		if s.Flops != c.flops || s.Transcendentals != c.exp || s.WeightBytes != c.weights || s.Parameters != c.parameters ||
			s.Nodes != c.nodes || s.Activations != c.made {
			t.Errorf("%q: found %+v, wanted %+v", c.path, *s, c)
		}
	}
	if r.Scopes.Find("blocks.2") != nil || r.Scopes.Find("block") != nil {
		t.Error("found a module that isn't there")
	}
	if cut := r.Scopes.Cut(1); len(cut.Children) != 2 || cut.Children[0].Children != nil || len(r.Scopes.Children[0].Children) != 2 {
		t.Errorf("cut at depth 1: %+v", cut)
	}
}

// TestDoublings: a chain of values that are each read twice is walked once.
func TestDoublings(t *testing.T) {
	var b strings.Builder
	b.WriteString(`%0 = input "x" : f32[16,16]
		%1 = dot_general %0, %0 {lhs_contracting = [1], rhs_contracting = [0]} : f32[16,16]
`)
	const length = 2000
	for i := range length {
		fmt.Fprintf(&b, "%%%d = add %%%d, %%%d : f32[16,16]\n", i+2, i+1, i+1)
	}
	fmt.Fprintf(&b, "return %%%d", length+1)
	r := Analyze(backendtest.Parse(t, b.String()), Options{})
	checkReport(t, r)
	if want := float64(2*16*16*16 + length*16*16); r.Total.Flops != want || r.Peak.Bytes != 1024 {
		t.Errorf("found %v flops, a peak of %d, wanted %v and 1024", r.Total.Flops, r.Peak.Bytes, want)
	}
}

// TestRandomPrograms: whatever the ops, the parts add up and nothing panics.
func TestRandomPrograms(t *testing.T) {
	for seed := range uint64(60) {
		p, err := backendtest.NewRandomProgram(seed, 25, backendtest.RandomOps()...)
		if err != nil {
			t.Fatal(err)
		}
		r := Analyze(p.Module, Options{})
		checkReport(t, r)
		if r.Total.Flops <= 0 || t.Failed() {
			t.Fatalf("seed %d: %+v", seed, r.Total)
		}
	}
}
