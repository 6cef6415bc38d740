package precast

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"precast/graph"
	"precast/graph/checkpoint"
)

// Keys of the metadata of tensor files that precast writes.
const (
	metaKind     = "precast"          // "prompt_embeds" or "latents"
	metaPipeline = "precast.pipeline" // the pipeline's class
	metaPrompts  = "precast.prompts"  // JSON: what was encoded
	metaParams   = "precast.params"   // JSON: []Params
)

// WriteEmbeds writes embeddings as a safetensors file, with the texts that they were made from.
func (p *Pipeline) WriteEmbeds(w io.Writer, e Embeds, req *Request) error {
	prompts, err := json.Marshal(req.Prompt)
	if err != nil {
		return err
	}
	return writeTensors(w, e, map[string]string{metaKind: "prompt_embeds", metaPipeline: p.Class(), metaPrompts: string(prompts)})
}

// ReadEmbeds reads embeddings that WriteEmbeds wrote, or another program under the names of encode_prompt's results, and the texts that they were
// made from, where the file has them. Those of another pipeline class are refused.
func (p *Pipeline) ReadEmbeds(path string) (Embeds, []string, error) {
	all, meta, err := readTensors(path)
	if err != nil {
		return nil, nil, userErrorf("prompt-embeds: %w", err)
	}
	if class, ok := meta[metaPipeline]; ok && class != p.Class() {
		return nil, nil, userErrorf("prompt-embeds: %s was written for a %s, and this is a %s; encode the prompt with this model", path, class, p.Class())
	}
	if _, ok := all["prompt_embeds"]; !ok {
		return nil, nil, userErrorf("prompt-embeds: %s has no tensor prompt_embeds, found %v; write it with --save-prompt-embeds", path, slices.Sorted(maps.Keys(all)))
	}
	for name, t := range all {
		wide, err := convertTensor(t, shapes.Make(dtypes.Float32, t.Shape.Dimensions...))
		if err != nil {
			return nil, nil, userErrorf("prompt-embeds: %s: tensor %q: %w", path, name, err)
		}
		all[name] = wide
	}
	var prompts []string
	if text, ok := meta[metaPrompts]; ok {
		if err := json.Unmarshal([]byte(text), &prompts); err != nil {
			return nil, nil, userErrorf("prompt-embeds: %s: its metadata %s is not a JSON list of texts: %w", path, metaPrompts, err)
		}
	}
	return all, prompts, nil
}

// WriteLatents writes final latents as a safetensors file, with the parameters that made them.
func (p *Pipeline) WriteLatents(w io.Writer, latents *HostTensor, params []Params) error {
	text, err := json.Marshal(params)
	if err != nil {
		return err
	}
	return writeTensors(w, map[string]HostTensor{"latents": *latents}, map[string]string{metaKind: "latents", metaPipeline: p.Class(), metaParams: string(text)})
}

// ReadLatents reads final latents, FILE.safetensors[:TENSOR], and the parameters of the pictures that they are of, where the file has them.
func (p *Pipeline) ReadLatents(spec string) (*HostTensor, []Params, error) {
	t, meta, err := readTensor(spec)
	if err != nil {
		return nil, nil, userErrorf("latents: %w", err)
	}
	if t.Shape.IsScalar() {
		return nil, nil, userErrorf("latents: %s holds one number without axes, wanted a tensor whose first axis counts pictures; name a file that --output-type latent wrote", spec)
	}
	if class, ok := meta[metaPipeline]; ok && class != p.Class() {
		return nil, nil, userErrorf("latents: %s was written for a %s, and this is a %s", spec, class, p.Class())
	}
	var params []Params
	if text, ok := meta[metaParams]; ok {
		if err := json.Unmarshal([]byte(text), &params); err != nil {
			return nil, nil, userErrorf("latents: %s: its metadata %s is broken: %w", spec, metaParams, err)
		}
	}
	return t, params, nil
}

// WriteTensors writes tensors by name as a safetensors file.
func WriteTensors(w io.Writer, all map[string]HostTensor) error { return writeTensors(w, all, nil) }

func writeTensors(w io.Writer, all map[string]HostTensor, meta map[string]string) error {
	return checkpoint.Write(w, tensorItems(all), meta)
}

// tensorItems are tensors as a safetensors file has them.
func tensorItems(all map[string]HostTensor) []checkpoint.Item {
	var items []checkpoint.Item
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t := all[name]
		items = append(items, checkpoint.Item{Key: name, DType: t.Shape.DType, Shape: t.Shape.Dimensions, Data: t.Data})
	}
	return items
}

// ReadTensors reads all tensors of a safetensors file by name, each in the dtype that it is stored in.
func ReadTensors(path string) (map[string]HostTensor, error) {
	all, _, err := readTensors(path)
	return all, err
}

func readTensors(path string) (map[string]HostTensor, map[string]string, error) {
	f, err := checkpoint.OpenFile(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	all := map[string]HostTensor{}
	for name, t := range f.Tensors() {
		all[name] = HostTensor{Shape: shapes.Make(t.DType, t.Shape...), Data: slices.Clone(t.Bytes())}
	}
	return all, f.Metadata(), nil
}

// convertTensor gives a tensor the dtype of want; its dimensions must be those of want. Floats become floats and integers integers.
func convertTensor(t HostTensor, want graph.Shape) (HostTensor, error) {
	found := t.Shape
	if !slices.Equal(found.Dimensions, want.Dimensions) || found.DType.IsFloat() != want.DType.IsFloat() {
		return t, fmt.Errorf("found %s, wanted %s", found, want)
	}
	if found.DType == want.DType {
		return t, nil
	}
	out := HostTensor{Shape: want, Data: make([]byte, graph.ByteSize(want))}
	if found.DType == dtypes.Int64 && want.DType == dtypes.Int32 {
		for i := range found.Size() {
			v := int64(binary.LittleEndian.Uint64(t.Data[8*i:]))
			if v != int64(int32(v)) {
				return t, fmt.Errorf("element %d is %d, which no %s holds", i, v, want.DType)
			}
			binary.LittleEndian.PutUint32(out.Data[4*i:], uint32(int32(v)))
		}
		return out, nil
	}
	if err := checkpoint.ConvertBytes(out.Data, want.DType, t.Data, found.DType); err != nil {
		return t, fmt.Errorf("found %s, wanted %s: %w", found, want, err)
	}
	return out, nil
}
