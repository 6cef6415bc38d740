module @shape attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x3xf32>, %arg1: tensor<f32>) -> (tensor<3x2xf32>, tensor<2x2xf32>, tensor<10xf32>, tensor<4x3xf32>, tensor<5x2xf32>, tensor<2x3xf32>) {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<f32>) -> tensor<2x3xf32>
    %1 = stablehlo.broadcast_in_dim %arg0, dims = [0, 2] : (tensor<2x3xf32>) -> tensor<2x5x3xf32>
    %2 = stablehlo.reshape %1 : (tensor<2x5x3xf32>) -> tensor<30xf32>
    %3 = stablehlo.transpose %arg0, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %4 = stablehlo.slice %arg0 [0:2, 1:3] : (tensor<2x3xf32>) -> tensor<2x2xf32>
    %5 = stablehlo.slice %2 [1:29:3] : (tensor<30xf32>) -> tensor<10xf32>
    %6 = stablehlo.concatenate %arg0, %0, dim = 0 : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<4x3xf32>
    %7 = stablehlo.pad %arg0, %arg1, low = [0, -1], high = [1, 0], interior = [2, 0] : (tensor<2x3xf32>, tensor<f32>) -> tensor<5x2xf32>
    %8 = stablehlo.reverse %arg0, dims = [0, 1] : tensor<2x3xf32>
    return %3, %4, %5, %6, %7, %8 : tensor<3x2xf32>, tensor<2x2xf32>, tensor<10xf32>, tensor<4x3xf32>, tensor<5x2xf32>, tensor<2x3xf32>
  }
}
