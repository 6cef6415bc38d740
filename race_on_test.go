//go:build race

package precast

const raceDetector = true
