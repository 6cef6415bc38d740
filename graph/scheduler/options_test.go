package scheduler

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"precast/graph/checkpoint"
)

// optionCase is a trajectory in testdata/options.json or testdata/start.json, which the Python files of the same name write.
type optionCase struct {
	Class string `json:"class"`
	// Config is the config itself, ConfigName the name of one in testdata/configs.
	Config     json.RawMessage `json:"config"`
	ConfigName string          `json:"config_name"`
	Options    struct {
		Steps     int       `json:"num_inference_steps"`
		Sigmas    []float64 `json:"sigmas"`
		Timesteps []float64 `json:"timesteps"`
		Mu        *float64  `json:"mu"`
		Eta       float64   `json:"eta"`
		Skip      int       `json:"skip"`
	} `json:"options"`
	Timesteps []float64 `json:"timesteps"`
	// Clean and Added are what Initial is mixed from in start.json.
	Clean        []float64   `json:"clean"`
	Added        []float64   `json:"added"`
	Initial      []float64   `json:"initial"`
	ScaledInputs [][]float64 `json:"scaled_inputs"`
	ModelOutputs [][]float64 `json:"model_outputs"`
	Samples      [][]float64 `json:"samples"`
	Noise        [][]float64 `json:"noise"`
}

func readOptionCases(t *testing.T, file string) []optionCase {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var cases []optionCase
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	return cases
}

// TestOptions runs free trajectories over the options that the reference's configs do not use.
func TestOptions(t *testing.T) {
	for i, c := range readOptionCases(t, "testdata/options.json") {
		t.Run(fmt.Sprintf("%d-%s", i, c.Class), func(t *testing.T) {
			cfg, err := checkpoint.ParseConfig("scheduler_config.json", c.Config)
			if err != nil {
				t.Fatal(err)
			}
			s, err := New(c.Class, cfg)
			if err != nil {
				t.Fatalf("%s: %v", c.Config, err)
			}
			c.check(t, s)
		})
	}
}

// TestStart begins every config's schedule in its middle, from latents with noise: the start of image-to-image.
func TestStart(t *testing.T) {
	g := loadGolden(t, "testdata", "golden")
	seen := map[string]bool{}
	for _, c := range readOptionCases(t, "testdata/start.json") {
		seen[c.ConfigName] = true
		t.Run(fmt.Sprintf("%s without %d", c.ConfigName, c.Options.Skip), func(t *testing.T) {
			s := g.scheduler(t, c.ConfigName)
			plan := c.check(t, s)
			got := make([]float64, len(c.Clean))
			for i := range got {
				got[i] = plan.Start.Sample*c.Clean[i] + plan.Start.Noise*c.Added[i]
			}
			closeTo(t, "latents with noise", got, c.Initial, 1e-6)
		})
	}
	if len(seen) != len(g.runs) {
		t.Errorf("%d configs have a start, wanted all %d", len(seen), len(g.runs))
	}
}

// check runs the trajectory and returns its plan.
func (c *optionCase) check(t *testing.T, s *Scheduler) *Schedule {
	t.Helper()
	name := string(c.Config) + c.ConfigName
	plan, err := s.Schedule(Options(c.Options))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	closeTo(t, name+" timesteps", plan.Timesteps, c.Timesteps, 1e-6)
	if len(plan.Calls) != len(c.Timesteps) {
		t.Fatalf("%s: %d calls, want %d", name, len(plan.Calls), len(c.Timesteps))
	}
	zeros := make([]float64, len(c.Initial))
	sample, input := c.Initial, slices.Clone(c.Initial)
	for i := range input {
		input[i] *= plan.InputScale
	}
	slots, noise := slices.Repeat([][]float64{zeros}, plan.Slots), c.Noise
	for i := range plan.Calls {
		if t.Failed() {
			return plan
		}
		call := &plan.Calls[i]
		draw := zeros
		if call.NeedsNoise {
			if len(noise) == 0 {
				t.Fatalf("%s: call %d draws noise, diffusers does not", name, i)
			}
			draw, noise = noise[0], noise[1:]
		}
		what := fmt.Sprintf("%s %+v call %d ", name, c.Options, i)
		closeTo(t, what+"model input", input, c.ScaledInputs[i], 1e-4)
		out := inGo(t, call, append([][]float64{sample, c.ModelOutputs[i], draw}, slots...))
		closeTo(t, what+"sample", out[0], c.Samples[i], 1e-4)
		sample, input, slots = out[0], out[1], out[2:]
	}
	if len(noise) > 0 {
		t.Errorf("%s: %d draws of noise are left over", name, len(noise))
	}
	return plan
}
