//go:build !(goexperiment.simd && amd64)

package lora

func add4(acc, a, b, c, d []float32, x, y, z, w float32) { add4Scalar(acc, a, b, c, d, x, y, z, w) }
