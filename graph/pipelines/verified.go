package pipelines

import (
	_ "embed"
	"encoding/json"
	"slices"
	"strings"
	"sync"
)

// Verified says how far the runs of one reference pipeline on one backend are from what diffusers computes: the largest difference over the runs.
type Verified struct {
	// Case is the reference pipeline, Class its class in diffusers.
	Case  string `json:"case"`
	Class string `json:"class"`
	// Backend is "pjrt" or "go".
	Backend string   `json:"backend"`
	Runs    []string `json:"runs"`
	// Text are the results of encode_prompt, Model what the scheduler is given, Latents what it makes, Decoded the autoencoder's pictures.
	Text    Difference `json:"text"`
	Model   Difference `json:"model"`
	Latents Difference `json:"latents"`
	Decoded Difference `json:"decoded"`
	// Picture is the largest difference of an 8-bit value.
	Picture int `json:"picture"`
}

// Difference is a largest absolute difference, and the same relative to the largest value that was expected.
type Difference struct {
	Abs float64 `json:"abs"`
	Rel float64 `json:"rel"`
}

func (d *Difference) widen(by Difference) { d.Abs, d.Rel = max(d.Abs, by.Abs), max(d.Rel, by.Rel) }

// Add takes in the difference of one tensor, by its name in the reference ("step_latents").
func (v *Verified) Add(tensor string, d Difference) {
	switch {
	case strings.HasPrefix(tensor, "encode_prompt/"):
		v.Text.widen(d)
	case tensor == "step_model_output":
		v.Model.widen(d)
	case tensor == "step_latents":
		v.Latents.widen(d)
	case tensor == "vae_out":
		v.Decoded.widen(d)
	}
}

// MergeVerified adds a run to the list.
func MergeVerified(list []Verified, v Verified) []Verified {
	i := slices.IndexFunc(list, func(o Verified) bool { return o.Case == v.Case && o.Backend == v.Backend })
	if i < 0 {
		return append(list, v)
	}
	o := &list[i]
	o.Runs = append(slices.Clone(o.Runs), v.Runs...)
	slices.Sort(o.Runs)
	o.Text.widen(v.Text)
	o.Model.widen(v.Model)
	o.Latents.widen(v.Latents)
	o.Decoded.widen(v.Decoded)
	o.Picture = max(o.Picture, v.Picture)
	return list
}

//go:embed verified.json
var verifiedJSON []byte

// VerifiedRuns is what the test of the goldens measured when it was last asked to write it down (tests/golden_test.go, -update-verified).
var VerifiedRuns = sync.OnceValue(func() []Verified {
	var list []Verified
	if err := json.Unmarshal(verifiedJSON, &list); err != nil {
		panic("BUG: verified.json: " + err.Error())
	}
	return list
})
