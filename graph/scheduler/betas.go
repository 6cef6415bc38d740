package scheduler

import (
	"fmt"
	"math"
	"slices"
)

// maxTrainTimesteps bounds num_train_timesteps; published models have 1000.
const maxTrainTimesteps = 100_000

// diffusion is the forward process of a variance preserving model: the table of cumulated alphas.
//
// The tables are float32 with the product accumulated in float64, as torch.cumprod does on a CPU: small sigmas come from
// 1 - alpha, where another rounding shows (1e-5 relative).
type diffusion struct {
	// train is num_train_timesteps.
	train int
	// alphas is alphas_cumprod, float32 values.
	alphas []float64
	// prediction is prediction_type.
	prediction string
}

// diffusionKeys says where the classes differ in the fields of the forward process.
type diffusionKeys struct {
	// betaStart and betaEnd are the defaults, 0.0001 and 0.02 where 0.
	betaStart, betaEnd float64
	// schedule is the default of beta_schedule, "linear" where empty.
	schedule string
	// moreSchedules are known to the class beside linear, scaled_linear and squaredcos_cap_v2.
	moreSchedules []string
	// predictions are the prediction types after epsilon.
	predictions []string
	// rescale tells that the class has rescale_betas_zero_snr.
	rescale bool
	// floorLastAlpha tells that the class replaces the last alpha of a rescaled table by 2^-24, to keep sigma finite.
	floorLastAlpha bool
}

// diffusion reads the fields of the forward process.
func (f *fields) diffusion(k diffusionKeys) *diffusion {
	d := &diffusion{train: f.int("num_train_timesteps", 1000)}
	if d.train < 1 || d.train > maxTrainTimesteps {
		f.problem("num_train_timesteps", "found %d, wanted an integer from 1 to %d", d.train, maxTrainTimesteps)
		d.train = 1000
	}
	rate := func(key string, def, fallback float64) float64 {
		if def == 0 {
			def = fallback
		}
		v := f.float(key, def)
		if v < 0 || v >= 1 {
			f.problem(key, "found %v, wanted a number from 0 to below 1", v)
			v = def
		}
		return v
	}
	start, end := rate("beta_start", k.betaStart, 0.0001), rate("beta_end", k.betaEnd, 0.02)
	schedule := k.schedule
	if schedule == "" {
		schedule = "linear"
	}
	schedule = f.oneOf("beta_schedule", schedule, append([]string{"linear", "scaled_linear", "squaredcos_cap_v2"}, k.moreSchedules...)...)
	d.prediction = f.oneOf("prediction_type", "epsilon", append([]string{"epsilon"}, k.predictions...)...)

	betas := makeBetas(schedule, start, end, d.train)
	if trained := f.floats("trained_betas"); trained != nil {
		if len(trained) != d.train {
			f.problem("trained_betas", "found %d values, wanted num_train_timesteps = %d", len(trained), d.train)
		} else {
			for i, b := range trained {
				if b < 0 || b >= 1 {
					f.problem(fmt.Sprintf("trained_betas[%d]", i), "found %v, wanted a number from 0 to below 1", b)
				}
				betas[i] = float32(b)
			}
		}
	}
	rescaled := k.rescale && f.bool("rescale_betas_zero_snr", false)
	if rescaled && d.train < 2 {
		f.problem("rescale_betas_zero_snr", "found true with num_train_timesteps = %d, wanted at least 2 timesteps", d.train)
		rescaled = false
	}
	if rescaled {
		betas = rescaleZeroTerminalSNR(betas)
	}
	cumprod := cumulate(betas)
	if rescaled && k.floorLastAlpha {
		cumprod[len(cumprod)-1] = 1.0 / (1 << 24)
	}
	for _, a := range cumprod {
		d.alphas = append(d.alphas, float64(a))
	}
	return d
}

// makeBetas is the table of betas of a named schedule.
func makeBetas(schedule string, start, end float64, n int) []float32 {
	var betas []float32
	switch schedule {
	case "scaled_linear":
		betas = linspace32(math.Sqrt(start), math.Sqrt(end), n)
		for i, b := range betas {
			betas[i] = b * b
		}
	case "squaredcos_cap_v2":
		betas = betasFromAlphaBar(n, func(t float64) float64 {
			c := math.Cos((t + 0.008) / 1.008 * math.Pi / 2)
			return c * c
		})
	case "exp":
		betas = betasFromAlphaBar(n, func(t float64) float64 { return math.Exp(t * -12) })
	case "laplace":
		betas = betasFromAlphaBar(n, func(t float64) float64 {
			snr := math.Exp(-0.5 * math.Copysign(1, 0.5-t) * math.Log(1-2*math.Abs(0.5-t)+1e-6))
			return math.Sqrt(snr / (1 + snr))
		})
	case "sigmoid":
		betas = linspace32(-6, 6, n)
		for i, b := range betas {
			betas[i] = float32(1/(1+math.Exp(-float64(b))))*float32(end-start) + float32(start)
		}
	default:
		betas = linspace32(start, end, n)
	}
	return betas
}

// betasFromAlphaBar are the betas of a process whose cumulated alpha at time t in [0, 1] is bar(t), each at most 0.999 (Nichol
// and Dhariwal, Improved Denoising Diffusion Probabilistic Models, section 3.2).
func betasFromAlphaBar(n int, bar func(t float64) float64) []float32 {
	betas := make([]float32, n)
	for i := range betas {
		t1, t2 := float64(i)/float64(n), float64(i+1)/float64(n)
		betas[i] = float32(min(1-bar(t2)/bar(t1), 0.999))
	}
	return betas
}

// linspace32 is torch.linspace in float32: from both ends towards the middle, the product and the sum rounded once, as its
// kernels do with fused multiply-add. The product of two float32 is exact in float64.
func linspace32(start, end float64, n int) []float32 {
	a, b := float32(start), float32(end)
	out := make([]float32, n)
	if n == 1 {
		out[0] = a
		return out
	}
	step := (b - a) / float32(n-1)
	for i := range out {
		if i < n/2 {
			out[i] = float32(float64(a) + float64(step)*float64(i))
		} else {
			out[i] = float32(float64(b) - float64(step)*float64(n-i-1))
		}
	}
	return out
}

// cumulate is the cumulated product of 1 - beta.
func cumulate(betas []float32) []float32 {
	out := make([]float32, len(betas))
	product := 1.0
	for i, b := range betas {
		product *= float64(1 - b)
		out[i] = float32(product)
	}
	return out
}

// rescaleZeroTerminalSNR changes betas so that the last timestep is pure noise (Lin et al., Common Diffusion Noise Schedules and
// Sample Steps are Flawed, algorithm 1). The arithmetic is float32, which the last alphas depend on.
func rescaleZeroTerminalSNR(betas []float32) []float32 {
	roots := cumulate(betas)
	for i, a := range roots {
		roots[i] = float32(math.Sqrt(float64(a)))
	}
	first, last := roots[0], roots[len(roots)-1]
	factor := first / (first - last)
	bars := make([]float32, len(roots))
	for i, r := range roots {
		r = float32(r-last) * factor
		bars[i] = r * r
	}
	out := make([]float32, len(betas))
	out[0] = 1 - bars[0]
	for i := 1; i < len(bars); i++ {
		out[i] = 1 - float32(bars[i]/bars[i-1])
	}
	return out
}

// sigmas is the noise level of each training timestep as variance exploding processes count it, sqrt((1 - alpha) / alpha), in
// float32.
func (d *diffusion) sigmas() []float64 {
	out := make([]float64, len(d.alphas))
	for i, a := range d.alphas {
		out[i] = float64(float32(math.Sqrt(float64((1 - float32(a)) / float32(a)))))
	}
	return out
}

// alpha is alphas_cumprod at an integer timestep.
func (d *diffusion) alpha(timestep float64, b *builder) float64 {
	if timestep < 0 || timestep > float64(d.train-1) {
		b.fail("its schedule asks for timestep %v, and the model has 0 to %d", timestep, d.train-1)
		return 1
	}
	return d.alphas[int(timestep)]
}

// alphaOr is alpha, or final below timestep 0.
func (d *diffusion) alphaOr(timestep, final float64, b *builder) float64 {
	if timestep < 0 {
		return final
	}
	return d.alpha(timestep, b)
}

// start is add_noise at the timestep of call i.
func (d *diffusion) start(t *tables, i int, b *builder) (sample, noise float64) {
	a := d.alpha(t.timesteps[i], b)
	return math.Sqrt(a), math.Sqrt(1 - a)
}

// finalAlpha is the cumulated alpha below the first timestep.
func (d *diffusion) finalAlpha(one bool) float64 {
	if one {
		return 1
	}
	return d.alphas[0]
}

// clean is the prediction of the clean sample from a model output, for sample = alpha * clean + sigma * noise.
func clean(prediction string, alpha, sigma float64, sample, output form) form {
	switch prediction {
	case "epsilon":
		return sample.sub(output.mul(sigma)).div(alpha)
	case "v_prediction":
		return sample.mul(alpha).sub(output.mul(sigma))
	case "flow_prediction":
		return sample.sub(output.mul(sigma))
	case "sample", "original_sample":
		return slices.Clone(output)
	}
	panic("BUG: prediction type " + prediction)
}

// noiseOf is the prediction of the noise from a model output, for sample = alpha * clean + sigma * noise.
func noiseOf(prediction string, alpha, sigma float64, sample, output form) form {
	switch prediction {
	case "epsilon":
		return slices.Clone(output)
	case "v_prediction":
		return output.mul(alpha).add(sample.mul(sigma))
	case "sample":
		return sample.sub(output.mul(alpha)).div(sigma)
	}
	panic("BUG: prediction type " + prediction)
}
