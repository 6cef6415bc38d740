module @index attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<9x4xf32>, %arg1: tensor<2x3xi32>, %arg2: tensor<2x3x4xf32>, %arg3: tensor<i64>) -> (tensor<2x2xf32>, tensor<9x4xf32>) {
    %0 = "stablehlo.gather"(%arg0, %arg1) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 4>}> : (tensor<9x4xf32>, tensor<2x3xi32>) -> tensor<2x3x4xf32>
    %1 = "stablehlo.scatter"(%arg0, %arg1, %arg2) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = false}> ({
      ^bb0(%2: tensor<f32>, %3: tensor<f32>):
      %4 = stablehlo.add %2, %3 : tensor<f32>
      stablehlo.return %4 : tensor<f32>
    }) : (tensor<9x4xf32>, tensor<2x3xi32>, tensor<2x3x4xf32>) -> tensor<9x4xf32>
    %5 = "stablehlo.scatter"(%1, %arg1, %0) <{indices_are_sorted = true, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = true}> ({
      ^bb0(%6: tensor<f32>, %7: tensor<f32>):
      %8 = stablehlo.maximum %6, %7 : tensor<f32>
      stablehlo.return %8 : tensor<f32>
    }) : (tensor<9x4xf32>, tensor<2x3xi32>, tensor<2x3x4xf32>) -> tensor<9x4xf32>
    %9 = stablehlo.dynamic_slice %5, %arg3, %arg3, sizes = [2, 2] : (tensor<9x4xf32>, tensor<i64>, tensor<i64>) -> tensor<2x2xf32>
    %10 = stablehlo.dynamic_update_slice %5, %9, %arg3, %arg3 : (tensor<9x4xf32>, tensor<2x2xf32>, tensor<i64>, tensor<i64>) -> tensor<9x4xf32>
    return %9, %10 : tensor<2x2xf32>, tensor<9x4xf32>
  }
}
