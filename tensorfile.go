package precast

import (
	"fmt"
	"strings"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"precast/graph/checkpoint"
)

// splitTensorSpec splits FILE.safetensors[:TENSOR].
func splitTensorSpec(spec string) (path, name string, named bool) {
	if i := strings.LastIndex(spec, ".safetensors:"); i >= 0 {
		return spec[:i+len(".safetensors")], spec[i+len(".safetensors:"):], true
	}
	return spec, "", false
}

// ReadTensor reads FILE.safetensors[:TENSOR] as float32. Without a name the file must hold one tensor.
func ReadTensor(spec string) (*HostTensor, error) {
	t, _, err := readTensor(spec)
	return t, err
}

// readTensor is ReadTensor with the file's metadata.
func readTensor(spec string) (*HostTensor, map[string]string, error) {
	path, name, named := splitTensorSpec(spec)
	f, err := checkpoint.OpenFile(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if !named {
		keys := f.Keys()
		if len(keys) != 1 {
			return nil, nil, fmt.Errorf("%s holds %d tensors; name one: %s:TENSOR", path, len(keys), path)
		}
		name = keys[0]
	}
	t, ok := f.Tensor(name)
	if !ok {
		keys := f.Keys()
		more := ""
		if len(keys) > 8 {
			keys, more = keys[:8], " ..."
		}
		return nil, nil, fmt.Errorf("%s has no tensor %q; it has %s%s", path, name, strings.Join(keys, ", "), more)
	}
	out := &HostTensor{Shape: shapes.Make(dtypes.Float32, t.Shape...)}
	out.Data = make([]byte, 4*t.Len())
	if err := t.Convert(out.Data, dtypes.Float32); err != nil {
		return nil, nil, fmt.Errorf("%s: tensor %q: %w", path, name, err)
	}
	if i := checkpoint.NonFinite(out.Data, dtypes.Float32); i >= 0 {
		return nil, nil, fmt.Errorf("%s: tensor %q holds NaN or infinity at element %d", path, name, i)
	}
	return out, f.Metadata(), nil
}
