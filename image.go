package precast

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"image"
	"image/png"
	"io"

	"precast/graph/pipelines"
)

// pngKeyword is the text chunk that holds the generation parameters as JSON.
const pngKeyword = "precast"

// EncodePNG writes a picture as an 8-bit RGB PNG with the parameters that made it in an iTXt chunk (PNG specification, third
// edition, 11.3.3.4): `precast inspect` reads them back.
func EncodePNG(w io.Writer, img pipelines.Image, params *pipelines.Params) error {
	var b bytes.Buffer
	if err := png.Encode(&b, opaque(img)); err != nil {
		return err
	}
	data := b.Bytes()
	if params == nil {
		_, err := w.Write(data)
		return err
	}
	text, err := json.Marshal(params)
	if err != nil {
		return err
	}
	// Signature (8 bytes) and IHDR (25 bytes) come first; text may follow.
	const header = 8 + 25
	for _, part := range [][]byte{data[:header], textChunk(pngKeyword, text), data[header:]} {
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// opaque is the picture in a form that Go's encoders take.
func opaque(img pipelines.Image) *image.NRGBA {
	m := image.NewNRGBA(image.Rect(0, 0, img.Width, img.Height))
	for i := range img.Width * img.Height {
		m.Pix[4*i], m.Pix[4*i+1], m.Pix[4*i+2], m.Pix[4*i+3] = img.RGB[3*i], img.RGB[3*i+1], img.RGB[3*i+2], 255
	}
	return m
}

// textChunk is an uncompressed iTXt chunk: keyword, no compression, no language, no translated keyword, UTF-8 text.
func textChunk(keyword string, text []byte) []byte {
	return pngChunk("iTXt", append(append([]byte(keyword), 0, 0, 0, 0, 0), text...))
}

// pngChunk is a chunk of a PNG: length, kind, body, and the CRC of kind and body.
func pngChunk(kind string, body []byte) []byte {
	out := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	out = append(append(out, kind...), body...)
	return binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(out[4:]))
}

var pngSignature = []byte("\x89PNG\r\n\x1a\n")

// ReadPNGParams returns the parameters in a PNG that precast wrote; an error says what the file is instead.
func ReadPNGParams(r io.Reader) (*pipelines.Params, error) {
	sig := make([]byte, 8)
	if _, err := io.ReadFull(r, sig); err != nil || !bytes.Equal(sig, pngSignature) {
		return nil, errors.New("not a PNG file")
	}
	for {
		var head [8]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return nil, fmt.Errorf("the PNG ends within a chunk: %w", err)
		}
		n, kind := binary.BigEndian.Uint32(head[:4]), string(head[4:])
		const largest = 1 << 20
		if kind == "IEND" {
			return nil, errors.New("the PNG holds no generation parameters of precast")
		}
		if kind != "iTXt" || n > largest {
			if _, err := io.CopyN(io.Discard, r, int64(n)+4); err != nil {
				return nil, fmt.Errorf("the PNG ends within its chunk %q", kind)
			}
			continue
		}
		body := make([]byte, n+4)
		if _, err := io.ReadFull(r, body); err != nil {
			return nil, fmt.Errorf("the PNG ends within its chunk %q", kind)
		}
		text, ok := bytes.CutPrefix(body[:n], append([]byte(pngKeyword), 0, 0, 0, 0, 0))
		if !ok {
			continue
		}
		if sum := crc32.ChecksumIEEE(append([]byte(kind), body[:n]...)); sum != binary.BigEndian.Uint32(body[n:]) {
			return nil, errors.New("the PNG's chunk of generation parameters has a wrong checksum")
		}
		p := &pipelines.Params{}
		if err := json.Unmarshal(text, p); err != nil {
			return nil, fmt.Errorf("the generation parameters in the PNG are broken: %w", err)
		}
		return p, nil
	}
}
