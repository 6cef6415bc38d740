package precast

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/png"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"precast/graph/pipelines"
)

// testFrames are frames of several kinds: smooth, noise, one colour, few colours.
func testFrames(n, height, width int) []pipelines.Image {
	r := rand.New(rand.NewPCG(uint64(n), uint64(height*width)))
	var frames []pipelines.Image
	for i := range n {
		f := pipelines.Image{Height: height, Width: width, RGB: make([]byte, 3*height*width)}
		for at := range f.RGB {
			x, y, c := at/3%width, at/3/width, at%3
			switch i % 4 {
			case 0:
				f.RGB[at] = byte(2*x + 3*y + 40*c + i)
			case 1:
				f.RGB[at] = byte(r.IntN(256))
			case 2:
				f.RGB[at] = byte(60*c + i)
			case 3:
				f.RGB[at] = []byte{0, 255, 17}[(x/3+y/2+c)%3]
			}
		}
		frames = append(frames, f)
	}
	return frames
}

func testParams(prompt string) *pipelines.Params {
	seed := uint64(7)
	return &pipelines.Params{Prompt: prompt, Seed: &seed, Height: 3, Width: 5, NumInferenceSteps: 2, Pipeline: "WanPipeline", Extra: map[string]any{"num_frames": 5.0}}
}

func samePixels(t *testing.T, what string, got image.Image, want pipelines.Image) {
	t.Helper()
	if b := got.Bounds(); b.Dx() != want.Width || b.Dy() != want.Height {
		t.Fatalf("%s: %v, wanted %dx%d", what, b, want.Width, want.Height)
	}
	for y := range want.Height {
		for x := range want.Width {
			r, g, b, a := got.At(x, y).RGBA()
			p := want.RGB[3*(y*want.Width+x):]
			if byte(r>>8) != p[0] || byte(g>>8) != p[1] || byte(b>>8) != p[2] || a != 0xffff {
				t.Fatalf("%s: pixel %d, %d is %d %d %d %d, wanted %v", what, x, y, r>>8, g>>8, b>>8, a>>8, p[:3])
			}
		}
	}
}

// pngParts splits a PNG into chunks and checks their CRCs.
func pngParts(t *testing.T, data []byte) (kinds []string, bodies [][]byte) {
	t.Helper()
	if !bytes.HasPrefix(data, pngSignature) {
		t.Fatal("no PNG")
	}
	for data = data[8:]; len(data) > 0; {
		n := binary.BigEndian.Uint32(data)
		if sum := crc32.ChecksumIEEE(data[4 : 8+n]); sum != binary.BigEndian.Uint32(data[8+n:]) {
			t.Fatalf("chunk %s has a wrong checksum", data[4:8])
		}
		kinds, bodies = append(kinds, string(data[4:8])), append(bodies, data[8:8+n])
		data = data[12+n:]
	}
	return kinds, bodies
}

// readAPNG takes an animated PNG apart: each frame as a PNG of its own, and how long it stays in seconds.
func readAPNG(t *testing.T, data []byte) (frames []image.Image, delays []float64) {
	t.Helper()
	kinds, bodies := pngParts(t, data)
	if kinds[0] != "IHDR" || kinds[len(kinds)-1] != "IEND" {
		t.Fatalf("chunks %v", kinds)
	}
	var current []byte
	sequence, announced := uint32(0), uint32(0)
	finish := func() {
		if current == nil {
			return
		}
		m, err := png.Decode(bytes.NewReader(append(current, pngChunk("IEND", nil)...)))
		if err != nil {
			t.Fatal(err)
		}
		frames = append(frames, m)
	}
	number := func(body []byte) {
		if n := binary.BigEndian.Uint32(body); n != sequence {
			t.Fatalf("sequence number %d, wanted %d", n, sequence)
		}
		sequence++
	}
	for i, kind := range kinds {
		switch body := bodies[i]; kind {
		case "acTL":
			if slices.Contains(kinds[:i], "IDAT") {
				t.Fatal("acTL comes after IDAT")
			}
			announced = binary.BigEndian.Uint32(body)
			if loops := binary.BigEndian.Uint32(body[4:]); loops != 0 {
				t.Fatalf("it is shown %d times", loops)
			}
		case "fcTL":
			number(body)
			finish()
			current = append(bytes.Clone(pngSignature), pngChunk("IHDR", bodies[0])...)
			if !bytes.Equal(body[4:12], bodies[0][:8]) || !bytes.Equal(body[12:20], make([]byte, 8)) || body[24] != 0 || body[25] != 0 {
				t.Fatalf("fcTL %x of %x", body, bodies[0])
			}
			delays = append(delays, float64(binary.BigEndian.Uint16(body[20:]))/float64(binary.BigEndian.Uint16(body[22:])))
		case "IDAT":
			current = append(current, pngChunk("IDAT", body)...)
		case "fdAT":
			number(body)
			current = append(current, pngChunk("IDAT", body[4:])...)
		}
	}
	finish()
	if len(frames) != int(announced) {
		t.Fatalf("%d frames, acTL says %d", len(frames), announced)
	}
	return frames, delays
}

// TestAnimations writes frames of odd and even sizes  and finds every pixel, time and parameter again.
func TestAnimations(t *testing.T) {
	for _, c := range []struct {
		n, height, width int
		fps              float64
	}{{5, 16, 24, 16}, {2, 1, 1, 24}, {9, 33, 47, 23.976}, {4, 3, 130, 1000}, {1, 8, 8, 16}, {6, 40, 64, 0.5}, {3, 257, 300, 29.97}} {
		frames := testFrames(c.n, c.height, c.width)
		params := testParams("ein Fuchs & <Hase> \u00fc \"")
		var b bytes.Buffer
		if err := EncodeAPNG(&b, frames, c.fps, params); err != nil {
			t.Fatal(err)
		}
		pictures, delays := readAPNG(t, b.Bytes())
		for i := range frames {
			samePixels(t, "APNG", pictures[i], frames[i])
			if math.Abs(delays[i]*c.fps-1) > 1e-3 {
				t.Errorf("APNG: %g frames a second: a frame stays %g s", c.fps, delays[i])
			}
		}
		first, err := png.Decode(bytes.NewReader(b.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		samePixels(t, "APNG as PNG", first, frames[0])
		if p, err := ReadPNGParams(&b); err != nil || p.Prompt != params.Prompt || *p.Seed != *params.Seed {
			t.Errorf("APNG: parameters %+v, %v", p, err)
		}
	}
}

func TestAnimationRefused(t *testing.T) {
	frames := testFrames(2, 4, 4)
	odd := append(slices.Clone(frames), testFrames(1, 4, 5)...)
	for _, fps := range []float64{0, -1, math.NaN(), math.Inf(1), 1001} {
		if err := EncodeAPNG(&bytes.Buffer{}, frames, fps, nil); err == nil {
			t.Errorf("%g frames a second were taken", fps)
		}
	}
	if err := EncodeAPNG(&bytes.Buffer{}, odd, 16, nil); err == nil {
		t.Error("frames of two sizes were taken")
	}
	if err := EncodeAPNG(&bytes.Buffer{}, nil, 16, nil); err == nil {
		t.Error("no frames were taken")
	}
}
