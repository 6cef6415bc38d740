package scheduler

import (
	"precast/graph/checkpoint"
)

// fields reads a class's config and records which keys the class has.
type fields struct {
	cfg  *checkpoint.Config
	keys []string
}

func (f *fields) key(k string) string {
	f.keys = append(f.keys, k)
	return k
}

func (f *fields) int(key string, def int) int             { return f.cfg.Int(f.key(key), def) }
func (f *fields) float(key string, def float64) float64   { return f.cfg.Float(f.key(key), def) }
func (f *fields) bool(key string, def bool) bool          { return f.cfg.Bool(f.key(key), def) }
func (f *fields) floats(key string) []float64             { return f.cfg.Floats(f.key(key), nil) }
func (f *fields) ints(key string) []int                   { return f.cfg.Ints(f.key(key), nil) }
func (f *fields) problem(key, format string, args ...any) { f.cfg.Problem(key, format, args...) }

func (f *fields) oneOf(key, def string, choices ...string) string {
	return f.cfg.OneOf(f.key(key), def, choices...)
}

// positive reads a number above 0.
func (f *fields) positive(key string, def float64) float64 {
	return f.cfg.PositiveFloat(f.key(key), def)
}

// optional reads a number that may be absent.
func (f *fields) optional(key string) *float64 {
	if !f.cfg.Has(f.key(key)) {
		return nil
	}
	v := f.cfg.Float(key, 0)
	return &v
}

// ignored names keys that the class has and that have no effect on what is computed here.
func (f *fields) ignored(keys ...string) {
	for _, k := range keys {
		f.key(k)
	}
}

// unsupported reads a switch that must be off.
func (f *fields) unsupported(key, why string) {
	if f.bool(key, false) {
		f.problem(key, "found true, which is not supported: %s", why)
	}
}

// thresholding reads the fields of dynamic thresholding, which depends on the values of the sample.
func (f *fields) thresholding() {
	f.unsupported("thresholding", "dynamic thresholding takes quantiles of the sample, so the step is not linear")
	f.ignored("dynamic_thresholding_ratio", "sample_max_value")
}

// spacing reads timestep_spacing.
func (f *fields) spacing(def string) string {
	return f.oneOf("timestep_spacing", def, "linspace", "leading", "trailing")
}

// clipSample reads clip_sample and its range; 0 means no clipping.
func (f *fields) clipSample(def bool) float64 {
	on, limit := f.bool("clip_sample", def), f.positive("clip_sample_range", 1)
	if !on {
		return 0
	}
	return limit
}
