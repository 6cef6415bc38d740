package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// weightSet is one complete set of weight files in a component's folder: one file, or an index that names several.
type weightSet struct {
	prefix  string // "model" (transformers) or "diffusion_pytorch_model" (diffusers)
	variant string // "" for the plain set
	file    string // the safetensors file or the index
	sharded bool
}

var (
	singleName = regexp.MustCompile(`^(diffusion_pytorch_model|model)(?:\.([A-Za-z0-9_]+))?\.safetensors$`)
	// The variant stands before ".json" in files of today and before ".safetensors" in older ones.
	indexFileName = regexp.MustCompile(`^(diffusion_pytorch_model|model)(?:\.([A-Za-z0-9_]+))?\.safetensors\.index(?:\.([A-Za-z0-9_]+))?\.json$`)
	shardName     = regexp.MustCompile(`-\d{5}-of-\d{5}(\.[A-Za-z0-9_]+)?\.safetensors$`)
	foreignName   = regexp.MustCompile(`\.(bin|bin\.index\.json|ckpt|pt|pth|msgpack|gguf|h5|onnx|flashpack)$`)
)

// weightSets finds the sets among a folder's file names, in the order they are preferred: transformers takes one file over an
// index, diffusers an index over one file.
func weightSets(names []string) []weightSet {
	var sets []weightSet
	for _, n := range names {
		if m := singleName.FindStringSubmatch(n); m != nil {
			sets = append(sets, weightSet{m[1], m[2], n, false})
		} else if m := indexFileName.FindStringSubmatch(n); m != nil {
			sets = append(sets, weightSet{m[1], cmp.Or(m[3], m[2]), n, true})
		}
	}
	rank := func(w weightSet) int {
		if w.sharded == (w.prefix == "diffusion_pytorch_model") {
			return 0
		}
		return 1
	}
	slices.SortFunc(sets, func(a, b weightSet) int {
		return cmp.Or(cmp.Compare(a.variant, b.variant), cmp.Compare(a.prefix, b.prefix), cmp.Compare(rank(a), rank(b)), cmp.Compare(a.file, b.file))
	})
	return sets
}

// readNames lists the names in a folder, sorted.
func readNames(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, FileError(dir, err)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

// pickWeights picks the sets of one variant among a folder's names, the preferred first: those of the variant that is asked for, else the
// plain ones, else those of the only variant. Sets is empty where there is nothing to pick, and variants lists what there is.
func pickWeights(names []string, variant string) (sets []weightSet, variants []string) {
	byVariant := map[string][]weightSet{}
	for _, w := range weightSets(names) {
		if byVariant[w.variant] == nil && w.variant != "" {
			variants = append(variants, w.variant)
		}
		byVariant[w.variant] = append(byVariant[w.variant], w)
	}
	switch {
	case variant != "" && byVariant[variant] != nil:
		return byVariant[variant], variants
	case byVariant[""] != nil:
		return byVariant[""], variants
	case len(variants) == 1:
		return byVariant[variants[0]], variants
	}
	return nil, variants
}

// chooseWeights picks the set to read and notes where that was a choice.
func (c *Component) chooseWeights() (weightSet, error) {
	if c.ck.configs != nil {
		return weightSet{}, c.ck.errNoWeights()
	}
	names, err := readNames(c.dir)
	if err != nil {
		return weightSet{}, err
	}
	found, variants := pickWeights(names, c.variant)
	if len(found) == 0 {
		if len(variants) > 1 {
			return weightSet{}, fmt.Errorf("%s: found weights of the variants %s and no plain ones; choose one of them", c.dir, strings.Join(variants, ", "))
		}
		return weightSet{}, c.noWeights(names)
	}
	switch got := found[0].variant; {
	case c.variant != "" && got == "":
		c.ck.Note("%s: found no weights of variant %q, so %s is read", c.dir, c.variant, found[0].file)
	case got != c.variant:
		c.ck.Note("%s: found only weights of variant %q, so %s is read", c.dir, got, found[0].file)
	}
	if len(found) > 1 {
		c.ck.Note("%s: found %s and %s; the first is read", c.dir, found[0].file, found[1].file)
	}
	return found[0], nil
}

// noWeights says what the folder holds instead of safetensors weights.
func (c *Component) noWeights(names []string) error {
	want := "model.safetensors or model.safetensors.index.json"
	if c.Library == "diffusers" {
		want = "diffusion_pytorch_model.safetensors or diffusion_pytorch_model.safetensors.index.json"
	}
	var other string
	for _, n := range names {
		switch {
		case shardName.MatchString(n):
			return fmt.Errorf("%s: found the shard %s but no index, wanted %s", c.dir, n, want)
		case foreignName.MatchString(n):
			return fmt.Errorf("%s: only safetensors is read; found %s, wanted %s", c.dir, filepath.Join(c.dir, n), want)
		case strings.HasSuffix(n, ".safetensors"):
			other = n
		}
	}
	if other != "" {
		return fmt.Errorf("%s: found %s, wanted %s", c.dir, other, want)
	}
	return fmt.Errorf("%s: found no weights of component %q (%s), wanted %s", c.dir, c.Name, c.Class, want)
}

// openWeights opens the component's weight files and joins their tensors. On an error nothing stays open.
func (c *Component) openWeights() (files []*File, tensors map[string]Tensor, err error) {
	set, err := c.chooseWeights()
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			for _, f := range files {
				f.Close()
			}
			files = nil
		}
	}()
	path := filepath.Join(c.dir, set.file)
	if !set.sharded {
		f, err := OpenFile(path)
		if err != nil {
			return nil, nil, err
		}
		return []*File{f}, f.tensors, nil
	}
	keys, weightMap, err := readIndex(path)
	if err != nil {
		return nil, nil, err
	}
	var errs []error
	for _, name := range slices.Compact(slices.Sorted(maps.Values(weightMap))) {
		f, err := c.openShard(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("%w (named by %s)", err, path))
			continue
		}
		files = append(files, f)
	}
	if len(errs) > 0 {
		return files, nil, errors.Join(errs...)
	}
	tensors, err = c.joinShards(path, keys, weightMap, files)
	return files, tensors, err
}

// readIndex reads a *.safetensors.index.json: the keys in its order and the shard of each. Absent metadata is fine. A shard's name
// must be that of a safetensors file beside the index.
func readIndex(path string) (keys []string, weightMap map[string]string, err error) {
	index, err := ReadConfig(path)
	if err != nil {
		return nil, nil, err
	}
	m := index.Object("weight_map")
	if m == nil {
		if index.Err() == nil {
			index.Problem("weight_map", "found nothing, wanted an object of tensor keys and file names")
		}
		return nil, nil, index.Err()
	}
	weightMap = map[string]string{}
	for _, key := range m.Keys() {
		name := m.String(key, "")
		switch {
		case name == "":
			m.Problem(key, "found no file name, wanted one in the folder of the index")
		case name != filepath.Base(name) || strings.ContainsAny(name, `/\`) || name == "." || name == "..":
			m.Problem(key, "found %q, wanted the name of a file in the folder of the index, without a path", name)
		case !strings.HasSuffix(name, ".safetensors"):
			m.Problem(key, "found %q, wanted a safetensors file", name)
		}
		weightMap[key] = name
	}
	if len(weightMap) == 0 {
		m.Problem("", "found an empty object, wanted tensor keys and file names")
	}
	return m.Keys(), weightMap, index.Err()
}

// openShard opens a file that an index names. A symbolic link may lead to another file of the checkpoint or into the blobs of the
// hub's cache that the checkpoint is a snapshot of, where such links are the rule; anywhere else it is refused, as a path is.
func (c *Component) openShard(name string) (*File, error) {
	path := filepath.Join(c.dir, name)
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, FileError(path, err)
	}
	inside := false
	for _, dir := range []string{c.dir, c.ck.dir, filepath.Join(c.ck.dir, "..", "..", "blobs")} {
		root, err := filepath.EvalSymlinks(dir)
		if err != nil {
			continue
		}
		if rel, err := filepath.Rel(root, real); err == nil && filepath.IsLocal(rel) {
			inside = true
		}
	}
	if !inside {
		return nil, fmt.Errorf("%s: found a symbolic link to %s, wanted a file inside the checkpoint", path, real)
	}
	return OpenFile(path)
}

// joinShards makes one table of the shards' tensors. Each key of the index must be in the shard it names, and in no other.
func (c *Component) joinShards(index string, keys []string, weightMap map[string]string, files []*File) (map[string]Tensor, error) {
	var bad []string
	tensors := make(map[string]Tensor, len(weightMap))
	unlisted := 0
	for _, f := range files {
		for _, key := range f.keys {
			t := f.tensors[key]
			if other, twice := tensors[key]; twice {
				bad = append(bad, fmt.Sprintf("%s: tensor %q is also in %s", f.path, key, other.File.path))
				continue
			}
			if weightMap[key] == "" {
				unlisted++
			}
			tensors[key] = t
		}
	}
	for _, key := range keys {
		name := weightMap[key]
		switch t, ok := tensors[key]; {
		case !ok:
			bad = append(bad, fmt.Sprintf("%s: weight_map.%s: %s has no such tensor", index, key, name))
		case filepath.Base(t.File.path) != name:
			bad = append(bad, fmt.Sprintf("%s: weight_map.%s: found %s, but the tensor is in %s", index, key, name, filepath.Base(t.File.path)))
		}
	}
	if len(bad) > 0 {
		return nil, errors.New(strings.Join(bad, "\n"))
	}
	if unlisted > 0 {
		c.ck.Note("%s: the shards hold %d tensors that the index does not list; they are read too", index, unlisted)
	}
	return tensors, nil
}
