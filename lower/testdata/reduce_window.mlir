module @reduce_window attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<1x4x6xbf16>) -> (tensor<1x2x5xbf16>, tensor<1x6x4xbf16>) {
    %0 = stablehlo.constant dense<0xFF80> : tensor<bf16>
    %1 = "stablehlo.reduce_window"(%arg0, %0) <{base_dilations = array<i64: 1, 1, 1>, padding = dense<[[0, 0], [1, 0], [0, 1]]> : tensor<3x2xi64>, window_dilations = array<i64: 1, 1, 1>, window_dimensions = array<i64: 1, 2, 3>, window_strides = array<i64: 1, 2, 1>}> ({
      ^bb0(%2: tensor<bf16>, %3: tensor<bf16>):
      %4 = stablehlo.maximum %2, %3 : tensor<bf16>
      stablehlo.return %4 : tensor<bf16>
    }) : (tensor<1x4x6xbf16>, tensor<bf16>) -> tensor<1x2x5xbf16>
    %5 = stablehlo.constant dense<0.0> : tensor<bf16>
    %6 = "stablehlo.reduce_window"(%arg0, %5) <{base_dilations = array<i64: 1, 2, 1>, padding = dense<[[0, 0], [0, 0], [0, 0]]> : tensor<3x2xi64>, window_dilations = array<i64: 1, 1, 2>, window_dimensions = array<i64: 1, 2, 2>, window_strides = array<i64: 1, 1, 1>}> ({
      ^bb0(%7: tensor<bf16>, %8: tensor<bf16>):
      %9 = stablehlo.add %7, %8 : tensor<bf16>
      stablehlo.return %9 : tensor<bf16>
    }) : (tensor<1x4x6xbf16>, tensor<bf16>) -> tensor<1x6x4xbf16>
    return %1, %6 : tensor<1x2x5xbf16>, tensor<1x6x4xbf16>
  }
}
