package main

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"precast/graph/checkpoint/hub/hubtest"
)

// TestHubScripts runs the command line with models by their hub names, against a hub on this machine. "requests N PATTERN" counts the requests since
// the last count whose path contains PATTERN; "break PATH N" ends the connection N times in the middle of that file.
func TestHubScripts(t *testing.T) {
	s := hubtest.New()
	t.Cleanup(s.Close) // scripts run after this function
	tiny, err := filepath.Abs("../../tests/testdata/tiny")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sd15", "flux1-schnell"} {
		m, err := s.AddFolder("tiny/"+name, filepath.Join(tiny, name, "model"))
		if err != nil {
			t.Fatal(err)
		}
		m.Files["unet/diffusion_pytorch_model.bin"] = []byte("not read")
		m = s.Add("tiny/"+name, m.Files)
		if name == "flux1-schnell" {
			m.Token, m.Gated = "secret", true
		}
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/hub",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("SD15", filepath.Join(tiny, "sd15", "model"))
			e.Setenv("PRECAST_CACHE_DIR", filepath.Join(e.WorkDir, "cache"))
			e.Setenv("PRECAST_PLUGIN", "go")
			e.Setenv("HF_ENDPOINT", s.URL)
			e.Setenv("HF_HOME", filepath.Join(e.WorkDir, "hf"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":  cmdExits,
			"counts": cmdCounts,
			"requests": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) != 2 {
					ts.Fatalf("usage: requests N PATTERN")
				}
				n := 0
				for _, r := range s.Requests() {
					if strings.Contains(r.Path, args[1]) {
						n++
					}
				}
				if args[0] != strconv.Itoa(n) {
					ts.Fatalf("%d requests with %s, wanted %s", n, args[1], args[0])
				}
			},
			"break": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) != 2 {
					ts.Fatalf("usage: break PATH N")
				}
				n, err := strconv.Atoi(args[1])
				ts.Check(err)
				s.Break(hubtest.Fault{Host: "store", Path: args[0], DropAfter: 100000, Times: n})
			},
		},
	})
}
