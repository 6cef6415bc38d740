//go:build linux

// Package measure is what the benchmarks beside it share: the clocks of a process, sums of figures, and tensors as numbers.
package measure

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"golang.org/x/sys/unix"

	"precast"
	"precast/graph/checkpoint"
)

// clock reads one of the kernel's clocks. Every Linux has those that are asked for here.
func clock(id int32) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(id, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

// CPUTime is the processor time that this process has used, of all its threads together.
func CPUTime() time.Duration { return clock(unix.CLOCK_PROCESS_CPUTIME_ID) }

// ProcessStart is the time at which the kernel started this process, to a hundredth of a second: the same that torch_denoiser.py measures from.
func ProcessStart() (time.Time, error) {
	const file = "/proc/self/stat"
	stat, err := os.ReadFile(file)
	if err != nil {
		return time.Time{}, err
	}
	// The name of the executable may hold anything. Field 22, the 20th behind it, is the start in USER_HZ (100 a second) since boot: proc_pid_stat(5).
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return time.Time{}, fmt.Errorf("%s has %d fields after the name, wanted at least 20", file, len(fields))
	}
	ticks, err := strconv.ParseInt(string(fields[19]), 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("%s: %w", file, err)
	}
	return time.Now().Add(time.Duration(ticks)*(time.Second/100) - clock(unix.CLOCK_BOOTTIME)), nil
}

// Median of values, NaN of none.
func Median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	if len(s) == 0 {
		return math.NaN()
	}
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// Spread writes the median with the least and the greatest value, nothing of none.
func Spread(values []float64) string {
	if len(values) == 0 {
		return ""
	}
	return fmt.Sprintf("%.3f (%.3f-%.3f)", Median(values), slices.Min(values), slices.Max(values))
}

// Tensor makes a tensor of as many values as the shape has elements, rounded to its dtype, which is one of numbers.
func Tensor(shape shapes.Shape, values []float32) (precast.HostTensor, error) {
	if len(values) != shape.Size() {
		return precast.HostTensor{}, fmt.Errorf("found %d values, wanted those of %s", len(values), shape)
	}
	wide := make([]byte, 0, 4*len(values))
	for _, v := range values {
		wide = binary.LittleEndian.AppendUint32(wide, math.Float32bits(v))
	}
	data := make([]byte, len(values)*shape.DType.Size())
	if err := checkpoint.ConvertBytes(data, shape.DType, wide, dtypes.Float32); err != nil {
		return precast.HostTensor{}, err
	}
	return precast.HostTensor{Shape: shape, Data: data}, nil
}

// Floats are a tensor's elements.
func Floats(t precast.HostTensor) ([]float32, error) {
	wide := make([]byte, 4*t.Shape.Size())
	if err := checkpoint.ConvertBytes(wide, dtypes.Float32, t.Data, t.Shape.DType); err != nil {
		return nil, err
	}
	out := make([]float32, len(wide)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(wide[4*i:]))
	}
	return out, nil
}

// Difference is the largest absolute difference of two elements, relative to the largest absolute value of want: 0 of equals, infinite where want is all 0.
// Different numbers of elements, and one of got that is not finite, are errors.
func Difference(got, want []float32) (float64, error) {
	if len(got) != len(want) {
		return 0, fmt.Errorf("found %d elements, wanted %d", len(got), len(want))
	}
	var d, m float64
	for i := range got {
		x, y := float64(got[i]), float64(want[i])
		if x-x != 0 {
			return 0, fmt.Errorf("element %d is not finite", i)
		}
		d, m = max(d, math.Abs(x-y)), max(m, math.Abs(y))
	}
	if d == 0 {
		return 0, nil
	}
	return d / m, nil
}
