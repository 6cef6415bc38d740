package checkpoint

import (
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"
)

func convert(t testing.TB, to, from dtypes.DType, src []byte) []byte {
	t.Helper()
	_, fs, _ := dtypeName(from)
	_, ts, _ := dtypeName(to)
	dst := make([]byte, int64(len(src))/fs*ts)
	if err := ConvertBytes(dst, to, src, from); err != nil {
		t.Fatal(err)
	}
	return dst
}

// All 65536 values of the two half types widen exactly and come back unchanged, in odd places and in every loop.
func TestHalfRoundTrip(t *testing.T) {
	for _, tt := range []struct {
		dtype dtypes.DType
		wide  func(uint16) float32
		inf   uint16
	}{
		{dtypes.Float16, func(h uint16) float32 { return float16.FromBits(h).Float32() }, 0x7c00},
		{dtypes.BFloat16, func(h uint16) float32 { return bfloat16.FromBits(h).Float32() }, 0x7f80},
	} {
		store := make([]byte, 1+2<<16)
		src := store[1:] // never aligned
		for h := range 1 << 16 {
			le.PutUint16(src[2*h:], uint16(h))
		}
		wide := convert(t, dtypes.Float32, tt.dtype, src)
		wide64 := convert(t, dtypes.Float64, tt.dtype, src)
		back := convert(t, tt.dtype, dtypes.Float32, wide)
		back64 := convert(t, tt.dtype, dtypes.Float64, wide64)
		for h := range 1 << 16 {
			got, want := math.Float32frombits(le.Uint32(wide[4*h:])), tt.wide(uint16(h))
			got64 := math.Float64frombits(le.Uint64(wide64[8*h:]))
			nan := uint16(h)&0x7fff > tt.inf
			if nan {
				if got == got || got64 == got64 {
					t.Fatalf("%s %#x: got %v, %v, want NaN", tt.dtype, h, got, got64)
				}
				if b := le.Uint16(back[2*h:]); b&0x7fff <= tt.inf || b>>15 != uint16(h)>>15 {
					t.Fatalf("%s NaN %#x came back as %#x", tt.dtype, h, b)
				}
				continue
			}
			if math.Float32bits(got) != math.Float32bits(want) || got64 != float64(want) {
				t.Fatalf("%s %#x: got %v, %v, want %v", tt.dtype, h, got, got64, want)
			}
			if b, b64 := le.Uint16(back[2*h:]), le.Uint16(back64[2*h:]); b != uint16(h) || b64 != uint16(h) {
				t.Fatalf("%s %#x came back as %#x, %#x", tt.dtype, h, b, b64)
			}
		}
	}
}

// nearest finds the 16-bit pattern whose value is closest to v, the even one of two, by trying the neighbours of a guess.
func nearest(v float64, guess uint16, wide func(uint16) float64, inf uint16) uint16 {
	best, dist := uint16(0), math.Inf(1)
	for d := -2; d <= 2; d++ {
		h := uint16(int(guess&0x7fff) + d)
		if h > inf {
			continue
		}
		w := wide(h)
		if h == inf {
			// The rounding treats infinity as the next step of the scale.
			w = 2*wide(inf-1) - wide(inf-2)
		}
		switch diff := math.Abs(math.Abs(v) - w); {
		case diff < dist, diff == dist && h&1 == 0:
			best, dist = h, diff
		}
	}
	return best | guess&0x8000
}

func TestNarrowing(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, tt := range []struct {
		dtype dtypes.DType
		wide  func(uint16) float64
		inf   uint16
	}{
		{dtypes.Float16, func(h uint16) float64 { return float64(math.Float32frombits(widen16(uint32(h)))) }, 0x7c00},
		{dtypes.BFloat16, func(h uint16) float64 { return float64(math.Float32frombits(uint32(h) << 16)) }, 0x7f80},
	} {
		var src32, src64 []byte
		var guess []uint16
		for h := uint16(2); h < tt.inf-2; h++ {
			lo, hi := tt.wide(h), tt.wide(h+1)
			mid := (lo + hi) / 2
			for _, v := range []float64{mid, float64(math.Nextafter32(float32(mid), 0)), float64(math.Nextafter32(float32(mid), float32(math.Inf(1)))), lo + rng.Float64()*(hi-lo)} {
				v = float64(float32(v))
				src32 = le.AppendUint32(src32, math.Float32bits(float32(-v)))
				src64 = le.AppendUint64(src64, math.Float64bits(-v))
				guess = append(guess, h|0x8000)
			}
			// Distances that a first rounding to float32 would lose.
			for _, v := range []float64{math.Nextafter(mid, 0), math.Nextafter(mid, math.Inf(1))} {
				src32 = le.AppendUint32(src32, math.Float32bits(float32(lo)))
				src64 = le.AppendUint64(src64, math.Float64bits(v))
				guess = append(guess, h)
			}
		}
		got32, got64 := convert(t, tt.dtype, dtypes.Float32, src32), convert(t, tt.dtype, dtypes.Float64, src64)
		for i, g := range guess {
			v32 := float64(math.Float32frombits(le.Uint32(src32[4*i:])))
			v64 := math.Float64frombits(le.Uint64(src64[8*i:]))
			if got, want := le.Uint16(got32[2*i:]), nearest(v32, g&0x7fff|uint16(math.Float64bits(v32)>>48)&0x8000, tt.wide, tt.inf); got != want {
				t.Fatalf("%s of float32 %v: got %#x, want %#x", tt.dtype, v32, got, want)
			}
			if got, want := le.Uint16(got64[2*i:]), nearest(v64, g, tt.wide, tt.inf); got != want {
				t.Fatalf("%s of float64 %v: got %#x, want %#x", tt.dtype, v64, got, want)
			}
		}
	}
	for v, want := range map[float32]uint16{65504: 0x7bff, 65519.996: 0x7bff, 65520: 0x7c00, 1e30: 0x7c00, 2.9802322e-8: 0, 2.9802326e-8: 1, 8.9406967e-8: 2} {
		if got := le.Uint16(convert(t, dtypes.Float16, dtypes.Float32, float32Bytes(v))); got != want {
			t.Errorf("float16 of %v: got %#x, want %#x", v, got, want)
		}
	}
	if got := le.Uint16(convert(t, dtypes.BFloat16, dtypes.Float32, float32Bytes(math.MaxFloat32))); got != 0x7f80 {
		t.Errorf("bfloat16 of the largest float32: got %#x, want infinity", got)
	}
	if got := le.Uint16(convert(t, dtypes.BFloat16, dtypes.Float32, le.AppendUint32(nil, 0x7f800001))); got&0x7fff <= 0x7f80 {
		t.Errorf("bfloat16 of NaN: got %#x", got)
	}
}

func TestFloat8(t *testing.T) {
	for _, tt := range []struct {
		from dtypes.DType
		b    byte
		want float32
	}{
		{dtypes.F8E4M3FN, 0x00, 0},
		{dtypes.F8E4M3FN, 0x01, 0x1p-9},
		{dtypes.F8E4M3FN, 0x08, 0x1p-6},
		{dtypes.F8E4M3FN, 0x38, 1},
		{dtypes.F8E4M3FN, 0xbc, -1.5},
		{dtypes.F8E4M3FN, 0x7e, 448},
		{dtypes.F8E4M3FN, 0x7f, float32(math.NaN())},
		{dtypes.F8E5M2, 0x01, 0x1p-16},
		{dtypes.F8E5M2, 0x3c, 1},
		{dtypes.F8E5M2, 0x7b, 57344},
		{dtypes.F8E5M2, 0xfc, float32(math.Inf(-1))},
	} {
		got := math.Float32frombits(le.Uint32(convert(t, dtypes.Float32, tt.from, []byte{tt.b})))
		if got != tt.want && !(got != got && tt.want != tt.want) {
			t.Errorf("%s %#x: got %v, want %v", tt.from, tt.b, got, tt.want)
		}
	}
}

func TestConvertParallel(t *testing.T) {
	n := 3*chunk + 7
	src := make([]byte, 2*n)
	for i := range n {
		le.PutUint16(src[2*i:], uint16(i*7))
	}
	got := convert(t, dtypes.Float32, dtypes.BFloat16, src)
	for i := range n {
		if le.Uint32(got[4*i:]) != uint32(uint16(i*7))<<16 {
			t.Fatalf("element %d is wrong", i)
		}
	}
}

func TestConvertErrors(t *testing.T) {
	for _, p := range [][2]dtypes.DType{
		{dtypes.Int32, dtypes.Float32},
		{dtypes.Float32, dtypes.Complex64},
		{dtypes.Float32, dtypes.Int4},
		{dtypes.Float32, dtypes.F8E8M0FNU},
	} {
		if err := ConvertBytes(make([]byte, 8), p[0], make([]byte, 8), p[1]); err == nil {
			t.Errorf("%s from %s: no error", p[0], p[1])
		}
	}
}

func TestAlignedBytes(t *testing.T) {
	for _, n := range []int{0, 1, 63, 64, 65, 100000} {
		b := AlignedBytes(n)
		if len(b) != n || n > 0 && uintptr(unsafe.Pointer(&b[0]))%64 != 0 {
			t.Errorf("AlignedBytes(%d): length %d at %p", n, len(b), b)
		}
	}
}

func BenchmarkConvert(b *testing.B) {
	const n = 16 << 20
	for _, p := range []struct {
		name     string
		to, from dtypes.DType
	}{
		{"bf16-f32", dtypes.Float32, dtypes.BFloat16},
		{"f16-f32", dtypes.Float32, dtypes.Float16},
		{"f32-bf16", dtypes.BFloat16, dtypes.Float32},
		{"f32-f16", dtypes.Float16, dtypes.Float32},
		{"f32-f32", dtypes.Float32, dtypes.Float32},
	} {
		b.Run(p.name, func(b *testing.B) {
			_, fs, _ := dtypeName(p.from)
			_, ts, _ := dtypeName(p.to)
			src, dst := make([]byte, n*fs), make([]byte, n*ts)
			for i := range src {
				src[i] = byte(i * 7)
			}
			b.SetBytes(n * ts)
			for b.Loop() {
				if err := ConvertBytes(dst, p.to, src, p.from); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
