package tests

import (
	"os"
	"path/filepath"
	"testing"

	"precast"
	"precast/passes"
)

// TestGoldensWithAllPasses: the recorded runs hold with the passes that do not run by default, too.
func TestGoldensWithAllPasses(t *testing.T) {
	ref, cacheDir := reference(t), t.TempDir()
	for _, name := range []string{"flux1-dev", "sd15"} {
		dir := filepath.Join(ref, "tiny", name)
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		g := readGolden(t, dir)
		for _, v := range [][2]string{{"go", "inline"}, {"pjrt", "split"}} {
			t.Run(name+"/"+v[0]+"/"+v[1], func(t *testing.T) {
				run := recordedRuns(t, dir)[0]
				var r goldenRun
				r.decode(t, g.Runs[run])
				checkRun(t, dir, run, &r, precast.Config{Backend: v[0], Regions: v[1], Variant: g.Variant, CacheDir: cacheDir, CheckPasses: true, EnabledPasses: passes.Names()})
			})
		}
	}
}
