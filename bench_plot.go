package precast

import (
	"fmt"
	"image/color"
	"io"
	"math"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// plottedMeasures are the panels of a case, in rows of plotColumns.
var plottedMeasures = []string{"step_s", "first_step_warm_s", "first_step_cold_s", "compile_s", "executable_bytes", "peak_rss_bytes"}

const (
	plotColumns = 3
	plotDPI     = 144
	panelWidth  = 3.1 * vg.Inch
	plotMargin  = 0.2 * vg.Inch
	// plotCaseHead is the room for a case's name.
	plotCaseHead = 0.42 * vg.Inch
)

// The background is opaque, so that the plot reads the same on a dark page. The bars' colours are those of Okabe and Ito, which people who see
// colours differently can tell apart (https://jfly.uni-koeln.de/color/).
var (
	plotGround = color.RGBA{0xfb, 0xfb, 0xfa, 0xff}
	plotInk    = color.RGBA{0x24, 0x29, 0x2f, 0xff}
	plotFaint  = color.RGBA{0x6a, 0x73, 0x7d, 0xff}
	plotBars   = []color.RGBA{
		{0x00, 0x72, 0xb2, 0xff},
		{0xe6, 0x9f, 0x00, 0xff},
		{0x00, 0x9e, 0x73, 0xff},
		{0xcc, 0x79, 0xa7, 0xff},
		{0x56, 0xb4, 0xe9, 0xff},
		{0xd5, 0x5e, 0x00, 0xff},
		{0x99, 0x99, 0x99, 0xff},
	}
)

// CheckPlot refuses a name whose ending is no format that PlotTo writes.
func CheckPlot(path string) error {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".svg", ".png":
		return nil
	}
	return userErrorf("plot: found %q, wanted a name that ends in .svg or .png", path)
}

// PlotTo returns what draws the report in the format of the path's ending, see WritePlot.
func (r *BenchReport) PlotTo(path string) func(io.Writer) error {
	format := strings.TrimPrefix(strings.ToLower(filepath.Ext(path)), ".")
	return func(w io.Writer) error { return r.WritePlot(w, format) }
}

// WritePlot draws the report as "svg" or "png": a row of panels a case, a panel a measure, a bar a variant. Bars are medians, the line on a bar reaches from the
// lowest to the highest value.
func (r *BenchReport) WritePlot(w io.Writer, format string) error {
	rows := 0
	for _, c := range r.Cases {
		rows = max(rows, len(c.Rows))
	}
	panelHeight := vg.Length(0.75*vg.Inch + vg.Length(rows)*0.24*vg.Inch)
	lines := (len(plottedMeasures) + plotColumns - 1) / plotColumns
	caseHeight := plotCaseHead + vg.Length(lines)*panelHeight
	names := r.nameWidth()
	width := 2*plotMargin + plotColumns*(panelWidth+names)
	height := 2*plotMargin + 0.75*vg.Inch + vg.Length(len(r.Cases))*caseHeight
	var canvas interface {
		vg.CanvasSizer
		io.WriterTo
	}
	switch format {
	case "svg":
		canvas = vgsvg.NewWith(vgsvg.UseWH(width, height))
	case "png":
		// A picture of all that one could ask for may be larger than memory.
		if float64(width)/72*plotDPI*float64(height)/72*plotDPI > 1<<28 {
			return userErrorf("plot: %d cases of up to %d variants make a picture that is too large; take a name that ends in .svg", len(r.Cases), rows)
		}
		canvas = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(plotDPI), vgimg.UseBackgroundColor(plotGround))}
	default:
		return userErrorf("plot: found the format %q, wanted svg or png", format)
	}
	dc := draw.New(canvas)
	dc.FillPolygon(plotGround, []vg.Point{{}, {X: width}, {X: width, Y: height}, {Y: height}})
	top := height - plotMargin
	put := func(x, y vg.Length, size float64, c color.Color, bold bool, s string) {
		dc.FillText(plotText(size, c, bold, text.XLeft), vg.Point{X: x, Y: y}, s)
	}
	put(plotMargin, top-0.16*vg.Inch, 13, plotInk, true, strings.TrimSpace(r.Class+" "+shortPath(r.Model)))
	about := wrapText(r.about(), int(float64(width-2*plotMargin)/4.1))
	about = append(about, fmt.Sprintf("medians; lines from the lowest to the highest value; rounds: %d", r.Settings.Rounds))
	for i, line := range about {
		put(plotMargin, top-vg.Length(0.36+0.15*float64(i))*vg.Inch, 8.5, plotFaint, false, line)
	}
	top -= 0.75 * vg.Inch
	for _, c := range r.Cases {
		put(plotMargin, top-0.2*vg.Inch, 11, plotInk, true, c.String())
		top -= plotCaseHead
		for i, key := range plottedMeasures {
			p, err := c.panel(key)
			if err != nil {
				return err
			}
			x := plotMargin + vg.Length(i%plotColumns)*(panelWidth+names)
			y := top - vg.Length(i/plotColumns+1)*panelHeight
			p.Draw(draw.Crop(dc, x, x+panelWidth+names-width-0.12*vg.Inch, y+0.16*vg.Inch, y+panelHeight-height))
		}
		top -= vg.Length(lines) * panelHeight
	}
	_, err := canvas.WriteTo(w)
	return err
}

// nameWidth is the room that the names of variants take beside the bars.
func (r *BenchReport) nameWidth() vg.Length {
	longest := 0
	for _, c := range r.Cases {
		for _, row := range c.Rows {
			longest = max(longest, utf8.RuneCountInString(row.Variant))
		}
	}
	return vg.Points(5 * float64(longest))
}

// shortPath is the end of a path that tells models apart: checkpoints often lie in folders of one name.
func shortPath(path string) string {
	path = filepath.Clean(path)
	return filepath.ToSlash(filepath.Join(filepath.Base(filepath.Dir(path)), filepath.Base(path)))
}

// wrapText cuts a text into lines of at most width characters, at semicolons.
func wrapText(s string, width int) []string {
	var lines []string
	line := ""
	for _, part := range strings.Split(s, "; ") {
		if line != "" && utf8.RuneCountInString(line)+2+utf8.RuneCountInString(part) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += "; "
		}
		line += part
	}
	return append(lines, line)
}

func plotText(size float64, c color.Color, bold bool, align text.XAlignment) text.Style {
	f := font.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Points(size)}
	if bold {
		f.Weight = 2 // x/image's font.WeightSemiBold and up are the bold face
	}
	return text.Style{Color: c, Font: f, XAlign: align, YAlign: text.YCenter, Handler: plot.DefaultTextHandler}
}

// panel is one measure of a case: horizontal bars, the first variant on top.
func (c *BenchCase) panel(key string) (*plot.Plot, error) {
	var m BenchMeasure
	for _, have := range BenchMeasures {
		if have.Key == key {
			m = have
		}
	}
	u := c.unit(m)
	p := plot.New()
	p.BackgroundColor = color.Transparent
	p.Title.Text = m.Name
	if u.name != "" {
		p.Title.Text += ", " + u.name
	}
	p.Title.TextStyle = plotText(9.5, plotInk, false, text.XCenter)
	p.Title.Padding = vg.Points(4)
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Tick.Label.Font = plotText(8, plotInk, false, text.XLeft).Font
		a.Tick.Label.Color = plotFaint
		a.LineStyle.Color, a.Tick.LineStyle.Color = plotFaint, plotFaint
		a.Padding = 0
	}
	p.Y.Tick.Label.Color = plotInk
	p.Y.Tick.Length, p.Y.LineStyle.Width = 0, vg.Points(0.5)
	p.X.Tick.Length, p.X.LineStyle.Width = vg.Points(3), 0
	var ticks []plot.Tick
	var labels plotter.XYLabels
	for i, row := range c.Rows {
		y := float64(len(c.Rows) - 1 - i)
		ticks = append(ticks, plot.Tick{Value: y, Label: row.Variant})
		s, ok := row.Figures[key]
		if !ok {
			labels.XYs = append(labels.XYs, plotter.XY{Y: y})
			labels.Labels = append(labels.Labels, " none")
			continue
		}
		median, low, high := s.Median/u.scale, s.Min/u.scale, s.Max/u.scale
		bar, err := plotter.NewBarChart(plotter.Values{median}, 0.15*vg.Inch)
		if err != nil {
			return nil, err
		}
		bar.Horizontal, bar.XMin = true, y
		bar.Color, bar.LineStyle.Width = plotBars[i%len(plotBars)], 0
		p.Add(bar)
		if high > low {
			spread, err := plotter.NewXErrorBars(struct {
				plotter.XYs
				plotter.XErrors
			}{plotter.XYs{{X: median, Y: y}}, plotter.XErrors{{Low: median - low, High: high - median}}})
			if err != nil {
				return nil, err
			}
			spread.LineStyle.Color, spread.LineStyle.Width, spread.CapWidth = plotInk, vg.Points(1), vg.Points(5)
			p.Add(spread)
		}
		labels.XYs = append(labels.XYs, plotter.XY{X: high, Y: y})
		labels.Labels = append(labels.Labels, "  "+u.format(s.Median))
	}
	largest := 0.0
	for _, xy := range labels.XYs {
		largest = math.Max(largest, xy.X)
	}
	figures, err := plotter.NewLabels(labels)
	if err != nil {
		return nil, err
	}
	for i := range figures.TextStyle {
		figures.TextStyle[i] = plotText(8, plotInk, false, text.XLeft)
	}
	figures.Offset.Y = vg.Points(1) // to the height of the names, which are centred by their capitals
	p.Add(figures)
	// Adding has widened the axes. A fifth of the width is for the figure behind the longest bar.
	p.X.Min, p.X.Max = 0, 1
	if largest > 0 {
		p.X.Max = 1.25 * largest
	}
	p.Y.Min, p.Y.Max = -0.6, float64(len(c.Rows))-0.4
	p.Y.Tick.Marker = plot.ConstantTicks(ticks)
	p.X.Tick.Marker = fewTicks{}
	return p, nil
}

// fewTicks are gonum's default ticks without those that have no number.
type fewTicks struct{}

func (fewTicks) Ticks(low, high float64) []plot.Tick {
	var list []plot.Tick
	for _, t := range (plot.DefaultTicks{}).Ticks(low, high) {
		if t.Label != "" {
			list = append(list, t)
		}
	}
	return list
}
