package checkpoint

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Component is one entry of model_index.json: a network, a scheduler or a tokenizer, in a folder of its own.
type Component struct {
	// Name is the key in model_index.json and the folder's name ("text_encoder_2").
	Name string
	// Library and Class say what loads it ("transformers", "T5EncoderModel").
	Library, Class string

	ck      *Checkpoint
	dir     string
	variant string

	config struct {
		sync.Once
		data []byte
		err  error
	}
	weights struct {
		sync.Once
		files   []*File
		tensors map[string]Tensor
		err     error
	}
	mu   sync.Mutex
	used map[string]bool // stored keys that Match has bound
}

// Dir returns the component's folder.
func (c *Component) Dir() string { return c.dir }

// Checkpoint returns the checkpoint that the component is part of.
func (c *Component) Checkpoint() *Checkpoint { return c.ck }

// configName is the file that holds the component's config.
func (c *Component) configName() string {
	switch {
	case strings.HasSuffix(c.Class, "Scheduler"):
		return "scheduler_config.json"
	case strings.Contains(c.Class, "Tokenizer"):
		return "tokenizer_config.json"
	case strings.HasSuffix(c.Class, "ImageProcessor"), strings.HasSuffix(c.Class, "FeatureExtractor"):
		return "preprocessor_config.json"
	}
	return "config.json"
}

// Config parses the component's config: config.json, scheduler_config.json or tokenizer_config.json by its class. Each call
// returns a Config of its own. Quantized weights are refused here, by name.
func (c *Component) Config() (*Config, error) {
	path := filepath.Join(c.dir, c.configName())
	data, err := c.ConfigBytes()
	if err != nil {
		return nil, err
	}
	cfg, err := ParseConfig(path, data)
	if err != nil {
		return nil, err
	}
	if q := cfg.Raw("quantization_config"); q != nil {
		method := "unknown method"
		if o := cfg.Object("quantization_config"); o != nil {
			method = o.String("quant_method", method)
		}
		return nil, fmt.Errorf("%s: quantization_config: found weights quantized by %s, wanted plain ones; quantized checkpoints are not read", path, method)
	}
	return cfg, nil
}

// ConfigBytes returns the bytes of the component's config file, read once.
func (c *Component) ConfigBytes() ([]byte, error) {
	c.config.Do(func() {
		path := filepath.Join(c.dir, c.configName())
		if c.ck.configs != nil {
			if c.config.data, c.config.err = fs.ReadFile(c.ck.configs, c.Name+"/"+c.configName()); c.config.err != nil {
				c.config.err = FileError(path, c.config.err)
			}
		} else {
			c.config.data, c.config.err = ReadFile(path)
		}
		if c.config.err != nil {
			c.config.err = fmt.Errorf("%w; wanted the config of component %q (%s)", c.config.err, c.Name, c.Class)
		}
	})
	return c.config.data, c.config.err
}

// Tensors returns the component's stored tensors by key, whatever number of files they lie in. The first call opens the weight
// files and checks their headers and index; no tensor byte is read.
func (c *Component) Tensors() (map[string]Tensor, error) {
	if err := c.open(); err != nil {
		return nil, err
	}
	return maps.Clone(c.weights.tensors), nil
}

// Files returns the open weight files in the order of their names.
func (c *Component) Files() ([]*File, error) {
	if err := c.open(); err != nil {
		return nil, err
	}
	return slices.Clone(c.weights.files), nil
}

// HeaderDigest is a SHA-256 over the names and header digests of the component's weight files: two folders with the same digest
// hold the same tensors in the same places, not necessarily with the same values.
func (c *Component) HeaderDigest() ([sha256.Size]byte, error) {
	if err := c.open(); err != nil {
		return [sha256.Size]byte{}, err
	}
	h := sha256.New()
	for _, f := range c.weights.files {
		d := f.HeaderDigest()
		fmt.Fprintf(h, "%q %x %d\n", filepath.Base(f.path), d, f.size)
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

func (c *Component) open() error {
	c.weights.Do(func() {
		c.weights.files, c.weights.tensors, c.weights.err = c.openWeights()
	})
	return c.weights.err
}

func (c *Component) close() error {
	var first error
	c.weights.Do(func() { c.weights.err = fmt.Errorf("%s: the checkpoint is closed", c.dir) })
	for _, f := range c.weights.files {
		if err := f.Close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}
