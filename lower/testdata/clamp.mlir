module @clamp attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<i1>, %arg1: tensor<2xf32>, %arg2: tensor<f32>) -> (tensor<2xf32>) {
    %0 = stablehlo.clamp %arg2, %arg1, %arg2 : (tensor<f32>, tensor<2xf32>, tensor<f32>) -> tensor<2xf32>
    %1 = stablehlo.clamp %arg1, %0, %arg1 : (tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %2 = stablehlo.select %arg0, %1, %arg1 : tensor<i1>, tensor<2xf32>
    return %2 : tensor<2xf32>
  }
}
