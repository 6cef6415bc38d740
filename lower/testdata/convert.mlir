module @convert attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2xf32>) -> (tensor<2xbf16>, tensor<2xf16>, tensor<2xf64>, tensor<2xi1>, tensor<2xui64>, tensor<2xi8>) {
    %0 = stablehlo.convert %arg0 : (tensor<2xf32>) -> tensor<2xbf16>
    %1 = stablehlo.convert %arg0 : (tensor<2xf32>) -> tensor<2xf16>
    %2 = stablehlo.convert %arg0 : (tensor<2xf32>) -> tensor<2xf64>
    %3 = stablehlo.convert %arg0 : (tensor<2xf32>) -> tensor<2xi1>
    %4 = stablehlo.convert %arg0 : (tensor<2xf32>) -> tensor<2xui64>
    %5 = stablehlo.convert %arg0 : (tensor<2xf32>) -> tensor<2xi8>
    return %0, %1, %2, %3, %4, %5 : tensor<2xbf16>, tensor<2xf16>, tensor<2xf64>, tensor<2xi1>, tensor<2xui64>, tensor<2xi8>
  }
}
