package precast

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"image/png"
	"io"
	"math"

	"precast/graph/pipelines"
)

// checkFrames makes sure that frames are what one animation can hold.
func checkFrames(frames []pipelines.Image, fps float64) error {
	if len(frames) == 0 {
		return errors.New("a video without frames")
	}
	for i, f := range frames {
		if f.Width != frames[0].Width || f.Height != frames[0].Height || len(f.RGB) != 3*f.Width*f.Height {
			return fmt.Errorf("frame %d is %dx%d with %d bytes, frame 0 is %dx%d", i, f.Height, f.Width, len(f.RGB), frames[0].Height, frames[0].Width)
		}
	}
	if !(fps > 0 && fps <= 1000) {
		return fmt.Errorf("%g frames a second, wanted a number above 0 and up to 1000", fps)
	}
	return nil
}

// delayOf is the time that a frame stays as a fraction of seconds with 16 bits each, as APNG wants it.
func delayOf(fps float64) (num, den uint16) {
	scale := 1000
	for scale > 1 && math.Round(fps*float64(scale)) > math.MaxUint16 {
		scale /= 10
	}
	d := max(1, int(math.Round(fps*float64(scale))))
	g := gcd(scale, d)
	return uint16(scale / g), uint16(d / g)
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// EncodeAPNG writes frames of one size as an animated PNG that repeats, with the parameters where EncodePNG has them (PNG specification,
// third edition, 11.3.6: acTL, fcTL, fdAT). Every pixel is kept. A reader that knows no animation shows the first frame.
func EncodeAPNG(w io.Writer, frames []pipelines.Image, fps float64, params *pipelines.Params) error {
	if err := checkFrames(frames, fps); err != nil {
		return err
	}
	out := bufio.NewWriterSize(w, 1<<20)
	num, den := delayOf(fps)
	sequence := uint32(0)
	next := func() []byte {
		sequence++
		return binary.BigEndian.AppendUint32(nil, sequence-1)
	}
	var b bytes.Buffer
	var header []byte
	for i, f := range frames {
		b.Reset()
		if err := png.Encode(&b, opaque(f)); err != nil {
			return err
		}
		chunks := b.Bytes()[len(pngSignature):]
		for len(chunks) > 0 {
			n := binary.BigEndian.Uint32(chunks)
			kind, body, whole := string(chunks[4:8]), chunks[8:8+n], chunks[:12+n]
			chunks = chunks[12+n:]
			switch {
			case kind == "IHDR" && i == 0:
				header = bytes.Clone(body)
				out.Write(pngSignature)
				out.Write(whole)
				if params != nil {
					text, err := json.Marshal(params)
					if err != nil {
						return err
					}
					out.Write(textChunk(pngKeyword, text))
				}
				// The number of frames, and how often they are shown: 0 is without end.
				out.Write(pngChunk("acTL", binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(len(frames))), 0)))
			case kind == "IHDR" && !bytes.Equal(header, body):
				return fmt.Errorf("frame %d has another form than frame 0", i)
			}
			if kind == "IHDR" {
				control := binary.BigEndian.AppendUint32(next(), uint32(f.Width))
				control = binary.BigEndian.AppendUint32(control, uint32(f.Height))
				control = append(control, make([]byte, 8)...) // the place in the picture
				control = binary.BigEndian.AppendUint16(control, num)
				control = binary.BigEndian.AppendUint16(control, den)
				// Neither cleared after nor blended with what was there: each frame replaces all of the last.
				out.Write(pngChunk("fcTL", append(control, 0, 0)))
			}
			if kind == "IDAT" && i == 0 {
				out.Write(whole)
			} else if kind == "IDAT" {
				out.Write(pngChunk("fdAT", append(next(), body...)))
			}
		}
	}
	out.Write(pngChunk("IEND", nil))
	return out.Flush() // returns the first error of all writes
}
