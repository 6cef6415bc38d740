//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"precast/tests/bench/measure"
)

// ratio compares each value with the one of the first variant that was measured next to it.
func ratio(v, base []float64) string {
	if len(v) == 0 || len(v) != len(base) {
		return ""
	}
	pairs := make([]float64, len(v))
	for i := range v {
		pairs[i] = v[i] / base[i]
	}
	return fmt.Sprintf("%.3f", measure.Median(pairs))
}

func (r result) table() string {
	var b strings.Builder
	frames := ""
	if r.Frames > 0 {
		frames = fmt.Sprintf(", %d frames", r.Frames)
	}
	plugin := r.Plugin
	if plugin == "" {
		plugin = "the default plugin"
	}
	fmt.Fprintf(&b, "## %s, %s, %s%s, batch %d, %s, %s, %s, %d threads\n\n`%s`, %s\n\n", r.Model, r.Program, r.Size, frames, r.Batch, r.DType, r.Regions, plugin, r.Threads, r.Command, r.Measured)
	b.WriteString("| variant | step, s | ratio | step, processor s | ratio | compile, s | start-up, s | ratio | start-up, processor s | ratio | start-up, peak MB | difference |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	base := r.Variants[0]
	for _, m := range r.Variants {
		rss := ""
		if len(m.StartUpRSS) > 0 {
			rss = fmt.Sprint(slices.Max(m.StartUpRSS) >> 20)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %.2f | %s | %s | %s | %s | %s | %.1e |\n", m.Variant, measure.Spread(m.Steps), ratio(m.Steps, base.Steps), measure.Spread(m.CPU), ratio(m.CPU, base.CPU),
			m.Compile, measure.Spread(m.StartUps), ratio(m.StartUps, base.StartUps), measure.Spread(m.StartUpCPU), ratio(m.StartUpCPU, base.StartUpCPU), rss, m.Difference)
	}
	b.WriteString("\n")
	return b.String()
}

// write puts a result into FILE.json, in place of one of the same work and variants, and writes FILE.md from all of them.
func write(file string, r result) error {
	var all []result
	data, err := os.ReadFile(file + ".json")
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(data, &all); err != nil {
			return fmt.Errorf("%s.json: %w", file, err)
		}
	}
	names := func(r result) string {
		var list []string
		for _, v := range r.Variants {
			list = append(list, v.Variant)
		}
		return strings.Join(list, ",")
	}
	at := slices.IndexFunc(all, func(x result) bool { return x.work == r.work && names(x) == names(r) })
	if at < 0 {
		all = append(all, r)
	} else {
		all[at] = r
	}
	if data, err = json.MarshalIndent(all, "", " "); err != nil {
		return err
	}
	if err := os.WriteFile(file+".json", append(data, '\n'), 0o644); err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString("# Passes on and off\n\nWritten by `go run ./tests/bench/passes --out tests/bench/PASSES`, a result a table. Times are medians with the least and the greatest; a ratio is the " +
		"median of the ratios to the\nfirst variant's in the same round. `difference` is the largest of an output's elements from the first variant's, relative to the largest value.\n\n")
	for _, x := range all {
		b.WriteString(x.table())
	}
	return os.WriteFile(file+".md", []byte(strings.TrimRight(b.String(), "\n")+"\n"), 0o644)
}
