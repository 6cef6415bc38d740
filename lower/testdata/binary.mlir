module @binary attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2xf32>, %arg1: tensor<2xf32>, %arg2: tensor<3xui16>, %arg3: tensor<3xui16>) -> (tensor<2xf32>, tensor<3xui16>) {
    %0 = stablehlo.add %arg0, %arg1 : tensor<2xf32>
    %1 = stablehlo.subtract %0, %arg1 : tensor<2xf32>
    %2 = stablehlo.multiply %1, %arg1 : tensor<2xf32>
    %3 = stablehlo.divide %2, %arg1 : tensor<2xf32>
    %4 = stablehlo.remainder %3, %arg1 : tensor<2xf32>
    %5 = stablehlo.maximum %4, %arg1 : tensor<2xf32>
    %6 = stablehlo.minimum %5, %arg1 : tensor<2xf32>
    %7 = stablehlo.power %6, %arg1 : tensor<2xf32>
    %8 = stablehlo.atan2 %7, %arg1 : tensor<2xf32>
    %9 = stablehlo.and %arg2, %arg3 : tensor<3xui16>
    %10 = stablehlo.or %9, %arg3 : tensor<3xui16>
    %11 = stablehlo.xor %10, %arg3 : tensor<3xui16>
    %12 = stablehlo.shift_left %11, %arg3 : tensor<3xui16>
    %13 = stablehlo.shift_right_arithmetic %12, %arg3 : tensor<3xui16>
    %14 = stablehlo.shift_right_logical %13, %arg3 : tensor<3xui16>
    return %8, %14 : tensor<2xf32>, tensor<3xui16>
  }
}
