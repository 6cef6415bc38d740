module @dot_general attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x3x4xf32>, %arg1: tensor<5x4xf32>, %arg2: tensor<2x4x3xf32>, %arg3: tensor<2x4xbf16>) -> (tensor<2x3x5xf32>, tensor<2x3x3xf32>, tensor<2x2xf32>) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [2] x [1], precision = [HIGHEST, HIGHEST] : (tensor<2x3x4xf32>, tensor<5x4xf32>) -> tensor<2x3x5xf32>
    %1 = stablehlo.dot_general %arg0, %arg2, batching_dims = [0] x [0], contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x3x4xf32>, tensor<2x4x3xf32>) -> tensor<2x3x3xf32>
    %2 = stablehlo.dot_general %arg3, %arg3, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x4xbf16>, tensor<2x4xbf16>) -> tensor<2x2xf32>
    return %0, %1, %2 : tensor<2x3x5xf32>, tensor<2x3x3xf32>, tensor<2x2xf32>
  }
}
