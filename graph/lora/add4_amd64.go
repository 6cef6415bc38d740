//go:build goexperiment.simd && amd64

package lora

import "simd/archsimd"

var hasFMA = archsimd.X86.AVX2() && archsimd.X86.FMA()

// add4 adds four rows times their coefficients to acc, eight elements at a time.
func add4(acc, a, b, c, d []float32, x, y, z, w float32) {
	n := len(acc) &^ 7
	if !hasFMA || n == 0 {
		add4Scalar(acc, a, b, c, d, x, y, z, w)
		return
	}
	vx, vy, vz, vw := archsimd.BroadcastFloat32x8(x), archsimd.BroadcastFloat32x8(y), archsimd.BroadcastFloat32x8(z), archsimd.BroadcastFloat32x8(w)
	a, b, c, d = a[:len(acc)], b[:len(acc)], c[:len(acc)], d[:len(acc)]
	for j := 0; j < n; j += 8 {
		s := archsimd.LoadFloat32x8Slice(acc[j:])
		s = archsimd.LoadFloat32x8Slice(a[j:]).MulAdd(vx, s)
		s = archsimd.LoadFloat32x8Slice(b[j:]).MulAdd(vy, s)
		s = archsimd.LoadFloat32x8Slice(c[j:]).MulAdd(vz, s)
		s = archsimd.LoadFloat32x8Slice(d[j:]).MulAdd(vw, s)
		s.StoreSlice(acc[j:])
	}
	add4Scalar(acc[n:], a[n:], b[n:], c[n:], d[n:], x, y, z, w)
}
