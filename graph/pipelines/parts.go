package pipelines

import (
	"fmt"
	"slices"

	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/models/autoencoderkl"
	"precast/graph/scheduler"
	"precast/graph/tokenizer"
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

// unscale takes latents [B, C, h, w] to the scale of the autoencoder and splits them by picture, in the dtype of the decoder.
func unscale(x *ml.Node, c autoencoderkl.Config, dtype graph.DType) []*ml.Node {
	dims := x.Shape().Dimensions
	if len(c.LatentsMean) > 0 && len(c.LatentsStd) > 0 {
		std := ml.Reshape(ml.Const(x.Graph(), toFloat32(c.LatentsStd)), 1, dims[1], 1, 1)
		mean := ml.Reshape(ml.Const(x.Graph(), toFloat32(c.LatentsMean)), 1, dims[1], 1, 1)
		x = ml.Add(ml.DivScalar(ml.Mul(x, ml.BroadcastToShape(std, x.Shape())), c.ScalingFactor), ml.BroadcastToShape(mean, x.Shape()))
	} else {
		x = ml.DivScalar(x, c.ScalingFactor)
		if c.ShiftFactor != 0 {
			x = ml.AddScalar(x, c.ShiftFactor)
		}
	}
	x = ml.ConvertDType(x, dtype)
	var out []*ml.Node
	for k := range dims[0] {
		out = append(out, ml.Slice(x, ml.AxisRange(k, k+1), ml.AxisRange(), ml.AxisRange(), ml.AxisRange()))
	}
	return out
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
	if n := found.Dimensions[0]; n < draws {
		return fmt.Errorf("step_noise: holds noise for %d steps, but the schedule draws it %d times", n, draws)
	}
	return nil
}

// Describe lists the parameters of each picture.
func Describe(of Pipeline, r *Request) []Params {
	var out []Params
	for k := range r.Batch() {
		p := Params{
			Height: r.Height, Width: r.Width, NumInferenceSteps: r.NumInferenceSteps,
			GuidanceScale: *r.GuidanceScale, Scheduler: of.Scheduler(), Pipeline: of.Class(), Extra: of.Extra(r, k),
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
