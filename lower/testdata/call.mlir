module @"a model/1" attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2xf32>, %arg1: tensor<2xf32>, %arg2: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
    %0:2 = func.call @main_(%arg0, %arg1) : (tensor<2xf32>, tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)
    %1:2 = func.call @main_(%0#0, %arg2) : (tensor<2xf32>, tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)
    %2 = func.call @"two words"(%1#0) : (tensor<2xf32>) -> tensor<2xf32>
    return %2, %1#1 : tensor<2xf32>, tensor<2xf32>
  }
  func.func private @main_(%arg0: tensor<2xf32>, %arg1: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
    %0 = stablehlo.multiply %arg0, %arg1 : tensor<2xf32>
    return %0, %arg0 : tensor<2xf32>, tensor<2xf32>
  }
  func.func private @"two words"(%arg0: tensor<2xf32>) -> (tensor<2xf32>) {
    return %arg0 : tensor<2xf32>
  }
}
