module @iota attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<2x3xi32>, tensor<4xbf16>) {
    %0 = stablehlo.iota dim = 1 : tensor<2x3xi32>
    %1 = stablehlo.iota dim = 0 : tensor<4xbf16>
    return %0, %1 : tensor<2x3xi32>, tensor<4xbf16>
  }
}
