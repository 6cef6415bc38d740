package checkpoint

import (
	"fmt"
	"slices"
	"unsafe"
)

// Permute writes the tensor, seen as an array of dims (whose product is Len), to dst with its axes in the order of permutation. The bytes are read
// once and all processors share the work. Errors are those of Convert.
func (t Tensor) Permute(dst []byte, dims, permutation []int) error {
	return PermuteBytes(dst, t.Bytes(), t.DType.Size(), dims, permutation)
}

// PermuteBytes writes src, an array of dims with elements of size bytes (1, 2, 4 or 8), to dst with its axes in the order of permutation. All
// processors share the work.
func PermuteBytes(dst, src []byte, size int, dims, permutation []int) error {
	dims, permutation = coalesce(dims, permutation)
	switch size {
	case 1:
		return permuteAs[uint8](dst, src, dims, permutation)
	case 2:
		return permuteAs[uint16](dst, src, dims, permutation)
	case 4:
		return permuteAs[uint32](dst, src, dims, permutation)
	case 8:
		return permuteAs[uint64](dst, src, dims, permutation)
	}
	panic(fmt.Sprintf("BUG: checkpoint: permute of elements of %d bytes", size))
}

// coalesce drops axes of length one and joins axes that stay neighbours.
func coalesce(dims, permutation []int) ([]int, []int) {
	var order []int // axes in the order of the result, those of length one left out
	for _, p := range permutation {
		if dims[p] != 1 {
			order = append(order, p)
		}
	}
	next := func(a int) int { // the next axis in src that is longer than one
		for a++; a < len(dims) && dims[a] == 1; a++ {
		}
		return a
	}
	var groups [][]int
	for i, p := range order {
		if i > 0 && next(order[i-1]) == p {
			groups[len(groups)-1] = append(groups[len(groups)-1], p)
		} else {
			groups = append(groups, []int{p})
		}
	}
	// Number the groups by their place in src.
	bySource := slices.Clone(groups)
	slices.SortFunc(bySource, func(a, b []int) int { return a[0] - b[0] })
	outDims := make([]int, len(groups))
	perm := make([]int, len(groups))
	for i, g := range bySource {
		outDims[i] = 1
		for _, a := range g {
			outDims[i] *= dims[a]
		}
		for j, h := range groups {
			if h[0] == g[0] {
				perm[j] = i
			}
		}
	}
	return outDims, perm
}

// permuteAs copies tile by tile: along the result's last axis, which is written in order, and within it along the source's last, which is read in
// order.
func permuteAs[T uint8 | uint16 | uint32 | uint64](dst, src []byte, dims, permutation []int) error {
	out := unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(dst))), len(dst)/int(unsafe.Sizeof(T(0))))
	in := unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(src))), len(src)/int(unsafe.Sizeof(T(0))))
	rank := len(dims)
	if rank < 2 {
		return guarded(func() { copy(out, in) })
	}
	inStride, outStride := make([]int, rank), make([]int, rank) // by source axis
	s := 1
	for a := rank - 1; a >= 0; a-- {
		inStride[a] = s
		s *= dims[a]
	}
	s = 1
	for i := rank - 1; i >= 0; i-- {
		outStride[permutation[i]] = s
		s *= dims[permutation[i]]
	}
	// Axes with a loop of their own: all but the two innermost ones.
	a, b := permutation[rank-1], rank-1
	var outer []int
	for i := range rank - 1 {
		if p := permutation[i]; p != b || a == b {
			outer = append(outer, p)
		}
	}
	if a == b {
		// Rows stay whole: the work is shared along the result's first axis.
		return share(dims[outer[0]], 1, func(lo, hi int) {
			odometer(dims, outer, lo, hi, inStride, outStride, func(i, o int) { copy(out[o:o+dims[a]], in[i:i+dims[a]]) })
		})
	}
	const tile = 32
	return share((dims[a]+tile-1)/tile, 1, func(lo, hi int) {
		for t := lo * tile; t < min(hi*tile, dims[a]); t += tile {
			end := min(t+tile, dims[a])
			odometer(dims, outer, 0, -1, inStride, outStride, func(i, o int) {
				for y := range dims[b] {
					row := out[o+y*outStride[b]+t : o+y*outStride[b]+end]
					at := i + y + t*inStride[a]
					for x := range row {
						row[x] = in[at]
						at += inStride[a]
					}
				}
			})
		}
	})
}

// odometer calls f with the source's and the result's offset for every combination of the axes; the first one runs from lo to hi, all of it
// where hi is negative.
func odometer(dims, axes []int, lo, hi int, inStride, outStride []int, f func(in, out int)) {
	if len(axes) == 0 {
		f(0, 0)
		return
	}
	if hi < 0 {
		hi = dims[axes[0]]
	}
	var walk func(k, lo, hi, i, o int)
	walk = func(k, lo, hi, i, o int) {
		axis := axes[k]
		for x := lo; x < hi; x++ {
			i, o := i+x*inStride[axis], o+x*outStride[axis]
			if k == len(axes)-1 {
				f(i, o)
			} else {
				walk(k+1, 0, dims[axes[k+1]], i, o)
			}
		}
	}
	walk(0, lo, hi, 0, 0)
}
