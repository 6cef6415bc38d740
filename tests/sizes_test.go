package tests

import (
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"precast"
	"precast/backends/pjrt"
)

// TestManySizes makes pictures of many sizes in one process: memory and handles stay bounded, and a size that was forgotten gives the same picture again.
func TestManySizes(t *testing.T) {
	for _, c := range []struct {
		backend            string
		sizes, most        int
		executables, bytes int64
	}{
		{"go", 24, 12, 0, 64 << 20},
		// Each of the programs that are kept is an executable, and one that prepares weights where it does more than move them.
		{"pjrt", 4, 12, 2 * 12, 96 << 20},
	} {
		t.Run(c.backend, func(t *testing.T) {
			needBackend(t, c.backend)
			if long() {
				c.sizes = 200
			}
			// Without a cache on disk nothing but memory is filled.
			p := openPipeline(t, shapesModel, precast.Config{Backend: c.backend, NoCache: true, MaxPrograms: c.most})
			generate := func(i int) []byte {
				t.Helper()
				out, err := p.Generate(t.Context(), &precast.Request{
					Prompt: []string{"a red circle"}, Height: 16 * (1 + i/15), Width: 16 * (1 + i%15), NumInferenceSteps: 1, MaxSequenceLength: 16,
				})
				must(t, err)
				return out.Images[0].RGB
			}
			first := generate(0)
			var quarter int64
			for i := range c.sizes {
				generate(i)
				if i == c.sizes/4 {
					quarter = residentSet(t)
				}
				if n := pjrt.Live()["loaded_executable"]; c.backend == "pjrt" && n > c.executables {
					t.Fatalf("after %d sizes %d executables are loaded, wanted at most %d", i+1, n, c.executables)
				}
			}
			end := residentSet(t)
			t.Logf("%d sizes: %d MB after a quarter, %d MB at the end; %v", c.sizes, quarter>>20, end>>20, pjrt.Live())
			if end > quarter+c.bytes {
				t.Errorf("the resident set grew from %d to %d bytes, wanted at most %d more", quarter, end, c.bytes)
			}
			made := p.Stats().Counts["compile"]
			if string(generate(0)) != string(first) {
				t.Error("a size that was forgotten gives another picture")
			}
			if p.Stats().Counts["compile"] == made {
				t.Error("the first size was still there: nothing was forgotten")
			}
		})
	}
}

// residentSet is what the process has in memory now, in bytes, without garbage.
func residentSet(t *testing.T) int64 {
	t.Helper()
	debug.FreeOSMemory()
	if runtime.GOOS != "linux" {
		return 0
	}
	data, err := os.ReadFile(filepath.Join("/proc", "self", "statm"))
	must(t, err)
	pages, err := strconv.ParseInt(strings.Fields(string(data))[1], 10, 64)
	must(t, err)
	return pages * int64(os.Getpagesize())
}
