package pipelines

import (
	"errors"
	"fmt"
	"math"

	"precast/graph/scheduler"
)

// Image-to-image is a pipeline's text-to-image with another start: the request's picture, encoded, with the noise of a later step. The first
// steps are left out, more of them the lower the strength (diffusers, pipelines/*/pipeline_*_img2img.py).

// startAt computes the schedule without o.Skip of its steps.
func startAt(s *scheduler.Scheduler, o scheduler.Options, steps int, strength float64) (*scheduler.Schedule, error) {
	if o.Skip >= steps {
		// Rounded up, so that it is enough.
		return nil, fmt.Errorf("strength: %v of %d steps leaves no step to do; give a strength of %v or more, or more steps", strength, steps, math.Ceil(1000/float64(steps))/1000)
	}
	return s.Schedule(o)
}

// sizeFromImage gives a request that names no size that of its picture, cut to multiples (VaeImageProcessor.get_default_height_width).
func sizeFromImage(r *Request, multiple int) {
	if r.Image == nil {
		return
	}
	for _, side := range []struct {
		v     *int
		found int
	}{{&r.Height, r.Image.Height}, {&r.Width, r.Image.Width}} {
		if *side.v != 0 {
			continue
		}
		if *side.v = side.found / multiple * multiple; *side.v == 0 {
			*side.v = side.found // too small: the check of sizes says so
		}
	}
}

// checkImage checks what goes with a picture to start from.
func checkImage(r *Request) error {
	if r.Image != nil && r.Latents != nil {
		return errors.New("latents: given beside an image; both say where to start, give one of them")
	}
	return nil
}

// warnResized says that the picture has not the size that is asked for.
func warnResized(r *Request) {
	if m := r.Image; m != nil && (m.Height != r.Height || m.Width != r.Width) {
		r.warn("the image is resized from %dx%d to %dx%d (height x width)", m.Height, m.Width, r.Height, r.Width)
	}
}

// normalized is a picture as planes [3, H, W] from -1 to 1 (VaeImageProcessor.preprocess).
func normalized(m Image) []float32 {
	n := m.Height * m.Width
	out := make([]float32, 3*n)
	for i := range n {
		for c := range 3 {
			out[c*n+i] = 2*(float32(m.RGB[3*i+c])/255) - 1
		}
	}
	return out
}

// resize is Pillow's Image.resize with the Lanczos filter of three lobes, in its arithmetic, so that every value is the same: weights of
// 22 fractional bits, first along rows, then along columns, with 8-bit values between (Pillow, src/libImaging/Resample.c). Pillow 13 goes along
// columns first where the height shrinks much more than the width (https://github.com/python-pillow/Pillow/pull/9549); earlier versions do not.
func resize(m Image, height, width int) Image {
	if m.Width != width {
		out := make([]byte, 3*m.Height*width)
		for x, f := range lanczos(m.Width, width) {
			for y := range m.Height {
				for c := range 3 {
					out[3*(y*width+x)+c] = f.apply(m.RGB, 3*y*m.Width+c, 3)
				}
			}
		}
		m = Image{Height: m.Height, Width: width, RGB: out}
	}
	if m.Height != height {
		out := make([]byte, 3*height*width)
		for y, f := range lanczos(m.Height, height) {
			for x := range 3 * width {
				out[3*y*width+x] = f.apply(m.RGB, x, 3*width)
			}
		}
		m = Image{Height: height, Width: width, RGB: out}
	}
	return m
}

// taps are the weights of one output value: those of the inputs from first on.
type taps struct {
	first   int
	weights []int32
}

const tapBits = 22

// apply is the value made of the inputs that lie stride bytes apart from start on.
func (t *taps) apply(in []byte, start, stride int) byte {
	sum, at := int32(1)<<(tapBits-1), start+t.first*stride
	for _, w := range t.weights {
		sum += int32(in[at]) * w
		at += stride
	}
	return byte(min(max(sum>>tapBits, 0), 255))
}

// lanczos are the taps of each of n values made of from.
func lanczos(from, n int) []taps {
	const lobes = 3
	sinc := func(x float64) float64 {
		if x == 0 {
			return 1
		}
		x *= math.Pi
		return math.Sin(x) / x
	}
	scale := float64(from) / float64(n)
	// Where the picture gets smaller the filter gets wider with it.
	stretch := max(scale, 1)
	support := lobes * stretch
	out := make([]taps, n)
	for i := range out {
		center := (float64(i) + 0.5) * scale
		first := max(int(center-support+0.5), 0)
		last := min(int(center+support+0.5), from)
		weights := make([]float64, last-first)
		total := 0.0
		for k := range weights {
			x := (float64(k+first) - center + 0.5) * (1 / stretch)
			if x >= -lobes && x < lobes {
				weights[k] = sinc(x) * sinc(x/lobes)
			}
			total += weights[k]
		}
		t := taps{first: first}
		for _, w := range weights {
			w = w / total * (1 << tapBits)
			t.weights = append(t.weights, int32(w+math.Copysign(0.5, w)))
		}
		out[i] = t
	}
	return out
}
