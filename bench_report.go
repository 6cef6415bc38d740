package precast

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"
)

// ReadBench reads a report that WriteJSON wrote.
func ReadBench(path string) (*BenchReport, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, userErrorf("compare: %w", err)
	}
	var head struct {
		Schema *int `json:"schema"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, userErrorf("compare: %s is not a report of precast bench --json: %w", path, err)
	}
	if head.Schema == nil || *head.Schema != BenchSchema {
		found := "none"
		if head.Schema != nil {
			found = fmt.Sprint(*head.Schema)
		}
		return nil, userErrorf("compare: %s has the schema version %s, wanted %d; measure it anew with this version", path, found, BenchSchema)
	}
	r := &BenchReport{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, userErrorf("compare: %s is not a report of precast bench --json: %w", path, err)
	}
	for i, c := range r.Cases {
		if c == nil {
			return nil, userErrorf("compare: case %d of %s is null", i, path)
		}
		for k, row := range c.Rows {
			if row == nil {
				return nil, userErrorf("compare: row %d of case %d of %s is null", k, i, path)
			}
		}
	}
	return r, nil
}

// WriteJSON writes the report.
func (r *BenchReport) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// Machine and versions in one paragraph.
func (r *BenchReport) about() string {
	m := r.Machine
	parts := []string{m.CPU, fmt.Sprintf("%d CPUs, %d threads", m.CPUs, threadsOf(r))}
	if m.CPU == "" {
		parts = parts[1:]
	}
	if m.Memory > 0 {
		parts = append(parts, FormatBytes(m.Memory))
	}
	parts = append(parts, m.System, m.Platform)
	parts = append(parts, r.plugins()...)
	return strings.Join(append(parts, "precast "+r.Precast, r.Time.Format(time.DateOnly)), "; ")
}

func threadsOf(r *BenchReport) int {
	if r.Settings.Threads > 0 {
		return r.Settings.Threads
	}
	return r.Machine.Threads
}

// plugins lists what the variants ran on, each once.
func (r *BenchReport) plugins() []string {
	var list []string
	seen := map[string]bool{}
	for _, c := range r.Cases {
		for _, row := range c.Rows {
			p := row.Plugin
			text := strings.TrimSpace(p.Name + " " + cmp.Or(p.Package, firstLine(p.Version)))
			if p.Name != "" && !seen[text] {
				seen[text], list = true, append(list, text)
			}
		}
	}
	return list
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}

// WriteTable writes the report for people: a table a case, a column a variant.
func (r *BenchReport) WriteTable(w io.Writer) error {
	s := r.Settings
	eager := ""
	if s.EagerSteps != s.Steps {
		for _, v := range s.Variants {
			if strings.HasPrefix(v, "eager") {
				eager = fmt.Sprintf(" (%d where eager)", s.EagerSteps)
			}
		}
	}
	_, err := fmt.Fprintf(w, "%s %s\n%s\nmedians; rounds: %d, in each a cold process (empty cache) and a warm one; steps measured in a warm process: %d%s, after the first and a warm-up of %d\n",
		r.Class, r.Model, r.about(), s.Rounds, s.Steps, eager, s.Warmup)
	if err != nil {
		return err
	}
	for _, c := range r.Cases {
		if _, err := fmt.Fprintf(w, "\n%s\n", c); err != nil {
			return err
		}
		if err := c.writeTable(w, s.Baseline); err != nil {
			return err
		}
	}
	var b strings.Builder
	for _, list := range []struct {
		title string
		lines []string
	}{{"warning: ", r.Warnings}, {"left out: ", r.LeftOut}} {
		for i, line := range list.lines {
			if i == 8 && len(list.lines) > 9 {
				fmt.Fprintf(&b, "%s%d more\n", list.title, len(list.lines)-i)
				break
			}
			fmt.Fprintf(&b, "%s%s\n", list.title, line)
		}
	}
	if b.Len() > 0 {
		_, err = io.WriteString(w, "\n"+b.String())
	}
	return err
}

func (c *BenchCase) writeTable(w io.Writer, baseline string) error {
	var base *BenchRow
	header := []string{""}
	for _, row := range c.Rows {
		header = append(header, row.Variant)
		if row.Variant == baseline {
			base = row
		}
	}
	lines := [][]string{header}
	line := func(name string, cell func(*BenchRow) string) {
		cells, some := []string{name}, false
		for _, row := range c.Rows {
			text := cell(row)
			some = some || text != ""
			if text == "" {
				text = "-"
			}
			cells = append(cells, text)
		}
		if some {
			lines = append(lines, cells)
		}
	}
	for _, m := range BenchMeasures {
		unit := c.unit(m)
		name := m.Name
		if unit.name != "" {
			name += ", " + unit.name
		}
		figure := func(value func(BenchSpread) string) func(*BenchRow) string {
			return func(row *BenchRow) string {
				if s, ok := row.Figures[m.Key]; ok {
					return value(s)
				}
				return ""
			}
		}
		line(name, figure(func(s BenchSpread) string { return unit.format(s.Median) }))
		if m.Key == "step_s" {
			line("  min to max", figure(func(s BenchSpread) string { return unit.format(s.Min) + " to " + unit.format(s.Max) }))
			line("  p10 to p90", figure(func(s BenchSpread) string { return unit.format(s.P10) + " to " + unit.format(s.P90) }))
		}
		if base != nil && len(c.Rows) > 1 && (m.Key == "step_s" || m.Key == "first_step_cold_s" || m.Key == "first_step_warm_s" || m.Key == "compile_s" || m.Key == "peak_rss_bytes") {
			line("  of "+baseline, func(row *BenchRow) string {
				s, ok := row.Figures[m.Key]
				b, okb := base.Figures[m.Key]
				if !ok || !okb || b.Median == 0 {
					return ""
				}
				return fmt.Sprintf("%.2f x", s.Median/b.Median)
			})
		}
	}
	line("steps measured", func(row *BenchRow) string {
		if s, ok := row.Figures["step_s"]; ok {
			return fmt.Sprint(s.N)
		}
		return ""
	})
	line("difference of results", func(row *BenchRow) string {
		switch {
		case row.NotFinite:
			return "not finite"
		case row.Differs:
			return fmt.Sprintf("%.1e, WRONG", *row.Difference)
		case row.Difference == nil:
			return ""
		}
		return fmt.Sprintf("%.1e", *row.Difference)
	})
	if err := writeColumns(w, lines); err != nil {
		return err
	}
	for _, row := range c.Rows {
		if row.Error != "" {
			if _, err := fmt.Fprintf(w, "%s failed: %s\n", row.Variant, row.Error); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeColumns writes lines with the first column to the left and figures to the right.
func writeColumns(w io.Writer, lines [][]string) error {
	var out strings.Builder
	width := map[int]int{}
	for _, cells := range lines {
		for i, cell := range cells {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	for _, cells := range lines {
		for i, cell := range cells {
			if i == 0 {
				fmt.Fprintf(&out, "%-*s", width[i], cell)
			} else {
				fmt.Fprintf(&out, "   %*s", width[i], cell)
			}
		}
		out.WriteByte('\n')
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// benchUnit is how a measure's values are written.
type benchUnit struct {
	name   string
	scale  float64
	format func(float64) string
}

// unit chooses the unit of a case's row: that in which its largest median has up to three digits before the point.
func (c *BenchCase) unit(m BenchMeasure) benchUnit {
	largest := 0.0
	for _, row := range c.Rows {
		largest = max(largest, row.Figures[m.Key].Median)
	}
	return unitFor(m, largest)
}

func unitFor(m BenchMeasure, largest float64) benchUnit {
	u := benchUnit{scale: 1}
	switch {
	case m.Unit == "s" && largest < 1:
		u.name, u.scale = "ms", 1e-3
	case m.Unit == "s":
		u.name = "s"
	case m.Unit == "B" && largest >= 1<<30:
		u.name, u.scale = "GiB", 1<<30
	case m.Unit == "B" && largest >= 1<<20:
		u.name, u.scale = "MiB", 1<<20
	case m.Unit == "B":
		u.name, u.scale = "KiB", 1<<10
	}
	u.format = func(v float64) string {
		switch v /= u.scale; {
		case m.Unit == "":
			return fmt.Sprintf("%.0f", v)
		case u.name == "s" || u.name == "GiB":
			return fmt.Sprintf("%.3f", v)
		case v >= 100:
			return fmt.Sprintf("%.0f", v)
		case v >= 10:
			return fmt.Sprintf("%.1f", v)
		}
		return fmt.Sprintf("%.2f", v)
	}
	return u
}

// comparedMeasures are those that a comparison of two reports shows.
var comparedMeasures = []string{"compile_s", "executable_bytes", "load_s", "first_step_cold_s", "first_step_warm_s", "step_s", "step_cpu_s", "peak_rss_bytes"}

// BenchRatio is a figure of one report as a multiple of the same figure of another.
type BenchRatio struct {
	Case, Variant, Measure string
	Now, Then, Ratio       float64
	// Overlap says that the ranges from lowest to highest value overlap: then the ratio may be chance.
	Overlap bool
}

// Compare gives the figures of r as multiples of those of an earlier report, of what both measured: the same program, sizes, dtype and variant.
func (r *BenchReport) Compare(then *BenchReport) []BenchRatio {
	find := func(c *BenchCase, variant string) *BenchRow {
		for _, o := range then.Cases {
			if o.Program != c.Program || o.Spec != c.Spec || o.DType != c.DType {
				continue
			}
			for _, row := range o.Rows {
				if row.Variant == variant {
					return row
				}
			}
		}
		return nil
	}
	var list []BenchRatio
	for _, c := range r.Cases {
		for _, row := range c.Rows {
			old := find(c, row.Variant)
			if old == nil {
				continue
			}
			for _, key := range comparedMeasures {
				a, ok := row.Figures[key]
				b, okb := old.Figures[key]
				if ok && okb && b.Median > 0 {
					list = append(list, BenchRatio{
						Case: c.String(), Variant: row.Variant, Measure: key, Now: a.Median, Then: b.Median, Ratio: a.Median / b.Median,
						Overlap: a.Min <= b.Max && b.Min <= a.Max,
					})
				}
			}
		}
	}
	return list
}

// WriteComparison writes the figures as multiples of those of an earlier report, and where the two were made on different machines.
func (r *BenchReport) WriteComparison(w io.Writer, then *BenchReport, name string) error {
	list := r.Compare(then)
	if len(list) == 0 {
		return userErrorf("compare: %s has none of these programs, sizes, dtypes and variants", name)
	}
	var errs []error
	say := func(format string, args ...any) {
		_, err := fmt.Fprintf(w, format, args...)
		errs = append(errs, err)
	}
	say("\nas multiples of %s, made %s by precast %s (~: the two ranges overlap)\n", name, then.Time.Format(time.DateOnly), then.Precast)
	for _, d := range []struct{ what, now, then string }{
		{"the processor", r.Machine.CPU, then.Machine.CPU},
		{"the number of CPUs", fmt.Sprint(r.Machine.CPUs), fmt.Sprint(then.Machine.CPUs)},
		{"the number of threads", fmt.Sprint(threadsOf(r)), fmt.Sprint(threadsOf(then))},
		{"the plugin", strings.Join(r.plugins(), ", "), strings.Join(then.plugins(), ", ")},
		{"the model", r.Model, then.Model},
	} {
		if d.now != d.then {
			say("note: %s differs: %q here, %q there\n", d.what, d.now, d.then)
		}
	}
	names := map[string]BenchMeasure{}
	for _, m := range BenchMeasures {
		names[m.Key] = m
	}
	t := tabwriter.NewWriter(w, 2, 8, 3, ' ', tabwriter.AlignRight)
	for i, x := range list {
		if i == 0 || x.Case != list[i-1].Case || x.Variant != list[i-1].Variant {
			errs = append(errs, t.Flush())
			say("\n%s: %s\n", x.Case, x.Variant)
		}
		m := names[x.Measure]
		u := unitFor(m, max(x.Now, x.Then))
		mark := ""
		if x.Overlap {
			mark = " ~"
		}
		fmt.Fprintf(t, "%s, %s\t%s\tthen %s\t%.2f x\t%s\t\n", strings.TrimSpace(m.Name), u.name, u.format(x.Now), u.format(x.Then), x.Ratio, mark)
	}
	return errors.Join(append(errs, t.Flush())...)
}
