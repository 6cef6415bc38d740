package precast

import (
	"log/slog"
	"slices"
	"strings"

	"github.com/gomlx/compute/dtypes"

	"precast/graph"
	"precast/graph/pipelines"
	"precast/passes"
)

// Version is precast's version; it is part of cache keys and of artifacts.
const Version = "0.1.0"

// Config says how a Pipeline is opened: on what it runs, how its programs are made and where they are kept. The zero value is the default of everything.
type Config struct {
	// Backend is "auto" (empty: the installed CPU plugin, else the Go backend), "pjrt" or "go".
	Backend string
	// Plugin is the PJRT plugin: a path, or a name as in `precast plugin list`. Empty means $PRECAST_PLUGIN, else the default for the CPU.
	Plugin string
	// Threads is the number of threads that the backend computes with; 0 leaves it to the backend, or to what an earlier Pipeline of the
	// process asked for: it is a setting of the process.
	Threads int

	// DType is the dtype that the networks compute in: "float32" (empty), "bfloat16" or "float16"; components that differ follow, as in
	// "bfloat16,vae=float32".
	DType string
	// Regions is "inline" (empty: a component is one program), "call" (one program in which each class of repeated blocks is a function), "scan" (one
	// program in which blocks that follow one another are a loop over their weights, stacked) or "split" (each class is a program of its own), or "auto" (split where the
	// blocks are many, else call). With
	// call, scan and split at least one component must have repeated blocks; those that have none are compiled inline.
	Regions string
	// Attention says whether attention is computed in chunks, so that its scores are never all in memory: "auto" (empty: where they take more than is
	// good for the target, passes.AttentionFor), "whole", or "chunked:QUERIES[xKEYS]".
	Attention string
	// Components are those that the caller chose by name, if any: regions other than inline and auto are an error where one of them has no repeated
	// blocks.
	Components []string
	// Mode is "compiled" (empty: a component is one program, or one a region) or "eager" (each operation is dispatched alone, in the order of the
	// network's code, for debugging); components that differ follow, as in "compiled,unet=eager". Programs without a component take the first word.
	Mode string
	// CheckFinite reads each float result of what runs eagerly; the first operation that makes a NaN or an infinity ends the run with an
	// *OperationNotFiniteError.
	CheckFinite bool
	// DumpValues chooses the results that are written to the folder DumpValuesTo, of what runs eagerly: [COMPONENT:]SCOPE, a module path, whose
	// submodules count, or all of a component where nothing follows the colon. A file is one execution of a program:
	// PROGRAM.stepNNN.CALL.safetensors in the denoising loop, else PROGRAM.NNN.safetensors; a tensor is SCOPE/NNN.OP, numbered within its scope.
	DumpValues, DumpValuesTo string
	// Offload is "none" (empty), "model" (a component's weights leave the device when the next one is needed) or "block" (those of a step of a split
	// component come right before it and leave behind it, the next step's on their way meanwhile). Block implies the regions split; components
	// without repeated blocks, and what runs eagerly, are offloaded as under model.
	Offload string
	// TensorParallelSize is 1 (or 0), the only size.
	TensorParallelSize int
	// TextEncoderDevice is where text encoders run: empty where everything does, or "cpu", on the CPU plugin where one is installed, else the Go
	// backend.
	TextEncoderDevice string
	// Scheduler replaces the checkpoint's: CLASS[,key=value...].
	Scheduler string
	// Variant selects weight files (*.fp16.safetensors).
	Variant string
	// LoRAs are LoRA files, FILE[:SCALE] each, that are added to the weights while these are loaded. They change no program.
	LoRAs []string

	// EnabledPasses names passes that are to run though they do not by default, DisabledPasses those to leave out; CheckPasses verifies the graph
	// around each.
	EnabledPasses, DisabledPasses []string
	CheckPasses                   bool
	// DumpDir, when set, gets every phase of every program that is made.
	DumpDir string

	// MaxPrograms is how many programs are kept in memory (0 is 32): where requests have many sizes, those that are longest not used are forgotten, with
	// the weights and, of eager ones, the operations that no other program has, and come from the cache when they are needed again. The programs of one request are always kept.
	MaxPrograms int

	// CacheDir is where executables are kept; empty means $PRECAST_CACHE_DIR, else the user's cache folder. NoCache keeps none.
	CacheDir string
	NoCache  bool
	// WeightsCache is "off" (empty) or "on": weights that take work to load, which are converted, copied, put into another order, prepared or changed by LoRAs, are
	// written to the cache once and mapped from there by later starts. They take as much of the disk again as of memory.
	WeightsCache string
	// CacheOnly makes a compile an error: *CompileNeededError.
	CacheOnly bool

	// ModelConfig names the configs of a published checkpoint (one of ModelConfigs) that are opened in place of a folder: they can be
	// traced, inspected and lowered, and have no weights to run with.
	ModelConfig string

	// Revision is the branch, tag or commit of a model that is named by its hub name; empty is main.
	Revision string
	// ConfigOnly reads config files alone: of a model at the hub nothing else is downloaded. What it opens can be compiled up to StableHLO.
	ConfigOnly bool
	// Download, when set, is told how many bytes of how many have been downloaded.
	Download func(done, total int64) `json:"-"`

	// Checkpoint is the folder that an artifact's weights are read from, where it is not the one that it was compiled from.
	Checkpoint string

	// Log gets notes and warnings; nil discards them.
	Log *slog.Logger `json:"-"`

	modes modes // of Mode, once it is checked
	// splitByOffload says that Regions is what Offload implies.
	splitByOffload bool
}

// The values of Config.Offload.
const (
	offloadNone  = "none"
	offloadModel = "model"
	offloadBlock = "block"
)

// parseDTypeFlag reads DTYPE[,COMPONENT=DTYPE...].
func parseDTypeFlag(text string) (pipelines.Options, error) {
	o := pipelines.Options{DType: dtypes.Float32, DTypes: map[string]graph.DType{}}
	if text == "" {
		return o, nil
	}
	for i, part := range strings.Split(text, ",") {
		component, name, own := strings.Cut(part, "=")
		if !own {
			component, name = "", part
		}
		var dtype graph.DType
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "float32", "f32", "fp32":
			dtype = dtypes.Float32
		case "bfloat16", "bf16":
			dtype = dtypes.BFloat16
		case "float16", "f16", "fp16":
			dtype = dtypes.Float16
		default:
			return o, userErrorf("dtype: found %q, wanted float32, bfloat16 or float16", name)
		}
		switch component = strings.TrimSpace(component); {
		case own && component != "":
			o.DTypes[component] = dtype
		case !own && i == 0:
			o.DType = dtype
		default:
			return o, userErrorf("dtype: found %q in %q, wanted DTYPE[,COMPONENT=DTYPE...], such as bfloat16,vae=float32", part, text)
		}
	}
	return o, nil
}

// check fills in defaults and refuses what is not known.
func (c *Config) check() (pipelines.Options, error) {
	dtype, err := parseDTypeFlag(c.DType)
	if err != nil {
		return dtype, err
	}
	dtype.Scheduler = c.Scheduler
	if c.TextEncoderDevice != "" && c.TextEncoderDevice != "cpu" {
		return dtype, userErrorf("text-encoder-device: found %q, wanted cpu", c.TextEncoderDevice)
	}
	given := c.Regions
	for _, f := range []struct {
		name  string
		value *string
		known []string
	}{
		{"backend", &c.Backend, []string{"auto", "pjrt", "go"}},
		{"regions", &c.Regions, []string{"inline", "call", "scan", "split", "auto"}},
		{"offload", &c.Offload, []string{offloadNone, offloadModel, offloadBlock}},
		{"weights-cache", &c.WeightsCache, []string{"off", "on"}},
	} {
		if *f.value == "" {
			*f.value = f.known[0]
		}
		ok := false
		for _, k := range f.known {
			ok = ok || *f.value == k
		}
		if !ok {
			return dtype, userErrorf("%s: found %q, wanted %s", f.name, *f.value, strings.Join(f.known, " or "))
		}
	}
	if c.Backend == "go" && c.Plugin != "" {
		return dtype, userErrorf("plugin: found %q, but --backend go computes without a plugin; leave out one of them", c.Plugin)
	}
	if err := c.checkEager(); err != nil {
		return dtype, err
	}
	if c.Offload == offloadBlock && c.modes.some(modeCompiled) {
		if given != "" && given != "split" {
			return dtype, userErrorf("offload: block brings the weights to the device for one block after the other, each a program of its own, which --regions %s does not make; leave --regions out, or take --regions split or --offload model", given)
		}
		c.Regions, c.splitByOffload = "split", given == ""
	}
	if c.WeightsCache == "on" && c.NoCache {
		return dtype, userErrorf("weights-cache: found on, but --no-cache keeps nothing; leave out one of them")
	}
	if c.TensorParallelSize < 0 || c.TensorParallelSize > 1 {
		return dtype, userErrorf("tensor-parallel-size: found %d, wanted 1 (more devices are not built yet)", c.TensorParallelSize)
	}
	if c.Threads < 0 || c.Threads > 4096 {
		return dtype, userErrorf("threads: found %d, wanted 0 (the backend's choice) to 4096", c.Threads)
	}
	if c.MaxPrograms < 0 {
		return dtype, userErrorf("max-programs: found %d, wanted 0 (%d) or more", c.MaxPrograms, defaultMaxPrograms)
	}
	if _, err := passes.ParseAttention(c.Attention, passes.Target{}); err != nil {
		return dtype, &UserError{Err: err}
	}
	if err := passes.CheckNames(c.EnabledPasses, c.DisabledPasses); err != nil {
		return dtype, &UserError{Err: err}
	}
	if c.splitByOffload && slices.Contains(c.DisabledPasses, "outline-repeated-blocks") {
		return dtype, userErrorf("offload: found block, but the pass outline-repeated-blocks, which finds the blocks, is left out; leave out --disable-pass outline-repeated-blocks, or take --offload model")
	}
	for _, pass := range []string{"outline-repeated-blocks", "scan-repeated-calls"} {
		needed := c.Regions == "scan" || c.Regions != "inline" && pass == "outline-repeated-blocks"
		if needed && slices.Contains(c.DisabledPasses, pass) {
			return dtype, userErrorf("regions: found %s, but the pass %s, which makes the regions, is left out; leave out --disable-pass %s, or take --regions inline", c.Regions, pass, pass)
		}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return dtype, nil
}
