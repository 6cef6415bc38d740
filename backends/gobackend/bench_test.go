package gobackend

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"precast/backends"
	"precast/backends/backendtest"
)

// benchmarks are the shapes that decide a picture's time: a linear layer, attention and convolutions.
var benchmarks = []struct {
	name, graph string
	args        []string
	gflop       float64
}{
	{"matmul_512x768x3072", `%0 = input "x" : f32[1,512,768]
		%1 = input "w" : f32[3072,768]
		%2 = dot_general %0, %1 {lhs_contracting = [2], rhs_contracting = [1]} : f32[1,512,3072]
		return %2`, []string{"f32[1,512,768]", "f32[3072,768]"}, 2.416},
	{"matmul_plain", `%0 = input "x" : f32[1,512,768]
		%1 = input "w" : f32[768,3072]
		%2 = dot_general %0, %1 {lhs_contracting = [2], rhs_contracting = [0]} : f32[1,512,3072]
		return %2`, []string{"f32[1,512,768]", "f32[768,3072]"}, 2.416},
	{"scores_12x512x64", `%0 = input "q" : f32[1,12,512,64]
		%1 = input "k" : f32[1,12,512,64]
		%2 = dot_general %0, %1 {lhs_batching = [0, 1], lhs_contracting = [3], rhs_batching = [0, 1], rhs_contracting = [3]} : f32[1,12,512,512]
		return %2`, []string{"f32[1,12,512,64]", "f32[1,12,512,64]"}, 0.403},
	{"values_12x512x64", `%0 = input "p" : f32[1,12,512,512]
		%1 = input "v" : f32[1,12,512,64]
		%2 = dot_general %0, %1 {lhs_batching = [0, 1], lhs_contracting = [3], rhs_batching = [0, 1], rhs_contracting = [2]} : f32[1,12,512,64]
		return %2`, []string{"f32[1,12,512,512]", "f32[1,12,512,64]"}, 0.403},
	{"conv_64x64_3x3_64", `%0 = input "x" : f32[1,64,64,64]
		%1 = input "w" : f32[64,64,3,3]
		%2 = convolution %0, %1 {input_batch_dimension = 0, input_feature_dimension = 1, input_spatial_dimensions = [2, 3], kernel_input_feature_dimension = 1, kernel_output_feature_dimension = 0, kernel_spatial_dimensions = [2, 3], output_batch_dimension = 0, output_feature_dimension = 1, output_spatial_dimensions = [2, 3], padding = [[1, 1], [1, 1]]} : f32[1,64,64,64]
		return %2`, []string{"f32[1,64,64,64]", "f32[64,64,3,3]"}, 0.302},
	{"softmax_12x512x512", `%0 = input "x" : f32[12,512,512]
		%1 = reduce %0 {combiner = "maximum", dimensions = [2]} : f32[12,512]
		%2 = broadcast_in_dim %1 {broadcast_dimensions = [0, 1]} : f32[12,512,512]
		%3 = subtract %0, %2 : f32[12,512,512]
		%4 = exponential %3 : f32[12,512,512]
		%5 = reduce %4 {combiner = "add", dimensions = [2]} : f32[12,512]
		%6 = broadcast_in_dim %5 {broadcast_dimensions = [0, 1]} : f32[12,512,512]
		%7 = divide %4, %6 : f32[12,512,512]
		return %7`, []string{"f32[12,512,512]"}, 0},
	{"heads_transpose", `%0 = input "x" : f32[1,512,12,64]
		%1 = transpose %0 {permutation = [0, 2, 1, 3]} : f32[1,12,512,64]
		return %1`, []string{"f32[1,512,12,64]"}, 0},
	{"layer_norm_512x768", `%0 = input "x" : f32[512,768]
		%2 = reduce %0 {combiner = "add", dimensions = [1]} : f32[512]
		%4 = broadcast_in_dim %2 {broadcast_dimensions = [0]} : f32[512,768]
		%5 = subtract %0, %4 : f32[512,768]
		%6 = multiply %5, %5 : f32[512,768]
		%7 = reduce %6 {combiner = "add", dimensions = [1]} : f32[512]
		%8 = rsqrt %7 : f32[512]
		%9 = broadcast_in_dim %8 {broadcast_dimensions = [0]} : f32[512,768]
		%10 = multiply %5, %9 : f32[512,768]
		return %10`, []string{"f32[512,768]"}, 0},
	{"gelu_tanh_512x3072", `%0 = input "x" : f32[512,3072]
		%1 = tanh %0 : f32[512,3072]
		%2 = multiply %0, %1 : f32[512,3072]
		return %2`, []string{"f32[512,3072]"}, 0},
	{"erf_512x3072", `%0 = input "x" : f32[512,3072]
		%1 = erf %0 : f32[512,3072]
		return %1`, []string{"f32[512,3072]"}, 0},
	{"embedding_77_of_49408x768", `%0 = input "w" : f32[49408,768]
		%1 = input "i" : i32[1,77]
		%2 = gather %0, %1 {offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2, slice_sizes = [1, 768]} : f32[1,77,768]
		return %2`, []string{"f32[49408,768]", "i32[1,77]"}, 0},
}

// BenchmarkOps also reports the CPU time of one turn, which holds on a machine that others use too.
func BenchmarkOps(b *testing.B) {
	c, err := Plugin().NewClient(backends.ClientOptions{})
	if err != nil {
		b.Fatal(err)
	}
	for _, k := range benchmarks {
		b.Run(k.name, func(b *testing.B) {
			e := backendtest.Compile(b, c, backendtest.Parse(b, k.graph), backends.CompileOptions{})
			var args []backends.Buffer
			for i, s := range k.args {
				x := backendtest.T(s, 0)
				if s[0] == 'f' {
					x = backendtest.Random(s, uint64(i))
				}
				args = append(args, backendtest.Upload(b, c, x))
			}
			turn := func() {
				out, err := e.Execute(context.Background(), args, backends.ExecuteOptions{})
				if err != nil {
					b.Fatal(err)
				}
				if err := out[0].Await(context.Background()); err != nil {
					b.Fatal(err)
				}
				out[0].Delete()
			}
			turn()
			before, n := cpu(), 0
			for b.Loop() {
				turn()
				n++
			}
			used := (cpu() - before).Seconds() / float64(n)
			b.ReportMetric(used*1e3, "cpu-ms/op")
			if k.gflop > 0 {
				b.ReportMetric(k.gflop/used, "gflop/cpu-s")
			}
		})
	}
}

func cpu() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(fmt.Sprintf("BUG: getrusage: %v", err))
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
