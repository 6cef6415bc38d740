package pipelines

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/scheduler"
	"precast/graph/trace"
)

// loop is the denoising loop that every pipeline shares: the denoiser, then the step program, with nothing read back until the end.
type loop struct {
	ex  Executor
	req *Request
	// latents is the start noise (float32), without init_noise_sigma; dims is its shape.
	latents []float32
	dims    []int
	// draw draws noise of that shape for stochastic schedulers.
	draw func() []float32
	// schedule is what the scheduler computed.
	schedule *scheduler.Schedule
	kind     stepKind
	// joined: the denoiser takes both halves of guidance as one batch, the negative one first; the model input has the sample twice.
	joined bool
	// scaleAt is the guidance at call i, for kinds that guide.
	scaleAt func(i int) float64
	dtype   graph.DType
	// denoise calls the network on a model input at call i and returns cond and, for guided kinds, uncond; joined, both in one. It does not free its input.
	denoise func(ctx context.Context, input Tensor, i int) (cond, uncond Tensor, err error)
	// component names the denoiser in errors; componentAt, where denoisers take turns, that of call i.
	component   string
	componentAt func(i int) string

	drawn int // number of draws so far
}

// constant is the guidance of a pipeline whose scale is the same at every step.
func constant(scale float64) func(int) float64 { return func(int) float64 { return scale } }

// begin makes the loop start from a picture's latents with noise, as much as the schedule has at its start (add_noise).
func (l *loop) begin(clean, noise []float32) {
	plan := *l.schedule
	plan.InitNoiseSigma = 1 // the mix is complete
	l.schedule = &plan
	l.latents = make([]float32, len(clean))
	for i, x := range clean {
		l.latents[i] = float32(plan.Start.Sample)*x + float32(plan.Start.Noise)*noise[i]
	}
}

// run returns the final latents.
func (l *loop) run(ctx context.Context) (Tensor, error) {
	step := stepProgram(l.dims, l.schedule.Slots, l.kind, l.joined, l.dtype)
	fixed, state := tensors{}, tensors{}
	defer fixed.free()
	defer state.free()
	if err := l.start(fixed, state); err != nil {
		return nil, err
	}
	var finite tensorList
	defer func() { finite.free() }()
	for i := range l.schedule.Calls {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		out, err := l.step(ctx, step, i, fixed, state)
		if err != nil {
			return nil, err
		}
		finite.add(out["finite"])
		if err := l.report(ctx, i, out); err != nil {
			return nil, err
		}
	}
	for i, t := range finite {
		b, err := t.Read(ctx)
		if err != nil {
			return nil, err
		}
		if b[0] == 0 {
			component := l.component
			if l.componentAt != nil {
				component = l.componentAt(i)
			}
			return nil, &NotFiniteError{Stage: fmt.Sprintf("the latents after step %d of %d", i+1, len(finite)), Component: component}
		}
	}
	result := state["sample"]
	delete(state, "sample")
	return result, nil
}

// callDenoiser runs the denoiser p on the latents, its first input, at a timestep, the same for every picture, and on its conditions; for kinds
// that guide, once more on the negative ones, unless they are joined: then the result is both halves'. It returns p's result sample.
func callDenoiser(ctx context.Context, ex Executor, p *Program, kind stepKind, latents Tensor, timestep float32, c *conditions) (cond, uncond Tensor, err error) {
	i := slices.IndexFunc(p.Inputs, func(in trace.Input) bool { return in.Name == "timestep" })
	shape := p.Inputs[i].Shape
	t, err := ex.Put(shape, float32Bytes(slices.Repeat([]float32{timestep}, shape.Size())))
	if err != nil {
		return nil, nil, err
	}
	defer t.Free()
	calls := []tensors{nil}
	if kind != plain && !c.joined {
		calls = append(calls, c.negative)
	}
	var in []map[string]Tensor
	for _, negative := range calls {
		one := map[string]Tensor{p.Inputs[0].Name: latents, "timestep": t}
		maps.Copy(one, c.positive)
		maps.Copy(one, negative)
		in = append(in, one)
	}
	out, err := ex.RunAll(ctx, p, in)
	if err != nil {
		return nil, nil, err
	}
	if len(out) > 1 {
		uncond = out[1]["sample"]
	}
	return out[0]["sample"], uncond, nil
}

// start uploads what does not change (fixed) and what the first call reads (state): the scaled noise, the model input made from it, empty history.
func (l *loop) start(fixed, state tensors) error {
	sample := make([]float32, len(l.latents))
	input := make([]float32, len(l.latents))
	for i, v := range l.latents {
		sample[i] = v * float32(l.schedule.InitNoiseSigma)
		input[i] = sample[i] * float32(l.schedule.InputScale)
	}
	zeros := make([]float32, len(l.latents))
	if err := state.put(l.ex, "sample", float32Type, sample, l.dims...); err != nil {
		return err
	}
	dims := l.dims
	if l.joined {
		input, dims = slices.Repeat(input, 2), twice(dims)
	}
	if err := state.put(l.ex, "model_input", l.dtype, input, dims...); err != nil {
		return err
	}
	for k := range l.schedule.Slots {
		if err := state.put(l.ex, history(k), float32Type, zeros, l.dims...); err != nil {
			return err
		}
	}
	if err := fixed.put(l.ex, "noise", float32Type, zeros, l.dims...); err != nil {
		return err
	}
	if l.kind == rescaled {
		return fixed.put(l.ex, "guidance_rescale", float32Type, []float32{float32(l.req.GuidanceRescale)})
	}
	return nil
}

// step calls the denoiser and the step program, and replaces the state by what they give.
func (l *loop) step(ctx context.Context, p *Program, i int, fixed, state tensors) (map[string]Tensor, error) {
	call := &l.schedule.Calls[i]
	once := tensors{}
	defer once.free()
	cond, uncond, err := l.denoise(ctx, state["model_input"], i)
	if err != nil {
		return nil, err
	}
	if l.joined {
		once["pair"] = cond
	} else {
		once["cond"] = cond
	}
	if uncond != nil {
		once["uncond"] = uncond
	}
	state["model_input"].Free()
	delete(state, "model_input")
	slots := l.schedule.Slots
	type value struct {
		name string
		v    []float32
		dims []int
	}
	values := []value{
		{"coefficients", call.Flat(), []int{scheduler.Rows(slots), scheduler.Columns(slots)}},
		{"lo", []float32{float32(call.Lo)}, nil},
		{"hi", []float32{float32(call.Hi)}, nil},
	}
	if l.kind != plain {
		values = append(values, value{"guidance_scale", []float32{float32(l.scaleAt(i))}, nil})
	}
	if call.NeedsNoise {
		values = append(values, value{"noise", l.noise(), l.dims})
	}
	for _, x := range values {
		t, err := put(l.ex, float32Type, x.v, x.dims...)
		if err != nil {
			return nil, err
		}
		once[x.name] = t
	}
	in := map[string]Tensor{}
	for _, m := range []tensors{fixed, state, once} {
		maps.Copy(in, m)
	}
	out, err := l.ex.Run(ctx, p, in)
	if err != nil {
		return nil, err
	}
	// Run has freed the donated ones among them; freeing again does nothing.
	state.free()
	clear(state)
	state["sample"], state["model_input"] = out["latents"], out["model_input"]
	for k := range slots {
		state[history(k)] = out[history(k)]
	}
	return out, nil
}

// report tells the request's observers about a step.
func (l *loop) report(ctx context.Context, i int, out map[string]Tensor) error {
	defer out["model_output"].Free()
	for name, t := range map[string]Tensor{"step_model_output": out["model_output"], "step_latents": out["latents"]} {
		if err := observeTensor(ctx, l.req, name, t); err != nil {
			return err
		}
	}
	if l.req.Progress != nil {
		// Progress is honest only when the step is done; the flag is the step's last value.
		if _, err := out["finite"].Read(ctx); err != nil {
			return err
		}
		l.req.Progress(i+1, len(l.schedule.Calls))
	}
	return nil
}

func history(k int) string { return fmt.Sprintf("h%d", k) }

// put uploads v in a dtype.
func put(ex Executor, dtype graph.DType, v []float32, dims ...int) (Tensor, error) {
	data, err := encodeFloats(dtype, v)
	if err != nil {
		return nil, err
	}
	return ex.Put(shape(dtype, dims...), data)
}

// encodeFloats is v in a dtype, little-endian.
func encodeFloats(dtype graph.DType, v []float32) ([]byte, error) {
	data := float32Bytes(v)
	if dtype == float32Type {
		return data, nil
	}
	narrow := make([]byte, len(v)*dtype.Size())
	return narrow, checkpoint.ConvertBytes(narrow, dtype, data, float32Type)
}

// noise is the next draw of a stochastic scheduler: from the request's own, which checkStepNoise has found long enough, or drawn.
func (l *loop) noise() []float32 {
	k := l.drawn
	l.drawn++
	given := l.req.StepNoise
	if given == nil {
		return l.draw()
	}
	size := 4 * len(l.latents)
	return float32s(given.Data[k*size : (k+1)*size])
}

// NotFiniteError says that a stage computed NaN or infinity.
type NotFiniteError struct {
	// Stage is what held the value; Component computed it.
	Stage, Component string
}

func (e *NotFiniteError) Error() string {
	return fmt.Sprintf("%s: %s hold NaN or infinity; no picture is written. Look for such values in the weights, or try --dtype float32", e.Component, e.Stage)
}

// tensors are values by name, freed together.
type tensors map[string]Tensor

// put uploads v in a dtype under a name.
func (m tensors) put(ex Executor, name string, dtype graph.DType, v []float32, dims ...int) error {
	t, err := put(ex, dtype, v, dims...)
	if err == nil {
		m[name] = t
	}
	return err
}

// putInts uploads whole numbers under a name.
func (m tensors) putInts(ex Executor, name string, v []int32, dims ...int) error {
	t, err := ex.Put(shape(int32Type, dims...), int32Bytes(v))
	if err == nil {
		m[name] = t
	}
	return err
}

// putRotary uploads the tables of a rotary position embedding.
func (m tensors) putRotary(ex Executor, cos, sin []float32, dims ...int) error {
	if err := m.put(ex, "rotary_cos", float32Type, cos, dims...); err != nil {
		return err
	}
	return m.put(ex, "rotary_sin", float32Type, sin, dims...)
}

func (m tensors) free() {
	for _, t := range m {
		t.Free()
	}
}

// tensorList is a list of values, freed together.
type tensorList []Tensor

func (l *tensorList) add(t Tensor) { *l = append(*l, t) }

func (l tensorList) free() {
	for _, t := range l {
		if t != nil {
			t.Free()
		}
	}
}

func observeTensor(ctx context.Context, req *Request, name string, t Tensor) error {
	if req.Observe == nil {
		return nil
	}
	b, err := t.Read(ctx)
	if err != nil {
		return err
	}
	req.Observe(name, HostTensor{Shape: t.Shape(), Data: b})
	return nil
}

// readFloats reads a tensor as float32, checking that every value is finite.
func readFloats(ctx context.Context, t Tensor, component, stage string) ([]float32, error) {
	b, err := t.Read(ctx)
	if err != nil {
		return nil, err
	}
	if d := t.Shape().DType; d != float32Type {
		wide := make([]byte, t.Shape().Size()*4)
		if err := checkpoint.ConvertBytes(wide, float32Type, b, d); err != nil {
			return nil, err
		}
		b = wide
	}
	v := float32s(b)
	for _, x := range v {
		if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
			return nil, &NotFiniteError{Stage: stage, Component: component}
		}
	}
	return v, nil
}

// toImage turns a decoder's output [1, 3, H, W], nominally -1 to 1, into 8-bit RGB as diffusers' VaeImageProcessor does: x/2 + 0.5, clamped,
// times 255, rounded half to even.
func toImage(v []float32, h, w int) Image {
	img := Image{Height: h, Width: w, RGB: make([]byte, 3*h*w)}
	for c := range 3 {
		plane := v[c*h*w : (c+1)*h*w]
		for i, x := range plane {
			x = min(max(x/2+0.5, 0), 1)
			img.RGB[3*i+c] = byte(math.RoundToEven(float64(x * 255)))
		}
	}
	return img
}
