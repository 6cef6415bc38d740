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

// put uploads a tensor with a row a picture, in dtype.
func (e Embeds) put(ex Executor, o Options, component, name string, perPrompt int) (Tensor, error) {
	var rows [][]float32
	for i := range e[name].Shape.Dimensions[0] {
		rows = append(rows, e.row(name, i))
	}
	return batch(ex, rows, perPrompt, o.DTypeFor(component), e[name].Shape.Dimensions[1:]...)
}

// conditions uploads embeddings as the denoiser's inputs, a row a picture: names has the embedding of each input, to which prefix is added
// ("negative_").
func (e Embeds) conditions(ex Executor, o Options, component, prefix string, perPrompt int, names map[string]string) (tensors, error) {
	to := tensors{}
	for input, name := range names {
		t, err := e.put(ex, o, component, prefix+name, perPrompt)
		if err != nil {
			to.free()
			return nil, err
		}
		to[input] = t
	}
	return to, nil
}

// check compares given embeddings with the shapes that a pipeline wants, without the axis of the prompts; a -1 takes any length.
func (e Embeds) check(want map[string][]int) error {
	if e == nil {
		return nil
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
		fits := t.Shape.DType == float32Type && len(d) == len(want[name])+1 && d[0] == rows
		for i, w := range want[name] {
			fits = fits && (w == d[i+1] || w < 0 && d[i+1] > 0)
		}
		if !fits {
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
