package trace_test

import (
	"fmt"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph"
	"precast/graph/trace"
)

// A classifier of two layers: its probabilities and its choice. Any function written with gomlx's graph API can be traced.
func ExampleFunction() {
	classifier := func(g *ml.Graph, in []*ml.Node) []*ml.Node {
		x := in[0]
		for i, width := range []int{8, 3} {
			shape := shapes.Make(dtypes.Float32, x.Shape().Dimensions[1], width)
			w := ml.Parameter(g, fmt.Sprintf("%slayers.%d.weight", trace.WeightPrefix, i), shape)
			x = ml.MatMul(x, w)
			if i == 0 {
				x = ml.Max(x, ml.ScalarZero(g, x.DType()))
			}
		}
		return []*ml.Node{ml.Softmax(x, -1), ml.ArgMax(x, -1)}
	}
	m, err := trace.Function("classifier", classifier, shapes.Make(dtypes.Float32, 2, 4))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range m.Entry().Params {
		fmt.Println(p.Name, p.Value.Shape)
	}
	for _, n := range m.Entry().Nodes {
		fmt.Println(n.Op, n.Results[0].Shape)
	}
	fmt.Println(graph.Verify(m))
	// Output:
	// arg0 (Float32)[2, 4]
	// layers.0.weight (Float32)[4, 8]
	// layers.1.weight (Float32)[8, 3]
	// dot_general (Float32)[2, 8]
	// constant (Float32)
	// broadcast_in_dim (Float32)[2, 8]
	// maximum (Float32)[2, 8]
	// dot_general (Float32)[2, 3]
	// reduce (Float32)[2]
	// reshape (Float32)[2, 1]
	// broadcast_in_dim (Float32)[2, 3]
	// subtract (Float32)[2, 3]
	// exponential (Float32)[2, 3]
	// reduce (Float32)[2]
	// reshape (Float32)[2, 1]
	// broadcast_in_dim (Float32)[2, 3]
	// divide (Float32)[2, 3]
	// arg_min_max (Int32)[2]
	// <nil>
}

// A loop that doubles a vector until its first element passes a limit; the closures use the limit from outside.
func ExampleFunction_while() {
	m, err := trace.Function("double_until", func(g *ml.Graph, in []*ml.Node) []*ml.Node {
		x, limit := in[0], in[1]
		below := ml.NewClosure(g, func(g *ml.Graph) []*ml.Node {
			x := ml.Parameter(g, "x", x.Shape())
			return []*ml.Node{ml.LessThan(ml.Reshape(ml.Slice(x, ml.AxisElem(0))), limit)}
		})
		double := ml.NewClosure(g, func(g *ml.Graph) []*ml.Node {
			x := ml.Parameter(g, "x", x.Shape())
			return []*ml.Node{ml.Add(x, x)}
		})
		return ml.While(below, double, x)
	}, shapes.Make(dtypes.Float32, 3), shapes.Make(dtypes.Float32))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(m)
	// Output:
	// module @double_until
	//
	// func @main {
	//   %0 = input "arg0" : f32[3]
	//   %1 = input "arg1" : f32[]
	//   %2, %3 = while %0, %1 region {
	//     %0 = input "x" : f32[3]
	//     %1 = input "captured0" : f32[]
	//     %2 = slice %0 {limit_indices = [1], start_indices = [0], strides = [1]} : f32[1]
	//     %3 = reshape %2 : f32[]
	//     %4 = compare %3, %1 {direction = "LT", total = false} : bool[]
	//     return %4
	//   } region {
	//     %0 = input "x" : f32[3]
	//     %1 = input "captured0" : f32[]
	//     %2 = add %0, %0 : f32[3]
	//     return %2, %1
	//   } : f32[3], f32[]
	//   return %2 "result0"
	// }
}
