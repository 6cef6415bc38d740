package nn

import (
	"fmt"
	"math"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	ml "github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"precast/graph"
	"precast/graph/trace"
)

// video is a batch of videos [n,t,h,w,c] in float64.
type video struct {
	d [5]int
	v []float64
}

func randomVideo(d ...int) video {
	return video{[5]int(d), randoms(newParams().rng, d[0]*d[1]*d[2]*d[3]*d[4])}
}

func (x video) at(n, t, h, w, c int) *float64 {
	return &x.v[(((n*x.d[1]+t)*x.d[2]+h)*x.d[3]+w)*x.d[4]+c]
}

// directConv3D is the definition, in loops.
func directConv3D(p *params, name string, x video, out int, w Window3D) video {
	k, in := w.Size, x.d[4]
	weight, bias := p.get(name+".weight", out*in*k[0]*k[1]*k[2]), p.get(name+".bias", out)
	y := video{d: [5]int{x.d[0], 0, 0, 0, out}}
	var stride [3]int
	for i := range 3 {
		stride[i] = max(w.Stride[i], 1)
		y.d[1+i] = (x.d[1+i]+w.Padding[i][0]+w.Padding[i][1]-k[i])/stride[i] + 1
	}
	y.v = make([]float64, product(y.d[:]))
	for i := range y.v {
		n, at, o := i/product(y.d[1:]), [3]int{i / out / y.d[3] / y.d[2] % y.d[1], i / out / y.d[3] % y.d[2], i / out % y.d[3]}, i%out
		y.v[i] = bias[o]
		for tap := range k[0] * k[1] * k[2] {
			offset := [3]int{tap / (k[1] * k[2]), tap / k[2] % k[1], tap % k[2]}
			inside, from := true, [3]int{}
			for a := range 3 {
				from[a] = at[a]*stride[a] + offset[a] - w.Padding[a][0]
				inside = inside && from[a] >= 0 && from[a] < x.d[1+a]
			}
			for c := range in {
				if inside {
					y.v[i] += weight[(o*in+c)*k[0]*k[1]*k[2]+tap] * *x.at(n, from[0], from[1], from[2], c)
				}
			}
		}
	}
	return y
}

// evalVideo runs a layer on videos over the Go backend.
func evalVideo(t *testing.T, dtype graph.DType, p *params, xs []video, build func(c *trace.Ctx, x []*ml.Node) *ml.Node) video {
	t.Helper()
	n := trace.Network{Name: "layer", DType: dtype, Outputs: []string{"y"}}
	values := map[string]*tensors.Tensor{}
	for i, x := range xs {
		name := fmt.Sprint("x", i)
		n.Inputs = append(n.Inputs, trace.Input{Name: name, Shape: shapes.Make(dtypes.Float32, x.d[:]...)})
		values[name] = tensors.FromFlatDataAndDimensions(float32s(x.v), x.d[:]...)
	}
	n.Build = func(c *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
		var nodes []*ml.Node
		for i := range xs {
			nodes = append(nodes, ml.ConvertDType(in[fmt.Sprint("x", i)], dtype))
		}
		y := build(c, nodes)
		if y.DType() != dtype {
			t.Errorf("the result has dtype %s, want %s", y.DType(), dtype)
		}
		return []*ml.Node{ml.ConvertDType(y, dtypes.Float32)}
	}
	out, err := trace.Evaluate(nil, n, func(key string, shape graph.Shape) (*tensors.Tensor, error) {
		v := tensors.FromFlatDataAndDimensions(float32s(p.get(key, shape.Size())), shape.Dimensions...)
		if shape.DType == dtypes.Float32 {
			return v, nil
		}
		half, err := trace.Evaluate(nil, trace.Network{
			Name: "convert", DType: dtype, Inputs: []trace.Input{{Name: "w", Shape: v.Shape()}},
			Build: func(_ *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
				return []*ml.Node{ml.ConvertDType(in["w"], dtype)}
			},
		}, nil, map[string]*tensors.Tensor{"w": v})
		if err != nil {
			return nil, err
		}
		return half[0], nil
	}, values)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	y := video{d: [5]int(out[0].Shape().Dimensions)}
	for _, v := range tensors.MustCopyFlatData[float32](out[0]) {
		y.v = append(y.v, float64(v))
	}
	return y
}

func compareVideo(t *testing.T, got, want video, limit float64) {
	t.Helper()
	if got.d != want.d {
		t.Fatalf("shape %v, want %v", got.d, want.d)
	}
	largest, worst := 0.0, 0.0
	for i := range want.v {
		largest = max(largest, math.Abs(want.v[i]))
		if d := math.Abs(got.v[i] - want.v[i]); !(d <= worst) {
			worst = d
		}
	}
	if !(worst <= limit*largest) {
		t.Errorf("differs by %.3g where the largest element is %.3g, limit %g of it", worst, largest, limit)
	}
}

func TestConv3D(t *testing.T) {
	for _, w := range []Window3D{
		{Size: [3]int{1, 1, 1}},
		{Size: [3]int{1, 2, 2}, Stride: [3]int{1, 2, 2}},
		{Size: [3]int{3, 1, 1}, Stride: [3]int{2, 1, 1}},
		{Size: [3]int{3, 3, 3}, Padding: [3][2]int{{2, 0}, {1, 1}, {0, 2}}},
		{Size: [3]int{2, 3, 1}, Stride: [3]int{1, 2, 3}, Padding: [3][2]int{{0, 1}, {1, 0}, {0, 0}}},
	} {
		// A small video is a matrix product over patches, a larger one a convolution.
		for _, d := range [][]int{{2, 3, 4, 6, 3}, {1, 5, 18, 16, 2}} {
			t.Run(fmt.Sprint(w, d), func(t *testing.T) {
				p, x := newParams(), randomVideo(d...)
				want := directConv3D(p, "conv", x, 4, w)
				got := evalVideo(t, dtypes.Float32, p, []video{x}, func(c *trace.Ctx, x []*ml.Node) *ml.Node { return Conv3D(c, "conv", x[0], 4, w) })
				compareVideo(t, got, want, 1e-6)
			})
		}
	}
}

// TestCausalConv3D compares a video whole, and in chunks with what came before, with the definition: as many zero frames before as the kernel
// has frames less one.
func TestCausalConv3D(t *testing.T) {
	for _, size := range [][3]int{{3, 3, 3}, {3, 1, 1}, {1, 1, 1}, {2, 3, 1}} {
		for _, d := range [][]int{{2, 5, 4, 3, 3}, {1, 5, 18, 16, 2}} {
			t.Run(fmt.Sprint(size, d), func(t *testing.T) {
				p, x := newParams(), randomVideo(d...)
				w := Window3D{Size: size, Padding: [3][2]int{{size[0] - 1, 0}, {size[1] / 2, size[1] / 2}, {size[2] / 2, size[2] / 2}}}
				want := directConv3D(p, "conv", x, 4, w)
				conv := func(c *trace.Ctx, x, past *ml.Node) *ml.Node { return CausalConv3D(c, "conv", x, past, 4, size) }
				compareVideo(t, evalVideo(t, dtypes.Float32, p, []video{x}, func(c *trace.Ctx, x []*ml.Node) *ml.Node { return conv(c, x[0], nil) }), want, 1e-6)
				compareVideo(t, evalVideo(t, dtypes.Float32, p, []video{x}, func(c *trace.Ctx, x []*ml.Node) *ml.Node {
					frames := func(first, last int) *ml.Node { return ml.SliceAxis(x[0], 1, ml.AxisRange(first, last)) }
					// The first frame alone, then three frames, then one.
					parts := []*ml.Node{conv(c, frames(0, 1), nil)}
					zeros := ml.MulScalar(frames(0, 1), 0.0)
					before := func(first int) *ml.Node {
						all := ml.Concatenate([]*ml.Node{zeros, zeros, frames(0, first)}, 1)
						return ml.SliceAxis(all, 1, ml.AxisRange(3+first-size[0], 2+first))
					}
					for _, part := range [][2]int{{1, 4}, {4, 5}} {
						past := frames(0, 1) // no frame of it is used where the kernel has one
						if size[0] > 1 {
							past = before(part[0])
						}
						parts = append(parts, conv(c, frames(part[0], part[1]), past))
					}
					return ml.Concatenate(parts, 1)
				}), want, 1e-6)
			})
		}
	}
}

func TestConv3DHalf(t *testing.T) {
	for _, d := range [][]int{{1, 1, 4, 3, 3}, {1, 5, 18, 16, 2}} {
		p, x := newParams(), randomVideo(d...)
		w := Window3D{Size: [3]int{3, 3, 3}, Padding: [3][2]int{{2, 0}, {1, 1}, {1, 1}}}
		want := directConv3D(p, "conv", x, 4, w)
		got := evalVideo(t, dtypes.BFloat16, p, []video{x}, func(c *trace.Ctx, x []*ml.Node) *ml.Node {
			return CausalConv3D(c, "conv", x[0], nil, 4, w.Size)
		})
		compareVideo(t, got, want, 0.01)
	}
}

// TestRMSNormChannels has a pixel of zeros, which stays zero.
func TestRMSNormChannels(t *testing.T) {
	p, x := newParams(), randomVideo(1, 2, 3, 2, 5)
	for c := range 5 {
		*x.at(0, 1, 2, 0, c) = 0
	}
	gamma := p.get("norm.gamma", 5)
	want := video{x.d, make([]float64, len(x.v))}
	for i := 0; i < len(x.v); i += 5 {
		sum := 0.0
		for _, v := range x.v[i : i+5] {
			sum += v * v
		}
		for c := range 5 {
			want.v[i+c] = x.v[i+c] / max(math.Sqrt(sum), 1e-12) * math.Sqrt(5) * gamma[c]
		}
	}
	for dtype, limit := range map[graph.DType]float64{dtypes.Float32: 1e-6, dtypes.BFloat16: 0.01} {
		got := evalVideo(t, dtype, p, []video{x}, func(c *trace.Ctx, x []*ml.Node) *ml.Node { return RMSNormChannels(c, "norm", x[0], 3) })
		compareVideo(t, got, want, limit)
	}
}

func TestPerFrame(t *testing.T) {
	x := randomVideo(2, 3, 2, 4, 3)
	want := video{d: [5]int{2, 3, 4, 8, 3}, v: make([]float64, 8*len(x.v)/2)}
	for n := range 2 {
		for f := range 3 {
			for i := range 4 {
				for j := range 8 {
					for c := range 3 {
						*want.at(n, f, i, j, c) = *x.at(n, f, i/2, j/2, c)
					}
				}
			}
		}
	}
	got := evalVideo(t, dtypes.Float32, newParams(), []video{x}, func(_ *trace.Ctx, x []*ml.Node) *ml.Node { return PerFrame(x[0], Nearest2D) })
	compareVideo(t, got, want, 1e-7)
	got = evalVideo(t, dtypes.Float32, newParams(), []video{x}, func(_ *trace.Ctx, x []*ml.Node) *ml.Node { return ToNTHWC(ToNCTHW(x[0])) })
	compareVideo(t, got, x, 1e-7)
}

func TestVideoErrors(t *testing.T) {
	wantPanic(t, func(c *trace.Ctx, x *ml.Node) *ml.Node { return CausalConv3D(c, "conv", x, nil, 4, [3]int{3, 3, 3}) },
		"trace: layer: at conv: CausalConv3D: found an input of shape (Float32)[1, 5, 7, 6], wanted [B, T, H, W, C]")
	wantPanic(t, func(c *trace.Ctx, x *ml.Node) *ml.Node {
		return Conv3D(c, "conv", ml.Reshape(x, 1, 1, 5, 7, 6), 4, Window3D{Size: [3]int{2, 3, 3}})
	}, "trace: layer: at conv: Conv3D: found 1 frames, wanted as many as the window of 2 has")
	wantPanic(t, func(c *trace.Ctx, x *ml.Node) *ml.Node {
		return Conv3D(c, "conv", ml.Reshape(x, 1, 5, 1, 7, 6), 4, Window3D{Size: [3]int{2, 3, 3}})
	}, "trace: layer: at conv: Conv3D: found an image of 1x7, wanted one that a window of 3x3 fits into")
}

func product(xs []int) int {
	p := 1
	for _, x := range xs {
		p *= x
	}
	return p
}
