package pipelines

import (
	"context"
	"fmt"
	"slices"

	"precast/graph"
)

// What Request.GuidanceBatch takes.
const (
	guidanceBatchArgument = "guidance_batch"

	guidanceAuto = "auto"
	guidanceOne  = "one"
	guidanceTwo  = "two"
)

// guidanceBatch is the choice as Sizes has it.
func (r *Request) guidanceBatch() string {
	if r.GuidanceBatch == guidanceOne {
		return guidanceOne
	}
	return ""
}

// joins tells whether a step of that kind computes both halves of guidance in one batch.
func (s Sizes) joins(kind stepKind) bool { return s.GuidanceBatch == guidanceOne && kind != plain }

// denoiser are the sizes that the denoiser is compiled for: twice the batch where the halves are joined.
func (s Sizes) denoiser(kind stepKind) Sizes {
	if s.joins(kind) {
		s.Batch *= 2
	}
	return s
}

// stepKinds are the forms of the step program to make ready for a request of that kind: usual, with and without guidance, so that turning it on or off
// compiles nothing, and the kind where it is another. Where the halves are joined, another kind needs another denoiser anyway.
func (s Sizes) stepKinds(kind stepKind, usual ...stepKind) []stepKind {
	switch {
	case s.joins(kind):
		return []stepKind{kind}
	case slices.Contains(usual, kind):
		return usual
	}
	return append(usual, kind)
}

// join makes one batch of both conditions for p, the denoiser of twice the batch: the negative rows, then the positive ones, as diffusers' pipelines put them. A
// value that both share is written twice where p takes it a row a picture, and stays one where it does not. They do not change from step to step, so
// this is done once.
func (c *conditions) join(ctx context.Context, ex Executor, p *Program) error {
	for _, in := range p.Inputs {
		positive, given := c.positive[in.Name]
		if !given {
			continue // the latents and the timestep are each step's
		}
		negative, own := c.negative[in.Name]
		if !own {
			if positive.Shape().Equal(in.Shape) {
				continue
			}
			negative = positive
		}
		var rows []byte
		for _, half := range []Tensor{negative, positive} {
			b, err := half.Read(ctx)
			if err != nil {
				return err
			}
			rows = append(rows, b...)
		}
		if want := int(graph.ByteSize(in.Shape)); len(rows) != want {
			return fmt.Errorf("BUG: %s: %s: two of %s do not make %s", p.Name, in.Name, positive.Shape(), in.Shape)
		}
		pair, err := ex.Put(in.Shape, rows)
		if err != nil {
			return err
		}
		positive.Free()
		c.positive[in.Name] = pair
	}
	c.negative.free()
	c.negative, c.joined = nil, true
	return nil
}
