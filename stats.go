package precast

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// Stats counts what a Pipeline did. The JSON form is what `--stats FILE` writes.
type Stats struct {
	// Counts has trace, passes, lower, compile, cache_hit, cache_miss and execute; forgotten, where programs made room for those of other sizes; where something runs eagerly, operations: how many distinct
	// ones there are, each an executable, compiled or loaded once and counted for the program that needed it first.
	Counts map[string]int64 `json:"counts"`
	// Bytes has weights (brought to the device; of them mapped in place, copied since the file does not align them, converted from another dtype, cached: mapped from the cache of weights, folded
	// with what LoRAs add, streamed: brought block by block under --offload block, each time that they were), cache_written, weights_cache_written and executables.
	Bytes map[string]int64 `json:"bytes"`
	// Seconds has one entry a phase. Of what is streamed, stream_load is how long weights were brought to the device, beside the steps; stream_wait how
	// long steps waited for them, and stream_compute how long the steps with weights took from then on.
	Seconds map[string]float64 `json:"seconds"`
	// Streamed says more of what was brought block by block.
	Streamed StreamedWeights `json:"streamed"`
	// PeakRSS is the process's peak resident set, where the system tells.
	PeakRSS int64 `json:"peak_rss_bytes"`
	// Components has the same by program.
	Components map[string]*ComponentStats `json:"components"`

	mu sync.Mutex
}

// ComponentStats is what was done for one program.
type ComponentStats struct {
	Counts  map[string]int64   `json:"counts"`
	Seconds map[string]float64 `json:"seconds"`
}

// The counts that are always written, in the order of the table.
var countNames = []string{"trace", "passes", "lower", "compile", "cache_hit", "cache_miss", "execute"}

func newStats() *Stats {
	s := &Stats{Counts: map[string]int64{}, Bytes: map[string]int64{}, Seconds: map[string]float64{}, Components: map[string]*ComponentStats{}}
	for _, n := range countNames {
		s.Counts[n] = 0
	}
	return s
}

func (s *Stats) component(name string) *ComponentStats {
	c := s.Components[name]
	if c == nil {
		c = &ComponentStats{Counts: map[string]int64{}, Seconds: map[string]float64{}}
		s.Components[name] = c
	}
	return c
}

func (s *Stats) count(component, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Counts[what]++
	s.component(component).Counts[what]++
}

// counted tells how often something has happened.
func (s *Stats) counted(what string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Counts[what]
}

func (s *Stats) bytes(what string, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Bytes[what] += n
}

// time adds the time since start to a phase.
func (s *Stats) time(component, phase string, start time.Time) {
	took := time.Since(start).Seconds()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Seconds[phase] += took
	if component != "" {
		s.component(component).Seconds[phase] += took
	}
}

// WriteJSON writes the statistics.
func (s *Stats) WriteJSON(w io.Writer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.PeakRSS = peakRSS()
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(s)
}

// WriteTable writes a short table for people.
func (s *Stats) WriteTable(w io.Writer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := tabwriter.NewWriter(w, 2, 8, 2, ' ', 0)
	fmt.Fprintf(t, "program\t%s\tseconds\n", strings.Join(countNames, "\t"))
	row := func(name string, counts map[string]int64, seconds map[string]float64) {
		fmt.Fprint(t, name)
		for _, n := range countNames {
			fmt.Fprintf(t, "\t%d", counts[n])
		}
		var parts []string
		for _, phase := range slices.Sorted(maps.Keys(seconds)) {
			if v := seconds[phase]; v >= 0.0005 {
				parts = append(parts, fmt.Sprintf("%s %.3f", phase, v))
			}
		}
		fmt.Fprintf(t, "\t%s\n", strings.Join(parts, ", "))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Components)) {
		row(name, s.Components[name].Counts, s.Components[name].Seconds)
	}
	row("all", s.Counts, s.Seconds)
	if err := t.Flush(); err != nil {
		return err
	}
	if n := s.Counts["operations"]; n > 0 {
		if _, err := fmt.Fprintf(w, "%d executables of single operations\n", n); err != nil {
			return err
		}
	}
	if c := s.Streamed; c.Units > 0 {
		if _, err := fmt.Fprintf(w, "%s of weights streamed in %d blocks, at most %d (%s) on the device at once; %.3f s of loading, of which steps waited %.3f s, and computed %.3f s\n",
			FormatBytes(s.Bytes["streamed"]), c.Units, c.Peak, FormatBytes(c.PeakBytes), s.Seconds["stream_load"], s.Seconds["stream_wait"], s.Seconds["stream_compute"]); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "weights %s brought to the device, peak resident set %s\n", FormatBytes(s.Bytes["weights"]), FormatBytes(peakRSS()))
	return err
}

// FormatBytes writes a number of bytes for people: "1.5 MiB".
func FormatBytes(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}

// peakRSS is VmHWM of /proc/self/status, 0 where there is none.
func peakRSS() int64 { return procKilobytes("/proc/self/status", "VmHWM:") }

// availableMemory is MemAvailable of /proc/meminfo, 0 where there is none.
var availableMemory = func() int64 { return procKilobytes("/proc/meminfo", "MemAvailable:") }

func procKilobytes(file, key string) int64 {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err != nil {
				return 0
			}
			return n << 10
		}
	}
	return 0
}
