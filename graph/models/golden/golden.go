// Package golden reads the reference set of the models' tests: tiny checkpoints and the tensors that diffusers and transformers compute
// with them. A network is compared with them on several sides: by the network's code alone, and the whole way through the recorder, the passes,
// the lowering and each backend (see Job). Only tests import it.
//
// The set lies in the folder that PRECAST_REFERENCE names, else in shared/reference beside the repository; the part of it that the
// repository ships is in tests/testdata. A test that needs more than there is is skipped.
package golden

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	ml "github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/trace"
)

// Limit is the largest distance from a golden tensor that passes, as a part of the golden's largest absolute value.
const Limit = 1e-4

// Case is one pipeline of the set.
type Case struct {
	t testing.TB
	// owner is the test that the files are open for.
	owner testing.TB
	dir   string
	// goldens is golden.safetensors.
	goldens *checkpoint.File
	weights map[string]map[string]checkpoint.Tensor // by component, then key
	worst   map[string]distance                     // by side
	aliases []checkpoint.Alias
	light   bool
	// trimmed says that the repository has only a part of this pipeline's goldens (tests/testdata/trim.py): what is missing skips a test.
	trimmed bool
	variant string // of the weight files
}

// distance is how far the golden tensor of that name was missed, as a part of its largest absolute value.
type distance struct {
	value float64
	name  string
}

// Open opens the pipeline at the path below the set's root ("tiny/flux1-dev"). It skips the test where the set is absent.
func Open(t testing.TB, path string) *Case {
	t.Helper()
	dir := filepath.Join(root(t), filepath.FromSlash(path))
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("no reference: %v", err)
	}
	return openCase(t, dir)
}

// OpenCarried opens a pipeline of tests/testdata that the set does not have.
func OpenCarried(t testing.TB, path string) *Case {
	t.Helper()
	return openCase(t, filepath.Join(repository(t), "tests", "testdata", filepath.FromSlash(path)))
}

func openCase(t testing.TB, dir string) *Case {
	t.Helper()
	c := &Case{
		t: t, owner: t, dir: dir, goldens: openFile(t, filepath.Join(dir, "golden.safetensors")), weights: map[string]map[string]checkpoint.Tensor{},
		worst: map[string]distance{},
	}
	t.Cleanup(c.logWorst)
	data, err := os.ReadFile(filepath.Join(dir, "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Trimmed bool   `json:"trimmed"`
		Variant string `json:"variant"`
	}
	// Python writes infinities, which JSON does not have.
	if err := json.Unmarshal(bytes.ReplaceAll(data, []byte("-Infinity"), []byte("0")), &file); err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	c.trimmed, c.variant = file.Trimmed, file.Variant
	return c
}

// missing ends the test: it skips where the repository has only a part of the goldens, and fails where all should be there.
func (c *Case) missing(what string) {
	c.t.Helper()
	if c.trimmed {
		c.t.Skipf("%s: the repository has no %s; PRECAST_REFERENCE names the whole set", c.dir, what)
	}
	c.t.Fatalf("%s has no %s", c.dir, what)
}

// Whole skips the test where the repository has only a part of the pipeline's goldens.
func (c *Case) Whole() {
	c.t.Helper()
	if c.trimmed {
		c.missing("goldens of modules")
	}
}

// In is the case within a subtest: what fails, fails there.
func (c *Case) In(t testing.TB) *Case {
	sub := *c
	sub.t = t
	return &sub
}

// Aliases makes Weights look a key that a file lacks up under its other spellings.
func (c *Case) Aliases(aliases []checkpoint.Alias) { c.aliases = aliases }

// Light makes the case's jobs light: see Job.
func (c *Case) Light() { c.light = true }

// logWorst writes the largest distance on each side.
func (c *Case) logWorst() {
	for _, side := range []string{Direct, Go, PJRT, PJRTSplit} {
		if d, ok := c.worst[side]; ok {
			c.t.Logf("%-10s at most %.2g from its golden: %s", side, d.value, d.name)
		}
	}
	if _, ok := c.worst[PJRT]; !ok && len(c.worst) > 0 {
		why := clients().missing
		if why == nil {
			why = errors.New("PRECAST_TEST_LONG is not set")
		}
		c.t.Logf("%-10s not compared: %v", PJRT, why)
	}
}

// root finds the set from the environment or, going up from the test's package, beside the repository or in its tests/testdata.
func root(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv("PRECAST_REFERENCE"); dir != "" {
		return dir
	}
	dir := repository(t)
	beside := filepath.Join(filepath.Dir(dir), "shared", "reference")
	if _, err := os.Stat(filepath.Join(beside, "tiny")); err == nil {
		return beside
	}
	return filepath.Join(dir, "tests", "testdata")
}

// repository is the folder with go.mod, going up from the test's package.
func repository(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for dir != filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	t.Skip("no reference: the test does not run inside the repository")
	return ""
}

func openFile(t testing.TB, path string) *checkpoint.File {
	t.Helper()
	f, err := checkpoint.OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// Config parses config.json of a component.
func (c *Case) Config(component string) *checkpoint.Config {
	c.t.Helper()
	data, err := os.ReadFile(filepath.Join(c.dir, "model", component, "config.json"))
	if err != nil {
		c.t.Fatal(err)
	}
	cfg, err := checkpoint.ParseConfig(component+"/config.json", data)
	if err != nil {
		c.t.Fatal(err)
	}
	return cfg
}

// Keys returns the tensors of a component's files by key.
func (c *Case) Keys(component string) map[string]checkpoint.Tensor {
	c.t.Helper()
	if all := c.weights[component]; all != nil {
		return all
	}
	paths, err := filepath.Glob(filepath.Join(c.dir, "model", component, "*.safetensors"))
	if err != nil || len(paths) == 0 {
		c.missing("weights of " + component)
	}
	all := map[string]checkpoint.Tensor{}
	for _, path := range paths {
		// A variant ("model.fp16.safetensors") holds the same keys again.
		if name, _ := strings.CutSuffix(filepath.Base(path), ".safetensors"); strings.TrimPrefix(filepath.Ext(name), ".") != c.variant {
			continue
		}
		for key, w := range openFile(c.owner, path).Tensors() {
			all[key] = w
		}
	}
	c.weights[component] = all
	return all
}

// Weights returns the function that a Job takes its weights from. Each is converted to
// the dtype that the network wants.
func (c *Case) Weights(component string) WeightFunc {
	c.t.Helper()
	all := c.Keys(component)
	return func(key string, shape graph.Shape) (*tensors.Tensor, error) {
		w, ok := all[key]
		for i := 0; !ok && i < len(c.aliases); i++ {
			if spelling := regexp.MustCompile(c.aliases[i].Pattern); spelling.MatchString(key) {
				w, ok = all[spelling.ReplaceAllString(key, c.aliases[i].Stored)]
			}
		}
		if !ok {
			return nil, fmt.Errorf("the checkpoint has no such key")
		}
		return c.read(w, shape.DType)
	}
}

// read copies a stored tensor to a tensor of gomlx, in dtype.
func (c *Case) read(w checkpoint.Tensor, dtype graph.DType) (*tensors.Tensor, error) {
	t := tensors.FromShape(shapes.Make(dtype, w.Shape...))
	var convertErr error
	if err := t.MutableBytes(func(data []byte) { convertErr = w.Convert(data, dtype) }); err != nil {
		return nil, err
	}
	return t, convertErr
}

// Has tells whether there is a golden tensor of that name.
func (c *Case) Has(name string) bool {
	_, ok := c.goldens.Tensor(name)
	return ok
}

// Tensor returns a golden tensor in dtype.
func (c *Case) Tensor(name string, dtype graph.DType) *tensors.Tensor {
	c.t.Helper()
	w, ok := c.goldens.Tensor(name)
	if !ok {
		c.missing("golden tensor " + name)
	}
	if dtype == dtypes.Int32 {
		ids, err := w.Int64s()
		if err != nil {
			c.t.Fatal(err)
		}
		narrow := make([]int32, len(ids))
		for i, v := range ids {
			narrow[i] = int32(v)
		}
		return tensors.FromFlatDataAndDimensions(narrow, w.Shape...)
	}
	t, err := c.read(w, dtype)
	if err != nil {
		c.t.Fatal(err)
	}
	return t
}

// F32 returns a golden tensor as float32.
func (c *Case) F32(name string) *tensors.Tensor {
	c.t.Helper()
	return c.Tensor(name, dtypes.Float32)
}

// Check compares an output with the golden of that name: the test fails where any element of any side is further from it than Limit times
// the golden's largest absolute value.
func (c *Case) Check(name string, got Output) {
	c.t.Helper()
	for _, side := range got {
		d := c.CheckTensor(name+" on side "+side.Name, name, side.Tensor)
		if w, ok := c.worst[side.Name]; !ok || d > w.value {
			c.worst[side.Name] = distance{d, name}
		}
	}
}

// CheckTensor is Check on a float32 tensor, called what in messages. It returns the largest distance as a part of the golden's largest absolute value.
func (c *Case) CheckTensor(what, name string, got *tensors.Tensor) float64 {
	c.t.Helper()
	want := c.F32(name)
	if !got.Shape().Equal(want.Shape()) {
		c.t.Errorf("%s: found shape %s, wanted %s", what, got.Shape(), want.Shape())
		return math.Inf(1)
	}
	return c.CheckValues(what, tensors.MustCopyFlatData[float32](got), tensors.MustCopyFlatData[float32](want))
}

// CheckValues is CheckTensor on plain numbers.
func (c *Case) CheckValues(name string, got, want []float32) float64 {
	c.t.Helper()
	if len(got) != len(want) {
		c.t.Errorf("%s: found %d values, wanted %d", name, len(got), len(want))
		return math.Inf(1)
	}
	var largest, distance float64
	for i, w := range want {
		largest = max(largest, math.Abs(float64(w)))
		d := math.Abs(float64(got[i]) - float64(w))
		if math.IsNaN(d) {
			d = math.Inf(1)
		}
		distance = max(distance, d)
	}
	if largest == 0 {
		largest = 1
	}
	if distance/largest > Limit {
		c.t.Errorf("%s: the largest distance is %.3g of %.3g, %.3g relative; wanted at most %.0e", name, distance, largest, distance/largest, Limit)
	}
	return distance / largest
}

// Run computes a whole network with a component's weights on all sides, PJRTSplit among them, and returns its outputs in order.
func (c *Case) Run(component string, n trace.Network, inputs map[string]*tensors.Tensor) []Output {
	c.t.Helper()
	return Job{Network: n, Weights: c.Weights(component), Inputs: inputs, Split: true, Light: c.light}.Run(c.t)
}

// RunModule is Run on a part of a network, without PJRTSplit: a part has few repeated blocks.
func (c *Case) RunModule(component string, n trace.Network, inputs map[string]*tensors.Tensor) []Output {
	c.t.Helper()
	return Job{Network: n, Weights: c.Weights(component), Inputs: inputs, Light: c.light}.Run(c.t)
}

// Block computes one function of a network on golden inputs on all sides and compares its results with blocks/MODULE/out/0, out/1 and so on. inputs are
// names below blocks/MODULE/in; each is given to build as float32 unless it is an integer, then as int32.
func (c *Case) Block(component, module string, inputs []string, build func(x *trace.Ctx, in []*ml.Node) []*ml.Node) {
	c.t.Helper()
	values := map[string]*tensors.Tensor{}
	n := trace.Network{Name: module, DType: dtypes.Float32}
	for _, name := range inputs {
		full := "blocks/" + module + "/in/" + name
		dtype := dtypes.Float32
		if w, ok := c.goldens.Tensor(full); ok && w.DType.IsInt() {
			dtype = dtypes.Int32
		}
		values[name] = c.Tensor(full, dtype)
		n.Inputs = append(n.Inputs, trace.Input{Name: name, Shape: values[name].Shape()})
	}
	n.Build = func(x *trace.Ctx, in map[string]*ml.Node) []*ml.Node {
		nodes := make([]*ml.Node, len(inputs))
		for i, name := range inputs {
			nodes[i] = in[name]
		}
		return build(x, nodes)
	}
	outputs := 0
	for c.Has(fmt.Sprintf("blocks/%s/out/%d", module, outputs)) {
		n.Outputs = append(n.Outputs, fmt.Sprintf("out/%d", outputs))
		outputs++
	}
	if outputs == 0 {
		c.missing("golden results of block " + module)
	}
	results := c.RunModule(component, n, values)
	for i, got := range results {
		c.Check(fmt.Sprintf("blocks/%s/out/%d", module, i), got)
	}
}
