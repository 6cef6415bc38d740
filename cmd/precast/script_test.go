package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"precast"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"precast": func() { os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) },
	})
}

// TestScripts runs the command line as a user does. Scripts run on the Go backend, which PRECAST_PLUGIN=go asks for, and share one cache, so
// that a script that isn't about cold starts compiles what no other has; one that is sets PRECAST_CACHE_DIR to a folder of its own.
func TestScripts(t *testing.T) {
	testdata, err := filepath.Abs("../../tests/testdata")
	if err != nil {
		t.Fatal(err)
	}
	noPlugin := precast.HasPlugin()
	plugins, err := precast.Plugins()
	if err != nil {
		t.Fatal(err)
	}
	shared := t.TempDir()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("SD15", filepath.Join(testdata, "tiny", "sd15", "model"))
			e.Setenv("SCHNELL", filepath.Join(testdata, "tiny", "flux1-schnell", "model"))
			e.Setenv("KLEIN", filepath.Join(testdata, "tiny", "tp-flux2", "model"))
			e.Setenv("WAN", filepath.Join(testdata, "tiny", "tp-wan", "model"))
			e.Setenv("SHAPES", filepath.Join(testdata, "shapes-flux1", "model"))
			e.Setenv("GOLDEN", filepath.Join(testdata, "tiny", "sd15"))
			e.Setenv("LORA", filepath.Join(testdata, "lora"))
			e.Setenv("PRECAST_CACHE_DIR", shared)
			e.Setenv("PRECAST_PLUGIN_DIR", plugins.Dir)
			e.Setenv("PRECAST_PLUGIN", "go")
			return nil
		},
		Condition: func(cond string) (bool, error) {
			if cond == "plugin" {
				return noPlugin == nil, nil
			}
			return false, errors.New("unknown condition")
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":  cmdExits,
			"counts": cmdCounts,
			"absent": cmdAbsent,
			"flip":   cmdFlip,
			"jsonof": cmdJSON,
		},
	})
}

// cmdExits is "exits CODE precast ...": the program must end with that code.
func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND [ARGUMENT...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	found := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		found = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if found != want {
		ts.Fatalf("it ended with %d, wanted %d", found, want)
	}
}

// cmdCounts is "counts FILE NAME=N NAME>N ...": the counts in a file of --stats.
func cmdCounts(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: counts FILE NAME=N|NAME>N ...")
	}
	var stats precast.Stats
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &stats))
	for _, want := range args[1:] {
		i := strings.IndexAny(want, "=>")
		if i < 0 {
			ts.Fatalf("found %q, wanted NAME=N or NAME>N", want)
		}
		n, err := strconv.ParseInt(want[i+1:], 10, 64)
		ts.Check(err)
		found, ok := stats.Counts[want[:i]]
		if !ok {
			ts.Fatalf("%s has no count %q", args[0], want[:i])
		}
		if want[i] == '=' && found != n || want[i] == '>' && found <= n {
			ts.Fatalf("%s is %d, wanted %s", want[:i], found, want)
		}
	}
}

// cmdAbsent is "absent DIR PATTERN": no file in DIR matches, names that begin with a dot included.
func cmdAbsent(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: absent DIR PATTERN")
	}
	list, err := os.ReadDir(ts.MkAbs(args[0]))
	ts.Check(err)
	for _, f := range list {
		ok, err := filepath.Match(args[1], f.Name())
		ts.Check(err)
		if ok {
			ts.Fatalf("%s is there", f.Name())
		}
	}
}

// cmdFlip is "flip PATTERN": the last byte of the first file that matches gets another value.
func cmdFlip(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: flip PATTERN")
	}
	list, err := filepath.Glob(ts.MkAbs(args[0]))
	ts.Check(err)
	if len(list) == 0 {
		ts.Fatalf("no file matches %s", args[0])
	}
	data, err := os.ReadFile(list[0])
	ts.Check(err)
	data[len(data)-1] ^= 0x40
	ts.Check(os.WriteFile(list[0], data, 0o600))
}

// cmdJSON is "jsonof stdout|FILE": it must be one JSON value, or one a line with "lines" behind.
func cmdJSON(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: jsonof stdout|stderr|FILE [lines]")
	}
	text := ts.ReadFile(args[0])
	parts := []string{text}
	if len(args) == 2 {
		parts = strings.Split(strings.TrimSpace(text), "\n")
	}
	for _, p := range parts {
		if !json.Valid([]byte(p)) {
			ts.Fatalf("not JSON: %q", p)
		}
	}
}
