package scheduler

import "precast/graph/checkpoint"

// ShiftRange relates the length of the image sequence to the shift mu of flow matching: BaseShift at BaseLen tokens, MaxShift at
// MaxLen, linear between and beyond.
type ShiftRange struct {
	BaseLen, MaxLen     int
	BaseShift, MaxShift float64
}

// readShiftRange reads the range from a scheduler's config, with the defaults of diffusers' pipelines.
func readShiftRange(cfg *checkpoint.Config) ShiftRange {
	r := ShiftRange{
		BaseLen: cfg.PositiveInt("base_image_seq_len", 256), MaxLen: cfg.PositiveInt("max_image_seq_len", 4096),
		BaseShift: cfg.Float("base_shift", 0.5), MaxShift: cfg.Float("max_shift", 1.15),
	}
	if r.MaxLen == r.BaseLen {
		cfg.Problem("max_image_seq_len", "found %d, which base_image_seq_len is too, wanted two lengths", r.MaxLen)
	}
	return r
}

// Mu is the shift at n image tokens (calculate_shift of FLUX.1, Stable Diffusion 3 and Qwen-Image).
func (r ShiftRange) Mu(n int) float64 {
	slope := (r.MaxShift - r.BaseShift) / float64(r.MaxLen-r.BaseLen)
	return float64(n)*slope + (r.BaseShift - slope*float64(r.BaseLen))
}

// ShiftRange is the range in the scheduler's config, for the pipelines that derive mu from it.
func (s *Scheduler) ShiftRange() ShiftRange { return s.shift }

// UsesFlowSigmas tells whether the config sets use_flow_sigmas. FLUX-like pipelines then leave the sigmas to the scheduler
// instead of giving FlowSigmas.
func (s *Scheduler) UsesFlowSigmas() bool {
	f, ok := s.rule.(interface{ usesFlowSigmas() bool })
	return ok && f.usesFlowSigmas()
}

// DynamicShifting tells whether the config sets use_dynamic_shifting: the class then needs mu, which Stable Diffusion 3 gives it only then.
func (s *Scheduler) DynamicShifting() bool {
	d, ok := s.rule.(interface{ usesDynamicShifting() bool })
	return ok && d.usesDynamicShifting()
}

// Flux2Mu is the shift of FLUX.2 at n image tokens and a number of steps: two fitted lines, for 10 and for 200 steps,
// and between them by the number of steps; above 4300 tokens the line for 200 alone (compute_empirical_mu).
func Flux2Mu(n, steps int) float64 {
	at200 := 0.00016927*float64(n) + 0.45666666
	if n > 4300 {
		return at200
	}
	at10 := 8.73809524e-05*float64(n) + 1.89833333
	slope := (at200 - at10) / 190
	return slope*float64(steps) + (at200 - 200*slope)
}
