module @donated attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2xf32> {tf.aliasing_output = 1 : i32}, %arg1: tensor<2xf32> {tf.aliasing_output = 2 : i32}, %arg2: tensor<3xf32> {jax.buffer_donor = true}, %arg3: tensor<2xf32>) -> (tensor<2xbf16>, tensor<2xf32>, tensor<2xf32>) {
    %0 = stablehlo.add %arg0, %arg3 : tensor<2xf32>
    %1 = stablehlo.convert %0 : (tensor<2xf32>) -> tensor<2xbf16>
    %2 = stablehlo.multiply %arg1, %arg3 : tensor<2xf32>
    return %1, %0, %2 : tensor<2xbf16>, tensor<2xf32>, tensor<2xf32>
  }
}
