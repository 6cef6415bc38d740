package precast

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// published is what a network of a published checkpoint has: its parameters, and those of them that no program of the pipeline reads.
// graph/pipelines/configs/README.md says where each count is published.
type published struct {
	config, component string
	parameters        int64
	unread            int64
}

// Parameters of one layer of a text encoder, and of what stands beside the layers.
const (
	clipLLayer  = 4*(768*768+768) + (768*3072 + 3072) + (3072*768 + 768) + 4*768
	qwen3Norms  = 2 * 128
	mistralNorm = 5120
)

func qwen3Layer(hidden, inner int64) int64 {
	return hidden*(32+8+8)*128 + 32*128*hidden + 3*hidden*inner + 2*hidden + qwen3Norms
}

func mistralLayer() int64 {
	return 5120*(32+8+8)*128 + 32*128*5120 + 3*5120*32768 + 2*5120
}

const (
	sdDecoder = 49_490_199
	// FLUX.1 and SD 3 have 16 latent channels instead of 4, and no post_quant_conv with its 4 x 4 weights and 4 biases.
	decoder16    = sdDecoder - 20 + 12*9*512
	flux2Decoder = 49_620_515
	wanDecoder   = 73_295_603
	t5XXL        = 4_762_310_656
	umt5XXL      = 5_680_910_336
	clipL        = 123_060_480
	clipLPooled  = 123_650_304
	bigG         = 694_659_840
	wan14B       = 14_288_491_584
)

var publishedCounts = []published{
	{"stable-diffusion-v1-5", "text_encoder", clipL, 0},
	{"stable-diffusion-v1-5", "unet", 859_520_964, 0},
	{"stable-diffusion-v1-5", "vae", sdDecoder, 0},
	{"stable-diffusion-2-1", "text_encoder", 340_387_840, 0},
	{"stable-diffusion-2-1", "unet", 865_910_724, 0},
	{"stable-diffusion-2-1", "vae", sdDecoder, 0},
	// The last hidden state but one: not the last layer, and not the norm behind it.
	{"stable-diffusion-xl-base-1.0", "text_encoder", clipL, clipLLayer + 2*768},
	{"stable-diffusion-xl-base-1.0", "text_encoder_2", bigG, 0},
	{"stable-diffusion-xl-base-1.0", "unet", 2_567_463_684, 0},
	{"stable-diffusion-xl-base-1.0", "vae", sdDecoder, 0},
	// The table of positions is a buffer, which is read like a weight.
	{"stable-diffusion-3-medium", "transformer", 2_028_328_000 + 192*192*1536, 0},
	{"stable-diffusion-3-medium", "text_encoder", clipLPooled, 0},
	{"stable-diffusion-3-medium", "text_encoder_2", bigG, 0},
	{"stable-diffusion-3-medium", "text_encoder_3", t5XXL, 0},
	{"stable-diffusion-3-medium", "vae", decoder16, 0},
	{"stable-diffusion-3.5-medium", "transformer", 2_469_663_936, 0},
	{"stable-diffusion-3.5-large", "transformer", 8_146_280_768, 0},
	{"FLUX.1-dev", "text_encoder", clipL, 0},
	{"FLUX.1-dev", "text_encoder_2", t5XXL, 0},
	{"FLUX.1-dev", "transformer", 11_901_408_320, 0},
	{"FLUX.1-dev", "vae", decoder16, 0},
	{"FLUX.1-schnell", "transformer", 11_891_178_560, 0},
	// The hidden states up to layer 30 of 40, so neither the last ten, nor the norm, nor the output layer.
	{"FLUX.2-dev", "text_encoder", 23_572_403_200, 10*mistralLayer() + mistralNorm + 131072*5120},
	{"FLUX.2-dev", "transformer", 32_223_281_152, 0},
	{"FLUX.2-dev", "vae", flux2Decoder, 0},
	// Up to layer 27 of 36; the output layer is the embedding in the 4B model, its own in the 8B one.
	{"FLUX.2-klein-4B", "text_encoder", 4_022_468_096, 9*qwen3Layer(2560, 9728) + 2560},
	{"FLUX.2-klein-4B", "transformer", 3_875_544_576, 0},
	{"FLUX.2-klein-9B", "text_encoder", 8_190_735_360, 9*qwen3Layer(4096, 12288) + 4096 + 151936*4096},
	{"FLUX.2-klein-9B", "transformer", 9_078_581_248, 0},
	{"Wan2.1-T2V-1.3B", "text_encoder", umt5XXL, 0},
	{"Wan2.1-T2V-1.3B", "transformer", 1_418_996_800, 0},
	{"Wan2.1-T2V-1.3B", "vae", wanDecoder, 0},
	{"Wan2.1-T2V-14B", "transformer", wan14B, 0},
	{"Wan2.2-T2V-A14B", "transformer", wan14B, 0},
	{"Wan2.2-T2V-A14B", "transformer_2", wan14B, 0},
	{"Wan2.2-T2V-A14B", "text_encoder", umt5XXL, 0},
	{"Wan2.2-TI2V-5B", "transformer", 4_999_787_712, 0},
	// The text model of Qwen2.5-VL-7B is that of Qwen2.5-7B; its output layer is not run.
	{"Qwen-Image", "text_encoder", 7_615_616_512, 152064 * 3584},
	// The last block's results for the text go nowhere: to_add_out and txt_mlp of that block.
	{"Qwen-Image", "transformer", 20_430_401_088, (3072*3072 + 3072) + (3072*12288 + 12288) + (12288*3072 + 3072)},
	// A picture is one frame: the two convolutions over time before the first upsamplings see nothing before it.
	{"Qwen-Image", "vae", wanDecoder, 2 * (384*768*3 + 768)},
	// Layer 35 of 36.
	{"Z-Image-Turbo", "text_encoder", 4_022_468_096, qwen3Layer(2560, 9728) + 2560},
	// 1024 x 1024 pixels are a multiple of 32 tokens, so none is padded.
	{"Z-Image-Turbo", "transformer", 6_154_908_736, 3840},
	{"Z-Image-Turbo", "vae", decoder16, 0},
}

// lowering is what a child process reports.
type lowering struct {
	Components []ComponentReport
	Seconds    float64
	// PeakKB is the largest resident set of the process.
	PeakKB int64
	// Text is the length of the longest program's StableHLO text, and Program its name.
	Text    int64
	Program string
}

// programText is the most bytes of StableHLO text that the programs of a network may have, by regions. They hold no tables: weights, rotary tables and
// masks are arguments, since XLA folds constants for minutes, and a message of its has 2 GB at most (docs/bugs.md, row 57). Cut into blocks or with loops, a network
// is small, and FLUX.1's rotary table alone would be past the bound. The longest whole one is Wan's, whose attention over 32 760 tokens is 40 times in pieces.
var programText = map[string]int64{"inline": 8_000_000, "scan": 600_000, "split": 400_000}

const childVariable = "PRECAST_TEST_MODEL_CONFIG"

// Every config traces and lowers within 5 seconds and 500 MB, in a process of its own, and its networks have the published number of
// parameters; whole, with loops and split alike.
func TestModelConfigs(t *testing.T) {
	if os.Getenv(childVariable) != "" {
		lowerModelConfig(t)
		return
	}
	if runtime.GOOS != "linux" {
		t.Skip("peak memory is read from /proc")
	}
	for _, name := range ModelConfigs() {
		for _, regions := range []string{"inline", "scan", "split"} {
			t.Run(name+"/"+regions, func(t *testing.T) {
				cmd := exec.Command(os.Args[0], "-test.run=^TestModelConfigs$")
				cmd.Env = append(os.Environ(), childVariable+"="+name+","+regions)
				out, err := cmd.CombinedOutput()
				_, text, ok := strings.Cut(string(out), "LOWERING ")
				if err != nil || !ok {
					t.Fatalf("%v: %s", err, out)
				}
				var got lowering
				if err := json.NewDecoder(strings.NewReader(text)).Decode(&got); err != nil {
					t.Fatal(err)
				}
				// Where other work takes the processors, the time on the clock says little.
				seconds := min(got.Seconds, (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds())
				t.Logf("%.2f s, peak %d MB, at most %d bytes of StableHLO, in %s", seconds, got.PeakKB/1000, got.Text, got.Program)
				if most := programText[regions]; got.Text > most {
					t.Errorf("%s: %d bytes of StableHLO, wanted at most %d", got.Program, got.Text, most)
				}
				// The race detector takes several times the time and memory.
				if !raceDetector && (seconds > 5 || got.PeakKB > 500_000) {
					t.Errorf("%.2f s and %d MB, wanted at most 5 s and 500 MB", seconds, got.PeakKB/1000)
				}
				checked := 0
				for _, want := range publishedCounts {
					if want.config != name {
						continue
					}
					checked++
					i := slices.IndexFunc(got.Components, func(r ComponentReport) bool { return r.Name == want.component })
					if i < 0 {
						t.Errorf("%s: no such component in %v", want.component, got.Components)
					} else if n := got.Components[i].Parameters; n != want.parameters-want.unread {
						t.Errorf("%s: %d parameters are read, wanted %d of %d", want.component, n, want.parameters-want.unread, want.parameters)
					}
				}
				if checked == 0 {
					t.Error("no published count")
				}
			})
		}
	}
}

func lowerModelConfig(t *testing.T) {
	name, regions, _ := strings.Cut(os.Getenv(childVariable), ",")
	start := time.Now()
	p, err := Open(context.Background(), "", Config{ModelConfig: name, DType: "bfloat16", Regions: regions})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	report, err := p.Compile(context.Background(), CompileOptions{CompileTo: "stablehlo"})
	if err != nil {
		t.Fatal(err)
	}
	out := lowering{Components: report.Components, Seconds: time.Since(start).Seconds()}
	for _, q := range report.Programs {
		if q.Bytes > out.Text {
			out.Text, out.Program = q.Bytes, q.Name
		}
	}
	status, err := os.Open("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	defer status.Close()
	for lines := bufio.NewScanner(status); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "VmHWM:"); ok {
			if _, err := fmt.Sscan(text, &out.PeakKB); err != nil {
				t.Fatal(err)
			}
		}
	}
	data, err := json.Marshal(out)
	if err != nil || out.PeakKB == 0 {
		t.Fatal(err, out)
	}
	fmt.Printf("LOWERING %s\n", data)
}

func TestModelConfigErrors(t *testing.T) {
	ctx := context.Background()
	for _, tt := range []struct {
		path string
		cfg  Config
		want string
	}{
		{"", Config{ModelConfig: "FLUX"}, `model-config: found "FLUX", wanted one of FLUX.1-dev, `},
		{"dir", Config{ModelConfig: "FLUX.1-dev"}, `give either a folder or --model-config; found "dir" and "FLUX.1-dev"`},
		{"", Config{ModelConfig: "FLUX.1-dev", Variant: "fp16"}, "--model-config has no weights"},
		{"", Config{ModelConfig: "FLUX.1-dev", DType: "bfloat16,unet=float32"}, `dtype: "unet" is none of this checkpoint's components`},
	} {
		if _, err := Open(ctx, tt.path, tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: got %v, want %s", tt.cfg, err, tt.want)
		}
	}
	p, err := Open(ctx, "", Config{ModelConfig: "flux.1-DEV", NoCache: true, Backend: "go"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	const want = "FLUX.1-dev: has configs only, no weights and no tokenizers"
	if err := p.Check(&Request{Prompt: []string{"x"}}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a check: %v", err)
	}
	if _, err := p.Compile(ctx, CompileOptions{Components: []string{"vae"}}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("executables: %v", err)
	}
}

// TestNestedBlocks: where blocks repeat inside of modules that repeat, the innermost are the class as long as that leaves out more. SDXL's UNet has 60
// transformer blocks of the width 1280, in 6 of its attention modules of 10 blocks each, and 10 of 640, in 5 of 2: there the modules leave out more.
func TestNestedBlocks(t *testing.T) {
	for _, regions := range []string{"call", "split", "scan"} {
		p, err := Open(context.Background(), "", Config{ModelConfig: "stable-diffusion-xl-base-1.0", NoCache: true, Regions: regions})
		if err != nil {
			t.Fatal(err)
		}
		r, err := p.Compile(context.Background(), CompileOptions{Components: []string{"unet"}, CompileTo: "passes"})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		var blocks, modules []int
		for _, q := range r.Programs {
			for _, b := range q.Blocks {
				switch {
				case strings.Contains(b.Class, "transformer_blocks"):
					blocks = append(blocks, b.Instances)
				case strings.Contains(b.Class, "attentions"):
					modules = append(modules, b.Instances)
				}
			}
		}
		if !slices.Equal(blocks, []int{60}) || !slices.Equal(modules, []int{5}) {
			t.Errorf("--regions %s: transformer blocks run %v times and attention modules %v, wanted 60 and 5", regions, blocks, modules)
		}
	}
}
