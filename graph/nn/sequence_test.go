package nn

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/gobackend"
	ml "github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"precast/graph"
	"precast/graph/trace"
)

// array is a small float32 tensor of a test.
type array struct {
	dims []int
	v    []float32
}

func vec(v ...float32) array { return array{[]int{len(v)}, v} }

func arr(v []float32, dims ...int) array { return array{dims, v} }

func (a array) node(c *trace.Ctx) *ml.Node {
	return ml.ConvertDType(ml.Const(c.G, tensors.FromFlatDataAndDimensions(a.v, a.dims...)), c.DType)
}

// evalLayer runs a layer in dtype over the Go backend. The weights it asks for must be those given, no more and no fewer. Its results are widened to
// float32.
func evalLayer(t *testing.T, dtype graph.DType, weights map[string]array, outputs int, build func(c *trace.Ctx) []*ml.Node) []array {
	t.Helper()
	n := trace.Network{
		Name: "layer", DType: dtype, Outputs: make([]string, outputs),
		Build: func(c *trace.Ctx, _ map[string]*ml.Node) []*ml.Node {
			out := build(c)
			for i, y := range out {
				out[i] = ml.ConvertDType(y, dtypes.Float32)
			}
			return out
		},
	}
	asked := 0
	results, err := trace.Evaluate(nil, n, func(key string, shape graph.Shape) (*tensors.Tensor, error) {
		w, ok := weights[key]
		if !ok {
			return nil, fmt.Errorf("not a weight of this layer")
		}
		asked++
		v := tensors.FromFlatDataAndDimensions(w.v, w.dims...)
		if shape.DType == dtypes.Float32 {
			return v, nil
		}
		return ml.MustExecOnce(gobackend.GetBackend(), func(x *ml.Node) *ml.Node { return ml.ConvertDType(x, shape.DType) }, v), nil
	}, nil)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	if asked != len(weights) {
		t.Errorf("the layer asked for %d weights of %d", asked, len(weights))
	}
	var out []array
	for _, r := range results {
		out = append(out, array{r.Shape().Dimensions, tensors.MustCopyFlatData[float32](r)})
	}
	return out
}

// one is evalLayer in float32 for a layer with one result.
func one(t *testing.T, weights map[string]array, build func(c *trace.Ctx) *ml.Node) array {
	t.Helper()
	return evalLayer(t, dtypes.Float32, weights, 1, func(c *trace.Ctx) []*ml.Node { return []*ml.Node{build(c)} })[0]
}

// near fails where got is not want within limit, absolute.
func near(t *testing.T, what string, got, want array, limit float64) {
	t.Helper()
	if d := cmp.Diff(want, got, cmp.AllowUnexported(array{}), cmpopts.EquateApprox(0, limit)); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func randomArray(seed uint64, scale float64, dims ...int) array {
	rng := rand.New(rand.NewPCG(seed, 1))
	n := 1
	for _, d := range dims {
		n *= d
	}
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(scale * rng.NormFloat64())
	}
	return array{dims, v}
}

// panics runs build and returns what it panics with, as the error it becomes.
func panics(t *testing.T, build func(c *trace.Ctx) *ml.Node) string {
	t.Helper()
	n := trace.Network{Name: "layer", DType: dtypes.Float32, Outputs: []string{"y"}, Build: func(c *trace.Ctx, _ map[string]*ml.Node) []*ml.Node {
		return []*ml.Node{build(c)}
	}}
	_, err := trace.Evaluate(nil, n, nil, nil)
	if err == nil {
		t.Fatal("no error")
	}
	return err.Error()
}

func TestLinear(t *testing.T) {
	x := arr([]float32{1, 2, 3, 4, 5, 6}, 1, 2, 3)
	w := map[string]array{"proj.weight": arr([]float32{1, 0, 0, 1, 1, 1}, 2, 3), "proj.bias": vec(10, 20)}
	got := one(t, w, func(c *trace.Ctx) *ml.Node { return Linear(c, "proj", x.node(c), 2, true) })
	near(t, "with bias", got, arr([]float32{11, 26, 14, 35}, 1, 2, 2), 0)
	delete(w, "proj.bias")
	got = one(t, w, func(c *trace.Ctx) *ml.Node { return Linear(c, "proj", x.node(c), 2, false) })
	near(t, "without bias", got, arr([]float32{1, 6, 4, 15}, 1, 2, 2), 0)
	got = one(t, map[string]array{"weight": w["proj.weight"]}, func(c *trace.Ctx) *ml.Node { return Linear(c, "", x.node(c), 2, false) })
	near(t, "in the module itself", got, arr([]float32{1, 6, 4, 15}, 1, 2, 2), 0)
}

func TestActivations(t *testing.T) {
	sigmoid := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	tanhGELU := func(x float64) float64 {
		return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
	}
	silu := func(x float64) float64 { return x * sigmoid(x) }
	want := map[string]func(float64) float64{
		"gelu":              func(x float64) float64 { return 0.5 * x * (1 + math.Erf(x/math.Sqrt2)) },
		"gelu_new":          tanhGELU,
		"gelu_pytorch_tanh": tanhGELU,
		"quick_gelu":        func(x float64) float64 { return x * sigmoid(1.702*x) },
		"relu":              func(x float64) float64 { return max(x, 0) },
		"silu":              silu,
		"swish":             silu,
	}
	points := vec(-30, -4, -1.5, -0.75, -0.125, 0, 0.25, 1, 2.5, 6, 30)
	if len(ActivationNames()) != len(want) || len(activations) != len(want) {
		t.Errorf("the names are %v, want %d of them", ActivationNames(), len(want))
	}
	for _, name := range ActivationNames() {
		act, ok := ActivationByName(name)
		if !ok {
			t.Errorf("%s is listed but not known", name)
			continue
		}
		for dtype, relative := range map[graph.DType]float64{dtypes.Float32: 1e-6, dtypes.BFloat16: 1.0 / 256} {
			got := evalLayer(t, dtype, nil, 1, func(c *trace.Ctx) []*ml.Node { return []*ml.Node{act(points.node(c))} })[0]
			for i, x := range points.v {
				w := want[name](float64(x))
				// Near -30 the value is the difference of 1 and a number next to it: absolute there.
				if d := math.Abs(float64(got.v[i]) - w); d > relative*math.Abs(w)+1e-6 {
					t.Errorf("%s %s(%v) = %v, want %v", dtype, name, x, got.v[i], w)
				}
			}
		}
	}
	if _, ok := ActivationByName("tanh"); ok {
		t.Error("tanh is known, but should not be")
	}
}

// TestLayerNorm has a large common offset, under which a variance from the mean of squares would be off by much.
func TestLayerNorm(t *testing.T) {
	x := arr([]float32{4096 + 1, 4096 - 1, 4096 + 3, 4096 - 3}, 1, 4)
	r := float32(1 / math.Sqrt(5+0.5))
	got := one(t, nil, func(c *trace.Ctx) *ml.Node { return LayerNorm(c, "norm", x.node(c), 0.5, false) })
	near(t, "plain", got, arr([]float32{r, -r, 3 * r, -3 * r}, 1, 4), 1e-6)

	w := map[string]array{"norm.weight": vec(1, 2, 3, 4), "norm.bias": vec(0, 10, 20, 30)}
	got = one(t, w, func(c *trace.Ctx) *ml.Node { return LayerNorm(c, "norm", x.node(c), 0.5, true) })
	near(t, "affine", got, arr([]float32{r, -2*r + 10, 9*r + 20, -12*r + 30}, 1, 4), 1e-5)
}

func TestRMSNorm(t *testing.T) {
	x := arr([]float32{7, 1, 14, -2}, 2, 2)
	w := map[string]array{"norm.weight": vec(1, 2)}
	got := one(t, w, func(c *trace.Ctx) *ml.Node { return RMSNorm(c, "norm", x.node(c), 0) })
	near(t, "rows", got, arr([]float32{1.4, 0.4, 1.4, -0.4}, 2, 2), 1e-6)
}

// TestRMSNormHalf has 1024 values of 1: summed in bfloat16 they would stop at 256.
func TestRMSNormHalf(t *testing.T) {
	x := arr(make([]float32, 1024), 1, 1024)
	weight := vec(make([]float32, 1024)...)
	for i := range x.v {
		x.v[i], weight.v[i] = 1, 1
	}
	got := evalLayer(t, dtypes.BFloat16, map[string]array{"weight": weight}, 1, func(c *trace.Ctx) []*ml.Node {
		return []*ml.Node{RMSNorm(c, "", x.node(c), 0)}
	})[0]
	near(t, "ones", got, x, 0)
}

// TestAdaLayerNorm gives the projections no weight, so that their bias is what is cut into shift, scale and gate. The input is its own
// norm.
func TestAdaLayerNorm(t *testing.T) {
	const big = 1e3 // makes the eps of the norm vanish
	x := arr([]float32{big, -big}, 1, 1, 2)
	emb := arr([]float32{5}, 1, 1)
	weights := func(bias ...float32) map[string]array {
		return map[string]array{"n.linear.weight": arr(make([]float32, len(bias)), len(bias), 1), "n.linear.bias": vec(bias...)}
	}
	flat := func(v ...float32) array { return arr(v, 1, 2) }

	got := evalLayer(t, dtypes.Float32, weights(1, 2, 10, 20, 3, 4, 5, 6, 7, 8, 9, 11), 5, func(c *trace.Ctx) []*ml.Node {
		y, gateMSA, shiftMLP, scaleMLP, gateMLP := AdaLayerNormZero(c, "n", x.node(c), emb.node(c))
		return []*ml.Node{y, gateMSA, shiftMLP, scaleMLP, gateMLP}
	})
	for i, want := range []array{arr([]float32{1 + 11, 2 - 21}, 1, 1, 2), flat(3, 4), flat(5, 6), flat(7, 8), flat(9, 11)} {
		near(t, fmt.Sprint("zero ", i), got[i], want, 1e-4)
	}

	got = evalLayer(t, dtypes.Float32, weights(1, 2, 10, 20, 3, 4), 2, func(c *trace.Ctx) []*ml.Node {
		y, gate := AdaLayerNormZeroSingle(c, "n", x.node(c), emb.node(c))
		return []*ml.Node{y, gate}
	})
	near(t, "single", got[0], arr([]float32{1 + 11, 2 - 21}, 1, 1, 2), 1e-4)
	near(t, "single gate", got[1], flat(3, 4), 0)

	y := one(t, weights(10, 20, 1, 2), func(c *trace.Ctx) *ml.Node { return AdaLayerNormContinuous(c, "n", x.node(c), emb.node(c), 1e-6, true) })
	near(t, "continuous", y, arr([]float32{1 + 11, 2 - 21}, 1, 1, 2), 1e-4)
}

func TestEmbedding(t *testing.T) {
	w := map[string]array{"e.weight": arr([]float32{0, 1, 10, 11, 20, 21}, 3, 2)}
	got := one(t, w, func(c *trace.Ctx) *ml.Node { return Embedding(c, "e", ml.Const(c.G, [][]int32{{2, 0}, {1, 1}}), 3, 2) })
	near(t, "rows", got, arr([]float32{20, 21, 0, 1, 10, 11, 10, 11}, 2, 2, 2), 0)
}

func TestTimesteps(t *testing.T) {
	const step = 3.0
	sin := func(f float64) float32 { return float32(math.Sin(step * f)) }
	cos := func(f float64) float32 { return float32(math.Cos(step * f)) }
	tenth := 1.0 / 100 // 10000^(-1/2)
	for _, tc := range []struct {
		name string
		cfg  TimestepsConfig
		want []float32
	}{
		{"sines first", TimestepsConfig{Channels: 4}, []float32{sin(1), sin(tenth), cos(1), cos(tenth)}},
		{"cosines first", TimestepsConfig{Channels: 4, FlipSinToCos: true}, []float32{cos(1), cos(tenth), sin(1), sin(tenth)}},
		{"shift", TimestepsConfig{Channels: 4, DownscaleFreqShift: 1}, []float32{sin(1), sin(1e-4), cos(1), cos(1e-4)}},
		{"odd", TimestepsConfig{Channels: 5}, []float32{sin(1), sin(tenth), cos(1), cos(tenth), 0}},
		{"period", TimestepsConfig{Channels: 4, MaxPeriod: 100}, []float32{sin(1), sin(0.1), cos(1), cos(0.1)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := one(t, nil, func(c *trace.Ctx) *ml.Node { return Timesteps(vec(step).node(c), tc.cfg) })
			near(t, "embedding", got, arr(tc.want, 1, len(tc.want)), 1e-6)
		})
	}
	// In half precision 999 would be 1000.
	got := evalLayer(t, dtypes.BFloat16, nil, 1, func(c *trace.Ctx) []*ml.Node {
		return []*ml.Node{Timesteps(ml.Const(c.G, []float32{999}), TimestepsConfig{Channels: 2})}
	})[0]
	near(t, "half", got, arr([]float32{float32(math.Sin(999)), float32(math.Cos(999))}, 1, 2), 1e-6)
}

func TestTimestepEmbedding(t *testing.T) {
	w := map[string]array{
		"e.linear_1.weight": arr([]float32{1, 2, 3, 4}, 2, 2), "e.linear_1.bias": vec(0, 1),
		"e.linear_2.weight": arr([]float32{1, 1, 1, -1}, 2, 2), "e.linear_2.bias": vec(10, 20),
	}
	got := one(t, w, func(c *trace.Ctx) *ml.Node {
		return TimestepEmbedding(c, "e", arr([]float32{1, -1}, 1, 2).node(c), 2, true)
	})
	a := -1 / (1 + math.Exp(1)) // silu(-1); the second unit is silu(0)
	near(t, "embedding", got, arr([]float32{float32(10 + a), float32(20 + a)}, 1, 2), 1e-5)
}

// naiveAttention is the definition, in float64.
func naiveAttention(q, k, v array, scale float64, mask func(b, h, i, j int) float64) array {
	b, lq, h, d := q.dims[0], q.dims[1], q.dims[2], q.dims[3]
	lk, dv := k.dims[1], v.dims[3]
	at := func(a array, i, j, k, l int) float64 {
		return float64(a.v[((i*a.dims[1]+j)*a.dims[2]+k)*a.dims[3]+l])
	}
	var out []float32
	for b := range b {
		for i := range lq {
			for h := range h {
				p, sum, top := make([]float64, lk), 0.0, math.Inf(-1)
				for j := range p {
					for c := range d {
						p[j] += scale * at(q, b, i, h, c) * at(k, b, j, h, c)
					}
					p[j] += mask(b, h, i, j)
					top = max(top, p[j])
				}
				for j := range p {
					p[j] = math.Exp(p[j] - top)
					sum += p[j]
				}
				for c := range dv {
					y := 0.0
					for j := range p {
						y += p[j] / sum * at(v, b, j, h, c)
					}
					out = append(out, float32(y))
				}
			}
		}
	}
	return array{[]int{b, lq, h, dv}, out}
}

func TestAttention(t *testing.T) {
	q, k, v := randomArray(1, 1, 2, 5, 3, 4), randomArray(2, 1, 2, 7, 3, 4), randomArray(3, 1, 2, 7, 3, 6)
	mask := randomArray(4, 1, 1, 3, 5, 7)
	none := func(int, int, int, int) float64 { return 0 }
	masked := func(_, h, i, j int) float64 { return float64(mask.v[(h*5+i)*7+j]) }
	causal := func(_, _, i, j int) float64 {
		if j > i {
			return math.Inf(-1)
		}
		return 0
	}
	// Scores of some hundreds: the exponential alone would overflow. They are integers, so that float32 has them exactly.
	large, whole := array{q.dims, make([]float32, len(q.v))}, array{k.dims, make([]float32, len(k.v))}
	for i, x := range q.v {
		large.v[i] = 128 * float32(math.Round(float64(x)))
	}
	for i, x := range k.v {
		whole.v[i] = float32(math.Round(float64(x)))
	}
	square := randomArray(5, 1, 2, 5, 3, 4)
	for _, tc := range []struct {
		name    string
		q, k, v array
		cfg     func(c *trace.Ctx) AttentionConfig
		want    array
	}{
		{"default scale", q, k, v, func(*trace.Ctx) AttentionConfig { return AttentionConfig{} }, naiveAttention(q, k, v, 0.5, none)},
		{"no scale", q, k, v, func(*trace.Ctx) AttentionConfig { return AttentionConfig{Scale: 1} }, naiveAttention(q, k, v, 1, none)},
		{"mask", q, k, v, func(c *trace.Ctx) AttentionConfig { return AttentionConfig{Mask: mask.node(c)} }, naiveAttention(q, k, v, 0.5, masked)},
		{"large scores", large, whole, v, func(*trace.Ctx) AttentionConfig { return AttentionConfig{} }, naiveAttention(large, whole, v, 0.5, none)},
		{
			"causal", q, square, square,
			func(c *trace.Ctx) AttentionConfig { return AttentionConfig{Mask: CausalMask(c.G, 5)} },
			naiveAttention(q, square, square, 0.5, causal),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := one(t, nil, func(c *trace.Ctx) *ml.Node { return Attention(tc.q.node(c), tc.k.node(c), tc.v.node(c), tc.cfg(c)) })
			near(t, "attention", got, tc.want, 2e-6)
		})
	}
}

// TestAttentionGroups has two heads of keys for six of queries, against keys that are repeated.
func TestAttentionGroups(t *testing.T) {
	q, k, v := randomArray(1, 1, 2, 5, 6, 4), randomArray(2, 1, 2, 7, 2, 4), randomArray(3, 1, 2, 7, 2, 3)
	repeat := func(a array) array {
		b := array{dims: []int{a.dims[0], a.dims[1], 6, a.dims[3]}}
		for row := range a.dims[0] * a.dims[1] {
			for h := range 6 {
				at := (row*2 + h/3) * a.dims[3]
				b.v = append(b.v, a.v[at:at+a.dims[3]]...)
			}
		}
		return b
	}
	for name, dims := range map[string][]int{"no mask": nil, "mask of all heads": {2, 1, 5, 7}, "mask of each head": {1, 6, 5, 7}, "mask of keys": {2, 6, 1, 7}} {
		t.Run(name, func(t *testing.T) {
			mask := randomArray(4, 1, dims...)
			cfg := func(c *trace.Ctx) AttentionConfig {
				if dims == nil {
					return AttentionConfig{}
				}
				return AttentionConfig{Mask: mask.node(c)}
			}
			at := func(b, h, i, j int) float64 {
				if dims == nil {
					return 0
				}
				flat := 0
				for axis, x := range []int{b, h, i, j} {
					flat = flat*dims[axis] + x%dims[axis]
				}
				return float64(mask.v[flat])
			}
			got := one(t, nil, func(c *trace.Ctx) *ml.Node { return Attention(q.node(c), k.node(c), v.node(c), cfg(c)) })
			near(t, "attention", got, naiveAttention(q, repeat(k), repeat(v), 0.5, at), 2e-6)
		})
	}
}

// TestAttentionBooleans has a causal mask in which the first two keys are padding: the first two queries see nothing.
func TestAttentionBooleans(t *testing.T) {
	for _, heads := range []int{4, 2} {
		q, k, v := randomArray(1, 1, 1, 5, 4, 3), randomArray(2, 1, 1, 5, heads, 3), randomArray(3, 1, 1, 5, heads, 3)
		got := one(t, nil, func(c *trace.Ctx) *ml.Node {
			return Attention(q.node(c), k.node(c), v.node(c), AttentionConfig{Mask: CausalKeep(ml.Const(c.G, [][]int32{{0, 0, 1, 1, 1}}))})
		})
		one := one(t, nil, func(c *trace.Ctx) *ml.Node {
			see := func(x array) *ml.Node { return ml.SliceAxis(x.node(c), 1, ml.AxisRangeToEnd(2)) }
			return Attention(see(q), see(k), see(v), AttentionConfig{Mask: CausalMask(c.G, 3)})
		})
		want := arr(append(make([]float32, 2*4*3), one.v...), 1, 5, 4, 3)
		near(t, "attention", got, want, 1e-6)
		for i, x := range got.v[:2*4*3] {
			if x != 0 {
				t.Errorf("%d heads: value %d of a query that sees nothing is %g, want 0", heads, i, x)
			}
		}
	}
}

// TestAttentionHalf computes on inputs that bfloat16 holds exactly; what is left is the rounding of the probabilities and of the result.
func TestAttentionHalf(t *testing.T) {
	round := func(a array) array {
		for i, x := range a.v {
			a.v[i] = math.Float32frombits(math.Float32bits(x) &^ 0xffff)
		}
		return a
	}
	q, k, v := round(randomArray(1, 1, 1, 8, 2, 4)), round(randomArray(2, 1, 1, 8, 2, 4)), round(randomArray(3, 1, 1, 8, 2, 4))
	got := evalLayer(t, dtypes.BFloat16, nil, 1, func(c *trace.Ctx) []*ml.Node {
		return []*ml.Node{Attention(q.node(c), k.node(c), v.node(c), AttentionConfig{})}
	})[0]
	// Half a unit of bfloat16 is 2^-9 relative: once for the probabilities, once for the scores' inputs to the product, once for the result.
	near(t, "attention", got, naiveAttention(q, k, v, 0.5, func(int, int, int, int) float64 { return 0 }), 3*3.0/512)
}

func TestAttentionShapes(t *testing.T) {
	for _, tc := range []struct {
		name    string
		q, k, v []int
	}{
		{"heads", []int{1, 2, 4, 8}, []int{1, 2, 3, 8}, []int{1, 2, 3, 8}},
		{"heads of the values", []int{1, 2, 4, 8}, []int{1, 2, 2, 8}, []int{1, 2, 4, 8}},
		{"more heads", []int{1, 2, 4, 8}, []int{1, 2, 8, 8}, []int{1, 2, 8, 8}},
		{"batch", []int{2, 2, 4, 8}, []int{1, 2, 4, 8}, []int{1, 2, 4, 8}},
		{"head size", []int{1, 2, 4, 8}, []int{1, 2, 4, 4}, []int{1, 2, 4, 4}},
		{"length", []int{1, 2, 4, 8}, []int{1, 3, 4, 8}, []int{1, 2, 4, 8}},
		{"rank", []int{1, 2, 32}, []int{1, 2, 32}, []int{1, 2, 32}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			msg := panics(t, func(c *trace.Ctx) *ml.Node {
				return Attention(randomArray(1, 1, tc.q...).node(c), randomArray(1, 1, tc.k...).node(c), randomArray(1, 1, tc.v...).node(c), AttentionConfig{})
			})
			if want := "wanted [B, Lq, H, D], [B, Lk, H, D], [B, Lk, H, Dv]"; !strings.Contains(msg, want) {
				t.Errorf("got %q, want %q in it", msg, want)
			}
		})
	}
	msg := panics(t, func(c *trace.Ctx) *ml.Node { return SplitHeads(randomArray(1, 1, 1, 2, 10).node(c), 4) })
	if want := "split into 4 heads: found (Float32)[1, 2, 10], wanted [B, L, a multiple of 4]"; !strings.Contains(msg, want) {
		t.Errorf("got %q, want %q in it", msg, want)
	}
}

func TestHeads(t *testing.T) {
	x := randomArray(1, 1, 2, 3, 8)
	got := evalLayer(t, dtypes.Float32, nil, 2, func(c *trace.Ctx) []*ml.Node {
		y := SplitHeads(x.node(c), 4)
		return []*ml.Node{y, MergeHeads(y)}
	})
	near(t, "split", got[0], arr(x.v, 2, 3, 4, 2), 0)
	near(t, "merged", got[1], x, 0)
}

// TestRotary turns a pair by a right angle and another by 60 degrees.
func TestRotary(t *testing.T) {
	x := arr([]float32{1, 2, 3, 4, 5, 6, 7, 8}, 1, 1, 2, 4) // two heads
	c60, s60 := float32(0.5), float32(math.Sqrt(3)/2)
	cos, sin := arr([]float32{0, 0, c60, c60}, 1, 4), arr([]float32{1, 1, s60, s60}, 1, 4)
	got := one(t, nil, func(c *trace.Ctx) *ml.Node { return NewRotary(cos.node(c), sin.node(c)).Apply(x.node(c)) })
	want := []float32{-2, 1, 3*c60 - 4*s60, 4*c60 + 3*s60, -6, 5, 7*c60 - 8*s60, 8*c60 + 7*s60}
	near(t, "rotated", got, arr(want, 1, 1, 2, 4), 1e-6)

	// Two sequences with angles of their own: the second's are swapped.
	both := arr(append(append([]float32{}, x.v[:4]...), x.v[:4]...), 2, 1, 1, 4)
	cosB, sinB := arr([]float32{0, 0, c60, c60, c60, c60, 0, 0}, 2, 1, 4), arr([]float32{1, 1, s60, s60, s60, s60, 1, 1}, 2, 1, 4)
	got = one(t, nil, func(c *trace.Ctx) *ml.Node { return NewRotary(cosB.node(c), sinB.node(c)).Apply(both.node(c)) })
	want = []float32{-2, 1, 3*c60 - 4*s60, 4*c60 + 3*s60, c60 - 2*s60, 2*c60 + s60, -4, 3}
	near(t, "rotated by sequence", got, arr(want, 2, 1, 1, 4), 1e-6)

	// The same two rotations of channels (0, 2) and (1, 3).
	cos, sin = arr([]float32{0, c60}, 1, 2), arr([]float32{1, s60}, 1, 2)
	got = one(t, nil, func(c *trace.Ctx) *ml.Node { return NewRotaryHalves(cos.node(c), sin.node(c)).Apply(x.node(c)) })
	want = []float32{-3, 2*c60 - 4*s60, 1, 4*c60 + 2*s60, -7, 6*c60 - 8*s60, 5, 8*c60 + 6*s60}
	near(t, "rotated halves", got, arr(want, 1, 1, 2, 4), 1e-6)

	msg := panics(t, func(c *trace.Ctx) *ml.Node {
		return NewRotary(randomArray(1, 1, 2, 3).node(c), randomArray(1, 1, 2, 3).node(c)).Apply(x.node(c))
	})
	if want := "wanted the same [L, D] or [B, L, D] with D even"; !strings.Contains(msg, want) {
		t.Errorf("got %q, want %q in it", msg, want)
	}
}

// TestGatedMLP gates 3 by SiLU of 2.
func TestGatedMLP(t *testing.T) {
	weights := map[string]array{"gate.weight": arr([]float32{2}, 1, 1), "up.weight": arr([]float32{3}, 1, 1), "down.weight": arr([]float32{10}, 1, 1)}
	got := one(t, weights, func(c *trace.Ctx) *ml.Node { return GatedMLP(c, "gate", "up", "down", vec(1).node(c), 1, SiLU) })
	near(t, "result", got, vec(float32(10*3*2/(1+math.Exp(-2)))), 1e-5)
}

func TestFeedForward(t *testing.T) {
	x := vec(1, 2)
	// The projection gives 3 and -1 (and for the gated kinds 0.5 and 2); the second layer adds the two.
	plain := map[string]array{
		"ff.net.0.proj.weight": arr([]float32{1, 1, 1, -1}, 2, 2), "ff.net.0.proj.bias": vec(0, 0),
		"ff.net.2.weight": arr([]float32{1, 1, 1, 1}, 2, 2), "ff.net.2.bias": vec(0, 100),
	}
	gated := map[string]array{
		"ff.net.0.proj.weight": arr([]float32{1, 1, 1, -1, 0, 0, 0, 0}, 4, 2), "ff.net.0.proj.bias": vec(0, 0, 0.5, 2),
		"ff.net.2.weight": plain["ff.net.2.weight"], "ff.net.2.bias": plain["ff.net.2.bias"],
	}
	gelu := func(x float64) float64 { return 0.5 * x * (1 + math.Erf(x/math.Sqrt2)) }
	tanh := func(x float64) float64 { return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x))) }
	silu := func(x float64) float64 { return x / (1 + math.Exp(-x)) }
	for _, tc := range []struct {
		kind    string
		weights map[string]array
		want    float64
	}{
		{"gelu", plain, gelu(3) + gelu(-1)},
		{"gelu-approximate", plain, tanh(3) + tanh(-1)},
		{"geglu", gated, 3*gelu(0.5) - gelu(2)},
		{"swiglu", gated, 3*silu(0.5) - silu(2)},
	} {
		t.Run(tc.kind, func(t *testing.T) {
			got := one(t, tc.weights, func(c *trace.Ctx) *ml.Node {
				return FeedForward(c, "ff", arr(x.v, 1, 2).node(c), 2, tc.kind)
			})
			near(t, "result", got, arr([]float32{float32(tc.want), float32(tc.want + 100)}, 1, 2), 1e-5)
		})
	}
	if msg := panics(t, func(c *trace.Ctx) *ml.Node { return FeedForward(c, "ff", x.node(c), 2, "what") }); !strings.Contains(msg, `BUG: feed-forward of kind "what"`) {
		t.Errorf("unknown kind: %s", msg)
	}
}
