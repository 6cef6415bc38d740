package nn

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph"
	"precast/graph/trace"
)

// The sizes of the tests' streams: tokens of image and text, width, heads.
const (
	jointImage, jointText, jointDim, jointHeads = 3, 2, 8, 2
)

// jointWeights are random weights of linear modules by name: out features each, from jointDim.
func jointWeights(seed uint64, linear map[string]int, norms ...string) map[string]array {
	w := map[string]array{}
	for name, out := range linear {
		w[name+".weight"] = randomArray(seed+uint64(len(name))*7+uint64(out), 0.4, out, jointDim)
		w[name+".bias"] = randomArray(seed+uint64(len(name))*11+3, 0.4, out)
	}
	for i, name := range norms {
		w[name+".weight"] = randomArray(seed+100+uint64(i), 1, jointDim/jointHeads)
	}
	return w
}

// attendDirect is the joint attention in float64, with loops: rows of x with projections of their own each.
func attendDirect(w map[string]array, q, k, v []string, norms [][2]string, streams []array, hidden map[int]bool, outs []string) [][]float64 {
	linear := func(name string, row []float64) []float64 {
		out := make([]float64, w[name+".bias"].dims[0])
		for o := range out {
			out[o] = float64(w[name+".bias"].v[o])
			for i, x := range row {
				out[o] += x * float64(w[name+".weight"].v[o*len(row)+i])
			}
		}
		return out
	}
	head := jointDim / jointHeads
	normed := func(name string, row []float64) []float64 {
		if name == "" {
			return row
		}
		for h := 0; h < len(row); h += head {
			sum := 1e-6 * float64(head)
			for _, x := range row[h : h+head] {
				sum += x * x
			}
			for i := range head {
				row[h+i] *= float64(w[name+".weight"].v[i]) / math.Sqrt(sum/float64(head))
			}
		}
		return row
	}
	var qs, ks, vs [][]float64
	var stream []int
	for s, x := range streams {
		for r := range x.dims[1] {
			row := make([]float64, jointDim)
			for i := range row {
				row[i] = float64(x.v[r*jointDim+i])
			}
			qs, ks = append(qs, normed(norms[s][0], linear(q[s], row))), append(ks, normed(norms[s][1], linear(k[s], row)))
			vs, stream = append(vs, linear(v[s], row)), append(stream, s)
		}
	}
	var results [][]float64
	for i := range qs {
		row := make([]float64, jointDim)
		for h := 0; h < jointDim; h += head {
			weights, sum := make([]float64, len(ks)), 0.0
			for j := range ks {
				dot := 0.0
				for c := range head {
					dot += qs[i][h+c] * ks[j][h+c]
				}
				if weights[j] = math.Exp(dot / math.Sqrt(float64(head))); hidden[j] {
					weights[j] = 0
				}
				sum += weights[j]
			}
			for j := range vs {
				for c := range head {
					row[h+c] += weights[j] / sum * vs[j][h+c]
				}
			}
		}
		results = append(results, linear(outs[stream[i]], row))
	}
	return results
}

// rowsOf is a result [1, L, n] of rows.
func rowsOf(rows [][]float64) array {
	a := array{dims: []int{1, len(rows), len(rows[0])}}
	for _, row := range rows {
		for _, x := range row {
			a.v = append(a.v, float32(x))
		}
	}
	return a
}

var (
	imageProjections = map[string]int{"to_q": jointDim, "to_k": jointDim, "to_v": jointDim, "to_out.0": jointDim}
	textProjections  = map[string]int{"add_q_proj": jointDim, "add_k_proj": jointDim, "add_v_proj": jointDim}
)

// TestJointAttention holds every form against loops in float64. evalLayer checks that a form asks for its own weights and no others.
func TestJointAttention(t *testing.T) {
	image, text := randomArray(1, 1, 1, jointImage, jointDim), randomArray(2, 1, 1, jointText, jointDim)
	for _, tc := range []struct {
		name                  string
		cfg                   JointAttentionConfig
		alone, normed, masked bool
	}{
		{"plain", JointAttentionConfig{}, false, false, false},
		{"normed", JointAttentionConfig{Eps: 1e-6}, false, true, false},
		{"context pre only", JointAttentionConfig{Eps: 1e-6, ContextPreOnly: true}, false, true, false},
		{"alone", JointAttentionConfig{}, true, false, false},
		{"alone, normed", JointAttentionConfig{Eps: 1e-6}, true, true, false},
		{"masked", JointAttentionConfig{Eps: 1e-6}, false, true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			linear, norms := map[string]int{}, []string{}
			add := func(more map[string]int) {
				for name, out := range more {
					linear[name] = out
				}
			}
			add(imageProjections)
			imageNorms, textNorms := [2]string{}, [2]string{}
			if tc.normed {
				imageNorms = [2]string{"norm_q", "norm_k"}
				norms = append(norms, imageNorms[:]...)
			}
			q, k, v, outs, streams, each := []string{"to_q"}, []string{"to_k"}, []string{"to_v"}, []string{"to_out.0"}, []array{image}, [][2]string{imageNorms}
			if !tc.alone {
				add(textProjections)
				textOut := "to_add_out"
				if tc.cfg.ContextPreOnly {
					textOut = "to_out.0" // of the loops; the result is not compared
				} else {
					linear[textOut] = jointDim
				}
				if tc.normed {
					textNorms = [2]string{"norm_added_q", "norm_added_k"}
					norms = append(norms, textNorms[:]...)
				}
				q, k, v = []string{"add_q_proj", "to_q"}, []string{"add_k_proj", "to_k"}, []string{"add_v_proj", "to_v"}
				outs, streams, each = []string{textOut, "to_out.0"}, []array{text, image}, [][2]string{textNorms, imageNorms}
			}
			w := jointWeights(5, linear, norms...)
			hidden := map[int]bool{}
			if tc.masked {
				hidden[1] = true // the second text token
			}
			want := attendDirect(w, q, k, v, each, streams, hidden, outs)

			outputs := 2
			if tc.alone || tc.cfg.ContextPreOnly {
				outputs = 1
			}
			prefixed := map[string]array{}
			for key, a := range w {
				prefixed["attn."+key] = a
			}
			got := evalLayer(t, dtypes.Float32, prefixed, outputs, func(c *trace.Ctx) []*ml.Node {
				cfg := tc.cfg
				cfg.Heads, cfg.Bias = jointHeads, true
				if tc.masked {
					cfg.Mask = ml.Reshape(ml.Const(c.G, []float32{0, -math.MaxFloat32, 0, 0, 0}), 1, 1, 1, jointText+jointImage)
				}
				var second *ml.Node
				if !tc.alone {
					second = text.node(c)
				}
				imageOut, textOut := JointAttention(c, "attn", image.node(c), second, cfg)
				if (textOut == nil) != (outputs == 1) {
					t.Errorf("the text's result is %v", textOut)
				}
				return []*ml.Node{imageOut, textOut}[:outputs]
			})
			near(t, "image", got[0], rowsOf(want[len(want)-jointImage:]), 1e-5)
			if outputs == 2 {
				near(t, "text", got[1], rowsOf(want[:jointText]), 1e-5)
			}
		})
	}
}

// TestSD35AdaLayerNormZeroX: both results are the same normalised x, each under its own shift and scale.
func TestSD35AdaLayerNormZeroX(t *testing.T) {
	x, emb := randomArray(3, 1, 1, 2, 2), vec(0.5, -1)
	emb.dims = []int{1, 2}
	w := map[string]array{"norm1.linear.weight": randomArray(4, 1, 18, 2), "norm1.linear.bias": randomArray(5, 1, 18)}
	got := evalLayer(t, dtypes.Float32, w, 7, func(c *trace.Ctx) []*ml.Node {
		y, gateMSA, shiftMLP, scaleMLP, gateMLP, y2, gateMSA2 := SD35AdaLayerNormZeroX(c, "norm1", x.node(c), emb.node(c))
		return []*ml.Node{y, gateMSA, shiftMLP, scaleMLP, gateMLP, y2, gateMSA2}
	})
	var p [9][2]float64
	for i := range 18 {
		sum := float64(w["norm1.linear.bias"].v[i])
		for k, e := range emb.v {
			sum += float64(e) / (1 + math.Exp(-float64(e))) * float64(w["norm1.linear.weight"].v[2*i+k])
		}
		p[i/2][i%2] = sum
	}
	modulated := func(shift, scale int) array {
		out := array{dims: []int{1, 2, 2}}
		for r := range 2 {
			a, b := float64(x.v[2*r]), float64(x.v[2*r+1])
			mean := (a + b) / 2
			deviation := math.Sqrt(((a-mean)*(a-mean)+(b-mean)*(b-mean))/2 + 1e-6)
			for i, v := range []float64{a, b} {
				out.v = append(out.v, float32((v-mean)/deviation*(1+p[scale][i])+p[shift][i]))
			}
		}
		return out
	}
	near(t, "first", got[0], modulated(0, 1), 1e-5)
	near(t, "second", got[5], modulated(6, 7), 1e-5)
	for result, part := range map[int]int{1: 2, 2: 3, 3: 4, 4: 5, 6: 8} {
		near(t, fmt.Sprint("part ", part), got[result], array{[]int{1, 2}, []float32{float32(p[part][0]), float32(p[part][1])}}, 1e-5)
	}
}

// TestJointBlockWeights: each form of the block has the weights of its modules and no others.
func TestJointBlockWeights(t *testing.T) {
	linear := func(names ...string) (keys []string) {
		for _, name := range names {
			keys = append(keys, name+".weight", name+".bias")
		}
		return keys
	}
	attention := linear("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0", "attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj")
	image := append(linear("norm1.linear", "norm1_context.linear", "ff.net.0.proj", "ff.net.2"), attention...)
	text := linear("attn.to_add_out", "ff_context.net.0.proj", "ff_context.net.2")
	second := linear("attn2.to_q", "attn2.to_k", "attn2.to_v", "attn2.to_out.0")
	norms := []string{"attn.norm_q.weight", "attn.norm_k.weight", "attn.norm_added_q.weight", "attn.norm_added_k.weight"}
	for _, tc := range []struct {
		name string
		cfg  JointBlockConfig
		want [][]string
	}{
		{"plain", JointBlockConfig{}, [][]string{image, text}},
		{"normed", JointBlockConfig{JointAttentionConfig: JointAttentionConfig{Eps: 1e-6}}, [][]string{image, text, norms}},
		{"dual", JointBlockConfig{DualAttention: true}, [][]string{image, text, second}},
		{"last", JointBlockConfig{JointAttentionConfig: JointAttentionConfig{ContextPreOnly: true}}, [][]string{image}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := trace.Network{
				Name: "block", DType: dtypes.Float32, Outputs: []string{"image"},
				Build: func(c *trace.Ctx, _ map[string]*ml.Node) []*ml.Node {
					cfg := tc.cfg
					cfg.Heads, cfg.Bias = jointHeads, true
					x, y := randomArray(1, 1, 1, jointImage, jointDim).node(c), randomArray(2, 1, 1, jointText, jointDim).node(c)
					newText, newImage := JointBlock(c, "b", x, y, randomArray(3, 1, 1, jointDim).node(c), cfg)
					if (newText == nil) != cfg.ContextPreOnly {
						t.Errorf("the text is %v", newText)
					}
					if newText != nil {
						// Both results are used.
						newImage = ml.Add(newImage, ml.ReduceAllSum(newText))
					}
					return []*ml.Node{newImage}
				},
			}
			m, err := trace.Trace(n)
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]bool{}
			for _, keys := range tc.want {
				for _, key := range keys {
					want["b."+key] = true
				}
			}
			for _, p := range m.Entry().Params {
				if p.Kind == graph.Weight && !want[p.Name] {
					t.Errorf("found weight %s", p.Name)
				}
				delete(want, p.Name)
			}
			if len(want) > 0 {
				var missing []string
				for key := range want {
					missing = append(missing, key)
				}
				t.Errorf("missing %s", strings.Join(missing, ", "))
			}
		})
	}
}

// TestTimestepsScale: the product is scaled, after it is rounded.
func TestTimestepsScale(t *testing.T) {
	got := one(t, nil, func(c *trace.Ctx) *ml.Node {
		return Timesteps(vec(0.75).node(c), TimestepsConfig{Channels: 2, FlipSinToCos: true, Scale: 1000})
	})
	near(t, "embedding", got, array{[]int{1, 2}, []float32{float32(math.Cos(750)), float32(math.Sin(750))}}, 1e-6)
}
