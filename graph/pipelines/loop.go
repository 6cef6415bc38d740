package pipelines

import (
	"context"
	"fmt"
	"math"
	"slices"

	"precast/graph"
	"precast/graph/checkpoint"
	"precast/graph/scheduler"
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
	scale    float64 // guidance_scale of kind guided
	dtype    graph.DType
	// denoise calls the network on a model input at call i and returns cond and, for guided kinds, uncond. It does not free its input.
	denoise func(ctx context.Context, input Tensor, i int) (cond, uncond Tensor, err error)
	// component names the denoiser in errors.
	component string
}

// run returns the final latents.
func (l *loop) run(ctx context.Context) (Tensor, error) {
	step := stepProgram(l.dims, l.schedule.Slots, l.kind, l.dtype)
	var tensors tensorList
	defer tensors.free()

	start := make([]float32, len(l.latents))
	input := make([]float32, len(l.latents))
	for i, v := range l.latents {
		start[i] = v * float32(l.schedule.InitNoiseSigma)
		input[i] = start[i] * float32(l.schedule.InputScale)
	}
	state := map[string]Tensor{}
	defer func() {
		for _, t := range state {
			t.Free()
		}
	}()
	var err error
	if state["sample"], err = l.ex.Put(f32(l.dims...), float32Bytes(start)); err != nil {
		return nil, err
	}
	if state["model_input"], err = l.put(input); err != nil {
		return nil, err
	}
	zeros := make([]byte, 4*len(l.latents))
	for k := range l.schedule.Slots {
		if state[fmt.Sprintf("h%d", k)], err = l.ex.Put(f32(l.dims...), zeros); err != nil {
			return nil, err
		}
	}
	noNoise, err := l.ex.Put(f32(l.dims...), zeros)
	if err != nil {
		return nil, err
	}
	tensors.add(noNoise)
	scalar := func(v float64) (Tensor, error) { return l.ex.Put(f32(), float32Bytes([]float32{float32(v)})) }
	var finite []Tensor
	drawn := 0
	var scale, rescale Tensor
	if l.kind != plain {
		if scale, err = scalar(l.scale); err != nil {
			return nil, err
		}
		tensors.add(scale)
	}
	if l.kind == rescaled {
		if rescale, err = scalar(l.req.GuidanceRescale); err != nil {
			return nil, err
		}
		tensors.add(rescale)
	}
	for i := range l.schedule.Calls {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		call := &l.schedule.Calls[i]
		cond, uncond, err := l.denoise(ctx, state["model_input"], i)
		if err != nil {
			return nil, err
		}
		state["model_input"].Free()
		delete(state, "model_input")
		in := map[string]Tensor{"cond": cond, "sample": state["sample"], "noise": noNoise}
		stepOnly := tensorList{cond}
		put := func(name string, t Tensor, err error) error {
			if err == nil {
				in[name] = t
				stepOnly.add(t)
			}
			return err
		}
		if uncond != nil {
			in["uncond"], in["guidance_scale"] = uncond, scale
			stepOnly.add(uncond)
		}
		if rescale != nil {
			in["guidance_rescale"] = rescale
		}
		for k := range l.schedule.Slots {
			name := fmt.Sprintf("h%d", k)
			in[name] = state[name]
		}
		if call.NeedsNoise {
			v, err := l.noise(drawn)
			if err == nil {
				var t Tensor
				t, err = l.ex.Put(f32(l.dims...), float32Bytes(v))
				err = put("noise", t, err)
			}
			if err != nil {
				stepOnly.free()
				return nil, err
			}
			drawn++
		}
		slots := l.schedule.Slots
		t, err := l.ex.Put(f32(scheduler.Rows(slots), scheduler.Columns(slots)), float32Bytes(call.Flat()))
		err = put("coefficients", t, err)
		if err == nil {
			t, err = scalar(call.Lo)
			err = put("lo", t, err)
		}
		if err == nil {
			t, err = scalar(call.Hi)
			err = put("hi", t, err)
		}
		if err != nil {
			stepOnly.free()
			return nil, err
		}
		out, err := l.ex.Run(ctx, step, in)
		stepOnly.free()
		if err != nil {
			return nil, err
		}
		// Run frees donated inputs; freeing again does nothing.
		for _, t := range state {
			t.Free()
		}
		clear(state)
		state["sample"], state["model_input"] = out["latents"], out["model_input"]
		for k := range slots {
			name := fmt.Sprintf("h%d", k)
			state[name] = out[name]
		}
		finite = append(finite, out["finite"])
		tensors.add(out["finite"])
		if l.req.Observe != nil {
			if err := observeTensor(ctx, l.req, "step_model_output", out["model_output"]); err != nil {
				return nil, err
			}
			if err := observeTensor(ctx, l.req, "step_latents", out["latents"]); err != nil {
				return nil, err
			}
		}
		out["model_output"].Free()
		if l.req.Progress != nil {
			// Waiting here keeps progress honest and at most one step ahead; the device is never idle for it: the flag is the step's last value.
			if _, err := out["finite"].Read(ctx); err != nil {
				return nil, err
			}
			l.req.Progress(i+1, len(l.schedule.Calls))
		}
	}
	for i, t := range finite {
		b, err := t.Read(ctx)
		if err != nil {
			return nil, err
		}
		if b[0] == 0 {
			return nil, &NotFiniteError{Stage: fmt.Sprintf("the latents after step %d of %d", i+1, len(finite)), Component: l.component}
		}
	}
	result := state["sample"]
	delete(state, "sample")
	return result, nil
}

// put uploads v in the denoiser's dtype.
func (l *loop) put(v []float32) (Tensor, error) {
	data := float32Bytes(v)
	if l.dtype != float32Type {
		narrow := make([]byte, len(v)*l.dtype.Size())
		if err := checkpoint.ConvertBytes(narrow, l.dtype, data, float32Type); err != nil {
			return nil, err
		}
		data = narrow
	}
	return l.ex.Put(shape(l.dtype, l.dims...), data)
}

// noise is the k-th draw of a stochastic scheduler: the request's own, or drawn.
func (l *loop) noise(k int) ([]float32, error) {
	given := l.req.StepNoise
	if given == nil {
		return l.draw(), nil
	}
	want := append([]int{0}, l.dims...)
	dims := given.Shape.Dimensions
	if len(dims) != len(want) || !slices.Equal(dims[1:], want[1:]) {
		return nil, fmt.Errorf("step_noise: shape is %v, wanted one leading axis and then %v", dims, l.dims)
	}
	if k >= dims[0] {
		return nil, fmt.Errorf("step_noise: holds noise for %d steps, but step %d needs one more", dims[0], k+1)
	}
	size := len(l.latents)
	return float32s(given.Data)[k*size : (k+1)*size], nil
}

// NotFiniteError says that a stage computed NaN or infinity.
type NotFiniteError struct {
	// Stage is what held the value; Component computed it.
	Stage, Component string
}

func (e *NotFiniteError) Error() string {
	return fmt.Sprintf("%s: %s hold NaN or infinity; no picture is written. Look for such values in the weights, or try --dtype float32", e.Component, e.Stage)
}

// tensorList frees several tensors at once.
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
