package tests

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"precast/graph/pipelines"
)

var updateVerified = flag.Bool("update-verified", false, "write what TestGoldens measures to graph/pipelines/verified.json and docs/goldens.md")

// verified has the differences of the runs of this test.
var verified []pipelines.Verified

const (
	verifiedJSON  = "../graph/pipelines/verified.json"
	verifiedTable = "../docs/goldens.md"
)

func widen(d *pipelines.Difference, by pipelines.Difference) {
	d.Abs, d.Rel = max(d.Abs, by.Abs), max(d.Rel, by.Rel)
}

// addDifference takes in the difference of one tensor, by its name in the reference ("step_latents").
func addDifference(v *pipelines.Verified, tensor string, d pipelines.Difference) {
	switch {
	case strings.HasPrefix(tensor, "encode_prompt/"):
		widen(&v.Text, d)
	case tensor == "step_model_output":
		widen(&v.Model, d)
	case tensor == "step_latents":
		widen(&v.Latents, d)
	case tensor == "vae_out":
		widen(&v.Decoded, d)
	}
}

// addVerified adds a run to what its case has on its backend.
func addVerified(v pipelines.Verified) {
	i := slices.IndexFunc(verified, func(o pipelines.Verified) bool { return o.Case == v.Case && o.Backend == v.Backend })
	if i < 0 {
		verified = append(verified, v)
		return
	}
	o := &verified[i]
	o.Runs = append(o.Runs, v.Runs...)
	slices.Sort(o.Runs)
	widen(&o.Text, v.Text)
	widen(&o.Model, v.Model)
	widen(&o.Latents, v.Latents)
	widen(&o.Decoded, v.Decoded)
	o.Picture = max(o.Picture, v.Picture)
}

// writeVerified keeps what was measured, for `precast models` and for readers.
func writeVerified(t *testing.T) {
	t.Helper()
	slices.SortFunc(verified, func(a, b pipelines.Verified) int {
		return strings.Compare(a.Case+" "+a.Backend, b.Case+" "+b.Backend)
	})
	data, err := json.MarshalIndent(verified, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string][]byte{verifiedJSON: append(data, '\n'), verifiedTable: goldenTable(verified)} {
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// goldenTable is the measurement as docs/goldens.md.
func goldenTable(list []pipelines.Verified) []byte {
	var b bytes.Buffer
	b.WriteString(`# Runs compared with diffusers

Each reference pipeline's runs (tests/testdata/README.md) were made with diffusers 0.42.1 and are repeated here with the same noise: token ids are equal, and
below are the largest absolute differences over all runs and values, each with its part of the largest value that was expected. The limits are 1e-4
of it for text embeddings, 1e-3 for what follows, and 1 of 255 in a picture's channel. This file is written by

    PRECAST_REFERENCE=<the whole reference> go test ./tests -run TestGoldens -update-verified

| case | class | runs | backend | text embeddings | model output | latents | decoded | picture |
|---|---|---|---|---|---|---|---|---|
`)
	for _, v := range list {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |", v.Case, v.Class, strings.Join(v.Runs, " "), v.Backend)
		for _, d := range []pipelines.Difference{v.Text, v.Model, v.Latents, v.Decoded} {
			fmt.Fprintf(&b, " %.1e (%.1e) |", d.Abs, d.Rel)
		}
		fmt.Fprintf(&b, " %d |\n", v.Picture)
	}
	return b.Bytes()
}

// TestVerified: what is said to be verified is every run of every reference pipeline, on both backends, within the limits, and the table
// shows it.
func TestVerified(t *testing.T) {
	list := pipelines.VerifiedRuns()
	for _, name := range goldenPipelines {
		for _, backend := range []string{"pjrt", "go"} {
			i := slices.IndexFunc(list, func(v pipelines.Verified) bool { return v.Case == name && v.Backend == backend })
			if i < 0 {
				t.Errorf("%s has no entry for %s on %s; go test ./tests -run TestGoldens -update-verified writes it", verifiedJSON, name, backend)
				continue
			}
			v := list[i]
			if v.Text.Rel > moduleLimit || v.Model.Rel > runLimit || v.Latents.Rel > runLimit || v.Picture > 1 {
				t.Errorf("%s on %s: %+v is past the limits", name, backend, v)
			}
			dir := filepath.Join(reference(t), "tiny", name)
			if _, err := os.Stat(dir); err != nil && !slices.Contains(carried, name) {
				continue
			}
			for _, run := range recordedRuns(t, dir) {
				if !slices.Contains(v.Runs, run) {
					t.Errorf("%s on %s: run %s is not in %s", name, backend, run, verifiedJSON)
				}
			}
		}
	}
	table, err := os.ReadFile(verifiedTable)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(table, goldenTable(list)) {
		t.Errorf("%s is not what %s says; write both anew with -update-verified", verifiedTable, verifiedJSON)
	}
	for _, class := range pipelines.Classes() {
		if !slices.ContainsFunc(list, func(v pipelines.Verified) bool { return v.Class == class && slices.Contains(carried, v.Case) }) {
			t.Errorf("testdata has no reference pipeline of class %s", class)
		}
		if !slices.ContainsFunc(list, func(v pipelines.Verified) bool { return v.Class == class }) {
			t.Errorf("pipeline class %s is compared with no golden", class)
		}
	}
}

// recordedRuns lists the runs of a reference pipeline.
func recordedRuns(t *testing.T, dir string) []string {
	t.Helper()
	var runs []string
	for run := range readGolden(t, dir).Runs {
		runs = append(runs, run)
	}
	slices.Sort(runs)
	return runs
}
