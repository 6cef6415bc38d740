package pipelines

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/dtypes/bfloat16"
	host "github.com/gomlx/gomlx/core/tensors"

	"precast/graph"
	"precast/graph/models/golden"
	"precast/graph/scheduler"
)

func TestMain(m *testing.M) { golden.Main(m) }

// random is a tensor of normal numbers, and the same numbers in float64 as the dtype holds them.
func random(r *rand.Rand, dtype graph.DType, dims ...int) (*host.Tensor, []float64) {
	size := 1
	for _, d := range dims {
		size *= d
	}
	wide := make([]float64, size)
	if dtype == dtypes.BFloat16 {
		v := make([]bfloat16.BFloat16, size)
		for i := range v {
			v[i] = bfloat16.FromFloat32(float32(r.NormFloat64()))
			wide[i] = float64(v[i].Float32())
		}
		return host.FromFlatDataAndDimensions(v, dims...), wide
	}
	v := make([]float32, size)
	for i := range v {
		v[i] = float32(r.NormFloat64())
		wide[i] = float64(v[i])
	}
	return host.FromFlatDataAndDimensions(v, dims...), wide
}

// flat is a tensor's values in float64.
func flat(t *host.Tensor) []float64 {
	var out []float64
	switch t.DType() {
	case dtypes.BFloat16:
		for _, v := range host.MustCopyFlatData[bfloat16.BFloat16](t) {
			out = append(out, float64(v.Float32()))
		}
	case dtypes.Bool:
		for _, v := range host.MustCopyFlatData[bool](t) {
			out = append(out, map[bool]float64{true: 1}[v])
		}
	default:
		for _, v := range host.MustCopyFlatData[float32](t) {
			out = append(out, float64(v))
		}
	}
	return out
}

// near fails where a value is further than limit from want.
func near(t *testing.T, what string, got, want []float64, limit float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: found %d values, wanted %d", what, len(got), len(want))
		return
	}
	for i, w := range want {
		if !(math.Abs(got[i]-w) <= limit*max(1, math.Abs(w))) {
			t.Errorf("%s: value %d is %g, wanted %g", what, i, got[i], w)
			return
		}
	}
}

// guide is the guidance of a step in float64: the definition in the papers that stepKind names, picture by picture; token is the length of the last axis.
func guide(kind stepKind, cond, uncond []float64, pictures, token int, scale, rescale float64) []float64 {
	out := make([]float64, len(cond))
	for i, c := range cond {
		out[i] = c
		if kind != plain {
			out[i] = uncond[i] + scale*(c-uncond[i])
		}
	}
	if kind == tokenNormed {
		length := func(x []float64) float64 {
			sum := 0.0
			for _, v := range x {
				sum += v * v
			}
			return math.Sqrt(sum)
		}
		for at := 0; at < len(out); at += token {
			part := out[at : at+token]
			ratio := length(cond[at:at+token]) / length(part)
			for i := range part {
				part[i] *= ratio
			}
		}
	}
	if kind != rescaled {
		return out
	}
	deviation := func(x []float64) float64 {
		mean, sum := 0.0, 0.0
		for _, v := range x {
			mean += v / float64(len(x))
		}
		for _, v := range x {
			sum += (v - mean) * (v - mean)
		}
		return math.Sqrt(sum / float64(len(x)-1))
	}
	size := len(cond) / pictures
	for k := range pictures {
		part := out[k*size : (k+1)*size]
		ratio := deviation(cond[k*size:(k+1)*size]) / deviation(part)
		for i, v := range part {
			part[i] = rescale*v*ratio + (1-rescale)*v
		}
	}
	return out
}

// TestStepProgram holds every kind of step, on every side, against the sums in float64.
func TestStepProgram(t *testing.T) {
	dims := []int{2, 3, 2, 5}
	const scale, rescale = 7.5, 0.7
	for _, dtype := range []graph.DType{dtypes.Float32, dtypes.BFloat16} {
		for _, kind := range []stepKind{plain, guided, rescaled, tokenNormed} {
			for _, slots := range []int{0, 3} {
				if dtype == dtypes.BFloat16 && slots > 0 {
					continue // history is float32 whatever the dtype
				}
				for _, joined := range []bool{false, true} {
					if joined && kind == plain {
						continue // there is one half
					}
					t.Run(fmt.Sprintf("%v/%v/%d slots/joined %v", dtype, kind, slots, joined), func(t *testing.T) {
						r := rand.New(rand.NewPCG(1, uint64(slots)))
						p := stepProgram(dims, slots, kind, joined, dtype)
						inputs := map[string]*host.Tensor{}
						values := map[string][]float64{}
						for _, in := range p.Inputs {
							inputs[in.Name], values[in.Name] = random(r, in.Shape.DType, in.Shape.Dimensions...)
						}
						if joined {
							pair := values["pair"]
							values["uncond"], values["cond"] = pair[:len(pair)/2], pair[len(pair)/2:]
						}
						set := func(name string, v float32) {
							if inputs[name] != nil {
								inputs[name], values[name] = host.FromScalar(v), []float64{float64(v)}
							}
						}
						set("guidance_scale", scale)
						set("guidance_rescale", rescale)
						set("lo", -0.5)
						set("hi", float32(math.Inf(1)))

						model := guide(kind, values["cond"], values["uncond"], dims[0], dims[3], scale, float64(float32(rescale)))
						operands := [][]float64{values["sample"], model, values["noise"]}
						for k := range slots {
							operands = append(operands, values[fmt.Sprintf("h%d", k)])
						}
						table, columns := values["coefficients"], scheduler.Columns(slots)
						combine := func(row int) []float64 {
							out := make([]float64, len(model))
							for c, x := range operands {
								for i := range out {
									out[i] += table[row*columns+c] * x[i]
								}
							}
							return out
						}
						x0 := combine(0)
						for i := range x0 {
							x0[i] = max(x0[i], -0.5)
						}
						operands = append(operands, x0)
						want := map[string][]float64{"model_output": model, "latents": combine(1), "model_input": combine(2), "finite": {1}}
						if joined {
							want["model_input"] = slices.Repeat(want["model_input"], 2)
						}
						for k := range slots {
							want[fmt.Sprintf("h%d", k)] = combine(3 + k)
						}

						for i, out := range (golden.Job{Network: p.Network, Inputs: inputs, Donate: p.Donate}).Run(t) {
							name := p.Outputs[i]
							for _, side := range out {
								limit := 2e-5
								if side.Tensor.DType() == dtypes.BFloat16 {
									limit = 1.0 / 256
								}
								near(t, name+" on side "+side.Name, flat(side.Tensor), want[name], limit)
							}
						}
					})
				}
			}
		}
	}
}

// TestStepNotFinite: one bad value anywhere clears the flag.
func TestStepNotFinite(t *testing.T) {
	dims := []int{1, 2, 2, 2}
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		p := stepProgram(dims, 0, plain, false, dtypes.Float32)
		cond := make([]float32, 8)
		cond[5] = float32(bad)
		table := make([]float32, scheduler.Rows(0)*scheduler.Columns(0))
		table[scheduler.Columns(0)+1] = 1 // latents = cond
		inputs := map[string]*host.Tensor{
			"cond":         host.FromFlatDataAndDimensions(cond, dims...),
			"sample":       host.FromFlatDataAndDimensions(make([]float32, 8), dims...),
			"noise":        host.FromFlatDataAndDimensions(make([]float32, 8), dims...),
			"coefficients": host.FromFlatDataAndDimensions(table, scheduler.Rows(0), scheduler.Columns(0)),
			"lo":           host.FromScalar(float32(math.Inf(-1))),
			"hi":           host.FromScalar(float32(math.Inf(1))),
		}
		for i, out := range (golden.Job{Network: p.Network, Inputs: inputs, Donate: p.Donate}).Run(t) {
			for _, side := range out {
				if p.Outputs[i] == "finite" && flat(side.Tensor)[0] != 0 {
					t.Errorf("%v in cond: finite is true on side %s", bad, side.Name)
				}
			}
		}
	}
}

// TestSchedulerStep runs scheduler.StepNetwork by itself on latents in bfloat16: what it computes in float32 is rounded once.
func TestSchedulerStep(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	const slots = 1
	n := scheduler.StepNetwork(shape(dtypes.BFloat16, 1, 2, 8), slots)
	inputs := map[string]*host.Tensor{}
	values := map[string][]float64{}
	for _, in := range n.Inputs {
		inputs[in.Name], values[in.Name] = random(r, in.Shape.DType, in.Shape.Dimensions...)
	}
	inputs["lo"], inputs["hi"] = host.FromScalar(float32(-1)), host.FromScalar(float32(1))
	operands := [][]float64{values["sample"], values["model_output"], values["noise"], values["h0"]}
	row := func(i int) []float64 {
		out := make([]float64, 16)
		for c, x := range operands {
			for k := range out {
				out[k] += values["coefficients"][i*scheduler.Columns(slots)+c] * x[k]
			}
		}
		return out
	}
	x0 := row(0)
	for i, v := range x0 {
		x0[i] = min(max(v, -1), 1)
	}
	operands = append(operands, x0)
	for i, out := range (golden.Job{Network: n, Inputs: inputs}).Run(t) {
		limit := 2e-6
		if i < 2 {
			limit = 1.0 / 256
		}
		for _, side := range out {
			near(t, n.Outputs[i]+" on side "+side.Name, flat(side.Tensor), row(i+1), limit)
		}
	}
}
