package pipelines

import (
	"encoding/binary"
	"math"

	"gonum.org/v1/gonum/mathext/prng"

	"precast/graph"
)

// noise draws standard normal numbers on the host by PyTorch's rule for the CPU, so that a seed means the same start noise as
// torch.Generator("cpu").manual_seed(seed) in diffusers, to a last digit: a 32-bit Mersenne Twister (Matsumoto and Nishimura 1998), 24-bit uniform
// floats, and the Box-Muller transform on groups of 16 (aten/src/ATen/native/cpu/DistributionTemplates.h, normal_fill). Fewer than 16
// numbers are drawn one by one in float64 (ATen/core/DistributionsHelper.h, normal_distribution).
//
// Picture k of a batch has a generator of its own with seed + k, as a list of generators gives in diffusers: each picture can be made again alone.
type noise struct {
	mt     *prng.MT19937
	spare  float64
	spared bool
}

func newNoise(seed uint64) *noise {
	mt := prng.NewMT19937()
	mt.Seed(seed)
	return &noise{mt: mt}
}

func (n *noise) uniform32() float32 { return float32(n.mt.Uint32()&(1<<24-1)) / (1 << 24) }

func (n *noise) uniform64() float64 {
	hi := uint64(n.mt.Uint32())
	return float64((hi<<32|uint64(n.mt.Uint32()))&(1<<53-1)) / (1 << 53)
}

// fill draws len(out) numbers in one call of the generator, as one torch.randn does.
func (n *noise) fill(out []float32) {
	if len(out) < 16 {
		for i := range out {
			out[i] = float32(n.one())
		}
		return
	}
	for i := range out {
		out[i] = n.uniform32()
	}
	for i := 0; i+16 <= len(out); i += 16 {
		boxMuller(out[i : i+16])
	}
	if len(out)%16 != 0 {
		last := out[len(out)-16:]
		for i := range last {
			last[i] = n.uniform32()
		}
		boxMuller(last)
	}
}

func boxMuller(v []float32) {
	for j := range 8 {
		u1, u2 := 1-v[j], v[j+8]
		radius := float32(math.Sqrt(float64(-2 * float32(math.Log(float64(u1))))))
		sin, cos := math.Sincos(float64(2 * math.Pi * u2))
		v[j], v[j+8] = radius*float32(cos), radius*float32(sin)
	}
}

func (n *noise) one() float64 {
	if n.spared {
		n.spared = false
		return n.spare
	}
	u1, u2 := n.uniform64(), n.uniform64()
	r := math.Sqrt(-2 * math.Log1p(-u2))
	sin, cos := math.Sincos(2 * math.Pi * u1)
	n.spare, n.spared = r*sin, true
	return r * cos
}

// generators are the noise generators of a request's pictures.
type generators []*noise

func newGenerators(seed uint64, pictures int) generators {
	g := make(generators, pictures)
	for k := range g {
		g[k] = newNoise(seed + uint64(k))
	}
	return g
}

// randn draws a tensor of shape (pictures, dims...).
func (g generators) randn(dims ...int) []float32 {
	size := 1
	for _, d := range dims {
		size *= d
	}
	out := make([]float32, len(g)*size)
	for k, n := range g {
		n.fill(out[k*size : (k+1)*size])
	}
	return out
}

func float32Bytes(v []float32) []byte {
	out := make([]byte, 4*len(v))
	for i, x := range v {
		binary.LittleEndian.PutUint32(out[4*i:], math.Float32bits(x))
	}
	return out
}

func float32s(b []byte) []float32 {
	out := make([]float32, len(b)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}

func int32Bytes(v []int32) []byte {
	out := make([]byte, 4*len(v))
	for i, x := range v {
		binary.LittleEndian.PutUint32(out[4*i:], uint32(x))
	}
	return out
}

func hostFloats(v []float32, dims ...int) HostTensor {
	return HostTensor{Shape: f32(dims...), Data: float32Bytes(v)}
}

func f32(dims ...int) graph.Shape { return shape(float32Type, dims...) }
