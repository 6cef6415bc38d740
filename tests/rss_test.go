package tests

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"

	"precast"
	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/pipelines"
	"precast/graph/trace"
)

const (
	// rssVariable names a checkpoint whose loading is measured in place of the one that the test makes, such as flux-2048 of the reference's
	// make_bench.py with --shard 1GB.
	rssVariable = "PRECAST_TEST_RSS_MODEL"
	// rssChildVariable makes the test binary run a checkpoint and print what it took.
	rssChildVariable = "PRECAST_TEST_RSS_RUN"
	// rssLimit is the peak resident set in proportion to the weights.
	rssLimit = 1.15
)

type rssReport struct {
	Weights, Peak int64
	Bytes         map[string]int64
}

// TestPeakRSS runs a sharded bfloat16 checkpoint of gigabytes in bfloat16, in processes of their own: once compiled, once from the cache, and once with a LoRA. The
// peak of the resident set, mapped pages of files among it, stays near the size of the weights.
func TestPeakRSS(t *testing.T) {
	if args := os.Getenv(rssChildVariable); args != "" {
		measureRSS(t, strings.Split(args, "|"))
		return
	}
	model := os.Getenv(rssVariable)
	if model == "" && !long() {
		t.Skip("takes gigabytes: PRECAST_TEST_LONG")
	}
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells the peak of the resident set")
	}
	needBackend(t, "pjrt")
	if model == "" {
		// Four gigabytes in bfloat16.
		model = bigFlux(t, 16, 7, 14)
	}
	cacheDir := t.TempDir()
	loras := rssLoRA(t, model)
	for _, c := range [][]string{{"compiled", model, cacheDir}, {"from the cache", model, cacheDir}, {"with a LoRA", model, cacheDir, loras}} {
		t.Run(c[0], func(t *testing.T) {
			var r rssReport
			measuredChild(t, "TestPeakRSS", rssChildVariable, c[1:], &r)
			t.Logf("weights %d, peak %d: %.3f; %v", r.Weights, r.Peak, float64(r.Peak)/float64(r.Weights), r.Bytes)
			if r.Weights < 1e9 {
				t.Errorf("the weights are only %d bytes", r.Weights)
			}
			if float64(r.Peak) > rssLimit*float64(r.Weights) {
				t.Errorf("the peak is %.3f times the weights, wanted at most %g", float64(r.Peak)/float64(r.Weights), rssLimit)
			}
		})
	}
}

// measureRSS is the child: a picture of one step.
func measureRSS(t *testing.T, args []string) {
	cfg := precast.Config{Backend: "pjrt", DType: "bfloat16", CacheDir: args[1], LoRAs: args[2:]}
	p, err := precast.Open(context.Background(), args[0], cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	_, err = p.Generate(context.Background(), &precast.Request{
		Prompt: []string{"a red circle"}, Height: 128, Width: 128, NumInferenceSteps: 1, MaxSequenceLength: 32,
	})
	// Weights that nobody trained may give pictures of anything.
	if err != nil && !strings.Contains(err.Error(), "NaN") {
		t.Fatal(err)
	}
	s := p.Stats()
	printMeasured(t, rssReport{Weights: s.Bytes["weights"], Peak: s.PeakRSS, Bytes: s.Bytes})
}

// measuredMark is in front of what a child of measuredChild prints.
const measuredMark = "MEASURED "

// measuredChild runs a test in a process of its own, which finds args in the environment's variable and prints a report with printMeasured.
func measuredChild(t *testing.T, test, variable string, args []string, report any) {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	cmd := exec.Command(self, "-test.run=^"+test+"$")
	cmd.Env = append(os.Environ(), variable+"="+strings.Join(args, "|"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	_, line, ok := strings.Cut(string(out), measuredMark)
	line, _, _ = strings.Cut(line, "\n")
	if err := json.Unmarshal([]byte(line), report); !ok || err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// printMeasured is the child's side of measuredChild.
func printMeasured(t *testing.T, report any) {
	t.Helper()
	data, err := json.Marshal(report)
	must(t, err)
	fmt.Printf("%s%s\n", measuredMark, data)
}

// bigFlux is the tiny FLUX.1-dev with a large transformer in bfloat16, in shards: its heads are of 128, its blocks double and single.
func bigFlux(t *testing.T, heads, double, single int) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/tiny/flux1-dev/model")); err != nil {
		t.Fatal(err)
	}
	transformer := filepath.Join(dir, "transformer")
	old, err := filepath.Glob(filepath.Join(transformer, "*.safetensors*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range old {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	editJSON(t, filepath.Join(transformer, "config.json"), map[string]any{
		"attention_head_dim": 128, "num_attention_heads": heads, "axes_dims_rope": []int{16, 56, 56}, "num_layers": double, "num_single_layers": single,
	})
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	p, err := pipelines.New(ck, pipelines.Options{DType: dtypes.BFloat16})
	if err != nil {
		t.Fatal(err)
	}
	req := &pipelines.Request{Prompt: []string{"x"}, Height: 64, Width: 64, NumInferenceSteps: 1, NumImagesPerPrompt: 1}
	if err := p.Defaults(req); err != nil {
		t.Fatal(err)
	}
	programs, err := p.Programs(req)
	if err != nil {
		t.Fatal(err)
	}
	// Small numbers, the same for every weight from another place.
	r := rand.New(rand.NewPCG(7, 8))
	noise := make([]byte, 64<<20)
	for i := 0; i < len(noise); i += 2 {
		const one = 0x3c80 // 2^-6
		binary.LittleEndian.PutUint16(noise[i:], uint16(one|r.Uint32()&0x80ff))
	}
	weightMap := map[string]string{}
	var items []checkpoint.Item
	size := 0
	flush := func() {
		name := fmt.Sprintf("diffusion_pytorch_model-%05d-of-00009.safetensors", len(weightMap))
		for _, it := range items {
			weightMap[it.Key] = name
		}
		if err := checkpoint.WriteFile(filepath.Join(transformer, name), items, nil); err != nil {
			t.Fatal(err)
		}
		items, size = nil, 0
	}
	for _, q := range programs {
		if q.Component != "transformer" {
			continue
		}
		m, err := trace.Trace(q.Network)
		if err != nil {
			t.Fatal(err)
		}
		for i, w := range m.Entry().Params {
			if w.Kind != graph.Weight {
				continue
			}
			n := int(graph.ByteSize(w.Value.Shape))
			items = append(items, checkpoint.Item{Key: w.Name, DType: dtypes.BFloat16, Shape: w.Value.Shape.Dimensions, Data: noise[2*i : 2*i+n]})
			if size += n; size > 500<<20 {
				flush()
			}
		}
	}
	flush()
	index, err := json.Marshal(map[string]any{"weight_map": weightMap})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(transformer, "diffusion_pytorch_model.safetensors.index.json"), index, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// rssLoRA changes every matrix of the model's transformer.
func rssLoRA(t *testing.T, model string) string {
	t.Helper()
	ck, err := checkpoint.Open(model)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	comp, err := ck.Component("transformer")
	if err != nil {
		t.Fatal(err)
	}
	tensors, err := comp.Tensors()
	if err != nil {
		t.Fatal(err)
	}
	var items []checkpoint.Item
	for key, w := range tensors {
		module, ok := strings.CutSuffix(key, ".weight")
		if !ok || len(w.Shape) != 2 {
			continue
		}
		const rank = 4
		items = append(items,
			checkpoint.Item{Key: "transformer." + module + ".lora_A.weight", DType: dtypes.BFloat16, Shape: []int{rank, w.Shape[1]}, Data: make([]byte, 2*rank*w.Shape[1])},
			checkpoint.Item{Key: "transformer." + module + ".lora_B.weight", DType: dtypes.BFloat16, Shape: []int{w.Shape[0], rank}, Data: make([]byte, 2*rank*w.Shape[0])})
	}
	path := filepath.Join(t.TempDir(), "lora.safetensors")
	if err := checkpoint.WriteFile(path, items, nil); err != nil {
		t.Fatal(err)
	}
	return path
}
