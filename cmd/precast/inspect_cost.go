package main

import (
	"fmt"
	"io"
	"strings"

	"precast"
)

// peakTensors is how many of the tensors alive at the peak are shown.
const peakTensors = 8

// printCost writes the totals, the modules, and what is alive at the peak.
func printCost(w io.Writer, x *precast.Inspection) error {
	c := x.Cost
	program := x.Program
	if x.Phase != "" {
		program += " after phase " + x.Phase
	}
	peak := precast.FormatBytes(c.Peak.Bytes)
	if c.Peak.Op != "" {
		peak += fmt.Sprintf(" at %s of %s", c.Peak.Op, orDash(visible(c.Peak.Scope)))
	}
	prepared, loops := "", ""
	if c.Prepare.BytesWritten > 0 {
		prepared = fmt.Sprintf("once at load: %s flops, %s written", metric(c.Prepare.Flops), bytesOf(c.Prepare.BytesWritten))
	}
	if c.UnknownLoops > 0 {
		loops = fmt.Sprintf("%d, each counted as one turn: the number of turns does not show in the graph", c.UnknownLoops)
	}
	if err := pairs(w, "program", program,
		"attention", x.Attention,
		"flops", fmt.Sprintf("%s, and %s of functions such as exp", metric(c.Total.Flops), metric(c.Total.Transcendentals)),
		"bytes", fmt.Sprintf("%s read, %s written, each operation by itself", bytesOf(c.Total.BytesRead), bytesOf(c.Total.BytesWritten)),
		"weights", fmt.Sprintf("%s in %d tensors of %s parameters", precast.FormatBytes(c.WeightBytes), c.Weights, count(c.Parameters)),
		"prepared", prepared,
		"inputs", fmt.Sprintf("%s, results %s, of which %s in donated inputs, constants %s", precast.FormatBytes(c.InputBytes),
			precast.FormatBytes(c.OutputBytes), precast.FormatBytes(c.AliasedBytes), precast.FormatBytes(c.ConstantBytes)),
		"peak", peak, "loops", loops); err != nil {
		return err
	}
	fmt.Fprintln(w)
	t := table(w)
	fmt.Fprintln(t, "module\tflops\tshare\tread\twritten\tweights\tparameters\tactivations\talive")
	above := strings.Count(c.Scopes.Path, ".")
	c.Scopes.All(func(s *precast.CostScope) bool {
		name := strings.Repeat("  ", strings.Count(s.Path, ".")-above) + visible(s.Path)
		switch {
		case s.Path == "":
			name = "(all)"
		case c.Scopes.Path == "":
			name = "  " + name
		}
		share := 0.0
		if c.Total.Flops > 0 {
			share = 100 * s.Flops / c.Total.Flops
		}
		fmt.Fprintf(t, "%s\t%s\t%.1f %%\t%s\t%s\t%s\t%s\t%s\t%s\n", name, metric(s.Flops), share, bytesOf(s.BytesRead), bytesOf(s.BytesWritten),
			precast.FormatBytes(s.WeightBytes), count(s.Parameters), precast.FormatBytes(s.Activations), precast.FormatBytes(s.Live))
		return true
	})
	if err := t.Flush(); err != nil {
		return err
	}
	if len(c.Peak.Tensors) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	t = table(w)
	fmt.Fprintln(t, "alive at the peak\tshape\toperation\tmodule")
	for i, v := range c.Peak.Tensors {
		if i == peakTensors {
			rest := int64(0)
			for _, v := range c.Peak.Tensors[i:] {
				rest += v.Bytes
			}
			fmt.Fprintf(t, "%s\tin %d more\n", precast.FormatBytes(rest), len(c.Peak.Tensors)-i)
			break
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", precast.FormatBytes(v.Bytes), v.Shape, v.Op, orDash(visible(v.Scope)))
	}
	return t.Flush()
}

func bytesOf(n float64) string { return precast.FormatBytes(int64(min(n, 1<<62))) }

// metric writes a number of operations for people: "1.23 T".
func metric(n float64) string {
	for _, unit := range []struct {
		size float64
		name string
	}{{1e15, "P"}, {1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if n >= unit.size {
			return fmt.Sprintf("%.2f %s", n/unit.size, unit.name)
		}
	}
	return fmt.Sprintf("%.0f", n)
}
