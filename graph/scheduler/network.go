package scheduler

import (
	"fmt"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph"
	"precast/graph/trace"
)

// StepNetwork is the program of a step for latents of the given shape and a number of history slots; the package comment says
// what it computes. It has no weights.
//
// The inputs are sample, model_output and noise (of the latents' shape and dtype), h0 .. h(K-1) (float32), coefficients (float32,
// [Rows(K), Columns(K)]: Call.Flat), lo and hi (float32 scalars). What a call does not use must be given as zeros, not left as it
// is: a NaN there would spread. The outputs are prev_sample and model_input (latents' dtype) and h0 .. h(K-1). It computes in float32.
func StepNetwork(shape graph.Shape, slots int) trace.Network {
	dims := shape.Dimensions
	f32 := func(dims ...int) graph.Shape { return shapes.Make(dtypes.Float32, dims...) }
	n := trace.Network{
		Name: "scheduler", Class: "SchedulerStep", DType: shape.DType,
		Inputs:  []trace.Input{{Name: "sample", Shape: shape}, {Name: "model_output", Shape: shape}, {Name: "noise", Shape: shape}},
		Outputs: []string{"prev_sample", "model_input"},
	}
	for k := range slots {
		n.Inputs = append(n.Inputs, trace.Input{Name: slotName(k), Shape: f32(dims...)})
		n.Outputs = append(n.Outputs, slotName(k))
	}
	n.Inputs = append(n.Inputs,
		trace.Input{Name: "coefficients", Shape: f32(Rows(slots), Columns(slots))},
		trace.Input{Name: "lo", Shape: f32()}, trace.Input{Name: "hi", Shape: f32()})

	n.Build = func(_ *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
		operands := []*ml.Node{toFloat32(in["sample"]), toFloat32(in["model_output"]), toFloat32(in["noise"])}
		for k := range slots {
			operands = append(operands, in[slotName(k)])
		}
		table := in["coefficients"]
		combine := func(row int) *ml.Node {
			var sum *ml.Node
			for column, x := range operands {
				c := ml.Reshape(ml.Slice(table, ml.AxisElem(row), ml.AxisElem(column)))
				term := ml.Mul(x, c)
				if sum == nil {
					sum = term
				} else {
					sum = ml.Add(sum, term)
				}
			}
			return sum
		}
		x0 := ml.Max(ml.Min(combine(0), in["hi"]), in["lo"])
		operands = append(operands, x0)
		var out []*ml.Node
		for row := 1; row < Rows(slots); row++ {
			v := combine(row)
			if row < 3 {
				v = ml.ConvertDType(v, shape.DType)
			}
			out = append(out, v)
		}
		return out
	}
	return n
}

// StepDonations pairs the inputs of StepNetwork whose memory the program may reuse with the output that takes it. The
// memory of sample must then not be shared with another argument or a value that is still needed.
func StepDonations(slots int) map[string]string {
	out := map[string]string{"sample": "prev_sample", "model_output": "model_input"}
	for k := range slots {
		out[slotName(k)] = slotName(k)
	}
	return out
}

func slotName(k int) string { return fmt.Sprintf("h%d", k) }

func toFloat32(x *ml.Node) *ml.Node { return ml.ConvertDType(x, dtypes.Float32) }
