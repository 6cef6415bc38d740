package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// indexName is the file that makes a folder a checkpoint.
const indexName = "model_index.json"

// Options are choices about how a checkpoint is read.
type Options struct {
	// Variant selects weight files with that tag ("fp16" for model.fp16.safetensors). A component without such files is read
	// from its plain ones, with a note; a variant that no component has is an error.
	Variant string
}

// Checkpoint is an open checkpoint folder. Its methods are safe for concurrent use, Close excepted.
type Checkpoint struct {
	dir        string
	configs    fs.FS // nil: the files are in dir
	index      *Config
	class      string
	components map[string]*Component
	names      []string

	mu    sync.Mutex
	notes []string
}

// Open reads the model_index.json of the checkpoint folder dir. Configs are read by Component.Config and the headers of weight
// files by Component.Tensors, so a component that is never asked for may be incomplete.
func Open(dir string) (*Checkpoint, error) { return OpenWith(dir, Options{}) }

// OpenWith is Open with options.
func OpenWith(dir string, o Options) (*Checkpoint, error) {
	ck, err := OpenIndex(dir, o.Variant)
	if err != nil {
		return nil, err
	}
	if o.Variant != "" {
		if err := ck.checkVariant(o.Variant); err != nil {
			return nil, err
		}
	}
	return ck, nil
}

// OpenIndex is OpenWith for a folder that may hold model_index.json alone as yet: whether there are weights of the variant is not looked at.
func OpenIndex(dir, variant string) (*Checkpoint, error) {
	if err := checkDir(dir); err != nil {
		return nil, err
	}
	index, err := ReadConfig(filepath.Join(dir, indexName))
	if err != nil {
		return nil, err
	}
	return open(dir, nil, index, variant)
}

// OpenConfigs opens a checkpoint that has configs only, no weights and no tokenizers: fsys has its files where a folder would have them,
// and messages name the folder as name.
func OpenConfigs(fsys fs.FS, name string) (*Checkpoint, error) {
	data, err := fs.ReadFile(fsys, indexName)
	if err != nil {
		return nil, FileError(filepath.Join(name, indexName), err)
	}
	index, err := ParseConfig(filepath.Join(name, indexName), data)
	if err != nil {
		return nil, err
	}
	return open(name, fsys, index, "")
}

// errNoWeights is what stands in for the weights of a checkpoint of configs.
func (ck *Checkpoint) errNoWeights() error {
	return fmt.Errorf("%s: has configs only, no weights and no tokenizers; it can be traced and lowered, not run", ck.dir)
}

func open(dir string, configs fs.FS, index *Config, variant string) (*Checkpoint, error) {
	ck := &Checkpoint{dir: dir, configs: configs, index: index, components: map[string]*Component{}}
	if ck.class = index.String("_class_name", ""); ck.class == "" {
		index.Problem("_class_name", "found nothing, wanted the pipeline's class")
	}
	for _, key := range index.Keys() {
		library, class, ok := componentEntry(index, key)
		if !ok {
			continue
		}
		if key == "" || key == "." || key == ".." || strings.ContainsAny(key, `/\`) {
			index.Problem(key, "found a component with this name, wanted a name that is a folder beside %s", indexName)
			continue
		}
		ck.names = append(ck.names, key)
		ck.components[key] = &Component{Name: key, Library: library, Class: class, ck: ck, dir: filepath.Join(dir, key), variant: variant}
	}
	if err := index.Err(); err != nil {
		return nil, err
	}
	slices.Sort(ck.names)
	return ck, nil
}

// componentEntry reads a field of model_index.json as [library, class]; ok is false for an absent component (null, [null, null])
// and for fields that describe no component but a setting of the pipeline.
func componentEntry(index *Config, key string) (library, class string, ok bool) {
	raw := index.Raw(key)
	var parts []any
	if len(raw) == 0 || raw[0] != '[' || json.Unmarshal(raw, &parts) != nil || len(parts) != 2 {
		return "", "", false
	}
	library, isString := parts[0].(string)
	if !isString && parts[0] != nil {
		return "", "", false
	}
	class, isString = parts[1].(string)
	switch {
	case parts[0] == nil && parts[1] == nil:
		return "", "", false
	case !isString || class == "":
		index.Problem(key, "found %s, wanted [library, class] or [null, null]", describe(raw))
	}
	return library, class, true
}

// checkDir says what dir is when it is not a checkpoint folder.
func checkDir(dir string) error {
	st, err := os.Stat(dir)
	if err != nil {
		return FileError(dir, err)
	}
	const layout = "wanted a checkpoint folder in the layout of diffusers, with a " + indexName
	if !st.IsDir() {
		switch strings.ToLower(filepath.Ext(dir)) {
		case ".safetensors", ".ckpt", ".pt", ".pth", ".bin", ".gguf", ".sft":
			return fmt.Errorf("%s: found a file, %s: single-file checkpoints are not read; load it with from_single_file of diffusers and write it with save_pretrained", dir, layout)
		}
		if filepath.Base(dir) == indexName {
			return fmt.Errorf("%s: found a file, %s: give the folder that holds it", dir, layout)
		}
		return fmt.Errorf("%s: found a %s, %s", dir, kindOrFile(st.Mode()), layout)
	}
	if _, err := os.Lstat(filepath.Join(dir, indexName)); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	missing := fmt.Sprintf("%s: found no %s, %s", dir, indexName, layout)
	for _, name := range []string{"config.json", "scheduler_config.json", "tokenizer_config.json"} {
		if c, err := ReadConfig(filepath.Join(dir, name)); err == nil {
			what := "one component"
			if class := c.Class(); class != "" {
				what = fmt.Sprintf("one component (%s)", class)
			}
			return fmt.Errorf("%s: this is the folder of %s; give the checkpoint folder above it", missing, what)
		}
	}
	if names, _ := filepath.Glob(filepath.Join(escapeGlob(dir), "*", indexName)); len(names) > 0 {
		return fmt.Errorf("%s: there is one in %s", missing, filepath.Dir(names[0]))
	}
	for _, ext := range []string{"*.safetensors", "*.ckpt", "*.gguf"} {
		if names, _ := filepath.Glob(filepath.Join(escapeGlob(dir), ext)); len(names) > 0 {
			return fmt.Errorf("%s: found %s; single-file checkpoints are not read", missing, names[0])
		}
	}
	return errors.New(missing)
}

func kindOrFile(mode fs.FileMode) string {
	if mode.IsRegular() {
		return "file"
	}
	return fileKind(mode)
}

// escapeGlob makes path match itself in a pattern of filepath.Glob.
func escapeGlob(path string) string {
	return strings.NewReplacer(`*`, `[*]`, `?`, `[?]`, `[`, `[[]`).Replace(path)
}

// checkVariant makes sure that some component has files of that variant.
func (ck *Checkpoint) checkVariant(variant string) error {
	var found []string
	for _, name := range ck.names {
		files, err := readNames(ck.components[name].dir)
		if err != nil {
			continue
		}
		for _, w := range weightSets(files) {
			if w.variant == variant {
				return nil
			}
			if w.variant != "" && !slices.Contains(found, w.variant) {
				found = append(found, w.variant)
			}
		}
	}
	if len(found) == 0 {
		return fmt.Errorf("%s: found no weights of variant %q; its components have no variants", ck.dir, variant)
	}
	slices.Sort(found)
	return fmt.Errorf("%s: found no weights of variant %q; there are %s", ck.dir, variant, strings.Join(found, ", "))
}

// Dir returns the folder as it was given to Open.
func (ck *Checkpoint) Dir() string { return ck.dir }

// Path returns the path of a file or folder inside the checkpoint, for messages.
func (ck *Checkpoint) Path(elem ...string) string {
	return filepath.Join(append([]string{ck.dir}, elem...)...)
}

// Class returns the pipeline's class, "_class_name" of model_index.json.
func (ck *Checkpoint) Class() string { return ck.class }

// Index returns model_index.json, whose fields beside the components are settings of the pipeline ("boundary_ratio").
func (ck *Checkpoint) Index() *Config { return ck.index }

// Components returns the names of the components that are there, sorted. Those given as null are not.
func (ck *Checkpoint) Components() []string { return slices.Clone(ck.names) }

// Networks lists the names of the components that have weights: neither schedulers nor tokenizers, feature extractors and the like.
func (ck *Checkpoint) Networks() []string {
	return slices.DeleteFunc(ck.Components(), func(name string) bool {
		c := ck.components[name]
		return c.isTokenizer() || c.configName() != "config.json"
	})
}

// Has tells whether model_index.json lists the component with a class.
func (ck *Checkpoint) Has(name string) bool { return ck.components[name] != nil }

// Component returns the component of that name. It is an error when model_index.json does not list it or its folder is missing.
func (ck *Checkpoint) Component(name string) (*Component, error) {
	c := ck.components[name]
	if c == nil {
		return nil, fmt.Errorf("%s: %s: found no such component, wanted [library, class]; there are %s",
			ck.Path(indexName), name, strings.Join(ck.names, ", "))
	}
	if ck.configs != nil {
		if _, err := fs.Stat(ck.configs, name); err != nil {
			return nil, fmt.Errorf("%s: component %q: %w", c.dir, name, ck.errNoWeights())
		}
		return c, nil
	}
	st, err := os.Stat(c.dir)
	if err != nil {
		return nil, fmt.Errorf("%w; %s lists component %q (%s)", FileError(c.dir, err), indexName, name, c.Class)
	}
	if !st.IsDir() {
		return nil, fmt.Errorf("%s: found a %s, wanted the folder of component %q (%s)", c.dir, kindOrFile(st.Mode()), name, c.Class)
	}
	return c, nil
}

// Check reads the configs and weight headers of the named components and returns all faults found, one a line, so that a broken
// checkpoint is found before any work on it.
func (ck *Checkpoint) Check(components ...string) error {
	var errs []error
	for _, name := range components {
		c, err := ck.Component(name)
		if err == nil {
			_, err = c.Config()
		}
		if err == nil {
			_, err = c.Tensors()
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Note records something that was read otherwise than it stands, for the user to know. Repeats are dropped.
func (ck *Checkpoint) Note(format string, args ...any) {
	n := fmt.Sprintf(format, args...)
	ck.mu.Lock()
	defer ck.mu.Unlock()
	if !slices.Contains(ck.notes, n) {
		ck.notes = append(ck.notes, n)
	}
}

// Notes returns what was recorded so far.
func (ck *Checkpoint) Notes() []string {
	ck.mu.Lock()
	defer ck.mu.Unlock()
	return slices.Clone(ck.notes)
}

// Close unmaps all weight files. Views of tensors are invalid from then on.
func (ck *Checkpoint) Close() error {
	var errs []error
	for _, name := range ck.names {
		errs = append(errs, ck.components[name].close())
	}
	return errors.Join(errs...)
}
