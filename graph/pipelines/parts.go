package pipelines

import (
	"cmp"
	"fmt"
	"slices"

	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/models/autoencoderkl"
	"precast/graph/scheduler"
	"precast/graph/tokenizer"
	"precast/graph/trace"
)

// parse reads a component's config into *to.
func parse[C any](ck *checkpoint.Checkpoint, name string, parse func(*checkpoint.Config) (C, error), to *C, known ...string) error {
	cfg, err := componentConfig(ck, name, known...)
	if err != nil {
		return err
	}
	c, err := parse(cfg)
	if err != nil {
		return err
	}
	*to = c
	return nil
}

func mustEqual(ck *checkpoint.Checkpoint, a, keyA string, va int, b, keyB string, vb int) error {
	if va == vb {
		return nil
	}
	return fmt.Errorf("%s: the components do not fit together: %s has %s %d, %s has %s %d; they must be equal", ck.Dir(), a, keyA, va, b, keyB, vb)
}

func openTokenizer(ck *checkpoint.Checkpoint, name string) (tokenizer.Tokenizer, error) {
	comp, err := ck.Component(name)
	if err != nil {
		return nil, err
	}
	return tokenizer.Open(comp.Dir(), comp.Class)
}

// flowFault says that a scheduler can't do what a pipeline of flow matching asks of it.
func flowFault(p Pipeline, model string, err error) error {
	return fmt.Errorf("scheduler %s with this config can't drive %s, which gives it sigmas and a shift of its own: %w; %s comes with FlowMatchEulerDiscreteScheduler",
		p.Scheduler(), p.Class(), err, model)
}

// unpackProgram turns a run's latents, of that shape, into what the decoder takes: arrange brings them to its layout and scale, and the program gives
// each picture's alone.
func unpackProgram(latents []int, spec string, arrange func(x *ml.Node) *ml.Node) *Program {
	n := trace.Network{Name: "unpack", Class: "unpack", DType: float32Type, Inputs: []trace.Input{{Name: "latents", Shape: f32(latents...)}}}
	for k := range latents[0] {
		n.Outputs = append(n.Outputs, fmt.Sprintf("latents%d", k))
	}
	n.Build = func(_ *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
		x := arrange(in["latents"])
		out := make([]*ml.Node, latents[0])
		for k := range out {
			out[k] = ml.SliceAxis(x, 0, ml.AxisRange(k, k+1))
		}
		return out
	}
	return &Program{Network: n, Stage: StageDecode, Spec: spec}
}

// spread2x2 spreads tokens x [B, h*w, 4C] over the latent pixels of their patches: [B, C, 2h, 2w]. Element 4c+2p+q of token (i, j) is pixel (2i+p, 2j+q)
// of channel c (_unpack_latents of pipelines/flux/pipeline_flux.py). packLatents is the way back.
func spread2x2(x *ml.Node, h, w int) *ml.Node {
	b, c := x.Shape().Dim(0), x.Shape().Dim(2)/4
	return ml.Reshape(ml.TransposeAllAxes(ml.Reshape(x, b, h, w, c, 2, 2), 0, 3, 1, 4, 2, 5), b, c, 2*h, 2*w)
}

// perChannel is one number a channel, spread over x [B, C, ...].
func perChannel(v []float64, x *ml.Node) *ml.Node {
	dims := slices.Repeat([]int{1}, x.Rank())
	dims[1] = len(v)
	return ml.BroadcastToShape(ml.Reshape(ml.Const(x.Graph(), toFloat32(v)), dims...), x.Shape())
}

// unscale takes latents [B, C, h, w] to the scale of the autoencoder, in the dtype of the decoder.
func unscale(x *ml.Node, c autoencoderkl.Config, dtype graph.DType) *ml.Node {
	if len(c.LatentsMean) > 0 && len(c.LatentsStd) > 0 {
		x = ml.Add(ml.DivScalar(ml.Mul(x, perChannel(c.LatentsStd, x)), c.ScalingFactor), perChannel(c.LatentsMean, x))
	} else {
		x = ml.DivScalar(x, c.ScalingFactor)
		if c.ShiftFactor != 0 {
			x = ml.AddScalar(x, c.ShiftFactor)
		}
	}
	return ml.ConvertDType(x, dtype)
}

func toFloat32(v []float64) []float32 {
	out := make([]float32, len(v))
	for i, x := range v {
		out[i] = float32(x)
	}
	return out
}

// maxBatch is the most pictures of a request.
const maxBatch = 1024

func checkBatch(b int) error {
	if b < 1 || b > maxBatch {
		return fmt.Errorf("batch: found %d pictures, wanted 1 to %d", b, maxBatch)
	}
	return nil
}

// checkLatents checks the shape of given latents.
func checkLatents(r *Request, want ...int) error {
	if r.Latents == nil {
		return nil
	}
	if !slices.Equal(r.Latents.Shape.Dimensions, want) || r.Latents.Shape.DType != float32Type {
		return fmt.Errorf("latents: found %s, wanted float32 %v for this batch and size", r.Latents.Shape, want)
	}
	return nil
}

// checkStepNoise checks the noise that is given for the steps of a stochastic scheduler: one more leading axis, as long as the schedule draws.
func checkStepNoise(r *Request, s *scheduler.Schedule, latents ...int) error {
	if r.StepNoise == nil {
		return nil
	}
	draws := 0
	for i := range s.Calls {
		if s.Calls[i].NeedsNoise {
			draws++
		}
	}
	found := r.StepNoise.Shape
	if len(found.Dimensions) != len(latents)+1 || !slices.Equal(found.Dimensions[1:], latents) || found.DType != float32Type {
		return fmt.Errorf("step_noise: found %s, wanted float32 with one leading axis and then %v", found, latents)
	}
	if draws == 0 {
		r.warn("step_noise has no effect: this scheduler draws no noise between its steps")
	}
	if n := found.Dimensions[0]; n < draws {
		return fmt.Errorf("step_noise: holds noise for %d steps, but the schedule draws it %d times", n, draws)
	}
	return nil
}

// Describe lists the parameters of each picture of a request with its defaults filled in.
func Describe(of Pipeline, r *Request) []Params {
	var out []Params
	for k := range r.Batch() {
		p := Params{
			Height: r.Height, Width: r.Width, NumInferenceSteps: cmp.Or(len(r.Sigmas), len(r.Timesteps), r.NumInferenceSteps),
			GuidanceScale: *r.GuidanceScale, Scheduler: of.Scheduler(), Pipeline: of.Class(), Extra: of.Extra(r, k),
		}
		for name, given := range map[string][]float64{"sigmas": r.Sigmas, "timesteps": r.Timesteps} {
			if len(given) > 0 {
				if p.Extra == nil {
					p.Extra = map[string]any{}
				}
				p.Extra[name] = given
			}
		}
		p.Prompt, _ = textFor(r.Prompt, k/r.NumImagesPerPrompt)
		p.NegativePrompt, _ = textFor(r.NegativePrompt, k/r.NumImagesPerPrompt)
		if r.Latents == nil {
			p.Seed = ptr(r.Seed + uint64(k))
		}
		out = append(out, p)
	}
	return out
}

// warnUnguided warns of arguments that have no effect without guidance.
func warnUnguided(r *Request) {
	if len(r.NegativePrompt) > 0 {
		r.warn("negative_prompt has no effect: guidance_scale is %g; give one above 1", *r.GuidanceScale)
	}
	if r.GuidanceRescale > 0 {
		r.warn("guidance_rescale has no effect: guidance_scale is %g; give one above 1", *r.GuidanceScale)
	}
}
