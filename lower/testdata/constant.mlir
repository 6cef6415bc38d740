module @constant attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<2x2xf32>, tensor<f32>, tensor<3xf32>, tensor<3xf32>, tensor<f32>, tensor<2xbf16>, tensor<2xbf16>, tensor<2xf16>, tensor<2xf64>, tensor<2xi64>, tensor<2xui64>, tensor<2xi1>, tensor<2x2xf32>, tensor<2x2xi1>, tensor<2xi32>, tensor<2xbf16>, tensor<2xf16>, tensor<2xi8>, tensor<1xf32>, tensor<0x2xf32>) {
    %0 = stablehlo.constant dense<0.5> : tensor<2x2xf32>
    %1 = stablehlo.constant dense<0x3DCCCCCD> : tensor<f32>
    %2 = stablehlo.constant dense<-0.0> : tensor<3xf32>
    %3 = stablehlo.constant dense<0x7FC00000> : tensor<3xf32>
    %4 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %5 = stablehlo.constant dense<3.140625> : tensor<2xbf16>
    %6 = stablehlo.constant dense<0x3DCD> : tensor<2xbf16>
    %7 = stablehlo.constant dense<65504.0> : tensor<2xf16>
    %8 = stablehlo.constant dense<0x3FB999999999999A> : tensor<2xf64>
    %9 = stablehlo.constant dense<-9223372036854775808> : tensor<2xi64>
    %10 = stablehlo.constant dense<18446744073709551615> : tensor<2xui64>
    %11 = stablehlo.constant dense<true> : tensor<2xi1>
    %12 = stablehlo.constant dense<"0x0000803F00000040CDCCCC3D000080FF"> : tensor<2x2xf32>
    %13 = stablehlo.constant dense<[[true, false], [false, true]]> : tensor<2x2xi1>
    %14 = stablehlo.constant dense<"0xFFFFFFFF02000000"> : tensor<2xi32>
    %15 = stablehlo.constant dense<"0x803F00C0"> : tensor<2xbf16>
    %16 = stablehlo.constant dense<"0x003C00C0"> : tensor<2xf16>
    %17 = stablehlo.constant dense<"0xFF02"> : tensor<2xi8>
    %18 = stablehlo.constant dense<7.0> : tensor<1xf32>
    %19 = stablehlo.constant dense<> : tensor<0x2xf32>
    return %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19 : tensor<2x2xf32>, tensor<f32>, tensor<3xf32>, tensor<3xf32>, tensor<f32>, tensor<2xbf16>, tensor<2xbf16>, tensor<2xf16>, tensor<2xf64>, tensor<2xi64>, tensor<2xui64>, tensor<2xi1>, tensor<2x2xf32>, tensor<2x2xi1>, tensor<2xi32>, tensor<2xbf16>, tensor<2xf16>, tensor<2xi8>, tensor<1xf32>, tensor<0x2xf32>
  }
}
