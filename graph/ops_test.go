package graph

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
)

// A case is "operand types | op, attributes, regions | result types". The module around it has the private func @half, which
// takes and gives one f32[2].

// comparator and friends are regions of the cases.
const (
	comparator = `region { %a = input "a" : f32[] %b = input "b" : f32[] %r = compare %a, %b {direction = "LT"} : bool[] return %r }`
	condition  = `region { %a = input "a" : f32[2] %r = constant {value = splat<bool: true>} : bool[] return %r }`
	identity   = `region { %a = input "a" : f32[2] return %a }`
	identity3  = `region { %a = input "a" : f32[3] return %a }`
	nothing    = `region { return }`
)

const (
	gatherAttrs  = `{offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1, slice_sizes = [1, 5]}`
	scatterAttrs = `{update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1, combiner = "add"}`
	convDims     = `input_batch_dimension = 0, input_feature_dimension = 1, input_spatial_dimensions = [2, 3], ` +
		`kernel_output_feature_dimension = 0, kernel_input_feature_dimension = 1, kernel_spatial_dimensions = [2, 3], ` +
		`output_batch_dimension = 0, output_feature_dimension = 1, output_spatial_dimensions = [2, 3]`
	windowAttrs = `window_dimensions = [2, 2], combiner = "maximum"`
)

// validOps has at least one case for every op.
var validOps = []string{
	`| constant {value = splat<f32: 1>} | f32[2,3]`,
	`| constant {value = dense<i8: -1, 2>} | i8[2]`,
	`| constant {value = dense<0x>} | f32[0]`,
	`| constant {value = dense<0x21>} | u4[2]`,
	`| iota {iota_dimension = 1} | i32[2,3]`,
	`f32[2] | abs | f32[2]`, `c64[2] | abs | f32[2]`, `i8[2] | abs | i8[2]`,
	`f32[2] | ceil | f32[2]`, `f32[2] | cosine | f32[2]`, `bf16[2] | erf | bf16[2]`, `f32[2] | exponential | f32[2]`,
	`f32[2] | exponential_minus_one | f32[2]`, `f32[2] | floor | f32[2]`, `f32[2] | is_finite | bool[2]`, `f32[2] | log | f32[2]`,
	`f32[2] | log_plus_one | f32[2]`, `f32[2] | logistic | f32[2]`, `c64[2] | negate | c64[2]`, `bool[2] | not | bool[2]`,
	`f32[2] | round_nearest_even | f32[2]`, `f32[2] | rsqrt | f32[2]`, `f32[2] | sign | f32[2]`, `f32[2] | sine | f32[2]`,
	`f32[2] | sqrt | f32[2]`, `f32[2] | tanh | f32[2]`, `u8[2] | popcnt | u8[2]`, `i32[2] | count_leading_zeros | i32[2]`,
	`f32[2] | convert | bf16[2]`, `bool[] | convert | i32[]`,
	`f32[2] | bitcast_convert | i32[2]`, `f32[2] | bitcast_convert | u8[2,4]`, `u8[2,4] | bitcast_convert | f32[2]`, `u8[3] | bitcast_convert | u4[3,2]`,
	`f32[2], f32[2] | add | f32[2]`, `f32[2], f32[2] | subtract | f32[2]`, `f32[2], f32[2] | multiply | f32[2]`,
	`f32[2], f32[2] | divide | f32[2]`, `f32[2], f32[2] | remainder | f32[2]`, `f32[2], f32[2] | maximum | f32[2]`,
	`f32[2], f32[2] | minimum | f32[2]`, `f32[2], f32[2] | power | f32[2]`, `bool[2], bool[2] | and | bool[2]`,
	`i32[2], i32[2] | or | i32[2]`, `u8[2], u8[2] | xor | u8[2]`, `f32[2], f32[2] | atan2 | f32[2]`,
	`i32[2], i32[2] | shift_left | i32[2]`, `i32[2], i32[2] | shift_right_arithmetic | i32[2]`, `i32[2], i32[2] | shift_right_logical | i32[2]`,
	`f32[2], f32[2] | compare {direction = "LT"} | bool[2]`, `f32[2], f32[2] | compare {direction = "GE", total = true} | bool[2]`,
	`bool[2], f32[2], f32[2] | select | f32[2]`, `bool[], f32[2], f32[2] | select | f32[2]`,
	`f32[], f32[2], f32[] | clamp | f32[2]`, `f32[2], f32[2], f32[2] | clamp | f32[2]`,
	`f32[3,1] | broadcast_in_dim {broadcast_dimensions = [1, 2]} | f32[2,3,4]`, `f32[] | broadcast_in_dim {broadcast_dimensions = []} | f32[2]`,
	`f32[2,3] | reshape | f32[3,2,1]`, `f32[0,3] | reshape | f32[7,0]`,
	`f32[2,3,4] | transpose {permutation = [2, 0, 1]} | f32[4,2,3]`,
	`f32[5,4] | slice {start_indices = [0, 1], limit_indices = [5, 4], strides = [2, 1]} | f32[3,3]`, `f32[5] | slice {start_indices = [2], limit_indices = [2]} | f32[0]`,
	`f32[2,3], f32[2,0], f32[2,4] | concatenate {dimension = 1} | f32[2,7]`, `f32[2] | concatenate {dimension = 0} | f32[2]`,
	`f32[3], f32[] | pad {edge_padding_low = [1], edge_padding_high = [-1], interior_padding = [2]} | f32[7]`, `f32[3], f32[] | pad | f32[3]`,
	`f32[2,3] | reverse {dimensions = [1]} | f32[2,3]`,
	`f32[7,5], i32[4,1] | gather ` + gatherAttrs + ` | f32[4,5]`,
	`f32[7,5], i32[4] | gather {offset_dims = [0], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1, slice_sizes = [1, 3]} | f32[3,4]`,
	`f32[7,5], i32[4,1], f32[4,5] | scatter ` + scatterAttrs + ` | f32[7,5]`,
	`f32[7,5], i32[4,1], f32[4,3] | scatter ` + scatterAttrs + ` | f32[7,5]`,
	`f32[7,5], i32[], i32[] | dynamic_slice {slice_sizes = [1, 5]} | f32[1,5]`, `f32[] | dynamic_slice {slice_sizes = []} | f32[]`,
	`f32[7,5], f32[1,5], i32[], i32[] | dynamic_update_slice | f32[7,5]`,
	`f32[2,3] | reduce {dimensions = [1], combiner = "add"} | f32[2]`, `bool[2,3] | reduce {dimensions = [0, 1], combiner = "or"} | bool[]`,
	`f32[2,3] | arg_min_max {dimension = 1, min = false} | i32[2]`,
	`f32[4,4] | reduce_window {window_dimensions = [2, 2], combiner = "maximum"} | f32[3,3]`,
	`f32[4,4] | reduce_window {window_dimensions = [3, 3], window_strides = [2, 2], padding = [[1, 1], [0, 1]], combiner = "add"} | f32[2,2]`,
	`f32[4] | reduce_window {window_dimensions = [2], base_dilations = [2], window_dilations = [3], combiner = "add"} | f32[4]`,
	`f32[2,3], f32[4,3] | dot_general {lhs_contracting = [1], rhs_contracting = [1]} | f32[2,4]`,
	`bf16[6,2,3], bf16[6,3,5] | dot_general {lhs_batching = [0], rhs_batching = [0], lhs_contracting = [2], rhs_contracting = [1], precision = "HIGHEST"} | f32[6,2,5]`,
	`f32[2], f32[3] | dot_general {lhs_contracting = [], rhs_contracting = []} | f32[2,3]`,
	`f32[1,3,8,8], f32[4,3,3,3] | convolution {` + convDims + `, padding = [[1, 1], [1, 1]], window_strides = [2, 2]} | f32[1,4,4,4]`,
	`f32[1,4,8,8], f32[4,2,3,3] | convolution {` + convDims + `, feature_group_count = 2} | f32[1,4,6,6]`,
	`f32[2,3,8,8], f32[4,3,1,1] | convolution {` + convDims + `, batch_group_count = 2} | f32[1,4,8,8]`,
	`f32[1,3,2,2], f32[4,3,3,3] | convolution {` + convDims + `, lhs_dilation = [3, 3], rhs_dilation = [1, 2]} | f32[1,4,2,0]`,
	`f32[2,3], f32[3,4] | convolution {input_batch_dimension = 0, input_feature_dimension = 1, input_spatial_dimensions = [], kernel_input_feature_dimension = 0, kernel_output_feature_dimension = 1, kernel_spatial_dimensions = [], output_batch_dimension = 1, output_feature_dimension = 0, output_spatial_dimensions = []} | f32[4,2]`,
	`u64[3] | rng_bit_generator {algorithm = "PHILOX"} | u64[3], u32[4]`,
	`f32[2], i32[] | optimization_barrier | f32[2], i32[]`,
	`f32[2,3] | sort {dimension = 1, is_stable = true} ` + comparator + ` | f32[2,3]`,
	`f32[2] | while ` + condition + identity + ` | f32[2]`,
	`bool[], f32[2] | if ` + identity + identity + ` | f32[2]`,
	`f32[2] | call {callee = "half"} | f32[2]`,
}

// invalidOps breaks the constraints that the key names, one case or more each ("dot_general C7").
var invalidOps = map[string][]string{
	"constant C1":  {`| constant {value = dense<f32: 1>} | f32[2]`, `| constant {value = splat<0x0000>} | f32[2]`, `| constant {value = dense<f32: 1, 2>} | bf16[2]`},
	"constant C2":  {`| constant {value = splat<0x02>} | bool[]`, `| constant {value = dense<0x0100ff>} | bool[3]`},
	"constant A2":  {`| constant | f32[]`},
	"constant A3":  {`| constant {value = 1} | f32[]`},
	"iota C1":      {`| iota {iota_dimension = 2} | i32[2,3]`, `| iota {iota_dimension = -1} | i32[2,3]`},
	"iota C2":      {`| iota {iota_dimension = 0} | bool[2]`},
	"abs A1":       {`| abs | f32[]`, `f32[], f32[] | abs | f32[]`},
	"abs A2":       {`f32[] | abs {total = true} | f32[]`},
	"abs A6":       {`f32[2] | abs ` + identity + ` | f32[2]`},
	"abs R1":       {`f32[] | abs | f32[], f32[]`, `f32[] | abs |`},
	"abs C1":       {`f32[2] | abs | f32[3]`},
	"abs C2":       {`c64[2] | abs | c64[2]`},
	"is_finite C1": {`f32[2] | is_finite | bool[3]`}, "is_finite C2": {`f32[2] | is_finite | f32[2]`},
	"convert C1":         {`f32[2] | convert | bf16[3]`},
	"bitcast_convert C1": {`f32[2] | bitcast_convert | i32[3]`, `f32[2] | bitcast_convert | u8[2]`, `f32[2] | bitcast_convert | u8[2,3]`, `u8[3,4] | bitcast_convert | f32[4]`},
	"bitcast_convert C2": {`c64[2] | bitcast_convert | u64[2]`},
	"bitcast_convert C3": {`u8[2] | bitcast_convert | bool[2]`},
	"add C1":             {`f32[2], f32[3] | add | f32[2]`, `f32[2], bf16[2] | add | f32[2]`, `f32[2], f32[] | add | f32[2]`, `f32[2], f32[2] | add | bf16[2]`},
	"compare A4":         {`f32[2], f32[2] | compare {direction = "lt"} | bool[2]`},
	"compare C1":         {`f32[2], i32[2] | compare {direction = "LT"} | bool[2]`},
	"compare C2":         {`f32[2], f32[3] | compare {direction = "LT"} | bool[2]`, `f32[2], f32[2] | compare {direction = "LT"} | bool[3]`},
	"compare C3":         {`i32[2], i32[2] | compare {direction = "LT", total = true} | bool[2]`},
	"compare C4":         {`f32[2], f32[2] | compare {direction = "LT"} | f32[2]`},
	"compare C5":         {`c64[2], c64[2] | compare {direction = "LT"} | bool[2]`},
	"select C1":          {`bool[3], f32[2], f32[2] | select | f32[2]`},
	"select C2":          {`bool[2], f32[2], i32[2] | select | f32[2]`, `bool[], f32[2], f32[3] | select | f32[2]`, `bool[2], f32[2], f32[2] | select | f32[3]`},
	"clamp C1":           {`f32[3], f32[2], f32[] | clamp | f32[2]`},
	"clamp C2":           {`f32[], f32[2], f32[3] | clamp | f32[2]`},
	"clamp C3":           {`i32[], f32[2], f32[] | clamp | f32[2]`, `f32[], f32[2], i32[] | clamp | f32[2]`},
	"clamp C4":           {`f32[], f32[2], f32[] | clamp | f32[3]`},

	"broadcast_in_dim C1": {`f32[2] | broadcast_in_dim {broadcast_dimensions = [0]} | i32[2]`},
	"broadcast_in_dim C2": {`f32[2] | broadcast_in_dim {broadcast_dimensions = []} | f32[2]`},
	"broadcast_in_dim C3": {`f32[2] | broadcast_in_dim {broadcast_dimensions = [1]} | f32[2]`, `f32[2] | broadcast_in_dim {broadcast_dimensions = [-1]} | f32[2]`},
	"broadcast_in_dim C4": {`f32[2,2] | broadcast_in_dim {broadcast_dimensions = [0, 0]} | f32[2,2]`},
	"broadcast_in_dim C5": {`f32[2] | broadcast_in_dim {broadcast_dimensions = [0]} | f32[4]`},
	"reshape C1":          {`f32[2] | reshape | i32[2]`},
	"reshape C2":          {`f32[2,3] | reshape | f32[5]`, `f32[2,3] | reshape | f32[0]`},
	"transpose C1":        {`f32[2,3] | transpose {permutation = [1, 0]} | i32[3,2]`},
	"transpose C2":        {`f32[2,3] | transpose {permutation = [1]} | f32[3,2]`, `f32[2,3] | transpose {permutation = [1, 1]} | f32[3,3]`, `f32[2,3] | transpose {permutation = [1, 2]} | f32[3,2]`},
	"transpose C3":        {`f32[2,3] | transpose {permutation = [1, 0]} | f32[2,3]`},
	"slice C1":            {`f32[5] | slice {start_indices = [0], limit_indices = [5]} | i32[5]`},
	"slice C2":            {`f32[5] | slice {start_indices = [0, 0], limit_indices = [5]} | f32[5]`, `f32[5] | slice {start_indices = [0], limit_indices = []} | f32[5]`, `f32[5] | slice {start_indices = [0], limit_indices = [5], strides = [1, 1]} | f32[5]`},
	"slice C3":            {`f32[5] | slice {start_indices = [-1], limit_indices = [5]} | f32[6]`, `f32[5] | slice {start_indices = [3], limit_indices = [2]} | f32[0]`, `f32[5] | slice {start_indices = [0], limit_indices = [6]} | f32[6]`},
	"slice C4":            {`f32[5] | slice {start_indices = [0], limit_indices = [5], strides = [0]} | f32[5]`},
	"slice C5":            {`f32[5] | slice {start_indices = [0], limit_indices = [5], strides = [2]} | f32[2]`},
	"concatenate A1":      {`| concatenate {dimension = 0} | f32[2]`},
	"concatenate C1":      {`f32[2], i32[2] | concatenate {dimension = 0} | f32[4]`},
	"concatenate C2":      {`f32[2,3], f32[3,3] | concatenate {dimension = 1} | f32[2,6]`, `f32[2,3], f32[2] | concatenate {dimension = 1} | f32[2,6]`},
	"concatenate C4":      {`f32[2], f32[2] | concatenate {dimension = 1} | f32[4]`, `f32[2], f32[2] | concatenate {dimension = -1} | f32[4]`},
	"concatenate C5":      {`f32[2], f32[2] | concatenate {dimension = 0} | i32[4]`},
	"concatenate C6":      {`f32[2], f32[2] | concatenate {dimension = 0} | f32[5]`},
	"pad C1":              {`f32[3], i32[] | pad | f32[3]`, `f32[3], f32[] | pad | i32[3]`},
	"pad C2":              {`f32[3], f32[] | pad {edge_padding_low = [0, 0]} | f32[3]`, `f32[3], f32[] | pad {edge_padding_high = []} | f32[3]`, `f32[3], f32[] | pad {interior_padding = []} | f32[3]`},
	"pad C3":              {`f32[3], f32[] | pad {interior_padding = [-1]} | f32[1]`},
	"pad C4":              {`f32[3], f32[] | pad {edge_padding_low = [1]} | f32[3]`, `f32[3], f32[] | pad {edge_padding_low = [-4]} | f32[0]`},
	"pad R3":              {`f32[3], f32[] | pad {edge_padding_low = [9223372036854775807]} | f32[3]`, `f32[3], f32[] | pad {interior_padding = [9223372036854775807]} | f32[3]`, `f32[3,3], f32[] | pad {edge_padding_low = [2147483648, 2147483648]} | f32[3,3]`},
	"reverse C1":          {`f32[2,3] | reverse {dimensions = [1]} | f32[3,2]`},
	"reverse C2":          {`f32[2,3] | reverse {dimensions = [1, 1]} | f32[2,3]`},
	"reverse C3":          {`f32[2,3] | reverse {dimensions = [2]} | f32[2,3]`},

	"gather C1":  {`f32[7,5], i32[4,1] | gather {offset_dims = [1], collapsed_slice_dims = [], start_index_map = [0], index_vector_dim = 1, slice_sizes = [1, 5]} | f32[4,5]`},
	"gather C2":  {`f32[7,5], i32[4,1] | gather {offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 3, slice_sizes = [1, 5]} | f32[4,5]`},
	"gather C3":  {`f32[7,5], i32[4,2] | gather ` + gatherAttrs + ` | f32[4,5]`, `f32[7,5], i32[4] | gather {offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0, 1], index_vector_dim = 1, slice_sizes = [1, 5]} | f32[4,5]`},
	"gather C4":  {`f32[7,5], i32[4,1] | gather {offset_dims = [2, 1], collapsed_slice_dims = [], start_index_map = [0], index_vector_dim = 1, slice_sizes = [1, 5]} | f32[4,1,5]`, `f32[7,5], i32[4,1] | gather {offset_dims = [1, 1], collapsed_slice_dims = [], start_index_map = [0], index_vector_dim = 1, slice_sizes = [1, 5]} | f32[4,1,5]`},
	"gather C5":  {`f32[7,5], i32[4,1] | gather {offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1, slice_sizes = [1, 5]} | f32[4,5]`},
	"gather C6":  {`f32[7,5], i32[4,1] | gather {offset_dims = [], collapsed_slice_dims = [0, 0], start_index_map = [0], index_vector_dim = 1, slice_sizes = [1, 1]} | f32[4]`},
	"gather C7":  {`f32[7,5], i32[4,1] | gather {offset_dims = [], collapsed_slice_dims = [1, 0], start_index_map = [0], index_vector_dim = 1, slice_sizes = [1, 1]} | f32[4]`},
	"gather C8":  {`f32[7,5], i32[4,1] | gather {offset_dims = [1], collapsed_slice_dims = [2], start_index_map = [0], index_vector_dim = 1, slice_sizes = [1, 5]} | f32[4,5]`},
	"gather C9":  {`f32[7,5], i32[4,1] | gather {offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1, slice_sizes = [2, 5]} | f32[4,5]`},
	"gather C18": {`f32[7,5], i32[4,2] | gather {offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0, 0], index_vector_dim = 1, slice_sizes = [1, 5]} | f32[4,5]`},
	"gather C19": {`f32[7,5], i32[4,1] | gather {offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [2], index_vector_dim = 1, slice_sizes = [1, 5]} | f32[4,5]`},
	"gather C20": {`f32[7,5], i32[4,1] | gather {offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1, slice_sizes = [1]} | f32[4,5]`},
	"gather C21": {`f32[7,5], i32[4,1] | gather {offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1, slice_sizes = [1, 6]} | f32[4,6]`, `f32[7,5], i32[4,1] | gather {offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1, slice_sizes = [1, -1]} | f32[4,5]`},
	"gather C22": {`f32[7,5], i32[4,1] | gather ` + gatherAttrs + ` | f32[5,4]`},
	"gather C23": {`f32[7,5], i32[4,1] | gather ` + gatherAttrs + ` | i32[4,5]`},

	"scatter C2":  {`f32[7,5], i32[4,1], f32[4,5] | scatter {update_window_dims = [1], inserted_window_dims = [], scatter_dims_to_operand_dims = [0], index_vector_dim = 1, combiner = "add"} | f32[7,5]`},
	"scatter C4":  {`f32[7,5], i32[4,1], f32[4,6] | scatter ` + scatterAttrs + ` | f32[7,5]`, `f32[7,5], i32[4,1], f32[3,5] | scatter ` + scatterAttrs + ` | f32[7,5]`, `f32[7,5], i32[4,1], f32[4,5,1] | scatter ` + scatterAttrs + ` | f32[7,5]`},
	"scatter C6":  {`f32[7,5], i32[4,1], bf16[4,5] | scatter ` + scatterAttrs + ` | f32[7,5]`},
	"scatter C7":  {`f32[7,5], i32[4,1], f32[4,1,5] | scatter {update_window_dims = [2, 1], inserted_window_dims = [], scatter_dims_to_operand_dims = [0], index_vector_dim = 1, combiner = "add"} | f32[7,5]`, `f32[7,5], i32[4,1], f32[4,1,5] | scatter {update_window_dims = [1, 1], inserted_window_dims = [], scatter_dims_to_operand_dims = [0], index_vector_dim = 1, combiner = "add"} | f32[7,5]`},
	"scatter C8":  {`f32[7,5], i32[4,1], f32[4,5] | scatter {update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1, combiner = "add"} | f32[7,5]`},
	"scatter C9":  {`f32[7,5], i32[4,1], f32[4] | scatter {update_window_dims = [], inserted_window_dims = [0, 0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1, combiner = "add"} | f32[7,5]`},
	"scatter C10": {`f32[7,5], i32[4,1], f32[4] | scatter {update_window_dims = [], inserted_window_dims = [1, 0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1, combiner = "add"} | f32[7,5]`},
	"scatter C11": {`f32[7,5], i32[4,1], f32[4,5] | scatter {update_window_dims = [1], inserted_window_dims = [2], scatter_dims_to_operand_dims = [0], index_vector_dim = 1, combiner = "add"} | f32[7,5]`},
	"scatter C19": {`f32[7,5], i32[4,2], f32[4,5] | scatter ` + scatterAttrs + ` | f32[7,5]`},
	"scatter C20": {`f32[7,5], i32[4,2], f32[4,5] | scatter {update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0, 0], index_vector_dim = 1, combiner = "add"} | f32[7,5]`},
	"scatter C21": {`f32[7,5], i32[4,1], f32[4,5] | scatter {update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [2], index_vector_dim = 1, combiner = "add"} | f32[7,5]`},
	"scatter C22": {`f32[7,5], i32[4,1], f32[4,5] | scatter {update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = -1, combiner = "add"} | f32[7,5]`},
	"scatter C23": {`c64[7,5], i32[4,1], c64[4,5] | scatter {update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1, combiner = "max"} | c64[7,5]`},
	"scatter C24": {`f32[7,5], i32[4,1], f32[4,5] | scatter ` + scatterAttrs + ` | f32[4,5]`},
	"scatter C25": {`f32[7,5], i32[4,1], f32[4,5] | scatter ` + scatterAttrs + ` | i32[7,5]`},

	"dynamic_slice C1":        {`f32[7], i32[] | dynamic_slice {slice_sizes = [1]} | i32[1]`},
	"dynamic_slice C2":        {`f32[7,5], i32[] | dynamic_slice {slice_sizes = [1, 5]} | f32[1,5]`, `f32[7,5], i32[], i32[] | dynamic_slice {slice_sizes = [1]} | f32[1,5]`},
	"dynamic_slice C3":        {`f32[7,5], i32[], i64[] | dynamic_slice {slice_sizes = [1, 5]} | f32[1,5]`},
	"dynamic_slice C4":        {`f32[7], i32[] | dynamic_slice {slice_sizes = [8]} | f32[8]`, `f32[7], i32[] | dynamic_slice {slice_sizes = [-1]} | f32[7]`},
	"dynamic_slice C5":        {`f32[7], i32[] | dynamic_slice {slice_sizes = [2]} | f32[3]`},
	"dynamic_update_slice C1": {`f32[7], f32[1], i32[] | dynamic_update_slice | f32[1]`, `f32[7], f32[1], i32[] | dynamic_update_slice | i32[7]`},
	"dynamic_update_slice C2": {`f32[7], i32[1], i32[] | dynamic_update_slice | f32[7]`},
	"dynamic_update_slice C3": {`f32[7], f32[], i32[] | dynamic_update_slice | f32[7]`},
	"dynamic_update_slice C4": {`f32[7], f32[1] | dynamic_update_slice | f32[7]`},
	"dynamic_update_slice C5": {`f32[7,5], f32[1,5], i32[], i64[] | dynamic_update_slice | f32[7,5]`},
	"dynamic_update_slice C6": {`f32[7], f32[8], i32[] | dynamic_update_slice | f32[7]`},

	"reduce A4":         {`f32[2] | reduce {dimensions = [0], combiner = "max"} | f32[]`},
	"reduce C4":         {`f32[2] | reduce {dimensions = [1], combiner = "add"} | f32[]`},
	"reduce C5":         {`f32[2] | reduce {dimensions = [0, 0], combiner = "add"} | f32[]`},
	"reduce C6":         {`f32[2] | reduce {dimensions = [0], combiner = "and"} | f32[]`, `c64[2] | reduce {dimensions = [0], combiner = "maximum"} | c64[]`},
	"reduce C7":         {`f32[2,3] | reduce {dimensions = [0], combiner = "add"} | f32[2]`},
	"reduce C8":         {`f32[2] | reduce {dimensions = [0], combiner = "add"} | f64[]`},
	"arg_min_max C1":    {`f32[2] | arg_min_max {dimension = 1, min = true} | i32[]`},
	"arg_min_max C2":    {`f32[2,0] | arg_min_max {dimension = 1, min = true} | i32[2]`},
	"arg_min_max C3":    {`f32[2] | arg_min_max {dimension = 0, min = true} | i32[1]`},
	"arg_min_max C4":    {`f32[2] | arg_min_max {dimension = 0, min = true} | f32[]`},
	"reduce_window C4":  {`f32[4,4] | reduce_window {window_dimensions = [2], combiner = "add"} | f32[3,3]`},
	"reduce_window C5":  {`f32[4,4] | reduce_window {window_dimensions = [2, 0], combiner = "add"} | f32[3,3]`},
	"reduce_window C6":  {`f32[4,4] | reduce_window {` + windowAttrs + `, window_strides = [1]} | f32[3,3]`},
	"reduce_window C7":  {`f32[4,4] | reduce_window {` + windowAttrs + `, window_strides = [1, 0]} | f32[3,3]`},
	"reduce_window C8":  {`f32[4,4] | reduce_window {` + windowAttrs + `, base_dilations = [1]} | f32[3,3]`},
	"reduce_window C9":  {`f32[4,4] | reduce_window {` + windowAttrs + `, base_dilations = [1, 0]} | f32[3,3]`},
	"reduce_window C10": {`f32[4,4] | reduce_window {` + windowAttrs + `, window_dilations = [1]} | f32[3,3]`},
	"reduce_window C11": {`f32[4,4] | reduce_window {` + windowAttrs + `, window_dilations = [1, 0]} | f32[3,3]`},
	"reduce_window C12": {`f32[4,4] | reduce_window {` + windowAttrs + `, padding = [[0, 0]]} | f32[3,3]`},
	"reduce_window C13": {`c64[4,4] | reduce_window {` + windowAttrs + `} | c64[3,3]`},
	"reduce_window C15": {`f32[4,4] | reduce_window {` + windowAttrs + `} | f32[4,4]`},
	"reduce_window C16": {`f32[4,4] | reduce_window {` + windowAttrs + `} | i32[3,3]`},
	"reduce_window R3":  {`f32[4,4] | reduce_window {` + windowAttrs + `, padding = [[9223372036854775807, 9223372036854775807], [0, 0]]} | f32[3,3]`, `f32[4,4] | reduce_window {` + windowAttrs + `, base_dilations = [9223372036854775807, 1]} | f32[3,3]`},

	"dot_general C1":  {`f32[2,3], f32[2,3] | dot_general {lhs_batching = [0], lhs_contracting = [1], rhs_contracting = [1]} | f32[2]`},
	"dot_general C2":  {`f32[2,3], f32[2,3] | dot_general {lhs_contracting = [1], rhs_contracting = []} | f32[2]`},
	"dot_general C3":  {`f32[2,2], f32[2,2] | dot_general {lhs_batching = [0], rhs_batching = [0], lhs_contracting = [0], rhs_contracting = [1]} | f32[2,2]`},
	"dot_general C4":  {`f32[2,2], f32[2,2] | dot_general {lhs_batching = [0], rhs_batching = [0], lhs_contracting = [1], rhs_contracting = [0]} | f32[2,2]`},
	"dot_general C5":  {`f32[2,2], f32[2,2] | dot_general {lhs_batching = [2], rhs_batching = [0], lhs_contracting = [1], rhs_contracting = [1]} | f32[2]`},
	"dot_general C6":  {`f32[2,2], f32[2,2] | dot_general {lhs_contracting = [2], rhs_contracting = [1]} | f32[2,2]`},
	"dot_general C7":  {`f32[2,2], f32[2,2] | dot_general {lhs_batching = [0], rhs_batching = [-1], lhs_contracting = [1], rhs_contracting = [1]} | f32[2]`},
	"dot_general C8":  {`f32[2,2], f32[2,2] | dot_general {lhs_contracting = [1], rhs_contracting = [5]} | f32[2,2]`},
	"dot_general C9":  {`f32[2,3], f32[4,3] | dot_general {lhs_batching = [0], rhs_batching = [0], lhs_contracting = [1], rhs_contracting = [1]} | f32[2]`},
	"dot_general C10": {`f32[2,3], f32[2,4] | dot_general {lhs_contracting = [1], rhs_contracting = [1]} | f32[2,2]`},
	"dot_general C12": {`f32[2,3], f32[4,3] | dot_general {lhs_contracting = [1], rhs_contracting = [1]} | f32[4,2]`},
	"dot_general C13": {`f32[2,3], bf16[4,3] | dot_general {lhs_contracting = [1], rhs_contracting = [1]} | f32[2,4]`},
	"dot_general C25": {`f32[2,3], f32[4,3] | dot_general {lhs_contracting = [1], rhs_contracting = [1]} | i32[2,4]`},

	"convolution C1":  {`f32[1,3,8], f32[4,3,1,1] | convolution {` + convDims + `} | f32[1,4,8,8]`, `f32[1], f32[1] | convolution {` + convDims + `} | f32[1]`},
	"convolution C2":  {conv(`window_strides = [1]`)},
	"convolution C3":  {conv(`window_strides = [1, 0]`)},
	"convolution C4":  {conv(`padding = [[0, 0]]`)},
	"convolution C5":  {conv(`lhs_dilation = [1]`)},
	"convolution C6":  {conv(`lhs_dilation = [1, 0]`)},
	"convolution C7":  {conv(`rhs_dilation = [1]`)},
	"convolution C8":  {conv(`rhs_dilation = [1, -1]`)},
	"convolution C10": {conv(`batch_group_count = 2`)},
	"convolution C11": {conv(`feature_group_count = 2`)},
	"convolution C12": {convWith("input_spatial_dimensions = [2, 3]", "input_spatial_dimensions = [2]")},
	"convolution C13": {convWith("input_spatial_dimensions = [2, 3]", "input_spatial_dimensions = [2, 2]"), convWith("input_batch_dimension = 0", "input_batch_dimension = 4"), convWith("input_batch_dimension = 0", "input_batch_dimension = 1")},
	"convolution C14": {`f32[1,3,8,8], f32[4,2,1,1] | convolution {` + convDims + `} | f32[1,4,8,8]`},
	"convolution C15": {`f32[2,3,8,8], f32[3,3,1,1] | convolution {` + convDims + `, batch_group_count = 2} | f32[1,3,8,8]`},
	"convolution C16": {`f32[1,4,8,8], f32[3,2,1,1] | convolution {` + convDims + `, feature_group_count = 2} | f32[1,3,8,8]`},
	"convolution C17": {convWith("kernel_spatial_dimensions = [2, 3]", "kernel_spatial_dimensions = []")},
	"convolution C18": {convWith("kernel_spatial_dimensions = [2, 3]", "kernel_spatial_dimensions = [1, 3]"), convWith("kernel_input_feature_dimension = 1", "kernel_input_feature_dimension = -1")},
	"convolution C19": {convWith("output_spatial_dimensions = [2, 3]", "output_spatial_dimensions = [2]")},
	"convolution C20": {convWith("output_spatial_dimensions = [2, 3]", "output_spatial_dimensions = [2, 4]"), convWith("output_feature_dimension = 1", "output_feature_dimension = 0")},
	"convolution C21": {conv(`feature_group_count = 0`)},
	"convolution C22": {conv(`batch_group_count = -1`)},
	"convolution C23": {`f32[2,4,8,8], f32[4,2,1,1] | convolution {` + convDims + `, feature_group_count = 2, batch_group_count = 2} | f32[1,4,8,8]`},
	"convolution C25": {`f32[1,3,8,8], f32[4,3,3,3] | convolution {` + convDims + `} | f32[1,4,8,8]`},
	"convolution C27": {`f32[1,3,8,8], bf16[4,3,1,1] | convolution {` + convDims + `} | f32[1,4,8,8]`, `f32[1,3,8,8], f32[4,3,1,1] | convolution {` + convDims + `} | bf16[1,4,8,8]`},
	"convolution R3":  {conv(`padding = [[-9223372036854775808, 0], [0, 0]]`), conv(`rhs_dilation = [9223372036854775807, 1]`)},

	"rng_bit_generator C1": {`u64[3] | rng_bit_generator | u64[2], u32[4]`},
	"rng_bit_generator C2": {`u64[3] | rng_bit_generator {algorithm = "THREE_FRY"} | u64[3], u32[4]`, `u64[4] | rng_bit_generator {algorithm = "PHILOX"} | u64[4], u32[4]`},
	"rng_bit_generator C3": {`u64[] | rng_bit_generator | u64[], u32[4]`},
	"rng_bit_generator C4": {`u64[3] | rng_bit_generator | u64[3], bool[4]`},
	"rng_bit_generator R1": {`u64[3] | rng_bit_generator | u64[3]`},
	"rng_bit_generator R2": {`u64[3] | rng_bit_generator |`},

	"optimization_barrier C1": {`f32[2], i32[] | optimization_barrier | i32[], f32[2]`, `f32[2] | optimization_barrier | f32[3]`},
	"sort C2":                 {`f32[2] | sort {dimension = 0} ` + comparator + ` | f32[3]`, `f32[2] | sort {dimension = 0} ` + comparator + ` | i32[2]`},
	"sort C3":                 {`f32[2], f32[3] | sort {dimension = 0} ` + comparator + ` | f32[2], f32[3]`},
	"sort C4":                 {`f32[2] | sort {dimension = 1} ` + comparator + ` | f32[2]`, `f32[2] | sort {dimension = -1} ` + comparator + ` | f32[2]`},
	"sort C5":                 {`i32[2] | sort {dimension = 0} ` + comparator + ` | i32[2]`, `f32[2], f32[2] | sort {dimension = 0} ` + comparator + ` | f32[2], f32[2]`, `f32[2] | sort {dimension = 0} ` + identity + ` | f32[2]`},
	"sort A6":                 {`f32[2] | sort {dimension = 0} | f32[2]`},
	"while C1":                {`f32[2] | while ` + identity + identity + ` | f32[2]`, `f32[3] | while ` + condition + identity3 + ` | f32[3]`},
	"while C2":                {`f32[2] | while ` + condition + identity3 + ` | f32[2]`},
	"while C3":                {`f32[2] | while ` + condition + identity + ` | f32[3]`},
	"if C1":                   {`bool[], f32[2] | if ` + identity + identity3 + ` | f32[2]`, `bool[] | if ` + identity + nothing + ` | f32[2]`},
	"if C2":                   {`bool[] | if ` + nothing + ` region { %a = constant {value = splat<f32: 1>} : f32[] return %a } |`},
	"if C3":                   {`bool[], f32[2] | if ` + identity + identity + ` | f32[3]`},
	"call C1":                 {`f32[2] | call {callee = "none"} | f32[2]`, `f32[2] | call {callee = "main"} | f32[2]`},
	"call C2":                 {`f32[3] | call {callee = "half"} | f32[2]`, `f32[2], f32[2] | call {callee = "half"} | f32[2]`},
	"call C3":                 {`f32[2] | call {callee = "half"} | f32[3]`, `f32[2] | call {callee = "half"} | i32[2]`},
}

func conv(attr string) string {
	return `f32[1,3,8,8], f32[4,3,1,1] | convolution {` + convDims + `, ` + attr + `} | f32[1,4,8,8]`
}

func convWith(old, new string) string {
	return `f32[1,3,8,8], f32[4,3,1,1] | convolution {` + strings.Replace(convDims, old, new, 1) + `} | f32[1,4,8,8]`
}

// caseModule is the text of the module for a case.
func caseModule(t testing.TB, c string) string {
	t.Helper()
	parts := strings.Split(c, "|")
	if len(parts) != 3 {
		t.Fatalf("case %q: found %d parts, wanted 3", c, len(parts))
	}
	in, node, out := strings.TrimSpace(parts[0]), strings.TrimSpace(parts[1]), strings.TrimSpace(parts[2])
	var b, operands, results strings.Builder
	b.WriteString("module @case\n\nfunc @main {\n")
	for i, s := range splitShapes(in) {
		fmt.Fprintf(&b, "%%a%d = input \"a%d\" : %s\n", i, i, s)
		fmt.Fprintf(&operands, "%s%%a%d", map[bool]string{true: ", "}[i > 0], i)
	}
	for i := range splitShapes(out) {
		fmt.Fprintf(&results, "%s%%r%d", map[bool]string{true: ", "}[i > 0], i)
	}
	op, rest, _ := strings.Cut(node, " ")
	if results.Len() > 0 {
		fmt.Fprintf(&b, "%s = ", results.String())
	}
	fmt.Fprintf(&b, "%s %s %s", op, operands.String(), rest)
	if out != "" {
		fmt.Fprintf(&b, " : %s", out)
	}
	fmt.Fprintf(&b, "\nreturn %s\n}\nfunc @half { %%x = input \"x\" : f32[2] return %%x }\n", results.String())
	return b.String()
}

// splitShapes splits a list of types.
func splitShapes(s string) []string {
	if s == "" {
		return nil
	}
	parts := strings.Split(s, "]")
	out := parts[:len(parts)-1]
	for i := range out {
		out[i] = strings.TrimLeft(out[i], ", ") + "]"
	}
	return out
}

func parseCase(t testing.TB, c string) *Module {
	t.Helper()
	m, err := Parse("case", caseModule(t, c))
	if err != nil {
		t.Fatalf("case %q: %v\n%s", c, err, caseModule(t, c))
	}
	return m
}

func TestValidOps(t *testing.T) {
	seen := map[Op]bool{}
	for _, c := range validOps {
		m := parseCase(t, c)
		n := m.Entry().Nodes[0]
		seen[n.Op] = true
		if err := Verify(m); err != nil {
			t.Errorf("%s: found %v, wanted it accepted", c, err)
			continue
		}
		again, err := Parse("printed", m.String())
		if err != nil {
			t.Errorf("%s: printed text does not parse: %v\n%s", c, err, m)
		} else if d := Diff(m, again); d != "" {
			t.Errorf("%s: differs after printing and parsing: %s", c, d)
		}
		// Without the wanted result the op infers it, or says that it cannot.
		info, _ := OpInfo(n.Op)
		got, err := Infer(n.Op, shapesOf(n.Operands), n.Attrs, n.Regions, m.Func("half"))
		var ce *ConstraintError
		switch {
		case info.NeedsResult:
			if !errors.As(err, &ce) || ce.Number != "R2" {
				t.Errorf("%s without a result: found error %v, wanted R2", c, err)
			}
		case err != nil:
			t.Errorf("%s: inference failed: %v", c, err)
		case !sameShapes(got, shapesOf(n.Results)) && n.Op != OpDot:
			t.Errorf("%s: inferred %s", c, shapeList(got))
		}
		if full := n.FullAttrs(); len(full) != len(info.Attrs) {
			t.Errorf("%s: found %d attributes with defaults, wanted %d", c, len(full), len(info.Attrs))
		}
	}
	for _, op := range Ops() {
		if !seen[op] {
			t.Errorf("no valid case for %s", op)
		}
	}
}

func TestInvalidOps(t *testing.T) {
	covered := map[string]bool{}
	check := func(key, c string) {
		t.Helper()
		op, number, _ := strings.Cut(key, " ")
		err := Verify(parseCase(t, c))
		var ve *VerifyError
		if !errors.As(err, &ve) || ve.Number != number || !strings.Contains(err.Error(), op+" "+number+": ") {
			t.Errorf("%s: %s: found error %v", key, c, err)
			return
		}
		if ve.Func != "main" || !strings.Contains(ve.Node, op) {
			t.Errorf("%s: %s: the error names func %q and node %q", key, c, ve.Func, ve.Node)
		}
		covered[key] = true
	}
	for key, cases := range invalidOps {
		op, number, _ := strings.Cut(key, " ")
		info, ok := OpInfo(Op(op))
		if !ok {
			t.Fatalf("case %s names no op", key)
		}
		if _, ok := info.Constraint(number); !ok {
			t.Errorf("case %s names no constraint of the op", key)
		}
		for _, c := range cases {
			check(key, c)
		}
	}
	// Derived cases: a result of another type for plain elementwise ops, an operand of each class that is not taken.
	for _, c := range validOps {
		m := parseCase(t, c)
		n := m.Entry().Nodes[0]
		info, _ := OpInfo(n.Op)
		parts := strings.Split(c, "|")
		if len(info.Constraints) == 1 && info.Elementwise && !info.NeedsResult {
			check(string(n.Op)+" C1", parts[0]+"|"+parts[1]+"| f32[9]")
		}
		for i, want := range info.Operands {
			number := fmt.Sprintf("%s I%d", n.Op, i+1)
			if i >= len(n.Operands) {
				continue
			}
			in := splitShapes(strings.TrimSpace(parts[0]))
			for _, bad := range []DType{dtypes.Bool, dtypes.Int32, dtypes.Uint32, dtypes.Float32, dtypes.Complex64} {
				if want.Type.Has(bad) {
					continue
				}
				changed := slices.Clone(in)
				_, dims, _ := strings.Cut(in[i], "[")
				changed[i] = DTypeName(bad) + "[" + dims
				check(number, strings.Join(changed, ", ")+"|"+parts[1]+"|"+parts[2])
			}
			if want.Scalar {
				changed := slices.Clone(in)
				dtype, _, _ := strings.Cut(in[i], "[")
				changed[i] = dtype + "[1]"
				check(number, strings.Join(changed, ", ")+"|"+parts[1]+"|"+parts[2])
			}
		}
	}
	for _, op := range Ops() {
		info, _ := OpInfo(op)
		if len(info.Constraints) == 0 {
			t.Errorf("%s has no constraint", op)
		}
		for _, c := range info.Constraints {
			if c.Text == "" || !covered[string(op)+" "+c.Number] {
				t.Errorf("no negative case for %s %s (%s)", op, c.Number, c.Text)
			}
		}
		for i, in := range info.Operands {
			if number := fmt.Sprintf("I%d", i+1); (in.Type != AnyType || in.Scalar) && !covered[string(op)+" "+number] {
				t.Errorf("no negative case for %s %s", op, number)
			}
		}
	}
	for _, c := range GeneralConstraints {
		// A5 cannot be written as text, R2 only where no result is written.
		if c.Number == "A5" {
			continue
		}
		found := false
		for key := range covered {
			found = found || strings.HasSuffix(key, " "+c.Number)
		}
		if !found {
			t.Errorf("no negative case for the general constraint %s (%s)", c.Number, c.Text)
		}
	}
}

func TestAttrsSorted(t *testing.T) {
	m := parseCase(t, `f32[2], f32[2] | compare {direction = "LT", total = true} | bool[2]`)
	n := m.Entry().Nodes[0]
	slices.Reverse(n.Attrs)
	err := Verify(m)
	var ve *VerifyError
	if !errors.As(err, &ve) || ve.Number != "A5" {
		t.Errorf("attributes out of order: found %v, wanted A5", err)
	}
}

// TestInferResult is the table of inferences that are easy to get wrong: from a case without its result to the result.
func TestInferResult(t *testing.T) {
	for _, c := range []struct{ in, node, want string }{
		{`f32[5]`, `slice {start_indices = [1], limit_indices = [5], strides = [3]}`, `f32[2]`},
		{`f32[0]`, `reduce_window {window_dimensions = [2], combiner = "add", padding = [[1, 1]]}`, `f32[1]`},
		{`f32[3]`, `reduce_window {window_dimensions = [5], combiner = "add"}`, `f32[0]`},
		{`f32[0], f32[]`, `pad {interior_padding = [3], edge_padding_low = [1]}`, `f32[1]`},
		{`f32[4,6,2], f32[4,5,6]`, `dot_general {lhs_batching = [0], rhs_batching = [0], lhs_contracting = [1], rhs_contracting = [2]}`, `f32[4,2,5]`},
		{`f32[4,6], f32[6,4]`, `dot_general {lhs_contracting = [1, 0], rhs_contracting = [0, 1]}`, `f32[]`},
		{`f32[3,4,5], i32[2,7,2]`, `gather {offset_dims = [0], collapsed_slice_dims = [0, 2], start_index_map = [0, 2], index_vector_dim = 1, slice_sizes = [1, 4, 1]}`, ``},
		{`f32[3,4,5], i32[2,7]`, `gather {offset_dims = [0], collapsed_slice_dims = [0, 2], start_index_map = [0, 2], index_vector_dim = 0, slice_sizes = [1, 4, 1]}`, `f32[4,7]`},
		{`f32[1,5,5,3], f32[3,3,3,8]`, `convolution {input_batch_dimension = 0, input_feature_dimension = 3, input_spatial_dimensions = [1, 2], kernel_input_feature_dimension = 2, kernel_output_feature_dimension = 3, kernel_spatial_dimensions = [0, 1], output_batch_dimension = 0, output_feature_dimension = 3, output_spatial_dimensions = [1, 2], padding = [[1, 1], [1, 0]]}`, `f32[1,5,4,8]`},
	} {
		m := parseCase(t, c.in+"|"+c.node+"|")
		n := m.Entry().Nodes[0]
		out, err := Infer(n.Op, shapesOf(n.Operands), n.Attrs, n.Regions, nil)
		got := strings.Trim(shapeList(out), "()")
		if c.want == "" {
			if err == nil {
				t.Errorf("%s of %s: found %s, wanted an error", c.node, c.in, got)
			}
			continue
		}
		if err != nil || got != c.want {
			t.Errorf("%s of %s: found %s, %v, wanted %s", c.node, c.in, got, err, c.want)
		}
	}
}
