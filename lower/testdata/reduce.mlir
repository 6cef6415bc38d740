module @reduce attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x3xf32>, %arg1: tensor<2x3xi1>, %arg2: tensor<2x3xui8>, %arg3: tensor<2x3xi16>) -> (tensor<2xf32>, tensor<f32>, tensor<3xf32>, tensor<3xf32>, tensor<2xi1>, tensor<2xi1>, tensor<2xui8>, tensor<2xui8>, tensor<2xi16>, tensor<2xi16>, tensor<2xui8>) {
    %0 = stablehlo.constant dense<0.0> : tensor<f32>
    %1 = stablehlo.reduce(%arg0 init: %0) applies stablehlo.add across dimensions = [1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
    %2 = stablehlo.constant dense<1.0> : tensor<f32>
    %3 = stablehlo.reduce(%arg0 init: %2) applies stablehlo.multiply across dimensions = [0, 1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<f32>
    %4 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %5 = stablehlo.reduce(%arg0 init: %4) applies stablehlo.maximum across dimensions = [0] : (tensor<2x3xf32>, tensor<f32>) -> tensor<3xf32>
    %6 = stablehlo.constant dense<0x7F800000> : tensor<f32>
    %7 = stablehlo.reduce(%arg0 init: %6) applies stablehlo.minimum across dimensions = [0] : (tensor<2x3xf32>, tensor<f32>) -> tensor<3xf32>
    %8 = stablehlo.constant dense<true> : tensor<i1>
    %9 = stablehlo.reduce(%arg1 init: %8) applies stablehlo.and across dimensions = [1] : (tensor<2x3xi1>, tensor<i1>) -> tensor<2xi1>
    %10 = stablehlo.constant dense<false> : tensor<i1>
    %11 = stablehlo.reduce(%arg1 init: %10) applies stablehlo.or across dimensions = [1] : (tensor<2x3xi1>, tensor<i1>) -> tensor<2xi1>
    %12 = stablehlo.constant dense<0> : tensor<ui8>
    %13 = stablehlo.reduce(%arg2 init: %12) applies stablehlo.xor across dimensions = [1] : (tensor<2x3xui8>, tensor<ui8>) -> tensor<2xui8>
    %14 = stablehlo.constant dense<255> : tensor<ui8>
    %15 = stablehlo.reduce(%arg2 init: %14) applies stablehlo.and across dimensions = [1] : (tensor<2x3xui8>, tensor<ui8>) -> tensor<2xui8>
    %16 = stablehlo.constant dense<-32768> : tensor<i16>
    %17 = stablehlo.reduce(%arg3 init: %16) applies stablehlo.maximum across dimensions = [1] : (tensor<2x3xi16>, tensor<i16>) -> tensor<2xi16>
    %18 = stablehlo.constant dense<-1> : tensor<i16>
    %19 = stablehlo.reduce(%arg3 init: %18) applies stablehlo.and across dimensions = [1] : (tensor<2x3xi16>, tensor<i16>) -> tensor<2xi16>
    %20 = stablehlo.constant dense<255> : tensor<ui8>
    %21 = stablehlo.reduce(%arg2 init: %20) applies stablehlo.minimum across dimensions = [1] : (tensor<2x3xui8>, tensor<ui8>) -> tensor<2xui8>
    return %1, %3, %5, %7, %9, %11, %13, %15, %17, %19, %21 : tensor<2xf32>, tensor<f32>, tensor<3xf32>, tensor<3xf32>, tensor<2xi1>, tensor<2xi1>, tensor<2xui8>, tensor<2xui8>, tensor<2xi16>, tensor<2xi16>, tensor<2xui8>
  }
}
