module @unary attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x3xf32>, %arg1: tensor<4xi32>, %arg2: tensor<2xi1>) -> (tensor<2x3xi1>, tensor<4xi32>, tensor<2xi1>, tensor<4x4xui8>) {
    %0 = stablehlo.abs %arg0 : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %1 = stablehlo.ceil %0 : tensor<2x3xf32>
    %2 = stablehlo.cosine %1 : tensor<2x3xf32>
    %3 = chlo.erf %2 : tensor<2x3xf32> -> tensor<2x3xf32>
    %4 = stablehlo.exponential %3 : tensor<2x3xf32>
    %5 = stablehlo.exponential_minus_one %4 : tensor<2x3xf32>
    %6 = stablehlo.floor %5 : tensor<2x3xf32>
    %7 = stablehlo.log %6 : tensor<2x3xf32>
    %8 = stablehlo.log_plus_one %7 : tensor<2x3xf32>
    %9 = stablehlo.logistic %8 : tensor<2x3xf32>
    %10 = stablehlo.negate %9 : tensor<2x3xf32>
    %11 = stablehlo.round_nearest_even %10 : tensor<2x3xf32>
    %12 = stablehlo.rsqrt %11 : tensor<2x3xf32>
    %13 = stablehlo.sign %12 : tensor<2x3xf32>
    %14 = stablehlo.sine %13 : tensor<2x3xf32>
    %15 = stablehlo.sqrt %14 : tensor<2x3xf32>
    %16 = stablehlo.tanh %15 : tensor<2x3xf32>
    %17 = stablehlo.is_finite %16 : (tensor<2x3xf32>) -> tensor<2x3xi1>
    %18 = stablehlo.popcnt %arg1 : tensor<4xi32>
    %19 = stablehlo.count_leading_zeros %18 : tensor<4xi32>
    %20 = stablehlo.not %19 : tensor<4xi32>
    %21 = stablehlo.not %arg2 : tensor<2xi1>
    %22 = stablehlo.bitcast_convert %arg1 : (tensor<4xi32>) -> tensor<4x4xui8>
    return %17, %20, %21, %22 : tensor<2x3xi1>, tensor<4xi32>, tensor<2xi1>, tensor<4x4xui8>
  }
}
