package pipelines

import (
	"fmt"

	"github.com/gomlx/compute/dtypes"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph"
	"precast/graph/scheduler"
	"precast/graph/trace"
)

// stepKind says what a step does with the denoiser's outputs before the scheduler.
type stepKind int

const (
	// plain: the scheduler is given the denoiser's output.
	plain stepKind = iota
	// guided: uncond + guidance_scale (cond - uncond), classifier-free guidance (Ho and Salimans 2022, https://arxiv.org/abs/2207.12598).
	guided
	// rescaled: guided, then mixed with itself at cond's standard deviation (Lin et al. 2023, https://arxiv.org/abs/2305.08891, section 3.4).
	rescaled
	// tokenNormed: guided, then each token (the last axis) at the Euclidean length of cond's: comb |cond| / |comb| (diffusers,
	// pipelines/qwenimage/pipeline_qwenimage.py).
	tokenNormed
	// pictureNormed: guided, then each picture brought back to the Euclidean length of cond's where it is longer: comb min(1, |cond| / |comb|)
	// (diffusers, pipelines/z_image/pipeline_z_image.py).
	pictureNormed
)

func (k stepKind) String() string {
	return [...]string{"plain", "guided", "rescaled", "token normed", "picture normed"}[k]
}

// stepProgram is what runs after each call of the denoiser: guidance and the scheduler's step. Inputs: sample (float32), cond and uncond (the
// denoiser's outputs), guidance_scale and guidance_rescale (scalars), and noise, h0.., coefficients, lo and hi as in
// scheduler.StepNetwork. Joined, one input pair [2B, ...] has uncond and then cond, and model_input is [2B, ...], the sample twice. Outputs: latents (float32), model_input (dtype), model_output (float32), finite (whether all of latents is) and h0...
func stepProgram(latents []int, slots int, kind stepKind, joined bool, dtype graph.DType) *Program {
	inner := scheduler.StepNetwork(f32(latents...), slots)
	outs := inner.Outputs
	n := trace.Network{Name: "step", Class: "step", DType: float32Type, Outputs: []string{"latents", "model_input", "model_output", "finite"}}
	if joined {
		n.Inputs = append(n.Inputs, trace.Input{Name: "pair", Shape: shape(dtype, twice(latents)...)})
	} else {
		n.Inputs = append(n.Inputs, trace.Input{Name: "cond", Shape: shape(dtype, latents...)})
	}
	if kind != plain {
		if !joined {
			n.Inputs = append(n.Inputs, trace.Input{Name: "uncond", Shape: shape(dtype, latents...)})
		}
		n.Inputs = append(n.Inputs, trace.Input{Name: "guidance_scale", Shape: f32()})
	}
	if kind == rescaled {
		n.Inputs = append(n.Inputs, trace.Input{Name: "guidance_rescale", Shape: f32()})
	}
	for _, in := range inner.Inputs {
		if in.Name != "model_output" {
			n.Inputs = append(n.Inputs, in)
		}
	}
	for k := range slots {
		n.Outputs = append(n.Outputs, fmt.Sprintf("h%d", k))
	}
	n.Build = func(c *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
		halves := map[string]*ml.Node{"cond": in["cond"], "uncond": in["uncond"]}
		if joined {
			b := latents[0]
			halves["uncond"], halves["cond"] = ml.SliceAxis(in["pair"], 0, ml.AxisRange(0, b)), ml.SliceAxis(in["pair"], 0, ml.AxisRange(b, 2*b))
		}
		cond := ml.ConvertDType(halves["cond"], dtypes.Float32)
		out := cond
		if kind != plain {
			uncond := ml.ConvertDType(halves["uncond"], dtypes.Float32)
			out = ml.Add(uncond, ml.Mul(in["guidance_scale"], ml.Sub(cond, uncond)))
		}
		if kind == rescaled {
			r := in["guidance_rescale"]
			same := ml.Mul(out, ml.Div(std(cond), std(out)))
			out = ml.Add(ml.Mul(r, same), ml.Mul(ml.OneMinus(r), out))
		}
		if kind == tokenNormed {
			out = ml.Mul(out, ml.Div(tokenNorm(cond), tokenNorm(out)))
		}
		if kind == pictureNormed {
			most, now := pictureNorm(cond), pictureNorm(out)
			shorter := ml.Where(ml.GreaterThan(now, most), ml.Div(most, now), ml.OnesLike(now))
			out = ml.Mul(out, shorter)
		}
		args := map[string]*ml.Node{"model_output": out}
		for _, i := range inner.Inputs {
			if i.Name != "model_output" {
				args[i.Name] = in[i.Name]
			}
		}
		got := map[string]*ml.Node{}
		for i, v := range inner.Build(c, args) {
			got[outs[i]] = v
		}
		next := got["prev_sample"]
		finite := ml.LogicalAll(ml.IsFinite(next))
		input := ml.ConvertDType(got["model_input"], dtype)
		if joined {
			input = ml.Concatenate([]*ml.Node{input, input}, 0)
		}
		res := []*ml.Node{next, input, out, finite}
		for k := range slots {
			res = append(res, got[fmt.Sprintf("h%d", k)])
		}
		return res
	}
	form := kind.String()
	if joined {
		form += " joined"
	}
	p := &Program{Network: n, Stage: StageDenoise, Spec: fmt.Sprintf("%v slots=%d %s %v", latents, slots, form, graph.DTypeName(dtype))}
	donated := scheduler.StepDonations(slots)
	for _, in := range n.Inputs {
		if _, ok := donated[in.Name]; ok {
			p.Donate = append(p.Donate, in.Name)
		}
	}
	return p
}

// twice is a shape with twice the batch.
func twice(dims []int) []int { return append([]int{2 * dims[0]}, dims[1:]...) }

// std is the standard deviation of each picture of x (unbiased, as torch.std), with its axes kept.
func std(x *ml.Node) *ml.Node {
	dims := x.Shape().Dimensions
	axes := make([]int, 0, len(dims)-1)
	n := 1
	for a := 1; a < len(dims); a++ {
		axes, n = append(axes, a), n*dims[a]
	}
	mean := ml.ReduceAndKeep(x, ml.ReduceMean, axes...)
	sum := ml.ReduceAndKeep(ml.Square(ml.Sub(x, mean)), ml.ReduceSum, axes...)
	return ml.Sqrt(ml.DivScalar(sum, float64(n-1)))
}

// tokenNorm is the Euclidean length of x along its last axis, which is kept with length 1.
func tokenNorm(x *ml.Node) *ml.Node {
	return ml.Sqrt(ml.ReduceAndKeep(ml.Square(x), ml.ReduceSum, -1))
}

// pictureNorm is the Euclidean length of each picture of x, with its axes kept.
func pictureNorm(x *ml.Node) *ml.Node {
	axes := make([]int, x.Rank()-1)
	for i := range axes {
		axes[i] = i + 1
	}
	return ml.Sqrt(ml.ReduceAndKeep(ml.Square(x), ml.ReduceSum, axes...))
}
