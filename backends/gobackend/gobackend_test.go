package gobackend

import (
	"testing"

	"precast/backends/backendtest"
)

func TestCompliance(t *testing.T) {
	backendtest.RunAll(t, Plugin(), backendtest.Options{Live: Live})
}
