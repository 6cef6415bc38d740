package passes_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph"
	"precast/graph/nn"
	"precast/graph/trace"
)

// TestCheapNorms compares GroupNorms as they are traced, before and after the pass, with sums in float64. A mean of a thousand deviations costs
// either form about 1000 roundings of float32; a variance taken as a difference of squares would be lost in it.
func TestCheapNorms(t *testing.T) {
	const eps = 1e-5
	for _, tc := range []struct {
		name                          string
		batch, height, width, c, size int // size is the channels of a group
		mean, tolerance               float64
	}{
		{"around zero", 1, 24, 16, 8, 4, 0, 2e-6},
		{"batch", 2, 9, 7, 6, 2, 0, 2e-6},
		{"one group", 2, 5, 4, 6, 6, 0, 2e-6},
		{"large mean", 1, 24, 16, 8, 4, 1000, 6e-4},
		{"large mean, batch", 2, 9, 7, 6, 2, -1000, 6e-4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			shape := shapes.Make(dtypes.Float32, tc.batch, tc.height, tc.width, tc.c)
			m, err := trace.Trace(trace.Network{
				Name: "layer", DType: dtypes.Float32, Inputs: []trace.Input{{Name: "x", Shape: shape}}, Outputs: []string{"y"},
				Build: func(c *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
					return []*ml.Node{nn.GroupNorm(c, "norm", in["x"], tc.c/tc.size, eps)}
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			rng := rand.New(rand.NewPCG(1, 2))
			given := map[string]array{}
			values := map[string][]float64{}
			for _, p := range m.Entry().Params {
				a := array{shape: p.Value.Shape}
				for range p.Value.Shape.Size() {
					v := float32(rng.NormFloat64())
					if p.Name == "x" {
						v += float32(tc.mean)
					}
					values[p.Name] = append(values[p.Name], float64(v))
					a.data = binary.LittleEndian.AppendUint32(a.data, math.Float32bits(v))
				}
				given[p.Name] = a
			}
			want := groupNorm64(values["x"], values["norm.weight"], values["norm.bias"], tc.batch, tc.c, tc.size, eps)
			for _, enabled := range []bool{false, true} {
				changed := graph.Clone(m)
				p := pipeline()
				if enabled {
					p.Enabled = []string{"cheap-norms"}
				} else {
					p.Disabled = []string{"cheap-norms"}
				}
				if err := p.Run(changed); err != nil {
					t.Fatal(err)
				}
				barriers := 0
				for _, n := range changed.Entry().Nodes {
					if n.Op == graph.OpBarrier {
						barriers++
					}
				}
				if enabled != (barriers == 3) || !enabled && barriers != 0 {
					t.Errorf("with the pass %v: found %d barriers, wanted 3 with it and none without\n%s", enabled, barriers, changed)
				}
				got, err := evaluate(changed, given, false)
				if err != nil {
					t.Fatal(err)
				}
				y, err := graph.Literal{Data: got[0].data}.Floats(dtypes.Float32)
				if err != nil {
					t.Fatal(err)
				}
				worst := 0.0
				for i := range y {
					if d := math.Abs(y[i]-want[i]) / (1 + math.Abs(want[i])); !(d <= worst) {
						worst = d
					}
				}
				t.Logf("with the pass %v: the largest difference is %.2g", enabled, worst)
				if !(worst <= tc.tolerance) {
					t.Errorf("with the pass %v: found a difference of %g, wanted at most %g", enabled, worst, tc.tolerance)
				}
			}
		})
	}
}

// groupNorm64 is GroupNorm of x [batch, positions, c] in float64.
func groupNorm64(x, weight, bias []float64, batch, c, size int, eps float64) []float64 {
	y := make([]float64, len(x))
	each := len(x) / batch
	for n := range batch {
		for first := 0; first < c; first += size {
			visit := func(do func(i, channel int)) {
				for i := n * each; i < (n+1)*each; i += c {
					for k := first; k < first+size; k++ {
						do(i+k, k)
					}
				}
			}
			count, mean, variance := float64(each/c*size), 0.0, 0.0
			visit(func(i, _ int) { mean += x[i] / count })
			visit(func(i, _ int) { variance += (x[i] - mean) * (x[i] - mean) / count })
			visit(func(i, k int) { y[i] = (x[i]-mean)/math.Sqrt(variance+eps)*weight[k] + bias[k] })
		}
	}
	return y
}
