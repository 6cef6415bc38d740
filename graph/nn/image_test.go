package nn

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/gobackend"
	"github.com/gomlx/compute/shapes"
	ml "github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"precast/graph"
	"precast/graph/trace"
)

// picture is a batch of images [n,c,h,w] in float64, the type of this file's direct implementations of the layers: loops over the
// definitions in PyTorch's documentation, in PyTorch's layout.
type picture struct {
	n, c, h, w int
	v          []float64
}

func newPicture(n, c, h, w int) picture { return picture{n, c, h, w, make([]float64, n*c*h*w)} }

func (p picture) at(n, c, y, x int) *float64 { return &p.v[((n*p.c+c)*p.h+y)*p.w+x] }

func (p picture) each(f func(n, c, y, x int, v *float64)) {
	for n := range p.n {
		for c := range p.c {
			for y := range p.h {
				for x := range p.w {
					f(n, c, y, x, p.at(n, c, y, x))
				}
			}
		}
	}
}

func (p picture) clone() picture { p.v = slices.Clone(p.v); return p }

// params are weights by key, flat; layers draw them on first use.
type params struct {
	rng *rand.Rand
	all map[string][]float64
}

func newParams() *params { return &params{rand.New(rand.NewPCG(1, 2)), map[string][]float64{}} }

func (p *params) get(key string, size int) []float64 {
	if p.all[key] == nil {
		p.all[key] = randoms(p.rng, size)
	}
	if len(p.all[key]) != size {
		panic(fmt.Sprintf("%s has %d elements, asked for %d", key, len(p.all[key]), size))
	}
	return p.all[key]
}

func randoms(rng *rand.Rand, size int) []float64 {
	out := make([]float64, size)
	for i := range out {
		out[i] = float64(float32(rng.NormFloat64() + 0.25))
	}
	return out
}

func directConv(p *params, name string, x picture, out int, w Window) picture {
	stride := max(w.Stride, 1)
	weight, bias := p.get(name+".weight", out*x.c*w.Size*w.Size), p.get(name+".bias", out)
	y := newPicture(x.n, out,
		(x.h+w.Padding[0][0]+w.Padding[0][1]-w.Size)/stride+1,
		(x.w+w.Padding[1][0]+w.Padding[1][1]-w.Size)/stride+1)
	y.each(func(n, o, i, j int, v *float64) {
		*v = bias[o]
		for c := range x.c {
			for ki := range w.Size {
				for kj := range w.Size {
					r, s := i*stride+ki-w.Padding[0][0], j*stride+kj-w.Padding[1][0]
					if r >= 0 && r < x.h && s >= 0 && s < x.w {
						*v += weight[((o*x.c+c)*w.Size+ki)*w.Size+kj] * *x.at(n, c, r, s)
					}
				}
			}
		}
	})
	return y
}

func directGroupNorm(p *params, name string, x picture, groups int, eps float64) picture {
	weight, bias := p.get(name+".weight", x.c), p.get(name+".bias", x.c)
	size := x.c / groups
	sum, sum2 := make([]float64, x.n*groups), make([]float64, x.n*groups)
	count := float64(size * x.h * x.w)
	x.each(func(n, c, _, _ int, v *float64) { sum[n*groups+c/size] += *v / count })
	x.each(func(n, c, _, _ int, v *float64) {
		g := n*groups + c/size
		sum2[g] += (*v - sum[g]) * (*v - sum[g]) / count
	})
	y := x.clone()
	y.each(func(n, c, _, _ int, v *float64) {
		g := n*groups + c/size
		*v = (*v-sum[g])/math.Sqrt(sum2[g]+eps)*weight[c] + bias[c]
	})
	return y
}

func directSiLU(v []float64) []float64 {
	out := make([]float64, len(v))
	for i, x := range v {
		out[i] = x / (1 + math.Exp(-x))
	}
	return out
}

// evalImage runs a layer on x [n,c,h,w] and extra inputs (vectors [n, len/n]) over the Go backend in dtype and returns its result in
// PyTorch's layout.
func evalImage(t *testing.T, dtype graph.DType, p *params, x picture, extra [][]float64, build func(c *trace.Ctx, x *ml.Node, extra []*ml.Node) *ml.Node) picture {
	t.Helper()
	in := []trace.Input{{Name: "x", Shape: shapes.Make(dtypes.Float32, x.n, x.c, x.h, x.w)}}
	values := map[string]*tensors.Tensor{"x": tensors.FromFlatDataAndDimensions(float32s(x.v), x.n, x.c, x.h, x.w)}
	for i, e := range extra {
		name := fmt.Sprint("extra", i)
		in = append(in, trace.Input{Name: name, Shape: shapes.Make(dtypes.Float32, x.n, len(e)/x.n)})
		values[name] = tensors.FromFlatDataAndDimensions(float32s(e), x.n, len(e)/x.n)
	}
	n := trace.Network{
		Name: "layer", DType: dtype, Inputs: in, Outputs: []string{"y"},
		Build: func(c *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
			var nodes []*ml.Node
			for i := range extra {
				nodes = append(nodes, ml.ConvertDType(in[fmt.Sprint("extra", i)], dtype))
			}
			y := build(c, ToNHWC(ml.ConvertDType(in["x"], dtype)), nodes)
			if y.DType() != dtype {
				t.Errorf("the result has dtype %s, want %s", y.DType(), dtype)
			}
			return []*ml.Node{ml.ConvertDType(ToNCHW(y), dtypes.Float32)}
		},
	}
	weights := func(key string, shape graph.Shape) (*tensors.Tensor, error) {
		v := tensors.FromFlatDataAndDimensions(float32s(p.get(key, shape.Size())), shape.Dimensions...)
		if shape.DType == dtypes.Float32 {
			return v, nil
		}
		return ml.MustExecOnce(gobackend.GetBackend(), func(x *ml.Node) *ml.Node { return ml.ConvertDType(x, shape.DType) }, v), nil
	}
	out, err := trace.Evaluate(nil, n, weights, values)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	d := out[0].Shape().Dimensions
	y := newPicture(d[0], d[1], d[2], d[3])
	for i, v := range tensors.MustCopyFlatData[float32](out[0]) {
		y.v[i] = float64(v)
	}
	return y
}

func float32s(v []float64) []float32 {
	out := make([]float32, len(v))
	for i, x := range v {
		out[i] = float32(x)
	}
	return out
}

// compare fails where got differs from want by more than limit times the largest magnitude in want.
func compare(t *testing.T, got, want picture, limit float64) {
	t.Helper()
	if got.n != want.n || got.c != want.c || got.h != want.h || got.w != want.w {
		t.Fatalf("shape %v, want %v", []int{got.n, got.c, got.h, got.w}, []int{want.n, want.c, want.h, want.w})
	}
	largest, worst := 0.0, 0.0
	for i := range want.v {
		largest = max(largest, math.Abs(want.v[i]))
		worst = max(worst, math.Abs(got.v[i]-want.v[i]))
		if math.IsNaN(got.v[i]) {
			t.Fatalf("element %d is NaN", i)
		}
	}
	if worst > limit*largest {
		t.Errorf("differs by %.3g where the largest element is %.3g, limit %g of it", worst, largest, limit)
	}
}

func randomPicture(n, c, h, w int) picture {
	return picture{n, c, h, w, randoms(rand.New(rand.NewPCG(3, 4)), n*c*h*w)}
}

// wantPanic runs a layer on a small picture and checks what its panic says.
func wantPanic(t *testing.T, build func(c *trace.Ctx, x *ml.Node) *ml.Node, want string) {
	t.Helper()
	n := trace.Network{
		Name: "layer", DType: dtypes.Float32, Outputs: []string{"y"},
		Inputs: []trace.Input{{Name: "x", Shape: shapes.Make(dtypes.Float32, 1, 5, 7, 6)}},
		Build: func(c *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
			return []*ml.Node{build(c, in["x"])}
		},
	}
	_, err := trace.Evaluate(nil, n, nil, nil)
	if err == nil || err.Error() != want {
		t.Errorf("found error  %v\nwanted       %s", err, want)
	}
}
