// Package scheduler makes the denoising schedule of a pipeline: which timesteps the denoiser is called at and how each of its
// outputs moves the latents, for the scheduler classes of diffusers.
//
// Every step of every class is linear in what it is given. A scheduler is therefore a table of coefficients, computed on the
// host in float64 from the component's config, and one small traced program (StepNetwork) applies a row of that table on the
// device. Another class, number of steps or option changes numbers and compiles nothing, as long as the number of history slots
// stays. The operands of a step and the results of the program are
//
//	V    = [sample, model_output, noise, h0 .. h(K-1)]      K history slots
//	x0   = clamp(c_x0 . V, lo, hi)                          used where the class clips its prediction
//	W    = [V, x0]
//	prev_sample = c_prev . W
//	model_input = c_input . W                               the next call's scaled input
//	h0 .. h(K-1) = c_h . W
//
// A class is one file: the config fields it reads, its tables (timesteps and sigmas, in tables) and its step as linear forms (in
// calls). What classes share is in betas.go, spacing.go and sigmas.go. A new class is a file of its own, an entry in classes and
// goldens in testdata.
//
// The oracle is diffusers 0.42.1 (src/diffusers/schedulers). Where it raises, or yields a value that is not finite, Schedule
// returns an error.
package scheduler

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"precast/graph/checkpoint"
)

// MaxSteps bounds Options.Steps and the lengths of its lists; no sampler gains from more steps than the model has timesteps.
const MaxSteps = 100_000

// class is one scheduler class.
type class struct {
	name string
	// read makes the class from its config; problems are collected in f.
	read func(f *fields) rule
}

// classes lists every scheduler class, by name.
var classes = []class{
	{"DDIMScheduler", readDDIM},
	{"DDPMScheduler", readDDPM},
	{"DPMSolverMultistepScheduler", readDPMSolver},
	{"EulerAncestralDiscreteScheduler", readEulerAncestral},
	{"EulerDiscreteScheduler", readEuler},
	{"FlowMatchEulerDiscreteScheduler", readFlowMatchEuler},
	{"HeunDiscreteScheduler", readHeun},
	{"LCMScheduler", readLCM},
	{"PNDMScheduler", readPNDM},
	{"UniPCMultistepScheduler", readUniPC},
}

// rule is what a class computes for one config.
type rule interface {
	// tables computes the timesteps and sigmas of o, which Schedule has checked.
	tables(o Options) (*tables, error)
	// calls writes the class's steps over t into b, from the call t.begin on.
	calls(t *tables, o Options, b *builder)
	// start is the part of a clean sample and of standard normal noise in the latents that call i of t is given (add_noise).
	start(t *tables, i int, b *builder) (sample, noise float64)
}

// Scheduler is a scheduler class with its config. It is immutable and safe for concurrent use.
type Scheduler struct {
	// Class is the class name in diffusers ("EulerDiscreteScheduler").
	Class string
	// TrainTimesteps is num_train_timesteps, which timesteps are below.
	TrainTimesteps int

	rule  rule
	shift ShiftRange
	// file is where the config comes from.
	file string
}

// Options are the arguments that a pipeline gives to set_timesteps and step.
type Options struct {
	// Steps is the number of inference steps. It may be 0 when Sigmas or Timesteps are given.
	Steps int
	// Sigmas replaces the sigmas that the class derives from Steps. FLUX-like pipelines give FlowSigmas(steps).
	// EulerDiscreteScheduler wants the final sigma in the list, the others do not.
	Sigmas []float64
	// Timesteps replaces the timesteps.
	Timesteps []float64
	// Mu is the shift of classes with use_dynamic_shifting, nil for none.
	Mu *float64
	// Eta is the weight of the noise in DDIM, from 0 (deterministic) to 1; the other classes ignore it, as pipelines do.
	Eta float64
	// Skip leaves out the first steps, as image-to-image pipelines do (get_timesteps): the run begins at Schedule.Start. It is less than the
	// number of steps.
	Skip int
}

// Schedule is the plan of one run.
type Schedule struct {
	// Timesteps has one entry a call of the denoiser; it may have more entries than there are steps (PNDM, Heun).
	Timesteps []float64
	// IntegerTimesteps tells that the class gives integers to the denoiser, not float32.
	IntegerTimesteps bool
	// Sigmas are the noise levels, rounded to float32, usually one more than timesteps; nil where the class has none.
	Sigmas []float64
	// InitNoiseSigma is the factor that makes the first latents from standard normal noise.
	InitNoiseSigma float64
	// Start makes the first latents from a picture's: Start.Sample times the picture's latents plus Start.Noise times standard normal noise
	// (add_noise, in flow matching scale_noise).
	Start Start
	// InputScale is what the first latents are multiplied with to make the first model input (scale_model_input). The
	// later ones come from the step program.
	InputScale float64
	// ScalesInput tells that some call has an InputScale other than 1. Where it is false, model_input equals prev_sample.
	ScalesInput bool
	// Slots is K, the number of history slots; all of them start as zeros.
	Slots int
	// Calls are the steps, one a timestep.
	Calls []Call
}

// Start are the parts of the latents that a run begins with.
type Start struct{ Sample, Noise float64 }

// Call is one call of the denoiser and the step after it.
type Call struct {
	// Timestep is what the denoiser is given.
	Timestep float64
	// Coefficients has Rows(K) rows of Columns(K) entries in the order of the package comment: row 0 is x0, 1 prev_sample,
	// 2 model_input, 3.. the history slots.
	Coefficients [][]float64
	// Lo and Hi bound x0; infinities where the class does not clip.
	Lo, Hi float64
	// NeedsNoise tells that the step draws standard normal noise. The program is given zeros otherwise.
	NeedsNoise bool
	// InputScale is the factor of scale_model_input at this call.
	InputScale float64
}

// Rows is the number of rows of a coefficient table with the given number of history slots.
func Rows(slots int) int { return 3 + slots }

// Columns is the number of columns of a coefficient table with the given number of history slots.
func Columns(slots int) int { return 4 + slots }

// Flat returns the coefficients row by row in float32: the value of the step program's input "coefficients".
func (c *Call) Flat() []float32 {
	var out []float32
	for _, row := range c.Coefficients {
		for _, v := range row {
			out = append(out, float32(v))
		}
	}
	return out
}

// Known lists the scheduler classes, sorted.
func Known() []string {
	var names []string
	for _, c := range classes {
		names = append(names, c.name)
	}
	slices.Sort(names)
	return names
}

// New makes the scheduler of that class from its config, scheduler_config.json; an empty class means the one the config names.
// A nil config means the defaults of the class. Keys that the class does not have are ignored, as diffusers does. The error lists every
// field with a bad value.
func New(name string, cfg *checkpoint.Config) (*Scheduler, error) {
	if cfg == nil {
		var err error
		if cfg, err = checkpoint.ParseConfig("the defaults of "+name, []byte("{}")); err != nil {
			return nil, err
		}
	}
	if name == "" {
		if name = cfg.Class(); name == "" {
			return nil, fmt.Errorf("%s: _class_name: found nothing, wanted a scheduler class (%s)", cfg.File(), strings.Join(Known(), ", "))
		}
	}
	c, err := lookup(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.File(), err)
	}
	f := &fields{cfg: cfg}
	r := c.read(f)
	shift := readShiftRange(cfg)
	if err := cfg.Err(); err != nil {
		return nil, err
	}
	return &Scheduler{Class: name, TrainTimesteps: cfg.Int("num_train_timesteps", 1000), rule: r, shift: shift, file: cfg.File()}, nil
}

func lookup(name string) (*class, error) {
	for i := range classes {
		if classes[i].name == name {
			return &classes[i], nil
		}
	}
	return nil, fmt.Errorf("class %q is not known; the known ones are %s", name, strings.Join(Known(), ", "))
}

// tables are the timesteps and sigmas of one run.
type tables struct {
	// timesteps has one entry a call.
	timesteps []float64
	integer   bool
	// sigmas is nil where the class has none.
	sigmas []float64
	// initNoiseSigma is 1 for most classes.
	initNoiseSigma float64
	// inputScales has an entry a call, nil where the class does not scale its input.
	inputScales []float64
	// begin is the first call of the run: what is before it is left out.
	begin int
}

// stepCountError is a fault of the number of steps: another number may work.
type stepCountError struct{ msg string }

func (e *stepCountError) Error() string { return e.msg }

func stepCountErrorf(format string, args ...any) error {
	return &stepCountError{fmt.Sprintf(format, args...)}
}

// Schedule computes the plan of a run. It fails on arguments the class does not take, and on a number of steps that diffusers
// refuses or that yields values that are not finite; the error then names a number that works.
func (s *Scheduler) Schedule(o Options) (*Schedule, error) {
	if err := o.check(s.Class); err != nil {
		return nil, err
	}
	out, err := s.plan(o)
	if _, ok := errors.AsType[*stepCountError](err); ok {
		err = fmt.Errorf("%s: %s cannot run %d steps: %w%s", s.file, s.Class, o.count(), err, s.suggest(o))
	} else if err != nil {
		err = fmt.Errorf("%s: %s: %w", s.file, s.Class, err)
	}
	return out, err
}

// count is the number of steps that the options ask for.
func (o Options) count() int {
	if o.Steps > 0 {
		return o.Steps
	}
	return max(len(o.Sigmas), len(o.Timesteps))
}

func (o Options) check(class string) error {
	given := len(o.Sigmas) > 0 || len(o.Timesteps) > 0
	switch {
	case o.Steps < 0 || (o.Steps == 0 && !given):
		return fmt.Errorf("number of inference steps: found %d, wanted 1 or more", o.Steps)
	case max(o.Steps, len(o.Sigmas), len(o.Timesteps)) > MaxSteps:
		return fmt.Errorf("number of inference steps: found %d, wanted at most %d", max(o.Steps, len(o.Sigmas), len(o.Timesteps)), MaxSteps)
	case o.Skip < 0 || (o.Skip > 0 && o.Skip >= o.count()):
		return fmt.Errorf("steps to leave out: found %d of %d, wanted 0 or more, and one step at least is left", o.Skip, o.count())
	case !(o.Eta >= 0 && o.Eta <= 1):
		return fmt.Errorf("eta: found %v, wanted a number from 0 to 1", o.Eta)
	case o.Mu != nil && !finite(*o.Mu):
		return fmt.Errorf("%s: mu: found %v, wanted a finite number", class, *o.Mu)
	}
	for i, v := range o.Sigmas {
		if !finite(v) || v < 0 {
			return fmt.Errorf("sigmas[%d]: found %v, wanted a finite number of 0 or more", i, v)
		}
	}
	for i, v := range o.Timesteps {
		if !finite(v) || v < 0 {
			return fmt.Errorf("timesteps[%d]: found %v, wanted a finite number of 0 or more", i, v)
		}
	}
	return nil
}

// plan computes the schedule; o has been checked.
func (s *Scheduler) plan(o Options) (*Schedule, error) {
	t, err := s.rule.tables(o)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(t.sigmas, notFinite); i >= 0 {
		return nil, stepCountErrorf("sigmas[%d] is %v", i, t.sigmas[i])
	}
	if i := slices.IndexFunc(t.timesteps, notFinite); i >= 0 {
		return nil, stepCountErrorf("timesteps[%d] is %v", i, t.timesteps[i])
	}
	t.begin = o.Skip
	if _, ok := s.rule.(*heun); ok {
		t.begin *= 2 // the class's order: a step is two calls
	}
	b := &builder{}
	s.rule.calls(t, o, b)
	var start Start
	start.Sample, start.Noise = s.rule.start(t, t.begin, b)
	plan, err := b.schedule(t)
	if err == nil {
		plan.Start = start
	}
	return plan, err
}

// suggest words a number of steps near o's that works, for an error; "" when none is found.
func (s *Scheduler) suggest(o Options) string {
	if len(o.Sigmas) > 0 || len(o.Timesteps) > 0 {
		return ""
	}
	works := func(n int) bool {
		if n < 1 || n > MaxSteps {
			return false
		}
		try := o
		try.Steps = n
		_, err := s.plan(try)
		return err == nil
	}
	for d := 1; d <= 8; d++ {
		for _, n := range []int{o.Steps - d, o.Steps + d} {
			if works(n) {
				return fmt.Sprintf("; %d steps work", n)
			}
		}
	}
	// Further off, the numbers that fail are those above a limit.
	for _, low := range []int{50, 20, 4} {
		if low >= o.Steps || !works(low) {
			continue
		}
		high := o.Steps
		for high-low > 1 {
			if mid := (low + high) / 2; works(mid) {
				low = mid
			} else {
				high = mid
			}
		}
		return fmt.Sprintf("; %d steps work", low)
	}
	return ""
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

func notFinite(v float64) bool { return !finite(v) }
