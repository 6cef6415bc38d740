package lower

import (
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"precast/graph"
)

// dot builds a general dot product. Where the result's dtype differs from the operands', they are converted to it first.
func (s *scope) dot(n *graph.Node, a graph.Attrs, lhs, rhs compute.Value) compute.Value {
	d, out := n.Operands[0].Shape.DType, n.Results[0].Shape.DType
	if n.Operands[0].Shape.Size() == 0 || n.Operands[1].Shape.Size() == 0 {
		return s.fill(n.Results[0].Shape, 0) // gomlx's Go backend divides by the sizes
	}
	if d == dtypes.Bool {
		lhs, rhs = s.v(s.f.ConvertDType(lhs, dtypes.Int32)), s.v(s.f.ConvertDType(rhs, dtypes.Int32))
		d = dtypes.Int32
	}
	if out != d && !(d.IsHalfPrecision() && out.IsHalfPrecision()) {
		lhs, rhs = s.convert(lhs, withDType(n.Operands[0].Shape, d), out), s.convert(rhs, withDType(n.Operands[1].Shape, d), out)
		d = out
	}
	x := s.v(s.f.DotGeneral(lhs, a.Ints("lhs_contracting"), a.Ints("lhs_batching"), rhs, a.Ints("rhs_contracting"), a.Ints("rhs_batching"),
		compute.DotGeneralConfig{}))
	if got, err := s.f.Shape(x); err == nil && got.DType != out {
		x = s.v(s.f.ConvertDType(x, out))
	}
	return x
}

// patchBytes bounds the patches that a convolution holds at once: they take kernel-size times the input's memory.
const patchBytes = 16 << 20

// conv builds a convolution as matrix products of the kernel with patches of the input (im2col), a band of output rows at a time.
// gomlx's Go backend convolves directly, some thirty times slower.
func (s *scope) conv(n *graph.Node, a graph.Attrs, x, kernel compute.Value) compute.Value {
	xs, ks, out := n.Operands[0].Shape, n.Operands[1].Shape, n.Results[0].Shape
	spatial := xs.Rank() - 2
	groups, batchGroups := a.Int("feature_group_count"), a.Int("batch_group_count")
	padding, lhsDilation := a.Pairs("padding"), a.Ints("lhs_dilation")

	// Both operands to the order of PyTorch: batch or output channel, input channel, spatial.
	order := func(first, second string, rest string) []int {
		return append([]int{a.Int(first), a.Int(second)}, a.Ints(rest)...)
	}
	permX := order("input_batch_dimension", "input_feature_dimension", "input_spatial_dimensions")
	permK := order("kernel_output_feature_dimension", "kernel_input_feature_dimension", "kernel_spatial_dimensions")
	permOut := order("output_batch_dimension", "output_feature_dimension", "output_spatial_dimensions")
	x, xs = s.transpose(x, permX), permuted(xs, permX)
	kernel, ks = s.transpose(kernel, permK), permuted(ks, permK)
	ordered := permuted(out, permOut)

	// Dilation and padding of the input become explicit.
	low, high, interior := make([]int, xs.Rank()), make([]int, xs.Rank()), make([]int, xs.Rank())
	for i := range spatial {
		low[2+i], high[2+i], interior[2+i] = padding[i][0], padding[i][1], lhsDilation[i]-1
	}
	x = s.pad(x, s.scalar(xs.DType, 0), xs, low, high, interior)
	padded := slices.Clone(xs.Dimensions)
	for i := range spatial {
		d := padded[2+i]
		padded[2+i] = d + max(d-1, 0)*interior[2+i] + low[2+i] + high[2+i]
	}
	xs = shapes.Make(xs.DType, padded...)
	c := &patches{
		s: s, strides: a.Ints("window_strides"), dilation: a.Ints("rhs_dilation"),
		window: ks.Dimensions[2:], out: ordered.Dimensions[2:],
	}
	// Each group of channels, or of batch, convolves by itself.
	outC, inC := ks.Dimensions[0], ks.Dimensions[1]
	results := make([]compute.Value, 0, groups*batchGroups)
	for g := range groups * batchGroups {
		part, partShape := x, xs
		switch {
		case groups > 1:
			part, partShape = s.cut(x, xs, 1, g*inC, inC)
		case batchGroups > 1:
			size := xs.Dimensions[0] / batchGroups
			part, partShape = s.cut(x, xs, 0, g*size, size)
		}
		k, kShape := s.cut(kernel, ks, 0, g*outC/(groups*batchGroups), outC/(groups*batchGroups))
		results = append(results, c.convolve(part, partShape, k, kShape))
	}
	y := results[0]
	if len(results) > 1 {
		y = s.v(s.f.Concatenate(1, results...))
	}
	if got, err := s.f.Shape(y); err == nil && got.DType != out.DType { // some builders accumulate half precision in float32
		y = s.v(s.f.ConvertDType(y, out.DType))
	}
	back := make([]int, len(permOut))
	for i, p := range permOut {
		back[p] = i
	}
	return s.transpose(y, back)
}

func permuted(s shapes.Shape, perm []int) shapes.Shape {
	dims := make([]int, len(perm))
	for i, p := range perm {
		dims[i] = s.Dimensions[p]
	}
	return shapes.Make(s.DType, dims...)
}

// cut slices one axis.
func (s *scope) cut(x compute.Value, shape shapes.Shape, axis, start, size int) (compute.Value, shapes.Shape) {
	if start == 0 && size == shape.Dimensions[axis] {
		return x, shape
	}
	starts, limits := make([]int, shape.Rank()), slices.Clone(shape.Dimensions)
	starts[axis], limits[axis] = start, start+size
	dims := slices.Clone(shape.Dimensions)
	dims[axis] = size
	return s.v(s.f.Slice(x, starts, limits, nil)), shapes.Make(shape.DType, dims...)
}

// patches is one convolution without padding or input dilation, in the order batch, channel, spatial.
type patches struct {
	s                              *scope
	strides, dilation, window, out []int
}

// convolve gives [batch, output channel, out...].
func (c *patches) convolve(x compute.Value, xs shapes.Shape, kernel compute.Value, ks shapes.Shape) compute.Value {
	s := c.s
	batch, channels, outC := xs.Dimensions[0], xs.Dimensions[1], ks.Dimensions[0]
	positions := product(c.out)
	taps := product(c.window)
	result := append([]int{batch, outC}, c.out...)
	if batch*outC*positions == 0 || channels*taps == 0 {
		return s.fill(shapes.Make(xs.DType, result...), 0)
	}
	// The kernel as [output channel, taps * channels], taps first: a patch is then a concatenation of shifted inputs.
	perm := make([]int, 0, ks.Rank())
	perm = append(perm, 0)
	for i := range c.window {
		perm = append(perm, 2+i)
	}
	k := s.v(s.f.Reshape(s.transpose(kernel, append(perm, 1)), outC, taps*channels))

	images := make([]compute.Value, batch)
	for b := range images {
		image, shape := s.cut(x, xs, 0, b, 1)
		images[b] = s.v(s.f.Reshape(c.image(image, shape, k, taps*channels), append([]int{1, outC}, c.out...)...))
	}
	if batch == 1 {
		return images[0]
	}
	return s.v(s.f.Concatenate(0, images...))
}

// image convolves one image [1, channels, spatial...] to [output channel, positions].
func (c *patches) image(x compute.Value, xs shapes.Shape, k compute.Value, depth int) compute.Value {
	s := c.s
	rows, rest := 1, 1
	if len(c.out) > 0 {
		rows, rest = c.out[0], product(c.out[1:])
	}
	band := max(1, patchBytes/max(1, depth*rest*xs.DType.Size()))
	bands := (rows + band - 1) / band
	band = (rows + bands - 1) / bands // equal bands
	var parts []compute.Value
	for first := 0; first < rows; first += band {
		n := min(band, rows-first)
		cols := c.columns(x, xs, first, n)
		cols = s.v(s.f.Reshape(cols, depth, n*rest))
		parts = append(parts, s.v(s.f.DotGeneral(k, []int{1}, nil, cols, []int{0}, nil, compute.DotGeneralConfig{})))
	}
	if len(parts) == 1 {
		return parts[0]
	}
	return s.v(s.f.Concatenate(1, parts...))
}

// columns are the patches of n rows of output from first on: [taps * channels, rows..., positions...] before flattening.
func (c *patches) columns(x compute.Value, xs shapes.Shape, first, n int) compute.Value {
	s := c.s
	rank := xs.Rank()
	var taps []compute.Value
	at := make([]int, len(c.window))
	for {
		starts, limits, strides := make([]int, rank), slices.Clone(xs.Dimensions), slices.Repeat([]int{1}, rank)
		for i := range c.window {
			count := c.out[i]
			starts[2+i] = at[i] * c.dilation[i]
			if i == 0 {
				starts[2] += first * c.strides[0]
				count = n
			}
			strides[2+i] = c.strides[i]
			limits[2+i] = starts[2+i] + (count-1)*c.strides[i] + 1
		}
		tap := x
		if !isZero(starts) || !slices.Equal(limits, xs.Dimensions) || slices.Max(strides) > 1 {
			tap = s.v(s.f.Slice(x, starts, limits, strides))
		}
		taps = append(taps, tap)
		if !next(at, c.window) {
			break
		}
	}
	if len(taps) == 1 {
		return taps[0]
	}
	return s.v(s.f.Concatenate(1, taps...))
}

// next steps a row-major counter over dims and reports whether there was a next.
func next(at, dims []int) bool {
	for i := len(at) - 1; i >= 0; i-- {
		if at[i]++; at[i] < dims[i] {
			return true
		}
		at[i] = 0
	}
	return false
}

func isZero(xs []int) bool {
	for _, x := range xs {
		if x != 0 {
			return false
		}
	}
	return true
}

func product(xs []int) int {
	p := 1
	for _, x := range xs {
		p *= x
	}
	return p
}
