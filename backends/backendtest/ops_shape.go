package backendtest

// count is 0, 1, 2 ... of a shape.
func count(shape string) Tensor {
	x := T(shape, 0)
	v := make([]float64, x.Shape.Size())
	for i := range v {
		v[i] = float64(i)
	}
	return T(shape, v...)
}

// one is a case of one operation with one result.
func one(label, name, attrs string, want Tensor, args ...Tensor) opCase {
	return opCase{name: label, graph: op(name, attrs, shapeText(want), args...), args: args, want: []Tensor{want}}
}

func shapeCases() []opCase {
	x23 := T("f32[2,3]", 1, 2, 3, 4, 5, 6)
	v3 := T("f32[3]", 1, 2, 3)
	return []opCase{
		{name: "constant", graph: "%0 = constant {value = dense<f32: 1.5, -0.0, inf, 0.1>} : f32[4]\nreturn %0", want: []Tensor{T("f32[4]", 1.5, nz, inf, 0.1)}},
		{
			name: "constant_nan_bits", graph: "%0 = constant {value = dense<0x0100c07f0000807f000080ff>} : f32[3]\n%1 = bitcast_convert %0 : u32[3]\nreturn %1",
			want: []Tensor{T("u32[3]", 0x7fc00001, 0x7f800000, 0xff800000)},
		},
		{name: "constant_splat", graph: "%0 = constant {value = splat<f32: 0.1>} : f32[2,2]\nreturn %0", want: []Tensor{T("f32[2,2]", 0.1)}},
		{
			name: "constant_two_zeros", graph: "%0 = constant {value = splat<f32: 0>} : f32[1]\n%1 = constant {value = splat<f32: -0.0>} : f32[1]\nreturn %0, %1",
			want: []Tensor{T("f32[1]", 0), T("f32[1]", nz)},
		},
		{name: "constant_bool", graph: "%0 = constant {value = dense<bool: true, false, true>} : bool[3]\nreturn %0", want: []Tensor{T("bool[3]", 1, 0, 1)}},
		{name: "constant_i64", graph: "%0 = constant {value = dense<i64: -9007199254740991, 5>} : i64[2]\nreturn %0", want: []Tensor{T("i64[2]", -9007199254740991, 5)}},
		{name: "constant_bf16", graph: "%0 = constant {value = dense<bf16: 3.140625, -1>} : bf16[2]\nreturn %0", want: []Tensor{T("bf16[2]", 3.140625, -1)}},
		{name: "constant_f16", graph: "%0 = constant {value = dense<f16: 0.5, -1>} : f16[2]\nreturn %0", want: []Tensor{T("f16[2]", 0.5, -1)}},
		{name: "iota", graph: "%0 = iota {iota_dimension = 1} : f32[2,3]\nreturn %0", want: []Tensor{T("f32[2,3]", 0, 1, 2, 0, 1, 2)}},
		{name: "iota_i32", graph: "%0 = iota {iota_dimension = 0} : i32[2,3]\nreturn %0", want: []Tensor{T("i32[2,3]", 0, 0, 0, 1, 1, 1)}},
		{name: "iota_bf16", graph: "%0 = iota {iota_dimension = 0} : bf16[3]\nreturn %0", want: []Tensor{T("bf16[3]", 0, 1, 2)}},
		{name: "iota_u8", graph: "%0 = iota {iota_dimension = 0} : u8[3]\nreturn %0", want: []Tensor{T("u8[3]", 0, 1, 2)}},
		one("broadcast_row", "broadcast_in_dim", "broadcast_dimensions = [1]", T("f32[2,3]", 1, 2, 3, 1, 2, 3), v3),
		one("broadcast_column", "broadcast_in_dim", "broadcast_dimensions = [0]", T("f32[3,2]", 1, 1, 2, 2, 3, 3), v3),
		one("broadcast_scalar", "broadcast_in_dim", "broadcast_dimensions = []", T("f32[2,2]", 7), T("f32[]", 7)),
		one("broadcast_one", "broadcast_in_dim", "broadcast_dimensions = [0, 1]", T("f32[2,2]", 1, 1, 2, 2), T("f32[2,1]", 1, 2)),
		one("broadcast_swapped", "broadcast_in_dim", "broadcast_dimensions = [1, 0]", T("f32[3,2]", 1, 4, 2, 5, 3, 6), x23),
		one("reshape", "reshape", "", T("f32[3,2]", 1, 2, 3, 4, 5, 6), x23),
		one("reshape_scalar", "reshape", "", T("f32[]", 5), T("f32[1,1]", 5)),
		one("transpose", "transpose", "permutation = [1, 0]", T("f32[3,2]", 1, 4, 2, 5, 3, 6), x23),
		one("transpose_3", "transpose", "permutation = [2, 0, 1]", T("i32[2,2,3]", 0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11), count("i32[2,3,2]")),
		one("slice", "slice", "start_indices = [0, 1], limit_indices = [2, 3]", T("f32[2,2]", 2, 3, 5, 6), x23),
		one("slice_strided", "slice", "start_indices = [1], limit_indices = [10], strides = [3]", T("i32[3]", 1, 4, 7), count("i32[10]")),
		one("slice_empty", "slice", "start_indices = [1], limit_indices = [1]", T("f32[0]"), v3),
		one("concatenate", "concatenate", "dimension = 1", T("f32[2,4]", 1, 2, 3, 7, 4, 5, 6, 8), x23, T("f32[2,1]", 7, 8)),
		one("concatenate_one", "concatenate", "dimension = 0", v3, v3),
		one("concatenate_three", "concatenate", "dimension = 0", T("i32[6]", 1, 2, 3, 4, 5, 6), T("i32[1]", 1), T("i32[2]", 2, 3), T("i32[3]", 4, 5, 6)),
		one("pad", "pad", "edge_padding_low = [1], edge_padding_high = [2], interior_padding = [1]", T("f32[8]", 9, 1, 9, 2, 9, 3, 9, 9), v3, T("f32[]", 9)),
		one("pad_negative", "pad", "edge_padding_low = [-1, 0], edge_padding_high = [1, -2], interior_padding = [0, 0]", T("f32[2,1]", 4, 0), x23, T("f32[]", 0)),
		one("pad_cut_interior", "pad", "edge_padding_low = [-1], edge_padding_high = [-1], interior_padding = [1]", T("f32[3]", 0, 2, 0), v3, T("f32[]", 0)),
		one("reverse", "reverse", "dimensions = [1]", T("f32[2,3]", 3, 2, 1, 6, 5, 4), x23),
		one("reverse_all", "reverse", "dimensions = [0, 1]", T("f32[2,3]", 6, 5, 4, 3, 2, 1), x23),
	}
}

func indexCases() []opCase {
	table := T("f32[3,2]", 1, 2, 3, 4, 5, 6)
	grid := count("i32[3,4]")
	i := func(x float64) Tensor { return T("i32[]", x) }
	rows := `offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1, slice_sizes = [1, 2]`
	add := func(combiner string) string {
		return `update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1, combiner = "` + combiner + `"`
	}
	return []opCase{
		one("gather_rows", "gather", rows, T("f32[4,2]", 5, 6, 1, 2, 3, 4, 5, 6), table, T("i32[4]", 2, 0, 1, 2)),
		one("gather_rows_vector", "gather", rows, T("f32[2,2]", 5, 6, 1, 2), table, T("i64[2,1]", 2, 0)),
		one("gather_out_of_range", "gather", rows, T("f32[3,2]", 5, 6, 1, 2, 5, 6), table, T("i32[3]", 7, -3, 3)),
		one("gather_batch", "gather", `offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2, slice_sizes = [1, 2]`,
			T("f32[2,2,2]", 1, 2, 3, 4, 5, 6, 1, 2), table, T("i32[2,2]", 0, 1, 2, 0)),
		one("gather_windows", "gather", `offset_dims = [1, 2], collapsed_slice_dims = [], start_index_map = [0, 1], index_vector_dim = 1, slice_sizes = [2, 2]`,
			T("i32[2,2,2]", 1, 2, 5, 6, 6, 7, 10, 11), grid, T("i32[2,2]", 0, 1, 1, 2)),
		one("gather_columns", "gather", `offset_dims = [0], collapsed_slice_dims = [1], start_index_map = [1], index_vector_dim = 1, slice_sizes = [3, 1]`,
			T("i32[3,2]", 3, 0, 7, 4, 11, 8), grid, T("i32[2]", 3, 0)),
		one("scatter_add", "scatter", add("add"), T("f32[3,2]", 11, 22, 3, 4, 35, 46), table, T("i32[2]", 0, 2), T("f32[2,2]", 10, 20, 30, 40)),
		one("scatter_add_twice", "scatter", add("add"), T("f32[3,2]", 1, 2, 43, 64, 5, 6), table, T("i32[2]", 1, 1), T("f32[2,2]", 10, 20, 30, 40)),
		one("scatter_max", "scatter", add("max"), T("f32[3,2]", 1, 2, 3, 9, 5, 6), table, T("i32[1]", 1), T("f32[1,2]", 0, 9)),
		one("scatter_min", "scatter", add("min"), T("f32[3,2]", 1, 2, 0, 4, 5, 6), table, T("i32[1]", 1), T("f32[1,2]", 0, 9)),
		one("scatter_out_of_range", "scatter", add("add"), T("f32[3,2]", 1, 2, 3, 4, 35, 46), table, T("i32[3]", -1, 2, 3), T("f32[3,2]", 10, 20, 30, 40, 50, 60)),
		one("scatter_window", "scatter",
			`update_window_dims = [1, 2], inserted_window_dims = [], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1, combiner = "add"`,
			T("i32[3,4]", 0, 1, 2, 3, 4, 15, 26, 7, 8, 39, 50, 11), grid, T("i32[1,2]", 1, 1), T("i32[1,2,2]", 10, 20, 30, 40)),
		one("dynamic_slice", "dynamic_slice", "slice_sizes = [2, 2]", T("i32[2,2]", 5, 6, 9, 10), grid, i(1), i(1)),
		one("dynamic_slice_clamped", "dynamic_slice", "slice_sizes = [2, 4]", T("i32[2,4]", 4, 5, 6, 7, 8, 9, 10, 11), grid, i(9), i(-3)),
		one("dynamic_slice_u64", "dynamic_slice", "slice_sizes = [1]", T("f32[1]", 3), T("f32[3]", 1, 2, 3), T("u64[]", 9007199254740992)),
		one("dynamic_slice_i8", "dynamic_slice", "slice_sizes = [1, 1]", T("i32[1,1]", 0), grid, T("i8[]", -128), T("i8[]", 0)),
		one("dynamic_update_slice", "dynamic_update_slice", "", T("i32[3,4]", 0, 1, 2, 3, 4, 5, 91, 92, 8, 9, 93, 94), grid, T("i32[2,2]", 91, 92, 93, 94), i(1), i(2)),
		one("dynamic_update_slice_clamped", "dynamic_update_slice", "", T("i32[3,4]", 0, 1, 2, 3, 4, 5, 6, 7, 91, 92, 10, 11), grid, T("i32[1,2]", 91, 92), i(5), i(-1)),
		one("dynamic_update_slice_nan", "dynamic_update_slice", "", T("f32[4]", nan, nan, 1, inf), T("f32[4]", nan, 0, 0, inf), T("f32[2]", nan, 1), i(1)),
	}
}

func reductionCases() []opCase {
	x := T("f32[2,3]", 1, 2, 3, 4, 5, 6)
	red := func(combiner, dims string) string {
		return "combiner = \"" + combiner + "\", dimensions = [" + dims + "]"
	}
	b := T("bool[2,3]", 1, 1, 1, 0, 1, 0)
	n := T("i32[2,3]", 12, 10, 8, -1, 7, 3)
	arg := func(min string, dim string) string { return "dimension = " + dim + ", min = " + min }
	y := T("f32[2,4]", 1, 5, 5, -2, 7, -9, 0, -9)
	special := T("f32[4,3]", 1, nan, 3, nan, inf, nan, -inf, -inf, -inf, inf, 2, inf)
	cases := []opCase{
		one("reduce_add", "reduce", red("add", "1"), T("f32[2]", 6, 15), x),
		one("reduce_add_0", "reduce", red("add", "0"), T("f32[3]", 5, 7, 9), x),
		one("reduce_add_all", "reduce", red("add", "0, 1"), T("f32[]", 21), x),
		one("reduce_none", "reduce", red("add", ""), x, x),
		one("reduce_multiply", "reduce", red("multiply", "1"), T("f32[2]", 6, 120), x),
		one("reduce_maximum", "reduce", red("maximum", "0"), T("f32[3]", 4, 5, 6), x),
		one("reduce_minimum", "reduce", red("minimum", "1"), T("f32[2]", 1, 4), x),
		one("reduce_maximum_nan", "reduce", red("maximum", "1"), T("f32[4]", nan, nan, -inf, inf), special),
		one("reduce_minimum_nan", "reduce", red("minimum", "1"), T("f32[4]", nan, nan, -inf, 2), special),
		one("reduce_maximum_i32", "reduce", red("maximum", "1"), T("i32[2]", 12, 7), n),
		one("reduce_empty_add", "reduce", red("add", "1"), T("f32[2]", 0, 0), T("f32[2,0]")),
		one("reduce_empty_max", "reduce", red("maximum", "1"), T("f32[2]", -inf, -inf), T("f32[2,0]")),
		one("reduce_and", "reduce", red("and", "1"), T("bool[2]", 1, 0), b),
		one("reduce_or", "reduce", red("or", "1"), T("bool[2]", 1, 1), b),
		one("reduce_xor", "reduce", red("xor", "1"), T("bool[2]", 1, 1), b),
		one("reduce_and_i32", "reduce", red("and", "1"), T("i32[2]", 8, 3), n),
		one("reduce_or_i32", "reduce", red("or", "1"), T("i32[2]", 14, -1), n),
		one("reduce_xor_i32", "reduce", red("xor", "1"), T("i32[2]", 14, -5), n),
		one("argmax", "arg_min_max", arg("false", "1"), T("i32[2]", 1, 0), y),
		one("argmin", "arg_min_max", arg("true", "1"), T("i32[2]", 3, 1), y),
		one("argmax_0", "arg_min_max", arg("false", "0"), T("i64[4]", 1, 0, 0, 0), y),
		one("argmax_nan", "arg_min_max", arg("false", "1"), T("i32[4]", 1, 0, 0, 0), special),
		one("argmin_nan", "arg_min_max", arg("true", "1"), T("i32[4]", 1, 0, 0, 1), special),
		one("argmax_bf16", "arg_min_max", arg("false", "1"), T("u8[2]", 1, 0), T("bf16[2,3]", 1, nan, nan, 2, 1, 2)),
		one("argmax_i32", "arg_min_max", arg("false", "1"), T("i32[2]", 0, 1), n),
		one("argmin_bool", "arg_min_max", arg("true", "1"), T("i32[2]", 0, 0), b),
		one("reduce_window_add", "reduce_window", `combiner = "add", window_dimensions = [1, 2]`, T("f32[2,2]", 3, 5, 9, 11), x),
		one("reduce_window_max", "reduce_window", `combiner = "maximum", window_dimensions = [2, 2], window_strides = [1, 1], padding = [[0, 0], [1, 0]]`,
			T("f32[1,3]", 4, 5, 6), x),
		one("reduce_window_strided", "reduce_window", `combiner = "add", window_dimensions = [3], window_strides = [2], padding = [[1, 1]]`,
			T("i32[3]", 1, 6, 12), count("i32[6]")),
		// The dilated base is 0, hole, 1, hole, 2: windows of every second place see 0 and 1, two holes, 1 and 2.
		one("reduce_window_dilated", "reduce_window", `combiner = "minimum", window_dimensions = [2], window_dilations = [2], base_dilations = [2], padding = [[0, 0]]`,
			T("i32[3]", 0, 2147483647, 1), count("i32[3]")),
		one("reduce_window_xor", "reduce_window", `combiner = "xor", window_dimensions = [2]`, T("i32[3]", 1, 3, 1), count("i32[4]")),
		one("reduce_window_negative_padding", "reduce_window", `combiner = "add", window_dimensions = [2], padding = [[-1, 0]]`, T("i32[2]", 3, 5), count("i32[4]")),
		one("reduce_window_all", "reduce_window", `combiner = "multiply", window_dimensions = [4]`, T("f32[1]", 24), T("f32[4]", 1, 2, 3, 4)),
	}
	return cases
}
