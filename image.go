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
	"os"
	"path/filepath"
	"strings"

	"precast/graph/pipelines"
)

// pngKeyword is the text chunk that holds the generation parameters as JSON.
const pngKeyword = "precast"

// EncodePNG writes a picture as an 8-bit RGB PNG with the parameters that made it in an iTXt chunk (PNG specification, third
// edition, 11.3.3.4): `precast inspect` reads them back.
func EncodePNG(w io.Writer, img pipelines.Image, params *pipelines.Params) error {
	m := image.NewNRGBA(image.Rect(0, 0, img.Width, img.Height))
	for i := range img.Width * img.Height {
		m.Pix[4*i], m.Pix[4*i+1], m.Pix[4*i+2], m.Pix[4*i+3] = img.RGB[3*i], img.RGB[3*i+1], img.RGB[3*i+2], 255
	}
	var b bytes.Buffer
	if err := png.Encode(&b, m); err != nil {
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

// textChunk is an uncompressed iTXt chunk: keyword, no compression, no language, no translated keyword, UTF-8 text.
func textChunk(keyword string, text []byte) []byte {
	body := append([]byte("iTXt"+keyword), 0, 0, 0, 0, 0)
	body = append(body, text...)
	out := binary.BigEndian.AppendUint32(nil, uint32(len(body)-4))
	out = append(out, body...)
	return binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(body))
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

// OutputPaths are the files that n pictures go to: "FILE" for one, "FILE-0.png" ... for several, "0000.png" ... in a folder (a path that
// ends with a separator or is one).
func OutputPaths(out string, n int) []string {
	paths := make([]string, n)
	info, err := os.Stat(out)
	dir := strings.HasSuffix(out, "/") || strings.HasSuffix(out, string(filepath.Separator)) || (err == nil && info.IsDir())
	ext := filepath.Ext(out)
	for i := range paths {
		switch {
		case dir:
			paths[i] = filepath.Join(out, fmt.Sprintf("%04d.png", i))
		case n == 1:
			paths[i] = out
		default:
			paths[i] = fmt.Sprintf("%s-%d%s", strings.TrimSuffix(out, ext), i, ext)
		}
	}
	return paths
}

// Output is a set of files that appear together or not at all.
type Output struct {
	paths []string
	temps []*os.File
	made  string // a folder that OpenOutput made
}

// OpenOutput checks that the files can be written, before any work, by making their temporary neighbours. Only PNG files are written.
func OpenOutput(out string, n int) (*Output, error) {
	o := &Output{paths: OutputPaths(out, n)}
	for _, p := range o.paths {
		if ext := strings.ToLower(filepath.Ext(p)); ext != ".png" {
			o.Abort()
			return nil, userErrorf("output %q: only .png is written; name a file that ends in .png, or a folder with a / at the end", p)
		}
		if info, err := os.Stat(p); err == nil && !info.IsDir() && !info.Mode().IsRegular() {
			o.Abort()
			return nil, userErrorf("output %q is a device or a pipe; name a file", p)
		} else if err == nil && info.IsDir() {
			o.Abort()
			return nil, userErrorf("output %q is a folder; name a file in it, or end the path with /", p)
		}
		dir := filepath.Dir(p)
		if strings.HasSuffix(out, "/") {
			if _, err := os.Stat(dir); err != nil {
				o.made = dir
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				o.Abort()
				return nil, userErrorf("output folder %q can't be made: %w", dir, err)
			}
		}
		f, err := os.CreateTemp(dir, ".precast-*.png")
		if err != nil {
			o.Abort()
			return nil, userErrorf("output %q can't be written: %w", p, withoutPath(err))
		}
		o.temps = append(o.temps, f)
	}
	return o, nil
}

// withoutPath drops the name of a temporary file from an error of the system: the user knows the file by another.
func withoutPath(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// Write writes the pictures and gives them their names. An error leaves nothing behind.
func (o *Output) Write(out *pipelines.Output) ([]string, error) {
	defer o.Abort()
	if len(out.Images) != len(o.temps) {
		return nil, &InternalError{Phase: "write", Program: "output", Err: fmt.Errorf("%d pictures for %d files", len(out.Images), len(o.temps))}
	}
	for i, f := range o.temps {
		if err := EncodePNG(f, out.Images[i], &out.Params[i]); err != nil {
			return nil, userErrorf("output %q can't be written: %w", o.paths[i], err)
		}
		if err := f.Chmod(0o644); err != nil {
			return nil, userErrorf("output %q can't be written: %w", o.paths[i], err)
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return nil, userErrorf("output %q can't be written: %w", o.paths[i], err)
		}
	}
	for i, f := range o.temps {
		if err := os.Rename(f.Name(), o.paths[i]); err != nil {
			for _, done := range o.paths[:i] {
				_ = os.Remove(done)
			}
			return nil, userErrorf("output %q can't be written: %w", o.paths[i], err)
		}
	}
	o.temps, o.made = nil, ""
	return o.paths, nil
}

// Abort removes what OpenOutput made; after Write it does nothing.
func (o *Output) Abort() {
	for _, f := range o.temps {
		_ = f.Close()
		_ = os.Remove(f.Name())
	}
	o.temps = nil
	if o.made != "" {
		_ = os.Remove(o.made) // only where it is empty
		o.made = ""
	}
}
