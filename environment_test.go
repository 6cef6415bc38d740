package precast

import (
	"context"
	"strings"
	"testing"
	"time"
)

// TestDescribePluginApart has children that answer, complain, crash, hang and talk nonsense in place of plugins.
func TestDescribePluginApart(t *testing.T) {
	for _, c := range []struct {
		name, script string
		api, problem string
	}{
		{name: "answer", script: `echo '{"api":"0.99","platform":"cpu"}'`, api: "0.99"},
		{name: "error", script: `echo 'precast: error: first' >&2; echo 'precast: error: it is no library' >&2; exit 1`, problem: "it is no library"},
		{name: "silent error", script: `exit 3`, problem: "exit status 3"},
		{name: "crash", script: `kill -SEGV $$`, problem: "it ended the process that loaded it: signal: segmentation fault"},
		{name: "hang", script: `exec sleep 60`, problem: "no answer within 500ms"},
		{name: "nonsense", script: `echo hello`, problem: "its description can't be read"},
	} {
		t.Run(c.name, func(t *testing.T) {
			start := time.Now()
			info := describeWithin(context.Background(), 500*time.Millisecond, "plugin.so", "sh", "-c", c.script, "sh")
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("it took %v", took)
			}
			if info.API != c.api || !strings.HasPrefix(info.Problem, c.problem) || (c.problem == "") != (info.Problem == "") {
				t.Errorf("found API %q and problem %q, wanted %q and %q", info.API, info.Problem, c.api, c.problem)
			}
		})
	}
}

func TestDescribePluginMissing(t *testing.T) {
	if _, err := DescribePlugin("/nonexistent/plugin.so", true); err == nil || ExitCode(err) != 1 {
		t.Errorf("found %v, wanted an error of the user's", err)
	}
}

// TestEnvironmentNeverAsksOthers: a plugin that is not for the CPU is asked without a client, which might wait for a device.
func TestEnvironmentNeverAsksOthers(t *testing.T) {
	for name, want := range map[string]bool{"cpu": true, "cpu:xla-cpu-pjrt": true, "tpu:libtpu": false, "/opt/libtpu.so": false, "cuda13:jax-cuda13-pjrt": false} {
		if got := isCPU(name); got != want {
			t.Errorf("isCPU(%q) is %v", name, got)
		}
	}
}
