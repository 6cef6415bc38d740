module @sharding attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @devices = <["data"=2, "model"=4]>
  func.func public @main(%arg0: tensor<8x16xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@devices, [{"data"}, {}]>}, %arg1: tensor<32x16xf32> {sdy.sharding = #sdy.sharding<@devices, [{"model"}, {}]>}, %arg2: tensor<32xf32> {sdy.sharding = #sdy.sharding<@devices, [{"data", "model"}]>}) -> (tensor<8x32xf32>) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<8x16xf32>, tensor<32x16xf32>) -> tensor<8x32xf32>
    %1 = stablehlo.broadcast_in_dim %arg2, dims = [1] : (tensor<32xf32>) -> tensor<8x32xf32>
    %2 = stablehlo.add %0, %1 : tensor<8x32xf32>
    return %2 : tensor<8x32xf32>
  }
}
