package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"precast"
)

func TestNearest(t *testing.T) {
	names := []string{"guidance-scale", "guidance-rescale", "height", "width", "num-inference-steps", "seed", "prompt", "prompt-2", "output"}
	for name, want := range map[string]string{
		"gidance-scale": "guidance-scale", "guidance": "guidance-scale", "hieght": "height", "steps": "num-inference-steps", "sed": "seed",
		"promt": "prompt", "num-steps": "", "x": "", "zzz": "", "": "", "out": "output",
	} {
		if got := nearest(name, names); got != want {
			t.Errorf("nearest(%q) is %q, wanted %q", name, got, want)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"abc", "abc", 0}, {"abc", "acb", 1}, {"abc", "axc", 1}, {"abcd", "bcda", 2}} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("distance(%q, %q) is %d, wanted %d", c.a, c.b, got, c.want)
		}
	}
}

func TestReflow(t *testing.T) {
	word := strings.Repeat("x", 60)
	got := reflow("\n" + word + "\n" + word + " a\nb\n\n  a table   stays\n  as it is\nend\n")
	want := word + "\n" + word + " a b\n\n  a table   stays\n  as it is\nend"
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestFaultsOfOurs: a panic and an internal error end with 2 and say BUG; the user's errors with 1.
func TestFaultsOfOurs(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func() error
		code int
		text string
	}{
		{"panic", func() error { panic("BUG: no such thing") }, 2, "precast: error: BUG: panic: no such thing\n"},
		{"internal", func() error {
			return &precast.InternalError{Phase: "lower", Program: "unet", Dump: "d.graph", Err: errors.New("x")}
		}, 2, "precast: error: BUG: lower of unet: x; the module is in d.graph\n"},
		{"needed", func() error { return fmt.Errorf("a: %w", &precast.CompileNeededError{Program: "unet", Key: "k"}) }, 3, "precast: error: a: unet would have to be compiled"},
		{"two", func() error { return userError("one\ntwo") }, 1, "precast: error: one\nprecast: error: two\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b bytes.Buffer
			k := &cli{in: strings.NewReader(""), out: io.Discard, err: &b}
			if code := k.finish(context.Background(), guarded(c.run)); code != c.code {
				t.Errorf("it ended with %d, wanted %d", code, c.code)
			}
			if !strings.HasPrefix(b.String(), c.text) {
				t.Errorf("it wrote %q, wanted %q", b.String(), c.text)
			}
		})
	}
}
