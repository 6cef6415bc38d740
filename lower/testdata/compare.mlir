module @compare attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2xf32>, %arg1: tensor<2xi32>, %arg2: tensor<2xui8>, %arg3: tensor<2xi1>) -> (tensor<2xi1>, tensor<2xi1>, tensor<2xi1>, tensor<2xi1>, tensor<2xf32>) {
    %0 = stablehlo.compare EQ, %arg0, %arg0, FLOAT : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xi1>
    %1 = stablehlo.compare LT, %arg0, %arg0, TOTALORDER : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xi1>
    %2 = stablehlo.compare NE, %arg1, %arg1, SIGNED : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi1>
    %3 = stablehlo.compare GE, %arg2, %arg2, UNSIGNED : (tensor<2xui8>, tensor<2xui8>) -> tensor<2xi1>
    %4 = stablehlo.compare GT, %arg3, %arg3, UNSIGNED : (tensor<2xi1>, tensor<2xi1>) -> tensor<2xi1>
    %5 = stablehlo.select %0, %arg0, %arg0 : tensor<2xi1>, tensor<2xf32>
    return %1, %2, %3, %4, %5 : tensor<2xi1>, tensor<2xi1>, tensor<2xi1>, tensor<2xi1>, tensor<2xf32>
  }
}
