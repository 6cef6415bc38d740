package precast

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// procTicks is USER_HZ, the unit of /proc/stat: 100 on every architecture that Go runs on.
const procTicks = 100

// procStat is how long the processors of the machine have worked, and how long there were processors to work, in ticks.
type procStat struct{ busy, all float64 }

// readProcStat reads /proc/stat; all is 0 where there is none. Time that the hypervisor gave to others counts as work.
func readProcStat() procStat {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return procStat{}
	}
	line, _, _ := strings.Cut(string(data), "\n")
	f := strings.Fields(line)
	if len(f) < 9 || f[0] != "cpu" {
		return procStat{}
	}
	// user nice system idle iowait irq softirq steal; guest time is in user and nice.
	var s procStat
	for i, text := range f[1:9] {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return procStat{}
		}
		s.all += v
		if i != 3 && i != 4 {
			s.busy += v
		}
	}
	return s
}

// machineHere describes this machine.
func machineHere() BenchMachine {
	m := BenchMachine{
		CPU: cpuName(), CPUs: runtime.NumCPU(), Threads: backendThreads(), Memory: procKilobytes("/proc/meminfo", "MemTotal:"),
		Platform: runtime.GOOS + "/" + runtime.GOARCH, System: runtime.GOOS, Busy: -1, Others: -1,
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.System = "Linux " + strings.TrimSpace(string(release))
	}
	return m
}

// machineIsQuiet looks for a moment at what else the machine does.
func (b *bench) machineIsQuiet() {
	before := readProcStat()
	if before.all == 0 {
		return
	}
	time.Sleep(500 * time.Millisecond)
	after := readProcStat()
	if after.all <= before.all {
		return
	}
	m := &b.report.Machine
	if m.Busy = (after.busy - before.busy) / (after.all - before.all); m.Busy > 0.2 {
		b.warn(fmt.Sprintf("the machine is not idle: before the first process %.0f %% of its processors were at work", 100*m.Busy))
	}
}

func float64At(b []byte) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(b)) }
