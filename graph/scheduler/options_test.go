package scheduler

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"precast/graph/checkpoint"
)

// optionCase is a trajectory in testdata/options.json, which testdata/options.py writes.
type optionCase struct {
	Class   string          `json:"class"`
	Config  json.RawMessage `json:"config"`
	Options struct {
		Steps     int       `json:"num_inference_steps"`
		Sigmas    []float64 `json:"sigmas"`
		Timesteps []float64 `json:"timesteps"`
		Mu        *float64  `json:"mu"`
		Eta       float64   `json:"eta"`
	} `json:"options"`
	Timesteps    []float64   `json:"timesteps"`
	Initial      []float64   `json:"initial"`
	ScaledInputs [][]float64 `json:"scaled_inputs"`
	ModelOutputs [][]float64 `json:"model_outputs"`
	Samples      [][]float64 `json:"samples"`
	Noise        [][]float64 `json:"noise"`
}

// TestOptions runs free trajectories over the options that the reference's configs do not use.
func TestOptions(t *testing.T) {
	data, err := os.ReadFile("testdata/options.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []optionCase
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	for i, c := range cases {
		t.Run(fmt.Sprintf("%d-%s", i, c.Class), func(t *testing.T) {
			cfg, err := checkpoint.ParseConfig("scheduler_config.json", c.Config)
			if err != nil {
				t.Fatal(err)
			}
			s, err := New(c.Class, cfg)
			if err != nil {
				t.Fatalf("%s: %v", c.Config, err)
			}
			plan, err := s.Schedule(Options(c.Options))
			if err != nil {
				t.Fatalf("%s: %v", c.Config, err)
			}
			closeTo(t, string(c.Config)+" timesteps", plan.Timesteps, c.Timesteps, 1e-6)
			zeros := make([]float64, len(c.Initial))
			sample, input := c.Initial, slices.Clone(c.Initial)
			for i := range input {
				input[i] *= plan.InputScale
			}
			slots, noise := slices.Repeat([][]float64{zeros}, plan.Slots), c.Noise
			for i := range plan.Calls {
				if t.Failed() {
					return
				}
				call := &plan.Calls[i]
				draw := zeros
				if call.NeedsNoise {
					if len(noise) == 0 {
						t.Fatalf("%s: call %d draws noise, diffusers does not", c.Config, i)
					}
					draw, noise = noise[0], noise[1:]
				}
				what := fmt.Sprintf("%s %+v call %d ", c.Config, c.Options, i)
				closeTo(t, what+"model input", input, c.ScaledInputs[i], 1e-4)
				out := inGo(t, call, append([][]float64{sample, c.ModelOutputs[i], draw}, slots...))
				closeTo(t, what+"sample", out[0], c.Samples[i], 1e-4)
				sample, input, slots = out[0], out[1], out[2:]
			}
			if len(noise) > 0 {
				t.Errorf("%s: %d draws of noise are left over", c.Config, len(noise))
			}
		})
	}
}
