package backendtest

import (
	"fmt"
	"math"
	"strings"

	"precast/graph"
)

func shapeText(x Tensor) string { return graph.ShapeString(x.Shape) }

// Random gives values between -1 and 1 that are exact in bf16: the same on every machine for one seed.
func Random(shape string, seed uint64) Tensor {
	x := T(shape, 0)
	v := make([]float64, x.Shape.Size())
	state := seed*2862933555777941757 + 3037000493
	for i := range v {
		state = state*6364136223846793005 + 1442695040888963407
		v[i] = (float64(state>>56) - 128) / 128
	}
	return T(shape, v...)
}

// product of dims.
func product(dims []int) int {
	n := 1
	for _, d := range dims {
		n *= d
	}
	return n
}

// unflatten gives the coordinates of a row-major position.
func unflatten(i int, dims []int) []int {
	at := make([]int, len(dims))
	for k := len(dims) - 1; k >= 0; k-- {
		at[k], i = i%dims[k], i/dims[k]
	}
	return at
}

func flatten(at, dims []int) int {
	i := 0
	for k, d := range dims {
		i = i*d + at[k]
	}
	return i
}

// dotGeneral is a dot product by the definition of StableHLO's specification, in float64.
func dotGeneral(out string, lhs, rhs Tensor, lb, lc, rb, rc []int) Tensor {
	want := T(out, 0)
	l, r := lhs.floats(), rhs.floats()
	ld, rd := lhs.Shape.Dimensions, rhs.Shape.Dimensions
	free := func(rank int, used ...[]int) (dims []int) {
	next:
		for i := range rank {
			for _, list := range used {
				for _, u := range list {
					if u == i {
						continue next
					}
				}
			}
			dims = append(dims, i)
		}
		return dims
	}
	lf, rf := free(len(ld), lb, lc), free(len(rd), rb, rc)
	var cdims []int
	for _, d := range lc {
		cdims = append(cdims, ld[d])
	}
	v := make([]float64, want.Shape.Size())
	for i := range v {
		at := unflatten(i, want.Shape.Dimensions)
		la, ra := make([]int, len(ld)), make([]int, len(rd))
		for k := range lb {
			la[lb[k]], ra[rb[k]] = at[k], at[k]
		}
		for k, d := range lf {
			la[d] = at[len(lb)+k]
		}
		for k, d := range rf {
			ra[d] = at[len(lb)+len(lf)+k]
		}
		for c := range product(cdims) {
			ca := unflatten(c, cdims)
			for k := range lc {
				la[lc[k]], ra[rc[k]] = ca[k], ca[k]
			}
			v[i] += l[flatten(la, ld)] * r[flatten(ra, rd)]
		}
	}
	return T(out, v...)
}

func list(xs []int) string { return strings.ReplaceAll(fmt.Sprint(xs), " ", ", ") }

func dotCase(name, out string, tolerance float64, lhs, rhs Tensor, lb, lc, rb, rc []int) opCase {
	attrs := fmt.Sprintf("lhs_batching = %s, lhs_contracting = %s, rhs_batching = %s, rhs_contracting = %s, precision = \"HIGHEST\"", list(lb), list(lc), list(rb), list(rc))
	return opCase{
		name: "dot_" + name, graph: op("dot_general", attrs, out, lhs, rhs), args: []Tensor{lhs, rhs},
		want: []Tensor{dotGeneral(out, lhs, rhs, lb, lc, rb, rc)}, tolerance: tolerance,
	}
}

// convolution is one convolution for the definition and for the graph's text.
type convolution struct {
	name                       string
	lhs, rhs, out              string
	input, kernel, output      string // "NCHW", "OIHW", "NCHW": letters for batch, channels and spatial dimensions
	strides, ldil, rdil        []int
	padding                    [][2]int
	featureGroups, batchGroups int
}

// dims finds the positions of the letters.
func letters(layout, first, second string) (a, b int, spatial []int) {
	a, b = strings.Index(layout, first), strings.Index(layout, second)
	for _, s := range []string{"D", "H", "W"} {
		if i := strings.Index(layout, s); i >= 0 {
			spatial = append(spatial, i)
		}
	}
	return a, b, spatial
}

func (k convolution) opCase() opCase {
	ib, ic, is := letters(k.input, "N", "C")
	ko, ki, ks := letters(k.kernel, "O", "I")
	ob, oc, os := letters(k.output, "N", "C")
	attrs := fmt.Sprintf("input_batch_dimension = %d, input_feature_dimension = %d, input_spatial_dimensions = %s, "+
		"kernel_output_feature_dimension = %d, kernel_input_feature_dimension = %d, kernel_spatial_dimensions = %s, "+
		"output_batch_dimension = %d, output_feature_dimension = %d, output_spatial_dimensions = %s, precision = \"HIGHEST\"",
		ib, ic, list(is), ko, ki, list(ks), ob, oc, list(os))
	n := len(is)
	ones := func(xs []int) []int {
		if xs != nil {
			return xs
		}
		xs = make([]int, n)
		for i := range xs {
			xs[i] = 1
		}
		return xs
	}
	if k.padding == nil {
		k.padding = make([][2]int, n)
	}
	k.strides, k.ldil, k.rdil = ones(k.strides), ones(k.ldil), ones(k.rdil)
	k.featureGroups, k.batchGroups = max(k.featureGroups, 1), max(k.batchGroups, 1)
	var pads []string
	for _, p := range k.padding {
		pads = append(pads, fmt.Sprintf("[%d, %d]", p[0], p[1]))
	}
	attrs += fmt.Sprintf(", window_strides = %s, lhs_dilation = %s, rhs_dilation = %s, feature_group_count = %d, batch_group_count = %d, padding = [%s]",
		list(k.strides), list(k.ldil), list(k.rdil), k.featureGroups, k.batchGroups, strings.Join(pads, ", "))

	lhs, rhs := Random(k.lhs, 1), Random(k.rhs, 2)
	x, w := lhs.floats(), rhs.floats()
	xd, wd := lhs.Shape.Dimensions, rhs.Shape.Dimensions
	want := T(k.out, 0)
	v := make([]float64, want.Shape.Size())
	var window []int
	for _, d := range ks {
		window = append(window, wd[d])
	}
	inPerGroup, outPerGroup := wd[ki], wd[ko]/k.featureGroups
	batchPerGroup, outPerBatchGroup := xd[ib]/k.batchGroups, wd[ko]/k.batchGroups
	for i := range v {
		at := unflatten(i, want.Shape.Dimensions)
		for c := range inPerGroup {
		taps:
			for p := range product(window) {
				tap := unflatten(p, window)
				xa, wa := make([]int, len(xd)), make([]int, len(wd))
				xa[ib] = at[ob] + at[oc]/outPerBatchGroup*batchPerGroup
				xa[ic] = c
				if k.featureGroups > 1 {
					xa[ic] = at[oc]/outPerGroup*inPerGroup + c
				}
				wa[ko], wa[ki] = at[oc], c
				for s := range window {
					at := at[os[s]]*k.strides[s] + tap[s]*k.rdil[s] - k.padding[s][0]
					if at < 0 || at%k.ldil[s] != 0 || at/k.ldil[s] >= xd[is[s]] {
						continue taps
					}
					xa[is[s]], wa[ks[s]] = at/k.ldil[s], tap[s]
				}
				v[i] += x[flatten(xa, xd)] * w[flatten(wa, wd)]
			}
		}
	}
	tolerance := 1e-5
	if !strings.HasPrefix(k.lhs, "f") || strings.HasPrefix(k.lhs, "f16") {
		tolerance = 1e-2
	}
	return opCase{
		name: "conv_" + k.name, graph: op("convolution", attrs, k.out, lhs, rhs), args: []Tensor{lhs, rhs},
		want: []Tensor{T(k.out, v...)}, tolerance: tolerance,
	}
}

func contractionCases() []opCase {
	const near, half = 1e-5, 1e-2
	r := Random
	cases := []opCase{
		dotCase("matrix", "f32[3,5]", near, r("f32[3,4]", 1), r("f32[4,5]", 2), nil, []int{1}, nil, []int{0}),
		dotCase("matrix_transposed", "f32[3,5]", near, r("f32[3,4]", 1), r("f32[5,4]", 2), nil, []int{1}, nil, []int{1}),
		dotCase("matrix_left_transposed", "f32[3,5]", near, r("f32[4,3]", 1), r("f32[4,5]", 2), nil, []int{0}, nil, []int{0}),
		dotCase("vectors", "f32[]", near, r("f32[7]", 1), r("f32[7]", 2), nil, []int{0}, nil, []int{0}),
		dotCase("outer", "f32[3,2]", near, r("f32[3]", 1), r("f32[2]", 2), nil, nil, nil, nil),
		dotCase("batch", "f32[2,3,5]", near, r("f32[2,3,4]", 1), r("f32[2,4,5]", 2), []int{0}, []int{2}, []int{0}, []int{1}),
		dotCase("attention_scores", "f32[2,3,5,6]", near, r("f32[2,5,3,4]", 1), r("f32[2,6,3,4]", 2), []int{0, 2}, []int{3}, []int{0, 2}, []int{3}),
		dotCase("attention_values", "f32[2,3,5,4]", near, r("f32[2,3,5,6]", 1), r("f32[2,6,3,4]", 2), []int{0, 1}, []int{3}, []int{0, 2}, []int{1}),
		dotCase("two_contracting", "f32[2,5]", near, r("f32[2,3,4]", 1), r("f32[4,5,3]", 2), nil, []int{1, 2}, nil, []int{2, 0}),
		dotCase("batch_behind", "f32[4,3,5]", near, r("f32[3,2,4]", 1), r("f32[5,4,2]", 2), []int{2}, []int{1}, []int{1}, []int{2}),
		dotCase("large", "f32[70,130]", 5e-5, r("f32[70,300]", 1), r("f32[130,300]", 2), nil, []int{1}, nil, []int{1}),
		dotCase("large_plain", "f32[70,130]", 5e-5, r("f32[70,300]", 1), r("f32[300,130]", 2), nil, []int{1}, nil, []int{0}),
		dotCase("large_batch", "f32[3,33,65]", 5e-5, r("f32[3,33,129]", 1), r("f32[3,65,129]", 2), []int{0}, []int{2}, []int{0}, []int{2}),
		dotCase("row", "f32[1,130]", 5e-5, r("f32[1,300]", 1), r("f32[130,300]", 2), nil, []int{1}, nil, []int{1}),
		dotCase("bf16", "bf16[3,5]", half, r("bf16[3,4]", 1), r("bf16[4,5]", 2), nil, []int{1}, nil, []int{0}),
		dotCase("bf16_to_f32", "f32[3,5]", near, r("bf16[3,64]", 1), r("bf16[5,64]", 2), nil, []int{1}, nil, []int{1}),
		dotCase("f16", "f16[3,5]", half, r("f16[3,4]", 1), r("f16[4,5]", 2), nil, []int{1}, nil, []int{0}),
		dotCase("f64", "f64[3,5]", 1e-13, r("f64[3,4]", 1), r("f64[4,5]", 2), nil, []int{1}, nil, []int{0}),
		dotCase("i32", "i32[2,2]", 0, T("i32[2,2]", 1, 2, 3, 4), T("i32[2,2]", 5, 6, 7, 8), nil, []int{1}, nil, []int{0}),
		dotCase("i8_to_i32", "i32[1,1]", 0, T("i8[1,4]", 100), T("i8[4,1]", 100), nil, []int{1}, nil, []int{0}),
		dotCase("empty", "f32[2,3]", 0, T("f32[2,0]"), T("f32[0,3]"), nil, []int{1}, nil, []int{0}),
	}
	for _, k := range []convolution{
		{name: "3x3", lhs: "f32[1,3,6,5]", rhs: "f32[4,3,3,3]", out: "f32[1,4,6,5]", padding: [][2]int{{1, 1}, {1, 1}}},
		{name: "1x1", lhs: "f32[2,3,4,4]", rhs: "f32[5,3,1,1]", out: "f32[2,5,4,4]"},
		{name: "strided", lhs: "f32[2,3,7,6]", rhs: "f32[4,3,3,3]", out: "f32[2,4,4,3]", strides: []int{2, 2}, padding: [][2]int{{1, 1}, {1, 1}}},
		{name: "one_sided_padding", lhs: "f32[1,2,4,4]", rhs: "f32[2,2,3,3]", out: "f32[1,2,2,2]", strides: []int{2, 2}, padding: [][2]int{{0, 1}, {0, 1}}},
		{name: "dilated", lhs: "f32[1,2,7,7]", rhs: "f32[3,2,3,3]", out: "f32[1,3,3,5]", rdil: []int{2, 1}},
		{name: "transposed", lhs: "f32[1,2,3,3]", rhs: "f32[3,2,4,4]", out: "f32[1,3,6,6]", ldil: []int{2, 2}, padding: [][2]int{{2, 2}, {2, 2}}},
		{name: "negative_padding", lhs: "f32[1,2,6,6]", rhs: "f32[3,2,3,3]", out: "f32[1,3,3,4]", padding: [][2]int{{-1, 0}, {0, 0}}},
		{name: "grouped", lhs: "f32[1,4,5,5]", rhs: "f32[6,2,3,3]", out: "f32[1,6,3,3]", featureGroups: 2},
		{name: "depthwise", lhs: "f32[1,3,5,5]", rhs: "f32[3,1,3,3]", out: "f32[1,3,5,5]", padding: [][2]int{{1, 1}, {1, 1}}, featureGroups: 3},
		{name: "batch_groups", lhs: "f32[4,2,4,4]", rhs: "f32[6,2,2,2]", out: "f32[2,6,3,3]", batchGroups: 2},
		{name: "nhwc", lhs: "f32[2,5,6,3]", rhs: "f32[3,2,3,4]", out: "f32[2,3,5,4]", input: "NHWC", kernel: "HWIO", output: "NHWC"},
		{name: "one_dimension", lhs: "f32[2,3,8]", rhs: "f32[4,3,3]", out: "f32[2,4,6]", input: "NCW", kernel: "OIW", output: "NCW"},
		{
			name: "three_dimensions", lhs: "f32[1,2,3,4,4]", rhs: "f32[3,2,2,3,3]", out: "f32[1,3,2,4,4]", input: "NCDHW", kernel: "OIDHW", output: "NCDHW",
			padding: [][2]int{{0, 0}, {1, 1}, {1, 1}},
		},
		{name: "bf16", lhs: "bf16[1,3,6,5]", rhs: "bf16[4,3,3,3]", out: "bf16[1,4,4,3]"},
		{name: "large", lhs: "f32[1,16,34,33]", rhs: "f32[24,16,3,3]", out: "f32[1,24,34,33]", padding: [][2]int{{1, 1}, {1, 1}}},
	} {
		if k.input == "" {
			k.input, k.kernel, k.output = "NCHW", "OIHW", "NCHW"
		}
		cases = append(cases, k.opCase())
	}
	return cases
}

// softmax of rows, in float64.
func softmax(rows, columns int, x []float64) []float64 {
	y := make([]float64, len(x))
	for r := range rows {
		row := x[r*columns : (r+1)*columns]
		most, sum := math.Inf(-1), 0.0
		for _, v := range row {
			most = max(most, v)
		}
		for _, v := range row {
			sum += math.Exp(v - most)
		}
		for i, v := range row {
			y[r*columns+i] = math.Exp(v-most) / sum
		}
	}
	return y
}
