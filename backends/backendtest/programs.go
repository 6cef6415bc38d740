package backendtest

import (
	"fmt"
	"math"
	"testing"
)

// dtypes runs what every element type must do: pass through unchanged, and be chosen from, joined, cut and moved.
func (s *suite) dtypes(t *testing.T) {
	c := s.client(t)
	for _, d := range []string{"bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f16", "bf16", "f32", "f64"} {
		t.Run(d, func(t *testing.T) {
			x := T(d+"[2,3]", 0, 1, 1, 0, 1, 0)
			if d != "bool" {
				x = T(d+"[2,3]", 0, 1, 2, 3, 100, 127)
			}
			v := x.floats()
			want := T(d+"[3,2]", v[0], v[3], v[1], v[4], v[2], v[5])
			e := s.compile(t, c, fmt.Sprintf(`%%0 = input "x" : %[1]s[2,3]
				%%1 = transpose %%0 {permutation = [1, 0]} : %[1]s[3,2]
				%%2 = slice %%0 {start_indices = [0, 1], limit_indices = [2, 3]} : %[1]s[2,2]
				%%3 = concatenate %%2, %%1 {dimension = 0} : %[1]s[5,2]
				return %%0, %%1, %%3`, d))
			got := Run(t, c, e, x)
			Compare(t, "the argument", got[0], x, 0)
			Compare(t, "transpose", got[1], want, 0)
			Compare(t, "concatenate", got[2], T(d+"[5,2]", v[1], v[2], v[4], v[5], v[0], v[3], v[1], v[4], v[2], v[5]), 0)
			if d == "bool" {
				return
			}
			e = s.compile(t, c, fmt.Sprintf(`%%0 = input "x" : %[1]s[3]
				%%1 = input "y" : %[1]s[3]
				%%2 = add %%0, %%1 : %[1]s[3]
				%%3 = compare %%0, %%1 {direction = "LT"} : bool[3]
				%%4 = select %%3, %%0, %%1 : %[1]s[3]
				%%5 = reduce %%2 {combiner = "add", dimensions = [0]} : %[1]s[]
				return %%2, %%4, %%5`, d))
			a, b := T(d+"[3]", 1, 5, 9), T(d+"[3]", 4, 2, 16)
			got = Run(t, c, e, a, b)
			Compare(t, "add", got[0], T(d+"[3]", 5, 7, 25), 0)
			Compare(t, "select", got[1], T(d+"[3]", 1, 2, 9), 0)
			Compare(t, "reduce", got[2], T(d+"[]", 37), 0)
		})
	}
}

// programs runs graphs of several operations.
func (s *suite) programs(t *testing.T) {
	c := s.client(t)
	t.Run("softmax", func(t *testing.T) {
		e := s.compile(t, c, `%0 = input "x" : f32[2,5]
			%1 = reduce %0 {combiner = "maximum", dimensions = [1]} : f32[2]
			%2 = broadcast_in_dim %1 {broadcast_dimensions = [0]} : f32[2,5]
			%3 = subtract %0, %2 : f32[2,5]
			%4 = exponential %3 : f32[2,5]
			%5 = reduce %4 {combiner = "add", dimensions = [1]} : f32[2]
			%6 = broadcast_in_dim %5 {broadcast_dimensions = [0]} : f32[2,5]
			%7 = divide %4, %6 : f32[2,5]
			return %7`)
		x := T("f32[2,5]", 1, 2, 3, 4, 100, -50, 0, 0, 1, -1)
		Compare(t, "softmax", Run(t, c, e, x)[0], T("f32[2,5]", softmax(2, 5, x.floats())...), 2e-6)
	})
	t.Run("attention", func(t *testing.T) {
		e := s.compile(t, c, `%0 = input "q" : f32[1,2,4,8]
			%1 = input "k" : f32[1,2,6,8]
			%2 = input "v" : f32[1,2,6,8]
			%3 = dot_general %0, %1 {lhs_batching = [0, 1], lhs_contracting = [3], rhs_batching = [0, 1], rhs_contracting = [3], precision = "HIGHEST"} : f32[1,2,4,6]
			%4 = reduce %3 {combiner = "maximum", dimensions = [3]} : f32[1,2,4]
			%5 = broadcast_in_dim %4 {broadcast_dimensions = [0, 1, 2]} : f32[1,2,4,6]
			%6 = subtract %3, %5 : f32[1,2,4,6]
			%7 = exponential %6 : f32[1,2,4,6]
			%8 = reduce %7 {combiner = "add", dimensions = [3]} : f32[1,2,4]
			%9 = broadcast_in_dim %8 {broadcast_dimensions = [0, 1, 2]} : f32[1,2,4,6]
			%10 = divide %7, %9 : f32[1,2,4,6]
			%11 = dot_general %10, %2 {lhs_batching = [0, 1], lhs_contracting = [3], rhs_batching = [0, 1], rhs_contracting = [2], precision = "HIGHEST"} : f32[1,2,4,8]
			return %11`)
		q, k, v := Random("f32[1,2,4,8]", 1), Random("f32[1,2,6,8]", 2), Random("f32[1,2,6,8]", 3)
		scores := dotGeneral("f64[1,2,4,6]", q, k, []int{0, 1}, []int{3}, []int{0, 1}, []int{3})
		probabilities := T("f64[1,2,4,6]", softmax(8, 6, scores.floats())...)
		Compare(t, "attention", Run(t, c, e, q, k, v)[0], dotGeneral("f32[1,2,4,8]", probabilities, v, []int{0, 1}, []int{3}, []int{0, 1}, []int{2}), 1e-5)
	})
	t.Run("layer_norm", func(t *testing.T) {
		e := s.compile(t, c, `%0 = input "x" : f32[2,64]
			%1 = constant {value = splat<f32: 64>} : f32[2]
			%2 = reduce %0 {combiner = "add", dimensions = [1]} : f32[2]
			%3 = divide %2, %1 : f32[2]
			%4 = broadcast_in_dim %3 {broadcast_dimensions = [0]} : f32[2,64]
			%5 = subtract %0, %4 : f32[2,64]
			%6 = multiply %5, %5 : f32[2,64]
			%7 = reduce %6 {combiner = "add", dimensions = [1]} : f32[2]
			%8 = divide %7, %1 : f32[2]
			%9 = constant {value = splat<f32: 1e-5>} : f32[2]
			%10 = add %8, %9 : f32[2]
			%11 = rsqrt %10 : f32[2]
			%12 = broadcast_in_dim %11 {broadcast_dimensions = [0]} : f32[2,64]
			%13 = multiply %5, %12 : f32[2,64]
			return %13`)
		x := Random("f32[2,64]", 5)
		in, want := x.floats(), make([]float64, 128)
		for r := range 2 {
			row := in[64*r : 64*r+64]
			var mean, variance float64
			for _, v := range row {
				mean += v / 64
			}
			for _, v := range row {
				variance += (v - mean) * (v - mean) / 64
			}
			for i, v := range row {
				want[64*r+i] = (v - mean) / math.Sqrt(variance+1e-5)
			}
		}
		Compare(t, "layer norm", Run(t, c, e, x)[0], T("f32[2,64]", want...), 1e-5)
	})
	t.Run("results_that_are_arguments", func(t *testing.T) {
		e := s.compile(t, c, "%0 = input \"x\" : f32[2]\n%1 = negate %0 : f32[2]\nreturn %0, %1, %0, %1")
		got := Run(t, c, e, T("f32[2]", 1, -2))
		for i, want := range []Tensor{T("f32[2]", 1, -2), T("f32[2]", -1, 2), T("f32[2]", 1, -2), T("f32[2]", -1, 2)} {
			Compare(t, fmt.Sprintf("result %d", i), got[i], want, 0)
		}
	})
	t.Run("no_arguments", func(t *testing.T) {
		e := s.compile(t, c, "%0 = constant {value = dense<i32: 4, 5>} : i32[2]\nreturn %0")
		Compare(t, "constant", Run(t, c, e)[0], T("i32[2]", 4, 5), 0)
	})
	t.Run("unused_argument", func(t *testing.T) {
		e := s.compile(t, c, "%0 = input \"x\" : f32[2]\n%1 = input \"y\" : f32[3]\n%2 = abs %1 : f32[3]\nreturn %2")
		Compare(t, "abs", Run(t, c, e, T("f32[2]", 1, 2), T("f32[3]", -1, 2, -3))[0], T("f32[3]", 1, 2, 3), 0)
	})
	t.Run("long_chain", func(t *testing.T) {
		text := "%0 = input \"x\" : f32[4]\n%one = constant {value = splat<f32: 1>} : f32[4]\n%v0 = add %0, %one : f32[4]\n"
		for i := 1; i < 500; i++ {
			text += fmt.Sprintf("%%v%d = add %%v%d, %%one : f32[4]\n", i, i-1)
		}
		e := s.compile(t, c, text+"return %v499")
		Compare(t, "sum", Run(t, c, e, T("f32[4]", 0, 1, 2, 3))[0], T("f32[4]", 500, 501, 502, 503), 0)
	})
}
