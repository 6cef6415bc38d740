package lora

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/gomlx/compute/dtypes"

	"precast/graph/checkpoint"
)

// blockElements is how many elements of a weight are in work at a time: a few rows, so that they stay in a processor's cache.
const blockElements = 1 << 15

// factors are an update's tensors, read.
type factors struct {
	*update
	down, up, magnitude, bias []float32
}

// Fold writes the component's tensor base with all updates added, as elements of type to, into dst, which must hold exactly base.Len elements. The sum is
// taken in float32 and rounded once, to the type that the network computes with; diffusers rounds to the stored type after each
// LoRA. All processors share the work, and only a few rows are in memory beside dst. A result that is no number any more is an error.
func (s *Set) Fold(dst []byte, to dtypes.DType, component string, base checkpoint.Tensor) error {
	if base.Len() == 0 {
		return nil
	}
	rows := 1
	if len(base.Shape) > 0 {
		rows = base.Shape[0]
	}
	cols := base.Len() / rows
	var list []factors
	for _, u := range s.updates[component][base.Key] {
		f, err := u.read()
		if err != nil {
			return err
		}
		list = append(list, f)
	}
	elem := len(dst) / base.Len()
	stored := base.Bytes()
	storedElem := len(stored) / base.Len()
	step := max(1, blockElements/cols)
	var next atomic.Int64
	work := func() error {
		sum := make([]float32, step*cols)
		coef := []float32(nil)
		for {
			lo := int(next.Add(1)-1) * step
			if lo >= rows {
				return nil
			}
			hi := min(lo+step, rows)
			sum := sum[:(hi-lo)*cols]
			if err := checkpoint.ConvertBytes(bytesOf(sum), dtypes.Float32, stored[lo*cols*storedElem:hi*cols*storedElem], base.DType); err != nil {
				return fmt.Errorf("%s: tensor %q: %w", base.File.Path(), base.Key, err)
			}
			for i := range list {
				coef = list[i].addTo(sum, lo, hi, rows, cols, coef)
			}
			out := dst[lo*cols*elem : hi*cols*elem]
			if err := checkpoint.ConvertBytes(out, to, bytesOf(sum), dtypes.Float32); err != nil {
				return err
			}
			if i := checkpoint.NonFinite(out, to); i >= 0 {
				i += lo * cols
				if checkpoint.NonFinite(stored[i*storedElem:(i+1)*storedElem], base.DType) >= 0 {
					return fmt.Errorf("%s: weight %q holds NaN or infinity at element %d", base.File.Path(), base.Key, i)
				}
				last := list[len(list)-1]
				return fmt.Errorf("lora: %s: %s: weight %q of %s is NaN or infinite in %s with it (element %d)", last.file, last.name, base.Key, component, to, i)
			}
		}
	}
	workers := min(runtime.GOMAXPROCS(0), (rows+step-1)/step)
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() { errs[w] = work() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// read converts an update's tensors.
func (u *update) read() (f factors, err error) {
	f.update = u
	for _, x := range []struct {
		to   *[]float32
		from *checkpoint.Tensor
	}{{&f.down, &u.down}, {&f.up, &u.up}, {&f.magnitude, u.magnitude}, {&f.bias, u.bias}} {
		if x.from == nil || x.from.File == nil {
			continue
		}
		if *x.to, err = x.from.Float32s(); err != nil {
			return f, fmt.Errorf("lora: %w", err)
		}
		x.from.Release()
	}
	return f, nil
}

// addTo adds the update to rows lo to hi of a weight with so many rows and columns. coef is memory to use again.
func (f *factors) addTo(sum []float32, lo, hi, rows, cols int, coef []float32) []float32 {
	if len(coef) < f.rank {
		coef = make([]float32, f.rank)
	}
	for i := lo; i < hi; i++ {
		row := i
		if f.swap {
			row = (i + rows/2) % rows
		}
		row += f.first
		acc := sum[(i-lo)*cols : (i-lo+1)*cols]
		if f.bias != nil {
			acc[0] += float32(f.factor) * f.bias[row]
			continue
		}
		for k := range f.rank {
			coef[k] = float32(f.factor) * f.up[row*f.rank+k]
		}
		combine(acc, coef[:f.rank], f.down)
		if f.magnitude != nil {
			// DoRA (Liu et al., "DoRA: Weight-Decomposed Low-Rank Adaptation", 2024): the row keeps its direction and takes a learned length.
			var square float64
			for _, v := range acc {
				square += float64(v) * float64(v)
			}
			length := float32(float64(f.magnitude[i]) / math.Sqrt(square))
			for j := range acc {
				acc[j] *= length
			}
		}
	}
	return coef
}

// combine adds to acc the rows of down, one after the other as long as acc, each times its coefficient.
func combine(acc, coef, down []float32) {
	n := len(acc)
	k := 0
	for ; k+4 <= len(coef); k += 4 {
		add4(acc, down[k*n:(k+1)*n], down[(k+1)*n:(k+2)*n], down[(k+2)*n:(k+3)*n], down[(k+3)*n:(k+4)*n], coef[k], coef[k+1], coef[k+2], coef[k+3])
	}
	for ; k < len(coef); k++ {
		row, c := down[k*n:(k+1)*n], coef[k]
		for j := range acc {
			acc[j] += c * row[j]
		}
	}
}

// add4Scalar adds four rows times their coefficients to acc.
func add4Scalar(acc, a, b, c, d []float32, x, y, z, w float32) {
	a, b, c, d = a[:len(acc)], b[:len(acc)], c[:len(acc)], d[:len(acc)]
	for j := range acc {
		acc[j] += x*a[j] + y*b[j] + z*c[j] + w*d[j]
	}
}

// bytesOf is the memory of v. The host is little-endian wherever the runtimes that take these bytes exist.
func bytesOf(v []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}
