package pipelines

import (
	_ "embed"
	"encoding/json"
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
