package checkpoint

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gomlx/compute/dtypes"
)

// Want is a tensor that a network needs.
type Want struct {
	Key   string
	Shape []int
	// DType is the element type the network computes with; the stored tensor may have another that converts to it.
	DType dtypes.DType
}

// Alias is another spelling of keys in old or foreign files. A wanted key that the file lacks and that Pattern, a regular
// expression, matches is looked up again as Stored, in which $1 stands for the first group and so on (${1} before a letter, digit or _):
//
//	{`^encoder\.embed_tokens\.weight$`, "shared.weight"}
//	{`^(.+\.attentions\.\d+)\.to_q\.(weight|bias)$`, "$1.query.$2"}
//
// Through an alias a stored tensor may have further dimensions of size 1 at its end (a 1x1 convolution for a linear layer).
type Alias struct {
	Pattern string
	Stored  string
}

// Match finds the stored tensor of every wanted one and returns them by wanted key. A tensor found through an alias keeps its
// stored Key and has the wanted Shape. When something does not fit, the error lists all missing keys with the shape each should
// have, all tensors of another shape with both shapes, and all of a type that does not convert.
func (c *Component) Match(want []Want, aliases []Alias) (map[string]Tensor, error) {
	if err := c.open(); err != nil {
		return nil, err
	}
	patterns := make([]*regexp.Regexp, len(aliases))
	for i, a := range aliases {
		patterns[i] = regexp.MustCompile(a.Pattern)
	}
	bound := make(map[string]Tensor, len(want))
	var missing, shapes, types, renamed []string
	for _, w := range want {
		t, ok := c.weights.tensors[w.Key]
		aliased := false
		for i := 0; !ok && i < len(aliases); i++ {
			if !patterns[i].MatchString(w.Key) {
				continue
			}
			t, ok = c.weights.tensors[patterns[i].ReplaceAllString(w.Key, aliases[i].Stored)]
			aliased = ok
		}
		switch {
		case !ok:
			missing = append(missing, fmt.Sprintf("missing tensor %q, wanted shape %s", w.Key, formatDims(w.Shape)))
			continue
		case !slices.Equal(t.Shape, w.Shape) && !(aliased && slices.Equal(trimOnes(t.Shape, len(w.Shape)), w.Shape)):
			shapes = append(shapes, fmt.Sprintf("tensor %q has shape %s in %s, but the config gives %s", t.Key, formatDims(t.Shape), t.File.path, formatDims(w.Shape)))
			continue
		case w.DType != dtypes.InvalidDType && converter(w.DType, t.DType) == nil:
			name, _, _ := dtypeName(t.DType)
			types = append(types, fmt.Sprintf("tensor %q is stored as %s in %s, which does not convert to %s", t.Key, name, t.File.path, w.DType))
			continue
		case isFloat(w.DType) && !isFloat(t.DType):
			// Packed and quantized weights are stored as integers; their values mean nothing without their scales.
			name, _, _ := dtypeName(t.DType)
			types = append(types, fmt.Sprintf("tensor %q is stored as %s in %s, wanted a floating-point type; quantized weights are not read", t.Key, name, t.File.path))
			continue
		}
		if aliased {
			renamed = append(renamed, fmt.Sprintf("%q for %q", t.Key, w.Key))
			t.Shape = slices.Clone(w.Shape)
		}
		bound[w.Key] = t
	}
	if bad := slices.Concat(missing, shapes, types); len(bad) > 0 {
		return nil, c.mismatch(bad, len(missing) == len(want))
	}
	if len(renamed) > 0 {
		c.ck.Note("%s: %d tensors are read under another spelling, such as %s", c.dir, len(renamed), renamed[0])
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.used == nil {
		c.used = map[string]bool{}
	}
	for _, t := range bound {
		c.used[t.Key] = true
	}
	return bound, nil
}

// isFloat tells whether d is a floating-point type that this package converts from.
func isFloat(d dtypes.DType) bool {
	return d.IsFloat() || d == dtypes.F8E4M3FN || d == dtypes.F8E5M2
}

// trimOnes cuts dimensions of size 1 off the end of dims down to rank.
func trimOnes(dims []int, rank int) []int {
	for len(dims) > rank && dims[len(dims)-1] == 1 {
		dims = dims[:len(dims)-1]
	}
	return dims
}

// mismatch words the error of Match, with a hint at the cause where the keys give one away.
func (c *Component) mismatch(bad []string, nothing bool) error {
	head := fmt.Sprintf("%s: the weights of component %q (%s) do not fit its config (%d faults):", c.dir, c.Name, c.Class, len(bad))
	hint := ""
	if nothing {
		for _, prefix := range []string{"model.diffusion_model.", "first_stage_model.", "cond_stage_model.", "conditioner.", "lora_", "net."} {
			for key := range c.weights.tensors {
				if strings.HasPrefix(key, prefix) {
					hint = fmt.Sprintf("\n  the file has keys like %q: this is not a component in the layout of diffusers", key)
				}
			}
		}
	}
	return errors.New(head + hint + "\n  " + strings.Join(bad, "\n  "))
}

// ignorable are stored tensors that no network reads: buffers that older versions of transformers wrote.
var ignorable = regexp.MustCompile(`(^|\.)(position_ids|rotary_emb\.inv_freq|num_batches_tracked)$`)

// Unused returns the stored keys that no Match has bound so far, sorted; buffers that old files carry are left out.
func (c *Component) Unused() ([]string, error) {
	if err := c.open(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for key := range c.weights.tensors {
		if !c.used[key] && !ignorable.MatchString(key) {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out, nil
}

// NonFinite returns the index of the first NaN or infinity among little-endian floats of the given type, -1 when there is none.
func NonFinite(data []byte, dtype dtypes.DType) int {
	// In these an exponent of all ones is NaN or infinity.
	switch dtype {
	case dtypes.Float32:
		return allOnes32(data, 0x7f800000)
	case dtypes.BFloat16:
		return allOnes16(data, 0x7f80)
	case dtypes.Float16:
		return allOnes16(data, 0x7c00)
	}
	load := loader(dtype)
	_, size, _ := dtypeName(dtype)
	if load == nil || !isFloat(dtype) {
		return -1
	}
	for i := 0; (int64(i)+1)*size <= int64(len(data)); i++ {
		if v := load(data[int64(i)*size:]); v-v != 0 {
			return i
		}
	}
	return -1
}

// allOnes32 returns the index of the first 32-bit element with all bits of the mask set, -1 when there is none.
func allOnes32(data []byte, mask uint32) int {
	for i := 0; i+4 <= len(data); i += 4 {
		if le.Uint32(data[i:])&mask == mask {
			return i / 4
		}
	}
	return -1
}

// allOnes16 is allOnes32 for elements of 16 bits.
func allOnes16(data []byte, mask uint16) int {
	for i := 0; i+2 <= len(data); i += 2 {
		if le.Uint16(data[i:])&mask == mask {
			return i / 2
		}
	}
	return -1
}
