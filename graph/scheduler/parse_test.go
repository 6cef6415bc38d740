package scheduler

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"precast/graph/checkpoint"
)

func config(t *testing.T, text string) *checkpoint.Config {
	t.Helper()
	cfg, err := checkpoint.ParseConfig("scheduler_config.json", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// sd15 is the config of Stable Diffusion 1.5's scheduler.
const sd15 = `{"_class_name": "PNDMScheduler", "_diffusers_version": "0.6.0", "beta_end": 0.012, "beta_schedule": "scaled_linear",
	"beta_start": 0.00085, "num_train_timesteps": 1000, "set_alpha_to_one": false, "skip_prk_steps": true, "steps_offset": 1,
	"trained_betas": null, "clip_sample": false}`

func TestParse(t *testing.T) {
	g := loadGolden(t, "testdata", "golden")
	for text, golden := range map[string]string{
		"PNDMScheduler": "sd15-pndm",
		"DDIMScheduler": "sd15-ddim",
		" DDIMScheduler , timestep_spacing = linspace , steps_offset=0": "ddim-linspace",
		"EulerDiscreteScheduler": "", // linspace spacing is its default, not PNDM's leading
		"EulerDiscreteScheduler,timestep_spacing=leading,use_karras_sigmas=true": "euler-karras",
		`EulerDiscreteScheduler,timestep_spacing="trailing",sigma_min=null`:      "euler-trailing",
		"DPMSolverMultistepScheduler,timestep_spacing=leading":                   "dpmpp-2m",
		"DPMSolverMultistepScheduler,timestep_spacing=leading,solver_order=3":    "dpmpp-3m",
		"UniPCMultistepScheduler,timestep_spacing=leading,disable_corrector=[]":  "unipc",
		"EulerAncestralDiscreteScheduler,timestep_spacing=trailing":              "euler-a-trailing",
		"HeunDiscreteScheduler,steps_offset=0":                                   "heun",
	} {
		if golden == "" {
			golden = "euler-linspace"
		}
		s, err := Parse(text, config(t, sd15))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got, err := s.Schedule(Options{Steps: 20})
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		want, err := g.scheduler(t, golden).Schedule(Options{Steps: 20})
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: the schedule differs from that of %s", text, golden)
		}
	}
	if s, err := Parse("LCMScheduler", nil); err != nil || s.Class != "LCMScheduler" {
		t.Errorf("without a base: %v", err)
	}
}

func TestParseErrors(t *testing.T) {
	for text, wants := range map[string][]string{
		"":                                     {"CLASS[,key=value...]", "DDIMScheduler"},
		"eta=1":                                {"CLASS[,key=value...]"},
		"DDIM":                                 {`"DDIM" is not known`, "DDIMScheduler", "UniPCMultistepScheduler"},
		"DDIMScheduler,":                       {"key=value"},
		"DDIMScheduler,clip_sample":            {`"clip_sample"`, "key=value"},
		"DDIMScheduler,clip_sample=1":          {"clip_sample", "true or false", "scheduler_config.json with --scheduler"},
		"DDIMScheduler,use_karras_sigmas=true": {`no field "use_karras_sigmas"`, "timestep_spacing"},
		"DDIMScheduler,eta=0.5":                {`no field "eta"`},
		"DDIMScheduler,steps_offset=1,steps_offset=2":                               {"given twice"},
		"DDIMScheduler,timestep_spacing=middle":                                     {"timestep_spacing", `"middle"`, "linspace, leading, trailing"},
		"DDIMScheduler,thresholding=true":                                           {"thresholding", "not supported"},
		"DDIMScheduler,trained_betas=[0.1,0.2]":                                     {"trained_betas", "found 2 values", "1000"},
		"DDIMScheduler,num_train_timesteps=-3":                                      {"num_train_timesteps", "-3"},
		"DDIMScheduler,num_train_timesteps=1e9":                                     {"num_train_timesteps", "100000"},
		"DDIMScheduler,beta_end=1.5":                                                {"beta_end", "1.5"},
		"DDIMScheduler,beta_schedule=cosine":                                        {"beta_schedule", "squaredcos_cap_v2"},
		"PNDMScheduler,prediction_type=sample":                                      {"prediction_type", "epsilon, v_prediction"},
		"DDPMScheduler,variance_type=learned_range":                                 {"variance_type", "not supported"},
		"EulerDiscreteScheduler,use_karras_sigmas=true,use_exponential_sigmas=true": {"use_exponential_sigmas", "at most one"},
		"DPMSolverMultistepScheduler,algorithm_type=dpmsolver":                      {"final_sigmas_type", "sigma_min"},
		"DPMSolverMultistepScheduler,solver_order=4":                                {"solver_order", "1, 2 or 3"},
		"DPMSolverMultistepScheduler,prediction_type=flow_prediction":               {"use_flow_sigmas"},
		"DPMSolverMultistepScheduler,lambda_min_clipped=low":                        {"lambda_min_clipped"},
		"UniPCMultistepScheduler,solver_p={}":                                       {"solver_p", "not supported"},
		"UniPCMultistepScheduler,shift_terminal=0.1":                                {"shift_terminal", "use_flow_sigmas"},
		"FlowMatchEulerDiscreteScheduler,shift=0":                                   {"shift", "above 0"},
		"FlowMatchEulerDiscreteScheduler,time_shift_type=cubic":                     {"time_shift_type", "exponential, linear"},
		"FlowMatchEulerDiscreteScheduler,max_image_seq_len=256":                     {"max_image_seq_len", "256"},
		"EulerDiscreteScheduler,use_karras_sigmas=true,use_beta_sigmas=true":        {"use_beta_sigmas", "at most one"},
		"LCMScheduler,original_inference_steps=2000":                                {"original_inference_steps", "1000"},
	} {
		_, err := Parse(text, config(t, sd15))
		for _, want := range wants {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %v, want one with %q", text, err, want)
			}
		}
	}
	if _, err := New("", config(t, "{}")); err == nil || !strings.Contains(err.Error(), "_class_name") {
		t.Errorf("no class: %v", err)
	}
	_, err := New("", config(t, `{"_class_name": "DDIMScheduler", "clip_sample": 3, "steps_offset": "x"}`))
	if err == nil || strings.Count(err.Error(), "scheduler_config.json: ") != 2 {
		t.Errorf("two bad fields: %v, want both listed", err)
	}
}

func TestScheduleErrors(t *testing.T) {
	nan, mu := math.NaN(), 0.5
	for _, c := range []struct {
		scheduler string
		options   Options
		wants     []string
	}{
		{"DDIMScheduler", Options{}, []string{"steps: found 0", "1 or more"}},
		{"DDIMScheduler", Options{Steps: -2}, []string{"steps: found -2"}},
		{"EulerDiscreteScheduler", Options{Steps: MaxSteps + 1}, []string{"100000"}},
		{"DDIMScheduler", Options{Steps: 1001}, []string{"1001 steps", "1000 timesteps", "999 steps work"}},
		{"DDIMScheduler", Options{Steps: 1000}, []string{"timestep 1000", "0 to 999", "999 steps work"}},
		{"PNDMScheduler", Options{Steps: 1000}, []string{"999 steps work"}},
		{"PNDMScheduler,skip_prk_steps=false", Options{Steps: 3}, []string{"4 steps or more", "4 steps work"}},
		{"LCMScheduler", Options{Steps: 999}, []string{"original_inference_steps = 50", "50 steps work"}},
		{"EulerDiscreteScheduler,timestep_spacing=leading", Options{Steps: 1001}, []string{"1000 steps work"}},
		{"DPMSolverMultistepScheduler,timestep_spacing=leading", Options{Steps: 1000}, []string{"same sigma", "998 steps work"}},
		{"DDIMScheduler", Options{Steps: 70000}, []string{"; 999 steps work"}},
		{"UniPCMultistepScheduler,timestep_spacing=leading", Options{Steps: MaxSteps}, []string{"; 998 steps work"}},
		{"DDIMScheduler,rescale_betas_zero_snr=true,timestep_spacing=trailing", Options{Steps: 4}, []string{"timestep 999", "coefficient"}},
		{"DDIMScheduler", Options{Steps: 4, Eta: 1.5}, []string{"eta", "1.5"}},
		{"DDIMScheduler", Options{Steps: 4, Skip: 4}, []string{"leave out", "4 of 4"}},
		{"DDIMScheduler", Options{Steps: 4, Skip: -1}, []string{"leave out", "-1 of 4"}},
		{"DDIMScheduler", Options{Steps: 4, Eta: nan}, []string{"eta", "NaN"}},
		{"DDIMScheduler", Options{Steps: 4, Mu: &mu}, []string{"DDIMScheduler", "mu"}},
		{"DDIMScheduler", Options{Steps: 4, Mu: &nan}, []string{"mu", "finite"}},
		{"DDIMScheduler", Options{Sigmas: []float64{1, 0.5}}, []string{"sigmas: it takes none"}},
		{"PNDMScheduler", Options{Timesteps: []float64{900, 1}}, []string{"timesteps: it takes none"}},
		{"EulerDiscreteScheduler", Options{Timesteps: []float64{900, nan}}, []string{"timesteps[1]", "NaN"}},
		{"EulerDiscreteScheduler", Options{Timesteps: []float64{1, 900}}, []string{"timesteps[1]", "descending"}},
		{"EulerDiscreteScheduler", Options{Steps: 2, Sigmas: []float64{3, 0}}, []string{"2 sigmas", "one more"}},
		{"FlowMatchEulerDiscreteScheduler", Options{Steps: 3, Sigmas: []float64{1, 0.5}}, []string{"2 sigmas and 3 steps"}},
		{"FlowMatchEulerDiscreteScheduler", Options{Sigmas: []float64{1, -0.5}}, []string{"sigmas[1]", "-0.5"}},
		{"FlowMatchEulerDiscreteScheduler,use_dynamic_shifting=true", Options{Steps: 3}, []string{"mu", "use_dynamic_shifting"}},
		{"FlowMatchEulerDiscreteScheduler,shift_terminal=0.02", Options{Sigmas: FlowSigmas(1)}, []string{"shift_terminal", "2 or more"}},
	} {
		s, err := Parse(c.scheduler, config(t, sd15))
		if err != nil {
			t.Errorf("%s: %v", c.scheduler, err)
			continue
		}
		_, err = s.Schedule(c.options)
		for _, want := range c.wants {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s %+v: error %v, want one with %q", c.scheduler, c.options, err, want)
			}
		}
	}
}

// TestKeys holds the fields of each class against those in the configs that diffusers wrote, so that none is forgotten.
func TestKeys(t *testing.T) {
	g := loadGolden(t, "testdata", "golden")
	for _, name := range g.names() {
		cfg, err := checkpoint.ReadConfig(g.configs + "/" + name + "/scheduler_config.json")
		if err != nil {
			t.Fatal(err)
		}
		c, err := lookup(cfg.Class())
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.keys()
		if err != nil {
			t.Fatal(err)
		}
		want := slices.DeleteFunc(cfg.Keys(), func(k string) bool { return strings.HasPrefix(k, "_") })
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s has the fields %v, want %v", c.name, got, want)
		}
	}
}
