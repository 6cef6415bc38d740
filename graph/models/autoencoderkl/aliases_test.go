package autoencoderkl

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/gobackend"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph/checkpoint"
	"precast/graph/trace"
)

// TestAliases writes an autoencoder's weights under the new and the old names, those once as matrices and once as 1x1 convolutions, and
// matches what the networks ask for: each finds the same bytes.
func TestAliases(t *testing.T) {
	cfg, err := parse(t, `{"block_out_channels": [8], "norm_num_groups": 4}`)
	if err != nil {
		t.Fatal(err)
	}
	want := wants(NewDecoder(cfg, Sizes{Batch: 1, Height: 2, Width: 2, DType: dtypes.Float32}), NewEncoder(cfg, Sizes{Batch: 1, Height: 2, Width: 2, DType: dtypes.Float32}))
	old := strings.NewReplacer(".to_q.", ".query.", ".to_k.", ".key.", ".to_v.", ".value.", ".to_out.0.", ".proj_attn.")
	for name, stored := range map[string]func(w checkpoint.Want) (string, []int){
		"new": func(w checkpoint.Want) (string, []int) { return w.Key, w.Shape },
		"old": func(w checkpoint.Want) (string, []int) { return old.Replace(w.Key), w.Shape },
		"old, convolutions": func(w checkpoint.Want) (string, []int) {
			if key := old.Replace(w.Key); key != w.Key && len(w.Shape) == 2 {
				return key, append(slices.Clone(w.Shape), 1, 1)
			}
			return old.Replace(w.Key), w.Shape
		},
	} {
		t.Run(name, func(t *testing.T) {
			renamed := 0
			var items []checkpoint.Item
			for _, w := range want {
				key, shape := stored(w)
				if key != w.Key {
					renamed++
				}
				items = append(items, checkpoint.Item{Key: key, DType: dtypes.Float32, Shape: shape, Data: content(w)})
			}
			if wanted := 16; name != "new" && renamed != wanted {
				t.Errorf("the case renames %d weights, wanted %d", renamed, wanted)
			}
			got, err := openComponent(t, items).Match(want, Aliases)
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range want {
				data, err := got[w.Key].Copy()
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(data, content(w)) || !slices.Equal(got[w.Key].Shape, w.Shape) {
					t.Errorf("%s is bound to %v", w.Key, got[w.Key])
				}
			}
		})
	}
}

// content is data that differs between keys.
func content(w checkpoint.Want) []byte {
	size := 4
	for _, d := range w.Shape {
		size *= d
	}
	return bytes.Repeat([]byte(w.Key), size/len(w.Key)+1)[:size]
}

// wants lists the weights that the networks ask for, each once.
func wants(networks ...trace.Network) []checkpoint.Want {
	var list []checkpoint.Want
	for _, n := range networks {
		g := ml.NewGraph(gobackend.GetBackend(), n.Name)
		in := map[string]*ml.Node{}
		for _, i := range n.Inputs {
			in[i.Name] = ml.Parameter(g, i.Name, i.Shape)
		}
		n.Build(trace.NewCtx(g, n.DType, nil), in)
		for i := range g.NumParameters() {
			p := g.GetParameterByHandle(ml.ParameterHandle(i))
			if key, ok := strings.CutPrefix(p.GetParameterName(), trace.WeightPrefix); ok {
				list = append(list, checkpoint.Want{Key: key, Shape: p.Shape().Dimensions, DType: p.DType()})
			}
		}
		g.Finalize()
	}
	return list
}

// openComponent writes a checkpoint folder with one component and opens it.
func openComponent(t *testing.T, items []checkpoint.Item) *checkpoint.Component {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "vae"), 0o777); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"model_index.json": `{"_class_name": "StableDiffusionPipeline", "vae": ["diffusers", "AutoencoderKL"]}`,
		"vae/config.json":  `{"_class_name": "AutoencoderKL"}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, filepath.FromSlash(name)), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if err := checkpoint.WriteFile(filepath.Join(dir, "vae", "diffusion_pytorch_model.safetensors"), items, nil); err != nil {
		t.Fatal(err)
	}
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ck.Close() })
	c, err := ck.Component("vae")
	if err != nil {
		t.Fatal(err)
	}
	return c
}
