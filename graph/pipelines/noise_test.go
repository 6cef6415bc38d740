package pipelines

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

// TestNoise compares draws with those of PyTorch (testdata/noise.py): a generator's sequence of uniform numbers has to be the same, so that only
// the last digits of logarithm, root, sine and cosine differ.
func TestNoise(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "noise.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Cases []struct {
			Seed  uint64
			Draws []struct {
				Size        int
				First, Last []string
			}
		}
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) < 12 {
		t.Fatalf("found %d cases, wanted 12 or more", len(file.Cases))
	}
	var worst float64
	for _, c := range file.Cases {
		n := newNoise(c.Seed)
		for i, d := range c.Draws {
			got := make([]float32, d.Size)
			n.fill(got)
			check := func(part string, got []float32, want []string) {
				for k, w := range want {
					bits, err := strconv.ParseUint(w, 16, 32)
					if err != nil {
						t.Fatal(err)
					}
					v := math.Float32frombits(uint32(bits))
					// A sine or cosine near a zero of its own has the absolute precision of its argument.
					distance := math.Abs(float64(got[k]) - float64(v))
					worst = max(worst, distance)
					if !(distance <= 1e-6*max(1, math.Abs(float64(v)))) {
						t.Errorf("seed %d, draw %d of %d numbers, %s, number %d: found %v, wanted %v", c.Seed, i, d.Size, part, k, got[k], v)
					}
				}
			}
			check("first", got, d.First)
			check("last", got[len(got)-len(d.Last):], d.Last)
		}
	}
	t.Logf("at most %.2g from PyTorch's numbers", worst)
}

// TestGenerators: picture k of a batch has the noise of seed+k, whatever the batch.
func TestGenerators(t *testing.T) {
	g := newGenerators(7, 3)
	for draw := range 2 {
		got := g.randn(2, 5, 2)
		if len(got) != 60 {
			t.Fatalf("found %d numbers, wanted 60", len(got))
		}
		for k := range 3 {
			alone := newGenerators(7+uint64(k), 1)
			for range draw {
				alone.randn(2, 5, 2)
			}
			if want := alone.randn(2, 5, 2); !slices.Equal(got[20*k:20*(k+1)], want) {
				t.Errorf("draw %d, picture %d differs from the picture made alone with its seed", draw, k)
			}
		}
	}
	if slices.Equal(newGenerators(1, 1).randn(16), newGenerators(2, 1).randn(16)) {
		t.Error("two seeds draw the same numbers")
	}
}
