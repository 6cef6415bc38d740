package precast

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/color"
	"io"
	"os"

	// The decoders that image.Decode finds.
	_ "image/gif"
	_ "image/jpeg"
	_ "image/png"

	"precast/graph/checkpoint"
)

// Bounds of a picture that ReadImage takes: its sides, and the bytes of its file, which need not be one that ends (a device).
const (
	maxImageSide  = 16384
	maxImageBytes = 1 << 30
)

// ReadImage reads a PNG, JPEG or GIF (its first picture) as 8-bit RGB, for Request.Image, as diffusers' load_image does
// (src/diffusers/utils/loading_utils.py): turned as its EXIF orientation says, and without its transparency.
func ReadImage(path string) (*Image, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, checkpoint.FileError(path, err)
	}
	defer f.Close()
	m, err := decodeImage(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, withoutPath(err))
	}
	return m, nil
}

func decodeImage(r io.Reader) (*Image, error) {
	// The header first: a small file may claim a picture that does not fit in memory, and what is no picture may have no end.
	var data bytes.Buffer
	r = io.TeeReader(io.LimitReader(r, maxImageBytes+1), &data)
	c, format, err := image.DecodeConfig(r)
	if errors.Is(err, image.ErrFormat) {
		return nil, errors.New("found no PNG, JPEG or GIF, wanted one of these")
	} else if err != nil {
		return nil, err
	}
	if c.Width < 1 || c.Height < 1 || c.Width > maxImageSide || c.Height > maxImageSide {
		return nil, fmt.Errorf("found a picture of %dx%d (height x width), wanted sides of 1 to %d", c.Height, c.Width, maxImageSide)
	}
	if _, err := io.Copy(io.Discard, r); err != nil {
		return nil, err
	}
	if data.Len() > maxImageBytes {
		return nil, fmt.Errorf("found more than %d bytes, wanted a file of at most as many", maxImageBytes)
	}
	m, _, err := image.Decode(bytes.NewReader(data.Bytes()))
	if err != nil {
		return nil, err
	}
	turn := 1
	if format == "jpeg" {
		turn = exifOrientation(data.Bytes())
	}
	return oriented(m, turn), nil
}

// oriented is the picture as RGB, turned from an EXIF orientation (EXIF 2.32, section 4.6.4, tag 274: where the first row and column of the stored
// picture are to be seen) to the first.
func oriented(m image.Image, orientation int) *Image {
	b := m.Bounds()
	h, w := b.Dy(), b.Dx()
	out := &Image{Height: h, Width: w}
	if orientation >= 5 {
		out.Height, out.Width = w, h
	}
	out.RGB = make([]byte, 3*h*w)
	for y := range h {
		for x := range w {
			// Where the stored pixel goes.
			r, c := y, x
			switch orientation {
			case 2:
				c = w - 1 - x
			case 3:
				r, c = h-1-y, w-1-x
			case 4:
				r = h - 1 - y
			case 5:
				r, c = x, y
			case 6:
				r, c = x, h-1-y
			case 7:
				r, c = w-1-x, h-1-y
			case 8:
				r, c = w-1-x, y
			}
			p := color.NRGBAModel.Convert(m.At(b.Min.X+x, b.Min.Y+y)).(color.NRGBA)
			at := 3 * (r*out.Width + c)
			out.RGB[at], out.RGB[at+1], out.RGB[at+2] = p.R, p.G, p.B
		}
	}
	return out
}

// exifOrientation is the orientation, 1 to 8, in a JPEG's EXIF segment; 1 where there is none that can be read.
func exifOrientation(data []byte) int {
	for at := 2; at+4 <= len(data) && data[at] == 0xff; {
		marker, size := data[at+1], int(binary.BigEndian.Uint16(data[at+2:]))
		end := at + 2 + size
		if size < 2 || end > len(data) || marker == 0xda { // start of the picture itself
			break
		}
		if body := data[at+4 : end]; marker == 0xe1 && bytes.HasPrefix(body, []byte("Exif\x00\x00")) {
			return tiffOrientation(body[6:])
		}
		at = end
	}
	return 1
}

// tiffOrientation finds tag 274 in the first directory of a TIFF structure.
func tiffOrientation(t []byte) int {
	var order binary.ByteOrder = binary.LittleEndian
	switch {
	case bytes.HasPrefix(t, []byte("MM\x00*")):
		order = binary.BigEndian
	case !bytes.HasPrefix(t, []byte("II*\x00")):
		return 1
	}
	if len(t) < 8 {
		return 1
	}
	at := int64(order.Uint32(t[4:]))
	if at < 8 || at+2 > int64(len(t)) {
		return 1
	}
	const entry, tag, short = 12, 274, 3
	count := int64(order.Uint16(t[at:]))
	for at += 2; count > 0 && at+entry <= int64(len(t)); count, at = count-1, at+entry {
		e := t[at:]
		if order.Uint16(e) == tag && order.Uint16(e[2:]) == short {
			if v := int(order.Uint16(e[8:])); v >= 1 && v <= 8 {
				return v
			}
			return 1
		}
	}
	return 1
}
