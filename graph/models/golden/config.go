package golden

import (
	"testing"

	"precast/graph/checkpoint"
)

// Parse is a model's ParseConfig on a config that must be good.
func Parse[C any](t *testing.T, parse func(*checkpoint.Config) (C, error), c *checkpoint.Config) C {
	t.Helper()
	cfg, err := parse(c)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// CheckConfig compares the error that a model's ParseConfig gives for the text of a config.json with want, which is empty for a good one.
func CheckConfig[C any](t *testing.T, parse func(*checkpoint.Config) (C, error), text, want string) {
	t.Helper()
	c, err := checkpoint.ParseConfig("config.json", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	if _, err := parse(c); err != nil {
		got = err.Error()
	}
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
