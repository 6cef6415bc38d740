package backendtest

func controlCases() []opCase {
	x := T("f32[2,4]", 3, 1, 2, 0, -1, 5, -1, 4)
	keys, values := T("i32[5]", 3, 1, 2, 1, 3), T("f32[5]", 0, 1, 2, 3, 4)
	return []opCase{
		{name: "sort", graph: `%0 = input "x" : f32[2,4]
			%1 = sort %0 {dimension = 1} region {
				%0 = input "a" : f32[]
				%1 = input "b" : f32[]
				%2 = compare %0, %1 {direction = "LT"} : bool[]
				return %2
			} : f32[2,4]
			return %1`, args: []Tensor{x}, want: []Tensor{T("f32[2,4]", 0, 1, 2, 3, -1, -1, 4, 5)}},
		{name: "sort_columns_descending", graph: `%0 = input "x" : f32[2,4]
			%1 = sort %0 {dimension = 0} region {
				%0 = input "a" : f32[]
				%1 = input "b" : f32[]
				%2 = compare %0, %1 {direction = "GT"} : bool[]
				return %2
			} : f32[2,4]
			return %1`, args: []Tensor{x}, want: []Tensor{T("f32[2,4]", 3, 5, 2, 4, -1, 1, -1, 0)}},
		{name: "sort_pairs", graph: `%0 = input "k" : i32[5]
			%1 = input "v" : f32[5]
			%2, %3 = sort %0, %1 {dimension = 0, is_stable = true} region {
				%0 = input "a" : i32[]
				%1 = input "b" : i32[]
				%2 = input "c" : f32[]
				%3 = input "d" : f32[]
				%4 = compare %0, %1 {direction = "LT"} : bool[]
				return %4
			} : i32[5], f32[5]
			return %2, %3`, args: []Tensor{keys, values}, want: []Tensor{T("i32[5]", 1, 1, 2, 3, 3), T("f32[5]", 1, 3, 2, 0, 4)}},
		{name: "while", graph: `%0 = input "n" : i32[]
			%1 = constant {value = splat<i32: 0>} : i32[]
			%2 = constant {value = splat<f32: 1>} : f32[2]
			%3, %4, %5 = while %1, %0, %2 region {
				%0 = input "i" : i32[]
				%1 = input "n" : i32[]
				%2 = input "x" : f32[2]
				%3 = compare %0, %1 {direction = "LT"} : bool[]
				return %3
			} region {
				%0 = input "i" : i32[]
				%1 = input "n" : i32[]
				%2 = input "x" : f32[2]
				%3 = constant {value = splat<i32: 1>} : i32[]
				%4 = add %0, %3 : i32[]
				%5 = add %2, %2 : f32[2]
				return %4, %1, %5
			} : i32[], i32[], f32[2]
			return %3, %5`, args: []Tensor{T("i32[]", 10)}, want: []Tensor{T("i32[]", 10), T("f32[2]", 1024, 1024)}},
		{name: "while_swap", graph: `%0 = input "n" : i32[]
			%1 = input "a" : f32[]
			%2 = input "b" : f32[]
			%3, %4, %5 = while %0, %1, %2 region {
				%0 = input "i" : i32[]
				%1 = input "a" : f32[]
				%2 = input "b" : f32[]
				%3 = constant {value = splat<i32: 0>} : i32[]
				%4 = compare %0, %3 {direction = "GT"} : bool[]
				return %4
			} region {
				%0 = input "i" : i32[]
				%1 = input "a" : f32[]
				%2 = input "b" : f32[]
				%3 = constant {value = splat<i32: 1>} : i32[]
				%4 = subtract %0, %3 : i32[]
				return %4, %2, %1
			} : i32[], f32[], f32[]
			return %3, %4, %5`, args: []Tensor{T("i32[]", 3), T("f32[]", 1), T("f32[]", 2)}, want: []Tensor{T("i32[]", 0), T("f32[]", 2), T("f32[]", 1)}},
		ifCase("if_true", 1, 9, 1), ifCase("if_false", 0, 3, 3),
		{name: "if_of_parameters", graph: `%0 = input "p" : bool[]
			%1 = input "a" : f32[]
			%2 = input "b" : f32[]
			%3, %4 = if %0, %1, %2 region {
				%0 = input "a" : f32[]
				%1 = input "b" : f32[]
				return %1, %0
			} region {
				%0 = input "a" : f32[]
				%1 = input "b" : f32[]
				return %0, %0
			} : f32[], f32[]
			return %3, %4`, args: []Tensor{T("bool[]", 0), T("f32[]", 1), T("f32[]", 2)}, want: []Tensor{T("f32[]", 1), T("f32[]", 1)}},
		{name: "optimization_barrier", graph: `%0 = input "a" : f32[2]
			%1 = input "b" : i32[]
			%2, %3 = optimization_barrier %0, %1 : f32[2], i32[]
			return %2, %3`, args: []Tensor{T("f32[2]", 1, 2), T("i32[]", 7)}, want: []Tensor{T("f32[2]", 1, 2), T("i32[]", 7)}},
		{
			name: "call", graph: `module @calls
			func @main {
				%0 = input "x" : f32[2]
				%1 = input "w" : f32[2]
				%2, %3 = call %0, %1 {callee = "block"} : f32[2], f32[2]
				%4, %5 = call %2, %3 {callee = "block"} : f32[2], f32[2]
				return %4, %5, %2
			}
			func @block {
				%0 = input "x" : f32[2]
				%1 = input "w" : f32[2]
				%2 = call %0 {callee = "double it"} : f32[2]
				%3 = add %2, %1 : f32[2]
				return %3, %1
			}
			func @"double it" {
				%0 = input "x" : f32[2]
				%1 = add %0, %0 : f32[2]
				return %1
			}`, args: []Tensor{T("f32[2]", 1, 2), T("f32[2]", 10, 20)},
			want: []Tensor{T("f32[2]", 34, 68), T("f32[2]", 10, 20), T("f32[2]", 12, 24)},
		},
		{name: "call_of_main", graph: `module @calls
			func @entry {
				%0 = input "x" : f32[]
				%1 = call %0 {callee = "main"} : f32[]
				return %1
			}
			func @main {
				%0 = input "x" : f32[]
				%1 = negate %0 : f32[]
				return %1
			}`, args: []Tensor{T("f32[]", 3)}, want: []Tensor{T("f32[]", -3)}},
		{name: "call_with_equal_results", graph: `module @calls
			func @main {
				%0 = input "x" : f32[2]
				%1, %2, %3 = call %0 {callee = "thrice"} : f32[2], f32[2], f32[2]
				%4 = add %1, %2 : f32[2]
				return %4, %3
			}
			func @thrice {
				%0 = input "x" : f32[2]
				%1 = negate %0 : f32[2]
				%2 = negate %0 : f32[2]
				return %1, %1, %2
			}`, args: []Tensor{T("f32[2]", 1, 2)}, want: []Tensor{T("f32[2]", -2, -4), T("f32[2]", -1, -2)}},
	}
}

func ifCase(name string, pred, first, second float64) opCase {
	return opCase{name: name, graph: `%0 = input "p" : bool[]
		%1 = input "x" : f32[]
		%2, %3 = if %0, %1 region {
			%0 = input "x" : f32[]
			%1 = multiply %0, %0 : f32[]
			%2 = constant {value = splat<f32: 1>} : f32[]
			return %1, %2
		} region {
			%0 = input "x" : f32[]
			return %0, %0
		} : f32[], f32[]
		return %2, %3`, args: []Tensor{T("bool[]", pred), T("f32[]", 3)}, want: []Tensor{T("f32[]", first), T("f32[]", second)}}
}
