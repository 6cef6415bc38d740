package precast

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// buildID identifies this binary: the SHA-256 of its own file, so that a change of precast's code misses the cache. Where the file
// can't be read, it is the version.
var buildID = sync.OnceValue(func() string {
	path, err := os.Executable()
	if err != nil {
		return Version
	}
	f, err := os.Open(path)
	if err != nil {
		return Version
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return Version
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
})

// cpuFeatures names the machine's instruction sets: XLA compiles for all of them, and an executable that uses one that is missing
// elsewhere ends the process there.
var cpuFeatures = sync.OnceValue(func() string {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOOS + "/" + runtime.GOARCH
	}
	for line := range strings.Lines(string(data)) {
		name, value, ok := strings.Cut(line, ":")
		if name = strings.TrimSpace(name); ok && (name == "flags" || name == "Features") {
			flags := strings.Fields(value)
			slices.Sort(flags)
			sum := sha256.Sum256([]byte(strings.Join(slices.Compact(flags), " ")))
			return fmt.Sprintf("%s/%s %d features %s", runtime.GOOS, runtime.GOARCH, len(flags), hex.EncodeToString(sum[:8]))
		}
	}
	return runtime.GOOS + "/" + runtime.GOARCH
})

// backendThreads is the number of threads that CPU code is compiled for.
func backendThreads() int {
	for _, v := range []string{"PJRT_NPROC", "NPROC"} {
		if n, err := strconv.Atoi(os.Getenv(v)); err == nil && n > 0 {
			return n
		}
	}
	return runtime.NumCPU()
}
