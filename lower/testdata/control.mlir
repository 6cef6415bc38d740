module @control attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<i32>, %arg1: tensor<4xf32>, %arg2: tensor<i1>) -> (tensor<i32>, tensor<4xf32>, tensor<4xf32>) {
    %0:2 = "stablehlo.while"(%arg0, %arg1) ({
      ^bb0(%1: tensor<i32>, %2: tensor<4xf32>):
      %3 = stablehlo.constant dense<0> : tensor<i32>
      %4 = stablehlo.compare GT, %1, %3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %4 : tensor<i1>
    }, {
      ^bb0(%5: tensor<i32>, %6: tensor<4xf32>):
      %7 = stablehlo.constant dense<1> : tensor<i32>
      %8 = stablehlo.subtract %5, %7 : tensor<i32>
      %9 = stablehlo.sine %6 : tensor<4xf32>
      stablehlo.return %8, %9 : tensor<i32>, tensor<4xf32>
    }) : (tensor<i32>, tensor<4xf32>) -> (tensor<i32>, tensor<4xf32>)
    %10 = "stablehlo.if"(%arg2) ({
      %11 = stablehlo.negate %0#1 : tensor<4xf32>
      stablehlo.return %11 : tensor<4xf32>
    }, {
      stablehlo.return %0#1 : tensor<4xf32>
    }) : (tensor<i1>) -> tensor<4xf32>
    %12:2 = "stablehlo.sort"(%10, %arg1) <{dimension = 0 : i64, is_stable = true}> ({
      ^bb0(%13: tensor<f32>, %14: tensor<f32>, %15: tensor<f32>, %16: tensor<f32>):
      %17 = stablehlo.compare LT, %13, %14, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %17 : tensor<i1>
    }) : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
    %18:2 = stablehlo.optimization_barrier %12#0, %12#1 : tensor<4xf32>, tensor<4xf32>
    return %0#0, %18#0, %18#1 : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  }
}
