package precast

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"encoding/xml"
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

// EncodeWebP writes frames of one size as an animated WebP that repeats, losslessly (VP8L), with the parameters as the description in XMP (WebP
// container specification, RFC 9649, section 2.7). Times are whole milliseconds; their sum does not drift. One frame is a still picture.
func EncodeWebP(w io.WriteSeeker, frames []pipelines.Image, fps float64, params *pipelines.Params) error {
	if err := checkFrames(frames, fps); err != nil {
		return err
	}
	width, height := frames[0].Width, frames[0].Height
	const most = 1 << 14
	if width > most || height > most {
		return fmt.Errorf("%dx%d is too large for a WebP, which has up to %d a side", height, width, most)
	}
	out := bufio.NewWriterSize(w, 1<<20)
	size := int64(4) // of the RIFF chunk: its form and the chunks in it
	put := func(chunk []byte) {
		size += int64(len(chunk))
		out.Write(chunk)
	}
	flags := byte(0)
	const xmpFlag, animationFlag = 1 << 2, 1 << 1
	if params != nil {
		flags |= xmpFlag
	}
	if len(frames) > 1 {
		flags |= animationFlag
	}
	out.Write(riffChunk("RIFF", []byte("WEBP"))) // the size comes at the end
	put(riffChunk("VP8X", append(append([]byte{flags, 0, 0, 0}, uint24(width-1)...), uint24(height-1)...)))
	if len(frames) > 1 {
		put(riffChunk("ANIM", make([]byte, 6))) // background, and 0: without end
	}
	at := func(i int) int { return int(math.Round(1000 * float64(i) / fps)) }
	for i, f := range frames {
		still := riffChunk("VP8L", encodeVP8L(f))
		if len(frames) == 1 {
			put(still)
			break
		}
		head := append(make([]byte, 6), uint24(width-1)...)
		head = append(append(head, uint24(height-1)...), uint24(at(i+1)-at(i))...)
		const noBlend = 1 << 1
		put(riffChunk("ANMF", append(append(head, noBlend), still...)))
	}
	if params != nil {
		packet, err := xmpPacket(params)
		if err != nil {
			return err
		}
		put(riffChunk("XMP ", packet))
	}
	if size > math.MaxUint32-10 {
		return errors.New("the video takes more than the 4 GB that a WebP can have; write an .mp4, a .png or a folder")
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if _, err := w.Seek(4, io.SeekStart); err != nil {
		return err
	}
	if err := binary.Write(w, binary.LittleEndian, uint32(size)); err != nil {
		return err
	}
	_, err := w.Seek(0, io.SeekEnd)
	return err
}

// riffChunk is a chunk of a RIFF file, padded to an even size.
func riffChunk(kind string, body []byte) []byte {
	out := append(binary.LittleEndian.AppendUint32([]byte(kind), uint32(len(body))), body...)
	if len(body)%2 == 1 {
		out = append(out, 0)
	}
	return out
}

func uint24(v int) []byte { return []byte{byte(v), byte(v >> 8), byte(v >> 16)} }

// xmpDescription is an XMP packet with one property, dc:description, whose text is the parameters as JSON.
type xmpDescription struct {
	XMLName xml.Name `xml:"adobe:ns:meta/ xmpmeta"`
	Text    string   `xml:"RDF>Description>description>Alt>li"`
}

func xmpPacket(params *pipelines.Params) ([]byte, error) {
	text, err := json.Marshal(params)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.WriteString(`<?xpacket begin="" id="W5M0MpCehiHzreSzNTczkc9d"?><x:xmpmeta xmlns:x="adobe:ns:meta/">` +
		`<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description rdf:about="" xmlns:dc="http://purl.org/dc/elements/1.1/">` +
		`<dc:description><rdf:Alt><rdf:li xml:lang="x-default">`)
	if err := xml.EscapeText(&b, text); err != nil {
		return nil, err
	}
	b.WriteString(`</rdf:li></rdf:Alt></dc:description></rdf:Description></rdf:RDF></x:xmpmeta><?xpacket end="r"?>`)
	return b.Bytes(), nil
}

// ReadWebPParams returns the parameters in a WebP that precast wrote; an error says what the file is instead.
func ReadWebPParams(r io.Reader) (*pipelines.Params, error) {
	head := make([]byte, 12)
	if _, err := io.ReadFull(r, head); err != nil || string(head[:4]) != "RIFF" || string(head[8:]) != "WEBP" {
		return nil, errors.New("not a WebP file")
	}
	for {
		var chunk [8]byte
		if _, err := io.ReadFull(r, chunk[:]); errors.Is(err, io.EOF) {
			return nil, errors.New("the WebP holds no generation parameters of precast")
		} else if err != nil {
			return nil, errors.New("the WebP ends within a chunk")
		}
		kind, n := string(chunk[:4]), int64(binary.LittleEndian.Uint32(chunk[4:]))
		const largest = 1 << 20
		if kind != "XMP " || n > largest {
			if _, err := io.CopyN(io.Discard, r, n+n%2); err != nil {
				return nil, fmt.Errorf("the WebP ends within its chunk %q", kind)
			}
			continue
		}
		body := make([]byte, n)
		if _, err := io.ReadFull(r, body); err != nil {
			return nil, fmt.Errorf("the WebP ends within its chunk %q", kind)
		}
		var x xmpDescription
		p := &pipelines.Params{}
		if err := xml.Unmarshal(body, &x); err != nil {
			return nil, fmt.Errorf("the XMP in the WebP is broken: %w", err)
		}
		if err := json.Unmarshal([]byte(x.Text), p); err != nil {
			return nil, errors.New("the XMP in the WebP holds no generation parameters of precast")
		}
		return p, nil
	}
}

// readParams is ReadPNGParams or ReadWebPParams, by the file's first bytes.
func readParams(r io.ReadSeeker) (*pipelines.Params, error) {
	start := make([]byte, 4)
	if _, err := io.ReadFull(r, start); err != nil {
		return nil, err
	}
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	if string(start) == "RIFF" {
		return ReadWebPParams(r)
	}
	return ReadPNGParams(r)
}
