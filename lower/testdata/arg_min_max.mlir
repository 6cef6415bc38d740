module @arg_min_max attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x3xf32>, %arg1: tensor<2x3xi32>) -> (tensor<2xi32>, tensor<3xi64>, tensor<2xui8>) {
    %0 = stablehlo.iota dim = 1 : tensor<2x3xi32>
    %1 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %2 = stablehlo.constant dense<2147483647> : tensor<i32>
    %3:2 = "stablehlo.reduce"(%arg0, %0, %1, %2) <{dimensions = array<i64: 1>}> ({
      ^bb0(%4: tensor<f32>, %5: tensor<i32>, %6: tensor<f32>, %7: tensor<i32>):
      %8 = stablehlo.compare GT, %4, %6, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %9 = stablehlo.compare EQ, %4, %6, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %10 = stablehlo.compare NE, %4, %4, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %11 = stablehlo.compare NE, %6, %6, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %12 = stablehlo.not %11 : tensor<i1>
      %13 = stablehlo.and %10, %12 : tensor<i1>
      %14 = stablehlo.and %10, %11 : tensor<i1>
      %15 = stablehlo.or %8, %13 : tensor<i1>
      %16 = stablehlo.or %9, %14 : tensor<i1>
      %17 = stablehlo.compare LT, %5, %7, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %18 = stablehlo.and %16, %17 : tensor<i1>
      %19 = stablehlo.or %15, %18 : tensor<i1>
      %20 = stablehlo.select %19, %4, %6 : tensor<i1>, tensor<f32>
      %21 = stablehlo.select %19, %5, %7 : tensor<i1>, tensor<i32>
      stablehlo.return %20, %21 : tensor<f32>, tensor<i32>
    }) : (tensor<2x3xf32>, tensor<2x3xi32>, tensor<f32>, tensor<i32>) -> (tensor<2xf32>, tensor<2xi32>)
    %22 = stablehlo.iota dim = 0 : tensor<2x3xi64>
    %23 = stablehlo.constant dense<2147483647> : tensor<i32>
    %24 = stablehlo.constant dense<9223372036854775807> : tensor<i64>
    %25:2 = "stablehlo.reduce"(%arg1, %22, %23, %24) <{dimensions = array<i64: 0>}> ({
      ^bb0(%26: tensor<i32>, %27: tensor<i64>, %28: tensor<i32>, %29: tensor<i64>):
      %30 = stablehlo.compare LT, %26, %28, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %31 = stablehlo.compare EQ, %26, %28, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %32 = stablehlo.compare LT, %27, %29, SIGNED : (tensor<i64>, tensor<i64>) -> tensor<i1>
      %33 = stablehlo.and %31, %32 : tensor<i1>
      %34 = stablehlo.or %30, %33 : tensor<i1>
      %35 = stablehlo.select %34, %26, %28 : tensor<i1>, tensor<i32>
      %36 = stablehlo.select %34, %27, %29 : tensor<i1>, tensor<i64>
      stablehlo.return %35, %36 : tensor<i32>, tensor<i64>
    }) : (tensor<2x3xi32>, tensor<2x3xi64>, tensor<i32>, tensor<i64>) -> (tensor<3xi32>, tensor<3xi64>)
    %37 = stablehlo.iota dim = 1 : tensor<2x3xi32>
    %38 = stablehlo.constant dense<0x7F800000> : tensor<f32>
    %39 = stablehlo.constant dense<2147483647> : tensor<i32>
    %40:2 = "stablehlo.reduce"(%arg0, %37, %38, %39) <{dimensions = array<i64: 1>}> ({
      ^bb0(%41: tensor<f32>, %42: tensor<i32>, %43: tensor<f32>, %44: tensor<i32>):
      %45 = stablehlo.compare LT, %41, %43, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %46 = stablehlo.compare EQ, %41, %43, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %47 = stablehlo.compare NE, %41, %41, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %48 = stablehlo.compare NE, %43, %43, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %49 = stablehlo.not %48 : tensor<i1>
      %50 = stablehlo.and %47, %49 : tensor<i1>
      %51 = stablehlo.and %47, %48 : tensor<i1>
      %52 = stablehlo.or %45, %50 : tensor<i1>
      %53 = stablehlo.or %46, %51 : tensor<i1>
      %54 = stablehlo.compare LT, %42, %44, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %55 = stablehlo.and %53, %54 : tensor<i1>
      %56 = stablehlo.or %52, %55 : tensor<i1>
      %57 = stablehlo.select %56, %41, %43 : tensor<i1>, tensor<f32>
      %58 = stablehlo.select %56, %42, %44 : tensor<i1>, tensor<i32>
      stablehlo.return %57, %58 : tensor<f32>, tensor<i32>
    }) : (tensor<2x3xf32>, tensor<2x3xi32>, tensor<f32>, tensor<i32>) -> (tensor<2xf32>, tensor<2xi32>)
    %59 = stablehlo.convert %40#1 : (tensor<2xi32>) -> tensor<2xui8>
    return %3#1, %25#1, %59 : tensor<2xi32>, tensor<3xi64>, tensor<2xui8>
  }
}
