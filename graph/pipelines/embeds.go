package pipelines

import (
	"fmt"
	"maps"
	"slices"
)

// Embeds are what text encoders gave, by the names of encode_prompt's results in diffusers (prompt_embeds, pooled_prompt_embeds,
// negative_prompt_embeds ...): float32, and the first axis counts prompts.
type Embeds map[string]HostTensor

// rows is the number of prompts.
func (e Embeds) rows() int {
	if d := e["prompt_embeds"].Shape.Dimensions; len(d) > 0 {
		return d[0]
	}
	return 0
}

// row is prompt i's part of a tensor.
func (e Embeds) row(name string, i int) []float32 {
	t := e[name]
	v := float32s(t.Data)
	n := len(v) / t.Shape.Dimensions[0]
	return v[i*n : (i+1)*n]
}

// add appends one prompt's values; dims are without the axis of the prompts.
func (e Embeds) add(name string, v []float32, dims ...int) {
	t := e[name]
	rows := 0
	if len(t.Data) > 0 {
		rows = t.Shape.Dimensions[0]
	}
	e[name] = HostTensor{Shape: f32(append([]int{rows + 1}, dims...)...), Data: append(t.Data, float32Bytes(v)...)}
}

// record adds one prompt's values and shows them to the request's observer.
func (e Embeds) record(r *Request, name string, v []float32, dims ...int) {
	e.add(name, v, dims...)
	r.observe(name, hostFloats(v, append([]int{1}, dims...)...))
}

// conditions are what a denoiser is given besides the latents and the timestep, by its inputs' names. negative takes the place of those that differ
// in the negative prompt's call; it is nil without guidance.
type conditions struct {
	positive, negative tensors
	// joined tells that positive holds both, for a denoiser of twice the batch.
	joined bool
}

// newConditions uploads them: give does it for the prompts, and with the prefix "negative_" for the negative prompts where the kind guides.
func newConditions(kind stepKind, give func(to tensors, prefix string) error) (*conditions, error) {
	c := &conditions{positive: tensors{}}
	err := give(c.positive, "")
	if err == nil && kind != plain {
		c.negative = tensors{}
		err = give(c.negative, "negative_")
	}
	if err != nil {
		c.free()
		return nil, err
	}
	return c, nil
}

func (c *conditions) free() {
	c.positive.free()
	c.negative.free()
}

// give uploads embeddings as inputs of a component, in its dtype, a row a picture: names has the embedding of each input, to which prefix is added.
func (e Embeds) give(to tensors, ex Executor, o Options, component, prefix string, perPrompt int, names map[string]string) error {
	for input, name := range names {
		t := e[prefix+name]
		var rows []float32
		for i := range e.rows() {
			for range perPrompt {
				rows = append(rows, e.row(prefix+name, i)...)
			}
		}
		dims := append([]int{e.rows() * perPrompt}, t.Shape.Dimensions[1:]...)
		if err := to.put(ex, input, o.DTypeFor(component), rows, dims...); err != nil {
			return err
		}
	}
	return nil
}

// check compares given embeddings with the shapes that a pipeline wants, without the axis of the prompts; where it guides, those of the negative
// prompts have the same.
func (e Embeds) check(kind stepKind, embeds map[string][]int) error {
	if e == nil {
		return nil
	}
	want := maps.Clone(embeds)
	if kind != plain {
		for name, dims := range embeds {
			want["negative_"+name] = dims
		}
	}
	var errs []error
	rows := e.rows()
	if rows < 1 || rows > 1024 {
		errs = append(errs, fmt.Errorf("prompt_embeds: found %d prompts, wanted 1 to 1024", rows))
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		t, ok := e[name]
		if !ok {
			errs = append(errs, fmt.Errorf("prompt_embeds: %s is missing, found %v; save the embeddings with the guidance that they are used with", name, slices.Sorted(maps.Keys(e))))
			continue
		}
		d := t.Shape.Dimensions
		if t.Shape.DType != float32Type || len(d) == 0 || d[0] != rows || !slices.Equal(d[1:], want[name]) {
			errs = append(errs, fmt.Errorf("prompt_embeds: %s is %s, wanted float32 [%d prompts]%v; they belong to another pipeline or another max_sequence_length", name, t.Shape, rows, want[name]))
			continue
		}
		for i, v := range float32s(t.Data) {
			if v-v != 0 {
				errs = append(errs, fmt.Errorf("prompt_embeds: %s holds %v at %d, wanted finite numbers", name, v, i))
				break
			}
		}
	}
	return joinErrors(errs...)
}
