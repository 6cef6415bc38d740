package precast

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/png"
	"math"
	"math/bits"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/image/webp"

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

// readWebP takes an animated or still WebP apart.
func readWebP(t *testing.T, data []byte) (frames []image.Image, milliseconds []int) {
	t.Helper()
	if string(data[:4]) != "RIFF" || string(data[8:12]) != "WEBP" || int(binary.LittleEndian.Uint32(data[4:])) != len(data)-8 {
		t.Fatalf("RIFF header % x of %d bytes", data[:12], len(data))
	}
	still := func(chunk []byte) {
		m, err := webp.Decode(bytes.NewReader(riffChunk("RIFF", append([]byte("WEBP"), chunk...))))
		if err != nil {
			t.Fatal(err)
		}
		frames = append(frames, m)
	}
	var canvas []byte
	for at := 12; at < len(data); {
		n := int(binary.LittleEndian.Uint32(data[at+4:]))
		body := data[at+8 : at+8+n]
		switch kind := string(data[at : at+4]); kind {
		case "VP8X":
			canvas = body[4:]
		case "ANMF":
			if !bytes.Equal(body[:6], make([]byte, 6)) || !bytes.Equal(body[6:12], canvas) || body[15] != 2 {
				t.Fatalf("ANMF % x of canvas % x", body[:16], canvas)
			}
			milliseconds = append(milliseconds, int(body[12])|int(body[13])<<8|int(body[14])<<16)
			still(body[16:])
		case "VP8L":
			still(data[at : at+8+n+n%2])
		case "ANIM", "XMP ":
		default:
			t.Fatalf("chunk %q", kind)
		}
		at += 8 + n + n%2
	}
	return frames, milliseconds
}

// TestAnimations writes frames of odd and even sizes in both lossless forms and finds every pixel, time and parameter again.
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

		path := filepath.Join(t.TempDir(), "v.webp")
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := EncodeWebP(f, frames, c.fps, params); err != nil {
			t.Fatal(err)
		}
		f.Close()
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		pictures, times := readWebP(t, data)
		if len(pictures) != c.n || c.n > 1 && len(times) != c.n || c.n == 1 && len(times) != 0 {
			t.Fatalf("%d pictures, times %v", len(pictures), times)
		}
		sum := 0
		for i := range frames {
			samePixels(t, "WebP", pictures[i], frames[i])
			if c.n > 1 {
				sum += times[i]
				if want := 1000 * float64(i+1) / c.fps; math.Abs(float64(sum)-want) > 0.5 {
					t.Errorf("WebP: %g frames a second: frame %d ends after %d ms, wanted %g", c.fps, i, sum, want)
				}
			}
		}
		if p, err := ReadWebPParams(bytes.NewReader(data)); err != nil || p.Prompt != params.Prompt || *p.Seed != *params.Seed {
			t.Errorf("WebP: parameters %+v, %v", p, err)
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
	for _, data := range []string{"", "RIFF", "RIFF\x04\x00\x00\x00WEBP", "RIFF\x0c\x00\x00\x00WEBPXMP \x04\x00\x00\x00<a/>", "RIFF\x0c\x00\x00\x00WEBPXMP \x09\x00\x00\x00<a/>"} {
		if p, err := ReadWebPParams(bytes.NewReader([]byte(data))); err == nil {
			t.Errorf("%q: %+v", data, p)
		}
	}
}

// TestVP8L encodes pictures of all small sizes and of odd contents, which golang.org/x/image decodes again.
func TestVP8L(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	check := func(img pipelines.Image) {
		t.Helper()
		file := riffChunk("RIFF", append([]byte("WEBP"), riffChunk("VP8L", encodeVP8L(img))...))
		m, err := webp.Decode(bytes.NewReader(file))
		if err != nil {
			t.Fatalf("%dx%d: %v", img.Height, img.Width, err)
		}
		samePixels(t, "VP8L", m, img)
	}
	for height := 1; height < 12; height++ {
		for width := 1; width < 12; width++ {
			for _, f := range testFrames(4, height, width) {
				check(f)
			}
		}
	}
	for range 60 {
		img := pipelines.Image{Height: 1 + r.IntN(150), Width: 1 + r.IntN(150)}
		img.RGB = make([]byte, 3*img.Height*img.Width)
		colours, run := 1+r.IntN(256), 1+r.IntN(400)
		for at := range img.RGB {
			img.RGB[at] = byte(r.IntN(colours))
			if at >= run && r.IntN(20) > 0 {
				img.RGB[at] = img.RGB[at-run]
			}
		}
		check(img)
	}
	// A steep distribution makes codes that have to be cut to 15 bits.
	img := pipelines.Image{Height: 512, Width: 512, RGB: make([]byte, 3*512*512)}
	for at := range img.RGB {
		img.RGB[at] = byte(bits.TrailingZeros32(r.Uint32()|1<<31) * (1 + at%3) * (1 + at%2*77))
	}
	check(img)
}

func TestCodeLengths(t *testing.T) {
	// Fibonacci numbers make the deepest tree.
	counts := make([]int, 40)
	for i, a, b := 0, 1, 1; i < len(counts); i, a, b = i+1, b, a+b {
		counts[i] = a
	}
	for _, most := range []int{7, 15} {
		lengths := codeLengths(counts, most)
		sum := 0.0
		for _, l := range lengths {
			if l < 1 || l > most {
				t.Errorf("%d bits, wanted 1 to %d", l, most)
			}
			sum += math.Pow(2, -float64(l))
		}
		if sum != 1 {
			t.Errorf("at most %d bits: the code fills %g of the tree", most, sum)
		}
	}
}
