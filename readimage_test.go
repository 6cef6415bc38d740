package precast

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReadImageForms reads one picture in several forms: transparency is dropped, not blended; grey and palettes become RGB.
func TestReadImageForms(t *testing.T) {
	rgb := [][3]byte{{255, 0, 0}, {0, 128, 255}, {7, 7, 7}, {0, 0, 0}, {255, 255, 255}, {1, 2, 3}}
	at := func(i int) (x, y int) { return i % 3, i / 3 }
	clear := image.NewNRGBA(image.Rect(0, 0, 3, 2))
	deep := image.NewNRGBA64(image.Rect(0, 0, 3, 2))
	grey := image.NewGray(image.Rect(0, 0, 3, 2))
	var palette color.Palette
	for i, p := range rgb {
		x, y := at(i)
		clear.SetNRGBA(x, y, color.NRGBA{p[0], p[1], p[2], byte(40 * i)})
		deep.SetNRGBA64(x, y, color.NRGBA64{uint16(p[0]) * 257, uint16(p[1]) * 257, uint16(p[2]) * 257, 65535})
		grey.SetGray(x, y, color.Gray{p[0]})
		palette = append(palette, color.RGBA{p[0], p[1], p[2], 255})
	}
	indexed := image.NewPaletted(image.Rect(0, 0, 3, 2), palette)
	for i := range rgb {
		indexed.Pix[i] = byte(i)
	}
	encode := func(m image.Image) []byte {
		var b bytes.Buffer
		if err := png.Encode(&b, m); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	var g bytes.Buffer
	if err := gif.EncodeAll(&g, &gif.GIF{Image: []*image.Paletted{indexed}, Delay: []int{0}}); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"deep": encode(deep), "palette": encode(indexed), "gif": g.Bytes(), "grey": encode(grey), "clear": encode(clear)} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, data, 0o666); err != nil {
			t.Fatal(err)
		}
		m, err := ReadImage(path)
		if err != nil {
			t.Fatal(err)
		}
		if m.Height != 2 || m.Width != 3 {
			t.Errorf("%s: %dx%d", name, m.Height, m.Width)
		}
		for i, want := range rgb {
			if name == "grey" {
				want = [3]byte{want[0], want[0], want[0]}
			}
			if name == "clear" && i == 0 {
				continue // nothing of a colour is kept where it is wholly transparent
			}
			if got := [3]byte(m.RGB[3*i:]); got != want {
				t.Errorf("%s: pixel %d is %v, wanted %v", name, i, got, want)
			}
		}
	}
}

// TestReadImageOrientation stores an upright picture under each orientation, and reads it upright.
func TestReadImageOrientation(t *testing.T) {
	// Four fields of 16x16, two rows and three columns less one: dark above left, and so on; JPEG keeps them apart.
	const side = 16
	grey := func(r, c int) byte { return byte(40 + 80*(r/side) + 30*(c/side)) }
	const h, w = 2 * side, 3 * side
	for orientation := 1; orientation <= 8; orientation++ {
		stored := image.NewGray(image.Rect(0, 0, w, h))
		if orientation >= 5 {
			stored = image.NewGray(image.Rect(0, 0, h, w))
		}
		b := stored.Bounds()
		for y := range b.Dy() {
			for x := range b.Dx() {
				// The specification's words: where row 0 and column 0 are in what is seen.
				var r, c int
				switch orientation {
				case 1: // top, left
					r, c = y, x
				case 2: // top, right
					r, c = y, w-1-x
				case 3: // bottom, right
					r, c = h-1-y, w-1-x
				case 4: // bottom, left
					r, c = h-1-y, x
				case 5: // left, top
					r, c = x, y
				case 6: // right, top
					r, c = x, w-1-y
				case 7: // right, bottom
					r, c = h-1-x, w-1-y
				case 8: // left, bottom
					r, c = h-1-x, y
				}
				stored.SetGray(x, y, color.Gray{grey(r, c)})
			}
		}
		var j bytes.Buffer
		if err := jpeg.Encode(&j, stored, &jpeg.Options{Quality: 100}); err != nil {
			t.Fatal(err)
		}
		for name, order := range map[string]binary.AppendByteOrder{"II*\x00": binary.LittleEndian, "MM\x00*": binary.BigEndian} {
			m, err := decodeImage(bytes.NewReader(withEXIF(j.Bytes(), name, order, orientation)))
			if err != nil {
				t.Fatal(err)
			}
			if m.Height != h || m.Width != w {
				t.Fatalf("orientation %d: %dx%d", orientation, m.Height, m.Width)
			}
			for r := range h {
				for c := range w {
					if d := int(m.RGB[3*(r*w+c)]) - int(grey(r, c)); d < -2 || d > 2 {
						t.Fatalf("orientation %d: row %d, column %d is %d, wanted %d", orientation, r, c, m.RGB[3*(r*w+c)], grey(r, c))
					}
				}
			}
		}
	}
}

// withEXIF puts an EXIF segment with an orientation, behind another tag, into a JPEG.
func withEXIF(j []byte, magic string, order binary.AppendByteOrder, orientation int) []byte {
	t := []byte(magic)
	t = order.AppendUint32(t, 8)
	t = order.AppendUint16(t, 2)
	entry := func(tag, v uint16) {
		t = order.AppendUint16(order.AppendUint16(t, tag), 3)
		t = order.AppendUint32(t, 1)
		t = order.AppendUint16(order.AppendUint16(t, v), 0)
	}
	entry(259, 6)
	entry(274, uint16(orientation))
	body := append([]byte("Exif\x00\x00"), t...)
	segment := binary.BigEndian.AppendUint16([]byte{0xff, 0xe1}, uint16(len(body)+2))
	return append(append(append([]byte{}, j[:2]...), append(segment, body...)...), j[2:]...)
}

func TestReadImageErrors(t *testing.T) {
	wide := append([]byte{}, "GIF89a\xff\xff\xff\xff\x00\x00\x00"...)
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, 9, 9))); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		data []byte
		want string
	}{
		"text": {[]byte("hello"), "found no PNG, JPEG or GIF"},
		"none": {nil, "found no PNG, JPEG or GIF"},
		"wide": {wide, "65535x65535"},
		"cut":  {b.Bytes()[:b.Len()-20], "EOF"},
	} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, tc.data, 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadImage(path); err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error %v, wanted %q", name, err, tc.want)
		}
	}
	if _, err := ReadImage(filepath.Join(t.TempDir(), "absent.png")); err == nil {
		t.Error("an absent file is no error")
	}
}

// endless is a device's bytes: zeros without end.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	clear(p)
	e.read += len(p)
	return len(p), nil
}

// TestReadImageEndless: of what is no picture little is read.
func TestReadImageEndless(t *testing.T) {
	var e endless
	if _, err := decodeImage(&e); err == nil || !strings.Contains(err.Error(), "found no PNG") || e.read > 1<<16 {
		t.Errorf("%d bytes read, error %v", e.read, err)
	}
	// A header that refuses the picture ends the reading, too.
	e = endless{}
	if _, err := decodeImage(io.MultiReader(strings.NewReader("GIF89a\xff\xff\xff\xff\x00\x00\x00"), &e)); err == nil || !strings.Contains(err.Error(), "65535x65535") || e.read > 1<<16 {
		t.Errorf("%d bytes read, error %v", e.read, err)
	}
}

func FuzzReadImage(f *testing.F) {
	var b bytes.Buffer
	if err := jpeg.Encode(&b, image.NewGray(image.Rect(0, 0, 8, 16)), nil); err != nil {
		f.Fatal(err)
	}
	f.Add(withEXIF(b.Bytes(), "II*\x00", binary.LittleEndian, 6))
	f.Add([]byte(fmt.Sprint("\xff\xd8\xff\xe1\x00\x0e", "Exif\x00\x00MM\x00*\xff\xff\xff\xff")))
	f.Fuzz(func(t *testing.T, data []byte) {
		// Few pixels: large pictures take long, and nothing about them is ours.
		if c, _, err := image.DecodeConfig(bytes.NewReader(data)); err == nil && c.Width*c.Height > 1<<16 {
			t.Skip()
		}
		exifOrientation(data)
		if m, err := decodeImage(bytes.NewReader(data)); err == nil && len(m.RGB) != 3*m.Height*m.Width {
			t.Errorf("%d bytes for %dx%d", len(m.RGB), m.Height, m.Width)
		}
	})
}
