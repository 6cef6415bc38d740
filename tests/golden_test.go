package tests

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"precast"
	"precast/backends/gobackend"
	"precast/backends/pjrt"
	"precast/graph/checkpoint"
	"precast/graph/pipelines"
)

// reference is the folder of the reference pipelines that diffusers made: the one that PRECAST_REFERENCE names, else the whole set beside
// the repository, else the part that is always here (testdata/README.md).
func reference(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("PRECAST_REFERENCE")
	if dir == "" {
		dir = filepath.Join("..", "..", "shared", "reference")
	}
	if _, err := os.Stat(filepath.Join(dir, "tiny")); err == nil {
		return dir
	}
	return "testdata"
}

// limits are those of the reference: what one module may differ by, and a tensor of a whole run, relative to the golden's largest value.
const (
	moduleLimit = 1e-4
	runLimit    = 1e-3
)

type goldenFile struct {
	Name string                     `json:"name"`
	Runs map[string]json.RawMessage `json:"runs"`
	// Variant is that of the weight files that the runs were made with.
	Variant string `json:"variant"`
}

type goldenRun struct {
	Call struct {
		Height             int             `json:"height"`
		Width              int             `json:"width"`
		NumFrames          int             `json:"num_frames"`
		Steps              int             `json:"num_inference_steps"`
		GuidanceScale      *float64        `json:"guidance_scale"`
		GuidanceScale2     *float64        `json:"guidance_scale_2"`
		GuidanceRescale    float64         `json:"guidance_rescale"`
		TrueCFGScale       *float64        `json:"true_cfg_scale"`
		CFGNormalization   bool            `json:"cfg_normalization"`
		MaxSequenceLength  int             `json:"max_sequence_length"`
		ClipSkip           int             `json:"clip_skip"`
		OriginalSize       *[2]int         `json:"original_size"`
		CropsCoordsTopLeft *[2]int         `json:"crops_coords_top_left"`
		TargetSize         *[2]int         `json:"target_size"`
		Prompt             json.RawMessage `json:"prompt"`
		Prompt2            json.RawMessage `json:"prompt_2"`
		NegativePrompt     json.RawMessage `json:"negative_prompt"`
		NegativePrompt2    json.RawMessage `json:"negative_prompt_2"`
	} `json:"call"`
	Scheduler struct {
		Class  string                     `json:"class"`
		Config map[string]json.RawMessage `json:"config"`
	} `json:"scheduler"`
	// PipelineConfig has fields of model_index.json that the run changed.
	PipelineConfig map[string]any `json:"pipeline_config"`
}

// decode reads a run and refuses an argument that the test does not pass on.
func (r *goldenRun) decode(t *testing.T, raw json.RawMessage) {
	t.Helper()
	if err := json.Unmarshal(raw, r); err != nil {
		t.Fatal(err)
	}
	var run struct {
		Call json.RawMessage `json:"call"`
	}
	if err := json.Unmarshal(raw, &run); err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(run.Call))
	d.DisallowUnknownFields()
	if err := d.Decode(&r.Call); err != nil {
		t.Fatalf("call: %v", err)
	}
}

// modelDir is the run's checkpoint: dir/model, or a folder beside it with another model_index.json.
func (r *goldenRun) modelDir(t *testing.T, dir string) string {
	t.Helper()
	model, err := filepath.Abs(filepath.Join(dir, "model"))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.PipelineConfig) == 0 {
		return model
	}
	changed := t.TempDir()
	entries, err := os.ReadDir(model)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if err := os.Symlink(filepath.Join(model, e.Name()), filepath.Join(changed, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(filepath.Join(model, "model_index.json"))
	if err != nil {
		t.Fatal(err)
	}
	index := map[string]any{}
	if err := json.Unmarshal(data, &index); err != nil {
		t.Fatal(err)
	}
	maps.Copy(index, r.PipelineConfig)
	if data, err = json.Marshal(index); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(changed, "model_index.json"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	return changed
}

// readGolden reads the list of a reference pipeline's runs.
func readGolden(t *testing.T, dir string) *goldenFile {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	// Python writes infinities that JSON does not have; schedulers read them as text.
	data = bytes.ReplaceAll(data, []byte("-Infinity"), []byte(`"-Infinity"`))
	g := &goldenFile{}
	if err := json.Unmarshal(data, g); err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	return g
}

// texts reads a prompt that is a string, a list of strings, or null.
func texts(t *testing.T, raw json.RawMessage) []string {
	t.Helper()
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	var list []string
	if json.Unmarshal(raw, &list) == nil {
		return list
	}
	var one string
	if err := json.Unmarshal(raw, &one); err != nil {
		t.Fatal(err)
	}
	return []string{one}
}

// schedulerOverride is the --scheduler value of a run: its class with every field of its config.
func schedulerOverride(r *goldenRun) string {
	var parts []string
	for k, v := range r.Scheduler.Config {
		s := string(v)
		if s == "null" || strings.ContainsAny(s, "[{,") || strings.HasPrefix(k, "_") {
			continue
		}
		parts = append(parts, k+"="+strings.Trim(s, `"`))
	}
	sort.Strings(parts)
	return strings.Join(append([]string{r.Scheduler.Class}, parts...), ",")
}

// long reports whether everything is tested, which takes minutes: `make check-long` sets the variable.
func long() bool { return os.Getenv("PRECAST_TEST_LONG") != "" }

// variants are the ways in which run is computed: on which backend, with which regions. Every run is computed by both backends; regions other
// than inline take the run "a", which uses every component, and all of them when there is time.
func variants(run string) [][2]string {
	v := [][2]string{{"pjrt", "inline"}, {"go", "inline"}}
	if run == "a" || long() {
		for _, r := range []string{"call", "scan", "split"} {
			v = append(v, [2]string{"pjrt", r}, [2]string{"go", r})
		}
	}
	return v
}

// goldenPipelines are the reference pipelines that TestGoldens runs.
var goldenPipelines = []string{
	"flux1-dev", "flux1-schnell", "tp-flux1", "flux2-dev", "flux2-klein", "tp-flux2", "sd15", "sd2", "sdxl", "qwen-image", "sd3", "tp-qwen", "tp-sd3",
	"wan-t2v", "wan22-t2v", "tp-wan", "z-image",
}

// carried are those of them that testdata holds, at least one of each pipeline class; the others are in the whole reference set only.
var carried = []string{
	"flux1-dev", "flux1-schnell", "flux2-dev", "tp-flux2", "sd15", "sdxl", "tp-sd3", "tp-qwen", "tp-wan", "wan22-t2v", "z-image",
}

// TestGoldens runs every recorded run of the pipelines through the public API and compares what it computes on the way and the picture.
// The runs share a cache, so that a program is compiled once.
func TestGoldens(t *testing.T) {
	ref, cacheDir := reference(t), t.TempDir()
	for _, name := range goldenPipelines {
		dir := filepath.Join(ref, "tiny", name)
		if _, err := os.Stat(dir); err != nil && ref == "testdata" && !slices.Contains(carried, name) {
			continue
		}
		g := readGolden(t, dir)
		for _, run := range recordedRuns(t, dir) {
			for _, v := range variants(run) {
				t.Run(fmt.Sprintf("%s/%s/%s/%s", name, run, v[0], v[1]), func(t *testing.T) {
					var r goldenRun
					r.decode(t, g.Runs[run])
					checkRun(t, dir, run, &r, precast.Config{Backend: v[0], Regions: v[1], Variant: g.Variant, CacheDir: cacheDir, CheckPasses: true})
				})
			}
		}
	}
	if *updateVerified {
		writeVerified(t)
	}
}

func openPipeline(t *testing.T, path string, cfg precast.Config) *precast.Pipeline {
	t.Helper()
	p, err := precast.Open(context.Background(), path, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		for name, live := range map[string]func() map[string]int64{"go": gobackend.Live, "pjrt": pjrt.Live} {
			for kind, n := range live() {
				if n != 0 {
					t.Errorf("backend %s: %d handles of %s are left", name, n, kind)
				}
			}
		}
	})
	return p
}

// needBackend skips where a backend is not there.
func needBackend(t *testing.T, backend string) {
	t.Helper()
	if backend != "pjrt" {
		return
	}
	if err := precast.HasPlugin(); err != nil {
		t.Skipf("%v", err)
	}
}

// checkRun computes a run and compares it; edit changes how it is computed, not what.
func checkRun(t *testing.T, dir, run string, r *goldenRun, cfg precast.Config, edit ...func(*precast.Request)) {
	needBackend(t, cfg.Backend)
	file, err := checkpoint.OpenFile(filepath.Join(dir, "golden.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cfg.Scheduler = schedulerOverride(r)
	p := openPipeline(t, r.modelDir(t, dir), cfg)
	call := r.Call
	req := &precast.Request{
		Prompt: texts(t, call.Prompt), Prompt2: texts(t, call.Prompt2),
		NegativePrompt: texts(t, call.NegativePrompt), NegativePrompt2: texts(t, call.NegativePrompt2),
		Height: call.Height, Width: call.Width, NumFrames: call.NumFrames, NumInferenceSteps: call.Steps,
		GuidanceScale: call.GuidanceScale, GuidanceScale2: call.GuidanceScale2, GuidanceRescale: call.GuidanceRescale,
		TrueCFGScale: call.TrueCFGScale, CFGNormalization: call.CFGNormalization,
		MaxSequenceLength: call.MaxSequenceLength, ClipSkip: call.ClipSkip,
		OriginalSize: call.OriginalSize, CropsCoordsTopLeft: call.CropsCoordsTopLeft, TargetSize: call.TargetSize,
	}
	for _, f := range edit {
		f(req)
	}
	start := run + "/latents_init"
	if _, ok := file.Tensor(start); !ok {
		start = run + "/noise"
	}
	read := func(name string) *precast.HostTensor {
		h, err := precast.ReadTensor(file.Path() + ":" + name)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	req.Latents = read(start)
	if _, ok := file.Tensor(run + "/step_noise"); ok {
		req.StepNoise = read(run + "/step_noise")
	}
	seen := map[string][]precast.HostTensor{}
	req.Observe = func(name string, h precast.HostTensor) { seen[name] = append(seen[name], h) }
	// The repository has some checkpoints without the decoder's weights: their runs end at the latents.
	decoders, err := filepath.Glob(filepath.Join(dir, "model", "vae", "*.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	var out *precast.Result
	if len(decoders) > 0 {
		out, err = p.Generate(context.Background(), req)
	} else {
		_, _, err = p.Denoise(context.Background(), req)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := len(seen["step_latents"]); got == 0 {
		t.Fatal("no step was seen")
	}
	compared := 0
	entry := pipelines.Verified{Case: filepath.Base(dir), Class: p.Class(), Backend: cfg.Backend, Runs: []string{run}}
	compare := func(golden string, list []precast.HostTensor, limit float64) {
		t.Helper()
		if found := compareFloats(t, file, golden, list, limit); found != nil {
			compared++
			addDifference(&entry, strings.TrimPrefix(golden, run+"/"), *found)
		}
	}
	// ids compares what each call of a text encoder was given. Where diffusers' length follows the prompt, ours has padding behind it.
	ids := func(component, input string) {
		for call := 0; ; call++ {
			g, ok := file.Tensor(fmt.Sprintf("%s/%s/%d/in/%s", run, component, call, input))
			if !ok {
				return
			}
			want, err := g.Int64s()
			if err != nil {
				t.Fatal(err)
			}
			list := seen[component+"/in/"+input]
			if len(list) < (call+1)*len(req.Prompt) {
				t.Fatalf("%s call %d: %s was seen %d times", component, call, input, len(list))
			}
			var got []int64
			length := len(want) / len(req.Prompt)
			for _, h := range list[call*len(req.Prompt) : (call+1)*len(req.Prompt)] {
				row := integers(h)
				got = append(got, row[:min(length, len(row))]...)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s call %d: %s differ:\n got %v\nwant %v", component, call, input, got, want)
			}
			compared++
		}
	}
	for _, component := range []string{"text_encoder", "text_encoder_2", "text_encoder_3"} {
		ids(component, "input_ids")
	}
	compare(run+"/encode_prompt/0/prompt_embeds", seen["prompt_embeds"], moduleLimit)
	compare(run+"/encode_prompt/0/pooled_prompt_embeds", seen["pooled_prompt_embeds"], moduleLimit)
	compare(run+"/encode_prompt/0/negative_prompt_embeds", seen["negative_prompt_embeds"], moduleLimit)
	compare(run+"/encode_prompt/0/negative_pooled_prompt_embeds", seen["negative_pooled_prompt_embeds"], moduleLimit)
	for k := range seen["prompt_embeds"] {
		compare(fmt.Sprintf("%s/encode_prompt/0/prompt_embeds/%d", run, k), seen["prompt_embeds"][k:k+1], moduleLimit)
	}
	for k := range seen["negative_prompt_embeds"] {
		compare(fmt.Sprintf("%s/encode_prompt/0/negative_prompt_embeds/%d", run, k), seen["negative_prompt_embeds"][k:k+1], moduleLimit)
	}
	compare(run+"/encode_prompt/1/prompt_embeds", seen["negative_prompt_embeds"], moduleLimit)
	compare(run+"/encode_prompt/1/pooled_prompt_embeds", seen["negative_pooled_prompt_embeds"], moduleLimit)
	compare(run+"/step_model_output", seen["step_model_output"], runLimit)
	compare(run+"/step_latents", seen["step_latents"], runLimit)
	if out != nil {
		compare(run+"/vae_in", seen["vae_in"], runLimit)
		compare(run+"/vae_out", seen["vae_out"], runLimit)
	}
	if compared < 4 || out != nil && compared < 6 {
		t.Errorf("only %d tensors were compared", compared)
	}
	if out != nil {
		entry.Picture = checkImages(t, file, run, dir, out)
	}
	if cfg.Regions == "inline" && cfg.Mode == "" && len(edit) == 0 && !t.Failed() {
		addVerified(entry)
	}
}

// compareFloats compares a sequence of tensors with the golden that holds them all; nil where there is none.
func compareFloats(t *testing.T, file *checkpoint.File, golden string, list []precast.HostTensor, limit float64) *pipelines.Difference {
	t.Helper()
	g, ok := file.Tensor(golden)
	if !ok {
		return nil
	}
	want, err := g.Float32s()
	if err != nil {
		t.Fatal(err)
	}
	var got []float32
	for _, h := range list {
		got = append(got, floats(h)...)
	}
	found := &pipelines.Difference{}
	if len(got) != len(want) {
		t.Errorf("%s: %d values, golden has %d", golden, len(got), len(want))
		return found
	}
	var largest float64
	for i, w := range want {
		largest = max(largest, math.Abs(float64(w)))
		d := math.Abs(float64(got[i] - w))
		if math.IsNaN(d) {
			d = math.Inf(1)
		}
		found.Abs = max(found.Abs, d)
	}
	if largest > 0 {
		found.Rel = found.Abs / largest
	}
	if found.Abs > limit*largest {
		t.Errorf("%s: differs by %.3g, limit is %g of %.3g", golden, found.Abs, limit, largest)
	}
	return found
}

// checkImages compares the pictures with the recorded values and with the PNG files beside them, and returns the largest difference.
func checkImages(t *testing.T, file *checkpoint.File, run, dir string, out *precast.Result) int {
	t.Helper()
	g, ok := file.Tensor(run + "/image_u8")
	if !ok {
		t.Fatalf("%s has no %s/image_u8", file.Path(), run)
	}
	var got []byte
	for _, img := range out.Images {
		got = append(got, img.RGB...)
	}
	want := g.Bytes()
	if len(got) != len(want) {
		t.Fatalf("pictures have %d values, golden %d", len(got), len(want))
	}
	worst := 0
	for i := range got {
		d := int(got[i]) - int(want[i])
		worst = max(worst, d, -d)
		if d < -1 || d > 1 {
			t.Fatalf("picture value %d is %d, golden %d", i, got[i], want[i])
		}
	}
	pictures := out.Images
	if out.Frames > 0 {
		pictures = filmStrips(out)
	}
	for k, img := range pictures {
		name := filepath.Join(dir, run+".png")
		if len(pictures) > 1 {
			name = filepath.Join(dir, fmt.Sprintf("%s-%d.png", run, k))
		}
		comparePNG(t, name, img)
	}
	return worst
}

// filmStrips puts the frames of each video side by side, as the reference does.
func filmStrips(out *precast.Result) []precast.Image {
	var strips []precast.Image
	for frames := range slices.Chunk(out.Images, out.Frames) {
		h, w := frames[0].Height, frames[0].Width
		strip := precast.Image{Height: h, Width: w * len(frames)}
		for y := range h {
			for _, f := range frames {
				strip.RGB = append(strip.RGB, f.RGB[3*y*w:3*(y+1)*w]...)
			}
		}
		strips = append(strips, strip)
	}
	return strips
}

// comparePNG holds a picture against a PNG file: no channel may differ by more than 1 of 255.
func comparePNG(t *testing.T, name string, img precast.Image) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	if m.Bounds() != image.Rect(0, 0, img.Width, img.Height) {
		t.Fatalf("%s is %v, picture %dx%d", name, m.Bounds(), img.Width, img.Height)
	}
	for i := range img.Width * img.Height {
		r, g, b, _ := m.At(i%img.Width, i/img.Width).RGBA()
		for c, v := range []uint32{r >> 8, g >> 8, b >> 8} {
			if d := int(img.RGB[3*i+c]) - int(v); d < -1 || d > 1 {
				t.Fatalf("%s: pixel %d channel %d is %d, picture has %d", name, i, c, v, img.RGB[3*i+c])
			}
		}
	}
}

func floats(h precast.HostTensor) []float32 {
	out := make([]float32, len(h.Data)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(h.Data[4*i:]))
	}
	return out
}

func integers(h precast.HostTensor) []int64 {
	out := make([]int64, len(h.Data)/4)
	for i := range out {
		out[i] = int64(int32(binary.LittleEndian.Uint32(h.Data[4*i:])))
	}
	return out
}
